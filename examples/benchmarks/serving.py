"""Serving: seconds per million rows, and milliseconds for one row, from default fits and their ONNX graphs.

Each default fit has ten generated columns and predicts mean and standard deviation. *s* and *s of processor* are
wall-clock and processor seconds per million rows, on the threads in the title. *ms* are milliseconds for a single row:
the median and the smallest of many calls. They are processor time, which other programs on the machine affect less.
*difference* is the largest difference between graph and estimator in a mean or a standard deviation, in standard
deviations of the targets.

``python examples/benchmarks/serving.py`` prints a markdown table. ``--rows`` is the number of predicted rows,
``--threads`` the number of threads (2). ``--quick`` fits 200 rows and predicts 2,000. The columns of ONNX need the
packages onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sklearn_laplace import LaplaceRegressor, to_onnx

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

FITS = (3000, {}), (3000, {"dtype": "float32"}), (20_000, {})
"""Training rows and parameters of the fits."""
COLUMNS = 10
ROWS, CALLS = 1_000_000, 200
HEADER = (
    *("fit", "members", "weights", "s", "s of processor", "ms, mean", "ms, std", "smallest ms, std"),
    *("ONNX: ms", "ONNX: smallest ms", "difference"),
)


def data(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets with curves, an interaction, and noise that varies with a column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, COLUMNS))
    mean = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * X[:, 3]
    return X, mean + 0.2 * np.exp(0.3 * X[:, 4]) * rng.normal(size=n)


def milliseconds(call: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Median and smallest processor time of a call."""
    found = []
    for _ in range(calls):
        start = time.process_time()
        call()
        found.append(1000 * (time.process_time() - start))
    return float(np.median(found)), min(found)


def row(n: int, parameters: dict[str, Any], n_rows: int, calls: int, threads: int) -> list[float]:
    """Cells of one fit, without its name."""
    X, y = data(n, 0)
    X_new, _ = data(n_rows, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LaplaceRegressor(random_state=0, **parameters).fit(X, y)
    one = X_new[:1]
    model.predict(X_new[:1000], return_std=True)  # warm-up
    torch.set_num_threads(threads)
    start, used = time.perf_counter(), time.process_time()
    model.predict(X_new, return_std=True)
    seconds = [time.perf_counter() - start, time.process_time() - used]
    torch.set_num_threads(1)
    mean, _ = milliseconds(lambda: model.predict(one), calls)
    std, least = milliseconds(lambda: model.predict_std(one), calls)
    size = sum(member.laplace_.network.n_parameters for member in model.members_)
    cells = [len(model.members_), size, *(1e6 / n_rows * part for part in seconds), mean, std, least]
    return [*cells, *graph(model, X_new[:1000], y.std(), calls)]


def graph(model: LaplaceRegressor, X: np.ndarray, unit: float, calls: int) -> list[float]:
    """Median and smallest milliseconds of the ONNX graph for one row, and its largest difference from the estimator."""
    if onnxruntime is None:
        return [math.nan] * 3
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString(), options)
    found = session.run(["mean", "std"], {"X": X})
    difference = np.abs(np.stack(found) - np.stack(model.predict(X, return_std=True))).max() / unit
    return [*milliseconds(lambda: session.run(["mean", "std"], {"X": X[:1]}), calls), float(difference)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    n_rows, calls = (2000, 3) if options.quick else (options.rows, CALLS)
    torch.set_num_threads(1)
    title = f"Serving, {n_rows:,} rows, {options.threads} threads"
    print("", title, "", f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|", sep="\n")
    for n, parameters in ((200, {}),) if options.quick else FITS:
        cells = row(n, parameters, n_rows, calls, options.threads)
        name = f"{n:,} rows" + "".join(f", {key}={value}" for key, value in parameters.items())
        shown = ["–" if math.isnan(cell) else f"{cell:,.3g}" if cell < 1000 else f"{cell:,.0f}" for cell in cells]
        print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
