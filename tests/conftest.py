"""One torch thread a test process: small problems gain nothing from more, and parallel processes would fight.

A client in ``clients/`` is skipped where its package is not installed; ``.ci/clients`` installs them all and sets
``ALL_CLIENTS``: then a package that is missing is a failure.

Shared helpers are in ``support/``; crafted files and random tables are those of ``examples/benchmarks``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the packages that others wrote warn of themselves is no error of ours."""
    for item in items:
        if Path(__file__).parent / "clients" in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
