"""Time of a default fit, compared with fits under a given prior and noise, and with plain training of as many nets.

The table has seconds of a fit on one core (medians over the splits), on the training parts of the UCI tables only.
*Default* is ``LaplaceRegressor(random_state=split)``, a mixture of k nets. *One net* is the same with ``n_members=1``.
*Evidence* chooses prior and noise by the evidence alone, without held-out rows. *Fixed* is given the values of
*evidence*. *Adam* is k tanh nets with 50 hidden units and the members' inputs, each trained by 2,000 full-batch steps
in a plain float32 loop, without error bars.

*Over Adam* is the time of the default over that of the k Adam nets (goal: below 3). For one net, it is the time over
that of one Adam net.

``python examples/benchmarks/price.py --data DIR`` prints a markdown table; ``uci_sets.py`` describes DIR. Further
options are ``--splits`` and ``--only``. ``--quick`` runs one split of two tables.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uci_sets

from sklearn_laplace import LaplaceRegressor

EVIDENCE = {"prior_precision": "evidence", "sigma_noise": "evidence"}
SPLITS = 3
TIMES = "k", "s, default", "s, one net", "s, evidence", "s, fixed", "s, Adam", "default over Adam", "one net over Adam"
ADAM_STEPS, HIDDEN = 2000, 50


def price(path: Path, splits: int) -> list[float | str]:
    """Row of the table: medians, over the splits, of the seconds of each fit and of the ratios."""
    found = []
    for split in range(splits):
        X, y, _, _ = uci_sets.parts(path, split, test=True)
        fit = partial(LaplaceRegressor, random_state=split)
        chosen, evidence = timed(fit(**EVIDENCE).fit, X, y)
        values = {"prior_precision": chosen.prior_precision_, "sigma_noise": chosen.sigma_noise_}
        _, fixed = timed(fit(**values).fit, X, y)
        _, one = timed(fit(n_members=1).fit, X, y)
        mixture, default = timed(fit().fit, X, y)
        k = len(mixture.members_)
        adam = [timed(plain_training, inputs_of(member, X), y)[1] for member in mixture.members_]
        found.append([k, default, one, evidence, fixed, sum(adam), default / sum(adam), one / adam[0]])
    return [path.stem, *np.median(found, axis=0).tolist()]


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = work(*arguments)
    return found, time.perf_counter() - start


def inputs_of(member: LaplaceRegressor, X: np.ndarray) -> np.ndarray:
    """Inputs of a member's first layer: the columns, or their piecewise linear encoding."""
    if member.n_bins is None:
        return X
    found: np.ndarray = member.net_.module_.standardise(torch.from_numpy(X)).numpy()
    return found


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
    options = uci_sets.parser(__doc__, splits=SPLITS).parse_args()
    splits, tables = uci_sets.asked(options)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)  # warm-up: one-time costs are in no row
    LaplaceRegressor(random_state=0).fit(rng.normal(size=(60, 3)), rng.normal(size=60))
    print(uci_sets.header(f"Medians over {splits} splits", ["table", *TIMES]), flush=True)
    for name in tables:
        print(uci_sets.line(price(options.data / f"{name}.npz", splits)), flush=True)


if __name__ == "__main__":
    main()
