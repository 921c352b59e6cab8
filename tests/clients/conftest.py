"""Packages that nobody here wrote: each client is a file of tests, skipped where its package is not installed.

``.ci/clients`` installs them all and sets ``ALL_CLIENTS``: then a package that is missing is a failure. What the
packages warn of themselves is theirs.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A client's own warnings are no errors of ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
