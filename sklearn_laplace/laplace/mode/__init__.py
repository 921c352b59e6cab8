"""Search for the mode of the posterior (MAP estimate), at fixed or jointly estimated hyperparameters."""

from .alternating import alternate
from .problem import DataLoss, Problem, gauss_newton_step, newton_decrement, refine

__all__ = ["DataLoss", "Problem", "alternate", "gauss_newton_step", "newton_decrement", "refine"]
