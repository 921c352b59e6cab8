"""Shape and schedule of jointly trained ensemble members: one recipe per repeat, by power laws in the number of rows.

A repeat is a partition of the rows into four folds, with one member per fold that is trained on the other three.
For few rows and normal noise there are eight folds, and members are trained on seven eighths of the rows.

The first two repeats have nets with hidden layers (:func:`recipes_for`); a third one has linear nets (:func:`linear`).
A schedule is a number of steps, a cyclic learning rate and a decreasing weight decay. ``docs/decisions.md`` compares
other rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from .._table.rows import rehashed, row_keys
from .progress import Steps, Task

FOLDS_OF_MANY, FOLDS_OF_FEW = 4, 8
"""Number of folds of a repeat: by default, and for few rows with normal noise."""
LEAST_ROWS, FEW_ROWS, MANY_ROWS = 10, 1000, 2000
"""Limits on the number of rows. ``LEAST_ROWS``: minimum for joint training. ``FEW_ROWS``: maximum for ``FOLDS_OF_FEW``
folds and linear members under normal noise. ``MANY_ROWS``: with more rows, nets for noisy targets are narrower, and a
time limit may omit rows."""


def held_out_rows(inputs: np.ndarray, targets: np.ndarray, n_repeats: int, n_folds: int) -> np.ndarray:
    """Mask (n_repeats · n_folds, n) of the rows that each member holds out; stratified by class if targets are (n,).

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
"""Approximate number of printed lines about a training run; each covers at least one epoch."""


@dataclass(frozen=True)
class Schedule:
    """Number of steps, learning rate and weight decay; each step multiplies the weights by 1 − rate · decay."""

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
    most_further: int = 3  # maximum number of further cycles, for targets almost free of noise
    further_below: float = 0.6  # a further cycle follows if the last reduced the held-out error below this fraction
    noise_power: float = 1.0  # p of the row weights v⁻ᵖ in the last cycle, v the noise variance

    def rate(self, step: int) -> float:
        """Learning rate of a step, as a fraction of the maximum.

        >>> [round(Schedule(15).rate(k), 3) for k in (0, 1, 3, 7)]  # zero after 1, 3, 7 and 15 of 15 steps
        [0.001, 0.001, 0.001, 0.001]
        """
        cosine = math.cos(2 * math.pi * math.log2(1 + (2**self.n_cycles - 1) * step / self.n_steps))
        return max(0.5 * (1 - cosine), self.least_rate)

    def rate_of_cycle(self, step: int) -> float:
        """Learning rate of a step in a further cycle of ``n_steps`` steps, as a fraction of the maximum."""
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
        """Progress of the steps of this schedule, for training on ``n_rows`` rows; see :class:`Steps`."""
        epoch = max(n_rows // self.batch_size, 1)
        each = epoch * math.ceil(self.n_steps / (LINES * epoch))
        return Steps(task, self.n_steps, label=label, each=each, log_volume=log_volume)

    @property
    def cycles(self) -> list[tuple[int, int]]:
        """Range of steps of each cycle, as (first, last + 1)."""
        n = self.n_cycles
        ends = [round(self.n_steps * (2**k - 1) / (2**n - 1)) for k in range(n + 1)]
        return list(pairwise(ends))


def power_law(
    value: float, *, at: float, power: float, low: float = 0.0, high: float = math.inf
) -> Callable[[float], float]:
    """Function of the number of rows n: value · (n / at)^power, within bounds.

    >>> [power_law(8, at=1000, power=1.0, low=24, high=64)(n) for n in (1000, 5000, 10_000)]
    [24, 40.0, 64]
    """

    def of_rows(n_rows: float) -> float:
        return min(max(value * (n_rows / at) ** power, low), high)

    return of_rows


UNITS, WIDTH_STEP = power_law(64, at=2500, power=0.36, low=32, high=128), 16
"""Number of units of a hidden layer, rounded to a multiple of ``WIDTH_STEP``."""
STEPS_AT_1000 = 500, 450
"""Number of steps of each repeat for 1,000 rows."""
NOISE_POWER = power_law(1.0, at=10_000, power=-0.3, high=1.0)
"""Exponent p of the row weights v⁻ᵖ in the last cycle, v the noise variance."""
DETAILED_ROWS = 5000
"""Maximum number of rows for which the second repeat has an activation of its own."""
NOISY, NOISY_WIDTH = 0.1, 0.5
"""Mean squared error in the trial, relative to the target variance, from which targets count as noisy. Factor of the
number of units for noisy targets of many rows. Noise hides the detail that wider nets would learn."""
TRIAL = ((0.0, 0.0), (0.1, 0.0), (0.0, 0.15), (0.1, 0.15), (0.5, 0.15), (2.0, 0.15)), 400, 150
CLASS_TRIAL = ((0.0, 0.0), (0.1, 0.15), (2.0, 0.15)), 200, 500
"""Trials that select a regularisation, for numeric targets and for classes: candidates, maximum number of steps, and
minimum number of held-out rows. A candidate is a prior precision and a probability of dropout."""
STRONGEST_PRIOR = max(prior for prior, _ in TRIAL[0])
"""Maximum prior precision in training."""
MOST_INPUTS = 512
"""Maximum number of encoded inputs. With many columns, each column has fewer bins."""


@dataclass(frozen=True)
class Recipe:
    """Shape, schedule and regularisation of the members of one repeat."""

    hidden_layer_sizes: tuple[int, ...]
    activation: str
    n_bins: int | None  # bins of each numeric column; None: numbers alone
    schedule: Schedule
    prior: float = 0.0  # precision δ of the weights
    dropout: float = 0.0  # probability that a hidden unit is zero in a step


@dataclass(frozen=True)
class RepeatSettings:
    """Settings of a repeat for any number of rows."""

    activation: str
    n_bins: Callable[[float], float]  # bins of each numeric column, by the number of rows
    steps_power: float  # exponent of the number of rows, in the number of steps
    lr: float  # maximum
    weight_decay: float  # maximum


REPEATS = (
    RepeatSettings("silu", power_law(8, at=1000, power=0.0), steps_power=0.5, lr=0.02, weight_decay=0.02),
    RepeatSettings(
        "gelu", power_law(8, at=1000, power=1.0, low=24, high=64), steps_power=0.6, lr=0.06, weight_decay=0.01
    ),
)
"""The two repeats suit smooth functions and fine detail, respectively. They also show how much averaging helps."""


def recipes_for(n_rows: int, n_columns: int) -> tuple[Recipe, ...]:
    """Default recipes of nets with hidden layers."""
    units = WIDTH_STEP * round(UNITS(n_rows) / WIDTH_STEP)
    recipes = []
    for settings, at_1000 in zip(REPEATS, STEPS_AT_1000, strict=True):
        schedule = Schedule(
            max(int(at_1000 * (n_rows / 1000) ** settings.steps_power), 1),
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            noise_power=NOISE_POWER(n_rows),
        )
        activation = settings.activation if n_rows <= DETAILED_ROWS else REPEATS[0].activation
        n_bins = min(int(settings.n_bins(n_rows)), MOST_INPUTS // max(n_columns, 1))
        recipes.append(Recipe((units, units), activation, n_bins if n_bins > 1 else None, schedule))
    return tuple(recipes)


def for_noise(recipes: Sequence[Recipe], error: float, n_rows: int) -> tuple[Recipe, ...]:
    """Recipes with fewer units for many rows and a large mean squared ``error`` of the trial."""
    if error < NOISY or n_rows <= MANY_ROWS:
        return tuple(recipes)
    units = WIDTH_STEP * max(round(NOISY_WIDTH * recipes[0].hidden_layer_sizes[0] / WIDTH_STEP), 1)
    return tuple(replace(recipe, hidden_layer_sizes=(units,) * len(recipe.hidden_layer_sizes)) for recipe in recipes)


def linear(recipe: Recipe) -> Recipe:
    """Recipe of linear nets with the same schedule. Such nets find weak signals, and are exact for linear functions."""
    return replace(recipe, hidden_layer_sizes=(), n_bins=None)


def trial_folds(n_rows: int, n_folds: int, least_rows: int) -> int:
    """Number of folds that the trial holds out, each from separate nets, to score at least ``least_rows`` rows.

    >>> [trial_folds(n, 8, 150) for n in (40, 300, 1000)]
    [8, 4, 2]
    """
    return min(math.ceil(least_rows * n_folds / n_rows), n_folds)


def of_part(recipes: Sequence[Recipe], part: float) -> tuple[Recipe, ...]:
    if part >= 1:
        return tuple(recipes)
    return tuple(replace(recipe, schedule=recipe.schedule.of_part(part)) for recipe in recipes)
