"""The tables of the benchmarks' page, each from its CSV.

A line ``<!-- benchmarks/NAME.csv -->`` of ``docs/benchmarks.md`` stands above the table of
``docs/benchmarks/NAME.csv``; ``python tests/support/benchmark_tables.py`` writes all tables anew.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/benchmarks.md"
MARKED = re.compile(r"(?<=^<!-- benchmarks/)(\w+)(\.csv -->\n\n)((?:\|.*\n)*)", flags=re.MULTILINE)


def table(name: str) -> str:
    """The markdown of a CSV."""
    with (PAGE.parent / f"benchmarks/{name}.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return "".join(f"| {' | '.join(row)} |\n" if row else f"|{'---|' * len(header)}\n" for row in (header, [], *rows))


def page() -> str:
    """The page with the tables that the CSVs have now."""
    return MARKED.sub(lambda found: found[1] + found[2] + table(found[1]), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
