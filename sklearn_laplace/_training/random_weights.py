"""Resolved options for the rows of a fit, and the layout of the weights that the posterior covers.

For a single row, neither prior precision nor noise level can be estimated: without a prior on the noise level, the
posterior predictive is improper, because a net can interpolate the row. The prior precision is then 1, and the noise
level the size of the target, or that of known noise variances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._data.known_noise import FEWEST_ROWS
from .._data.summary import TargetSummary
from .._data.target_scale import TargetScale
from .._host.rows import TrainingRows
from .._options.options import Options
from .._options.prior import check_previous, check_temperature, previous_of
from .._options.resolve import likelihood_of
from .._options.training import check_device
from .._runtime.budget import automatic_structure
from .._validation.values import Choice
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.prior_groups import listed, prior_mean, temperatures
from ..laplace.structures._base import Curvature
from ..laplace.subsets import Scored


def fixed_dispersion(options: Options, scale: TargetScale) -> float | None:
    """Fixed ``sigma_noise`` as φ in the network's units; None if a rule selects it."""
    sigma = options.sigma_noise.value
    return None if sigma is None else scale.dispersion(sigma)


def for_rows(
    options: Options, kind: str, parameters: Mapping[str, Any], targets: TargetSummary, seed: int = 0
) -> Options:
    """Resolved options in the units and for the number of rows of ``targets``.

    ``kind`` is "regressor" or "classifier", and ``seed`` that of random draws in the curvature and the subset.
    """
    subset = options.subset
    options = replace(
        options,
        likelihood=likelihood_of(kind, parameters, single_logit=targets.single_logit),
        rule=options.rule.sampling(parameters["n_fisher_samples"], seed),
        subset=replace(subset, seed=seed) if isinstance(subset, Scored) else subset,
    )
    check_device(options.device)
    previous = previous_of(parameters["prior"])
    if previous is not None:
        check_previous(options, parameters, previous.fit)
        fit, mean = previous.fit, previous.fit.prior.mean
        options = replace(options, previous=previous, structure=type(fit.curvature), likelihood=fit.likelihood)
        if mean is not None and options.prior_mean == 0.0:  # the prior counts once, with the mean of the previous fit
            return replace(options, prior_mean=fit.network.tensors(mean))
        return options
    likelihood = options.likelihood.scaled_to(targets.mean_variance, targets.average_noise)
    return fixed_for_one_row(replace(options, likelihood=likelihood), targets.total_weight, targets.scale)


def posterior_layout(
    everything: Network, rows: TrainingRows, options: Options
) -> tuple[Network, type[Curvature], int, int]:
    """Network of the random weights, its structure, its dual dimension M, and the bytes needed, with a previous
    posterior's.

    M is the number of rows times the columns of the output factor. Raises ``ValueError`` if prior precisions, prior
    mean or temperatures do not fit the net, ``UnsupportedCombinationError`` if the net or structure does not support
    them, and ``MemoryBudgetError`` if the curvature does not fit in memory.
    """
    network, rule, memory = selected(everything, rows.inputs, options), options.rule, options.memory
    n_columns = rule.n_columns(options.likelihood, rows.n_outputs)
    n_dual = len(rows) * n_columns
    grouped(network, everything.parameter_names, options)
    structure = options.structure or automatic_structure(
        network.blocks,
        n_dual,
        len(rows),
        rule.provides & options.subset.provides,
        options.grouping.unit,
        lambda structure: memory.fits(structure, network, n_dual, n_columns),
    )
    damped = options.structure_options.damped
    check_temperature(structure, network.blocks, tempering(network, options.temperature), damped=damped)
    n_previous = 0 if options.previous is None else options.previous.dual_rows(n_columns)
    settings = options.structure_options.options_of(structure)
    n_bytes = memory.require(structure, network, n_dual + n_previous, n_columns, rule, **settings)
    return network, structure, n_dual, n_bytes


def selected(everything: Network, example: Tensor, options: Options) -> Network:
    """Network of the random weights, with separate blocks for biases if the structure needs them."""
    laid_out = everything.with_separate_biases() if options.structure_options.separate_biases else everything
    return options.subset.of(laid_out, example)


def grouped(network: Network, names: tuple[str, ...], options: Options) -> Prior:
    """Prior that the options specify, with one precision per group of all trained tensors ``names``, random or not.

    Raises ``ValueError`` if fixed precisions or the prior mean do not fit the net, ``UnsupportedCombinationError`` if
    the net lacks the groups of the prior.
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
    """Return the common temperature, or a tensor with the temperature of each random weight if it is a mapping."""
    return temperature if isinstance(temperature, float) else temperatures(network, temperature)


def fixed_for_one_row(options: Options, total_weight: float, scale: TargetScale) -> Options:
    """Replace rules for prior precision and noise by values if the total weight of the rows is too small for them.

    The likelihood of ``options`` is in the units of the targets.
    """
    if total_weight >= FEWEST_ROWS or not options.likelihood.has_dispersion:
        return options
    size = (
        np.ones_like(scale.scale)
        if scale.noisy_rows
        else math.sqrt(options.likelihood.dispersion_start) * scale.unit_noise
    )
    prior, noise = (
        Choice(value, "") if chosen.free else chosen
        for chosen, value in ((options.prior_precision, np.ones(())), (options.sigma_noise, size))
    )
    return replace(options, prior_precision=prior, sigma_noise=noise, varying_noise=False)
