r"""Simulation-based calibration: do weights drawn from the prior look like draws from the fitted posterior?

Weights θ are drawn from the prior and targets y from the likelihood. The net is fitted to y under the same prior
precision and noise level, which are fixed. If the posterior is exact, the rank of a quantity of θ among the same
quantity of posterior draws is uniform (Talts et al. 2018). The quantities are weights, the function at a new row, a new
target, and the log-likelihood of the training targets. The log-likelihood depends on the data and detects posteriors of
wrong width (Modrák et al. 2023). The ECDF of the ranks is compared with its simultaneous 95 % band (Säilynoja, Bürkner
& Vehtari 2022).

- *linear*: a linear net, whose posterior is exact. Fifty simulations with the same X are the targets of one fit.
- *net*: a net with one hidden layer of tanh units, whose posterior is not Gaussian. The weights of a net are not
  identified, so the quantities are functions, targets and the log-likelihood. The row *far* is three times as far from
  the origin as *new*. The table also has the mean square of :math:`z = (f - \mu) / s`, the error of the mean divided by
  the standard deviation.

``python examples/benchmarks/simulation_based.py --out OUT`` writes ``simulation_based.csv`` and a figure in 4 minutes
on one core; ``--quick`` uses a tenth of the simulations.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom

from sklearn_laplace import LaplaceRegressor

RANKS = 100
"""Number of possible ranks: one more than the number of posterior draws."""
LINEAR = {"rows": 20, "columns": 5, "precision": 1.0, "noise": 1.0, "group": 50}
NET = {"rows": 40, "columns": 2, "units": 10, "precision": 0.4, "noise": 0.3}
"""The evidence chooses a similar prior precision for tables with a nonlinear function."""
METHODS: dict[str, dict[str, Any]] = {
    "full, glm": {"hessian_structure": "full"},
    "full, glm, 5 members": {"hessian_structure": "full", "n_members": 5},
    "full, mc": {"hessian_structure": "full", "predictive": "mc"},
    "kron, glm": {"hessian_structure": "kron"},
    "kron, mc": {"hessian_structure": "kron", "predictive": "mc"},
}
COMMON: dict[str, Any] = {
    "n_members": 1,
    "n_bins": None,
    "activation": "tanh",
    "likelihood": "gaussian",
    "standardize_y": False,
}


def levels() -> np.ndarray:
    """Probability of a rank below 1, 2, … under uniform ranks."""
    return np.arange(1, RANKS) / RANKS


def ecdf(ranks: np.ndarray) -> np.ndarray:
    """Share of the ranks (n,) below 1, 2, …"""
    return np.bincount(ranks, minlength=RANKS).cumsum()[:-1] / len(ranks)


def ecdf_band(n: int, level: float = 0.95, *, n_simulations: int = 4000, seed: int = 0) -> tuple[np.ndarray, ...]:
    r"""Lower and upper ends of the band that holds the whole ECDF of n uniform ranks with the given probability.

    At each level z, the ends are the quantiles :math:`\gamma / 2` and :math:`1 - \gamma / 2` of the binomial
    distribution with n trials and probability z. Simulated ECDFs give γ (Säilynoja et al. 2022, algorithm 1).
    """
    rng, z = np.random.default_rng(seed), levels()
    counts = rng.multinomial(n, np.full(RANKS, 1 / RANKS), n_simulations).cumsum(1)[:, :-1]
    every = np.arange(n + 1)[:, None]
    tails = np.minimum(binom.cdf(every, n, z), binom.sf(every - 1, n, z))[counts, np.arange(RANKS - 1)]
    gamma = np.quantile(2 * tails.min(1), 1 - level)
    return binom.ppf(gamma / 2, n, z) / n, binom.isf(gamma / 2, n, z) / n


def inside(ranks: np.ndarray) -> bool:
    """True if the whole ECDF is within its simultaneous 95 % band."""
    low, high = ecdf_band(len(ranks))
    return bool(((low <= ecdf(ranks)) & (ecdf(ranks) <= high)).all())


def standardised(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Normal columns of mean 0 and variance 1, which the net's own standardisation leaves unchanged."""
    X = rng.normal(size=(rows, columns))
    return (X - X.mean(0)) / X.std(0)


def log_likelihood(y: np.ndarray, outputs: np.ndarray, noise: float) -> np.ndarray:
    """Log-likelihood up to a constant, summed over the rows (the first axis)."""
    return -0.5 * ((y - outputs) ** 2).sum(0) / noise**2


def linear_ranks(
    n_simulations: int = 500, seed: int = 0, *, widened: float = 1.0, believed_precision: float = LINEAR["precision"]
) -> dict[str, np.ndarray]:
    """Ranks (n_simulations,) of each quantity for linear nets.

    ``widened`` multiplies the deviations of the posterior draws from their mean. ``believed_precision`` is the prior
    precision of the fit. Other values than the defaults are faults that the ranks have to reveal.
    """
    rng, (rows, columns) = np.random.default_rng(seed), (LINEAR["rows"], LINEAR["columns"])
    noise, group = LINEAR["noise"], LINEAR["group"]
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, n_simulations, group):
        X, x_new = standardised(rng, rows, columns), rng.normal(size=(1, columns))
        features = np.column_stack([np.vstack([X, x_new]) / columns**0.5, np.ones(rows + 1)])
        theta = rng.normal(size=(min(group, n_simulations - start), columns + 1)) / LINEAR["precision"] ** 0.5
        functions = features @ theta.T
        targets = functions + noise * rng.normal(size=functions.shape)
        model = LaplaceRegressor(
            hidden_layer_sizes=(),
            prior_precision=believed_precision,
            sigma_noise=noise,
            hessian_structure="full",
            random_state=0,
            **COMMON,
        ).fit(X, targets[:-1])
        generator, mode = torch.Generator().manual_seed(int(rng.integers(2**31))), model.laplace_.theta
        weights = (mode + widened * model.posterior_.sample(RANKS - 1, generator)).numpy()
        weights = weights.reshape(-1, *theta.shape)
        mean = model.predict(np.vstack([X, x_new]))[..., None]
        draws, noisy = (
            mean
            + widened * (model.sample_y(np.vstack([X, x_new]), RANKS - 1, int(rng.integers(2**31)), kind=kind) - mean)
            for kind in ("epistemic", "total")
        )
        likelihoods = log_likelihood(targets[:-1, :, None], draws[:-1], noise)
        parts.append(
            {
                **{f"weight {j}": (weights[..., j] < theta[:, j]).sum(0) for j in range(columns)},
                "bias": (weights[..., -1] < theta[:, -1]).sum(0),
                "function": (draws[-1] < functions[-1][:, None]).sum(1),
                "target": (noisy[-1] < targets[-1][:, None]).sum(1),
                "log-likelihood": (likelihoods < log_likelihood(targets[:-1], functions[:-1], noise)[:, None]).sum(1),
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def net_function(X: np.ndarray, theta: np.ndarray, units: int) -> np.ndarray:
    """Outputs (n,) of a net with one hidden layer, with weights in the package's order."""
    columns = X.shape[1]
    first, last = theta[: units * (columns + 1)].reshape(units, columns + 1), theta[units * (columns + 1) :]
    hidden = np.tanh(X / columns**0.5 @ first[:, :columns].T + first[:, columns])
    return hidden @ last[:units] / units**0.5 + last[units]


def net_simulations(n_simulations: int, seed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Rows, function and targets of each simulation; the last two rows are *new* and *far*, not for training."""
    rng, (rows, columns, units) = np.random.default_rng(seed), (NET[name] for name in ("rows", "columns", "units"))
    for _ in range(n_simulations):
        x_new = rng.normal(size=columns)
        X = np.vstack([standardised(rng, rows, columns), x_new, 3 * x_new])
        theta = rng.normal(size=units * (columns + 2) + 1) / NET["precision"] ** 0.5
        functions = net_function(X, theta, units)
        yield X, functions, functions + NET["noise"] * rng.normal(size=rows + 2)


def net_ranks(n_simulations: int, seed: int = 0) -> dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Ranks of each quantity, and z of the function values, by method and quantity."""
    ranks: dict[str, dict[str, list[int]]] = {method: {} for method in METHODS}
    z: dict[str, dict[str, list[float]]] = {method: {} for method in METHODS}
    for k, (X, functions, targets) in enumerate(net_simulations(n_simulations, seed)):
        for method, options in METHODS.items():
            model = LaplaceRegressor(
                hidden_layer_sizes=(NET["units"],),
                prior_precision=NET["precision"],
                sigma_noise=NET["noise"],
                random_state=k,
                **(COMMON | options),
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the prior and the mode, which are measured here
                model.fit(X[:-2], targets[:-2])
            draws = model.sample_y(X, RANKS - 1, k, kind="epistemic")
            mean, std = model.predict(X[-2:]), model.predict_std(X[-2:], kind="epistemic")
            likelihoods = log_likelihood(targets[:-2, None], draws[:-2], NET["noise"])
            found = {
                "function, new": (draws[-2] < functions[-2]).sum(),
                "function, far": (draws[-1] < functions[-1]).sum(),
                "log-likelihood": (likelihoods < log_likelihood(targets[:-2], functions[:-2], NET["noise"])).sum(),
            }
            for name, rank in found.items():
                ranks[method].setdefault(name, []).append(int(rank))
            for name, value in zip(list(found)[:2], (functions[-2:] - mean) / std, strict=True):
                z[method].setdefault(name, []).append(float(value))
    return {m: tuple({q: np.array(v) for q, v in kind[m].items()} for kind in (ranks, z)) for m in METHODS}


def lines(name: str, method: str, ranks: dict[str, np.ndarray], z: dict[str, np.ndarray]) -> list[list[str]]:
    """Rows of the table: largest deviation of the ECDF, whether it is inside the band, mean square of z."""
    return [
        [
            name,
            method,
            quantity,
            str(len(values)),
            f"{np.abs(ecdf(values) - levels()).max():.3f}",
            "inside" if inside(values) else "outside",
            f"{np.mean(z[quantity] ** 2):.2f}" if quantity in z else "–",
        ]
        for quantity, values in ranks.items()
    ]


def draw(path: Path, panels: dict[str, dict[str, np.ndarray]]) -> None:
    """Draw the ECDF of the ranks minus the uniform one, and the simultaneous band, in a panel for each method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, -(-len(panels) // 2), figsize=(11, 6), sharex=True, sharey="row", squeeze=False)
    for axis, (title, ranks) in zip(axes.flat, panels.items(), strict=False):
        low, high = ecdf_band(len(next(iter(ranks.values()))))
        axis.fill_between(levels(), low - levels(), high - levels(), color="0.85", label="95 % band")
        for quantity, values in ranks.items():
            axis.plot(levels(), ecdf(values) - levels(), lw=1.2, label=quantity)
        axis.set_title(title, fontsize=10)
        axis.axhline(0, color="0.5", lw=0.7)
    for axis in axes[0, :2]:
        axis.set_ylim(-0.13, 0.16)
        axis.legend(fontsize=6, ncols=3, loc="upper left")
    figure.supxlabel("rank of the true value among posterior draws, as a share")
    figure.supylabel("ECDF minus uniform")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the table and the figure")
    parser.add_argument("--quick", action="store_true", help="a tenth of the simulations")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    torch.set_num_threads(1)
    linear = linear_ranks(500 // share)
    panels, rows = {"linear net": linear}, lines("linear", "full, glm", linear, {})
    for method, (ranks, z) in net_ranks(250 // share).items():
        panels[f"net: {method}"] = ranks
        rows += lines("net", method, ranks, z)
    columns = "net", "posterior", "quantity", "simulations", "largest deviation", "95 % band", "mean z²"
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "simulation_based.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    for row in [columns, ["---"] * len(columns), *rows]:
        print("| " + " | ".join(row) + " |")
    draw(options.out / "simulation_based.png", panels)


if __name__ == "__main__":
    main()
