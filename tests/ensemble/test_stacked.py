"""Members as one tensor program: the predictions of each member alone, at a fraction of the time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble.ensemble import Ensemble, Together
from sklearn_laplace._ensemble.noise_model import NoiseModel
from sklearn_laplace._table import limits as _memory
from sklearn_laplace.errors import NonFiniteError
from sklearn_laplace.laplace.network.network import Network
from sklearn_laplace.nets.stacked import StackedNets

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
X[:, 2] = np.where(X[:, 2] > 1.2, np.nan, X[:, 2])
TABLE = np.column_stack([X.astype(object), RNG.choice(["red", "green", "blue"], 90)])
Y = np.sin(X[:, 0]) + 0.1 * X[:, 1]
NOISY = Y + 0.3 * np.exp(0.5 * X[:, 1]) * RNG.normal(size=90)
QUICK = {"random_state": 0, "max_epochs": 2, "prior_precision": 1.0, "hidden_layer_sizes": (6, 5), "n_members": 3}


def alone(model, rows, monkeypatch):
    """Components with one member after the other."""
    with monkeypatch.context() as patch:
        patch.setattr(Ensemble, "_together", lambda self, options: None)
        return model._components(rows), model._means(rows) if isinstance(model, LaplaceRegressor) else None


def check(model, rows, monkeypatch, rtol=1e-10, atol=1e-14):
    """Compare weights and moments of all components, and the mean without a Jacobian."""
    assert model._ensemble._stacked is not None
    expected, outputs = alone(model, rows, monkeypatch)
    found = model._components(rows)
    for name in ("weights", "mean", "epistemic_variance", "aleatoric_variance"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=rtol, atol=atol)
    if outputs is not None:
        torch.testing.assert_close(model._means(rows), outputs, rtol=rtol, atol=atol)


@pytest.mark.parametrize("structure", ["kron", "full", "functional", "diag"])
def test_members_together_predict_as_each_alone(structure, monkeypatch):
    """In float64 the two ways differ by the rounding of sums; the table has missing values and categories."""
    model = LaplaceRegressor(hessian_structure=structure, sigma_noise=0.3, **QUICK).fit(TABLE, Y)
    check(model, TABLE[:40], monkeypatch, 1e-9)


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu", "softplus"])
def test_slopes_are_those_of_automatic_differentiation(activation, monkeypatch):
    model = LaplaceRegressor(activation=activation, hessian_structure="kron", sigma_noise=0.3, **QUICK).fit(X, Y)
    check(model, X, monkeypatch)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_single_precision_differs_by_its_rounding(activation, monkeypatch):
    """torch uses other kernels than in float64, which refuse some views."""
    options = {"activation": activation, "dtype": "float32", "hessian_structure": "kron", **QUICK}
    check(LaplaceRegressor(sigma_noise=0.3, **options).fit(X, Y), X, monkeypatch, 1e-4, 1e-6)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_covariances_between_classes_are_the_same(n_classes, monkeypatch):
    """Several outputs have cotangents and covariances of their own."""
    labels = np.digitize(Y, np.quantile(Y, np.arange(1, n_classes) / n_classes))
    model = LaplaceClassifier(hessian_structure="kron", **QUICK).fit(X, labels)
    check(model, X, monkeypatch)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_probabilities_are_those_of_the_members_one_after_the_other(n_classes, monkeypatch):
    labels = np.digitize(Y, np.quantile(Y, np.arange(1, n_classes) / n_classes))
    model = LaplaceClassifier(hessian_structure="kron", **QUICK).fit(X, labels)
    methods = model.predict_proba, model.predict_entropy, model.score_samples
    with monkeypatch.context() as patch:
        patch.setattr(Ensemble, "_together", lambda self, options: None)
        expected = [method(X) for method in methods]
    monkeypatch.setattr(Network, "linearise", None)
    for method, values in zip(methods, expected, strict=True):
        np.testing.assert_allclose(method(X), values, rtol=1e-9, atol=1e-12)


def test_nets_of_other_shapes_are_stacks_of_their_own(monkeypatch):
    """Members with and without pieces of the columns have first layers of different sizes. Each is stacked once."""
    kinds = [LaplaceRegressor(n_bins=kind, sigma_noise=0.3, **QUICK).fit(X, Y) for kind in (None, 4)]
    members = [member for model in kinds for member in model._ensemble.members]
    sizes, stacked = [], StackedNets.of
    monkeypatch.setattr(StackedNets, "of", lambda networks: sizes.append(len(networks)) or stacked(networks))
    together = Together.of(members, 0)
    assert sizes == [3, 3]
    assert together is not None and [len(stack.members) for stack in together.stacks] == [3, 3]
    with kinds[0]._asked(X) as (x, options):
        found = together.components(x, options, torch.full((6,), 1 / 6).double(), merged=True).mean
        expected = torch.cat([member.components(x, options).mean for member in members], -1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


def test_a_prediction_runs_without_hooks_and_backward_passes(monkeypatch):
    """Recorded passes take most of the time of a prediction of one row."""
    model = LaplaceRegressor(likelihood="heteroscedastic", **QUICK).fit(X, NOISY)
    expected = model.predict_std(X[:1])

    def refuse(*_):
        raise AssertionError("a pass with hooks")

    monkeypatch.setattr(Network, "linearise", refuse)
    np.testing.assert_array_equal(model.predict_std(X[:1]), expected)


def test_a_shared_noise_model_is_evaluated_once(monkeypatch):
    """All members have the noise model of their fit; its moments suffice for a standard deviation."""
    model = LaplaceRegressor(likelihood="heteroscedastic", **QUICK).fit(X, NOISY)
    shared = model._ensemble.first.noise_model
    models = {id(member.noise_model) for member in model._ensemble.members}
    expected = alone(model, X, monkeypatch)[0].moments
    calls, nodes = [], NoiseModel.nodes
    monkeypatch.setattr(NoiseModel, "nodes", lambda self, x: calls.append(len(x)) or nodes(self, x))
    mean, std = model.predict(X, return_std=True)
    assert shared is not None and sum(calls) == len(X) * len(models)
    np.testing.assert_allclose(mean, model._in_units(expected.mean), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(std, model._std(expected, "total"), rtol=1e-9)
    assert model._components(X).mean.shape[-1] > len(model._ensemble.members) == 3


@pytest.mark.parametrize(
    "options",
    [{"predictive": "mc"}, {"subset_of_weights": "last_layer"}, {"hessian_structure": "full", "prior": "tensor"}],
    ids=["mc", "last_layer", "tensor"],
)
def test_other_predictions_are_still_right(options, monkeypatch):
    """Samples of weights, parts of the weights and grouped priors: either way, the result is that of the members."""
    model = LaplaceRegressor(sigma_noise=0.3, **{**QUICK, **options}).fit(X, Y)
    std = model.predict_std(X)
    members = [one.predict(X, return_std=True) for one in model.members_]
    means, variances = np.stack([mean for mean, _ in members]), np.stack([one**2 for _, one in members])
    np.testing.assert_allclose(std**2, variances.mean(0) + means.var(0), rtol=1e-9)


def test_rows_added_later_move_the_mean(monkeypatch):
    """A shift of the posterior mean needs the Jacobian of each member."""
    model = LaplaceRegressor(hessian_structure="kron", sigma_noise=0.3, **QUICK).fit(X[:60], Y[:60])
    assert model._ensemble._stacked is not None
    model.partial_fit(X[60:], Y[60:])
    assert model._ensemble._stacked is None
    np.testing.assert_array_equal(model.predict(X), model.predict(X, return_std=True)[0])


def test_rows_with_non_finite_outputs_are_reported_by_the_member(monkeypatch):
    """The error is that of a member alone, which locates the layer and the rows."""
    model = LaplaceRegressor(activation="relu", hessian_structure="kron", sigma_noise=0.3, **QUICK).fit(X[:, :2], Y)
    rows = np.where(np.arange(10)[:, None] == 7, 1e308, 0.5 * np.ones((10, 2)))
    with pytest.raises(NonFiniteError) as together:
        model.predict(rows, return_std=True)
    with pytest.raises(NonFiniteError) as expected:
        alone(model, rows, monkeypatch)
    assert str(together.value) == str(expected.value)


def test_new_hyperparameters_and_copies_have_stacks_of_their_own():
    """A stack belongs to the posteriors that it was built from."""
    model = LaplaceRegressor(hessian_structure="kron", sigma_noise=0.3, **QUICK).fit(X, Y)
    before = model.predict_std(X)
    wider = model.refit_laplace(prior_precision=0.01).predict_std(X)
    assert (wider > before).all()
    np.testing.assert_allclose(clone(model).set_params(prior_precision=1.0).fit(X, Y).predict_std(X), before)


def test_each_thread_takes_whole_chunks(monkeypatch):
    """Threads that share the operations of a chunk wait for each other after every one of them."""
    monkeypatch.setattr(_memory, "CHUNK_ROWS", (8, 16))
    model = LaplaceRegressor(hessian_structure="kron", sigma_noise=0.3, **QUICK).fit(X, Y)
    threads, linearise, before = [], StackedNets.linearise, torch.get_num_threads()
    monkeypatch.setattr(
        StackedNets, "linearise", lambda *given: threads.append(torch.get_num_threads()) or linearise(*given)
    )
    expected = model.predict_std(X)
    torch.set_num_threads(2)
    try:
        np.testing.assert_array_equal(model.predict_std(X), expected)
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1} and len(threads) >= 12


def test_a_budget_for_the_posteriors_alone_is_enough():
    """The copies of the program need as much memory as the posteriors; without it, each member predicts alone."""
    options = {**QUICK, "hidden_layer_sizes": (60, 50), "hessian_structure": "kron", "sigma_noise": 0.3}
    model = LaplaceRegressor(**options).fit(X, Y)
    expected, used = model.predict_std(X), model._ensemble._used
    for budget, has_room in ((3 * used, True), (1.5 * used, False)):
        model.set_params(memory_budget=budget)
        assert (model._ensemble._together(model._options()) is not None) == has_room
        np.testing.assert_allclose(model.predict_std(X), expected, rtol=1e-10)


def test_variances_that_overflow_single_precision_are_computed_in_double(monkeypatch):
    """Jointly trained members together compute variances in single precision, whose squares end at 1e38."""
    model = LaplaceRegressor(hidden_layer_sizes=(8,), random_state=0).fit(X, NOISY)
    check(model, X, monkeypatch, rtol=1e-6)
    far = model.predict_std(1e25 * X[:3])
    assert np.isfinite(far).all() and (far > 1e30).all()
