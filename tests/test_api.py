"""The page of public names is complete, every name has an example, and changes of the interface are announced."""

from __future__ import annotations

import inspect
import pathlib
import re
from collections import Counter

import api
import public_api
import pytest
from public_api import CHANGELOG, STORED, Interface, heading_of, is_due, unannounced

import sklearn_laplace

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
        public = {n for n, v in vars(kind).items() if n[0] != "_" and v is not None and hasattr(kind, n)}
        assert {f"{kind.__name__}.{n}" for n in public if not n.endswith("_request")} <= names.keys()


@pytest.mark.parametrize("entry", LISTED + ENGINE, ids=lambda entry: entry.name)
def test_a_public_name_has_an_example(entry):
    """Doctests of the package execute the examples."""
    is_error = isinstance(entry.value, type) and issubclass(entry.value, BaseException)
    assert is_error or ">>>" in entry.documentation, f"{entry.name} shows no example"
    function = entry.value.fget if isinstance(entry.value, property) else entry.value
    assert inspect.unwrap(function).__module__.startswith("sklearn_laplace")


# ---------------------------------------------------------------------- changes are announced


def test_nothing_has_changed_without_an_announcement():
    """See docs/api_policy.md. Before the first release the description follows the package."""
    before, now = Interface.read(STORED.read_text(encoding="utf-8")), Interface.current()
    changelog = CHANGELOG.read_text(encoding="utf-8")
    assert heading_of(before.version).search(changelog)
    problems = unannounced(before, now, changelog)
    hint = f"While {before.version} is unreleased: python tests/support/public_api.py > tests/support/{STORED.name}"
    assert not problems, "\n".join([*problems, hint])


def test_the_description_is_read_as_it_was_written():
    """Facts with and without a value, and enough of them."""
    now = Interface.current()
    assert Interface.read(str(now)) == now
    assert now.facts["LaplaceRegressor(sigma_noise)"] == "by name, 'auto'"
    assert now.facts["LaplaceRegressor.predict(return_std)"] == "place 1, False"
    assert now.facts["errors.StateError"] == "ValueError"
    wanted = {"LaplaceClassifier.classes_", "LaplaceRegressor.prior_precision_", "hessian_structure=kron", "load"}
    assert wanted <= now.facts.keys() and len(now.facts) > 900


BEFORE = {"f": "", "f(a)": "place 0, required", "f(b)": "by name, 1", "g": "deprecated, removed in 0.10"}
CHANGES = {
    "a new default": ({**BEFORE, "f(b)": "by name, 2"}, "f(b) has changed: by name, 1 → by name, 2. Name it", "b"),
    "a new name": ({**BEFORE, "h": "", "h(a)": "place 0, required"}, "h is new. Name it", "h"),
    "a new parameter": ({**BEFORE, "f(c)": "by name, None"}, "f(c) is new. Name it", "c"),
    "a new place": ({**BEFORE, "f(a)": "place 1, required"}, "f(a) has changed: place 0", "a"),
    "a deprecation": ({**BEFORE, "f(b)": "deprecated, removed in 0.11"}, "f(b) has changed: by name", "b"),
    "a removal that is due": ({k: v for k, v in BEFORE.items() if k != "g"}, "g has been removed. Name it", "g"),
}


@pytest.mark.parametrize(("facts", "message", "word"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_found_until_the_changelog_names_it(facts, message, word):
    """In code style, above the heading of the last release."""
    before, now = Interface("0.9.0", BEFORE), Interface("0.10.0", facts)
    older = f"## [0.9.0] - 2026-01-01\n\n- `{word}` is mentioned here.\n"
    (problem,) = unannounced(before, now, f"# Changelog\n\n## Unreleased\n\n- Words, {word}.\n\n{older}")
    assert problem.startswith(message) and problem.endswith(" docs/changelog.md, above 0.9.0, in `code style`.")
    assert unannounced(before, now, f"## 0.10.0\n\n- `f({word}=…)` is said.\n\n{older}") == []
    assert unannounced(before, before, older) == []


@pytest.mark.parametrize(("removed", "version"), [("f(b)", "0.10.0"), ("g", "0.9.1")])
def test_a_removal_needs_a_deprecation(removed, version):
    """Also if the changelog names it: never deprecated, or not for two releases yet."""
    now = Interface(version, {name: value for name, value in BEFORE.items() if name != removed})
    (problem,) = unannounced(Interface("0.9.0", BEFORE), now, "- `f`, `b` and `g` are gone.\n\n## 0.9.0\n")
    assert problem.startswith(f"{removed} has been removed. Deprecate it first")


def test_a_deprecated_parameter_is_part_of_the_description(monkeypatch):
    """Under the full name of each function that has it, so that its removal can be judged."""
    monkeypatch.setattr(public_api, "DEPRECATIONS", {"predict_std(part)": "0.4"})
    facts = Interface.current().facts
    for name in ("predict_std", "LaplaceRegressor.predict_std", "LaplaceClassifier.predict_std"):
        assert facts[f"{name}(part)"] == "deprecated, removed in 0.4"


def test_nothing_is_left_after_its_removal():
    """Whoever raises the version removes what is due: a deprecated name works in two minor releases."""
    version = sklearn_laplace.__version__
    late = [name for name, removal in public_api.DEPRECATIONS.items() if is_due(removal, version)]
    assert not late, f"version {version}: remove " + ", ".join(late)


@pytest.mark.parametrize(("version", "is_late"), [("0.8.3", False), ("0.9.0", False), ("0.10.0", True), ("1.0", True)])
def test_a_removal_is_due_in_the_third_release(version, is_late):
    """0.8 announces, 0.9 still works, 0.10 removes: numbers are compared, not text."""
    assert is_due("0.10", version) == is_late
