r"""Selection of prior precision and noise level of a posterior: by evidence, leave-one-out, or held-out folds.

**Leave-one-out** uses the rows of a fitted estimator. The formulas are in ``laplace/leave_one_out/left_out.py`` and
``laplace/selection/loo.py``. They need an exact curvature. If the fit's curvature is not exact, one more pass over the
rows computes an exact one. This module provides the curvature and limits the memory. If leave-one-out selects the prior
precision and the evidence selects the noise level, the two updates

.. math:: \delta \leftarrow \arg\max_\delta \textstyle\sum_n w_n \log p(y_n \mid D_{-n}, \delta, \varphi), \qquad
          \varphi \leftarrow \arg\max_\varphi \log p(D \mid \delta, \varphi)

alternate until convergence, or at most ``ROUNDS`` times. They also alternate if the two rules are exchanged. The
weights remain at the mode found in training. They are not trained again under the selected hyperparameters (see
``docs/decisions.md``). Equal rows are not merged here: of two equal rows, only one is left out at a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from .._table.limits import ROW_BYTES, MemoryBudget, exact_cost, held, of_last_layer
from .._table.rows import PreparedData
from .._training.plan import SelectionState, tempering
from ..distributions.negative_binomial_log_normal import counts_of
from ..errors import MemoryBudgetError, UnsupportedCombinationError
from ..laplace.curvatures import GGN
from ..laplace.evidence import PRECISION_BOUNDS
from ..laplace.fit import Hyper, LaplaceFit, Rows, TrainingRows, fit_laplace
from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.left_out import leave_one_out, loo_log_density
from ..laplace.leave_one_out.rows import HELD, Density, class_density, gaussian_density
from ..laplace.likelihoods._base import Likelihood, without_noise
from ..laplace.links import LINKS
from ..laplace.links._base import Link
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.selection import HeldOutErrors, HeldOutScores, maximise_evidence, select_loo, warn_at_bounds
from ..laplace.structures import Diag, Full, Functional
from ..laplace.structures._base import Curvature
from ..options.resolved import DISPERSION_RULES, Options


def density_of(likelihood: Likelihood, link: Link | None = None) -> Density:
    """Log density function, in nats, of a left-out target: a class if ``link`` is given, else a number or count."""
    if link is not None:
        return class_density(likelihood, link)
    return gaussian_density if likelihood.has_dispersion else partial(_count_density, likelihood)


def density_for(likelihood: Likelihood, link: str = "probit") -> Density:
    """As :func:`density_of`, for held-out rows, with a fixed link, because a fitted estimator's link may change.

    For many classes, "probit" is underconfident, which favours a narrow posterior. This compensates for another effect:
    nets trained on fewer rows favour a wide posterior.
    """
    return density_of(likelihood, LINKS[link](torch.zeros(0, 0)) if likelihood.over_classes else None)


def _count_density(likelihood: Likelihood, latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
    mean, variance = latent.mean.cpu().numpy(), latent.variance.cpu().numpy()
    log_probability = counts_of(likelihood, mean, variance).logpmf(targets.double().cpu().numpy())
    return torch.from_numpy(log_probability).sum(-1).to(latent.mean)


ROUNDS, RESTING = 10, 0.01
"""Maximum number of alternations between two rules, and change of log δ and log φ below which the alternation stops."""
POINTS = 40
"""Number of points of a leave-one-out path in memory estimates. All points are stored for each row of a chunk."""


@dataclass(frozen=True)
class LeftOut:
    """Rows of a fit for leave-one-out predictions, whose results have the same order."""

    rows: TrainingRows
    memory: MemoryBudget
    density: Density  # log density of a target

    def exact(self, fit: LaplaceFit) -> LaplaceFit:
        """Return a fit to the rows with ``GGN`` and an exact structure: ``fit`` itself, or one from a further pass."""
        if isinstance(fit.curvature, Full | Functional) and isinstance(fit.rule, GGN):
            self._room(fit.network, fit.n_outputs, type(fit.curvature), held(fit.curvature))
            return fit
        n_columns, network = GGN().n_columns(fit.likelihood, fit.n_outputs), fit.network
        cheaper = exact_cost(network.blocks, n_columns * len(self.rows))[1]
        candidates: tuple[type[Curvature], ...] = (cheaper, Functional if cheaper is Full else Full)
        of_posterior = held(fit.curvature)
        needed = {kind: kind.memory(network.blocks, n_columns * len(self.rows)) for kind in candidates}
        structure = next((kind for kind in candidates if needed[kind] + of_posterior <= self.memory.size), None)
        if structure is None:
            least = min(needed.values())
            raise MemoryBudgetError(
                f"leave-one-out needs an exact curvature of the {network.n_parameters:,} random weights, about "
                f"{least / 1e9:,.3g} GB ({least:,} bytes) in addition to {of_posterior:,} bytes of the posterior; "
                f"{self.memory}. Use a larger memory_budget, {of_last_layer(network)}or 'evidence' in place of 'loo'."
            )
        step = self._room(network, fit.n_outputs, structure, needed[structure] + of_posterior)
        return fit_laplace(network, fit.likelihood, GGN(), structure, fit.prior, self.rows.chunks(step))

    def batches(self, fit: LaplaceFit) -> list[Rows]:
        """Return the rows in chunks that fit in memory next to the exact curvature of ``fit``."""
        return self.rows.chunks(self._room(fit.network, fit.n_outputs, type(fit.curvature), held(fit.curvature)))

    def latent(self, fit: LaplaceFit, hyper: Hyper) -> LatentGaussian:
        """Mean and covariance of each row's outputs under the model without that row."""
        exact = self.exact(fit)
        return leave_one_out(fit, exact, self.batches(exact), hyper)

    def errors(self, fit: LaplaceFit, hyper: Hyper) -> HeldOutErrors:
        """Errors of each row under the model without that row, for numeric targets."""
        latent = self.latent(fit, hyper)
        y, noise = without_noise(self.rows.observed.double(), fit.n_outputs)
        return HeldOutErrors(y - latent.mean, latent.variance, noise, self.rows.weights.double())

    def expected_errors(self, fit: LaplaceFit, hyper: Hyper) -> HeldOutErrors:
        """Errors √(e² + V) of the training rows, with residual e and posterior variance V; returned variances are 0."""
        posterior = fit.posterior(hyper, spectral=False)
        width = max(posterior.row_width(fit.network.blocks, fit.n_outputs), fit.network.row_width(fit.n_outputs))
        step, parts = self.memory.chunk_rows(width, held(fit.curvature, posterior), fit.theta.device), []
        for inputs, targets, _ in self.rows.chunks(step):
            outputs, jacobian = fit.network.jacobian(inputs)
            y, _ = without_noise(targets.double(), fit.n_outputs)
            parts.append(((y - outputs).square() + posterior.covariance(jacobian).diagonal(dim1=1, dim2=2)).sqrt())
        errors = torch.cat(parts)
        return HeldOutErrors(errors, torch.zeros_like(errors), torch.ones_like(errors), self.rows.weights.double())

    def log_density(self, fit: LaplaceFit, hyper: Hyper) -> float:
        """Leave-one-out log density Σ wₙ log p(yₙ | D₋ₙ), in nats and the network's units."""
        exact = self.exact(fit)
        return loo_log_density(fit, exact, self.batches(exact), hyper, self.density)

    def chosen(self, fit: LaplaceFit, hyper: Hyper, options: Options, *, settled: bool = False) -> Hyper:
        """Select prior precision and noise level, each by its own rule, at temperature 1.

        Values that are fixed, or that have a rule other than leave-one-out or the evidence, are kept. If ``settled``, a
        prior precision that the evidence has already selected in training is kept as well.
        """
        exact = self.exact(fit)
        batches, chosen = self.batches(exact), replace(hyper, temperature=1.0)
        (prior, noise), (prior_by_evidence, noise_by_evidence) = options.by_loo, options.by_evidence
        prior_by_evidence = prior_by_evidence and not settled
        for _ in range(ROUNDS if prior_by_evidence or noise_by_evidence else 1):
            before, start = chosen, chosen
            if prior_by_evidence or noise_by_evidence:
                free = {"free_prior": prior_by_evidence, "free_dispersion": noise_by_evidence}
                start = maximise_evidence(fit, chosen, **free, warn=False)
            chosen = select_loo(fit, exact, batches, start, self.density, free_prior=prior, free_dispersion=noise)
            chosen = _within_bounds(chosen, start.dispersion) if prior else chosen
            moved = (chosen.prior_precision / before.prior_precision).log().abs().max()
            if max(float(moved), abs(math.log(chosen.dispersion / before.dispersion))) < RESTING:
                break
        warn_at_bounds(fit, chosen, free_prior=prior, free_dispersion=noise, what="the leave-one-out density")
        warn_at_bounds(fit, chosen, free_prior=prior_by_evidence, free_dispersion=noise_by_evidence)
        return replace(chosen, temperature=hyper.temperature)

    def _room(self, network: Network, n_outputs: int, structure: type[Curvature], used_bytes: int) -> int:
        """Number of rows per chunk that fit in memory next to ``used_bytes`` of curvatures and the stored Jacobians."""
        dual = len(self.rows) * n_outputs
        size = min(network.n_parameters, dual) if structure is Functional else network.n_parameters
        width = network.row_width(n_outputs) + n_outputs * (n_outputs + 2) * (size + POINTS)
        kept = 8 * min(len(self.rows) * sum(block.width(n_outputs) for block in network.blocks), HELD)
        if used_bytes + kept + ROW_BYTES * width > self.memory.size:
            last = of_last_layer(network)
            raise MemoryBudgetError(
                f"leave-one-out needs about {kept / 1e6:,.3g} MB for Jacobians, {used_bytes / 1e6:,.3g} MB for "
                f"curvatures and {ROW_BYTES * width / 1e6:,.3g} MB for each row of a chunk; {self.memory}. Use "
                f"{last and last + 'or '}a larger memory_budget."
            )
        return self.memory.chunk_rows(width, used_bytes + kept, network.theta.device)


def _within_bounds(hyper: Hyper, unit: float) -> Hyper:
    """Set δ to its bound if δ · φ / ``unit`` is there: a joint search bounds that. ``unit`` is the initial φ."""
    low, high = PRECISION_BOUNDS
    values, ratio = hyper.prior_precision, hyper.dispersion / unit
    values = torch.where(values * ratio >= high * (1 - 1e-6), high, values)
    values = torch.where(values * ratio <= low * (1 + 1e-6), low, values)
    return replace(hyper, prior_precision=values.clamp(low, high))


def left_out_of(
    kept: PreparedData | None,
    input_dtype: torch.dtype,
    seed: int,
    fit: LaplaceFit,
    options: Options,
    needed_by: str = "leave-one-out",
    *,
    in_order: bool = False,
) -> LeftOut:
    """Stored rows for leave-one-out; ``in_order`` sorts large data by row keys. ``seed`` is for draws of the link."""
    if kept is None:
        raise UnsupportedCombinationError(
            f"{needed_by} needs the training rows, but forget has removed the stored rows. Fit the remaining rows "
            "again."
        )
    kept = kept.in_order() if in_order else kept
    dtype = next(fit.network.module.parameters()).dtype
    link = None if options.link is None else options.link.drawn(options.n_samples, fit.n_outputs, seed)
    density = density_of(fit.likelihood, link)
    return LeftOut(kept.tensors(input_dtype, dtype, fit.theta.device), options.memory, density)


def _variance(network: Network, prior: Prior, hyper: Hyper, rows: TrainingRows, options: Options) -> Tensor:
    """Marginal variances (P,) of a diagonal posterior over all weights, under the hyperparameters of the training.

    The posterior's own hyperparameters are not used, because they can be selected again later without the data.
    """
    rule, memory = options.rule, options.memory
    n_columns = rule.n_columns(options.likelihood, rows.n_outputs)
    n_bytes = memory.require(Diag, network, n_columns * len(rows), n_columns, rule)
    chunks = rows.chunks(memory.pass_rows(Diag, network, n_columns, n_bytes))
    fit = fit_laplace(network, options.likelihood, rule, Diag, prior, chunks)
    return fit.posterior(hyper).marginal_variance()


def choose(
    fit: LaplaceFit,
    origin: SelectionState,
    options: Options,
    dispersion: float | None,
    left_out: Callable[[], LeftOut],
) -> Hyper:
    """Select the hyperparameters of a posterior at fixed weights, by the rules that the options specify.

    ``dispersion`` is a fixed φ, or None. ``left_out`` returns the rows of the fit, for leave-one-out only.
    """
    start = _start(origin, fit, options)
    if dispersion is not None:
        start = replace(start, dispersion=dispersion)
    settled = fit.shift is None and origin.settled_for == options.as_trained
    free_prior, free_noise = options.prior_precision.free, options.sigma_noise.free
    by_evidence = options.by_evidence[1]
    if free_noise and not (by_evidence or options.by_loo[1]):
        start = DISPERSION_RULES[options.sigma_noise.rule](fit, start)
    if any(options.by_loo):
        return left_out().chosen(fit, start, options, settled=settled)
    held_out = origin.held_out(fit, start)
    prior_held_out, noise_held_out = options.by_held_out
    if held_out is not None and prior_held_out == free_prior and noise_held_out == free_noise:
        return _by_held_out(held_out, fit, start, options)
    if settled:
        warn_at_bounds(fit, start, free_prior=free_prior, free_dispersion=free_noise)
    elif free_prior or (free_noise and by_evidence):
        # The evidence is maximised at temperature 1; the temperature applies to the selected posterior.
        optimum = maximise_evidence(
            fit, replace(start, temperature=1.0), free_prior=free_prior, free_dispersion=free_noise and by_evidence
        )
        start = replace(optimum, temperature=start.temperature)
    held_out = origin.held_out(fit, start)  # None if the ratios between the precisions have changed
    return start if held_out is None else _by_held_out(held_out, fit, start, options)


def _by_held_out(scores: HeldOutScores, fit: LaplaceFit, start: Hyper, options: Options) -> Hyper:
    prior, noise = options.by_held_out
    hyper = scores.chosen(start, free_prior=prior, free_dispersion=noise)
    warn_at_bounds(fit, hyper, free_prior=False, free_dispersion=noise, what="the density of held-out rows")
    return hyper


def _start(origin: SelectionState, fit: LaplaceFit, options: Options) -> Hyper:
    """Initial hyperparameters of the random weights: fixed prior precisions if given, else those of the training."""
    hyper, prior = origin.hyper, fit.prior
    value = options.prior_precision.value
    if value is None:
        names, values = origin.groups, hyper.prior_precision
    else:
        names = options.grouping.names(fit.network, origin.tensors)
        values = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
        values = values.expand(len(names)) if len(values) == 1 else values
    if prior.names == names or prior.n_groups == len(values) == 1:
        precision = values
    else:
        by_name, default = dict(zip(names, values.tolist(), strict=True)), float(values.log().mean().exp())
        precision = torch.tensor([by_name.get(name, default) for name in prior.names], dtype=torch.float64)
    temperature = tempering(fit.network, options.temperature)
    return Hyper(precision.to(hyper.prior_precision), hyper.dispersion, temperature)
