"""Which columns of X a net with a prior precision for each of them relies on: automatic relevance determination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from .._unwrap import laplace_parts
from .._validation.values import count
from ._canvas import BLUE, panels, tint
from ._rows import numbers

LEAST_LABEL = 0.01
"""Smaller shares are not told apart in the labels."""


class FeatureRelevanceDisplay:
    """Relevance of the columns, the largest first.

    Made by :meth:`from_estimator`.

    Parameters
    ----------
    relevance : array-like of shape (n_features,)
        At least 0.
    feature_names : sequence of str of length n_features, optional
        "x0", "x1", … by default.
    max_features : int, default=20
        Of which the most relevant are drawn.
    estimator_name : str, optional

    Attributes
    ----------
    relevance : ndarray of shape (n_features,)
        In the order of the columns.
    feature_names : list of str
    order : ndarray of shape (n_shown,)
        Columns that are drawn, the most relevant first.
    ax_, figure_
        After :meth:`plot`.
    bars_
        In the order of ``order``.

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
            raise ValueError("relevance has to be one number of at least 0 for each column.")
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
        """Compute the display for a Laplace estimator with ``prior_structure="ard"`` and draw it.

        Parameters
        ----------
        estimator : fitted LaplaceRegressor or LaplaceClassifier
            Also inside pipelines and searches; of a pipeline the columns are those that its last step sees.
        feature_names : sequence of str, optional
            By default those that the training has seen, or that the earlier steps of a pipeline give.
        max_features : int, default=20
            Of which the most relevant are drawn.
        name : str, optional
            Of the model, as title.
        ax : None or Axes
        **plot_options
            Further options of :meth:`plot`.

        Returns
        -------
        FeatureRelevanceDisplay

        Raises
        ------
        TypeError
            Where no Laplace estimator is the last step.
        AttributeError
            Where the columns have no prior precisions of their own.
        NotFittedError
        """
        step, transformations = laplace_parts(estimator)
        relevance = step.feature_relevance_
        names = _names(step, transformations, len(relevance)) if feature_names is None else feature_names
        display = cls(relevance, feature_names=names, max_features=max_features, estimator_name=name)
        return display.plot(ax=ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, bar_kwargs: dict[str, Any] | None = None) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : None or Axes
            None: a new figure.
        name : str, optional
            Of the model, as title; that of the display by default.
        bar_kwargs : dict, optional
            Of matplotlib's ``barh``.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib.
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
    """Names of the columns that the step sees: its own, those of the steps before it, or none."""
    known = getattr(step, "feature_names_in_", None)
    if known is None and transformations:
        try:
            known = transformations[-1].get_feature_names_out()
        except AttributeError:  # a step that does not name its columns
            known = None
    return known if known is not None and len(known) == n else None
