"""The page of how-tos: every block is executed, each on top of the lines that all share."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from quick import client

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
SHARED, *HOW_TOS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
PACKAGES = {
    "scikit-activeml": "skactiveml",
    "scikit-optimize": "skopt",
    "scikit-learn": "sklearn",
    "dask": "distributed",
}


def code(section: str) -> str:
    """The blocks of a section, one below the other."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE))


def packages(section: str) -> list[str]:
    """Which ones a section's heading names, as they are imported."""
    named = re.split(r" and |'s ", section.partition(":")[0])
    return [PACKAGES.get(name, name.lower().replace("-", "_")) for name in named if " " not in name]


@pytest.mark.parametrize("section", HOW_TOS, ids=lambda section: section.partition(":")[0].replace(" ", "-"))
def test_the_page_prints_what_it_shows(section):
    """In the order of a reader who has skipped all other packages; ten lines, not a page."""
    for package in packages(section):
        client(package)
    test = doctest.DocTestParser().get_doctest(code(SHARED) + "\n" + code(section), {}, "clients", PAGE.name, 0)
    assert 2 <= code(section).count(">>>") <= 10
    report = []
    failed, _ = doctest.DocTestRunner().run(test, out=report.append)
    assert failed == 0, "".join(report)


def test_each_client_has_a_how_to():
    """A file of tests and a section of the page for every package that the extra installs."""
    named = {package for section in HOW_TOS for package in packages(section)}
    assert {"mapie", "skpro", "skopt", "skactiveml", "crepes", "uncertainty_toolbox", "scoringrules"} <= named
    assert {"optuna", "shap", "skrub", "distributed", "sklearn"} <= named
