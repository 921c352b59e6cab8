"""The built-in nets for tables: plain torch modules, usable alone."""

from .mlp import ACTIVATIONS, MLP
from .table import TableMLP

__all__ = ["ACTIVATIONS", "MLP", "TableMLP"]
