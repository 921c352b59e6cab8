r"""Start of exact Gauss–Newton steps: joint gradient training of a net and its cross-fitted nets.

A few hundred steps of Adam in single precision (``batched.py``) take as long as about five exact steps of each net. A
fixed prior precision δ adds :math:`\tfrac{\delta\varphi}{2n} |W|^2` to half the mean squared error, where
:math:`\varphi` is the training error after the previous cycle. Encoded columns have no learnable scales: the nets share
one encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._host.rows import TrainingRows
from .._runtime.progress import Steps
from .._runtime.torch_state import single_thread
from ..laplace.network.network import Network
from ..nets import MLP, TableMLP
from .batched import Training, mean_errors
from .fit_map import has_groups
from .losses import Squares
from .plan import Plan
from .recipe import Schedule
from .stacked import Stacked

SCHEDULE = Schedule(600, lr=0.02, weight_decay=0.0, most_further=0, bias_rate=1.0)
"""Schedule of the gradient training."""


@dataclass(frozen=True)
class GradientStart:
    """Result of the gradient training: the state dict of each net."""

    states: tuple[dict[str, Tensor], ...]
    dispersion: float  # mean squared error of held-out rows, in the network's units


def gradient_start(
    modules: Sequence[MLP] | Sequence[TableMLP],
    rows: TrainingRows,
    held_out: Sequence[Tensor],
    prior: float,
    seed: int,
    steps: Steps | None = None,
) -> GradientStart:
    """Train a net on all rows, and one net per fold without its ``held_out`` rows, jointly by gradients.

    ``modules`` have the same shape, the net for all rows first; ``prior`` is the prior precision δ.
    """
    stacked, loss = Stacked(modules, learns_scales=False), Squares()
    seen = torch.ones(len(modules), len(rows), dtype=torch.float64, device=rows.inputs.device)
    for mask, places in zip(seen[1:], held_out, strict=True):
        mask[places] = 0.0
    steps = Steps() if steps is None else steps
    unseen = (1 - seen[1:]) * rows.weights
    training = Training.of(stacked, loss, rows, seen, [SCHEDULE], seed, [prior] * len(modules), from_zero=False)
    outputs, precision = torch.empty(0), training.precision.double()
    with single_thread(stacked.is_small(SCHEDULE)):
        for begin, end in SCHEDULE.cycles:
            training.run(SCHEDULE.rate, SCHEDULE.decay, range(begin, end), steps)
            outputs = training.outputs()
            steps.score(mean_errors(loss, rows, outputs[1:], unseen, precision), rows.n_outputs)
            noise = mean_errors(loss, rows, outputs, seen * rows.weights, precision)
            training.noise = torch.minimum(training.noise, noise.to(training.noise))
    errors = mean_errors(loss, rows, outputs[1:], unseen, precision)
    return GradientStart(tuple(stacked.written()), float((errors * unseen.sum(1)).sum() / unseen.sum()))


def may_start_by_gradients(network: Network, plan: Plan) -> bool:
    """True if gradient training can precede exact steps: a Gaussian likelihood, and a fixed or a single prior
    precision.
    """
    normal = plan.likelihood.has_dispersion and plan.likelihood.quadratic
    several = plan.precision is None and has_groups(network, plan.prior(network))
    return normal and not several
