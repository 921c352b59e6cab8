"""The reproduced experiments: all are there, what the page says is what was measured, and no claim has moved since."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import matplotlib.image
import papers
import pytest

KEPT = papers.results()


def claims(script: Path, monkeypatch) -> list[str]:
    """The sentences of a script's CLAIMS."""
    monkeypatch.syspath_prepend(str(script.parent))
    return list(importlib.import_module(script.stem).CLAIMS)


def test_the_page_is_what_was_measured():
    """Written by ``python tests/support/papers.py > docs/papers.md``."""
    assert (papers.ROOT / "docs/papers.md").read_text(encoding="utf-8") == papers.page()


def test_all_experiments_are_there():
    """Seventeen, numbered as their titles are."""
    numbers = [int(re.match(r"plot_(\d+)_", path.name).group(1)) for path in papers.SCRIPTS]
    assert numbers == list(range(1, 18))
    for number, path in zip(numbers, papers.SCRIPTS, strict=True):
        assert int(KEPT[path.stem]["title"].split(" · ")[0]) == number


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_judged_the_scripts_own_claims(name, monkeypatch):
    """A claim that was changed has to be measured anew; one that does not hold has its reason beside it."""
    kept = KEPT[name]
    assert not kept["quick"]
    assert list(kept["claims"]) == claims(papers.script_of(name), monkeypatch)
    held = list(kept["claims"].values())
    expected = "reproduced" if all(held) else "reproduced in part" if any(held) else "not reproduced"
    assert kept["verdict"] == expected
    assert all(held) or len(kept["why"].split()) > 10
    assert kept["measured"] and kept["choices"]
    height, width = matplotlib.image.imread(papers.RESULTS / f"{name}.png").shape[:2]
    assert 300 <= height <= 2000 and 500 <= width <= 3000
