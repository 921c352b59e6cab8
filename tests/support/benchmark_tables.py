"""Tables of two pages, generated from CSV files.

A line ``<!-- benchmarks/NAME.csv -->`` of ``docs/benchmarks.md`` or ``docs/decisions.md`` precedes the table of
``docs/benchmarks/NAME.csv``. ``python tests/support/benchmark_tables.py`` rewrites all tables.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/benchmarks.md"
DECISIONS = PAGE.with_name("decisions.md")
MARKED = re.compile(r"(?<=^<!-- benchmarks/)(\w+)(\.csv -->\n\n)((?:\|.*\n)*)\n*", flags=re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.@])[-−+]?\d[\d,]*(?:\.\d+)?(?![\w.]*\d)")


def rows(path: Path) -> list[list[str]]:
    """Cells of a CSV file, with its header."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def table(name: str) -> str:
    """Markdown table of a CSV file."""
    header, *others = rows(PAGE.parent / f"benchmarks/{name}.csv")
    lines = (header, [], *others)
    return "".join(f"| {' | '.join(row)} |\n" if row else f"|{'---|' * len(header)}\n" for row in lines)


def page(path: Path) -> str:
    """Text of the page with the current tables."""
    return MARKED.sub(lambda match: match[1] + match[2] + table(match[1]) + "\n", path.read_text(encoding="utf-8"))


def numbers_of(text: str) -> list[str]:
    """Numbers with a plain minus sign; levels such as 95 %, code and citations do not count."""
    text = re.sub(r"`[^`]*`|\$[^$]*\$|\[@[^\]]*\]|\d+ %", "", text)
    return [number.replace("−", "-").rstrip(",") for number in NUMBER.findall(text)]


def measured(paths: Iterable[Path]) -> set[str]:
    """Numbers in the cells of CSV files."""
    return {number for path in paths for row in rows(path) for cell in row for number in numbers_of(cell)}


if __name__ == "__main__":
    for path in (PAGE, DECISIONS):
        path.write_text(page(path), encoding="utf-8")
