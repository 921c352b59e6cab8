"""Each link against the law that it stands for, beside the contract that all keep."""

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
from sklearn_laplace.laplace.links._base import centred, standard_normals
from sklearn_laplace.laplace.links.moderated import inverse_constant

NO_DRAWS = torch.zeros(1, 1)


def integrals(latent: LatentGaussian, n_nodes: int) -> Tensor:
    rows = zip(latent.mean, latent.covariance, strict=True)
    return torch.stack([oracles.softmax_normal_expectation(m, c, n_nodes) for m, c in rows])


def scaled(latent: LatentGaussian, factor: float) -> LatentGaussian:
    return LatentGaussian(latent.mean, factor * latent.covariance)


# ---------------------------------------------------------------------- quadrature


@pytest.mark.parametrize(("n_classes", "size", "n_nodes"), [(2, 0.1, 64), (2, 1.0, 200), (2, 3.0, 360), (3, 0.3, 64)])
def test_quadrature_is_the_integral(n_classes, size, n_nodes):
    """The oracle's tensor grid over all C logits, with as many nodes as it needs to be exact to 1e-9 itself."""
    latent = scaled(contracts.random_latent(n_classes, seed=5), size)
    found = Quadrature(NO_DRAWS).mean(latent)
    torch.testing.assert_close(found, integrals(latent, n_nodes), rtol=0, atol=1e-8)


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_quadrature_is_the_limit_of_draws(n_classes, size):
    """A million antithetic pairs: six standard errors, at most .5 / √n each."""
    latent = scaled(contracts.random_latent(n_classes, seed=8, n=2), size)
    rows = zip(latent.mean, latent.covariance, strict=True)
    expected = torch.stack([oracles.softmax_normal_expectation_mc(m, c) for m, c in rows])
    torch.testing.assert_close(Quadrature(NO_DRAWS).mean(latent), expected, rtol=0, atol=6 * 0.5 / 1e3)


def test_quadrature_of_a_step_is_the_normal_distribution_function():
    """Two classes whose logits differ by N(700, 10⁶): a softmax as steep as a step, Φ(m/s) but for 1e-6."""
    mean, covariance = torch.tensor([[700.0, 0.0]]).double(), 5e5 * torch.eye(2).double()[None]
    found = Quadrature(NO_DRAWS).mean(LatentGaussian(mean, covariance))[0, 0]
    assert abs(float(found) - float(torch.special.ndtr(torch.tensor(0.7).double()))) < 1e-6


def test_quadrature_falls_back_to_the_draws_row_by_row():
    """Six classes have five directions; a row that has fewer is integrated, whatever its neighbours."""
    latent = contracts.random_latent(6, seed=1)
    narrow = contracts.random_latent(6, seed=2, rank=2)
    draws = standard_normals(512, 6, seed=0)
    both = LatentGaussian(*(torch.cat([getattr(a, k) for a in (latent, narrow)]) for k in ("mean", "covariance")))
    found = Quadrature(draws).mean(both)
    torch.testing.assert_close(found[:6], MC(draws).mean(centred(latent)), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[6:], MC(standard_normals(2**16, 6, seed=3)).mean(narrow), rtol=0, atol=2e-4)


# ---------------------------------------------------------------------- probit


def per_class(latent: LatentGaussian) -> Tensor:
    """The formula of other packages: each logit moderated by its own variance, whatever it shares with the others."""
    return (latent.mean / (1 + math.pi / 8 * latent.variance).sqrt()).softmax(-1)


def distance(found: Tensor, latent: LatentGaussian) -> float:
    """Mean total variation to the integral."""
    return float(0.5 * (found - Quadrature(NO_DRAWS).mean(latent)).abs().sum(1).mean())


def cases(n_classes: int, size: float, seed: int, common: float = 0.0) -> LatentGaussian:
    """Twenty random covariances with variances of about ``size``, and a variance common to all logits."""
    latent = contracts.random_latent(n_classes, seed=seed, n=20)
    return LatentGaussian(latent.mean, size / n_classes * latent.covariance + common)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_probit_of_two_classes_is_mackays_moderated_logistic(size):
    """MacKay (1992), σ(κ(s²) a) with κ = (1 + π s² / 8)^−½, of the difference of the logits and its variance."""
    latent = cases(2, size, seed=3)
    expected = []
    for mean, covariance in zip(latent.mean.numpy(), latent.covariance.numpy(), strict=True):
        towards = np.array([1.0, -1.0])
        kappa = (1 + np.pi * (towards @ covariance @ towards) / 8) ** -0.5
        expected.append([expit(kappa * (towards @ mean)), expit(-kappa * (towards @ mean))])
    np.testing.assert_allclose(Probit(NO_DRAWS).mean(latent).numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_the_probit_couples_the_moderated_logistics_of_all_pairs(n_classes):
    """1/p_c is proportional to the sum of the odds of every class j against c, each of the pair's own two logits."""
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
    """f + u 1 with u = 2 + aᵀf: the same softmax, draw by draw. The formula per class answers otherwise."""
    latent = cases(3, 1.0, seed=7)
    mixing = torch.eye(3).double() + torch.tensor([1.0, -2.0, 0.5]).double().expand(3, 3)
    moved = LatentGaussian(latent.mean @ mixing.mT + 2, mixing @ latent.covariance @ mixing.mT)
    torch.testing.assert_close(Probit(NO_DRAWS).mean(moved), Probit(NO_DRAWS).mean(latent), rtol=1e-9, atol=0)
    assert float((per_class(moved) - per_class(latent)).abs().max()) > 0.1


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("common", [0.0, 4.0])
def test_the_probit_is_closer_to_the_integral_than_the_formula_per_class(n_classes, size, common):
    """Logits of random covariances, three times twenty."""
    for seed in range(3):
        latent = cases(n_classes, size, seed, common)
        assert distance(Probit(NO_DRAWS).mean(latent), latent) < distance(per_class(latent), latent)


def test_the_formula_per_class_is_closer_for_many_independent_logits_of_one_variance():
    """The exception: from five classes on, where the logits share nothing; up to four the pairs are closer here too.

    "moderated" knows how many classes there are: closer than both.
    """
    for n_classes in (2, 3, 4, 5):
        mean = contracts.random_latent(n_classes, seed=0, n=20).mean
        latent = LatentGaussian(mean, torch.eye(n_classes).double().expand(20, -1, -1))
        closer = distance(Probit(NO_DRAWS).mean(latent), latent) < distance(per_class(latent), latent)
        assert closer == (n_classes < 5)
        assert distance(Moderated(NO_DRAWS).mean(latent), latent) < distance(per_class(latent), latent)


def test_the_formula_per_class_is_closer_for_twenty_classes_unless_they_share_much():
    """Covariances of full rank against those of rank two, whose logits move together; 8192 quasi-random draws."""
    draws = MC(standard_normals(8192, 20, seed=0))
    for rank, pairs_are_closer in ((20, False), (2, True)):
        latent = scaled(contracts.random_latent(20, seed=0, n=20, rank=rank), 1 / rank)
        exact = draws.mean(latent)
        found = Probit(NO_DRAWS).mean(latent), per_class(latent), Moderated(NO_DRAWS).mean(latent)
        errors = [float((p - exact).abs().sum(1).mean()) for p in found]
        assert (errors[0] < errors[1]) == pairs_are_closer
        assert errors[2] < min(errors[:2])


# ---------------------------------------------------------------------- moderated


@pytest.mark.parametrize("n_classes", [2, 3, 10, 30, 100, 1000, 10_000])
def test_the_constant_is_that_of_the_largest_of_so_many_normals(n_classes):
    """A cubic in log q against the integral of its definition."""
    found = float(inverse_constant(torch.full((1, n_classes), -math.log(n_classes)).double()))
    assert found * oracles.moderation(n_classes) == pytest.approx(1, abs=1e-12 if n_classes == 2 else 0.008)


@pytest.mark.parametrize("n_classes", [2, 3, 6, 12])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_moderated_is_its_formula(n_classes, size):
    """The oracle's loops, with the integral for the constant, which the cubic misses by .8 %."""
    latent = cases(n_classes, size, seed=n_classes)
    expected = [oracles.moderated_softmax(m, c) for m, c in zip(latent.mean, latent.covariance, strict=True)]
    found = Moderated(NO_DRAWS).mean(latent)
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-12 if n_classes == 2 else 2e-3)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_moderated_of_two_classes_is_the_probit(size):
    """Two classes are never spread over more than two."""
    latent = cases(2, size, seed=3)
    torch.testing.assert_close(Moderated(NO_DRAWS).mean(latent), Probit(NO_DRAWS).mean(latent), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n_classes", [2, 3, 10, 50])
def test_a_small_lead_counts_as_much_as_in_the_integral(n_classes):
    """The law behind the constant: wide independent logits, one of them ahead by a hundredth of their spread.

    By how much it is the largest more often than 1/C is one integral, ∫ φ(z − .01) Φ(z)^{C−1} dz − 1/C.
    """
    std, lead = 1e4, 0.01
    mean = torch.zeros(1, n_classes, dtype=torch.float64)
    mean[0, 0] = lead * std
    latent = LatentGaussian(mean, std**2 * torch.eye(n_classes, dtype=torch.float64)[None])
    z = np.linspace(-12, 12, 100_001)
    wins = trapezoid(norm.pdf(z - lead) * norm.cdf(z) ** (n_classes - 1), z)
    found = float(Moderated(NO_DRAWS).mean(latent)[0, 0])
    assert found - 1 / n_classes == pytest.approx(wins - 1 / n_classes, rel=0.02)


@pytest.mark.parametrize("n_classes", [4, 6, 10, 20])
@pytest.mark.parametrize("size", [1.0, 10.0])
@pytest.mark.parametrize("rank", [2, None])
def test_moderated_is_closer_to_the_integral_than_the_probit(n_classes, size, rank):
    """Random covariances, of few directions or of all; also in how sure it is of its first class, on average."""
    latent = scaled(contracts.random_latent(n_classes, seed=1, n=100, rank=rank), size / (rank or n_classes))
    exact = MC(standard_normals(2**13, n_classes, seed=0)).mean(latent)
    found, pairs = Moderated(NO_DRAWS).mean(latent), Probit(NO_DRAWS).mean(latent)
    assert float((found - exact).abs().sum()) < float((pairs - exact).abs().sum())
    confidence = [float(p.amax(1).mean() - exact.amax(1).mean()) for p in (found, pairs)]
    assert abs(confidence[0]) < abs(confidence[1])


def test_moderated_has_gradients_where_a_class_is_out_of_the_question():
    """Roots of probabilities that are zero."""
    mean = torch.tensor([[0.0, 800.0, -800.0], [0.0, 0.0, 0.0]]).double().requires_grad_()
    covariance = torch.eye(3).double().expand(2, 3, 3)
    (gradient,) = torch.autograd.grad(Moderated(NO_DRAWS).mean(LatentGaussian(mean, covariance))[:, 1].sum(), mean)
    assert bool(gradient.isfinite().all())
    assert float(gradient[1, 1]) > 0.1


# ---------------------------------------------------------------------- bridge


def laplace_of_dirichlet(alpha: Tensor) -> LatentGaussian:
    """Mode and inverse Hessian, by autodiff, of the log density Σ α_c log softmax(f)_c of a Dirichlet over its logits.

    A common constant of all logits has no density of its own: the pseudo-inverse leaves it out.
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
    """Laplace's approximation of a Dirichlet, and from it the Dirichlet again; with or without a common constant."""
    alpha = torch.tensor(alpha).double()
    latent = laplace_of_dirichlet(alpha)
    shifted = LatentGaussian(latent.mean + common, latent.covariance + common)
    mean = alpha / alpha.sum()
    torch.testing.assert_close(Bridge(NO_DRAWS).mean(shifted)[0], mean, rtol=1e-10, atol=0)
    variance = mean * (1 - mean) / (alpha.sum() + 1)
    torch.testing.assert_close(Bridge(NO_DRAWS).variance(shifted)[0], variance, rtol=1e-10, atol=0)


def test_the_bridge_of_two_classes_has_the_mean_of_the_plugin():
    """Known of the formula: the variance leaves the mean of two classes alone."""
    latent = contracts.random_latent(2, seed=0)
    torch.testing.assert_close(Bridge(NO_DRAWS).mean(latent), Plugin(NO_DRAWS).mean(latent), rtol=1e-12, atol=0)


def test_the_normalised_bridge_moderates_two_classes():
    """Variances of 50: the error of the mean falls from above .2 to below .05."""
    latent = scaled(contracts.random_latent(2, seed=0, n=50), 20.0)
    exact = Quadrature(NO_DRAWS).mean(latent)
    error = {link: float((link(NO_DRAWS).mean(latent) - exact).abs().mean()) for link in (Bridge, BridgeNorm)}
    assert error[Bridge] > 0.15
    assert error[BridgeNorm] < 0.05


def test_small_variances_are_not_normalised():
    """Dividing by a mean variance below √(C/2) would sharpen."""
    latent = scaled(contracts.random_latent(3, seed=0), 1e-2)
    torch.testing.assert_close(BridgeNorm(NO_DRAWS).mean(latent), Bridge(NO_DRAWS).mean(latent), rtol=0, atol=0)


def test_a_class_without_variance_of_its_own_gets_the_plugins_probability():
    """Its α would be infinite, and its probability one."""
    covariance = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]).double()
    latent = LatentGaussian(torch.tensor([[1.0, 2.0, 3.0]]).double(), covariance[None])
    draws = standard_normals(256, 3, seed=0)
    torch.testing.assert_close(Bridge(draws).mean(latent), latent.mean.softmax(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(Bridge(draws).variance(latent), MC(draws).variance(latent), rtol=1e-12, atol=0)


# ---------------------------------------------------------------------- parity


def peers(latent: LatentGaussian, link: str) -> Tensor:
    """laplace-torch's probabilities for given logits; it overwrites what it is given."""
    peer = pytest.importorskip("laplace.baselaplace")

    class Given(peer.ParametricLaplace):
        _device, _dtype = latent.mean.device, latent.mean.dtype

        def __init__(self) -> None:
            pass

        def _glm_predictive_distribution(self, *args, **kwargs):
            return latent.mean.clone(), latent.covariance.clone()

    return Given()._glm_forward_call(torch.zeros(1), "classification", link_approx=link)


@pytest.mark.filterwarnings("ignore")  # the peer's and its backends' own
@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("link", ["bridge", "bridge_norm"])
def test_bridges_agree_with_laplace_torch_where_it_is_right(n_classes, link):
    """Rows of the covariance with one sum, where conditioning on Σf = 0 is leaving the constant out; variances above
    √(C/2), where its normalisation moderates. float64.
    """
    latent = contracts.random_latent(n_classes, seed=n_classes)
    balanced = LatentGaussian(latent.mean, 3 * n_classes * centred(latent).covariance + 0.7)
    size = centred(balanced).variance.mean(1) / math.sqrt(n_classes / 2)
    rows = size > 1
    assert int(rows.sum()) >= 3
    found = LINKS[link](NO_DRAWS).mean(balanced)
    torch.testing.assert_close(found[rows], peers(balanced, link)[rows], rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_conditioning_on_zero_sums_would_depend_on_a_constant_of_all_logits():
    """Why laplace-torch's bridge is not copied for other covariances: softmax(f + 5) is softmax(f)."""
    latent = contracts.random_latent(3, seed=1)
    moved = LatentGaussian(latent.mean + 5, latent.covariance)
    assert float((peers(moved, "bridge") - peers(latent, "bridge")).abs().max()) > 0.1
    torch.testing.assert_close(Bridge(NO_DRAWS).mean(moved), Bridge(NO_DRAWS).mean(latent), rtol=1e-10, atol=0)


def test_closed_forms_have_the_accuracy_that_the_docs_state():
    """Three classes with logits of variance about one: mean total variation to the integral."""
    latent = contracts.random_latent(3, seed=4, n=100)
    latent = LatentGaussian(latent.mean, latent.covariance / 3)
    exact = Quadrature(NO_DRAWS).mean(latent)
    distance = {
        link.__name__: float(0.5 * (link(NO_DRAWS).mean(latent) - exact).abs().sum(1).mean())
        for link in (Moderated, Probit, Plugin, Bridge, BridgeNorm)
    }
    assert distance["Probit"] < 0.03
    assert distance["Moderated"] < distance["Probit"] < distance["Plugin"] < distance["Bridge"]
