"""The local cluster of Ray, whose start takes seconds and which all tests of a process share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from quick import client

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "examples" / "scaling"


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Local cluster of two processes, which find the modules of this folder and of ``examples/scaling``."""
    ray = client("ray")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        for folder in (HERE, SCRIPTS):
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()
