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

There are no linear nets if an option sets layers, bins or prior precision.

1. A short trial selects the prior precision and the dropout of all members. For numbers its error decides the widths,
   for counts it gives a first overdispersion. Its nets are discarded.
2. The members train. Errors of held-out rows weight the repeats, and select the prior precision of the posteriors,
   the noise of numbers, the overdispersion of counts, and a factor of the outputs for classes.
3. For numbers, four *exact nets* are a further repeat if exact Gauss–Newton steps cost little (``MOST_ADDED``). They
   are uncertain in regions without rows, and have at least a fifth of the weight (``joint_members.py``).

If the trial shows targets almost free of noise, and exact steps are affordable (``MOST_STEP``), there are only the
exact nets. Held-out rows determine the noise model, and then the training of each net continues on all rows.

**Nets that are trained alone**, in other fits: each on all rows. The evidence of the first net selects the prior
precisions; for classes and counts a copy without a fold corrects them (``fit_alone.py``). A linear net replaces a
default net that is nearly constant, unless the log evidence of the linear one is smaller (``linear.py``). Each net of a
given list is approximated as if it was the only one.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import FitRequest, WarmStart
from .._training.progress import STAGES, Task
from ..errors import MemoryBudgetError
from ..laplace.fit import Hyper
from ..laplace.torch_state import single_thread
from ..nets.given_net import is_list
from ..options.resolved import is_auto
from .approximate_counts_and_classes import approximate_counts_and_classes
from .approximate_members import approximate_jointly, nets_of, noise_of_folds, pieces_of, traced
from .conditions import check_in_memory, trains_jointly
from .ensemble import Ensemble
from .fit_alone import FAILURES, fit_alone, issue, kept_back
from .joint_members import JointMembers
from .linear import AS_PROBABLE, has_learnt_nothing, linear_request
from .member import Member
from .train_members import train_jointly, within_time


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


def fit_jointly(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Train members together, each without a fold of the rows."""
    with task.subtask("member", STAGES) as stages:
        with stages.subtask("training", STAGES) as training:
            joint_nets = cached_training(train_jointly, request, training)
        if joint_nets.overdispersion:
            request = request.with_overdispersion(joint_nets.overdispersion)
        if joint_nets.lead is not None:
            return _fit_on_all_rows(joint_nets, joint_nets.lead, request, n_stages, task)
        with stages.subtask("posterior") as stage, single_thread(joint_nets.is_small):
            if request.resolved.likelihood.has_dispersion:
                members = approximate_jointly(joint_nets, request, task.clock)
                first = members[0]
                stage.score = first.origin.held_out_score(first.fit, first.hyper, first.scale)
            else:
                members = approximate_counts_and_classes(joint_nets, request, task.clock)
    return Ensemble.of(members, np.array(joint_nets.shares))


def _fit_on_all_rows(joint_nets: JointMembers, lead: Hyper, request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Go on with all rows from exact nets that were trained without a fold, under the noise of their held-out rows.

    ``lead`` are the hyperparameters of a net of all rows.
    """
    options = request.options_for_rows()
    rows = request.data.training_rows(options.dtype, options.device, built_in=True)
    networks = traced(nets_of(joint_nets, rows, options, request.seeds[0]), rows)
    model = noise_of_folds(joint_nets, networks, lead, rows, request)
    precision = lead.prior_precision.cpu().numpy()
    starts = tuple(WarmStart(net.theta.cpu().numpy().astype(float), precision, lead.dispersion) for net in networks)
    of_one = of_one_net(request.parameters)
    parameters = {**of_one, "lr": None, "batch_size": None, "n_bins": pieces_of(joint_nets)[0]}
    under = request if model is None else request.under_noise(model.ratios_of)
    return fit_alone(replace(under, parameters=parameters), n_stages, task, starts, model)


def _of_one(request: FitRequest) -> FitRequest:
    """Request for nets that are trained alone; "auto" means no bins."""
    parameters = of_one_net(request.parameters)
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    return replace(request, parameters={**parameters, "n_bins": n_bins})


def _fit_given(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Approximate the posterior of each of the user's trained nets, as if it was the only one."""
    members: list[Member] = []
    for place, net in enumerate(request.parameters["net"]):
        parameters = {**request.parameters, "net": net, "n_members": 1}
        of_one = request.with_parameters(parameters)
        try:
            members += fit_ensemble(of_one, n_stages, task).members
        except ValueError as error:
            error.args = (f"net[{place}]: {error.args[0]}", *error.args[1:])
            raise
    return Ensemble.of(members)
