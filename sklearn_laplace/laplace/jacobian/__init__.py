"""Factored Jacobians: data that layers produce and structures consume."""

from .jacobian import Batch, FactoredJacobian, LayerFactor

__all__ = ["Batch", "FactoredJacobian", "LayerFactor"]
