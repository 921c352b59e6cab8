"""Factored Jacobians: produced by layers, consumed by structures. Data only."""

from .factors import DenseFactor, LayerFactor, SharedFactor
from .jacobian import Batch, FactoredJacobian, ParameterBlock

__all__ = ["Batch", "DenseFactor", "FactoredJacobian", "LayerFactor", "ParameterBlock", "SharedFactor"]
