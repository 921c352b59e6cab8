"""Resolve the likelihood, its noise level, and the number of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .._host.given_net import has_one_output, names_criterion
from .._validation.values import Choice, choice, lookup
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods import LIKELIHOODS
from ..laplace.likelihoods._base import Likelihood
from .options import AUTO, BY_EVIDENCE, DISPERSION_RULES

LIKELIHOODS_FOR = {
    "regressor": ("gaussian", "poisson", "negative_binomial"),
    "classifier": ("categorical", "bernoulli"),
}
"""Likelihoods of each estimator. "auto" is the first; for a classifier with a single logit, the second."""
VARYING_NOISE = {AUTO: None, "heteroscedastic": True}
"""Gaussian likelihoods with a noise level that varies with the inputs; None if the data decide."""
SINGLE_LOGIT = {"auto": None, "categorical": False, "bernoulli": True}
"""True if two classes share one logit; None if the given net decides."""


def _varying_noise(parameters: Mapping[str, Any], noise: Choice) -> bool | None:
    """True if the noise level varies with the inputs; None if the data decide, which needs ``sigma_noise="auto"``."""
    varying = VARYING_NOISE.get(parameters["likelihood"], False)
    return False if varying is None and noise.rule != AUTO else varying


def _noise(parameters: Mapping[str, Any], likelihood: Likelihood) -> Choice:
    """Noise level or its rule; a placeholder of 1 if the likelihood has no noise level."""
    value = parameters.get("sigma_noise", AUTO)
    noise = choice("sigma_noise", value, list(DISPERSION_RULES), array=True)
    if likelihood.has_dispersion:
        return noise
    if noise.rule not in BY_EVIDENCE:
        raise UnsupportedCombinationError(
            f"sigma_noise={value!r} cannot be used with likelihood={parameters['likelihood']!r}, whose variance "
            f"follows from its mean. Use likelihood='gaussian', or sigma_noise={AUTO!r}."
        )
    return Choice(np.asarray(1.0), "")


def class_outputs(parameters: Mapping[str, Any], X: np.ndarray, n_classes: int) -> int:
    """Number of outputs of a classifier: one per class, or one logit for two classes.

    X (n, d) are rows for a trial pass of a given net. Raises ``ValueError`` if one logit is requested for more than two
    classes.
    """
    single = lookup("likelihood", parameters["likelihood"], SINGLE_LOGIT)
    if binary_only(parameters["likelihood"], parameters["net"]):
        if n_classes != 2:
            raise ValueError(
                "Only binary classification is supported with one logit (likelihood='bernoulli', or a net with "
                f"BCEWithLogitsLoss). The type of the target is multiclass: {n_classes} classes. Use "
                "likelihood='categorical' and a net with one output per class."
            )
        return 1
    if single is None and n_classes == 2 and parameters["net"] is not None:
        return 1 if has_one_output(parameters["net"], X, n_classes) else n_classes
    return n_classes


def binary_only(likelihood: object, net: Any) -> bool:
    """True if two classes share one logit, so that more classes are not possible.

    >>> binary_only("bernoulli", None), binary_only("auto", None)
    (True, False)
    """
    single = SINGLE_LOGIT.get(likelihood, False) if isinstance(likelihood, str) else False
    return bool(single) or (single is None and names_criterion(net, (torch.nn.BCEWithLogitsLoss,)))


def for_counts(likelihood: object) -> bool:
    """True if targets must not be negative."""
    return isinstance(likelihood, str) and LIKELIHOODS.get(likelihood, Likelihood).least_target == 0


def are_rates(likelihood: Likelihood, targets: np.ndarray) -> bool:
    """True if targets of counts are rates, whose weights are exposures: not all of them are whole numbers."""
    return likelihood.least_target == 0 and bool((targets != np.floor(targets)).any())


def check_support(likelihood: Likelihood, targets: np.ndarray) -> None:
    """``ValueError`` for negative counts and, if the likelihood is that of overdispersed counts, for fractions."""
    name = likelihood.key()
    if (targets < likelihood.least_target).any():
        raise ValueError(
            f"y holds {targets.min():g}; likelihood={name!r} needs counts of at least 0. For other numbers, use "
            "likelihood='gaussian'."
        )
    fractions = targets[targets != np.floor(targets)] if likelihood.is_overdispersed else targets[:0]
    if fractions.size:
        raise ValueError(
            f"y holds {fractions[0]:g}; likelihood={name!r} needs whole numbers. For counts per exposure, use "
            "likelihood='poisson' with the exposures as sample_weight. For other numbers, use likelihood='gaussian'."
        )
