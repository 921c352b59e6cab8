"""Tables of the benchmarks page, generated from CSV files.

A line ``<!-- benchmarks/NAME.csv -->`` of ``docs/benchmarks.md`` precedes the table of
``docs/benchmarks/NAME.csv``. ``python tests/support/benchmark_tables.py`` rewrites all tables.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/benchmarks.md"
MARKED = re.compile(r"(?<=^<!-- benchmarks/)(\w+)(\.csv -->\n\n)((?:\|.*\n)*)\n*", flags=re.MULTILINE)


def table(name: str) -> str:
    """Markdown table of a CSV file."""
    with (PAGE.parent / f"benchmarks/{name}.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return "".join(f"| {' | '.join(row)} |\n" if row else f"|{'---|' * len(header)}\n" for row in (header, [], *rows))


def page() -> str:
    """Text of the page with the current tables."""
    return MARKED.sub(lambda match: match[1] + match[2] + table(match[1]) + "\n", PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
