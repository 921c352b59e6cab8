"""Linear nets, for which the Laplace approximation is exact, with every option that keeps the model linear."""

from __future__ import annotations

import nets
import numpy as np
import oracles
import pytest
import torch
import trainings

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

RNG = np.random.default_rng(3)
X, X_NEW = RNG.normal(size=(80, 4)), 3 * RNG.normal(size=(7, 4))
Y = X @ RNG.normal(size=(4, 2)) + [1.0, -2.0] + 0.3 * RNG.normal(size=(80, 2))
WEIGHTS = RNG.integers(0, 4, size=80).astype(float)
DELTA = 2.0


def with_bias(X):
    return torch.tensor(np.column_stack([X, np.ones(len(X))]))


def truth(y, weights, noise):
    """Closed-form posterior, and its mean and covariance at X_NEW."""
    w = torch.tensor(np.ones(80) if weights is None else weights)
    exact = oracles.bayesian_linear_regression(with_bias(X), torch.tensor(y.reshape(80, -1)), w, DELTA, noise**2)
    return exact, *exact.predict(with_bias(X_NEW))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(("structure", "batch_size"), [("full", 128), ("functional", 7), ("kron", -1), ("auto", 33)])
def test_a_linear_net_is_bayesian_linear_regression(structure, batch_size, sigma, weights):
    """Mean, std, covariance and evidence equal the closed form.

    Structure kron is also exact: with one layer and one output, B is N_w and A is the mean of a aᵀ. The tolerances are
    for float64 and a condition number below 1e3.
    """
    y = Y[:, 0]
    exact, mean, covariance = truth(y, weights, sigma)
    model = LaplaceRegressor(
        nets.regressor(nets.Linear, max_epochs=3, batch_size=batch_size),
        prior_precision=DELTA,
        sigma_noise=sigma,
        hessian_structure=structure,
        standardize_X=False,
        standardize_y=False,
        random_state=0,
    ).fit(X, y, sample_weight=weights)
    got_mean, got_std = model.predict(X_NEW, return_std=True)
    epistemic = covariance.diagonal().sqrt().numpy()
    np.testing.assert_allclose(got_mean, mean[:, 0].numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got_std, np.sqrt(epistemic**2 + sigma**2), rtol=1e-9)
    np.testing.assert_allclose(model.predict_std(X_NEW, kind="epistemic"), epistemic, rtol=1e-9)
    np.testing.assert_allclose(model.predict_std(X_NEW, kind="aleatoric"), sigma, rtol=1e-12)
    np.testing.assert_allclose(
        model.predict(X_NEW, return_cov=True)[1], covariance.numpy() + sigma**2 * np.eye(7), rtol=1e-9, atol=1e-12
    )
    expected = exact.log_density if exact.log_density is not None else exact.log_evidence
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(expected), rtol=1e-9)


def test_several_outputs_are_several_regressions():
    """Independent outputs share the covariance, and their log evidences add up."""
    exact, mean, covariance = truth(Y, None, 0.5)
    model = LaplaceRegressor(
        nets.regressor(nets.Linear),
        prior_precision=DELTA,
        sigma_noise=0.5,
        standardize_X=False,
        standardize_y=False,
        random_state=0,
    ).fit(X, Y)
    got_mean, got_cov = model.predict(X_NEW, return_cov=True)
    np.testing.assert_allclose(got_mean, mean.numpy(), rtol=1e-9, atol=1e-9)
    for k in range(2):
        np.testing.assert_allclose(got_cov[..., k], covariance.numpy() + 0.25 * np.eye(7), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(exact.log_evidence), rtol=1e-9)


def test_tensor_precisions_are_a_diagonal_prior():
    """Different prior precisions for the weights and for the bias."""
    delta = torch.tensor([0.5, 0.5, 0.5, 0.5, 20.0], dtype=torch.float64)
    exact = oracles.bayesian_linear_regression(
        with_bias(X), torch.tensor(Y[:, :1]), torch.ones(80, dtype=torch.float64), delta, 0.25
    )
    mean, covariance = exact.predict(with_bias(X_NEW))
    for structure in ("full", "functional", "kron"):
        model = LaplaceRegressor(
            nets.regressor(nets.Linear),
            prior_precision=[0.5, 20.0],
            sigma_noise=0.5,
            standardize_X=False,
            standardize_y=False,
            hessian_structure=structure,
        ).fit(X, Y[:, 0])
        got, std = model.predict(X_NEW, return_std=True)
        np.testing.assert_allclose(got, mean[:, 0].numpy(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(std**2 - 0.25, covariance.diagonal().numpy(), rtol=1e-8)
        np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(exact.log_evidence), rtol=1e-9)


def test_the_evidence_of_a_linear_net_is_maximised():
    """The evidence at the chosen (δ, σ) is close to the maximum of the exact evidence."""
    y = Y[:, 0]

    def exact_evidence(log_parameters):
        delta, noise = (float(value) for value in torch.as_tensor(log_parameters).exp())
        exact = oracles.bayesian_linear_regression(
            with_bias(X), torch.tensor(y[:, None]), torch.ones(80, dtype=torch.float64), delta, noise
        )
        return float(exact.log_evidence)

    _, best = oracles.numerical_optimum(exact_evidence, np.log([1.0, 0.1]))
    model = LaplaceRegressor(nets.regressor(nets.Linear), standardize_X=False, standardize_y=False, random_state=0).fit(
        X, y
    )
    # The search stops as soon as no change by 30 % gains 0.1 nats.
    assert best - 0.15 <= model.log_marginal_likelihood_value_ <= best + 1e-6


def test_a_one_layer_classifier_has_the_logistic_hessian():
    """For two logits, the posterior precision of their difference is XᵀSX + δI at the exact MAP estimate."""
    labels = (Y[:, 0] > 0).astype(int)
    model = LaplaceClassifier(
        nets.classifier(nets.Linear),
        prior_precision=DELTA,
        standardize_X=False,
        hessian_structure="full",
        random_state=0,
    ).fit(X, labels)
    exact = oracles.logistic_map(with_bias(X), torch.tensor(labels), DELTA, n_classes=2)
    network = model.laplace_.network
    tensors = network.tensors(network.theta)
    got = torch.cat([tensors["linear.weight"], tensors["linear.bias"][:, None]], 1)
    torch.testing.assert_close(got, exact.to(got), rtol=1e-7, atol=1e-8)
    # Along (w₁ − w₀) / √2, the curvature of the categorical likelihood is twice the Hessian of the binary one.
    features = with_bias(X)
    p = torch.softmax(features @ exact.mT, -1)[:, 1]
    hessian = features.mT @ ((p * (1 - p))[:, None] * features)
    contrast = torch.cat([-torch.eye(5), torch.eye(5)], 1).double() / 2**0.5
    precision = model.laplace_.curvature.matrix + DELTA * torch.eye(10)
    torch.testing.assert_close(
        contrast @ precision @ contrast.mT, 2 * hessian + DELTA * torch.eye(5), rtol=1e-7, atol=1e-8
    )
    torch.testing.assert_close(
        oracles.bayesian_logistic_hessian(features, p, DELTA), hessian + DELTA * torch.eye(5), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_functional_is_full(subset):
    """Both forms of the posterior of a tanh net give the same predictions and evidence."""
    models = [
        LaplaceRegressor(
            hidden_layer_sizes=(6,),
            hessian_structure=structure,
            subset_of_weights=subset,
            likelihood="gaussian",
            random_state=0,
            memory=trainings.MEMORY,
        ).fit(X, Y)
        for structure in ("full", "functional")
    ]
    for kind in ("total", "epistemic"):
        np.testing.assert_allclose(*(m.predict_std(X_NEW, kind=kind) for m in models), rtol=1e-7)
    np.testing.assert_allclose(*(m.log_marginal_likelihood_value_ for m in models), rtol=1e-9)
