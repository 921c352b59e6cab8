r"""17 · In-between uncertainty: the middle third of a column held out
============================================================================

This script uses the gap splits of Foong, Li, Hernández-Lobato & Turner (2019), "In-between" uncertainty in Bayesian
neural networks. For each column in turn, the middle third is the test part, so that every test row lies between
training rows. The authors find that factorised variational inference is about as certain between two clusters of data
as on the clusters. The Laplace approximation of the *linearised* net is less certain between them. A method can be
overconfident in a gap by many nats, although random splits do not show this. The claims are about the worst split, not
the mean. The variance of the linearised net is quadratic in its Jacobian. It grows where the Jacobian leaves the span
of the Jacobians of the training rows,

.. math:: \operatorname{var} f(x) = J(x) \Big(\tfrac{1}{\sigma^2} \sum_n J_n^\top J_n + \delta I\Big)^{-1} J(x)^\top .

Three other methods are compared. The first is the net itself, with the std of its residuals as noise. The second is an
ensemble of five such nets. The third is factorised, or mean-field, variational inference with the local
reparametrisation of Kingma et al. (2015).
"""

import sys
import warnings
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from experiment import Experiment
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.datasets import load_diabetes

from sklearn_laplace import LaplaceRegressor

sys.path.append(str(Path(__file__).parents[1]))

import open_data

PUBLISHED_ENERGY, STD_ENERGY = -5.42, 10.08
"""Published mean log density (nats per row) of the ensemble on energy, the best method on the worst data set; the other
methods have −8.10 and −9.09. Second value: standard deviation of y on energy. For standardised y, the mean is −3.11."""
OPENING = "error bar in the gap / on the data"
THRESHOLD = PUBLISHED_ENERGY + np.log(STD_ENERGY)
CLAIMS = {
    "Laplace: the log density is finite on every split": lambda m: np.isfinite(m["Laplace, worst split"]),
    f"Laplace: no split is below {THRESHOLD:.2f} nats per row (y standardised), the ensemble's mean on energy": (
        lambda m: m["Laplace, worst split"] > THRESHOLD
    ),
    "Laplace: the worst split is better than that of the net with sigma from its residuals": (
        lambda m: m["Laplace, worst split"] > m["MAP, worst split"]
    ),
    "Laplace: between two clusters, the epistemic error bar widens more than that of factorised VI (gap / data)": (
        lambda m: (
            m["Laplace, error bar in the gap / on the data"] > m["mean-field VI, error bar in the gap / on the data"]
        )
    ),
}
METHODS = "Laplace", "MAP", "ensemble", "mean-field VI"
N_HIDDEN, N_NETS, RATE = 50, 5, 1e-2
DECAYS = [1e-4, 1e-3, 1e-2, 1e-1]
PRIOR_VARIANCE, N_DRAWS = 1.0, 100
COLUMNS = ["mean", "median", "worst", "RMSE", "coverage .95", "worst cover"]


# ---------------------------------------------------------------------- the four methods, on standardised data


def fits(X, y, X_new, seed, steps):
    """Return, by name, means (k, n), epistemic variances (k, n) and noise variance of each predictive mixture."""
    means, residual = chosen_nets(X, y, X_new, seed, steps)
    return {
        "Laplace": laplace(X, y, X_new, seed),
        "MAP": (means[:1], np.zeros_like(means[:1]), residual[0]),  # the first net of the ensemble
        "ensemble": (means.mean(0)[None], means.var(0)[None], residual.mean()),  # moments: Lakshminarayanan et al. 2017
        "mean-field VI": mean_field(X, y, X_new, seed, 2 * steps),
    }


def laplace(X, y, X_new, seed):
    """Return mean and epistemic variance (1, n) and noise variance of a net with prior and noise by the evidence."""
    options = {"prior_precision": "evidence", "sigma_noise": "evidence", "likelihood": "gaussian", "n_members": 1}
    with warnings.catch_warnings(action="ignore"):
        model = LaplaceRegressor(hidden_layer_sizes=(N_HIDDEN,), random_state=seed, **options).fit(X, y)
    epistemic = model.predict_std(X_new, kind="epistemic") ** 2
    return model.predict(X_new)[None], epistemic[None], model.sigma_noise_**2


def chosen_nets(X, y, X_new, seed, steps):
    """Return outputs (nets, n) and residual variances of nets; a held-out fifth of the rows selects the decay."""
    held = np.random.default_rng(seed).permutation(len(y)) < len(y) // 5
    outputs, _ = nets(X[~held], y[~held], X[held], seed, steps, DECAYS)
    best = DECAYS[((outputs - y[held]) ** 2).mean(1).argmin()]
    return nets(X, y, X_new, seed, steps, [best] * N_NETS)


def nets(X, y, X_new, seed, steps, decays):
    """Train one net per weight decay, all at once by Adam; return outputs (nets, n) and residual variances."""
    generator = torch.Generator().manual_seed(seed)
    d = X.shape[1]
    shapes = (d, N_HIDDEN), (1, N_HIDDEN), (N_HIDDEN, 1), (1, 1)
    reach = (d**-0.5, d**-0.5, N_HIDDEN**-0.5, N_HIDDEN**-0.5)  # torch's initial weights
    weights = [
        ((2 * torch.rand(len(decays), *shape, generator=generator) - 1) * r).requires_grad_()
        for shape, r in zip(shapes, reach, strict=True)
    ]

    def outputs(x):
        first, bias, second, constant = weights
        return (torch.tanh(x @ first + bias) @ second + constant)[..., 0]

    x, target, new = (torch.tensor(each, dtype=torch.float32) for each in (X, y, X_new))
    decay = torch.tensor(decays)[:, None, None]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((outputs(x) - target) ** 2).mean(1).sum() + 0.5 * sum((decay * w**2).sum() for w in weights)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        residual = ((outputs(x) - target) ** 2).mean(1)
        return outputs(new).double().numpy(), residual.double().numpy()


def mean_field(X, y, X_new, seed, steps):
    """Return outputs (draws, n) under a factorised posterior with prior 1 / fan-in, zeros, and the noise variance."""
    generator = torch.Generator().manual_seed(seed)
    n, d = X.shape
    sizes = (d, N_HIDDEN, 1)
    layers = []  # per layer: means and log standard deviations of the weights; the last row is the bias
    for n_in, n_out in pairwise(sizes):
        mean = torch.randn(n_in + 1, n_out, generator=generator) * n_in**-0.5
        layers.append((mean.requires_grad_(), torch.full((n_in + 1, n_out), -3.0, requires_grad=True)))
    log_noise = torch.tensor(-0.5, requires_grad=True)
    prior = [PRIOR_VARIANCE / n_in * torch.ones(n_in + 1, 1) for n_in in sizes[:-1]]
    for each in prior:
        each[-1] = PRIOR_VARIANCE  # of the biases

    def with_ones(h):
        return torch.cat([h, torch.ones(*h.shape[:-1], 1)], dim=-1)

    def local(h, last):
        """Return outputs of a net whose pre-activations are drawn for each row."""
        for k, (mean, log_std) in enumerate(layers):
            h = with_ones(h)
            centre, variance = h @ mean, h**2 @ (2 * log_std).exp()
            h = centre + (variance + 1e-12).sqrt() * torch.randn(centre.shape, generator=generator)
            h = h.tanh() if k < last else h
        return h[..., 0]

    x, target, new = (torch.tensor(each, dtype=torch.float32) for each in (X, y, X_new))
    optimizer = torch.optim.Adam([*(w for layer in layers for w in layer), log_noise], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        errors = (local(x, 1) - target) ** 2
        fit = 0.5 * (errors * (-2 * log_noise).exp()).sum() + n * log_noise
        distance = sum(
            (0.5 * ((2 * s).exp() + m**2) / v - s + 0.5 * v.log() - 0.5).sum()
            for (m, s), v in zip(layers, prior, strict=True)
        )
        (fit + distance).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        drawn = []
        for _ in range(N_DRAWS):  # one net for all rows
            h = new
            for k, (mean, log_std) in enumerate(layers):
                h = with_ones(h) @ (mean + log_std.exp() * torch.randn(mean.shape, generator=generator))
                h = h.tanh() if k == 0 else h
            drawn.append(h[..., 0])
        means = torch.stack(drawn).double().numpy()
        return means, np.zeros_like(means), float((2 * log_noise).exp())


# ---------------------------------------------------------------------- gap splits


def standardised(X, y, mask):
    """Return training and test rows, standardised by the moments of the training rows."""
    centre, spread = X[~mask].mean(0), X[~mask].std(0)
    spread = np.where(spread > 0, spread, 1.0)
    X, scaled = (X - centre) / spread, (y - y[~mask].mean()) / y[~mask].std()
    return X[~mask], scaled[~mask], X[mask], scaled[mask]


def split_scores(fitted, y):
    """Return log density per row (nats, standardised y), RMSE, and coverage of central 95 % intervals."""
    means, epistemic, noise = fitted
    std = np.sqrt(epistemic + noise)
    density = logsumexp(norm(means, std).logpdf(y), axis=0) - np.log(len(means))
    mean = means.mean(0)
    total = np.sqrt(np.mean(std**2 + means**2, axis=0) - mean**2)
    return density.mean(), np.mean((y - mean) ** 2) ** 0.5, np.mean(np.abs(y - mean) < norm.ppf(0.975) * total)


def sets(source, quick):
    """Return, by name, X, y and the columns with a gap."""
    if source is None:
        X, y = load_diabetes(return_X_y=True)
        columns = [i for i in range(X.shape[1]) if len(np.unique(X[:, i])) > 2]  # without sex, which has two values
        return {"diabetes": (X[::2], y[::2], columns[:1]) if quick else (X, y, columns)}
    found = {name: open_data.uci_regression(name, source) for name in open_data.REGRESSION}
    return {
        name: (X, y, range(2 if quick else X.shape[1]))
        for name, (X, y) in found.items()
        if not quick or name == "yacht"
    }


# ---------------------------------------------------------------------- between two clusters


def two_clusters(seed, n):
    """Draw rows in two clusters of x, as in the source's figures, on a smooth curve with noise std .1."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-2.0, -1.2, n // 2), rng.uniform(1.2, 2.0, n - n // 2)])
    return x[:, None], np.sin(2.5 * x) + 0.1 * rng.normal(size=n)


def toy(run, steps):
    """Return X, y, a line, mean and epistemic std on it for all methods but MAP, and their std ratios, gap / data."""
    X, y = two_clusters(run.seed, 40 if run.quick else 100)
    line = np.linspace(-3, 3, 241)
    on_data, in_gap = (np.abs(line) > 1.2) & (np.abs(line) < 2.0), np.abs(line) < 0.5
    drawn, ratios = {}, {}
    for name, (means, epistemic, _) in fits(X, y, line[:, None], run.seed, steps).items():
        if name == "MAP":
            continue
        std = np.sqrt(epistemic.mean(0) + means.var(0))
        drawn[name], ratios[name] = (means.mean(0), std), std[in_gap].mean() / std[on_data].mean()
    return X, y, line, drawn, ratios


def draw(run, clusters, per_split):
    """Draw error bars between two clusters (left), and all splits of all data sets, one row per method (right)."""
    X, y, line, drawn, ratios = clusters
    figure, axes = plt.subplots(1, 4, figsize=(15, 4.2), layout="constrained", width_ratios=[1, 1, 1, 1.5])
    for axis, (name, (mean, std)) in zip(axes, drawn.items(), strict=False):
        axis.axvspan(-1.2, 1.2, color="0.93")
        axis.fill_between(line, mean - 2 * std, mean + 2 * std, alpha=0.35, lw=0, label="± 2 epistemic std")
        axis.plot(line, mean, label="mean")
        axis.plot(line, np.sin(2.5 * line), "k--", lw=1, label="true curve")
        axis.scatter(X[:, 0], y, s=6, color="tab:orange", zorder=3)
        axis.set(title=f"{name}: gap / data {ratios[name]:.1f}", xlabel="x", ylim=(-4, 4))
    axes[0].set_ylabel("y")
    axes[1].legend(loc="lower left", fontsize=8)
    rng = np.random.default_rng(0)
    for k, (name, values) in enumerate(per_split.items()):
        axes[3].scatter(values, k + rng.uniform(-0.15, 0.15, len(values)), s=14, label=name)
        axes[3].plot([np.median(values)] * 2, [k - 0.3, k + 0.3], "k", lw=1.5)
    axes[3].axvline(THRESHOLD, color="r", ls="--", lw=1)
    axes[3].text(THRESHOLD, -0.45, " threshold", color="r", fontsize=8)
    axes[3].set_yticks(range(len(per_split)), list(per_split))
    title = f"{len(values)} gap splits; lines: medians"
    axes[3].set(xlabel="log density of the gap, nats a row (y in standard deviations)", title=title)
    if min(map(min, per_split.values())) < -10:
        axes[3].set_xscale("symlog", linthresh=3)
    run.save(figure)


def main():
    run = Experiment("plot_17_in_between_uncertainty", __doc__, CLAIMS)
    steps = 50 if run.quick else 800
    found = sets(run.data, run.quick)
    run.choose(
        "UCI tables"
        if run.data is not None
        else "diabetes, bundled with scikit-learn; --data reads the data sets of the source",
        f"{N_HIDDEN} tanh units for all methods; Laplace: one net, prior precision and noise by evidence "
        "(n_members=1), which is cheaper than the default ensemble",
        f"MAP and ensemble of {N_NETS}: {steps} full-batch steps of Adam, weight decay by a fifth of the "
        f"rows from {DECAYS}, residual sigma; mean-field VI: {2 * steps} steps, prior variance "
        f"{PRIOR_VARIANCE:g} / fan-in, noise learnt, {N_DRAWS} nets drawn",
        "X and y standardised by the training rows of each split; log densities in standard deviations of y",
        "toy: clusters from 1.2 to 2 on either side of 0, error bars are compared at |x| < .5 and on the clusters",
    )
    clusters = toy(run, steps)
    all_splits = {name: [] for name in METHODS}
    for title, (X, y, columns) in found.items():
        masks = open_data.gap_masks(X)
        scores = {name: [] for name in METHODS}
        for i in columns:
            X_fit, y_fit, X_new, y_new = standardised(X, y, masks[i])
            for name, fitted in fits(X_fit, y_fit, X_new, run.seed + i, steps).items():
                scores[name].append(split_scores(fitted, y_new))
        rows = {}
        for name, each in scores.items():
            density, rmse, coverage = np.transpose(each)
            rows[name] = [
                density.mean(),
                np.median(density),
                density.min(),
                rmse.mean(),
                coverage.mean(),
                coverage.min(),
            ]
            all_splits[name] += density.tolist()
        run.table(f"{title}, {len(columns)} gap splits, log density a row and others", COLUMNS, rows)
    draw(run, clusters, all_splits)
    measured = {f"{name}, worst split": min(values) for name, values in all_splits.items()}
    measured |= {f"{name}, median split": np.median(values) for name, values in all_splits.items()}
    measured |= {f"{name}, mean over splits": np.mean(values) for name, values in all_splits.items()}
    measured |= {f"{name}, {OPENING}": ratio for name, ratio in clusters[-1].items()}
    run.judge(measured | {"threshold": THRESHOLD, "splits": len(all_splits["Laplace"])})


if __name__ == "__main__":
    main()
