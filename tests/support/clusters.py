"""Fixtures of dask and Ray for tests/clients. A new worker needs five seconds to import the packages."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDERS = TESTS / "clients", TESTS.parent / "examples" / "scaling"
"""Folders of modules that workers import."""


@pytest.fixture(scope="session")
def forked_workers_of_dask() -> Iterator[None]:
    """Workers are forks of a server that has imported the packages once. All have a single thread each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        if find_spec("distributed") is not None:
            import dask
            from distributed.utils import get_mp_context

            with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
                get_mp_context()  # names the modules of dask, once, which come before ours
                context = multiprocessing.get_context("forkserver")
                context.set_forkserver_preload(["distributed", "pandas", "sklearn_laplace"])
                yield
        else:
            yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Local cluster of two processes."""
    from quick import client

    ray = client("ray")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        for folder in FOLDERS:
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()
