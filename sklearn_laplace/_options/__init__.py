"""Parameters of the estimators, resolved to objects."""
