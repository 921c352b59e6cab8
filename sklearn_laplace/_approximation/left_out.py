r"""Leave-one-out of a fitted estimator's own rows: what it needs, what it may take, and the choice of hyperparameters.

The engine is ``laplace/leave_one_out/left_out.py`` and ``laplace/selection/loo.py``. Owned here: the exact curvature
that the left-out means come from (the fit's own where it is one, else one more pass over the rows), the memory, the
density for each likelihood, and what happens where one of prior precision and noise is chosen by leave-one-out and the
other by the evidence:

.. math:: \delta \leftarrow \arg\max_\delta \textstyle\sum_n w_n \log p(y_n \mid D_{-n}, \delta, \varphi), \qquad
          \varphi \leftarrow \arg\max_\varphi \log p(D \mid \delta, \varphi)

(or the other way round) in turn, until both rest. The weights stay where the training has left them, at the mode of the
evidence's choice. To let them follow was tried, three rounds of a choice and a training under it, and made predictions
worse on all of five tables (nats a row .01 to .5): the linearised net does not know that each row has shaped the
features that it is predicted from, so each round finds a weaker prior best.

Rows are those that were given, equal ones apart: to leave out one of two equal rows is not to leave out both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._data.rows import PreparedData
from .._host.rows import TrainingRows
from .._options.options import Options
from .._runtime.budget import exact_cost
from .._runtime.memory import ROW_BYTES, MemoryBudget, held
from .._training.random_weights import _as_tensors
from ..errors import MemoryBudgetError, UnsupportedCombinationError
from ..laplace.curvatures import GGN
from ..laplace.evidence import PRECISION_BOUNDS
from ..laplace.fit import Hyper, LaplaceFit, Rows, fit_laplace
from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.densities import Density
from ..laplace.leave_one_out.jackknife import left_out_models
from ..laplace.leave_one_out.left_out import leave_one_out, loo_log_density
from ..laplace.leave_one_out.rows import HELD
from ..laplace.likelihoods._base import without_noise
from ..laplace.network.network import Network
from ..laplace.selection import HeldOutErrors, maximise_evidence, select_loo, warn_at_bounds
from ..laplace.structures import Full, Functional
from ..laplace.structures._base import Curvature

ROUNDS, RESTING = 10, 0.01
"""Turns of two rules, and the change of the logarithms that ends them."""
POINTS = 40
"""Of a path, whose numbers are held for each row of a chunk."""


@dataclass(frozen=True)
class LeftOut:
    """Rows of a fit, to be left out one at a time.

    Parameters
    ----------
    rows : TrainingRows
        All rows of the fit, in the order of the answers.
    memory : MemoryBudget
    density : callable
        See :data:`~sklearn_laplace.laplace.leave_one_out.densities.Density`.
    """

    rows: TrainingRows
    memory: MemoryBudget
    density: Density

    def exact(self, fit: LaplaceFit) -> LaplaceFit:
        """The rows by ``GGN`` in an exact structure: the fit itself where it is that, else one more pass.

        Raises
        ------
        MemoryBudgetError
            When neither of the exact structures fits.
        """
        if isinstance(fit.curvature, Full | Functional) and isinstance(fit.rule, GGN):
            self._room(fit.network, fit.n_outputs, type(fit.curvature), held(fit.curvature))
            return fit
        n_columns, network = GGN().n_columns(fit.likelihood, fit.n_outputs), fit.network
        cheaper = exact_cost(network.blocks, n_columns * len(self.rows))[1]
        able: tuple[type[Curvature], ...] = (cheaper, Functional if cheaper is Full else Full)
        taken = held(fit.curvature)
        needed = {kind: kind.memory(network.blocks, n_columns * len(self.rows)) for kind in able}
        structure = next((kind for kind in able if needed[kind] + taken <= self.memory.size), None)
        if structure is None:
            least = min(needed.values())
            raise MemoryBudgetError(
                f"leave-one-out needs an exact curvature of the {network.n_parameters:,} random weights, about "
                f"{least / 1e9:,.3g} GB ({least:,} bytes) beside the posterior's {taken:,}; {self.memory}. Use "
                "subset_of_weights='last_layer', or choose prior and noise by the evidence."
            )
        step = self._room(network, fit.n_outputs, structure, needed[structure] + taken)
        return fit_laplace(network, fit.likelihood, GGN(), structure, fit.prior, self.rows.chunks(step))

    def batches(self, fit: LaplaceFit) -> list[Rows]:
        """The rows in chunks that memory allows beside an exact fit."""
        return self.rows.chunks(self._room(fit.network, fit.n_outputs, type(fit.curvature), held(fit.curvature)))

    def latent(self, fit: LaplaceFit, hyper: Hyper) -> LatentGaussian:
        """Mean and covariance of each row's outputs as of the model without it, see ``left_out.py`` of the engine."""
        exact = self.exact(fit)
        return leave_one_out(fit, exact, self.batches(exact), hyper)

    def errors(self, fit: LaplaceFit, hyper: Hyper) -> HeldOutErrors:
        """What the model says of each row without it, of numeric targets."""
        latent = self.latent(fit, hyper)
        y, noise = without_noise(self.rows.observed.double(), fit.n_outputs)
        return HeldOutErrors(y - latent.mean, latent.variance, noise, self.rows.weights.double())

    def expected_errors(self, fit: LaplaceFit, hyper: Hyper) -> HeldOutErrors:
        """Root mean square errors of the rows as they are, over the posterior: √(e² + V), and no variance beside."""
        posterior = fit.posterior(hyper, spectral=False)
        width = max(posterior.row_width(fit.network.blocks, fit.n_outputs), fit.network.row_width(fit.n_outputs))
        step, found = self.memory.chunk_rows(width, held(fit.curvature, posterior)), []
        for inputs, targets, _ in self.rows.chunks(step):
            outputs, jacobian = fit.network.jacobian(inputs)
            y, _ = without_noise(targets.double(), fit.n_outputs)
            found.append(((y - outputs).square() + posterior.covariance(jacobian).diagonal(dim1=1, dim2=2)).sqrt())
        errors = torch.cat(found)
        return HeldOutErrors(errors, torch.zeros_like(errors), torch.ones_like(errors), self.rows.weights.double())

    def log_density(self, fit: LaplaceFit, hyper: Hyper) -> float:
        """Σ w log p(yₙ given the other rows), nats, in the network's units."""
        exact = self.exact(fit)
        return loo_log_density(fit, exact, self.batches(exact), hyper, self.density)

    def intervals(self, fit: LaplaceFit, hyper: Hyper, inputs: Tensor, levels: Tensor) -> Tensor:
        """Ends of the jackknife+ intervals (m, 2, L, C) of a Gaussian fit at inputs (m, …), for levels (L,)."""
        exact, n_outputs = self.exact(fit), fit.n_outputs
        batches = self.batches(exact)
        models = left_out_models(exact, batches, hyper)
        one = max(models.posterior.row_width(fit.network.blocks, n_outputs), fit.network.row_width(n_outputs))
        across = n_outputs * (n_outputs * len(batches[0][2]) + 6 * len(self.rows))
        chunks = inputs.split(self.memory.chunk_rows(one + across, held(exact.curvature, models.posterior)))
        return torch.cat([models.interval(chunk, levels) for chunk in chunks])

    def chosen(self, fit: LaplaceFit, hyper: Hyper, options: Options, *, settled: bool = False) -> Hyper:
        """The hyperparameters, each by its own rule, at temperature 1.

        Parameters
        ----------
        fit : LaplaceFit
        hyper : Hyper
            Where to start; what is given, or has a rule that this is not about, keeps its value.
        options : Options
        settled : bool
            Whether a prior precision of best evidence is there already, found with the weights following.

        Warns
        -----
        BoundWarning
            When a value that was chosen sits on the bound of its search.
        """
        exact = self.exact(fit)
        batches, found = self.batches(exact), replace(hyper, temperature=1.0)
        (prior, noise), (prior_by_evidence, noise_by_evidence) = options.by_loo, options.by_evidence
        prior_by_evidence = prior_by_evidence and not settled
        for _ in range(ROUNDS if prior_by_evidence or noise_by_evidence else 1):
            before, start = found, found
            if prior_by_evidence or noise_by_evidence:
                free = {"free_prior": prior_by_evidence, "free_dispersion": noise_by_evidence}
                start = maximise_evidence(fit, found, **free, warn=False)
            found = select_loo(fit, exact, batches, start, self.density, free_prior=prior, free_dispersion=noise)
            found = _within_bounds(found, start.dispersion) if prior else found
            moved = (found.prior_precision / before.prior_precision).log().abs().max()
            if max(float(moved), abs(math.log(found.dispersion / before.dispersion))) < RESTING:
                break
        warn_at_bounds(fit, found, free_prior=prior, free_dispersion=noise, what="the leave-one-out density")
        warn_at_bounds(fit, found, free_prior=prior_by_evidence, free_dispersion=noise_by_evidence)
        return replace(found, temperature=hyper.temperature)

    def _room(self, network: Network, n_outputs: int, structure: type[Curvature], taken: int) -> int:
        """Rows of a chunk, beside what is taken and the Jacobians that are kept from pass to pass."""
        dual = len(self.rows) * n_outputs
        size = min(network.n_parameters, dual) if structure is Functional else network.n_parameters
        width = network.row_width(n_outputs) + n_outputs * (n_outputs + 2) * (size + POINTS)
        kept = 8 * min(len(self.rows) * sum(block.width(n_outputs) for block in network.blocks), HELD)
        if taken + kept + ROW_BYTES * width > self.memory.size:
            raise MemoryBudgetError(
                f"leave-one-out keeps about {kept / 1e6:,.3g} MB of Jacobians beside {taken / 1e6:,.3g} MB of an exact "
                f"curvature, and one row makes {ROW_BYTES * width / 1e6:,.3g} MB; {self.memory}. Use a larger "
                "memory_budget, or subset_of_weights='last_layer'."
            )
        return self.memory.chunk_rows(width, taken + kept)


def _within_bounds(hyper: Hyper, unit: float) -> Hyper:
    """Where prior and noise are searched together, in ρ = δφ, a ρ at its bound is a δ at its."""
    low, high = PRECISION_BOUNDS
    values, ratio = hyper.prior_precision, hyper.dispersion / unit
    values = torch.where(values * ratio >= high * (1 - 1e-6), high, values)
    values = torch.where(values * ratio <= low * (1 + 1e-6), low, values)
    return replace(hyper, prior_precision=values.clamp(low, high))


def rows_left_out(
    kept: PreparedData | None,
    network: Network,
    input_dtype: torch.dtype,
    memory: MemoryBudget,
    density: Density,
    asked: str,
) -> LeftOut:
    """The rows that an estimator has kept, as a fit of this network leaves them out.

    Raises
    ------
    UnsupportedCombinationError
        When there are none: names what has asked for them.
    """
    if kept is None:
        raise UnsupportedCombinationError(
            f"{asked} needs the training rows, and forget has dropped all that were kept. Fit the rows that are left."
        )
    dtype = next(network.module.parameters()).dtype
    return LeftOut(_as_tensors(kept, input_dtype, dtype, network.theta.device), memory, density)
