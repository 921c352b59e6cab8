"""Reach the Laplace estimator inside scikit-learn's wrappers, which forward ``predict`` and none of the extra methods.

Owned here: which wrappers can be looked through exactly, and the functions that do so before they ask. A wrapper counts
as exact when the answer of the step inside is the answer of the whole: ``Pipeline`` (its earlier steps transform X),
the searches, other packages' too (their refitted ``best_estimator_``), ``FrozenEstimator``, and
``TransformedTargetRegressor`` where it leaves y as it is. Everything that averages or recalibrates several models is
not one Laplace approximation, and is refused by its name. What a predictive looks like is the estimators' matter.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from .classifier import LaplaceClassifier
from .distributions.distributional import Distributional
from .regressor import LaplaceRegressor

BEST = "best_estimator_"
"""Where a search that has refitted keeps the estimator."""


def laplace_step(estimator: Any, X: Any) -> tuple[LaplaceRegressor | LaplaceClassifier, Any]:
    """The fitted Laplace estimator inside wrappers, and X as that estimator sees it.

    Parameters
    ----------
    estimator : estimator
        A Laplace estimator, or one inside ``Pipeline``, ``GridSearchCV`` and its kin, ``FrozenEstimator``, or
        ``TransformedTargetRegressor`` without a transformation; nested in any order. Nothing of it is changed.
    X : array-like of shape (n_samples, n_features)
        As the outermost estimator takes it.

    Returns
    -------
    step : LaplaceRegressor or LaplaceClassifier
        The object itself, not a copy.
    X : array-like of shape (n_samples, n_features_of_the_step)
        After the earlier steps' ``transform``.

    Raises
    ------
    TypeError
        Where no Laplace estimator is the last step.
    ValueError
        Where the step's answers would not be those of the whole: a search without refit, a transformed target.
    NotFittedError
        Where something on the way is not fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import MinMaxScaler
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> pipe = make_pipeline(MinMaxScaler(), LaplaceRegressor(random_state=0)).fit(X, np.sin(X[:, 0]))
    >>> step, scaled = laplace_step(pipe, X)
    >>> step is pipe[-1], float(scaled.max())
    (True, 1.0)
    >>> bool((step.predict(scaled) == pipe.predict(X)).all())
    True
    """
    step, X = final_step(estimator, X)
    return _laplace(step, estimator), X


def laplace_parts(estimator: Any) -> tuple[LaplaceRegressor | LaplaceClassifier, list[Pipeline]]:
    """The fitted Laplace estimator inside wrappers, and what transforms X before it.

    Parameters
    ----------
    estimator : estimator
        As for :func:`laplace_step`.

    Returns
    -------
    step : LaplaceRegressor or LaplaceClassifier
        The object itself, not a copy.
    transformations : list of Pipeline
        In the order in which X goes through them; empty where the step sees X as it is given.

    Raises
    ------
    TypeError, ValueError, NotFittedError
        As for :func:`laplace_step`.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import MinMaxScaler
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X, y = [[0.0], [1.0], [3.0]], [0.0, 1.1, 3.0]
    >>> pipe = make_pipeline(MinMaxScaler(), LaplaceRegressor(random_state=0)).fit(X, y)
    >>> step, transformations = laplace_parts(pipe)
    >>> step is pipe[-1], len(transformations)
    (True, 1)
    """
    step, transformations = _unwrapped(estimator)
    return _laplace(step, estimator), transformations


def final_step(estimator: Any, X: Any) -> tuple[BaseEstimator, Any]:
    """The estimator that predicts, of whatever type, and X as it sees it.

    Parameters
    ----------
    estimator : estimator
    X : array-like of shape (n_samples, n_features)

    Returns
    -------
    step, X
        As for :func:`laplace_step`.

    Raises
    ------
    TypeError, ValueError, NotFittedError
        As for :func:`laplace_step`; a last step of any other type is returned.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.pipeline import make_pipeline
    >>> step, X = final_step(make_pipeline(BayesianRidge()).fit([[0.0], [1.0], [2.0]], [0.0, 1.1, 1.9]), [[3.0]])
    >>> type(step).__name__, X
    ('BayesianRidge', [[3.0]])
    """
    step, transformations = _unwrapped(estimator)
    for transformation in transformations:
        X = transformation.transform(X)
    return step, X


def predictive(estimator: Any, X: Any) -> Any:
    """Predictive distribution of an estimator, whatever wraps it.

    Parameters
    ----------
    estimator : estimator
        As for :func:`laplace_step`. So that models can be compared, other regressors with
        ``predict(X, return_std=True)`` and other classifiers with ``predict_proba`` are taken too.
    X : array-like of shape (n_samples, n_features)

    Returns
    -------
    frozen ``scipy.stats`` distribution or ndarray of shape (n_samples, n_classes)
        Regressors: ``predict_dist(X)`` in the units of y; of other regressors the normal with their mean and standard
        deviation. Classifiers: ``predict_proba(X)``.

    Raises
    ------
    TypeError
        For an estimator that predicts points only.
    ValueError
        Where another regressor's standard deviation is not positive; and as for :func:`laplace_step`.
    NotFittedError

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
    if not is_regressor(step) or "return_std" not in inspect.signature(step.predict).parameters:
        raise TypeError(
            f"{type(step).__name__} has no predictive distribution; expected a Laplace estimator, a classifier with "
            "predict_proba, or a regressor whose predict takes return_std."
        )
    mean, std = step.predict(X, return_std=True)
    if not (np.isfinite(std).all() and (std > 0).all()):
        raise ValueError(
            f"{type(step).__name__}.predict(X, return_std=True) gave a standard deviation of {np.min(std)}; a density "
            "needs finite numbers above zero. Let the model include the noise of y."
        )
    return norm(mean, std)


def predict_std(estimator: Any, X: Any, *, kind: str | None = None) -> np.ndarray:
    """``predict_std`` of the Laplace estimator inside wrappers.

    Parameters
    ----------
    estimator, X
        As for :func:`laplace_step`.
    kind : {"total", "epistemic", "aleatoric"}, optional
        None: the estimator's own default, "total" for regressors and "epistemic" for classifiers.

    Returns
    -------
    ndarray of shape (n_samples,), (n_samples, n_outputs) or (n_samples, n_classes)
        In the units of y; for classifiers, of class membership.

    Raises
    ------
    TypeError, ValueError, NotFittedError
        As for :func:`laplace_step`.

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


def predict_interval(
    estimator: Any, X: Any, confidence_level: Any = 0.9, *, method: str = "normal"
) -> tuple[np.ndarray, np.ndarray]:
    """``predict_interval`` of the Laplace regressor inside wrappers.

    Parameters
    ----------
    estimator, X
        As for :func:`laplace_step`.
    confidence_level : float or sequence of float
        Strictly between 0 and 1.
    method : {"normal", "jackknife+"}
        See :meth:`LaplaceRegressor.predict_interval`.

    Returns
    -------
    mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
    interval : ndarray of shape (n_samples, 2, n_levels) or (n_samples, 2, n_levels, n_outputs)
        Lower and upper ends in the units of y.

    Raises
    ------
    TypeError
        For a classifier; and as for :func:`laplace_step`.
    ValueError, NotFittedError
        As for :func:`laplace_step`.

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
            f"predict_interval is for numeric targets; found {type(step).__name__}. For classes use predictive, the "
            "class probabilities, or predict_std."
        )
    return step.predict_interval(X, confidence_level, method=method)


def _unwrapped(estimator: Any) -> tuple[BaseEstimator, list[Pipeline]]:
    """The estimator that predicts, of whatever type, and the pipelines' earlier steps, from the outermost on."""
    step, transformations = estimator, []
    while isinstance(step, Pipeline | FrozenEstimator | TransformedTargetRegressor) or _is_search(step):
        check_is_fitted(step)
        if isinstance(step, Pipeline):
            if len(step) > 1:  # a slice without steps is no pipeline
                transformations.append(step[:-1])
            step = step[-1]
        elif _is_search(step):
            step = _best(step)
        elif isinstance(step, FrozenEstimator):
            step = step.estimator
        else:
            step = _untransformed(step)
    if not isinstance(step, BaseEstimator):
        raise TypeError(
            f"{type(estimator).__name__} ends in {step!r}; expected a scikit-learn estimator that predicts."
        )
    return step, transformations


def _laplace(step: Any, estimator: Any) -> LaplaceRegressor | LaplaceClassifier:
    """The step that was found inside an estimator, if it is a fitted one of ours."""
    if not isinstance(step, LaplaceRegressor | LaplaceClassifier):
        inside = "" if step is estimator else f" inside {type(estimator).__name__}"
        raise TypeError(
            f"found {type(step).__name__}{inside}; expected a LaplaceRegressor or LaplaceClassifier, alone or as the "
            "last step of Pipeline, a search such as GridSearchCV, FrozenEstimator or TransformedTargetRegressor."
        )
    check_is_fitted(step)
    return step


def _is_search(step: Any) -> bool:
    """Also one of another package, such as Optuna's: an estimator that says whether it refits, fitted with its best."""
    return isinstance(step, BaseSearchCV) or (isinstance(step, BaseEstimator) and {"refit", BEST} <= vars(step).keys())


def _best(search: Any) -> Any:
    if not search.refit:
        raise ValueError(
            f"{type(search).__name__}(refit=False) keeps no fitted estimator; set refit=True (with several scorers the "
            "name of one), or fit an estimator with the parameters of your choice."
        )
    return search.best_estimator_


def _untransformed(wrapper: TransformedTargetRegressor) -> Any:
    """The regressor inside, where its predictive is in the units of y."""
    used = wrapper.transformer_
    if isinstance(used, FunctionTransformer) and used.func is None and used.inverse_func is None:
        return wrapper.regressor_
    raise ValueError(
        f"TransformedTargetRegressor transforms y by {type(used).__name__}: the regressor inside predicts the "
        "transformed target, whose standard deviation and density are not those of y. Leave it out (LaplaceRegressor "
        "standardises y itself), or transform y before fit and judge in the transformed units."
    )
