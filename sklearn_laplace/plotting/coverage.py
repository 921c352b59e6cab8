r"""Calibration of a regressor: calibration curve of intervals or quantiles, and PIT histogram.

Both plots are computed from the probability integral transform :math:`u_n = F_n(y_n)`, the predictive cdf at the target
(Dawid 1984). It is uniform for a calibrated model. A target lies inside the central interval of level c if
:math:`|2 u_n - 1| \le c`. It lies below the quantile of level p if :math:`u_n \le p`. For counts, where F has jumps,
:math:`u_n` is drawn uniformly between :math:`F_n(y_n - 1)` and :math:`F_n(y_n)` (Czado, Gneiting & Held 2009, sec. 2).
"""

from typing import Any, Self

import numpy as np
from scipy.stats import binom
from sklearn.utils import check_random_state

from .._validation.arguments import count, explained, lookup
from .._validation.rows import targets_like
from ..distributions.evaluation import check_counts, pit_of
from ._canvas import BLUE, LINES, REFERENCE, labelled, panels, tint
from ._rows import column, numbers, output_index, regression

LEVELS = np.arange(1, 100) / 100
"""Nominal levels of the calibration curve."""
PLAUSIBLE = 0.9
"""Probability with which the curve of a calibrated model lies inside the band, at each level separately."""


@explained
class CoverageDisplay:
    """Observed against nominal coverage, and histogram of the probability integral transform (PIT).

    Use :meth:`from_estimator` or :meth:`from_predictions` to create it.

    Parameters
    ----------
    pit : array-like of shape (n_samples,)
        Probability integral transform F(y) of each row, in [0, 1].
    kind : {"interval", "quantile"}, default="interval"
        "interval": fraction of targets inside central intervals. "quantile": fraction of targets below quantiles.
    n_bins : int, default=10
        Number of bins of the histogram.
    estimator_name : str, optional
        Name of the model in the legend.

    Attributes
    ----------
    pit : ndarray of shape (n_samples,)
    nominal, observed : ndarray of shape (99,)
        Nominal levels .01, …, .99, and the observed fraction of the rows at each level.
    band : ndarray of shape (99, 2)
        Ends of the range that contains the observed fraction with probability .9, at each level separately, for a
        calibrated model and independent rows.
    gap : float
        Mean absolute difference between nominal and observed fractions.
    edges, density : ndarray of shape (n_bins + 1,) and (n_bins,)
        Bin edges and heights of the histogram. The expected height is 1 for a calibrated model.
    ax_, pit_ax_, figure_, line_, bars_
        Axes, figure, calibration curve and bars, set by :meth:`plot`. Without a histogram, ``pit_ax_`` and ``bars_``
        are None.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import BayesianRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 1))
    >>> y = X[:, 0] + rng.normal(size=200)
    >>> import matplotlib.pyplot as plt
    >>> display = CoverageDisplay.from_estimator(BayesianRidge().fit(X, y), X, y)
    >>> display.gap < 0.05
    True
    >>> plt.close(display.figure_)
    """

    def __init__(
        self, pit: Any, *, kind: str = "interval", n_bins: int = 10, estimator_name: str | None = None
    ) -> None:
        self.kind = kind
        self.pit = numbers("pit", pit)
        reached = lookup("kind", kind, {"interval": np.abs(2 * self.pit - 1), "quantile": self.pit})
        if self.pit.ndim != 1 or not ((self.pit >= 0) & (self.pit <= 1)).all():
            raise ValueError(
                f"pit has shape {self.pit.shape} and values from {self.pit.min():g} to {self.pit.max():g}; expected "
                "one number between 0 and 1 for each row, the predictive cdf at the target."
            )
        n = len(self.pit)
        self.nominal = LEVELS
        self.observed = (reached[:, None] <= LEVELS).mean(0)
        self.band = np.stack([binom.ppf((1 + side * PLAUSIBLE) / 2, n, LEVELS) / n for side in (-1, 1)], 1)
        self.gap = float(np.abs(self.observed - self.nominal).mean())
        self.density, self.edges = np.histogram(self.pit, count("n_bins", n_bins), (0, 1), density=True)
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        kind: str = "interval",
        n_bins: int = 10,
        output: int | None = None,
        random_state: Any = 0,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for a regressor and draw it.

        Parameters
        ----------
        estimator : fitted regressor
            A Laplace regressor or another regressor with ``predict(X, return_std=True)``, possibly inside pipelines
            and searches.
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        kind, n_bins
            As in :class:`CoverageDisplay`.
        output : int, optional
            Index of the output to draw; required if there are several.
        random_state : int, RandomState or None, default=0
            Seed of the uniform draws for counts.
        name, ax, **plot_options
            Name of the model in the legend, and parameters of :meth:`plot`.

        Raises
        ------
        TypeError, NotFittedError
            If the estimator is a classifier, predicts points only, or is not fitted.
        ValueError
            If a parameter is invalid, the shapes do not match, or the targets of a count model are not integers.
        """
        distribution = regression(cls.__name__, estimator, X)
        options = {"kind": kind, "n_bins": n_bins, "output": output, "random_state": random_state, "name": name}
        return cls.from_predictions(y, distribution, **options, ax=ax, **plot_options)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        distribution: Any,
        *,
        kind: str = "interval",
        n_bins: int = 10,
        output: int | None = None,
        random_state: Any = 0,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for targets and their predictive distributions, and draw it.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        distribution : frozen distribution with ``mean`` and ``cdf``
            Predictive distribution of each target, as returned by ``predict_dist``.
        kind, n_bins, output, random_state, name, ax, **plot_options
            As in :meth:`from_estimator`.
        """
        pit = _transform(y_true, distribution, output, random_state)
        return cls(pit, kind=kind, n_bins=n_bins, estimator_name=name).plot(ax=ax, **plot_options)

    def plot(
        self, ax: Any = None, *, pit: bool = True, name: str | None = None, line_kwargs: dict[str, Any] | None = None
    ) -> Self:
        """Draw the display. An ImportError is raised if matplotlib is not installed.

        Parameters
        ----------
        ax : None, Axes or sequence of two Axes
            Axes to draw on; None creates a figure. A single Axes shows only the calibration curve.
        pit : bool, default=True
            If True, draw the histogram in a second panel.
        name : str, optional
            Name of the model in the legend; by default ``estimator_name``.
        line_kwargs : dict, optional
            Keyword arguments of matplotlib's ``plot`` for the curve.
        """
        axes = panels(type(self).__name__, ax, 2 if pit else 1)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        self.pit_ax_ = axes[1] if len(axes) > 1 else None
        name = self.estimator_name if name is None else name
        low, high = self.band.T
        shade = tint("#000000", 0.14)
        self.ax_.fill_between(LEVELS, low, high, color=shade, lw=0, label=f"calibrated model, {PLAUSIBLE:.0%} band")
        self.ax_.plot([0, 1], [0, 1], **REFERENCE)
        text = labelled(name, f"mean gap {self.gap:.3f}")
        (self.line_,) = self.ax_.plot(self.nominal, self.observed, **LINES[0] | {"label": text} | (line_kwargs or {}))
        names = lookup("kind", self.kind, {"interval": INTERVAL_LABELS, "quantile": QUANTILE_LABELS})
        self.ax_.set(xlabel=names[0], ylabel=names[1], xlim=(0, 1), ylim=(0, 1), aspect="equal")
        self.ax_.legend(loc="upper left", fontsize="small")
        self.bars_ = None if self.pit_ax_ is None else self._histogram(self.pit_ax_)
        return self

    def _histogram(self, ax: Any) -> Any:
        width, n = np.diff(self.edges), len(self.pit)
        plausible = [binom.ppf((1 + side * PLAUSIBLE) / 2, n, width[0]) / (n * width[0]) for side in (-1, 1)]
        look = {"color": tint(BLUE, 0.45), "edgecolor": BLUE}
        bars = ax.bar(self.edges[:-1], self.density, width, align="edge", **look)
        ax.axhspan(
            *plausible, color="#000000", alpha=0.14, lw=0, zorder=2, label=f"calibrated model, {PLAUSIBLE:.0%} band"
        )
        ax.axhline(1, **REFERENCE, zorder=3)
        top = 1.25 * max(self.density.max(), plausible[1])
        ax.set(xlabel="probability integral transform F(y)", ylabel="density", xlim=(0, 1), ylim=(0, top))
        ax.legend(loc="upper right", fontsize="small")
        return bars


INTERVAL_LABELS = "nominal level of the central interval", "share of the targets inside"
QUANTILE_LABELS = "nominal level of the quantile", "share of the targets below"


def _transform(y: Any, distribution: Any, output: int | None, random_state: Any) -> np.ndarray:
    """Return the probability integral transform of one output, shape (n,)."""
    mean = np.asarray(distribution.mean())
    targets = targets_like(y, mean)
    which = output_index("CoverageDisplay", output, mean.shape)
    check_counts(distribution, column(targets, which))
    return column(pit_of(distribution, targets, check_random_state(random_state)), which)
