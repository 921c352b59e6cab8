r"""Start of exact Gauss–Newton steps: joint gradient training of nets of one shape.

A few hundred steps of Adam in single precision (``batched.py``) take as long as about five exact steps of each net. A
fixed prior precision δ adds :math:`\tfrac{\delta\varphi}{2n} |W|^2` to half the mean squared error, where
:math:`\varphi` is the training error after the previous cycle. Encoded columns have no learnable scales: the nets share
one encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .._host.rows import TrainingRows
from .._runtime.budget import SMALL_ROWS
from .._runtime.progress import Steps
from .._runtime.torch_state import single_thread
from ..laplace.network.network import Network
from ..nets import MLP, TableMLP
from .batched import Training, mean_errors
from .fit_map import has_groups, is_exact
from .losses import Squares
from .plan import NOISELESS, Plan
from .recipe import Schedule
from .stacked import Stacked

SCHEDULE = Schedule(600, lr=0.02, weight_decay=0.0, most_further=0, bias_rate=1.0)
"""Schedule of the gradient training."""


def starts_by_gradients(network: Network, rows: TrainingRows, plan: Plan) -> bool:
    """True if gradient training precedes exact steps: normal noise, more than ``SMALL_ROWS`` rows, hidden layers.

    The noise level has to be free, the prior precision fixed or a single one. A previous posterior determines the start
    itself.
    """
    is_open = plan.free_dispersion and plan.previous is None and plan.likelihood.quadratic
    if not is_open or len(rows) <= SMALL_ROWS or not is_exact(network, rows, plan):
        return False
    is_deep = isinstance(network.module, MLP | TableMLP) and len(network.module.hidden_layer_sizes) > 0
    return is_deep and not (plan.precision is None and has_groups(network, plan.prior(network)))


def gradient_start(
    modules: Sequence[MLP] | Sequence[TableMLP], rows: TrainingRows, seen: Tensor, prior: float, seed: int, steps: Steps
) -> float | None:
    """Train nets of the same shape in place; return the mean squared error of rows that a net does not see.

    ``seen`` (K, n) is 1 for the rows of a net, else 0, for some rows of one net at least; ``prior`` is the prior
    precision δ. For targets almost free of noise, return None and the initial weights: gradient training leads to worse
    modes there.
    """
    stacked, loss = Stacked(modules, learns_scales=False), Squares()
    training = Training.of(stacked, loss, rows, seen, [SCHEDULE], seed % 2**31, [prior] * len(modules), from_zero=False)
    outputs, precision = torch.empty(0), training.precision.double()
    judges = (seen < 1).any(1)  # nets that have not seen some rows
    unseen = ((1 - seen) * rows.weights)[judges]
    with single_thread(stacked.is_small(SCHEDULE)):
        for begin, end in SCHEDULE.cycles:
            training.run(SCHEDULE.rate, SCHEDULE.decay, range(begin, end), steps)
            outputs = training.outputs()
            steps.score(mean_errors(loss, rows, outputs[judges], unseen, precision), rows.n_outputs)
            noise = mean_errors(loss, rows, outputs, seen * rows.weights, precision)
            training.noise = torch.minimum(training.noise, noise.to(training.noise))
    errors = mean_errors(loss, rows, outputs[judges], unseen, precision)
    error = float((errors * unseen.sum(1)).sum() / unseen.sum())
    if error < NOISELESS:
        return None
    for module, state in zip(modules, stacked.written(), strict=True):
        module.load_state_dict(state)
    return error


def started(
    modules: Sequence[MLP] | Sequence[TableMLP],
    network: Network,
    rows: TrainingRows,
    seen: Tensor,
    plan: Plan,
    seed: int,
    steps: Steps,
) -> Plan:
    """Train nets by gradients in place, and return the plan of the exact steps that follow."""
    prior = float(plan.start(network, plan.prior(network)).prior_precision.mean())
    return replace(plan, begun=gradient_start(modules, rows, seen, prior, seed, steps))
