"""The stages of a fit, as functions of plain data: training, then approximation.

:func:`train` is the expensive one and a pure function of its arguments (parameters by name, arrays, seeds), so that its
result can be cached; :func:`approximate` is the Laplace approximation of what it returns.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet
from torch import Tensor, nn

from . import _map, _resolve, _skorch, _structure_options
from ._augment import augmented_inputs
from ._map import MapResult, Past, Plan
from ._noise import noise_per_target
from ._past import check_past, check_same_net, load
from ._prior_options import check_temperature
from ._resolve import Options
from ._skorch import TrainingRows
from ._values import Choice
from .by_name import listed, prior_mean, temperatures
from .laplace import Hyper, LaplaceFit, fit_laplace
from .likelihoods._base import Likelihood
from .nets import MLP
from .network import Network
from .prior import Prior
from .selection import maximise_evidence, warn_at_bounds
from .structures import Full, Functional
from .structures._base import Curvature

MAP_NEUTRAL: dict[str, Any] = {
    "subset_of_weights": "all",
    "hessian_structure": "auto",
    **_structure_options.DEFAULTS,
    "curvature": "ggn",  # the training's own, whatever the posterior's is
    "n_fisher_samples": 1,
    "temperature": 1.0,
    "predictive": "glm",
    "link": "probit",
    "n_samples": 100,
    "return_std_kind": "total",
    "class_weight": None,  # already in the weights of the rows
    "augment": None,  # already in the rows, which the cache sees
    "n_augmentations": 1,
    "random_state": None,
    "memory": None,
}
"""Parameters that the training does not look at, at the values under which it is cached."""
POST_HOC_NEUTRAL: dict[str, Any] = {
    "prior_precision": 1.0,
    "prior_structure": "scalar",
    "sigma_noise": "evidence",
}
"""Those that it does not look at either while ``map_prior_precision`` is a number."""


SAME_RATIO = 1e-9
"""Relative difference of noise ratios that is rounding."""


@dataclass(frozen=True)
class TargetScale:
    """The affine map from the user's targets to the network's, (y − mean) / scale, and that of their noise.

    Parameters
    ----------
    mean, scale : ndarray of shape (C,)
        Zeros and ones for classes.
    unit_noise : ndarray of shape (C,)
        σ of each target, in the units of y, for which φ is 1; the scale itself unless noise ratios are known.
    noisy_rows : bool
        Whether the rows come with noise variances of their own.
    """

    mean: np.ndarray
    scale: np.ndarray
    unit_noise: np.ndarray
    noisy_rows: bool = False

    @property
    def log_volume(self) -> float:
        """Σ_c log scale_c: what one row of weight 1 subtracts from a log density in the network's units."""
        return float(np.log(self.scale).sum())

    def dispersion(self, sigma_noise: np.ndarray) -> float:
        """A given σ, one number or one for each target (C,), as φ.

        Raises
        ------
        ValueError
            For other noise ratios between the targets than those that the curvature was made with.
        """
        root = noise_per_target(sigma_noise, len(self.scale)) / self.unit_noise
        if not np.allclose(root, root[0], rtol=SAME_RATIO, atol=0):
            raise ValueError(
                f"sigma_noise={sigma_noise.tolist()} means other noise ratios between the {len(self.scale)} targets "
                f"than the curvature holds; here it can be a multiple of {self.unit_noise.tolist()}. Fit with this "
                "sigma_noise."
            )
        return float(root[0]) ** 2

    def apply(self, y: np.ndarray) -> np.ndarray:
        """Targets (n, C) in the network's units."""
        return (y - self.mean) / self.scale

    def noise(self, variances: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        """The noise variances of rows in units of φ, shape (n, C); None where they are φ throughout."""
        if variances is None and np.array_equal(self.unit_noise, self.scale):
            return None
        ratios = np.broadcast_to((self.unit_noise / self.scale) ** 2, (n_rows, len(self.scale)))
        return ratios if variances is None else variances * ratios


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
    noise : ndarray of shape (n, C), optional
        Known noise variances of the targets, in units of φ.
    past : Past, optional
        An earlier posterior that is their prior.
    """

    X: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    n_outputs: int
    scale: TargetScale
    noise: np.ndarray | None = None
    past: Past | None = None

    @property
    def total_weight(self) -> float:
        """N_w."""
        return float(self.weights.sum())

    @property
    def average_noise(self) -> tuple[float, ...]:
        """Known noise variance of an average row, one for each target, in units of φ; empty where it is φ."""
        return () if self.noise is None else tuple(np.average(self.noise, axis=0, weights=self.weights).tolist())


def neutral(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with those that the training ignores at fixed values.

    Examples
    --------
    >>> neutral({"lr": 0.1, "temperature": 5.0, "map_prior_precision": 1.0, "prior_precision": 7.0})
    {'lr': 0.1, 'temperature': 1.0, 'map_prior_precision': 1.0, 'prior_precision': 1.0}
    """
    fixed = {**MAP_NEUTRAL, **({} if isinstance(parameters["map_prior_precision"], str) else POST_HOC_NEUTRAL)}
    return {name: fixed.get(name, value) for name, value in parameters.items()}


def train(kind: str, parameters: Mapping[str, Any], data: PreparedData, seeds: Sequence[int]) -> MapResult:
    """The MAP stage.

    Parameters
    ----------
    kind : str
        "regressor" or "classifier".
    parameters : mapping
        The estimator's parameters by name.
    data : PreparedData
    seeds : sequence of int
        For the order of mini-batches and built-in weights, and for torch's global generator, which a user's module
        draws from: it is seeded and put back.

    Returns
    -------
    MapResult
    """
    options = options_for(kind, parameters, data)
    net = parameters["net"]
    rows = _tensors(data, options, built_in=net is None)
    fixed_noise = options.map_precision is not None
    plan = Plan(
        options.likelihood,
        lambda network: _training_prior(network, options),
        _map_precision(options),
        options.likelihood.dispersion_start if fixed_noise else fixed_dispersion(options, data.scale),
        _resolve.DISPERSION_RULES.get(options.sigma_noise.rule, lambda fit, hyper: hyper),
        natural_start=net is None,
        past=data.past,
    )
    if isinstance(net, FrozenEstimator):
        module = copy.deepcopy(net.estimator.module_).to(rows.weights)
        _skorch.check_module(module.eval(), rows, data.n_outputs)
        network = _trace(module, rows, data, options, verbose=parameters["verbose"])
        return _map.keep_mode(_skorch.copied(net.estimator), network, rows, data.n_outputs, plan)
    if net is None:
        return _train_net(parameters, rows, data, plan, options, seeds)
    with _skorch.isolated_seed(seeds[1], rows.inputs.device):
        return _train_net(parameters, rows, data, plan, options, seeds)


def _train_net(
    parameters: Mapping[str, Any],
    rows: TrainingRows,
    data: PreparedData,
    plan: Plan,
    options: Options,
    seeds: Sequence[int],
) -> MapResult:
    built_in = parameters["net"] is None
    net = _skorch.build_net(
        MLP if built_in else parameters["net"],
        _built_in_parameters(parameters, data, options.likelihood, seeds[0]) if built_in else {},
        options.likelihood,
        rows,
        data.n_outputs,
        max_epochs=parameters["max_epochs"],
        lr=parameters["lr"],
        batch_size=parameters["batch_size"],
        seed=seeds[0],
        verbose=int(parameters["verbose"]),
    )
    _skorch.initialise(net, rows, data.n_outputs)
    if data.past is not None:
        load(net.module_, data.past.module)
    network = _trace(net.module_, rows, data, options, verbose=parameters["verbose"])
    if data.past is not None:
        check_same_net(network, data.past.fit.network, rows.inputs[:50])
        _start_at(net.module_, network.tensors(data.past.fit.theta))
    elif built_in and isinstance(options.prior_mean, dict):
        _start_at(net.module_, options.prior_mean)
    own_epochs = isinstance(parameters["net"], NeuralNet) or parameters["max_epochs"] is not None
    return _map.fit_map(net, network, rows, data.n_outputs, plan, own_epochs=own_epochs)


def _start_at(module: nn.Module, means: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(means.get(name, parameter))


def _built_in_parameters(
    parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood, seed: int
) -> dict[str, Any]:
    mean, deviation, constant = spread(data.X, data.weights)
    start = likelihood.output_start(torch.from_numpy(data.targets), torch.from_numpy(data.weights))
    return {
        "in_features": data.X.shape[1],
        "out_features": data.n_outputs,
        "hidden_layer_sizes": tuple(parameters["hidden_layer_sizes"]),
        "activation": parameters["activation"],
        "input_mean": mean.tolist(),
        "input_scale": np.where(constant, 1.0, deviation).tolist(),
        "output_shift": None if start is None else start.tolist(),
        "seed": seed,
    }


def _trace(module: nn.Module, rows: TrainingRows, data: PreparedData, options: Options, *, verbose: int) -> Network:
    """The module as a network; what its posterior cannot hold is refused here, before any training."""
    log_outputs = rows.targets.ndim == 1 and _skorch.returns_probabilities(module, rows.inputs[:100])
    if log_outputs and verbose:
        print("the net's outputs are probabilities: their logarithms are taken as logits.")
    network = Network.trace(module, rows.inputs, log_outputs=log_outputs)
    _posterior_layout(network, rows, data, options)
    return network


def _map_precision(options: Options) -> Tensor | None:
    if options.map_precision is not None:
        return torch.tensor(options.map_precision, dtype=torch.float64)
    value = options.prior_precision.value
    return None if value is None else torch.as_tensor(value)


def fixed_dispersion(options: Options, scale: TargetScale) -> float | None:
    """The given noise as φ in the network's units; None where a rule chooses."""
    sigma = options.sigma_noise.value
    return None if sigma is None else scale.dispersion(sigma)


@dataclass(frozen=True)
class Origin:
    """Where the hyperparameters of a fit come from: what choosing them again has to know of the training.

    Parameters
    ----------
    hyper : Hyper
        Under which the training ended.
    groups : tuple of str
        Names of its prior groups.
    tensors : tuple of str
        Names of all trained tensors.
    settled_for : tuple of Choice and str, or None
        The options (prior precision, noise, what shares a precision) whose best evidence the training has found itself,
        with the weights following; None where the choice is made afterwards.
    """

    hyper: Hyper
    groups: tuple[str, ...]
    tensors: tuple[str, ...]
    settled_for: tuple[Choice, Choice, str] | None


def approximate(
    trained: MapResult, data: PreparedData, options: Options, *, built_in: bool
) -> tuple[LaplaceFit, Origin]:
    """The curvature of the weights asked for, and where a choice of hyperparameters starts from."""
    rows = _tensors(data, options, built_in=built_in)
    everything = trained.mode.fit.network
    network, structure, n_dual = _posterior_layout(everything, rows, data, options)
    prior = grouped(network, everything.parameter_names, options)
    told = options.structure_options.told(structure)
    dense = structure in (Full, Functional)
    fit = trained.mode.fit
    whole = network.parameter_names == everything.parameter_names and network.blocks == everything.blocks
    same_rule = fit.rule == options.rule
    if whole and same_rule and isinstance(fit.curvature, structure) and fit.curvature.options == told:
        fit = replace(fit, prior=prior)
    else:
        chunks = _map.chunked(rows, network, structure, n_dual // len(rows))
        past = None if data.past is None else data.past.fit
        # The training's gradient has the past rows in it, which are added again here.
        gradient = None if past is not None else network.vector(everything.tensors(fit.gradient))
        fit = fit_laplace(
            network, options.likelihood, options.rule, structure, prior, chunks, past=past, gradient=gradient, **told
        )
    # The exact evidence of all weights is the one that the training has maximised, with the weights following.
    by_exact_evidence = isinstance(trained.mode.fit.curvature, Full | Functional) and not trained.post_hoc
    settled = by_exact_evidence and options.map_precision is None and whole and dense and same_rule
    chosen = (options.prior_precision, options.sigma_noise, options.grouping.each)
    mode = trained.mode
    return fit, Origin(mode.hyper, mode.fit.prior.names, trained.names, chosen if settled else None)


def regrouped(fit: LaplaceFit, origin: Origin, options: Options) -> LaplaceFit:
    """The fit with the grouping of the prior precisions that the options ask for."""
    return replace(fit, prior=grouped(fit.network, origin.tensors, options))


def choose(fit: LaplaceFit, origin: Origin, options: Options, dispersion: float | None) -> Hyper:
    """The hyperparameters at the fit's weights: given, by rule, or by evidence.

    Parameters
    ----------
    fit : LaplaceFit
    origin : Origin
        What the training has found.
    options : Options
    dispersion : float or None
        The given φ.
    """
    start = _start(origin, fit, options)
    if dispersion is not None:
        start = replace(start, dispersion=dispersion)
    settled = fit.shift is None and origin.settled_for == (
        options.prior_precision,
        options.sigma_noise,
        options.grouping.each,
    )
    free_prior, free_noise = options.prior_precision.free, options.sigma_noise.free
    by_evidence = options.sigma_noise.rule == _resolve.EVIDENCE
    if free_noise and not by_evidence:
        start = _resolve.DISPERSION_RULES[options.sigma_noise.rule](fit, start)
    if settled:
        warn_at_bounds(fit, start, free_prior=free_prior, free_dispersion=free_noise)
    elif free_prior or (free_noise and by_evidence):
        # The temperature widens or narrows the posterior that is chosen without it.
        found = maximise_evidence(
            fit, replace(start, temperature=1.0), free_prior=free_prior, free_dispersion=free_noise and by_evidence
        )
        start = replace(found, temperature=start.temperature)
    return start


def options_for(kind: str, parameters: Mapping[str, Any], data: PreparedData, seed: int = 0) -> Options:
    """The resolved options, with the likelihood in the units of these targets and the seed of the curvature's draws."""
    single_logit = data.targets.ndim == 1 and data.n_outputs == 1
    options = _resolve.resolve(kind, parameters, seed, single_logit=single_logit)
    _resolve.check_device(options.device)
    if data.past is not None:
        check_past(options, parameters, data.past.fit)
        return replace(options, structure=type(data.past.fit.curvature), likelihood=data.past.fit.likelihood)
    return replace(options, likelihood=options.likelihood.scaled_to(_mean_variance(data), data.average_noise))


def check_net(net: Any) -> None:
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
    _, deviation, constant = spread(data.targets, data.weights)
    return float(np.where(constant, 0.0, deviation**2).mean())


def canonical_rows(
    X: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in a fixed order and equal ones merged, while the data are small (by weight).

    So weights and repetitions, in any order, give the same numbers to the bit, standardisation included: training
    amplifies rounding, and otherwise they would end in different modes.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    targets : ndarray of shape (n,) or (n, C), numeric
    weights : ndarray of shape (n,)

    Examples
    --------
    >>> X, y, w = canonical_rows(np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 4.0, 5.0]), np.ones(3))
    >>> sorted(zip(X[:, 0].tolist(), y.tolist(), w.tolist()))
    [(1.0, 4.0, 1.0), (2.0, 5.0, 2.0)]
    """
    X, targets, weights = _merged(X, targets, weights)
    return X, targets, as_counts(weights)


def _merged(X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if weights.sum() > _resolve.FLOAT32_ROWS:
        return X, targets, weights
    unique, inverse = np.unique(np.column_stack([X, targets]), axis=0, return_inverse=True)
    merged = np.bincount(inverse.ravel(), weights=weights, minlength=len(unique))
    columns = X.shape[1]
    # Sorted rows would make mini-batches and held-out parts of a user's net regions of the first column.
    order = np.random.default_rng(0).permutation(len(unique))
    found = unique[order, columns:].reshape(len(unique), *targets.shape[1:])
    return unique[order, :columns], found.astype(targets.dtype), merged[order]


def augmented(data: PreparedData, augment: Any, n_draws: int, seed: int) -> PreparedData:
    """The data with random copies in place of the rows, equal ones merged; as they are without ``augment``.

    Parameters
    ----------
    data : PreparedData
    augment : callable or None
    n_draws : int
        k, copies of each row; each has a k-th of its weight.
    seed : int
    """
    if augment is None:
        return data
    observed = data.targets if data.noise is None else np.column_stack([data.targets, data.noise])
    copies = np.tile(np.arange(len(data.X)), n_draws)
    inputs = augmented_inputs(data.X, augment, n_draws, seed)
    X, observed, weights = _merged(inputs, observed[copies], data.weights[copies] / n_draws)
    targets, noise = (observed, None) if data.noise is None else np.split(observed, 2, axis=1)
    return replace(data, X=X, targets=targets, weights=weights, noise=noise)


def as_counts(weights: np.ndarray) -> np.ndarray:
    r"""Weights (n,) that count rows; shares, which sum to one at most, of the rows that they are worth.

    Several rows that weigh one together are no data that anybody has: AdaBoost and its kin normalise their weights, and
    taken at their word the prior would outweigh all of them. What shares are worth is Kish's (1965) effective sample
    size, :math:`(\sum w)^2 / \sum w^2`: n where they are equal, fewer where a few rows have most.

    Examples
    --------
    >>> as_counts(np.array([0.25, 0.25, 0.25, 0.25])), as_counts(np.array([2.0, 1.0])), as_counts(np.array([0.5]))
    (array([1., 1., 1., 1.]), array([2., 1.]), array([0.5]))
    """
    total = weights.sum()
    if len(weights) == 1 or total > 1 + 1e-9:
        return weights
    return weights * (total / (weights**2).sum())


def spread(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation of each column, and which columns are constant but for rounding.

    The weights are those of the rows (n,), or of each value.

    Raises
    ------
    ValueError
        When a column is too large for its variance to be finite.

    Examples
    --------
    >>> spread(np.array([[1e-13, 5.0], [3e-13, 5.0]]), np.ones(2))
    (array([2.e-13, 5.e+00]), array([1.e-13, 0.e+00]), array([False,  True]))
    """
    mean = np.average(values, axis=0, weights=weights)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
    if not np.isfinite(deviation).all():
        raise ValueError(
            f"a column reaches {np.abs(values).max():.1e}, too large for its variance; use another unit for it."
        )
    constant = deviation <= 10 * np.finfo(float).eps * np.abs(values).max(axis=0)
    return mean, deviation, constant


def pass_over(fit: LaplaceFit, data: PreparedData, input_dtype: torch.dtype) -> tuple[LaplaceFit, Curvature]:
    """One pass over other rows with all that a fit was made with, and their curvature in exact form.

    Raises
    ------
    MemoryBudgetError
        When these rows and those of the fit would not fit in memory together.
    """
    network, structure = fit.network, type(fit.curvature)
    dtype, device = next(network.module.parameters()).dtype, network.theta.device
    rows = _as_tensors(data, input_dtype, dtype, device)
    rule, per_row = fit.rule, fit.rule.n_columns(fit.likelihood, data.n_outputs)
    n_dual = per_row * (len(rows) + round(fit.total_weight))
    _resolve.check_memory(structure, network.blocks, n_dual, rule, **fit.curvature.options)
    dense = issubclass(structure, Full | Functional)
    chunks = _map.chunked(rows, network, structure, per_row)
    found = fit_laplace(network, fit.likelihood, rule, structure, fit.prior, chunks, like=fit.curvature)
    if dense:
        return found, found.curvature
    exact: type[Curvature] = Functional if Functional.accepts & rule.provides else Full
    return found, fit_laplace(network, fit.likelihood, rule, exact, fit.prior, chunks).curvature


def _tensors(data: PreparedData, options: Options, *, built_in: bool) -> TrainingRows:
    """The rows on their device, in float64 while they are few."""
    small = data.total_weight <= _resolve.FLOAT32_ROWS
    dtype = options.dtype or (torch.float64 if small else torch.float32)
    # The built-in net centres its raw columns in double precision, whatever it computes in afterwards.
    return _as_tensors(data, torch.float64 if built_in else dtype, dtype, options.device)


def _as_tensors(data: PreparedData, input_dtype: torch.dtype, dtype: torch.dtype, device: torch.device) -> TrainingRows:
    return TrainingRows(
        torch.tensor(data.X, dtype=input_dtype, device=device),
        torch.tensor(data.targets, dtype=torch.long if data.targets.ndim == 1 else dtype, device=device),
        torch.tensor(data.weights, dtype=dtype, device=device),
        None if data.noise is None else torch.tensor(data.noise, dtype=dtype, device=device),
    )


def _posterior_layout(
    everything: Network, rows: TrainingRows, data: PreparedData, options: Options
) -> tuple[Network, type[Curvature], int]:
    """The network of the random weights, the structure of their posterior, and the number of dual rows."""
    laid_out = everything.with_separate_biases() if options.structure_options.separate_biases else everything
    network, rule = options.subset.of(laid_out, rows.inputs), options.rule
    n_dual = len(rows) * rule.n_columns(options.likelihood, data.n_outputs)
    grouped(network, everything.parameter_names, options)
    provided = (network.blocks, n_dual, len(rows), rule.provides & options.subset.provides)
    structure = options.structure or _resolve.automatic_structure(*provided, options.grouping.unit)
    damped = options.structure_options.damped
    check_temperature(structure, network.blocks, tempering(network, options.temperature), damped=damped)
    held = 0 if data.past is None else data.past.dual_rows(n_dual // len(rows))
    _resolve.check_memory(structure, network.blocks, n_dual + held, rule, **options.structure_options.told(structure))
    return network, structure, n_dual


def _training_prior(network: Network, options: Options) -> Prior:
    """A training under one given precision does not depend on how the posterior's are grouped."""
    prior = grouped(network, network.parameter_names, options)
    return prior if options.map_precision is None else replace(network.scalar_prior(), mean=prior.mean)


def grouped(network: Network, names: tuple[str, ...], options: Options) -> Prior:
    """The prior that the options ask for: its mean and the grouping of its precisions.

    Parameters
    ----------
    network : Network
        Of the random weights.
    names : tuple of str
        All trained tensors; several given precisions are those of their groups, whatever part of them is random.
    options : Options

    Raises
    ------
    ValueError
        When the given precisions are not as many as there are groups, or a prior mean does not fit.
    UnsupportedCombinationError
        When the net has no such groups.
    """
    value, grouping, mean = options.prior_precision.value, options.grouping, options.prior_mean
    if value is not None and value.size > 1 and value.size != len(groups := grouping.names(network, names)):
        raise ValueError(
            f"prior_precision has {value.size} entries; expected 1 (scalar) or {len(groups)} (one per "
            f"{grouping.each}: {listed(groups)})."
        )
    prior = grouping.prior(network)
    if isinstance(mean, dict):
        return replace(prior, mean=prior_mean(network, mean))
    return replace(prior, mean=torch.full_like(network.theta, mean)) if mean else prior


def tempering(network: Network, temperature: float | Mapping[str, float]) -> float | Tensor:
    """One temperature, or that of each selected weight where they are given by name."""
    return temperature if isinstance(temperature, float) else temperatures(network, temperature)


def _start(origin: Origin, fit: LaplaceFit, options: Options) -> Hyper:
    """The given or the training's hyperparameters, carried over to the selected weights."""
    hyper, prior = origin.hyper, fit.prior
    value = options.prior_precision.value
    if value is None:
        names, values = origin.groups, hyper.prior_precision
    else:
        names = options.grouping.names(fit.network, origin.tensors)
        values = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
    if prior.names == names or prior.n_groups == len(values) == 1:
        precision = values
    else:
        by_name, other = dict(zip(names, values.tolist(), strict=True)), float(values.log().mean().exp())
        precision = torch.tensor([by_name.get(name, other) for name in prior.names], dtype=torch.float64)
    temperature = tempering(fit.network, options.temperature)
    return Hyper(precision.to(hyper.prior_precision), hyper.dispersion, temperature)
