"""The training of a fit, taken from the cache of ``memory=`` if the same training is there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pickle import PicklingError
from typing import Any, TypeVar

import joblib
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_memory

from .._options.options import is_number, trained_as
from .._options.variants import DEFAULTS
from .._runtime.progress import Task
from ..errors import UncachedWarning
from .request import TrainingRequest

Trained = TypeVar("Trained")
MAP_NEUTRAL: dict[str, Any] = {
    **{name: value for name, value in DEFAULTS.items() if name not in ("prior_structure", "prior_mean")},
    "subset_of_weights": "all",
    "hessian_structure": "auto",
    "curvature": "ggn",  # the training's own, whatever the posterior's is
    "temperature": 1.0,
    "predictive": "glm",
    "link": "moderated",
    "return_std_kind": "total",
    "class_weight": None,  # already in the weights of the rows
    "augment": None,  # already in the rows, which the cache sees
    "n_members": "auto",
    "random_state": None,
    "max_time": None,  # a training that ended early is not cached
    "memory": None,
    "n_jobs": None,
    "memory_budget": None,  # handed to it beside them
}
"""Parameters that the training does not look at, at the values under which it is cached."""
POST_HOC_NEUTRAL: dict[str, Any] = {
    "prior_precision": 1.0,
    "prior_structure": "scalar",
    "sigma_noise": "evidence",
}
"""Those that it does not look at either while ``map_prior_precision`` is a number."""


def neutral(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with those that the training ignores at fixed values.

    Examples
    --------
    >>> neutral({"lr": 0.1, "temperature": 5.0, "map_prior_precision": 1.0, "prior_precision": 7.0})
    {'lr': 0.1, 'temperature': 1.0, 'map_prior_precision': 1.0, 'prior_precision': 1.0}
    """
    fixed = {**MAP_NEUTRAL, **(POST_HOC_NEUTRAL if is_number(parameters["map_prior_precision"]) else {})}
    return {name: fixed.get(name, trained_as(name, value)) for name, value in parameters.items()}


def cached_training(train: Callable[..., Trained], request: TrainingRequest, task: Task) -> Trained:
    """Train a net or several, or return the same training from the cache.

    Nothing is cached without ``memory`` or without a fixed ``random_state``, for a frozen net, after a previous
    posterior, and with ``max_time``.

    Parameters
    ----------
    train : callable
        (request, memory_budget, task) → what is to be cached.
    request : TrainingRequest
    task : Task

    Warns
    -----
    UncachedWarning
        If the net cannot be hashed.
    """
    parameters = request.parameters
    memory, net, budget = check_memory(parameters["memory"]), parameters["net"], parameters["memory_budget"]
    is_fixed = isinstance(net, FrozenEstimator) or parameters["prior"] is not None
    is_timed = parameters["max_time"] is not None
    if memory.location is None or parameters["random_state"] is None or is_fixed or is_timed:
        return train(request, budget, task)
    try:
        joblib.hash(net)
    except (PicklingError, AttributeError, TypeError) as error:
        warnings.warn(
            f"memory= is not used: net={type(net).__name__}(…) cannot be hashed ({error}). Define its module in an "
            "importable file.",
            UncachedWarning,
            stacklevel=4,
        )
        return train(request, budget, task)
    key = replace(request, parameters=neutral(parameters))
    found: Trained = memory.cache(train, ignore=["memory_budget", "task"])(key, budget, task)
    return found
