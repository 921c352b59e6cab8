"""Smaller samples, shorter trainings and fewer scored rows, for processes that run the scripts of ``examples/scaling``.

Workers of dask import this module (``distributed.worker.preload``), workers of Ray call ``make_small``, and
``python few_rows.py SCRIPT …`` runs a script. Further calls follow after a ``+``.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from sklearn_laplace._ensemble import train_members
from sklearn_laplace._estimator import sources
from sklearn_laplace._table import source_of as recognise
from sklearn_laplace._training import batches as stream
from sklearn_laplace._training import checkpoint, recipe

SMALL: dict[tuple[ModuleType, str], Any] = {
    (recognise, "SAMPLE_ROWS"): 1000,
    (sources, "SAMPLE_ROWS"): 1000,
    (recipe, "STEPS_AT_1000"): (60, 40),
    (stream, "BUFFER_ROWS"): 1024,
    (checkpoint, "EVERY"): 0.05,
    (train_members, "TRIAL"): (((0.1, 0.0),), 400, 150),
    (train_members, "CLASS_TRIAL"): (((0.1, 0.0),), 400, 150),
}
NEW_ROWS = 1000
"""Number of rows whose predictions are scored and shown."""


def make_small() -> None:
    """Change the constants of this process."""
    torch.set_num_threads(1)
    for (module, name), value in SMALL.items():
        setattr(module, name, value)


def dask_setup(worker: object) -> None:
    """Called by dask when a worker starts."""
    make_small()


def score_few() -> None:
    """Let the scripts, whose folder is in the path, score fewer rows."""
    import_module("rows").NEW_ROWS = NEW_ROWS


def run(script: str, *options: str) -> None:
    """Run a script in this process, as ``python SCRIPT OPTIONS`` does."""
    score_few()
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")


def calls(arguments: list[str]) -> list[list[str]]:
    """The arguments of each call."""
    found: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "+":
            found.append([])
        else:
            found[-1].append(argument)
    return found


def share_the_process_group() -> None:
    """Several calls have one process group: a rank of torchrun cannot make a second one."""
    dist.init_process_group("gloo")
    dist.init_process_group = lambda *args, **options: None
    dist.destroy_process_group = lambda *args: None


if __name__ == "__main__":
    make_small()
    all_calls = calls(sys.argv[1:])
    if len(all_calls) > 1 and "RANK" in os.environ:
        share_the_process_group()
    for call in all_calls:
        sys.path.insert(0, str(Path(call[0]).parent))
        run(*call)
