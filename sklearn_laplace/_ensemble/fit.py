"""Fit of an ensemble: which members it has, how they are trained, and their weights.

**Members that train together** (``train_members.py``), if no option needs a single net (``conditions.py``). Each is
trained without one fold of the rows; a repeat has one member for each fold:

========================================  ===============================================
rows                                      members
========================================  ===============================================
numbers, 40 to 1,000                      three repeats of eight, the last of linear nets
numbers, more                             two repeats of four
classes, 100 or more                      two repeats of four
counts, 100 or more, with 30 events       two repeats of four
========================================  ===============================================

1. A short trial of the first members selects the prior precision of their training. Its nets are discarded.
2. The members train. Errors of held-out rows weight the repeats, and select noise and prior of the posteriors.
3. For numbers, four *exact nets* are a further repeat if exact Gauss–Newton steps are cheap (``encodings.py``). They
   are uncertain in regions without rows, and have at least a fifth of the weight (``exact_members.py``).

If the trial shows targets almost free of noise, there are only the exact nets: held-out rows determine the model of
the noise, and then each net goes on with all rows.

**Nets that are trained alone**, in other fits: each on all rows. The prior precisions are those of largest evidence of
the first net; for classes and counts a copy without a fold corrects them (``fold_copy.py``). A linear net replaces a
default net that is nearly constant, unless its evidence is smaller (``linear.py``). Each net of a given list is
approximated as if it was the only one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from .._host.given_net import is_list
from .._options.options import is_auto
from .._options.resolve import resolve
from .._runtime.progress import Task
from .._training.built_in import of_one_net
from ..errors import MemoryBudgetError
from .caught import issue, kept_back
from .conditions import check_in_memory, trains_jointly
from .ensemble import Ensemble
from .fit_alone import FAILURES, fit_alone
from .fit_jointly import fit_jointly
from .in_time import within_time
from .linear import AS_PROBABLE, has_learnt_nothing, linear_request
from .member import Member
from .request import FitRequest


def fit_ensemble(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Fit the members that the options and rows ask for; ``n_stages`` is the maximum number of subtasks of a member."""
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
