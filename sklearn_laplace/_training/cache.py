"""Cache of training results in the joblib memory that the parameter ``memory`` specifies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pickle import PicklingError
from typing import Any, TypeVar

import joblib
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_memory
from skorch import NeuralNet

from .._table.limits import held
from ..errors import TiedScoresWarning, UncachedWarning
from ..errors.searches import Search, current_search
from ..errors.warn import warn_user
from ..nets.given_net import copied
from ..options.resolve import resolve
from ..options.resolved import is_number, trained_as
from ..options.variants import DEFAULTS
from .plan import FitRequest, GivenNet
from .progress import Task

Trained = TypeVar("Trained")
FORMAT = 4
"""Version in the cache key. Raise it if the training code changes, because joblib compares only the parameters."""
SCORES_OF_THE_MEAN = (
    "r2",
    "accuracy",
    "neg_mean_squared_error",
    "neg_root_mean_squared_error",
    "neg_mean_absolute_error",
)
"""Scores that depend only on mean predictions or labels."""
MAP_NEUTRAL: dict[str, Any] = {
    **{name: value for name, value in DEFAULTS.items() if name not in ("prior_structure", "prior_mean")},
    "subset_of_weights": "all",
    "hessian_structure": "auto",
    "curvature": "ggn",  # the training always uses this curvature
    "temperature": 1.0,
    "predictive": "auto",
    "link": "moderated",
    "class_weight": None,  # already in the weights of the rows
    "n_members": "auto",
    "random_state": None,
    "max_time": None,  # training with a time limit is not cached
    "memory": None,
    "n_jobs": None,
    "memory_budget": None,  # in the resolved options
}
"""Parameters that do not affect the training, with fixed values that replace the user's values in the cache key."""
POST_HOC_NEUTRAL: dict[str, Any] = {
    "prior_precision": 1.0,
    "prior_structure": "scalar",
    "sigma_noise": "evidence",
}
"""Further parameters without effect on the training if ``map_prior_precision`` is a number."""


def neutral(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, with fixed values in place of those that do not affect the training."""
    fixed = {**MAP_NEUTRAL, **(POST_HOC_NEUTRAL if is_number(parameters["map_prior_precision"]) else {})}
    return {name: fixed.get(name, trained_as(name, value)) for name, value in parameters.items()}


def cached_training(train: Callable[[FitRequest, Task], Trained], request: FitRequest, task: Task) -> Trained:
    """Call ``train(request, task)``, or load the result of the same call from the cache.

    The cache requires ``memory`` and a fixed ``random_state``. In a search, training results of the user's nets are
    kept even without ``memory``. Frozen nets, previous posteriors, streams and ``max_time`` prevent caching. With
    ``memory``, an ``UncachedWarning`` is issued if the net cannot be hashed.
    """
    parameters = request.parameters
    memory, net = check_memory(parameters["memory"]), parameters["net"]
    is_fixed = isinstance(net, FrozenEstimator) or parameters["prior"] is not None
    is_timed = parameters["max_time"] is not None
    is_fixed |= request.stream is not None
    search = None if net is None or memory.location is not None else current_search()
    if (memory.location is None and search is None) or parameters["random_state"] is None or is_fixed or is_timed:
        return train(request, task)
    fixed = neutral(parameters)
    try:
        others = request.kind, request.data, request.seeds[:2], request.warm_start, request.is_member
        key = joblib.hash((FORMAT, train.__name__, fixed, others))
    except (PicklingError, AttributeError, TypeError) as error:
        if search is not None:
            return train(request, task)
        warn_user(
            f"the training is not cached although memory is set: net={type(net).__name__}(…) cannot be hashed "
            f"({error}). Define the class of its module in an importable file.",
            UncachedWarning,
        )
        return train(request, task)
    resolved = resolve(request.kind, {**fixed, "memory_budget": parameters["memory_budget"]})
    request = replace(request, parameters=fixed, resolved=resolved, kept=None, seeds=[*request.seeds[:2], 0])
    if search is not None:
        return _trained_once(search, request, key, lambda: train(request, task))
    trained: Trained = memory.cache(_trained, ignore=["train", "request", "task"])(key, train, request, task)
    return trained


def _trained(key: str, train: Callable[[FitRequest, Task], Trained], request: FitRequest, task: Task) -> Trained:
    """Call ``train``; joblib caches the result of this function by the key alone."""
    return train(request, task)


def _trained_once(search: Search, request: FitRequest, key: str, compute: Callable[[], Trained]) -> Trained:
    """Return the training result of a user's net, which is shared by the candidates of a search.

    Issue a ``TiedScoresWarning`` if candidates with the same means are compared by a score of the mean.
    """
    trained, known = search.shared.result(key, compute, lambda found: _bytes_of_net(found.net))  # type: ignore[attr-defined]
    scoring = None if search.search is None else search.search.scoring
    is_tied = search.search is not None and search.is_candidate and known
    is_tied &= not request.resolved.likelihood.over_classes  # a mean of classes depends on the posterior
    if is_tied and (scoring is None or scoring in SCORES_OF_THE_MEAN):
        warn_user(
            "candidates of this search share a net and differ in their error bars alone, which "
            f"scoring={scoring!r} ignores: their scores are equal, and the first one is selected. Use "
            "scoring=neg_nlpd of sklearn_laplace.metrics.",
            TiedScoresWarning,
        )
    net: Any = trained.net  # type: ignore[attr-defined]
    of_search = {"key": key} if isinstance(trained, GivenNet) else {}
    return replace(trained, net=copied(net), **of_search)  # type: ignore[type-var]


def kept_in_search(key: str, compute: Callable[[], Trained]) -> Trained:
    """Return a result that the fits of a search share; compute it anew outside a search, or for an empty key."""
    search = current_search() if key else None
    return compute() if search is None else search.shared.result(key, compute, held)[0]


def _bytes_of_net(net: NeuralNet) -> int:
    """Size of a training result in bytes: the weights of the net and of its traced copy."""
    return 2 * sum(tensor.numel() * tensor.element_size() for tensor in net.module_.state_dict().values())
