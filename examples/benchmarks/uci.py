"""Out of the box on five UCI tables: accuracy, error bars and the time of a fit, against published numbers.

One default configuration for all tables, ``LaplaceRegressor(random_state=split)``, and beside it the choice of prior
and noise by the evidence alone. Means over the splits: RMSE; log-likelihood a row, nats, of y in its own units, with
its standard error over the splits; of the central 95 % intervals the share of targets inside and the width; effective
parameters γ over the training rows; seconds of a fit on one core.

A second table is the price of the choice, on the training parts alone. *Over the same steps*: the time of a fit over
that of one under its own prior and noise, fixed, times the quotient of their steps ``n_iter_`` (goal: at most 3). In
``n_iter_`` an L-BFGS step is a quarter of a Gauss–Newton step while prior and noise move, and one at the end, of which
a fixed fit has a larger share; the three nets of the default's cross-fitting are in its time and not in its steps: both
make the quotient larger. *Over Adam*: 2,000 full-batch steps of a plain float32 loop over a net of the same layers.

``python examples/benchmarks/uci.py --data DIR --test`` prints markdown tables; the format of DIR is in ``uci_sets.py``.
Without ``--test`` a ninth of each training part takes the place of the test part. ``--price`` prints the second table
alone; ``--splits``, ``--only``; ``--quick`` is one split of two tables.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uci_sets

from sklearn_laplace import LaplaceRegressor

EVIDENCE = {"prior_precision": "evidence", "sigma_noise": "evidence"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {"default": {}, "evidence": EVIDENCE}
PUBLISHED = {
    "yacht": (0.515, -0.682, 0.974),
    "boston": (3.51, -2.529, 0.953),
    "energy": (0.507, -0.727, 0.944),
    "concrete": (4.96, -2.952, 0.921),
    "wine": (0.854, -1.409, 0.821),
}
"""laplace-torch 0.3 on the test parts of splits 0–9: RMSE, log-likelihood, coverage of 95 % intervals. A 1 × 50 tanh
net, weight decay 1e-4, 2,000 full-batch Adam steps; then all weights, full GGN, prior precision and noise by marginal
likelihood. Run once, for this comparison; not by this script."""
PUBLISHED_SPLITS = 10
COLUMNS = "table", "model", "RMSE", "log-likelihood", "± s.e.", "coverage", "width", "γ / rows", "s a fit", "warnings"
TIMED_SPLITS = 3
TIMES = ("steps", "s, default", "s, evidence", "s, fixed", "s, Adam", "default over the same steps")
TIMES += ("evidence over the same steps", "default over Adam", "evidence over Adam")
ADAM_STEPS, HIDDEN = 2000, 50


def measured(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, y_new: np.ndarray, **options: Any) -> list[float]:
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LaplaceRegressor(**options).fit(X, y)
    seconds = time.perf_counter() - start
    mean, interval = model.predict_interval(X_new, 0.95)
    low, high = interval[:, 0, 0], interval[:, 1, 0]
    covered = np.mean((low <= y_new) & (y_new <= high))
    density = model.log_predictive_density(X_new, y_new).mean()
    error = np.sqrt(np.mean((y_new - mean) ** 2))
    share = model.n_effective_parameters_ / len(y)
    return [error, density, covered, np.mean(high - low), share, seconds, float(len(caught))]


def quality(path: Path, splits: int, test: bool) -> Iterator[list[float | str]]:
    """A row a configuration, then what is published and the default's difference to it."""
    first = None
    for name, options in CONFIGURATIONS.items():
        found = np.array([measured(*uci_sets.parts(path, k, test), random_state=k, **options) for k in range(splits)]).T
        density = found[1]
        error = density.std(ddof=1) / np.sqrt(splits) if splits > 1 else np.nan
        rmse, mean, *others, caught = [*found[:-1].mean(1).tolist(), str(int(found[-1].sum()))]
        first = first or (rmse, mean, others[0])
        yield [path.stem, name, rmse, mean, error, *others, caught]
    if test and splits == PUBLISHED_SPLITS:
        assert first is not None
        published = PUBLISHED[path.stem]
        yield [path.stem, *_beside("laplace-torch 0.3", published)]
        yield [path.stem, *_beside("default − laplace-torch", [a - b for a, b in zip(first, published, strict=True)])]


def _beside(name: str, numbers: Any) -> list[float | str]:
    rmse, density, covered = numbers
    return [name, rmse, density, np.nan, covered, *[np.nan] * 3, "–"]


def price(path: Path, splits: int) -> list[float | str]:
    """Medians over the splits of the seconds of each fit and of their quotients; training parts alone."""
    found = []
    for split in range(min(splits, TIMED_SPLITS)):
        X, y, _, _ = uci_sets.parts(path, split, test=True)
        fit = partial(LaplaceRegressor, random_state=split)
        chosen, evidence = timed(fit(**EVIDENCE).fit, X, y)
        values = {"prior_precision": chosen.prior_precision_, "sigma_noise": chosen.sigma_noise_}
        fixed_fit, fixed = timed(fit(**values).fit, X, y)
        _, default = timed(fit().fit, X, y)
        _, adam = timed(plain_training, X, y)
        same = fixed * chosen.n_iter_ / fixed_fit.n_iter_
        quotients = default / same, evidence / same, default / adam, evidence / adam
        found.append([chosen.n_iter_, default, evidence, fixed, adam, *quotients])
    return [path.stem, *np.median(found, axis=0).tolist()]


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = work(*arguments)
    return found, time.perf_counter() - start


def plain_training(X: np.ndarray, y: np.ndarray) -> torch.nn.Module:
    x = torch.from_numpy((X - X.mean(0)) / X.std(0)).float()
    target = torch.from_numpy((y - y.mean()) / y.std()).float()[:, None]
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(ADAM_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), target).backward()
        optimizer.step()
    return net


def main() -> None:
    parser = uci_sets.parser(__doc__, splits=PUBLISHED_SPLITS)
    parser.add_argument("--price", action="store_true", help="the second table alone")
    options = parser.parse_args()
    splits, tables = uci_sets.asked(options)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)  # what a first fit alone takes is in no row
    LaplaceRegressor(random_state=0).fit(rng.normal(size=(60, 3)), rng.normal(size=60))
    if not options.price:
        print(uci_sets.header(f"{splits} splits, {uci_sets.part_judged(options.test)}", COLUMNS), flush=True)
        for name in tables:
            for row in quality(options.data / f"{name}.npz", splits, options.test):
                print(uci_sets.line(row), flush=True)
    title = f"Price: medians over {min(splits, TIMED_SPLITS)} splits"
    print(uci_sets.header(title, ["table", *TIMES]), flush=True)
    for name in tables:
        print(uci_sets.line(price(options.data / f"{name}.npz", splits)), flush=True)


if __name__ == "__main__":
    main()
