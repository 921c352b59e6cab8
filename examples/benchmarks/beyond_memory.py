"""Default fits of tables larger than memory: peak memory, seconds and log-likelihood.

python examples/benchmarks/beyond_memory.py --out OUT --rows 200000 2000000 20000000 --max-time 600
python examples/benchmarks/beyond_memory.py --out OUT --rows 220000 --classes

The rows are Parquet files in ``OUT/rows``, written by ``examples/scaling/rows.py``; 20,000,000 rows take 1.8 GB. Each
fit runs in its own process. Peak memory is measured relative to that of the process just before the fit, after the
package is imported. The log-likelihood is that of new rows; "of the truth" is their log-likelihood under the
distribution that generates them. ``--quick`` fits 220,000 rows for 10 seconds. ``--classes`` fits a classifier with
three classes, once to rows in memory and once to the files.
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
OF_CLASSES = "rows", "read", "processor seconds", "peak above the start, MB", "log-likelihood", "of the truth"


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


def fit_classes_and_print(folder: str, in_memory: bool, max_time: float | None) -> None:
    """Fit a classifier in this process, and print a line of JSON."""
    import pandas as pd
    from rows import COLUMNS, scores_of_classes

    from sklearn_laplace import LaplaceClassifier

    rows: tuple[object, object] = (folder, "y")
    if in_memory:
        table = pd.read_parquet(folder)
        rows = table[COLUMNS], table["y"].to_numpy()
    before, begun = peak(), time.process_time()
    model = LaplaceClassifier(random_state=0, max_time=max_time, verbose=1).fit(*rows)
    seconds, memory = time.process_time() - begun, peak() - before
    print(json.dumps({"seconds": seconds, "memory": memory, **scores_of_classes(model)}), flush=True)


def of_classes(folder: Path, n: int, max_time: float | None, *, in_memory: bool) -> list[str]:
    """Row of the table of classes, for a number of rows."""
    from rows import written

    here = written(folder / str(n), n, classes=True)
    result = _result(["--fit", str(here), "--classes", *(["--in-memory"] if in_memory else [])], max_time)
    numbers = f"{result['seconds']:.0f}", f"{result['memory']:.0f}"
    densities = (f"{result[name]:.4f}" for name in ("log_likelihood", "of the truth"))
    return [f"{n:,}", "in memory" if in_memory else "from files", *numbers, *densities]


def _result(options: list[str], max_time: float | None) -> dict[str, float]:
    """Last line of JSON printed by a separate process."""
    command = [sys.executable, __file__, *options, *([] if max_time is None else ["--max-time", str(max_time)])]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    sys.stdout.write(output)
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def measured(folder: Path, n: int, max_time: float | None) -> list[str]:
    """Row of the table for a number of rows."""
    from rows import written

    here = written(folder / str(n), n)
    result = _result(["--fit", str(here)], max_time)
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
    parser.add_argument("--classes", action="store_true", help="fit a classifier, also with the rows in memory")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    parser.add_argument("--in-memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit and args.classes:
        fit_classes_and_print(args.fit, args.in_memory, args.max_time)
        return
    if args.fit:
        fit_and_print(args.fit, args.max_time)
        return
    numbers, limit = ([220_000], 10.0) if args.quick else (args.rows, args.max_time)
    args.out.mkdir(parents=True, exist_ok=True)
    name, columns = ("beyond_memory_classes.csv", OF_CLASSES) if args.classes else ("beyond_memory.csv", COLUMNS)
    with (args.out / name).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for n in numbers:
            if args.classes:
                places = [of_classes(args.out / "rows", n, limit, in_memory=in_memory) for in_memory in (True, False)]
                writer.writerows(places)
            else:
                writer.writerow(measured(args.out / "rows", n, limit))
            file.flush()


if __name__ == "__main__":
    main()
