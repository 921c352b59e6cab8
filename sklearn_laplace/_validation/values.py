"""Checks of single values that a user gives: names, positive numbers, counts, fractions.

Each raises a ValueError that says what was given and what is expected. What options mean together is the matter of
``_resolve``.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.utils import check_random_state

from .inputs import shown

T = TypeVar("T")
WIDEST = 10**6
"""Most units of a hidden layer."""
MOST = 2**31 - 1
"""Largest count that a user gives."""
SIZES = (1e-60, 1e60)
"""Range of every positive number that a user gives."""


def lookup(option: str, value: object, known: Mapping[str, T]) -> T:
    """The object that a name stands for.

    Raises
    ------
    ValueError
        With the known names and the closest one.

    Examples
    --------
    >>> lookup("link", "probti", {"probit": 1, "plugin": 2})
    Traceback (most recent call last):
        ...
    ValueError: link='probti' is not known; expected one of 'plugin', 'probit'. Did you mean 'probit'?
    """
    if isinstance(value, str) and value in known:
        return known[value]
    close = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
    hint = f" Did you mean {close[0]!r}?" if close else ""
    names = ", ".join(repr(name) for name in sorted(known))
    raise ValueError(f"{option}={shown(value)} is not known; expected one of {names}.{hint}")


def positive(option: str, value: object) -> float:
    """A finite number above zero.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> positive("temperature", 0)
    Traceback (most recent call last):
        ...
    ValueError: temperature=0 has to be a finite number above zero.
    """
    number = math.nan
    with suppress(OverflowError):
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{option}={shown(value)} has to be a finite number above zero.")
    _check_size(option, np.asarray(number))
    return number


def count(option: str, value: object) -> int:
    """A whole number of at least one.

    Examples
    --------
    >>> count("n_samples", 0)
    Traceback (most recent call last):
        ...
    ValueError: n_samples=0 has to be a whole number of at least 1.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= MOST:
        return int(value)
    raise ValueError(f"{option}={shown(value)} has to be a whole number of at least 1{below(value)}.")


def below(value: object) -> str:
    """What a message says of a number that no array can have as a length."""
    return f" and at most {MOST}" if isinstance(value, Integral) and int(value) > MOST else ""


def flag(option: str, value: object) -> bool:
    """True or False, or the numbers 1 and 0.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> flag("return_std", True)
    True
    >>> flag("return_std", "yes")
    Traceback (most recent call last):
        ...
    ValueError: return_std='yes' has to be True or False.
    """
    if isinstance(value, bool | np.bool_ | Integral) and value in (0, 1):
        return bool(value)
    raise ValueError(f"{option}={shown(value)} has to be True or False.")


def random_numbers(value: Any) -> np.random.RandomState:
    """What scikit-learn makes of a ``random_state``.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> random_numbers(-1)
    Traceback (most recent call last):
        ...
    ValueError: random_state=-1 has to be None, a whole number from 0 to 2**32 - 1, or a numpy RandomState: Seed must \
be between 0 and 2**32 - 1.
    """
    try:
        found: np.random.RandomState = check_random_state(value)
    except ValueError as error:
        raise ValueError(
            f"random_state={shown(value)} has to be None, a whole number from 0 to 2**32 - 1, or a numpy RandomState: "
            f"{error}."
        ) from error
    return found


def generator(random_state: Any) -> torch.Generator:
    """A torch generator for anything that scikit-learn takes as a random state."""
    seed = int(random_numbers(random_state).randint(np.iinfo(np.int32).max))
    return torch.Generator().manual_seed(seed)


def layer_sizes(sizes: Any) -> tuple[int, ...]:
    """Units of the hidden layers.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> layer_sizes([50, 20])
    (50, 20)
    """
    valid = isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes)
    if not (valid and all(isinstance(n, Integral) and 0 < int(n) <= WIDEST for n in sizes)):
        raise ValueError(
            f"hidden_layer_sizes={shown(sizes)} has to be a tuple of whole numbers above zero, like (50,), and at most "
            f"{WIDEST}."
        )
    return tuple(map(int, sizes))


def fractions(option: str, values: Any) -> np.ndarray:
    """Numbers strictly between zero and one, shape (levels,).

    Examples
    --------
    >>> fractions("quantiles", [0.1, 1.0])
    Traceback (most recent call last):
        ...
    ValueError: quantiles=[0.1, 1.0] has to hold numbers strictly between 0 and 1.
    """
    try:
        found = np.atleast_1d(np.asarray(values, dtype=float))
    except (TypeError, ValueError, OverflowError):
        found = np.array([np.nan])
    if found.ndim != 1 or found.size == 0 or not ((found > 0) & (found < 1)).all():
        raise ValueError(f"{option}={shown(values)} has to hold numbers strictly between 0 and 1.")
    return found


def optional_count(option: str, value: object, least: int) -> int | None:
    """None, or a whole number of at least ``least``.

    Examples
    --------
    >>> optional_count("batch_size", 0, 1)
    Traceback (most recent call last):
        ...
    ValueError: batch_size=0 has to be None or a whole number of at least 1.
    """
    if value is None or (isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= MOST):
        return None if value is None else int(value)
    raise ValueError(f"{option}={shown(value)} has to be None or a whole number of at least {least}{below(value)}.")


def kinds(option: str, value: object, automatic: tuple[int | None, ...] = (None,)) -> tuple[int | None, ...]:
    """None, a whole number above zero, several of these, all different, or what is taken for "auto".

    Examples
    --------
    >>> kinds("n_bins", 8), kinds("n_bins", [None, 8]), kinds("n_bins", "auto", (None, 4))
    ((8,), (None, 8), (None, 4))
    >>> kinds("n_bins", (8, 8))
    Traceback (most recent call last):
        ...
    ValueError: n_bins=(8, 8) has to be 'auto', None, a whole number of at least 1, or a tuple of these, all different.
    """
    if isinstance(value, str):
        return lookup(option, value, {"auto": automatic})
    if not isinstance(value, list | tuple):
        return (optional_count(option, value, 1),)
    found = tuple(optional_count(option, one, 1) for one in value)
    if not found or len(set(found)) < len(found):
        known = "'auto', None, a whole number of at least 1, or a tuple of these, all different"
        raise ValueError(f"{option}={shown(value)} has to be {known}.")
    return found


def jobs(option: str, value: object) -> int | None:
    """None, or a whole number that is not zero, as joblib takes it.

    Examples
    --------
    >>> jobs("n_jobs", 0)
    Traceback (most recent call last):
        ...
    ValueError: n_jobs=0 has to be None or a whole number that is not 0; -1 stands for all processors.
    """
    if value is None or (isinstance(value, Integral) and not isinstance(value, bool) and int(value) != 0):
        return None if value is None else int(value)
    raise ValueError(
        f"{option}={shown(value)} has to be None or a whole number that is not 0; -1 stands for all processors."
    )


def count_or_share(option: str, value: object) -> int | float:
    """A whole number of at least one, or a float above 0 and up to 1, the share of all.

    Examples
    --------
    >>> count_or_share("n_subnetwork_weights", 1.5)
    Traceback (most recent call last):
        ...
    ValueError: n_subnetwork_weights=1.5 has to be a whole number of at least 1, or a float above 0 and up to 1, a \
share of all.
    """
    if isinstance(value, Real) and not isinstance(value, bool | Integral) and 0 < float(value) <= 1:
        return float(value)
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ValueError(
        f"{option}={shown(value)} has to be a whole number of at least 1, or a float above 0 and up to 1, a share of "
        "all."
    )


def _check_size(option: str, values: np.ndarray) -> None:
    """Squares and products of what is given have to be finite."""
    if not ((values >= SIZES[0]) & (values <= SIZES[1])).all():
        raise ValueError(f"{option}={values.tolist()!r} is out of range; expected {SIZES[0]:g} to {SIZES[1]:g}.")


@dataclass(frozen=True)
class Choice:
    """A hyperparameter that is either a value or the name of a rule.

    Parameters
    ----------
    value : ndarray or None
        Positive values (0-d or 1-d); None where a rule chooses.
    rule : str
        The rule's name; empty where a value is given.
    """

    value: np.ndarray | None
    rule: str

    def __eq__(self, other: object) -> bool:
        same_rule = isinstance(other, Choice) and self.rule == other.rule and self.free == other.free
        return same_rule and np.array_equal(np.asarray(self.value), np.asarray(other.value))  # type: ignore[attr-defined]

    @property
    def free(self) -> bool:
        """Whether a rule chooses."""
        return self.value is None


def choice(option: str, value: object, rules: Sequence[str], *, array: bool) -> Choice:
    """A positive number (or array), or the name of a rule.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> choice("prior_precision", -1.0, ["evidence"], array=True)
    Traceback (most recent call last):
        ...
    ValueError: prior_precision=-1.0 has to be a finite number above zero, or one of 'evidence'.
    """
    alternative = f", or one of {', '.join(repr(name) for name in rules)}" if rules else ""
    if isinstance(value, str) and rules:
        lookup(option, value, dict.fromkeys(rules))
        return Choice(None, value)
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        numbers = np.asarray(math.nan)
    if numbers.ndim > (1 if array else 0) or numbers.size == 0 or isinstance(value, bool):
        numbers = np.asarray(math.nan)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{option}={shown(value)} has to be a finite number above zero{alternative}.")
    _check_size(option, numbers)
    return Choice(numbers, "")


def file_path(value: object) -> Path:
    """Of a file, from a string or a path.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> file_path(3)
    Traceback (most recent call last):
        ...
    ValueError: path=3 has to be the name of a file, a string or a pathlib.Path.
    """
    if isinstance(value, str | os.PathLike) and Path(value).name and "\0" not in str(value):
        return Path(value)
    raise ValueError(f"path={shown(value)} has to be the name of a file, a string or a pathlib.Path.")
