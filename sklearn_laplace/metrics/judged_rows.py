r"""Targets and their predictive distributions as arrays, from which a calibration report is computed.

The quantile of a normal distribution at level τ is linear in :math:`v = \Phi^{-1}(\tau)`. Quantiles of continuous
distributions are computed at 21 values of v, and interpolated between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtri

from .._estimator.report import LEVELS as INTERVAL_LEVELS
from .._validation.rows import check_weights, targets_like
from ..distributions.evaluation import check_counts, is_discrete, pit_of
from ..distributions.other_models import checked, is_normal
from .crps_decomposition import LEVELS, NODES, SHARES, STEP

LEAST_ROWS = 20
"""Smallest number of rows for a report."""
N_DRAWS, MOST_DRAWN = 19, 10_000
"""Number of simulated targets per row, and largest number of rows for which targets are simulated."""
END_LEVELS = np.array([(1 + side * c) / 2 for c in INTERVAL_LEVELS for side in (-1, 1)])
"""Quantile levels of the interval ends."""
LEAST_PIT, MOST_PIT = 1e-300, 1 - 1e-16
LEAST_SPREAD = 1e-6
"""Lower bound on the variance of a squared error, in units of the squared predicted variance."""


@dataclass(frozen=True)
class JudgedRows:
    """The n rows with a positive weight, marked in ``kept`` (n_samples,), and one target of each.

    ``scores`` are the normal scores of the ``pit``. ``quantiles`` (41, n) are at ``LEVELS``. ``ends`` maps
    levels to the ends (2, n) of central intervals. ``draws`` holds targets (n,) drawn from the distributions.
    """

    kept: np.ndarray
    weights: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    pit: np.ndarray
    scores: np.ndarray
    quantiles: np.ndarray
    ends: dict[float, np.ndarray]
    draws: tuple[np.ndarray, ...]

    @classmethod
    def of(
        cls, distribution: Any, y: Any, output: int | None, sample_weight: Any, random: np.random.RandomState
    ) -> Self:
        """Evaluate the predictive distributions of target ``output`` in rows of positive weight."""
        mean = np.asarray(checked(distribution, "distribution").mean(), dtype=np.float64)
        if mean.ndim == 0 and y is not None:  # the same distribution for all rows
            mean = np.full(np.shape(y)[:1], mean)
        targets = targets_like(y, mean)
        place = _place(output, targets.size // len(targets))
        weights = check_weights(sample_weight, targets)
        kept = weights > 0
        if kept.sum() < LEAST_ROWS:
            raise ValueError(
                f"{kept.sum()} rows have a positive weight; a calibration report needs at least {LEAST_ROWS}."
            )

        def rows(values: Any) -> np.ndarray:
            return np.broadcast_to(values, targets.shape).reshape(len(targets), -1)[kept, place]

        check_counts(distribution, rows(targets))
        _check_moments(rows(mean), rows(distribution.std()), kept)
        pit = pit_of(distribution, targets, random)
        uniform = [random.uniform(size=targets.shape) for _ in range(N_DRAWS if kept.sum() <= MOST_DRAWN else 0)]
        quantiles, draws = (_exact if is_discrete(distribution) else _interpolated)(distribution, rows, uniform)
        return cls(
            kept=kept,
            weights=weights[kept],
            y=rows(targets),
            mean=rows(mean),
            std=rows(distribution.std()),
            pit=rows(pit),
            scores=rows(_normal_scores(distribution, targets, pit)),
            quantiles=quantiles[: len(LEVELS)],
            ends=dict(zip(INTERVAL_LEVELS, quantiles[len(LEVELS) :].reshape(-1, 2, kept.sum()), strict=True)),
            draws=draws,
        )

    def widths(self, level: float) -> np.ndarray:
        """Widths (n,) of the central intervals of the given level."""
        low, high = self.ends[level]
        return high - low

    @property
    def variance_of_square(self) -> np.ndarray:
        """Variance (n,) of the squared error under the predictive distributions, computed from quantiles."""
        squares = (self.quantiles - self.mean) ** 2
        variance = SHARES @ squares**2 - (SHARES @ squares) ** 2
        return np.maximum(variance, LEAST_SPREAD * self.std**4)


def _check_moments(mean: np.ndarray, std: np.ndarray, kept: np.ndarray) -> None:
    """Refuse distributions whose moments are not finite or whose standard deviation is not positive."""
    is_bad = ~(np.isfinite(mean) & np.isfinite(std) & (std > 0))
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise ValueError(
            f"the predictive distribution of row {np.flatnonzero(kept)[row]} has a mean of {mean[row]:g} and a "
            f"standard deviation of {std[row]:g}; both have to be finite, and the latter positive. Use a model that "
            "includes the observation noise."
        )


def _place(output: int | None, n_outputs: int) -> int:
    if output is None and n_outputs == 1:
        return 0
    if not isinstance(output, Integral) or not 0 <= output < n_outputs:
        raise ValueError(
            f"output={output!r} is not the position of a target; a calibration report is of a single target: pass "
            f"{'output=0' if n_outputs == 1 else f'an output from 0 to {n_outputs - 1}'}."
        )
    return int(output)


def _exact(
    distribution: Any, rows: Callable[[Any], np.ndarray], uniform: list[np.ndarray]
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Quantiles (49, n) at ``LEVELS`` and ``END_LEVELS``, and draws (n,). The function ``rows`` selects the n rows."""
    table = _finite(distribution, rows, np.concatenate([LEVELS, END_LEVELS]))
    return table, tuple(rows(distribution.ppf(levels)) for levels in uniform)


def _interpolated(
    distribution: Any, rows: Callable[[Any], np.ndarray], uniform: list[np.ndarray]
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """As :func:`_exact` for a continuous distribution, interpolated between quantiles at every other node."""
    table = PchipInterpolator(NODES[::2], _finite(distribution, rows, LEVELS[::2]))(NODES)
    draws = []
    for levels in uniform:
        place = (ndtri(rows(levels)).clip(NODES[0], NODES[-1]) - NODES[0]) / STEP
        below = np.minimum(place.astype(int), len(NODES) - 2)
        low, high = (np.take_along_axis(table, (below + k)[None], 0)[0] for k in (0, 1))
        draws.append(low + (place - below) * (high - low))
    return np.concatenate([table, _finite(distribution, rows, END_LEVELS)]), tuple(draws)


def _finite(distribution: Any, rows: Callable[[Any], np.ndarray], levels: np.ndarray) -> np.ndarray:
    """Quantiles (k, n) at levels (k,). Raises a ValueError if one is not finite."""
    found = np.array([rows(distribution.ppf(level)) for level in levels])
    if not (is_finite := np.isfinite(found).all(1)).all():
        raise ValueError(
            f"the quantile of level {levels[is_finite.argmin()]:.2g} is not finite for some rows; expected finite ones."
        )
    return found


def _normal_scores(distribution: Any, targets: np.ndarray, pit: np.ndarray) -> np.ndarray:
    """Normal quantiles of the PIT. Above a PIT of .5, the survival function is used if available."""
    if is_normal(distribution):
        return (targets - distribution.mean()) / distribution.std()
    scores = ndtri(pit.clip(LEAST_PIT, MOST_PIT))
    if is_discrete(distribution) or not callable(upper := getattr(distribution, "sf", None)):
        return scores
    return np.where(pit > 0.5, -ndtri(np.clip(upper(targets), LEAST_PIT, 1)), scores)
