"""The caller's torch modes (inference_mode, no_grad, default device and dtype) do not change any result."""

from __future__ import annotations

import copy
import functools
import pickle
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(43)
X = RNG.normal(size=(24, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=24)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (3,), "random_state": 0}


@contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "meta": lambda: default_device("meta"),
    "float64": lambda: default_dtype(torch.float64),
}


def answers(regressor, classifier, *, exact):
    """Predictions of both models, with gradients, draws and evidence."""
    results = [
        *regressor.predict(X, return_std=True, return_mean_grad=True, return_std_grad=True),
        *regressor.predict(X, return_cov=True),
        regressor.predict_std(X, X_std=0.1),
        *regressor.predict_interval(X),
        regressor.sample_y(X, n_samples=2),
        regressor.score_samples(X),
        regressor.log_marginal_likelihood(prior_precision=2.0),
        regressor.log_predictive_density(X, Y),
        classifier.predict_proba(X),
        classifier.predict_std(X),
        classifier.predict_entropy(X),
        classifier.sample_y(X, n_samples=2) == "up",
    ]
    if exact:
        results += [
            *regressor.loo_predict(return_std=True),
            classifier.loo_predict(),
            regressor.prior_path_.loo_log_density,
        ]
    return results


@functools.cache
def fitted(structure):
    """A regressor and a classifier, which tests copy."""
    options = {**SMALL, "hessian_structure": structure, "prior_precision": 1.0}
    return LaplaceRegressor(**options, sigma_noise=0.1).fit(X, Y), LaplaceClassifier(**options).fit(X, LABELS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag", "low_rank"])
def test_a_model_is_the_same_after_it_was_used_in_a_mode(mode, structure):
    """Fit outside, predict inside, predict and refit outside: the mode leaves no trace in the model's state."""
    models, others = copy.deepcopy(fitted(structure)), copy.deepcopy(fitted(structure))
    exact = structure in ("full", "functional")
    with MODES[mode]():
        inside = answers(*models, exact=exact)
    expected = answers(*others, exact=exact)
    for mine, theirs in zip(inside, expected, strict=True):  # the first point of a Sobol sequence has the default dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)
    for mine, theirs in zip(answers(*models, exact=exact), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    for model, other in zip(models, others, strict=True):
        evidence = [each.refit_laplace(prior_precision="evidence").log_marginal_likelihood() for each in (model, other)]
        np.testing.assert_allclose(*evidence, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("complete_training")
def test_a_model_fitted_in_a_mode_is_the_same(mode):
    """A default fit, then partial_fit and forget. Joint training rounds to float32, unless float64 is the default."""
    options = {**SMALL, "n_members": 1, "hessian_structure": "full", "prior_precision": 1.0, "sigma_noise": 0.1}
    expected = (
        LaplaceRegressor(**SMALL).fit(X, Y),
        LaplaceRegressor(**options).fit(X[:20], Y[:20]),
    )
    expected[1].partial_fit(X[20:], Y[20:]).forget(X[:4], Y[:4]).refit_laplace(prior_precision=2.0)
    with MODES[mode]():
        inside = (
            LaplaceRegressor(**SMALL).fit(X, Y),
            LaplaceRegressor(**options).fit(X[:20], Y[:20]),
        )
        inside[1].partial_fit(X[20:], Y[20:]).forget(X[:4], Y[:4]).refit_laplace(prior_precision=2.0)
    for mine, theirs in zip(inside, expected, strict=True):
        for result, other in zip(
            mine.predict(X, return_std=True, return_mean_grad=True, return_std_grad=True),
            theirs.predict(X, return_std=True, return_mean_grad=True, return_std_grad=True),
            strict=True,
        ):
            if mode == "float64" and mine is inside[0]:
                np.testing.assert_allclose(result, other, rtol=1e-3, atol=1e-3)
            else:
                np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-8)


def test_a_net_made_in_inference_mode_is_trained():
    """The weights are copied into ordinary tensors."""
    with torch.inference_mode():
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        model = LaplaceRegressor(net, prior_precision=1.0, sigma_noise=0.1).fit(X, Y)
    assert model.predict(X, return_std=True, return_std_grad=True, return_mean_grad=True)[2].shape == X.shape


def test_a_model_read_in_inference_mode_has_gradients(tmp_path):
    """Unpickled, copied or loaded in inference mode, a model still has ordinary tensors."""
    model = LaplaceRegressor(**SMALL, prior_precision=1.0, sigma_noise=0.1).fit(X, Y)
    expected = model.predict(X, return_std=True, return_mean_grad=True, return_std_grad=True)
    save(model, tmp_path / "model.laplace")
    with torch.inference_mode():
        others = pickle.loads(pickle.dumps(model)), copy.deepcopy(model), load(tmp_path / "model.laplace")
    for other in others:
        results = other.predict(X, return_std=True, return_mean_grad=True, return_std_grad=True)
        for mine, theirs in zip(results, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
