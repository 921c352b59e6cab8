"""The benchmarks page has exactly the tables of the CSV files."""

from __future__ import annotations

import re

import benchmark_tables


def test_the_page_is_what_the_csvs_say():
    """Written by ``python tests/support/benchmark_tables.py``."""
    assert benchmark_tables.PAGE.read_text(encoding="utf-8") == benchmark_tables.page()


def test_each_table_has_a_csv_and_each_csv_a_table():
    """No table is written by hand, and no CSV file is unused."""
    text = benchmark_tables.PAGE.read_text(encoding="utf-8")
    named = [match[1] for match in benchmark_tables.MARKED.finditer(text)]
    assert len(named) == len(re.findall(r"^\|---", text, flags=re.MULTILINE)) > 10
    assert sorted(named) == sorted(path.stem for path in (benchmark_tables.PAGE.parent / "benchmarks").glob("*.csv"))
