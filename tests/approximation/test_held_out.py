"""Cross-fitting: nets that have not seen a part of the rows choose prior precision and noise, and make intervals."""

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
from sklearn_laplace._approximation.left_out import LeftOut
from sklearn_laplace._host.rows import TrainingRows
from sklearn_laplace._training import folds
from sklearn_laplace.errors import (
    BoundWarning,
    InterpolationWarning,
    MemoryBudgetError,
    NotPositiveDefiniteError,
    UnsupportedCombinationError,
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
    alone = {"likelihood": "gaussian", "n_members": 1}
    return LaplaceRegressor(hidden_layer_sizes=(12,), random_state=0, **{**alone, **options})


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y)


def parts(likelihood, targets, n_outputs, structure, seed=0):
    """Two nets with the rows that each has seen, and those that it has not."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    w = torch.rand(12, generator=generator, dtype=torch.float64) + 0.5
    y, found = targets(x, generator), []
    for seen, held in ((slice(0, 6), slice(6, 12)), (slice(6, 12), slice(0, 6))):
        torch.manual_seed(seed)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, n_outputs)).double()
        network = trace(module, x)
        prior = network.scalar_prior()
        fit = fit_laplace(network, likelihood, GGN(), STRUCTURES[structure], prior, [(x[seen], y[seen], w[seen])])
        found.append((fit, [(x[held], y[held], w[held])]))
    return found


def numbers(x, generator):
    return torch.randn(len(x), 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
def test_densities_along_the_grid_are_those_of_explicit_gaussians(structure):
    """Two sums in ρ stand for every δ and φ: each density here is made of a dense covariance of its own."""
    found = parts(Gaussian(), numbers, 2, structure)
    scores = held_out_scores(found, Hyper(torch.tensor([0.7]).double(), 0.3), gaussian_density)
    for place in (0, len(scores.ridge) // 2, len(scores.ridge) - 1):
        for noise in (0.05, 2.0):
            hyper, expected = Hyper(scores.ridge[place] / noise * scores.unit, noise), 0.0
            for fit, ((x, y, w),) in found:
                posterior = fit.posterior(hyper)
                mean, jacobian = fit.network.jacobian(x)
                for n, covariance in enumerate(posterior.covariance(jacobian.double()) + noise * torch.eye(2)):
                    expected += float(w[n]) * multivariate_normal(mean[n].numpy(), covariance.numpy()).logpdf(y[n])
            reached = scores.log_density(torch.full_like(scores.ridge, noise))[place]
            assert float(reached) == pytest.approx(expected, rel=1e-7)  # sums of 24 squares of condition up to 1e4


def test_densities_of_classes_are_those_of_the_posterior_at_each_precision():
    """Without a noise a point is a prior precision."""
    found = parts(Categorical(), lambda x, g: torch.randint(3, (len(x),), generator=g), 3, "full")
    density = class_density(Categorical(), Probit(torch.zeros(0, 0)))
    scores = held_out_scores(found, Hyper(torch.tensor([2.0]).double()), density)
    place, expected = 11, 0.0
    for fit, ((x, y, w),) in found:
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
    """Each of the three choices against all points of a fine grid."""
    hyper = Hyper(torch.ones(1).double(), 0.5)
    scores = held_out_scores(parts(Gaussian(), numbers, 2, "full"), hyper, gaussian_density)
    noises = torch.logspace(-3, 3, 2000, dtype=torch.float64)
    surface = torch.stack([scores.log_density(torch.full_like(scores.ridge, float(noise))) for noise in noises])
    noise = float(noises[surface.max(1).values.argmax()])
    start = replace(hyper, dispersion=noise)  # a training that has found it itself: all of the way is none
    both = scores.chosen(start, free_prior=True, free_dispersion=True)
    place = int((scores.ridge / (float(both.prior_precision) * both.dispersion)).log().abs().argmin())
    reached = scores.log_density(torch.full_like(scores.ridge, both.dispersion))[place]
    # A prior that is closer may cost one nat, a noise that goes a part of the way to it some more; and grid steps.
    assert float(surface.max()) - 1.5 <= float(reached) <= float(surface.max()) + 1e-3
    along = scores.log_density(scores.ridge / 0.2)
    best = float(scores.ridge[along.argmax()] / 0.2)
    given = Hyper(torch.tensor([0.2]).double(), best)
    noise_only = scores.chosen(given, free_prior=False, free_dispersion=True)
    assert torch.equal(noise_only.prior_precision, given.prior_precision)
    assert noise_only.dispersion == pytest.approx(best)
    prior_only = scores.chosen(given, free_prior=True, free_dispersion=False)
    assert prior_only.dispersion == given.dispersion
    assert not scores.suits(Hyper(torch.ones(2).double()))


def test_more_noise_than_the_evidence_has_is_believed_in_part():
    """Nets that have seen a third of the rows less are worse nets: a factor of 1.05 in σ at most."""
    scores = held_out_scores(
        parts(Gaussian(), numbers, 2, "full"), Hyper(torch.ones(1).double(), 0.5), gaussian_density
    )

    def ratio(dispersion):
        found = scores.chosen(Hyper(torch.ones(1).double(), dispersion), free_prior=True, free_dispersion=True)
        return (found.dispersion / dispersion) ** 0.5

    best = float((scores.squares / scores.freedom).median())
    assert 1.04 < ratio(best / 1e4) <= 1.05
    assert 1 / 1.05 <= ratio(best * 1e4) < 1 / 1.04
    found = scores.chosen(Hyper(torch.ones(1).double(), 0.5), free_prior=True, free_dispersion=True).dispersion
    assert ratio(found) == pytest.approx(ratio(found * 1.0001), rel=1e-3)  # no jumps


@pytest.mark.parametrize(("best", "expected"), [(100.0, 100.0), (1.0, 1.0), (0.01, 0.1)])
def test_a_prior_of_classes_gets_wider_than_the_trainings_by_half_of_the_way(best, expected):
    """Nets of two thirds of the rows err by more than the mixture does: a factor below 1 counts by its root."""
    grid = torch.logspace(-3, 3, 13, dtype=torch.float64)
    density = -10 * (grid.log10() - np.log10(best)) ** 2
    scores = HeldOutScores(torch.tensor([2.0]).double(), grid, torch.zeros(13).double(), density, 0.0)
    found = scores.chosen(Hyper(torch.tensor([2.0]).double()), free_prior=True, free_dispersion=False)
    assert float(found.prior_precision) == pytest.approx(2 * expected)


@pytest.fixture(scope="module")
def digits():
    """Ten classes, too dear for exact steps: nets beside the first one take theirs in Kronecker form."""
    rows, labels = load_digits(return_X_y=True)
    seen, new, y, y_new = train_test_split(rows, labels, train_size=300, stratify=labels, random_state=0)
    return seen, y, new, y_new


@pytest.fixture(scope="module")
def by_evidence(digits):
    return LaplaceClassifier(prior_precision="evidence", random_state=0).fit(*digits[:2])


def test_ten_classes_are_told_by_far_better_than_under_the_evidence(digits, by_evidence):
    """The evidence alone has a loss of .53, and .30 without a posterior."""
    seen, y, new, y_new = digits
    model = LaplaceClassifier(random_state=0).fit(seen, y)
    assert isinstance(model.laplace_.curvature, Kron) and len(model.members_) == 4
    plugin = pickle.loads(pickle.dumps(by_evidence)).set_params(link="plugin")
    loss, *others = (log_loss(y_new, each.predict_proba(new)) for each in (model, plugin, by_evidence))
    assert loss < 0.25 < min(others) and others[1] > 0.4


def test_nets_in_kronecker_form_are_of_no_more_rows_than_pay(digits, by_evidence, monkeypatch):
    """A training by mini-batches passes over many rows a few times only; steps over all of them would take longer."""
    monkeypatch.setattr(folds, "FULL_BATCH_ROWS", 299)
    model = LaplaceClassifier(random_state=0).fit(*digits[:2])
    assert model._ensemble.first.origin.cross is None and len(model.members_) == 1
    assert np.array_equal(model.predict_proba(digits[2]), by_evidence.predict_proba(digits[2]))


def test_nets_beside_a_training_in_kronecker_form_take_no_exact_steps():
    """Two thirds of these rows would be within the budget of exact ones, which take more memory than the training."""
    rows, labels = make_classification(250, 20, n_informative=10, n_classes=5, random_state=0)
    model = LaplaceClassifier(memory_budget="8MB", random_state=0).fit(rows, labels)
    assert isinstance(model.laplace_.curvature, Kron) and len(model.members_) == 4


def test_nets_in_kronecker_form_are_of_no_more_classes_than_pay():
    """The choice by held-out rows grows with the square of the classes: a hundred would take a minute."""
    rows, labels = make_blobs(200, 5, centers=100, random_state=0)
    model = LaplaceClassifier(random_state=0).fit(rows, labels)
    assert isinstance(model.laplace_.curvature, Kron) and model._ensemble.first.origin.cross is None


def test_a_regression_in_kronecker_form_has_one_net(digits):
    """There is a noise to take up the slack."""
    seen, y, *_ = digits
    targets = np.eye(10)[y] + 0.1 * np.random.default_rng(0).normal(size=(len(y), 10))
    model = LaplaceRegressor(random_state=0, n_members=1).fit(seen, targets)
    assert isinstance(model.laplace_.curvature, Kron) and model._ensemble.first.origin.cross is None


def trained_order():
    """Numbers of the rows in the order in which they are trained with."""
    return np.lexsort(np.column_stack([X, Y]).T[::-1])[np.random.default_rng(0).permutation(len(Y))]


def test_a_net_does_not_know_the_rows_that_it_is_asked_about(fitted):
    """Other targets in the rows that are held out from a net change the others and not this one."""
    cross = fitted._ensemble.first.origin.cross
    held_out = (cross.fold == 1).numpy()
    assert 20 <= held_out.sum() <= 40
    changed, rows = Y.copy(), trained_order()
    changed[rows[held_out]] = Y[rows[held_out]][::-1]
    other = regressor(prior_precision="auto").fit(X, changed)._ensemble.first.origin.cross
    assert torch.equal(other.fold, cross.fold)
    starts = [net.theta for net in cross.networks]
    assert not torch.allclose(other.networks[0].theta, starts[0], atol=1e-3)


def spread(network, x, seen, hyper):
    """Standard deviation of new targets at x, from a dense posterior of the rows that were seen."""
    module, tensors = network.module, network.tensors

    def outputs(theta, rows):
        return torch.func.functional_call(module, tensors(theta), (rows,))[:, 0]

    jacobian, new = (torch.func.jacrev(outputs)(network.theta, rows).double() for rows in (seen, x))
    precision = jacobian.mT @ jacobian / hyper.dispersion + hyper.prior_precision * torch.eye(new.shape[1])
    return (torch.einsum("np,pq,nq->n", new, torch.linalg.inv(precision), new) + hyper.dispersion).sqrt()


def test_intervals_are_cv_plus_of_scores_over_standard_deviations(fitted):
    """Barber et al. (2021), eq. 11, row by row from the three nets, each score and each reach written out."""
    cross, scale, hyper, rows = fitted._ensemble.first.origin.cross, fitted._scale, fitted.hyper_, trained_order()
    x, y = torch.tensor(X[rows]), torch.tensor((Y[rows] - scale.mean[0]) / scale.scale[0])
    scores, fold, new = np.zeros(len(y)), cross.fold.numpy(), torch.tensor(NEW[:7])
    for k, network in enumerate(cross.networks):
        held = cross.fold == k
        error = (y[held] - network(x[held])[:, 0].double()).abs()
        scores[fold == k] = error / spread(network, x[held], x[~held], hyper)
    np.testing.assert_allclose(cross.scores.by_nets[:, 0].numpy(), scores, rtol=1e-6)
    mean, std = fitted.loo_predict(return_std=True)
    by_formula = np.abs(Y - mean) / std
    outputs = np.stack([network(new)[:, 0].double().numpy() for network in cross.networks])[fold]
    reach = scores[:, None] * spread(fitted.laplace_.network, new, x, hyper).numpy()
    _, found = fitted.predict_interval(NEW[:7], [0.5, 0.9], method="jackknife+")
    for place, level in enumerate((0.5, 0.9)):
        k = int(np.ceil(level * (len(y) + 1)))
        r = (np.sort(by_formula)[k - 1] / np.sort(scores)[k - 1]) ** 0.3
        ends = -np.sort(r * reach - outputs, 0)[k - 1], np.sort(outputs + r * reach, 0)[k - 1]
        expected = scale.mean[0] + scale.scale[0] * np.stack(ends, 1)
        np.testing.assert_allclose(found[:, :, place], expected, rtol=1e-6)


def test_what_a_classifier_keeps_has_no_rows():
    """Densities alone; a regressor's nets and scores are for intervals, and have no rows either."""
    rows, labels = make_moons(60, noise=0.2, random_state=0)
    cross = LaplaceClassifier(hidden_layer_sizes=(5,), random_state=0).fit(rows, labels)._ensemble.first.origin.cross
    assert cross.parts == () == cross.networks and cross.scores is None and cross.densities is not None
    assert regressor().fit(X, Y)._ensemble.first.origin.cross.parts == ()


def test_without_memory_for_leave_one_out_the_intervals_are_those_of_the_nets(fitted, monkeypatch):
    """A little too wide, and no error."""

    def none(*args):
        raise MemoryBudgetError("no")

    expected = fitted.predict_interval(NEW, method="jackknife+")[1]
    monkeypatch.setattr(LeftOut, "latent", none)
    model = regressor().fit(X, Y)
    torch.testing.assert_close(
        model._ensemble.first.origin.cross.scores.factors(torch.tensor([0.9])), torch.ones(1, 1).double()
    )
    found = model.predict_interval(NEW, method="jackknife+")[1]
    assert np.diff(found, axis=1).mean() > np.diff(expected, axis=1).mean()


def test_rows_of_known_noise_have_nets_and_no_such_intervals():
    """What is known of a row's noise is in its score; a new row's is not known."""
    model = regressor().fit(X, Y, sample_noise_variance=np.linspace(0.5, 2.0, len(Y)))
    assert model._ensemble.first.origin.cross.scores.by_nets.shape == (len(Y), 1)
    assert np.isfinite(model.predict_std(NEW)).all()
    with pytest.raises(UnsupportedCombinationError, match="sample_noise_variance"):
        model.predict_interval(NEW, method="jackknife+")


def test_intervals_do_not_depend_on_what_is_chosen_afterwards(fitted):
    """A wrong noise or prior after the training leaves them as they are, and they cover."""
    _, expected = fitted.predict_interval(NEW, method="jackknife+")
    inside = (expected[:, 0] <= NEW_Y) & (expected[:, 1] >= NEW_Y)
    assert 0.85 <= inside.mean() <= 0.98  # .90 for exchangeable rows, with 90 residuals ±.03 and 400 rows ±.015
    other = pickle.loads(pickle.dumps(fitted)).refit_laplace(sigma_noise=3 * fitted.sigma_noise_, prior_precision=7.0)
    np.testing.assert_array_equal(other.predict_interval(NEW, method="jackknife+")[1], expected)


WITHOUT = {
    "linear": {"hidden_layer_sizes": ()},
    "epochs": {"max_epochs": 3},
    "decoupled": {"map_prior_precision": 1.0},
    "copies": {"augment": lambda X, random_state: X + 0.01 * random_state.normal(size=X.shape)},
}


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.parametrize("case", sorted(WITHOUT))
def test_auto_is_the_evidence_where_there_are_no_such_nets(case):
    """Linear nets know themselves, a decoupled training is one training, copies of a row would be on both sides."""
    options = {"hidden_layer_sizes": (6,), "random_state": 0} | WITHOUT[case]
    auto = LaplaceRegressor(**options).fit(X, Y)
    evidence = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", **options).fit(X, Y)
    assert auto._ensemble.first.origin.cross is None
    assert (auto.prior_precision_, auto.sigma_noise_) == (evidence.prior_precision_, evidence.sigma_noise_)
    few = regressor().fit(X[:30], Y[:30])
    assert few._ensemble.first.origin.cross is None


def test_the_mean_is_that_of_the_evidence_and_the_spread_is_not(fitted):
    """The nets choose what the net's own posterior is predicted with, and leave its weights alone."""
    evidence = regressor(prior_precision="evidence", sigma_noise="evidence").fit(X, Y)
    np.testing.assert_array_equal(evidence.predict(NEW), fitted.predict(NEW))
    assert abs(np.log(fitted.sigma_noise_ / evidence.sigma_noise_)) > 0.01


def test_probabilities_are_less_timid():
    """Two moons: the evidence's weak prior takes them to uniform where the other nets are right about the rows."""
    rows, labels = make_moons(300, noise=0.2, random_state=0)
    auto = LaplaceClassifier(random_state=0).fit(rows[:100], labels[:100])
    evidence = LaplaceClassifier(random_state=0, prior_precision="evidence").fit(rows[:100], labels[:100])
    losses = [-model.log_predictive_density(rows[100:], labels[100:]).mean() for model in (auto, evidence)]
    assert losses[0] < losses[1] - 0.02
    np.testing.assert_array_equal(auto.predict(rows), evidence.predict(rows))


@pytest.mark.parametrize("options", [{}, {"sigma_noise": 1.5}, {"prior_precision": 1.0}, {"hessian_structure": "kron"}])
def test_choosing_again_without_data_chooses_the_same(options):
    """What the nets have said is kept as sums along a grid, and no row."""
    model = regressor(**options).fit(X, Y)
    before = model.prior_precision_, model.sigma_noise_, model.predict_std(NEW)
    again = pickle.loads(pickle.dumps(model)).refit_laplace()
    assert (again.prior_precision_, again.sigma_noise_) == before[:2]
    np.testing.assert_array_equal(again.predict_std(NEW), before[2])


def test_forget_drops_what_the_nets_have_said():
    """Their weights and residuals are made of rows that are to be forgotten."""
    model = regressor(hessian_structure="full").fit(X, Y)
    assert model._ensemble.first.origin.cross is not None
    model.forget(X[:5], Y[:5])
    assert model._ensemble.first.origin.cross is None


def test_a_posterior_as_prior_and_a_frozen_net_go_by_the_evidence(fitted):
    """There is no fresh start for either."""
    following = regressor(prior=FrozenEstimator(fitted)).fit(NEW[:60], NEW_Y[:60])
    assert following._ensemble.first.origin.cross is None
    assert replace(following._ensemble.first.origin, cross=None) == following._ensemble.first.origin


def test_the_noise_of_constant_targets_is_reported_at_its_bound():
    """Errors of zero: a bound, with a warning, and no logarithm of zero."""
    with pytest.warns(BoundWarning, match=r"held-out rows.*noise variance"):
        model = regressor().fit(X, np.full(90, 3.0))
    assert np.isfinite(norm(*model.predict(NEW, return_std=True)).logpdf(3.0)).all()


@pytest.mark.parametrize("options", [{"prior": "tensor"}, {"prior_precision": [1.0, 2.0, 3.0, 4.0]}])
def test_intervals_stay_under_another_grouping(fitted, options):
    """Their standard deviations are those of the groups that they were made with."""
    expected = fitted.predict_interval(NEW, method="jackknife+")[1]
    other = pickle.loads(pickle.dumps(fitted)).refit_laplace(**options)
    np.testing.assert_array_equal(other.predict_interval(NEW, method="jackknife+")[1], expected)


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
def test_intervals_know_of_rows_that_came_later():
    """The three nets do not: half of the line is new to them. The rows are kept, and leave-one-out goes by all."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-3, 3, 240))[:, None]
    y = np.sin(x[:, 0]) + 0.2 * rng.normal(size=240)
    model = regressor().fit(x[:120], y[:120]).partial_fit(x[120:], y[120:])
    mean, interval = model.predict_interval(x, method="jackknife+")
    inside = (interval[:, 0] <= y) & (y <= interval[:, 1])
    assert inside.mean() > 0.8
    assert ((interval[:, 0] < mean) & (mean < interval[:, 1])).all()


def test_a_prior_far_from_the_trainings_leaves_the_noise_to_the_evidence(fitted):
    """A grid around the training's precision has no say there; its edge would be any number."""
    far = 1e4 * fitted._ensemble.first.origin.hyper.prior_precision[0].item()
    found = pickle.loads(pickle.dumps(fitted)).refit_laplace(prior_precision=far).sigma_noise_
    expected = pickle.loads(pickle.dumps(fitted)).refit_laplace(prior_precision=far, sigma_noise="evidence")
    assert found == expected.sigma_noise_
    near = pickle.loads(pickle.dumps(fitted)).refit_laplace(prior_precision=far / 1e4)
    assert near.sigma_noise_ != near.refit_laplace(sigma_noise="evidence").sigma_noise_


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
def test_a_noise_that_is_far_off_is_reported_where_the_prior_makes_up_for_it():
    """A prior a thousand times weaker than the training's: that is the end of the search."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1))
    with pytest.warns(BoundWarning, match=r"density of held-out rows is largest at the end.*sigma_noise"):
        regressor(sigma_noise=0.1).fit(x, np.sin(x[:, 0]) + 0.5 * rng.normal(size=60))


@pytest.mark.filterwarnings(
    "error::sklearn_laplace.errors.InterpolationWarning", "ignore::sklearn_laplace.errors.BoundWarning"
)
def test_a_noise_that_the_nets_could_not_mend_is_reported():
    """Under a prior that wide they see no noise at all, and without it the net goes through all targets."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), 0.5 * rng.normal(size=60)
    with pytest.warns(InterpolationWarning):
        model = LaplaceRegressor(prior_precision=1e-4, random_state=0).fit(x, y)
    assert model._ensemble.first.origin.cross is not None and model.sigma_noise_ < 0.1
    regressor().fit(X, Y)


@pytest.mark.parametrize("precision", [1e-6, 1e-4])
def test_a_basis_of_all_directions_has_nothing_outside(precision):
    """What is left of JJᵀ − (JV)(JV)ᵀ is rounding, of either sign, which a weak prior divides by next to nothing."""
    x = np.linspace(-3, 3, 200)[:, None]
    options = {"hidden_layer_sizes": (8,), "hessian_structure": "full", "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LaplaceRegressor(prior_precision=precision, **options).fit(x, np.sin(x[:, 0]))
    assert model._ensemble.first.origin.cross is not None
    assert np.abs(model.predict(x) - np.sin(x[:, 0])).max() < 0.01


def test_a_net_that_cannot_be_trained_leaves_the_choice_to_the_evidence(monkeypatch):
    """Without the heaviest row the others may not do: that is no failure of the fit."""

    def failing(*args, **kwargs):
        raise NotPositiveDefiniteError("no")

    evidence = regressor(prior_precision="evidence", sigma_noise="evidence").fit(X, Y)
    monkeypatch.setattr(folds, "_under", failing)
    auto = regressor().fit(X, Y)
    assert auto._ensemble.first.origin.cross is None
    assert (auto.prior_precision_, auto.sigma_noise_) == (evidence.prior_precision_, evidence.sigma_noise_)


def test_equal_rows_are_in_one_fold():
    """A row that a net has seen is not held out from it, whatever the copy."""
    rows = TrainingRows(*(torch.randn(20, k).double() for k in (3, 2)), torch.ones(20).double())
    twice = rows.taken(torch.arange(20).repeat(2))
    for part in folds.dealt(twice, 3):
        assert sorted(part[part < 20].tolist()) == sorted((part[part >= 20] - 20).tolist())
    dealt = [part.tolist() for part in folds.dealt(rows, 3)]
    assert dealt == [list(range(k, 20, 3)) for k in range(3)]


def test_without_memory_for_a_few_curvatures_auto_is_the_evidence():
    """The budget is kept: the nets' curvatures are in memory together."""
    options = {"hidden_layer_sizes": (30,), "hessian_structure": "full", "random_state": 0}
    small = LaplaceRegressor(memory_budget="9MB", **options).fit(X, Y)
    evidence = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", **options).fit(X, Y)
    assert (
        small._ensemble.first.origin.cross is None
        and LaplaceRegressor(**options).fit(X, Y)._ensemble.first.origin.cross is not None
    )
    assert small.prior_precision_ == pytest.approx(evidence.prior_precision_, rel=1e-6)
