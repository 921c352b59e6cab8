r"""Derivatives of predictions with respect to the inputs: gradients, uncertain inputs, attributions.

**Gradients** of the mean μ and of the standard deviation, for optimisers.

**Uncertain inputs.** Independent errors with standard deviations :math:`s_d` add a variance to the mean. The delta
method gives (McHutchon & Rasmussen 2011, eq. 5, for Gaussian processes)

.. math:: \sum_d \Big(\frac{\partial \mu}{\partial x_d}\Big)^2 s_d^2 .

**Attributions.** The difference of the epistemic variance v between a row and a baseline x⁰ is attributed to the
columns by integrated gradients (Sundararajan, Taly & Yan 2017, eq. 1):

.. math:: a_d = (x_d - x^0_d) \int_0^1 \frac{\partial v}{\partial x_d}\big(x^0 + t (x - x^0)\big)\, dt,
          \qquad \sum_d a_d = v(x) - v(x^0) .

All derivatives are in the user's units of X, because the standardisation is part of the net.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from .._data.reading import column_names
from .._data.rows import PreparedData
from .._data.table import Table
from .._options.options import Options
from .._options.resolve import variance_of_kind
from .._runtime.threads import single_thread
from .._validation.inputs import as_numbers, shown
from .._validation.values import flag
from ..laplace.latent import Components, Predictive
from ..laplace.links._base import centred
from ..laplace.network.input_gradients import root_gradients, row_gradients
from ..nets.mlp import Pieces
from ..nets.table import TableMLP
from .ensemble import Ensemble

GRAPH = 8
"""Memory of a row with an autograd graph of outputs and Jacobian, in units of a row without one."""
NODES, NODES_BETWEEN = 16, 4
"""Gauss–Legendre nodes in each panel of a path without bends of the encoding, and in each panel between two bends."""
MOST_PANELS = 64
"""Maximum number of panels between two bends."""
COMPLETE = 1e-6
"""Maximum error of the sum of a row's attributions, relative to the sum of the variances at both ends of the path."""
NAMED = 5
"""Maximum number of columns or rows listed in a message."""


def check_request(*, std: bool, cov: bool, mean_grad: bool, std_grad: bool, X_std: Any) -> None:
    """Check that the flags of ``predict`` are compatible.

    Raises ``RuntimeError`` for ``return_std`` with ``return_cov``, as scikit-learn's regressors do, and ``ValueError``
    for other combinations that are not supported.

    Examples
    --------
    >>> check_request(std=False, cov=False, mean_grad=True, std_grad=True, X_std=None)
    Traceback (most recent call last):
        ...
    ValueError: return_std_grad=True needs return_std=True and return_mean_grad=True, but return_std=False.
    """
    for name, value in {"std": std, "cov": cov, "mean_grad": mean_grad, "std_grad": std_grad}.items():
        flag(f"return_{name}", value)
    if std and cov:
        raise RuntimeError("At most one of return_std or return_cov can be requested.")
    if std_grad and not (std and mean_grad):
        missing = "return_std=False" if not std else "return_mean_grad=False"
        raise ValueError(f"return_std_grad=True needs return_std=True and return_mean_grad=True, but {missing}.")
    if mean_grad and cov:
        raise ValueError(
            "return_mean_grad=True cannot be combined with return_cov=True: a joint covariance has no gradient at a "
            "single row. Use return_std=True."
        )
    if X_std is not None and not std:
        raise ValueError("X_std affects only the standard deviation, which is not returned. Add return_std=True.")
    if X_std is not None and std_grad:
        raise ValueError(
            "return_std_grad=True cannot be combined with X_std: the gradient of the variance that X_std adds needs "
            "second derivatives of the mean. Omit one of them."
        )


def check_varied(x: Tensor, table: Table | None) -> None:
    """Refuse categorical columns and missing values, since derivatives need numbers."""
    fixed = [] if table is None else [column.name for column in table.columns if column.n_levels]
    if fixed:
        raise ValueError(
            f"gradients and X_std need numeric columns, but {some(fixed)} of X holds categories. Fit without these "
            "columns, or compare predict_std of rows that differ in them."
        )
    missing = x.isnan().nonzero()
    if len(missing):
        row, column = missing[0].tolist()
        raise ValueError(
            f"gradients and X_std need numbers, but X has no value in row {row}, column {column} ({len(missing)} "
            "missing in total). Impute missing values first."
        )


def baseline_of(baseline: Any, kept: PreparedData | None, n_columns: int) -> Tensor:
    """Start of the paths, shape (d,): the user's baseline, or the weighted mean of the stored rows.

    Raises ``ValueError`` for a baseline of another shape, or without a baseline if no rows are stored.
    """
    if baseline is not None:
        baseline = as_numbers(baseline, "baseline")
        row = check_array(baseline, ensure_2d=False, dtype=np.float64, input_name="baseline")
        if row.shape != (n_columns,):
            raise ValueError(f"baseline has shape {row.shape}; expected ({n_columns},), one value for each column.")
        return torch.from_numpy(row)
    if kept is None:
        raise ValueError(
            "explain_std starts from the mean of the training rows by default, but this fit stores no rows (after "
            "forget, with prior= or with augment=). Pass baseline=, a row to compare with."
        )
    present = ~np.isnan(kept.X)
    weights = kept.weights[:, None] * present
    sums = (weights * np.where(present, kept.X, 0.0)).sum(0)
    return torch.from_numpy(sums / np.maximum(weights.sum(0), np.finfo(float).tiny))


def cause_of_gap(start: Tensor, ends: Tensor, table: Table | None) -> str:
    """Why attributions of rows (k, d) do not add up on the paths from a baseline (d,), and what to do."""
    for place, column in enumerate(() if table is None else table.columns):
        if column.cycles and bool(((ends[:, place] - start[place]).abs() > min(column.cycles) / 2).any()):
            return (
                f"the dates of {column.name} vary in cycles on the path from the baseline. Pass a nearer baseline, "
                "such as one with the date of the row, in days since 1970."
            )
    return (
        "the variance jumps on the path from the baseline, as it does at every kink of activation='relu'. Use 'tanh', "
        "'gelu', 'silu' or 'softplus', or a nearer baseline."
    )


@dataclass(frozen=True)
class InputGradients:
    """Derivatives of an ensemble's predictions with respect to the inputs."""

    ensemble: Ensemble
    options: Options

    def attributions(self, start: Tensor, ends: Tensor) -> tuple[Tensor, list[int]]:
        """Integrated gradients of the epistemic variance (n, d, C), and positions of rows where they do not add up.

        ``start`` (d,) is the baseline, ``ends`` (n, d) are the rows to explain. Raises ``NonFiniteError`` if an
        attribution is NaN or infinite.
        """
        with single_thread(self.ensemble.first.is_small):
            at_ends, at_start = (self._epistemic(x) for x in (ends, start[None]))
            difference, tolerance = at_ends - at_start, COMPLETE * (at_ends + at_start)
            values = torch.zeros(*ends.shape, difference.shape[1], dtype=torch.float64, device=ends.device)
            rest, panels = torch.arange(len(ends), device=ends.device), 1
            while len(rest) and panels <= MOST_PANELS:
                values[rest] = self._integrated(start, ends[rest], panels)
                missed = (values[rest].sum(1) - difference[rest]).abs() > tolerance[rest]
                rest, panels = rest[missed.any(1)], 2 * panels
        self.ensemble.first.require_finite(values, [ends])
        return values, rest.tolist()

    def sloped(
        self, x: Tensor, noise: Tensor | None = None, kind: str | None = None
    ) -> tuple[Predictive, Tensor, Tensor | None]:
        """Moments of the targets of rows x (n, d), and gradients (n, d, C) of their mean and standard deviation.

        ``noise`` (n, d) are standard deviations of errors in the inputs, whose variance the moments include. The second
        gradient is that of a ``kind`` of standard deviation; None without a kind.
        """

        def derivatives(moments: Predictive, leaf: Tensor) -> list[Tensor]:
            slopes = [row_gradients(moments.mean, leaf)]
            if kind is not None:
                slopes.append(root_gradients(variance_of_kind(moments, kind), leaf))
            parts = (moments.mean, moments.epistemic_variance, moments.aleatoric_variance)
            return [part.detach() for part in (*parts, *slopes)]

        with single_thread(self.ensemble.first.is_small):
            mean, epistemic, aleatoric, *slopes = self._differentiated(x, derivatives)
        self.ensemble.first.require_finite(torch.stack([part.sum() for part in (mean, epistemic, *slopes)]), [x])
        if noise is not None:
            aleatoric = aleatoric + (slopes[0] * noise[..., None]).square().sum(1)
        return Predictive(mean, epistemic, aleatoric), slopes[0], slopes[1] if kind is not None else None

    def moments_at(self, x: Tensor) -> Predictive:
        """Moments of the targets, differentiable with respect to x; for classes, of the logits minus the mean logit.

        Moments of class probabilities are not used, because they are computed from draws. These are not smooth in x,
        since they depend on the signs of eigenvectors (``laplace/links/_base.py``).
        """
        parts = []
        for member in self.ensemble.members:
            latent, likelihood = member.latent(x, self.options), member.fit.likelihood
            if likelihood.over_classes:
                logits = centred(likelihood.class_logits(latent))
                parts.append(Components.of(Predictive(logits.mean, logits.variance, torch.zeros_like(logits.mean))))
            else:
                parts.append(member.targets(latent, x, None))
        return self.ensemble.joined(parts).moments

    def _differentiated(self, x: Tensor, answer: Callable[[Predictive, Tensor], list[Tensor]]) -> list[Tensor]:
        """Values of a function of the moments and of the rows that the moments depend on, computed in chunks."""
        parts = []
        for chunk in self._small_chunks(x):
            leaf = chunk.detach().clone().requires_grad_()
            parts.append(answer(self.moments_at(leaf), leaf))
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def _small_chunks(self, x: Tensor) -> Iterator[Tensor]:
        single = len(x) == 1  # fast path for optimisers, which predict single rows thousands of times
        rows = 1 if single else self.ensemble.first.chunk_size(self.options)[0] // (GRAPH * len(self.ensemble.members))
        yield from x.split(max(rows, 1))

    def _epistemic(self, x: Tensor) -> Tensor:
        """Epistemic variances (n, C)."""
        chunks = self._small_chunks(x)
        return torch.cat([self.moments_at(chunk).epistemic_variance for chunk in chunks])

    def _integrated(self, start: Tensor, ends: Tensor, panels: int) -> Tensor:
        """Integrated gradients (n, d, C), with the given number of panels between any two bends of the path."""
        averages = []
        for end in ends:
            places, shares = (torch.from_numpy(part).to(ends) for part in nodes(self._bends(start, end), panels))
            path = start + places[:, None] * (end - start)
            (slopes,) = self._differentiated(path, lambda m, leaf: [row_gradients(m.epistemic_variance, leaf)])
            averages.append(torch.einsum("t,tdc->dc", shares, slopes))
        return torch.stack(averages) * (ends - start).double()[..., None]

    def _bends(self, start: Tensor, end: Tensor) -> np.ndarray:
        """Ascending positions t in [0, 1] at which a column passes from one piece to the next; 0 and 1 are included."""
        positions = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
        for module in (member.fit.network.module for member in self.ensemble.members):
            if isinstance(module, TableMLP) and isinstance(module.standardise, Pieces):
                for k, bends in zip(module.numeric.tolist(), module.standardise.bends, strict=True):
                    t = ((bends - start[k]) / (end[k] - start[k])).cpu()
                    positions.append(t[(t > 0) & (t < 1)])
        return np.unique(torch.cat(positions).numpy())


def nodes(cuts: np.ndarray, panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a composite Gauss–Legendre quadrature with ``panels`` panels between any two cuts.

    Examples
    --------
    >>> places, weights = nodes(np.array([0.0, 0.3, 1.0]), 2)
    >>> bool(np.isclose(weights @ np.abs(places - 0.3), (0.3**2 + 0.7**2) / 2))
    True
    """
    roots, weights = np.polynomial.legendre.leggauss(NODES if len(cuts) == 2 else NODES_BETWEEN)
    ends = np.interp(np.arange(panels * (len(cuts) - 1) + 1) / panels, np.arange(len(cuts)), cuts)
    lengths = np.diff(ends)[:, None]
    return (ends[:-1, None] + lengths * (roots + 1) / 2).ravel(), (lengths * weights / 2).ravel()


def deviations(X_std: Any, shape: tuple[int, ...], names: Any = None) -> np.ndarray:
    """Standard deviations of inputs as an array (n, d), from a number, an array (d,), or an array (n, d).

    Raises ``ValueError`` for another shape, and for values that are negative or not finite. Also for a dataframe or a
    series whose names are not ``names``, those of X in their order.

    Examples
    --------
    >>> deviations([0.0, 2.0], (1, 2))
    array([[0., 2.]])
    >>> deviations(-1.0, (1, 2))
    Traceback (most recent call last):
        ...
    ValueError: X_std holds -1.0; standard deviations have to be finite and not negative.
    """
    try:
        values = np.asarray(as_numbers(X_std, "X_std"), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"X_std={shown(X_std)} has to hold numbers: standard deviations in the units of X.") from error
    n, d = shape
    given = _labels(X_std)
    if given is not None and names is not None and given != list(names):
        texts = [", ".join(map(str, part)) for part in (given, names)]
        raise ValueError(f"X_std has the names {texts[0]}; expected those of X in their order: {texts[1]}.")
    if values.shape not in ((), (d,), (n, d)):
        raise ValueError(
            f"X_std has shape {values.shape}; expected a number, ({d},), one for each column, or ({n}, {d}), as X."
        )
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if wrong.size:
        raise ValueError(f"X_std holds {wrong.flat[0]}; standard deviations have to be finite and not negative.")
    return np.broadcast_to(values, shape).copy()


def _labels(values: Any) -> list[str] | None:
    """Names of the columns of a dataframe or of the values of a series; None if there are none, or other labels."""
    labels = column_names(values) or getattr(values, "index", None)
    if labels is None or callable(labels) or not all(isinstance(label, str) for label in labels):
        return None
    return list(labels)


def some(names: list[Any]) -> str:
    """The first names of a list, for a message.

    Examples
    --------
    >>> some([1, 2, 3, 4, 5, 6])
    '1, 2, 3, 4, 5, …'
    """
    return ", ".join(map(str, names[:NAMED])) + (", …" if len(names) > NAMED else "")
