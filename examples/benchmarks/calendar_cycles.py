"""Dates encoded as cycles, as day numbers, or omitted: R² and log-likelihood of default fits on new rows.

Usage::

    python examples/benchmarks/calendar_cycles.py

The times are drawn from 800 days. In one case, the target has a pattern by hour, another level at weekends and a yearly
wave. In the other case, it has none of these effects. In both cases, the target also depends on a numeric column.
Requires pandas.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from sklearn_laplace import LaplaceRegressor

SPAN = 800


def table(rng: np.random.Generator, n: int, *, has_pattern: bool) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with a time and a number, and their targets (n,)."""
    when = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.uniform(0, SPAN, n), unit="D")
    number = rng.normal(size=n)
    pattern = 2 * np.sin(2 * np.pi * when.hour / 24) + 1.5 * (when.day_of_week >= 5)
    pattern = pattern + np.cos(2 * np.pi * when.day_of_year / 365)
    return pd.DataFrame({"when": when, "number": number}), number + has_pattern * pattern + 0.5 * rng.normal(size=n)


def main() -> None:
    """Print a line for each number of rows, pattern and use of the dates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 rows only")
    sizes = (300,) if parser.parse_args().quick else (300, 1500)
    print(f"{'rows':>5}  {'pattern':7}  {'dates':12}{'R²':>7}{'log-lik.':>10}")
    for n in sizes:
        for has_pattern in (True, False):
            rng = np.random.default_rng(n)
            X, y = table(rng, 2 * n, has_pattern=has_pattern)
            days = (X.when - X.when.min()) / pd.Timedelta(1, "D")
            for name, rows in {"cycles": X, "day numbers": X.assign(when=days), "left out": X[["number"]]}.items():
                model = LaplaceRegressor(random_state=0).fit(rows[:n], y[:n])
                density = model.predict_dist(rows[n:]).logpdf(y[n:]).mean()
                pattern = "yes" if has_pattern else "no"
                print(f"{n:5}  {pattern:7}  {name:12}{model.score(rows[n:], y[n:]):7.3f}{density:10.3f}", flush=True)


if __name__ == "__main__":
    main()
