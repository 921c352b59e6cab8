"""True warnings: do the warnings of a fit agree with its intervals on new rows?

The data are 200 generated tables, ten for each of 20 kinds of fits. A fit is *really off* if one of these conditions
holds on 2,000 new rows:

- its 90 % intervals contain less than 80 % of the targets;
- their median width is more than 1.5 times that of the normal distribution of the training targets.

The printed tables have the precision and the recall of each warning, and of any warning. The precision is the share of
fits with the warning that are really off. The recall is the share of really-off fits that have the warning.

``python examples/benchmarks/true_warnings.py`` prints markdown tables in 2 minutes on one core. ``--fits`` also prints
one line for each fit, ``--first`` uses only the first 100 tables, and ``--quick`` uses one table for each kind.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNetRegressor
from torch import nn

from sklearn_laplace import LaplaceRegressor

FRESH = 2000
SHOWN = "InterpolationWarning", "ModeWarning", "WeakPriorWarning"
LOW, WIDE = 0.8, 1.5


@dataclass(frozen=True)
class Table:
    """Training rows, fresh rows, and the noise of a generated table."""

    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray
    noise: float


def table(seed: int) -> Table:
    """Table whose size, function, noise, column scales and copies of rows are drawn from the seed."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.choice([40, 60, 90, 150, 300])), int(rng.choice([2, 4, 8]))
    weights, function = (
        rng.normal(size=(3, d)),
        str(rng.choice(["linear", "waves", "product", "nothing"], p=P_FUNCTION)),
    )
    noise, heavy = float(rng.choice([0.0, 0.1, 0.3, 1.0])), rng.random() < 0.2
    copies = int(rng.choice([1, 4], p=[0.85, 0.15]))
    scale, shift = (
        (10 ** rng.uniform(-3, 3, d), rng.normal(size=d)) if rng.random() < 0.5 else (np.ones(d), np.zeros(d))
    )
    Z = rng.normal(size=(n + FRESH, d))
    first, second, third = (Z @ weights.T / np.sqrt(d)).T
    signal = {
        "linear": first,
        "waves": np.sin(2 * first) + 0.5 * second,
        "product": first * second + third,
        "nothing": 0 * first,
    }[function]
    noise = 1.0 if function == "nothing" else noise * float(signal.std())
    errors = rng.standard_t(2.5, size=n + FRESH) if heavy else rng.normal(size=n + FRESH)
    X, y = (Z + shift) * scale, signal + noise * errors
    rows = np.arange(n) % (n // copies)
    return Table(X[rows], y[rows], X[n:], y[n:], noise)


P_FUNCTION = [0.4, 0.25, 0.25, 0.1]
ONE: dict[str, Any] = {"n_members": 1, "hidden_layer_sizes": (20,)}


def own(width: int = 20, activation: type[nn.Module] = nn.Tanh) -> Callable[[Table], nn.Module]:
    """Function from a table to a user's module with its columns as inputs."""

    def build(data: Table) -> nn.Module:
        return nn.Sequential(nn.Linear(data.X.shape[1], width), activation(), nn.Linear(width, 1))

    return build


def frozen(data: Table) -> FrozenEstimator:
    """Frozen net trained by skorch without regularisation."""
    torch.manual_seed(0)
    net = NeuralNetRegressor(
        own(60)(data), max_epochs=1000, lr=0.02, optimizer=torch.optim.Adam, train_split=None, batch_size=-1, verbose=0
    )
    return FrozenEstimator(net.fit(data.X.astype(np.float32), data.y[:, None].astype(np.float32)))


def known_noise(data: Table) -> float:
    return max(data.noise, 0.01 * float(data.y.std()))


KINDS: dict[str, tuple[dict[str, Any], Callable[[Table], Any] | None]] = {
    "defaults": ({}, None),
    "one member": ({"n_members": 1}, None),
    "two members": ({"n_members": 2}, None),
    "evidence": ({**ONE, "prior_precision": "evidence", "sigma_noise": "evidence"}, None),
    "leave-one-out": ({**ONE, "prior_precision": "loo", "sigma_noise": "loo"}, None),
    "residual": ({**ONE, "sigma_noise": "residual"}, None),
    "evidence and residual": ({**ONE, "prior_precision": "evidence", "sigma_noise": "residual"}, None),
    "prior 1, evidence": ({**ONE, "prior_precision": 1.0, "sigma_noise": "evidence"}, None),
    "prior 1, noise known": ({**ONE, "prior_precision": 1.0, "sigma_noise": known_noise}, None),
    "prior 1e-4": ({**ONE, "prior_precision": 1e-4}, None),
    "prior 1e-4, evidence": ({**ONE, "prior_precision": 1e-4, "sigma_noise": "evidence"}, None),
    "prior 1e-6, noise known": ({**ONE, "prior_precision": 1e-6, "sigma_noise": known_noise}, None),
    "prior 1e4": ({**ONE, "prior_precision": 1e4}, None),
    "training prior 1e-4": ({**ONE, "map_prior_precision": 1e-4}, None),
    "training prior 1, prior 1e-3": ({**ONE, "map_prior_precision": 1.0, "prior_precision": 1e-3}, None),
    "own net": ({"n_members": 1}, own()),
    "own net, as it comes": ({"n_members": 1, "standardize_X": False}, own()),
    "own net, prior 1e-3": ({"n_members": 1, "prior_precision": 1e-3, "sigma_noise": "evidence"}, own()),
    "own relu net, 20 epochs": ({"n_members": 1, "max_epochs": 20}, own(40, nn.ReLU)),
    "frozen net": ({}, frozen),
}


@dataclass(frozen=True)
class Result:
    """Warnings of a fit, and its accuracy on fresh rows."""

    seed: int
    kind: str
    issued: frozenset[str]
    coverage: tuple[float, ...]
    width: float

    @property
    def is_off(self) -> bool:
        return self.coverage[1] < LOW or self.width > WIDE

    @property
    def line(self) -> str:
        coverage = " ".join(f"{share:.2f}" for share in self.coverage)
        off = "off" if self.is_off else ""
        return f"{self.seed}; {self.kind}; {coverage} width {self.width:.2f}; {off}; {' '.join(sorted(self.issued))}"


def fitted(kind: str, seed: int) -> tuple[LaplaceRegressor, Table, frozenset[str]]:
    """Model of a kind fitted to the seed's table, this table, and the names of the model's warnings."""
    data, (options, net) = table(seed), KINDS[kind]
    options = {name: value(data) if callable(value) else value for name, value in options.items()}
    torch.manual_seed(seed)
    model = LaplaceRegressor(None if net is None else net(data), random_state=seed, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(data.X, data.y)
    return model, data, frozenset(warning.category.__name__ for warning in caught) & frozenset(SHOWN)


def measured(kind: str, seed: int) -> Result:
    """Warnings of a fit, and its accuracy on fresh rows."""
    model, data, issued = fitted(kind, seed)
    _, interval = model.predict_interval(data.X_new, confidence_level=[0.5, 0.9, 0.95])
    inside = (interval[:, 0] <= data.y_new[:, None]) & (data.y_new[:, None] <= interval[:, 1])
    width = float(np.median(interval[:, 1, 1] - interval[:, 0, 1])) / (2 * 1.645 * float(data.y.std()))
    return Result(seed, kind, issued, tuple(inside.mean(0).tolist()), width)


def row(name: str, results: list[Result], issued: Callable[[Result], bool]) -> str:
    """Row of a printed table: counts, precision and recall of a warning."""
    with_warning, off = [r for r in results if issued(r)], [r for r in results if r.is_off]
    true = sum(r.is_off for r in with_warning)
    shown = [f"{true / len(some):.2f}" if some else "–" for some in (with_warning, off)]
    return f"| {name} | {len(with_warning)} | {true} | {len(off)} | " + " | ".join(shown) + " |"


def print_table(title: str, results: list[Result]) -> None:
    print("", title, "", "| warning | issued | true | really off | precision | recall |", sep="\n")
    print("|---|---|---|---|---|---|")
    for name in SHOWN:
        print(row(f"`{name}`", results, lambda r, name=name: name in r.issued))
    print(row("any", results, lambda r: bool(r.issued)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--fits", "--first", "--quick"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    offsets = range(1) if options.quick else range(5)
    halves: list[list[Result]] = []
    start = time.perf_counter()
    for half in range(1 if options.quick or options.first else 2):
        halves.append([])
        for place, kind in enumerate(KINDS):
            for k in offsets:
                halves[-1].append(result := measured(kind, 800 * half + 5 * place + k))
                if options.fits:
                    print(result.line, flush=True)
        print_table(("First 100 tables", "Other tables")[half], halves[-1])
    print_table("All tables", [result for half in halves for result in half])
    print(f"\n{sum(map(len, halves))} fits in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
