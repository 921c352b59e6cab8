r"""How the predictive changes with the inputs: gradients, inputs that are uncertain, and why a row is uncertain.

Three uses of one derivative. An optimiser follows the gradient of the mean μ or of the standard deviation at one row.
Inputs with independent standard deviations :math:`s_d` add a variance to the mean, by the delta method (McHutchon &
Rasmussen 2011, eq. 5, for Gaussian processes):

.. math:: \sum_d \Big(\frac{\partial \mu}{\partial x_d}\Big)^2 s_d^2 .

Integrated gradients (Sundararajan, Taly & Yan 2017, eq. 1) divide the difference of the epistemic variance v between a
row and a baseline x⁰ among the columns:

.. math:: a_d = (x_d - x^0_d) \int_0^1 \frac{\partial v}{\partial x_d}\big(x^0 + t (x - x^0)\big)\, dt,
          \qquad \sum_d a_d = v(x) - v(x^0) .

All derivatives are in the units of X as given, since a net's own standardisation is differentiated as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

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
"""Memory of a row with the graph of its outputs and Jacobian, in units of a row without."""
NODES, NODES_BETWEEN = 16, 4
"""Gauss–Legendre nodes in each panel of the path from the baseline, and between two bends of the net's inputs."""
MOST_PANELS = 64
COMPLETE = 1e-6
"""Largest error of the sum of a row's attributions, relative to the variances at both ends of the path."""
NAMED = 5
"""Columns or rows that a message lists."""


def check_request(*, std: bool, cov: bool, mean_grad: bool, std_grad: bool, X_std: Any) -> None:
    """Whether the flags of a prediction go together.

    Raises
    ------
    RuntimeError
        For ``return_std`` with ``return_cov``, as scikit-learn's own regressors raise it.
    ValueError

    Examples
    --------
    >>> check_request(std=False, cov=False, mean_grad=True, std_grad=True, X_std=None)
    Traceback (most recent call last):
        ...
    ValueError: return_std_grad=True needs return_std=True and return_mean_grad=True as well; return_std=False.
    """
    for name, value in {"std": std, "cov": cov, "mean_grad": mean_grad, "std_grad": std_grad}.items():
        flag(f"return_{name}", value)
    if std and cov:
        raise RuntimeError("At most one of return_std or return_cov can be requested.")
    if std_grad and not (std and mean_grad):
        missing = "return_std=False" if not std else "return_mean_grad=False"
        raise ValueError(f"return_std_grad=True needs return_std=True and return_mean_grad=True as well; {missing}.")
    if mean_grad and cov:
        raise ValueError(
            "return_mean_grad=True does not go with return_cov=True: a joint covariance has no gradient at one row. "
            "Use return_std=True."
        )
    if X_std is not None and not std:
        raise ValueError("X_std widens the standard deviation, which is not returned; add return_std=True.")
    if X_std is not None and std_grad:
        raise ValueError(
            "return_std_grad=True does not go with X_std: what X_std adds to the variance has a gradient of third "
            "order. Leave one of them away."
        )


def check_varied(x: Tensor, table: Table | None) -> None:
    """Check that all columns of the rows hold numbers, which can be varied.

    Raises
    ------
    ValueError
    """
    fixed = [] if table is None else [column.name for column in table.columns if column.n_levels]
    if fixed:
        raise ValueError(
            f"gradients and X_std need columns of numbers, and {some(fixed)} of X holds categories, between which "
            "nothing varies. Fit without these columns, or compare predict_std of rows that differ there."
        )
    missing = x.isnan().nonzero()
    if len(missing):
        row, column = missing[0].tolist()
        raise ValueError(
            f"gradients and X_std need numbers, and X has no value in row {row}, column {column} ({len(missing)} "
            "missing in all). Fill the gaps beforehand."
        )


def baseline_of(baseline: Any, kept: PreparedData | None, n_columns: int) -> Tensor:
    """Where the way to a row begins, shape (d,): as given, or the weighted mean of the kept rows.

    Raises
    ------
    ValueError
    """
    if baseline is not None:
        baseline = as_numbers(baseline, "baseline")
        given = check_array(baseline, ensure_2d=False, dtype=np.float64, input_name="baseline")
        if given.shape != (n_columns,):
            raise ValueError(f"baseline has shape {given.shape}; expected ({n_columns},), one value for each column.")
        return torch.from_numpy(given)
    if kept is None:
        raise ValueError(
            "explain_std begins at the mean of the training rows, and this fit keeps none (after forget, with prior= "
            "or with augment=). Give baseline=, a row to compare with."
        )
    known = ~np.isnan(kept.X)
    weights = kept.weights[:, None] * known
    sums = (weights * np.where(known, kept.X, 0.0)).sum(0)
    return torch.from_numpy(sums / np.maximum(weights.sum(0), np.finfo(float).tiny))


@dataclass(frozen=True)
class InputGradients:
    """Derivatives in the inputs of what an ensemble predicts.

    Parameters
    ----------
    ensemble : Ensemble
    options : Options
    """

    ensemble: Ensemble
    options: Options

    def attributions(self, start: Tensor, ends: Tensor) -> tuple[Tensor, list[int]]:
        """Integrated gradients of the epistemic variance (n, d, C), and the rows where they do not add up.

        Parameters
        ----------
        start : Tensor of shape (d,)
            The baseline.
        ends : Tensor of shape (n, d)

        Raises
        ------
        NonFiniteError
        """
        with single_thread(self.ensemble.first.is_small):
            at_ends, at_start = (self._epistemic(x) for x in (ends, start[None]))
            difference, tolerance = at_ends - at_start, COMPLETE * (at_ends + at_start)
            found = torch.zeros(*ends.shape, difference.shape[1], dtype=torch.float64, device=ends.device)
            open_, panels = torch.arange(len(ends), device=ends.device), 1
            while len(open_) and panels <= MOST_PANELS:
                found[open_] = self._integrated(start, ends[open_], panels)
                missed = (found[open_].sum(1) - difference[open_]).abs() > tolerance[open_]
                open_, panels = open_[missed.any(1)], 2 * panels
        self.ensemble.first.require_finite(found, [ends])
        return found, open_.tolist()

    def sloped(
        self, x: Tensor, noise: Tensor | None = None, kind: str | None = None
    ) -> tuple[Predictive, Tensor, Tensor | None]:
        """Moments of the targets, the gradient of their mean, and that of the standard deviation of some kind.

        Parameters
        ----------
        x : Tensor of shape (n, d)
        noise : Tensor of shape (n, d), or None
            Standard deviations of the inputs.
        kind : str or None
            Of the standard deviation; None for no gradient of it.

        Returns
        -------
        moments : Predictive
            With the noise of the inputs.
        mean_gradient, std_gradient : Tensor of shape (n, d, C)
        """

        def answered(moments: Predictive, leaf: Tensor) -> list[Tensor]:
            slopes = [row_gradients(moments.mean, leaf)]
            if kind is not None:
                slopes.append(root_gradients(variance_of_kind(moments, kind), leaf))
            parts = (moments.mean, moments.epistemic_variance, moments.aleatoric_variance)
            return [part.detach() for part in (*parts, *slopes)]

        with single_thread(self.ensemble.first.is_small):
            mean, epistemic, aleatoric, *slopes = self._differentiated(x, answered)
        self.ensemble.first.require_finite(torch.stack([part.sum() for part in (mean, epistemic, *slopes)]), [x])
        if noise is not None:
            aleatoric = aleatoric + (slopes[0] * noise[..., None]).square().sum(1)
        return Predictive(mean, epistemic, aleatoric), slopes[0], slopes[1] if kind is not None else None

    def moments_at(self, x: Tensor) -> Predictive:
        """Moments of the targets of rows; for classes of their logits, against the mean logit.

        A graph leads to x if x requires a gradient. Probabilities have moments by draws, which are no smooth function
        of x: the signs of eigenvectors are in them (``laplace/links/_base.py``).
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
        """Functions of the moments of rows that can be differentiated in the rows, chunk by chunk."""
        parts = []
        for chunk in self._small_chunks(x):
            leaf = chunk.detach().clone().requires_grad_()
            parts.append(answer(self.moments_at(leaf), leaf))
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def _small_chunks(self, x: Tensor) -> Iterator[Tensor]:
        one = len(x) == 1  # an optimiser asks for one row, thousands of times
        rows = 1 if one else self.ensemble.first.chunk_size(self.options)[0] // (GRAPH * len(self.ensemble.members))
        yield from x.split(max(rows, 1))

    def _epistemic(self, x: Tensor) -> Tensor:
        """Epistemic variances (n, C)."""
        chunks = self._small_chunks(x)
        return torch.cat([self.moments_at(chunk).epistemic_variance for chunk in chunks])

    def _integrated(self, start: Tensor, ends: Tensor, panels: int) -> Tensor:
        """Integrated gradients (n, d, C), by so many panels of the way between its bends."""
        found = []
        for end in ends:
            places, shares = (torch.from_numpy(part).to(ends) for part in nodes(self._bends(start, end), panels))
            way = start + places[:, None] * (end - start)
            (slopes,) = self._differentiated(way, lambda m, leaf: [row_gradients(m.epistemic_variance, leaf)])
            found.append(torch.einsum("t,tdc->dc", shares, slopes))
        return torch.stack(found) * (ends - start).double()[..., None]

    def _bends(self, start: Tensor, end: Tensor) -> np.ndarray:
        """Parts t of the way at which a column passes from one piece to the next, with both ends, rising."""
        found = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
        for module in (member.fit.network.module for member in self.ensemble.members):
            if isinstance(module, TableMLP) and isinstance(module.standardise, Pieces):
                for k, own in zip(module.numeric.tolist(), module.standardise.bends, strict=True):
                    part = ((own - start[k]) / (end[k] - start[k])).cpu()
                    found.append(part[(part > 0) & (part < 1)])
        return np.unique(torch.cat(found).numpy())


def nodes(cuts: np.ndarray, panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights of a composite Gauss–Legendre quadrature, of so many panels between each two cuts.

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


def deviations(X_std: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Standard deviations of inputs (n, d), from one for all, one for each column, or one for each value.

    Raises
    ------
    ValueError

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
        given = np.asarray(as_numbers(X_std, "X_std"), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"X_std={shown(X_std)} has to hold numbers: standard deviations in the units of X.") from error
    n, d = shape
    if given.shape not in ((), (d,), (n, d)):
        raise ValueError(
            f"X_std has shape {given.shape}; expected a number, ({d},), one for each column, or ({n}, {d}), as X."
        )
    wrong = given[~(np.isfinite(given) & (given >= 0))]
    if wrong.size:
        raise ValueError(f"X_std holds {wrong.flat[0]}; standard deviations have to be finite and not negative.")
    return np.broadcast_to(given, shape).copy()


def some(names: list[Any]) -> str:
    return ", ".join(map(str, names[:NAMED])) + (", …" if len(names) > NAMED else "")
