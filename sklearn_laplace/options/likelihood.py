"""Resolve the likelihood, its noise level, the number of outputs, and ``class_weight``."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .._validation.arguments import Choice, choice, lookup
from .._validation.rows import as_float
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods import LIKELIHOODS
from ..laplace.likelihoods._base import Likelihood
from ..nets.given_net import has_one_output, names_criterion
from .resolved import AUTO, BY_EVIDENCE, DISPERSION_RULES

BALANCED = "balanced"


def class_weights(class_weight: Any, classes: np.ndarray, index: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the factors (n_classes,) by which ``class_weight`` multiplies the row weights (n,) of each class.

    ``index`` (n,) is the position of each row's label in the sorted ``classes`` (n_classes,).
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, Mapping):
        return _given_factors(class_weight, classes)
    lookup("class_weight", class_weight, {BALANCED: None}, "a dict {label: weight}, or None")
    totals = np.bincount(index, weights=weights, minlength=len(classes))
    present = totals > 0
    return np.where(present, totals.sum() / (present.sum() * np.where(present, totals, 1.0)), 1.0)


def _given_factors(class_weight: Mapping[Any, Any], classes: np.ndarray) -> np.ndarray:
    labels = classes.tolist()
    # tolist() converts dates to other types, and the keys of a dict may be of either type
    place_of = {label: place for names in (labels, classes) for place, label in enumerate(names)}
    if unknown := [label for label in class_weight if label not in place_of]:
        raise ValueError(f"class_weight names {unknown}, which are not among the classes {labels}. Remove them.")
    factors = np.ones(len(classes))
    for label, factor in class_weight.items():
        factors[place_of[label]] = as_float(factor, "class_weight")
    if not (np.isfinite(factors).all() and (factors >= 0).all()):
        raise ValueError(f"class_weight={class_weight!r} has to hold finite numbers that are not negative.")
    return factors


def check_streaming_weights(class_weight: Any) -> None:
    """Refuse ``class_weight="balanced"`` in ``partial_fit`` and ``forget``, since it needs all rows at once."""
    if isinstance(class_weight, str):
        lookup("class_weight", class_weight, {BALANCED: None})
        raise ValueError(
            f"class_weight={class_weight!r} depends on all rows and cannot be used with partial_fit and forget, which "
            "receive a part of them. Pass the weights as a dict {label: weight}."
        )


LIKELIHOODS_FOR = {
    "regressor": ("gaussian", "poisson", "negative_binomial"),
    "classifier": ("categorical", "bernoulli"),
}
"""Likelihoods of each estimator. "auto" is the first; for a classifier with a single logit, the second."""
VARYING_NOISE = {AUTO: None, "heteroscedastic": True}
"""Values of ``likelihood`` with noise that can vary with the inputs: True if it does, None if the data decide."""
SINGLE_LOGIT = {"auto": None, "categorical": False, "bernoulli": True}
"""True if two classes share one logit; None if the given net decides."""


def _varying_noise(parameters: Mapping[str, Any], noise: Choice) -> bool | None:
    """True if the noise level varies with the inputs; None if the data decide, which needs ``sigma_noise="auto"``."""
    varying = VARYING_NOISE.get(parameters["likelihood"], False)
    return False if varying is None and noise.rule != AUTO else varying


def _noise(parameters: Mapping[str, Any], likelihood: Likelihood) -> Choice:
    """Noise level or its rule; a placeholder of 1 if the likelihood has no noise level."""
    value = parameters.get("sigma_noise", AUTO)
    noise = choice("sigma_noise", value, list(DISPERSION_RULES))
    if likelihood.has_dispersion:
        return noise
    if noise.rule not in BY_EVIDENCE:
        raise UnsupportedCombinationError(
            f"sigma_noise={value!r} cannot be used with likelihood={parameters['likelihood']!r}, whose variance "
            f"follows from its mean. Use likelihood='gaussian', or sigma_noise={AUTO!r}."
        )
    return Choice(np.asarray(1.0), "")


def class_outputs(parameters: Mapping[str, Any], X: np.ndarray, n_classes: int) -> int:
    """Return the number of outputs, n_classes or 1; if it is unknown, the user's net is evaluated on rows of X."""
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
    """True if two classes share one logit, so more classes are not possible.

    >>> binary_only("bernoulli", None), binary_only("auto", None)
    (True, False)
    """
    single = SINGLE_LOGIT.get(likelihood, False) if isinstance(likelihood, str) else False
    return bool(single) or (single is None and names_criterion(net, (torch.nn.BCEWithLogitsLoss,)))


def for_counts(likelihood: object) -> bool:
    """True for a likelihood of counts, whose targets must not be negative."""
    return isinstance(likelihood, str) and LIKELIHOODS.get(likelihood, Likelihood).least_target == 0


def are_rates(likelihood: Likelihood, targets: np.ndarray) -> bool:
    """True if targets of a count likelihood include fractions: then they are rates, and weights are exposures."""
    return likelihood.least_target == 0 and bool((targets != np.floor(targets)).any())


def check_support(likelihood: Likelihood, targets: np.ndarray) -> None:
    """Raise a ``ValueError`` for negative counts and, with an overdispersed likelihood, for fractions."""
    if (targets < likelihood.least_target).any():
        raise ValueError(
            f"y holds {targets.min():g}; likelihood={likelihood.key()!r} needs counts of at least 0. For other "
            "numbers, use likelihood='gaussian'."
        )
    fractions = targets[targets != np.floor(targets)] if likelihood.is_overdispersed else targets[:0]
    if fractions.size:
        raise ValueError(
            f"y holds {fractions[0]:g}; likelihood={likelihood.key()!r} needs whole numbers. For counts per exposure, "
            "use likelihood='poisson' with the exposures as sample_weight. For other numbers, use "
            "likelihood='gaussian'."
        )
