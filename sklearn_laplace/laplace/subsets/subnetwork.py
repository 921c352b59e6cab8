"""Weights selected by name, mask or score (Daxberger et al. 2021), for a full covariance over part of a large network.

:class:`Subnetwork` maps names to masks of the random weights. :class:`Scored` selects those with the largest scores:

- "variance": the marginal variances of a diagonal posterior over all weights, as in the paper. If some weights are
  fixed at the mode, the squared Wasserstein distance to that posterior is the sum of their variances.
- "magnitude": the absolute values of the weights.
- "random": uniform random numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..network.network import Network
from ..prior_groups import modules_with_tensors, tensors_of
from ._base import Subset

Score = Callable[[Network, Callable[[], Tensor], int], Tensor]
"""Maps a trained network, a callable that returns marginal variances, and a seed to scores (P,) of the weights."""


@dataclass(frozen=True)
class Subnetwork(Subset):
    """Selected modules and tensors; a mask selects single elements.

    A mask has the shape of its tensor. None selects a tensor, or all tensors of a module and of its submodules.

    >>> from sklearn_laplace.laplace.network import trace
    >>> network = trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    >>> Subnetwork({"bias": None}).of(network, torch.zeros(1, 2)).blocks
    (ParameterBlock(name='', outputs=1, inputs=1, factored=True, positions=1),)
    >>> part = Subnetwork({"weight": torch.tensor([[True, False]])}).of(network, torch.zeros(1, 2))
    >>> part.blocks, bool(part.theta == network.theta[0])
    ((ParameterBlock(name='', outputs=1, inputs=1, factored=False, positions=1),), True)
    """

    masks: Mapping[str, Tensor | None]

    @property
    def provides(self) -> frozenset[str]:
        """Supported forms of a curvature rule's contribution: only "rows" if a tensor is partly random."""
        return frozenset({"rows"}) if self._partial else super().provides

    def names(self, network: Network) -> tuple[str, ...]:
        known, aliases = network.parameter_names, network.layout.aliases
        members = {name: tensors_of(network, name) for name in self.masks}
        if unknown := [name for name, tensors in members.items() if not tensors]:
            modules = modules_with_tensors(network)
            inside = f", in the modules {list(modules)}" if modules else ""
            raise ValueError(
                f"subset_of_weights contains the unknown names {unknown}; the trained parameters are "
                f"{list(known)}{inside}."
            )
        for name, mask in self.masks.items():
            if mask is None:
                continue
            if name not in aliases:
                raise ValueError(
                    f"subset_of_weights has a mask for {name!r}, which is a module. Give a mask for each of its "
                    f"tensors {list(members[name])}."
                )
            shape = network.layout.shapes[aliases[name]]
            if mask.shape != shape:
                raise ValueError(
                    f"subset_of_weights has a mask of shape {tuple(mask.shape)} for {name!r}; expected {tuple(shape)}."
                )
        chosen = {tensor for name, mask in self.masks.items() if mask is None or mask.any() for tensor in members[name]}
        if not chosen:
            raise ValueError("subset_of_weights selects no weight; at least one must be random.")
        return tuple(name for name in known if name in chosen)

    def of(self, network: Network, example: Tensor) -> Network:
        part = super().of(network, example)
        masks = {network.layout.aliases[name]: mask for name, mask in self._partial.items()}
        return part.restrict({name: mask for name, mask in masks.items() if mask.any()}) if masks else part

    @property
    def _partial(self) -> dict[str, Tensor]:
        """Masks that exclude at least one element."""
        return {name: mask for name, mask in self.masks.items() if mask is not None and not mask.all()}


def _random(network: Network, variance: Callable[[], Tensor], seed: int) -> Tensor:
    return torch.rand(network.n_parameters, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCORES: dict[str, Score] = {
    "variance": lambda network, variance, seed: variance(),
    "magnitude": lambda network, variance, seed: network.theta.abs(),
    "random": _random,
}


@dataclass(frozen=True)
class Scored(Subset):
    """Weights with the largest scores in the trained network. Before training, :meth:`of` selects other weights."""

    score: Score  # a value of ``SCORES``
    size: int | float  # number of weights, or share of all weights
    seed: int = 0  # of random scores

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"rows"})

    def names(self, network: Network) -> tuple[str, ...]:
        return network.parameter_names

    def of(self, network: Network, example: Tensor) -> Network:
        """Network for memory estimates: ``size`` weights in the fewest blocks, the choice that needs most memory."""
        by_size = sorted(range(len(network.blocks)), key=lambda i: network.blocks[i].size)
        ranks = [torch.full((block.size,), by_size.index(i)) for i, block in enumerate(network.blocks)]
        return self._with_largest(network, torch.cat(ranks)).of(network, example)

    def chosen(self, network: Network, variance: Callable[[], Tensor]) -> Subnetwork:
        return self._with_largest(network, self.score(network, variance, self.seed))

    def _with_largest(self, network: Network, scores: Tensor) -> Subnetwork:
        return Subnetwork(largest(network.tensors(scores.cpu()), self._count(network.n_parameters)))

    def _count(self, n_parameters: int) -> int:
        if isinstance(self.size, float):
            return max(round(self.size * n_parameters), 1)
        if self.size > n_parameters:
            raise ValueError(
                f"Subnetwork(size={self.size}) selects more weights than the network has, {n_parameters}. Give at most "
                "that number, or a share such as 0.1."
            )
        return self.size


def largest(scores: Mapping[str, Tensor], n_weights: int) -> dict[str, Tensor]:
    """Masks of the ``n_weights`` weights with the largest scores over all tensors. Earlier weights win ties."""
    tensors = {name: torch.as_tensor(values) for name, values in scores.items()}
    flat = torch.cat([values.flatten().double() for values in tensors.values()])
    if not 1 <= n_weights <= len(flat):
        raise ValueError(f"n_weights={n_weights!r} must be a whole number from 1 to {len(flat)} (all weights).")
    chosen = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    chosen[flat.sort(descending=True, stable=True).indices[:n_weights]] = True
    parts = chosen.split([values.numel() for values in tensors.values()])
    return {name: part.view(values.shape) for (name, values), part in zip(tensors.items(), parts, strict=True)}
