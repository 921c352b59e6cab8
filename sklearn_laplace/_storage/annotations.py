"""Check a value against a type annotation, before an object is made from the content of a file."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import isclass
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

NUMBERS: dict[Any, type] = {float: Real, int: Integral}
"""Abstract class for each annotated number type; a bool does not count as a number."""


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the annotations of a class, with all names in them resolved."""
    return get_type_hints(kind)


def conforms(value: Any, annotation: Any, is_plain: Callable[[Any], bool]) -> bool:
    """True if a value has the annotated type (class, literal, union, container or ``type``); float accepts an int."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return is_plain(value)
    if annotation is None:
        return value is None
    if origin in (Union, UnionType):
        return any(conforms(value, option, is_plain) for option in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if origin is type:
        return isclass(value) and issubclass(value, inner[0])
    if origin is tuple:
        return isinstance(value, tuple) and _is_tuple_of(value, inner, is_plain)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(
            conforms(key, inner[0], is_plain) and conforms(held, inner[1], is_plain) for key, held in value.items()
        )
    if origin in (list, set, Sequence):
        wanted = list | tuple if origin is Sequence else origin
        return isinstance(value, wanted) and all(conforms(option, inner[0], is_plain) for option in value)
    if annotation in NUMBERS:
        return isinstance(value, NUMBERS[annotation]) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _is_tuple_of(value: tuple[Any, ...], inner: tuple[Any, ...], is_plain: Callable[[Any], bool]) -> bool:
    if inner[-1:] == (Ellipsis,):
        return all(conforms(item, inner[0], is_plain) for item in value)
    return len(value) == len(inner) and all(
        conforms(item, of_one, is_plain) for item, of_one in zip(value, inner, strict=True)
    )
