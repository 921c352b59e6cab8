"""Overdispersion of negative binomial counts: selected by short trainings before the fit.

Overdispersion and means depend on each other. A large α attributes the differences between rows to noise, which favours
a strong prior. Therefore short trainings and selections of α alternate until the variances settle. The fit itself has a
constant α, which all members share.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from .._approximation.approximate import approximate
from .._approximation.choose import choose
from .._approximation.fixed_weights import approximate_given
from .._approximation.overdispersion import best_overdispersion, has_settled
from .._data.rows import PreparedData
from .._options.options import is_auto
from .._runtime.progress import Task
from .._runtime.torch_state import single_thread
from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import GivenNet
from .._training.train import TRAINING_STAGES, train
from ..laplace.likelihoods import NegativeBinomial
from .request import FitRequest

FIRST, ROUNDS, CHANGE = 0.05, 3, 1.2
"""First value of α, maximum number of short trainings, and the ratio of variances, see ``has_settled``, that ends them.
A first value of 0.5 is often confirmed with few rows, whatever the true α: the means then differ too little."""
MANY_ROWS = 2_000
"""Number of rows above which all trainings but the last use so many of them, evenly spaced. The last uses all rows,
since better means leave less overdispersion."""


def with_overdispersion(request: FitRequest, task: Task) -> FitRequest:
    """Copy of a negative binomial request with the overdispersion of its rows; at most ``ROUNDS`` subtasks."""
    data, parameters = request.data, of_one_net(request.parameters)
    few = _some(data)
    mean = np.average(data.targets, axis=0, weights=data.weights)
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    parameters = {**parameters, "n_bins": n_bins, "overdispersion": (FIRST,)}
    short = replace(request, parameters=parameters, is_quick=True)
    short = short if few is data else replace(short, data=few, kept=few)
    has_ended = False
    for place in range(ROUNDS):
        if short.data is not data and (has_ended or place == ROUNDS - 1):
            short = replace(short, data=data, kept=request.kept, warm_start=None, is_member=True)
        options = short.options_for_rows()
        if options.previous is not None or task.clock.is_over():  # α is that of the previous posterior
            break
        with task.subtask("overdispersion", TRAINING_STAGES) as stages:
            trained = cached_training(train, short.training, short.resolved, stages)
        short = short.without_held_out(trained)
        with single_thread(trained.is_small):
            built_in = parameters["net"] is None
            if isinstance(trained, GivenNet):
                fit, origin = approximate_given(trained, short.data, options)
            else:
                fit, origin = approximate(trained, short.data, options, built_in=built_in)
            hyper = choose(fit, origin, options, None, partial(short.left_out, fit, trained.input_dtype))
            rows = short.data.training_rows(options.dtype, options.device, built_in=built_in)
            chosen = best_overdispersion(fit, hyper, rows)
        assert isinstance(fit.likelihood, NegativeBinomial)
        before = fit.likelihood.overdispersion
        of_short = {**short.parameters, "overdispersion": chosen}
        short = replace(short, parameters=of_short, warm_start=trained.warm_start())
        request = replace(request, parameters={**request.parameters, "overdispersion": chosen})
        has_ended = has_settled(before, chosen, mean, CHANGE)
        if has_ended and short.data is data:
            break
    return request


def _some(data: PreparedData) -> PreparedData:
    """At most ``MANY_ROWS`` of the rows, evenly spaced."""
    step = -(-len(data.X) // MANY_ROWS)
    if step == 1:
        return data
    return replace(data, X=data.X[::step], targets=data.targets[::step], weights=data.weights[::step])
