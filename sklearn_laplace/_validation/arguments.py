"""Checks of single arguments: names, positive numbers, counts, fractions, and unknown arguments.

A failed check raises a ValueError with the given and the expected value. ``options/resolve.py`` checks combinations.

For an unknown argument, Python's own message has only its name: "predict_interval() got an unexpected keyword argument
'alpha'". The decorator :func:`explained` adds the given value and the argument to use instead. It does not change
the signature of a function, so ``get_params``, metadata routing, type checkers and ``help`` work as before.
"""

import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from .rows import outlined, shown

T = TypeVar("T")
WIDEST = 10**6
"""Maximum number of units of a hidden layer."""
MOST = 2**31 - 1
"""Largest valid count."""
SIZES = (1e-60, 1e60)
"""Valid range of positive numbers."""


def lookup(option: str, value: object, known: Mapping[str, T], also: str = "") -> T:
    """Look up an object by name; ``ValueError`` lists all names, the closest one, and other valid values (``also``)."""
    if isinstance(value, str) and value in known:
        return known[value]
    close = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
    hint = f" Did you mean {close[0]!r}?" if close else ""
    if also and isinstance(value, str) and value.lstrip("+-").replace(".", "", 1).isdigit():
        hint = f" For a number, omit the quotes: {option}={value}."
    names = ", ".join(repr(name) for name in sorted(known)) + (f", or {also}" if also else "")
    raise ValueError(f"{option}={shown(value)} is not known; expected one of {names}.{hint}")


def positive(option: str, value: object) -> float:
    """Return a finite number above zero and within ``SIZES`` as float; else raise ``ValueError``."""
    number = math.nan
    with suppress(OverflowError):
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{option}={shown(value)} has to be a finite number above zero.")
    _check_size(option, np.asarray(number))
    return number


def count(option: str, value: object) -> int:
    """Return a whole number from 1 to ``MOST`` as int; else raise ``ValueError``."""
    if isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= MOST:
        return int(value)
    raise ValueError(f"{option}={shown(value)} has to be a whole number of at least 1{below(value)}.")


def below(value: object) -> str:
    """Part of an error message: the upper limit, if the value is an integer above it; otherwise empty."""
    return f" and at most {MOST}" if isinstance(value, Integral) and int(value) > MOST else ""


def flag(option: str, value: object) -> bool:
    """Return True, False, 1 or 0 as bool; else raise ``ValueError``."""
    if isinstance(value, bool | np.bool_ | Integral) and value in (0, 1):
        return bool(value)
    raise ValueError(f"{option}={shown(value)} has to be True or False.")


def random_numbers(value: Any) -> np.random.RandomState:
    """Convert a ``random_state`` with scikit-learn's ``check_random_state``; ``ValueError`` for an invalid seed."""
    try:
        numbers: np.random.RandomState = check_random_state(value)
    except ValueError as error:
        raise ValueError(
            f"random_state={shown(value)} has to be None, a whole number from 0 to 2**32 - 1, or a numpy RandomState: "
            f"{error}."
        ) from error
    return numbers


def generator(random_state: Any) -> torch.Generator:
    """Return a torch generator seeded by a ``random_state`` of scikit-learn."""
    seed = int(random_numbers(random_state).randint(np.iinfo(np.int32).max))
    return torch.Generator().manual_seed(seed)


def layer_sizes(sizes: Any) -> tuple[int, ...]:
    """Return numbers of hidden units from 1 to ``WIDEST`` as a tuple; else raise ``ValueError``."""
    valid = isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes)
    if not (valid and all(isinstance(n, Integral) and 0 < int(n) <= WIDEST for n in sizes)):
        raise ValueError(
            f"hidden_layer_sizes={shown(sizes)} has to be a tuple of whole numbers above zero and at most {WIDEST}, "
            "for example (50,)."
        )
    return tuple(map(int, sizes))


def fractions(option: str, values: Any) -> np.ndarray:
    """Return numbers strictly between 0 and 1 as an array (levels,); else raise ``ValueError``."""
    try:
        levels = np.atleast_1d(np.asarray(values, dtype=float))
    except (TypeError, ValueError, OverflowError):
        levels = np.array([np.nan])
    if levels.ndim != 1 or levels.size == 0 or not ((levels > 0) & (levels < 1)).all():
        percent = levels[(levels > 1) & (levels < 100)]
        hint = f" Divide percentages by 100: {percent[0]:g} % is {percent[0] / 100:g}." if percent.size else ""
        raise ValueError(f"{option}={shown(values)} has to hold numbers strictly between 0 and 1.{hint}")
    return levels


def optional_count(option: str, value: object, least: int) -> int | None:
    """Return None, or a whole number from ``least`` to ``MOST``; else raise ``ValueError``."""
    if value is None or (isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= MOST):
        return None if value is None else int(value)
    raise ValueError(f"{option}={shown(value)} has to be None or a whole number of at least {least}{below(value)}.")


def jobs(option: str, value: object) -> int | None:
    """Return a number of jobs as in joblib, None or a non-zero integer; else raise ``ValueError``."""
    if value is None or (isinstance(value, Integral) and not isinstance(value, bool) and int(value) != 0):
        return None if value is None else int(value)
    raise ValueError(f"{option}={shown(value)} has to be None or a whole number other than 0; -1 means all processors.")


def count_or_share(option: str, value: object) -> int | float:
    """Return a count of at least 1 (int) or a fraction of the total in (0, 1] (float); else raise ``ValueError``."""
    if isinstance(value, Real) and not isinstance(value, bool | Integral) and 0 < float(value) <= 1:
        return float(value)
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ValueError(
        f"{option}={shown(value)} has to be a whole number of at least 1, or a float above 0 and at most 1, "
        "which is a fraction of the total."
    )


def _check_size(option: str, values: np.ndarray) -> None:
    """Raise ``ValueError`` unless values are within ``SIZES``, where squares and products are finite."""
    if not ((values >= SIZES[0]) & (values <= SIZES[1])).all():
        raise ValueError(f"{option}={values.tolist()!r} is out of range; expected {SIZES[0]:g} to {SIZES[1]:g}.")


@dataclass(frozen=True)
class Choice:
    """Hyperparameter given as a value, or as the name of a selection rule."""

    value: np.ndarray | None  # positive, 0-d or 1-d; None if a rule selects it
    rule: str  # empty if a value is given

    def __eq__(self, other: object) -> bool:
        same_rule = isinstance(other, Choice) and self.rule == other.rule and self.free == other.free
        return same_rule and np.array_equal(np.asarray(self.value), np.asarray(other.value))  # type: ignore[attr-defined]

    @property
    def free(self) -> bool:
        """True if a rule selects the value."""
        return self.value is None


def choice(option: str, value: object, rules: Sequence[str]) -> Choice:
    """Return a choice: positive numbers with at most one axis, or a rule's name; else raise ``ValueError``."""
    alternative = f", or one of {', '.join(repr(name) for name in rules)}" if rules else ""
    if isinstance(value, str) and rules:
        lookup(option, value, dict.fromkeys(rules), "a finite number above zero")
        return Choice(None, value)
    numbers = _float_array(value)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{option}={shown(value)} has to be a finite number above zero{alternative}.")
    _check_size(option, numbers)
    return Choice(numbers, "")


def _float_array(value: object) -> np.ndarray:
    """Convert numbers to an array of at most one axis; NaN for other input."""
    if isinstance(value, bool):
        return np.asarray(math.nan)
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        return np.asarray(math.nan)
    return numbers if numbers.size and numbers.ndim <= 1 else np.asarray(math.nan)


SUFFIXES = (".pkl", ".pickle", ".joblib", ".skops", ".pt", ".pth", ".onnx", ".json", ".h5", ".safetensors")
"""Suffixes of known file formats; other packages would fail to read a file with a wrong suffix."""


def file_path(value: object, suffix: str | None = None) -> Path:
    """Return a file name as a path; ``ValueError`` if its suffix is that of a known format other than ``suffix``."""
    if not isinstance(value, str | os.PathLike) or not Path(value).name or "\0" in str(value):
        raise ValueError(f"path={shown(value)} has to be the name of a file, as a string or a pathlib.Path.")
    path = Path(value)
    if suffix is not None and path.suffix in SUFFIXES and path.suffix != suffix:
        raise ValueError(
            f"path={str(path)!r} has the suffix of another format; {suffix[1:]} is written. Use "
            f"{str(path.with_suffix(suffix))!r}."
        )
    return path


Method = TypeVar("Method")
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
"""Arguments to suggest; the values are their space-separated names in other packages or in option objects."""
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
"""Advice for unknown names that no argument replaces; the values are space-separated names."""


def explained(target: Method, name: str | None = None) -> Method:
    """Decorate a function, or the constructor and public methods of a class, to explain unknown arguments.

    The message of the ``TypeError`` contains the given value and advice. ``name`` replaces the function's name.
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
    """Return the message for a keyword argument that the function does not have; None if it has all of them."""
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
    """Return the parameters of an estimator's constructor if another method was called; otherwise an empty dict."""
    if method == "__init__" or not issubclass(owner, BaseEstimator):
        return {}
    return dict(inspect.signature(owner).parameters)


def _assigned(name: str, value: Any) -> str:
    """Return a keyword argument with its value, or with "…" for an array or an object."""
    return f"{name}={outlined(value)}" if isinstance(value, str | Number | Sequence | None) else f"{name}=…"


def _cure(key: str, value: Any, parameters: Mapping[str, Any], constructor: Mapping[str, Any]) -> str:
    """Return advice for an unknown keyword argument."""
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
    """Return the keys of a table whose space-separated names include ``name``."""
    return [entry for entry, names in table.items() if name in names.split()]


def _replacement(entry: str, value: Any) -> str:
    text = entry if "=" in entry else _assigned(entry, value)
    return f"{text} of sklearn_laplace.options" if "(…)" in entry else text


class Absent:
    """Placeholder for a method that only the other estimator has. Access raises an ``AttributeError`` with advice."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__} has no {self._name!r}. {self._advice}")
