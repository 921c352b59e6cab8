"""The benchmarks page: five tables of CSV files, whose numbers are those of the files that the tables name."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import benchmark_tables
import pytest

PAGE = benchmark_tables.PAGE
DOCS = PAGE.parent
ROOT = DOCS.parent
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = ("quality", "time", "error_bars", "nets", "scale")
NAMED = re.compile(r"benchmarks/[\w/]+\.csv")
MEASURED = ("default", "here", "peers", "compared with", "CatBoost", "laplace-torch", "best peer")
"""Columns of measured numbers; the others name cases or goals."""


def lines(name: str) -> list[dict[str, str]]:
    """Rows of a table."""
    with (DOCS / f"benchmarks/{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def unmeasured(row: dict[str, str]) -> set[str]:
    """Numbers of a row that the file that it links does not have; none if it links no file."""
    files = [DOCS / path for path in NAMED.findall(" ".join(row.values()))]
    cells = [row[name] for name in MEASURED if name in row]
    return {number for cell in cells for number in benchmark_tables.numbers_of(cell)} - benchmark_tables.measured(files)


@pytest.mark.parametrize("path", [PAGE, benchmark_tables.DECISIONS], ids=lambda path: path.name)
def test_the_pages_are_what_the_csvs_say(path):
    """Written by ``python tests/support/benchmark_tables.py``."""
    assert benchmark_tables.page(path) == path.read_text(encoding="utf-8")


def test_the_page_is_five_tables_and_short():
    """No table is written by hand. A longer page would not be read."""
    named = [match[1] for match in benchmark_tables.MARKED.finditer(TEXT)]
    assert tuple(named) == NAMES and len(re.findall(r"^\|---", TEXT, flags=re.MULTILINE)) == len(NAMES)
    assert len(re.findall(r"!\[[^\]]*\]\(images/", TEXT)) <= 5
    assert len(TEXT.split()) <= 3500


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nets"])
def test_each_number_is_in_the_file_that_its_row_names(name):
    """The nets have no other file: their table is the record."""
    linked = [row for row in lines(name) if NAMED.search(" ".join(row.values()))]
    assert len(linked) > len(lines(name)) / 2
    assert [row for row in linked if unmeasured(row)] == []


def test_a_planted_number_is_found():
    """One digit, and a changed sign."""
    (first, *_) = lines("error_bars")
    assert unmeasured(first | {"here": first["here"].replace("0.158", "0.159")}) == {"+0.159"}
    assert unmeasured(first | {"here": first["here"].replace("+0.087", "-0.087")}) == {"-0.087"}


def test_the_best_peer_is_the_best_of_all():
    """Of log-likelihoods the largest, of log losses the smallest; the default is compared with it."""
    best: dict[str, Callable] = {"probabilistic_test": max, "class_peers": min}
    for row in lines("quality"):
        source = Path(NAMED.findall(row["score"])[0]).stem
        (cells,) = [line for line in lines(source) if (line["table"], line["rows"]) == (row["table"], row["rows"])]
        others = set(cells) - {"table", "rows", "splits", "default"}
        scores = {peer: cells[peer].split(" / ")[0] for peer in others if cells[peer] != "–"}
        name = best[source](scores, key=lambda peer: float(scores[peer]))
        assert row["best peer"] == f"{name} {scores[name]}"
        assert row["default"] == cells["default"].split(" / ")[0]
        assert row["CatBoost"] == scores["CatBoost"] and row["laplace-torch"] == scores.get("laplace-torch", "–")


def test_each_script_of_a_row_exists_and_has_its_command_on_the_page():
    """The nets have one script."""
    commands = set(re.findall(r"examples/(?:benchmarks|scaling)/\w+\.py", TEXT))
    scripts = {
        script for name in NAMES for row in lines(name) for script in re.findall(r"`(\w+\.py)`", row.get("script", ""))
    }
    assert len(scripts) > 10 and scripts <= {Path(command).name for command in commands}
    assert all((ROOT / command).exists() for command in commands)


def test_each_csv_is_named_by_a_page():
    """A file that no page names is not read, and becomes old unnoticed."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    stored = [path.relative_to(DOCS).as_posix() for path in (DOCS / "benchmarks").rglob("*.csv")]
    assert sorted(path for path in stored if path not in text) == ["benchmarks/history.csv"]  # of history.py
