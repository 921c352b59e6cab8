"""Ensemble member: one net and its posterior, with predictions in the network's units.

The methods take rows as tensors and the resolved options. They need neither the estimator nor its parameters. Rows are
processed in chunks that fit the memory budget, in parallel with ``n_jobs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import joblib
import numpy as np
import torch
from skorch import NeuralNet
from torch import Tensor

from .._table.limits import held
from .._table.rows import PreparedData, TargetScale
from .._training.plan import FitRequest, GivenNet, MapResult, SelectionState
from ..laplace.evidence import effective_parameters, log_evidence
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.latent import Components, LatentGaussian, Predictive
from ..laplace.links._base import Link
from ..laplace.nonfinite import not_finite
from ..laplace.predictives import GLM
from ..laplace.predictives._base import PosteriorPredictive
from ..laplace.structures import STRUCTURES
from ..laplace.structures._base import Posterior
from ..laplace.torch_state import single_thread
from ..options.resolved import Options
from .choose import LeftOut, left_out_of
from .gaps import Filled
from .noise_model import NoiseModel
from .target_noise import Noise, TargetNoise

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Member:
    """One net, and the posterior over its random weights (``subset_of_weights``)."""

    net: NeuralNet
    fit: LaplaceFit  # network, likelihood, prior and curvature at the mode
    hyper: Hyper
    posterior: Posterior
    log_evidence: float  # of the targets in units of y, nats
    n_effective_parameters: float  # MacKay's γ
    origin: SelectionState  # results of the training, for selecting hyperparameters
    scale: TargetScale  # units of the targets and of their noise
    noise_model: NoiseModel | TargetNoise | None  # noise by inputs or by target; None: one level
    kept: PreparedData | None  # rows in their original order, for leave-one-out; None if not stored
    unseen: np.ndarray | None  # (n,), uint64, keys of the rows held out from the training
    n_bins: int | None  # bins of each numeric column; None without an encoding
    seed: int  # of all draws
    input_dtype: torch.dtype
    is_small: bool  # a single thread is fastest
    gradient_norm: float  # at the mode, nats per row
    mode_distance: float  # Newton decrement, posterior standard deviations
    history: list[dict[str, Any]]
    n_steps: int  # epochs and steps of the training
    is_streamed: bool = False  # rows were read from a source; unseen has keys of a sample only
    is_given: bool = False  # the user's net, trained by its own epochs or frozen

    def with_hyper(self, fit: LaplaceFit, hyper: Hyper, options: Options) -> Member:
        """Copy of the member with another fit at the same weights, or with other hyperparameters."""
        return replace(self, **hyper_fields(fit, hyper, self.scale, options))

    @property
    def prior_precision(self) -> float | np.ndarray:
        """Prior precision: a number, or an array (G,) with one value per group of weights."""
        values = self.hyper.prior_precision.cpu().numpy()
        return float(values[0]) if self.fit.prior.n_groups == 1 else values

    @property
    def structure(self) -> str:
        """Name of the posterior's structure."""
        return next(name for name, kind in STRUCTURES.items() if isinstance(self.fit.curvature, kind))

    # ------------------------------------------------------------------ predictions

    def predictive(self, options: Options) -> PosteriorPredictive:
        """Posterior predictive, with the same weight samples in every call."""
        if options.outside is not None:
            return GLM(options.outside)
        return options.predictive.prepared(self.posterior, options.n_samples, self.seed)

    def link(self, options: Options) -> Link | None:
        """Link of a classifier; None for a regressor."""
        link = options.link
        return None if link is None else link.drawn(options.n_samples, self.fit.n_outputs, self.seed)

    def outputs(self, x: Tensor, options: Options) -> Tensor:
        """Mean of the outputs (n, C), float64; needs only forward passes if the predictive allows it."""
        fit = self.fit
        with single_thread(self.is_small):
            predictive = self.predictive(options)

            def mean(part: Tensor) -> tuple[Tensor, Tensor]:
                filled = Filled.of(part, options.fillings)
                return with_sum(filled.mean(predictive.mean(fit.network, filled.rows, fit.shift)))

            return torch.cat(self._chunked(x, options, mean))

    def latent(self, x: Tensor, options: Options) -> LatentGaussian:
        """Output distribution of a few rows, differentiable with respect to the rows."""
        return self.predictive(options).latent(self.fit.network, self.posterior, x, self.fit.shift)

    def answers(self, x: Tensor, options: Options, answer: Callable[[LatentGaussian, Tensor], T]) -> list[T]:
        """Return ``answer(latent, rows)`` for each chunk of rows x (n, …). The outputs ``latent`` have to be finite."""
        fit, posterior = self.fit, self.posterior
        with single_thread(self.is_small):
            predictive = self.predictive(options)

            def answered(part: Tensor) -> tuple[T, Tensor]:
                filled = Filled.of(part, options.fillings)
                latent = filled.latent(predictive.latent(fit.network, posterior, filled.rows, fit.shift))
                return answer(latent, filled.centre), latent.mean.sum() + latent.covariance.sum()

            return self._chunked(x, options, answered)

    def components(self, x: Tensor, options: Options) -> Components:
        """Moments of the targets of rows x, by component of the mixture over uncertain noise levels."""
        link = self.link(options)
        return Components.of_rows(self.answers(x, options, lambda latent, part: self.targets(latent, part, link)))

    def targets(
        self, latent: LatentGaussian, x: Tensor, link: Link | None, nodes: tuple[Tensor, Tensor] | None = None
    ) -> Components:
        """Moments of the targets for the outputs ``latent``; ``nodes`` are the noise model's nodes at x, if known."""
        dispersion, varying = self.hyper.dispersion, self.noise_model
        moments = self.fit.likelihood.predict(latent, dispersion, link)
        if varying is None:
            return Components.of(moments)
        weights, values = varying.nodes(x) if nodes is None else nodes
        mean, epistemic = (part[..., None].expand_as(values) for part in (moments.mean, moments.epistemic_variance))
        return Components(weights, mean, epistemic, dispersion * values)

    def draws(self, x: Tensor, options: Options, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws (n, C, n_samples) of the outputs of the network or its linearisation."""
        predictive, fit = options.predictive, self.fit
        with single_thread(self.is_small):
            deviations = self.posterior.sample(n_samples, generator)
            seed = 0 if options.fillings is None else int(torch.randint(2**31, (), generator=generator))
            outside = None if options.outside is None else options.outside.drawn(n_samples, generator)

            def draw(part: Tensor) -> tuple[Tensor, Tensor]:
                filled = Filled.of(part, options.fillings)
                draws = predictive.functions(fit.network, deviations, filled.rows, fit.shift)
                draws = draws if outside is None else draws + outside(filled.rows)
                return with_sum(filled.chosen(draws, seed))

            return torch.cat(self._chunked(x, options, draw, n_samples))

    def target_draws(
        self, x: Tensor, options: Options, n_samples: int, generator: torch.Generator, *, noisy: bool
    ) -> Tensor:
        """Joint draws of numeric targets (n, C, n_samples), with or without noise."""
        draws, likelihood = self.draws(x, options, n_samples, generator), self.fit.likelihood
        if not likelihood.additive_noise:  # the log rate is normal with mean m − v/2
            draws = draws - 0.5 * torch.cat(self.answers(x, options, lambda latent, _: latent.variance))[..., None]
        if not noisy:
            return likelihood.conditional_mean(draws)
        if not likelihood.additive_noise:
            uniforms = torch.rand(draws.shape, generator=generator, dtype=torch.float64).clamp_min(2.0**-54)
            return likelihood.sample(draws, uniforms.to(draws.device))
        noise = torch.randn(draws.shape, generator=generator, dtype=torch.float64).to(draws.device)
        if self.noise_model is None:
            return draws + self.noise_variance.sqrt().to(draws)[:, None] * noise
        weights, ratios = self.noise_model.nodes(Filled.of(x, options.fillings).centre)
        chosen = torch.multinomial(weights.cpu(), draws.shape.numel(), replacement=True, generator=generator)
        variance = self.hyper.dispersion * ratios.gather(-1, chosen.view(draws.shape).to(ratios.device))
        return draws + variance.sqrt() * noise

    def joint_covariance(self, x: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        """Means (n, C) of new numeric targets, and covariances (n, n, C) between the rows."""
        fit, n, n_outputs = self.fit, len(x), self.fit.n_outputs
        predictive, filled = self.predictive(options), Filled.of(x, options.fillings)
        joint = predictive.joint_covariance(fit.network, self.posterior, filled.rows, fit.shift)
        if filled.counts is not None:
            joint = filled.joint(joint, predictive.mean(fit.network, filled.rows, fit.shift))
        self.require_finite(joint, [x])
        per_output = joint.view(n, n_outputs, n, n_outputs).diagonal(dim1=1, dim2=3)
        outputs, dispersion = self.outputs(x, options), self.hyper.dispersion
        if self.noise_model is None:
            covariance = fit.likelihood.joint_covariance(outputs, per_output, dispersion)
        else:
            covariance = per_output + torch.diag_embed(dispersion * self.noise_ratios(filled.centre).mT).movedim(0, -1)
        return fit.likelihood.conditional_mean(outputs), covariance

    def noise_ratios(self, x: Tensor) -> Tensor:
        """Noise variances of rows in units of φ, shape (n, C)."""
        if self.noise_model is not None:
            return self.noise_model.mean_ratio(x)
        return self.fit.likelihood.noise_variance(1.0, self.fit.n_outputs, x.device).expand(len(x), -1)

    @property
    def noise_variance(self) -> Tensor:
        """Noise variances (C,) of a new row under a constant noise level."""
        return self.fit.likelihood.noise_variance(self.hyper.dispersion, self.fit.n_outputs)

    # ------------------------------------------------------------------ stored rows

    def left_out(self, options: Options, needed_by: str) -> LeftOut:
        """The stored rows, for leave-one-out; an error names ``needed_by``, the option or method that needs them."""
        return left_out_of(self.kept, self.input_dtype, self.seed, self.fit, options, needed_by)

    def left_out_moments(self, options: Options, link: Link | None) -> Predictive:
        """Leave-one-out moments of the targets of the stored rows."""
        with single_thread(self.is_small):
            left_out = self.left_out(options, "loo_predict")
            latent, dispersion = left_out.latent(self.fit, self.hyper), self.hyper.dispersion
            moments = self.fit.likelihood.predict(latent, dispersion, link)
            if (varying := self.noise_model) is None:
                return moments
            ratios = varying.ratios(left_out.rows.inputs)
            return replace(moments, aleatoric_variance=dispersion * ratios)

    def left_out_densities(self, options: Options, needed_by: str) -> np.ndarray:
        """Leave-one-out log densities (n,) of the stored rows, in nats."""
        with single_thread(self.is_small):
            left_out = self.left_out(options, needed_by)
            latent = left_out.latent(self.fit, self.hyper)
            rows = left_out.rows
            scored = self.fit.likelihood.scored(latent, rows.observed, rows.weights.double())
            densities = left_out.density(*scored, self.hyper.dispersion)
        return densities.cpu().numpy()

    def under_noise(self, data: PreparedData) -> PreparedData:
        """Return the rows with the noise model's variances if the net was trained under this model."""
        if self.noise_model is None or not self.noise_model.is_trained_under:
            return data
        return replace(data.under_noise(self.noise_model.ratios_of(data.X)), scale=self.scale)

    # ------------------------------------------------------------------ chunks

    @property
    def row_width(self) -> int:
        """Number of elements per row in a prediction: those of the Jacobian or, if more, of the posterior's arrays."""
        network, n_outputs = self.fit.network, self.fit.n_outputs
        return max(self.posterior.row_width(network.blocks, n_outputs), network.row_width(n_outputs))

    def chunk_size(self, options: Options, n_draws: int = 0) -> tuple[int, int]:
        """Number of rows in a chunk, and number of chunks processed at a time."""
        width = max(
            self.row_width,
            self.fit.n_outputs * options.n_samples,
            n_draws * max(block.outputs for block in self.fit.network.blocks),
        )
        used, memory = held(self.posterior, self.fit.curvature), options.memory
        n_jobs = memory.chunk_workers(width, used, joblib.effective_n_jobs(options.n_jobs))
        rows = memory.chunk_rows(width, used, self.fit.theta.device, n_jobs)
        return rows if options.fillings is None else max(rows // len(options.fillings), 1), n_jobs

    def _chunked(
        self, x: Tensor, options: Options, function: Callable[[Tensor], tuple[T, Tensor]], n_draws: int = 0
    ) -> list[T]:
        """Return the first result of ``function`` for each chunk. The second one is a sum that has to be finite."""
        rows, n_jobs = self.chunk_size(options, n_draws)
        chunks = x.split(rows)
        n_jobs = min(n_jobs, len(chunks))

        def of_chunk(part: Tensor) -> tuple[T, Tensor]:
            with single_thread(n_jobs > 1):
                return function(part)

        results = joblib.Parallel(n_jobs, require="sharedmem")(joblib.delayed(of_chunk)(part) for part in chunks)
        self.require_finite(torch.stack([total for _, total in results]), chunks)
        return [value for value, _ in results]

    def require_finite(self, values: Tensor, chunks: Sequence[Tensor]) -> None:
        """Raise ``NonFiniteError`` if a value is NaN or infinite; the error names the layer and the rows."""
        if not bool(torch.isfinite(values).all()):
            raise not_finite(self.fit.network, [(part,) for part in chunks])


def hyper_fields(fit: LaplaceFit, hyper: Hyper, scale: TargetScale, options: Options) -> dict[str, Any]:
    """Fields of a :class:`Member` that depend on its fit and hyperparameters."""
    posterior = used = fit.posterior(hyper)
    if options.damped:  # for predictions; MacKay's formulas assume the undamped posterior
        used = fit.damped_posterior(hyper)
    evidence = log_evidence(fit, hyper, posterior)
    return {
        "fit": fit,
        "hyper": hyper,
        "posterior": used,
        "log_evidence": evidence - fit.total_weight * scale.log_volume,
        "n_effective_parameters": effective_parameters(fit, hyper, posterior),
    }


def with_sum(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of a chunk, and their sum, which has to be finite."""
    return values, values.sum()


def member_of(
    request: FitRequest,
    trained: MapResult | GivenNet,
    fit: LaplaceFit,
    hyper: Hyper,
    origin: SelectionState,
    noise_model: Noise,
) -> Member:
    unseen = None
    fields = hyper_fields(fit, hyper, request.data.scale, request.resolved)
    if isinstance(trained, GivenNet):  # distance of the random weights from the mode under the selected prior
        gradient = fit.objective_gradient(hyper)
        distance = math.sqrt(max(float(gradient @ fields["posterior"].solve(gradient)), 0.0))
        unseen = request.data.unshared_keys(trained.held_out.cpu().numpy()) if len(trained.held_out) else None
    else:
        gradient = trained.mode.fit.objective_gradient(trained.mode.hyper)
        distance = trained.mode.decrement
    return Member(
        **fields,
        net=trained.net,
        origin=origin,
        scale=request.data.scale,
        noise_model=noise_model,
        kept=request.kept,
        unseen=unseen,
        n_bins=request.parameters["n_bins"],
        seed=request.seeds[2],
        input_dtype=trained.input_dtype,
        is_small=trained.is_small,
        gradient_norm=float(gradient.norm()) / max(fit.total_weight, 1.0),
        mode_distance=distance,
        history=trained.history,
        n_steps=trained.n_steps,
        is_given=isinstance(trained, GivenNet),
    )
