r"""Are intervals and quantiles of a regressor as frequent as they say? Calibration curve and PIT histogram.

Everything is read off the probability integral transform :math:`u_n = F_n(y_n)` (Dawid 1984), which is uniform for a
calibrated model. The share of rows inside the central interval of level c is that of :math:`|2 u_n - 1| \le c`, the
share below the quantile at p that of :math:`u_n \le p`. Counts have jumps in F: u is drawn uniformly between
:math:`F_n(y_n - 1)` and :math:`F_n(y_n)` (Czado, Gneiting & Held 2009, sec. 2).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.stats import binom
from sklearn.utils import check_random_state

from .._validation.values import count, lookup
from ._canvas import BLUE, LINES, REFERENCE, labelled, panels, tint
from ._rows import column, is_discrete, numbers, output_index, regression, targets_like

LEVELS = np.arange(1, 100) / 100
PLAUSIBLE = 0.9
"""The band around the diagonal holds a calibrated model with this probability, at each level for itself."""


class CoverageDisplay:
    """Nominal against observed coverage, and the histogram of the probability integral transform.

    Made by :meth:`from_estimator` or :meth:`from_predictions`.

    Parameters
    ----------
    pit : array-like of shape (n_samples,)
        F(y) of each row, within [0, 1].
    kind : {"interval", "quantile"}, default="interval"
        Shares of the rows inside central intervals, or below quantiles.
    n_bins : int, default=10
        Of the histogram.
    estimator_name : str, optional

    Attributes
    ----------
    pit : ndarray of shape (n_samples,)
    nominal, observed : ndarray of shape (99,)
        Levels .01, …, .99, and the share of the rows at each.
    band : ndarray of shape (99, 2)
        Where a calibrated model of independent rows is with a probability of .9, at each level for itself.
    gap : float
        Mean distance between nominal and observed share.
    edges, density : ndarray of shape (n_bins + 1,) and (n_bins,)
        The histogram, 1 everywhere for a calibrated model.
    ax_, pit_ax_, figure_
        After :meth:`plot`; ``pit_ax_`` is None where it was not drawn.
    line_, bars_
        The curve, and the bars of the histogram (None as well).

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
        reached = lookup("kind", kind, {"interval": _central, "quantile": _below})
        self.kind = kind
        self.pit = numbers("pit", pit)
        if self.pit.ndim != 1 or not ((self.pit >= 0) & (self.pit <= 1)).all():
            raise ValueError(
                "pit has to be one number within 0 and 1 for each row: the predictive's cdf of its target."
            )
        n = len(self.pit)
        self.nominal = LEVELS
        self.observed = (reached(self.pit)[:, None] <= LEVELS).mean(0)
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
            A Laplace estimator or another with ``predict(X, return_std=True)``, also inside pipelines and searches.
        X : array-like of shape (n_samples, n_features)
            Rows that the training has not seen.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        kind, n_bins
            As for :class:`CoverageDisplay`.
        output : int, optional
            Which one of several outputs.
        random_state : int, RandomState or None, default=0
            Of the uniform draws for counts.
        name : str, optional
            Of the model in the legend.
        ax : None, Axes or sequence of two Axes
        **plot_options
            Further options of :meth:`plot`.

        Returns
        -------
        CoverageDisplay

        Raises
        ------
        TypeError
            For a classifier.
        ValueError, NotFittedError
        """
        distribution = regression(cls.__name__, estimator, X)
        given = {"kind": kind, "n_bins": n_bins, "output": output, "random_state": random_state, "name": name}
        return cls.from_predictions(y, distribution, **given, ax=ax, **plot_options)

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
        """Compute the display for targets and their predictive distribution, and draw it.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        distribution : frozen distribution with ``mean`` and ``cdf``
            As of ``predict_dist``.
        kind, n_bins, output, random_state, name, ax, **plot_options
            As for :meth:`from_estimator`.

        Returns
        -------
        CoverageDisplay
        """
        mean = np.asarray(distribution.mean())
        targets = targets_like(y_true, mean)
        pit = np.asarray(distribution.cdf(targets))
        if is_discrete(distribution):
            below = distribution.cdf(targets - 1)
            pit = below + check_random_state(random_state).uniform(size=pit.shape) * (pit - below)
        shown = column(pit, output_index(cls.__name__, output, mean.shape)).clip(0, 1)
        return cls(shown, kind=kind, n_bins=n_bins, estimator_name=name).plot(ax=ax, **plot_options)

    def plot(
        self, ax: Any = None, *, pit: bool = True, name: str | None = None, line_kwargs: dict[str, Any] | None = None
    ) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : None, Axes or sequence of two Axes
            None: a new figure. One Axes: the calibration curve alone.
        pit : bool, default=True
            Whether the histogram is drawn in a second panel.
        name : str, optional
            Of the model in the legend; that of the display by default.
        line_kwargs : dict, optional
            Of matplotlib's ``plot`` for the curve.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        axes = panels(type(self).__name__, ax, 2 if pit else 1)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        self.pit_ax_ = axes[1] if len(axes) > 1 else None
        name = self.estimator_name if name is None else name
        low, high = self.band.T
        shade = tint("#000000", 0.14)
        self.ax_.fill_between(LEVELS, low, high, color=shade, lw=0, label=f"calibrated, {PLAUSIBLE:.0%} of cases")
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
            *plausible, color="#000000", alpha=0.14, lw=0, zorder=2, label=f"calibrated, {PLAUSIBLE:.0%} of cases"
        )
        ax.axhline(1, **REFERENCE, zorder=3)
        top = 1.25 * max(self.density.max(), plausible[1])
        ax.set(xlabel="probability integral transform F(y)", ylabel="density", xlim=(0, 1), ylim=(0, top))
        ax.legend(loc="upper right", fontsize="small")
        return bars


INTERVAL_LABELS = "nominal level of the central interval", "share of the targets inside"
QUANTILE_LABELS = "nominal level of the quantile", "share of the targets below"


def _central(pit: np.ndarray) -> np.ndarray:
    """The level of the central interval that a target is at the end of."""
    distance: np.ndarray = np.abs(2 * pit - 1)
    return distance


def _below(pit: np.ndarray) -> np.ndarray:
    return pit
