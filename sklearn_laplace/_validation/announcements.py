"""Warnings about names that will be removed, and about features that may still change.

A deprecated name works in two minor releases, the one that announces it and the next, and is removed in the third.
:data:`DEPRECATIONS` holds all of them: a test fails once the version has reached a removal that has not happened. The
policy is on the page "API policy".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from .._warn import warn_user
from ..errors import ExperimentalWarning

T = TypeVar("T")
RELEASES = 2
"""Number of minor releases in which a deprecated name works."""
SEEN: set[str] = set()
"""Experimental features that this process has warned about."""


@dataclass(frozen=True)
class Deprecation:
    """A public name, or a parameter, that will be removed.

    Parameters
    ----------
    name : str
        As users write it: ``"predict_mean"``, ``"LaplaceRegressor(sigma=…)"``.
    since : str
        First version that warns, as "0.2".
    use : str
        What to use instead.

    Examples
    --------
    >>> Deprecation("LaplaceRegressor(sigma=…)", "0.2", "sigma_noise=…").message
    'LaplaceRegressor(sigma=…) is deprecated since version 0.2 and will be removed in 0.4. Use sigma_noise=….'
    """

    name: str
    since: str
    use: str

    @property
    def removed_in(self) -> str:
        """First version without the name."""
        major, minor = _minor(self.since)
        return f"{major}.{minor + RELEASES}"

    @property
    def message(self) -> str:
        """Text of the warning."""
        return (
            f"{self.name} is deprecated since version {self.since} and will be removed in {self.removed_in}. "
            f"Use {self.use}."
        )

    def warn(self) -> None:
        """Issue a ``FutureWarning``, which Python shows to users, at the line that uses the name."""
        warn_user(self.message, FutureWarning)


DEPRECATIONS: list[Deprecation] = []
"""All deprecated names, in the order in which their modules are imported."""


def deprecated(since: str, use: str) -> Callable[[T], T]:
    """Deprecate a function, a method or, below ``@property``, an attribute.

    Parameters
    ----------
    since : str
        First version that warns.
    use : str
        What to use instead.

    Examples
    --------
    >>> @deprecated(since="0.2", use="predict(X)")
    ... def predict_mean(X):
    ...     return X
    >>> predict_mean(1.0)  # doctest: +SKIP
    FutureWarning: predict_mean is deprecated since version 0.2 and will be removed in 0.4. Use predict(X).
    1.0
    >>> _ = DEPRECATIONS.pop()
    """

    def decorated(function: Any) -> Any:
        deprecation = _listed(function.__name__, since, use)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            deprecation.warn()
            return function(*args, **kwargs)

        return call

    return decorated


def renamed(since: str, **names: str) -> Callable[[T], T]:
    """Rename parameters of a function, or of an estimator: then also in ``set_params`` and as attributes.

    It stands above :func:`~sklearn_laplace._validation.arguments.explained`, whose messages know the new names only.

    Parameters
    ----------
    since : str
        First version that warns about the old names.
    **names : str
        ``old="new"``.

    Raises
    ------
    TypeError
        In a call with both names.

    Examples
    --------
    >>> @renamed(since="0.2", alpha="level")
    ... def interval(X, level=0.9):
    ...     return level
    >>> interval(0.0, alpha=0.5)  # doctest: +SKIP
    FutureWarning: interval(alpha=…) is deprecated since version 0.2 and will be removed in 0.4. Use level=….
    0.5
    >>> _ = DEPRECATIONS.pop()
    """

    def decorated(target: Any) -> Any:
        known = {old: (new, _listed(f"{target.__name__}({old}=…)", since, f"{new}=…")) for old, new in names.items()}
        if not isinstance(target, type):
            return _translating(target, known)
        for method in ("__init__", "set_params"):
            setattr(target, method, _translating(getattr(target, method), known))
        for old, (new, deprecation) in known.items():
            setattr(target, old, _attribute(new, deprecation))
        return target

    return decorated


def experimental(feature: str) -> None:
    """Warn that a feature may change without a deprecation: once in a process.

    Parameters
    ----------
    feature : str
        Noun phrase with an article.
    """
    if feature not in SEEN:
        SEEN.add(feature)
        warn_user(
            f"{feature} is experimental: its results and its interface may change in any release. Silence this with "
            "warnings.simplefilter('ignore', sklearn_laplace.errors.ExperimentalWarning).",
            ExperimentalWarning,
        )


def overdue(version: str) -> list[Deprecation]:
    """Deprecations that a version should no longer have.

    Examples
    --------
    >>> overdue("0.1.0")
    []
    """
    return [deprecation for deprecation in DEPRECATIONS if _minor(deprecation.removed_in) <= _minor(version)]


def _listed(name: str, since: str, use: str) -> Deprecation:
    DEPRECATIONS.append(Deprecation(name, since, use))
    return DEPRECATIONS[-1]


def _translating(function: Callable[..., Any], known: dict[str, tuple[str, Deprecation]]) -> Callable[..., Any]:
    """The function with old names of its keyword arguments translated; ``old__inner`` becomes ``new__inner``."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        translated = {}
        for name, value in kwargs.items():
            outer, mark, inner = name.partition("__")
            new, deprecation = known.get(outer, (outer, None))
            if deprecation is not None:
                deprecation.warn()
                if new + mark + inner in kwargs:
                    raise TypeError(f"{name}={value!r} was given with its new name {new + mark + inner}; omit {name}.")
            translated[new + mark + inner] = value
        return function(*args, **translated)

    return call


def _attribute(new: str, deprecation: Deprecation) -> property:
    """Property with the value of the attribute under its new name."""

    def read(self: Any) -> Any:
        deprecation.warn()
        return getattr(self, new)

    return property(read, doc=deprecation.message)


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
