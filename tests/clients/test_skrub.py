"""skrub: its pipeline for tables of mixed columns, with the estimator as the last step."""

from __future__ import annotations

import numpy as np
import pandas as pd
from quick import client, regressor

from sklearn_laplace import predict_interval, predict_std

skrub = client("skrub")


def table(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Table of a number, a city and a day, with missing values."""
    rng = np.random.default_rng(seed)
    size, city = rng.uniform(20, 150, n), rng.choice(["Basel", "Graz", "Ulm"], n)
    y = 3 * size + np.select([city == "Basel", city == "Ulm"], [90.0, 30.0]) + 20 * rng.normal(size=n)
    day = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    return pd.DataFrame({"size": np.where(rng.uniform(size=n) < 0.05, np.nan, size), "city": city, "day": day}), y


def test_a_pipeline_for_mixed_columns():
    """The pipeline beats the mean, and predict_std and predict_interval work through it."""
    X, y = table(150, 0)
    new, y_new = table(80, 1)
    pipe = skrub.tabular_pipeline(regressor()).fit(X, y)
    assert np.sqrt(np.mean((pipe.predict(new) - y_new) ** 2)) < 0.6 * y_new.std()
    assert (predict_std(pipe, new) > 0).all()
    _, ends = predict_interval(pipe, new, 0.9)
    assert 0.75 < np.mean((ends[:, 0] <= y_new) & (y_new <= ends[:, 1])) <= 1.0
