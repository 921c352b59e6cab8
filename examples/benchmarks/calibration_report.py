"""Calibration reports: how often each check fails for planted faults, and reports of models of several packages.

The first table shows how often each check fails in 500 reports on 1,000 rows, for the true normal distribution and for
planted faults. The second table has reports on Friedman's function with noise that varies. All models use their
defaults, with 500 training rows and 1,000 held-out rows. If the variance check fails, ``SigmaScaling`` is fitted to 500
further rows. Models of packages that are not installed are omitted. Nothing is selected on the held-out rows.

``python examples/benchmarks/calibration_report.py`` takes three minutes on one core and prints both tables.
``--quick`` uses 20 reports and only models of scikit-learn. ``--out DIR`` writes ``calibration_checks.csv`` and
``calibration_models.csv``. ``--figure FILE`` draws the report of the Gaussian process. ``--models`` skips the first
table.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.metrics import CalibrationReport, judged_rows
from sklearn_laplace.recalibration import SigmaScaling

N_ROWS, N_REPORTS, N_QUICK = 1000, 500, 20
N_FIT = 500
FAULTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "none": lambda z, X: z,
    "variance × 1.1": lambda z, X: 1.1**0.5 * z,
    "variance × 0.9": lambda z, X: 0.9**0.5 * z,
    "variance × 1.2": lambda z, X: 1.2**0.5 * z,
    "std × 1.5 for a quarter of the rows": lambda z, X: np.where(X[:, 0] > 0.75, 1.5, 1.0) * z,
    "bias of 0.15 std": lambda z, X: z + 0.15,
    "skewed errors": lambda z, X: (stats.gamma(8).ppf(stats.norm.cdf(z)) - 8) / 8**0.5,
}
"""Errors in predicted standard deviations, as functions of standard normal errors and X."""


def failures(fault: Callable[[np.ndarray, np.ndarray], np.ndarray], n_reports: int) -> dict[str, float]:
    """Share of the reports in which each check fails, by name."""
    failed: list[dict[str, bool]] = []
    for seed in range(n_reports):
        rng = np.random.default_rng(seed)
        X = rng.uniform(size=(N_ROWS, 4))
        mean, std = 3 * X[:, 1], np.exp(X[:, 2])
        y = mean + std * fault(rng.normal(size=N_ROWS), X)
        report = CalibrationReport.from_distribution(stats.norm(mean, std), y, X)
        marks = {name: pvalue < 0.05 for name, pvalue in report.checks.items()}
        failed.append(marks | {"any of them": any(marks.values()), "any, adjusted": report.is_off})
    return pd.DataFrame(failed).mean().to_dict()


def models(quick: bool) -> dict[str, Any]:
    """Unfitted regressors of this package and of others."""
    kernel = ConstantKernel() * RBF(np.ones(10)) + WhiteKernel()
    found = {
        "BayesianRidge": make_pipeline(StandardScaler(), BayesianRidge()),
        "Gaussian process": make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True)),
    }
    if quick:
        return found
    try:
        from ngboost import NGBRegressor

        found["NGBoost"] = NGBRegressor(verbose=False, random_state=0)
    except ImportError:
        print("without NGBoost, which is not installed")
    try:
        from catboost import CatBoostRegressor

        options = {"verbose": False, "random_seed": 0, "allow_writing_files": False, "thread_count": 1}
        found["CatBoost"] = CatBoostRegressor(loss_function="RMSEWithUncertainty", **options)
    except ImportError:
        print("without CatBoost, which is not installed")
    return found | {"LaplaceRegressor": LaplaceRegressor(random_state=0)}


def friedman(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of Friedman's function and targets; the noise std of 1 to 3 depends on a sixth column."""
    X, y = make_friedman1(n, noise=0.0, random_state=seed)
    noise = (1 + 2 * X[:, 5]) * np.random.default_rng(seed).normal(size=n)
    return pd.DataFrame(X, columns=[f"x{k}" for k in range(10)]), y + noise


def reported(name: str, report: CalibrationReport) -> dict[str, object]:
    """Row of the table of models."""
    failed = [check for check, pvalue in report.checks.items() if pvalue < 0.05]
    at_90 = next(entry for entry in report.coverage if entry.name == "90% intervals")
    worst, spread, crps = report.groups.worst, report.spread, report.crps
    return {
        "model": name,
        "variance ratio": f"{spread.ratio:.2f} ({spread.low:.2f} to {spread.high:.2f})",
        "covered by 90 %": f"{at_90.observed:.3f}",
        "worst group": f"{worst.observed:.2f}, {worst.name}",
        "CRPS": f"{crps.score:.3f}",
        "miscalibration (by chance)": f"{crps.miscalibration:.3f} ({crps.expected:.3f})",
        "discrimination": f"{crps.discrimination:.3f}",
        "failed checks": ", ".join(failed) or "none",
    }


def written(rows: Iterable[dict[str, object]], path: Path | None) -> None:
    """Print rows as a table, and write them to a file."""
    rows = list(rows)
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))
    print()
    if path is not None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def checks(n_reports: int, path: Path | None) -> None:
    """Print and write the table of the planted faults."""
    most, judged_rows.MOST_DRAWN = judged_rows.MOST_DRAWN, 0  # no check uses the simulated miscalibration
    rows = ({"planted fault": name} | failures(fault, n_reports) for name, fault in FAULTS.items())
    written(({key: f"{v:.2f}" if isinstance(v, float) else v for key, v in row.items()} for row in rows), path)
    judged_rows.MOST_DRAWN = most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)

    def place(name: str) -> Path | None:
        return None if options.out is None else options.out / name

    if not options.models:
        checks(N_QUICK if options.quick else N_REPORTS, place("calibration_checks.csv"))
    (X, y), (X_new, y_new), further = friedman(N_FIT, 0), friedman(N_ROWS, 1), friedman(N_FIT, 2)
    reports = {}
    for name, model in models(options.quick).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the fits
            fitted = model.fit(X, y)
        reports[name] = CalibrationReport.from_estimator(fitted, X_new, y_new)
        if reports[name].spread.is_off:
            scaled = SigmaScaling(fitted).fit(*further)
            reports[f"{name}, scaled"] = CalibrationReport.from_estimator(scaled, X_new, y_new)
    written((reported(name, report) for name, report in reports.items()), place("calibration_models.csv"))
    if options.figure is not None:
        reports["Gaussian process"].plot().figure_.savefig(options.figure, dpi=80)


if __name__ == "__main__":
    main()
