"""Model-selection scores along a grid of prior precisions, with the prior precision of the fit."""

from typing import Any, Self

import numpy as np

from .._estimator.unwrap import laplace_parts
from .._validation.arguments import explained, lookup
from ._canvas import BLACK, GREY, LINES, panels

SCORES = {
    "log_marginal_likelihood": "log evidence, nats",
    "loo_log_density": "leave-one-out log density, nats",
}
"""Name and axis label of each score."""
STEEP = 4.0
"""The vertical axis is cut off at the bottom if all scores span more than this multiple of the range of their upper
three quarters. Without the cut, steep ends of a curve would make its top look flat."""


@explained
class PriorPathDisplay:
    """Model-selection scores against the prior precision, with one panel per score.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    prior_precision : array-like of shape (n_points,)
        Grid of positive prior precisions.
    scores : dict of str to array-like of shape (n_points,)
        One or both of "log_marginal_likelihood" and "loo_log_density".
    chosen : float
        Prior precision of the fit.
    is_mean : bool, default=False
        If True, the prior precisions are geometric means over several groups of weights.
    estimator_name : str, optional
        Name of the model in the legend.

    Attributes
    ----------
    prior_precision, scores, chosen
        As in the parameters; the grid and the scores are arrays.
    best : dict of str to float
        Prior precision on the grid that maximises each score.
    ax_, axes_, figure_, lines_
        First panel, list of all panels, figure, and a dict with the line of each score; set by :meth:`plot`.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> model = LaplaceRegressor(hidden_layer_sizes=(8,), prior_precision="evidence", n_members=1, random_state=0)
    >>> display = PriorPathDisplay.from_estimator(model.fit(X, np.sin(X[:, 0])))
    >>> list(display.scores), display.chosen == model.prior_precision_
    (['log_marginal_likelihood', 'loo_log_density'], True)
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        *,
        prior_precision: Any,
        scores: dict[str, Any],
        chosen: float,
        is_mean: bool = False,
        estimator_name: str | None = None,
    ) -> None:
        self.prior_precision = np.asarray(prior_precision, dtype=np.float64)
        for key in scores:
            lookup("scores", key, SCORES)
        self.scores = {key: np.asarray(scores[key], dtype=np.float64) for key in SCORES if key in scores}
        if not self.scores or not all(np.isfinite(values).any() for values in self.scores.values()):
            raise ValueError(f"scores={list(scores)} have no finite values; expected at least one in each score.")
        for key, values in self.scores.items():
            if values.shape != self.prior_precision.shape or values.ndim != 1:
                raise ValueError(
                    f"{key} has shape {values.shape}; expected {self.prior_precision.shape}, one score for each prior "
                    "precision."
                )
        self.best = {key: float(self.prior_precision[np.nanargmax(values)]) for key, values in self.scores.items()}
        self.chosen = chosen
        self.is_mean = is_mean
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, scores: Any = None, name: str | None = None, ax: Any = None, **plot_options: Any
    ) -> Self:
        """Compute the display for a Laplace estimator and draw it.

        Parameters
        ----------
        estimator : fitted LaplaceRegressor or LaplaceClassifier
            A Laplace estimator, possibly inside pipelines and searches. Its ``prior_path_`` is computed.
        scores : str or sequence of str, optional
            Scores to draw, as in :class:`PriorPathDisplay`; by default all available scores.
        name, ax, **plot_options
            Name of the model in the legend, and parameters of :meth:`plot`.

        Raises
        ------
        TypeError, NotFittedError
            If the innermost estimator is not a Laplace estimator, or not fitted.
        ValueError
            If a score is unknown or not available.
        """
        step, _ = laplace_parts(estimator)
        path = step.prior_path_
        available = {key: path[key] for key in SCORES if np.isfinite(path[key]).any()}
        names = list(available) if scores is None else [scores] if isinstance(scores, str) else list(scores)
        for key in names:
            lookup("scores", key, SCORES)
            if key not in available:
                raise ValueError(
                    f"scores={key!r} is not available for this fit; available are {', '.join(map(repr, available))}."
                )
        grid = np.asarray(path.prior_precision)
        several, precision = grid.ndim == 2, np.ravel(step.prior_precision_)
        display = cls(
            prior_precision=np.exp(np.log(grid).mean(1)) if several else grid,
            scores={key: available[key] for key in names},
            chosen=float(np.exp(np.log(precision).mean())) if several else float(precision[0]),
            is_mean=several,
            estimator_name=name,
        )
        return display.plot(ax=ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, line_kwargs: dict[str, Any] | None = None) -> Self:
        """Draw the display. An ImportError is raised if matplotlib is not installed.

        Parameters
        ----------
        ax : None, Axes or sequence of n_scores Axes
            Axes to draw on; None creates a figure. A single Axes shows only the first score.
        name, line_kwargs
            As in :meth:`CoverageDisplay.plot`, for every curve.
        """
        self.axes_ = panels(type(self).__name__, ax, len(self.scores))
        self.ax_, self.figure_ = self.axes_[0], self.axes_[0].figure
        name = self.estimator_name if name is None else name
        mean = "geometric mean of the prior precisions" if self.is_mean else "prior precision"
        self.lines_ = {}
        for key, axes in zip(self.scores, self.axes_, strict=False):
            values, best = self.scores[key], self.best[key]
            look = LINES[0] | ({} if name is None else {"label": name}) | (line_kwargs or {})
            (self.lines_[key],) = axes.plot(self.prior_precision, values, **look)
            axes.axvline(self.chosen, **LINES[1], label=f"of the fit: {self.chosen:.3g}")
            spot = {"marker": "D", "linestyle": "none", "markersize": 8, "markerfacecolor": "white", "color": BLACK}
            axes.plot(best, np.nanmax(values), **spot, label=f"largest on the grid: {best:.3g}")
            axes.set(xscale="log", xlabel=mean, ylabel=SCORES[key], ylim=_limits(values))
            axes.grid(axis="y", color=GREY, alpha=0.25)
            axes.legend(loc="best", fontsize="small")
        return self


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Range of the vertical axis: all scores, or only the upper part if the lowest quarter is far below the rest."""
    low, quarter, high = np.nanmin(values), np.nanquantile(values, 0.25), np.nanmax(values)
    fall = high - quarter
    low = low if high - low <= STEEP * fall or fall == 0 else high - 1.5 * fall
    margin = 0.06 * (high - low) if high > low else 0.5
    return float(low - margin), float(high + margin)
