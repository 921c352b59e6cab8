"""What both estimators share: parameters, validation, ``fit`` as a handful of calls, prediction in chunks.

Here the user's units begin: inputs and targets come in as arrays, are standardised, and moments go back out as float64
arrays in the units of y. A fit that fails leaves the estimator as it was.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import isclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from skorch import NeuralNet
from torch import Tensor, nn

from . import _map, _resolve, _skorch
from ._map import MapResult, Plan
from ._resolve import Options
from ._skorch import TrainingRows
from ._threads import single_thread
from .evidence import effective_parameters, log_evidence
from .laplace import Hyper, LaplaceFit, fit_laplace
from .latent import LatentGaussian, Predictive
from .likelihoods import Categorical
from .likelihoods._base import Link
from .nets import MLP
from .network import Network
from .prior import Prior
from .selection import maximise_evidence, warn_at_bounds
from .structures import STRUCTURES, Full, Functional
from .structures._base import Curvature


@dataclass(frozen=True)
class TargetScale:
    """The affine map from the user's targets to the network's: (y − mean) / scale.

    Parameters
    ----------
    mean, scale : ndarray of shape (C,)
        Zeros and ones for classes.
    """

    mean: np.ndarray
    scale: np.ndarray

    @property
    def log_volume(self) -> float:
        """Σ_c log scale_c: what one row of weight 1 subtracts from a log density in the network's units."""
        return float(np.log(self.scale).sum())


@dataclass(frozen=True)
class PreparedData:
    """Validated training data.

    Parameters
    ----------
    X : ndarray of shape (n, d), float64
    targets : ndarray of shape (n, C) or (n,)
        Standardised targets, float64, or class indices.
    weights : ndarray of shape (n,), float64
    n_outputs : int
    scale : TargetScale
    """

    X: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    n_outputs: int
    scale: TargetScale

    @property
    def total_weight(self) -> float:
        """N_w."""
        return float(self.weights.sum())


class LaplaceEstimator(BaseEstimator, ABC):
    """Parameters and ``fit`` of :class:`LaplaceRegressor` and :class:`LaplaceClassifier`."""

    _kind: str

    @abstractmethod
    def predict_std(self, X: Any, *, kind: str) -> np.ndarray:
        """Standard deviation of the prediction, see the subclasses."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the net to the mode of its posterior and approximate the posterior around it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Raw columns; the built-in net standardises them.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, or class labels of any type.
        sample_weight : array-like of shape (n_samples,), optional
            Weights, not negative. A weight of k is the same as k copies of the row.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For invalid data, options that are unknown or exclude each other, a net that does not fit the data.
        NonFiniteLossError
            When the training loss becomes NaN or infinite.
        MemoryBudgetError
            When the posterior asked for would not fit in memory.
        """
        before = dict(self.__dict__)
        try:
            return self._fit(X, y, sample_weight)
        except BaseException:  # an interrupt as well: a failed fit leaves the estimator as it was
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        options = _resolve.resolve(self._kind, self.get_params(deep=False))
        data = self._prepare(X, y, sample_weight)
        _check_net(self.net)
        seeds = check_random_state(self.random_state).randint(np.iinfo(np.int32).max, size=3).tolist()
        rows = _tensors(data, options)
        options = replace(options, likelihood=options.likelihood.scaled_to(_mean_variance(data)))
        trained = self._train(rows, data, options, seeds)
        small = _map.is_small(trained.mode.fit.network, _map.n_dual_rows(rows, options.likelihood, data.n_outputs))
        with single_thread(small):
            fit, hyper = self._approximate(trained, rows, data, options)
            self._publish(trained, fit, hyper, data, seeds[2], small)
        return self

    # ------------------------------------------------------------------ the stages of fit

    @abstractmethod
    def _prepare(self, X: Any, y: Any, sample_weight: Any) -> PreparedData:
        """Validate the data and bring the targets into the network's units."""

    def _validate_rows(
        self, X: Any, y: Any, sample_weight: Any, *, y_numeric: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X and y as arrays, and weights (n,); rows of weight zero are dropped."""
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", multi_output=y_numeric, y_numeric=y_numeric)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        present = weights > 0
        if not present.any():
            raise ValueError("sample_weight is zero for every row; at least one row needs a positive weight.")
        return X[present], y[present], weights[present]

    def _build_net(self, data: PreparedData, rows: TrainingRows, options: Options, seed: int) -> NeuralNet:
        source, parameters = self.net, {}
        if self.net is None:
            mean = np.average(data.X, axis=0, weights=data.weights)
            deviation = np.sqrt(np.average((data.X - mean) ** 2, axis=0, weights=data.weights))
            constant = deviation <= 1e-12 * (1 + np.abs(mean))
            source, parameters = (
                MLP,
                {
                    "in_features": data.X.shape[1],
                    "out_features": data.n_outputs,
                    "hidden_layer_sizes": tuple(self.hidden_layer_sizes),
                    "activation": self.activation,
                    "input_mean": mean.tolist(),
                    "input_scale": np.where(constant, 1.0, deviation).tolist(),
                    "seed": seed,
                },
            )
        return _skorch.build_net(
            source,
            parameters,
            options.likelihood,
            rows,
            data.n_outputs,
            max_epochs=self.max_epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            seed=seed,
            verbose=int(self.verbose),
        )

    def _train(self, rows: TrainingRows, data: PreparedData, options: Options, seeds: Sequence[int]) -> MapResult:
        """The MAP stage; a user's module draws from torch's global generator, so that one is seeded and put back."""
        plan = Plan(
            options.likelihood,
            lambda network: _prior(network, network, options),
            self._map_precision(options),
            self._fixed_dispersion(options, data),
            _resolve.DISPERSION_RULES.get(options.sigma_noise.rule, lambda fit, hyper: hyper),
            natural_start=self.net is None,
        )
        if isinstance(self.net, FrozenEstimator):
            trained_net = self.net.estimator
            module = copy.deepcopy(trained_net.module_).to(rows.inputs)
            _skorch.check_module(module.eval(), rows, data.n_outputs)
            network = self._trace(module, rows, data, options)
            return _map.keep_mode(copy.deepcopy(trained_net), network, rows, data.n_outputs, plan)
        if self.net is None:
            return self._train_net(rows, data, plan, options, seeds)
        with _skorch.isolated_seed(seeds[1], rows.inputs.device):
            return self._train_net(rows, data, plan, options, seeds)

    def _train_net(
        self, rows: TrainingRows, data: PreparedData, plan: Plan, options: Options, seeds: Sequence[int]
    ) -> MapResult:
        net = self._build_net(data, rows, options, seeds[0])
        _skorch.initialise(net, rows, data.n_outputs)
        network = self._trace(net.module_, rows, data, options)
        own_epochs = isinstance(self.net, NeuralNet) or self.max_epochs is not None
        return _map.fit_map(net, network, rows, data.n_outputs, plan, own_epochs=own_epochs)

    def _trace(self, module: nn.Module, rows: TrainingRows, data: PreparedData, options: Options) -> Network:
        """The module as a network; what its posterior cannot hold is refused here, before any training."""
        log_outputs = rows.targets.ndim == 1 and _skorch.returns_probabilities(module, rows.inputs[:100])
        if log_outputs and self.verbose:
            print("the net's outputs are probabilities: their logarithms are taken as logits.")
        network = Network.trace(module, rows.inputs, log_outputs=log_outputs)
        _posterior_layout(network, rows, data, options)
        return network

    def _map_precision(self, options: Options) -> Tensor | None:
        if options.map_precision is not None:
            return torch.tensor(options.map_precision, dtype=torch.float64)
        value = options.prior_precision.value
        return None if value is None else torch.as_tensor(value)

    def _fixed_dispersion(self, options: Options, data: PreparedData) -> float | None:
        """φ in the network's units: given, or 1 while a fixed training prior makes everything else post hoc."""
        if options.sigma_noise.value is not None:
            return float(options.sigma_noise.value / data.scale.scale[0]) ** 2
        return 1.0 if options.map_precision is not None else None

    def _approximate(
        self, trained: MapResult, rows: TrainingRows, data: PreparedData, options: Options
    ) -> tuple[LaplaceFit, Hyper]:
        """The curvature of the weights asked for, and the hyperparameters under it."""
        everything = trained.mode.fit.network
        network, structure, n_dual = _posterior_layout(everything, rows, data, options)
        prior = _prior(network, everything, options)
        start = _start(trained, prior, options)
        dense = structure in (Full, Functional)
        fit = trained.mode.fit
        reusable = network.parameter_names == everything.parameter_names
        if not (reusable and isinstance(fit.curvature, structure) and prior.n_groups == fit.prior.n_groups):
            chunks = rows.chunks(network.row_width(n_dual // len(rows), dense))
            fit = fit_laplace(network, options.likelihood, options.rule, structure, prior, chunks)
        fixed = self._fixed_dispersion(options, data) if options.sigma_noise.value is not None else None
        if fixed is not None:
            start = replace(start, dispersion=fixed)
        # The exact evidence of all weights is the one that the training has maximised, with the weights following.
        settled = not trained.post_hoc and options.map_precision is None and reusable and dense
        free_prior, free_noise = options.prior_precision.free, options.sigma_noise.free
        rule = options.sigma_noise.rule
        by_evidence = rule == _resolve.EVIDENCE
        if fixed is None and not by_evidence:
            start = _resolve.DISPERSION_RULES[rule](fit, start)
        if settled:
            warn_at_bounds(fit, start, free_prior=free_prior, free_dispersion=free_noise)
        elif free_prior or (free_noise and by_evidence):
            start = maximise_evidence(fit, start, free_prior=free_prior, free_dispersion=free_noise and by_evidence)
        return fit, start

    def _publish(
        self,
        trained: MapResult,
        fit: LaplaceFit,
        hyper: Hyper,
        data: PreparedData,
        seed: int,
        small: bool,
    ) -> None:
        """Set the fitted attributes."""
        posterior = fit.posterior(hyper)
        evidence = log_evidence(fit, hyper, posterior) - fit.total_weight * data.scale.log_volume
        gradient = trained.mode.fit.objective_gradient(trained.mode.hyper)
        precision = hyper.prior_precision.cpu().numpy()
        self.net_ = trained.net
        self.laplace_ = fit
        self.posterior_ = posterior
        self.hyper_ = hyper
        self.prior_precision_ = float(precision[0]) if fit.prior.n_groups == 1 else precision
        self.prior_groups_ = fit.prior.names
        self.structure_ = next(k for k, v in STRUCTURES.items() if isinstance(fit.curvature, v))
        self.log_marginal_likelihood_value_ = evidence
        self.n_effective_parameters_ = effective_parameters(fit, hyper, posterior)
        self.gradient_norm_ = float(gradient.norm()) / max(fit.total_weight, 1.0)
        self.mode_distance_ = trained.mode.decrement
        self.history_ = trained.history
        self.n_iter_ = trained.n_steps
        self.n_outputs_ = data.n_outputs
        self._scale = data.scale
        self._seed = seed
        self._small = small

    # ------------------------------------------------------------------ what both kinds answer

    def predict_uncertainty(self, X: Any) -> Bunch:
        """The variance of each prediction and its parts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        Bunch with ``total``, ``aleatoric``, ``epistemic``
            Arrays of the shape of ``predict_std``, squared: units of y squared for a regressor; for a classifier the
            variances of the class indicators. total = aleatoric + epistemic.
        """
        std = {kind: self.predict_std(X, kind=kind) for kind in _resolve.STD_KINDS}
        return Bunch(**{kind: values**2 for kind, values in std.items()})

    def score_samples(self, X: Any) -> np.ndarray:
        """How much each row is like the training data: −log of its mean epistemic variance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
            Higher: more like the training data. Of the standardised outputs; for classes of the logits, each
            against their mean, since a common shift changes nothing.
        """
        covariance = self._latent(X).covariance
        if isinstance(self.laplace_.likelihood, Categorical):
            covariance = covariance - covariance.mean(-1, keepdim=True)
            covariance = covariance - covariance.mean(-2, keepdim=True)
        variance = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
        return -variance.clamp_min(torch.finfo(torch.float64).tiny).log().cpu().numpy()

    def log_marginal_likelihood(
        self,
        prior_precision: float | None = None,
        sigma_noise: float | None = None,
        temperature: float | None = None,
    ) -> float:
        """Log evidence of the training targets under other hyperparameters, at the same weights.

        Parameters
        ----------
        prior_precision : float or array-like, optional
            One for all weights, or one for each of ``prior_groups_``; the fitted one by default.
        sigma_noise : float, optional
            In the units of y (regression); the fitted one by default.
        temperature : float, optional
            The estimator's by default.

        Returns
        -------
        float
            Nats, of y in its own units.
        """
        check_is_fitted(self)
        hyper = self.hyper_
        if prior_precision is not None:
            given = _resolve.choice("prior_precision", prior_precision, [], array=True).value
            groups = self.laplace_.prior.n_groups
            if given is None or given.size not in (1, groups):
                raise ValueError(
                    f"prior_precision={prior_precision!r} has to be one number or {groups}, one for each of "
                    f"{self.prior_groups_}."
                )
            values = torch.tensor(given, dtype=torch.float64).reshape(-1).expand(groups)
            hyper = replace(hyper, prior_precision=values.to(hyper.prior_precision))
        if sigma_noise is not None:
            sigma = _resolve.positive("sigma_noise", sigma_noise)
            hyper = replace(hyper, dispersion=float(sigma / self._scale.scale[0]) ** 2)
        if temperature is not None:
            hyper = replace(hyper, temperature=_resolve.positive("temperature", temperature))
        return log_evidence(self.laplace_, hyper) - self.laplace_.total_weight * self._scale.log_volume

    # ------------------------------------------------------------------ prediction

    def _chunks(self, X: Any) -> Iterator[Tensor]:
        """Validated inputs as tensors, in chunks."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, order="C", reset=False)
        network = self.laplace_.network
        parameter = next(network.module.parameters())
        step = _skorch.chunk_rows(self.posterior_.row_width(network.blocks, self.n_outputs_))
        for start in range(0, len(X), step):
            yield torch.tensor(X[start : start + step], dtype=parameter.dtype, device=parameter.device)

    def _options(self) -> Options:
        return _resolve.resolve(self._kind, self.get_params(deep=False))

    def _latent(self, X: Any) -> LatentGaussian:
        """Gaussian over the network's outputs, in its own units."""
        predictive = self._options().predictive
        with single_thread(self._small):
            parts = [predictive.latent(self.laplace_.network, self.posterior_, x) for x in self._chunks(X)]
        return LatentGaussian(torch.cat([p.mean for p in parts]), torch.cat([p.covariance for p in parts]))

    def _outputs(self, X: Any) -> Tensor:
        """Outputs at the MAP (n, C), float64: forward passes only."""
        return torch.cat([self.laplace_.network(x).double() for x in self._chunks(X)])

    def _predictive(self, X: Any, link: Link | None) -> Predictive:
        return self.laplace_.likelihood.predict(self._latent(X), self.hyper_.dispersion, link)

    def _function_draws(self, X: Any, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws of the linearised network's outputs, shape (n, C, n_samples), in its own units."""
        deviations = self.posterior_.sample(n_samples, generator).mT
        network = self.laplace_.network
        parts = []
        with single_thread(self._small):
            for x in self._chunks(X):
                outputs, jacobian = network.jacobian(x)
                parts.append(outputs.double()[..., None] + jacobian.times(deviations))
        return torch.cat(parts)


def _check_net(net: Any) -> None:
    """A net that can be trained, or a frozen one that is."""
    if isinstance(net, FrozenEstimator):
        if not isinstance(net.estimator, NeuralNet):
            raise TypeError(
                f"net=FrozenEstimator({type(net.estimator).__name__}(…)) is not supported; freeze a fitted skorch net."
            )
        if not net.estimator.initialized_ or not isinstance(getattr(net.estimator, "module_", None), nn.Module):
            raise NotFittedError(
                "the net inside FrozenEstimator has not been fitted; fit it first, or give it without FrozenEstimator "
                "to have it trained."
            )
    elif not (net is None or isinstance(net, NeuralNet | nn.Module) or (isclass(net) and issubclass(net, nn.Module))):
        raise TypeError(
            f"net={net!r} is not supported; give None for the built-in net, a torch module (class or instance), a "
            "skorch net such as NeuralNetRegressor(module), or FrozenEstimator(fitted skorch net)."
        )


def _mean_variance(data: PreparedData) -> float:
    """Mean variance of the targets over the outputs, in the network's units; 1 for classes."""
    if data.targets.ndim == 1:
        return 1.0
    mean = np.average(data.targets, axis=0, weights=data.weights)
    return float(np.average((data.targets - mean) ** 2, axis=0, weights=data.weights).mean())


def canonical_rows(
    X: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows sorted and equal ones merged, while the data are small (by weight).

    So weights and repetitions, in any order, give the same numbers to the bit, standardisation included: training
    amplifies rounding, and otherwise they would end in different modes.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    targets : ndarray of shape (n,) or (n, C), numeric
    weights : ndarray of shape (n,)

    Examples
    --------
    >>> canonical_rows(np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 4.0, 5.0]), np.ones(3))
    (array([[1.],
           [2.]]), array([4., 5.]), array([1., 2.]))
    """
    if weights.sum() > _resolve.FLOAT32_ROWS:
        return X, targets, weights
    unique, inverse = np.unique(np.column_stack([X, targets]), axis=0, return_inverse=True)
    merged = np.bincount(inverse.ravel(), weights=weights, minlength=len(unique))
    columns = X.shape[1]
    return unique[:, :columns], unique[:, columns:].reshape(len(unique), *targets.shape[1:]), merged


def _tensors(data: PreparedData, options: Options) -> TrainingRows:
    """The rows on their device, in float64 while they are few."""
    small = data.total_weight <= _resolve.FLOAT32_ROWS
    dtype = options.dtype or (torch.float64 if small else torch.float32)
    kind = torch.long if data.targets.ndim == 1 else dtype
    return TrainingRows(
        torch.tensor(data.X, dtype=dtype, device=options.device),
        torch.tensor(data.targets, dtype=kind, device=options.device),
        torch.tensor(data.weights, dtype=dtype, device=options.device),
    )


def _posterior_layout(
    everything: Network, rows: TrainingRows, data: PreparedData, options: Options
) -> tuple[Network, type[Curvature], int]:
    """The network of the random weights, the structure of their posterior, and the number of dual rows."""
    network = everything.select(options.subset.names(everything), rows.inputs)
    n_dual = _map.n_dual_rows(rows, options.likelihood, data.n_outputs)
    structure = options.structure or _resolve.automatic_structure(network.blocks, n_dual)
    _resolve.check_memory(structure, network.blocks, n_dual)
    return network, structure, n_dual


def _prior(network: Network, everything: Network, options: Options) -> Prior:
    """One precision for all weights, or one a tensor where the options or the given values say so.

    Given values are one a tensor of the whole network, whatever part of it is random.
    """
    value = options.prior_precision.value
    if value is None:
        return network.tensor_prior() if options.per_tensor else network.scalar_prior()
    if value.size == 1:
        return network.scalar_prior()
    names = everything.parameter_names
    if value.size != len(names):
        raise ValueError(
            f"prior_precision has {value.size} entries; expected 1 (scalar) or {len(names)} (one per tensor: "
            f"{', '.join(names)})."
        )
    return network.tensor_prior()


def _start(trained: MapResult, prior: Prior, options: Options) -> Hyper:
    """The given or the training's hyperparameters, carried over to the selected weights."""
    mode = trained.mode
    value = options.prior_precision.value
    if value is None:
        names, values = mode.fit.prior.names, mode.hyper.prior_precision
    else:
        names, values = trained.names, torch.as_tensor(value, dtype=torch.float64).reshape(-1)
    if prior.n_groups == len(values) == 1:
        precision = values
    else:
        by_name = dict(zip(names, values, strict=False))
        precision = torch.stack([by_name.get(name, values.log().mean().exp()) for name in prior.names])
    return Hyper(precision.to(mode.hyper.prior_precision), mode.hyper.dispersion, options.temperature)
