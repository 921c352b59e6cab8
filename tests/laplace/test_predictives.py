"""Predictive with weight samples, against loops over networks, and the linearised predictive as its limit."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import test_network
import torch
from sklearn.base import clone
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.likelihoods import Gaussian
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.predictives import GLM, MC, mc
from sklearn_laplace.laplace.structures import STRUCTURES, Full
from sklearn_laplace.options import MonteCarlo

# torch warns that weight norm has no vmap rule and is slower
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

X = test_network.X
RNG = np.random.default_rng(41)
ROWS, NEW = RNG.normal(size=(60, 3)), 2 * RNG.normal(size=(9, 3))
Y = np.column_stack([np.sin(ROWS[:, 0]) + 0.2 * RNG.normal(size=60), 50 * ROWS[:, 1] + RNG.normal(size=60)])
LABELS = np.array(["a", "b", "c"])[np.digitize(ROWS[:, 0] + 0.5 * RNG.normal(size=60), [-0.3, 0.7])]
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0, "n_members": 1}


def deviations(network: Network, n: int, size: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return size * torch.randn(n, network.n_parameters, generator=generator, dtype=torch.float64)


def plain(network: Network, thetas: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Outputs (n, C, s) by a loop over networks."""
    return torch.stack([network.with_parameters(theta)(x).double() for theta in thetas], -1)


class Recurrent(nn.Module):
    """A layer with parameters in a list, which functional_call cannot replace."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.GRU(1, 3, batch_first=True, dtype=torch.float64), test_network.linear(3, 2)

    def forward(self, x):
        return self.outer(self.inner(x[:, :, None])[0][:, -1])


OTHERS = {"recurrent": Recurrent, "routed": test_network.Routed, "pooled": test_network.Pooled}


@pytest.mark.parametrize("case", [*test_network.CASES, *OTHERS])
def test_functions_are_those_of_the_network_with_other_weights(case):
    """For every kind of module, batched or not."""
    module = test_network.CASES[case]() if case in test_network.CASES else test_network.built(OTHERS[case]())
    network = trace(module, X)
    moves = deviations(network, 6)
    expected = plain(network, network.theta + moves, X)
    torch.testing.assert_close(MC(moves).functions(network, moves, X), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(MC(moves).mean(network, X), expected.mean(-1), rtol=1e-10, atol=1e-10)
    shift = deviations(network, 7)[6]
    moved = plain(network, network.theta + shift + moves, X)
    torch.testing.assert_close(MC(moves).functions(network, moves, X, shift), moved, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("names", [("2.weight", "2.bias"), ("0.bias",)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_are_not_selected_stay_at_the_mode(names, dtype):
    """In both precisions; float32 products agree to 1e-5."""
    module = oracles.random_mlp((3, 5, 2)).to(dtype)
    network = trace(module, X.to(dtype), names)
    moves = deviations(network, 4)
    functions = MC(moves).functions(network, moves, X.to(dtype))
    assert functions.dtype == torch.float64
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(functions, plain(network, network.theta + moves, X.to(dtype)), rtol=0, atol=tolerance)


def test_moments_are_the_samples(monkeypatch):
    """Mean and unbiased covariance of a loop, also with passes of a single sample."""
    network = trace(oracles.random_mlp((3, 5, 2)), X)
    moves = deviations(network, 30)
    expected = plain(network, network.theta + moves, X)
    posterior = STRUCTURES["diag"].zero(network.blocks, X.device).posterior(torch.tensor(1.0).double(), 1.0)
    for elements in (mc.PASS_ELEMENTS, 1):
        monkeypatch.setattr(mc, "PASS_ELEMENTS", elements)
        latent = MC(moves).latent(network, posterior, X)
        torch.testing.assert_close(latent.samples.movedim(0, -1), expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(latent.mean, expected.mean(-1), rtol=1e-12, atol=1e-12)
        covariances = torch.stack([torch.cov(row) for row in expected])
        torch.testing.assert_close(latent.covariance, covariances, rtol=1e-10, atol=1e-12)
    joint = MC(moves).joint_covariance(network, posterior, X)
    torch.testing.assert_close(joint, torch.cov(expected.flatten(0, 1)), rtol=1e-10, atol=1e-12)
    assert bool((MC(moves[:1]).latent(network, posterior, X).covariance == 0).all()), "one sample has no spread"


def test_samples_of_a_narrow_posterior_are_the_linearised_network():
    """With δ = 10⁶ the net is nearly linear in its weights; tolerance: six standard errors of 4000 samples."""
    x, y = oracles.random_regression(40, 3, 2, seed=1)
    network = trace(oracles.random_mlp((3, 6, 2), seed=2), x)
    rows = [(x, y, torch.ones(40).double())]
    fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), rows)
    n = 4000
    for delta, within in ((1e6, True), (1.0, False)):
        posterior = fit.posterior(Hyper(torch.tensor([delta]).double()))
        linear = GLM().latent(network, posterior, x)
        sampled = MC.prepared(posterior, n, seed=0).latent(network, posterior, x)
        ratio = (sampled.variance / linear.variance).sqrt()
        off = (sampled.mean - linear.mean).abs() / linear.variance.sqrt()
        agree = bool(((ratio - 1).abs() < 6 / (2 * n) ** 0.5).all()) and bool((off < 6 / n**0.5 + 1e-3).all())
        assert agree == within, f"delta {delta}: {ratio.min():.3f} to {ratio.max():.3f}, mean off by {off.max():.3f}"


class Failing(nn.Module):
    """Module whose forward pass raises on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.budget = oracles.random_mlp((3, 4, 2)), [10**9]

    def forward(self, x):
        self.budget[0] -= 1
        if self.budget[0] < 0:
            raise KeyError("out of passes")
        return self.body(x)


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 10**6])
@pytest.mark.parametrize("batched", [True, False])
def test_the_network_is_untouched(passes, batched, monkeypatch):
    """Weights and training mode of both copies do not change, even if a forward pass fails."""
    module = Failing()
    network = trace(module, X)
    kept = [test_network.snapshot(m) for m in (module, network.module)]
    state = torch.random.get_rng_state()
    moves = deviations(network, 5)
    if not batched:
        monkeypatch.setattr(mc, "_runs_batched", lambda network, x: False)
    network.module.budget[0] = passes
    if passes < 10:
        with pytest.raises(KeyError, match="out of passes"):
            MC(moves).mean(network, X)
    else:
        MC(moves).mean(network, X)
    for before, now in zip(kept, (test_network.snapshot(m) for m in (module, network.module)), strict=True):
        assert all(torch.equal(value, now["state"][name]) for name, value in before["state"].items())
        assert all(before[key] == now[key] for key in before if key != "state")
    assert torch.equal(state, torch.random.get_rng_state())


# ---------------------------------------------------------------------- estimators


@pytest.fixture(scope="module", params=["one", "two"])
def regressor(request):
    y = Y[:, 0] if request.param == "one" else Y
    return LaplaceRegressor(predictive=MonteCarlo(64), **SMALL).fit(ROWS, y)


@pytest.fixture(scope="module")
def classifier():
    return LaplaceClassifier(predictive=MonteCarlo(64), **SMALL).fit(ROWS, LABELS)


def functions(model, n_samples, seed):
    """Outputs (n, C, s) by a loop over the estimator's weight samples."""
    network = model.laplace_.network
    moves = model.posterior_.sample(n_samples, torch.Generator().manual_seed(seed))
    return plain(network, network.theta + moves, torch.tensor(NEW)).numpy()


def test_a_regressor_answers_with_the_moments_of_its_samples(regressor):
    """predict, predict_std, return_cov and the density are in units of y."""
    scale, centre = regressor._scale.scale, regressor._scale.mean
    samples = functions(regressor, 64, regressor._ensemble.first.seed) * scale[:, None] + centre[:, None]
    mean, std = regressor.predict(NEW, return_std=True)
    shape = mean.shape
    np.testing.assert_allclose(mean, samples.mean(-1).reshape(shape), rtol=1e-9)
    np.testing.assert_allclose(regressor.predict(NEW), mean, rtol=1e-12)
    epistemic = samples.std(-1, ddof=1).reshape(shape)
    np.testing.assert_allclose(regressor.predict_std(NEW, kind="epistemic"), epistemic, rtol=1e-9)
    np.testing.assert_allclose(std**2, epistemic**2 + np.square(regressor.sigma_noise_), rtol=1e-9)
    covariance = regressor.predict(NEW, return_cov=True)[1].reshape(9, 9, -1)
    for c in range(samples.shape[1]):
        expected = np.cov(samples[:, c]) + np.atleast_1d(regressor.sigma_noise_)[c] ** 2 * np.eye(9)
        np.testing.assert_allclose(covariance[..., c], expected, rtol=1e-9)


def test_a_classifier_answers_with_the_average_softmax(classifier):
    """Mean and standard deviation of the samples' probabilities."""
    logits = torch.tensor(functions(classifier, 64, classifier._ensemble.first.seed))
    probabilities = logits.softmax(1).numpy()
    np.testing.assert_allclose(classifier.predict_proba(NEW), probabilities.mean(-1), rtol=1e-9)
    np.testing.assert_allclose(classifier.predict_std(NEW), probabilities.std(-1), rtol=1e-8)
    np.testing.assert_array_equal(classifier.predict(NEW), classifier.classes_[classifier.predict_proba(NEW).argmax(1)])


def test_rows_are_answered_alone(regressor, classifier):
    """Results of a row do not depend on the other rows, since all rows share the samples."""
    for model in (regressor, classifier):
        std = model.predict_std(NEW)
        np.testing.assert_allclose(model.predict_std(NEW[::-1]), std[::-1], rtol=1e-9)
        np.testing.assert_allclose(model.predict_std(NEW[[4]])[0], std[4], rtol=1e-9)
        np.testing.assert_array_equal(model.predict_std(NEW), std)


def test_function_draws_are_functions_of_the_network(regressor, classifier):
    """sample_y(kind="epistemic") returns outputs of the net at weight samples, jointly over rows."""
    scale, centre = regressor._scale.scale, regressor._scale.mean
    seed = int(np.random.RandomState(5).randint(np.iinfo(np.int32).max))
    expected = functions(regressor, 7, seed) * scale[:, None] + centre[:, None]
    drawn = regressor.sample_y(NEW, 7, random_state=5, kind="epistemic")
    np.testing.assert_allclose(drawn.reshape(expected.shape), expected, rtol=1e-9)
    probabilities = torch.tensor(functions(classifier, 7, seed)).softmax(1).numpy()
    drawn = classifier.sample_y(NEW, 7, random_state=5, kind="epistemic")
    np.testing.assert_allclose(drawn, probabilities, rtol=1e-9)


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
def test_a_refit_changes_the_predictive_and_back(kind):
    """refit_laplace equals a new fit, and switching back restores the linearised predictions."""
    y = Y[:, 0] if kind is LaplaceRegressor else LABELS
    model = kind(map_prior_precision=1.0, **SMALL).fit(ROWS, y)
    before = model.predict_std(NEW)
    model.refit_laplace(predictive=MonteCarlo(32))
    fresh = clone(model).fit(ROWS, y)
    np.testing.assert_array_equal(model.predict_std(NEW), fresh.predict_std(NEW))
    np.testing.assert_array_equal(model.predict(NEW), fresh.predict(NEW))
    assert not np.array_equal(model.predict_std(NEW), before)
    model.refit_laplace(predictive="auto")
    np.testing.assert_array_equal(model.predict_std(NEW), before)


def test_weights_move_with_rows_that_come_later():
    """Samples are centred on the mean after partial_fit; for a linear net this is Bayesian linear regression."""
    options = {"hidden_layer_sizes": (), "prior_precision": 1.0, "sigma_noise": 1.0, "random_state": 0}
    linear = LaplaceRegressor(**options).fit(ROWS[:30], Y[:30, 0]).partial_fit(ROWS[30:], Y[30:, 0])
    mean, std = linear.predict(NEW), linear.predict_std(NEW, kind="epistemic")
    linear.refit_laplace(predictive=MonteCarlo(4000))
    assert np.abs((linear.predict(NEW) - mean) / std).max() < 6 / 4000**0.5
    np.testing.assert_allclose(linear.predict_std(NEW, kind="epistemic"), std, rtol=6 / 8000**0.5)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_every_structure_can_be_sampled(structure):
    """With a strong prior the std agrees with the linearised one within the error of 4000 samples."""
    options = {"prior_precision": 1e5, "map_prior_precision": 1.0, "sigma_noise": 1.0, "predictive": "glm", **SMALL}
    model = LaplaceRegressor(hessian_structure=structure, **options).fit(ROWS, Y[:, 0])
    std = model.predict_std(NEW, kind="epistemic")
    model.refit_laplace(predictive=MonteCarlo(4000))
    np.testing.assert_allclose(model.predict_std(NEW, kind="epistemic"), std, rtol=6 / 8000**0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predictive": "nn"}, "predictive='nn' is not known; expected one of 'auto', 'extrapolating', 'glm', 'mc'"),
        ({"predictive": MonteCarlo(0)}, "n_samples=0 has to be a whole number of at least 1"),
    ],
)
def test_a_wrong_predictive_is_refused(options, message):
    """For both estimators."""
    for model, y in ((LaplaceRegressor(), Y[:, 0]), (LaplaceClassifier(), LABELS)):
        with pytest.raises(ValueError, match=message):
            clone(model).set_params(**options).fit(ROWS, y)


@pytest.mark.parametrize("link", ["plugin", "bridge", "quadrature"])
def test_a_link_that_samples_do_not_need_is_refused(link, classifier):
    """Other links are refused; the default and "mc" are the average over samples."""
    message = f"link='{link}' cannot be used with predictive='mc'.*Use predictive='auto', or link='moderated'"
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(predictive="mc", link=link).fit(ROWS, LABELS)
    same = clone(classifier).set_params(link="mc").fit(ROWS, LABELS)
    np.testing.assert_array_equal(same.predict_proba(NEW), classifier.predict_proba(NEW))
