"""A user's program with the main methods of the package, whose types two strict checkers must infer.

``.ci/wheel`` checks it with ``mypy --strict`` and strict ``pyright`` against the installed wheel. ``assert_type`` fails
there if a result has any other type, including ``Any``. ``tests/test_typing.py`` runs it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, assert_type

import numpy as np

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, predict_interval, predict_std, save
from sklearn_laplace.distributions import PredictiveDistribution
from sklearn_laplace.errors import CutWarning, UnsupportedCombinationError
from sklearn_laplace.metrics import CalibrationReport, coverage, expected_calibration_error, neg_crps
from sklearn_laplace.options import Kron, Members
from sklearn_laplace.plotting import CoverageDisplay
from sklearn_laplace.recalibration import SigmaScaling

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
QUICK: dict[str, Any] = {"hidden_layer_sizes": (5,), "prior_precision": 1.0, "random_state": 0}


def rows() -> tuple[Array, Array]:
    """Forty rows of a noisy sine."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (40, 1))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=40)


def numbers(X: Array, y: Array) -> LaplaceRegressor:
    """Fit and predict numbers."""
    model = LaplaceRegressor(hessian_structure=Kron(damping="ritter"), n_members=Members(2), sigma_noise=0.1, **QUICK)
    assert_type(model.fit(X, y), LaplaceRegressor)
    assert_type(model.predict(X), Array)
    mean, std = model.predict(X, return_std=True)
    assert_type(std, Array)
    mean, covariance = model.predict(X, return_cov=True)
    assert_type(covariance, Array)
    mean, slope = model.predict(X, return_mean_grad=True)
    assert_type(slope, Array)
    assert_type(model.predict_std(X), Array)
    assert_type(model.predict_std(X, kind="epistemic"), Array)
    parts = model.predict_std(X, kind="all")
    assert_type(parts.epistemic, Array)
    mean, interval = model.predict_interval(X, [0.5, 0.9])
    assert_type(interval, Array)
    distribution = model.predict_dist(X)
    assert_type(distribution, PredictiveDistribution)
    low, high = distribution.interval(0.9)
    assert_type((mean, low, high), tuple[Array, Array, Array])
    assert_type(distribution.logpdf(y), Array)
    assert_type(model.predict_quantiles(X, [0.1, 0.9]), Array)
    assert_type(model.sample_y(X, n_samples=3), Array)
    assert_type(model.score(X, y), float)
    assert_type(model.report(X, y).scores, dict[str, float])
    return model


def attributes(model: LaplaceRegressor, X: Array) -> None:
    """Read what the fit has found, and change it."""
    assert_type(model.members_, list[LaplaceRegressor])
    assert_type(model.n_outputs_, int)
    assert_type(model.n_features_in_, int)
    assert_type(model.structure_, str)
    assert_type(model.prior_precision_, float | Array)
    assert_type(model.sigma_noise_, float | Array)
    assert_type(model.n_effective_parameters_, float)
    assert_type(model.log_marginal_likelihood(), float)
    assert_type(model.get_params(), dict[str, Any])
    assert_type(model.set_params(temperature=0.5), LaplaceRegressor)
    assert_type(model.refit_laplace(prior_precision=2.0), LaplaceRegressor)


def classes(X: Array, y: Array) -> None:
    """Fit and predict classes."""
    labels = np.where(y > 0, "up", "down")
    model = LaplaceClassifier(n_members=1, **QUICK).fit(X, labels)
    assert_type(model, LaplaceClassifier)
    assert_type(model.predict(X), Array)
    assert_type(model.predict_proba(X), Array)
    assert_type(model.predict_std(X), Array)
    assert_type(model.predict_entropy(X, kind="epistemic"), Array)
    assert_type(model.classes_, Array)
    assert_type(model.score(X, labels), float)
    assert_type(expected_calibration_error(labels, model.predict_proba(X)), float)


def around(model: LaplaceRegressor, X: Array, y: Array) -> None:
    """Scores, reports, recalibration, displays, files and wrapped estimators."""
    assert_type(neg_crps(model, X, y), float | Array)
    assert_type(coverage(model, X, y), float | Array)
    report = CalibrationReport.from_estimator(model, X, y)
    assert_type(report.is_off, bool)
    scaled = SigmaScaling(model).fit(X, y)
    mean, std = scaled.predict(X, return_std=True)
    assert_type(scaled.predict_dist(X), PredictiveDistribution)
    assert_type(CoverageDisplay.from_predictions(y, scaled.predict_dist(X)), CoverageDisplay)
    assert_type((mean, std), tuple[Array, Array])
    assert_type(predict_std(model, X), Array)
    mean, interval = predict_interval(model, X, confidence_level=0.8)
    assert_type(interval, Array)
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder) / "model.safetensors")
        loaded: LaplaceRegressor = load(Path(folder) / "model.safetensors")
    assert_type(loaded.predict(X), Array)


def refused(X: Array, y: Array) -> str:
    """Name of the error about options that cannot be combined."""
    try:
        LaplaceRegressor(curvature="hessian", hessian_structure="kron").fit(X, y)
    except UnsupportedCombinationError as error:
        return type(error).__name__
    return CutWarning.__name__


def main() -> None:
    """Run everything on forty rows."""
    X, y = rows()
    model = numbers(X, y)
    around(model, X, y)
    attributes(model, X)
    classes(X, y)
    print(refused(X, y))


if __name__ == "__main__":
    main()
