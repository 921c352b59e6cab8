"""Smaller samples and shorter trainings of streamed fits, for processes that run the scripts of ``examples/scaling``.

Workers of dask import this module (``distributed.worker.preload``), workers of Ray call ``make_small``
(``worker_process_setup_hook``), and ``python few_rows.py SCRIPT …`` runs a script.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

from sklearn_laplace._estimator import sources
from sklearn_laplace._table import source_of as recognise
from sklearn_laplace._training import batches as stream
from sklearn_laplace._training import checkpoint, recipe


def make_small() -> None:
    """Change the constants of this process."""
    torch.set_num_threads(1)
    recognise.SAMPLE_ROWS = sources.SAMPLE_ROWS = 3000
    recipe.STEPS_AT_1000 = (60, 40)
    stream.BUFFER_ROWS = 4096
    checkpoint.EVERY = 0.05


def dask_setup(worker: object) -> None:
    """Called by dask when a worker starts."""
    make_small()


if __name__ == "__main__":
    make_small()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
