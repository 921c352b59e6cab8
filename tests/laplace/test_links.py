"""Each link against the distribution that it approximates, in addition to the common contract."""

import functools
import itertools
import math

import contracts
import numpy as np
import oracles
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.links import LINKS, MC, Bridge, BridgeNorm, Moderated, Plugin, Probit, Quadrature
from sklearn_laplace.laplace.links.moderated import inverse_constant

NO_DRAWS = torch.zeros(1, 1)


def integrals(latent: LatentGaussian, n_nodes: int) -> Tensor:
    rows = zip(latent.mean, latent.covariance, strict=True)
    return torch.stack([oracles.softmax_normal_expectation(m, c, n_nodes) for m, c in rows])


def standard_normals(n_samples: int, dimension: int, seed: int) -> Tensor:
    """Quasi-random standard normal draws (n_samples, dimension)."""
    points = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed).draw(n_samples, dtype=torch.float64)
    return torch.special.ndtri(points)


def centred(latent: LatentGaussian) -> LatentGaussian:
    """The Gaussian over the logits minus their mean, by the projection I - 11ᵀ/C."""
    n_classes = latent.mean.shape[1]
    projection = torch.eye(n_classes).double() - 1 / n_classes
    return LatentGaussian(latent.mean @ projection, projection @ latent.covariance @ projection)


def scaled(latent: LatentGaussian, factor: float) -> LatentGaussian:
    return LatentGaussian(latent.mean, factor * latent.covariance)


# ---------------------------------------------------------------------- quadrature


@pytest.mark.parametrize(("n_classes", "size", "n_nodes"), [(2, 0.1, 64), (2, 1.0, 200), (2, 3.0, 360), (3, 0.3, 64)])
def test_quadrature_is_the_integral(n_classes, size, n_nodes):
    """Reference: the oracle's tensor grid over all C logits, with enough nodes for an error below 1e-9."""
    latent = scaled(contracts.random_latent(n_classes, seed=5), size)
    probabilities = Quadrature(NO_DRAWS).mean(latent)
    torch.testing.assert_close(probabilities, integrals(latent, n_nodes), rtol=0, atol=1e-8)


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_quadrature_is_the_limit_of_draws(n_classes, size):
    """Quasi-random draws; their error, at most 1.3e-3, is that of five wide logits and about 1e-5 otherwise."""
    latent = scaled(contracts.random_latent(n_classes, seed=8, n=1), size)
    rows = zip(latent.mean, latent.covariance, strict=True)
    expected = torch.stack([oracles.softmax_normal_expectation_mc(m, c) for m, c in rows])
    torch.testing.assert_close(Quadrature(NO_DRAWS).mean(latent), expected, rtol=0, atol=6 * 0.5 / 1e3)


def test_quadrature_of_a_step_is_the_normal_distribution_function():
    """For a logit difference N(700, 10⁶) the softmax is nearly a step; the result is Φ(m/s) to 1e-6."""
    mean, covariance = torch.tensor([[700.0, 0.0]]).double(), 5e5 * torch.eye(2).double()[None]
    probability = Quadrature(NO_DRAWS).mean(LatentGaussian(mean, covariance))[0, 0]
    assert abs(float(probability) - float(torch.special.ndtr(torch.tensor(0.7).double()))) < 1e-6


def test_quadrature_falls_back_to_the_draws_row_by_row():
    """Six classes have five directions: too many for a grid. Rows of lower rank are integrated all the same."""
    latent = contracts.random_latent(6, seed=1)
    narrow = contracts.random_latent(6, seed=2, rank=2)
    draws = standard_normals(512, 6, seed=0)
    both = LatentGaussian(*(torch.cat([getattr(a, k) for a in (latent, narrow)]) for k in ("mean", "covariance")))
    probabilities = Quadrature(draws).mean(both)
    torch.testing.assert_close(probabilities[:6], MC(draws).mean(centred(latent)), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        probabilities[6:], MC(standard_normals(2**16, 6, seed=3)).mean(narrow), rtol=0, atol=2e-4
    )


# ---------------------------------------------------------------------- probit


def per_class(latent: LatentGaussian) -> Tensor:
    """Common per-class formula: each logit is moderated by its own variance, without regard to covariances."""
    return (latent.mean / (1 + math.pi / 8 * latent.variance).sqrt()).softmax(-1)


def distance(probabilities: Tensor, exact: Tensor) -> float:
    """Mean total variation distance."""
    return float(0.5 * (probabilities - exact).abs().sum(1).mean())


def cases(n_classes: int, size: float, seed: int, common: float = 0.0) -> LatentGaussian:
    """Twenty random covariances with variances of about ``size``, plus a variance common to all logits."""
    latent = contracts.random_latent(n_classes, seed=seed, n=20)
    return LatentGaussian(latent.mean, size / n_classes * latent.covariance + common)


@functools.cache
def integrals_of_cases(n_classes: int, size: float, seed: int) -> Tensor:
    """Exact probabilities of `cases`; a common variance does not change them."""
    return Quadrature(NO_DRAWS).mean(cases(n_classes, size, seed))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_probit_of_two_classes_is_mackays_moderated_logistic(size):
    """MacKay (1992): σ(κ(s²) a) with κ = (1 + π s² / 8)^−½, where a is the logit difference and s² its variance."""
    latent = cases(2, size, seed=3)
    expected = []
    for mean, covariance in zip(latent.mean.numpy(), latent.covariance.numpy(), strict=True):
        towards = np.array([1.0, -1.0])
        kappa = (1 + np.pi * (towards @ covariance @ towards) / 8) ** -0.5
        expected.append([expit(kappa * (towards @ mean)), expit(-kappa * (towards @ mean))])
    np.testing.assert_allclose(Probit(NO_DRAWS).mean(latent).numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_the_probit_couples_the_moderated_logistics_of_all_pairs(n_classes):
    """1/p_c is proportional to the sum over j of the odds of class j against c, each from these two logits alone."""
    latent = cases(n_classes, 1.0, seed=5)
    odds = torch.ones(20, n_classes, n_classes, dtype=torch.float64)
    for c, j in itertools.permutations(range(n_classes), 2):
        pair = LatentGaussian(latent.mean[:, [c, j]], latent.covariance[:, [c, j]][:, :, [c, j]])
        of_c, of_j = Probit(NO_DRAWS).mean(pair).unbind(1)
        odds[:, c, j] = of_j / of_c
    expected = 1 / odds.sum(2)
    expected = expected / expected.sum(1, keepdim=True)
    torch.testing.assert_close(Probit(NO_DRAWS).mean(latent), expected, rtol=1e-9, atol=0)


def test_the_probit_does_not_see_a_constant_that_goes_with_the_logits():
    """f + u 1 with u = 2 + aᵀf has the same softmax for each draw. The per-class formula changes."""
    latent = cases(3, 1.0, seed=7)
    mixing = torch.eye(3).double() + torch.tensor([1.0, -2.0, 0.5]).double().expand(3, 3)
    moved = LatentGaussian(latent.mean @ mixing.mT + 2, mixing @ latent.covariance @ mixing.mT)
    torch.testing.assert_close(Probit(NO_DRAWS).mean(moved), Probit(NO_DRAWS).mean(latent), rtol=1e-9, atol=0)
    assert float((per_class(moved) - per_class(latent)).abs().max()) > 0.1


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("common", [0.0, 4.0])
def test_the_probit_is_closer_to_the_integral_than_the_formula_per_class(n_classes, size, common):
    """Three sets of twenty random covariances."""
    for seed in range(3):
        latent, exact = cases(n_classes, size, seed, common), integrals_of_cases(n_classes, size, seed)
        assert distance(Probit(NO_DRAWS).mean(latent), exact) < distance(per_class(latent), exact)


def test_the_formula_per_class_is_closer_for_many_independent_logits_of_one_variance():
    """Exception: with independent logits the per-class formula is more accurate from five classes on.

    "moderated", which depends on the number of classes, is more accurate than the per-class formula throughout.
    """
    for n_classes in (2, 3, 4, 5):
        mean = contracts.random_latent(n_classes, seed=0, n=20).mean
        latent = LatentGaussian(mean, torch.eye(n_classes).double().expand(20, -1, -1))
        exact = Quadrature(NO_DRAWS).mean(latent)
        closer = distance(Probit(NO_DRAWS).mean(latent), exact) < distance(per_class(latent), exact)
        assert closer == (n_classes < 5)
        assert distance(Moderated(NO_DRAWS).mean(latent), exact) < distance(per_class(latent), exact)


def test_the_formula_per_class_is_closer_for_twenty_classes_unless_they_share_much():
    """Covariances of full rank and of rank two, where logits are correlated; reference: 8192 quasi-random draws."""
    draws = MC(standard_normals(8192, 20, seed=0))
    for rank, pairs_are_closer in ((20, False), (2, True)):
        latent = scaled(contracts.random_latent(20, seed=0, n=20, rank=rank), 1 / rank)
        exact = draws.mean(latent)
        probabilities = Probit(NO_DRAWS).mean(latent), per_class(latent), Moderated(NO_DRAWS).mean(latent)
        errors = [float((p - exact).abs().sum(1).mean()) for p in probabilities]
        assert (errors[0] < errors[1]) == pairs_are_closer
        assert errors[2] < min(errors[:2])


# ---------------------------------------------------------------------- moderated


@pytest.mark.parametrize("n_classes", [2, 3, 10, 30, 100, 1000, 10_000])
def test_the_constant_is_that_of_the_largest_of_so_many_normals(n_classes):
    """Cubic polynomial in log q against the integral that defines the constant."""
    constant = float(inverse_constant(torch.full((1, n_classes), -math.log(n_classes)).double()))
    assert constant * oracles.moderation(n_classes) == pytest.approx(1, abs=1e-12 if n_classes == 2 else 0.008)


@pytest.mark.parametrize("n_classes", [2, 3, 6, 12])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_moderated_is_its_formula(n_classes, size):
    """Against the oracle's loops with the exact constant; the cubic has a relative error of up to .8 %."""
    latent = cases(n_classes, size, seed=n_classes)
    expected = [oracles.moderated_softmax(m, c) for m, c in zip(latent.mean, latent.covariance, strict=True)]
    probabilities = Moderated(NO_DRAWS).mean(latent)
    torch.testing.assert_close(probabilities, torch.stack(expected), rtol=0, atol=1e-12 if n_classes == 2 else 2e-3)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_moderated_of_two_classes_is_the_probit(size):
    """With two classes the number of plausible classes is always two."""
    latent = cases(2, size, seed=3)
    torch.testing.assert_close(Moderated(NO_DRAWS).mean(latent), Probit(NO_DRAWS).mean(latent), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n_classes", [2, 3, 10, 50])
def test_a_small_lead_counts_as_much_as_in_the_integral(n_classes):
    """Criterion that defines the constant: wide independent logits, the first .01 standard deviations ahead.

    Its probability of being the largest exceeds 1/C by ∫ φ(z − .01) Φ(z)^{C−1} dz − 1/C.
    """
    std, lead = 1e4, 0.01
    mean = torch.zeros(1, n_classes, dtype=torch.float64)
    mean[0, 0] = lead * std
    latent = LatentGaussian(mean, std**2 * torch.eye(n_classes, dtype=torch.float64)[None])
    z = np.linspace(-12, 12, 100_001)
    wins = trapezoid(norm.pdf(z - lead) * norm.cdf(z) ** (n_classes - 1), z)
    probability = float(Moderated(NO_DRAWS).mean(latent)[0, 0])
    assert probability - 1 / n_classes == pytest.approx(wins - 1 / n_classes, rel=0.02)


@pytest.mark.parametrize("n_classes", [4, 6, 10, 20])
@pytest.mark.parametrize("size", [1.0, 10.0])
@pytest.mark.parametrize("rank", [2, None])
def test_moderated_is_closer_to_the_integral_than_the_probit(n_classes, size, rank):
    """Random covariances of low or full rank: probabilities and mean confidence are closer to the integral."""
    latent = scaled(contracts.random_latent(n_classes, seed=1, n=50, rank=rank), size / (rank or n_classes))
    exact = MC(standard_normals(2**13, n_classes, seed=0)).mean(latent)
    probabilities, pairs = Moderated(NO_DRAWS).mean(latent), Probit(NO_DRAWS).mean(latent)
    assert float((probabilities - exact).abs().sum()) < float((pairs - exact).abs().sum())
    confidence = [float(p.amax(1).mean() - exact.amax(1).mean()) for p in (probabilities, pairs)]
    assert abs(confidence[0]) < abs(confidence[1])


def test_moderated_has_gradients_where_a_class_is_out_of_the_question():
    """The square roots of zero probabilities have no infinite gradients."""
    mean = torch.tensor([[0.0, 800.0, -800.0], [0.0, 0.0, 0.0]]).double().requires_grad_()
    covariance = torch.eye(3).double().expand(2, 3, 3)
    (gradient,) = torch.autograd.grad(Moderated(NO_DRAWS).mean(LatentGaussian(mean, covariance))[:, 1].sum(), mean)
    assert bool(gradient.isfinite().all())
    assert float(gradient[1, 1]) > 0.1


# ---------------------------------------------------------------------- bridge


def laplace_of_dirichlet(alpha: Tensor) -> LatentGaussian:
    """Laplace approximation, by autodiff, of a Dirichlet over its logits, Σ α_c log softmax(f)_c.

    The density is constant along a common shift of the logits; the pseudo-inverse ignores this direction.
    """
    mode = alpha.log() - alpha.log().mean()

    def log_density(f: Tensor) -> Tensor:
        return (alpha * f.log_softmax(0)).sum()

    hessian = torch.autograd.functional.hessian(log_density, mode)
    gradient = torch.autograd.functional.jacobian(log_density, mode)
    assert float(gradient.abs().max()) < 1e-12 * float(alpha.sum()), "the mode is one"
    return LatentGaussian(mode[None], torch.linalg.pinv(-hessian, rtol=1e-10, hermitian=True)[None])


@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.2, 3.0), (2.0, 0.5, 7.0), (30.0, 40.0, 1.0, 2.0, 5.0)])
@pytest.mark.parametrize("common", [0.0, 4.0])
def test_the_bridge_leads_back_to_the_dirichlet(alpha, common):
    """The Laplace approximation of a Dirichlet maps back to this Dirichlet, also after a common shift."""
    alpha = torch.tensor(alpha).double()
    latent = laplace_of_dirichlet(alpha)
    shifted = LatentGaussian(latent.mean + common, latent.covariance + common)
    mean = alpha / alpha.sum()
    torch.testing.assert_close(Bridge(NO_DRAWS).mean(shifted)[0], mean, rtol=1e-10, atol=0)
    variance = mean * (1 - mean) / (alpha.sum() + 1)
    torch.testing.assert_close(Bridge(NO_DRAWS).variance(shifted)[0], variance, rtol=1e-10, atol=0)


def test_the_bridge_of_two_classes_has_the_mean_of_the_plugin():
    """Known property of the formula: with two classes the mean does not depend on the variance."""
    latent = contracts.random_latent(2, seed=0)
    torch.testing.assert_close(Bridge(NO_DRAWS).mean(latent), Plugin(NO_DRAWS).mean(latent), rtol=1e-12, atol=0)


def test_the_normalised_bridge_moderates_two_classes():
    """Variances of 50: normalisation reduces the error of the mean from above .15 to below .05."""
    latent = scaled(contracts.random_latent(2, seed=0, n=50), 20.0)
    exact = Quadrature(NO_DRAWS).mean(latent)
    error = {link: float((link(NO_DRAWS).mean(latent) - exact).abs().mean()) for link in (Bridge, BridgeNorm)}
    assert error[Bridge] > 0.15
    assert error[BridgeNorm] < 0.05


def test_small_variances_are_not_normalised():
    """Normalising by a mean variance below √(C/2) would sharpen the probabilities."""
    latent = scaled(contracts.random_latent(3, seed=0), 1e-2)
    torch.testing.assert_close(BridgeNorm(NO_DRAWS).mean(latent), Bridge(NO_DRAWS).mean(latent), rtol=0, atol=0)


def test_a_class_without_variance_of_its_own_gets_the_plugins_probability():
    """Its α would be infinite and its probability 1."""
    covariance = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]).double()
    latent = LatentGaussian(torch.tensor([[1.0, 2.0, 3.0]]).double(), covariance[None])
    draws = standard_normals(256, 3, seed=0)
    torch.testing.assert_close(Bridge(draws).mean(latent), latent.mean.softmax(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(Bridge(draws).variance(latent), MC(draws).variance(latent), rtol=1e-12, atol=0)


# ---------------------------------------------------------------------- parity


def peers(latent: LatentGaussian, link: str) -> Tensor:
    """laplace-torch's probabilities for a Gaussian over logits; it overwrites its inputs."""
    peer = pytest.importorskip("laplace.baselaplace")

    class FixedLogits(peer.ParametricLaplace):
        _device, _dtype = latent.mean.device, latent.mean.dtype

        def __init__(self) -> None:
            pass

        def _glm_predictive_distribution(self, *args, **kwargs):
            return latent.mean.clone(), latent.covariance.clone()

    return FixedLogits()._glm_forward_call(torch.zeros(1), "classification", link_approx=link)


@pytest.mark.filterwarnings("ignore")  # warnings of laplace-torch and its backends
@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("link", ["bridge", "bridge_norm"])
def test_bridges_agree_with_laplace_torch_where_it_is_right(n_classes, link):
    """Compared where both definitions agree: rows of the covariance with equal sums, and variances above √(C/2).

    With equal sums, conditioning on Σf = 0 is the same as removing the common shift.
    """
    latent = contracts.random_latent(n_classes, seed=n_classes)
    balanced = LatentGaussian(latent.mean, 3 * n_classes * centred(latent).covariance + 0.7)
    size = centred(balanced).variance.mean(1) / math.sqrt(n_classes / 2)
    rows = size > 1
    assert int(rows.sum()) >= 3
    probabilities = LINKS[link](NO_DRAWS).mean(balanced)
    torch.testing.assert_close(probabilities[rows], peers(balanced, link)[rows], rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_conditioning_on_zero_sums_would_depend_on_a_constant_of_all_logits():
    """laplace-torch's bridge is not invariant under a common shift of the logits; softmax and this package are."""
    latent = contracts.random_latent(3, seed=1)
    moved = LatentGaussian(latent.mean + 5, latent.covariance)
    assert float((peers(moved, "bridge") - peers(latent, "bridge")).abs().max()) > 0.1
    torch.testing.assert_close(Bridge(NO_DRAWS).mean(moved), Bridge(NO_DRAWS).mean(latent), rtol=1e-10, atol=0)


def test_closed_forms_have_the_accuracy_that_the_docs_state():
    """Mean total variation distance to the integral, for three classes and logits of variance about 1."""
    latent = contracts.random_latent(3, seed=4, n=100)
    latent = LatentGaussian(latent.mean, latent.covariance / 3)
    exact = Quadrature(NO_DRAWS).mean(latent)
    links = (Moderated, Probit, Plugin, Bridge, BridgeNorm)
    distances = {link.__name__: distance(link(NO_DRAWS).mean(latent), exact) for link in links}
    assert distances["Probit"] < 0.03
    assert distances["Moderated"] < distances["Probit"] < distances["Plugin"] < distances["Bridge"]


def test_variances_do_not_depend_on_rounding():
    """The sign of an eigenvector depends on the last digit of the covariance; the draws are not symmetric."""
    generator = torch.Generator().manual_seed(0)
    level = 0.1 + torch.rand(500, 1, 1, generator=generator, dtype=torch.float64)
    covariance = level * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    noise = 1e-15 * torch.randn(500, 2, 2, generator=generator, dtype=torch.float64)
    link, mean = Moderated(standard_normals(100, 2, 0)), torch.tensor([[0.4, -0.4]], dtype=torch.float64).expand(500, 2)
    first, second = (link.variance(LatentGaussian(mean, covariance + part)) for part in (noise, noise.mT.flip(0)))
    torch.testing.assert_close(first, second, rtol=1e-10, atol=0)
