"""From errors of held-out rows to the variances and tails of a predictive distribution."""
