"""One figure for a fitted model: predictions, calibration, and relevance of the columns."""

from contextlib import suppress
from typing import Any, Self

import numpy as np
from scipy.special import entr
from sklearn.base import is_classifier

from .._table.reading import column_names
from ..metrics.calibration import judged_confidence
from ._canvas import mosaic
from ._rows import classification, regression
from .coverage import CoverageDisplay, _transform
from .entropy import EntropyDisplay
from .feature_relevance import BY_SHUFFLING, FeatureRelevanceDisplay, losses_of_permutations
from .prediction_interval import LEVELS, PredictionIntervalDisplay
from .reliability import ReliabilityDisplay

ROOMS = {
    3: ([["predictions", "predictions"], ["calibration", "relevance"]], (10.0, 8.0)),
    2: ([["predictions", "predictions", "calibration"]], (12.0, 4.6)),
}
"""Layout of the panels and size of the figure in inches, keyed by the number of panels."""


class OverviewDisplay:
    """Predictions, calibration and relevance of the columns in one figure.

    Use :meth:`from_estimator` or the method ``plot`` of an estimator to create it.

    Parameters
    ----------
    predictions : PredictionIntervalDisplay or EntropyDisplay
        First panel: prediction intervals of rows, or entropies of class probabilities.
    calibration : CoverageDisplay or ReliabilityDisplay
        Second panel.
    relevance : FeatureRelevanceDisplay, optional
        Third panel.

    Attributes
    ----------
    predictions, calibration, relevance
        Display of each panel; its attributes are the numbers that are drawn.
    axes_, figure_
        Axes of the panels that are drawn, and their figure; set by :meth:`plot`.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> display = OverviewDisplay.from_estimator(BayesianRidge().fit(X[:300], y[:300]), X[300:], y[300:])
    >>> len(display.axes_), display.calibration.gap < 0.1
    (3, True)
    >>> plt.close(display.figure_)
    """

    def __init__(self, predictions: Any, calibration: Any, relevance: FeatureRelevanceDisplay | None = None) -> None:
        self.predictions, self.calibration, self.relevance = predictions, calibration, relevance

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        output: int | None = None,
        feature: int | str | None = None,
        confidence_level: Any = LEVELS,
        max_rows: int | None = 100,
        max_features: int = 10,
        random_state: Any = 0,
        name: str | None = None,
        figure: Any = None,
        ax: Any = None,
    ) -> Self:
        """Compute the display for a regressor or classifier and draw it.

        Parameters
        ----------
        estimator : fitted regressor or classifier
            A Laplace estimator, another regressor with ``predict(X, return_std=True)`` or another classifier with
            ``predict_proba``, possibly inside pipelines and searches.
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets or labels.
        output : int, optional
            Regressors: index of the output to draw; required if there are several.
        feature : int or str, optional
            Regressors: column for the horizontal axis of the intervals, as in
            :meth:`PredictionIntervalDisplay.from_estimator`.
        confidence_level : float or sequence of float, default=(.5, .8, .95)
            Regressors: levels of the intervals.
        max_rows : int or None, default=100
            Regressors: maximum number of rows in the first panel. Calibration and coverage use all rows.
        max_features : int, default=10
            Maximum number of columns in the relevance panel.
        random_state : int, RandomState or None, default=0
            Seed of the shuffles of columns, and of the uniform draws for counts.
        name : str, optional
            Name of the model in the legends.
        figure, ax
            Where to draw, as in :meth:`plot`.

        Raises
        ------
        ValueError, NotFittedError, TypeError
            If a parameter is invalid, the shapes do not match, or the targets of a count model are not integers. Also
            if the estimator is not fitted or predicts points only.

        Notes
        -----
        The relevance is ``feature_relevance_`` under ``prior="ard"``. For any other model, it is the decrease in
        log density if a column is shuffled (:meth:`FeatureRelevanceDisplay.from_permutations`). The axis label names
        the measure. Except under ``prior="ard"``, the panel is omitted if X has a single column or is not a table.
        """
        shared = {"output": output, "max_features": max_features, "random_state": random_state, "name": name}
        if is_classifier(estimator):
            if (given := output if feature is None else feature) is not None:
                name = "output" if feature is None else "feature"
                raise ValueError(f"{name}={given!r} is for regressors; found a classifier. Omit it.")
            probabilities, classes = classification(cls.__name__, estimator, X)
            confidence, right = judged_confidence(y, probabilities, classes)
            entropy = entr(probabilities).sum(1)
            groups = {"right": entropy[right], "wrong": entropy[~right]}
            first: Any = EntropyDisplay(groups, n_classes=len(classes), estimator_name=name)
            second: Any = ReliabilityDisplay(confidence, right, estimator_name=name)
            return cls(first, second, _relevance(estimator, X, y, **shared)).plot(ax, figure=figure)
        distribution = regression(cls.__name__, estimator, X)
        options: dict[str, Any] = {"confidence_level": confidence_level, "feature": feature, "max_rows": max_rows}
        first = PredictionIntervalDisplay._of(distribution, estimator, X, y, output=output, name=name, **options)
        second = CoverageDisplay(_transform(y, distribution, output, random_state), estimator_name=name)
        return cls(first, second, _relevance(estimator, X, y, **shared)).plot(ax, figure=figure)

    def plot(self, ax: Any = None, *, figure: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : None, Axes or sequence of Axes
            Axes to draw on: one for each panel, or a single Axes for only the first panel.
        figure : Figure or SubFigure, optional
            Figure to draw in; by default a new one.

        Raises
        ------
        ImportError, TypeError, ValueError
            If matplotlib is not installed, ``ax`` or ``figure`` has the wrong type or length, or both are given.
        """
        displays = [self.predictions, self.calibration, *([] if self.relevance is None else [self.relevance])]
        self.axes_ = mosaic(type(self).__name__, ax, figure, *ROOMS[len(displays)])
        for display, axes in zip(displays, self.axes_, strict=False):
            display.plot(ax=axes)
        # above the axes: bars and points may be anywhere in the first panel
        self.axes_[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize="small", frameon=False)
        self.figure_ = self.axes_[0].figure
        return self


def _relevance(
    estimator: Any, X: Any, y: Any, *, output: int | None, max_features: int, random_state: Any, name: str | None
) -> FeatureRelevanceDisplay | None:
    """Return the relevance from prior precisions if columns have their own, else by shuffling columns.

    Return None if the panel is omitted.
    """
    with suppress(AttributeError, TypeError):  # another prior, or another kind of model
        return FeatureRelevanceDisplay._of_prior(estimator, None, max_features, name)
    shape = np.shape(X)
    if len(shape) != 2 or shape[1] < 2:
        return None
    relevance = losses_of_permutations(estimator, X, y, output, random_state)
    labels: dict[str, Any] = {"feature_names": column_names(X), "measure": BY_SHUFFLING, "estimator_name": name}
    return FeatureRelevanceDisplay(relevance, max_features=max_features, **labels)
