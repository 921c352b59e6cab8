r"""Where second-order steps start: a net and those beside it, trained by gradients side by side.

A few hundred steps of Adam in single precision (``batched.py``) go most of the way, in the time of about five exact
steps of each net. They do not choose a prior: that of the net, of precision δ, adds :math:`\tfrac{\delta\varphi}{2n}
|W|^2` to half the mean squared error. The noise :math:`\varphi` is the error of the net's own rows after the cycle
before. Encoded columns have no learnable scales, since the nets share one encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._host.rows import TrainingRows
from .._runtime.threads import single_thread
from ..laplace.network.network import Network
from ..nets import MLP, TableMLP
from .batched import Stacked, Training, mean_squares
from .fit_map import is_exact
from .plan import Plan
from .schedule import Schedule
from .starts import has_groups

SCHEDULE = Schedule(600, lr=0.02, weight_decay=0.0, most_further=0, bias_rate=1.0)


@dataclass(frozen=True)
class GradientStart:
    """Nets as gradients have left them.

    Parameters
    ----------
    states : tuple of dict of str to Tensor
        Of each net.
    dispersion : float
        Mean squared error of the rows that a net has not seen, in the network's units.
    """

    states: tuple[dict[str, Tensor], ...]
    dispersion: float


def gradient_start(
    modules: Sequence[MLP] | Sequence[TableMLP],
    rows: TrainingRows,
    held_out: Sequence[Tensor],
    prior: float,
    seed: int,
    is_over: Callable[[], bool] = bool,
) -> GradientStart:
    """Train nets side by side.

    Parameters
    ----------
    modules : sequence of MLP or TableMLP
        Of one shape: one that sees all rows, then one for each part.
    rows : TrainingRows
    held_out : sequence of Tensor of int64
        The rows that each net after the first does not see.
    prior : float
        δ.
    seed : int
        Of the order of the rows.
    is_over : callable
        → bool, whether the training has to end.
    """
    stacked = Stacked(modules, learns_scales=False)
    seen = torch.ones(len(modules), len(rows), dtype=torch.float64, device=rows.inputs.device)
    for own, places in zip(seen[1:], held_out, strict=True):
        own[places] = 0.0
    training = Training.of(stacked, rows, seen, [SCHEDULE], seed, [prior] * len(modules), from_zero=False)
    outputs, precision = torch.empty(0), training.precision.double()
    with single_thread(stacked.is_small(SCHEDULE)):
        for begin, end in SCHEDULE.cycles:
            training.run(SCHEDULE.rate, SCHEDULE.decay, range(begin, end), is_over)
            outputs = training.outputs()
            noise = mean_squares(rows, outputs, seen * rows.weights, precision)
            training.noise = torch.minimum(training.noise, noise.to(training.noise))
    unseen = (1 - seen[1:]) * rows.weights
    errors = mean_squares(rows, outputs[1:], unseen, precision)
    return GradientStart(tuple(stacked.written()), float((errors * unseen.sum(1)).sum() / unseen.sum()))


def starts_by_gradients(network: Network, rows: TrainingRows, n_outputs: int, plan: Plan) -> bool:
    """Whether gradients can train before exact steps: targets with normal noise, one prior precision.

    Parameters
    ----------
    network : Network
    rows : TrainingRows
    n_outputs : int
    plan : Plan
    """
    normal = plan.likelihood.has_dispersion and plan.likelihood.quadratic
    several = plan.precision is None and has_groups(network, plan.prior(network))
    return normal and not several and is_exact(network, rows, n_outputs, plan)
