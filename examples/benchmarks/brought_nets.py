r"""Users' nets: LaplaceRegressor(net) and LaplaceClassifier(net) against skorch alone and laplace-torch 0.3.

``--part cells``, the default, has ten tables, three skorch nets, three seeds and six posteriors. The nets have one
hidden layer of 50 units, two layers of 32 units, or these two layers with BatchNorm and Dropout. A cell compares three
methods on the same rows:

- *ours*: the estimator around the net, with ``prior_precision="auto"``;
- *alone*: the same net trained by skorch with the same seed, epochs and validation rows. For regression, the standard
  deviation is that of the validation residuals. For classification, the probabilities are those of the net;
- *laplace-torch*: laplace-torch at the weights of *ours*, with the prior of largest evidence, for four posteriors.

``--part priors`` prints the fits of one net on Friedman's function for prior precisions from .01 to 100 under each
posterior. ``--part search`` prints the time and the warnings of searches. ``--part time`` prints the time of a fit
relative to skorch.

``python examples/benchmarks/brought_nets.py --data DIR`` prints a table; ``uci_sets.py`` describes DIR. Numeric targets
and columns are standardised. At most 500 rows are scored: a ninth of a training part, or a fifth for classes. At most
1,500 rows are fitted. If laplace-torch is not installed, its column is empty.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uci_sets
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics

NUMBERS = "boston", "concrete", "energy", "yacht", "wine", "power"
CLASSES = "australian", "breast_cancer", "glass", "waveform"
POSTERIORS: dict[str, dict[str, Any]] = {
    **{name: {"hessian_structure": name} for name in ("full", "kron", "ekfac", "diag", "low_rank")},
    "last layer": {"subset_of_weights": "last_layer", "hessian_structure": "full"},
}
PEERS = {
    "full": ("all", "full"),
    "kron": ("all", "kron"),
    "diag": ("all", "diag"),
    "last layer": ("last_layer", "full"),
}
"""Subset and structure of laplace-torch."""
MOST_ROWS, MOST_SCORED = 1500, 500
TRAINING = {"max_epochs": 60, "lr": 0.01, "optimizer": torch.optim.Adam, "verbose": 0}


class Net(nn.Module):
    """Net with one or two hidden layers, the first one optionally with BatchNorm and Dropout."""

    def __init__(self, n_in: int, n_out: int, widths: tuple[int, ...], norm: bool = False) -> None:
        super().__init__()
        sizes = [n_in, *widths]
        parts: list[nn.Module] = []
        for k, (inputs, outputs) in enumerate(pairwise(sizes)):
            parts += [nn.Linear(inputs, outputs)]
            parts += [nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(0.1)] if norm and k == 0 else [nn.Tanh()]
        self.layers = nn.Sequential(*parts, nn.Linear(sizes[-1], n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


NETS: dict[str, dict[str, Any]] = {
    "1 × 50": {"module__widths": (50,)},
    "2 × 32": {"module__widths": (32, 32)},
    "norm, dropout": {"module__widths": (32, 32), "module__norm": True},
}


def net_of(name: str, n_in: int, n_classes: int, **options: Any) -> Any:
    kind = NeuralNetClassifier if n_classes else NeuralNetRegressor
    loss = {"criterion": nn.CrossEntropyLoss} if n_classes else {}
    sizes = {"module__n_in": n_in, "module__n_out": n_classes or 1}
    return kind(Net, **{**TRAINING, **loss, **sizes, **NETS[name], **options})


def torch_seed(random_state: int) -> int:
    """Seed of torch's generator in a fit with this ``random_state``."""
    drawn = np.random.RandomState(random_state).randint(np.iinfo(np.int32).max, size=3)
    return int(drawn[1])


def rows_of(folder: Path, table: str, seed: int) -> tuple[np.ndarray, ...]:
    """Standardised rows to fit and to score: X, y of each; numeric targets are standardised, too."""
    if table in CLASSES:
        with np.load(folder / "uci_classification" / f"{table}.npz") as data:
            X, y = data["X"], np.unique(data["y"].ravel(), return_inverse=True)[1]
        X, _, y, _ = train_test_split(X, y, test_size=0.3, stratify=y, random_state=seed)  # the rest is for tests
        X, X_new, y, y_new = train_test_split(X, y, test_size=0.2, stratify=y, random_state=seed)
    else:
        X, y, X_new, y_new = uci_sets.parts(folder / "uci_regression" / f"{table}.npz", seed, test=False)
    kept = np.random.default_rng(seed).permutation(len(y))[:MOST_ROWS]
    X, y, X_new, y_new = X[kept], y[kept], X_new[:MOST_SCORED], y_new[:MOST_SCORED]
    mean, scale = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
    X, X_new = ((part - mean) / scale for part in (X, X_new))
    if table not in CLASSES:
        y, y_new = ((part - y.mean()) / y.std() for part in (y, y_new))
    return X.astype(np.float32), y, X_new.astype(np.float32), y_new


def cells(folder: Path, tables: list[str], seeds: int) -> None:
    """Print a line for each cell, and the shares of cells that meet the goals."""
    print("table | seed | net | posterior | ours | alone | laplace-torch | RMSE or error: ours | alone")
    found = []
    for table in tables:
        for seed in range(seeds):
            X, y, X_new, y_new = rows_of(folder, table, seed)
            for name in NETS:
                for cell in cells_of_net(name, X, y, X_new, y_new, seed, table in CLASSES):
                    found.append((table in CLASSES, *cell))
                    scores = " | ".join(f"{value:.4f}" for value in cell[1:])
                    print(f"{table} | {seed} | {name} | {cell[0]} | {scores}", flush=True)
    for of_classes in (False, True):
        rows = [cell[1:] for cell in found if cell[0] == of_classes]
        if rows:
            summarise(rows, of_classes)


def summarise(rows: list[tuple[Any, ...]], of_classes: bool) -> None:
    slack, least = (0.005, 0.005) if of_classes else (0.02, 0.02)
    ours, alone, peer, error, error_alone = np.array([row[1:] for row in rows]).T
    with_peer = np.isfinite(peer)
    print("\nclasses" if of_classes else "\nnumbers", f"{len(rows)} cells")
    print(f"log-likelihood at least that of the net alone less {slack}: {np.mean(ours >= alone - least):.3f}")
    print(f"mean difference {np.mean(ours - alone):+.4f}, smallest {np.min(ours - alone):+.4f}")
    if with_peer.any():
        better = ours[with_peer] >= peer[with_peer] - slack
        print(f"the same against laplace-torch: {better.mean():.3f}, mean {np.mean((ours - peer)[with_peer]):+.3f}")
    if of_classes:
        print(f"largest difference of the accuracies, points: {100 * np.abs(error - error_alone).max():.2f}")
    else:
        print(
            f"largest ratio of the RMSEs: {np.max(error / error_alone):.4f}, smallest {np.min(error / error_alone):.4f}"
        )
    for posterior in POSTERIORS:
        chosen = np.array([row[0] == posterior for row in rows])
        print(f"  {posterior}: {np.mean((ours >= alone - least)[chosen]):.3f}, {np.mean((ours - alone)[chosen]):+.4f}")


def cells_of_net(
    name: str, X: np.ndarray, y: np.ndarray, X_new: np.ndarray, y_new: np.ndarray, seed: int, of_classes: bool
) -> list[tuple[Any, ...]]:
    """Posterior, log-likelihoods (ours, alone, laplace-torch), and errors (ours, alone) of one net and seed."""
    n_classes = int(y.max()) + 1 if of_classes else 0
    targets = y if of_classes else y[:, None].astype(np.float32)
    torch.manual_seed(torch_seed(seed))
    alone = net_of(name, X.shape[1], n_classes).fit(X, targets)
    train, valid = (np.array(part.indices) for part in alone.get_split_datasets(X, targets))
    outputs = alone.forward(X_new).double().numpy()
    if of_classes:
        log_p = torch.from_numpy(outputs).log_softmax(1).numpy()
        likelihood, error = float(log_p[np.arange(len(y_new)), y_new].mean()), float(np.mean(log_p.argmax(1) != y_new))
    else:
        sigma = float(np.sqrt(np.mean((alone.forward(X[valid]).numpy()[:, 0] - y[valid]) ** 2)))
        likelihood = float(norm(outputs[:, 0], sigma).logpdf(y_new).mean())
        error = rmse(outputs[:, 0], y_new)
    found = []
    for posterior, options in POSTERIORS.items():
        kind: Any = LaplaceClassifier if of_classes else LaplaceRegressor
        plain = {} if of_classes else {"standardize_y": False}
        model = kind(net_of(name, X.shape[1], n_classes), random_state=seed, **plain, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
        if of_classes:
            p = model.predict_proba(X_new)
            ours = float(np.log(p[np.arange(len(y_new)), y_new]).mean())
            our_error = float(np.mean(p.argmax(1) != y_new))
        else:
            mean, std = model.predict(X_new, return_std=True)
            ours, our_error = float(norm(mean, std).logpdf(y_new).mean()), rmse(mean, y_new)
        peer = math.nan
        if posterior in PEERS:
            peer = of_peer(model.net_.module_, X[train], targets[train], X_new, y_new, *PEERS[posterior], of_classes)
        found.append((posterior, ours, likelihood, peer, our_error, error))
    return found


def rmse(mean: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def of_peer(
    module: nn.Module,
    X: np.ndarray,
    y: np.ndarray,
    X_new: np.ndarray,
    y_new: np.ndarray,
    subset: str,
    structure: str,
    of_classes: bool,
) -> float:
    """Log-likelihood of laplace-torch with prior precision (and noise) of largest evidence; NaN if it fails."""
    try:
        peer = importlib.import_module("laplace")
        from laplace.curvature import BackPackGGN
    except ImportError:
        return math.nan
    plain = Net.__new__(Net)
    nn.Module.__init__(plain)
    plain.layers = plainly(module)
    module = plain.layers.double().eval()
    x, targets = torch.from_numpy(X).double(), torch.from_numpy(y)
    targets = targets if of_classes else targets.double()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, targets), batch_size=len(x))
    task = "classification" if of_classes else "regression"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = peer.Laplace(module, task, subset, structure, backend=BackPackGGN)
            model.fit(loader)
            if of_classes:
                model.optimize_prior_precision(method="marglik", pred_type="glm")
            else:
                maximise_evidence_of_peer(model)
            new = torch.from_numpy(X_new).double()
            if of_classes:
                p = model(new, pred_type="glm", link_approx="probit").numpy()
                return float(np.log(p[np.arange(len(y_new)), y_new]).mean())
            mean, variance = model(new)
            std = (variance[:, 0, 0] + model.sigma_noise.square()).sqrt().detach().numpy()
            return float(norm(mean[:, 0].detach().numpy(), std).logpdf(y_new).mean())
        except Exception as error:
            print(f"laplace-torch {structure}: {type(error).__name__}: {error}"[:100])
            return math.nan


def plainly(module: nn.Module) -> nn.Sequential:
    """Layers of a trained net as plain torch modules, for laplace-torch; a standardising first layer is folded in."""
    parts: list[nn.Module] = []
    for layer in module.layers:  # type: ignore[union-attr]
        if isinstance(layer, nn.Linear):
            plain = nn.Linear(layer.in_features, layer.out_features).to(layer.weight)
            weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
            if hasattr(layer, "standardise"):
                scaled = weight / layer.standardise.scale.to(weight)
                weight, bias = scaled, bias - scaled @ layer.standardise.mean.to(weight)
            plain.load_state_dict({"weight": weight, "bias": bias})
            parts.append(plain)
        else:
            parts.append(layer)
    return nn.Sequential(*parts)


def maximise_evidence_of_peer(model: Any, steps: int = 100) -> None:
    log_prior, log_sigma = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([log_prior, log_sigma], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -model.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())
        loss.backward()
        optimizer.step()
    model.prior_precision, model.sigma_noise = log_prior.exp().detach(), log_sigma.exp().detach()


def priors() -> None:
    """Print fits of one net on Friedman's function under given priors."""
    X, y = make_friedman1(700, n_features=8, noise=1.0, random_state=0)
    X, y, X_new, y_new = X[:500], y[:500], X[500:], y[500:]
    print(
        "posterior | prior | sigma_noise_ | median std | RMSE | log-likelihood | σ over held-out residuals | warnings"
    )
    for posterior, options in POSTERIORS.items():
        for prior in (0.01, 0.1, 1.0, 10.0, 100.0, "auto"):
            model = LaplaceRegressor(net_of("2 × 32", 8, 0), prior_precision=prior, random_state=0, **options)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.fit(X, y)
            mean, std = model.predict(X_new, return_std=True)
            ratio = model.sigma_noise_ / rmse(mean, y_new)
            row = model.sigma_noise_, np.median(std), rmse(mean, y_new), norm(mean, std).logpdf(y_new).mean(), ratio
            names = sorted({type(warning.message).__name__ for warning in caught})
            print(
                f"{posterior} | {prior} |", " | ".join(f"{value:.3f}" for value in row), "|", ", ".join(names) or "none"
            )


def search() -> None:
    """Print the time of searches on diabetes relative to their training runs in skorch, and their warnings."""
    X, y = load_diabetes(return_X_y=True)
    for epochs in (60, 100):
        for label, n_trainings, prior in (("each prior", 25, "same"), ("trainings once", 5, 1.0)):
            found = [search_once(X, y, epochs, n_trainings, prior, seed) for seed in range(3)]
            ratio, texts = np.median([ratio for ratio, _ in found]), found[-1][1]
            print(
                f"{epochs} epochs, {label}: {ratio:.2f} times {n_trainings} trainings by skorch; {len(texts)} warnings"
            )
            print(*[f"  {text[:150]}" for text in texts], sep="\n")


def search_once(
    X: np.ndarray, y: np.ndarray, epochs: int, n_trainings: int, prior: Any, seed: int
) -> tuple[float, list[str]]:
    """Time of a search relative to training runs in skorch, and the texts of its warnings."""
    grid = {
        "laplaceregressor__prior_precision": [0.1, 1.0, 10.0, 100.0, 1000.0],
        "laplaceregressor__hessian_structure": ["full", "kron", "diag"],
    }
    net = net_of("1 × 50", X.shape[1], 0, max_epochs=epochs)
    model = make_pipeline(StandardScaler(), LaplaceRegressor(net, map_prior_precision=prior, random_state=seed))
    searched = GridSearchCV(model, grid, cv=5, scoring=metrics.neg_nlpd, refit=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seconds = timed(lambda: searched.fit(X, y))
    n = len(X) * 4 // 5
    rows = StandardScaler().fit_transform(X)[:n].astype(np.float32)
    targets = ((y - y.mean()) / y.std())[:n, None].astype(np.float32)
    alone = sum(timed(lambda: clone(net).fit(rows, targets)) for _ in range(n_trainings))
    return seconds / alone, [str(warning.message) for warning in caught]


def fit_time() -> None:
    """Print the median ratio of the times of a fit and of skorch, measured in turn."""
    for n, repeats in ((442, 9), (5000, 5), (20000, 3)):
        X, y = make_friedman1(n, n_features=8, noise=1.0, random_state=0)
        X = X.astype(np.float32)
        for label, options in (("kron", {"hessian_structure": "kron"}), ("last layer", POSTERIORS["last layer"])):
            for split in ("skorch's default", None):
                extra = {} if split else {"train_split": None}
                pairs = [pair_of_times(X, y, options, extra) for _ in range(repeats)]
                ours, alone = np.median(pairs, axis=0)
                ratio, excess = np.median([a / b for a, b in pairs]), np.median([a - 1.3 * b for a, b in pairs])
                met = "met" if excess <= 0.1 else "missed"
                times = f"{ratio:.2f} ({ours:.2f} s over {alone:.2f} s)"
                print(f"{n} rows, {label}, train_split {split}: {times}, {met}", flush=True)


def pair_of_times(X: np.ndarray, y: np.ndarray, options: dict[str, Any], extra: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a fit, and of the training by skorch alone."""
    targets = ((y - y.mean()) / y.std()).astype(np.float32)[:, None]
    alone = timed(lambda: net_of("2 × 32", 8, 0, **extra).fit(X, targets))
    model = LaplaceRegressor(net_of("2 × 32", 8, 0, **extra), random_state=0, **options)
    return timed(lambda: model.fit(X, y)), alone


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with uci_regression and uci_classification")
    parser.add_argument("--part", choices=("cells", "priors", "search", "time"), default="cells")
    parser.add_argument("--only", default=",".join((*NUMBERS, *CLASSES)), help="tables, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed of two tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.only, arguments.seeds = "yacht,glass", 1
    if arguments.part == "cells":
        cells(arguments.data, arguments.only.split(","), arguments.seeds)
    else:
        {"priors": priors, "search": search, "time": fit_time}[arguments.part]()


if __name__ == "__main__":
    main()
