"""Fits of tables that are read while they train: the same quality, exact sums over all rows, and clear errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._ensemble import approximate_members as streamed
from sklearn_laplace._estimator import sources
from sklearn_laplace._table import source as arrays
from sklearn_laplace._table import source_of as recognise
from sklearn_laplace._training import batches as stream
from sklearn_laplace._training import recipe
from sklearn_laplace._training.batches import held_out_by_hash
from sklearn_laplace.errors import CutWarning, UnsupportedCombinationError
from sklearn_laplace.laplace.fit import fit_laplace

N, SAMPLE = 4000, 1000


def waves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 3))
    return X, np.sin(6 * X[:, 0]) + X[:, 1] + (0.1 + 0.4 * X[:, 2]) * rng.normal(size=n)


def mapped(X: np.ndarray, path) -> np.memmap:
    file = np.memmap(path, np.float64, "w+", shape=X.shape)
    file[:] = X
    return file


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """A fifth of the default steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "STEPS_AT_1000", (100, 90))
        yield


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit of 4,000 rows that holds a sample of 1,000, with the rows and the sums of its curvature pass."""
    X, y = waves(N, 0)
    patch = pytest.MonkeyPatch()
    for module in (recognise, sources):
        patch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    patch.setattr(stream, "BUFFER_ROWS", 700)
    file = mapped(X, tmp_path_factory.mktemp("rows") / "x")
    model = LaplaceRegressor(random_state=0).fit(file, y)
    patch.undo()
    return model, file, y


def test_the_fit_is_as_good_as_that_in_memory(fitted):
    """Log density of new rows; the noise varies from .1 to .5."""
    model, X, y = fitted
    X_new, y_new = waves(2000, 1)
    whole = LaplaceRegressor(random_state=0).fit(np.array(X), y)
    scores = [one.log_predictive_density(X_new, y_new).mean() for one in (model, whole)]
    assert scores[0] > scores[1] - 0.03
    assert model.noise_model_ is not None


def test_rows_that_were_read_are_inside_the_range(fitted):
    """Not only those of the sample in memory."""
    model, X, _ = fitted
    assert model.outside(np.array(X)).max() == 0
    assert model.outside(np.array(X) + 2).min() > 0.5


@pytest.mark.parametrize("streamed", [True, False])
def test_a_known_noise_is_kept_by_all_members(fitted, monkeypatch, streamed):
    """Held-out rows select the prior precision alone; varying noise is not learnt."""
    _, X, y = fitted
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    quick = {"hidden_layer_sizes": (8,), "random_state": 0, "sigma_noise": 0.3}
    model = LaplaceRegressor(**quick).fit(X if streamed else np.array(X[:400]), y if streamed else y[:400])
    assert len(model.members_) >= 4 and model.noise_model_ is None
    assert {round(float(member.sigma_noise_), 12) for member in model.members_} == {0.3}
    again = model.predict_std(np.array(X[:20]))
    np.testing.assert_allclose(model.refit_laplace().predict_std(np.array(X[:20])), again, rtol=1e-12)
    assert model.score(np.array(X), y) > 0.5


def test_the_curvature_is_the_sum_over_all_rows_that_a_member_has_seen(fitted):
    """Against one dense pass over these rows, found by their hashes."""
    model, X, y = fitted
    data = model._prepare_more(np.array(X), y, None, None, scale=model._scale)
    held_out = held_out_by_hash(data)
    places = []
    for member in model._ensemble.members:
        fit = member.fit
        under = data.under_noise(member.noise_model.ratios_of(data.X))
        rows = under.tensors(torch.float64, next(fit.network.module.parameters()).dtype, fit.theta.device)

        def dense(place, fit=fit, rows=rows):
            chunks = rows.taken(torch.from_numpy(~held_out[place]).nonzero()[:, 0]).chunks(512)
            structure = type(fit.curvature)
            return fit_laplace(fit.network, fit.likelihood, fit.rule, structure, fit.prior, chunks, like=fit.curvature)

        expected = [dense(place) for place in range(8) if (~held_out[place]).sum() == round(fit.total_weight)]
        errors = [abs(fit.nll / other.nll - 1) for other in expected]
        assert min(errors) < 1e-6
        found = expected[int(np.argmin(errors))]
        places.append(found.nll)
        torch.testing.assert_close(fit.gradient, found.gradient, rtol=1e-4, atol=1e-3)
        vector = torch.linspace(-1, 1, len(fit.theta), dtype=torch.float64)
        torch.testing.assert_close(fit.curvature.times(vector), found.curvature.times(vector), rtol=1e-5, atol=1e-4)
    assert len(set(places)) == len(places)


def test_the_model_is_ordinary(fitted):
    """It can be pickled, predicts from arrays, and has no reference to the source."""
    model, X, y = fitted
    text = pickle.dumps(model)
    assert len(text) < 20e6
    np.testing.assert_array_equal(pickle.loads(text).predict(np.array(X[:50])), model.predict(np.array(X[:50])))
    before = model.predict_std(np.array(X[:50]), kind="epistemic")
    more = pickle.loads(text).partial_fit(np.array(X[:200]), y[:200])
    assert more.predict_std(np.array(X[:50]), kind="epistemic").mean() < before.mean()


def test_rows_are_added_from_a_source_and_not_forgotten(fitted, monkeypatch):
    """Added block by block. Which rows a member has seen is not stored, so that none is removed."""
    model, X, y = fitted
    monkeypatch.setattr(recognise, "SAMPLE_ROWS", SAMPLE)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 1500)
    text = pickle.dumps(model)
    whole, parts = pickle.loads(text).partial_fit(X, y), pickle.loads(text)
    for start in range(0, N, 1500):
        parts.partial_fit(np.array(X[start : start + 1500]), y[start : start + 1500])
    np.testing.assert_array_equal(whole.predict(np.array(X[:20])), parts.predict(np.array(X[:20])))
    assert whole.laplace_.total_weight > model.laplace_.total_weight + N - 1
    with pytest.raises(UnsupportedCombinationError, match=r"this fit has read its rows from a source"):
        whole.forget(np.array(X[:5]), y[:5])


def test_a_fit_is_reproducible(fitted, monkeypatch):
    model, X, y = fitted
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    monkeypatch.setattr(stream, "BUFFER_ROWS", 700)
    again = LaplaceRegressor(random_state=0).fit(X, y)
    np.testing.assert_array_equal(again.predict(np.array(X[:50])), model.predict(np.array(X[:50])))


def test_predictions_read_a_source_block_by_block(fitted, monkeypatch):
    model, X, _ = fitted
    monkeypatch.setattr(recognise, "SAMPLE_ROWS", SAMPLE)
    expected = model.predict(np.array(X), return_std=True)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-6)
    np.testing.assert_allclose(std, expected[1], rtol=1e-6)
    values, intervals = model.predict_interval(X)
    assert values.shape == (N,)
    assert intervals.shape == (N, 2)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"n_members": 3}, {}, r"X is a source of 4,000 rows, and these options need all rows in memory"),
        ({"hidden_layer_sizes": ()}, {}, r"leave net, n_members"),
        ({"prior_precision": 0.5}, {}, r"Only the default ensemble"),
        ({"hessian_structure": "low_rank"}, {}, r"'low_rank' is no sum over rows"),
        ({"hessian_structure": "functional"}, {}, r"'functional' stores all rows"),
        ({}, {"sample_noise_variance": np.ones(N)}, r"sample_noise_variance is not supported for rows that are read"),
    ],
)
def test_what_needs_all_rows_is_refused(fitted, monkeypatch, options, arguments, message):
    _, X, y = fitted
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    model = LaplaceRegressor(random_state=0, max_time=0.1, **options)
    with pytest.raises(UnsupportedCombinationError, match=message):
        model.fit(X, y, **arguments)
    assert not model.__sklearn_is_fitted__()


def test_a_missing_target_is_named(fitted, monkeypatch):
    _, X, y = fitted
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    y = y.copy()
    y[2] = np.nan
    with pytest.raises(ValueError, match=r"Input y contains NaN"):
        LaplaceRegressor(random_state=0, max_time=0.1).fit(X, y)


def test_the_time_limit_holds(fitted, monkeypatch):
    """Without time for a pass over all rows, the curvature of the sample stands for that of the table."""
    _, X, y = fitted
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    with pytest.warns(CutWarning, match=r"max_time=0\.01"):
        model = LaplaceRegressor(random_state=0, max_time=0.01).fit(X, y)
    assert 0.7 * N < model.laplace_.total_weight < 0.8 * N


def test_a_choice_of_rows_stands_for_many(fitted, monkeypatch):
    """The curvature of 2,000 of 4,000 rows, weighted like all of them, is close to that of all."""
    model, X, y = fitted
    monkeypatch.setattr(streamed, "CURVATURE_ROWS", 2000)
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    monkeypatch.setattr(stream, "BUFFER_ROWS", 700)
    some = LaplaceRegressor(random_state=0).fit(X, y)
    assert 0.7 * N < some.laplace_.total_weight < 0.8 * N
    spread, expected = (one.predict_std(np.array(X[:200]), kind="epistemic") for one in (some, model))
    assert not np.array_equal(spread, expected)
    assert abs(np.log(spread / expected)).mean() < 0.05


def test_equal_weights_of_a_source_are_those_of_single_rows(fitted, monkeypatch):
    """Equal weights of a file are weights of one, in the curvature too."""
    _, X, y = fitted
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE)
    with pytest.warns(CutWarning):
        model = LaplaceRegressor(random_state=0, max_time=0.01).fit(X, y, sample_weight=np.full(N, 0.5))
    assert 0.7 * N < model.laplace_.total_weight < 0.8 * N
