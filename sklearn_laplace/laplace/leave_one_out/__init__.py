"""Leave-one-out predictions in closed form, without refits."""

from .densities import class_density, gaussian_density
from .left_out import leave_one_out, loo_log_density
from .linearised import linearised_mode
from .rows import LinearRows, linear_rows

__all__ = [
    "LinearRows",
    "class_density",
    "gaussian_density",
    "leave_one_out",
    "linear_rows",
    "linearised_mode",
    "loo_log_density",
]
