"""Calibration of a classifier: reliability diagram and histogram of the confidence.

Consistency bars show the range of accuracies to expect in each bin for a calibrated model (Bröcker & Smith 2007). Their
ends are quantiles of the binomial distribution for the number of rows in the bin and the mean confidence of these rows.
"""

from typing import Any, Self

import numpy as np
from scipy.stats import binom

from .._validation.arguments import explained
from ..metrics.calibration import judged_confidence, reliability_bins
from ._canvas import BLUE, LINES, REFERENCE, labelled, panels, tint
from ._rows import classification, numbers

PLAUSIBLE = 0.9
"""Probability with which the accuracy of a calibrated model lies inside the consistency bar of a bin."""


@explained
class ReliabilityDisplay:
    """Reliability diagram: accuracy against confidence in bins, with a histogram of the confidence.

    Use :meth:`from_estimator` or :meth:`from_predictions` to create it.

    Parameters
    ----------
    confidence : array-like of shape (n_samples,)
        Predicted probability of an event for each row, in [0, 1].
    right : array-like of bool, shape (n_samples,)
        True if the event occurred.
    n_bins : int, default=10
        Number of bins of the diagram and of the histogram.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width, or of equal weight.
    sample_weight : array-like of shape (n_samples,), optional
        A weight of k is equivalent to k copies of the row.
    x_name, y_name : str
        Axis labels.
    estimator_name : str, optional
        Name of the model in the legend.

    Attributes
    ----------
    bins : ReliabilityBins
        ``lower``, ``upper``, ``weight``, ``confidence`` and ``frequency`` of the non-empty bins.
    error : float
        Expected calibration error, between 0 and 1.
    edges, share : ndarray of shape (n_bins + 1,) and (n_bins,)
        Bin edges and heights of the histogram: fractions of the rows in bins of equal width, for either strategy.
    band : ndarray of shape (n_nonempty_bins, 2)
        Consistency bars: for each bin, the range that contains the accuracy of a calibrated model with probability .9.
    ax_, histogram_ax_, figure_, line_, bars_
        Axes, figure, line of the diagram and bars, set by :meth:`plot`. Without a histogram, ``histogram_ax_`` and
        ``bars_`` are None.

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
        x_name: str = "confidence in the predicted class",
        y_name: str = "share of correct predictions",
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
            A classifier with ``predict_proba``, possibly inside pipelines and searches.
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,)
            True class labels.
        n_bins, strategy, sample_weight
            As in :class:`ReliabilityDisplay`.
        pos_label : label, optional
            Class whose probability is evaluated. By default, the most probable class of each row.
        name, ax, **plot_options
            Name of the model in the legend, and parameters of :meth:`plot`.

        Raises
        ------
        TypeError, NotFittedError
            If the estimator is not a classifier, or not fitted.
        ValueError
            If a parameter is invalid, or the shapes do not match.
        """
        probabilities, classes = classification(cls.__name__, estimator, X)
        options = {"n_bins": n_bins, "strategy": strategy, "pos_label": pos_label, "sample_weight": sample_weight}
        return cls.from_predictions(y, probabilities, labels=classes, name=name, ax=ax, **options, **plot_options)

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
            True class labels.
        y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
            Class probabilities; in one dimension, those of the second of two labels.
        labels : array-like of shape (n_classes,), optional
            Class label of each column; by default the sorted labels of ``y_true``.
        n_bins, strategy, pos_label, sample_weight, name, ax, **plot_options
            As in :meth:`from_estimator`.
        """
        confidence, right = judged_confidence(y_true, y_prob, labels)
        names: dict[str, Any] = {}
        if pos_label is not None:
            classes = np.unique(y_true) if labels is None else np.asarray(labels)
            if pos_label not in classes:
                raise ValueError(f"pos_label={pos_label!r} is not one of the classes {classes.tolist()}.")
            p = np.asarray(y_prob, dtype=np.float64)
            p = np.column_stack([1 - p, p]) if p.ndim == 1 else p
            confidence, right = p[:, int(np.flatnonzero(classes == pos_label)[0])], np.asarray(y_true) == pos_label
            names = {"x_name": f"probability of class {pos_label}", "y_name": f"share of class {pos_label}"}
        options: dict[str, Any] = {"n_bins": n_bins, "strategy": strategy, "sample_weight": sample_weight}
        return cls(confidence, right, **options, **names, estimator_name=name).plot(ax=ax, **plot_options)

    def plot(
        self,
        ax: Any = None,
        *,
        histogram: bool = True,
        name: str | None = None,
        line_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the display. An ImportError is raised if matplotlib is not installed.

        Parameters
        ----------
        ax : None, Axes or sequence of two Axes
            Axes to draw on; None creates a figure. A single Axes shows only the diagram.
        histogram : bool, default=True
            If True, draw the histogram in a second panel.
        name, line_kwargs
            As in :meth:`CoverageDisplay.plot`.
        """
        axes = panels(type(self).__name__, ax, 2 if histogram else 1)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        self.histogram_ax_ = axes[1] if len(axes) > 1 else None
        name = self.estimator_name if name is None else name
        bins = self.bins
        self.ax_.plot([0, 1], [0, 1], **REFERENCE)
        shade = {"color": [tint("#000000", 0.22)], "linewidth": 7, "label": f"calibrated model, {PLAUSIBLE:.0%} band"}
        self.ax_.vlines(bins.confidence, *self.band.T, **shade)
        look = LINES[0] | {"marker": "o", "markersize": 5, "label": labelled(name, f"ECE {self.error:.3f}")}
        (self.line_,) = self.ax_.plot(bins.confidence, bins.frequency, **look | (line_kwargs or {}))
        self.ax_.set(xlabel=self.x_name, ylabel=self.y_name, xlim=(0, 1), ylim=(-0.02, 1.02), aspect="equal")
        # the legend is above the axes because the consistency bars of small bins span their full height
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
