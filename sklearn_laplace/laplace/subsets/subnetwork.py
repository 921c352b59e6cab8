r"""Some weights by name, mask or score (Daxberger et al. 2021): a full covariance over few weights of a large net.

A Subnetwork is a mask for each tensor with random weights, or None where all of a tensor, or of a module, is random.
Which weights to take is a matter of scores, of which :class:`Scored` takes the largest once the net is trained:

- "variance", the marginal variances of a diagonal posterior over all weights (the paper's choice: its squared
  Wasserstein distance to the one with some weights held at the mode is the sum of their variances),
- "magnitude", the largest weights,
- "random", any.

A mask costs the whole layers' factors a row, of which it picks its elements, and a matrix of the picked ones alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..network.network import Network
from ..prior_groups import modules_with_tensors, tensors_of
from ._base import Subset

Score = Callable[[Network, Callable[[], Tensor], int], Tensor]
"""Scores (P,) of a trained network's weights, from a function that gives their marginal variances, and a seed."""


@dataclass(frozen=True)
class Subnetwork(Subset):
    """Tensors by name, each as a whole or by the mask of its random elements; modules by name, as a whole.

    Parameters
    ----------
    masks : mapping of str to Tensor of bool, or None
        For each name; None: the whole tensor, or all tensors of the module of that name and of those inside it.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> network = trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    >>> Subnetwork({"bias": None}).of(network, torch.zeros(1, 2)).blocks
    (ParameterBlock(name='', outputs=1, inputs=1, factored=True, positions=1),)
    >>> deep = trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)), torch.zeros(1, 2))
    >>> Subnetwork({"1": None}).names(deep)
    ('1.weight', '1.bias')
    >>> part = Subnetwork({"weight": torch.tensor([[True, False]])}).of(network, torch.zeros(1, 2))
    >>> part.blocks, bool(part.theta == network.theta[0])
    ((ParameterBlock(name='', outputs=1, inputs=1, factored=False, positions=1),), True)
    """

    masks: Mapping[str, Tensor | None]

    @property
    def provides(self) -> frozenset[str]:
        """Rows alone where a tensor is random in part."""
        return frozenset({"rows"}) if self._partial else super().provides

    def names(self, network: Network) -> tuple[str, ...]:
        """The named tensors and those of the named modules; one whose mask selects nothing is left out.

        Raises
        ------
        ValueError
            For a name that is neither a trained parameter nor a module with some, a mask of a module or of another
            shape, or when no weight is left.
        """
        known, aliases = network.parameter_names, network.layout.aliases
        found = {name: tensors_of(network, name) for name in self.masks}
        if unknown := [name for name, tensors in found.items() if not tensors]:
            modules = modules_with_tensors(network)
            inside = f", in the modules {list(modules)}" if modules else ""
            raise ValueError(f"subset_of_weights names {unknown}; the trained parameters are {list(known)}{inside}.")
        for name, mask in self.masks.items():
            if mask is None:
                continue
            if name not in aliases:
                raise ValueError(
                    f"subset_of_weights has a mask for {name!r}, which is a module; give one for each of its tensors "
                    f"{list(found[name])}."
                )
            shape = network.layout.shapes[aliases[name]]
            if mask.shape != shape:
                raise ValueError(
                    f"subset_of_weights has a mask of shape {tuple(mask.shape)} for {name!r}; expected {tuple(shape)}."
                )
        wanted = {tensor for name, mask in self.masks.items() if mask is None or mask.any() for tensor in found[name]}
        if not wanted:
            raise ValueError("subset_of_weights selects no weight; at least one has to be random.")
        return tuple(name for name in known if name in wanted)

    def of(self, network: Network, example: Tensor) -> Network:
        """The network of the selected tensors, restricted to the selected elements."""
        part = super().of(network, example)
        masks = {network.layout.aliases[name]: mask for name, mask in self._partial.items()}
        return part.restrict({name: mask for name, mask in masks.items() if mask.any()}) if masks else part

    @property
    def _partial(self) -> dict[str, Tensor]:
        """The masks that leave something out."""
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
    """The weights with the largest scores, which only the trained net has; until then, as many.

    Parameters
    ----------
    score : callable
        One of ``SCORES``.
    size : int or float
        How many weights, or which share of all.
    seed : int
        Of random scores.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> module = torch.nn.Linear(2, 1, bias=False)
    >>> network = trace(module, torch.ones(1, 2)).with_parameters(torch.tensor([1.0, -2.0]))
    >>> subset = Scored(SCORES["magnitude"], 0.5)
    >>> subset.settled(network, lambda: torch.ones(2)).masks
    {'weight': tensor([[False,  True]])}
    """

    score: Score
    size: int | float
    seed: int = 0

    @property
    def provides(self) -> frozenset[str]:
        """Rows alone."""
        return frozenset({"rows"})

    def names(self, network: Network) -> tuple[str, ...]:
        """Any tensor may have some."""
        return network.parameter_names

    def of(self, network: Network, example: Tensor) -> Network:
        """As many weights, in the fewest blocks that hold them: no choice of so many needs more memory."""
        by_size = sorted(range(len(network.blocks)), key=lambda i: network.blocks[i].size)
        ranks = [torch.full((block.size,), by_size.index(i)) for i, block in enumerate(network.blocks)]
        return self._with_largest(network, torch.cat(ranks)).of(network, example)

    def settled(self, network: Network, variance: Callable[[], Tensor]) -> Subnetwork:
        """The weights with the largest scores."""
        return self._with_largest(network, self.score(network, variance, self.seed))

    def _with_largest(self, network: Network, scores: Tensor) -> Subnetwork:
        return Subnetwork(largest(network.tensors(scores.cpu()), self._count(network.n_parameters)))

    def _count(self, n_parameters: int) -> int:
        if isinstance(self.size, float):
            return max(round(self.size * n_parameters), 1)
        if self.size > n_parameters:
            raise ValueError(
                f"n_subnetwork_weights={self.size} is more than the net has; give at most {n_parameters}, or a share "
                "such as 0.1."
            )
        return self.size


def largest(scores: Mapping[str, Tensor], n_weights: int) -> dict[str, Tensor]:
    """Masks of the weights with the largest scores, for ``subset_of_weights``.

    Parameters
    ----------
    scores : mapping of str to Tensor or array
        A score for each weight, tensor by tensor; of equal ones the first are taken.
    n_weights : int
        How many weights to select, over all tensors together.

    Returns
    -------
    dict of str to Tensor of bool
        Of the shapes of the scores.

    Raises
    ------
    ValueError
        When there are not that many weights.

    Examples
    --------
    >>> import torch
    >>> largest({"0.weight": torch.tensor([[3.0, 1.0]]), "0.bias": torch.tensor([2.0])}, 2)
    {'0.weight': tensor([[ True, False]]), '0.bias': tensor([True])}
    """
    tensors = {name: torch.as_tensor(values) for name, values in scores.items()}
    flat = torch.cat([values.flatten().double() for values in tensors.values()])
    if not 1 <= n_weights <= len(flat):
        raise ValueError(f"n_weights={n_weights!r} has to be a whole number from 1 to {len(flat)}, all weights.")
    chosen = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    chosen[flat.sort(descending=True, stable=True).indices[:n_weights]] = True
    parts = chosen.split([values.numel() for values in tensors.values()])
    return {name: part.view(values.shape) for (name, values), part in zip(tensors.items(), parts, strict=True)}
