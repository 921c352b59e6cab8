"""Execution of the code in markdown pages, and comparison with the output shown there."""

from __future__ import annotations

import doctest
import re

FENCED = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def python_blocks(text: str) -> list[str]:
    """Python blocks of a page, in order."""
    return [code for language, code in FENCED.findall(text) if language == "python"]


def assert_prints_what_it_shows(code: str, name: str) -> None:
    """Run a doctest session; three dots stand for omitted output."""
    test = doctest.DocTestParser().get_doctest(code, {}, name, name, 0)
    assert test.examples
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert failed == 0, "".join(report)
