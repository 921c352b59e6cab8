"""Factored Jacobians: produced by layers, consumed by structures. Data only."""

from .factors import LayerFactor
from .jacobian import Batch, FactoredJacobian

__all__ = ["Batch", "FactoredJacobian", "LayerFactor"]
