"""The Laplace engine: torch only, usable alone. Start reading in :mod:`sklearn_laplace.laplace.fit`."""

from .fit import Hyper, LaplaceFit, Rows, fit_laplace

__all__ = ["Hyper", "LaplaceFit", "Rows", "fit_laplace"]
