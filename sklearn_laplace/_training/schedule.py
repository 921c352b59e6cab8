"""How long members train, and how fast: a cyclic learning rate and a weight decay that ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

LEAST_RATE = 1e-3
"""In units of the largest learning rate."""
CYCLES = 4


@dataclass(frozen=True)
class Schedule:
    """How long members train, and how fast.

    Parameters
    ----------
    n_steps : int
    batch_size : int
    lr : float
        Largest learning rate of the weights.
    weight_decay : float
        Each step multiplies weights by 1 − rate · decay.
    most_further : int
        Most further cycles, of ``n_steps`` each, where targets are almost without noise.
    bias_rate : float
        Learning rate of the biases, in units of the one of the weights.
    noise_power : float
        Exponent p of the row weights v⁻ᵖ of the last cycle, with v the noise variance of a row.
    """

    n_steps: int
    batch_size: int = 256
    lr: float = 0.02
    weight_decay: float = 0.02
    most_further: int = 3
    bias_rate: float = 0.1
    noise_power: float = 1.0

    def rate(self, step: int) -> float:
        """The learning rate of a step, in units of the largest.

        Examples
        --------
        >>> [round(Schedule(15).rate(k), 3) for k in (0, 1, 3, 7)]  # zero after 1, 3, 7 and 15 of 15 steps
        [0.001, 0.001, 0.001, 0.001]
        """
        cosine = math.cos(2 * math.pi * math.log2(1 + (2**CYCLES - 1) * step / self.n_steps))
        return max(0.5 * (1 - cosine), LEAST_RATE)

    def rate_of_cycle(self, step: int) -> float:
        """The learning rate of a step in one further cycle, of as many steps, in units of the largest."""
        return max(0.5 * (1 - math.cos(2 * math.pi * step / self.n_steps)), LEAST_RATE)

    def decay(self, step: int) -> float:
        """The weight decay of a step, in units of the largest: one for half of the steps, then to zero by a cosine."""
        part = step / self.n_steps
        return 1.0 if part < 0.5 else 0.5 * (1 + math.cos(math.pi * (2 * part - 1)))

    def of_part(self, part: float) -> Schedule:
        """One with this part of the steps, and no further cycles; all four cycles have a step.

        Examples
        --------
        >>> Schedule(500).of_part(0.1).n_steps, Schedule(500).of_part(0.0).n_steps
        (50, 15)
        """
        least = 2**CYCLES - 1
        return replace(self, n_steps=max(int(part * self.n_steps), least), most_further=0)

    @property
    def cycles(self) -> list[tuple[int, int]]:
        """First step of each cycle, and the one after its last.

        Examples
        --------
        >>> Schedule(15).cycles
        [(0, 1), (1, 3), (3, 7), (7, 15)]
        """
        ends = [round(self.n_steps * (2**k - 1) / (2**CYCLES - 1)) for k in range(CYCLES + 1)]
        return list(pairwise(ends))

    @property
    def last_cycle(self) -> int:
        """The step with which the last cycle begins."""
        return self.cycles[-1][0]
