r"""Checks of predicted variances: one ratio for all rows, and a comparison of errors with variances in bins.

The normal score :math:`v_n = \Phi^{-1}(F_n(y_n))` of a calibrated model is standard normal, whatever the shape of F
(Berkowitz 2001). For a normal F it is the standardised error :math:`(y_n - \mu_n) / \sigma_n`. The mean square

.. math:: r = \frac1n \sum_n v_n^2

estimates the ratio of true to predicted variance. If this ratio is 1, :math:`n r \sim \chi^2_n` for normally
distributed scores, and the most powerful unbiased test of the ratio is a function of r. For heavier tails, the variance
of r is :math:`(\kappa - 1)/n` instead of :math:`2/n`, with κ the kurtosis of the scores. The degrees of freedom are
then :math:`\nu = 2 n / (\kappa - 1)` (Box 1953), so heavy tails alone do not count as a wrong variance.
The correction applies if κ exceeds 3 by more than three standard errors, :math:`3 \sqrt{24 / n}`.

In a bin b of rows with similar predicted standard deviations (Levi et al. 2022):

.. math:: \mathrm{RMV}_b = \sqrt{\overline{\sigma^2}}, \quad \mathrm{RMSE}_b = \sqrt{\overline{(y - \mu)^2}}, \quad
          \mathrm{ENCE} = \frac1B \sum_b \frac{|\mathrm{RMV}_b - \mathrm{RMSE}_b|}{\mathrm{RMV}_b}.

The band for the RMSE assumes a gamma distribution of the mean squared error, with mean and variance from F.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import chi2, gamma

from .._estimator.report import PLAUSIBLE
from .._table.statistics import effective_number

POWER = 0.8
"""Probability of detecting a ratio as large as ``Spread.detectable``."""
N_BINS, LEAST_ROWS = 10, 20
"""Largest number of bins, and smallest mean number of rows in a bin."""


@dataclass(frozen=True)
class Spread:
    """Location and variance of the normal scores, which are standard normal for a calibrated model.

    The mean squared score ``ratio`` estimates the ratio of true to predicted variance. Its 95 % interval is ``low`` to
    ``high``; ``pvalue`` is two-sided. For normally distributed scores, a ratio of ``detectable`` is found with
    probability .8.
    """

    ratio: float
    low: float
    high: float
    pvalue: float
    detectable: float
    mean: float
    mean_pvalue: float

    @classmethod
    def of(cls, scores: np.ndarray, weights: np.ndarray | None = None) -> Spread:
        """Estimate location and variance from normal scores (n,) with weights (n,)."""
        w = np.ones(len(scores)) if weights is None else weights
        n, w = effective_number(w), w / w.sum()
        mean, ratio = float(w @ scores), float(w @ scores**2)
        kurtosis = float(w @ scores**4) / max(ratio, np.finfo(float).tiny ** 0.5) ** 2
        df = 2 * n / (kurtosis - 1) if kurtosis > 3 + 3 * np.sqrt(24 / n) else float(n)
        tails = (1 - PLAUSIBLE) / 2, (1 + PLAUSIBLE) / 2
        high, low = (df * ratio / chi2.ppf(tail, df) for tail in tails)
        pvalue = 2 * min(chi2.cdf(df * ratio, df), chi2.sf(df * ratio, df))
        reach = np.exp((ndtri(tails[1]) + ndtri(POWER)) * np.sqrt(2 / n))
        mean_pvalue = 2 * ndtr(-abs(mean) * np.sqrt(n))
        return cls(ratio, float(low), float(high), float(pvalue), float(reach), mean, float(mean_pvalue))

    @property
    def is_off(self) -> bool:
        """True if the ratio differs significantly from 1."""
        return self.pvalue < 1 - PLAUSIBLE

    @property
    def mean_is_off(self) -> bool:
        """True if the mean differs significantly from 0."""
        return self.mean_pvalue < 1 - PLAUSIBLE

    def __str__(self) -> str:
        mark = "  <--" if self.is_off else ""
        return f"variance ratio {self.ratio:.2f}, {PLAUSIBLE:.0%} interval {self.low:.2f} to {self.high:.2f}{mark}"


@dataclass(frozen=True)
class VarianceBins:
    """Root mean squared error and root mean predicted variance (b,), in bins of the predicted standard deviation.

    ``low`` and ``high`` are the simultaneous 95 % band (Bonferroni) for a calibrated model, in the units of y. ``ence``
    is the expected normalised calibration error, which is positive even for a calibrated model. ``pvalue`` is that of
    the worst bin, adjusted for the number of bins.
    """

    n: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ence: float
    pvalue: float

    @classmethod
    def of(
        cls, errors: np.ndarray, std: np.ndarray, variance_of_square: np.ndarray, weights: np.ndarray | None = None
    ) -> VarianceBins:
        """Compare errors (n,), target minus mean, with predicted standard deviations and variances of squares (n,)."""
        w = np.ones(len(std)) if weights is None else weights
        index = equal_bins(std, w, N_BINS)
        n, total = np.bincount(index), np.bincount(index, w)
        mse, mean_variance = (np.bincount(index, w * part) / total for part in (errors**2, std**2))
        shape = mean_variance**2 / (np.bincount(index, w**2 * variance_of_square) / total**2)
        tail = (1 - PLAUSIBLE) / 2 / len(n)
        low, high = (np.sqrt(mean_variance * gamma.ppf(level, shape) / shape) for level in (tail, 1 - tail))
        reached = shape * mse / mean_variance
        least = 2 * np.minimum(gamma.cdf(reached, shape), gamma.sf(reached, shape)).min()
        predicted, observed = np.sqrt(mean_variance), np.sqrt(mse)
        ence = float(np.mean(np.abs(predicted - observed) / predicted))
        return cls(n, predicted, observed, low, high, ence, float(min(1.0, len(n) * least)))

    @property
    def is_off(self) -> bool:
        """True if a bin is outside its band."""
        return self.pvalue < 1 - PLAUSIBLE


def equal_bins(values: np.ndarray, weights: np.ndarray, most: int) -> np.ndarray:
    """Index (n,) of the bin of each value. Bins are ordered and of about equal weight; equal values share a bin.

    There are at most ``most`` bins, and at most one per 20 rows.
    """
    n_bins = min(most, max(len(values) // LEAST_ROWS, 1))
    place = np.unique(values, return_inverse=True)[1]
    total = np.bincount(place, weights)
    middle = (np.cumsum(total) - total / 2) / total.sum()
    return np.unique(np.floor(middle * n_bins), return_inverse=True)[1][place]
