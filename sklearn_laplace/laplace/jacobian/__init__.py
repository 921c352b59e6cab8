"""Factored Jacobians: produced by layers, consumed by structures. Data only."""

from .blocks import ParameterBlock
from .factors import DenseFactor, LayerFactor, SharedFactor
from .jacobian import Batch, FactoredJacobian

__all__ = ["Batch", "DenseFactor", "FactoredJacobian", "LayerFactor", "ParameterBlock", "SharedFactor"]
