"""A default regression on more rows than the fit holds in memory: peak memory, seconds and log-likelihood.

python examples/benchmarks/beyond_memory.py --out OUT --rows 200000 2000000 20000000 --max-time 600

The rows are Parquet files in ``OUT/rows``, made by ``examples/scaling/rows.py``; 20,000,000 rows take 1.8 GB. Each fit
runs in a process of its own. Its peak memory is counted above that of the process before the fit, which has imported
the package. The log-likelihood is that of new rows, and "of the truth" that of the distribution they are drawn from.
``--quick`` fits 220,000 rows for 10 seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

SCALING = Path(__file__).parents[1] / "scaling"
sys.path.insert(0, str(SCALING))
COLUMNS = "rows", "ranks", "seconds", "peak above the start, MB", "log-likelihood", "of the truth", "error of the mean"


def peak() -> float:
    """Peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def fit_and_print(folder: str, max_time: float | None) -> None:
    """Fit in this process, and print a line of JSON."""
    from rows import scores

    from sklearn_laplace import LaplaceRegressor

    before, begun = peak(), time.perf_counter()
    model = LaplaceRegressor(random_state=0, max_time=max_time, verbose=1).fit(folder, "y")
    seconds, memory = time.perf_counter() - begun, peak() - before
    print(json.dumps({"seconds": seconds, "memory": memory, **scores(model)}), flush=True)


def measured(folder: Path, n: int, max_time: float | None) -> list[str]:
    """Row of the table for a number of rows."""
    from rows import written

    here = written(folder / str(n), n)
    command = [sys.executable, __file__, "--fit", str(here)]
    command += [] if max_time is None else ["--max-time", str(max_time)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    sys.stdout.write(output)
    result = json.loads(output.splitlines()[-1])
    numbers = result["log_likelihood"], result["of the truth"], result["error of the mean"]
    return [
        f"{n:,}",
        "1",
        f"{result['seconds']:.0f}",
        f"{result['memory']:.0f}",
        *(f"{value:.4f}" for value in numbers),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of rows and results (default: out)")
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 2_000_000, 20_000_000])
    parser.add_argument("--max-time", type=float, help="seconds of a fit (default: no limit)")
    parser.add_argument("--quick", action="store_true", help="220,000 rows, 10 seconds")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit:
        fit_and_print(args.fit, args.max_time)
        return
    numbers, limit = ([220_000], 10.0) if args.quick else (args.rows, args.max_time)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "beyond_memory.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for n in numbers:
            writer.writerow(measured(args.out / "rows", n, limit))
            file.flush()


if __name__ == "__main__":
    main()
