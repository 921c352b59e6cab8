"""Schedule of jointly trained nets: number of steps, cyclic learning rate and decreasing weight decay."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from .._runtime.progress import Task
from .._runtime.steps import Steps

LEAST_RATE = 1e-3
"""Minimum learning rate, as a fraction of the maximum."""
CYCLES = 4
"""Number of cycles of the learning rate."""
LINES = 20
"""Approximate number of printed lines on a training; each covers at least one epoch."""


@dataclass(frozen=True)
class Schedule:
    """Number of steps, learning rate and weight decay of a training; a step multiplies weights by 1 − rate · decay."""

    n_steps: int  # of the four cycles
    batch_size: int = 256  # rows
    lr: float = 0.02  # maximum
    weight_decay: float = 0.02  # maximum
    most_further: int = 3  # cycles of n_steps each for targets almost free of noise
    bias_rate: float = 0.1  # relative to the rate of the weights
    noise_power: float = 1.0  # p of the row weights v⁻ᵖ in the last cycle, v the noise variance

    def rate(self, step: int) -> float:
        """Learning rate of a step, as a fraction of the maximum.

        >>> [round(Schedule(15).rate(k), 3) for k in (0, 1, 3, 7)]  # zero after 1, 3, 7 and 15 of 15 steps
        [0.001, 0.001, 0.001, 0.001]
        """
        cosine = math.cos(2 * math.pi * math.log2(1 + (2**CYCLES - 1) * step / self.n_steps))
        return max(0.5 * (1 - cosine), LEAST_RATE)

    def rate_of_cycle(self, step: int) -> float:
        """Learning rate of a step of a further cycle of ``n_steps`` steps, as a fraction of the maximum."""
        return max(0.5 * (1 - math.cos(2 * math.pi * step / self.n_steps)), LEAST_RATE)

    def decay(self, step: int) -> float:
        """Weight decay of a step, as a fraction of the maximum: 1 for half of the steps, then a cosine down to 0."""
        part = step / self.n_steps
        return 1.0 if part < 0.5 else 0.5 * (1 + math.cos(math.pi * (2 * part - 1)))

    def of_part(self, part: float) -> Schedule:
        """Schedule with a fraction of the steps and without further cycles; each cycle has at least one step.

        >>> Schedule(500).of_part(0.1).n_steps, Schedule(500).of_part(0.0).n_steps
        (50, 15)
        """
        least = 2**CYCLES - 1
        return replace(self, n_steps=max(int(part * self.n_steps), least), most_further=0)

    def steps(self, task: Task, n_rows: int, log_volume: float, label: str = "") -> Steps:
        """Progress of the steps of this schedule, for a training on ``n_rows`` rows; see :class:`Steps`."""
        epoch = max(n_rows // self.batch_size, 1)
        each = epoch * math.ceil(self.n_steps / (LINES * epoch))
        return Steps(task, self.n_steps, label=label, each=each, log_volume=log_volume)

    @property
    def cycles(self) -> list[tuple[int, int]]:
        """Range of steps of each cycle, as (first, last + 1).

        >>> Schedule(15).cycles
        [(0, 1), (1, 3), (3, 7), (7, 15)]
        """
        ends = [round(self.n_steps * (2**k - 1) / (2**CYCLES - 1)) for k in range(CYCLES + 1)]
        return list(pairwise(ends))
