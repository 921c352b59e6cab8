"""Errors for calls with wrong arguments: the unknown name, the value given, and the argument to use instead.

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
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
EPOCHS, NET = ("max_epochs",), ("hidden_layer_sizes",)
LEVEL, PENALTY, NOISE = ("confidence_level",), ("prior_precision",), ("sigma_noise",)
OBJECTS = " of sklearn_laplace.options"
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "alpha": ("confidence_level=1 - alpha", "quantiles=[alpha / 2, 1 - alpha / 2]", *PENALTY),
    **dict.fromkeys(("level", "levels", "confidence", "ci", "coverage"), LEVEL),
    **dict.fromkeys(("q", "quantile", "percentiles"), ("quantiles", *LEVEL)),
    **dict.fromkeys(("max_iter", "n_iter", "epochs", "n_epochs", "num_epochs", "iterations"), EPOCHS),
    **dict.fromkeys(("learning_rate", "learning_rate_init", "eta"), ("lr",)),
    **dict.fromkeys(("hidden_layers", "hidden_size", "layers", "n_hidden", "hidden_units"), NET),
    **dict.fromkeys(("n_estimators", "ensemble_size", "n_ensemble", "n_models"), ("n_members",)),
    "member_weights": ("n_members=Members(…)",),
    "C": ("prior_precision=1 / C",),
    **dict.fromkeys(("weight_decay", "l2", "reg_lambda", "alpha_init", "theta"), PENALTY),
    **dict.fromkeys(("noise", "sigma", "noise_std"), NOISE),
    "noise_variance": ("sigma_noise=noise_variance ** 0.5",),
    **dict.fromkeys(("seed", "random_seed"), ("random_state",)),
    **dict.fromkeys(("normalize_y", "normalize"), ("standardize_y",)),
    **dict.fromkeys(("transformer", "y_transform", "transform", "log_y"), ("target_transform",)),
    "subset": ("subset_of_weights",),
    **dict.fromkeys(("subnetwork", "n_subnetwork_weights"), ("subset_of_weights=Subnetwork(…)",)),
    "n_fisher_samples": ("curvature=MCFisher(…)",),
    "n_augmentations": ("augment=Augmentation(…)",),
    "n_samples": ("predictive=MonteCarlo(…)",),
    **dict.fromkeys(("structure", "hessian"), ("hessian_structure",)),
    **dict.fromkeys(("damping", "bias", "weight_sharing"), ("hessian_structure=Kron(…)",)),
    "rank": ("hessian_structure=LowRank(…)",),
    **dict.fromkeys(("prior_structure", "prior_mean"), ("prior=GaussianPrior(…)",)),
    **dict.fromkeys(("size", "n", "n_draws", "num_samples"), ("n_samples",)),
    **dict.fromkeys(("weights", "weight", "w"), ("sample_weight",)),
    **dict.fromkeys(("cat_features", "categorical_feature"), ("categorical_features",)),
}
"""Names from other packages and former versions, and the arguments that take their place if a function has them."""
UNNAMED: dict[str, str] = {
    **dict.fromkeys(("return_std", "std"), "Use predict_std(X), and predict_proba(X) for class probabilities."),
    "return_cov": "Only LaplaceRegressor.predict has covariances; use predict_std(X).",
    **dict.fromkeys(("kind", "include_noise"), "Use predict_std(X, kind='epistemic'), 'aleatoric' or 'total'."),
    **dict.fromkeys(
        ("early_stopping", "validation_fraction", "n_iter_no_change", "tol", "patience"),
        "Omit it: the training ends at the mode of the posterior; max_epochs and max_time end it earlier.",
    ),
    **dict.fromkeys(
        ("solver", "optimizer", "loss", "criterion", "dropout", "momentum", "betas"),
        "Omit it, or pass a skorch net with this setting as net=.",
    ),
    **dict.fromkeys(
        ("cv", "scoring", "prior_precision_grid", "grid", "alphas"),
        "Use GridSearchCV(model, {'prior_precision': […]}), with cv=… and scoring=….",
    ),
    **dict.fromkeys(
        ("X_val", "y_val", "eval_set", "validation_data", "X_valid", "X_test"),
        "Use GridSearchCV(model, {'prior_precision': […]}, cv=PredefinedSplit(…)).",
    ),
    "penalty": "Omit it: the penalty is quadratic, and prior_precision is its strength.",
    "kernel": "Omit it; hidden_layer_sizes and activation set the net.",
    "class_weight": "Only LaplaceClassifier has it; for numbers use fit(X, y, sample_weight=…).",
    "link": "Only LaplaceClassifier has it; omit it.",
    **dict.fromkeys(("sigma_noise", "standardize_y"), "Only LaplaceRegressor has it; omit it."),
}
"""What to do about names that no argument takes the place of."""


def explained(target: T, name: str | None = None) -> T:
    """Explain calls of a function with wrong arguments; for a class, of its constructor and its public methods.

    Raises ``TypeError`` as Python does, with the value given and the argument to use instead. ``name`` replaces that of
    the function.

    Examples
    --------
    >>> @explained
    ... def interval(X, *, confidence_level=0.9): ...
    >>> interval([[0.0]], alpha=0.1)
    Traceback (most recent call last):
        ...
    TypeError: interval() got an unexpected keyword argument 'alpha' (alpha=0.1). Use confidence_level=1 - alpha.
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
            if _binds(function, args, kwargs):  # raised inside the function
                raise
        raise TypeError(_reason(call, args, kwargs))

    call.__qualname__ = call.__qualname__.removesuffix(call.__name__) + name
    call.__name__ = name
    return call


def _binds(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _reason(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Message for arguments that do not match the signature."""
    parameters = dict(inspect.signature(function).parameters)
    name, owner, is_constructor = function.__name__, None, function.__name__ == "__init__"
    if next(iter(parameters), None) in ("self", "cls"):
        owner = args[0] if isinstance(args[0], type) else type(args[0])
        name = owner.__name__ if is_constructor else f"{owner.__name__}.{name}"
        parameters.pop(next(iter(parameters)))
        args = args[1:]
    parameters = {key: value for key, value in parameters.items() if value.kind not in COLLECTING}
    ordered = [key for key, parameter in parameters.items() if parameter.kind in POSITIONAL]
    if unknown := [key for key in kwargs if key not in parameters]:
        key = unknown[0]
        constructor: Mapping[str, Any] = {}
        if owner is not None and issubclass(owner, BaseEstimator) and not is_constructor:
            constructor = inspect.signature(owner).parameters
        cure = _cure(key, kwargs[key], parameters, constructor)
        return f"{name}() got an unexpected keyword argument {key!r} ({key}={outlined(kwargs[key])}). {cure}"
    required = [key for key in parameters if parameters[key].default is inspect.Parameter.empty]
    if len(args) > len(ordered):
        free = next((key for key in parameters if key not in ordered), None)
        advice = f"Pass further ones with their names, such as {_assigned(free, args[-1])}" if free else "Omit the rest"
        return (
            f"{name} was given {len(args)} arguments without a name, the last {outlined(args[-1])}; expected at most "
            f"{len(ordered)}: {', '.join(ordered)}. {advice}."
        )
    present = {**dict(zip(ordered, args, strict=False)), **kwargs}
    missing = [key for key in required if key not in present]
    shown = ", ".join(f"{key}={outlined(value)}" for key, value in present.items()) or "nothing"
    problem = f"needs {' and '.join(missing)}" if missing else "was given an argument twice"
    note = " with a fitted estimator" if "estimator" in required else ""
    return f"{name} {problem}; given: {shown}. Call {name}({', '.join(required)}, …){note}."


def _assigned(name: str, value: Any) -> str:
    """Keyword argument with its value, or with "…" for an array or an object."""
    return f"{name}={outlined(value)}" if isinstance(value, str | Number | Sequence | None) else f"{name}=…"


def _cure(key: str, value: Any, parameters: Mapping[str, Any], constructor: Mapping[str, Any]) -> str:
    """What to do about an unknown keyword argument."""
    entries = (key, *OTHER_NAMES.get(key, ()))
    for known, before, after in ((parameters, "Use", ""), (constructor, "Pass", " to the constructor")):
        for entry in entries:
            if entry.partition("=")[0] in known:
                text = entry if "=" in entry else _assigned(entry, value)
                return f"{before} {text}{OBJECTS if '(' in text and '…' in text else ''}{after}."
        if known is parameters and key in UNNAMED:
            return UNNAMED[key]
    if close := difflib.get_close_matches(key, parameters, n=1):
        return f"Did you mean {close[0]!r}?"
    return f"Its arguments are {', '.join(parameters)}."


class Absent:
    """Method that only another estimator has: its absence is explained, and ``hasattr`` stays False."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__} has no {self._name!r}. {self._advice}")
