"""Shape and schedule of jointly trained ensemble members: one recipe per repeat, as powers of the number of rows.

A repeat is a partition of the rows into four folds, with one member for each fold that is trained on the other three.
For few rows and normal noise there are eight folds, and members are trained on seven eighths of the rows.

The first two repeats have nets with hidden layers (:func:`recipes_for`), a third one linear nets (:func:`linear`). A
schedule is a number of steps, a cyclic learning rate and a decreasing weight decay. Up to 300 rows there are fewer
steps, to keep the fit short. ``docs/decisions.md`` compares other values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from .._table.limits import SMALL_ROWS
from .._table.rows import rehashed, row_keys
from .progress import Steps, Task

N_REPEATS, FOLDS_OF_MANY, FOLDS_OF_FEW = 2, 4, 8
"""Number of repeats, which show what a mixture gains; of their folds; and of folds for few rows with normal noise."""
LEAST_ROWS, LEAST_OF_OTHERS, FEW_ROWS = 40, 100, 1000
"""Minimum number of rows for folds, because the errors of fewer rows do not determine the noise level. Minimum for
classes and counts that train together: with fewer, members are confident far from the rows. Maximum number
of few rows, which have ``FOLDS_OF_FEW`` folds and linear members for normal noise."""


def held_out_rows(inputs: np.ndarray, targets: np.ndarray, n_repeats: int, n_folds: int) -> np.ndarray:
    """Mask (n_repeats · n_folds, n) of the rows that each member holds out; targets (n,) are stratified classes.

    The fold of a row depends on its content, not on its position: equal rows are in the same fold.
    """
    keys = row_keys(inputs, targets)
    classes = targets if targets.ndim == 1 else np.zeros(len(keys), dtype=int)
    masks = []
    for _ in range(n_repeats):
        keys = rehashed(keys)
        unique, place = np.unique(keys, return_inverse=True)
        of_class = np.zeros(len(unique), dtype=int)
        of_class[place] = classes
        order = np.argsort(of_class, kind="stable")
        fold = np.empty(len(unique), dtype=int)
        fold[order] = np.arange(len(unique)) % n_folds
        masks += [fold[place] == k for k in range(n_folds)]
    return np.stack(masks)


LINES = 20
"""Approximate number of printed lines on a training; each covers at least one epoch."""


@dataclass(frozen=True)
class Schedule:
    """Number of steps, learning rate and weight decay of a training; a step multiplies weights by 1 − rate · decay."""

    n_steps: int  # of all cycles together; a further cycle has as many
    batch_size: int = 256  # rows
    n_cycles: int = 4  # of the learning rate, each twice as long as the one before
    lr: float = 0.02  # maximum
    least_rate: float = 1e-3  # minimum learning rate, as a fraction of the maximum
    bias_rate: float = 0.1  # relative to the rate of the weights
    scale_rate: float = 6.0  # of the column scales, relative to the rate of the weights
    betas: tuple[float, float] = (0.9, 0.95)  # decay of the mean gradient and of the mean square, in Adam
    epsilon: float = 1e-8  # added to the root of the mean square, in Adam
    weight_decay: float = 0.02  # maximum
    most_further: int = 3  # further cycles, for targets almost free of noise
    further_below: float = 0.6  # one follows if the last cycle reduced the held-out error to less than this fraction
    noise_power: float = 1.0  # p of the row weights v⁻ᵖ in the last cycle, v the noise variance

    def rate(self, step: int) -> float:
        """Learning rate of a step, as a fraction of the maximum.

        >>> [round(Schedule(15).rate(k), 3) for k in (0, 1, 3, 7)]  # zero after 1, 3, 7 and 15 of 15 steps
        [0.001, 0.001, 0.001, 0.001]
        """
        cosine = math.cos(2 * math.pi * math.log2(1 + (2**self.n_cycles - 1) * step / self.n_steps))
        return max(0.5 * (1 - cosine), self.least_rate)

    def rate_of_cycle(self, step: int) -> float:
        """Learning rate of a step of a further cycle of ``n_steps`` steps, as a fraction of the maximum."""
        return max(0.5 * (1 - math.cos(2 * math.pi * step / self.n_steps)), self.least_rate)

    def decay(self, step: int) -> float:
        """Weight decay of a step, as a fraction of the maximum: 1 for half of the steps, then a cosine down to 0."""
        part = step / self.n_steps
        return 1.0 if part < 0.5 else 0.5 * (1 + math.cos(math.pi * (2 * part - 1)))

    def of_part(self, part: float) -> Schedule:
        """Schedule with a fraction of the steps and without further cycles; each cycle has at least one step.

        >>> Schedule(500).of_part(0.1).n_steps, Schedule(500).of_part(0.0).n_steps
        (50, 15)
        """
        least = 2**self.n_cycles - 1
        return replace(self, n_steps=max(int(part * self.n_steps), least), most_further=0)

    def steps(self, task: Task, n_rows: int, log_volume: float, label: str = "") -> Steps:
        """Progress of the steps of this schedule, for a training on ``n_rows`` rows; see :class:`Steps`."""
        epoch = max(n_rows // self.batch_size, 1)
        each = epoch * math.ceil(self.n_steps / (LINES * epoch))
        return Steps(task, self.n_steps, label=label, each=each, log_volume=log_volume)

    @property
    def cycles(self) -> list[tuple[int, int]]:
        """Range of steps of each cycle, as (first, last + 1)."""
        n = self.n_cycles
        ends = [round(self.n_steps * (2**k - 1) / (2**n - 1)) for k in range(n + 1)]
        return list(pairwise(ends))


HIDDEN_AT, WIDTHS, WIDTH_POWER, WIDTH_STEP = 2500, (32, 128), 0.36, 16
"""A hidden layer has 64 (n / ``HIDDEN_AT``)^``WIDTH_POWER`` units, in steps of ``WIDTH_STEP`` within ``WIDTHS``."""
N_LAYERS = 2
"""Number of hidden layers."""
SMOOTH, DETAILED, DETAILED_ROWS = "silu", "gelu", 5000
"""Activations of the first and of the second repeat. For more than this number of rows, both repeats use the first."""
STEPS_AT_1000, STEPS_POWERS = (500, 450), (0.5, 0.6)
"""Number of steps of each repeat for 1,000 rows, and its power of the number of rows."""
NOISY, NOISY_WIDTH, NOISY_ROWS = 0.1, 0.5, 2000
"""Noisy targets: minimum squared error in the trial of regularisations, in units of the variance; factor of the number
of units; maximum number of rows without this factor. Noise hides the detail that wider nets would learn."""
MORE_STEPS, MORE_POWER = 1.5, -0.37
"""Factor of the number of steps from 301 to 1,000 rows. For more rows it falls to 1, by this power of the rows."""
RATES, DECAYS = (0.02, 0.06), (0.02, 0.01)
"""Maximum learning rate and weight decay of each repeat."""
FULL_NOISE_ROWS, NOISE_POWER = 10_000, 0.3
"""Maximum number of rows for which the last cycle weights each row by its inverse noise variance. For more rows, the
exponent is (``FULL_NOISE_ROWS`` / rows)^``NOISE_POWER``."""
TRIED_DROPOUT = 0.15
"""Probability of dropout of hidden units, where there is one."""
REGULARISATIONS = (*((prior, 0.0) for prior in (0.0, 0.1)), *((prior, TRIED_DROPOUT) for prior in (0.0, 0.1, 0.5, 2.0)))
"""Candidates of the trial: prior precision of the weights, and probability of dropout."""
STRONGEST_PRIOR, PILOT_STEPS, PILOT_ROWS = 2.0, 400, 150
"""Maximum prior precision of a training; maximum number of steps of the trial, and minimum number of its held-out rows.
"""
FEWEST_BINS, DETAILED_BINS, MOST_BINS = 8, 24, 64
"""Bins per column: in the first repeat, and minimum and maximum in the second. From 3,000 rows on, the bins of the
second are proportional to the rows, with ``FEWEST_BINS`` for 1,000."""
MOST_INPUTS = 512
"""Maximum number of encoded columns. With many columns, each column has fewer bins."""


@dataclass(frozen=True)
class Recipe:
    """Shape, schedule and regularisation of the members of one repeat."""

    hidden_layer_sizes: tuple[int, ...]
    activation: str
    n_bins: int | None  # bins of each numeric column; None: numbers alone
    schedule: Schedule
    prior: float = 0.0  # precision δ of the weights
    dropout: float = 0.0  # probability that a hidden unit is zero in a step


def recipes_for(n_rows: int, n_columns: int) -> tuple[Recipe, ...]:
    """Default recipes of nets with hidden layers: the first suits smooth functions, the second fine detail."""
    units = WIDTH_STEP * round(64 * (n_rows / HIDDEN_AT) ** WIDTH_POWER / WIDTH_STEP)
    units = min(max(units, WIDTHS[0]), WIDTHS[1])
    at_1000 = zip(STEPS_AT_1000, STEPS_POWERS, strict=True)
    more = max(MORE_STEPS * max(n_rows / 1000, 1.0) ** MORE_POWER, 1.0) if n_rows > SMALL_ROWS else 1.0
    steps = [max(int(more * count * (n_rows / 1000) ** power), 1) for count, power in at_1000]
    most = min(max(FEWEST_BINS * n_rows // 1000, DETAILED_BINS), MOST_BINS)
    counts = (min(count, MOST_INPUTS // max(n_columns, 1)) for count in (FEWEST_BINS, most))
    power = min((n_rows / FULL_NOISE_ROWS) ** -NOISE_POWER, 1.0)
    activations = SMOOTH, DETAILED if n_rows <= DETAILED_ROWS else SMOOTH
    settings = zip(steps, RATES, DECAYS, strict=True)
    schedules = (Schedule(n, lr=rate, weight_decay=decay, noise_power=power) for n, rate, decay in settings)
    return tuple(
        Recipe((units,) * N_LAYERS, activation, count if count > 1 else None, schedule)
        for activation, count, schedule in zip(activations, counts, schedules, strict=True)
    )


def for_noise(recipes: Sequence[Recipe], error: float, n_rows: int) -> tuple[Recipe, ...]:
    """Recipes with fewer units if the squared error of the trial, in units of the variance, shows noisy targets."""
    if error < NOISY or n_rows <= NOISY_ROWS:
        return tuple(recipes)
    units = WIDTH_STEP * max(round(NOISY_WIDTH * recipes[0].hidden_layer_sizes[0] / WIDTH_STEP), 1)
    return tuple(replace(recipe, hidden_layer_sizes=(units,) * len(recipe.hidden_layer_sizes)) for recipe in recipes)


def linear(recipe: Recipe) -> Recipe:
    """Recipe of linear nets with the same schedule. They find weak signals, and linear functions exactly."""
    return replace(recipe, hidden_layer_sizes=(), n_bins=None)


def trial_folds(n_rows: int, n_folds: int) -> int:
    """Number of folds that the trial holds out, each from nets of its own.

    >>> [trial_folds(n, 8) for n in (40, 300, 1000)]
    [8, 4, 2]
    """
    return min(math.ceil(PILOT_ROWS * n_folds / n_rows), n_folds)


def of_part(recipes: Sequence[Recipe], part: float) -> tuple[Recipe, ...]:
    if part >= 1:
        return tuple(recipes)
    return tuple(replace(recipe, schedule=recipe.schedule.of_part(part)) for recipe in recipes)
