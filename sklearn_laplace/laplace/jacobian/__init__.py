"""Factored Jacobians: produced by layers, consumed by structures. Data only."""

from .jacobian import Batch, FactoredJacobian, LayerFactor

__all__ = ["Batch", "FactoredJacobian", "LayerFactor"]
