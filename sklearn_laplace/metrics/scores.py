r"""How good is a predictive distribution: proper scores for model selection, and figures for reports.

One design for all of them: a plain function ``(estimator, X, y, sample_weight=None)`` that returns a float, which is
what scikit-learn takes as ``scoring=`` (a dict of several as well), alone or through ``Pipeline`` and searches. They
take the estimator and not arrays: each needs another piece of the predictive (density, quantiles, moments), and the
estimator is the one place that has them all, in one set of units. The figures have the scorers' form, so that one
``cross_validate`` gives both. A name that begins with ``neg_`` is a score: higher is better, and the true distribution
has the highest expectation. The others are not to be maximised: a very wide interval has full coverage.

Other options than the defaults: ``functools.partial(neg_interval_score, confidence_level=0.5)``, which can be pickled.
With metadata routing on, scikit-learn hands ``sample_weight`` only to scorers that ask for it, which a function cannot.

Any regressor with ``predict(X, return_std=True)`` can be judged, as a normal with that mean and standard deviation, so
that models can be compared; likewise any classifier with ``predict_proba``, by :func:`neg_nlpd`. What a Laplace
estimator's ``return_std_kind`` says is not asked: judged is the distribution of y, noise included.

Class probabilities are judged by :func:`expected_calibration_error` as well; it takes labels and probabilities and not
the estimator, as ``make_scorer(…, response_method="predict_proba")`` wants it (``metrics/calibration.py``).

Symbols: F the predictive of one row with density p, mean μ, standard deviation s; Φ and φ those of the standard normal;
l and u the ends of the central interval of level 1 − α. Averages are Σₙ wₙ (…)ₙ / Σₙ wₙ, a weight of k is the same as k
copies of the row. For k outputs ``multioutput`` is "uniform_average", the mean over them, "raw_values", each one's own
(k,), or weights (k,); only the log density of a row is a sum, one number for all its outputs.

References
----------
T. Gneiting, A. Raftery (2007), Strictly proper scoring rules, prediction, and estimation. JASA 102, 359-378.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from scipy.special import erf
from sklearn.base import is_classifier
from sklearn.utils.validation import _check_sample_weight, check_array, column_or_1d

from .._unwrap import final_step, predictive
from .._validation.inputs import unmasked
from .._validation.values import lookup
from ..distributions.mixtures import CountMixture, NormalMixture
from ..distributions.poisson_log_normal import PoissonLogNormal

__all__ = [
    "CALIBRATION_LEVELS",
    "calibration_gap",
    "coverage",
    "mean_width",
    "neg_crps",
    "neg_interval_score",
    "neg_nlpd",
    "sharpness",
]
AVERAGE = "uniform_average"
CALIBRATION_LEVELS = np.arange(1, 20) / 20
""":func:`calibration_gap` compares nominal and observed coverage at .05, .10, …, .95."""


def neg_nlpd(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    r"""Mean log predictive density: :math:`\log p(y_n)`, averaged over the rows.

    Parameters
    ----------
    estimator : fitted estimator
        A Laplace estimator or another with a predictive distribution, also inside ``Pipeline`` and searches.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets in their own units, or labels. A label that the classifier has not seen has probability zero.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        Nats per row; higher is better. Regression: the density of y in its own units, so that rescaling y by c moves
        the score by −log c for each output. Classification: the log probability of the true class, −inf where that is
        zero.

    Notes
    -----
    The logarithmic score, Gneiting & Raftery (2007), section 4.1. It looks at the tails: one target ten standard
    deviations away costs 50 nats. For classes it is scikit-learn's ``"neg_log_loss"`` without the clipping.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)
    >>> even, odd = slice(0, None, 2), slice(1, None, 2)
    >>> models = [m.fit(X[even], y[even]) for m in (LaplaceRegressor(random_state=0), BayesianRidge())]
    >>> net, line = (neg_nlpd(m, X[odd], y[odd]) for m in models)
    >>> bool(net > 0.5 > line)
    True
    """
    step, rows = final_step(estimator, X)
    if is_classifier(step):
        return _average(_log_probability(predictive(step, rows), step.classes_, y), sample_weight)
    distribution, targets = _judged("neg_nlpd", step, rows, y)
    return _average(_columns(distribution.logpdf(targets)).sum(1), sample_weight)


def neg_crps(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, multioutput: Any = AVERAGE
) -> float | np.ndarray:
    r"""Negative continuous ranked probability score :math:`-\int (F(t) - 1[t \ge y])^2 dt`, averaged over the rows.

    For a normal, with :math:`z = (y - \mu) / s`:
    :math:`\mathrm{CRPS} = s\,[z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi}]`.

    Parameters
    ----------
    estimator : fitted regressor
        As for :func:`neg_nlpd`, with a normal predictive.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,)
        Mean over the outputs, each one's own figure, or weights of the mean.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y (the mean over the outputs), at most 0; higher is better.

    Raises
    ------
    TypeError
        For a classifier, and for counts.

    Notes
    -----
    Gneiting & Raftery (2007), section 4.2. Its tails are linear: an outlier costs its distance, as in the mean absolute
    error, which it becomes for s → 0.

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
    if isinstance(distribution, PoissonLogNormal | CountMixture):
        raise TypeError("neg_crps is the formula of normals; for counts use neg_nlpd or neg_interval_score.")
    if isinstance(distribution, NormalMixture):
        return -_scored(distribution.crps(targets), sample_weight, multioutput)
    scale = distribution.std()
    z = (targets - distribution.mean()) / scale
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    crps = scale * (z * erf(z / np.sqrt(2)) + 2 * density - 1 / np.sqrt(np.pi))
    return -_scored(crps, sample_weight, multioutput)


def neg_interval_score(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    confidence_level: float = 0.9,
    multioutput: Any = AVERAGE,
) -> float | np.ndarray:
    r"""Negative score of the central interval: its width, and a penalty for targets outside.

    :math:`S = (u - l) + \tfrac{2}{\alpha} (l - y)_+ + \tfrac{2}{\alpha} (y - u)_+`,
    with :math:`\alpha = 1 -` ``confidence_level``.

    Parameters
    ----------
    estimator : fitted regressor
        As for :func:`neg_nlpd`.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
    confidence_level : float, default=0.9
        Strictly between 0 and 1.
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,)
        Mean over the outputs, each one's own figure, or weights of the mean.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y (the mean over the outputs), below 0; higher is better.

    Raises
    ------
    TypeError
        For a classifier.
    ValueError
        For a level outside (0, 1).

    Notes
    -----
    Gneiting & Raftery (2007), eq. 43.

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
    lower, upper = _central(distribution, confidence_level)
    outside = np.maximum(lower - targets, 0) + np.maximum(targets - upper, 0)
    return -_scored(upper - lower + 2 / (1 - confidence_level) * outside, sample_weight, multioutput)


def coverage(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    confidence_level: float = 0.9,
    multioutput: Any = AVERAGE,
) -> float | np.ndarray:
    r"""Share of the targets inside the central interval, :math:`l \le y \le u`.

    Parameters
    ----------
    estimator : fitted regressor
        As for :func:`neg_nlpd`.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
    confidence_level : float, default=0.9
        Strictly between 0 and 1.
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,)
        Mean over the outputs, each one's own figure, or weights of the mean.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        Between 0 and 1 (the mean over the outputs); should be near ``confidence_level``, whose standard error over n
        independent rows is √(c (1 − c) / n). Not to be maximised.

    Raises
    ------
    TypeError
        For a classifier.
    ValueError
        For a level outside (0, 1).

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
    estimator : fitted regressor
        As for :func:`neg_nlpd`.
    X : array-like of shape (n_samples, n_features)
    y : ignored
        Present so that the function can be a scorer.
    sample_weight : array-like of shape (n_samples,), optional
    confidence_level : float, default=0.9
        Strictly between 0 and 1.
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,)
        Mean over the outputs, each one's own figure, or weights of the mean.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y (the mean over the outputs). Smaller is sharper; to be read next to :func:`coverage`.

    Raises
    ------
    TypeError
        For a classifier.
    ValueError
        For a level outside (0, 1).

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


def sharpness(
    estimator: Any, X: Any, y: Any = None, sample_weight: Any = None, *, multioutput: Any = AVERAGE
) -> float | np.ndarray:
    r"""Root mean predictive variance, :math:`\sqrt{\overline{s^2}}`.

    Parameters
    ----------
    estimator : fitted regressor
        As for :func:`neg_nlpd`.
    X : array-like of shape (n_samples, n_features)
    y : ignored
        Present so that the function can be a scorer.
    sample_weight : array-like of shape (n_samples,), optional
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,)

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        In the units of y. What the root mean squared error is of a model that is right about its spread; smaller is
        sharper, and to be read next to :func:`calibration_gap`. :func:`mean_width` is that of intervals, which a few
        very wide rows move less.

    Raises
    ------
    TypeError
        For a classifier.

    Notes
    -----
    Kuleshov, Fenner & Ermon (2018), sec. 3.3, in the units of y.

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


def calibration_gap(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, multioutput: Any = AVERAGE
) -> float | np.ndarray:
    r"""Mean distance between nominal and observed coverage over the levels .05, .10, …, .95.

    Parameters
    ----------
    estimator : fitted regressor
        As for :func:`neg_nlpd`.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,)
        Mean over the outputs, each one's own figure, or weights of the mean.

    Returns
    -------
    float or ndarray of shape (n_outputs,)
        Between 0 and 1, smaller is better calibrated; .5 where no target is in any interval. With n independent rows of
        a calibrated model about 0.3 / √n is left. For several outputs the mean of each output's gap, so that a
        narrow one does not make up for a wide one.

    Raises
    ------
    TypeError
        For a classifier.

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
        lower, upper = distribution.interval(level)
        observed = _column_averages((lower <= targets) & (targets <= upper), sample_weight)
        gaps.append(np.abs(observed - level))
    return _over_outputs(np.mean(gaps, axis=0), multioutput)


def _distribution(metric: str, estimator: Any, X: Any) -> Any:
    """The predictive of a regressor."""
    step, rows = final_step(estimator, X)
    if is_classifier(step):
        raise TypeError(
            f"{metric} judges distributions of numeric targets; found the classifier {type(step).__name__}. For class "
            "probabilities use neg_nlpd, or scikit-learn's 'neg_log_loss' or 'neg_brier_score'."
        )
    return predictive(step, rows)


def _judged(metric: str, estimator: Any, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """The predictive of a regressor, and the targets in the shape of its mean."""
    distribution = _distribution(metric, estimator, X)
    targets = check_array(unmasked("y", y), ensure_2d=False, dtype=np.float64, input_name="y")
    shape = distribution.mean().shape
    if _columns(targets).shape != (shape[0], int(np.prod(shape[1:]))):
        raise ValueError(f"y has shape {targets.shape}; expected {shape}, one target for each prediction.")
    return distribution, targets.reshape(shape)


def _log_probability(probabilities: np.ndarray, classes: np.ndarray, y: Any) -> np.ndarray:
    """log p of the true class, shape (n,); −inf for a class without probability."""
    labels = column_or_1d(unmasked("y", y))
    if len(labels) != len(probabilities):
        raise ValueError(f"y has {len(labels)} labels for {len(probabilities)} rows of X; expected one for each row.")
    true = np.asarray(labels)[:, None] == classes
    with np.errstate(divide="ignore"):
        return np.log((probabilities * true).sum(1))


def _central(distribution: Any, confidence_level: Any) -> tuple[np.ndarray, np.ndarray]:
    level = float(confidence_level) if isinstance(confidence_level, Real) else np.nan
    if not 0 < level < 1:
        raise ValueError(f"confidence_level={confidence_level!r} has to be one number strictly between 0 and 1.")
    return distribution.interval(level)


def _columns(values: np.ndarray) -> np.ndarray:
    """Values (n,) or (n, k) as (n, k)."""
    return values.reshape(len(values), -1)


def _average(values: np.ndarray, sample_weight: Any) -> float:
    """Weighted mean over the rows, plain mean over the outputs."""
    return float(_column_averages(values, sample_weight).mean())


def _scored(values: np.ndarray, sample_weight: Any, multioutput: Any) -> float | np.ndarray:
    """Weighted mean over the rows, and what is asked for of the outputs."""
    return _over_outputs(_column_averages(values, sample_weight), multioutput)


def _over_outputs(values: np.ndarray, multioutput: Any) -> float | np.ndarray:
    """One number of the outputs' (k,), or all of them."""
    if isinstance(multioutput, str):
        averaged = lookup("multioutput", multioutput, {AVERAGE: True, "raw_values": False})
        return float(values.mean()) if averaged else values
    weights = np.asarray(multioutput, dtype=np.float64)
    if weights.shape != values.shape or not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
        raise ValueError(
            f"multioutput={multioutput!r} has to be 'uniform_average', 'raw_values' or {len(values)} weights of at "
            "least 0, one for each output, that are not all zero."
        )
    return float(np.average(values, weights=weights))


def _column_averages(values: np.ndarray, sample_weight: Any) -> np.ndarray:
    """Weighted mean over the rows, one for each output."""
    columns = _columns(values).astype(np.float64)
    sample_weight = unmasked("sample_weight", sample_weight)
    weights = _check_sample_weight(sample_weight, columns, dtype=np.float64, ensure_non_negative=True)
    present = weights > 0  # a row of weight zero is absent, whatever its value: 0 · (−inf) is no number
    return np.average(columns[present], axis=0, weights=weights[present])
