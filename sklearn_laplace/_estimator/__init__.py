"""LaplaceRegressor, LaplaceClassifier and their shared code."""
