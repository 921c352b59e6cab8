r"""04 · Cubic toy against Hamiltonian Monte Carlo
================================================

The data are twenty noisy points of a cubic. The net has two hidden layers of seven units (Ritter, Botev & Barber 2018,
§5.1, figure 1 and appendix E, figure 8). Laplace approximations with Kronecker-factored, diagonal and full curvature
are compared with HMC draws from the exact posterior. In the source's equation 9, the prior enters the Kronecker factors
of each layer,

.. math:: P_l = (\sqrt N\, \mathrm E[Q_l] + \sqrt\tau\, I) \otimes (\sqrt N\, \mathrm E[\mathcal H_l] + \sqrt\tau\, I),

and the precision of the other structures is :math:`P = N\, \mathrm E[H] + \tau I`. *Untuned* means that N is the number
of rows and τ the prior precision of the training. *Tuned* means that both are hyperparameters, chosen on a grid by the
likelihood of twenty more points. Here, N rows instead of 20 correspond to a temperature of 20/N, and ``refit_laplace``
sets N and τ without training. Predictions are averages over weight samples (``predictive="mc"``), as in the source. The
linearised net (``"glm"``), a later method (Immer et al. 2021), is shown as well.
"""

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from hmc import sample, split_r_hat
from torch import nn

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.options import Kron, MonteCarlo

NOISE, PRIOR, ROWS = 3.0, 1.0, 20
SOURCE = {
    "kron": {"hessian_structure": Kron(damping="ritter")},
    "diag": {"hessian_structure": "diag", "curvature": "mc_fisher"},
    "full": {"hessian_structure": "full", "curvature": "mc_fisher"},
}
"""Options of the source. For diag and full, the Fisher matrix is that of one draw per row."""
GGN = {"diag, GGN": {"hessian_structure": "diag"}, "full, GGN": {"hessian_structure": "full"}}
GLM = ("kron", *GGN)
FACTOR = 3.0
"""Largest acceptable ratio of a standard deviation to that of HMC."""


def sane(m, name):
    """Return whether the median std is within FACTOR of HMC's, and the error of the mean below the noise std."""
    ratio = m[f"{name}: std / HMC, median"]
    return 1 / FACTOR < ratio < FACTOR and m[f"{name}: error of the mean"] < NOISE


CLAIMS = {
    "HMC is a valid reference: split R-hat of its function values is below 1.1 everywhere": (
        lambda m: m["HMC: largest split R-hat"] < 1.1
    ),
    "full, untuned, weight samples: the std is over 5 times that of HMC (median over -6 … 6)": (
        lambda m: m["full, untuned mc: std / HMC, median"] > 5
    ),
    "full, untuned, weight samples: the error of the mean exceeds the noise std and twice the error of HMC": (
        lambda m: m["full, untuned mc: error of the mean"] > max(NOISE, 2 * m["HMC: error of the mean"])
    ),
    "untuned, weight samples: all structures overestimate the std, full most and kron least": (
        lambda m: (
            m["full, untuned mc: std / HMC, median"]
            > m["diag, untuned mc: std / HMC, median"]
            > m["kron, untuned mc: std / HMC, median"]
            > 1
        )
    ),
    "tuned, weight samples: the std is within a factor of 3 of HMC's, and the mean errs by less than the noise std": (
        lambda m: all(sane(m, f"{name}, tuned mc") for name in SOURCE)
    ),
    "tuned, weight samples: on the data the std is 1 to 2 times that of HMC; off the data the ratio is smaller": (
        lambda m: all(
            1 < m[f"{name}, tuned mc: std / HMC, on the data"] < 2
            and m[f"{name}, tuned mc: std / HMC, off the data"] < m[f"{name}, tuned mc: std / HMC, on the data"]
            for name in SOURCE
        )
    ),
    "untuned, linearised: the std is within a factor of 3 of HMC's, and the mean errs by less than the noise std": (
        lambda m: all(sane(m, f"{name}, untuned glm") for name in GLM)
    ),
}


class Net(nn.Sequential):
    """Net with layers 1-7-7-1 and 78 weights."""

    def __init__(self):
        super().__init__(nn.Linear(1, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 1))


def split(theta):
    """Return W₁, b₁, W₂ (C, 7, 7), b₂, W₃ and b₃ (C, 1) of weights (C, 78) in the order of the net's parameters."""
    w1, b1, w2, b2, w3, b3 = np.split(theta, [7, 14, 63, 70, 77], axis=1)
    return w1, b1, w2.reshape(-1, 7, 7), b2, w3, b3


def layers(theta, x):
    """Return the units of both hidden layers (C, n, 7) and outputs (C, n), for weights (C, 78) at x (n,)."""
    w1, b1, w2, b2, w3, b3 = split(theta)
    first = np.tanh(x[:, None] * w1[:, None] + b1[:, None])
    second = np.tanh(first @ w2.swapaxes(-1, -2) + b2[:, None])
    return first, second, (second @ w3[:, :, None])[..., 0] + b3


def outputs(theta, x):
    """Return the outputs (C, n) of the net for weights (C, 78) at x (n,)."""
    return layers(theta, x)[2]


def log_posterior(x, y, noise):
    """Return a function from weights (C, 78) to log density (C,), up to a constant, and gradient (C, 78)."""

    def density(theta):
        _, _, w2, _, w3, _ = split(theta)
        first, second, output = layers(theta, x)
        error = (y - output) / noise**2
        value = -(noise**2 * (error**2).sum(1) + PRIOR * (theta**2).sum(1)) / 2
        at_second = error[:, :, None] * w3[:, None] * (1 - second**2)
        at_first = at_second @ w2 * (1 - first**2)
        of_w2 = (at_second.swapaxes(-1, -2) @ first).reshape(len(theta), -1)
        of_w3 = (error[:, None] @ second)[:, 0]
        parts = x @ at_first, at_first.sum(1), of_w2, at_second.sum(1), of_w3, error.sum(1)[:, None]
        return value, np.concatenate(parts, 1) - PRIOR * theta

    return density


def points(n, rng):
    """Draw n noisy points of the cubic."""
    x = rng.uniform(-4, 4, n)
    return x[:, None], x**3 + NOISE * rng.normal(size=n)


def weights_of(model):
    """Return all weights of a fitted net, (78,)."""
    return nn.utils.parameters_to_vector(model.net_.module_.parameters()).detach().double().numpy()


def trained(density, X, y, seed, n_starts):
    """Return the fit of largest posterior density from several starts."""

    def fit(start):
        model = LaplaceRegressor(
            Net,
            standardize_X=False,
            likelihood="gaussian",
            prior_precision=PRIOR,
            sigma_noise=NOISE,
            random_state=seed + start,
        )
        return model.fit(X, y)

    models = [fit(start) for start in range(n_starts)]
    return max(models, key=lambda model: density(weights_of(model)[None])[0].item())


def tuned(model, X, y, rows, precisions):
    """Refit the model with the N and τ of largest likelihood on the given rows, and return them."""
    likelihoods = {}
    for n in rows:
        for tau in precisions:
            model.refit_laplace(temperature=ROWS / n, prior_precision=tau)
            likelihoods[n, tau] = model.log_predictive_density(X, y).sum()
    n, tau = max(likelihoods, key=likelihoods.get)
    model.refit_laplace(temperature=ROWS / n, prior_precision=tau)
    return n, tau


def compare(grid, x, mean, std, reference):
    """Return the ``COLUMNS``: ratios of epistemic and total std to HMC's, and the RMS error of the mean."""
    inside = (grid >= x.min()) & (grid <= x.max())
    ratio = std / reference[1]
    total = np.median(np.hypot(std, NOISE) / np.hypot(reference[1], NOISE))
    error = np.sqrt(np.mean((mean - grid**3)[inside] ** 2))
    parts = np.median(ratio), np.median(ratio[inside]), np.median(ratio[~inside])
    return [*parts, ratio.min(), ratio.mean(), ratio.max(), total, error]


COLUMNS = ["median", "on the data", "off the data", "smallest", "mean", "largest", "total, median", "error of the mean"]


def panel(axis, grid, data, map_mean, mean, std, title, limits):
    """Draw the mean, and one shade for each standard deviation (noise included), up to four."""
    total = np.hypot(std, NOISE)
    for k in (4, 3, 2, 1):
        axis.fill_between(grid, mean - k * total, mean + k * total, color="C0", alpha=0.2, lw=0)
    axis.plot(grid, grid**3, "k", lw=1, label="x³")
    axis.plot(grid, map_mean, "C3", lw=1, label="net at the mode")
    axis.plot(grid, mean, "C0", lw=1.5, label="predictive mean")
    axis.plot(*data, "k.", ms=5)
    axis.set_title(title, fontsize=9)
    axis.set(ylim=limits, xlim=(grid[0], grid[-1]))


def draw(grid, data, map_mean, found, reference):
    """Draw figure 1 (tuned), figure 8 (untuned), and the untuned linearised net; HMC in the last column."""
    figure, axes = plt.subplots(3, 4, figsize=(9.2, 6.4), layout="constrained", sharex=True)
    rows = (("tuned mc", tuple(SOURCE), 250), ("untuned mc", tuple(SOURCE), 450), ("untuned glm", GLM, 250))
    for line, (kind, names, limit) in zip(axes, rows, strict=True):
        for axis, name in zip(line, names, strict=False):
            panel(axis, grid, data, map_mean, *found[f"{name}, {kind}"], f"{name}, {kind}", (-limit, limit))
    panel(axes[0, 3], grid, data, map_mean, *reference, "HMC", (-250, 250))
    axes[0, 0].legend(fontsize=7, loc="upper left")
    for axis, kinds in ((axes[1, 3], ("untuned mc",)), (axes[2, 3], ("tuned mc", "untuned glm"))):
        for kind in kinds:
            for name in SOURCE if kind.endswith("mc") else GLM:
                style = "-" if kind.endswith("mc") else "--"
                axis.semilogy(grid, found[f"{name}, {kind}"][1] / reference[1], style, label=f"{name}, {kind}")
        axis.axhline(1, color="k", lw=0.8)
        axis.set_title("std over HMC's", fontsize=9)
        axis.set(ylabel="ratio of epistemic std")
        ticks = [0.2, 0.5, 1, 2, 5, 10, 20, 50] if len(kinds) == 1 else [0.2, 0.5, 1, 2, 5]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
        axis.legend(fontsize=5)
    figure.suptitle("Predictive mean, and a shade for each standard deviation (noise included)", fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("y")
    for axis in axes[:, 1:3].flat:
        axis.tick_params(labelleft=False)
    for axis in axes[-1]:
        axis.set_xlabel("x")
    return figure


def main():
    run = Experiment("plot_04_cubic_hmc", __doc__, CLAIMS)
    run.choose(
        "tanh units (not specified by the source); y standardised by its training mean and spread, x unchanged",
        f"noise std {NOISE:.0f} known; prior precision {PRIOR:.0f} on all weights of the net for standardised y:"
        " the weight decay, the untuned τ, and HMC's prior",
        "the mode of largest density among five starts",
        "kron with the Gauss–Newton matrix; diag and full with the Fisher matrix by one draw a row as in the"
        " source, and with the Gauss–Newton matrix as well, which the claims about linearised predictions use",
        "grid: N from 20 to 200,000, τ from .1 to 1000, two values a decade; 1,000 weight samples, the same for all",
        "std: of the function (epistemic), over -6 … 6; figures and likelihood include the noise, as predictions do",
        "HMC: 32 parallel chains started from draws of the prior, 1,600 draws each (the source: 50,000)",
    )
    rng = np.random.default_rng(run.seed)
    (X, y), (X_val, y_val) = points(ROWS, rng), points(ROWS, rng)
    grid = np.linspace(-6, 6, 121)
    location, scale = y.mean(), y.std()
    density = log_posterior(X[:, 0], (y - location) / scale, NOISE / scale)

    model = trained(density, X, y, run.seed, 1 if run.quick else 5)
    mode = weights_of(model)
    print(
        f"mode: log density {density(mode[None])[0].item():.2f}, {model.mode_distance_:.2f} posterior std from the top"
    )
    map_mean = model.predict(grid[:, None])

    n_chains, n_draws, n_warmup, path = (8, 20, 20, 0.1) if run.quick else (32, 1600, 400, 0.5)
    start = rng.normal(size=(n_chains, len(mode))) / PRIOR**0.5
    chains = sample(density, start, n_draws, n_warmup, path, rng)
    functions = location + scale * np.stack([outputs(theta, grid) for theta in chains.theta])
    r_hat = split_r_hat(functions).max()
    reference = functions.mean((0, 1)), functions.std((0, 1))
    halves = [part.std((0, 1)) for part in np.split(functions, 2, axis=1)]
    print(
        f"HMC: step {chains.step_size:.4f}, acceptance {chains.acceptance.min():.2f} to {chains.acceptance.max():.2f}, "
        f"split R-hat up to {r_hat:.3f}; std of one half of the chains over that of the other "
        f"{(halves[0] / halves[1]).min():.2f} to {(halves[0] / halves[1]).max():.2f}"
    )

    rows = np.geomspace(20, 20 * 1e4, 2 if run.quick else 9)
    precisions = np.geomspace(0.1, 1e3, 2 if run.quick else 9)
    predictions, chosen = {}, {}
    for name, options in (SOURCE | GGN).items():
        fitted = LaplaceRegressor(
            Net,
            standardize_X=False,
            likelihood="gaussian",
            prior_precision=PRIOR,
            sigma_noise=NOISE,
            random_state=model.random_state,
            **options,
        ).fit(X, y)
        assert np.allclose(weights_of(fitted), mode), "the structures share one trained net"
        for predictive in ("glm", MonteCarlo(50 if run.quick else 1000)):
            fitted.refit_laplace(temperature=1.0, prior_precision=PRIOR, predictive=predictive)
            way = predictive if predictive == "glm" else "mc"
            predictions[f"{name}, untuned {way}"] = answers(fitted, grid)
        if name in SOURCE:
            n, tau = tuned(fitted, X_val, y_val, rows, precisions)
            predictions[f"{name}, tuned mc"] = answers(fitted, grid)
            chosen[f"{name}, mc"] = [n, tau, fitted.log_predictive_density(X_val, y_val).mean()]
    table = {name: compare(grid, X, *answer, reference) for name, answer in predictions.items()}
    run.table("Epistemic std over HMC's; RMS distance of the mean from the cubic on the data", COLUMNS, table)
    run.table("Chosen on 20 validation points", ["N", "τ", "log-lik. / row"], chosen)
    inside = (grid >= X.min()) & (grid <= X.max())
    shown = {"net at the mode": (map_mean, 0 * grid), "HMC": reference}
    run.table(
        "Without a ratio: epistemic std, RMS distance of the mean from the cubic on the data",
        ["std on the data", "std off the data", "error of the mean"],
        {
            name: [np.median(s[inside]), np.median(s[~inside]), np.sqrt(np.mean((m - grid**3)[inside] ** 2))]
            for name, (m, s) in shown.items()
        },
    )
    run.save(draw(grid, (X[:, 0], y), map_mean, predictions, reference))
    judged = [f"{name}, {kind} mc" for name in SOURCE for kind in ("tuned", "untuned")]
    measured = {
        f"{name}: {column if column.startswith('error') else f'std / HMC, {column}'}": value
        for name, values in table.items()
        if name in {*judged, *(f"{name}, untuned glm" for name in GLM)}
        for column, value in zip(COLUMNS, values, strict=True)
    }
    measured |= {
        "HMC: largest split R-hat": r_hat,
        "HMC: smallest acceptance of a chain": chains.acceptance.min(),
        "HMC: error of the mean": np.sqrt(np.mean((reference[0] - grid**3)[inside] ** 2)),
        "mode: error of the mean": np.sqrt(np.mean((map_mean - grid**3)[inside] ** 2)),
    }
    run.judge(measured)


def answers(model, grid):
    """Return mean and epistemic std."""
    return model.predict(grid[:, None]), model.predict_std(grid[:, None], kind="epistemic")


if __name__ == "__main__":
    main()
