r"""Predictive entropy of a classifier: fraction of the rows whose entropy exceeds a value, for groups of rows.

The entropy of a row is :math:`h_n = -\sum_k p_{nk} \log p_{nk}`. The curves show :math:`1 - \hat F(h)`, where
:math:`\hat F` is the empirical distribution function (Louizos & Welling 2017, fig. 2). Two pairs of groups are
compared: rows in and out of distribution, and rows classified correctly and incorrectly. The area under the
ROC curve (AUROC) measures how well the entropy separates a pair. It is the probability that a row of the second group
has a higher entropy than a row of the first. An entropy that does not separate the groups has an AUROC of one half.
"""

from typing import Any, Self

import numpy as np
from scipy.special import entr
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import column_or_1d

from .._validation.arguments import count, explained
from ._canvas import LINES, labelled, panels
from ._rows import classification, numbers

GROUPS = ("in distribution", "out of distribution", "right", "wrong")
"""Names of the groups of rows; each pair is compared by its AUROC."""


@explained
class EntropyDisplay:
    """Fraction of the rows whose predictive entropy exceeds a value, with one curve per group of rows.

    Use :meth:`from_estimator` or :meth:`from_predictions` to create it.

    Parameters
    ----------
    entropies : dict of str to array-like of shape (n_samples,)
        Entropy of each row in nats, for any of the groups "in distribution", "out of distribution", "right" and
        "wrong". Groups without rows are not drawn.
    n_classes : int
        Number of classes. Its logarithm is the largest possible entropy.
    estimator_name : str, optional
        Name of the model in the legend.

    Attributes
    ----------
    entropies : dict of str to ndarray
        Entropies of each group, in ascending order.
    curves : dict of str to (ndarray, ndarray)
        Step function of each group: entropies h from 0 to log n_classes, and the fraction of the rows above each h.
    area_out, area_wrong : float
        Area under the ROC curve of the entropy, for out of distribution against in distribution, and for wrong against
        right. NaN if one of the two groups is missing.
    ax_, figure_, lines_
        Axes, figure, and a dict with the line of each curve; set by :meth:`plot`.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> sure, unsure = [[0.99, 0.01], [0.9, 0.1]], [[0.5, 0.5], [0.6, 0.4]]
    >>> display = EntropyDisplay.from_predictions(sure, y_prob_out=unsure)
    >>> display.entropies["in distribution"].round(3), display.area_out
    (array([0.056, 0.325]), 1.0)
    >>> plt.close(display.figure_)
    """

    def __init__(self, entropies: dict[str, Any], *, n_classes: int, estimator_name: str | None = None) -> None:
        unknown = [key for key in entropies if key not in GROUPS]
        if unknown:
            raise ValueError(f"entropies holds the groups {unknown}; expected {', '.join(map(repr, GROUPS))}.")
        present = {key: values for key, values in entropies.items() if len(values)}
        if not present:
            raise ValueError("entropies has no group with rows; at least one row is needed.")
        self.entropies = {key: np.sort(numbers(key, present[key])) for key in GROUPS if key in present}
        self.n_classes = count("n_classes", n_classes)
        self.curves = {key: _above(values, float(np.log(n_classes))) for key, values in self.entropies.items()}
        self.area_out = self._area(*GROUPS[:2])
        self.area_wrong = self._area(*GROUPS[2:])
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        X_out: Any = None,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for a classifier and draw it.

        Parameters
        ----------
        estimator, name, ax, **plot_options
            As in :meth:`ReliabilityDisplay.from_estimator`.
        X : array-like of shape (n_samples, n_features)
            Held-out rows from the training distribution.
        y : array-like of shape (n_samples,), optional
            True labels of X. If given, correct and incorrect predictions are compared.
        X_out : array-like of shape (n_out, n_features), optional
            Rows from another distribution.

        Raises
        ------
        TypeError, NotFittedError, ValueError
            As in :meth:`ReliabilityDisplay.from_estimator`.
        """
        inside, classes = classification(cls.__name__, estimator, X)
        outside = None if X_out is None else classification(cls.__name__, estimator, X_out)[0]
        options = {"y_prob_out": outside, "labels": classes, "name": name, "ax": ax}
        return cls.from_predictions(inside, y, **options, **plot_options)

    @classmethod
    def from_predictions(
        cls,
        y_prob: Any,
        y_true: Any = None,
        *,
        y_prob_out: Any = None,
        labels: Any = None,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for class probabilities and draw it.

        Parameters
        ----------
        y_prob : array-like of shape (n_samples, n_classes)
            Class probabilities of rows from the training distribution.
        y_true : array-like of shape (n_samples,), optional
            True labels of these rows. If given, correct and incorrect predictions are compared.
        y_prob_out : array-like of shape (n_out, n_classes), optional
            Class probabilities of rows from another distribution.
        labels, name, ax, **plot_options
            As in :meth:`ReliabilityDisplay.from_predictions`.

        Raises
        ------
        ValueError
            If probabilities are negative or do not sum to one, or shapes do not match.
        """
        inside = _probabilities("y_prob", y_prob)
        n_classes, entropy = inside.shape[1], entr(inside).sum(1)
        groups = {"in distribution": entropy}
        if y_true is not None:
            truth = column_or_1d(y_true)
            classes = np.unique(truth) if labels is None else np.asarray(labels)
            if len(truth) != len(inside) or len(classes) != n_classes:
                raise ValueError(
                    f"y_prob has shape {inside.shape} for {len(truth)} labels of {len(classes)} classes; expected "
                    f"({len(truth)}, {len(classes)}). Pass labels= if y_true does not contain all classes."
                )
            right = classes[inside.argmax(1)] == truth
            groups |= {"right": entropy[right], "wrong": entropy[~right]}
        if y_prob_out is not None:
            outside = _probabilities("y_prob_out", y_prob_out)
            if outside.shape[1] != n_classes:
                raise ValueError(f"y_prob_out has {outside.shape[1]} columns; expected {n_classes}, like y_prob.")
            groups["out of distribution"] = entr(outside).sum(1)
        elif y_true is not None:
            del groups["in distribution"]  # this group would be the union of right and wrong
        return cls(groups, n_classes=n_classes, estimator_name=name).plot(ax=ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, line_kwargs: dict[str, Any] | None = None) -> Self:
        """Draw the display. An ImportError is raised if matplotlib is not installed.

        Parameters
        ----------
        ax : None or Axes
            Axes to draw on; None creates a figure.
        name, line_kwargs
            As in :meth:`CoverageDisplay.plot`, for every curve.
        """
        (self.ax_,) = panels(type(self).__name__, ax, 1, panel=(6.2, 4.2))
        self.figure_ = self.ax_.figure
        name = self.estimator_name if name is None else name
        styles = dict(zip(GROUPS, LINES, strict=True))
        against = {"out of distribution": self.area_out, "wrong": self.area_wrong}
        self.lines_ = {}
        for key, (entropy, share) in self.curves.items():
            area = against.get(key, np.nan)
            separation = f"AUROC {area:.3f}, " if np.isfinite(area) else ""
            text = labelled(name, f"{key} ({separation}{len(self.entropies[key])} rows)")
            look = styles[key] | {"drawstyle": "steps-post", "label": text} | (line_kwargs or {})
            (self.lines_[key],) = self.ax_.plot(entropy, share, **look)
        limit = float(np.log(self.n_classes))
        self.ax_.set(xlabel=f"predictive entropy h, nats (at most {limit:.2f})", ylabel="share of the rows above h")
        self.ax_.set(xlim=(0, 1.02 * limit), ylim=(0, 1.02))
        self.ax_.legend(loc="best", fontsize="small")
        return self

    def _area(self, low: str, high: str) -> float:
        """AUROC: probability that a row of ``high`` has more entropy than one of ``low``; NaN if a group is missing."""
        if low not in self.entropies or high not in self.entropies:
            return float("nan")
        first, second = self.entropies[low], self.entropies[high]
        is_second = np.repeat([0, 1], [len(first), len(second)])
        return float(roc_auc_score(is_second, np.concatenate([first, second])))


def _above(entropy: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the step function 1 − F̂ as points from 0 to the largest possible entropy, and its values."""
    n = len(entropy)
    points = np.concatenate([[0.0], entropy, [max(limit, entropy[-1])]])
    return points, np.concatenate([[1.0], 1 - np.arange(1, n + 1) / n, [0.0]])


def _probabilities(name: str, values: Any) -> np.ndarray:
    """Check and return class probabilities of shape (n_samples, n_classes)."""
    p = numbers(name, values)
    if p.ndim != 2 or p.shape[1] < 2 or (p < 0).any() or not np.allclose(p.sum(1), 1, atol=1e-3):
        raise ValueError(
            f"{name} has shape {p.shape}; expected probabilities of shape (n_samples, n_classes) that are non-negative "
            "and sum to 1 in each row."
        )
    return p
