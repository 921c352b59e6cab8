r"""Prediction intervals from the errors of held-out rows, instead of quantiles of the predictive distribution.

Each training row is held out by D nets of a fit, with weights :math:`b_d`. These nets are a small mixture, which
predicts the row n with an error :math:`e_n` and a standard deviation :math:`s_n`, noise and disagreement included. Let
:math:`Z_n = |e_n| / s_n`, and let Q be the quantile over the rows that belongs to the confidence level (the
:math:`\lceil p(N+1) \rceil`-th smallest value).

**"cv+"** (Barber et al. 2021, eq. 11, for several nets and with scaled residuals): the ends at x are quantiles over the
rows of

.. math:: \mu_{-n}(x) \mp Z_n\, s_{-n}(x),

where :math:`\mu_{-n}` is the mean of the nets that hold out row n, and :math:`s_{-n}^2` the variance of their means
plus the mean variance of the members, noise included. The coverage is at least about :math:`1 - 2\alpha`, for any
distribution of the errors. It is usually above :math:`1 - \alpha`, since D nets are less accurate than the ensemble.

**"jackknife+"**: the ends at x are :math:`\mu(x) \mp q\, s(x)`, with mean and standard deviation of the whole ensemble,
and

.. math:: q = Q(Z)\, \max\left(Q(Z') / Q(Z),\ \rho\right)^{a} .

The second factor accounts for the difference between the D nets and the ensemble. There are two cases.

If the nets of the ensemble hold out rows themselves, Z' are the errors of single nets over their standard deviations.
The exponent is negative: what averaging D nets has gained is extrapolated to the whole ensemble. Averaging with weights
:math:`w_k` removes a fraction :math:`1 - \sum w_k^2` of the variance between nets. The fraction that remains to be
removed, relative to that of the D nets, is multiplied by ``FURTHER``.

If the nets of the ensemble are trained on all rows, Z' are closed-form leave-one-out errors of the ensemble
(``laplace/leave_one_out/left_out.py``). They are too small, because the nets have learnt their features from all rows,
and Z is too large. The exponent is ``TOWARDS_LEFT_OUT``. :math:`\rho` is ``LEAST_RATIO``. See docs/decisions.md.

All standard deviations are those of the prior precisions and the noise level with which the fit ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._approximation.calibration import HeldOutDeals
from .._approximation.held_out import CrossFit
from .._data.rows import PreparedData, row_keys
from .._options.options import Options
from .._runtime.memory import held
from ..errors import MemoryBudgetError
from ..laplace.fit import Hyper
from ..laplace.latent import Predictive
from ..laplace.leave_one_out.jackknife import reached
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.selection import HeldOutErrors
from .member import Member

FURTHER, MOST_FURTHER = 0.4, 1.0
"""Part of the extrapolated gain of averaging that counts, because nets of the same rows are not independent, and the
largest extrapolation."""
TOWARDS_LEFT_OUT, LEAST_RATIO = 0.7, 0.25
"""Exponent of Q(Z') / Q(Z) with leave-one-out errors, and the smallest ratio that counts. Without noise, the errors of
leave-one-out can be a hundred times too small."""


@dataclass(frozen=True, eq=False)
class HeldOutMixture:
    """Standardised errors of held-out rows, and the nets that hold them out.

    ``hypers`` of the members, at temperature 1, and their ``priors`` determine the standard deviations. ``scores``
    (m, C) are Z with row ``weights`` (m,), and ``others`` (M, C) are Z' with ``other_weights`` (M,), all float64;
    ``exponent`` is a.

    ``places`` (m, D), int64, are the indices in ``networks`` of the nets that hold out a row, and ``shares`` (D,) the
    weights b of these nets. ``keys`` (m,), uint64, identify the rows among those of the fit.
    """

    hypers: tuple[Hyper, ...]
    priors: tuple[Prior, ...]
    scores: Tensor
    weights: Tensor
    others: Tensor
    other_weights: Tensor
    exponent: float
    networks: tuple[Network, ...]
    places: Tensor
    shares: Tensor
    keys: np.ndarray

    def weighted(self, importance: np.ndarray, rows: PreparedData) -> HeldOutMixture:
        r"""Multiply the weights of the rows by importance weights (Tibshirani et al. 2019).

        ``importance`` (N,) has the order of the fit's ``rows``. The weights are scaled to an effective number of rows,
        :math:`(\sum w)^2 / \sum w^2`, which counts for the levels that can be reached.
        """
        of_fit = row_keys(rows.X, rows.targets)
        order = np.argsort(of_fit, kind="stable")
        mine = order[np.searchsorted(of_fit[order], self.keys)]
        of_mine = torch.from_numpy(importance[mine]).to(self.weights)
        is_left_out = self.exponent > 0  # Z' of the rows of the fit, in place of single nets
        repeats = len(self.others) // len(self.scores)
        of_others = torch.from_numpy(importance).to(self.weights) if is_left_out else of_mine.repeat(repeats)
        weights = _effective(self.weights, of_mine)
        return replace(self, weights=weights, other_weights=_effective(self.other_weights, of_others))

    def jointly(self) -> HeldOutMixture:
        """Scores of intervals that hold jointly: the largest score of each row, for all of its outputs."""
        scores, others = (part.amax(1, keepdim=True).expand_as(part) for part in (self.scores, self.others))
        return replace(self, scores=scores, others=others)

    def reach(self, levels: Tensor) -> Tensor:
        """Half the width q of the intervals of each output and level, in standard deviations, shape (C, L)."""
        at = reached(self.scores.mT, self.weights, levels)
        ratio = (reached(self.others.mT, self.other_weights, levels) / at).clamp_min(LEAST_RATIO)
        return at * torch.where(ratio.isfinite(), ratio**self.exponent, 1.0)

    def predictives(self, members: Sequence[Member], x: Tensor, options: Options) -> list[Predictive]:
        """Moments of each member at x under the stored hyperparameters."""
        settled = [
            member
            if member.hyper is hyper and member.fit.prior is prior
            else member.conditioned(replace(member.fit, prior=prior), hyper, options)
            for member, hyper, prior in zip(members, self.hypers, self.priors, strict=True)
        ]
        return [member.components(x, options).moments for member in settled]

    def around_mean(self, predictives: Sequence[Predictive], weights: np.ndarray, levels: Tensor) -> Tensor:
        """Ends (n, 2, L, C) of "jackknife+" intervals."""
        means = torch.stack([one.mean for one in predictives], -1)
        shares = torch.from_numpy(weights).to(means)
        mean = means @ shares
        std = (_within(predictives, shares) + (means - mean[..., None]).square() @ shares).sqrt()
        reach = self.reach(levels).mT * std[:, None]
        return mean[:, None, None] + torch.stack([-reach, reach], 1)

    def around_nets(
        self, predictives: Sequence[Predictive], weights: np.ndarray, x: Tensor, levels: Tensor, options: Options
    ) -> Tensor:
        """Ends (n, 2, L, C) of "cv+" intervals. Costs O(n m C L log m)."""
        within = _within(predictives, torch.from_numpy(weights).to(predictives[0].mean))
        width = within.shape[1] * len(self.scores) * (6 + 2 * len(self.shares))
        step = options.memory.chunk_rows(width, held(self.networks), x.device)
        chunks = zip(x.split(step), within.split(step), strict=True)
        return torch.cat([self._around_nets(part, variance, levels) for part, variance in chunks])

    def _around_nets(self, x: Tensor, within: Tensor, levels: Tensor) -> Tensor:
        outputs = torch.stack([network(x).double() for network in self.networks], -1)[..., self.places]  # (n, C, m, D)
        centre = outputs @ self.shares
        std = (within[..., None] + (outputs - centre[..., None]).square() @ self.shares).sqrt()
        reach = std * self.scores.mT
        low, high = -reached(reach - centre, self.weights, levels), reached(centre + reach, self.weights, levels)
        return torch.stack([low, high], 1).mT


def _effective(weights: Tensor, importance: Tensor) -> Tensor:
    """Products of weights and importance, with the sum of the effective number of rows."""
    product = weights * importance
    return product * (product.sum() / (product * importance).sum())


def _within(predictives: Sequence[Predictive], shares: Tensor) -> Tensor:
    """Mean variance of the members (n, C), noise included and without the spread of their means."""
    return torch.stack([one.epistemic_variance + one.aleatoric_variance for one in predictives], -1) @ shares


@dataclass(frozen=True, eq=False)
class HoldingOut:
    """Nets of one kind that hold out rows, with the errors of these rows.

    The variances in ``rows`` are in units of the noise level ``dispersion``. ``places`` (m, D), int64, are the indices
    of the nets that hold out a row.
    """

    rows: HeldOutDeals
    dispersion: float
    networks: tuple[Network, ...]
    places: Tensor

    @classmethod
    def of_folds(cls, errors: HeldOutErrors, cross: CrossFit, hyper: Hyper) -> HoldingOut:
        """Cross-fitted nets, each of which holds out a fold."""
        one, noise = torch.ones_like(errors.weights[:1]), hyper.dispersion * errors.noise
        rows = HeldOutDeals(errors.errors[None], errors.variance[None], noise[None], None, errors.weights, one)
        return cls(rows, hyper.dispersion, cross.networks, cross.fold[:, None])

    def of_rows(self, rows: HeldOutDeals, chosen: np.ndarray) -> HoldingOut:
        """The same nets for some of the rows, with other variances."""
        return replace(self, rows=rows, places=self.places[torch.from_numpy(chosen).to(self.places.device)])


def held_out_mixture(
    parts: Sequence[HoldingOut],
    kinds: Sequence[Sequence[Member]],
    weights: np.ndarray,
    keys: np.ndarray,
    left_out: Sequence[HeldOutErrors] | None = None,
) -> HeldOutMixture:
    """Scores of an ensemble, from nets of each kind that hold out the same rows.

    ``parts`` and ``kinds`` have the same order. ``weights`` (K,) are those of the members, ``keys`` (m,), uint64, those
    of the rows. ``left_out`` are leave-one-out errors of each member; by default the members hold out rows themselves.
    """
    members = [member for kind in kinds for member in kind]
    ends = np.cumsum([0, *(len(kind) for kind in kinds)])
    of_kinds = [float(weights[start:end].sum()) for start, end in itertools.pairwise(ends)]
    scales = [kind[0].hyper.dispersion / part.dispersion for kind, part in zip(kinds, parts, strict=True)]
    errors = torch.cat([part.rows.errors for part in parts])
    variances = torch.cat([scale * part.rows.total for scale, part in zip(scales, parts, strict=True)])
    shares = torch.cat([share * part.rows.shares for share, part in zip(of_kinds, parts, strict=True)])
    row_weights, starts = parts[0].rows.weights, np.cumsum([0, *(len(part.networks) for part in parts)])
    if left_out is None:
        others = (errors.abs() / variances.sqrt()).flatten(0, 1), (shares[:, None] * row_weights).flatten()
        removed = 1 - float(shares.square().sum())
        further = (1 - float(np.square(weights).sum())) / removed - 1 if removed > 0 else 0.0
        exponent = -FURTHER * min(max(further, 0.0), MOST_FURTHER)
    else:
        others, exponent = _of_left_out(left_out, members, weights), TOWARDS_LEFT_OUT
    return HeldOutMixture(
        hypers=tuple(_untempered(member.hyper) for member in members),
        priors=tuple(member.fit.prior for member in members),
        scores=_scores(errors, variances, shares),
        weights=row_weights,
        others=others[0],
        other_weights=others[1],
        exponent=exponent,
        networks=tuple(network for part in parts for network in part.networks),
        places=torch.cat([part.places + int(start) for part, start in zip(parts, starts[:-1], strict=True)], 1),
        shares=shares,
        keys=keys,
    )


def _scores(errors: Tensor, variances: Tensor, shares: Tensor) -> Tensor:
    """Absolute error of a mixture over its standard deviation (n, C), from errors and variances (D, n, C)."""
    mean = torch.tensordot(shares, errors, 1)
    return mean.abs() / torch.tensordot(shares, variances + (errors - mean).square(), 1).sqrt()


def _of_left_out(
    left_out: Sequence[HeldOutErrors], members: Sequence[Member], weights: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Leave-one-out scores (n, C) of the mixture, and row weights (n,)."""
    errors = torch.stack([part.errors for part in left_out])
    variances = torch.stack(
        [part.variance + member.hyper.dispersion * part.noise for part, member in zip(left_out, members, strict=True)]
    )
    return _scores(errors, variances, torch.from_numpy(weights).to(errors)), left_out[0].weights


def left_out_errors(members: Sequence[Member], options: Options) -> list[HeldOutErrors] | None:
    """Leave-one-out errors of the stored rows under each member; None if there are no rows or too little memory."""
    if any(member.kept is None for member in members):
        return None
    with suppress(MemoryBudgetError):
        return [
            member.left_out(options, "leave-one-out").errors(member.fit, _untempered(member.hyper))
            for member in members
        ]
    return None


def _untempered(hyper: Hyper) -> Hyper:
    """The hyperparameters at temperature 1; the same object if they have it."""
    is_plain = not isinstance(hyper.temperature, Tensor) and hyper.temperature == 1.0
    return hyper if is_plain else replace(hyper, temperature=1.0)
