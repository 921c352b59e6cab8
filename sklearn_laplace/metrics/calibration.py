r"""How far confidence and frequency are apart: rows in bins of the probability that they were given.

.. math:: \mathrm{ECE} = \sum_b \frac{W_b}{W}\, |\mathrm{freq}_b - \mathrm{conf}_b|

with :math:`W_b` the weight of the rows in bin b, :math:`\mathrm{conf}_b` their mean probability and
:math:`\mathrm{freq}_b` the share of them for which the event came true. Bins are closed at their upper end. "uniform"
cuts [0, 1] into bins of equal width; "quantile" cuts the rows into bins of equal weight, with equal probabilities in
one bin, so that there may be fewer than asked for. A weight of k is the same as k copies of the row.

References
----------
C. Guo, G. Pleiss, Y. Sun, K. Weinberger (2017), On calibration of modern neural networks. ICML, eq. 3.
K. Nguyen, B. O'Connor (2015), Posterior calibration and exploratory analysis for NLP models. EMNLP (equal counts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight, check_array, column_or_1d

from .._validation.values import count, lookup

TOLERANCE = 1e-6
"""How far probabilities may be outside [0, 1], and their sum from one: those of float32 are rounded."""


@dataclass(frozen=True)
class ReliabilityBins:
    """Rows in bins of their probability; bins without rows are left out.

    Parameters
    ----------
    lower, upper : ndarray of shape (n_bins,)
        Ends of each bin.
    weight : ndarray of shape (n_bins,)
        Summed weight of the rows in it.
    confidence, frequency : ndarray of shape (n_bins,)
        Mean probability of its rows, and the share of them for which the event came true.

    Examples
    --------
    >>> bins = reliability_bins([0.55, 0.55, 0.95, 0.95], [True, False, True, True], n_bins=10)
    >>> bins.confidence, bins.frequency, round(bins.error, 3)
    (array([0.55, 0.95]), array([0.5, 1. ]), 0.05)
    """

    lower: np.ndarray
    upper: np.ndarray
    weight: np.ndarray
    confidence: np.ndarray
    frequency: np.ndarray

    @property
    def error(self) -> float:
        """Expected calibration error, between 0 and 1."""
        return float(np.average(np.abs(self.frequency - self.confidence), weights=self.weight))


def reliability_bins(
    probability: Any, event: Any, sample_weight: Any = None, *, n_bins: int = 10, strategy: str = "uniform"
) -> ReliabilityBins:
    """Put rows into bins of their probability.

    Parameters
    ----------
    probability : array-like of shape (n_samples,)
        Of the event, within [0, 1].
    event : array-like of bool, shape (n_samples,)
        Whether it came true.
    sample_weight : array-like of shape (n_samples,), optional
    n_bins : int, default=10
    strategy : {"uniform", "quantile"}
        Bins of equal width, or of equal weight.

    Returns
    -------
    ReliabilityBins

    Raises
    ------
    ValueError
        For probabilities outside [0, 1], lengths that differ, no row of positive weight, an unknown strategy.

    Examples
    --------
    >>> reliability_bins([0.1, 0.2, 0.3, 0.9], [0, 0, 1, 1], n_bins=2, strategy="quantile").upper
    array([0.2, 1. ])
    """
    cut = lookup("strategy", strategy, {"uniform": _equal_widths, "quantile": _equal_weights})
    number = count("n_bins", n_bins)
    p = check_array(probability, ensure_2d=False, dtype=np.float64, input_name="probability")
    true = column_or_1d(event).astype(bool)
    if p.ndim != 1 or len(p) != len(true):
        raise ValueError(f"probability has shape {p.shape} for {len(true)} events; expected one number for each.")
    if not ((p >= -TOLERANCE) & (p <= 1 + TOLERANCE)).all():
        raise ValueError(
            f"probabilities between {p.min():g} and {p.max():g} were given; they have to be within 0 and 1."
        )
    weights = _check_sample_weight(sample_weight, p[:, None], dtype=np.float64, ensure_non_negative=True)
    present = weights > 0
    if not present.any():
        raise ValueError("sample_weight is zero for every row; at least one row needs a positive weight.")
    p, true, weights = p.clip(0, 1)[present], true[present], weights[present]
    edges = cut(p, weights, number)
    index = np.searchsorted(edges[1:-1], p)
    total, confident, came_true = (
        np.bincount(index, weights * part, minlength=len(edges) - 1) for part in (np.ones_like(p), p, true)
    )
    kept = total > 0
    total = total[kept]
    return ReliabilityBins(edges[:-1][kept], edges[1:][kept], total, confident[kept] / total, came_true[kept] / total)


def expected_calibration_error(
    y_true: Any,
    y_prob: Any,
    *,
    sample_weight: Any = None,
    n_bins: int = 10,
    strategy: str = "uniform",
    labels: Any = None,
) -> float:
    """How far a classifier's confidence is from its accuracy, averaged over the rows.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels.
    y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        ``predict_proba``: judged is the probability of the most probable class, against how often it is the true one.
        One column: the probability of the second of two labels, judged against how often that is the true one.
    sample_weight : array-like of shape (n_samples,), optional
    n_bins : int, default=10
    strategy : {"uniform", "quantile"}
        Bins of equal width, or of equal weight.
    labels : array-like of shape (n_classes,), optional
        What the columns stand for, ``classes_`` of the classifier; by default the sorted labels of ``y_true``.

    Returns
    -------
    float
        Between 0 and 1; smaller is better calibrated. Of finite rows it is above zero for a calibrated model too, more
        so with many bins. Not a proper score: the base rates alone have an error of zero.

    Raises
    ------
    ValueError
        For columns that do not fit the labels, rows that do not sum to one, and as :func:`reliability_bins`.

    Examples
    --------
    >>> expected_calibration_error(["a", "b"], [[0.75, 0.25], [0.75, 0.25]])  # sure at .75, right half of the time
    0.25

    As ``scoring=`` (of two classes scikit-learn hands over one column):

    >>> from sklearn.metrics import make_scorer
    >>> scorer = make_scorer(expected_calibration_error, response_method="predict_proba", greater_is_better=False)
    """
    confidence, right = judged_confidence(y_true, y_prob, labels)
    return reliability_bins(confidence, right, sample_weight, n_bins=n_bins, strategy=strategy).error


def judged_confidence(y_true: Any, y_prob: Any, labels: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The probability of each row that can be judged, and whether its event came true.

    Parameters
    ----------
    y_true, y_prob, labels
        As for :func:`expected_calibration_error`.

    Returns
    -------
    confidence : ndarray of shape (n_samples,)
    right : ndarray of bool, shape (n_samples,)

    Raises
    ------
    ValueError
        As for :func:`expected_calibration_error`.

    Examples
    --------
    >>> judged_confidence(["a", "b"], [[0.75, 0.25], [0.5, 0.5]])
    (array([0.75, 0.5 ]), array([ True, False]))
    """
    truth = column_or_1d(y_true)
    known = np.unique(truth if labels is None else labels)
    p = check_array(y_prob, ensure_2d=False, dtype=np.float64, input_name="y_prob")
    if len(p) != len(truth):
        raise ValueError(f"y_prob has {len(p)} rows for {len(truth)} labels; expected one for each.")
    if p.ndim == 1:
        if len(known) > 2 or (labels is not None and len(known) != 2):
            raise ValueError(f"y_prob has one column for {len(known)} labels; expected one column a label.")
        return p, truth == known[-1]
    if p.shape[1] != len(known):
        raise ValueError(
            f"y_prob has {p.shape[1]} columns for the {len(known)} labels {known.tolist()}; give labels=, one for each "
            "column (classes_ of the classifier)."
        )
    if not np.allclose(p.sum(1), 1, atol=1e3 * TOLERANCE):
        worst = p.sum(1)[np.abs(p.sum(1) - 1).argmax()]
        raise ValueError(f"a row of y_prob sums to {worst:g}; probabilities of all classes sum to 1.")
    return p.max(1), known[p.argmax(1)] == truth


def _equal_widths(p: np.ndarray, weights: np.ndarray, n_bins: int) -> np.ndarray:
    return np.linspace(0, 1, n_bins + 1)


def _equal_weights(p: np.ndarray, weights: np.ndarray, n_bins: int) -> np.ndarray:
    """Smallest probability up to which there is each share of the weight; equal edges are one."""
    order = np.argsort(p, kind="stable")
    cumulated = np.cumsum(weights[order])
    shares = np.arange(1, n_bins) / n_bins * cumulated[-1]
    # a share that is reached up to rounding is reached
    inner = p[order][np.searchsorted(cumulated, shares * (1 - 1e-12))]
    return np.unique(np.concatenate([[0.0], inner[(inner > 0) & (inner < 1)], [1.0]]))
