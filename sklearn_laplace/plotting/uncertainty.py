r"""Uncertainty against error: retention curves, and the aleatoric and epistemic shares of the variance.

The rows are sorted by their uncertainty :math:`u_n`. The retention curve is the error of the :math:`i` rows with the
lowest uncertainty, for :math:`i = 1, \dots, n`. Sorting by the loss itself (the oracle) gives the lowest possible
curve; a random order gives a flat curve in expectation. Rows of equal uncertainty are assigned their mean loss, so
their order does not matter.
"""

from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import column_or_1d

from .._estimator.unwrap import laplace_step
from .._validation.arguments import count, explained, lookup
from .._validation.rows import targets_like
from ._canvas import BLUE, LINES, ORANGE, REFERENCE, labelled, panels, tint
from ._rows import column, numbers, output_index


@explained
class UncertaintyDisplay:
    """Retention curves of the error by uncertainty, and the aleatoric and epistemic shares of the variance.

    Use :meth:`from_estimator` or :meth:`from_predictions` to create it.

    Parameters
    ----------
    loss : array-like of shape (n_samples,)
        Loss of each row: the squared error, or 1 for a wrong class and 0 otherwise.
    aleatoric, epistemic : array-like of shape (n_samples,)
        Aleatoric and epistemic variance of each row.
    is_squared : bool, default=True
        If True, the curves show the square root of the mean loss. If False, they show the mean loss.
    n_groups : int, default=10
        Number of groups of rows, of equal size and sorted by total variance, for which the shares are drawn.
    estimator_name : str, optional
        Name of the model in the legend.

    Attributes
    ----------
    share_kept : ndarray of shape (n_samples,)
        Fractions of the rows that are kept: 1/n, 2/n, …, 1.
    curves : dict of str to ndarray of shape (n_samples,)
        Error of the kept rows if sorted by "total" variance, "epistemic" variance or the loss ("oracle").
    area : dict of str to float
        Mean of each curve. Smaller values mean that the uncertainty ranks the errors better.
    error : float
        Error of all rows.
    group_aleatoric, group_epistemic, epistemic_share : ndarray of shape (n_groups,)
        Mean variances of each group, in ascending order of the total variance, and the epistemic fraction of the total
        variance. With fewer rows than ``n_groups``, each row is a group.
    ax_, share_ax_, figure_, lines_, bars_
        Axes, figure, dict of the lines of the curves, and two bar containers; set by :meth:`plot`. ``share_ax_`` and
        ``bars_`` are None if the shares are not drawn.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> display = UncertaintyDisplay.from_predictions([0, 0, 0], [0.1, 0.2, 3.0], [1, 1, 1], [0.1, 0.5, 9.0])
    >>> display.curves["total"].round(2)
    array([0.1 , 0.16, 1.74])
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        loss: Any,
        aleatoric: Any,
        epistemic: Any,
        *,
        is_squared: bool = True,
        n_groups: int = 10,
        estimator_name: str | None = None,
    ) -> None:
        loss = numbers("loss", loss)
        aleatoric, epistemic = numbers("aleatoric", aleatoric, len(loss)), numbers("epistemic", epistemic, len(loss))
        if not loss.ndim == aleatoric.ndim == epistemic.ndim == 1:
            raise ValueError(
                f"loss, aleatoric and epistemic have shapes {loss.shape}, {aleatoric.shape} and {epistemic.shape}; "
                "expected one number for each row. Choose one output."
            )
        if (least := min(aleatoric.min(), epistemic.min())) < 0:
            raise ValueError(f"aleatoric and epistemic have a minimum of {least:g}; expected non-negative variances.")
        n = len(loss)
        total = aleatoric + epistemic
        self.is_squared = is_squared
        self.share_kept = np.arange(1, n + 1) / n
        by = {"total": total, "epistemic": epistemic, "oracle": loss}
        means = {key: np.cumsum(_sorted_losses(loss, values)) / np.arange(1, n + 1) for key, values in by.items()}
        self.curves = {key: np.sqrt(mean) if is_squared else mean for key, mean in means.items()}
        self.area = {key: float(curve.mean()) for key, curve in self.curves.items()}
        self.error = float(np.sqrt(loss.mean()) if is_squared else loss.mean())
        groups = np.array_split(np.argsort(total, kind="stable"), min(count("n_groups", n_groups), n))
        self.group_aleatoric = np.array([aleatoric[group].mean() for group in groups])
        self.group_epistemic = np.array([epistemic[group].mean() for group in groups])
        sums = self.group_aleatoric + self.group_epistemic
        self.epistemic_share = np.divide(self.group_epistemic, sums, out=np.zeros_like(sums), where=sums > 0)
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        n_groups: int = 10,
        output: int | None = None,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for a Laplace estimator and draw it.

        Parameters
        ----------
        estimator : fitted LaplaceRegressor or LaplaceClassifier
            A Laplace estimator, possibly inside pipelines and searches. For a classifier, the variances are the squares
            of ``predict_std``, summed over the classes, and the loss is 1 for a wrong class.
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets or labels.
        n_groups : int, default=10
            As in :class:`UncertaintyDisplay`.
        output, name, ax, **plot_options
            As in :meth:`CoverageDisplay.from_estimator`.

        Raises
        ------
        TypeError, NotFittedError
            If the innermost estimator is not a Laplace estimator, or not fitted. Other estimators do not provide the
            parts of the variance.
        ValueError
            If a parameter is invalid, or the shapes do not match.
        """
        step, rows = laplace_step(estimator, X)
        parts = {name: std**2 for name, std in step.predict_std(rows, kind="all").items()}
        predicted = np.asarray(step.predict(rows))
        options = {"n_groups": n_groups, "name": name, "ax": ax, **plot_options}
        if is_classifier(step):
            variances = parts["aleatoric"].sum(1), parts["epistemic"].sum(1)
            return cls.from_predictions(y, predicted, *variances, error="zero_one", **options)
        which = output_index(cls.__name__, output, predicted.shape)
        targets = targets_like(y, predicted)
        shown = (column(part, which) for part in (targets, predicted, parts["aleatoric"], parts["epistemic"]))
        return cls.from_predictions(*shown, **options)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        aleatoric: Any,
        epistemic: Any,
        *,
        error: str = "squared",
        n_groups: int = 10,
        name: str | None = None,
        ax: Any = None,
        **plot_options: Any,
    ) -> Self:
        """Compute the display for predictions and draw it.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n_samples,)
            Targets and predictions: numbers or class labels.
        aleatoric, epistemic
            As in :class:`UncertaintyDisplay`.
        error : {"squared", "zero_one"}
            "squared": root mean squared error of numbers. "zero_one": fraction of wrong labels.
        n_groups, name, ax, **plot_options
            As in :meth:`from_estimator`.
        """
        loss, is_squared = lookup("error", error, {"squared": (_squared, True), "zero_one": (_wrong, False)})
        losses = loss(y_true, y_pred)
        parts = losses, aleatoric, epistemic
        return cls(*parts, is_squared=is_squared, n_groups=n_groups, estimator_name=name).plot(ax=ax, **plot_options)

    def plot(
        self, ax: Any = None, *, shares: bool = True, name: str | None = None, line_kwargs: dict[str, Any] | None = None
    ) -> Self:
        """Draw the display. An ImportError is raised if matplotlib is not installed.

        Parameters
        ----------
        ax : None, Axes or sequence of two Axes
            Axes to draw on; None creates a figure. A single Axes shows only the retention curves.
        shares : bool, default=True
            If True, draw the shares of the variance in a second panel.
        name : str, optional
            Name of the model, which prefixes the labels of all curves; by default ``estimator_name``.
        line_kwargs : dict, optional
            Keyword arguments of matplotlib's ``plot`` for the curve of the total variance.
        """
        axes = panels(type(self).__name__, ax, 2 if shares else 1)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        self.share_ax_ = axes[1] if len(axes) > 1 else None
        name = self.estimator_name if name is None else name
        self.ax_.axhline(self.error, **REFERENCE, label=f"random order ({self.error:.3g})")
        texts = {"total": "by total variance", "epistemic": "by epistemic variance", "oracle": "by the loss (oracle)"}
        styles = dict(zip(texts, (LINES[0], LINES[1], LINES[3]), strict=True))
        styles["total"] = styles["total"] | (line_kwargs or {})
        self.lines_ = {}
        for key, text in texts.items():
            label = {"label": labelled(name, f"{text} (mean {self.area[key]:.3g})")}
            (self.lines_[key],) = self.ax_.plot(self.share_kept, self.curves[key], **label | styles[key])
        top = max(self.error, *(curve[len(curve) // 20 :].max() for curve in self.curves.values()))
        unit = "root mean squared error" if self.is_squared else "share of wrong classes"
        self.ax_.set(xlabel="share of the rows kept, most certain first", ylabel=f"{unit} of the rows kept")
        self.ax_.set(xlim=(0, 1), ylim=(0, 1.55 * top if top > 0 else 1))
        self.ax_.legend(loc="upper left", fontsize="small")
        self.bars_ = None if self.share_ax_ is None else self._bars(self.share_ax_)
        return self

    def _bars(self, ax: Any) -> tuple[Any, Any]:
        """Draw the shares of the variance as stacked bars, and return both bar containers."""
        n = len(self.epistemic_share)
        centres = (np.arange(n) + 0.5) / n
        width, aleatoric = 0.86 / n, 1 - self.epistemic_share
        lower = ax.bar(centres, aleatoric, width, color=tint(BLUE, 0.45), edgecolor=BLUE, label="aleatoric")
        look = {"color": tint(ORANGE, 0.7), "edgecolor": "#7A5200", "hatch": "///", "label": "epistemic"}
        upper = ax.bar(centres, self.epistemic_share, width, bottom=aleatoric, **look)
        ax.set(xlabel="rows by total variance, most certain first", ylabel="share of the variance")
        ax.set(xlim=(0, 1), ylim=(0, 1.18), yticks=np.arange(6) / 5)
        ax.legend(loc="upper center", ncols=2, fontsize="small")
        return lower, upper


def _sorted_losses(loss: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return losses in ascending order of ``by``; rows with equal values of ``by`` get their mean loss."""
    _, group, sizes = np.unique(by, return_inverse=True, return_counts=True)
    means = np.bincount(group, loss) / sizes
    return np.repeat(means, sizes)


def _squared(y_true: Any, y_pred: Any) -> np.ndarray:
    predicted = numbers("y_pred", y_pred)
    return (targets_like(y_true, predicted) - predicted) ** 2


def _wrong(y_true: Any, y_pred: Any) -> np.ndarray:
    truth, predicted = column_or_1d(y_true), column_or_1d(y_pred)
    if len(truth) != len(predicted):
        raise ValueError(
            f"y_true has {len(truth)} labels for {len(predicted)} predictions; expected one label for each prediction."
        )
    return (truth != predicted).astype(np.float64)
