"""The first hour: two tables as they come
=========================================

This script leads from two CSV files to intervals that can be trusted, step by step. It prints the result of each step.

1. Bike rentals per hour. The date is text, and some cells hold "?". The first fit issues warnings that name the remedy;
   the second fit issues none. The next steps list how each column is read, report and draw held-out predictions,
   compute intervals, save the model, and cross-validate.
2. Prices of diamonds, which are positive and skewed. A transformation keeps their intervals above zero.

Run ``python examples/1_quickstart/first_hour.py``. The tables are simulated, with the columns of two public tables
(``stand_ins.py``), so that nothing is downloaded. With ``--data DIR`` the script reads samples of the public tables:
``bike_sharing_hourly.csv`` (hour.csv of *Bike Sharing*, UCI Machine Learning Repository) and ``diamonds.csv`` (of the R
package ggplot2), also as ``.csv.gz``. Neither table has "?" cells; the script adds such cells to the column ``hum``.
With ``--quick`` it uses fewer rows and one net; ``--out DIR`` sets the folder for pictures and model files (default:
the current folder).
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pandas as pd
from sklearn.model_selection import KFold, train_test_split
from stand_ins import bike, diamonds

from sklearn_laplace import LaplaceRegressor, load, metrics, save

LOST = 40  # every 40th humidity is missing


def step(text):
    """Print the heading of a step."""
    print(f"\n--- {text}")


def fitted(model, X, y):
    """Return the fitted model, and print its warnings without their source lines."""
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        model.fit(X, y)
    for warning in issued:
        print(f"{warning.category.__name__}: {warning.message}")
    return model


# ---------------------------------------------------------------------- the files


def write_files(folder, data, n_rows):
    """Write two CSV files of at most n_rows rows: samples of the tables in ``data``, or simulated tables."""
    made = {"bike_sharing_hourly": bike, "diamonds": diamonds}
    for name, draw in made.items():
        if data is None:
            table = draw(n_rows)
        else:
            path = next(data / f"{name}{end}" for end in (".csv", ".csv.gz") if (data / f"{name}{end}").exists())
            table = pd.read_csv(path)
            table = table.sample(min(n_rows, len(table)), random_state=0).sort_index()
        if name == "bike_sharing_hourly":
            table["hum"] = [value if k % LOST else "?" for k, value in enumerate(table["hum"])]
        table.to_csv(folder / f"{name}.csv", index=False)


# ---------------------------------------------------------------------- bike rentals


def bike_rentals(path, out, n_folds, settings):
    """Print the steps for the first table."""
    step("read the file as it is")
    table = pd.read_csv(path)
    print(table.iloc[:3, :12].to_string(index=False))
    # "casual" and "registered" add up to the target "cnt", so they have to be removed
    X, y = table.drop(columns=["cnt", "casual", "registered"]), table["cnt"]
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

    step("fit: each warning names the column and the cure")
    model = fitted(LaplaceRegressor(**settings), X_train, y_train)
    print(f"R2 on held-out rows: {model.score(X_test, y_test):.2f}")

    step("apply the two cures, and fit again with verbose=1")
    table = pd.read_csv(path, na_values=["?"], parse_dates=["dteday"])
    X = table.drop(columns=["cnt", "casual", "registered"])
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = fitted(LaplaceRegressor(**settings, verbose=1), X_train, y_train)
    print(f"R2 on held-out rows: {model.score(X_test, y_test):.2f}")

    step("what the net reads of each column")
    print(model.table_)

    step("are the predictions good, and are the intervals right?")
    print(model.report(X_test, y_test))
    model.plot(X_test, y_test).figure_.savefig(out / "first_hour_bike.png", dpi=100)
    print(f"saved {out / 'first_hour_bike.png'}")

    step("predict three hours with 90 % intervals")
    mean, interval = model.predict_interval(X_test.head(3), confidence_level=0.9)
    low, high = interval.round().T
    shown = X_test.head(3)[["dteday", "hr"]].assign(mean=mean.round(), low=low, high=high, cnt=y_test.head(3))
    print(shown.to_string(index=False))

    step("save and load")
    save(model, out / "first_hour_bike.safetensors")
    again = load(out / "first_hour_bike.safetensors")
    print("equal predictions:", np.array_equal(again.predict(X_test), model.predict(X_test)))

    step(f"scores of {n_folds} folds")
    # Shuffled, because the rows are sorted by time: folds of consecutive rows would score forecasts of new months.
    folds = KFold(n_folds, shuffle=True, random_state=0)
    scores = metrics.cross_validate_distribution(LaplaceRegressor(**settings), X, y, cv=folds)
    print(scores[["log_density", "crps", "rmse", "coverage_90", "fit_time"]].round(2).to_string())


# ---------------------------------------------------------------------- prices of diamonds


def prices_of_diamonds(path, out, settings):
    """Print the steps for the second table."""
    step("read the file as it is")
    table = pd.read_csv(path)
    print(table.head(3).to_string(index=False))
    X, y = table.drop(columns="price"), table["price"]
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    print(f"price: median {y.median():.0f}, mean {y.mean():.0f}, largest {y.max()}")

    step("fit: text columns become categories")
    model = fitted(LaplaceRegressor(**settings), X_train, y_train)
    print(model.table_)

    step("are the predictions good, and are the intervals right?")
    print(model.report(X_test, y_test))

    step("keep the intervals above zero, if that predicts no worse")
    for transform in (None, "log"):
        if transform is not None:
            model = fitted(LaplaceRegressor(**settings, target_transform=transform), X_train, y_train)
        density = model.log_predictive_density(X_test, y_test).mean()
        lower = model.predict_interval(X_test, confidence_level=0.99)[1][:, 0]
        print(f"target_transform={transform!r}: log density {density:.2f},")
        print(f"    lower ends of 99% intervals from {lower.min():.0f}, {(lower < 0).sum()} of {len(lower)} below zero")
    model.plot(X_test, y_test, feature="carat").figure_.savefig(out / "first_hour_diamonds.png", dpi=100)
    print(f"saved {out / 'first_hour_diamonds.png'}")


def main():
    """Parse the options and walk through both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and one net")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for pictures and model files")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the two public tables")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    settings = {"random_state": 0, "n_members": 1 if options.quick else "auto"}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), options.data, 160 if options.quick else 2000)
        print("=== bike rentals per hour")
        bike_rentals(Path(folder) / "bike_sharing_hourly.csv", options.out, 2 if options.quick else 5, settings)
        print("\n=== prices of diamonds")
        prices_of_diamonds(Path(folder) / "diamonds.csv", options.out, settings)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
