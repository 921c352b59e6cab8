"""The page of public names: made from the package, complete, and every name with an example that runs."""

from __future__ import annotations

import inspect
import pathlib
import re
from collections import Counter

import api
import pytest

import sklearn_laplace

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "api.md"
LISTED = [one for section in api.sections().values() for one in section]
ENGINE = [one for section in api.engine().values() for one in section]


def test_the_page_is_what_the_package_exports():
    """Written by ``python tests/support/api.py > docs/api.md``."""
    assert PAGE.read_text(encoding="utf-8") == api.page()


def test_each_name_is_listed_once():
    """What the package's ``__all__`` has, and all that is public of an estimator."""
    names = Counter(re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(names.values()) == {1}
    exported = {n for n in sklearn_laplace.__all__ if not inspect.ismodule(getattr(sklearn_laplace, n))}
    assert exported - {"__version__"} <= names.keys()
    for kind in api.ESTIMATORS:
        public = {n for n, one in vars(kind).items() if not n.startswith("_") and one is not None}
        assert {f"{kind.__name__}.{n}" for n in public if not n.endswith("_request")} <= names.keys()


@pytest.mark.parametrize("one", LISTED + ENGINE, ids=lambda one: one.name)
def test_a_public_name_has_an_example(one):
    """The examples are executed as doctests, wherever they stand in the package."""
    assert ">>>" in one.documentation, f"{one.name} shows no example"
    assert inspect.unwrap(one.found.fget if isinstance(one.found, property) else one.found).__module__.startswith(
        "sklearn_laplace"
    )
