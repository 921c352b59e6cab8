"""Write the state of an estimator to a pickle or a file, and read it again."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from sklearn.base import BaseEstimator

from .._training.progress import callbacks_of, without_callbacks
from ..errors import StateError
from ..nets.given_net import move_to_present_device
from .describe import pack, requirements
from .kinds import ESTIMATORS, Kind, Reads, check_types, new, shadows
from .registry import FITTED, OPTIONAL, PACKAGE, PARAMETER
from .restore import Reader, reading

T = TypeVar("T")
STATE_FORMAT = 7
"""Format number of descriptions, in pickles and in files."""


def split(estimator: BaseEstimator) -> tuple[dict[str, Any], dict[str, Any]]:
    names, state = estimator.get_params(deep=False), without_callbacks(BaseEstimator.__getstate__(estimator))
    state.pop("_resolved", None)  # follows from the parameters
    return {name: state.pop(name) for name in list(state) if name in names}, state


def joined(kind: type, parameters: Mapping[str, Any], fitted: Mapping[str, Any]) -> Any:
    estimator = new(kind, {})
    _settle(estimator, {**parameters, **fitted})
    return estimator


def _settle(estimator: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes, and move the nets of a fitted estimator to a device of this machine."""
    for name, value in attributes.items():
        setattr(estimator, name, value)
    if "_ensemble" in attributes:
        for member in attributes["_ensemble"].members:
            move_to_present_device(member.net)
        with suppress(TypeError, ValueError):  # parameters set after the fit may be invalid; a prediction reports them
            estimator._resolve()


def stored(kind: type[T]) -> type[T]:
    """Class decorator: descriptions may contain estimators of the class, with parameters and fitted attributes."""
    ESTIMATORS[kind] = Kind(_described, _restored)
    return kind


def _described(estimator: BaseEstimator) -> dict[str, Any]:
    parameters, fitted = split(estimator)
    return {"parameters": parameters, "fitted": fitted}


def _restored(reader: Reads, kind: Any, parts: dict[str, Any]) -> Any:
    check_types(reader, kind, parts, lambda name: dict[str, object])
    parameters, fitted = parts["parameters"], parts["fitted"]
    if unknown := sorted(set(parameters) ^ set(kind._get_param_names())):
        raise StateError(
            f"the {kind.__name__} in the file and that of this version of sklearn_laplace differ in the parameters "
            f"{unknown}. Read it with the version that wrote it, or fit again."
        )
    check_types(reader, kind, parameters, lambda name: PARAMETER)
    check_fitted(reader, kind, fitted)
    # ``memory`` is dropped, because a fit unpickles the content of its cache.
    return joined(kind, {**parameters, "memory": None}, fitted)


def state_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the state for a pickle: parameters as they are, and a description of the fitted attributes."""
    parameters, fitted = split(estimator)
    packed = pack(fitted)
    state = {"requirements": requirements(type(estimator).__name__, packed["own"]), "format": STATE_FORMAT}
    return {**state, "parameters": parameters, "fitted": packed, **callbacks_of(vars(estimator))}


def set_state(estimator: Any, state: Any) -> None:
    """Give an empty estimator the state that :func:`state_of` returned."""
    kind = type(estimator)
    if not isinstance(state, dict) or "format" not in state:
        content = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise StateError(f"this is not the state of a {kind.__name__}: found {content!r:.200}. Fit again.")
    check_format("this model", state["format"])
    with reading("the state"):
        reader = Reader.of(state["fitted"])
        fitted, parameters = reader.value(), dict(state["parameters"])
        check_fitted(reader, kind, fitted)
        if unknown := set(parameters) - set(kind._get_param_names()):
            raise StateError(f"a {kind.__name__} has no parameters {sorted(map(str, unknown))}.")
        _settle(estimator, {**parameters, **fitted})
    _settle(estimator, callbacks_of(state))


def check_format(source: str, version: Any) -> None:
    """Raise a StateError for a description of another format; ``source`` begins the message."""
    if str(version) != str(STATE_FORMAT):
        raise StateError(
            f"{source} was written in format {version!s:.20} and this version of sklearn_laplace reads format "
            f"{STATE_FORMAT}: load it with the version that wrote it, or fit and save it again with this version."
        )


def check_fitted(reader: Reads, kind: Any, fitted: Any) -> None:
    """Check names and types of fitted attributes, which must be complete or absent. A user's subclass may have more."""
    check_types(reader, kind, {"fitted": fitted}, lambda name: dict[str, object])
    for name in fitted:
        if shadows(kind, name) or not (name in FITTED or _is_extra(kind, name)):
            raise StateError(f"the state gives a {kind.__name__} the attribute {name!r:.200}, which no fit sets.")
    check_types(reader, kind, fitted, lambda name: FITTED.get(name, Any))
    if (lacking := sorted(set(FITTED) - OPTIONAL - set(fitted))) and set(FITTED) & set(fitted):
        raise StateError(f"the state holds a part of a fit, without {', '.join(lacking)}.")


def _is_extra(kind: Any, name: str) -> bool:
    """True if a user's subclass may use a name for an attribute of its own."""
    if kind.__module__.startswith(f"{PACKAGE}."):
        return False
    names = set(kind._get_param_names()) if issubclass(kind, tuple(ESTIMATORS)) else set()
    ours = (base for base in kind.__mro__ if base.__module__.startswith(f"{PACKAGE}."))
    return not (any(name in vars(base) for base in ours) or name in names or not without_callbacks({name: 0}))
