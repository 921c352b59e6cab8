"""The training of a fit, taken from the cache of ``memory=`` if the same training is there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pickle import PicklingError
from typing import Any, TypeVar

import joblib
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_memory

from ._data import PreparedData
from ._progress import Task
from ._stages import neutral
from .errors import UncachedWarning

Trained = TypeVar("Trained")


def cached_training(
    train: Callable[..., Trained],
    kind: str,
    parameters: Mapping[str, Any],
    data: PreparedData,
    seeds: list[int],
    task: Task,
) -> Trained:
    """Train a net or several, or return the same training from the cache.

    Nothing is cached without ``memory`` or without a fixed ``random_state``, for a frozen net, after a previous
    posterior, and with ``max_time``.

    Parameters
    ----------
    train : callable
        (kind, parameters, data, seeds, memory_budget, task) → what is to be cached.
    kind : str
        Of the estimator.
    parameters : mapping
        The estimator's.
    data : PreparedData
    seeds : list of int
        Of the initial weights and of the order of the rows.
    task : Task

    Warns
    -----
    UncachedWarning
        If the net cannot be hashed.
    """
    memory, net, budget = check_memory(parameters["memory"]), parameters["net"], parameters["memory_budget"]
    is_fixed = isinstance(net, FrozenEstimator) or parameters["prior"] is not None
    is_timed = parameters["max_time"] is not None
    if memory.location is None or parameters["random_state"] is None or is_fixed or is_timed:
        return train(kind, parameters, data, seeds, budget, task)
    try:
        joblib.hash(net)
    except (PicklingError, AttributeError, TypeError) as error:
        warnings.warn(
            f"memory= is not used: net={type(net).__name__}(…) cannot be hashed ({error}). Define its module in an "
            "importable file.",
            UncachedWarning,
            stacklevel=4,
        )
        return train(kind, parameters, data, seeds, budget, task)
    found: Trained = memory.cache(train, ignore=["memory_budget", "task"])(
        kind, neutral(parameters), data, seeds, budget, task
    )
    return found
