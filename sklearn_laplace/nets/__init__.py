"""The built-in nets for tables: plain torch modules, usable alone."""

from .mlp import ACTIVATIONS, MLP

__all__ = ["ACTIVATIONS", "MLP"]
