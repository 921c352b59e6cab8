r"""Expected calibration error: mean absolute difference between predicted probability and observed frequency in bins.

.. math:: \mathrm{ECE} = \sum_b \frac{W_b}{W}\, |\mathrm{freq}_b - \mathrm{conf}_b|

(Guo et al. 2017, eq. 3), where :math:`W_b` is the total weight of the rows in bin b and :math:`W` that of all rows.
:math:`\mathrm{conf}_b` is the mean probability in the bin. :math:`\mathrm{freq}_b` is the fraction of its rows for
which the event occurred. Bins include their upper end. The strategy "uniform" splits [0, 1] into bins of equal width.
The strategy "quantile" splits the rows into bins of about equal weight (Nguyen & O'Connor 2015).
Equal probabilities share a bin.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight, check_array, column_or_1d

from .._validation.arguments import count, explained, lookup

TOLERANCE = 1e-6
"""Rounding error of float32 probabilities. Values may lie outside [0, 1] by this much. Sums over the classes may differ
from 1 by 1000 times as much."""


@dataclass(frozen=True)
class ReliabilityBins:
    """Bins of predicted probability: ends, total weight, mean probability and event frequency, each of shape (n_bins,).

    Empty bins are omitted.
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
    """Group rows into bins by the probability (n,) of an event; ``event`` (n,) is true where it occurred."""
    cut = lookup("strategy", strategy, {"uniform": _equal_widths, "quantile": _equal_weights})
    number = count("n_bins", n_bins)
    p = check_array(probability, ensure_2d=False, dtype=np.float64, input_name="probability")
    true = column_or_1d(event).astype(bool)
    if p.ndim != 1 or len(p) != len(true):
        raise ValueError(f"probability has shape {p.shape} for {len(true)} events; expected one value for each event.")
    if not ((p >= -TOLERANCE) & (p <= 1 + TOLERANCE)).all():
        raise ValueError(
            f"probabilities between {p.min():g} and {p.max():g} were given; they must lie between 0 and 1."
        )
    weights = _check_sample_weight(sample_weight, p[:, None], dtype=np.float64, ensure_non_negative=True)
    present = weights > 0
    if not present.any():
        raise ValueError("sample_weight is zero for every row; at least one row needs a positive weight.")
    p, true, weights = p.clip(0, 1)[present], true[present], weights[present]
    edges = cut(p, weights, number)
    index = np.searchsorted(edges[1:-1], p)
    total, confident, occurred = (
        np.bincount(index, weights * part, minlength=len(edges) - 1) for part in (np.ones_like(p), p, true)
    )
    kept = total > 0
    total = total[kept]
    return ReliabilityBins(edges[:-1][kept], edges[1:][kept], total, confident[kept] / total, occurred[kept] / total)


@explained
def expected_calibration_error(
    y_true: Any,
    y_prob: Any,
    *,
    sample_weight: Any = None,
    n_bins: int = 10,
    strategy: str = "uniform",
    labels: Any = None,
) -> float:
    """Expected calibration error: mean absolute difference between confidence and accuracy in bins.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True class labels.
    y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        Class probabilities, as returned by ``predict_proba``. If two-dimensional, the probability of the most probable
        class is compared with the frequency of correct predictions. If one-dimensional, the probability of the second
        of two labels is compared with the frequency of that label.
    sample_weight : array-like of shape (n_samples,), optional
        A weight of k is equivalent to k copies of the row.
    n_bins : int, default=10
    strategy : {"uniform", "quantile"}
        Bins of equal width, or of equal weight.
    labels : array-like of shape (n_classes,), optional
        Class label of each column: ``classes_`` of the classifier. By default, the sorted labels of ``y_true``,
        which must contain every class.

    Returns
    -------
    float
        Between 0 and 1; smaller is better. For a finite sample, its expectation is positive even for a
        calibrated model, and tends to grow with the number of bins. It is not a proper score: predicting the base
        rates for every row gives zero.

    Raises
    ------
    ValueError
        If the columns do not match the labels, a row does not sum to one, or probabilities are outside [0, 1]. Also if
        the lengths differ, no row has a positive weight, or the strategy is unknown.

    Examples
    --------
    >>> expected_calibration_error(["a", "b"], [[0.75, 0.25], [0.75, 0.25]])  # confidence .75, accuracy .5
    0.25

    As ``scoring=`` (with two classes, scikit-learn passes one column):

    >>> from sklearn.metrics import make_scorer
    >>> scorer = make_scorer(expected_calibration_error, response_method="predict_proba", greater_is_better=False)
    """
    confidence, right = judged_confidence(y_true, y_prob, labels)
    return reliability_bins(confidence, right, sample_weight, n_bins=n_bins, strategy=strategy).error


def judged_confidence(y_true: Any, y_prob: Any, labels: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability (n,) of the evaluated event in each row, and whether the event occurred (n,).

    The event is that the most probable class is correct or, for a single column, that the second label is correct.
    """
    if np.ndim(y_true) == 2 and np.shape(y_true)[1] > 1:
        raise ValueError(
            f"y_true has shape {np.shape(y_true)}; expected one label for each row. Pass the labels first, then the "
            "probabilities."
        )
    truth = column_or_1d(y_true)
    classes = np.unique(truth) if labels is None else column_or_1d(labels)
    if len(set(classes.tolist())) < len(classes):
        raise ValueError(f"labels={classes.tolist()} repeats a label; expected one label for each class.")
    if unknown := sorted(map(str, set(truth.tolist()) - set(classes.tolist()))):
        raise ValueError(f"y_true holds {', '.join(unknown)}, and labels={classes.tolist()}; add what is missing.")
    if np.asarray(y_prob).dtype.kind in "US":
        raise ValueError(
            f"y_prob holds {str(np.asarray(y_prob).flat[0])!r}; expected probabilities, as predict_proba(X) returns."
        )
    p = check_array(y_prob, ensure_2d=False, dtype=np.float64, input_name="y_prob")
    if len(p) != len(truth):
        raise ValueError(f"y_prob has {len(p)} rows for {len(truth)} labels; expected one row for each label.")
    if p.ndim == 1:
        if len(classes) > 2 or (labels is not None and len(classes) != 2):
            raise ValueError(f"y_prob has one column for {len(classes)} labels; expected one column per label.")
        if len(classes) == 1:
            raise ValueError(
                f"y_prob has one column, and y_true holds {classes.tolist()[0]!r} only, so the second label is "
                "unknown. Pass labels=, the two labels in the order of the columns (classes_ of the classifier)."
            )
        return p, truth == classes[1]
    if p.shape[1] != len(classes):
        raise ValueError(
            f"y_prob has {p.shape[1]} columns for the {len(classes)} labels {classes.tolist()}; pass labels=, one "
            "label for each column (classes_ of the classifier)."
        )
    if not np.allclose(p.sum(1), 1, atol=1e3 * TOLERANCE):
        worst = p.sum(1)[np.abs(p.sum(1) - 1).argmax()]
        raise ValueError(f"a row of y_prob sums to {worst:g}; the probabilities of all classes must sum to 1.")
    return p.max(1), classes[p.argmax(1)] == truth


def _equal_widths(p: np.ndarray, weights: np.ndarray, n_bins: int) -> np.ndarray:
    return np.linspace(0, 1, n_bins + 1)


def _equal_weights(p: np.ndarray, weights: np.ndarray, n_bins: int) -> np.ndarray:
    """Bin edges at the weighted quantiles of the probabilities. Only the edge 0 may occur twice."""
    order = np.argsort(p, kind="stable")
    cumulated = np.cumsum(weights[order])
    shares = np.arange(1, n_bins) / n_bins * cumulated[-1]
    # the tolerance accepts a share that is reached up to rounding
    inner = p[order][np.searchsorted(cumulated, shares * (1 - 1e-12))]
    # A bin that contains only probabilities of 0 has both edges at 0.
    edges = np.unique(np.concatenate([inner[inner < 1], [1.0]]))
    return np.concatenate([[0.0], edges])
