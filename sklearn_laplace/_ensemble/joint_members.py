"""Trained members of a joint ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from .._runtime.budget import SINGLE_THREAD_PASS
from ..errors import NonFiniteLossError
from ..laplace.fit import Hyper

LEAST_REPEAT = 0.1
"""Minimum weight of a repeat."""


@dataclass(frozen=True)
class JointMembers:
    """Trained members of a mixture of K nets.

    Powers of ``noise`` weight the rows in the last cycles.
    """

    arguments: tuple[dict[str, Any], ...]  # keyword arguments of the nets
    states: tuple[dict[str, Tensor], ...]  # their weights
    held_out: Tensor  # (K, n), True for rows that were held out from a net
    shares: tuple[float, ...]  # weights (K,) in the mixture
    noise: tuple[Tensor, ...]  # variances (n, C) up to a factor; empty for constant noise
    n_steps: int
    places: tuple[int, ...]  # folds of the nets among those of all repeats
    n_exact: int = 0  # number of nets with exact steps, which are the first ones
    lead: Hyper | None = None  # of a net of all rows, if these nets go on with all rows
    overdispersion: tuple[float, ...] = ()  # α of each output, for negative binomial counts

    @classmethod
    def of_repeats(cls, repeats: Sequence[JointMembers], shares: Sequence[float]) -> JointMembers:
        """Members of several repeats with their weights; repeats with less than ``LEAST_REPEAT`` are omitted."""
        kept = [(repeat, share) for repeat, share in zip(repeats, shares, strict=True) if share >= LEAST_REPEAT]
        if not kept:
            raise NonFiniteLossError(
                "the loss of held-out rows is not finite for any member. Look for numbers in X or y that are far "
                "larger than all others, and correct or drop their rows."
            )
        total = sum(share for _, share in kept)
        return cls(
            tuple(chain.from_iterable(repeat.arguments for repeat, _ in kept)),
            tuple(chain.from_iterable(repeat.states for repeat, _ in kept)),
            torch.cat([repeat.held_out for repeat, _ in kept]),
            tuple(chain.from_iterable([share / total * within for within in repeat.shares] for repeat, share in kept)),
            tuple(chain.from_iterable(repeat.noise for repeat, _ in kept)),
            max(repeat.n_steps for repeat, _ in kept),
            tuple(chain.from_iterable(repeat.places for repeat, _ in kept)),
            sum(repeat.n_exact for repeat, _ in kept),
        )

    def sharpened(self, factor: float) -> JointMembers:
        """The members with all outputs multiplied by a factor, in their last layer (``nets/table.py``)."""
        last = [name for name in self.states[0] if name.startswith("behind.") and name.endswith(".weight")][-1]
        changed = last, last.removesuffix("weight") + "bias"
        states = ({name: factor * t if name in changed else t for name, t in state.items()} for state in self.states)
        return replace(self, states=tuple(states))

    @property
    def is_small(self) -> bool:
        """True if a single thread is fastest in a pass over the rows."""
        n_weights = sum(tensor.numel() for tensor in self.states[0].values())
        return self.held_out.shape[1] * n_weights <= SINGLE_THREAD_PASS

    @property
    def are_exact(self) -> list[bool]:
        """True for each net with exact steps, whose posterior has the structure of a net that is trained alone."""
        return [k < self.n_exact for k in range(len(self.states))]

    @property
    def n_repeats(self) -> int:
        """Number of repeats, which is the number of members from which each row was held out."""
        return int(self.held_out[:, 0].sum())

    @property
    def repeat_shares(self) -> Tensor:
        """Weight of each repeat in the mixture, shape (D,), float64."""
        shares = torch.tensor(self.shares, dtype=torch.float64, device=self.held_out.device)
        return torch.zeros(self.n_repeats, dtype=shares.dtype, device=shares.device).index_add(
            0, self.repeat_of, shares
        )

    @property
    def repeat_of(self) -> Tensor:
        """Repeat of each member, (K,), int64; the folds of a repeat are a partition of the rows."""
        before: Tensor = self.held_out.sum(1).cumsum(0) - 1
        return before // self.held_out.shape[1]

    @property
    def average_noise(self) -> Tensor | None:
        """Geometric mean of the noise variances, shape (n, C); None for constant noise."""
        return average(self.noise)


def average(noise: Sequence[Tensor]) -> Tensor | None:
    """Geometric mean of variances; None for an empty sequence."""
    return torch.stack(list(noise)).log().mean(0).exp() if noise else None
