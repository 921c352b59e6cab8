"""Order and shapes of the selected parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..jacobian.blocks import ParameterBlock
from ..layers import FactoredLayer, Generic


@dataclass(frozen=True)
class Layout:
    """How the parameter vector is laid out: computed once, shared by all networks of one architecture.

    Parameters
    ----------
    blocks : tuple of ParameterBlock
        In the order of the module's parameters.
    columns : mapping of str to tuple of (str, int)
        For each block, the tensors side by side in it and their numbers of columns.
    shapes : mapping of str to torch.Size
        Shape of every parameter of the module.
    aliases : mapping of str to str
        Every name of a parameter to its first one (tied weights have several).
    elements : mapping of str to Tensor
        For each block that is random in part only, the positions of that part in its flattened matrix.
    """

    blocks: tuple[ParameterBlock, ...]
    columns: Mapping[str, tuple[tuple[str, int], ...]]
    shapes: Mapping[str, torch.Size]
    aliases: Mapping[str, str]
    elements: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def random(self) -> tuple[ParameterBlock, ...]:
        """The blocks of the parameter vector: one that is random in part is dense and holds that part alone."""
        if not self.elements:
            return self.blocks
        sizes = {name: len(part) for name, part in self.elements.items()}
        return tuple(
            ParameterBlock(b.name, 1, sizes[b.name], factored=False) if b.name in sizes else b for b in self.blocks
        )

    @classmethod
    def of(
        cls, module: nn.Module, layers: Sequence[FactoredLayer], generic: Generic | None, *, folds_biases: bool = True
    ) -> Layout:
        """The layout of a module whose selected tensors are covered by these layers and the generic rest."""
        blocks = {layer.name: layer.block for layer in layers}
        columns = {layer.name: layer.columns for layer in layers}
        for layer in () if folds_biases else layers:
            if (bias := layer.bias_block) is None:
                continue
            blocks |= {layer.name: replace(layer.block, inputs=layer.weight), bias.name: bias}
            columns |= {layer.name: layer.columns[:-1], bias.name: ((bias.name, bias.inputs),)}
        if generic is not None:
            blocks |= {block.name: block for block in generic.blocks}
            columns |= {block.name: ((block.name, block.inputs),) for block in generic.blocks}
        owner = {pieces[0][0]: name for name, pieces in columns.items() if pieces}
        first = {id(p): name for name, p in module.named_parameters()}
        return cls(
            tuple(blocks[owner[name]] for name in first.values() if name in owner),
            columns,
            {name: p.shape for name, p in module.named_parameters()},
            {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)},
        )

    def matrices(self, value: Callable[[str, int, int], Tensor]) -> Tensor:
        """A vector (P,) made tensor by tensor: ``value(name, rows, columns)`` is each tensor's part of its block."""
        parts = []
        for block in self.blocks:
            pieces = [value(name, block.outputs, width) for name, width in self.columns[block.name]]
            part = torch.cat(pieces, 1).flatten()
            parts.append(part[self.elements[block.name]] if block.name in self.elements else part)
        return torch.cat(parts)
