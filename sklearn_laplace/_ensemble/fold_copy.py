"""Held-out rows of a net for classes or counts that is trained alone: a copy has not seen a fold of the rows.

The evidence of separable classes prefers a prior so weak that all probabilities are nearly uniform. The copy is trained
under the prior precision of the net, and its held-out rows select a factor of that precision. The noise level of
numbers compensates, so that they need no copy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .._approximation.approximate import approximate
from .._approximation.choose import SelectionState, _start
from .._host.rows import CHUNK
from .._options.options import Options
from .._runtime.progress import Task
from .._training.cache import cached_training
from .._training.plan import MapResult
from .._training.repeats import FOLDS_OF_MANY, LEAST_ROWS, held_out_rows
from .._training.train import TRAINING_STAGES, train
from ..distributions.densities import density_for
from ..laplace.fit import LaplaceFit
from ..laplace.selection import held_out_scores
from .request import FitRequest


def has_copy(request: FitRequest, options: Options) -> bool:
    """True if a copy of the net pays: classes or counts, hidden layers, and a prior that held-out rows may select."""
    parameters, data = request.parameters, request.data
    is_deep = parameters["net"] is None and len(parameters["hidden_layer_sizes"]) > 0
    is_open = options.by_held_out[0] and options.map_precision is None and options.previous is None
    is_first = not request.is_member and parameters["max_epochs"] is None
    enough = len(data.X) >= LEAST_ROWS and not options.likelihood.has_dispersion
    return is_deep and is_open and is_first and enough


def with_copy(
    request: FitRequest, trained: MapResult, fit: LaplaceFit, origin: SelectionState, options: Options, task: Task
) -> SelectionState:
    """Start of the selection with the scores of rows that the copy has not seen."""
    data = request.data
    mask = held_out_rows(data.X, data.targets, 1, FOLDS_OF_MANY)[0]
    seen = replace(request, data=data.taken(np.flatnonzero(~mask)), is_member=True)
    seen = replace(seen, warm_start=trained.warm_start().of_member())
    with task.subtask("copy", TRAINING_STAGES) as stages:
        copy = cached_training(train, seen.training, request.resolved, stages)
    assert isinstance(copy, MapResult)
    of_copy, _ = approximate(copy, seen.data, options, built_in=True)
    rows = data.taken(np.flatnonzero(mask)).training_rows(options.dtype, options.device, built_in=True)
    hyper = replace(_start(origin, fit, options), temperature=1.0)
    scores = held_out_scores([(of_copy, rows.chunks(CHUNK))], hyper, density_for(fit.likelihood))
    return replace(origin, scores=scores)
