r"""Gradients of predictions with respect to the inputs, and predictions for uncertain inputs.

**Uncertain inputs.** Independent errors of the inputs, with standard deviations :math:`s_d`, add variance to the
prediction. By the delta method (McHutchon & Rasmussen 2011, eq. 5, for Gaussian processes), this variance is

.. math:: \sum_d \Big(\frac{\partial \mu}{\partial x_d}\Big)^2 s_d^2 .

All derivatives are in the user's units of X, because the standardisation is part of the net.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._table.reading import column_names, first_of
from .._table.table import Table
from .._validation.rows import as_numbers, shown
from ..laplace.latent import Predictive
from ..laplace.network.input_gradients import root_gradients, row_gradients
from ..laplace.torch_state import single_thread
from ..options.resolved import Options
from .ensemble import Ensemble

GRAPH = 8
"""Memory of a row with an autograd graph of outputs and Jacobian, relative to a row without a graph."""


def check_varied(x: Tensor, table: Table | None) -> None:
    """Raise ``ValueError`` for categorical columns and missing values, which have no derivatives."""
    fixed = [] if table is None else [column.name for column in table.columns if column.n_levels]
    if fixed:
        raise ValueError(
            f"gradients and X_std need numeric columns, but {first_of(fixed)} of X holds categories. Fit without these "
            "columns, or compare predict_std of rows that differ in them."
        )
    missing = x.isnan().nonzero()
    if len(missing):
        row, column = missing[0].tolist()
        raise ValueError(
            f"gradients and X_std need numbers, but X has no value in row {row}, column {column} ({len(missing)} "
            "missing in total). Impute missing values first."
        )


@dataclass(frozen=True)
class InputGradients:
    ensemble: Ensemble
    options: Options

    def sloped(
        self, x: Tensor, noise: Tensor | None = None, *, of_std: bool = False
    ) -> tuple[Predictive, Tensor, Tensor | None]:
        """Moments of the targets at rows x (n, d), and gradients (n, d, C) of the mean and, if ``of_std``, of the std.

        ``noise`` (n, d) has standard deviations of input errors; the moments include the resulting variance.
        """

        def derivatives(moments: Predictive, leaf: Tensor) -> list[Tensor]:
            slopes = [row_gradients(moments.mean, leaf)]
            if of_std:
                slopes.append(root_gradients(moments.total_variance, leaf))
            parts = (moments.mean, moments.epistemic_variance, moments.aleatoric_variance)
            return [part.detach() for part in (*parts, *slopes)]

        with single_thread(self.ensemble.first.is_small):
            mean, epistemic, aleatoric, *slopes = self._differentiated(x, derivatives)
        self.ensemble.first.require_finite(torch.stack([part.sum() for part in (mean, epistemic, *slopes)]), [x])
        if noise is not None:
            aleatoric = aleatoric + (slopes[0] * noise[..., None]).square().sum(1)
        return Predictive(mean, epistemic, aleatoric), slopes[0], slopes[1] if of_std else None

    def moments_at(self, x: Tensor) -> Predictive:
        """Moments of the targets, differentiable with respect to x."""
        parts = [member.targets(member.latent(x, self.options), x, None) for member in self.ensemble.members]
        return self.ensemble.joined(parts).moments

    def _differentiated(self, x: Tensor, answer: Callable[[Predictive, Tensor], list[Tensor]]) -> list[Tensor]:
        """Apply ``answer`` to the moments and rows of each chunk; return the joined results."""
        parts = []
        for chunk in self._small_chunks(x):
            leaf = chunk.detach().clone().requires_grad_()
            parts.append(answer(self.moments_at(leaf), leaf))
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def _small_chunks(self, x: Tensor) -> Iterator[Tensor]:
        single = len(x) == 1  # fast path for optimisers, which predict single rows thousands of times
        rows = 1 if single else self.ensemble.first.chunk_size(self.options)[0] // (GRAPH * len(self.ensemble.members))
        yield from x.split(max(rows, 1))


def deviations(X_std: Any, shape: tuple[int, ...], names: Any = None) -> np.ndarray:
    """Standard deviations (n, d) of inputs, from a number, (d,) or (n, d); ``names`` are the column names of X."""
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
    """Column names of a dataframe, or names of the values in a series; None unless all of them are strings."""
    labels = column_names(values) or getattr(values, "index", None)
    if labels is None or callable(labels) or not all(isinstance(label, str) for label in labels):
        return None
    return list(labels)
