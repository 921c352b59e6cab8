"""Random copies of the rows: k copies, each with 1/k of its row's weight, in training, curvature and evidence."""

from __future__ import annotations

import nets
import numpy as np
import oracles
import pytest
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(29)
X, X_NEW = RNG.normal(size=(50, 3)), 2 * RNG.normal(size=(6, 3))
Y = np.cos(X[:, 0]) + X[:, 1] ** 2 + 0.1 * RNG.normal(size=50)
LABELS = np.where(Y > 1, "far", "near")
ALONE = {"n_members": 1, "prior_precision": "evidence", "random_state": 0}
SMALL = {**ALONE, "hidden_layer_sizes": (4,)}
LINEAR = {"sigma_noise": 0.5, "standardize_X": False, "standardize_y": False, "random_state": 0}


def fit_copies(model, copies, y, weights=None):
    """Fit copies (k, n, d) of the rows."""
    k = len(copies)
    weights = np.ones(len(y)) if weights is None else weights
    return model.fit(np.concatenate(copies), np.tile(y, k), sample_weight=np.tile(weights, k) / k)


def frozen():
    net = nets.regressor(nets.Hidden, module__n_in=3, module__n_out=1).initialize()
    with torch.no_grad():
        for i, p in enumerate(net.module_.parameters()):
            p.copy_(0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
    return net


def answers(model):
    mean = model.predict_proba(X_NEW) if isinstance(model, LaplaceClassifier) else model.predict(X_NEW)
    return np.column_stack([mean, model.predict_std(X_NEW)])


@pytest.mark.parametrize("curvature", ["ggn", "empirical_fisher"])
def test_the_curvature_is_that_of_all_copies_divided_by_their_number(curvature):
    """Curvature and likelihood of a frozen net, compared with autodiff over the copies."""
    k, weights = 3, RNG.integers(1, 4, size=50).astype(float)
    copies = X + 0.3 * RNG.normal(size=(k, 50, 3))
    options = {"hessian_structure": "full", "curvature": curvature, "sigma_noise": 0.5, "prior_precision": 1.0}
    model = fit_copies(LaplaceRegressor(FrozenEstimator(frozen()), random_state=0, **options), copies, Y, weights)
    fit = model.laplace_
    x, y, w = torch.tensor(copies.reshape(-1, 3)), torch.tensor(np.tile(Y, k))[:, None], torch.tensor(weights) / k
    names = fit.network.parameter_names
    oracle = {"ggn": oracles.ggn, "empirical_fisher": oracles.empirical_fisher}[curvature]
    expected = oracle("gaussian", fit.network.module, names, x, y, w.repeat(k))
    pieces = fit.network.tensors(torch.arange(fit.network.n_parameters))
    index = torch.cat([pieces[name].flatten() for name in names])
    torch.testing.assert_close(fit.curvature.matrix[index][:, index], expected, rtol=1e-10, atol=1e-10)
    density = oracles.log_likelihood("gaussian", oracles.outputs(fit.network.module, x), y, 0.25)
    np.testing.assert_allclose(fit.log_likelihood(model.hyper_), float((w.repeat(k) * density).sum()), rtol=1e-10)
    np.testing.assert_allclose(fit.total_weight, weights.sum(), rtol=1e-12)


@pytest.mark.parametrize("k", [4, 5])
@pytest.mark.parametrize(
    "model",
    [LaplaceRegressor(sigma_noise="evidence", **SMALL), LaplaceClassifier(**SMALL)],
    ids=["reg", "class"],
)
def test_copies_that_are_the_rows_change_nothing(model, k):
    """The total weight is that of the rows; results are bit-identical if division by k is exact."""
    y = LABELS if isinstance(model, LaplaceClassifier) else Y
    plain, copied = clone(model).fit(X, y), fit_copies(clone(model), [X] * k, y)
    np.testing.assert_allclose(answers(copied), answers(plain), rtol=1e-6 if k == 5 else 0)
    evidence = plain.log_marginal_likelihood_value_
    np.testing.assert_allclose(copied.log_marginal_likelihood_value_, evidence, rtol=1e-9)


def test_a_closed_orbit_makes_the_answer_symmetric():
    """With copies x and −x, a linear model has slope zero and equal uncertainty at x and −x."""
    y = 3 * X[:, 0] + 1.0
    model = fit_copies(LaplaceRegressor(nets.Linear, prior_precision=1.0, **LINEAR), [X, -X], y)
    np.testing.assert_allclose(model.predict(X_NEW), model.predict(-X_NEW), rtol=1e-9)
    np.testing.assert_allclose(model.predict_std(X_NEW), model.predict_std(-X_NEW), rtol=1e-9)
    plain = LaplaceRegressor(nets.Linear, prior_precision=1.0, **LINEAR).fit(X, y)
    assert np.abs(plain.predict(X_NEW) - plain.predict(-X_NEW)).max() > 1


@pytest.mark.usefixtures("complete_training")
def test_a_net_told_of_a_symmetry_knows_more_of_the_other_side():
    """With mirrored copies of one-sided rows, the other side is predicted well; the total weight does not grow."""
    one_sided = np.abs(X)
    plain = LaplaceRegressor(**SMALL, sigma_noise=0.1).fit(one_sided, Y)
    model = fit_copies(LaplaceRegressor(**SMALL, sigma_noise=0.1), [one_sided, -one_sided], Y)
    other = model.predict_std(-one_sided, kind="epistemic")
    assert other.mean() < 0.5 * plain.predict_std(-one_sided, kind="epistemic").mean()
    assert np.mean((model.predict(-one_sided) - Y) ** 2) < 0.2 * np.mean((plain.predict(-one_sided) - Y) ** 2)
    assert model.laplace_.total_weight == plain.laplace_.total_weight == 50


def test_copies_around_a_row_are_a_stronger_prior_of_a_linear_net():
    """Input noise of covariance s² I adds N s²/σ² to the prior precision of the slopes (Bishop 1995)."""
    s = 0.8
    steps = [sign * s * 3**0.5 * e for e in np.eye(3) for sign in (1, -1)]  # each column shifted in a third of them
    model = fit_copies(LaplaceRegressor(nets.Linear, prior_precision=1.0, **LINEAR), [X + step for step in steps], Y)
    stronger = LaplaceRegressor(nets.Linear, prior_precision=[1.0 + 50 * s**2 / 0.5**2, 1.0], **LINEAR).fit(X, Y)
    np.testing.assert_allclose(answers(model), answers(stronger), rtol=1e-9)
    plain = LaplaceRegressor(nets.Linear, prior_precision=1.0, **LINEAR).fit(X, Y)
    assert (model.predict_std(X_NEW) < plain.predict_std(X_NEW)).all()
