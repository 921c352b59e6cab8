"""The state of an estimator: its way into a pickle or a file, and out of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from .._ensemble.ensemble import Ensemble
from .._ensemble.member import Member
from .._host.given_net import move_to_present_device
from .._runtime.memory import MemoryBudget
from .._runtime.progress import callbacks_of, without_callbacks
from ..errors import StateError
from .describe import pack, requirements
from .kinds import Described, Reads, check_types, new, shadows
from .ranges import check_range
from .registry import FITTED, PACKAGE, PARAMETER
from .restore import Reader, reading

STATE_FORMAT = 4
"""Number of the format of a description, in pickles and in files."""
OLDER = {"2": "0.1.0", "3": "0.1.0"}
"""The release that wrote each older format."""
MOST_MEMBERS = 1000
"""Largest number of members in a description."""
LABELS = "biufUS"
"""Kinds of the data types of labels; an array of objects has to hold strings."""
ROUNDING = 1e-9
"""Tolerance of the sum of weights."""


class StoredEstimator(Described):
    """An estimator whose fitted attributes are pickled as a description; parameters are pickled as they are."""

    get_params: Callable[..., dict[str, Any]]
    _get_param_names: ClassVar[Callable[[], list[str]]]

    def _members(self) -> tuple[Member, ...]:
        """All members; none if the estimator is not fitted."""
        return vars(self)["_ensemble"].members if "_ensemble" in vars(self) else ()

    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and fitted attributes."""
        names, state = self.get_params(deep=False), without_callbacks(BaseEstimator.__getstate__(self))
        return {name: state.pop(name) for name in list(state) if name in names}, state

    @classmethod
    def _joined(cls, parameters: Mapping[str, Any], fitted: dict[str, Any]) -> Any:
        """A new estimator of parameters and fitted attributes."""
        joined = new(cls, {})
        joined._settle(parameters, fitted)
        return joined

    def _settle(self, parameters: Mapping[str, Any], fitted: dict[str, Any]) -> None:
        """Take on parameters and fitted attributes."""
        for name, value in {**parameters, **fitted}.items():
            setattr(self, name, value)
        for member in self._members():
            move_to_present_device(member.net)

    def _described(self) -> dict[str, Any]:
        parameters, fitted = self._split()
        return {"parameters": parameters, "fitted": fitted}

    @classmethod
    def _restored(cls, reader: Reads, parts: dict[str, Any]) -> Any:
        check_types(reader, cls, parts, lambda name: dict[str, object])
        parameters, fitted = parts["parameters"], parts["fitted"]
        if unknown := sorted(set(parameters) ^ set(cls._get_param_names())):
            raise StateError(
                f"the {cls.__name__} in the file and that of this version of sklearn_laplace differ in the parameters "
                f"{unknown}. Read it with the version that wrote it, or fit again."
            )
        check_types(reader, cls, parameters, lambda name: PARAMETER)
        check_fitted(reader, cls, fitted)
        # A fit unpickles the content of its cache, and replaces the file of its checkpoint.
        return cls._joined({**parameters, **_machine_limits(parameters), "memory": None, "checkpoint": None}, fitted)

    def __getstate__(self) -> dict[str, Any]:
        parameters, fitted = self._split()
        packed = pack(fitted)
        state = {"requirements": requirements(type(self).__name__, packed["own"]), "format": STATE_FORMAT}
        return {**state, "parameters": parameters, "fitted": packed, **callbacks_of(vars(self))}

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or "format" not in state:
            content = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise StateError(f"this is not the state of a {type(self).__name__}: found {content!r:.200}. Fit again.")
        check_format("this model", state["format"])
        with reading("the state"):
            reader = Reader.of(state["fitted"])
            fitted, parameters = reader.value(), dict(state["parameters"])
            check_fitted(reader, type(self), fitted)
            if unknown := set(parameters) - set(type(self)._get_param_names()):
                raise StateError(f"a {type(self).__name__} has no parameters {sorted(map(str, unknown))}.")
            self._settle(parameters, fitted)
        self._settle(callbacks_of(state), {})


def check_format(source: str, version: Any) -> None:
    """Raise a StateError for a description of another format; ``source`` begins the message."""
    if str(version) != str(STATE_FORMAT):
        writer = f"sklearn_laplace {OLDER[str(version)]}" if str(version) in OLDER else "the version that wrote it"
        raise StateError(
            f"{source} was written in format {version!s:.20} and this version of sklearn_laplace reads format "
            f"{STATE_FORMAT}: load it with {writer}, or fit and save it again with this version."
        )


def check_fitted(reader: Reads, kind: type, fitted: Any) -> None:
    """Check names, types and ranges of fitted attributes; a user's subclass may have attributes of its own."""
    check_types(reader, kind, {"fitted": fitted}, lambda name: dict[str, object])
    is_own = not kind.__module__.startswith(f"{PACKAGE}.")
    names = set(kind._get_param_names()) if issubclass(kind, StoredEstimator) else set()
    for name in fitted:
        is_extra = is_own and not (_is_ours(kind, name) or name in names or not without_callbacks({name: 0}))
        if shadows(kind, name) or not (name in FITTED or is_extra):
            raise StateError(f"the state gives a {kind.__name__} the attribute {name!r:.200}, which no fit sets.")
    check_types(reader, kind, fitted, lambda name: FITTED.get(name, Any))
    for name, value in fitted.items():
        check_range("fitted", name, value)
    if "_ensemble" in fitted:
        _check_members(kind, fitted["_ensemble"])
        _check_classes(kind, fitted["_ensemble"], fitted.get("classes_"))


def _is_ours(kind: type, name: str) -> bool:
    """True if one of this package's classes defines a name."""
    return any(name in vars(base) for base in kind.__mro__ if base.__module__.startswith(f"{PACKAGE}."))


def _check_members(kind: type, held: Ensemble) -> None:
    if len({id(member) for member in held.members}) < len(held.members):
        raise StateError(f"the state holds one member of a {kind.__name__} several times.")
    if not 0 < len(held.members) <= MOST_MEMBERS:
        raise StateError(f"the state of a {kind.__name__} needs 1 to {MOST_MEMBERS} members.")
    for weights in (held.weights, held.shares):
        if weights is not None and not _are_weights(weights, len(held.members)):
            raise StateError(f"the state of a {kind.__name__} needs a weight for each member, of sum one.")


def _check_classes(kind: type, held: Ensemble, classes: np.ndarray | None) -> None:
    """Refuse labels that are not one-dimensional, sorted, unique, and as many as the outputs; one logit has two."""
    if (classes is not None) != issubclass(kind, ClassifierMixin):
        raise StateError(f"the state of a {kind.__name__} needs labels if and only if it is a classifier.")
    numbers = {member.fit.n_outputs for member in held.members}
    if len(numbers) > 1:
        raise StateError(f"the state of a {kind.__name__} has members of {sorted(numbers)[:5]} outputs.")
    if classes is None:
        return
    is_label = classes.dtype.kind in LABELS or (classes.dtype == object and all(type(x) is str for x in classes.flat))
    wanted = max(*numbers, 2)
    if not is_label or classes.shape != (wanted,) or not (classes[1:] > classes[:-1]).all():
        raise StateError(f"the state has classes_={classes!r:.200}; expected {wanted} labels, sorted and unique.")


def _machine_limits(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """``n_jobs`` and ``memory_budget`` of a file, at most those of this machine."""
    limits: dict[str, Any] = {}
    n_jobs, budget = parameters["n_jobs"], parameters["memory_budget"]
    if isinstance(n_jobs, int) and n_jobs > 1:
        limits["n_jobs"] = min(n_jobs, os.cpu_count() or 1)
    if budget is not None and MemoryBudget.of(budget).size > MemoryBudget.of(None).size:
        limits["memory_budget"] = None
    return limits


def _are_weights(values: np.ndarray, n_members: int) -> bool:
    """True for weights of sum one."""
    return values.shape == (n_members,) and values.dtype == np.float64 and bool(abs(values.sum() - 1) < ROUNDING)
