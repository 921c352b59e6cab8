"""Ablations of ``docs/decisions.md``: replaced constants, mean gains, and the ablations named on the page."""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path

import ablations
import benchmark_tables
import numpy as np
import pytest

from sklearn_laplace import LaplaceRegressor

ROOT = Path(__file__).parents[2]
SECTIONS = re.split(r"^#{2,3} ", benchmark_tables.DECISIONS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
MEASURED = re.compile(r"(?<![\w.])(?:[−-]?\d*\.\d+|\d+ times|\d+ s\b|\d+ %)")


@pytest.mark.parametrize("name", list(ablations.ABLATIONS))
def test_an_ablation_replaces_what_exists_and_restores_it(name):
    """A constant that has moved or has got another name is an error, not an ablation without effect."""
    ablation = ablations.ABLATIONS[name]

    def values() -> list[object]:
        paths = [path if "." in path else f"_training.recipe.{path}" for path in ablation.replaced]
        return [pkgutil.resolve_name(f"sklearn_laplace.{path}") for path in paths]

    before = values()
    with ablations.replaced(ablation.replaced):
        assert values() == list(ablation.replaced.values())
    assert values() == before
    assert ablation.replaced or set(ablation.options) <= set(inspect.signature(LaplaceRegressor).parameters)


def test_constants_are_replaced_where_they_are_imported():
    users = [
        pkgutil.resolve_name(f"sklearn_laplace.{name}") for name in ("_training.recipe", "_ensemble.train_members")
    ]
    before = users[0].FOLDS_OF_FEW
    with ablations.replaced({"FOLDS_OF_FEW": 7}):
        assert [user.FOLDS_OF_FEW for user in users] == [7, 7]
    assert [user.FOLDS_OF_FEW for user in users] == [before, before]
    with pytest.raises(AttributeError, match="NO_SUCH_CONSTANT"), ablations.replaced({"NO_SUCH_CONSTANT": 1}):
        pass


def test_gains_are_those_of_the_default_over_the_ablation():
    """Extremes are means over the splits of a table; the error is that of the mean of all fits."""
    scores = {"a": ((1.0, 0.5), (2.0, 2.1)), "b": ((3.0, 3.0), (0.0, 1.0))}
    found = {}
    for table, of_splits in scores.items():
        for split, (default, other) in enumerate(of_splits):
            found["default of classes", table, 500, split] = default
            found["class_no_factors", table, 500, split] = other
    gains = np.array([0.5, -0.1, 0.0, -1.0])
    mean = f"{gains.mean():+.3f} ± {gains.std(ddof=1) / 2:.3f}".replace("-", "−")
    cells = ablations.line("class_no_factors", found)
    assert cells[2:] == ["4 fits of classes, up to 500 rows", mean, "−0.500 (b)", "+0.200 (a)"]


def test_the_stored_table_has_all_ablations():
    header, *rows = benchmark_tables.rows(ROOT / "docs/benchmarks/ablations.csv")
    assert tuple(header) == ablations.COLUMNS
    assert [row[0].strip("`") for row in rows] == list(ablations.ABLATIONS)
    assert [row[1] for row in rows] == [ablation.title for ablation in ablations.ABLATIONS.values()]


def test_the_page_names_each_ablation_and_only_those():
    prose = "".join(section for section in SECTIONS if not section.startswith("Ablations"))
    named = set(re.findall(r"`(\w+)`", prose))
    assert sorted(set(ablations.ABLATIONS) - named) == []
    assert [name for name in named if name.startswith("class_") and name not in ablations.ABLATIONS] == []


def test_each_measured_number_has_a_command():
    """A section with a measured number names a script or an ablation."""
    without = [
        section.partition("\n")[0]
        for section in SECTIONS
        if MEASURED.search(section)
        and not re.search(r"examples/benchmarks/\w+\.py", section)
        and not set(re.findall(r"`(\w+)`", section)) & set(ablations.ABLATIONS)
    ]
    assert without == []
