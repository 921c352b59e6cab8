"""Search for the mode of the posterior (MAP estimate), at fixed or jointly estimated hyperparameters."""

from .alternating import alternate
from .data_loss import DataLoss
from .lbfgs import refine
from .problem import Problem, gauss_newton_step, newton_decrement

__all__ = ["DataLoss", "Problem", "alternate", "gauss_newton_step", "newton_decrement", "refine"]
