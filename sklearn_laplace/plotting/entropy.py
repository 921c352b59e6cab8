r"""Does a classifier know what it does not know? Share of rows above each predictive entropy, for groups of rows.

The inverse empirical distribution function :math:`1 - \hat F(h)` of
:math:`h_n = -\sum_k p_{nk} \log p_{nk}` (Louizos & Welling 2017, fig. 2), for rows of the training's kind against
others, and for rows that are classified rightly against wrongly. How well the entropy tells two groups apart is the
area under the ROC curve: the probability that a row of the second has the higher one, one half where it says nothing.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import entr
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import column_or_1d

from ._canvas import LINES, labelled, panels
from ._rows import classification, numbers

GROUPS = ("in distribution", "out of distribution", "right", "wrong")


class EntropyDisplay:
    """Share of the rows whose predictive entropy is above a value, one curve a group of rows.

    Made by :meth:`from_estimator` or :meth:`from_predictions`.

    Parameters
    ----------
    entropies : dict of str to array-like of shape (n_samples,)
        Entropy of each row of each group, nats; drawn are the groups "in distribution", "out of distribution",
        "right" and "wrong" that are there and have rows.
    n_classes : int
        The largest possible entropy is its logarithm.
    estimator_name : str, optional

    Attributes
    ----------
    entropies : dict of str to ndarray
        Ascending.
    curves : dict of str to (ndarray, ndarray)
        Entropies h, from 0 to log n_classes, and the share of the group's rows above each: a step function.
    area_out, area_wrong : float
        Area under the ROC curve of the entropy: out of distribution against in, wrong against right; NaN where one of
        the two groups is not there.
    ax_, figure_
        After :meth:`plot`.
    lines_
        Dict of the curves' lines.

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
            raise ValueError(f"entropies holds the groups {unknown}; known are {', '.join(map(repr, GROUPS))}.")
        present = {key: values for key, values in entropies.items() if len(values)}
        if not present:
            raise ValueError("entropies has no group with rows; at least one row is needed.")
        self.entropies = {key: np.sort(numbers(key, present[key])) for key in GROUPS if key in present}
        self.n_classes = n_classes
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
        estimator : fitted classifier
            With ``predict_proba``, also inside pipelines and searches.
        X : array-like of shape (n_samples, n_features)
            Rows of the training's kind that it has not seen.
        y : array-like of shape (n_samples,), optional
            Their labels, to draw right against wrong predictions.
        X_out : array-like of shape (n_out, n_features), optional
            Rows of another kind.
        name : str, optional
            Of the model in the legend.
        ax : None or Axes
        **plot_options
            Further options of :meth:`plot`.

        Returns
        -------
        EntropyDisplay

        Raises
        ------
        TypeError
            For a regressor.
        ValueError, NotFittedError
        """
        inside, classes = classification(cls.__name__, estimator, X)
        outside = None if X_out is None else classification(cls.__name__, estimator, X_out)[0]
        given = {"y_prob_out": outside, "labels": classes, "name": name, "ax": ax}
        return cls.from_predictions(inside, y, **given, **plot_options)

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
        y_true : array-like of shape (n_samples,), optional
        y_prob_out : array-like of shape (n_out, n_classes), optional
            Of rows of another kind.
        labels : array-like of shape (n_classes,), optional
            What the columns stand for; by default the sorted labels of ``y_true``.
        name, ax, **plot_options
            As for :meth:`from_estimator`.

        Returns
        -------
        EntropyDisplay

        Raises
        ------
        ValueError
            For probabilities that are negative or do not sum to one, and for shapes that do not fit.
        """
        inside = _probabilities("y_prob", y_prob)
        n_classes, entropy = inside.shape[1], entr(inside).sum(1)
        groups = {"in distribution": entropy}
        if y_true is not None:
            truth = column_or_1d(y_true)
            known = np.unique(truth if labels is None else labels)
            if len(truth) != len(inside) or len(known) != n_classes:
                raise ValueError(
                    f"y_prob has shape {inside.shape} for {len(truth)} labels of {len(known)} classes; expected "
                    f"({len(truth)}, {len(known)}). Give labels= where y_true does not hold all classes."
                )
            right = known[inside.argmax(1)] == truth
            groups |= {"right": entropy[right], "wrong": entropy[~right]}
        if y_prob_out is not None:
            outside = _probabilities("y_prob_out", y_prob_out)
            if outside.shape[1] != n_classes:
                raise ValueError(f"y_prob_out has {outside.shape[1]} columns; expected {n_classes}, as y_prob.")
            groups["out of distribution"] = entr(outside).sum(1)
        elif y_true is not None:
            del groups["in distribution"]  # right and wrong are all of it
        return cls(groups, n_classes=n_classes, estimator_name=name).plot(ax=ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, line_kwargs: dict[str, Any] | None = None) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : None or Axes
            None: a new figure.
        name : str, optional
            Of the model in the legend; that of the display by default.
        line_kwargs : dict, optional
            Of matplotlib's ``plot`` for every curve.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        (self.ax_,) = panels(type(self).__name__, ax, 1, panel=(6.2, 4.2))
        self.figure_ = self.ax_.figure
        name = self.estimator_name if name is None else name
        styles = dict(zip(GROUPS, LINES, strict=True))
        against = {"out of distribution": self.area_out, "wrong": self.area_wrong}
        self.lines_ = {}
        for key, (entropy, share) in self.curves.items():
            area = against.get(key, np.nan)
            told_apart = f"AUROC {area:.3f}, " if np.isfinite(area) else ""
            text = labelled(name, f"{key} ({told_apart}{len(self.entropies[key])} rows)")
            look = styles[key] | {"drawstyle": "steps-post", "label": text} | (line_kwargs or {})
            (self.lines_[key],) = self.ax_.plot(entropy, share, **look)
        limit = float(np.log(self.n_classes))
        self.ax_.set(xlabel=f"predictive entropy h, nats (at most {limit:.2f})", ylabel="share of the rows above h")
        self.ax_.set(xlim=(0, 1.02 * limit), ylim=(0, 1.02))
        self.ax_.legend(loc="best", fontsize="small")
        return self

    def _area(self, low: str, high: str) -> float:
        """Probability that a row of the second group has the higher entropy."""
        if low not in self.entropies or high not in self.entropies:
            return float("nan")
        first, second = self.entropies[low], self.entropies[high]
        is_second = np.repeat([0, 1], [len(first), len(second)])
        return float(roc_auc_score(is_second, np.concatenate([first, second])))


def _above(entropy: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """The steps of 1 − F̂, from 0 to the largest possible entropy."""
    n = len(entropy)
    points = np.concatenate([[0.0], entropy, [max(limit, entropy[-1])]])
    return points, np.concatenate([[1.0], 1 - np.arange(1, n + 1) / n, [0.0]])


def _probabilities(name: str, values: Any) -> np.ndarray:
    p = numbers(name, values)
    if p.ndim != 2 or p.shape[1] < 2 or (p < 0).any() or not np.allclose(p.sum(1), 1, atol=1e-3):
        raise ValueError(f"{name} has shape {p.shape}; expected (n_samples, n_classes), not negative, rows of sum 1.")
    return p
