"""Leave-one-out predictions in closed form, without refits."""

from .left_out import leave_one_out, loo_log_density
from .linearised import linearised_mode
from .rows import class_density, gaussian_density

__all__ = [
    "class_density",
    "gaussian_density",
    "leave_one_out",
    "linearised_mode",
    "loo_log_density",
]
