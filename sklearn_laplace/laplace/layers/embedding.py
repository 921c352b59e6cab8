r"""``torch.nn.Embedding``: the cotangents of a row, summed for each of its indices.

The part of row n is :math:`\sum_l e_{i_{nl}} \otimes g_{nkl}`, with e the unit vectors of the vocabulary.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from ..jacobian.jacobian import DenseFactor, ParameterBlock
from ._base import FactoredLayer


@dataclass(frozen=True)
class Embedding(FactoredLayer):
    """An embedding table, looked up once in the forward pass with indices of shape (n, …).

    ``weight`` is the number V·D of elements of the table (0 if it is not selected).

    >>> Embedding("0", weight=12, bias=0, n_vectors=4, padding=None).block.size
    12
    """

    n_vectors: int  # V
    padding: int | None  # index of the vector without gradient

    @staticmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        """True for a plain table: no ``max_norm``, no sparse gradients, no gradient scaling by frequency."""
        if type(layer) is not nn.Embedding:
            return False
        return layer.max_norm is None and not layer.sparse and not layer.scale_grad_by_freq

    @classmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Self:
        assert isinstance(layer, nn.Embedding)
        weight = layer.weight.numel() * ("weight" in selected)
        return cls(name, weight, 0, layer.num_embeddings, layer.padding_idx)

    @property
    def block(self) -> ParameterBlock:
        return ParameterBlock(self.name, 1, self.weight, factored=False)

    def features(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        return inputs.reshape(len(inputs), -1)

    def factor(self, features: Tensor, cotangents: Tensor) -> DenseFactor:
        """The table's part of SᵀJ from indices (n, L) and cotangents (n, K, …, D): n·K·V·D memory."""
        n, k = cotangents.shape[:2]
        vectors = cotangents.reshape(n * k, features.shape[1], -1)
        tables = vectors.new_zeros(n * k * self.n_vectors, vectors.shape[-1])
        first = self.n_vectors * torch.arange(n * k, device=features.device).view(n, k, 1)
        tables.index_add_(0, (first + features[:, None]).flatten(), vectors.flatten(0, 1))
        tables = tables.view(n, k, self.n_vectors, -1)
        if self.padding is not None:
            tables[:, :, self.padding] = 0
        return DenseFactor(tables.flatten(2))
