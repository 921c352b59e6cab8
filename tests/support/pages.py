"""Code in markdown pages, and whether it prints what the page shows."""

from __future__ import annotations

import doctest
import re

FENCED = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def python_blocks(text: str) -> list[str]:
    """The python blocks of a page, in their order."""
    return [code for language, code in FENCED.findall(text) if language == "python"]


def assert_prints_what_it_shows(code: str, name: str) -> None:
    """Run a session from its first line to its last; three dots stand for the rest of a message."""
    test = doctest.DocTestParser().get_doctest(code, {}, name, name, 0)
    assert test.examples
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert failed == 0, "".join(report)
