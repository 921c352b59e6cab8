"""Selection by held-out rows: they determine prior precision and noise level."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.datasets import make_friedman1
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.leave_one_out import class_density, gaussian_density
from sklearn_laplace.laplace.likelihoods import Categorical, Gaussian
from sklearn_laplace.laplace.links import Probit
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.selection import HeldOutScores, held_out_scores
from sklearn_laplace.laplace.selection.held_out import WEAKEST
from sklearn_laplace.laplace.structures import STRUCTURES

pytestmark = pytest.mark.usefixtures("short_trainings")


def parts(likelihood, targets, n_outputs, structure, seed=0):
    """Two nets, each fitted to one half of the rows, with the held-out half."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    w = torch.rand(12, generator=generator, dtype=torch.float64) + 0.5
    y, fits = targets(x, generator), []
    for train, held in ((slice(0, 6), slice(6, 12)), (slice(6, 12), slice(0, 6))):
        torch.manual_seed(seed)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, n_outputs)).double()
        network = trace(module, x)
        prior = network.scalar_prior()
        fit = fit_laplace(network, likelihood, GGN(), STRUCTURES[structure], prior, [(x[train], y[train], w[train])])
        fits.append((fit, [(x[held], y[held], w[held])]))
    return fits


def numbers(x, generator):
    return torch.randn(len(x), 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
def test_densities_along_the_grid_are_those_of_explicit_gaussians(structure):
    """The density for each ridge parameter and noise variance equals that of Gaussians with dense covariances."""
    fits = parts(Gaussian(), numbers, 2, structure)
    scores = held_out_scores(fits, Hyper(torch.tensor([0.7]).double(), 0.3), gaussian_density)
    for place in (0, len(scores.ridge) // 2, len(scores.ridge) - 1):
        for noise in (0.05, 2.0):
            hyper, expected = Hyper(scores.ridge[place] / noise * scores.unit, noise), 0.0
            for fit, ((x, y, w),) in fits:
                posterior = fit.posterior(hyper)
                mean, jacobian = fit.network.jacobian(x)
                for n, covariance in enumerate(posterior.covariance(jacobian.double()) + noise * torch.eye(2)):
                    expected += float(w[n]) * multivariate_normal(mean[n].numpy(), covariance.numpy()).logpdf(y[n])
            reached = scores.log_density(torch.full_like(scores.ridge, noise))[place]
            assert float(reached) == pytest.approx(expected, rel=1e-7)  # sums of 24 squares of condition up to 1e4


def test_densities_of_classes_are_those_of_the_posterior_at_each_precision():
    """Classes have no noise variance, so that each grid point is a prior precision."""
    fits = parts(Categorical(), lambda x, g: torch.randint(3, (len(x),), generator=g), 3, "full")
    density = class_density(Categorical(), Probit(torch.zeros(0, 0)))
    scores = held_out_scores(fits, Hyper(torch.tensor([2.0]).double()), density)
    place, expected = 11, 0.0
    for fit, ((x, y, w),) in fits:
        posterior = fit.posterior(Hyper(scores.ridge[place] * scores.unit))
        mean, jacobian = fit.network.jacobian(x)
        latent = Categorical().class_logits(_latent(mean, posterior.covariance(jacobian.double())))
        chosen = Probit(torch.zeros(0, 0)).mean(latent)[torch.arange(len(y)), y]
        expected += float(w @ chosen.log())
    assert float(scores.log_density(torch.ones_like(scores.ridge))[place]) == pytest.approx(expected, rel=1e-9)


def _latent(mean, covariance):
    from sklearn_laplace.laplace.latent import LatentGaussian

    return LatentGaussian(mean.double(), covariance)


def test_what_is_given_stays_and_what_is_free_is_best():
    """Choice of prior precision, noise variance, or both, compared with a fine grid."""
    hyper = Hyper(torch.ones(1).double(), 0.5)
    scores = held_out_scores(parts(Gaussian(), numbers, 2, "full"), hyper, gaussian_density)
    noises = torch.logspace(-3, 3, 2000, dtype=torch.float64)
    surface = torch.stack([scores.log_density(torch.full_like(scores.ridge, float(noise))) for noise in noises])
    both = scores.chosen(hyper, free_prior=True, free_dispersion=True)
    place = int((scores.ridge / (float(both.prior_precision) * both.dispersion)).log().abs().argmin())
    reached = scores.log_density(torch.full_like(scores.ridge, both.dispersion))[place]
    # A prior closer to that of the largest evidence may cost one nat, and grid steps cost some more.
    assert float(surface.max()) - 1.2 <= float(reached) <= float(surface.max()) + 1e-3
    along = scores.log_density(scores.ridge / 0.2)
    best = float(scores.ridge[along.argmax()] / 0.2)
    fixed = Hyper(torch.tensor([0.2]).double(), best)
    noise_only = scores.chosen(fixed, free_prior=False, free_dispersion=True)
    assert torch.equal(noise_only.prior_precision, fixed.prior_precision)
    assert noise_only.dispersion == pytest.approx(best)
    prior_only = scores.chosen(fixed, free_prior=True, free_dispersion=False)
    assert prior_only.dispersion == fixed.dispersion
    assert not scores.suits(Hyper(torch.ones(2).double()))


def test_a_factor_is_that_of_all_variances():
    """Prior precision divided by the factor, and noise multiplied by it, if both are free."""
    hyper = Hyper(torch.ones(1).double(), 0.5)
    scores = held_out_scores(parts(Gaussian(), numbers, 2, "full"), hyper, gaussian_density)
    plain = scores.chosen(hyper, free_prior=True, free_dispersion=True)
    wider = replace(scores, factor=1.7).chosen(hyper, free_prior=True, free_dispersion=True)
    assert wider.dispersion == pytest.approx(1.7 * plain.dispersion)
    assert float(wider.prior_precision) == pytest.approx(float(plain.prior_precision) / 1.7)


def test_noise_is_not_left_to_a_weak_prior():
    """Far below the precision of largest evidence, the posterior would be as wide as the errors."""
    grid = torch.logspace(-3, 3, 49, dtype=torch.float64)
    density = -10 * (grid.log10() + 2) ** 2
    scores = HeldOutScores(torch.ones(1).double(), grid, torch.full((49,), 20.0).double(), density, 20.0)
    chosen = scores.chosen(Hyper(torch.ones(1).double()), free_prior=True, free_dispersion=True)
    assert WEAKEST <= float(chosen.prior_precision) < 1.2 * WEAKEST


@pytest.mark.parametrize("best", [100.0, 1.0, 0.01])
def test_a_prior_of_classes_is_that_of_largest_density(best):
    """There is no noise, which a weak prior could explain."""
    grid = torch.logspace(-3, 3, 13, dtype=torch.float64)
    density = -10 * (grid.log10() - np.log10(best)) ** 2
    scores = HeldOutScores(torch.tensor([2.0]).double(), grid, torch.zeros(13).double(), density, 0.0)
    chosen = scores.chosen(Hyper(torch.tensor([2.0]).double()), free_prior=True, free_dispersion=False)
    assert float(chosen.prior_precision) == pytest.approx(2 * best)


X, Y = make_friedman1(90, noise=1.0, random_state=0)
NEW, NEW_Y = make_friedman1(400, noise=1.0, random_state=1)
SMALL = {"hidden_layer_sizes": (12,), "random_state": 0, "likelihood": "gaussian"}


@pytest.fixture(scope="module")
def fitted():
    return LaplaceRegressor(**SMALL).fit(X, Y)


WITHOUT = {
    "linear": {"hidden_layer_sizes": ()},
    "epochs": {"max_epochs": 3},
    "decoupled": {"map_prior_precision": 1.0},
    "one net": {"n_members": 1},
}


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.parametrize("case", sorted(WITHOUT))
def test_auto_is_the_evidence_for_nets_that_are_trained_alone(case):
    """Linear nets, trainings by epochs, a fixed map_prior_precision, or one net."""
    options = {"hidden_layer_sizes": (6,), "random_state": 0} | WITHOUT[case]
    auto = LaplaceRegressor(**options).fit(X, Y)
    evidence = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", **options).fit(X, Y)
    assert auto._ensemble.first.origin.scores is None
    assert (auto.prior_precision_, auto.sigma_noise_) == (evidence.prior_precision_, evidence.sigma_noise_)


def test_choosing_again_without_data_chooses_the_same(fitted):
    """The scores of the held-out rows are stored as sums along a grid, without rows."""
    before = fitted.prior_precision_, fitted.sigma_noise_, fitted.predict_std(NEW)
    again = pickle.loads(pickle.dumps(fitted)).refit_laplace()
    assert (again.prior_precision_, again.sigma_noise_) == before[:2]
    np.testing.assert_array_equal(again.predict_std(NEW), before[2])


@pytest.mark.usefixtures("short_training")
def test_forget_drops_what_held_out_rows_have_said():
    """The members depend on the removed rows."""
    model = LaplaceRegressor(**{**SMALL, "hidden_layer_sizes": (3,)}, hessian_structure="full").fit(X, Y)
    assert model._ensemble.first.origin.scores is not None
    model.forget(X[:5], Y[:5])
    assert model._ensemble.first.origin.scores is None


def test_a_posterior_as_prior_goes_by_the_evidence(fitted):
    following = LaplaceRegressor(**SMALL, prior=FrozenEstimator(fitted)).fit(NEW[:60], NEW_Y[:60])
    assert following._ensemble.first.origin.scores is None


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
@pytest.mark.usefixtures("complete_training")
def test_the_noise_of_constant_targets_is_finite():
    """Held-out errors of zero give finite densities."""
    model = LaplaceRegressor(**SMALL).fit(X, np.full(90, 3.0))
    assert np.isfinite(norm(*model.predict(NEW, return_std=True)).logpdf(3.0)).all()


@pytest.mark.parametrize("precision", [1e-6, 1e-4])
@pytest.mark.usefixtures("complete_training")
def test_a_basis_of_all_directions_has_nothing_outside(precision):
    """JJᵀ − (JV)(JV)ᵀ is zero up to rounding errors of both signs, which a weak prior would magnify."""
    x = np.linspace(-3, 3, 200)[:, None]
    options = {"hidden_layer_sizes": (8,), "hessian_structure": "full", "n_members": 1, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LaplaceRegressor(prior_precision=precision, **options).fit(x, np.sin(x[:, 0]))
    assert np.abs(model.predict(x) - np.sin(x[:, 0])).max() < 0.01
