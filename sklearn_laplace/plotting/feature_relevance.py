r"""Relevance of the input columns: by the prior, or by shuffling each column.

Under automatic relevance determination, each column has a prior precision, from which ``feature_relevance_`` follows.
For any other model, the relevance of a column is the decrease in log density if its values are shuffled (permutation
importance; Breiman 2001). In nats per row, it is :math:`\frac1n \sum_n \log p(y_n|x_n) - \log p(y_n|x'_n)` with
shuffled rows :math:`x'_n`.
"""

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import column_or_1d

from .._estimator.unwrap import laplace_parts
from .._table.reading import column_names
from .._validation.arguments import count, explained
from .._validation.rows import targets_like
from ..distributions.other_models import log_density
from ._canvas import BLUE, panels, tint
from ._rows import classification, column, numbers, output_index, regression, sample

LEAST_LABEL = 0.01
"""Relevances below this value are labelled "< 0.01"."""
BY_PRIOR = "relevance by the prior (share)"
BY_SHUFFLING = "loss of log density if shuffled (nats per row)"
"""Axis labels of the two measures."""
LONGEST, LEAST_BARS = 24, 5
"""Maximum number of characters of a drawn name, and minimum height of the plot in bars."""
MOST_PREDICTED, LEAST_ROWS = 60_000, 50
"""Maximum number of predictions for all shuffles, which limits the number of rows, and minimum number of rows."""
LEAST_PROBABILITY = 1e-12
"""Lower bound of the probability of a true class in a log density."""


@explained
class FeatureRelevanceDisplay:
    """Relevance of the input columns, in descending order.

    Use :meth:`from_estimator` or :meth:`from_permutations` to create it.

    Parameters
    ----------
    relevance : array-like of shape (n_features,)
        Non-negative relevance of each column.
    feature_names : sequence of str of length n_features, optional
        Name of each column; by default "x0", "x1", ….
    max_features : int, default=20
        Maximum number of columns to draw.
    measure : str, default="relevance by the prior (share)"
        Label of the axis.
    estimator_name : str, optional
        Name of the model in the title.

    Attributes
    ----------
    relevance, feature_names : ndarray of shape (n_features,) and list of str
    order : ndarray of shape (n_shown,)
        Indices of the columns that are drawn, the most relevant first.
    ax_, figure_, bars_
        Axes, figure, and bars in the order of ``order``; set by :meth:`plot`.

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
        measure: str = BY_PRIOR,
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
        self.measure = measure
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
            As in :class:`FeatureRelevanceDisplay`.
        name, ax, **plot_options
            Name of the model in the title, and parameters of :meth:`plot`.

        Raises
        ------
        TypeError, NotFittedError
            If the innermost estimator is not a Laplace estimator, or not fitted.
        AttributeError
            If the estimator does not have one prior precision per column.
        """
        return cls._of_prior(estimator, feature_names, max_features, name).plot(ax=ax, **plot_options)

    @classmethod
    def _of_prior(cls, estimator: Any, feature_names: Any, max_features: int, name: str | None) -> Self:
        """Compute the display for a Laplace estimator with ``prior="ard"``, without drawing it."""
        step, transformations = laplace_parts(estimator)
        relevance = step.feature_relevance_
        names = _names(step, transformations, len(relevance)) if feature_names is None else feature_names
        return cls(relevance, feature_names=names, max_features=max_features, estimator_name=name)

    @classmethod
    def from_permutations(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        output: int | None = None,
        n_repeats: int = 3,
        max_rows: int = 300,
        random_state: Any = 0,
        feature_names: Sequence[str] | None = None,
        max_features: int = 20,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for any model by shuffling each column, and draw it.

        The relevance of a column is the decrease in the mean log density of y if the column is shuffled, in nats per
        row, and at least zero. If several columns carry the same information, each looks less relevant than it would
        without the others.

        Parameters
        ----------
        estimator : fitted regressor or classifier
            As in :meth:`OverviewDisplay.from_estimator`. The columns are those of X.
        X : array-like or dataframe of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets or labels.
        output : int, optional
            Index of the output to evaluate; required if there are several.
        n_repeats : int, default=3
            Number of shuffles of each column.
        max_rows : int, default=300
            Maximum number of rows; a larger X is sampled at random. With many columns, fewer rows are used, but at
            least 50.
        random_state : int, RandomState or None, default=0
            Seed of the shuffles.
        feature_names, max_features, name, ax, **plot_options
            As in :meth:`from_estimator`; ``feature_names`` default to the column names of X.

        Raises
        ------
        ValueError
            If X is not a table, or the shapes do not match.

        Examples
        --------
        >>> import numpy as np
        >>> import matplotlib.pyplot as plt
        >>> from sklearn.linear_model import BayesianRidge
        >>> X = np.random.default_rng(0).normal(size=(100, 3))
        >>> y = 2 * X[:, 1] + 0.1 * X[:, 0]
        >>> display = FeatureRelevanceDisplay.from_permutations(BayesianRidge().fit(X, y), X, y)
        >>> display.order
        array([1, 0, 2])
        >>> plt.close(display.figure_)
        """
        relevance = losses_of_permutations(estimator, X, y, output, random_state, n_repeats, max_rows)
        names = column_names(X) if feature_names is None else feature_names
        labels: dict[str, Any] = {"measure": BY_SHUFFLING, "estimator_name": name}
        display = cls(relevance, feature_names=names, max_features=max_features, **labels)
        return display.plot(ax=ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, bar_kwargs: dict[str, Any] | None = None) -> Self:
        """Draw the display. An ImportError is raised if matplotlib is not installed.

        Parameters
        ----------
        ax : None or Axes
            Axes to draw on; None creates a figure.
        name : str, optional
            Name of the model in the title; by default ``estimator_name``.
        bar_kwargs : dict, optional
            Keyword arguments of matplotlib's ``barh``.
        """
        n = len(self.order)
        (self.ax_,) = panels(type(self).__name__, ax, 1, panel=(6.2, 1.3 + 0.27 * max(n, LEAST_BARS)))
        self.figure_ = self.ax_.figure
        name = self.estimator_name if name is None else name
        values = self.relevance[self.order]
        look = {"color": tint(BLUE, 0.6), "edgecolor": BLUE} | (bar_kwargs or {})
        self.bars_ = self.ax_.barh(np.arange(n), values, **look)
        texts = [f"{value:.2f}" if value >= LEAST_LABEL else f"< {LEAST_LABEL}" for value in values]
        self.ax_.bar_label(self.bars_, texts, padding=3, fontsize="small")
        self.ax_.set_yticks(np.arange(n), [_short(self.feature_names[k]) for k in self.order])
        top = values.max() if values.max() > 0 else 1.0
        self.ax_.set(xlabel=self.measure, xlim=(0, 1.2 * top), ylim=(max(n, LEAST_BARS) - 0.4, -0.6))
        hidden = len(self.relevance) - n
        title = [] if name is None else [name]
        title += [f"{n} most relevant of {len(self.relevance)} columns"] if hidden else []
        self.ax_.set_title("; ".join(title), fontsize="medium")
        return self


def _names(step: Any, transformations: list[Any], n: int) -> Any:
    """Return input names of the step, or else output names of the steps before it; None if neither is available."""
    names = getattr(step, "feature_names_in_", None)
    if names is None and transformations:
        try:
            names = transformations[-1].get_feature_names_out()
        except AttributeError:  # a step without get_feature_names_out
            names = None
    return names if names is not None and len(names) == n else None


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def losses_of_permutations(
    estimator: Any, X: Any, y: Any, output: int | None, random_state: Any, n_repeats: int = 3, max_rows: int = 300
) -> np.ndarray:
    """Return the decrease (d,) in mean log density if each of the d columns is shuffled; at least zero."""
    X = np.asarray(X, dtype=object) if isinstance(X, list | tuple) else X
    if len(np.shape(X)) != 2:
        raise ValueError(f"X has shape {np.shape(X)}; expected a table of shape (n_samples, n_features).")
    d, generator = X.shape[1], check_random_state(random_state)
    affordable = max(MOST_PREDICTED // (d * count("n_repeats", n_repeats)), LEAST_ROWS)
    chosen = sample(len(X), min(max_rows, affordable))
    X, y = _safe_indexing(X, chosen), _safe_indexing(y, chosen)
    best = _log_density(estimator, X, y, output)
    orders = [generator.permutation(len(chosen)) for _ in range(n_repeats)]
    worse = [[_log_density(estimator, _shuffled(X, k, order), y, output) for order in orders] for k in range(d)]
    return (best - np.mean(worse, 1)).clip(0)


def _log_density(estimator: Any, X: Any, y: Any, output: int | None) -> float:
    """Return the mean log density of targets, or log probability of true classes, under a model's predictions."""
    display = FeatureRelevanceDisplay.__name__
    if is_classifier(estimator):
        probabilities, classes = classification(display, estimator, X)
        true = (probabilities * (column_or_1d(y)[:, None] == classes)).sum(1)
        return float(np.log(true.clip(LEAST_PROBABILITY)).mean())
    distribution = regression(display, estimator, X)
    mean = np.asarray(distribution.mean())
    density = log_density(distribution, targets_like(y, mean))
    return float(column(density, output_index(display, output, mean.shape)).mean())


def _shuffled(X: Any, place: int, order: np.ndarray) -> Any:
    """Return a copy of X in which the column at ``place`` is permuted: row i gets the value of row ``order[i]``."""
    if column_names(X) is None:
        rows = np.array(X)
        rows[:, place] = rows[order, place]
        return rows
    values = _safe_indexing(_safe_indexing(X, order), place, axis=1)
    insert = getattr(rows := copy.copy(X), "isetitem", None)
    if insert is None:  # polars
        return X.with_columns(values)
    insert(place, values.array)  # pandas; an index would return the values to their rows
    return rows
