"""Trained members of a joint ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from .._runtime.budget import SINGLE_THREAD_PASS
from ..errors import NonFiniteLossError

LEAST_SHARE = 0.1
"""Minimum weight of a deal."""


@dataclass(frozen=True)
class Bag:
    """Trained members of a mixture of K nets.

    Powers of ``noise`` weight the rows in the last cycles.
    """

    arguments: tuple[dict[str, Any], ...]  # keyword arguments of the nets
    states: tuple[dict[str, Tensor], ...]  # their weights
    held_out: Tensor  # (K, n), True for rows that were held out from a net
    shares: tuple[float, ...]  # weights (K,) in the mixture
    noise: tuple[Tensor, ...]  # variances (n, C) up to a factor; empty for constant noise
    n_steps: int
    places: tuple[int, ...]  # folds of the nets among those of all deals

    @classmethod
    def of_deals(cls, deals: Sequence[Bag], shares: Sequence[float]) -> Bag:
        """Members of several deals with the weights of the deals; deals with less than ``LEAST_SHARE`` are omitted."""
        kept = [(deal, share) for deal, share in zip(deals, shares, strict=True) if share >= LEAST_SHARE]
        if not kept:
            raise NonFiniteLossError(
                "the loss of held-out rows is not finite for any member. Look for numbers in X or y that are far "
                "larger than all others, and correct or drop their rows."
            )
        total = sum(share for _, share in kept)
        return cls(
            tuple(chain.from_iterable(deal.arguments for deal, _ in kept)),
            tuple(chain.from_iterable(deal.states for deal, _ in kept)),
            torch.cat([deal.held_out for deal, _ in kept]),
            tuple(chain.from_iterable([share / total * within for within in deal.shares] for deal, share in kept)),
            tuple(chain.from_iterable(deal.noise for deal, _ in kept)),
            max(deal.n_steps for deal, _ in kept),
            tuple(chain.from_iterable(deal.places for deal, _ in kept)),
        )

    @property
    def is_small(self) -> bool:
        """True if a single thread is fastest in a pass over the rows."""
        n_weights = sum(tensor.numel() for tensor in self.states[0].values())
        return self.held_out.shape[1] * n_weights <= SINGLE_THREAD_PASS

    @property
    def n_deals(self) -> int:
        """Number of deals, which is the number of members from which each row was held out."""
        return int(self.held_out[:, 0].sum())

    @property
    def deal_shares(self) -> Tensor:
        """Weight of each deal in the mixture, shape (D,), float64."""
        shares = torch.tensor(self.shares, dtype=torch.float64, device=self.held_out.device)
        return shares.view(self.n_deals, -1).sum(1)

    @property
    def average_noise(self) -> Tensor | None:
        """Geometric mean of the noise variances, shape (n, C); None for constant noise."""
        return average(self.noise)


def average(noise: Sequence[Tensor]) -> Tensor | None:
    """Geometric mean of variances; None for an empty sequence."""
    return torch.stack(list(noise)).log().mean(0).exp() if noise else None
