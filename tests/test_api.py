"""The page of public names is up to date and complete, and every name has an example."""

from __future__ import annotations

import inspect
import pathlib
import re
from collections import Counter

import api
import pytest

import sklearn_laplace
from sklearn_laplace._validation.arguments import Absent

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "api.md"
LISTED = [entry for section in api.sections().values() for entry in section]
ENGINE = [entry for section in api.engine().values() for entry in section]


def test_the_page_is_what_the_package_exports():
    """Written by ``python tests/support/api.py > docs/api.md``."""
    assert PAGE.read_text(encoding="utf-8") == api.page()


def test_each_name_is_listed_once():
    """The page has the names in ``__all__`` and all public methods of the estimators."""
    names = Counter(re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(names.values()) == {1}
    exported = {n for n in sklearn_laplace.__all__ if not inspect.ismodule(getattr(sklearn_laplace, n))}
    assert exported - {"__version__"} <= names.keys()
    for kind in api.ESTIMATORS:
        public = {n for n, v in vars(kind).items() if n[0] != "_" and v is not None and not isinstance(v, Absent)}
        assert {f"{kind.__name__}.{n}" for n in public if not n.endswith("_request")} <= names.keys()


@pytest.mark.parametrize("entry", LISTED + ENGINE, ids=lambda entry: entry.name)
def test_a_public_name_has_an_example(entry):
    """Doctests of the package execute the examples."""
    assert ">>>" in entry.documentation, f"{entry.name} shows no example"
    function = entry.value.fget if isinstance(entry.value, property) else entry.value
    assert inspect.unwrap(function).__module__.startswith("sklearn_laplace")
