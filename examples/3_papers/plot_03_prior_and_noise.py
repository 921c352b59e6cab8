r"""03 · Prior and noise tuned by the evidence
==============================================

At fixed weights, the log evidence of experiment 1's net is a function of two numbers: the prior precision λ and the
noise std σ,

.. math:: \log p(D) \approx \log p(D | \theta^*, \sigma) - \tfrac12 \lambda \lVert\theta^*\rVert^2
    + \tfrac12 P \log \lambda - \tfrac12 \log |J^\top J / \sigma^2 + \lambda I| .

The source (section 3.3) maximises the evidence over both, instead of guessing. The noise std of the data is .3, so the
correct σ is known. Four ways are compared:

- *frozen net, evidence*: Adam on the mean squared error without weight decay, then the evidence, as in the source;
- *evidence afterwards*: training by this library under a small fixed prior precision, then the evidence;
- *evidence in training* ("online"): updates of λ and σ while the net trains, so that weights, λ and σ are jointly
  optimal;
- *leave-one-out*: λ and σ that maximise the log density of all rows, each under the linearised net fitted without it,
  in closed form.

The residuals alone (the last line of the table) underestimate the noise, because the net has fitted part of it.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from sine import (
    EPOCHS,
    EPOCHS_CHOICE,
    NOISE,
    ORANGE,
    QUICK_EPOCHS,
    X_TEST,
    adam_net,
    draw_band,
    draw_data,
    inside_and_outside,
    sine_data,
)

from sklearn_laplace import LaplaceRegressor

JUDGED = "frozen net, evidence", "evidence afterwards", "evidence in training", "leave-one-out"
CLAIMS = {
    f"{name}: the mean of ten sigmas is between .28 and .32": (
        lambda m, name=name: 0.28 <= m[f"{name}, mean sigma"] <= 0.32
    )
    for name in JUDGED
} | {
    # The standard error of a noise std of .3 from 150 rows is .3 / √300 = .017; the range is ± 3.5 standard errors.
    f"{name}: each sigma is between .24 and .36": (
        lambda m, name=name: m[f"{name}, smallest sigma"] >= 0.24 and m[f"{name}, largest sigma"] <= 0.36
    )
    for name in JUDGED
}
AFTERWARDS = 0.01


def models(X, y, seed, epochs):
    """Return the fitted estimators by name."""
    shared = {"hessian_structure": "full", "likelihood": "gaussian", "n_members": 1, "random_state": seed}
    evidence = {"prior_precision": "evidence", "sigma_noise": "evidence"}
    built_in = {"hidden_layer_sizes": (10,), **shared}
    frozen = LaplaceRegressor(adam_net(X, y, seed=seed, epochs=epochs), **shared, **evidence).fit(X, y)
    loo = {"prior_precision": "loo", "sigma_noise": "loo"}
    return {
        "frozen net, evidence": frozen,
        "evidence afterwards": LaplaceRegressor(map_prior_precision=AFTERWARDS, **built_in, **evidence).fit(X, y),
        "evidence in training": LaplaceRegressor(**built_in, **evidence).fit(X, y),
        "leave-one-out": LaplaceRegressor(**built_in, **loo).fit(X, y),
        "frozen net, residuals": copy.deepcopy(frozen).refit_laplace(sigma_noise="residual"),
    }


def draw(run, X, y, fitted):
    """Draw the evidence of the frozen net as a function of λ and σ (left), and bands of two fits (right)."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    frozen = fitted["frozen net, evidence"]
    side = 8 if run.quick else 60
    precisions, noises = np.geomspace(1e-5, 1e2, side), np.geomspace(0.15, 0.8, side)
    surface = np.array([[frozen.log_marginal_likelihood(p, s) for p in precisions] for s in noises])
    below = surface.max() - surface
    levels = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, max(1000.0, below.max())]
    drawn = axes[0].contourf(precisions, noises, below, levels=levels, cmap="Blues_r", norm="symlog")
    figure.colorbar(drawn, ax=axes[0], label="nats below the largest evidence", ticks=levels[:-1], format="%g")
    axes[0].axhline(NOISE, color=ORANGE, ls="--", label="noise of the data")
    axes[0].plot(frozen.prior_precision_, frozen.sigma_noise_, "o", color="k", label="chosen by the evidence")
    axes[0].set(xscale="log", yscale="log", xlabel="prior precision λ", ylabel="noise std σ, units of y")
    axes[0].set_yticks([0.15, 0.2, 0.3, 0.4, 0.6, 0.8], ["0.15", "0.2", "0.3", "0.4", "0.6", "0.8"])
    axes[0].set_yticks([], minor=True)
    axes[0].set_title("Evidence of the frozen net")
    axes[0].legend(fontsize=8)
    for axis, name in zip(axes[1:], ("frozen net, evidence", "evidence in training"), strict=True):
        mean, total = fitted[name].predict(X_TEST, return_std=True)
        draw_band(axis, mean, fitted[name].predict_std(X_TEST, kind="epistemic"), total)
        draw_data(axis, X, y)
        axis.set(xlabel="x", ylabel="y", ylim=(-6, 6), title=f"{name}: σ = {fitted[name].sigma_noise_:.3f}")
    axes[1].legend(fontsize=8, loc="lower center")
    run.save(figure)


def main():
    run = Experiment("plot_03_prior_and_noise", __doc__, CLAIMS)
    run.choose(
        EPOCHS_CHOICE,
        "the training of this library: the built-in net with ten hidden units, which standardises x and y",
        f"evidence afterwards: trained under a prior precision of {AFTERWARDS} of the standardised net",
        "ten data sets, one net each",
    )
    n_seeds, epochs = (2, QUICK_EPOCHS) if run.quick else (10, EPOCHS)
    rows = {}
    for seed in range(run.seed, run.seed + n_seeds):
        X, y = sine_data(seed)
        fitted = models(X, y, seed, epochs)
        for name, model in fitted.items():
            inside = inside_and_outside(model.predict_std(X_TEST, kind="epistemic"))[0]
            found = model.sigma_noise_, np.log10(model.prior_precision_), model.n_effective_parameters_, inside
            rows.setdefault(name, []).append(found)
        if seed == run.seed:
            draw(run, X, y, fitted)
    measured, table = {}, {}
    for name, found in rows.items():
        sigma, precision, effective, inside = np.array(found).T
        numbers = sigma.mean(), sigma.std(ddof=1), sigma.min(), sigma.max()
        table[name] = *numbers, np.median(precision), effective.mean(), inside.mean()
        for what, value in zip(("mean", "sd of", "smallest", "largest"), numbers, strict=True):
            measured[f"{name}, {what} sigma"] = value
    columns = ["mean sigma", "sd", "smallest", "largest", "log10 lambda", "effective", "epistemic inside"]
    run.table(f"Noise that was found ({NOISE} was drawn), {n_seeds} data sets", columns, table)
    run.judge(measured)


if __name__ == "__main__":
    main()
