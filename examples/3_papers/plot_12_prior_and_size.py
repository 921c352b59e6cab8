r"""12 · Prior strength and model size
======================================

These are two short demonstrations from the documentation of LaplaceRedux.jl ("A quick note on the prior"), on the sine
data:

- *High prior precision → only observation noise. Low prior precision → high posterior uncertainty.* One net, with three
  values of λ at the same weights: 1e5, the value of largest evidence, and 1e-5.
- *For larger models, the optimal prior precision λ as evaluated through Empirical Bayes tends to be smaller*: nets of
  5, 10 and 50 hidden units.

With :math:`j = \partial f(x) / \partial \theta` and an eigendecomposition
:math:`J^\top J = V \,\mathrm{diag}(h)\, V^\top`, the epistemic variance is

.. math:: \sum_i \frac{(v_i^\top j)^2}{h_i / \sigma^2 + \lambda} :

A large λ shrinks all of its terms. A small λ enlarges the terms of directions that the data do not determine
(:math:`h_i = 0`). These directions matter only outside the data.

The source does not specify the noise std for the given λ. Without tuning, the default of its package is 1.
"""

import copy
import warnings

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from sine import (
    EPOCHS,
    EPOCHS_CHOICE,
    INSIDE,
    QUICK_EPOCHS,
    X_TEST,
    adam_net,
    draw_band,
    draw_data,
    inside_and_outside,
    sine_data,
)

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.errors import WeakPriorWarning

STRONG, WEAK = 1e5, 1e-5
SIZES = 5, 10, 50
CLAIMS = (
    {
        f"{n} hidden, prior precision 1e5: the median total std from -10 to 13 is within 5 % of the noise std": (
            lambda m, n=n: m[f"{n} hidden, strong, largest total std / noise"] < 1.05
        )
        for n in SIZES
    }
    | {
        f"{n} hidden, prior precision 1e-5: the median epistemic std outside the data is over ten times that of y": (
            lambda m, n=n: m[f"{n} hidden, weak, std outside / std of y"] > 10.0
        )
        for n in SIZES
    }
    | {
        "the median tuned prior precision is smaller with 50 hidden units than with 5": (
            lambda m: m["50 hidden, tuned prior precision"] < m["5 hidden, tuned prior precision"]
        )
    }
)
STRENGTHS = "strong", "tuned", "weak", "none at all"
NONE = 1e-10  # not in the source: an even weaker prior


def under_each_prior(X, y, n_hidden, seed, epochs):
    """Return the same net under the prior of each strength, with the noise tuned once."""
    net = adam_net(X, y, seed=seed, epochs=epochs, n_hidden=n_hidden)
    tuned = LaplaceRegressor(
        net, hessian_structure="full", likelihood="gaussian", prior_precision="evidence", sigma_noise="evidence"
    ).fit(X, y)
    models = {}
    with warnings.catch_warnings(action="ignore", category=WeakPriorWarning):
        for strength, precision in zip(STRENGTHS, (STRONG, tuned.prior_precision_, WEAK, NONE), strict=True):
            models[strength] = copy.deepcopy(tuned).refit_laplace(
                prior_precision=precision, sigma_noise=tuned.sigma_noise_
            )
    return models


def numbers(model, y):
    """Return epistemic std on and outside the data, largest total std / noise, std outside / std of y, and P − γ."""
    inside, outside = inside_and_outside(model.predict_std(X_TEST, kind="epistemic"))
    free = model.laplace_.network.n_parameters - model.n_effective_parameters_
    return inside, outside, model.predict_std(X_TEST).max() / model.sigma_noise_, outside / y.std(), free


def draw(run, X, y, nets):
    """Draw a grid of panels: sizes in rows and strengths in columns, with one net per row."""
    figure, axes = plt.subplots(3, 3, figsize=(10, 6.8), layout="constrained", sharex=True, sharey=True)
    for row, (n_hidden, models) in zip(axes, nets.items(), strict=True):
        for axis, (strength, model) in zip(row, models.items(), strict=False):
            mean, total = model.predict(X_TEST, return_std=True)
            draw_band(axis, mean, model.predict_std(X_TEST, kind="epistemic"), total)
            draw_data(axis, X, y)
            axis.set_title(f"{n_hidden} hidden, {strength}: λ = {model.prior_precision_:.2g}", fontsize=10)
            axis.set_ylim(-6, 6)
        row[0].set_ylabel("y")
    for axis in axes[-1]:
        axis.set_xlabel("x")
    axes[0, 0].legend(fontsize=7, ncols=2)
    run.save(figure)


def reason(table):
    """Return why the std of a small net stays small: few undetermined directions, and the std without a prior."""
    small, large = ({s: table[f"{n} hidden, {s}"] for s in ("weak", "none at all")} for n in SIZES[:2])
    return (
        "the std is very large only in directions that the data do not determine. A net of "
        f"{SIZES[0]} hidden units has hardly any: the data determine all but {small['weak'][4]:.2f} of its "
        f"{3 * SIZES[0] + 1} weights (with {SIZES[1]} hidden units, all but {large['weak'][4]:.1f}). Its std, "
        f"{small['weak'][3]:.1f} times that of y, is the uncertainty left by the data. With a prior precision of "
        f"{NONE:g}, this factor is {small['none at all'][3]:.1f}. With {SIZES[1]} hidden units it grows from "
        f"{large['weak'][3]:,.0f} to {large['none at all'][3]:,.0f}"
    )


def main():
    run = Experiment("plot_12_prior_and_size", __doc__, CLAIMS)
    run.choose(
        "the sine data and the training of experiment 1 (the source: x from 0 to 8, Adam 1e-3, one row in each step)",
        EPOCHS_CHOICE,
        "the noise is tuned with the prior precision, and kept under the two given ones",
        f"a fourth precision, {NONE:g}, is not in the source: it shows how much the data alone determine",
        f"from -10 to 13; targets' std is that of y in the training; inside: {INSIDE.sum()} of {len(INSIDE)} points",
    )
    n_seeds, epochs = (1, QUICK_EPOCHS) if run.quick else (5, EPOCHS)
    rows, precisions, first = {}, {n: [] for n in SIZES}, {}
    for n_hidden in SIZES:
        for seed in range(run.seed, run.seed + n_seeds):
            X, y = sine_data(seed)
            models = under_each_prior(X, y, n_hidden, seed, epochs)
            precisions[n_hidden].append(models["tuned"].prior_precision_)
            for strength, model in models.items():
                rows.setdefault(f"{n_hidden} hidden, {strength}", []).append(numbers(model, y))
            if seed == run.seed:
                first[n_hidden] = models
    table = {name: np.median(found, axis=0) for name, found in rows.items()}
    columns = [
        "epistemic inside",
        "epistemic outside",
        "largest total / noise",
        "outside / std of y",
        "left to the prior",
    ]
    run.table(f"Bands by prior, median of {n_seeds} nets", columns, table)
    spread = {f"{n} hidden": (np.median(found), min(found), max(found)) for n, found in precisions.items()}
    print("what the evidence chose, by size")
    run.table("Prior precision of largest evidence", ["median", "smallest", "largest"], spread, digits=4)
    draw(run, *sine_data(run.seed), first)
    measured = {}
    for n in SIZES:
        measured[f"{n} hidden, strong, largest total std / noise"] = table[f"{n} hidden, strong"][2]
        measured[f"{n} hidden, weak, std outside / std of y"] = table[f"{n} hidden, weak"][3]
        measured[f"{n} hidden, tuned, std outside / std of y"] = table[f"{n} hidden, tuned"][3]
        measured[f"{n} hidden, tuned prior precision"] = np.median(precisions[n])
        measured[f"{n} hidden, weights left to the weak prior"] = table[f"{n} hidden, weak"][4]
    run.judge(measured, why=reason(table))


if __name__ == "__main__":
    main()
