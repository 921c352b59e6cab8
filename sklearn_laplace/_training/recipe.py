"""How large members that train together are and how long they train, by the number of rows.

All are powers of the number of rows. Only up to 300 rows, where a fit is to be short, there are fewer steps.
``docs/decisions.md`` compares other values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .._runtime.budget import SMALL_ROWS
from .schedule import Schedule

HIDDEN_AT, WIDTHS, WIDTH_POWER, WIDTH_STEP = 2500, (32, 128), 0.36, 16
"""Rows at which hidden layers have 64 units, the least and most units, the power of the rows, a multiple of units."""
N_LAYERS = 2
SMOOTH, DETAILED, DETAILED_ROWS = "silu", "gelu", 5000
"""Activation of the first deal, and that of the second one up to a number of rows; beyond, both have the first."""
STEPS_AT_1000, STEPS_POWERS = (500, 450), (0.5, 0.6)
"""Steps of each deal for 1,000 rows, and the powers of the rows."""
TOGETHER_ROWS, TOGETHER_STEPS = 1000, 475
"""Rows up to which the members of both deals have one shape and train together, and their steps for 1,000 rows."""
MORE_STEPS, MORE_POWER = 1.5, -0.37
"""Factor of these steps from 301 to 1,000 rows, and the power of the rows with which it falls to one beyond."""
RATES, DECAYS = (0.02, 0.06), (0.02, 0.01)
"""Largest learning rate and weight decay of the members of each deal."""
FULL_NOISE_ROWS, NOISE_POWER = 10_000, 0.3
"""Rows up to which the last cycle weights each row by its inverse noise variance. Beyond, the weights have the exponent
(``FULL_NOISE_ROWS`` / rows) to the power ``NOISE_POWER``."""
PRIORS, PILOT_STEPS = (0.0, 0.1, 0.5, 2.0), 400
"""Prior precisions of the weights that are tried, and the most steps that each is tried with."""
FEWEST_BINS, MOST_BINS, BINS_AT_1000 = 8, 64, 8
"""Pieces of a column: of members of the first deal, at most, and for 1,000 rows. They grow with the rows."""
MOST_INPUTS = 512
"""Encoded columns up to which there are as many pieces."""


@dataclass(frozen=True)
class Recipe:
    """Shape and schedule of the members of one deal of the rows.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int
    activation : str
    n_bins : int or None
        Pieces of each number; None for the numbers alone.
    schedule : Schedule
    """

    hidden_layer_sizes: tuple[int, ...]
    activation: str
    n_bins: int | None
    schedule: Schedule

    @property
    def program(self) -> tuple[Any, ...]:
        """What the recipes of members that train as one program have in common."""
        return self.hidden_layer_sizes, self.n_bins, replace(self.schedule, lr=0.0, weight_decay=0.0)


def recipes_for(n_rows: int, n_columns: int) -> tuple[Recipe, ...]:
    """The default of each deal, for so many rows and columns of numbers.

    The first suits smooth functions: few pieces, small steps. The second suits functions with much detail.

    Examples
    --------
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
