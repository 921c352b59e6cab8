"""The reproduced experiments are complete, the page is generated from their results, and no claim has changed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import matplotlib.image
import papers
import pytest

STORED = papers.results()


def claims(script: Path, monkeypatch) -> list[str]:
    """Sentences in the CLAIMS of a script."""
    monkeypatch.syspath_prepend(str(script.parent))
    return list(importlib.import_module(script.stem).CLAIMS)


def test_the_page_is_what_was_measured():
    """Written by ``python tests/support/papers.py > docs/papers.md``."""
    assert (papers.ROOT / "docs/papers.md").read_text(encoding="utf-8") == papers.page()


def test_all_experiments_are_there():
    """Seventeen scripts, with the numbers of their titles."""
    numbers = [int(re.match(r"plot_(\d+)_", path.name).group(1)) for path in papers.SCRIPTS]
    assert numbers == list(range(1, 18))
    for number, path in zip(numbers, papers.SCRIPTS, strict=True):
        assert int(STORED[path.stem]["title"].split(" · ")[0]) == number


@pytest.mark.parametrize("name", STORED)
def test_a_kept_run_judged_the_scripts_own_claims(name, monkeypatch):
    """A changed claim needs a new run; a claim that does not hold needs an explanation."""
    result = STORED[name]
    assert not result["quick"]
    assert list(result["claims"]) == claims(papers.script_of(name), monkeypatch)
    held = list(result["claims"].values())
    expected = "reproduced" if all(held) else "reproduced in part" if any(held) else "not reproduced"
    assert result["verdict"] == expected
    assert all(held) or len(result["why"].split()) > 10
    assert result["measured"] and result["choices"]
    height, width = matplotlib.image.imread(papers.RESULTS / f"{name}.png").shape[:2]
    assert 300 <= height <= 2000 and 500 <= width <= 3000


def test_few_numbers_are_on_the_page():
    """The command prints the others; those of the page are in the results, and explain claims that do not hold."""
    for name, decisive in papers.DECISIVE.items():
        assert 1 <= len(decisive) <= 3 and decisive.keys() <= STORED[name]["measured"].keys()
        assert not all(STORED[name]["claims"].values())
