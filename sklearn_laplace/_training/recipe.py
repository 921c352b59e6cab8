"""Shape and schedule of jointly trained ensemble members, as powers of the number of rows.

Up to 300 rows there are fewer steps, to keep the fit short. ``docs/decisions.md`` compares other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._runtime.budget import SMALL_ROWS
from .schedule import Schedule

HIDDEN_AT, WIDTHS, WIDTH_POWER, WIDTH_STEP = 2500, (32, 128), 0.36, 16
"""A hidden layer has 64 (n / ``HIDDEN_AT``)^``WIDTH_POWER`` units for n rows, a multiple of ``WIDTH_STEP`` within
``WIDTHS``."""
N_LAYERS = 2
"""Number of hidden layers."""
SMOOTH, DETAILED, DETAILED_ROWS = "silu", "gelu", 5000
"""Activations of the first and of the second deal. For more than this number of rows, both deals use the first."""
STEPS_AT_1000, STEPS_POWERS = (500, 450), (0.5, 0.6)
"""Number of steps of each deal for 1,000 rows, and its power of the number of rows."""
TOGETHER_ROWS, TOGETHER_STEPS = 1000, 475
"""Maximum number of rows for which both deals are trained together, in one shape, and their steps for 1,000 rows."""
NOISY, NOISY_WIDTH, NOISY_ROWS = 0.1, 0.5, 2000
"""Noisy targets: minimum squared error in the trial of prior precisions, in units of the variance; factor of the number
of units; maximum number of rows without this factor. Noise hides the detail that wider nets would learn."""
MORE_STEPS, MORE_POWER = 1.5, -0.37
"""Factor of the number of steps from 301 to 1,000 rows. For more rows it falls to 1, by this power of the rows."""
RATES, DECAYS = (0.02, 0.06), (0.02, 0.01)
"""Maximum learning rate and weight decay of each deal."""
FULL_NOISE_ROWS, NOISE_POWER = 10_000, 0.3
"""Maximum number of rows for which the last cycle weights each row by its inverse noise variance. For more rows, the
exponent is (``FULL_NOISE_ROWS`` / rows)^``NOISE_POWER``."""
PRIORS, PILOT_STEPS = (0.0, 0.1, 0.5, 2.0), 400
"""Candidate prior precisions of the weights, and the maximum number of steps of the trial of each candidate."""
FEWEST_BINS, MOST_BINS, BINS_AT_1000 = 8, 64, 8
"""Pieces per column: in the first deal; maximum in the second; and there for 1,000 rows, proportional to the rows."""
MOST_INPUTS = 512
"""Maximum number of encoded columns. With many columns, each column has fewer pieces."""


@dataclass(frozen=True)
class Recipe:
    """Shape and schedule of the members of one deal."""

    hidden_layer_sizes: tuple[int, ...]
    activation: str
    n_bins: int | None  # pieces of each numeric column; None: numbers alone
    schedule: Schedule

    @property
    def program(self) -> tuple[Any, ...]:
        """Key that is equal for recipes whose members can be trained as one tensor program."""
        return self.hidden_layer_sizes, self.n_bins, replace(self.schedule, lr=0.0, weight_decay=0.0)


def recipes_for(n_rows: int, n_columns: int) -> tuple[Recipe, ...]:
    """Default recipes: the first deal suits smooth functions, the second functions with fine detail.

    >>> [(recipe.hidden_layer_sizes, recipe.n_bins) for recipe in recipes_for(2500, 10)]
    [((64, 64), 8), ((64, 64), 20)]
    >>> [recipe.schedule.n_steps for recipe in recipes_for(10**6, 20)]
    [15811, 28393]
    """
    units = WIDTH_STEP * round(64 * (n_rows / HIDDEN_AT) ** WIDTH_POWER / WIDTH_STEP)
    units = min(max(units, WIDTHS[0]), WIDTHS[1])
    at_1000 = zip(STEPS_AT_1000, STEPS_POWERS, strict=True)
    more = max(MORE_STEPS * max(n_rows / 1000, 1.0) ** MORE_POWER, 1.0) if n_rows > SMALL_ROWS else 1.0
    steps = [max(int(more * count * (n_rows / 1000) ** power), 1) for count, power in at_1000]
    if n_rows <= TOGETHER_ROWS:
        steps = [max(int(more * TOGETHER_STEPS * (n_rows / 1000) ** STEPS_POWERS[0]), 1)] * len(steps)
    most = min(max(BINS_AT_1000 * n_rows // 1000, FEWEST_BINS), MOST_BINS)
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
    return tuple(replace(recipe, hidden_layer_sizes=(units,) * N_LAYERS) for recipe in recipes)


def of_part(recipes: Sequence[Recipe], part: float) -> tuple[Recipe, ...]:
    if part >= 1:
        return tuple(recipes)
    return tuple(replace(recipe, schedule=recipe.schedule.of_part(part)) for recipe in recipes)
