"""Cross-fitting: held-out folds determine prior precision and noise level."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.datasets import load_digits, make_blobs, make_classification, make_friedman1, make_moons
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._approximation import approximate
from sklearn_laplace._approximation.held_out import CrossFit, cross_fit
from sklearn_laplace._host.rows import TrainingRows
from sklearn_laplace._training import folds
from sklearn_laplace.errors import (
    BoundWarning,
    NotPositiveDefiniteError,
    WeakPriorWarning,
)
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.leave_one_out import class_density, gaussian_density
from sklearn_laplace.laplace.likelihoods import Categorical, Gaussian
from sklearn_laplace.laplace.links import Probit
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.selection import HeldOutScores, held_out_scores
from sklearn_laplace.laplace.structures import STRUCTURES, Kron

X, Y = make_friedman1(90, noise=1.0, random_state=0)
NEW, NEW_Y = make_friedman1(400, noise=1.0, random_state=1)


def regressor(**options):
    defaults = {"likelihood": "gaussian", "n_members": 1}
    return LaplaceRegressor(hidden_layer_sizes=(12,), random_state=0, **{**defaults, **options})


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y)


def cross_fitted(targets):
    """A fit, and the cross-fitted nets that it has not stored."""
    recorded = []

    def of_folds(parts, hyper):
        recorded.extend(part.fit.network for part in parts)
        return cross_fit(parts, hyper)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "cross_fit", of_folds)
        return regressor().fit(X, targets), recorded


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
    noise = float(noises[surface.max(1).values.argmax()])
    start = replace(hyper, dispersion=noise)  # already the best noise variance, so that damping has no effect
    both = scores.chosen(start, free_prior=True, free_dispersion=True)
    place = int((scores.ridge / (float(both.prior_precision) * both.dispersion)).log().abs().argmin())
    reached = scores.log_density(torch.full_like(scores.ridge, both.dispersion))[place]
    # A prior closer to that of the training may cost one nat; damping of the noise and grid steps cost some more.
    assert float(surface.max()) - 1.5 <= float(reached) <= float(surface.max()) + 1e-3
    along = scores.log_density(scores.ridge / 0.2)
    best = float(scores.ridge[along.argmax()] / 0.2)
    fixed = Hyper(torch.tensor([0.2]).double(), best)
    noise_only = scores.chosen(fixed, free_prior=False, free_dispersion=True)
    assert torch.equal(noise_only.prior_precision, fixed.prior_precision)
    assert noise_only.dispersion == pytest.approx(best)
    prior_only = scores.chosen(fixed, free_prior=True, free_dispersion=False)
    assert prior_only.dispersion == fixed.dispersion
    assert not scores.suits(Hyper(torch.ones(2).double()))


def test_more_noise_than_the_evidence_has_is_believed_in_part():
    """Nets fitted to two thirds of the rows are less accurate; σ increases by at most a factor of 1.05."""
    scores = held_out_scores(
        parts(Gaussian(), numbers, 2, "full"), Hyper(torch.ones(1).double(), 0.5), gaussian_density
    )

    def ratio(dispersion):
        chosen = scores.chosen(Hyper(torch.ones(1).double(), dispersion), free_prior=True, free_dispersion=True)
        return (chosen.dispersion / dispersion) ** 0.5

    best = float((scores.squares / scores.freedom).median())
    assert 1.04 < ratio(best / 1e4) <= 1.05
    assert 1 / 1.05 <= ratio(best * 1e4) < 1 / 1.04
    chosen = scores.chosen(Hyper(torch.ones(1).double(), 0.5), free_prior=True, free_dispersion=True).dispersion
    assert ratio(chosen) == pytest.approx(ratio(chosen * 1.0001), rel=1e-3)  # no jumps


@pytest.mark.parametrize(("best", "expected"), [(100.0, 100.0), (1.0, 1.0), (0.01, 0.1)])
def test_a_prior_of_classes_gets_wider_than_the_trainings_by_half_of_the_way(best, expected):
    """The precision for classes is multiplied by the best factor, or by its square root if it is below 1."""
    grid = torch.logspace(-3, 3, 13, dtype=torch.float64)
    density = -10 * (grid.log10() - np.log10(best)) ** 2
    scores = HeldOutScores(torch.tensor([2.0]).double(), grid, torch.zeros(13).double(), density, 0.0)
    chosen = scores.chosen(Hyper(torch.tensor([2.0]).double()), free_prior=True, free_dispersion=False)
    assert float(chosen.prior_precision) == pytest.approx(2 * expected)


@pytest.fixture(scope="module")
def digits():
    """Ten classes, which are too expensive for exact steps: the cross-fitted nets use Kronecker form."""
    rows, labels = load_digits(return_X_y=True)
    train, new, y, y_new = train_test_split(rows, labels, train_size=300, stratify=labels, random_state=0)
    return train, y, new, y_new


@pytest.fixture(scope="module")
def by_evidence(digits):
    return LaplaceClassifier(prior_precision="evidence", random_state=0).fit(*digits[:2])


def test_ten_classes_are_told_by_far_better_than_under_the_evidence(digits, by_evidence):
    """The log loss is far below that of the evidence (0.53), and of its MAP estimate (0.30)."""
    train, y, new, y_new = digits
    model = LaplaceClassifier(n_members=4, random_state=0).fit(train, y)
    assert isinstance(model.laplace_.curvature, Kron) and model._ensemble.first.origin.cross is not None
    plugin = pickle.loads(pickle.dumps(by_evidence)).set_params(link="plugin")
    loss, *others = (log_loss(y_new, each.predict_proba(new)) for each in (model, plugin, by_evidence))
    assert loss < 0.25 < min(others) and others[1] > 0.4


def test_nets_in_kronecker_form_are_of_no_more_rows_than_pay(digits, by_evidence, monkeypatch):
    """Training by mini-batches needs only a few passes over many rows, and full-batch steps would take longer."""
    monkeypatch.setattr(folds, "FULL_BATCH_ROWS", 299)
    model = LaplaceClassifier(n_members=1, random_state=0).fit(*digits[:2])
    assert model._ensemble.first.origin.cross is None
    assert np.array_equal(model.predict_proba(digits[2]), by_evidence.predict_proba(digits[2]))


def test_nets_beside_a_training_in_kronecker_form_take_no_exact_steps():
    """Exact steps would fit the budget for two thirds of the rows, but need more memory than the training."""
    rows, labels = make_classification(250, 20, n_informative=10, n_classes=5, random_state=0)
    model = LaplaceClassifier(memory_budget="8MB", n_members=4, random_state=0).fit(rows, labels)
    assert isinstance(model.laplace_.curvature, Kron) and len(model.members_) == 4


def test_nets_in_kronecker_form_are_of_no_more_classes_than_pay():
    """The cost of cross-fitting is quadratic in the number of classes: a hundred would take a minute."""
    rows, labels = make_blobs(200, 5, centers=100, random_state=0)
    model = LaplaceClassifier(n_members=4, random_state=0).fit(rows, labels)
    assert isinstance(model.laplace_.curvature, Kron) and model._ensemble.first.origin.cross is None


def test_a_regression_in_kronecker_form_has_one_net(digits):
    """Regression in Kronecker form is not cross-fitted: the noise level accounts for the misfit."""
    train, y, *_ = digits
    targets = np.eye(10)[y] + 0.1 * np.random.default_rng(0).normal(size=(len(y), 10))
    model = LaplaceRegressor(random_state=0, n_members=1).fit(train, targets)
    assert isinstance(model.laplace_.curvature, Kron) and model._ensemble.first.origin.cross is None


def trained_order():
    """Row indices in the order of the training."""
    return np.lexsort(np.column_stack([X, Y]).T[::-1])[np.random.default_rng(0).permutation(len(Y))]


def test_a_net_does_not_know_the_rows_that_it_is_asked_about():
    """Different targets in the held-out rows of a net change only the other nets."""
    fitted, before = cross_fitted(Y)
    cross = fitted._ensemble.first.origin.cross
    held_out = (cross.fold == 1).numpy()
    assert 20 <= held_out.sum() <= 40
    changed, rows = Y.copy(), trained_order()
    changed[rows[held_out]] = Y[rows[held_out]][::-1]
    other, now = cross_fitted(changed)
    assert torch.equal(other._ensemble.first.origin.cross.fold, cross.fold)
    assert not torch.allclose(now[0].theta, before[0].theta, atol=1e-3)


def spread(network, x, train, hyper):
    """Standard deviation of new targets at x, from a dense posterior given the rows ``train``."""
    module, tensors = network.module, network.tensors

    def outputs(theta, rows):
        return torch.func.functional_call(module, tensors(theta), (rows,))[:, 0]

    jacobian, new = (torch.func.jacrev(outputs)(network.theta, rows).double() for rows in (train, x))
    precision = jacobian.mT @ jacobian / hyper.dispersion + hyper.prior_precision * torch.eye(new.shape[1])
    return (torch.einsum("np,pq,nq->n", new, torch.linalg.inv(precision), new) + hyper.dispersion).sqrt()


def test_held_out_errors_are_those_of_the_nets_that_hold_out_a_row(monkeypatch):
    """Errors and standard deviations of each fold, from its net and a dense posterior."""
    recorded, held_out = [], CrossFit.held_out

    def record(self, hyper):
        recorded.append(held_out(self, hyper))
        return recorded[-1]

    monkeypatch.setattr(CrossFit, "held_out", record)
    fitted, networks = cross_fitted(Y)
    cross, scale, rows = fitted._ensemble.first.origin.cross, fitted._scale, trained_order()
    assert len(networks) == 3
    found = recorded[-1]
    std = (found.variance + fitted.hyper_.dispersion * found.noise)[:, 0].sqrt()
    x, y = torch.tensor(X[rows]), torch.tensor((Y[rows] - scale.mean[0]) / scale.scale[0])
    for k, network in enumerate(networks):
        held = cross.fold == k
        error = y[held] - network(x[held])[:, 0].double()
        np.testing.assert_allclose(found.errors[held, 0].numpy(), error.numpy(), rtol=1e-5, atol=1e-7)
        expected = spread(network, x[held], x[~held], fitted.hyper_)
        np.testing.assert_allclose(std[held].numpy(), expected.numpy(), rtol=1e-6)


def test_a_fit_keeps_no_rows_and_nets_of_its_folds(fitted):
    """Neither a classifier nor a regressor."""
    rows, labels = make_moons(60, noise=0.2, random_state=0)
    cross = LaplaceClassifier(hidden_layer_sizes=(5,), n_members=1).fit(rows, labels)._ensemble.first.origin.cross
    assert cross.parts == () and cross.densities is not None
    assert fitted._ensemble.first.origin.cross.parts == ()


WITHOUT = {
    "linear": {"hidden_layer_sizes": ()},
    "epochs": {"max_epochs": 3},
    "decoupled": {"map_prior_precision": 1.0},
    "copies": {"augment": lambda X, random_state: X + 0.01 * random_state.normal(size=X.shape)},
}


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.parametrize("case", sorted(WITHOUT))
def test_auto_is_the_evidence_where_there_are_no_such_nets(case):
    """Linear nets, trainings by epochs, a fixed map_prior_precision, augmentation, or few rows."""
    options = {"hidden_layer_sizes": (6,), "random_state": 0} | WITHOUT[case]
    auto = LaplaceRegressor(**options).fit(X, Y)
    evidence = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", **options).fit(X, Y)
    assert auto._ensemble.first.origin.cross is None
    assert (auto.prior_precision_, auto.sigma_noise_) == (evidence.prior_precision_, evidence.sigma_noise_)
    few = regressor().fit(X[:30], Y[:30])
    assert few._ensemble.first.origin.cross is None


def test_the_mean_is_that_of_the_evidence_and_the_spread_is_not(fitted):
    """Cross-fitting changes the posterior and not the MAP estimate."""
    evidence = regressor(prior_precision="evidence", sigma_noise="evidence").fit(X, Y)
    np.testing.assert_array_equal(evidence.predict(NEW), fitted.predict(NEW))
    assert abs(np.log(fitted.sigma_noise_ / evidence.sigma_noise_)) > 0.01


def test_probabilities_are_less_timid():
    """Two moons: the weak prior of the evidence moves probabilities to uniform although held-out rows are correct."""
    rows, labels = make_moons(300, noise=0.2, random_state=0)
    auto = LaplaceClassifier(n_members=1, random_state=0).fit(rows[:100], labels[:100])
    evidence = LaplaceClassifier(random_state=0, prior_precision="evidence").fit(rows[:100], labels[:100])
    losses = [-model.log_predictive_density(rows[100:], labels[100:]).mean() for model in (auto, evidence)]
    assert losses[0] < losses[1] - 0.02
    np.testing.assert_array_equal(auto.predict(rows), evidence.predict(rows))


@pytest.mark.parametrize("options", [{}, {"sigma_noise": 1.5}, {"prior_precision": 1.0}, {"hessian_structure": "kron"}])
def test_choosing_again_without_data_chooses_the_same(options):
    """The scores of the held-out rows are stored as sums along a grid, without rows."""
    model = regressor(**options).fit(X, Y)
    before = model.prior_precision_, model.sigma_noise_, model.predict_std(NEW)
    again = pickle.loads(pickle.dumps(model)).refit_laplace()
    assert (again.prior_precision_, again.sigma_noise_) == before[:2]
    np.testing.assert_array_equal(again.predict_std(NEW), before[2])


def test_forget_drops_what_the_nets_have_said():
    """The cross-fitted nets depend on the removed rows."""
    model = regressor(hessian_structure="full").fit(X, Y)
    assert model._ensemble.first.origin.cross is not None
    model.forget(X[:5], Y[:5])
    assert model._ensemble.first.origin.cross is None


def test_a_posterior_as_prior_and_a_frozen_net_go_by_the_evidence(fitted):
    """A posterior as prior is not cross-fitted."""
    following = regressor(prior=FrozenEstimator(fitted)).fit(NEW[:60], NEW_Y[:60])
    assert following._ensemble.first.origin.cross is None
    assert replace(following._ensemble.first.origin, cross=None) == following._ensemble.first.origin


def test_the_noise_of_constant_targets_is_reported_at_its_bound():
    """Held-out errors of zero give a BoundWarning and finite densities."""
    with pytest.warns(BoundWarning, match=r"held-out rows.*noise variance"):
        model = regressor().fit(X, np.full(90, 3.0))
    assert np.isfinite(norm(*model.predict(NEW, return_std=True)).logpdf(3.0)).all()


def test_a_prior_far_from_the_trainings_leaves_the_noise_to_the_evidence(fitted):
    """The grid around the precision of the training does not cover it, and its end would be an arbitrary choice."""
    far = 1e4 * fitted._ensemble.first.origin.hyper.prior_precision[0].item()
    sigma = pickle.loads(pickle.dumps(fitted)).refit_laplace(prior_precision=far).sigma_noise_
    expected = pickle.loads(pickle.dumps(fitted)).refit_laplace(prior_precision=far, sigma_noise="evidence")
    assert sigma == expected.sigma_noise_
    near = pickle.loads(pickle.dumps(fitted)).refit_laplace(prior_precision=far / 1e4)
    assert near.sigma_noise_ != near.refit_laplace(sigma_noise="evidence").sigma_noise_


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
def test_a_noise_that_is_far_off_is_reported_where_the_prior_makes_up_for_it():
    """The best prior is a thousand times weaker than that of the training, which is the end of the grid."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1))
    with pytest.warns(BoundWarning, match=r"density of held-out rows is largest at the end.*sigma_noise"):
        regressor(sigma_noise=0.1).fit(x, np.sin(x[:, 0]) + 0.5 * rng.normal(size=60))


@pytest.mark.filterwarnings(
    "error::sklearn_laplace.errors.WeakPriorWarning", "ignore::sklearn_laplace.errors.BoundWarning"
)
def test_a_noise_that_the_nets_could_not_mend_is_reported():
    """With so weak a prior, neither the net nor the cross-fitted nets leave residuals for the noise level."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), 0.5 * rng.normal(size=60)
    with pytest.warns(WeakPriorWarning):
        model = LaplaceRegressor(prior_precision=1e-4, n_members=1, random_state=0).fit(x, y)
    assert model._ensemble.first.origin.cross is not None and model.sigma_noise_ < 0.1
    regressor().fit(X, Y)


@pytest.mark.parametrize("precision", [1e-6, 1e-4])
def test_a_basis_of_all_directions_has_nothing_outside(precision):
    """JJᵀ − (JV)(JV)ᵀ is zero up to rounding errors of both signs, which a weak prior would magnify."""
    x = np.linspace(-3, 3, 200)[:, None]
    options = {"hidden_layer_sizes": (8,), "hessian_structure": "full", "n_members": 1, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LaplaceRegressor(prior_precision=precision, **options).fit(x, np.sin(x[:, 0]))
    assert model._ensemble.first.origin.cross is not None
    assert np.abs(model.predict(x) - np.sin(x[:, 0])).max() < 0.01


def test_a_net_that_cannot_be_trained_leaves_the_choice_to_the_evidence(monkeypatch):
    """A failed training of a cross-fitted net is not an error of the fit."""

    def failing(*args, **kwargs):
        raise NotPositiveDefiniteError("no")

    evidence = regressor(prior_precision="evidence", sigma_noise="evidence").fit(X, Y)
    monkeypatch.setattr(folds, "_under", failing)
    auto = regressor().fit(X, Y)
    assert auto._ensemble.first.origin.cross is None
    assert (auto.prior_precision_, auto.sigma_noise_) == (evidence.prior_precision_, evidence.sigma_noise_)


def test_equal_rows_are_in_one_fold():
    """Copies of a row are in the same fold, so that no net is evaluated on a row of its training."""
    rows = TrainingRows(*(torch.randn(20, k).double() for k in (3, 2)), torch.ones(20).double())
    twice = rows.taken(torch.arange(20).repeat(2))
    for part in folds.fold_rows(twice, 3):
        assert sorted(part[part < 20].tolist()) == sorted((part[part >= 20] - 20).tolist())
    fold_rows = [part.tolist() for part in folds.fold_rows(rows, 3)]
    assert fold_rows == [list(range(k, 20, 3)) for k in range(3)]


def test_without_memory_for_a_few_curvatures_auto_is_the_evidence():
    """The curvatures of all cross-fitted nets would be in memory at the same time."""
    options = {"hidden_layer_sizes": (30,), "hessian_structure": "full", "n_members": 1, "random_state": 0}
    small = LaplaceRegressor(memory_budget="9MB", **options).fit(X, Y)
    evidence = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", **options).fit(X, Y)
    assert (
        small._ensemble.first.origin.cross is None
        and LaplaceRegressor(**options).fit(X, Y)._ensemble.first.origin.cross is not None
    )
    assert small.prior_precision_ == pytest.approx(evidence.prior_precision_, rel=1e-6)
