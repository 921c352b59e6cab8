"""Laplace engine, built on torch without scikit-learn. Entry point: :mod:`sklearn_laplace.laplace.fit`."""

from .fit import Hyper, LaplaceFit, Rows, fit_laplace

__all__ = ["Hyper", "LaplaceFit", "Rows", "fit_laplace"]
