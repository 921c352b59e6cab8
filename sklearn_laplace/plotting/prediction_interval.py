"""Predictions of a regressor: mean, nested central intervals and data points.

With a single numeric column, the intervals are drawn on a grid, which shows how they widen in gaps between the data.
Otherwise, bars are drawn for each row, and the rows are ordered by a chosen column or by the predicted mean.
"""

from typing import Any, Self

import numpy as np
from scipy.stats import rankdata
from sklearn.utils import _safe_indexing

from .._table.reading import column_names, first_of
from .._validation.arguments import count, explained, fractions
from .._validation.rows import targets_like
from ..distributions.evaluation import central_interval, check_counts
from ._canvas import BLACK, BLUE, LINES, ORANGE, labelled, panels, tint
from ._rows import column, numbers, output_index, regression, sample, target_name

LEVELS = (0.5, 0.8, 0.95)
"""Default levels of the intervals."""
MARGIN = 0.04
"""Distance by which the grid extends beyond the data on either side, as a fraction of the data range."""
SHADES = 0.6, 0.22
"""Share of the colour (the rest is white) for the narrowest and the widest interval."""
WIDTHS = 5.0, 1.5
"""Line width in points of the bars for the narrowest and the widest interval."""


@explained
class PredictionIntervalDisplay:
    """Predicted mean and nested prediction intervals, with the data points.

    Use :meth:`from_estimator` or :meth:`from_predictions` to create it.

    Parameters
    ----------
    x : array-like of shape (n,)
        Horizontal position of each prediction.
    mean : array-like of shape (n,)
        Predicted mean.
    interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper ends of the intervals, as returned by ``predict_interval`` for one output.
    confidence_level : float or sequence of float
        Level of each interval.
    x_points, y_points : array-like of shape (n_points,), optional
        Coordinates of the data points.
    coverage : array-like of shape (n_levels,), optional
        Fraction of the data points inside the intervals of each level, for the legend.
    is_curve : bool, default=True
        If True, draw bands and a line through the predictions. If False, draw bars and a marker for each row.
    x_name, y_name : str, default="x" and "y"
        Axis labels.
    estimator_name : str, optional
        Name of the model in the legend.

    Attributes
    ----------
    x, mean, lower, upper : ndarray of shape (n,) and (n, n_levels)
        Positions, predicted means and ends of the intervals, in ascending order of x and of the levels.
    confidence_level, coverage : ndarray of shape (n_levels,)
        Levels in ascending order, and their coverage or None.
    x_points, y_points : ndarray of shape (n_points,) or None
    ax_, figure_, line_, bands_, points_
        Axes, figure, line of the mean, intervals from the widest to the narrowest, and data points or None; set by
        :meth:`plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import BayesianRidge
    >>> import matplotlib.pyplot as plt
    >>> X = np.arange(20.0)[:, None]
    >>> y = X[:, 0] + np.random.default_rng(0).normal(size=20)
    >>> display = PredictionIntervalDisplay.from_estimator(BayesianRidge().fit(X, y), X, y, confidence_level=[0.5, 0.9])
    >>> display.lower.shape, display.coverage
    ((200, 2), array([0.6 , 0.95]))
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        *,
        x: Any,
        mean: Any,
        interval: Any,
        confidence_level: Any,
        x_points: Any = None,
        y_points: Any = None,
        coverage: Any = None,
        is_curve: bool = True,
        x_name: str = "x",
        y_name: str = "y",
        estimator_name: str | None = None,
    ) -> None:
        levels = fractions("confidence_level", confidence_level)
        mean = numbers("mean", mean)
        ends = numbers("interval", interval, len(mean))
        ends = ends[:, :, None] if ends.ndim == 2 else ends
        if ends.shape != (len(mean), 2, len(levels)):
            raise ValueError(
                f"interval has shape {ends.shape}; expected ({len(mean)}, 2, {len(levels)}): a lower and an upper end "
                f"for each of the {len(mean)} means and {len(levels)} levels."
            )
        order, by_level = np.argsort(x, kind="stable"), np.argsort(levels)
        self.x = np.asarray(x)[order]
        self.mean = mean[order]
        self.lower, self.upper = ends[order, 0][:, by_level], ends[order, 1][:, by_level]
        self.confidence_level = levels[by_level]
        self.x_points = None if x_points is None else np.asarray(x_points)
        self.y_points = None if y_points is None else numbers("y_points", y_points)
        self.coverage = None if coverage is None else np.asarray(coverage)[by_level]
        self.is_curve = is_curve
        self.x_name, self.y_name = x_name, y_name
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        confidence_level: Any = LEVELS,
        feature: int | str | None = None,
        output: int | None = None,
        grid_resolution: int = 200,
        max_rows: int | None = None,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for a regressor and draw it.

        Parameters
        ----------
        estimator, output, name, ax, **plot_options
            As in :meth:`CoverageDisplay.from_estimator`.
        X : array-like of shape (n_samples, n_features)
            Input rows. With a single numeric column, the intervals are drawn on a grid over its range. Otherwise they
            are drawn for each row.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            Targets of the rows. If given, they are drawn, and the legend shows the coverage.
        confidence_level : float or sequence of float, default=(.5, .8, .95)
            Levels of the intervals, strictly between 0 and 1.
        feature : int or str, optional
            Numeric column for the horizontal axis. By default, the only column if it is numeric, otherwise the rank of
            the predicted mean.
        grid_resolution : int, default=200
            Number of grid points.
        max_rows : int, optional
            Maximum number of rows to draw. With more rows, a random sample is drawn; the coverage refers to all rows.

        Raises
        ------
        TypeError, NotFittedError, ValueError
            As in :meth:`CoverageDisplay.from_estimator`.
        """
        fractions("confidence_level", confidence_level)
        distribution = regression(cls.__name__, estimator, X)
        options: dict[str, Any] = {"confidence_level": confidence_level, "feature": feature, "output": output}
        options |= {"grid_resolution": grid_resolution, "max_rows": max_rows, "name": name}
        return cls._of(distribution, estimator, X, y, **options).plot(ax=ax, **plot_options)

    @classmethod
    def _of(
        cls,
        distribution: Any,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        output: int | None,
        feature: int | str | None = None,
        max_rows: int | None = None,
        confidence_level: Any = LEVELS,
        grid_resolution: int = 200,
        name: str | None = None,
    ) -> Self:
        """Compute the display from the predictive distribution of a regressor at X, without drawing it."""
        levels = fractions("confidence_level", confidence_level)
        where, x_name = _along(X, feature)
        mean = np.asarray(distribution.mean())
        which = output_index(cls.__name__, output, mean.shape)
        ends, targets = _ends(distribution, levels, which), None
        if y is not None:
            targets = column(targets_like(y, mean), which)
            check_counts(distribution, targets)
        mean = column(mean, which)
        grid = None if where is None else _grid(X, where, count("grid_resolution", grid_resolution))
        drawn = sample(len(mean), max_rows)
        x_points = rankdata(mean[drawn], method="ordinal") if where is None else where[drawn]
        shown: dict[str, Any] = {"x": x_points, "mean": mean[drawn], "interval": ends[drawn], "is_curve": False}
        if grid is not None:
            at_grid = regression(cls.__name__, estimator, grid[1])
            shown = {"x": grid[0], "mean": column(at_grid.mean(), which), "interval": _ends(at_grid, levels, which)}
        if targets is not None:
            shown |= {"x_points": x_points, "y_points": targets[drawn], "coverage": _coverage(targets, ends)}
        x_name = x_name if len(drawn) == len(mean) else f"{x_name} ({len(drawn):,} of {len(mean):,} rows)"
        names: dict[str, Any] = {"x_name": x_name, "y_name": target_name(y, which), "estimator_name": name}
        return cls(**shown, **names, confidence_level=levels)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        mean: Any,
        interval: Any,
        *,
        confidence_level: Any,
        x: Any = None,
        is_curve: bool = False,
        x_name: str | None = None,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for predictions and draw it.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,) or None
            Targets; None if they are unknown.
        mean, interval, confidence_level
            As in :class:`PredictionIntervalDisplay`, one row for each target.
        x : array-like of shape (n_samples,), optional
            Horizontal position of each row; by default the rank of its mean.
        is_curve : bool, default=False
            If True, the rows are points of one curve along x.
        x_name, name, ax, **plot_options
            As in :class:`PredictionIntervalDisplay` and :meth:`from_estimator`.
        """
        mean = numbers("mean", mean)
        x, default = (rankdata(mean, method="ordinal"), BY_MEAN) if x is None else (numbers("x", x, len(mean)), "x")
        predictions = {"x": x, "mean": mean, "interval": interval, "confidence_level": confidence_level}
        points = {}
        if y_true is not None:
            targets, ends = targets_like(y_true, mean), numbers("interval", interval, len(mean))
            coverage = _coverage(targets, ends.reshape(len(mean), 2, -1))
            points = {"x_points": x, "y_points": targets, "coverage": coverage}
        x_name = default if x_name is None else x_name
        display = cls(**predictions, **points, is_curve=is_curve, x_name=x_name, estimator_name=name)
        return display.plot(ax=ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, line_kwargs: dict[str, Any] | None = None) -> Self:
        """Draw the display. An ImportError is raised if matplotlib is not installed.

        Parameters
        ----------
        ax : None or Axes
            Axes to draw on; None creates a figure.
        name, line_kwargs
            As in :meth:`CoverageDisplay.plot`, for the mean.
        """
        (self.ax_,) = panels(type(self).__name__, ax, 1, panel=(7.0, 4.2))
        self.figure_ = self.ax_.figure
        name = self.estimator_name if name is None else name
        n = len(self.confidence_level)
        shares = np.linspace(*SHADES, n) if n > 1 else np.array([np.mean(SHADES)])
        draw = self._band if self.is_curve else self._bars
        self.bands_ = [draw(k, tint(BLUE, shares[k])) for k in reversed(range(n))]
        look = LINES[0] | {"color": BLACK, "linewidth": 1.6, "label": labelled(name, "mean")}
        dots = {"linestyle": "none", "marker": "_", "markersize": 8.0, "markeredgewidth": 1.8}
        look = look if self.is_curve else look | dots
        (self.line_,) = self.ax_.plot(self.x, self.mean, **look | (line_kwargs or {}))
        self.points_ = None
        if self.y_points is not None:
            circle = {"s": 16, "color": ORANGE, "edgecolor": BLACK, "linewidth": 0.4, "zorder": 3}
            self.points_ = self.ax_.scatter(self.x_points, self.y_points, **circle, label="data")
        self.ax_.set(xlabel=self.x_name, ylabel=self.y_name)
        self.ax_.margins(x=0.02)
        self.ax_.legend(fontsize="small")
        return self

    def _label(self, k: int) -> str:
        covered = "" if self.coverage is None else f" (covers {self.coverage[k]:.0%})"
        return f"{100 * self.confidence_level[k]:.3g}% interval{covered}"

    def _band(self, k: int, colour: Any) -> Any:
        look = {"facecolor": colour, "edgecolor": tint(BLUE, 0.75), "linewidth": 0.4, "label": self._label(k)}
        return self.ax_.fill_between(self.x, self.lower[:, k], self.upper[:, k], **look)

    def _bars(self, k: int, colour: Any) -> Any:
        widths = np.linspace(*WIDTHS, len(self.confidence_level))
        look = {"color": [colour], "linewidth": widths[k], "label": self._label(k)}
        return self.ax_.vlines(self.x, self.lower[:, k], self.upper[:, k], **look)


BY_MEAN = "rows in the order of the predicted mean"
"""Axis label if the rows are ordered by the predicted mean."""


def _along(X: Any, feature: int | str | None) -> tuple[np.ndarray | None, str]:
    """Return values and name of the horizontal axis; the values are None if rows are ordered by predicted mean."""
    names = column_names(X)
    table = X if names is not None else np.asarray(X)
    n = table.shape[1] if len(table.shape) == 2 else 0
    if feature is None:
        if n != 1 or not _is_numeric(_column(table, 0)):
            return None, BY_MEAN
        feature = 0
    columns = list(range(n)) if names is None else [*names, *range(n)]
    if feature not in columns or isinstance(feature, bool):
        few = first_of(list(map(repr, columns)), 8)
        raise ValueError(f"feature={feature!r} is not a column of X; expected one of {few}.")
    index = columns.index(feature) % n
    values = _column(table, index)
    if not _is_numeric(values):
        raise ValueError(f"feature={feature!r} is not numeric; choose a numeric column, or feature=None.")
    label = str(names[index]) if names else f"feature {index}" if n > 1 else "x"
    return values.astype(np.float64), label


def _column(table: Any, place: int) -> np.ndarray:
    return np.asarray(_safe_indexing(table, place, axis=1))


def _is_numeric(values: np.ndarray) -> bool:
    """True if all values can be converted to floats and are not times."""
    if values.dtype.kind in "mM":
        return False
    try:
        values.astype(np.float64)
    except (TypeError, ValueError):
        return False
    return True


def _grid(X: Any, where: np.ndarray, resolution: int) -> tuple[np.ndarray, Any] | None:
    """Return grid points over the range of the only column, also as a table like X; None for several columns."""
    names = column_names(X)
    if np.shape(X)[1] != 1:
        return None
    low, high = np.nanmin(where), np.nanmax(where)
    beyond = MARGIN * (high - low)
    points = np.linspace(low - beyond, high + beyond, resolution)
    return points, points[:, None] if names is None else type(X)({names[0]: points})


def _ends(distribution: Any, levels: np.ndarray, which: int) -> np.ndarray:
    """Return the ends of the central intervals of one output, shape (n, 2, n_levels)."""
    pairs = [central_interval(distribution, level) for level in levels]
    return np.stack([np.stack([column(np.asarray(end), which) for end in pair], 1) for pair in pairs], 2)


def _coverage(targets: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the fraction of the targets (n,) inside intervals (n, 2, n_levels), for each level."""
    inside = (ends[:, 0] <= targets[:, None]) & (targets[:, None] <= ends[:, 1])
    return inside.mean(0)
