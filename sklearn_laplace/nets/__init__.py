"""Built-in nets for tabular data: plain torch modules, also usable on their own."""

from .mlp import ACTIVATIONS, MLP, TableMLP

__all__ = ["ACTIVATIONS", "MLP", "TableMLP"]
