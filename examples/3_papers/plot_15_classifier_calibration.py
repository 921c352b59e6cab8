r"""15 · Calibration of a classifier, and a tuning that ends at the MAP
===================================================================

A net trained on few rows is overconfident. The source is the blog and the tutorial of the library *curvature*. It draws
a reliability diagram with the expected calibration error, and histograms of confidence and predictive entropy. The
entropy is shown for pictures of the training classes and of other classes. The source searches two hyperparameters of
its Kronecker-factored posterior on validation rows, on a log scale. N multiplies the curvature H of a row, and τ is
added,

.. math:: P = N\,H + \tau I .

If both are large, the posterior collapses to the MAP, and a search by accuracy alone cannot distinguish posterior and
MAP. In the library's tutorial, both have an accuracy of 94.11 %. Here, the temperature is n / N, the prior precision is
τ, and the search uses the log density of the validation rows. Even so, the search ends at the MAP if the MAP is
underconfident, because an average over nets is even less confident (the second table).
"""

import copy
import itertools
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from ensembles import entropy
from experiment import Experiment
from sklearn.datasets import load_digits, load_sample_images
from sklearn.metrics import log_loss, roc_auc_score

from sklearn_laplace import LaplaceClassifier
from sklearn_laplace.metrics import expected_calibration_error
from sklearn_laplace.metrics.calibration import judged_confidence, reliability_bins

CLAIMS = {
    "bins of equal width: the calibration error is at most the MAP's": (
        lambda m: m["Laplace, ECE equal width"] <= m["MAP, ECE equal width"]
    ),
    "bins of equal count: the calibration error is at most the MAP's": (
        lambda m: m["Laplace, ECE equal count"] <= m["MAP, ECE equal count"]
    ),
    "the accuracy is within half a point of the MAP's": (
        lambda m: abs(m["Laplace, accuracy"] - m["MAP, accuracy"]) <= 0.005
    ),
    "the entropy separates other pictures from digits at least as well as the MAP's (AUROC)": (
        lambda m: m["Laplace, AUROC"] >= m["MAP, AUROC"]
    ),
}
"""Conditions on the means over the splits."""
DECAYS = {"": 1e-3, "strong decay: ": 0.1}
"""Prior precisions of the training. The claims use the first one, which is very weak, as is common. The second one
gives an underconfident MAP."""
N_OVER_ROWS = np.logspace(-2, 4, 7)
TAU = np.logspace(-2, 4, 7)
COLLAPSED, AT_THE_MAP = 1e8, 0.01
"""τ of a posterior collapsed to the MAP, and the largest allowed difference of their probabilities."""
N_BINS, STRATEGIES = 10, ("uniform", "quantile")
METHODS = "MAP", "Laplace", "Laplace, untuned", "collapsed"
COLUMNS = ["accuracy", "NLL", "ECE equal width", "ECE equal count", "AUROC", "mean confidence"]


def bundled(seed):
    """Return digits of 8 × 8 pixels, their classes, and 1,000 patches of two photographs, scaled to [0, 1] as well."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    patches = []
    for photo in load_sample_images().images:
        grey = photo.mean(axis=2)
        corners = rng.integers(0, np.array(grey.shape) - 32, (500, 2))
        for row, column in corners:
            patch = grey[row : row + 32, column : column + 32].reshape(8, 4, 8, 4).mean(axis=(1, 3))
            patches.append((patch - patch.min()) / max(np.ptp(patch), 1.0))
    return X / 16.0, y, np.array(patches).reshape(-1, 64)


def larger(source):
    """Return MNIST digits of 28 × 28 pixels, their classes, and pictures of clothes."""
    sys.path.append(str(Path(__file__).parents[1]))
    import open_data

    X, y = open_data.digits(source)
    return X.reshape(len(X), -1), y, open_data.clothes(source).reshape(-1, X[0].size)


def parts(X, y, n_fit, n_validation, n_test, seed):
    """Return random training, validation and test rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    ends = np.cumsum([n_fit, n_validation, n_test])
    return [(X[rows], y[rows]) for rows in np.split(order[: ends[-1]], ends[:-1])]


def searched(model, X, y, every):
    """Return the log losses of the grid on validation rows, (N, τ), and the best N / n and τ."""
    scales, taus = N_OVER_ROWS[::every], TAU[::every]
    losses = np.empty((len(scales), len(taus)))
    for (i, scale), (j, tau) in itertools.product(enumerate(scales), enumerate(taus)):
        model.refit_laplace(temperature=1 / scale, prior_precision=tau)
        losses[i, j] = log_loss(y, model.predict_proba(X), labels=model.classes_)
    i, j = np.unravel_index(losses.argmin(), losses.shape)
    return losses, scales[i], taus[j]


def scores(p, y, p_outside):
    """Return the values of ``COLUMNS``."""
    both = np.concatenate([entropy(p), entropy(p_outside)])
    return [
        np.mean(p.argmax(axis=1) == y),
        log_loss(y, p, labels=range(p.shape[1])),
        *(expected_calibration_error(y, p, n_bins=N_BINS, strategy=s, labels=range(10)) for s in STRATEGIES),
        roc_auc_score(np.arange(len(both)) >= len(p), both),
        p.max(axis=1).mean(),
    ]


def one_split(rows, outside, decay, every, seed):
    """Train, search, and predict with the MAP and with the tuned, the untuned and the collapsed posterior.

    Return a dict of probabilities for test rows, one for other pictures, and the result of the search.
    """
    (X_fit, y_fit), (X_search, y_search), (X_test, _) = rows
    with warnings.catch_warnings(action="ignore"):
        untuned = LaplaceClassifier(
            activation="relu",
            hessian_structure="kron",
            map_prior_precision=decay,
            prior_precision=decay,
            link="probit",
            random_state=seed,
        ).fit(X_fit, y_fit)
        losses, scale, tau = searched(copy.deepcopy(untuned), X_search, y_search, every)
        models = {name: copy.deepcopy(untuned) for name in METHODS}
        models["MAP"].refit_laplace(link="plugin")
        models["Laplace"].refit_laplace(temperature=1 / scale, prior_precision=tau)
        models["collapsed"].refit_laplace(prior_precision=COLLAPSED)
    p, p_outside = ({name: m.predict_proba(at) for name, m in models.items()} for at in (X_test, outside))
    return p, p_outside, (losses, scale, tau)


def draw(run, p, p_outside, y, losses, every):
    """Draw reliability, confidence and entropy of the last split, and the losses of the search."""
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.6), layout="constrained")
    colours = {"MAP": "tab:orange", "Laplace": "tab:blue"}
    for axis, strategy, title in zip(axes[0], STRATEGIES, ("equal width", "equal count"), strict=False):
        axis.plot([0, 1], [0, 1], color="0.5", lw=1, ls="--")
        for name, colour in colours.items():
            bins = reliability_bins(*judged_confidence(y, p[name], range(10)), n_bins=N_BINS, strategy=strategy)
            axis.plot(bins.confidence, bins.frequency, "o-", color=colour, label=f"{name}, ECE {bins.error:.3f}")
        axis.set(title=f"reliability, bins of {title}", xlabel="mean confidence", ylabel="share that is right")
        axis.legend(loc="upper left")
    scales, taus = N_OVER_ROWS[::every], TAU[::every]
    drawn = axes[0, 2].pcolormesh(taus, scales, losses, cmap="viridis_r", norm="log")
    i, j = np.unravel_index(losses.argmin(), losses.shape)
    axes[0, 2].plot(taus[j], scales[i], "r*", ms=14)
    axes[0, 2].set(xscale="log", yscale="log", title="log loss of validation rows, nats", xlabel="τ", ylabel="N / rows")
    figure.colorbar(drawn, ax=axes[0, 2])
    bins = np.linspace(0, 1, 21)
    for name, colour in colours.items():
        axes[1, 0].hist(p[name].max(axis=1), bins, histtype="step", lw=2, color=colour, label=name)
    axes[1, 0].set(
        title="confidence", xlabel="probability of the most probable class", ylabel="test rows", yscale="log"
    )
    axes[1, 0].legend(loc="upper left")
    bins = np.linspace(0, np.log(10), 25)
    for axis, name in zip(axes[1, 1:], colours, strict=True):
        for rows, label, alpha in ((p[name], "digits", 0.9), (p_outside[name], "other pictures", 0.5)):
            axis.hist(entropy(rows), bins, density=True, alpha=alpha, label=label)
        axis.set(title=f"entropy, {name}", xlabel="nats (ln 10 = 2.30)", ylabel="density", ylim=(0, 4))
        axis.legend()
    run.save(figure)


def main():
    run = Experiment("plot_15_classifier_calibration", __doc__, CLAIMS)
    X, y, outside = bundled(run.seed) if run.data is None else larger(run.data)
    sizes = (100, 100, 200) if run.quick else (300, 300, 1197) if run.data is None else (2000, 1000, 5000)
    outside = outside[:: 10 if run.quick else 1]
    n_splits, every = (1, 3) if run.quick else (5, 1)
    run.choose(
        "digits and patches of photographs, bundled with scikit-learn" if run.data is None else "MNIST and garments",
        f"{sizes[0]} rows for training, {sizes[1]} for the search, {sizes[2]} for testing; means over {n_splits} "
        "random "
        "splits",
        f"one hidden layer of 50 ReLU units, trained under a prior precision of {DECAYS['']:g}, almost no decay, "
        f"since the source's nets were trained without; and {DECAYS['strong decay: ']:g} for comparison",
        "Kronecker factors, linearised net, probit",
        f"the search: N / n and τ from {TAU[0]:g} to {TAU[-1]:g}, by the log density of validation rows; untuned: N = "
        "n and τ as in training",
        f"{N_BINS} bins; collapsed: N = n, τ = {COLLAPSED:g}",
    )
    measured = {}
    for label, decay in DECAYS.items():
        results, n_at_map = {name: [] for name in METHODS}, 0
        for split in range(n_splits):
            rows = parts(X, y, *sizes, run.seed + split)
            p, p_outside, search = one_split(rows, outside, decay, every, run.seed + split)
            for name, each in results.items():
                each.append(scores(p[name], rows[2][1], p_outside[name]))
            distance = np.abs(p["Laplace"] - p["MAP"]).max()
            n_at_map += distance < AT_THE_MAP
            print(f"{label}split {split}: N / n = {search[1]:g}, τ = {search[2]:g}, {distance:.4f} from the MAP")
        means = {name: np.mean(each, axis=0) for name, each in results.items()}
        title = f"Test rows, mean over {n_splits}, prior precision {decay:g} in training"
        run.table(title, COLUMNS, means, 4)
        for name, values in means.items():
            if name != "Laplace, untuned":
                measured |= {f"{label}{name}, {column}": v for column, v in zip(COLUMNS, values, strict=True)}
        measured[f"{label}searches that ended at the MAP"] = n_at_map
        if not label:
            draw(run, p, p_outside, rows[2][1], search[0], every)
    run.judge(measured)


if __name__ == "__main__":
    main()
