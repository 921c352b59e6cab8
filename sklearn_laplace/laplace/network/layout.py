"""Layout of the parameter vector: order and shapes of the selected parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..jacobian.jacobian import ParameterBlock
from ..layers import FactoredLayer, Generic


@dataclass(frozen=True)
class Layout:
    """Layout of the parameter vector. Computed once and shared by all networks of one architecture."""

    blocks: tuple[ParameterBlock, ...]  # in the order of the module's parameters
    columns: Mapping[str, tuple[tuple[str, int], ...]]  # tensors of each block, with their columns
    shapes: Mapping[str, torch.Size]  # of each parameter of the module
    aliases: Mapping[str, str]  # from each name to the first name of a tied weight
    elements: Mapping[str, Tensor] = field(default_factory=dict)  # of partly random blocks, as flat positions

    @property
    def random(self) -> tuple[ParameterBlock, ...]:
        """Blocks of the parameter vector. A partly random block is dense and contains only its random elements."""
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
        """Layout of a module whose selected tensors belong to ``layers`` or ``generic``."""
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
        """Assemble a vector (P,) from ``value(name, rows, columns)``, the matrix of each tensor within its block."""
        parts = []
        for block in self.blocks:
            pieces = [value(name, block.outputs, width) for name, width in self.columns[block.name]]
            part = torch.cat(pieces, 1).flatten()
            parts.append(part[self.elements[block.name]] if block.name in self.elements else part)
        return torch.cat(parts)
