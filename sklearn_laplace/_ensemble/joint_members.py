r"""Members of a mixture: encodings for which exact steps are affordable, and weights of the members.

Nets trained by exact Gauss–Newton steps ("exact steps") read standardised numbers, or a piecewise linear encoding
(``n_bins``). A repeat is a partition of the rows into folds, with one member per fold, trained without that fold.

``Members(weights="uniform")`` keeps the weights of the fit, which are equal or, for jointly trained members, selected
on held-out rows. The value "evidence" gives weights in proportion to the evidence (Bayesian model averaging). The value
"loo" means stacking (Yao et al. 2018). The stacking weights maximise the mixture's leave-one-out density of the
training rows (``laplace/leave_one_out/left_out.py``),

.. math:: w = \arg\max_{w \ge 0,\ \sum w = 1} \sum_n \omega_n \log \sum_k w_k\, p_k(y_n \mid D_{-n}),

where :math:`\omega_n` is the weight of row n. The problem is concave and is solved by expectation maximisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from .._table.limits import SINGLE_THREAD_PASS, SMALL_ROWS, exact_cost
from .._table.rows import TableShape
from .._training.stacked import NegativeLog
from ..errors import NonFiniteLossError
from ..laplace.curvatures import GGN
from ..laplace.fit import Hyper, TrainingRows, some_rows
from ..laplace.jacobian.jacobian import ParameterBlock
from ..laplace.likelihoods._base import Likelihood
from ..options.resolved import is_auto
from .target_noise import MOST_SCORED

AUTOMATIC = (None, 8)
"""Candidate encodings of nets with exact steps, for targets almost free of noise: plain numbers, and eight bins."""
MOST_STEP = 2e9
"""Maximum cost of an exact Gauss–Newton step, in multiply-adds, for nets that replace a joint ensemble."""
MOST_ADDED = 9e8
"""Stricter maximum for nets within a joint ensemble, so that they take less time than its other members."""


def exact_kinds(parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood) -> tuple[int | None, ...]:
    """Values of ``n_bins`` with affordable exact steps; ``parameters`` has no "auto" for hidden layers."""
    pieces = shape.n_rows > SMALL_ROWS and shape.has_pieces
    allowed = (AUTOMATIC if pieces else (None,)) if is_auto(parameters["n_bins"]) else (parameters["n_bins"],)
    return tuple(kind for kind in allowed if _step(parameters, shape, likelihood, kind) <= MOST_STEP)


def affords_exact_net(parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood) -> bool:
    """True in regression, if a net with exact steps costs little compared with the members of a joint ensemble."""
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    return likelihood.has_dispersion and _step(parameters, shape, likelihood, n_bins) <= MOST_ADDED


def _step(parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood, n_bins: int | None) -> float:
    """Multiply-adds of an exact Gauss–Newton step."""
    n_dual = shape.n_rows * GGN().n_columns(likelihood, shape.n_outputs)
    cost, _ = exact_cost(blocks_of(parameters, shape, n_bins), n_dual)
    return cost


def _by_name(parameters: Mapping[str, Any]) -> list[str]:
    """Names of the given options that are mappings from names of layers or tensors."""
    return [name for name in ("prior_mean", "temperature") if isinstance(parameters.get(name), Mapping)]


def check_one_kind(parameters: Mapping[str, Any], fitted: Collection[Hashable]) -> None:
    """Refuse options keyed by weight names if the nets in ``fitted`` differ in encoding or tensor names."""
    n_kinds = len(set(fitted))
    for name in _by_name(parameters) if n_kinds > 1 else []:
        raise ValueError(
            f"{name}={parameters[name]!r} names weights of one net, but this mixture has {n_kinds} kinds of nets, "
            "whose weights have different names. Fit with n_members=1 and a single value of n_bins, or change a single "
            "one of members_."
        )


def blocks_of(parameters: Mapping[str, Any], shape: TableShape, n_bins: int | None) -> list[ParameterBlock]:
    """Weight blocks of the built-in net, with the maximum number of inputs of an encoding."""
    sizes = [*parameters["hidden_layer_sizes"], shape.n_outputs]
    first = (n_bins or 1) * shape.levels.count(0) + shape.n_added
    embeddings = [ParameterBlock("embedding", sizes[0], count + 1, factored=True) for count in shape.levels if count]
    layers = [ParameterBlock("layer", n_out, n_in + 1, factored=True) for n_in, n_out in pairwise([first, *sizes])]
    return [*embeddings, *layers]


EM_STEPS = 100
"""Number of expectation-maximisation steps from equal weights; further steps hardly change the density of new rows."""


def by_stacking(
    log_densities: np.ndarray, row_weights: np.ndarray, updated: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """Weights (k,) that maximise the density of the mixture, given log p_k(yₙ) (k, n) of held-out rows, in nats.

    If the densities have common parameters, ``updated`` returns the log densities for the best parameters. Its argument
    (k, n) holds each member's responsibility for each row; all responsibilities sum to 1.
    """
    shares = row_weights / row_weights.sum()
    weights = np.full(len(log_densities), 1 / len(log_densities))
    for _ in range(EM_STEPS):
        with np.errstate(divide="ignore"):
            joint = log_densities + np.log(weights)[:, None]
        parts = softmax(joint, axis=0) * shares
        weights, log_densities = parts.sum(1), log_densities if updated is None else updated(parts)
    normalised: np.ndarray = weights / weights.sum()
    return normalised


LEAST_REPEAT = 0.1
"""Minimum weight of a repeat that is kept."""


@dataclass(frozen=True)
class JointMembers:
    """Trained members of a mixture of K nets."""

    arguments: tuple[dict[str, Any], ...]  # keyword arguments of the nets
    states: tuple[dict[str, Tensor], ...]  # their weights
    held_out: Tensor  # (K, n), True for rows that were held out from a net
    shares: tuple[float, ...]  # weights (K,) in the mixture
    noise: tuple[Tensor, ...]  # noise variances (n, C), up to a factor, for row weights in last cycles; or ()
    n_steps: int
    places: tuple[int, ...]  # fold of each net, counted over all repeats
    n_exact: int = 0  # number of nets with exact steps, which are the first ones
    lead: Hyper | None = None  # of a net trained on all rows; set if the members are later trained on all rows
    overdispersion: tuple[float, ...] = ()  # α of each output, for negative binomial counts

    @classmethod
    def of_repeats(cls, repeats: Sequence[JointMembers], shares: Sequence[float]) -> JointMembers:
        """Members of several repeats with their weights; repeats with a weight below ``LEAST_REPEAT`` are omitted."""
        kept = [(repeat, share) for repeat, share in zip(repeats, shares, strict=True) if share >= LEAST_REPEAT]
        if not kept:
            raise NonFiniteLossError(
                "the loss of held-out rows is not finite for any member. Look for numbers in X or y that are far "
                "larger than all others, and correct or drop their rows."
            )
        total = sum(share for _, share in kept)
        return cls(
            tuple(chain.from_iterable(repeat.arguments for repeat, _ in kept)),
            tuple(chain.from_iterable(repeat.states for repeat, _ in kept)),
            torch.cat([repeat.held_out for repeat, _ in kept]),
            tuple(chain.from_iterable([share / total * within for within in repeat.shares] for repeat, share in kept)),
            tuple(chain.from_iterable(repeat.noise for repeat, _ in kept)),
            max(repeat.n_steps for repeat, _ in kept),
            tuple(chain.from_iterable(repeat.places for repeat, _ in kept)),
            sum(repeat.n_exact for repeat, _ in kept),
        )

    def sharpened(self, factor: float) -> JointMembers:
        """Return the members with outputs multiplied by a factor, through the last layer (``nets/mlp.py``)."""
        last = [name for name in self.states[0] if name.startswith("behind.") and name.endswith(".weight")][-1]
        changed = last, last.removesuffix("weight") + "bias"
        states = ({name: factor * t if name in changed else t for name, t in state.items()} for state in self.states)
        return replace(self, states=tuple(states))

    @property
    def is_small(self) -> bool:
        """True if a single thread is fastest in a pass over the rows."""
        n_weights = sum(tensor.numel() for tensor in self.states[0].values())
        return self.held_out.shape[1] * n_weights <= SINGLE_THREAD_PASS

    @property
    def are_exact(self) -> list[bool]:
        """True for each net trained by exact steps; its posterior's structure is that of a single-net fit."""
        return [k < self.n_exact for k in range(len(self.states))]

    @property
    def n_repeats(self) -> int:
        """Number of repeats, which is the number of members from which each row was held out."""
        return int(self.held_out[:, 0].sum())

    @property
    def repeat_shares(self) -> Tensor:
        """Weight of each repeat in the mixture, shape (D,), float64."""
        shares = torch.tensor(self.shares, dtype=torch.float64, device=self.held_out.device)
        return torch.zeros(self.n_repeats, dtype=shares.dtype, device=shares.device).index_add(
            0, self.repeat_of, shares
        )

    @property
    def repeat_of(self) -> Tensor:
        """Index of each member's repeat, (K,), int64; the folds of a repeat partition the rows."""
        before: Tensor = self.held_out.sum(1).cumsum(0) - 1
        return before // self.held_out.shape[1]

    @property
    def average_noise(self) -> Tensor | None:
        """Geometric mean of the noise variances, shape (n, C); None for constant noise."""
        return average(self.noise)


def average(noise: Sequence[Tensor]) -> Tensor | None:
    """Geometric mean of variances; None for an empty sequence."""
    return torch.stack(list(noise)).log().mean(0).exp() if noise else None


MOST_ERROR_RATIO = 2.0
"""Maximum geometric mean of a repeat's squared errors, relative to the best; all repeats share one noise model."""
NO_ERROR = 1e-6
"""Lower bound of the squared errors in this geometric mean, in units of their arithmetic mean."""
LEAST_EXACT = 0.2
"""Minimum weight of the repeat of nets with exact steps: held-out rows cannot reveal that nets with bins are
overconfident in regions without rows."""


def shares_of(rows: TrainingRows, outputs: Sequence[Tensor], noise: Tensor | None, least: float = 0.0) -> list[float]:
    """Weights of the repeats that maximise the density of held-out rows under their mixture (stacking).

    A repeat predicts normal distributions. Its outputs (n, C) are the means, and the noise times the best common factor
    is the variance. The weight of a repeat is zero if the geometric mean of its squared errors exceeds
    ``MOST_ERROR_RATIO`` times that of the best repeat. The first repeat has at least the weight ``least``. All weights
    are NaN if no repeat has finite errors.
    """
    variances = rows.noise if noise is None else noise
    weights, n_outputs = rows.weights.double(), outputs[0].shape[1]
    errors = torch.stack([(rows.targets.double() - of_repeat).square() for of_repeat in outputs])
    tiny = torch.finfo(torch.float64).tiny
    squares = (errors if variances is None else errors / variances.double()).clamp_min(tiny)
    # The lower bound limits the effect of rows with errors close to zero on the geometric mean.
    sizes = (squares.clamp_min(NO_ERROR * squares.mean()).log().mean(2) @ weights / weights.sum()).exp()
    if not sizes.min().isfinite():
        return [math.nan] * len(sizes)
    alike = (sizes <= MOST_ERROR_RATIO * sizes.min()).cpu().numpy()
    few = some_rows(len(rows), MOST_SCORED).to(weights.device)
    distances = squares[:, few].sum(2).cpu().numpy()[alike]

    def of_best_factor(parts: np.ndarray) -> np.ndarray:
        factor = (parts * distances).sum() / n_outputs
        return -0.5 * (distances / factor + n_outputs * math.log(factor))

    shares, row_weights = np.zeros(len(alike)), (weights[few] / weights[few].sum()).cpu().numpy()
    equal = of_best_factor(row_weights / len(distances))
    shares[alike] = by_stacking(equal, row_weights, of_best_factor)
    if shares[0] < least:
        shares = np.concatenate([[least], (1 - least) * shares[1:] / shares[1:].sum()])
    return shares.tolist()


def sharpened(
    repeats: Sequence[JointMembers], outputs: Tensor, rows: TrainingRows, loss: NegativeLog, alpha: tuple[float, ...]
) -> JointMembers:
    """Return the members of all repeats, with output factors and weights that are selected on held-out rows.

    ``outputs`` (D, n, C) are the outputs of each repeat for rows held out from its members. First, each repeat gets its
    own best factor, and stacking gives the weights of the repeats. Then all outputs are multiplied by a common factor,
    the best one for the mixture.
    """
    weights = rows.weights.double()
    factors = [loss.best_factor(of_one[None], rows.targets, weights)[0] for of_one in outputs]
    outputs = torch.stack([factor * of_one for factor, of_one in zip(factors, outputs, strict=True)])
    shares = by_stacking(-loss.errors(outputs, rows.targets).cpu().numpy(), weights.cpu().numpy())
    n_nets = sum(len(repeat.states) for repeat in repeats)
    of_all, _ = loss.best_factor(outputs, rows.targets, weights, torch.from_numpy(shares).to(outputs), n_nets)
    scaled = [repeat.sharpened(factor * of_all) for repeat, factor in zip(repeats, factors, strict=True)]
    return replace(JointMembers.of_repeats(scaled, shares.tolist()), overdispersion=alpha)
