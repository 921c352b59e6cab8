"""Sample of the rows for which the time limit of a joint ensemble is sufficient.

Encoding the columns, outputs after each cycle, curvatures and held-out errors are passes over all rows. Their cost per
row is about ``PASSES`` times that of a training step. The time limit over this cost is the number of rows of the fit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from .._host.rows import some_rows
from .._runtime.progress import Clock
from .._runtime.torch_state import single_thread
from .._training.batched import seconds_of_step
from .._training.losses import loss_of
from .._training.repeats import FOLDS_OF_MANY
from .._training.stacked import Stacked
from ..nets import TableMLP
from .conditions import LEAST_EVENTS
from .request import FitRequest
from .train_members import PROBED_ROWS, arguments_of, recipes_of

PASSES = 16.0
"""Cost of all passes over a row, in units of its cost in a step of the first repeat: about half of the time."""
FEWEST_ROWS = 2000
"""Number of rows below which none are omitted."""


def within_time(request: FitRequest, clock: Clock) -> FitRequest:
    """Request for a random sample of the rows, if the time limit is not sufficient for all of them.

    The other rows have weight zero among the unmerged rows, so that leave-one-out treats them as new rows.
    """
    n_rows = len(request.data.X)
    most = request.saved.result("rows", partial(_affordable, request, clock))
    if most >= n_rows:
        return request
    clock.was_cut, kept = True, request.kept
    chosen = some_rows(n_rows, most).numpy()
    if kept is not None:
        kept = kept.without(request.data.unshared_keys(np.delete(np.arange(n_rows), chosen)))
    return replace(request, data=request.data.taken(chosen), kept=kept)


def _affordable(request: FitRequest, clock: Clock) -> int:
    """Number of rows for which the time is sufficient, from a few steps of the members of the first repeat."""
    data, n_rows = request.data, len(request.data.X)
    if clock.max_time is None or n_rows <= FEWEST_ROWS:
        return n_rows
    options, few = request.options_for_rows(), data.taken(some_rows(n_rows, PROBED_ROWS).numpy())
    rows = few.training_rows(options.dtype, options.device, built_in=True)
    recipe = recipes_of(request.parameters, data, n_rows)[0]
    net = arguments_of(recipe, data, options)
    stacked = Stacked([TableMLP(**net, seed=0).to(rows.weights) for _ in range(FOLDS_OF_MANY)])
    with single_thread(stacked.is_small(recipe.schedule)):
        step = seconds_of_step(stacked, loss_of(options.likelihood), rows, recipe.schedule)
    most = max(clock.left / (PASSES * step) * min(recipe.schedule.batch_size, len(rows)), FEWEST_ROWS)
    if not (options.likelihood.has_dispersion or options.likelihood.over_classes):
        most = max(most, n_rows * LEAST_EVENTS / data.shape().least_total)
    return clock.group.of_first(min(int(most), n_rows))
