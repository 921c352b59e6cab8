"""Jackknife+ intervals against explicit refits, and their coverage."""

from __future__ import annotations

import math
import pickle

import nets
import numpy as np
import oracles
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sklearn_laplace
from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace.leave_one_out.jackknife import reached

RNG = np.random.default_rng(43)
N, LEVELS = 40, (0.5, 0.8, 0.9)
X, X_NEW = RNG.normal(size=(N, 3)), 1.5 * RNG.normal(size=(9, 3))
X[7] = X[6]
Y = np.column_stack([np.sin(X[:, 0]) + X[:, 1], 40 * X[:, 2] + 7]) + RNG.normal(size=(N, 2)) * [0.3, 9.0]
Y[7] = Y[6]
COPIES = RNG.integers(0, 4, size=N)
COPIES[:2] = 0, 1
LINEAR = {"net": nets.Linear, "standardize_X": False, "random_state": 0}
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0}
JACKKNIFE = "jackknife+"


def by_refits(left_out, new, y, copies, levels):
    """Interval ends (m, 2, L) of Barber et al. (2021), with rows repeated by their weights.

    ``left_out`` (N,) and ``new`` (m, N) are predictions of the model without row n, for row n and for new rows.
    """
    repeated = np.repeat(np.arange(len(y)), copies)
    residual, total = np.abs(y - left_out)[repeated], len(repeated)
    low, high = np.sort(new[:, repeated] - residual, axis=1), np.sort(new[:, repeated] + residual, axis=1)
    lower, upper = [], []
    for level in levels:
        k = math.ceil(round(level * (total + 1), 9))
        j = math.floor(round((1 - level) * (total + 1), 9))
        upper.append(high[:, k - 1] if k <= total else np.full(len(new), np.inf))
        lower.append(low[:, j - 1] if j >= 1 else np.full(len(new), -np.inf))
    return np.stack([np.stack(lower, 1), np.stack(upper, 1)], 1)


def linear_models(x, y, w, new, delta, noise):
    """Predictions of Bayesian linear regressions without row n, for row n (N,) and new rows (m, N)."""
    A, B = (np.column_stack([part, np.ones(len(part))]) for part in (x, new))
    thetas = []
    for n in range(len(A)):
        rest = w * (np.arange(len(A)) != n)
        thetas.append(np.linalg.solve((A.T * rest) @ A / noise + delta * np.eye(A.shape[1]), (A.T * rest) @ y / noise))
    thetas = np.array(thetas)
    return (A * thetas).sum(1), B @ thetas.T


@pytest.mark.parametrize("copies", [np.ones(N, dtype=int), COPIES], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("structure", ["full", "functional", "kron"])
def test_a_linear_nets_intervals_are_those_of_refits(structure, copies):
    """Interval ends for several priors and levels, with duplicate rows, integer weights and zero weights."""
    y = Y[:, 0]
    options = {**LINEAR, "hessian_structure": structure, "prior_precision": 1.0, "sigma_noise": 0.4}
    model = LaplaceRegressor(**options, standardize_y=False).fit(X, y, copies)
    for delta in (0.1, 20.0):
        mean, ends = model.refit_laplace(prior_precision=delta).predict_interval(X_NEW, LEVELS, method=JACKKNIFE)
        expected = by_refits(*linear_models(X, y, copies, X_NEW, delta, 0.16), y, copies, LEVELS)
        assert ends.shape == (9, 2, 3)
        np.testing.assert_allclose(ends, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(mean, model.predict(X_NEW))
    _, one = model.predict_interval(X_NEW, 0.8, method=JACKKNIFE)
    np.testing.assert_array_equal(one, ends[..., 1])


def test_several_targets_have_intervals_in_their_own_units():
    """Each target has the interval of a separate model; standardised targets share δ and φ."""
    model = LaplaceRegressor(**LINEAR, prior_precision=2.0, sigma_noise=[0.3, 9.0]).fit(X, Y)
    _, ends = model.predict_interval(X_NEW, LEVELS, method=JACKKNIFE)
    assert ends.shape == (9, 2, 2, 3)
    for c, noise in enumerate((0.3, 9.0)):
        center, scale = Y[:, c].mean(), Y[:, c].std()
        y = (Y[:, c] - center) / scale
        models = linear_models(X, y, np.ones(N), X_NEW, 2.0, (noise / scale) ** 2)
        expected = center + scale * by_refits(*models, y, np.ones(N, dtype=int), LEVELS)
        np.testing.assert_allclose(ends[:, c], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"subset_of_weights": "last_layer"}, {"hessian_structure": "diag"}], ids=str)
def test_a_nets_intervals_are_those_of_refits_of_its_linearisation(options):
    """Refits in the selected weights, at the mode under the current prior and noise."""
    y = Y[:, 0]
    model = LaplaceRegressor(**SMALL, **options, standardize_y=False).fit(X, y)
    model.refit_laplace(prior_precision=2.0, sigma_noise=0.5)
    module, names = model.laplace_.network.module, tuple(model.subset_)
    both = torch.tensor(np.concatenate([X, X_NEW]))
    J, f = oracles.jacobian(module, names, both), oracles.outputs(module, both)
    unit = len(np.unique(np.column_stack([X, y]), axis=0)) / N  # duplicate rows share their weight
    theta, weights = oracles.flatten(module, names), torch.full((N,), unit, dtype=torch.float64)
    new, left_out = [], []
    for n in range(N):
        rest = weights.index_fill(0, torch.tensor([n]), 0.0)
        t, _ = oracles.linearised_map(
            "gaussian", f[:N], J[:N], torch.tensor(y)[:, None], rest, theta, 2.0, noise_variance=0.25
        )
        outputs = (f + J @ (t - theta))[:, 0].numpy()
        left_out.append(outputs[n])
        new.append(outputs[N:])
    expected = by_refits(np.array(left_out), np.array(new).T, y, np.ones(N, dtype=int), LEVELS)
    _, ends = model.predict_interval(X_NEW, LEVELS, method=JACKKNIFE)
    np.testing.assert_allclose(ends, expected, rtol=1e-7, atol=1e-7)


def test_too_few_rows_for_a_level_leave_the_interval_open():
    """Ten residuals do not determine a level of .95."""
    model = LaplaceRegressor(**LINEAR, prior_precision=1.0, sigma_noise=0.5).fit(X[10:20], Y[10:20, 0])
    _, ends = model.predict_interval(X_NEW, [0.8, 0.95], method=JACKKNIFE)
    assert np.isfinite(ends[..., 0]).all()
    assert (ends[:, 0, 1] == -np.inf).all() and (ends[:, 1, 1] == np.inf).all()


def test_shares_of_weights_are_reached_by_counting():
    """Integer weights act as repetitions in any order; rounding of a level drops no row."""
    values = torch.tensor(RNG.normal(size=(4, N)))
    weights = torch.tensor(COPIES).double()
    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    repeated = values.repeat_interleave(torch.tensor(COPIES), 1).sort(1).values
    total = repeated.shape[1]
    for level, values_reached in zip(levels.tolist(), reached(values, weights, levels).mT, strict=True):
        place = math.ceil(round(level * (total + 1), 9))
        torch.testing.assert_close(values_reached, repeated[:, place - 1], rtol=0, atol=0)


@pytest.mark.parametrize("hidden", [(), (10,)], ids=["linear", "net"])
def test_intervals_cover_also_where_the_noise_is_far_off(hidden):
    """With σ wrong by a factor of three, normal intervals fail while jackknife+ intervals keep their coverage."""
    rng, rows = np.random.default_rng(5), 150
    x = rng.uniform(-2, 2, size=(rows + 2000, 2))
    y = x[:, 0] + (np.sin(2 * x[:, 1]) if hidden else x[:, 1]) + 0.3 * rng.standard_t(5, size=len(x))
    model = LaplaceRegressor(hidden_layer_sizes=hidden, random_state=0).fit(x[:rows], y[:rows])
    sigma, widths = model.sigma_noise_, []
    for factor in (1.0, 1 / 3, 3.0):
        model.refit_laplace(sigma_noise=factor * sigma)
        covered = {}
        for method in ("normal", JACKKNIFE):
            _, ends = model.predict_interval(x[rows:], 0.9, method=method)
            covered[method] = np.mean((y[rows:] >= ends[:, 0]) & (y[rows:] <= ends[:, 1]))
        widths.append((ends[:, 1] - ends[:, 0]).mean())
        assert 0.84 < covered[JACKKNIFE] < 0.96, (factor, covered)  # three standard deviations of 150 rows: ± .07
        assert factor == 1.0 or abs(covered["normal"] - 0.9) > 0.09
    assert max(widths) / min(widths) < 1.35


def test_chunks_pickles_and_pipelines_give_the_same():
    """Results do not depend on the memory budget, and pickles contain the fitted rows."""
    model = LaplaceRegressor(**SMALL).fit(X, Y)
    many = RNG.normal(size=(500, 3))
    _, expected = model.predict_interval(many, LEVELS, method=JACKKNIFE)
    _, ends = pickle.loads(pickle.dumps(model)).predict_interval(many, LEVELS, method=JACKKNIFE)
    np.testing.assert_array_equal(ends, expected)
    model.set_params(memory_budget="1MB")
    _, ends = model.predict_interval(many, LEVELS, method=JACKKNIFE)
    np.testing.assert_allclose(ends, expected, rtol=1e-9, atol=1e-9)
    pipe = make_pipeline(StandardScaler(), LaplaceRegressor(**SMALL)).fit(X, Y)
    _, ends = sklearn_laplace.predict_interval(pipe, X_NEW, method=JACKKNIFE)
    _, expected = pipe[-1].predict_interval(pipe[0].transform(X_NEW), method=JACKKNIFE)
    np.testing.assert_array_equal(ends, expected)


def test_rows_that_come_later_have_residuals_too():
    """After partial_fit a linear net has the intervals of a fit on all rows."""
    options = {**LINEAR, "prior_precision": 1.0, "sigma_noise": 0.5, "standardize_y": False}
    model = LaplaceRegressor(**options).fit(X[:25], Y[:25, 0]).partial_fit(X[25:], Y[25:, 0])
    whole = LaplaceRegressor(**options).fit(X, Y[:, 0])
    intervals = [m.predict_interval(X_NEW, LEVELS, method=JACKKNIFE)[1] for m in (model, whole)]
    np.testing.assert_allclose(*intervals, rtol=1e-8, atol=1e-8)


def test_what_has_no_common_residuals_is_refused():
    """Counts, known noise variances, unknown method names and unfitted models are refused."""
    counts = LaplaceRegressor(**SMALL, likelihood="poisson").fit(X, RNG.poisson(3.0, size=N))
    with pytest.raises(UnsupportedCombinationError, match=r"method='jackknife\+' assumes.*targets are counts"):
        counts.predict_interval(X_NEW, method=JACKKNIFE)
    noisy = LaplaceRegressor(**SMALL).fit(X, Y, sample_noise_variance=RNG.uniform(0.5, 2.0, size=N))
    with pytest.raises(UnsupportedCombinationError, match="sample_noise_variance was given"):
        noisy.predict_interval(X_NEW, method=JACKKNIFE)
    with pytest.raises(ValueError, match=r"Did you mean 'jackknife\+'"):
        noisy.predict_interval(X_NEW, method="jackknife")
    with pytest.raises(NotFittedError):
        LaplaceRegressor().predict_interval(X_NEW, method=JACKKNIFE)
