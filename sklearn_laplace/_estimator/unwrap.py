"""Access to the Laplace estimator inside scikit-learn wrappers, which do not forward methods such as ``predict_std``.

This module decides which wrappers can be unwrapped, and defines the public functions that unwrap an estimator before
calling it. A wrapper can be unwrapped if the inner estimator makes the same predictions as the wrapper:

* ``Pipeline``: the steps before the last one transform X;
* a search of scikit-learn or of another package: its refitted ``best_estimator_`` is used;
* ``FrozenEstimator``;
* ``TransformedTargetRegressor`` without a transformation of y.

Wrappers that average or recalibrate several models are rejected with an error, because they do not contain a single
Laplace approximation. The predictive distributions themselves are defined by the estimators.
"""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from .._validation.arguments import explained
from .._validation.rows import outlined
from ..distributions.interface import Distributional
from ..distributions.other_models import METHODS, distribution_of
from .classifier import LaplaceClassifier
from .regressor import LaplaceRegressor

BEST = "best_estimator_"
"""Attribute in which a fitted search stores the refitted estimator."""


def laplace_step(estimator: Any, X: Any) -> tuple[LaplaceRegressor | LaplaceClassifier, Any]:
    """Return the fitted Laplace estimator inside nested wrappers, and X transformed by the steps before it.

    Raises ``TypeError`` if the innermost estimator is not a Laplace estimator, and ``NotFittedError`` if an estimator
    is not fitted. Raises ``ValueError`` for a search without refit and for a transformed target.
    """
    step, X = final_step(estimator, X)
    return _laplace(step, estimator), X


def laplace_parts(estimator: Any) -> tuple[LaplaceRegressor | LaplaceClassifier, list[Pipeline]]:
    """Return the fitted Laplace estimator inside wrappers, and the steps before it in each enclosing pipeline.

    The steps are listed in the order in which they are applied to X. Raises the errors of :func:`laplace_step`.
    """
    step, transformations = _unwrapped(estimator)
    return _laplace(step, estimator), transformations


def final_step(estimator: Any, X: Any) -> tuple[BaseEstimator, Any]:
    """Return the innermost estimator, of any type, and X transformed by the steps before it.

    Raises ``TypeError`` if the innermost object is not an estimator; wrappers raise the errors of :func:`laplace_step`.
    """
    step, transformations = _unwrapped(estimator)
    for transformation in transformations:
        X = transformation.transform(X)
    return step, X


@explained
def predictive(estimator: Any, X: Any) -> Any:
    """Predictive distribution of an estimator, which may be inside pipelines and searches.

    Parameters
    ----------
    estimator : estimator
        A fitted Laplace estimator, possibly inside pipelines, searches and ``FrozenEstimator``. For comparison, other
        classifiers are accepted if they have ``predict_proba``. Other regressors need ``predict(X, return_std=True)``,
        ``pred_dist`` (NGBoost), ``predict_dist`` or CatBoost's loss ``"RMSEWithUncertainty"``.
    X : array-like of shape (n_samples, n_features)

    Returns
    -------
    distribution object or ndarray of shape (n_samples, n_classes)
        Laplace regressors: ``predict_dist(X)``, in the units of y. Other regressors: their own distribution, or the
        normal distribution with their mean and standard deviation. Classifiers: ``predict_proba(X)``.

    Raises
    ------
    TypeError
        If the estimator only makes point predictions.
    ValueError
        If the standard deviation of another regressor is not positive and finite. Also for a search without refit, and
        for a ``TransformedTargetRegressor`` that transforms y.
    NotFittedError
        If the estimator or one of its wrappers is not fitted.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> for model in (LaplaceRegressor(random_state=0), BayesianRidge()):
    ...     distribution = predictive(make_pipeline(StandardScaler(), model).fit(X, y), X)
    ...     distribution.mean().round(0), distribution.cdf(10.0).round(2)
    (array([0., 1., 2., 3.]), array([1., 1., 1., 1.]))
    (array([0., 1., 2., 3.]), array([1., 1., 1., 1.]))
    """
    step, X = final_step(estimator, X)
    if isinstance(step, LaplaceRegressor | Distributional):
        return step.predict_dist(X)
    if is_classifier(step):
        return step.predict_proba(X)
    if (distribution := distribution_of(step, X)) is None:
        raise TypeError(
            f"{type(step).__name__} has no predictive distribution; expected a Laplace estimator, a classifier with "
            f"predict_proba, or {METHODS}."
        )
    return distribution


@explained
def predict_std(estimator: Any, X: Any, *, kind: str | None = None) -> np.ndarray:
    """Standard deviation of the predictions of a Laplace estimator, which may be inside pipelines and searches.

    Parameters
    ----------
    estimator : LaplaceRegressor or LaplaceClassifier
        Fitted, possibly inside pipelines, searches and ``FrozenEstimator``.
    X : array-like of shape (n_samples, n_features)
        Input of the outermost estimator.
    kind : {"total", "epistemic", "aleatoric", "all"}, optional
        Part of the uncertainty, or all three parts. None: "total" for regressors and "epistemic" for classifiers.

    Returns
    -------
    ndarray of shape (n_samples,), (n_samples, n_outputs) or (n_samples, n_classes), or Bunch of such arrays
        Regressors: in the units of y. Classifiers: between 0 and 1, see :meth:`LaplaceClassifier.predict_std`.

    Raises
    ------
    TypeError
        If the innermost estimator is not a Laplace estimator.
    ValueError
        For a search without refit, and for a ``TransformedTargetRegressor`` that transforms y.
    NotFittedError
        If an estimator is not fitted.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> pipe = make_pipeline(LaplaceRegressor(random_state=0)).fit(X, y)
    >>> near, far = predict_std(pipe, [[1.5], [30.0]], kind="epistemic")
    >>> bool(far > near)
    True
    """
    step, X = laplace_step(estimator, X)
    return step.predict_std(X) if kind is None else step.predict_std(X, kind=kind)


@explained
def predict_interval(estimator: Any, X: Any, confidence_level: Any = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Central prediction intervals of a Laplace regressor, which may be inside pipelines and searches.

    Parameters
    ----------
    estimator, X
        As in :func:`predict_std`.
    confidence_level : float or sequence of float, default=0.9
        As in :meth:`LaplaceRegressor.predict_interval`.

    Returns
    -------
    mean, interval : ndarray
        As returned by :meth:`LaplaceRegressor.predict_interval`.

    Raises
    ------
    TypeError, ValueError, NotFittedError
        As in :func:`predict_std`. Also a ``TypeError`` for a classifier.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.1, 1.9, 3.0]
    >>> pipe = make_pipeline(LaplaceRegressor(random_state=0)).fit(X, y)
    >>> mean, interval = predict_interval(pipe, [[1.5], [30.0]], [0.5, 0.9])
    >>> mean.shape, interval.shape
    ((2,), (2, 2, 2))
    """
    step, X = laplace_step(estimator, X)
    if not isinstance(step, LaplaceRegressor):
        raise TypeError(
            f"predict_interval needs numeric targets; found {type(step).__name__}. For classes use predictive (class "
            "probabilities) or predict_std."
        )
    return step.predict_interval(X, confidence_level)


def _unwrapped(estimator: Any) -> tuple[BaseEstimator, list[Pipeline]]:
    """Return the innermost estimator, of any type, and each pipeline without its last step, the outermost first."""
    step, transformations = estimator, []
    while isinstance(step, Pipeline | FrozenEstimator | TransformedTargetRegressor) or _is_search(step):
        check_is_fitted(step)
        if isinstance(step, Pipeline):
            if len(step) > 1:  # a pipeline cannot be empty
                transformations.append(step[:-1])
            step = step[-1]
        elif _is_search(step):
            step = _best(step)
        elif isinstance(step, FrozenEstimator):
            step = step.estimator
        else:
            step = _untransformed(step)
    if not _is_estimator(step) and step is estimator:
        raise TypeError(
            f"{outlined(estimator)} is not a fitted estimator. Pass a fitted estimator as the first argument, then "
            "rows X (and targets y); predictions are computed from them."
        )
    if not _is_estimator(step):
        raise TypeError(f"the last step of {type(estimator).__name__} is {step!r}; expected a scikit-learn estimator.")
    return step, transformations


def _laplace(step: Any, estimator: Any) -> LaplaceRegressor | LaplaceClassifier:
    """Check that the innermost estimator is a fitted Laplace estimator, and return it."""
    if not isinstance(step, LaplaceRegressor | LaplaceClassifier):
        inside = "" if step is estimator else f" inside {type(estimator).__name__}"
        raise TypeError(
            f"found {type(step).__name__}{inside}; expected a LaplaceRegressor or LaplaceClassifier, alone or as the "
            "last step of Pipeline, a search such as GridSearchCV, FrozenEstimator or TransformedTargetRegressor."
        )
    check_is_fitted(step)
    return step


def _is_estimator(step: Any) -> bool:
    """True for estimators of scikit-learn, and for others with scikit-learn's tags, such as CatBoost."""
    return isinstance(step, BaseEstimator) or callable(getattr(type(step), "__sklearn_tags__", None))


def _is_search(step: Any) -> bool:
    """True for searches of scikit-learn, and for those of other packages with ``refit`` and ``best_estimator_``."""
    return isinstance(step, BaseSearchCV) or (isinstance(step, BaseEstimator) and {"refit", BEST} <= vars(step).keys())


def _best(search: Any) -> Any:
    if not search.refit:
        raise ValueError(
            f"{type(search).__name__}(refit=False) has no fitted estimator; set refit=True (with several scorers, the "
            "name of a scorer), or fit an estimator with the parameters of your choice."
        )
    return search.best_estimator_


def _untransformed(wrapper: TransformedTargetRegressor) -> Any:
    """Return the inner regressor if y is not transformed; otherwise raise a ``ValueError``."""
    transformer = wrapper.transformer_
    if isinstance(transformer, FunctionTransformer) and transformer.func is None and transformer.inverse_func is None:
        return wrapper.regressor_
    raise ValueError(
        f"TransformedTargetRegressor transforms y with {type(transformer).__name__}: its inner regressor predicts the "
        "transformed target, whose standard deviation and density are not those of y. Omit it: LaplaceRegressor "
        "standardises y itself, and LaplaceRegressor(target_transform='log') takes its logarithm, with all "
        "results in the units of y. Or transform y before fit and evaluate in the transformed units."
    )
