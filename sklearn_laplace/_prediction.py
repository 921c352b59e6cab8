"""How a fitted estimator answers about new rows: its network's outputs and their distribution, chunk by chunk.

In the network's units; the estimators bring them into those of the user. Chunks are as large as the memory budget
allows, and several workers take one each.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import joblib
import numpy as np
import torch
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from . import _cross_validation, _resolve
from ._autograd import ordinary_tensors
from ._cross_validation import PriorScores
from ._given import readable
from ._memory import held
from ._noise_model import NoiseModel
from ._resolve import Options
from ._show import ShownEstimator
from ._tables import Table, check_rows, with_gaps
from ._threads import single_thread
from .errors import NonFiniteError
from .laplace import Hyper, LaplaceFit
from .latent import Components, LatentGaussian
from .likelihoods._base import Link
from .nonfinite import not_finite
from .predictives._base import PosteriorPredictive
from .structures._base import Posterior

T = TypeVar("T")
NAMED_ROWS = 5
"""Of those in which something is not finite."""


class LaplacePrediction(ShownEstimator, ABC):
    """What :class:`LaplaceEstimator` predicts with, once it is fitted."""

    _kind: str
    n_samples: int
    n_jobs: int | None
    laplace_: LaplaceFit
    posterior_: Posterior
    hyper_: Hyper
    n_outputs_: int
    _input_dtype: torch.dtype
    _seed: int
    _small: bool
    _prior_scores: PriorScores | None = None
    noise_model_: NoiseModel | None = None

    _table: Table | None = None

    @ordinary_tensors()
    def _inputs(self, X: Any) -> Tensor:
        """Validated inputs as a tensor."""
        check_is_fitted(self)
        table = self._table
        X, _ = check_rows(self, X, tables=table is not None, reset=False)
        X = X if table is None else table.coded(X)
        return torch.tensor(X, dtype=self._input_dtype, device=self.posterior_.device)

    def _chunks(self, X: Any, n_draws: int = 0) -> tuple[tuple[Tensor, ...], int]:
        """Validated inputs in chunks, and how many of these may be in work at once; with so many draws of each row."""
        inputs = self._inputs(X)
        rows, n_jobs = self._chunk_size(n_draws)
        return inputs.split(rows), n_jobs

    def _chunk_size(self, n_draws: int = 0) -> tuple[int, int]:
        """Rows of a chunk, and how many chunks may be in work at once."""
        network, posterior = self.laplace_.network, self.posterior_
        width = max(
            posterior.row_width(network.blocks, self.laplace_.n_outputs),
            network.row_width(self.laplace_.n_outputs),
            self.laplace_.n_outputs * int(self.n_samples),
            n_draws * max(block.outputs for block in network.blocks),
        )
        taken, memory = held(posterior, self.laplace_.curvature), self._options().memory
        n_jobs = memory.chunk_workers(width, taken, joblib.effective_n_jobs(self.n_jobs))
        return memory.chunk_rows(width, taken, n_jobs), n_jobs

    def _parameters(self) -> dict[str, Any]:
        """All of them by name, with the prior precision that held-out rows have chosen in place of its rule."""
        return _cross_validation.settled(self.get_params(deep=False), self._prior_scores)

    def _options(self) -> Options:
        return _resolve.resolve(self._kind, self._parameters())

    def _rule(self) -> PosteriorPredictive:
        """From the posterior to the outputs; with weight samples of its own, the same in every call."""
        return self._options().predictive.prepared(self.posterior_, int(self.n_samples), self._seed)

    @ordinary_tensors()
    def _answers(self, X: Any, answer: Callable[[LatentGaussian, Tensor], T]) -> list[T]:
        """What is made of the distribution over the network's outputs, in its own units, chunk by chunk."""
        fit, posterior = self.laplace_, self.posterior_
        with single_thread(self._small):
            rule = self._rule()

            def answered(x: Tensor) -> tuple[T, Tensor]:
                latent = rule.latent(fit.network, posterior, x, fit.shift)
                return answer(latent, x), latent.mean.sum() + latent.covariance.sum()

            return self._finite(X, answered)

    @ordinary_tensors()
    def _own_outputs(self, X: Any) -> Tensor:
        fit = self.laplace_
        with single_thread(self._small):
            rule = self._rule()
            return torch.cat(self._finite(X, lambda x: _with_sum(rule.mean(fit.network, x, fit.shift))))

    def _finite(self, X: Any, function: Callable[[Tensor], tuple[T, Tensor]], n_draws: int = 0) -> list[T]:
        """What a function makes of each chunk; the sum that comes with it is to be finite."""
        chunks, n_jobs = self._chunks(X, n_draws)
        n_jobs = min(n_jobs, len(chunks))

        def alone(x: Tensor) -> tuple[T, Tensor]:
            with single_thread(n_jobs > 1):
                return function(x)

        found = joblib.Parallel(n_jobs, require="sharedmem")(joblib.delayed(alone)(x) for x in chunks)
        self._require_finite(torch.stack([total for _, total in found]), X, chunks)
        return [value for value, _ in found]

    def _require_finite(self, values: Tensor, X: Any, chunks: Iterable[Tensor]) -> None:
        """What is predicted is finite, or an error names the layer and the rows.

        Raises
        ------
        NonFiniteError
        """
        if not bool(torch.isfinite(values).all()):
            with naming_rows(X, lambda: self._table):
                raise not_finite(self.laplace_.network, [(x,) for x in chunks])

    def _own_components(self, X: Any, link: Link | None) -> Components:
        return Components.of_rows(self._answers(X, lambda latent, x: self._own_targets(latent, x, link)))

    def _own_targets(self, latent: LatentGaussian, x: Tensor, link: Link | None) -> Components:
        """The targets of rows x of which the outputs are known so far, in the network's units."""
        dispersion, varying = self.hyper_.dispersion, self.noise_model_
        moments = self.laplace_.likelihood.predict(latent, dispersion, link)
        return Components.of(moments) if varying is None else varying.components(moments, x, dispersion)

    @ordinary_tensors()
    def _own_draws(self, X: Any, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws of the network's outputs, or of the linearised network's, shape (n, C, n_samples)."""
        predictive, fit = self._options().predictive, self.laplace_
        with single_thread(self._small):
            deviations = self.posterior_.sample(n_samples, generator)

            def drawn(x: Tensor) -> tuple[Tensor, Tensor]:
                return _with_sum(predictive.functions(fit.network, deviations, x, fit.shift))

            return torch.cat(self._finite(X, drawn, n_samples))


def _with_sum(values: Tensor) -> tuple[Tensor, Tensor]:
    return values, values.sum()


@contextmanager
def naming_rows(X: Any, table_of: Callable[[], Table | None]) -> Iterator[None]:
    """An error about values that are not finite says which rows of X they come from."""
    try:
        yield
    except NonFiniteError as error:
        if error.inputs is None or not len(error.inputs):
            raise
        table, X = table_of(), readable(X, "X")
        X = check_array(X, dtype=np.float64, ensure_all_finite=False) if table is None else table.coded(with_gaps(X))
        rows, found = torch.tensor(X).to(error.inputs), error.inputs[:NAMED_ROWS, None]
        same = ((rows == found) | (rows.isnan() & found.isnan())).all(-1).any(0)
        numbers = ", ".join(map(str, same.nonzero()[:, 0].tolist()))
        raise type(error)(f"{error} First in rows of X: {numbers}.", error.inputs) from error
