"""Resolve the likelihood, its noise, and the number of outputs."""

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

LIKELIHOODS_FOR = {"regressor": ("gaussian", "poisson"), "classifier": ("categorical", "bernoulli")}
"""The first is "auto"; for a classifier the second where two classes share one logit."""
VARYING_NOISE = {AUTO: None, "heteroscedastic": True}
"""Likelihoods, Gaussian all of them, whose noise varies with the inputs; None where the rows decide."""
SINGLE_LOGIT = {"auto": None, "categorical": False, "bernoulli": True}
"""Whether two classes share one logit; None where the given net decides."""


def _varying_noise(parameters: Mapping[str, Any], noise: Choice) -> bool | None:
    """Whether the noise varies with the inputs; where the rows decide, not under a noise that is asked for."""
    found = VARYING_NOISE.get(parameters["likelihood"], False)
    return False if found is None and noise.rule != AUTO else found


def _noise(parameters: Mapping[str, Any], likelihood: Likelihood) -> Choice:
    """The noise, or one that counts for nothing where the likelihood has none."""
    given = parameters.get("sigma_noise", AUTO)
    found = choice("sigma_noise", given, list(DISPERSION_RULES), array=True)
    if likelihood.has_dispersion:
        return found
    if found.rule not in BY_EVIDENCE:
        raise UnsupportedCombinationError(
            f"sigma_noise={given!r} cannot be used with likelihood={parameters['likelihood']!r}, whose spread follows "
            f"from its mean. Use likelihood='gaussian', or leave sigma_noise={AUTO!r}."
        )
    return Choice(np.asarray(1.0), "")


def class_outputs(parameters: Mapping[str, Any], X: np.ndarray, n_classes: int) -> int:
    """How many outputs tell the classes apart: one a class, or one logit for two.

    Parameters
    ----------
    parameters : mapping
        A classifier's.
    X : ndarray of shape (n, d)
        Rows on which a given net can be tried.
    n_classes : int

    Raises
    ------
    ValueError
        When one logit is asked for and there are more classes.
    """
    single = lookup("likelihood", parameters["likelihood"], SINGLE_LOGIT)
    if binary_only(parameters["likelihood"], parameters["net"]):
        if n_classes != 2:
            raise ValueError(
                "Only binary classification is supported with one logit (likelihood='bernoulli', or a net with "
                f"BCEWithLogitsLoss). The type of the target is multiclass: {n_classes} classes. Use "
                "likelihood='categorical', and a net with one output a class."
            )
        return 1
    if single is None and n_classes == 2 and parameters["net"] is not None:
        return 1 if has_one_output(parameters["net"], X, n_classes) else n_classes
    return n_classes


def binary_only(likelihood: object, net: Any) -> bool:
    """Whether two classes share one logit, so that there can be no more.

    Examples
    --------
    >>> binary_only("bernoulli", None), binary_only("auto", None)
    (True, False)
    """
    single = SINGLE_LOGIT.get(likelihood, False) if isinstance(likelihood, str) else False
    return bool(single) or (single is None and names_criterion(net, (torch.nn.BCEWithLogitsLoss,)))


def for_counts(likelihood: object) -> bool:
    """Whether targets have to be zero at least.

    Examples
    --------
    >>> for_counts("poisson"), for_counts("gaussian")
    (True, False)
    """
    return isinstance(likelihood, str) and LIKELIHOODS.get(likelihood, Likelihood).least_target == 0


def check_support(likelihood: Likelihood, targets: np.ndarray) -> None:
    """Whether the likelihood can have made these targets.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_support(LIKELIHOODS["poisson"](), np.array([[2.0], [-1.0]]))
    Traceback (most recent call last):
        ...
    ValueError: y holds -1; likelihood='poisson' is for counts, 0 and above. For numbers of either sign use \
likelihood='gaussian'.
    """
    if (targets < likelihood.least_target).any():
        raise ValueError(
            f"y holds {targets.min():g}; likelihood='poisson' is for counts, 0 and above. For numbers of either sign "
            "use likelihood='gaussian'."
        )
