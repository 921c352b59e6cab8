"""Fault tests: damaged and crafted files, interrupts, forks, threads, a full disk, little memory and random tables.

``python examples/benchmarks/faults.py`` takes an hour. It prints a line for each part: the number of tries, the number
that passed, and the failures. ``--part NAME`` runs one part, and ``--csv PATH`` writes the table of
``docs/benchmarks/faults.csv``. A try passes under these conditions:

- **damage**: a file with flipped, removed or inserted bytes is refused, or loads as the model that was saved;
- **structure**: a fuzzed file with correct checksums is refused, or loads as an estimator, and the interpreter does
  nothing but read the file (``crafted.py``);
- **interrupts**: after Ctrl-C at a random moment, the estimator, global generators, threads and folders are unchanged;
- **forks**: after a fit with two threads, a fit in a forked process ends and equals the parent's fit;
- **threads**: concurrent calls of one model from four threads return the same bits as sequential calls;
- **disk**: ``save`` without room for the file raises an OSError, and keeps the old file;
- **memory**: a fit without address space raises a MemoryError that names ``memory_budget``;
- **tables**: default fits of random legal tables raise no error, and predict finite numbers.
"""

from __future__ import annotations

import argparse
import copy
import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import crafted
import legal_tables
import numpy as np
import torch
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace.errors import StateError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(45, 3))
Y = np.sin(X[:, 0]) + 0.2 * RNG.normal(size=45)
TABLE = np.array([["a", 1.0], ["b", np.nan], ["c", 3.0]], dtype=object)[np.arange(45) % 3]
SMALL: dict[str, Any] = {"hidden_layer_sizes": (6,), "random_state": 0}
ONE: dict[str, Any] = {**SMALL, "n_members": 1, "prior_precision": "evidence", "likelihood": "gaussian"}
GIVEN: dict[str, Any] = {"random_state": 0}
Counts = Counter[str]
"""Number of tries by outcome; "ok" and "refused" are passes."""


def models() -> dict[str, tuple[Any, Any]]:
    """Fitted models of several kinds, each with rows to predict."""
    numbers = {
        "mixture": LaplaceRegressor(likelihood="heteroscedastic", n_members=2, **SMALL).fit(X, Y),
        "targets": LaplaceRegressor(**{**ONE, "sigma_noise": np.array([0.5, 1.0])}).fit(X, np.c_[Y, X[:, 0]]),
        "classifier": LaplaceClassifier(n_members=2, prior_precision="evidence", **SMALL).fit(X, Y > 0),
        "layers": LaplaceRegressor(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), **GIVEN).fit(X, Y),
    }
    structures = ("full", "block_diagonal", "kron", "ekfac", "low_rank_diag", "diag", "low_rank", "functional")
    for name in structures:
        numbers[name] = LaplaceRegressor(hessian_structure=name, **ONE).fit(X, Y)
    table = LaplaceRegressor(**ONE).fit(TABLE, Y)
    return {name: (model, X) for name, model in numbers.items()} | {"table": (table, TABLE)}


def damage(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test files with changed, missing or inserted bytes."""
    counts: Counts = Counter()
    saved = {}
    for name, (model, rows) in models().items():
        save(model, folder / name)
        saved[name] = model.predict(rows), rows
    path = folder / "damaged"
    for _ in range(n):
        name = str(rng.choice(list(saved)))
        content = bytearray((folder / name).read_bytes())
        at, size = int(rng.integers(len(content))), int(rng.integers(1, 9))
        kind = rng.integers(4)
        if kind == 0:
            content[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            content[at : at + size] = rng.bytes(size)
        else:
            content[at:at] = rng.bytes(size)
        path.write_bytes(content)
        try:
            model = load(path)
        except StateError:
            counts["refused"] += 1
        except Exception as error:
            counts[f"{type(error).__name__}"] += 1
        else:
            expected, rows = saved[name]
            counts["ok" if np.array_equal(model.predict(rows), expected) else "another model"] += 1
    return counts


def structure(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test files with randomly changed trees."""
    counts: Counts = Counter()
    originals = []
    for name, (model, rows) in models().items():
        save(model, folder / name)
        load(folder / name).predict(rows)
        originals.append(crafted.Crafted(folder / name))
    watch, path = crafted.Watch(), folder / "fuzzed"
    for _ in range(n):
        crafted.fuzzed(originals[rng.integers(len(originals))], rng).write(path)
        try:
            word = "ok" if isinstance(watch(path, load), LaplaceRegressor | LaplaceClassifier) else "no estimator"
        except StateError:
            word = "refused"
        except Exception as error:
            word = f"{type(error).__name__}"
        counts["event" if watch.seen else word] += 1
    return counts


# ---------------------------------------------------------------------- interrupts


def interrupts(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test Ctrl-C during a fit, an update, a save or a prediction."""
    counts: Counts = Counter()
    first = LaplaceRegressor(**SMALL).fit(X, Y)
    path = folder / "model"
    actions: dict[str, Callable[[Any], Any]] = {
        "fit": lambda model: model.fit(X[:40], -Y[:40]),
        "partial_fit": lambda model: model.partial_fit(X[:9] + 1, Y[:9]),
        "refit_laplace": lambda model: model.refit_laplace(prior_precision=3.0),
        "save": lambda model: save(model, path),
        "predict": lambda model: model.predict_interval(X, 0.9),
    }
    lasts = {name: _seconds(partial(action, copy.deepcopy(first))) for name, action in actions.items()}
    expected = first.predict_std(X)
    save(first, path)
    for _ in range(n):
        name = str(rng.choice(list(actions)))
        model, before = copy.deepcopy(first), _globals()
        ended = _interrupted(partial(actions[name], model), max(1e-5, rng.random() * lasts[name]))
        unchanged = ended or np.array_equal(model.predict_std(X), expected)
        clean = os.listdir(folder) == [path.name] and load(path).predict(X) is not None
        same = all(np.array_equal(one, other) for one, other in zip(before, _globals(), strict=True))
        counts["ok" if unchanged and clean and same else f"{name} left traces"] += 1
    return counts


def _globals() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy(), np.random.get_state()[1], np.array(torch.get_num_threads())  # noqa: NPY002


def _seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _interrupted(action: Callable[[], Any], after: float) -> bool:
    """True if the action ended before it was interrupted."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        action()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True


# ---------------------------------------------------------------------- processes and threads


def forks(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test fits in forked processes."""
    counts: Counts = Counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    big = RNG.normal(size=(400, 3))
    expected = _fitted(big)
    context = multiprocessing.get_context("fork")
    for _ in range(n):
        queue: Any = context.Queue()
        process = context.Process(target=_put_fitted, args=(queue, big))
        process.start()
        try:
            same = np.allclose(queue.get(timeout=60), expected, rtol=1e-6)
            counts["ok" if same else "another model"] += 1
        except Exception:
            counts["hangs"] += 1
        process.kill()
        process.join()
    torch.set_num_threads(threads)
    return counts


def _fitted(rows: np.ndarray) -> np.ndarray:
    return LaplaceRegressor(**ONE).fit(rows, rows[:, 0]).predict_std(rows[:5])


def _put_fitted(queue: Any, rows: np.ndarray) -> None:
    queue.put(_fitted(rows))


def threads(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test calls of one model from four threads."""
    counts: Counts = Counter()
    fitted = models()
    calls: list[Callable[[], Any]] = []
    for model, rows in fitted.values():
        calls += [partial(model.predict, rows), partial(model.predict_std, rows), partial(model.score_samples, rows)]
    one_by_one = [call() for call in calls]
    with ThreadPoolExecutor(4) as pool:
        chosen = rng.integers(len(calls), size=n)
        for place, answer in zip(chosen, pool.map(lambda place: calls[place](), chosen), strict=True):
            counts["ok" if np.array_equal(answer, one_by_one[place]) else "another answer"] += 1
    return counts


# ---------------------------------------------------------------------- limits

FULL_DISK = """
import resource, signal, sys
from sklearn_laplace import load, save

model = load(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    save(model, sys.argv[1])
except OSError as error:
    print("refused")
"""
LITTLE_MEMORY = """
import resource, sys
import numpy as np
from sklearn_laplace import LaplaceRegressor

X = np.random.default_rng(0).normal(size=(3000, 5))
LaplaceRegressor(hidden_layer_sizes=(5,), n_members=1, prior_precision=1.0, random_state=0).fit(X[:40], X[:40, 0])
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[1]),) * 2)
try:
    model = LaplaceRegressor(hidden_layer_sizes=(300, 300), n_members=1, hessian_structure="kron", random_state=0)
    model.fit(X, X[:, 0])
    print("ok")
except MemoryError as error:
    print("refused" if "memory_budget" in str(error) else "unclear")
"""


def disk(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test ``save`` with less space than the file needs."""
    counts: Counts = Counter()
    path = folder / "model"
    save(LaplaceRegressor(**ONE).fit(X, Y), path)
    content = path.read_bytes()
    for _ in range(n):
        word = _run(FULL_DISK, path, rng.integers(len(content)))
        stays = path.read_bytes() == content and os.listdir(folder) == [path.name]
        counts[word if stays else "old file lost"] += 1
    return counts


def memory(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test fits with less address space than they need."""
    return Counter(_run(LITTLE_MEMORY, int(rng.uniform(5e6, 1.5e8))) for _ in range(n))


def _run(script: str, *arguments: Any) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    last = (run.stderr.strip().splitlines() or [f"exit {run.returncode}"])[-1]
    return run.stdout.strip() or last.partition(":")[0]


def tables(n: int, folder: Path, rng: np.random.Generator) -> Counts:
    """Test default fits of random legal tables."""
    return Counter(legal_tables.outcome(seed) for seed in range(n))


PARTS: dict[str, tuple[Callable[[int, Path, np.random.Generator], Counts], int]] = {
    "damage": (damage, 6000),
    "structure": (structure, 5000),
    "interrupts": (interrupts, 280),
    "forks": (forks, 20),
    "threads": (threads, 576),
    "disk": (disk, 20),
    "memory": (memory, 20),
    "tables": (tables, 300),
}
"""Number of tries of each part."""
QUICK = 50
"""Divisor of these numbers for ``--quick``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="one of the parts; several times for several")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="where the table is written")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK}th of the tries")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines: list[list[Any]] = []
    for name in options.part or PARTS:
        part, n = PARTS[name]
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            counts = part(max(1, n // QUICK) if options.quick else n, Path(folder), np.random.default_rng(options.seed))
        tries, refused, fine = counts.total(), counts.pop("refused", 0), counts.pop("ok", 0)
        wrong = ", ".join(f"{word} {number}" for word, number in counts.most_common()) or "none"
        lines.append([name, tries, refused, fine, wrong])
        seconds = time.perf_counter() - start
        print(f"{name:12} {tries:6} tries, refused {refused}, fine {fine}, wrong: {wrong}; {seconds:.0f} s", flush=True)
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["part", "tries", "refused", "fine", "wrong"], *lines])


if __name__ == "__main__":
    main()
