"""Constants of a data-parallel fit, and a projection to 10⁹ rows of 100 columns on 64 workers.

python examples/benchmarks/scaling_constants.py --out OUT

On one thread, the script times the reading of rows from Parquet files, a training step of four members, and the
curvature pass of eight members. It also times an all-reduce of the gradients between two local processes (gloo). The
second table is a projection from these constants, not a measurement. It assumes a network of given bandwidth and
latency, and an all-reduce that sends every gradient twice (ring). ``--quick`` uses fewer rows and repetitions.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from sklearn_laplace._ensemble.approximate_members import CURVATURE_ROWS
from sklearn_laplace._ensemble.train_members import fit_of
from sklearn_laplace._estimator.regressor import LaplaceRegressor
from sklearn_laplace._table.source_of import source_of
from sklearn_laplace._training.batched import seconds_of_step
from sklearn_laplace._training.recipe import recipes_for
from sklearn_laplace._training.stacked import Squares, Stacked
from sklearn_laplace.laplace.fit import TrainingRows
from sklearn_laplace.laplace.network.tracing import trace
from sklearn_laplace.nets import TableMLP
from sklearn_laplace.options.resolve import resolve
from sklearn_laplace.options.variants import expanded

ROWS, COLUMNS, WORKERS = 10**9, 100, 64
BATCHES = 16, 256
"""Rows of the mini-batches whose steps are timed; times for other sizes are linear in the rows."""
BANDWIDTH, LATENCY = 1.25e9, 1e-4
"""Bytes and seconds of a network of 10 Gbit/s."""
REDUCE = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
flat, n = torch.zeros(int(sys.argv[1])), int(sys.argv[2])
for _ in range(3):
    dist.all_reduce(flat)
begun = time.perf_counter()
for _ in range(n):
    dist.all_reduce(flat)
if dist.get_rank() == 0:
    print((time.perf_counter() - begun) / n)
dist.destroy_process_group()
"""


def members(n_rows: int, n: int) -> tuple[list[TableMLP], int]:
    """n nets of the recipe for a number of rows, and the number of their encoded columns."""
    recipe = recipes_for(n_rows, COLUMNS)[0]
    edges = [np.linspace(0, 1, (recipe.n_bins or 0) + 1).tolist()] * COLUMNS
    shape = {"hidden_layer_sizes": recipe.hidden_layer_sizes, "activation": recipe.activation, "input_edges": edges}
    nets = [TableMLP((0,) * COLUMNS, (False,) * COLUMNS, 1, seed=seed, **shape) for seed in range(n)]
    return [net.float() for net in nets], nets[0].first.weight.shape[1]


def reading(folder: Path, n: int) -> float:
    """Seconds per row to read Parquet files."""
    frame = pd.DataFrame(
        np.random.default_rng(0).random((n, COLUMNS + 1)), columns=[f"x{k}" for k in range(COLUMNS + 1)]
    )
    frame.to_parquet(folder / "rows.parquet", row_group_size=50_000)
    source, begun = source_of(folder / "rows.parquet", "x0"), time.perf_counter()
    for block in source.all_blocks():
        np.asarray(block.X)
    return (time.perf_counter() - begun) / n


def steps(n: int) -> tuple[list[float], int]:
    """Seconds of a step of four members on 16 and on 256 rows, and the number of gradient values."""
    nets, _ = members(ROWS, 4)
    stacked, rows, times = Stacked(nets), table(4096), []
    for batch_size in BATCHES:
        schedule = replace(recipes_for(ROWS, COLUMNS)[0].schedule, batch_size=batch_size)
        times.append(min(seconds_of_step(stacked, Squares(), rows, schedule) for _ in range(n)))
    return times, sum(tensor.numel() for tensor in stacked.tensors)


def table(n: int) -> TrainingRows:
    x = torch.rand(n, COLUMNS, dtype=torch.float64)
    return TrainingRows(x, torch.rand(n, 1), torch.ones(n))


def curvature(n: int) -> float:
    """Seconds per row of the curvature pass of eight members, each over three quarters of the rows."""
    nets, _ = members(ROWS, 1)
    rows, options = table(n), resolve("regressor", expanded(LaplaceRegressor().get_params(deep=False)))
    network = trace(nets[0].eval(), rows.inputs[:2])
    fit_of(network, rows.taken(torch.arange(256)), options)
    begun = time.perf_counter()
    fit_of(network, rows, options)
    return 8 * 0.75 * (time.perf_counter() - begun) / n


def all_reduce(n_values: int, n: int) -> float:
    """Seconds of an all-reduce between two processes of this machine."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(REDUCE)
        file.flush()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launcher, file.name, str(n_values), str(n)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def projection(read: float, times: list[float], n_values: int, passed: float) -> list[list[str]]:
    """Rows of the table of the projection, in hours, for the default batch and for a large one."""
    n_steps = sum(recipe.schedule.n_steps for recipe in recipes_for(ROWS, COLUMNS))
    sent, found = 4 * n_values, []
    for batch in (256, 16_384):
        fewer = n_steps * 256 / batch
        a_row = (times[1] - times[0]) / (BATCHES[1] - BATCHES[0])
        compute = fewer * (times[0] + a_row * (batch / WORKERS - BATCHES[0]))
        network = fewer * (2 * sent / BANDWIDTH + 2 * (WORKERS - 1) * LATENCY)
        reads = fewer * batch / WORKERS * read
        passes = (ROWS * read + min(ROWS, CURVATURE_ROWS) * passed) / WORKERS
        hours = [f"{value / 3600:.3f}" for value in (reads, compute, network, passes)]
        found.append([f"{batch:,}", f"{fewer:,.0f}", f"{fewer * 2 * sent / 1e12:.1f}", *hours])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    part = 10 if args.quick else 1
    with tempfile.TemporaryDirectory() as folder:
        read = reading(Path(folder), 200_000 // part)
    times, n_values = steps(1 if args.quick else 5)
    passed, reduced = curvature(20_000 // part), all_reduce(n_values, 100 // part)
    constants = [
        ["reading a row, µs", f"{1e6 * read:.2f}"],
        ["a step of 4 members on 16 rows, ms", f"{1e3 * times[0]:.1f}"],
        ["a step of 4 members on 256 rows, ms", f"{1e3 * times[1]:.1f}"],
        ["gradients of a step, MB", f"{4e-6 * n_values:.2f}"],
        ["their all-reduce between 2 processes of this machine, ms", f"{1e3 * reduced:.1f}"],
        ["curvature pass of 8 members, µs a row", f"{1e6 * passed:.1f}"],
    ]
    headed = "rows of a batch", "steps", "TB sent by a worker", *(f"hours: {name}" for name in NAMES)
    for name, head, rows in (
        ("scaling_constants", ("constant", "value"), constants),
        ("scaling_projection", headed, projection(read, times, n_values, passed)),
    ):
        with (args.out / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *rows])
        print(f"\n{name}\n" + "\n".join("  ".join(row) for row in [list(head), *rows]))


NAMES = "reading", "computing", "network", "passes over all rows"

if __name__ == "__main__":
    main()
