"""Errors for calls with an unknown argument: its name, the value given, and the argument to use instead.

Python's own message names the argument only: "predict_interval() got an unexpected keyword argument 'alpha'".
:func:`explained` replaces it after the failure. Signatures do not change, so that ``get_params``, metadata routing,
type checkers and ``help`` see the original ones.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Number
from typing import Any, TypeVar

from sklearn.base import BaseEstimator

from .inputs import outlined

T = TypeVar("T")
POSITIONAL = inspect.Parameter.VAR_POSITIONAL
OTHER_NAMES = {
    "confidence_level=1 - alpha": "alpha",
    "quantiles=[alpha / 2, 1 - alpha / 2]": "alpha",
    "quantiles": "q quantile percentiles",
    "confidence_level": "level levels confidence ci coverage q quantile percentiles",
    "max_epochs": "max_iter n_iter epochs n_epochs num_epochs iterations",
    "lr": "learning_rate learning_rate_init eta",
    "hidden_layer_sizes": "hidden_layers hidden_size layers n_hidden hidden_units",
    "n_members": "n_estimators ensemble_size n_ensemble n_models",
    "prior_precision": "alpha weight_decay l2 reg_lambda alpha_init theta",
    "prior_precision=1 / C": "C",
    "sigma_noise": "noise sigma noise_std",
    "sigma_noise=noise_variance ** 0.5": "noise_variance",
    "random_state": "seed random_seed",
    "standardize_y": "normalize_y normalize",
    "target_transform": "transformer y_transform transform log_y",
    "subset_of_weights": "subset",
    "subset_of_weights=Subnetwork(…)": "subnetwork",
    "predictive=MonteCarlo(…)": "n_samples",
    "hessian_structure": "structure hessian",
    "hessian_structure=Kron(…)": "damping bias weight_sharing",
    "hessian_structure=LowRank(…)": "rank",
    "n_samples": "size n n_draws num_samples",
    "sample_weight": "weights weight w",
    "categorical_features": "cat_features categorical_feature",
}
"""Argument of a function, or its value, for names that other packages use and for names of options; space-separated."""
ADVICE = {
    "Use predict_std(X), and predict_proba(X) for class probabilities.": "return_std std",
    "Only LaplaceRegressor.predict has covariances; use predict_std(X).": "return_cov",
    "Use predict_std(X, kind='epistemic'), 'aleatoric' or 'total'.": "kind include_noise",
    "Omit it: the training ends at the mode of the posterior; max_epochs and max_time end it earlier.": (
        "early_stopping validation_fraction n_iter_no_change tol patience"
    ),
    "Omit it, or pass a skorch net with this setting as net=.": (
        "solver optimizer loss criterion dropout momentum betas"
    ),
    "Use GridSearchCV(model, {'prior_precision': […]}), with cv=… and scoring=….": "cv scoring grid alphas",
    "Use GridSearchCV(model, {'prior_precision': […]}, cv=PredefinedSplit(…)).": (
        "X_val y_val eval_set validation_data"
    ),
    "Omit it: the penalty is quadratic, and prior_precision is its strength.": "penalty",
    "Omit it; hidden_layer_sizes and activation set the net.": "kernel",
    "Only LaplaceClassifier has it; for numbers use fit(X, y, sample_weight=…).": "class_weight",
    "Only LaplaceClassifier has it; omit it.": "link",
    "Only LaplaceRegressor has it; omit it.": "sigma_noise standardize_y",
}
"""What to do about names that no argument takes the place of."""


def explained(target: T, name: str | None = None) -> T:
    """Explain calls of a function with unknown arguments; for a class, of its constructor and its public methods.

    Raises ``TypeError`` as Python does, with the value given and the argument to use instead. ``name`` replaces that of
    the function.
    """
    if isinstance(target, type):
        for member_name, member in list(vars(target).items()):
            function = member.__func__ if isinstance(member, classmethod) else member
            if inspect.isfunction(function) and (member_name == "__init__" or not member_name.startswith("_")):
                call = _explained(function, member_name)
                setattr(target, member_name, classmethod(call) if isinstance(member, classmethod) else call)
        return target
    return _explained(target, name or target.__name__)  # type: ignore


def _explained(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            if (reason := _unknown(call, args, kwargs)) is None:
                raise
        raise TypeError(reason)

    call.__qualname__ = call.__qualname__.removesuffix(call.__name__) + name
    call.__name__ = name
    return call


def _unknown(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Message for a keyword argument that the function does not have; None if it has all of them."""
    parameters = {k: v for k, v in inspect.signature(function).parameters.items() if v.kind is not POSITIONAL}
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    key = next((key for key in kwargs if key not in parameters), None)
    if key is None or takes_all:
        return None
    name, constructor = function.__name__, {}
    if next(iter(parameters), None) in ("self", "cls"):
        del parameters[next(iter(parameters))]
        owner = args[0] if isinstance(args[0], type) else type(args[0])
        constructor = _constructor_parameters(owner, name)
        name = owner.__name__ if name == "__init__" else f"{owner.__name__}.{name}"
    cure = _cure(key, kwargs[key], parameters, constructor)
    return f"{name}() got an unexpected keyword argument {key!r} ({key}={outlined(kwargs[key])}). {cure}"


def _constructor_parameters(owner: type, method: str) -> dict[str, Any]:
    """Parameters of an estimator's constructor, for a call of another method; else empty."""
    if method == "__init__" or not issubclass(owner, BaseEstimator):
        return {}
    return dict(inspect.signature(owner).parameters)


def _assigned(name: str, value: Any) -> str:
    """Keyword argument with its value, or with "…" for an array or an object."""
    return f"{name}={outlined(value)}" if isinstance(value, str | Number | Sequence | None) else f"{name}=…"


def _cure(key: str, value: Any, parameters: Mapping[str, Any], constructor: Mapping[str, Any]) -> str:
    """What to do about an unknown keyword argument."""
    entries = [key, *_entries(OTHER_NAMES, key)]
    ours, others = ([e for e in entries if e.partition("=")[0] in known] for known in (parameters, constructor))
    advice = _entries(ADVICE, key)
    if not ours and advice:
        return advice[0]
    if entry := next(iter(ours or others), None):
        text = _replacement(entry, value)
        return f"Use {text}." if ours else f"Pass {text} to the constructor."
    if close := difflib.get_close_matches(key, parameters, n=1):
        return f"Did you mean {close[0]!r}?"
    return f"Its arguments are {', '.join(parameters)}."


def _entries(table: Mapping[str, str], name: str) -> list[str]:
    """Keys of a table whose space-separated names include one."""
    return [entry for entry, names in table.items() if name in names.split()]


def _replacement(entry: str, value: Any) -> str:
    text = entry if "=" in entry else _assigned(entry, value)
    return f"{text} of sklearn_laplace.options" if "(…)" in entry else text


class Absent:
    """Method that only another estimator has: its absence is explained, and ``hasattr`` stays False."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__} has no {self._name!r}. {self._advice}")
