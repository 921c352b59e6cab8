"""Every display, on small data that need no download
=====================================================

One picture for each display of ``sklearn_laplace.plotting``.

1. ``PredictionIntervalDisplay``: a curve with a gap in its data, and diabetes, whose rows have ten columns.
2. ``CoverageDisplay``: do the intervals for diabetes have their nominal coverage?
3. ``ReliabilityDisplay``: is a classifier of handwritten digits right as often as its confidence states?
4. ``UncertaintyDisplay``: on noisy moons, do errors coincide with uncertainty, and how large is its epistemic part?
5. ``EntropyDisplay``: entropies of test digits 0 to 4, the training classes, and of digits 5 to 9, which are new.
6. ``PriorPathDisplay``: evidence and leave-one-out density as functions of the prior precision.
7. ``FeatureRelevanceDisplay``: the relevance of ten columns, each with a separate prior precision. The target depends
   on the first five.
8. ``OverviewDisplay``, the result of ``LaplaceRegressor.plot``: intervals, calibration and relevance for diabetes.

Run ``python examples/1_quickstart/plot_gallery.py``. With ``--quick`` it uses fewer rows; ``--out DIR`` sets the folder
of the pictures (default: the current folder). The table at the end lists numbers that the displays hold as attributes.
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes, load_digits, make_friedman1, make_moons
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.plotting import (
    CoverageDisplay,
    EntropyDisplay,
    FeatureRelevanceDisplay,
    PredictionIntervalDisplay,
    PriorPathDisplay,
    ReliabilityDisplay,
    UncertaintyDisplay,
)

KNOWN = 5  # digits below this are the training classes


def curve_with_a_gap(n):
    """Return X (n, 1) and y (n,) of a noisy sine without inputs between −2 and 2."""
    rng = np.random.default_rng(0)
    x = rng.uniform(2.0, 5.0, n) * np.where(np.arange(n) % 2, 1.0, -1.0)
    return x[:, None], np.sin(1.3 * x) + 0.2 * x + 0.25 * rng.normal(size=n)


def digits(n_train):
    """Return training and test rows of the training classes, and X of the other digits."""
    X, y = load_digits(return_X_y=True)
    known = y < KNOWN
    X_train, X_test, y_train, y_test = train_test_split(
        X[known], y[known], train_size=n_train, random_state=0, stratify=y[known]
    )
    return X_train, X_test, y_train, y_test, X[~known]


def regression_displays(quick):
    """Return the displays of regressors by name."""
    X_gap, y_gap = curve_with_a_gap(60 if quick else 150)
    table = load_diabetes(as_frame=True)
    rows = train_test_split(table.data, table.target, train_size=150 if quick else 300, random_state=0)
    X_train, X_test, y_train, y_test = rows
    curve = LaplaceRegressor(random_state=0).fit(X_gap, y_gap)
    model = LaplaceRegressor(random_state=0).fit(X_train, y_train)
    by_evidence = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", n_members=1, random_state=0)
    ard = LaplaceRegressor(prior="ard", prior_precision="evidence", sigma_noise="evidence", n_members=1, random_state=0)
    _, axes = plt.subplots(1, 2, figsize=(13, 4.4), layout="constrained")
    displays = {"prediction_interval": PredictionIntervalDisplay.from_estimator(curve, X_gap, y_gap, ax=axes[0])}
    axes[0].set_title("one column: a gap in the data")
    PredictionIntervalDisplay.from_estimator(model, X_test[:60], y_test[:60], ax=axes[1])
    axes[1].set_title("diabetes: 60 test rows")
    displays["coverage"] = CoverageDisplay.from_estimator(model, X_test, y_test)
    displays["overview"] = model.plot(X_test, y_test)
    displays["prior_path"] = PriorPathDisplay.from_estimator(by_evidence.fit(X_train, y_train))
    ard.fit(*make_friedman1(100 if quick else 200, noise=1.0, random_state=0))
    displays["feature_relevance"] = FeatureRelevanceDisplay.from_estimator(ard, name="Friedman's first function")
    return displays


def classification_displays(quick):
    """Return the displays of classifiers by name."""
    X_train, X_test, y_train, y_test, X_other = digits(100 if quick else 200)
    model = make_pipeline(StandardScaler(), LaplaceClassifier(hidden_layer_sizes=(20,), n_members=1, random_state=0))
    model.fit(X_train, y_train)
    X_moons, y_moons = make_moons(1200, noise=0.35, random_state=0)
    moons = LaplaceClassifier(n_members=1, random_state=0).fit(X_moons[:100], y_moons[:100])
    return {
        "reliability": ReliabilityDisplay.from_estimator(model, X_test, y_test),
        "uncertainty": UncertaintyDisplay.from_estimator(moons, X_moons[100:], y_moons[100:]),
        "entropy": EntropyDisplay.from_estimator(model, X_test, y_test, X_out=X_other),
    }


def figures(displays):
    """Return the numbers that summarise the pictures, by name."""
    return {
        "share inside .95 intervals": displays["prediction_interval"].coverage[-1],
        "mean gap of the coverage": displays["coverage"].gap,
        "expected calibration error": displays["reliability"].error,
        "error rate on the moons": displays["uncertainty"].error,
        "mean of the retention curve": displays["uncertainty"].area["total"],
        "AUROC, unseen digits": displays["entropy"].area_out,
        "prior precision of the fit": displays["prior_path"].chosen,
        "largest relevance": displays["feature_relevance"].relevance.max(),
    }


def main():
    """Parse the options, draw, print the table, save the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    displays = regression_displays(options.quick) | classification_displays(options.quick)
    print("\nFigures of the displays\n" + f"{'':30}{'value':>12}")
    for name, value in figures(displays).items():
        print(f"{name:30}{value:12.3f}")
    print()
    for name, display in displays.items():
        path = options.out / f"gallery_{name}.png"
        display.figure_.savefig(path, dpi=100)
        plt.close(display.figure_)
        print(f"saved {path}")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
