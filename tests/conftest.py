"""A single thread per test process: small problems gain nothing from more, and test processes run in parallel.

Tests in ``clients/`` are skipped if their package is not installed. ``.ci/clients`` installs all packages and sets
``ALL_CLIENTS``, so that a missing package is a failure.

Tests that take more than a second are listed in ``support/slow.txt`` and marked as slow; ``support/slow.py`` writes the
list. ``pytest`` leaves them out, ``pytest -m slow`` runs them alone, ``pytest -m ""`` runs all.

Shared helpers are in ``support/``; crafted files and random tables are in ``examples/benchmarks``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from slow import listed
from threadpoolctl import threadpool_limits

torch.set_num_threads(1)
threadpool_limits(1, "blas")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests. Warnings are no errors in ``clients/``, where other packages issue their own."""
    slow = listed()
    for item in items:
        if item.nodeid in slow:
            item.add_marker("slow")
        if Path(__file__).parent / "clients" in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
