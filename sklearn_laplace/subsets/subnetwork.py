r"""Some weights by name or by mask (Daxberger et al. 2021): a full covariance over few weights of a large net.

A Subnetwork is a mask for each tensor with random weights, or None where all of a tensor is random. Which weights to
take is a matter of scores, and :func:`largest` makes masks of them:

- ``network.tensors(posterior.marginal_variance())`` of a diagonal posterior over all weights (the paper's choice: its
  squared Wasserstein distance to the one with some weights held at the mode is the sum of their variances),
- ``network.tensors(network.theta.abs())``, the largest weights,
- ``network.tensors(torch.rand(network.n_parameters))``, any.

A mask costs the whole layers' factors a row, of which it picks its elements, and a matrix of the picked ones alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..network import Network
from ._base import Subset


@dataclass(frozen=True)
class Subnetwork(Subset):
    """Tensors by name, each as a whole or by the mask of its random elements.

    Parameters
    ----------
    masks : mapping of str to Tensor of bool, or None
        For each name; None: the whole tensor.

    Examples
    --------
    >>> import torch
    >>> network = Network.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    >>> Subnetwork({"bias": None}).of(network, torch.zeros(1, 2)).blocks
    (Block(name='', outputs=1, inputs=1, factored=True, positions=1),)
    >>> part = Subnetwork({"weight": torch.tensor([[True, False]])}).of(network, torch.zeros(1, 2))
    >>> part.blocks, bool(part.theta == network.theta[0])
    ((Block(name='', outputs=1, inputs=1, factored=False, positions=1),), True)
    """

    masks: Mapping[str, Tensor | None]

    @property
    def provides(self) -> frozenset[str]:
        """Rows alone where a tensor is random in part."""
        return frozenset({"rows"}) if self._partial else super().provides

    def names(self, network: Network) -> tuple[str, ...]:
        """The named tensors; one whose mask selects nothing is left out.

        Raises
        ------
        ValueError
            For a name that is not one of the trained parameters, a mask of another shape, or when no weight is left.
        """
        known = network.parameter_names
        if unknown := [name for name in self.masks if network.layout.aliases.get(name) not in known]:
            raise ValueError(f"subset_of_weights names {unknown}; the trained parameters are {list(known)}.")
        for name, mask in self.masks.items():
            shape = network.layout.shapes[network.layout.aliases[name]]
            if mask is not None and mask.shape != shape:
                raise ValueError(
                    f"subset_of_weights has a mask of shape {tuple(mask.shape)} for {name!r}; expected {tuple(shape)}."
                )
        wanted = {network.layout.aliases[name] for name, mask in self.masks.items() if mask is None or mask.any()}
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


def largest(scores: Mapping[str, Tensor], n_weights: int) -> dict[str, Tensor]:
    """Masks of the weights with the largest scores, for ``subset_of_weights``.

    Parameters
    ----------
    scores : mapping of str to Tensor or array
        A score for each weight, tensor by tensor.
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
    chosen[flat.topk(n_weights).indices] = True
    parts = chosen.split([values.numel() for values in tensors.values()])
    return {name: part.view(values.shape) for (name, values), part in zip(tensors.items(), parts, strict=True)}
