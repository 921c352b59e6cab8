"""Quality of the defaults: lower limits that every change of the training has to keep."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import train_test_split

from sklearn_laplace import LaplaceRegressor

Z90 = norm.ppf(0.95)


def test_diabetes_defaults_are_no_worse_than_bayesian_ridge():
    """RMSE within 0.5 %, log density within 0.01 nats, coverage 0.85 to 0.95.

    Means over three halvings of the rows; the differences have a tolerance of one paired standard error.
    """
    X, y = load_diabetes(return_X_y=True)
    rows = []
    for seed in range(3):
        A, B, a, b = train_test_split(X, y, test_size=0.5, random_state=seed)
        for model in (LaplaceRegressor(random_state=seed), BayesianRidge()):
            mean, std = model.fit(A, a).predict(B, return_std=True)
            rmse, density = np.sqrt(np.mean((b - mean) ** 2)), norm(mean, std).logpdf(b).mean()
            rows.append((rmse, density, np.mean(np.abs(b - mean) < Z90 * std)))
    ours, ridge = np.array(rows[::2]), np.array(rows[1::2])
    difference = ours - ridge
    error = difference.std(0, ddof=1) / np.sqrt(len(difference))
    assert difference[:, 0].mean() <= error[0] + 0.005 * ridge[:, 0].mean()
    assert difference[:, 1].mean() >= -error[1] - 0.01
    assert 0.85 <= ours[:, 2].mean() <= 0.95


CURVES = {
    "two-periods": lambda x: np.sin(2 * x),
    "one-period": np.sin,
    "parabola": lambda x: x**2 / 4,
    "kink": np.abs,
    "cubic": lambda x: x**3 / 20,
}


@pytest.mark.parametrize("curve", sorted(CURVES))
def test_a_gap_in_the_data_is_a_gap_in_what_is_known(curve):
    """Coverage 0.85 to 0.95 where there are data; in the gap at least twice the epistemic std.

    150 rows, with 2,000 test rows: the coverage of a given fit has a standard error of 0.007.
    """
    rng = np.random.default_rng(0)

    def draw(n):
        x = np.concatenate([rng.uniform(-4, -1, n // 2), rng.uniform(1.5, 4, n // 2)])
        return x[:, None], CURVES[curve](x) + 0.2 * rng.normal(size=n)

    X, y = draw(150)
    X_test, y_test = draw(2000)
    model = LaplaceRegressor(random_state=0).fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    assert 0.85 <= np.mean(np.abs(y_test - mean) < Z90 * std) <= 0.95
    on_data = model.predict_std(X_test, kind="epistemic").mean()
    assert model.predict_std([[0.25]], kind="epistemic")[0] >= 2 * on_data
    assert 0.15 < model.sigma_noise_ < 0.25
