"""Run times of ten cases relative to plain torch, with thresholds, and a history with one line per run.

Each case runs in turn with its plain counterpart, several times after one warm-up, on one thread. A ratio is the median
processor time of the case over that of the counterpart. It depends little on the machine and its load. The cases and
their counterparts are:

- fits: 200 full-batch Adam steps of a 1 × 50 tanh net on the same rows;
- predictions for 10,000 rows: a forward pass of such a net;
- curvatures of 20,000 rows: a forward and a backward pass;
- ``save`` and ``load``: ``torch.save`` and ``torch.load`` of a tensor of the file's size.

``python examples/benchmarks/history.py`` prints the ratios, appends them to ``docs/benchmarks/history.csv`` (``--out``)
with version and date, and ends with status 1 if a ratio exceeds its threshold. ``--quick`` measures each case once,
appends nothing and compares nothing with thresholds.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from speed import WORKLOADS, chunked, epoch, ours
from torch import nn

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save

OUT = Path(__file__).parents[2] / "docs/benchmarks/history.csv"
HEAD = "version", "date", "torch"
PREDICTED, PASSED, STEPS = 10_000, 20_000, 200
EVIDENCE = {"prior_precision": "evidence", "sigma_noise": "evidence", "n_members": 1}
THRESHOLDS = {
    "fit, 150 rows": 42.0,
    "fit, 2,000 rows": 75.0,
    "fit, 3 classes": 17.0,
    "fit, evidence": 14.0,
    "mean": 65.0,
    "std": 330.0,
    "diag": 2.2,
    "kron": 3.0,
    "full": 24.0,
    "save, load": 55.0,
}
"""Largest ratio of each case: about one and a half times the first one that was measured."""


@dataclass(frozen=True)
class Case:
    """Two computations that are timed in turn.

    Parameters
    ----------
    ours, plain : callable
    n_runs : int
        Number of runs of each, after one warm-up.
    n_calls : int, default=1
        Calls of each in a run, for times of milliseconds.
    """

    ours: Callable[[], object]
    plain: Callable[[], object]
    n_runs: int
    n_calls: int = 1

    def ratio(self, quick: bool = False) -> float:
        """Median time of ``ours`` over that of ``plain``."""
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(1 if quick else self.n_runs + 1):
            for seconds, function in zip(times, (self.ours, self.plain), strict=True):
                start = time.process_time()
                for _ in range(self.n_calls):
                    function()
                seconds.append(time.process_time() - start)
        first = 0 if quick else 1  # the first turn is a warm-up
        mine, others = (statistics.median(seconds[first:]) for seconds in times)
        return mine / max(others, 1e-9)


def table(n: int, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, d), and targets (n,) from a noisy smooth function of the first three columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=n)


def plain_net(n_inputs: int = 8, n_outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(n_inputs, 50), nn.Tanh(), nn.Linear(50, n_outputs))


def plain_fit(X: np.ndarray, y: np.ndarray, n_classes: int = 0) -> None:
    """Full-batch Adam steps, without any error bars."""
    net, inputs = plain_net(X.shape[1], n_classes or 1), torch.tensor(X).float()
    targets = torch.tensor(y) if n_classes else torch.tensor(y).float()[:, None]
    loss = nn.CrossEntropyLoss() if n_classes else nn.MSELoss()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss(net(inputs), targets).backward()
        optimiser.step()


def plain_predictions(net: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return net(inputs)


def fits() -> dict[str, Case]:
    """Default fits of two sizes and of classes, and a single net with the evidence."""
    few, many = table(150), table(2000)
    labels = np.digitize(few[1], [-0.7, 0.7])

    def fit(kind: type, rows: tuple[np.ndarray, np.ndarray], **options: object) -> object:
        return kind(random_state=0, n_jobs=1, **options).fit(*rows)

    return {
        "fit, 150 rows": Case(partial(fit, LaplaceRegressor, few), partial(plain_fit, *few), 5),
        "fit, 2,000 rows": Case(partial(fit, LaplaceRegressor, many), partial(plain_fit, *many), 3),
        "fit, 3 classes": Case(
            partial(fit, LaplaceClassifier, (few[0], labels)), partial(plain_fit, few[0], labels, 3), 5
        ),
        "fit, evidence": Case(partial(fit, LaplaceRegressor, few, **EVIDENCE), partial(plain_fit, *few), 5),
    }


def predictions_and_files(folder: Path) -> dict[str, Case]:
    """Mean and standard deviation of a default fit, and its file."""
    model = LaplaceRegressor(random_state=0, n_jobs=1).fit(*table(150))
    X = table(PREDICTED)[0]
    forward = partial(plain_predictions, plain_net(), torch.tensor(X).float())
    save(model, folder / "model.safetensors")
    tensor = torch.zeros((folder / "model.safetensors").stat().st_size // 4)

    def stored() -> object:
        save(model, folder / "model.safetensors")
        return load(folder / "model.safetensors")

    def plainly_stored() -> object:
        torch.save(tensor, folder / "plain.pt")
        return torch.load(folder / "plain.pt", weights_only=True)

    return {
        "mean": Case(partial(model.predict, X), forward, 15, 5),
        "std": Case(partial(model.predict_std, X), forward, 9, 3),
        "save, load": Case(stored, plainly_stored, 9, 3),
    }


def curvatures() -> dict[str, Case]:
    """Passes over the rows in three structures, as in ``speed.py``."""
    work, found = WORKLOADS[0], {}
    rows, module = work.data(PASSED, torch.device("cpu")), work.module()
    for structure in ("diag", "kron", "full"):
        network = work.network("all", rows)
        chunks = chunked(rows, network, structure, work.columns)
        found[structure] = Case(
            partial(ours, work, network, structure, chunks), partial(epoch, module, rows, work.classes), 9
        )
    return found


def judged(ratios: dict[str, float]) -> list[str]:
    """Sentences about ratios above their thresholds."""
    return [
        f"{name}: {ratio:.3g} times plain torch, and at most {THRESHOLDS[name]:g} are allowed"
        for name, ratio in ratios.items()
        if ratio > THRESHOLDS[name]
    ]


def append(path: Path, ratios: dict[str, float]) -> None:
    """Append a line to the history, after a header if the file is new.

    Raises
    ------
    SystemExit
        If the file has other columns.
    """
    head = [*HEAD, *THRESHOLDS]
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            present = next(csv.reader(file))
        if present != head:
            raise SystemExit(f"{path} has the columns {present}; this script writes {head}. Give another --out.")
    version = sklearn_laplace.__version__, datetime.date.today().isoformat(), torch.__version__.split("+")[0]
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([] if file.tell() else [head])
        writer.writerow([*version, *(f"{ratios[name]:.3g}" for name in THRESHOLDS)])


def cases(folder: Path) -> dict[str, Case]:
    """All cases, in the order of the thresholds."""
    found = {**fits(), **predictions_and_files(folder), **curvatures()}
    return {name: found[name] for name in THRESHOLDS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the ratios, append them, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each case once, without a line or a judgement")
    parser.add_argument("--out", type=Path, default=OUT, help="CSV of the history")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            ratios[name] = case.ratio(options.quick)
            print(f"{name:16}  {ratios[name]:8.3g}  at most {THRESHOLDS[name]:g}", flush=True)
    if options.quick:
        return 0
    append(options.out, ratios)
    print(f"saved {options.out}", *judged(ratios), sep="\n")
    return 1 if judged(ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
