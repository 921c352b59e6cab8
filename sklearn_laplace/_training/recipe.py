"""How large the nets of a bagged fit are and how long they train, by the number of rows.

All are powers of the number of rows, so that there is no size at which a fit changes abruptly. ``docs/decisions.md``
compares other values.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._schedule import Schedule

HIDDEN_AT, WIDTHS, WIDTH_POWER, WIDTH_STEP = 2500, (32, 128), 0.36, 16
"""Rows at which hidden layers have 64 units, the least and most units, the power of the rows, a multiple of units."""
N_LAYERS, ACTIVATION = 2, "silu"
STEPS_AT_1000, STEPS_POWER = 500, 0.5
BINS, BINS_POWER = (8, 32), 0.5
"""Pieces at 1,000 rows and at most, and the power of the rows. Members of the first deal have the former number."""
MOST_INPUTS = 1024
"""Encoded columns up to which there are as many pieces."""


@dataclass(frozen=True)
class Recipe:
    """Shape and schedule of the members.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int
    activation : str
    n_bins : tuple of int or None
        Pieces of each number, one count a deal of the rows or one for all; None for the numbers alone.
    schedule : Schedule
    """

    hidden_layer_sizes: tuple[int, ...]
    activation: str
    n_bins: tuple[int | None, ...]
    schedule: Schedule


def recipe_for(n_rows: int, n_columns: int) -> Recipe:
    """The default for so many rows and columns of numbers.

    Examples
    --------
    >>> recipe_for(2500, 10).hidden_layer_sizes, recipe_for(2500, 10).n_bins
    ((64, 64), (8, 12))
    >>> recipe_for(10**6, 20).hidden_layer_sizes, recipe_for(10**6, 20).schedule.n_steps
    ((128, 128), 15811)
    """
    units = WIDTH_STEP * round(64 * (n_rows / HIDDEN_AT) ** WIDTH_POWER / WIDTH_STEP)
    units = min(max(units, WIDTHS[0]), WIDTHS[1])
    most = min(max(int(BINS[0] * (n_rows / 1000) ** BINS_POWER), BINS[0]), BINS[1])
    candidates = sorted({min(count, MOST_INPUTS // max(n_columns, 1)) for count in (BINS[0], most)})
    n_bins = tuple(count if count > 1 else None for count in candidates)
    steps = max(int(STEPS_AT_1000 * (n_rows / 1000) ** STEPS_POWER), 1)
    return Recipe((units,) * N_LAYERS, ACTIVATION, n_bins, Schedule(steps))
