"""Metrics of predictive distributions: proper scores for model selection; coverage and width for reporting.

Every metric is a function ``(estimator, X, y, sample_weight=None)`` that returns a float by default. It can be passed
to scikit-learn as ``scoring=``, alone or in a dict, and works through ``Pipeline`` and searches. The metrics
take the estimator, because they need different parts of the predictive distribution: the density, quantiles or moments.
Metrics whose names start with ``neg_`` are proper scores: higher is better, and the true distribution has the highest
expected score.

To set options, pass ``functools.partial(neg_interval_score, confidence_level=0.5)``, which can be pickled. With
metadata routing enabled, scikit-learn passes ``sample_weight`` only to scorers that request it. A plain function cannot
request weights.

Symbols: F is the predictive distribution of one row, with density p, mean μ and standard deviation s. Φ and φ are the
distribution function and the density of the standard normal. The central interval of level 1 − α has the ends l and u.
Averages over the rows are Σₙ wₙ (…)ₙ / Σₙ wₙ: a weight of k is equivalent to k copies of the row. For k outputs,
``multioutput`` is "uniform_average" (the mean over the outputs), "raw_values" (an array of shape (k,)) or an array of k
weights. Only the log density is summed over the outputs of a row.
"""

from inspect import unwrap
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from .._estimator.unwrap import final_step, predictive
from .._validation.arguments import explained, fractions, lookup
from .._validation.rows import check_same_kind, check_targets, targets_like, unmasked
from ..distributions.evaluation import central_interval, crps_of, is_discrete
from ..distributions.other_models import log_density

AVERAGE = "uniform_average"
CALIBRATION_LEVELS = np.arange(1, 20) / 20
"""Nominal levels at which :func:`calibration_gap` compares nominal and observed coverage: .05, .10, …, .95."""


@explained
def log_density_scorer(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    r"""Mean log predictive density: :math:`\log p(y_n)`, averaged over the rows.

    Parameters
    ----------
    estimator : fitted estimator
        A Laplace estimator or another estimator with a predictive distribution, possibly inside ``Pipeline`` or a
        search.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets in their original units, or class labels. A label that is not in ``classes_`` has probability zero.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In nats per row; higher is better. Regression: log density of y in its original units, summed over the outputs.
        Rescaling y by c changes the score by −log c per output. Classification: log probability of the true class, −inf
        if that probability is zero.

    Notes
    -----
    This is the logarithmic score of Gneiting & Raftery (2007, section 4.1). It is sensitive to the tails: under a
    normal distribution, a target ten standard deviations away costs 50 nats. For classes it equals scikit-learn's
    ``"neg_log_loss"`` without clipping.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)
    >>> even, odd = slice(0, None, 2), slice(1, None, 2)
    >>> models = [m.fit(X[even], y[even]) for m in (LaplaceRegressor(random_state=0), BayesianRidge())]
    >>> net, line = (log_density_scorer(m, X[odd], y[odd]) for m in models)
    >>> bool(net > 0.5 > line)
    True
    """
    step, rows = final_step(estimator, X)
    if is_classifier(step):
        return _average(_log_probability(predictive(step, rows), step.classes_, y), sample_weight)
    distribution, targets = _judged("log_density_scorer", step, rows, y)
    return _average(_columns(log_density(distribution, targets)).sum(1), sample_weight)


neg_nlpd = explained(unwrap(log_density_scorer), "neg_nlpd")
"""Alias of :func:`log_density_scorer`: the negative of the negative log predictive density (NLPD)."""


@explained
def neg_crps(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, multioutput: Any = AVERAGE
) -> float | np.ndarray:
    r"""Negative continuous ranked probability score :math:`-\int (F(t) - 1[t \ge y])^2 dt`, averaged over the rows.

    For a normal distribution, with :math:`z = (y - \mu) / s`:
    :math:`\mathrm{CRPS} = s\,[z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi}]`.

    Parameters
    ----------
    estimator : fitted regressor
        As in :func:`log_density_scorer`, with a continuous predictive distribution.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,)
        Mean over the outputs, the value of each output, or weights of a weighted mean.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y, at most 0; higher is better.

    Raises
    ------
    TypeError
        If the estimator is a classifier, or predicts counts or points only.

    Notes
    -----
    See Gneiting & Raftery (2007, section 4.2). The penalty grows linearly with the distance of an outlier. For
    s → 0, the CRPS tends to the absolute error.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> model = BayesianRidge().fit(X, y)
    >>> -0.1 < neg_crps(model, X, y) < 0
    True
    >>> round(neg_crps(model, [[1.5]], [101.5]))
    -100
    """
    distribution, targets = _judged("neg_crps", estimator, X, y)
    if is_discrete(distribution):
        raise TypeError(
            f"neg_crps needs a normal predictive distribution; found {type(distribution).__name__}, a distribution of "
            "counts; for counts use log_density_scorer or neg_interval_score."
        )
    return -_scored(crps_of(distribution, targets), sample_weight, multioutput)


@explained
def neg_interval_score(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    confidence_level: float = 0.9,
    multioutput: Any = AVERAGE,
) -> float | np.ndarray:
    r"""Negative of the interval score, the width of the central interval plus a penalty for targets outside it.

    The interval score is :math:`S = (u - l) + \tfrac{2}{\alpha} (l - y)_+ + \tfrac{2}{\alpha} (y - u)_+`, with
    :math:`\alpha = 1 -` ``confidence_level`` (Gneiting & Raftery 2007, eq. 43).

    Parameters
    ----------
    estimator, X, y, sample_weight, multioutput
        As in :func:`neg_crps`, with any predictive distribution.
    confidence_level : float, default=0.9
        Strictly between 0 and 1.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y, at most 0; higher is better.

    Raises
    ------
    TypeError
        If the estimator is a classifier, or predicts points only.
    ValueError
        If ``confidence_level`` is not in (0, 1), or ``multioutput`` is invalid.

    Examples
    --------
    >>> from functools import partial
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> model = BayesianRidge().fit(X, y)
    >>> covered = neg_interval_score(model, [[1.5]], [1.5])
    >>> bool(covered == -mean_width(model, [[1.5]]))
    True
    >>> half = partial(neg_interval_score, confidence_level=0.5)  # for scoring=
    >>> half(model, [[1.5]], [1.5]) > covered
    True
    """
    distribution, targets = _judged("neg_interval_score", estimator, X, y)
    return -_scored(_interval_score(distribution, targets, confidence_level), sample_weight, multioutput)


@explained
def coverage(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    confidence_level: float = 0.9,
    multioutput: Any = AVERAGE,
) -> float | np.ndarray:
    r"""Fraction of the targets inside the central interval, :math:`l \le y \le u`.

    Parameters
    ----------
    estimator, X, y, sample_weight, confidence_level, multioutput
        As in :func:`neg_interval_score`, which raises the same errors.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        Between 0 and 1. For a calibrated model it is close to c = ``confidence_level``; its standard error for n
        independent rows is √(c (1 − c) / n). Do not maximise it.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> model = BayesianRidge().fit(X, y)
    >>> coverage(model, [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 30.0])
    0.75
    """
    distribution, targets = _judged("coverage", estimator, X, y)
    lower, upper = _central(distribution, confidence_level)
    return _scored((lower <= targets) & (targets <= upper), sample_weight, multioutput)


@explained
def mean_width(
    estimator: Any,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    confidence_level: float = 0.9,
    multioutput: Any = AVERAGE,
) -> float | np.ndarray:
    """Mean width u − l of the central interval.

    Parameters
    ----------
    estimator, X, sample_weight, confidence_level, multioutput
        As in :func:`neg_interval_score`, which raises the same errors.
    y : ignored
        Present for compatibility with scikit-learn's scorers.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y. Smaller is sharper; report it with :func:`coverage`.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> model = BayesianRidge().fit(X, y)
    >>> std = model.predict([[1.5]], return_std=True)[1][0]
    >>> round(float(mean_width(model, [[1.5]]) / std), 2)
    3.29
    """
    lower, upper = _central(_distribution("mean_width", estimator, X), confidence_level)
    return _scored(upper - lower, sample_weight, multioutput)


@explained
def sharpness(
    estimator: Any, X: Any, y: Any = None, sample_weight: Any = None, *, multioutput: Any = AVERAGE
) -> float | np.ndarray:
    r"""Root mean predictive variance, :math:`\sqrt{\overline{s^2}}`.

    Parameters
    ----------
    estimator, X, sample_weight, multioutput
        As in :func:`neg_interval_score`, which raises the same errors.
    y : ignored
        Present for compatibility with scikit-learn's scorers.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y: the root mean squared error to expect if the predictive variances are correct. Smaller is
        sharper; report it together with :func:`calibration_gap`. :func:`mean_width` is less sensitive to a few rows
        with very wide intervals.

    Notes
    -----
    Kuleshov, Fenner & Ermon (2018, sec. 3.3) report the square of this value.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> model = BayesianRidge().fit(X, y)
    >>> std = model.predict([[1.5]], return_std=True)[1][0]
    >>> round(float(sharpness(model, [[1.5]]) / std), 10)
    1.0
    """
    std = _distribution("sharpness", estimator, X).std()
    return _over_outputs(np.sqrt(_column_averages(std**2, sample_weight)), multioutput)


@explained
def calibration_gap(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, multioutput: Any = AVERAGE
) -> float | np.ndarray:
    """Mean absolute difference between nominal and observed coverage over the levels .05, .10, …, .95.

    Parameters
    ----------
    estimator, X, y, sample_weight, multioutput
        As in :func:`neg_interval_score`, which raises the same errors.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        Between 0 and .5; smaller is better. It is .5 if no target is inside any interval, and about 0.3 / √n
        for n independent rows of a calibrated model. The gap is computed for each output and then averaged. Intervals
        that are too narrow for one output and too wide for another therefore do not cancel.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> model = BayesianRidge().fit(X, y)
    >>> round(calibration_gap(model, X, model.predict(X) + 100), 10)
    0.5
    """
    distribution, targets = _judged("calibration_gap", estimator, X, y)
    gaps = []
    for level in CALIBRATION_LEVELS:
        lower, upper = central_interval(distribution, level)
        observed = _column_averages((lower <= targets) & (targets <= upper), sample_weight)
        gaps.append(np.abs(observed - level))
    return _over_outputs(np.mean(gaps, axis=0), multioutput)


def _distribution(metric: str, estimator: Any, X: Any) -> Any:
    """Predictive distribution of a regressor. Raises TypeError for classifiers and models that predict points only."""
    step, rows = final_step(estimator, X)
    if is_classifier(step):
        raise TypeError(
            f"{metric} evaluates distributions of numeric targets; found the classifier {type(step).__name__}. For "
            "class probabilities use neg_nlpd, or scikit-learn's 'neg_log_loss' or 'neg_brier_score'."
        )
    return predictive(step, rows)


def _judged(metric: str, estimator: Any, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """Predictive distribution of a regressor, and the targets in the shape of its mean."""
    distribution = _distribution(metric, estimator, X)
    return distribution, targets_like(y, distribution.mean())


def _interval_score(distribution: Any, targets: np.ndarray, confidence_level: Any) -> np.ndarray:
    """Interval score of each target, in the units of y; smaller is better."""
    lower, upper = _central(distribution, confidence_level)
    outside = np.maximum(lower - targets, 0) + np.maximum(targets - upper, 0)
    return upper - lower + 2 / (1 - confidence_level) * outside


def _log_probability(probabilities: np.ndarray, classes: np.ndarray, y: Any) -> np.ndarray:
    """Log probability of the true class, shape (n,); −inf for a class of probability zero."""
    labels = column_or_1d(check_targets(y, numeric=False))
    check_same_kind(labels, classes)
    if len(labels) != len(probabilities):
        raise ValueError(f"y has {len(labels)} labels for {len(probabilities)} rows of X; expected one label per row.")
    true = np.asarray(labels)[:, None] == classes
    with np.errstate(divide="ignore"):
        return np.log((probabilities * true).sum(1))


def _central(distribution: Any, confidence_level: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(confidence_level, Real):
        raise ValueError(f"confidence_level={confidence_level!r} must be a single number strictly between 0 and 1.")
    return central_interval(distribution, fractions("confidence_level", confidence_level)[0])


def _levels(levels: Any) -> tuple[float, ...]:
    if np.ndim(levels) != 1:
        raise ValueError(f"levels={levels!r} must be a sequence of numbers strictly between 0 and 1.")
    return tuple(fractions("levels", levels).tolist())


def _columns(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def _average(values: np.ndarray, sample_weight: Any) -> float:
    return float(_column_averages(values, sample_weight).mean())


def _scored(values: np.ndarray, sample_weight: Any, multioutput: Any) -> float | np.ndarray:
    """Weighted mean over the rows, then over the outputs as ``multioutput`` requests."""
    return _over_outputs(_column_averages(values, sample_weight), multioutput)


def _over_outputs(values: np.ndarray, multioutput: Any) -> float | np.ndarray:
    """Combine the values (k,) of the outputs into one number, or return them all."""
    if isinstance(multioutput, str):
        averaged = lookup("multioutput", multioutput, {AVERAGE: True, "raw_values": False})
        return float(values.mean()) if averaged else values
    weights = np.asarray(multioutput, dtype=np.float64)
    if weights.shape != values.shape or not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
        raise ValueError(
            f"multioutput={multioutput!r} is not supported; expected 'uniform_average', 'raw_values' or {len(values)} "
            "non-negative weights, one for each output, that are not all zero."
        )
    return float(np.average(values, weights=weights))


def _column_averages(values: np.ndarray, sample_weight: Any) -> np.ndarray:
    """Weighted mean over the rows for each output, shape (k,)."""
    columns = _columns(values).astype(np.float64)
    sample_weight = unmasked("sample_weight", sample_weight)
    weights = _check_sample_weight(sample_weight, columns, dtype=np.float64, ensure_non_negative=True)
    present = weights > 0  # exclude rows of weight zero, since 0 · (−inf) is NaN
    return np.average(columns[present], axis=0, weights=weights[present])
