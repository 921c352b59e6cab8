"""Accepted values of ``net``: module class, module instance, skorch net, fitted skorch net."""

from __future__ import annotations

import copy
import importlib
import warnings

import nets
import numpy as np
import oracles
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from skorch import NeuralNetRegressor

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

RNG = np.random.default_rng(21)
X = RNG.normal(size=(90, 3))
Y = 20 + 300 * (np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=90))
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
X_NEW = RNG.normal(size=(9, 3))


def frozen_regressor(**options):
    """Skorch net in single precision, fitted to targets of a large scale."""
    torch.manual_seed(0)
    net = nets.regressor(nets.Hidden, module__n_in=3, max_epochs=60, lr=1.0, **options)
    return net.fit(X.astype(np.float32), Y[:, None].astype(np.float32))


@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
def test_a_module_class_has_a_training_of_its_own(estimator):
    """Layer sizes are inferred, the learning rate falls to zero, and random_state determines the initial weights."""
    y = Y if estimator is LaplaceRegressor else LABELS
    model = estimator(nets.Hidden, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert len(model.history_) == 400
    np.testing.assert_array_equal(clone(model).fit(X, y).predict(X_NEW), model.predict(X_NEW))


def test_a_module_instance_is_copied():
    """Training starts from the weights of the instance, which are not modified."""
    module = nets.Hidden(3, 1, hidden=6)
    state = copy.deepcopy(module.state_dict())
    model = LaplaceRegressor(module, random_state=0).fit(X, Y)
    assert model.score(X, Y) > 0.9
    assert module.training
    assert all(torch.equal(module.state_dict()[name], value) for name, value in state.items())
    assert model.net_.module_.hidden.out_features == 6


def test_frozen_parameters_are_not_random():
    """Parameters with requires_grad=False are neither trained nor part of the posterior."""
    module = nets.Hidden(3, 1, hidden=6)
    module.hidden.requires_grad_(False)
    before = module.hidden.weight.detach().clone()
    model = LaplaceRegressor(module, random_state=0).fit(X, Y)
    assert model.laplace_.network.parameter_names == ("out.weight", "out.bias")
    torch.testing.assert_close(model.net_.module_.hidden.weight, before.double(), rtol=0, atol=0)


def test_a_frozen_net_is_untouched_and_its_predictions_stay():
    """A post-hoc posterior: the mean is that of the net, which is not trained further."""
    net = frozen_regressor()
    state = copy.deepcopy(net.module_.state_dict())
    options = {name: value for name, value in net.get_params().items() if not name.startswith("callbacks")}
    model = LaplaceRegressor(FrozenEstimator(net), random_state=0).fit(X, Y)
    assert all(torch.equal(net.module_.state_dict()[name], value) for name, value in state.items())
    assert next(net.module_.parameters()).dtype == torch.float32
    after = {name: value for name, value in net.get_params().items() if not name.startswith("callbacks")}
    assert after == options
    np.testing.assert_allclose(model.predict(X_NEW), net.predict(X_NEW.astype(np.float32))[:, 0], rtol=1e-5, atol=1e-3)
    assert 0.5 < model.sigma_noise_ / (Y - model.predict(X)).std() < 2  # in the units of y
    assert model.mode_distance_ >= 0


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
def test_a_frozen_nets_posterior_is_the_dense_one_at_its_weights(structure):
    """In double precision, curvature, evidence and variances equal dense results by automatic differentiation."""
    net = frozen_regressor()
    sigma, delta = 70.0, 0.5
    model = LaplaceRegressor(
        FrozenEstimator(net), prior_precision=delta, sigma_noise=sigma, hessian_structure=structure
    ).fit(X, Y)
    if structure not in ("full", "functional"):
        assert np.isfinite(model.predict_std(X_NEW)).all()
        return
    module = copy.deepcopy(net.module_).double()
    names = oracles.all_names(module)
    x, y = torch.tensor(X), torch.tensor(Y[:, None])
    hessian = oracles.ggn("gaussian", module, names, x, y)
    precision = oracles.posterior_precision(hessian, delta, 1 / sigma**2)
    jacobian = oracles.jacobian(module, names, torch.tensor(X_NEW))
    variance = oracles.glm_covariance(jacobian, precision)[:, 0, 0]
    np.testing.assert_allclose(model.predict_std(X_NEW, kind="epistemic") ** 2, variance.numpy(), rtol=1e-5)
    likelihood = oracles.log_likelihood("gaussian", module(x).detach(), y, sigma**2).sum()
    evidence = oracles.log_evidence(likelihood, hessian, delta, 1 / sigma**2, oracles.flatten(module, names))
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(evidence), rtol=1e-5)


def test_a_frozen_net_is_that_of_laplace_torch():
    """Evidence and variances equal those of laplace-torch for the same net."""
    pytest.importorskip("laplace.baselaplace")  # "laplace" alone would find the folder tests/laplace
    laplace = importlib.import_module("laplace")
    net = frozen_regressor()
    model = LaplaceRegressor(FrozenEstimator(net), prior_precision=0.5, sigma_noise=70.0, hessian_structure="full").fit(
        X, Y
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from laplace.curvature import BackPackGGN

        peer = laplace.Laplace(
            torch.nn.Sequential(copy.deepcopy(net.module_).double().eval()),
            "regression",
            subset_of_weights="all",
            hessian_structure="full",
            sigma_noise=70.0,
            prior_precision=0.5,
            backend=BackPackGGN,
        )
        data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y[:, None]))
        peer.fit(torch.utils.data.DataLoader(data, batch_size=32))
        _, variance = peer(torch.tensor(X_NEW))
    ours = model.predict_std(X_NEW, kind="epistemic") ** 2
    np.testing.assert_allclose(ours, variance[:, 0, 0].detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(peer.log_marginal_likelihood()), rtol=1e-5)


def test_a_frozen_classifier_keeps_its_mode():
    """Outputs that are probabilities are converted to logits, and link="plugin" returns the original probabilities."""
    torch.manual_seed(0)
    net = nets.classifier(nets.Probabilities, module__n_in=3, module__n_out=3, max_epochs=40)
    net.fit(X.astype(np.float32), LABELS)
    model = LaplaceClassifier(FrozenEstimator(net), link="plugin", random_state=0).fit(X, LABELS)
    np.testing.assert_allclose(model.predict_proba(X_NEW), net.predict_proba(X_NEW.astype(np.float32)), atol=1e-5)
    moderated = LaplaceClassifier(FrozenEstimator(net), random_state=0).fit(X, LABELS).predict_proba(X_NEW)
    assert moderated.max(1).mean() < model.predict_proba(X_NEW).max(1).mean()


def test_an_unfitted_net_in_a_frozen_estimator_is_refused():
    """An unfitted net has no mode to approximate."""
    with pytest.raises(NotFittedError, match="inside FrozenEstimator has not been fitted"):
        LaplaceRegressor(FrozenEstimator(NeuralNetRegressor(nets.Hidden))).fit(X, Y)


def test_a_frozen_net_of_another_width_is_refused():
    """The numbers of inputs and outputs have to match the data."""
    with pytest.raises(ValueError, match=r"does not accept inputs of shape \(n, 2\)"):
        LaplaceRegressor(FrozenEstimator(frozen_regressor())).fit(X[:, :2], Y)
    with pytest.raises(ValueError, match=r"returned \(2, 1\) for 2 rows; expected \(2, 2\)"):
        LaplaceRegressor(FrozenEstimator(frozen_regressor())).fit(X, np.column_stack([Y, Y]))


def test_a_frozen_estimator_of_another_kind_is_refused():
    """Only skorch nets have a module that can be linearised."""
    with pytest.raises(TypeError, match=r"FrozenEstimator\(Ridge\(…\)\) is not supported; freeze a fitted skorch net"):
        LaplaceRegressor(FrozenEstimator(Ridge().fit(X, Y))).fit(X, Y)


def test_large_raw_targets_without_standardisation():
    """The noise level is searched relative to the variance of the targets."""
    model = LaplaceRegressor(nets.Hidden, standardize_y=False, sigma_noise="residual", random_state=0)
    model.fit(X, 1e6 * Y)
    np.testing.assert_allclose(model.sigma_noise_, np.sqrt(np.mean((1e6 * Y - model.predict(X)) ** 2)), rtol=1e-3)
