"""Laplace approximation of trained nets: hyperparameters, held-out errors, noise models and calibration."""
