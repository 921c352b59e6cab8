r"""Exact references: predictions of Laplace approximations against those of the exact posterior, on small data sets.

The model is the built-in net with one hidden layer of tanh units. A fit of one member selects its prior precision δ and
noise level σ by the evidence; both are then fixed. NUTS (Hoffman & Gelman 2014) draws from the posterior

.. math:: -\log p(\theta \mid y) = \tfrac1{2\varphi} \sum_n (t_n - f_\theta(z_n))^2 + \tfrac{\delta}{2}
    \lVert\theta\rVert^2 + \text{const}, \qquad f_\theta(z) = c + \tfrac1{\sqrt H} v^\top \tanh(W z / \sqrt d + b),

with standardised columns z, standardised targets t and φ = σ² in the units of t. At the mode and at draws from the
prior, value and gradient of this density have to agree with the package; otherwise the script ends. Four chains start
from prior draws, which are far apart, so that separate modes would be visible.

The reference has to meet the standard of posteriordb: rank-normalised split R-hat below 1.01, bulk and tail ESS above
1,000, no divergence. The weights are identified only up to permutations and signs of the units. The diagnostics are
therefore computed for the function at the scored rows, and for the log density. The table energy, with σ set to a fifth
of the standard deviation of y, does not meet the standard. It is used only with ``--only energy``.

The scored rows are held out of the fit; the test parts are not used. On the sine, the scored rows are a grid, whose
middle is a gap without training rows. The scores of a row are:

- *ratio*: epistemic standard deviation over that of the reference; *total* includes the noise in both;
- *error*: distance of the means, in epistemic standard deviations of the reference;
- *W₁*: Wasserstein distance of the distributions of the function, in the same unit. The package's distribution is
  normal or, for an ensemble, a mixture of normals.

*bend* is the change of the net over that of the linearised net (median over the rows). The weights move from −1 to 1
posterior standard deviation along the direction that changes the function at a row most. The table also has the rank
correlation of *bend* with the ratio of *full*.

``python examples/benchmarks/exact_posteriors.py --data DIR --out OUT`` needs numpyro and arviz, and 7 minutes on one
core. The references are cached in OUT, so that later runs need neither package. ``uci_sets.py`` describes DIR; without
DIR, three data sets remain. Further options: ``--only``; ``--quick`` has short chains for two data sets.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uci_sets
from scipy.special import ndtr
from scipy.stats import spearmanr
from sklearn.datasets import load_diabetes, make_friedman1

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.laplace import fit_laplace
from sklearn_laplace.options import MonteCarlo

UNITS, ROWS, JUDGED, MEMBERS = 10, 150, 40, 8
CHAINS, WARMUP, DRAWS, KEPT = 4, 1000, 2000, 4000
R_HAT, ESS = 1.01, 1000
NARROW, WIDE = 0.8, 1.25
AGREES = 1e-8
"""Maximum relative difference of value and gradient of the log density from those of the package."""
FIXED_NOISE = {"energy": 0.2}
"""Noise levels that are not chosen by the evidence, in standard deviations of y."""
EXTRA = ("energy",)
"""Tables whose reference does not meet the standard."""
CAREFUL = {"sine": 0.95, "friedman": 0.95}
"""Target acceptance of NUTS for tables that have a divergence at .9."""
COMMON: dict[str, Any] = {
    "hidden_layer_sizes": (UNITS,),
    "activation": "tanh",
    "n_bins": None,
    "likelihood": "gaussian",
    "random_state": 0,
}
POSTERIORS: dict[str, dict[str, Any]] = {
    "full": {"hessian_structure": "full"},
    "block diagonal": {"hessian_structure": "block_diagonal"},
    "kron": {"hessian_structure": "kron"},
    "ekfac": {"hessian_structure": "ekfac"},
    "diag": {"hessian_structure": "diag"},
    "last layer": {"hessian_structure": "full", "subset_of_weights": "last_layer"},
}
PREDICTIVES = {"glm": "glm", "mc": MonteCarlo(n_samples=1000)}


@dataclass(frozen=True)
class Table:
    """Training rows, scored rows, and groups of scored rows that are reported separately."""

    X: np.ndarray
    y: np.ndarray
    judged: np.ndarray
    groups: dict[str, np.ndarray] = field(default_factory=dict)


def sine() -> Table:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.uniform(-3, -1, 30), rng.uniform(1, 3, 30)])[:, None]
    grid = np.linspace(-3, 3, 61)[:, None]
    inside = np.abs(grid[:, 0]) < 1
    return Table(
        X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=60), grid, {"sine": ~inside, "sine, in its gap": inside}
    )


def split(X: np.ndarray, y: np.ndarray, X_new: np.ndarray | None = None) -> Table:
    """Table of random training rows, and of scored rows from ``X_new`` or else from the other rows."""
    order = np.random.default_rng(0).permutation(len(y))
    rest = X[order[ROWS:]] if X_new is None else X_new
    return Table(X[order[:ROWS]], y[order[:ROWS]], rest[:JUDGED])


def uci(folder: Path, name: str) -> Table:
    X, y, X_new, _ = uci_sets.parts(folder / f"{name}.npz", 0, test=False)
    return split(X, y, X_new)


def tables(folder: Path | None) -> dict[str, Callable[[], Table]]:
    generated: dict[str, Callable[[], Table]] = {
        "sine": sine,
        "diabetes": lambda: split(*load_diabetes(return_X_y=True)),
        "friedman": lambda: split(*make_friedman1(ROWS + JUDGED, 5, noise=1.0, random_state=0)),
    }
    names = ("concrete", "boston", *EXTRA) if folder else ()
    return generated | {name: lambda name=name: uci(folder, name) for name in names}


def outputs(theta: Any, rows: Any, units: int, tanh: Callable[[Any], Any]) -> Any:
    """Outputs (n,) of the net for standardised rows (n, d), as arrays of NumPy, torch or JAX."""
    d = rows.shape[1]
    first, last = theta[: units * (d + 1)].reshape(units, d + 1), theta[units * (d + 1) :]
    hidden = tanh(rows @ first[:, :d].T / d**0.5 + first[:, d])
    return hidden @ last[:units] / units**0.5 + last[units]


@dataclass(frozen=True)
class Problem:
    """Standardised training and scored rows, targets, prior precision, and noise variance in standardised units."""

    rows: np.ndarray
    targets: np.ndarray
    judged: np.ndarray
    precision: float
    dispersion: float
    scale: tuple[float, float]
    """Mean and standard deviation of y."""

    @property
    def n_weights(self) -> int:
        return UNITS * (self.rows.shape[1] + 2) + 1

    def potential(self, theta: Any, rows: Any, targets: Any, tanh: Callable[[Any], Any]) -> Any:
        """Negative log posterior density, up to a constant."""
        residuals = targets - outputs(theta, rows, UNITS, tanh)
        return 0.5 * (residuals @ residuals) / self.dispersion + 0.5 * self.precision * (theta @ theta)

    def in_units(self, functions: np.ndarray) -> np.ndarray:
        return self.scale[0] + self.scale[1] * functions


def problem(table: Table, model: LaplaceRegressor) -> Problem:
    """The :class:`Problem` of a fitted model."""
    encode, scale = model.laplace_.network.module[0], model._scale
    rows, judged = (encode(torch.tensor(X)).numpy() for X in (table.X, table.judged))
    mean, std = float(scale.mean[0]), float(scale.scale[0])
    return Problem(rows, (table.y - mean) / std, judged, model.prior_precision_, model.hyper_.dispersion, (mean, std))


def disagreement(given: Problem, model: LaplaceRegressor, table: Table, seed: int = 0) -> float:
    """Largest relative difference of value and gradient from the package's, at the mode and draws from the prior."""
    fit, rng = model.laplace_, np.random.default_rng(seed)
    batch = torch.tensor(table.X), torch.tensor(given.targets)[:, None], torch.ones(len(table.X), dtype=torch.float64)
    draws = rng.normal(size=(4, given.n_weights)) / given.precision**0.5
    worst = 0.0
    for point in (fit.theta, *map(torch.tensor, draws)):
        network = fit.network.with_parameters(point)
        there = fit_laplace(network, fit.likelihood, fit.rule, type(fit.curvature), fit.prior, [batch])
        theta = point.clone().requires_grad_(True)
        value = given.potential(theta, torch.tensor(given.rows), torch.tensor(given.targets), torch.tanh)
        [gradient] = torch.autograd.grad(value, theta)
        expected, slope = there.objective(model.hyper_), there.objective_gradient(model.hyper_)
        unit = slope.norm() + given.precision * point.norm()  # at the mode, the gradient itself is zero
        worst = max(worst, abs(float(value.detach()) / expected - 1), float((gradient - slope).norm() / unit))
    return worst


@dataclass(frozen=True)
class Reference:
    """Draws (s, n) of the function at the scored rows, in units of y, and the diagnostics of the chains."""

    draws: np.ndarray
    diagnostics: dict[str, float]

    @property
    def meets_standard(self) -> bool:
        found = self.diagnostics
        ess = min(found[name] for name in ("bulk ESS", "tail ESS", "bulk ESS of the density"))
        r_hat = max(found["R-hat"], found["R-hat of the density"])
        return r_hat < R_HAT and ess > ESS and found["divergences"] == 0


def sampled(given: Problem, acceptance: float, n_draws: int, seed: int = 0) -> Reference:
    """Draws from the posterior by NUTS, in float64 on one thread."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    try:  # imported here, so that --help and cached references need no package
        import arviz
        import jax
        from jax import numpy as jnp
        from numpyro.infer import MCMC, NUTS
    except ImportError as error:
        raise ImportError("References that are not cached need numpyro and arviz: pip install numpyro arviz") from error
    jax.config.update("jax_enable_x64", True)
    rows, targets, judged = (jnp.array(values) for values in (given.rows, given.targets, given.judged))
    start = np.random.default_rng(seed).normal(size=(CHAINS, given.n_weights)) / given.precision**0.5
    begun = time.process_time()
    kernel = NUTS(
        potential_fn=lambda theta: given.potential(theta, rows, targets, jnp.tanh), target_accept_prob=acceptance
    )
    chains = MCMC(
        kernel,
        num_warmup=min(WARMUP, n_draws),
        num_samples=n_draws,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    fields = "diverging", "potential_energy", "num_steps"
    chains.run(jax.random.PRNGKey(seed), init_params=jnp.array(start), extra_fields=fields)
    extra = {name: np.asarray(values) for name, values in chains.get_extra_fields(group_by_chain=True).items()}
    at_rows = jax.vmap(jax.vmap(lambda theta: outputs(theta, judged, UNITS, jnp.tanh)))
    functions = np.asarray(at_rows(chains.get_samples(group_by_chain=True)))
    data = arviz.convert_to_dataset({"function": functions, "density": -extra["potential_energy"]})
    r_hat, bulk, tail = arviz.rhat(data), arviz.ess(data, method="bulk"), arviz.ess(data, method="tail")
    diagnostics = {
        "R-hat": float(r_hat["function"].max()),
        "bulk ESS": float(bulk["function"].min()),
        "tail ESS": float(tail["function"].min()),
        "R-hat of the density": float(r_hat["density"]),
        "bulk ESS of the density": float(bulk["density"]),
        "divergences": int(extra["diverging"].sum()),
        "steps per draw": float(extra["num_steps"].mean()),
        "acceptance": acceptance,
        "seconds": time.process_time() - begun,
    }
    draws = functions.reshape(-1, functions.shape[-1])
    return Reference(given.in_units(draws[:: max(len(draws) // KEPT, 1)]), diagnostics)


def reference(name: str, given: Problem, out: Path, n_draws: int) -> Reference:
    """Cached draws if they belong to the same problem, otherwise new ones."""
    path = out / f"exact_{name}.npz"
    key = np.concatenate([given.rows.ravel(), given.targets, given.judged.ravel(), [given.precision, given.dispersion]])
    if path.exists():
        with np.load(path) as file:
            if file["key"].shape == key.shape and np.allclose(file["key"], key, rtol=1e-9) and file["n"] == n_draws:
                return Reference(file["draws"], json.loads(str(file["diagnostics"])))
    found = sampled(given, CAREFUL.get(name, 0.9), n_draws)
    summary = {"mean": found.draws.mean(0), "std": found.draws.std(0)}
    summary["quantiles"] = np.quantile(found.draws, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    np.savez(path, key=key, draws=found.draws, n=n_draws, diagnostics=json.dumps(found.diagnostics), **summary)
    return found


def wasserstein(draws: np.ndarray, means: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """W₁ (n,) between draws (s, n) and the mixture of normals (k, n), as the integral of the difference of the CDFs."""
    low = np.minimum(draws.min(0), (means - 6 * stds).min(0))
    high = np.maximum(draws.max(0), (means + 6 * stds).max(0))
    distances = []
    for n, grid in enumerate(np.linspace(low, high, 2001).T):
        exact = np.searchsorted(np.sort(draws[:, n]), grid) / len(draws)
        normal = ndtr((grid - means[:, n, None]) / stds[:, n, None]).mean(0)
        distances.append(np.abs(exact - normal).mean() * (grid[-1] - grid[0]))
    return np.array(distances)


def scores(model: LaplaceRegressor, X: np.ndarray, exact: Reference) -> dict[str, np.ndarray]:
    """Scores (n,) of the scored rows, by name. All members have the same weight."""
    members = model.members_
    means = np.stack([member.predict(X) for member in members])
    stds = np.stack([member.predict_std(X, kind="epistemic") for member in members])
    std = np.sqrt((stds**2 + (means - means.mean(0)) ** 2).mean(0))
    centre, unit = exact.draws.mean(0), exact.draws.std(0)
    noise = model.sigma_noise_
    return {
        "ratio": std / unit,
        "total": np.hypot(std, noise) / np.hypot(unit, noise),
        "error": np.abs(means.mean(0) - centre) / unit,
        "W1": wasserstein(exact.draws, means, stds) / unit,
    }


def fitted(table: Table, precision: float, noise: float, n_members: int = 1, **options: Any) -> LaplaceRegressor:
    """Fitted model with the given prior and noise; the warnings are of no interest."""
    model = LaplaceRegressor(prior_precision=precision, sigma_noise=noise, n_members=n_members, **COMMON, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(table.X, table.y)


def chosen(name: str, table: Table) -> tuple[float, float]:
    """Prior precision and noise level by the evidence, or the fixed noise level."""
    noise = FIXED_NOISE[name] * table.y.std() if name in FIXED_NOISE else "evidence"
    model = fitted(table, "evidence", noise, hessian_structure="full")  # type: ignore[arg-type]
    return float(model.prior_precision_), float(model.sigma_noise_)


def judged(table: Table, precision: float, noise: float, exact: Reference) -> dict[tuple[str, str, int], dict]:
    """Scores of every posterior, predictive and number of members."""
    found = {}
    for posterior, options in POSTERIORS.items():
        for n_members in (1, MEMBERS):
            model = fitted(table, precision, noise, n_members, **options)
            for predictive, value in PREDICTIVES.items():
                model.set_params(predictive=value)
                found[posterior, predictive, n_members] = scores(model, table.judged, exact)
    return found


def written(path: Path, columns: list[str], rows: list[list[str]]) -> None:
    """Write a CSV file, and print a markdown table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    print(
        "", *("| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)), sep="\n", flush=True
    )


def spread(values: np.ndarray) -> str:
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def report(results: dict[str, dict], out: Path) -> None:
    """Write the table of ratios, and that of errors and distances, with a column for each group of scored rows."""
    methods = list(next(iter(results.values())))
    head = ["posterior", "predictive", "members", *results]

    def rows(cell: Callable[[dict[str, np.ndarray]], str]) -> list[list[str]]:
        return [[m[0], m[1], str(m[2]), *(cell(found[m]) for found in results.values())] for m in methods]

    written(out / "exact_posteriors.csv", head, rows(lambda score: spread(score["ratio"])))
    medians = "error", "W1", "total"
    cells = rows(lambda score: " / ".join(f"{np.median(score[name]):.2f}" for name in medians))
    written(out / "exact_posteriors_errors.csv", head, cells)


def diagnosed(name: str, table: Table, given: Problem, noise: float, exact: Reference, bend: str) -> list[str]:
    found = exact.diagnostics
    numbers = [f"{given.precision:.3g}", f"{noise / table.y.std():.3f}"]
    numbers += [f"{found[key]:.4f}" for key in ("R-hat", "R-hat of the density")]
    numbers += [f"{found[key]:,.0f}" for key in ("bulk ESS", "tail ESS", "bulk ESS of the density")]
    numbers += [f"{found['divergences']:.0f}", f"{found['steps per draw']:.0f}", f"{found['acceptance']:.2f}"]
    sizes = [str(len(table.y)), str(table.X.shape[1]), str(given.n_weights)]
    return [name, *sizes, *numbers, bend, f"{found['seconds']:.0f}", "yes" if exact.meets_standard else "no"]


DIAGNOSED = [
    *("table", "rows", "columns", "weights", "δ", "σ / std(y)", "R-hat", "R-hat, density", "bulk ESS", "tail ESS"),
    *("ESS, density", "divergences", "steps a draw", "acceptance", "bend", "seconds", "meets the standard"),
]


def steepest(given: Problem, model: LaplaceRegressor, X: np.ndarray, row: int, steps: np.ndarray) -> np.ndarray:
    """Linearised net, net, and rise of the potential, (3, steps), along the direction that changes a row's output most.

    One step is a posterior standard deviation.
    """
    output, jacobian = model.laplace_.network.jacobian(torch.tensor(X[row : row + 1]))
    slope = jacobian.rows().flatten()
    move = model.posterior_.solve(slope)
    std = float(slope @ move) ** 0.5
    thetas = model.laplace_.theta.numpy() + steps[:, None] * (move / std).numpy()
    net = [outputs(theta, given.judged[row : row + 1], UNITS, np.tanh)[0] for theta in thetas]
    potential = np.array([given.potential(theta, given.rows, given.targets, np.tanh) for theta in thetas])
    rise = potential - given.potential(model.laplace_.theta.numpy(), given.rows, given.targets, np.tanh)
    return np.stack([given.in_units(float(output) + steps * std), given.in_units(np.array(net)), rise])


def bends(given: Problem, model: LaplaceRegressor, X: np.ndarray) -> np.ndarray:
    """Change (n,) of the net over that of the linearised net, from −1 to 1 std along each row's steepest direction."""
    ends = np.array([-1.0, 1.0])
    changes = [np.diff(steepest(given, model, X, row, ends)[:2], axis=1)[:, 0] for row in range(len(X))]
    linear, net = np.transpose(changes)
    return net / linear


def draw_bands(axis: Any, table: Table, models: dict[str, LaplaceRegressor], exact: Reference) -> None:
    grid = table.judged[:, 0]
    low, high = np.quantile(exact.draws, [ndtr(-2), ndtr(2)], axis=0)
    axis.fill_between(grid, low, high, color="0.8", label="NUTS, 95.4 %")
    axis.plot(grid, exact.draws.mean(0), color="0.4", lw=1)
    for name, colour in {"full": "tab:blue", "kron": "tab:red"}.items():
        mean, std = models[name].predict(table.judged), models[name].predict_std(table.judged, kind="epistemic")
        for sign in (-2, 2):
            axis.plot(grid, mean + sign * std, color=colour, lw=1.2, label=f"{name}, ± 2 std" if sign > 0 else None)
    axis.plot(table.X[:, 0], table.y, ".", color="0.2", ms=4)
    axis.set(title="Sine with a gap: function", xlabel="x", ylabel="y")


def draw_parts(axis: Any, table: Table, models: dict[str, LaplaceRegressor], exact: Reference) -> None:
    grid, stds = table.judged[:, 0], {}
    for name, style in {"hidden layer": "--", "output layer": ":"}.items():
        stds[name] = models[name].predict_std(table.judged, kind="epistemic")
        axis.plot(grid, stds[name], style, color="tab:orange", label=f"{name} alone")
    axis.plot(
        grid, np.hypot(*stds.values()), color="tab:orange", label="root of the sum of both squares: block diagonal"
    )
    full = models["full"].predict_std(table.judged, kind="epistemic")
    axis.plot(grid, full, color="tab:blue", label="both layers jointly: full")
    axis.plot(grid, exact.draws.std(0), color="0.4", lw=3, alpha=0.6, label="NUTS")
    axis.set(title="Sine with a gap: epistemic std", xlabel="x", yscale="log", ylim=(0.04, 2.5))


def draw_direction(axis: Any, table: Table, model: LaplaceRegressor, exact: Reference) -> None:
    row, steps = len(table.judged) // 2, np.linspace(-2.5, 2.5, 101)
    linear, net, rise = steepest(problem(table, model), model, table.judged, row, steps)
    low, high = np.quantile(exact.draws[:, row], [ndtr(-2), ndtr(2)])
    axis.axhspan(low, high, color="0.85", label="NUTS, 95.4 %")
    axis.plot(steps, linear, color="tab:blue", label="linearised net (glm)")
    axis.plot(steps, net, color="tab:purple", label="net (mc)")
    axis.set(
        title="Function in the middle of the gap",
        xlabel="steepest direction of weights, posterior std",
        ylabel="y",
        ylim=(-4, 6),
    )
    other = axis.twinx()
    other.plot(steps, np.maximum(rise, 0.1), "--", color="tab:green", label="fall of the log posterior (right)")
    other.plot(
        steps, np.maximum(steps**2 / 2, 0.1), ":", color="tab:green", label="by the Laplace approximation (right)"
    )
    other.set(yscale="log", ylim=(0.1, 1e6), ylabel="nats")
    other.legend(fontsize=7, loc="upper right")


def draw_ratios(axis: Any, results: dict[str, dict]) -> None:
    colours = {"full": "tab:blue", "block diagonal": "tab:orange", "kron": "tab:red", "ekfac": "tab:green"}
    for place, found in enumerate(results.values()):
        for k, (name, colour) in enumerate(colours.items()):
            low, middle, high = np.quantile(found[name, "glm", 1]["ratio"], [0.1, 0.5, 0.9])
            x = place + 0.15 * (k - 1.5)
            axis.plot([x, x], [low, high], color=colour, lw=1.5)
            axis.plot(x, middle, "o", color=colour, ms=5, label=name if place == 0 else None)
    axis.axhspan(NARROW, WIDE, color="0.9", zorder=0)
    axis.axhline(1, color="0.5", lw=0.7)
    axis.set_xticks(range(len(results)), [name.replace(", ", ",\n") for name in results], fontsize=8)
    axis.set(title="Epistemic std over that of NUTS: median, 10–90 % of the rows", yscale="log")
    axis.set_yticks([0.7, 0.8, 1, 1.25, 1.5, 2], ["0.7", "0.8", "1", "1.25", "1.5", "2"])
    axis.minorticks_off()


def draw(path: Path, results: dict[str, dict], table: Table, settings: tuple[float, float], exact: Reference) -> None:
    """Draw ratios on all tables, and for the sine the reasons why block-diagonal forms and the gap differ."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = {
        "full": POSTERIORS["full"],
        "kron": POSTERIORS["kron"],
        "hidden layer": {"hessian_structure": "full", "subset_of_weights": ["2.weight", "2.bias"]},
        "output layer": {"hessian_structure": "full", "subset_of_weights": ["5.weight", "5.bias"]},
    }
    models = {name: fitted(table, *settings, **options) for name, options in kinds.items()}
    figure, axes = plt.subplots(2, 2, figsize=(13, 9))
    draw_ratios(axes[0, 0], results)
    draw_bands(axes[0, 1], table, models, exact)
    draw_parts(axes[1, 0], table, models, exact)
    draw_direction(axes[1, 1], table, models["full"], exact)
    for axis in axes.flat:
        axis.legend(fontsize=7, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the UCI tables")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for references, tables and figure")
    parser.add_argument("--only", help="names of tables, as in sine,boston")
    parser.add_argument("--quick", action="store_true", help="short chains for two tables")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    available = tables(options.data)
    default = [name for name in available if name not in EXTRA][: 2 if options.quick else None]
    names = options.only.split(",") if options.only else default
    results: dict[str, dict] = {}
    lines, pictured = [], None
    for name in names:
        table = available[name]()
        precision, noise = chosen(name, table)
        model = fitted(table, precision, noise, hessian_structure="full")
        given = problem(table, model)
        if (difference := disagreement(given, model, table)) > AGREES:
            raise AssertionError(f"{name}: the log density differs from the package's by {difference:.1e}")
        exact = reference(name, given, options.out, 100 if options.quick else DRAWS)
        found = judged(table, precision, noise, exact)
        bend = bends(given, model, table.judged)
        correlation = spearmanr(bend, found["full", "glm", 1]["ratio"]).statistic
        lines.append(diagnosed(name, table, given, noise, exact, f"{np.median(bend):.2f}, {correlation:+.2f}"))
        for group, mask in (table.groups or {name: np.ones(len(table.judged), bool)}).items():
            results[group] = {m: {key: values[mask] for key, values in score.items()} for m, score in found.items()}
        if name == "sine":
            pictured = table, (precision, noise), exact
        print(" ".join(lines[-1]), flush=True)
    written(options.out / "exact_posteriors_reference.csv", DIAGNOSED, lines)
    report(results, options.out)
    if pictured:
        draw(options.out / "exact_posteriors.png", results, *pictured)


if __name__ == "__main__":
    main()
