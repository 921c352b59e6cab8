"""Invariance to batches, row order, copies instead of weights, other rows in predict, labels, units, global state."""

from __future__ import annotations

import copy

import nets
import numpy as np
import pytest
import torch
from sklearn.base import clone

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._table import limits as _memory
from sklearn_laplace._table.rows import canonical_rows

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.2 * RNG.normal(size=60)
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
X_NEW = RNG.normal(size=(11, 3))

SMALL = {"hidden_layer_sizes": (8,), "prior_precision": "evidence"}
MODELS = {
    "regressor": (LaplaceRegressor(random_state=0), Y),
    "regressor-kron": (LaplaceRegressor(random_state=0, hessian_structure="kron", sigma_noise="evidence", **SMALL), Y),
    "classifier": (LaplaceClassifier(random_state=0), LABELS),
}


@pytest.fixture(params=sorted(MODELS))
def model(request):
    estimator, y = MODELS[request.param]
    return copy.deepcopy(estimator), y


@pytest.fixture(scope="module", params=sorted(MODELS))
def reference(request):
    """A fitted estimator, which tests must not change, its targets and its predictions at X_NEW."""
    estimator, y = MODELS[request.param]
    fitted = copy.deepcopy(estimator).fit(X, y)
    return fitted, y, answers(fitted)


def answers(estimator, X=X_NEW):
    mean = estimator.predict_proba(X) if isinstance(estimator, LaplaceClassifier) else estimator.predict(X)
    return np.column_stack([mean, estimator.predict_std(X)])


def test_row_order_does_not_matter(reference):
    """Small data are sorted before training, so that predictions are equal to the bit."""
    fitted, y, first = reference
    order = np.random.default_rng(0).permutation(60)
    np.testing.assert_array_equal(answers(clone(fitted).fit(X[order], y[order])), first)


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_row_order_of_a_given_net_changes_rounding_alone(kind):
    """Its mini-batches follow the order of the rows, as in skorch; full batches do not depend on it."""
    estimator, y = {
        "regressor": (LaplaceRegressor(nets.regressor(batch_size=-1, max_epochs=10)), Y),
        "classifier": (LaplaceClassifier(nets.classifier(batch_size=-1, max_epochs=10)), LABELS),
    }[kind]
    estimator.set_params(random_state=0, dtype="float64")
    first = answers(estimator.fit(X, y))
    order = np.random.default_rng(0).permutation(60)
    np.testing.assert_allclose(answers(estimator.fit(X[order], y[order])), first, rtol=1e-6)


def many_rows(kind):
    """6,000 rows of weight 10,500 in total, with gaps, zeros of both signs, copies and a categorical column."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(6_000, 4)).round(2)
    X[:, 3] = rng.integers(5, size=len(X))
    X[rng.random(len(X)) < 0.1, 1] = np.nan
    X[rng.random(len(X)) < 0.1, 2] = -0.0
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=len(X))
    X[::10], y[::10] = X[5], y[5]
    return X, y if kind is LaplaceRegressor else y > 0, rng.uniform(0.5, 3.0, len(X)).round(1)


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
def test_row_order_does_not_matter_for_many_rows(kind):
    """The mini-batches are the same, so that predictions are equal to the bit."""
    X, y, weights = many_rows(kind)
    model = kind(
        hidden_layer_sizes=(3,),
        categorical_features=[3],
        max_epochs=1,
        n_members=1,
        prior_precision="evidence",
        random_state=0,
    )
    if kind is LaplaceRegressor:
        model.set_params(likelihood="gaussian", sigma_noise="evidence")
    first = answers(model.fit(X, y, weights), X[:50])
    order = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_array_equal(answers(model.fit(X[order], y[order], weights[order]), X[:50]), first)


def test_many_rows_are_in_no_order_of_their_values():
    """Each mini-batch is a random sample of all rows, also for a sorted table."""
    X = np.arange(20_000.0)[:, None]
    ordered, targets, _ = canonical_rows(X, X[:, 0], np.ones(len(X)))
    np.testing.assert_array_equal(np.sort(targets), X[:, 0])
    np.testing.assert_array_equal(ordered[:, 0], targets)
    batches = targets.reshape(-1, 500)
    assert abs(np.corrcoef(np.arange(len(X)), targets)[0, 1]) < 0.03
    assert (np.abs(batches.mean(1) - 1e4) < 4 * 2e4 / np.sqrt(12 * 500)).all()


def test_a_weight_of_k_is_k_copies_and_zero_is_absence(model):
    """Same loss, curvature, total weight, noise level, standardisation of X and y, and evidence."""
    estimator, y = model
    # Few copies: many exact copies of noisy rows look like targets without noise.
    weights = np.random.default_rng(1).choice([0, 1, 2, 3], p=[0.15, 0.7, 0.1, 0.05], size=60)
    repeated = np.repeat(np.arange(60), weights)
    first = answers(estimator.fit(X, y, sample_weight=weights))
    evidence = estimator.log_marginal_likelihood_value_
    np.testing.assert_allclose(answers(estimator.fit(X[repeated], y[repeated])), first, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(estimator.log_marginal_likelihood_value_, evidence, rtol=1e-9)


def test_a_common_weight_is_not_free():
    """Doubling all weights doubles the data, which reduces the standard deviations."""
    model = LaplaceRegressor(hidden_layer_sizes=(), random_state=0, prior_precision=1.0, sigma_noise=0.2)
    once = model.fit(X, Y).predict_std(X_NEW, kind="epistemic")
    twice = model.fit(X, Y, sample_weight=np.full(60, 2.0)).predict_std(X_NEW, kind="epistemic")
    assert (twice < once).all()


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
@pytest.mark.usefixtures("short_training")
def test_chunks_do_not_matter(structure, monkeypatch):
    """The curvature is a sum over rows, so that the chunk size has no effect."""
    options = {"hidden_layer_sizes": (5,), "prior_precision": 1.0, "sigma_noise": 0.2, "n_members": 1}
    model = LaplaceRegressor(**options, random_state=0, hessian_structure=structure)
    first = answers(model.fit(X, Y))
    monkeypatch.setattr(_memory, "CHUNK_ROWS", (1, 7))
    np.testing.assert_allclose(answers(model.fit(X, Y)), first, rtol=1e-6)


def test_company_at_predict_does_not_matter(reference):
    """The prediction for a row does not depend on the other rows or their order, Monte-Carlo noise included."""
    estimator = copy.deepcopy(reference[0])
    if isinstance(estimator, LaplaceClassifier):
        estimator.refit_laplace(link="mc")
    together = answers(estimator)
    alone = np.vstack([answers(estimator, X_NEW[i : i + 1]) for i in range(len(X_NEW))])
    # Covariances of jointly trained members have single precision.
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(answers(estimator, X_NEW[::-1]), together[::-1], rtol=1e-5, atol=1e-6)


def test_global_generators_are_untouched(reference):
    """Fit and predict use separate generators; results depend on random_state only."""
    fitted, y, first = reference
    estimator = clone(fitted)
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002 - the global state is the subject
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    np.testing.assert_array_equal(answers(estimator.fit(X, y)), first)
    estimator.sample_y(X_NEW, 3, random_state=1)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


@pytest.mark.usefixtures("short_training")
def test_random_state_matters():
    """Different seeds give different initial weights."""
    options = {**SMALL, "n_members": 1, "likelihood": "gaussian"}
    first, second = (LaplaceRegressor(**options, random_state=seed).fit(X, Y).predict(X_NEW) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_the_template_is_untouched():
    """Module, options and state of the template are unchanged; a module instance is copied, not trained."""
    module = nets.Hidden(3, 1)
    module.train()
    state = copy.deepcopy(module.state_dict())
    template = nets.regressor(module)
    options = {key: value for key, value in template.get_params().items() if not key.startswith("callbacks")}
    LaplaceRegressor(template, random_state=0).fit(X, Y).predict_std(X_NEW)
    after = {key: value for key, value in template.get_params().items() if not key.startswith("callbacks")}
    assert options == after
    assert template.module is module and module.training and not template.initialized_
    assert all(torch.equal(module.state_dict()[name], value) for name, value in state.items())
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.usefixtures("short_training")
def test_predict_leaves_the_estimator_as_it_was():
    """No lazily computed attributes; predictions are the same before and after other methods."""
    model = LaplaceRegressor(nets.regressor(nets.Hidden, module__dropout=0.5, module__norm=True), random_state=0)
    model.fit(X, Y)
    names = set(vars(model))
    first = answers(model)
    assert not model.net_.module_.training
    model.predict(X_NEW, return_cov=True)
    model.sample_y(X_NEW, 2)
    assert set(vars(model)) == names
    np.testing.assert_array_equal(answers(model), first)


def test_units_of_y_do_not_matter():
    """For y ↦ a y + b, mean and std change accordingly, and the evidence by −N log a."""
    model, scaled = (LaplaceRegressor(n_members=1, random_state=0).fit(X, y) for y in (Y, 1024 * Y - 512))
    mean, std = model.predict(X_NEW, return_std=True)
    got_mean, got_std = scaled.predict(X_NEW, return_std=True)
    # A training of a hundred steps magnifies rounding errors to 1e-5.
    np.testing.assert_allclose(got_mean, 1024 * mean - 512, rtol=1e-4, atol=1e-4 * 1024 * Y.std())
    np.testing.assert_allclose(got_std, 1024 * std, rtol=1e-4)
    np.testing.assert_allclose(scaled.sigma_noise_, 1024 * model.sigma_noise_, rtol=1e-4)
    shift = model.log_marginal_likelihood_value_ - scaled.log_marginal_likelihood_value_
    np.testing.assert_allclose(shift, 60 * np.log(1024), rtol=1e-5)


def test_units_of_the_columns_do_not_matter():
    """The built-in net standardises the columns; scaling by powers of two is exact."""
    scales = np.array([2.0**10, 2.0**-8, 4.0])
    model = LaplaceRegressor(likelihood="gaussian", n_members=1, random_state=0)
    first = answers(model.fit(X, Y))
    second = answers(model.fit(X * scales, Y), X_NEW * scales)
    np.testing.assert_allclose(second, first, rtol=1e-6)


@pytest.mark.usefixtures("short_training")
def test_names_of_the_classes_do_not_matter():
    """Integers and strings of the same order give the same fit."""
    names = np.array(["a", "b", "c"])
    first, second = (LaplaceClassifier(**SMALL, random_state=0).fit(X, y) for y in (LABELS, names[LABELS]))
    np.testing.assert_array_equal(second.predict_proba(X_NEW), first.predict_proba(X_NEW))
    np.testing.assert_array_equal(second.predict(X_NEW), names[first.predict(X_NEW)])


@pytest.mark.usefixtures("complete_training")
def test_a_strong_prior_gives_the_mean_and_no_epistemic_variance():
    """For δ → ∞, the weights have no variance."""
    model = LaplaceRegressor(random_state=0, prior_precision=1e8).fit(X, Y)
    mean, _ = model.predict(X_NEW, return_std=True)
    np.testing.assert_allclose(mean, Y.mean(), atol=1e-3)
    assert (model.predict_std(X_NEW, kind="epistemic") < 1e-2).all()


@pytest.mark.usefixtures("short_training")
def test_a_cold_posterior_is_narrower_and_the_mode_stays():
    """The temperature scales the curvature and does not change the MAP estimate."""
    cold, warm = (
        LaplaceRegressor(random_state=0, prior_precision=1.0, sigma_noise=0.2, temperature=t).fit(X, Y)
        for t in (0.1, 1.0)
    )
    np.testing.assert_array_equal(cold.predict(X_NEW), warm.predict(X_NEW))
    assert (cold.predict_std(X_NEW, kind="epistemic") < warm.predict_std(X_NEW, kind="epistemic")).all()


def test_weights_that_sum_to_one_are_shares():
    """Shares are scaled to Kish's effective number of rows; equal shares are the same as no weights."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] + 0.2 * rng.normal(size=40)
    model = LaplaceRegressor(hidden_layer_sizes=(5,), n_members=1, random_state=0)
    plain = model.fit(X, y).predict_std(X)
    np.testing.assert_allclose(model.fit(X, y, sample_weight=np.full(40, 1 / 40)).predict_std(X), plain, rtol=1e-6)
    tiny = model.fit(X, y, sample_weight=np.full(40, 2.0**-300)).predict_std(X)
    np.testing.assert_allclose(tiny, plain, rtol=1e-6)
    shares = rng.random(40)
    counted = model.fit(X, y, sample_weight=shares * shares.sum() / (shares**2).sum()).predict_std(X)
    shared = model.fit(X, y, sample_weight=shares / shares.sum())
    np.testing.assert_allclose(shared.predict_std(X), counted, rtol=1e-6)
    np.testing.assert_allclose(shared.laplace_.total_weight, shares.sum() ** 2 / (shares**2).sum())


WEIGHTS = {
    "numbers": np.random.default_rng(8).uniform(0.2, 3, 60),
    "copies": np.random.default_rng(8).integers(0, 4, 60).astype(float),
    "equal": np.ones(60),
}


@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
@pytest.mark.parametrize(("name", "factor"), [("numbers", 1e-6), ("copies", 7.0), ("equal", 1 / 3)])
def test_the_scale_of_weights_does_not_matter_for_a_default_fit(estimator, name, factor):
    """Signal and background may each sum to one, and weights may have any unit."""
    model, y = estimator(random_state=0), Y if estimator is LaplaceRegressor else LABELS
    expected = answers(model.fit(X, y, sample_weight=WEIGHTS[name]))
    np.testing.assert_allclose(answers(model.fit(X, y, sample_weight=factor * WEIGHTS[name])), expected, atol=1e-6)


@pytest.mark.usefixtures("complete_training")
def test_the_scale_of_class_weights_does_not_matter_for_a_default_fit():
    """Classes that each sum to one have the probabilities of balanced classes, and are no constants."""
    labels = (X[:, 0] > 0.5).astype(int)
    sizes = np.bincount(labels)
    balanced, *others = (
        LaplaceClassifier(class_weight=given, random_state=0, n_members=1).fit(X, labels).predict_proba(X)[:, 1]
        for given in ("balanced", dict(enumerate(1 / sizes)), dict(enumerate(1e4 / sizes)))
    )
    assert balanced[labels == 1].mean() > balanced[labels == 0].mean() + 0.5
    for other in others:
        np.testing.assert_allclose(other, balanced, atol=1e-4)  # weights differ in the last bits


@pytest.mark.usefixtures("short_training")
def test_shares_have_the_same_unit_in_later_rows():
    """Weights of a given net count rows; shares of a fit are enlarged, and those of later rows as they were."""
    model = LaplaceRegressor(nets.Linear, random_state=0)
    plain = model.fit(X, Y).predict_std(X_NEW)
    shared = model.fit(X, Y, sample_weight=np.full(60, 1 / 60))
    np.testing.assert_allclose(shared.predict_std(X_NEW), plain, rtol=1e-6)
    shared.partial_fit(X[:5], Y[:5], sample_weight=np.full(5, 1 / 60))
    np.testing.assert_allclose(shared.laplace_.total_weight, 65, rtol=1e-9)
