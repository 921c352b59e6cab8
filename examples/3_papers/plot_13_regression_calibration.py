r"""13 · Calibration of a regressor
===================================

The regression tutorial of LaplaceRedux.jl draws 3000 points, x uniform on (0, 8), y = sin x + .3 ε. It fits a net with
50 tanh units to 80 % of the points, and tunes prior precision and noise by the evidence. For the other 20 %, the
tutorial plots how often the targets lie below the predicted quantiles (Kuleshov, Fenner & Ermon 2018, eq. 8):

.. math:: \hat p_j = \frac{1}{T} \sum_{t=1}^T 1[F_t(y_t) \le p_j], \qquad p_j = \tfrac{j}{20} ,

against :math:`p_j`. It also prints the *sharpness*, the mean predictive variance
:math:`\tfrac1T \sum_t \mathrm{var}(F_t)`. The curve of a calibrated model is on the diagonal; of two calibrated models,
the sharper one is better.

The tutorial prints distributions with standard deviations of .05 to .1, and a sharpness of .005. The noise alone has a
variance of .09. So the distributions are those of the function, not of the targets with which they are compared. Here,
a second line shows the distributions of the function. The third line is the net before tuning, with prior and noise 1.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from scipy.stats import binom, norm
from sine import BLUE, GREY, NOISE, ORANGE

from sklearn_laplace import LaplaceRegressor, metrics

LEVELS = np.arange(1, 20) / 20  # the edges between 20 bins; at 0 and 1, the frequency is always right
# In 99 of 100 cases, the largest distance between a distribution and the frequencies of n draws from it is below
# 1.63 / √n (Kolmogorov)
CLAIMS = {
    "the source's split, 600 test rows: all 19 frequencies are within 1.63 / √600 = .067 of the nominal levels": (
        lambda m: m["targets, largest gap, one split"] <= 1.63 / np.sqrt(600)
    ),
    "five splits of new data, 3000 test rows: all frequencies are within 1.63 / √3000 = .030": (
        lambda m: m["targets, largest gap, all splits"] <= 1.63 / np.sqrt(3000)
    ),
}
NAMES = "targets", "the function alone", "targets, untuned"


def rows_of(seed, n):
    """Draw n points on the noisy sine: 80 % training rows, 20 % test rows."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 8.0, (n, 1))
    y = np.sin(x[:, 0]) + NOISE * rng.normal(size=n)
    n_fit = int(0.8 * n)
    return x[:n_fit], y[:n_fit], x[n_fit:], y[n_fit:]


def below(quantiles, y):
    """Return whether each target is below each quantile, (n, 19)."""
    return y[:, None] <= quantiles


def judged(model, X, y):
    """Return, by name, targets below quantiles (n, 19), PIT (n,) and predictive variance (n,)."""
    mean, total = model.predict(X, return_std=True)
    alone = norm(mean, model.predict_std(X, kind="epistemic"))
    untuned = copy.deepcopy(model).refit_laplace(prior_precision=1.0, sigma_noise=1.0)
    _, wide = untuned.predict(X, return_std=True)
    return {
        "targets": (below(model.predict_quantiles(X, LEVELS), y), model.predict_dist(X).cdf(y), total**2),
        "the function alone": (below(alone.ppf(LEVELS[:, None]).T, y), alone.cdf(y), alone.var()),
        "targets, untuned": (below(untuned.predict_quantiles(X, LEVELS), y), untuned.predict_dist(X).cdf(y), wide**2),
    }


def draw(run, observed, pit, n_test):
    """Draw the source's calibration plot (left) and the probability integral transform of the first line (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    edges = np.concatenate([[0.0], LEVELS, [1.0]])
    band = np.stack([binom.ppf(p, n_test, edges) / n_test for p in (0.05, 0.95)])
    left.fill_between(edges, *band, color=GREY, alpha=0.35, lw=0, label="90 % of calibrated models, each level")
    left.plot([0, 1], [0, 1], color="k", lw=1)
    for name, colour, marker in zip(NAMES, (BLUE, ORANGE, GREY), "os^", strict=True):
        left.plot(LEVELS, observed[name], color=colour, marker=marker, ms=4, label=name)
    left.set(xlabel="nominal share below the quantile", ylabel="observed share", title=f"{n_test:,} test rows")
    left.legend(fontsize=8)
    right.hist(pit, bins=edges, density=True, color=BLUE, alpha=0.6)
    right.axhline(1.0, color="k", lw=1)
    right.set(xlabel="F(y)", ylabel="density", title="targets: where they lie in their predictive distribution")
    run.save(figure)


def main():
    run = Experiment("plot_13_regression_calibration", __doc__, CLAIMS)
    run.choose(
        "the training of this library with the evidence, instead of the source's 1000 epochs with one row in each step "
        "(2.4 million)",
        "five data sets of 3000 rows each; the first is the split of the source; all of them together are the sharper "
        "test",
        "levels .05 to .95: the edges between the 20 bins",
    )
    n_sets, n = (2, 300) if run.quick else (5, 3000)
    results = {name: [] for name in NAMES}
    sigmas, widths, gaps = [], [], []
    for seed in range(run.seed, run.seed + n_sets):
        X, y, X_new, y_new = rows_of(seed, n)
        model = LaplaceRegressor(
            hidden_layer_sizes=(50,),
            hessian_structure="full",
            likelihood="gaussian",
            prior_precision="evidence",
            sigma_noise="evidence",
            n_members=1,
            random_state=seed,
        ).fit(X, y)
        sigmas.append(model.sigma_noise_)
        widths.append(metrics.sharpness(model, X_new))
        gaps.append(metrics.calibration_gap(model, X_new, y_new))
        for name, parts in judged(model, X_new, y_new).items():
            results[name].append(parts)
    table, shares, measured = {}, {}, {}
    for name, parts in results.items():
        inside, pit, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        shares[name] = inside.mean(0)
        gap_one = np.abs(parts[0][0].mean(0) - LEVELS).max()
        gap_all = np.abs(shares[name] - LEVELS).max()
        table[name] = gap_one, gap_all, variance.mean(), np.sqrt(variance.mean())
        if name == NAMES[0]:
            draw_pit = pit
        measured |= {f"{name}, largest gap, one split": gap_one, f"{name}, largest gap, all splits": gap_all}
        measured[f"{name}, sharpness (mean variance)"] = variance.mean()
    columns = ["largest gap, one", "largest gap, all", "sharpness", "its root"]
    run.table(f"Calibration and sharpness, {n_sets} splits", columns, table, digits=4)
    levels = {f"{level:.2f}": [shares[name][k] for name in NAMES] for k, level in enumerate(LEVELS)}
    print("the same, level by level")
    run.table("Share of the targets below the predicted quantile, all splits", list(NAMES), levels)
    draw(run, shares, draw_pit, len(draw_pit))
    measured["noise found, mean"] = np.mean(sigmas)
    measured["root mean predictive variance, mean"] = np.mean(widths)
    measured["mean gap of central intervals, mean"] = np.mean(gaps)
    run.judge(measured)


if __name__ == "__main__":
    main()
