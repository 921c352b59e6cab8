"""Fit of an ensemble: number of members, training, and weights in the mixture.

Regression means numeric targets other than counts.

**Joint training** (``train_members.py``) is the default for the built-in net. A *repeat* is a random partition of the
rows into folds, with one net per fold. Each net is trained without the rows of its fold, its *held-out rows*. Options
for nets trained on all rows, such as ``max_epochs`` or an integer ``n_members``, exclude joint training
(``conditions.py``).

====================================  ================================================================
targets and distinct rows             members
====================================  ================================================================
regression, 10 to 1,000               two repeats of eight nets, and one repeat of eight linear nets
regression, more                      two repeats of four nets
classification, 10 or more            two repeats of four nets
counts, 10 or more, with sum ≥ 30     two repeats of four nets
otherwise                             one net that is trained alone (see below)
====================================  ================================================================

The nets of the first repeat suit smooth functions; those of the second have more bins and suit fine detail
(``_training/recipe.py``). There are no linear nets if the user sets hidden layers or bins, or selects single tensors.

1. A short trial, whose nets are discarded, compares errors on held-out rows. It selects a dropout rate and a prior
   precision for step 2. In regression with more than ``MANY_ROWS`` rows, a large error halves the
   widths of the hidden layers. For overdispersed counts, the trial gives a first overdispersion.
2. The nets in the table are trained. In regression, the last learning-rate cycle favours rows with small noise.
3. In regression, a further repeat of four folds is trained by exact Gauss–Newton steps: the *exact nets*. They are
   omitted if such a step costs more than ``MOST_ADDED`` multiply-adds (``joint_members.py``).
4. Held-out rows select the weight of each repeat; its nets share this weight equally. A repeat with little weight is
   dropped. Exact nets get at least a fifth of the weight: nets with bins are overconfident in regions without rows,
   where no row is held out. For classification, held-out rows also select factors of the logits.
5. The posterior of each net is approximated on its training rows. The prior precision that maximises the evidence of
   the first net is multiplied by a factor that held-out rows select. In regression, these rows also select noise level
   and noise model. For counts, they select the overdispersion.

If the trial finds almost no noise in the targets of a regression, only four exact nets are trained. The limit on their
cost is then higher (``MOST_STEP``). Held-out rows determine the noise model. The training of these nets then
continues on all rows.

**Training alone** (``fit_alone.py``). Other fits train one or more nets independently, each on all rows. By default,
the evidence of the first net selects the prior precisions for training all nets. For classification and counts, a copy
of the first net is trained without a quarter of the rows. These rows select a factor of the prior precisions.

**Lists of trained nets.** If ``net`` is a list, each net is approximated as if it were the only one.
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
    """Return an ensemble fitted to the rows; an independently trained net has at most ``n_stages`` subtasks."""
    if is_list(request.parameters["net"]):
        return _fit_given(request, n_stages, task)
    options, shape = request.options_for_rows(), request.data.shape()
    together = trains_jointly(request.parameters, shape, options, is_streamed=request.stream is not None)
    check_in_memory(request, options, is_joint=together)
    if together:
        return fit_jointly(within_time(request, task.clock), n_stages, task)
    return fit_alone(_of_one(request), n_stages, task)


def fit_jointly(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Train members jointly, each without a fold of the rows, and approximate their posteriors."""
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
    """Continue the training of exact nets on all rows, under a noise model learnt from their held-out errors.

    ``lead`` has the hyperparameters of a net trained on all rows.
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
    """Request for independently trained nets, with values for "auto" layers, activation and bins."""
    parameters = of_one_net(request.parameters)
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    return replace(request, parameters={**parameters, "n_bins": n_bins})


def _fit_given(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Approximate the posterior of each of the user's trained nets, as if it were the only one."""
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
