"""Built-in nets for tabular data: plain torch modules, usable without the estimators."""

from .mlp import ACTIVATIONS, MLP, TableMLP

__all__ = ["ACTIVATIONS", "MLP", "TableMLP"]
