"""The public interface as a list of facts, and its unannounced changes since the last release.

A fact is a public name, a parameter with its place and default, the base class of an error, or a value of an option.
``public_api.txt`` holds the facts of the last release. The last step of a release writes it:
``python tests/support/public_api.py > tests/support/public_api.txt``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import api

import sklearn_laplace
from sklearn_laplace import distributions

STORED = Path(__file__).with_suffix(".txt")
CHANGELOG = Path(__file__).parents[2] / "docs/changelog.md"
REQUIRED = inspect.Parameter.empty
KEYWORD, COLLECTING = inspect.Parameter.KEYWORD_ONLY, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
DEPRECATED = "deprecated, removed in "
DEPRECATIONS: dict[str, str] = {}
"""Version that removes each deprecated name, such as "predict_std(part)": "0.4"."""


@dataclass(frozen=True)
class Interface:
    """Facts of one version.

    Parameters
    ----------
    version : str
        As "0.1.0".
    facts : dict of str to str
        Name of each fact and its value: place and default of a parameter, base class of an error, else empty.
    """

    version: str
    facts: dict[str, str]

    @classmethod
    def current(cls) -> Interface:
        """That of the imported package."""
        facts = dict(_facts())
        for deprecated, version in DEPRECATIONS.items():
            owner, mark, parameter = deprecated.partition("(")
            for name in [name for name in facts if name.split(".")[-1] == owner]:
                facts[name + mark + parameter] = DEPRECATED + version
        return cls(sklearn_laplace.__version__, facts)

    @classmethod
    def read(cls, text: str) -> Interface:
        """That of a stored text."""
        title, *lines = text.splitlines()
        return cls(
            title.removeprefix("version "), {name: value for name, _, value in (s.partition(": ") for s in lines)}
        )

    def __str__(self) -> str:
        return "\n".join(
            [f"version {self.version}", *(f"{name}: {value}" for name, value in sorted(self.facts.items()))]
        )


def unannounced(before: Interface, now: Interface, changelog: str) -> list[str]:
    """Changes between two versions that break the policy of ``docs/api_policy.md``, each with what to do.

    Parameters
    ----------
    before, now : Interface
        The last release and the present state.
    changelog : str
        Text whose headings of the form ``## [0.1.0]`` begin a version. What stands above the last release is new.
    """
    new_text = re.split(heading_of(before.version), changelog, maxsplit=1)[0]
    announced = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", new_text))))
    found = []
    for name in sorted(before.facts.keys() | now.facts.keys()):
        old, new = before.facts.get(name), now.facts.get(name)
        owner = re.split(r"[.(](?=\w+\)?$)", name)[0]
        with_owner = owner != name and (owner in before.facts) != (owner in now.facts)
        if old == new or with_owner:
            continue
        removal = old.removeprefix(DEPRECATED) if old and old.startswith(DEPRECATED) else "1000000"
        if new is None and not is_due(removal, now.version):
            found.append(f"{name} has been removed. Deprecate it first (docs/api_policy.md).")
        elif re.findall(r"\w+", name)[-1] not in announced:
            change = "is new" if old is None else "has been removed" if new is None else f"has changed: {old} → {new}"
            found.append(f"{name} {change}. Name it in docs/changelog.md, above {before.version}, in `code style`.")
    return found


def heading_of(version: str) -> re.Pattern[str]:
    """Pattern of the heading of a version, with or without brackets."""
    return re.compile(rf"^## \[?{re.escape(version)}\b", flags=re.MULTILINE)


def is_due(removal: str, version: str) -> bool:
    """True if a removal was announced for this version or an earlier one."""
    return [int(n) for n in removal.split(".")] <= [int(n) for n in version.split(".")]


def _facts() -> Iterator[tuple[str, str]]:
    sections = api.sections()
    for heading, listed in sections.items():
        for entry in listed:
            if isinstance(entry.value, type) and not issubclass(entry.value, BaseException):
                yield from _of_class(entry.name, entry.value)
            elif isinstance(entry.value, type):
                yield entry.name, entry.value.__mro__[1].__name__
            elif not heading.startswith("Methods"):  # they come with their class
                yield entry.name, ""
                yield from _parameters(entry.name, entry.value)
    for entry in api.of_module(distributions):
        yield from _of_class(entry.name, entry.value)
    for axis, entries in api.engine().items():
        yield from ((f"{axis}={entry.name}", "") for entry in entries)


def _of_class(name: str, kind: type) -> Iterator[tuple[str, str]]:
    """A class with its constructor, methods and attributes, also those that only its documentation lists."""
    yield name, ""
    yield from _parameters(name, kind)
    documented = re.search(r"^Attributes\n-+\n(.*?)(?=\n\n\w|\Z)", inspect.getdoc(kind) or "", re.DOTALL | re.MULTILINE)
    for line in documented[1].splitlines() if documented else []:
        if line[0:1].strip():
            yield from ((f"{name}.{attribute}", "") for attribute in line.split(" : ")[0].split(", "))
    for method in dir(kind):
        value = inspect.getattr_static(kind, method)
        function = getattr(value, "__func__", value)
        is_ours = str(getattr(getattr(value, "fget", function), "__module__", "")).startswith("sklearn_laplace")
        if method[0] != "_" and not method.endswith("_request") and is_ours:
            yield f"{name}.{method}", ""
            if inspect.isfunction(function):
                yield from _parameters(f"{name}.{method}", function)


def _parameters(name: str, function: Any) -> Iterator[tuple[str, str]]:
    """Parameters with their places and defaults."""
    listed = [one for one in inspect.signature(function).parameters.values() if one.name not in ("self", "cls")]
    for place, one in enumerate(listed):
        if one.kind not in COLLECTING:
            place_or_name = "by name" if one.kind is KEYWORD else f"place {place}"
            default = "required" if one.default is REQUIRED else _shown(one.default)
            yield f"{name}({one.name})", f"{place_or_name}, {default}"


def _shown(default: Any) -> str:
    return default.__name__ if callable(default) else repr(default)


if __name__ == "__main__":
    print(Interface.current())
