"""Gradient epochs interleaved with evidence steps, for nets that are too large for exact Gauss–Newton steps."""

from __future__ import annotations

from dataclasses import replace

from skorch import NeuralNet

from .._host.epochs import EpochTasks, Watch, run_epochs
from .._host.rows import TrainingRows
from .._runtime.budget import budget_for
from .._runtime.progress import Steps, Task
from ..errors import NonFiniteLossError
from ..laplace.evidence import mackay_fixed_point
from ..laplace.fit import Hyper
from ..laplace.mode.problem import Problem
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from .plan import Plan

EPOCH_DAMPING = 0.7
"""Fraction of the logarithmic distance to the target by which an evidence step moves the hyperparameters."""


def train_epochs(
    net: NeuralNet,
    rows: TrainingRows,
    network: Network,
    prior: Prior,
    problem: Problem,
    plan: Plan,
    *,
    hyper: Hyper,
    task: Task,
) -> Hyper:
    """Run the epochs of an initialised net in place, with damped evidence steps for free hyperparameters in between.

    ``network`` is its trace at the initial weights. Raises ``NonFiniteLossError`` if the loss is not finite.
    """
    past = None if plan.previous is None else plan.previous.fit
    net.criterion_.bind(network, net.module_, prior, hyper, past)
    free_prior = plan.precision is None

    def between(live: NeuralNet) -> None:
        nonlocal hyper
        fit = problem.linearise(network.with_state_of(live.module_))
        target = mackay_fixed_point(fit, hyper) if free_prior else hyper
        target = replace(target, dispersion=plan.update(fit, hyper).dispersion)
        hyper = _part_of_the_way(hyper, target)
        live.criterion_.bind(network, live.module_, prior, hyper, past)

    free = free_prior or plan.free_dispersion
    try:
        # A skorch net of the user prints its own table of epochs.
        shown = {"unit": "epoch", "prints": net.callbacks == "disable"}
        with task.subtask("epochs", net.max_epochs) as epochs, Steps(epochs, net.max_epochs, **shown) as steps:
            net.callbacks_ = [*net.callbacks_, ("laplace_progress", EpochTasks(epochs, steps))]
            period = max(1, net.max_epochs // budget_for(len(rows)).evidence_steps)
            run_epochs(net, rows, Watch(plan.is_over, between if free else None, period))
    except NonFiniteLossError:
        problem.linearise(network)  # if the initial outputs are not finite, this error names the layer
        raise
    return hyper


def _part_of_the_way(hyper: Hyper, target: Hyper) -> Hyper:
    precision = hyper.prior_precision * (target.prior_precision / hyper.prior_precision) ** EPOCH_DAMPING
    dispersion = hyper.dispersion * (target.dispersion / hyper.dispersion) ** EPOCH_DAMPING
    return replace(hyper, prior_precision=precision, dispersion=dispersion)
