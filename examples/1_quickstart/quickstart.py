"""Quickstart: what the error bars of a Laplace-approximated net are worth
==========================================================================

On small data that need no download.

Three questions, each answered by a table, and two of them also by a picture:

1. Regression on diabetes: is the predictive density better than that of the same net with a constant error bar? How
   does it compare with Bayesian linear regression?
2. A curve with a gap in its data: are the error bars honest on the data, and do they widen in the gap (ratio of the
   epistemic standard deviations)?
3. Classification on breast cancer and two moons: are the probabilities better than those of the same net without its
   posterior (``link="plugin"``), and than those of logistic regression?

Run ``python examples/1_quickstart/quickstart.py``. With ``--quick`` it runs fewer repetitions; ``--out DIR`` sets the
folder of the pictures (default: the current folder).
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_diabetes, make_moons
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

Z90 = norm.ppf(0.95)  # half-width of the central 90 % interval, in standard deviations
GAP = (-2.0, 2.0)  # interval without training inputs of the curve
NOISE = 0.25  # standard deviation of the curve's noise
BLUE, ORANGE, BLACK, GREY = "#0072B2", "#E69F00", "#000000", "#999999"  # Okabe and Ito: safe for colour-blind readers


# ---------------------------------------------------------------------- 1. regression


def diabetes_scores(n_splits):
    """Mean RMSE, log-likelihood per row and 90 % coverage over 70/30 splits, one row a method."""
    X, y = load_diabetes(return_X_y=True)
    scores = {"LaplaceRegressor()": [], "its mean, residual sigma": [], "BayesianRidge()": []}
    for seed in range(n_splits):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=seed)
        laplace = LaplaceRegressor(random_state=seed).fit(X_train, y_train)
        ridge = BayesianRidge().fit(X_train, y_train)
        residual_sigma = np.sqrt(np.mean((y_train - laplace.predict(X_train)) ** 2))
        predictions = (
            laplace.predict(X_test, return_std=True),
            (laplace.predict(X_test), np.full(len(y_test), residual_sigma)),
            ridge.predict(X_test, return_std=True),
        )
        for rows, (mean, std) in zip(scores.values(), predictions, strict=True):
            rmse = np.sqrt(np.mean((y_test - mean) ** 2))
            rows.append((rmse, norm(mean, std).logpdf(y_test).mean(), coverage(y_test, mean, std)))
    return {name: np.mean(rows, axis=0) for name, rows in scores.items()}


def coverage(y, mean, std):
    """Share of targets inside the central 90 % interval."""
    return np.mean(np.abs(y - mean) <= Z90 * std)


# ---------------------------------------------------------------------- 2. a curve with a gap


def true_curve(x):
    """Noise-free function of the second part."""
    return np.sin(1.3 * x) + 0.2 * x


def draw_curve(n, rng):
    """n noisy points on the curve, left and right of the gap."""
    x = rng.uniform(GAP[1], 5.0, n) * np.where(np.arange(n) % 2, 1.0, -1.0)
    return x[:, None], true_curve(x) + NOISE * rng.normal(size=n)


def gap_scores(n_draws, picture):
    """Coverage on the data and widening of the epistemic error bar in the gap; draws the first fit."""
    rows = []
    for seed in range(n_draws):
        rng = np.random.default_rng(seed)
        X, y = draw_curve(150, rng)
        X_test, y_test = draw_curve(1000, rng)
        model = LaplaceRegressor(random_state=seed).fit(X, y)
        on_data = model.predict_std(X_test, kind="epistemic").mean()
        in_gap = model.predict_std([[np.mean(GAP)]], kind="epistemic")[0]
        in_range = coverage(y_test, *model.predict(X_test, return_std=True))
        rows.append((in_range, model.sigma_noise_, on_data, in_gap, in_gap / on_data))
        if seed == 0:
            draw_gap(model, X, y, picture)
    return {"LaplaceRegressor()": np.mean(rows, axis=0)}


def draw_gap(model, X, y, path):
    """Data, mean, bands of total and epistemic uncertainty, and the true curve."""
    x = np.linspace(-6.5, 6.5, 400)
    mean, total = model.predict(x[:, None], return_std=True)
    epistemic = model.predict_std(x[:, None], kind="epistemic")
    fig, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    ax.axvspan(*GAP, color=GREY, alpha=0.18, lw=0)
    ax.text(np.mean(GAP), 0.97, "no data", transform=ax.get_xaxis_transform(), ha="center", va="top", color="#555555")
    ax.fill_between(x, mean - Z90 * total, mean + Z90 * total, color=BLUE, alpha=0.2, lw=0, label="90 %, total")
    low, high = mean - Z90 * epistemic, mean + Z90 * epistemic
    ax.fill_between(x, low, high, color=BLUE, alpha=0.45, lw=0, label="90 %, epistemic")
    ax.plot(x, mean, color=BLUE, lw=2, label="mean")
    ax.plot(x, true_curve(x), color=BLACK, lw=1.5, ls="--", label="true curve")
    ax.scatter(X[:, 0], y, s=12, color=ORANGE, edgecolor=BLACK, linewidth=0.3, zorder=3, label="training data")
    ax.set(
        xlabel="x",
        ylabel="y",
        xlim=(x[0], x[-1]),
        title="LaplaceRegressor() on a curve with a gap",
    )
    ax.margins(y=0.1)
    ax.legend(loc="upper left", fontsize=9, framealpha=0.9)
    fig.savefig(path, dpi=100)
    plt.close(fig)


# ---------------------------------------------------------------------- 3. classification


def moons(n, seed):
    """Two moons with noise .2."""
    return make_moons(n, noise=0.2, random_state=seed)


def fitted_classifiers(seed, X, y):
    """Three fitted methods in turn; the second is the first after a change of its link, with the same weights."""
    model = LaplaceClassifier(random_state=seed).fit(X, y)
    yield "LaplaceClassifier()", model
    yield 'same fit, link="plugin"', model.refit_laplace(link="plugin")
    yield "LogisticRegression()", make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)


def classification_scores(n_splits, data, train_size):
    """Mean accuracy, log-loss and calibration error over splits; ``data(seed)`` gives X and y."""
    scores = {}
    for seed in range(n_splits):
        X, y = data(seed)
        X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=train_size, random_state=seed, stratify=y)
        for name, model in fitted_classifiers(seed, X_train, y_train):
            p, right = model.predict_proba(X_test), model.predict(X_test) == y_test
            scores.setdefault(name, []).append(
                (right.mean(), log_loss(y_test, p), calibration_error(p.max(axis=1), right))
            )
    return {name: np.mean(rows, axis=0) for name, rows in scores.items()}


def calibration_error(confidence, right, n_bins=10):
    """Expected calibration error: |accuracy − confidence| in equal-width bins of the top class's probability."""
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = [abs(np.sum(right[bins == b]) - np.sum(confidence[bins == b])) for b in range(n_bins)]
    return np.sum(gaps) / len(right)


def draw_moons(path):
    """Probability of class 1 far from the moons: plugin link against moderated link."""
    X, y = moons(200, 0)
    x1, x2 = np.meshgrid(np.linspace(-7, 8, 160), np.linspace(-6, 6.5, 160))
    grid = np.column_stack([x1.ravel(), x2.ravel()])
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True, layout="constrained")
    titles = {"plugin": 'MAP only, link="plugin"', "moderated": 'Laplace, link="moderated" (default)'}
    model = LaplaceClassifier(random_state=0).fit(X, y)
    for ax, (link, title) in zip(axes, titles.items(), strict=True):
        p = model.refit_laplace(link=link).predict_proba(grid)[:, 1].reshape(x1.shape)
        image = ax.pcolormesh(x1, x2, p, cmap="PuOr_r", vmin=0, vmax=1, shading="gouraud")
        ax.contour(x1, x2, p, [0.05, 0.5, 0.95], colors=BLACK, linewidths=[0.8, 1.6, 0.8], linestyles=["--", "-", "--"])
        for label, marker, color in ((0, "o", "#B2ABD2"), (1, "^", "#FDB863")):
            points = {"marker": marker, "color": color, "edgecolor": BLACK, "linewidth": 0.4, "label": f"class {label}"}
            ax.scatter(*X[y == label].T, s=12, **points)
        ax.set(xlabel="feature 1", title=title)
    axes[0].set_ylabel("feature 2")
    axes[0].legend(loc="lower left", fontsize=9)
    fig.colorbar(image, ax=axes, label="probability of class 1", ticks=[0, 0.25, 0.5, 0.75, 1])
    fig.suptitle("Two moons from afar; lines at probabilities .05, .5 and .95")
    fig.savefig(path, dpi=100)
    plt.close(fig)


# ---------------------------------------------------------------------- the run


def print_table(title, columns, rows):
    """Plain text, one row a method, three decimals."""
    print(f"\n{title}\n{'':26}" + "".join(f"{column:>16}" for column in columns))
    for name, values in rows.items():
        print(f"{name:26}" + "".join(f"{value:16.3f}" for value in values))


def main():
    """Parse the options, print the tables, save the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for the two pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    n = 1 if options.quick else 5
    gap_picture, moons_picture = options.out / "quickstart_gap.png", options.out / "quickstart_moons.png"
    started = time.perf_counter()

    regression = ("RMSE", "log-lik. / row", "90 % coverage")
    print_table(f"Diabetes, 70/30 splits, mean over {n}", regression, diabetes_scores(n))

    curve = ("90 % coverage", "noise std", "epist. on data", "epist. mid-gap", "ratio")
    print_table(f"Curve with a gap, noise std {NOISE}, mean over {n}", curve, gap_scores(n, gap_picture))

    classes = ("accuracy", "log-loss", "ECE")
    cancer = classification_scores(n, lambda seed: load_breast_cancer(return_X_y=True), 0.7)
    print_table(f"Breast cancer, 70/30 splits, mean over {n}", classes, cancer)
    print_table(f"Two moons, 200 rows, mean over {n}", classes, classification_scores(n, lambda s: moons(1200, s), 200))

    draw_moons(moons_picture)
    print(f"\nsaved {gap_picture}\nsaved {moons_picture}\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
