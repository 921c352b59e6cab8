"""Quickstart: what Laplace-approximated nets are good at, in five parts
======================================================================

Five questions on small data that need no download, each answered by a table:

1. Regression on a nonlinear function (Friedman's): are mean and error bars better than those of boosting (with a
   constant error bar) and Bayesian linear regression?
2. Classification with text columns and missing values: are the probabilities better than those of boosting, and of
   logistic regression with one-hot columns? ``LaplaceClassifier`` gets the table without preprocessing.
3. A curve with a gap in its data: do the error bars have their nominal coverage, and do they widen in the gap?
   (picture)
4. Two moons from afar: how confident is the classifier far from the data, with and without its posterior
   (``link="plugin"``)? (picture)
5. A net of your own, trained by skorch: does it work in a grid search over a pipeline?

Run ``python examples/1_quickstart/quickstart.py``. With ``--quick`` it fits fewer rows; ``--out DIR`` sets the folder
for the pictures (default: the current folder). Seconds are processor time on one thread, and ± marks two standard
errors.
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_friedman1, make_moons
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from skorch import NeuralNetRegressor
from threadpoolctl import threadpool_limits
from torch import manual_seed, nn, optim

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics, predict_std

Z90 = norm.ppf(0.95)  # half-width of the central 90 % interval, in standard deviations
N_NEW = 2000  # held-out rows
GAP = (-2.0, 2.0)  # interval without training inputs of the curve
NOISE = 0.25  # standard deviation of the curve's noise
TEXT, NUMBERS = [3, 4, 5], [0, 1, 2]  # columns of the second part
BLUE, ORANGE, BLACK, GREY = "#0072B2", "#E69F00", "#000000", "#999999"  # Okabe and Ito: safe for colour-blind readers


# ---------------------------------------------------------------------- 1. regression


def boosted(X, y):
    """Return a predictor by boosting, whose std for all rows is the RMS of its cross-validated errors."""
    model = HistGradientBoostingRegressor(random_state=0)
    std = np.sqrt(np.mean((y - cross_val_predict(model, X, y, cv=5)) ** 2))
    model.fit(X, y)
    return lambda X_new: (model.predict(X_new), np.full(len(X_new), std))


def with_std(model, X, y):
    """Fit the model, and return a function that predicts mean and standard deviation."""
    model.fit(X, y)
    return lambda X_new: model.predict(X_new, return_std=True)


def regression(n):
    """Compare log-likelihood per row, RMSE, coverage and seconds on Friedman's function, with noise std 1."""
    X, y = make_friedman1(n + N_NEW, noise=1.0, random_state=0)
    fits = {
        "LaplaceRegressor()": lambda: with_std(LaplaceRegressor(random_state=0), X[:n], y[:n]),
        "HistGradientBoosting": lambda: boosted(X[:n], y[:n]),
        "BayesianRidge()": lambda: with_std(BayesianRidge(), X[:n], y[:n]),
    }
    rows, scores = {}, {}
    for name, fit in fits.items():
        predict, seconds = timed(fit)
        mean, std = predict(X[n:])
        scores[name] = norm(mean, std).logpdf(y[n:])
        rmse = np.sqrt(np.mean((y[n:] - mean) ** 2))
        rows[name] = (scores[name].mean(), rmse, coverage(y[n:], mean, std), seconds)
    print_table(f"Friedman's function, {n} rows", ("log-lik. / row", "RMSE", "90 % coverage", "seconds"), rows)
    print_gains(scores)


def coverage(y, mean, std):
    """Return the share of targets inside the central 90 % interval."""
    return np.mean(np.abs(y - mean) <= Z90 * std)


# ---------------------------------------------------------------------- 2. classes with text columns


def customers(n):
    """Return X (n, 6) and y (n,) of n customers; a twentieth of the values in two columns is missing.

    The columns are age, income, hours, plan, channel and town (30 levels). X has the type object, because pandas is
    optional. A data frame works as well.
    """
    rng = np.random.default_rng(0)
    age, log_income, hours = rng.uniform(18, 80, n), rng.normal(10.0, 0.6, n), rng.uniform(0, 40, n)
    levels = [rng.integers(0, k, n) for k in (3, 5, 30)]
    names = ("plan", "channel", "town")
    text = [[f"{name} {level}" for level in column] for name, column in zip(names, levels, strict=True)]
    smooth = 2 * np.sin(age / 10) + 2 * (log_income - 10) / 0.6 * np.sin(hours / 10)
    by_level = sum(rng.normal(size=column.max() + 1)[column] for column in levels)
    bought = np.where(smooth + by_level + rng.logistic(size=n) > 0, "yes", "no")
    X = np.array([age, np.exp(log_income), hours, *text], dtype=object).T
    for column in (1, 4):
        X[rng.uniform(size=n) < 0.05, column] = None
    return X, bought


def classification(n):
    """Compare log loss, accuracy, calibration error and seconds."""
    X, y = customers(n + N_NEW)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    models = {
        "LaplaceClassifier()": LaplaceClassifier(random_state=0),
        "HistGradientBoosting": make_pipeline(
            make_column_transformer((codes, TEXT), remainder="passthrough"),
            HistGradientBoostingClassifier(categorical_features=[0, 1, 2], random_state=0),
        ),
        "LogisticRegression()": make_pipeline(
            make_column_transformer((OneHotEncoder(handle_unknown="ignore"), TEXT), (scaled, NUMBERS)),
            LogisticRegression(),
        ),
    }
    rows, scores = {}, {}
    for name, model in models.items():
        _, seconds = timed(lambda model=model: model.fit(X[:n], y[:n]))
        p, right = model.predict_proba(X[n:]), model.predict(X[n:]) == y[n:]
        scores[name] = np.log(np.where(y[n:] == "yes", p[:, 1], p[:, 0]))
        ece = metrics.expected_calibration_error(y[n:], p, labels=model.classes_)
        rows[name] = (-scores[name].mean(), right.mean(), ece, seconds)
    print_table(f"Classes with text columns, {n} rows", ("log loss", "accuracy", "ECE", "seconds"), rows)
    print_gains(scores)


# ---------------------------------------------------------------------- 3. a curve with a gap


def true_curve(x):
    """Return the noise-free function of the third part."""
    return np.sin(1.3 * x) + 0.2 * x


def draw_curve(n, rng):
    """Draw X (n, 1) and y (n,) on the noisy curve, left and right of the gap."""
    x = rng.uniform(GAP[1], 5.0, n) * np.where(np.arange(n) % 2, 1.0, -1.0)
    return x[:, None], true_curve(x) + NOISE * rng.normal(size=n)


def gap(n, picture):
    """Show coverage on the data, and how the epistemic error bar widens in the gap."""
    rng = np.random.default_rng(0)
    X, y = draw_curve(n, rng)
    X_new, y_new = draw_curve(N_NEW, rng)
    model, seconds = timed(lambda: LaplaceRegressor(random_state=0).fit(X, y))
    on_data = model.predict_std(X_new, kind="epistemic").mean()
    in_gap = model.predict_std([[np.mean(GAP)]], kind="epistemic")[0]
    inside = coverage(y_new, *model.predict(X_new, return_std=True))
    columns = ("90 % coverage", "noise std", "epist. on data", "epist. mid-gap", "ratio", "seconds")
    row = (inside, model.sigma_noise_, on_data, in_gap, in_gap / on_data, seconds)
    print_table(f"Curve with a gap, {n} rows, noise std {NOISE}", columns, {"LaplaceRegressor()": row})
    print(f"\nSee: in the gap the epistemic error bar is {in_gap / on_data:.0f} times as wide as on the data.")
    draw_gap(model, X, y, picture)
    print(f"saved {picture}")


def draw_gap(model, X, y, path):
    """Draw data, mean, bands of total and epistemic uncertainty, and the true curve."""
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
    ax.set(xlabel="x", ylabel="y", xlim=(x[0], x[-1]), title="LaplaceRegressor() on a curve with a gap")
    ax.margins(y=0.1)
    ax.legend(loc="upper left", fontsize=9, framealpha=0.9)
    fig.savefig(path, dpi=100)
    plt.close(fig)


# ---------------------------------------------------------------------- 4. two moons from afar


def far_away(X, distance):
    """Draw 500 rows in random directions, at ``distance`` standard deviations times √(number of columns)."""
    directions = np.random.default_rng(0).normal(size=(500, X.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return X.mean(axis=0) + distance * X.std(axis=0) * np.sqrt(X.shape[1]) * directions


def moons(n, picture):
    """Compare log loss near the data, and largest probabilities near and far, with and without the posterior."""
    X, y = make_moons(n, noise=0.2, random_state=0)
    X_new, y_new = make_moons(N_NEW, noise=0.2, random_state=1)
    model, seconds = timed(lambda: LaplaceClassifier(random_state=0).fit(X, y))
    places = X_new, far_away(X, 3), far_away(X, 10)
    rows = {}
    for name, link in (("LaplaceClassifier()", "moderated"), ('same fit, link="plugin"', "plugin")):
        p = [model.refit_laplace(link=link).predict_proba(place) for place in places]
        rows[name] = (log_loss(y_new, p[0]), *(each.max(axis=1).mean() for each in p), seconds)
    columns = ("log loss", "max p, data", "max p, 3 std", "max p, 10 std", "seconds")
    print_table(
        f"Two moons, {n} rows, mean of the largest probability p, at 3 and 10 std times root of columns", columns, rows
    )
    (loss, *_, far, _), (plugin_loss, *_, plugin_far, _) = rows.values()
    print(f"\nSee: far away the largest probability is {far:.2f}, without the posterior {plugin_far:.2f}.", end=" ")
    print(f"On the data the log loss is {loss:.3f} and {plugin_loss:.3f}.")
    draw_moons(model, X, y, picture)
    print(f"saved {picture}")


def draw_moons(model, X, y, path):
    """Draw the probability of class 1 far from the moons, under the plugin and the moderated link."""
    x1, x2 = np.meshgrid(np.linspace(-7, 8, 160), np.linspace(-6, 6.5, 160))
    grid = np.column_stack([x1.ravel(), x2.ravel()])
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True, layout="constrained")
    titles = {"plugin": 'MAP only, link="plugin"', "moderated": 'Laplace, link="moderated" (default)'}
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


# ---------------------------------------------------------------------- 5. a skorch net in a pipeline in a grid search


def search(n):
    """Compare prior precisions by log-likelihood in two folds, and print the held-out coverage of the best one."""
    X, y = make_friedman1(n + N_NEW, noise=1.0, random_state=0)
    manual_seed(0)  # for the initial weights
    layers = nn.Sequential(nn.Linear(10, 50), nn.Tanh(), nn.Linear(50, 1))
    net = NeuralNetRegressor(layers, max_epochs=60, lr=0.01, optimizer=optim.Adam, verbose=0)
    model = make_pipeline(StandardScaler(), LaplaceRegressor(net, random_state=0))
    grid = {"laplaceregressor__prior_precision": [1.0, 10.0, 100.0, "auto"]}
    found = GridSearchCV(model, grid, scoring=metrics.neg_nlpd, cv=2)
    _, seconds = timed(lambda: found.fit(X[:n], y[:n]))
    scores = found.cv_results_["mean_test_score"]
    rows = {f"prior_precision={p!r}": [s] for p, s in zip(*grid.values(), scores, strict=True)}
    print_table(f"A skorch net in a grid search, {n} rows, two folds", ("log-lik. / row",), rows)
    inside = coverage(y[n:], found.predict(X[n:]), predict_std(found, X[n:]))
    best = found.best_params_["laplaceregressor__prior_precision"]
    print(f"\nSee: best prior_precision {best!r}, held-out 90 % coverage {inside:.3f}, nine fits {seconds:.1f} s.")


# ---------------------------------------------------------------------- the run


def timed(fit):
    """Return the result of a fit, and its processor seconds."""
    started = time.process_time()
    return fit(), time.process_time() - started


def print_table(title, columns, rows):
    """Print plain text: one row per method, three decimals."""
    print(f"\n{title}\n{'':26}" + "".join(f"{column:>16}" for column in columns))
    for name, values in rows.items():
        print(f"{name:26}" + "".join(f"{value:16.3f}" for value in values))


def print_gains(scores):
    """Print the first model's mean gain in log-likelihood over each other model, ± two standard errors."""
    ours, *peers = scores
    said = []
    for peer in peers:
        gain = scores[ours] - scores[peer]
        margin = 2 * gain.std() / np.sqrt(len(gain))
        word = "level with" if abs(gain.mean()) <= margin else "better than" if gain.mean() > 0 else "worse than"
        said.append(f"{word} {peer} by {gain.mean():+.3f} ± {margin:.3f}")
    print(f"\nSee: in log-likelihood per row, {ours} is {', '.join(said)}.")


def main():
    """Parse the options, print the tables, save the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for the two pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    share = 0.3 if options.quick else 1.0
    parts = (
        lambda: regression(int(1000 * share)),
        lambda: classification(int(1000 * share)),
        lambda: gap(150, options.out / "quickstart_gap.png"),
        lambda: moons(200, options.out / "quickstart_moons.png"),
        lambda: search(int(500 * share)),
    )
    with threadpool_limits(1):  # nets and tables are so small that more threads would take longer
        total = 0.0
        for part in parts:
            _, seconds = timed(part)
            total += seconds
            print(f"{seconds:.1f} s for this part")
    print(f"\n{total:.0f} s in all")


if __name__ == "__main__":
    main()
