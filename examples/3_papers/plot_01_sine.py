r"""01 · A sine, from scratch: the band is narrow on the data and wide outside
==============================================================================

The source is a blog that implements the Laplace approximation in torch. It trains a 1-10-1 tanh net on 150 noisy points
of a sine between 0 and 10. Training uses Adam on the mean squared error. The posterior is based on the full generalised
Gauss–Newton matrix of all weights,

.. math:: \tilde H = \sum_n J_n^\top H_n J_n + \lambda I, \qquad
    f_\theta(x) \approx f_{\theta^*}(x) + J_{\theta^*}(x) (\theta - \theta^*),

with prior precision λ and noise chosen by the evidence at these weights. The source predicts from −10 to 13. Its
figures show a band that is narrow on the data and wide outside. With scaled inputs, the bands "become more concise and
do not pan out as much". The claims test the first observation. The second one depends on the seed, so this script uses
several seeds.

The source specifies neither the number of epochs nor the scaling.
"""

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from sine import (
    BLUE,
    EPOCHS,
    EPOCHS_CHOICE,
    GREY,
    HIGH,
    INSIDE,
    LOW,
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
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceRegressor

CLAIMS = {
    "raw x: the median epistemic std on the data is below half the noise std (.15)": (
        lambda m: m["raw x, std inside"] < NOISE / 2
    ),
    "raw x: the median epistemic std outside the data is at least five times as large": (
        lambda m: m["raw x, outside / inside"] >= 5.0
    ),
    "standardised x: the median epistemic std on the data is below half the noise std (.15)": (
        lambda m: m["standardised x, std inside"] < NOISE / 2
    ),
    "standardised x: the median epistemic std outside the data is at least five times as large": (
        lambda m: m["standardised x, outside / inside"] >= 5.0
    ),
}
COLUMNS = ["std inside", "std outside", "outside / inside", "sigma", "log10 prior precision", "error of the mean"]


def fitted(X, y, seed, epochs):
    """Fit the source's frozen net, with prior and noise chosen by the evidence at its weights."""
    net = adam_net(X, y, seed=seed, epochs=epochs)
    return LaplaceRegressor(
        net, hessian_structure="full", likelihood="gaussian", prior_precision="evidence", sigma_noise="evidence"
    ).fit(X, y)


def numbers(model, X_test):
    """Return the ``COLUMNS`` of the table; the last one is the RMS distance between mean and sine on the data."""
    inside, outside = inside_and_outside(model.predict_std(X_test, kind="epistemic"))
    error = model.predict(X_test[INSIDE]) - np.sin(X_TEST[INSIDE, 0])
    precision = np.log10(model.prior_precision_)
    return inside, outside, outside / inside, model.sigma_noise_, precision, np.sqrt(np.mean(error**2))


def draw(run, X, y, models, spreads):
    """Draw bands of the first seed (top) and epistemic stds of all seeds (bottom)."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 6), layout="constrained", sharex=True, sharey="row")
    for (above, below), (name, (model, X_test)) in zip(axes.T, models.items(), strict=True):
        mean, total = model.predict(X_test, return_std=True)
        draw_band(above, mean, model.predict_std(X_test, kind="epistemic"), total)
        draw_data(above, X, y)
        above.set(title=name, ylim=(-6, 6), ylabel="y")
        below.axvspan(LOW, HIGH, color=GREY, alpha=0.2, lw=0, label="data")
        below.axhline(NOISE, color=ORANGE, ls="--", label="noise")
        for std in spreads[name]:
            below.semilogy(X_TEST[:, 0], std, color=BLUE, lw=1, label="epistemic std, a line a seed")
        below.set(xlabel="x", ylabel="standard deviation, units of y")
    axes[0, 0].legend(fontsize=8, loc="lower center")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes[1, 0].legend(unique.values(), unique.keys(), fontsize=8)
    run.save(figure)


def main():
    run = Experiment("plot_01_sine", __doc__, CLAIMS)
    run.choose(
        EPOCHS_CHOICE,
        "prior and noise by the evidence at the trained weights, as for the source's figures",
        "scaled: x to mean 0 and variance 1; y unchanged",
        "inside: the mean over the test inputs from 0 to 10; outside: over the others",
    )
    n_seeds, epochs = (1, QUICK_EPOCHS) if run.quick else (10, EPOCHS)
    rows, spreads, first = {"raw x": [], "standardised x": []}, {"raw x": [], "standardised x": []}, {}
    for seed in range(run.seed, run.seed + n_seeds):
        X, y = sine_data(seed)
        scaler = StandardScaler().fit(X)
        for name, inputs, tests in (
            ("raw x", X, X_TEST),
            ("standardised x", scaler.transform(X), scaler.transform(X_TEST)),
        ):
            model = fitted(inputs, y, seed, epochs)
            rows[name].append(numbers(model, tests))
            spreads[name].append(model.predict_std(tests, kind="epistemic"))
            if seed == run.seed:
                first[name] = model, tests
    for name, values in rows.items():
        print(f"the net's input: {name}")
        run.table(
            f"Epistemic standard deviation and what the evidence chose, {name}",
            COLUMNS,
            {f"seed {run.seed + k}": row for k, row in enumerate(values)} | {"median": np.median(values, axis=0)},
        )
    draw(run, *sine_data(run.seed), first, spreads)
    measured = {}
    for name, values in rows.items():
        for column, value in zip(COLUMNS, np.median(values, axis=0), strict=True):
            measured[f"{name}, {column}"] = value
    raw, scaled = np.array(rows["raw x"])[:, 1], np.array(rows["standardised x"])[:, 1]
    measured["seeds"] = n_seeds
    measured["seeds in which scaling narrows the band outside"] = np.sum(scaled < raw)
    measured["outside, standardised / raw, smallest"] = np.min(scaled / raw)
    measured["outside, standardised / raw, median"] = np.median(scaled / raw)
    measured["outside, standardised / raw, largest"] = np.max(scaled / raw)
    run.judge(measured)


if __name__ == "__main__":
    main()
