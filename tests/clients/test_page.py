"""The how-to page for other packages: every section runs after the shared first block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import assert_prints_what_it_shows, python_blocks
from quick import client

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
SHARED, *HOW_TOS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
PACKAGES = {
    "scikit-activeml": "skactiveml",
    "scikit-optimize": "skopt",
    "scikit-learn": "sklearn",
    "dask": "distributed",
}


def packages(section: str) -> list[str]:
    """Import names of the packages in a section's heading."""
    named = re.split(r" and |'s ", section.partition(":")[0])
    return [PACKAGES.get(name, name.lower().replace("-", "_")) for name in named if " " not in name]


@pytest.mark.usefixtures("forked_workers_of_dask")
@pytest.mark.parametrize("section", HOW_TOS, ids=lambda section: section.partition(":")[0].replace(" ", "-"))
def test_the_page_prints_what_it_shows(section):
    """Each section runs without the other sections and has at most ten lines."""
    for package in packages(section):
        client(package)
    assert 2 <= "".join(python_blocks(section)).count(">>>") <= 10
    assert_prints_what_it_shows("\n".join(python_blocks(SHARED) + python_blocks(section)), PAGE.name)


def test_each_client_has_a_how_to():
    """The page has a section for every package of the extra ``clients``."""
    named = {package for section in HOW_TOS for package in packages(section)}
    assert {"mapie", "skpro", "skopt", "skactiveml", "crepes", "uncertainty_toolbox", "scoringrules"} <= named
    assert {"optuna", "shap", "skrub", "distributed", "sklearn"} <= named
