"""Relevance of the input columns under automatic relevance determination: one prior precision per column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from .._unwrap import laplace_parts
from .._validation.arguments import explained
from .._validation.values import count
from ._canvas import BLUE, panels, tint
from ._rows import numbers

LEAST_LABEL = 0.01
"""Relevances below this value are labelled "< 0.01"."""


@explained
class FeatureRelevanceDisplay:
    """Relevance of the input columns, in descending order.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    relevance : array-like of shape (n_features,)
        Relevance of each column, non-negative.
    feature_names : sequence of str of length n_features, optional
        Name of each column; by default "x0", "x1", ….
    max_features : int, default=20
        Largest number of columns to draw.
    estimator_name : str, optional
        Name of the model in the title.

    Attributes
    ----------
    relevance : ndarray of shape (n_features,)
        Relevance of each column.
    feature_names : list of str
        Name of each column.
    order : ndarray of shape (n_shown,)
        Indices of the columns that are drawn, the most relevant first.
    ax_, figure_
        Axes and figure, set by :meth:`plot`.
    bars_
        Bars in the order of ``order``, set by :meth:`plot`.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> display = FeatureRelevanceDisplay([0.1, 0.7, 0.2], feature_names=["age", "bmi", "bp"], max_features=2).plot()
    >>> [display.feature_names[k] for k in display.order]
    ['bmi', 'bp']
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        relevance: Any,
        *,
        feature_names: Sequence[str] | None = None,
        max_features: int = 20,
        estimator_name: str | None = None,
    ) -> None:
        self.relevance = numbers("relevance", relevance)
        if self.relevance.ndim != 1 or (self.relevance < 0).any():
            raise ValueError(
                f"relevance has shape {self.relevance.shape} and a minimum of {self.relevance.min():g}; expected one "
                "non-negative number for each column."
            )
        n = len(self.relevance)
        self.feature_names = [f"x{k}" for k in range(n)] if feature_names is None else list(map(str, feature_names))
        if len(self.feature_names) != n:
            raise ValueError(f"feature_names holds {len(self.feature_names)} names; expected {n}, one for each column.")
        self.order = np.argsort(-self.relevance, kind="stable")[: count("max_features", max_features)]
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        feature_names: Sequence[str] | None = None,
        max_features: int = 20,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for a Laplace estimator with ``prior="ard"`` and draw it.

        Parameters
        ----------
        estimator : fitted LaplaceRegressor or LaplaceClassifier
            A Laplace estimator, possibly inside pipelines and searches. In a pipeline, the columns are the inputs of
            its last step.
        feature_names : sequence of str, optional
            Name of each column. By default, ``feature_names_in_`` of the Laplace estimator, or else the output names of
            the earlier pipeline steps.
        max_features : int, default=20
            Largest number of columns to draw.
        name : str, optional
            Name of the model in the title.
        ax : None or Axes
            Axes to draw on, as in :meth:`plot`.
        **plot_options
            Further parameters of :meth:`plot`.

        Returns
        -------
        FeatureRelevanceDisplay

        Raises
        ------
        TypeError
            If the last step is not a Laplace estimator.
        AttributeError
            If the estimator does not have one prior precision per column.
        NotFittedError
            If the estimator is not fitted.
        """
        step, transformations = laplace_parts(estimator)
        relevance = step.feature_relevance_
        names = _names(step, transformations, len(relevance)) if feature_names is None else feature_names
        display = cls(relevance, feature_names=names, max_features=max_features, estimator_name=name)
        return display.plot(ax=ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, bar_kwargs: dict[str, Any] | None = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : None or Axes
            Axes to draw on. None: a new figure.
        name : str, optional
            Name of the model in the title; by default ``estimator_name``.
        bar_kwargs : dict, optional
            Keyword arguments of matplotlib's ``barh``.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        n = len(self.order)
        (self.ax_,) = panels(type(self).__name__, ax, 1, panel=(6.2, 1.3 + 0.27 * n))
        self.figure_ = self.ax_.figure
        name = self.estimator_name if name is None else name
        values = self.relevance[self.order]
        look = {"color": tint(BLUE, 0.6), "edgecolor": BLUE} | (bar_kwargs or {})
        self.bars_ = self.ax_.barh(np.arange(n), values, **look)
        texts = [f"{value:.2f}" if value >= LEAST_LABEL else f"< {LEAST_LABEL}" for value in values]
        self.ax_.bar_label(self.bars_, texts, padding=3, fontsize="small")
        self.ax_.set_yticks(np.arange(n), [self.feature_names[k] for k in self.order])
        top = values.max() if values.max() > 0 else 1.0
        self.ax_.set(xlabel="relevance (share)", xlim=(0, 1.15 * top), ylim=(n - 0.4, -0.6))
        hidden = len(self.relevance) - n
        title = [] if name is None else [name]
        title += [f"{n} most relevant of {len(self.relevance)} columns"] if hidden else []
        self.ax_.set_title("; ".join(title), fontsize="medium")
        return self


def _names(step: Any, transformations: list[Any], n: int) -> Any:
    """Input names of the step, or else output names of the steps before it; None if neither is available."""
    names = getattr(step, "feature_names_in_", None)
    if names is None and transformations:
        try:
            names = transformations[-1].get_feature_names_out()
        except AttributeError:  # a step without get_feature_names_out
            names = None
    return names if names is not None and len(names) == n else None
