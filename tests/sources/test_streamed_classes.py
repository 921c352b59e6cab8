"""Streamed fits of classes and counts: the quality of rows in memory, all classes of the table, exact sums."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from test_sources import Ranks

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._estimator import sources
from sklearn_laplace._estimator.labels import tally
from sklearn_laplace._table import source as arrays
from sklearn_laplace._table import source_of as recognise
from sklearn_laplace._table import source_of as sample
from sklearn_laplace._table.rows import rehashed
from sklearn_laplace._table.source import ArraySource, Group
from sklearn_laplace._table.source_of import sample_of
from sklearn_laplace._training import batches as stream
from sklearn_laplace._training import recipe
from sklearn_laplace._training.batches import held_out_by_hash
from sklearn_laplace.errors import CutWarning, UnsupportedCombinationError
from sklearn_laplace.laplace.fit import fit_laplace

N, SAMPLE, N_RARE = 4000, 1000, 5


def logits(X: np.ndarray) -> np.ndarray:
    return np.column_stack([3 * np.sin(6 * X[:, 0]), 4 * X[:, 1] - 2, 3 * np.cos(5 * X[:, 2] * X[:, 0])])


def groups(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes of inputs in the unit cube."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 3))
    return X, np.array(["a", "bb", "c"], dtype=object)[(logits(X) + rng.gumbel(size=(n, 3))).argmax(1)]


def mapped(X: np.ndarray, path) -> np.memmap:
    file = np.memmap(path, np.float64, "w+", shape=X.shape)
    file[:] = X
    return file


@pytest.fixture(scope="module", autouse=True)
def small():
    """A small sample and few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "STEPS_AT_1000", (160, 150))
        for module in (recognise, sources):
            patch.setattr(module, "SAMPLE_ROWS", SAMPLE)
        patch.setattr(stream, "BUFFER_ROWS", 700)
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A table with a rare class of which no row is in the sample."""
    X, y = groups(N, 0)
    outside = np.flatnonzero(rehashed(np.arange(N, dtype=np.uint64)) >= np.uint64(SAMPLE / N * 2.0**64))
    rare = outside[:: len(outside) // N_RARE][:N_RARE]
    y[rare] = "a rare class"
    return mapped(X, tmp_path_factory.mktemp("rows") / "x"), y


@pytest.fixture(scope="module")
def fitted(rows):
    return LaplaceClassifier(hidden_layer_sizes=(32, 32), random_state=0).fit(*rows)


def test_the_fit_is_as_good_as_that_in_memory(tmp_path):
    """Log loss of new rows, against a smooth net that suits the table, and against the truth."""
    (X, y), (X_new, y_new) = groups(2 * N, 0), groups(4000, 1)
    streamed = LaplaceClassifier(hidden_layer_sizes=(16, 16), random_state=0).fit(mapped(X, tmp_path / "x"), y)
    whole = LaplaceClassifier(hidden_layer_sizes=(12,), n_members=1, prior_precision="evidence", random_state=0)
    scores = [one.log_predictive_density(X_new, y_new).mean() for one in (streamed, whole.fit(X, y))]
    true = logits(X_new) - np.log(np.exp(logits(X_new)).sum(1, keepdims=True))
    truth = true[np.arange(len(y_new)), np.searchsorted(["a", "bb", "c"], y_new.astype(str))].mean()
    assert scores[0] > scores[1] - 0.005
    assert truth - 0.02 < scores[0] < truth


def test_a_class_outside_the_sample_is_found(fitted, rows):
    """Labels are found in all rows, and members train on those of the rare class."""
    assert fitted.classes_.tolist() == ["a", "a rare class", "bb", "c"]
    assert fitted.classes_.dtype == object
    drawn = sample_of(ArraySource(*rows), Group(), SAMPLE, tally)
    assert "a rare class" not in drawn.rows.y
    assert drawn.labels["a rare class"] == N_RARE
    assert sum(drawn.labels.values()) == N
    share = fitted.predict_proba(np.array(rows[0]))[:, 1].mean()
    assert 0.3 * N_RARE / N < share < 3 * N_RARE / N


def test_the_labels_do_not_depend_on_the_ranks(rows, monkeypatch):
    """Ranks with consecutive shards end with the labels, weights and sample of one process."""
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 300)
    X, y = np.array(rows[0]), rows[1]
    weights = np.random.default_rng(0).uniform(0, 2, size=N).round()
    alone = sample_of(ArraySource(X, y, weights), Group(), SAMPLE, tally)

    def own(group: Group):
        mine = slice(group.rank * N // 2, (group.rank + 1) * N // 2)
        return sample_of(ArraySource(X[mine], y[mine], weights[mine]), group, SAMPLE, tally)

    for drawn in Ranks(2).run(own):
        assert drawn.labels == alone.labels == {label: weights[y == label].sum() for label in np.unique(y)}
        np.testing.assert_array_equal(drawn.rows.y, alone.rows.y)


def test_numbers_are_no_labels(monkeypatch, rows):
    """The pass over the rows must not collect each of 10⁹ numbers."""
    monkeypatch.setattr(sample, "MOST_LABELS", 100)
    with pytest.raises(ValueError, match=r"y has more than 100 different labels.*use LaplaceRegressor for numbers"):
        LaplaceClassifier().fit(rows[0], np.array(rows[0])[:, 0])


def test_the_curvature_is_the_sum_over_all_rows_that_a_member_has_seen(fitted, rows):
    """Against one dense pass over these rows, found by their hashes."""
    member = fitted._ensemble.first
    fit = member.fit
    data = fitted._prepare_more(np.array(rows[0]), rows[1], None, None, scale=member.scale)
    tensors = data.tensors(torch.float64, next(fit.network.module.parameters()).dtype, fit.theta.device)
    seen = [~mask for mask in held_out_by_hash(data)]
    place = [int(mask.sum()) for mask in seen].index(round(fit.total_weight))
    chunks = tensors.taken(torch.from_numpy(seen[place]).nonzero()[:, 0]).chunks(512)
    arguments = fit.network, fit.likelihood, fit.rule, type(fit.curvature), fit.prior, chunks
    dense = fit_laplace(*arguments, like=fit.curvature)
    assert abs(fit.nll / dense.nll - 1) < 1e-6
    torch.testing.assert_close(fit.gradient, dense.gradient, rtol=1e-4, atol=1e-3)
    vector = torch.linspace(-1, 1, len(fit.theta), dtype=torch.float64)
    torch.testing.assert_close(fit.curvature.times(vector), dense.curvature.times(vector), rtol=1e-5, atol=1e-4)


def test_the_prior_can_be_selected_again(fitted, rows):
    """Held-out scores are stored, so that the rule "auto" ends where the fit did."""
    again = pickle.loads(pickle.dumps(fitted))
    again.refit_laplace(prior_precision=1.0).refit_laplace(prior_precision="auto")
    assert again.prior_precision_ == pytest.approx(fitted.prior_precision_, rel=1e-9)
    tempered = pickle.loads(pickle.dumps(fitted)).refit_laplace(temperature=0.01)
    std, colder = (model.members_[0].predict_std(np.full((1, 3), 0.5)).max() for model in (fitted, tempered))
    assert colder < 0.5 * std


def test_rows_are_added_from_a_source(fitted, rows, monkeypatch):
    """In blocks; the first call of partial_fit is a fit, which finds all classes itself."""
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 800)
    text = pickle.dumps(fitted)
    whole, parts = pickle.loads(text).partial_fit(rows[0][:1200], rows[1][:1200]), pickle.loads(text)
    for part in (slice(800), slice(800, 1200)):
        parts.partial_fit(np.array(rows[0][part]), rows[1][part])
    np.testing.assert_array_equal(whole.predict_proba(np.array(rows[0][:20])), parts.predict_proba(rows[0][:20]))
    with pytest.raises(UnsupportedCombinationError, match=r"classes is not supported for rows that are read"):
        LaplaceClassifier().partial_fit(*rows, classes=["a", "b"])
    with pytest.raises(ValueError, match=r"class_weight='balanced' depends on all rows"):
        LaplaceClassifier(class_weight="balanced").partial_fit(*rows)
    with pytest.warns(CutWarning):
        first = LaplaceClassifier(random_state=0, max_time=0.01).partial_fit(*rows)
    assert first.classes_.tolist() == fitted.classes_.tolist()


def test_classes_are_balanced_by_the_counts_of_all_rows(rows):
    """All rows together keep their number, and the rare class outside the sample has a quarter of it."""
    with pytest.warns(CutWarning):
        model = LaplaceClassifier(class_weight="balanced", random_state=0, max_time=0.01).fit(*rows)
    drawn = sample_of(ArraySource(*rows), Group(), SAMPLE, tally)
    scale = model._ensemble.first.scale
    reading = model._reading(drawn, scale)
    assert reading.of_all == pytest.approx(N)
    data = reading.prepare(np.array(rows[0]), rows[1], None, None)
    totals = [data.weights[data.targets == k].sum() for k in range(4)]
    np.testing.assert_allclose(totals, N / 4)
    in_sample = reading.prepare(drawn.rows.X, drawn.rows.y, None, None)
    assert reading.of_sample == pytest.approx(in_sample.total_weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_members": 3}, r"X is a source of 4,000 rows, and these options need all rows in memory"),
        ({"hidden_layer_sizes": ()}, r"leave net, n_members, prior, prior_precision and max_epochs"),
        ({"prior_precision": 2.0}, r"Only the default ensemble trains while it reads"),
        ({"hessian_structure": "low_rank"}, r"'low_rank' is no sum over rows"),
    ],
)
def test_what_needs_all_rows_is_refused(rows, options, message):
    model = LaplaceClassifier(random_state=0, max_time=0.1, **options)
    with pytest.raises(UnsupportedCombinationError, match=message):
        model.fit(*rows)
    assert not model.__sklearn_is_fitted__()


def test_two_classes_may_share_a_logit(rows, monkeypatch):
    """Numbers as labels; the probabilities of both classes follow from one output."""
    monkeypatch.setattr(recipe, "STEPS_AT_1000", (60, 50))
    labels = (np.array(rows[0])[:, 1] > 0.5).astype(int)
    model = LaplaceClassifier(hidden_layer_sizes=(8,), likelihood="bernoulli", random_state=0).fit(rows[0], labels)
    assert model.n_outputs_ == 1
    assert model.classes_.tolist() == [0, 1]
    assert model.score(np.array(rows[0]), labels) > 0.9


@pytest.mark.parametrize(("likelihood", "overdispersion"), [("poisson", 0.0), ("negative_binomial", 0.5)])
def test_counts_train_on_a_stream(rows, likelihood, overdispersion, monkeypatch):
    """Mean of the counts, and their overdispersion, which half of the sample determines."""
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", SAMPLE // 2)
    X, rng = np.array(rows[0]), np.random.default_rng(0)
    mean = np.exp(1 + np.sin(6 * X[:, 0]))
    mixed = mean if not overdispersion else mean * rng.gamma(1 / overdispersion, overdispersion, size=N)
    model = LaplaceRegressor(hidden_layer_sizes=(8,), likelihood=likelihood, random_state=0)
    model.fit(rows[0], rng.poisson(mixed))
    assert abs(model.predict(X) - mean).mean() < 0.05 * np.ptp(mean)
    assert len(model.members_) >= 4
    if overdispersion:
        assert model.overdispersion_ == pytest.approx(overdispersion, rel=0.3)


@pytest.mark.parametrize("kind", [LaplaceClassifier, LaplaceRegressor])
def test_all_ranks_add_the_rows_of_all_ranks(kind, monkeypatch):
    """Each rank passes its own rows to partial_fit; all end with the model of one process that has all of them."""
    X, y = groups(90, 3)
    y = y if kind is LaplaceClassifier else X[:, 0] + 0.1 * np.random.default_rng(0).normal(size=90)
    options = {"hidden_layer_sizes": (3,), "n_members": 1, "prior_precision": 1.0, "random_state": 0}
    text = pickle.dumps(kind(**options).fit(X[:50], y[:50]))
    ranks, local = Ranks(2), threading.local()
    alone = pickle.loads(text).partial_fit(X[50:], y[50:])
    monkeypatch.setattr(Group, "current", lambda: local.group)

    def added(group: Group):
        local.group = group
        mine = slice(50 + 20 * group.rank, 70 + 20 * group.rank)
        return pickle.loads(text).partial_fit(X[mine], y[mine])

    models = ranks.run(added)
    local.group = Group()
    for model in models:
        np.testing.assert_allclose(model.laplace_.theta, alone.laplace_.theta, rtol=1e-10)
        np.testing.assert_array_equal(model.predict_std(X), models[0].predict_std(X))
        np.testing.assert_allclose(model.predict_std(X), alone.predict_std(X), rtol=1e-9)
