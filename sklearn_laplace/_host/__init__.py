"""Training with skorch. No other package runs skorch nets."""
