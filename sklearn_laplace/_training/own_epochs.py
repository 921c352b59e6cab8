"""Training of a user's net by its own epochs alone, with a given prior precision as a penalty on the loss.

Epochs, optimiser, batches, callbacks, schedules, early stopping and random draws are those of the skorch net, in its
own floating-point precision. A prior precision that is selected after training adds no penalty. Then only the settings
of the skorch net, such as epochs and learning rate, regularise it. A plain torch module is trained under a prior of
natural size (outputs of order one), with a learning rate that falls to zero.
"""

import copy
import math
from dataclasses import replace

import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet
from torch import Tensor

from .._table.limits import SINGLE_THREAD_FLOPS, SINGLE_THREAD_PASS, budget_for, exact_cost
from ..errors import NonFiniteLossError
from ..laplace.curvatures import GGN
from ..laplace.fit import CHUNK, Hyper, TrainingRows, fit_laplace
from ..laplace.network.network import Network
from ..laplace.structures import Diag
from ..laplace.torch_state import single_thread
from ..nets.given_net import copied
from ..nets.skorch_net import finish
from .epochs import Annealing, Watch, hold_out, run_epochs
from .fit_map import n_dual_rows
from .plan import GivenNet, Plan, grouped
from .progress import Task

MODULE_LR = 0.02
"""Initial learning rate of a module without a skorch net."""
OF_CLASSES = 0.3
"""Prior precision in training a module for classes and counts, relative to the natural one. See docs/decisions.md."""
LINEARITY = 1e-9, 1e-4
"""Maximum second differences of the outputs of a linear net, relative to the outputs: in float64 and in float32."""


def train_given(
    net: NeuralNet,
    network: Network,
    rows: TrainingRows,
    plan: Plan,
    task: Task,
    *,
    seed: int,
    level: int,
) -> GivenNet:
    """Run the epochs of an initialised net in place, in its own dtype; return the trained net.

    ``network`` is its trace in the dtype of the rows. A random ``train_split`` uses ``seed``.
    """
    own = rows.to(next(net.module_.parameters()).dtype)
    held_out = hold_out(net, own, seed)
    if len(held_out) and level:
        print(
            f"the net holds out {len(held_out)} of {len(rows)} rows by its train_split. They are not part of the "
            "posterior; they select prior precision and noise level."
        )
    with single_thread(len(rows) * network.n_parameters <= SINGLE_THREAD_PASS):
        try:
            _run(net, network, own, plan, task)
        except NonFiniteLossError:
            fit_laplace(network, plan.likelihood, GGN(), Diag, plan.prior(network), rows.chunks(CHUNK))  # names a layer
            raise
    history = [dict(entry) for entry in net.history]
    network = network.with_state_of(copy.deepcopy(net.module_).to(rows.weights.dtype))
    net.module_.to(rows.weights.dtype)
    return _given(finish(net, network), network, rows, plan, held_out, history)


def keep_weights(frozen: FrozenEstimator, network: Network, rows: TrainingRows, plan: Plan) -> GivenNet:
    net = copied(frozen.estimator)
    history = list(net.history)
    net.trim_for_prediction()
    net.history.extend(history)
    none = torch.zeros(0, dtype=torch.long, device=rows.inputs.device)
    return _given(net, network, rows, plan, none, [])


def is_linear(network: Network, inputs: Tensor) -> bool:
    """True if the outputs are linear in the weights, tested by second differences in two random directions."""
    theta, generator = network.theta, torch.Generator().manual_seed(0)
    tolerance = LINEARITY[int(inputs.dtype != torch.float64)]
    for size in (0.5, 5.0):
        step = size * torch.randn(len(theta), generator=generator, dtype=torch.float64).to(theta.device)
        before, here, after = (network.with_parameters(theta + k * step)(inputs).double() for k in (-1, 0, 1))
        scale = before.abs().max() + after.abs().max()
        if not bool((before + after - 2 * here).abs().max() <= tolerance * scale):
            return False
    return True


def prepare_module(net: NeuralNet, network: Network, rows: TrainingRows, plan: Plan, *, by_rows: bool) -> None:
    """Set learning rates, prior and, if ``by_rows``, epochs of the net around a plain torch module."""
    if by_rows:
        budget = budget_for(len(rows))
        size = budget.batch_size if net.batch_size == -1 else net.batch_size
        epochs = budget.epoch_steps if size == -1 else math.ceil(budget.epoch_steps * size / len(rows))
        net.set_params(batch_size=size, max_epochs=epochs)
    net.callbacks_ = [*net.callbacks_, ("laplace_annealing", Annealing())]
    if plan.precision is None and plan.previous is None:
        prior = plan.prior(network)
        hyper = plan.start(network, prior)
        if not plan.likelihood.has_dispersion:
            hyper = replace(hyper, prior_precision=OF_CLASSES * hyper.prior_precision)
        net.criterion_.bind(network, net.module_, prior, hyper)


def _run(net: NeuralNet, network: Network, rows: TrainingRows, plan: Plan, task: Task) -> None:
    has_penalty = plan.precision is not None and bool((plan.precision > 0).all())
    if has_penalty or plan.previous is not None:
        prior = plan.prior(network)
        past = None if plan.previous is None else plan.previous.fit
        net.criterion_.bind(network, net.module_, prior, plan.start(network, prior), past)
    between = (lambda net: net.criterion_.update_dispersion()) if plan.free_dispersion else None
    run_epochs(net, rows, Watch(plan.is_over, between), task)


def _given(
    net: NeuralNet,
    network: Network,
    rows: TrainingRows,
    plan: Plan,
    held_out: Tensor,
    history: list[dict[str, object]],
) -> GivenNet:
    prior = grouped(network, network.parameter_names, plan.options)
    hyper = Hyper(
        network.natural_precisions(prior), plan.first_dispersion if plan.dispersion is None else plan.dispersion
    )
    if plan.previous is not None:
        hyper = replace(plan, precision=None).start(network, prior)
    small = exact_cost(network.blocks, n_dual_rows(rows, plan.likelihood))[0] <= SINGLE_THREAD_FLOPS
    return GivenNet(net, network, prior, hyper, held_out, history, small, rows.inputs.dtype)
