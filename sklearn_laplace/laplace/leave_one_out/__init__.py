"""Leave-one-out predictions in closed form, without refits."""

from .densities import class_density, gaussian_density
from .jackknife import LeftOutModels, left_out_models
from .left_out import leave_one_out, loo_log_density
from .linearised import linearised_mode
from .rows import LinearRows, linear_rows

__all__ = [
    "LeftOutModels",
    "LinearRows",
    "class_density",
    "gaussian_density",
    "leave_one_out",
    "left_out_models",
    "linear_rows",
    "linearised_mode",
    "loo_log_density",
]
