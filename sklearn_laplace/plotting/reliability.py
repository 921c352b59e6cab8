"""Does a classifier's confidence match its accuracy? Reliability diagram and histogram of the confidence.

Beside each bin's share of right predictions stands where it would be for a calibrated model: the consistency bars of
Bröcker & Smith (2007), here from the binomial distribution of the bin's rows at their mean confidence. A bin of three
rows says little, and its bar says so.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.stats import binom

from ..metrics.calibration import judged_confidence, reliability_bins
from ._canvas import BLUE, LINES, REFERENCE, labelled, panels, tint
from ._rows import classification, numbers

PLAUSIBLE = 0.9
"""A consistency bar holds a calibrated model with this probability."""


class ReliabilityDisplay:
    """Share of right predictions against the confidence in them, in bins, with the histogram of the confidence.

    Made by :meth:`from_estimator` or :meth:`from_predictions`.

    Parameters
    ----------
    confidence : array-like of shape (n_samples,)
        Probability of each row's event, within [0, 1].
    right : array-like of bool, shape (n_samples,)
        Whether it came true.
    n_bins : int, default=10
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width, or of equal counts.
    sample_weight : array-like of shape (n_samples,), optional
    x_name, y_name : str
    estimator_name : str, optional

    Attributes
    ----------
    bins : ReliabilityBins
        ``lower``, ``upper``, ``weight``, ``confidence``, ``frequency`` of the bins that hold rows.
    error : float
        Expected calibration error.
    edges, share : ndarray of shape (n_bins + 1,) and (n_bins,)
        The histogram: shares of the rows in bins of equal width, whatever the strategy.
    band : ndarray of shape (n_bins, 2)
        Where the share of right predictions in each bin is for a calibrated model with a probability of .9.
    ax_, histogram_ax_, figure_
        After :meth:`plot`; ``histogram_ax_`` is None where it was not drawn.
    line_, bars_
        The diagram's line, and the bars of the histogram (None as well).

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> display = ReliabilityDisplay.from_estimator(LogisticRegression(max_iter=500).fit(X, y), X, y)
    >>> display.error < 0.1
    True
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        confidence: Any,
        right: Any,
        *,
        n_bins: int = 10,
        strategy: str = "uniform",
        sample_weight: Any = None,
        x_name: str = "confidence",
        y_name: str = "accuracy",
        estimator_name: str | None = None,
    ) -> None:
        p = numbers("confidence", confidence)
        self.bins = reliability_bins(p, right, sample_weight, n_bins=n_bins, strategy=strategy)
        self.error = self.bins.error
        weights = None if sample_weight is None else np.broadcast_to(sample_weight, p.shape)
        counted, self.edges = np.histogram(p.clip(0, 1), n_bins, (0, 1), weights=weights)
        self.share = counted / self.bins.weight.sum()
        n = np.ceil(self.bins.weight)
        ends = [binom.ppf((1 + side * PLAUSIBLE) / 2, n, self.bins.confidence) / n for side in (-1, 1)]
        self.band = np.stack(ends, 1)
        self.x_name, self.y_name = x_name, y_name
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        n_bins: int = 10,
        strategy: str = "uniform",
        pos_label: Any = None,
        sample_weight: Any = None,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for a classifier and draw it.

        Parameters
        ----------
        estimator : fitted classifier
            With ``predict_proba``, also inside pipelines and searches.
        X : array-like of shape (n_samples, n_features)
            Rows that the training has not seen.
        y : array-like of shape (n_samples,)
            Labels.
        n_bins, strategy, sample_weight
            As for :class:`ReliabilityDisplay`.
        pos_label : label, optional
            The class whose probability is judged; by default, in each row, the most probable one's.
        name : str, optional
            Of the model in the legend.
        ax : None, Axes or sequence of two Axes
        **plot_options
            Further options of :meth:`plot`.

        Returns
        -------
        ReliabilityDisplay

        Raises
        ------
        TypeError
            For a regressor.
        ValueError, NotFittedError
        """
        probabilities, classes = classification(cls.__name__, estimator, X)
        given = {"n_bins": n_bins, "strategy": strategy, "pos_label": pos_label, "sample_weight": sample_weight}
        return cls.from_predictions(y, probabilities, labels=classes, name=name, ax=ax, **given, **plot_options)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        labels: Any = None,
        n_bins: int = 10,
        strategy: str = "uniform",
        pos_label: Any = None,
        sample_weight: Any = None,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for labels and class probabilities, and draw it.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
        y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        labels : array-like of shape (n_classes,), optional
            What the columns stand for; by default the sorted labels of ``y_true``.
        n_bins, strategy, pos_label, sample_weight, name, ax, **plot_options
            As for :meth:`from_estimator`.

        Returns
        -------
        ReliabilityDisplay
        """
        confidence, right = judged_confidence(y_true, y_prob, labels)
        names: dict[str, Any] = {"x_name": "confidence in the predicted class", "y_name": "share of right predictions"}
        if pos_label is not None:
            known = np.unique(y_true if labels is None else labels)
            if pos_label not in known:
                raise ValueError(f"pos_label={pos_label!r} is not among the classes {known.tolist()}.")
            p = np.asarray(y_prob, dtype=np.float64)
            p = np.column_stack([1 - p, p]) if p.ndim == 1 else p
            confidence, right = p[:, int(np.flatnonzero(known == pos_label)[0])], np.asarray(y_true) == pos_label
            names = {"x_name": f"probability of class {pos_label}", "y_name": f"share of class {pos_label}"}
        given: dict[str, Any] = {"n_bins": n_bins, "strategy": strategy, "sample_weight": sample_weight}
        return cls(confidence, right, **given, **names, estimator_name=name).plot(ax=ax, **plot_options)

    def plot(
        self,
        ax: Any = None,
        *,
        histogram: bool = True,
        name: str | None = None,
        line_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : None, Axes or sequence of two Axes
            None: a new figure. One Axes: the diagram alone.
        histogram : bool, default=True
            Whether the histogram is drawn in a second panel.
        name : str, optional
            Of the model in the legend; that of the display by default.
        line_kwargs : dict, optional
            Of matplotlib's ``plot`` for the line.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        axes = panels(type(self).__name__, ax, 2 if histogram else 1)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        self.histogram_ax_ = axes[1] if len(axes) > 1 else None
        name = self.estimator_name if name is None else name
        bins = self.bins
        self.ax_.plot([0, 1], [0, 1], **REFERENCE)
        shade = {"color": [tint("#000000", 0.22)], "linewidth": 7, "label": f"calibrated, {PLAUSIBLE:.0%} of cases"}
        self.ax_.vlines(bins.confidence, *self.band.T, **shade)
        look = LINES[0] | {"marker": "o", "markersize": 5, "label": labelled(name, f"ECE {self.error:.3f}")}
        (self.line_,) = self.ax_.plot(bins.confidence, bins.frequency, **look | (line_kwargs or {}))
        self.ax_.set(xlabel=self.x_name, ylabel=self.y_name, xlim=(0, 1), ylim=(-0.02, 1.02), aspect="equal")
        # above the axes: bars of bins with few rows reach from end to end
        self.ax_.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize="small", frameon=False)
        self.bars_ = None if self.histogram_ax_ is None else self._histogram(self.histogram_ax_)
        return self

    def _histogram(self, ax: Any) -> Any:
        bins = self.bins
        mean, frequent = (np.average(part, weights=bins.weight) for part in (bins.confidence, bins.frequency))
        look = {"color": tint(BLUE, 0.45), "edgecolor": BLUE}
        bars = ax.bar(self.edges[:-1], self.share, np.diff(self.edges), align="edge", **look)
        ax.axvline(mean, **LINES[0], label=f"mean {self.x_name.split(' ')[0]} {mean:.3f}")
        ax.axvline(frequent, **LINES[1], label=f"{self.y_name} {frequent:.3f}")
        ax.set(xlabel=self.x_name, ylabel="share of the rows", xlim=(0, 1), ylim=(0, 1.2 * self.share.max()))
        ax.legend(loc="upper left", fontsize="small")
        return bars
