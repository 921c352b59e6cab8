"""The oldest dependencies that pyproject.toml allows, for ``.ci/oldest``.

``python tests/support/lower_bounds.py`` prints them as pip requirements. Given a file of such requirements, it prints
the installed versions and fails if one of them differs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lower_bound(requirement: str) -> tuple[str, str]:
    """Name and version of ``name>=version``; another form would promise something that ``.ci/oldest`` does not test."""
    if not (match := re.fullmatch(r"([\w.-]+)\s*>=\s*([\w.]+)", requirement)):
        raise SystemExit(f"pyproject.toml: {requirement!r} is not of the form name>=version. Extend {__file__} for it.")
    return match[1], match[2]


def pins() -> list[str]:
    """Requirements of the package and of its tests; ruff and mypy do not run with the oldest versions."""
    bounds = [lower_bound(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]
    return [f"{name}=={oldest}" for name, oldest in bounds if name not in {"ruff", "mypy"}]


def check_installed(requirements: list[str]) -> None:
    """Each requirement is met; 1.26 is also met by 1.26.0."""
    from packaging.specifiers import SpecifierSet  # pytest brings it

    assert requirements
    for name, oldest in (line.split("==") for line in requirements):
        print(f"{name:20} {version(name)}")
        assert version(name) in SpecifierSet(f"=={oldest}"), f"{name} {version(name)} is not its lower bound {oldest}"


if __name__ == "__main__":
    if sys.argv[1:]:
        check_installed(Path(sys.argv[1]).read_text(encoding="utf-8").split())
    else:
        print("\n".join(pins()))
