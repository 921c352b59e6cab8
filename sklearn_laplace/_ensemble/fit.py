"""Fit of an ensemble: which members it has, how they are trained, and their weights.

**Members that train together** (``train_members.py``), for the default net with ``n_members="auto"``, unless an option
needs nets of all rows (``conditions.py``). A repeat is a random split of the rows into folds, with one member for
each fold that is trained on the other folds:

========================================  ===============================================
rows                                      members
========================================  ===============================================
numbers, 40 to 1,000                      two repeats of eight, and one of linear nets
numbers, more                             two repeats of four
classes, 100 or more                      two repeats of four
counts, 100 or more, with 30 events       two repeats of four
========================================  ===============================================

There are no linear nets if an option sets layers, pieces or prior precision.

1. A short trial selects the prior precision and the dropout of all members. For numbers its error decides the widths,
   for counts it gives a first overdispersion. Its nets are discarded.
2. The members train. Errors of held-out rows weight the repeats, and select the prior precision of the posteriors,
   the noise of numbers, the overdispersion of counts, and a factor of the outputs for classes.
3. For numbers, four *exact nets* are a further repeat if exact Gauss–Newton steps cost little (``MOST_ADDED``). They
   are uncertain in regions without rows, and have at least a fifth of the weight (``joint_members.py``).

If the trial shows targets almost free of noise, and exact steps are affordable (``MOST_STEP``), there are only the
exact nets. Held-out rows determine the model of their noise, and then each net goes on with all rows.

**Nets that are trained alone**, in other fits: each on all rows. The prior precisions are those of largest evidence of
the first net; for classes and counts a copy without a fold corrects them (``fit_alone.py``). A linear net replaces a
default net that is nearly constant, unless the log evidence of the linear one is smaller (``linear.py``). Each net of a
given list is approximated as if it was the only one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from .._training.built_in import of_one_net
from .._training.plan import FitRequest
from .._training.progress import Task
from ..errors import MemoryBudgetError
from ..nets.given_net import is_list
from ..options.resolve import resolve
from ..options.resolved import is_auto
from .conditions import check_in_memory, trains_jointly
from .ensemble import Ensemble
from .fit_alone import FAILURES, fit_alone, issue, kept_back
from .fit_jointly import fit_jointly, within_time
from .linear import AS_PROBABLE, has_learnt_nothing, linear_request
from .member import Member


def fit_ensemble(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Fit the members that the options and rows ask for; ``n_stages`` is the maximum of subtasks of a net alone."""
    if is_list(request.parameters["net"]):
        return _fit_given(request, n_stages, task)
    options, shape = request.options_for_rows(), request.data.shape()
    together = trains_jointly(request.parameters, shape, options, is_streamed=request.stream is not None)
    check_in_memory(request, options, is_joint=together)
    if together:
        return fit_jointly(within_time(request, task.clock), n_stages, task)
    ensemble, linear = fit_alone(_of_one(request), n_stages, task), None
    if task.clock.is_over() or not has_learnt_nothing(request, ensemble):
        return ensemble
    with suppress(*FAILURES, MemoryBudgetError), kept_back() as caught:
        linear = fit_alone(linear_request(request), n_stages, task)
    if linear is None or linear.first.log_evidence < ensemble.first.log_evidence - AS_PROBABLE:
        return ensemble
    issue(caught, of_others=False)
    return linear


def _of_one(request: FitRequest) -> FitRequest:
    """Request for nets that are trained alone; "auto" pieces are none."""
    parameters = of_one_net(request.parameters)
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    return replace(request, parameters={**parameters, "n_bins": n_bins})


def _fit_given(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Approximate the posterior of each of the user's trained nets, as if it was the only one."""
    members: list[Member] = []
    for place, net in enumerate(request.parameters["net"]):
        parameters = {**request.parameters, "net": net, "n_members": 1}
        of_one = replace(request, parameters=parameters, resolved=resolve(request.kind, parameters))
        try:
            members += fit_ensemble(of_one, n_stages, task).members
        except ValueError as error:
            error.args = (f"net[{place}]: {error.args[0]}", *error.args[1:])
            raise
    return Ensemble.of(members)
