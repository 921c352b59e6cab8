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
from .._approximation.overdispersion import best_overdispersion, has_settled
from .._runtime.progress import Task
from .._runtime.threads import single_thread
from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.train import TRAINING_STAGES, train
from ..laplace.likelihoods import NegativeBinomial
from .encodings import kinds_of_nets
from .request import FitRequest

FIRST, ROUNDS, CHANGE = 0.05, 3, 1.2
"""First value of α, maximum number of short trainings, and the ratio of variances, see ``has_settled``, that ends them.
A first value of 0.5 is often confirmed with few rows, whatever the true α: the means then differ too little."""


def with_overdispersion(request: FitRequest, task: Task) -> FitRequest:
    """Return the request with the overdispersion that its rows support.

    Parameters
    ----------
    request : FitRequest
        Request with a negative binomial likelihood.
    task : Task
        Progress of the fit, with at most ``ROUNDS`` subtasks for the trainings.
    """
    data, parameters = request.data, of_one_net(request.parameters)
    mean = np.average(data.targets, axis=0, weights=data.weights)
    kinds = kinds_of_nets(parameters, data.shape(), request.resolved.likelihood)
    parameters = {**parameters, "n_bins": kinds[0], "overdispersion": (FIRST,)}
    short = replace(request, parameters=parameters, is_candidate=True, is_quick=True)
    for _ in range(ROUNDS):
        options = short.settled()
        if options.previous is not None or task.clock.is_over():  # α is that of the previous posterior
            break
        with task.subtask("overdispersion", TRAINING_STAGES) as stages:
            trained = cached_training(train, short.training, stages)
        with single_thread(trained.is_small):
            built_in = parameters["net"] is None
            fit, origin = approximate(trained, data, options, built_in=built_in)
            hyper = choose(fit, origin, options, None, partial(short.left_out, fit, trained.input_dtype))
            rows = data.training_rows(options.dtype, options.device, built_in=built_in)
            chosen = best_overdispersion(fit, hyper, origin, rows)
        assert isinstance(fit.likelihood, NegativeBinomial)
        before = fit.likelihood.overdispersion
        of_short = {**short.parameters, "overdispersion": chosen}
        short = replace(short, parameters=of_short, warm_start=trained.warm_start())
        request = replace(request, parameters={**request.parameters, "overdispersion": chosen})
        if has_settled(before, chosen, mean, CHANGE):
            break
    return request
