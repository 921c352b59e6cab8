"""A single thread per test process: small problems gain nothing from more, and test processes run in parallel.

Tests in ``clients/`` are skipped if their package is not installed. ``.ci/clients`` installs all packages and sets
``ALL_CLIENTS``, so that a missing package is a failure.

Tests that take more than a second are listed in ``support/slow.txt`` and marked as slow; ``support/slow.py`` writes the
list. ``pytest`` leaves them out, ``pytest -m slow`` runs them alone, ``pytest -m ""`` runs all.

``--cases 3`` leaves at most three cases of each fast parametrized test, evenly spaced, for runs with other versions.
``--cases 1`` leaves one that depends on the name of the test, so that all kinds of cases occur among the tests.

Shared helpers are in ``support/``; crafted files and random tables are in ``examples/benchmarks``.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
import torch
from clusters import forked_workers_of_dask, ray_cluster  # noqa: F401 (fixtures)
from processes import Processes
from shortened import all_steps, few_steps
from slow import listed
from threadpoolctl import threadpool_limits

torch.set_num_threads(1)
threadpool_limits(1, "blas")


@pytest.fixture(scope="module")
def short_trainings() -> Iterator[None]:
    """Trainings of all tests and fixtures of a module end after a few steps."""
    with few_steps():
        yield


@pytest.fixture
def short_training() -> Iterator[None]:
    """Trainings of one test end after a few steps."""
    with few_steps():
        yield


@pytest.fixture
def complete_training() -> Iterator[None]:
    """Trainings of one test are complete, in a module of ``short_trainings``."""
    with all_steps():
        yield


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """New processes that have imported the package already."""
    started = Processes(tmp_path_factory.mktemp("processes"))
    yield started
    started.end()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, help="maximum number of cases of each parametrized test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests. Warnings are no errors in ``clients/``, where other packages issue their own.

    Nets of short trainings are not at a mode, which needs no warning.
    """
    slow = listed()
    clients = str(Path(__file__).parent / "clients")
    for item in items:
        if item.nodeid in slow:
            item.add_marker("slow")
        if str(item.path).startswith(clients):
            item.add_marker(pytest.mark.filterwarnings("default"))
        if {"short_trainings", "short_training"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning"))
    if most := config.getoption("cases"):
        kept = _some_cases(items, most)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def pytest_collection_finish() -> None:
    """Collect garbage less often. Hypothesis asks for referrers of its random generator, which ``gc.freeze`` hides."""
    gc.collect()
    gc.set_threshold(10_000)


def _some_cases(items: list[pytest.Item], most: int) -> set[pytest.Item]:
    """At most so many items of each test function, evenly spaced from its first to its last one, or any single one."""
    of_function = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            of_function[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for name, cases in of_function.items():
        first = crc32(name.encode()) % len(cases) if most == 1 else 0
        step = max((len(cases) - 1) / max(most - 1, 1), 1)
        kept.update(cases[first + round(k * step)] for k in range(min(most, len(cases))))
    return kept
