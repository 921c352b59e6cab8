"""Write ``slow.txt``, the tests that ``pytest`` deselects unless it is called with ``-m slow`` or ``-m ""``.

Usage, from the root of the project::

    python -m pytest -m "" -n auto --durations=0 --durations-min=0.9 | tee durations.txt
    python tests/support/slow.py durations.txt
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")
SLOW = 1.0
"""Duration in seconds from which a test is slow, on two cores that are both busy."""
LINE = re.compile(r"\s*([\d.]+)s call\s+(tests/.+)")


def slow_tests(text: str) -> list[str]:
    """Node ids of the slow tests in the output of pytest; fixtures do not count, as other tests use them too."""
    lines = (LINE.fullmatch(line.rstrip()) for line in text.splitlines())
    return sorted({line[2] for line in lines if line is not None and float(line[1]) >= SLOW})


def listed() -> frozenset[str]:
    """Node ids in ``slow.txt``."""
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    LIST.write_text("\n".join(slow_tests(Path(sys.argv[1]).read_text(encoding="utf-8"))) + "\n", encoding="utf-8")
