"""Fit of an ensemble: how many members it has, how they are trained, and their weights in the mixture.

Regression means numeric targets other than counts. *Held-out rows* of a net are the fold that it is not trained on.

**Joint training** (``train_members.py``). A *repeat* is a random partition of the rows into folds, with one net per
fold. Each net is trained on all rows outside its fold. The built-in net is trained jointly by default. Some options
need a net of all rows instead, for example ``max_epochs`` or an integer ``n_members`` (``conditions.py``).

====================================  ================================================================
distinct rows                         members
====================================  ================================================================
regression, 10 to 1,000               two repeats of eight nets, and one repeat of eight linear nets
regression, more                      two repeats of four nets
classification, 10 or more            two repeats of four nets
counts, 10 or more, with sum ≥ 30     two repeats of four nets
fewer                                 one net that is trained alone (see below)
====================================  ================================================================

The nets of the first repeat suit smooth functions; those of the second have more bins and suit fine detail
(``_training/recipe.py``). The linear nets are omitted if an option refers to hidden layers, bins or single tensors
(``leaves_layers_open`` in ``conditions.py``).

1. A short trial compares the errors of a few nets on held-out rows. It selects the prior precision of the training and
   the dropout rate, which all nets of step 2 share. In regression with many rows, a large error halves the widths of
   the hidden layers. For overdispersed counts, the trial estimates a first overdispersion. Its nets are discarded.
2. The nets of the table are trained. Held-out rows then select the weight of each repeat and, independently of step 1,
   the prior precision of the posteriors. In regression, they also determine the noise. For overdispersed counts, they
   select the overdispersion; for classification, a factor by which all logits are multiplied.
3. In regression, four *exact nets* form a further repeat if an exact Gauss–Newton step costs at most ``MOST_ADDED``.
   Each of them holds out one of four folds. Their prior precisions are selected separately. Exact nets are uncertain
   in regions without rows, and together get at least a fifth of the weight (``joint_members.py``).

If the trial finds that targets of a regression are almost free of noise, four exact nets replace steps 2 and 3. One
step may then cost more (``MOST_STEP``), because no other nets are trained. Held-out rows determine the noise model.
Afterwards, the training of these four nets continues on all rows.

**Nets that are trained alone** (``fit_alone.py``). All other fits train one net on all rows, or several, one after the
other. By default, the evidence of the first net selects the prior precisions of all. For classification and counts, a
copy of the first net is trained without one fold. Its held-out rows select a factor that multiplies these precisions.

**Lists of trained nets.** The posterior of each net in the list is approximated as if it were the only net.
"""

from dataclasses import replace

import numpy as np

from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import FitRequest, WarmStart
from .._training.progress import STAGES, Task
from ..laplace.fit import Hyper
from ..laplace.torch_state import single_thread
from ..nets.given_net import is_list
from ..options.resolved import is_auto
from .approximate_counts_and_classes import approximate_counts_and_classes
from .approximate_members import approximate_jointly, nets_of, noise_of_folds, pieces_of, traced
from .conditions import check_in_memory, trains_jointly
from .ensemble import Ensemble
from .fit_alone import fit_alone
from .joint_members import JointMembers
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
    return fit_alone(_of_one(request), n_stages, task)


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
