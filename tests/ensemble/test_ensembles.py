"""Mixture distributions, compared with numerical integration; ensembles of nets, compared with their members."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace._ensemble import fit_alone as ensemble_fit
from sklearn_laplace._ensemble.joint_members import by_stacking
from sklearn_laplace.distributions import CountMixture, NormalMixture, PoissonLogNormal
from sklearn_laplace.errors import BoundWarning, NonFiniteError, UnsupportedCombinationError
from sklearn_laplace.options import Members

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(11)
MEANS, STDS = RNG.normal(size=(6, 4)) * 3, np.exp(RNG.normal(size=(6, 4)))
WEIGHTS = RNG.dirichlet(np.ones(4))
X, X_NEW = RNG.uniform(-2, 2, size=(45, 2)), RNG.uniform(-3, 3, size=(9, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * RNG.normal(size=45)
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0, "likelihood": "gaussian"}
FIXED = {"prior_precision": 1.0, "sigma_noise": 0.2}


@pytest.fixture(scope="module")
def three():
    return LaplaceRegressor(n_members=3, **SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def classes():
    rows, labels = make_moons(45, noise=0.3, random_state=0)
    return LaplaceClassifier(n_members=3, hidden_layer_sizes=(5,), prior_precision=1.0, random_state=0).fit(
        rows, labels
    )


# ---------------------------------------------------------------------- the distributions


def dense(row, x):
    """Density of one target at points x, component by component."""
    parts = zip(WEIGHTS, MEANS[row], STDS[row], strict=True)
    return sum(w * np.exp(-(((x - m) / s) ** 2) / 2) / (s * (2 * np.pi) ** 0.5) for w, m, s in parts)


@pytest.mark.parametrize("row", range(6))
def test_a_mixture_of_normals_is_its_density(row):
    """Moments, distribution function, quantiles and CRPS agree with numerical integration of the density."""
    mixture = NormalMixture(MEANS[row : row + 1], STDS[row : row + 1], WEIGHTS)
    low, high = (MEANS[row] - 12 * STDS[row]).min(), (MEANS[row] + 12 * STDS[row]).max()
    grid = np.linspace(low, high, 200_001)
    p, step = dense(row, grid), grid[1] - grid[0]
    mean = (grid * p).sum() * step
    assert mixture.mean()[0] == pytest.approx(mean, abs=1e-6)
    assert mixture.var()[0] == pytest.approx(((grid - mean) ** 2 * p).sum() * step, rel=1e-6)
    for x in (-2.0, 0.0, 3.0):
        assert mixture.logpdf([x])[0] == pytest.approx(np.log(dense(row, x)), rel=1e-10)
        below = scipy.integrate.quad(lambda t: dense(row, t), low, x, epsabs=1e-11, limit=500)[0]
        assert mixture.cdf([x])[0] == pytest.approx(below, abs=1e-9)
        assert mixture.sf([x])[0] == pytest.approx(1 - below, abs=1e-9)
        cdf = np.cumsum(p) * step
        crps = ((cdf - (grid >= x)) ** 2).sum() * step
        assert mixture.crps([x])[0] == pytest.approx(crps, abs=2e-3)
    for q in (1e-4, 0.3, 0.5, 0.999):
        root = scipy.optimize.brentq(lambda x, q=q: mixture.cdf([x])[0] - q, low, high, xtol=1e-12)
        assert mixture.ppf(q)[0] == pytest.approx(root, abs=1e-8)


def test_quantiles_of_components_far_apart_are_found():
    """Flat parts of the distribution function, components of weight zero, levels deep in a tail."""
    mixture = NormalMixture(np.array([[0.0, 1e6, -1e9]]), np.array([[1e-3, 1.0, 1.0]]), np.array([0.5, 0.5, 0.0]))
    for q in (1e-12, 0.25, 0.75, 1 - 1e-12):
        x = mixture.ppf(q)
        assert min(mixture.cdf(x), mixture.sf(x))[0] == pytest.approx(min(q, 1 - q), rel=1e-4)
    assert mixture.ppf(0.25)[0] == pytest.approx(0.0, abs=1e-8) and mixture.mean()[0] == pytest.approx(5e5)


def test_one_component_is_a_normal():
    """Quantiles, intervals and the closed-form CRPS are those of a normal."""
    mixture, normal = NormalMixture(MEANS[..., None], STDS[..., None], np.ones(1)), scipy.stats.norm(MEANS, STDS)
    for level in (0.01, 0.5, 0.9):
        np.testing.assert_allclose(mixture.ppf(level), normal.ppf(level), rtol=1e-9)
    for ours, theirs in zip(mixture.interval(0.8), normal.interval(0.8), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    z = (1.0 - MEANS) / STDS
    expected = STDS * (z * (2 * scipy.stats.norm.cdf(z) - 1) + 2 * scipy.stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(mixture.crps(np.ones_like(MEANS)), expected, rtol=1e-9)


def test_draws_of_mixtures_have_their_moments():
    """Moments agree within six standard errors; numpy's global generator is unchanged."""
    normals = NormalMixture(MEANS, STDS, WEIGHTS)
    counts = CountMixture(
        tuple(PoissonLogNormal(np.array(m), np.array([0.1, 0.2])) for m in ([0.2, 1.0], [2.0, 3.0])),
        np.array([0.3, 0.7]),
    )
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    for distribution, shape in ((normals, (6,)), (counts, (2,))):
        draws = distribution.rvs((20_000, *shape), random_state=1)
        assert (np.abs(draws.mean(0) - distribution.mean()) < 6 * distribution.std() / 20_000**0.5).all()
        np.testing.assert_allclose(draws.std(0), distribution.std(), rtol=0.05)
        np.testing.assert_array_equal(draws, distribution.rvs((20_000, *shape), random_state=1))
        assert distribution.rvs().shape == shape
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_a_mixture_of_counts_is_the_sum_of_its_parts():
    """Probability masses, moments, and quantiles as the smallest count that reaches a level."""
    parts = tuple(PoissonLogNormal(np.array([m]), np.array([v])) for m, v in ((0.0, 0.3), (2.0, 0.05)))
    mixture, k = CountMixture(parts, np.array([0.25, 0.75])), np.arange(400)
    p = 0.25 * parts[0].pmf(k) + 0.75 * parts[1].pmf(k)
    np.testing.assert_allclose([mixture.pmf([c])[0] for c in k[:50]], p[:50], rtol=1e-9)
    assert mixture.mean()[0] == pytest.approx((k * p).sum(), rel=1e-6)
    assert mixture.var()[0] == pytest.approx((k**2 * p).sum() - (k * p).sum() ** 2, rel=1e-5)
    for q in (0.01, 0.25, 0.5, 0.99):
        assert mixture.ppf(q)[0] == np.searchsorted(np.cumsum(p), q)


def test_stacking_weights_are_those_of_largest_density():
    """Compared with a numerical optimum over the simplex; rows of weight zero are ignored."""
    densities, rows = RNG.normal(size=(3, 40)), RNG.uniform(0, 2, size=40)
    rows[:5] = 0
    densities[0, :5] = 50.0

    def objective(logits):
        w = np.exp(logits - scipy.special.logsumexp(logits))
        return -(rows * np.log(w @ np.exp(np.minimum(densities, 30)))).sum()

    best = scipy.optimize.minimize(
        objective, np.zeros(3), method="Nelder-Mead", options={"fatol": 1e-12, "xatol": 1e-9}
    )
    weights = by_stacking(densities, rows)
    assert weights.sum() == pytest.approx(1.0) and -objective(np.log(weights)) == pytest.approx(-best.fun, abs=1e-5)


# ---------------------------------------------------------------------- ensembles of nets


def test_moments_and_densities_are_those_of_the_members(three):
    """Written out from the predictions of the single members."""
    members = three.members_
    assert [type(m) for m in members] == [LaplaceRegressor] * 3 and [m.n_members for m in members] == [1] * 3
    means, stds = np.stack([m.predict(X_NEW, return_std=True) for m in members], 1)
    mean, std = three.predict(X_NEW, return_std=True)
    np.testing.assert_allclose(mean, means.mean(0), rtol=1e-10)
    np.testing.assert_allclose(std**2, (stds**2).mean(0) + means.var(0), rtol=1e-9)
    np.testing.assert_allclose(three.predict_std(X_NEW, kind="aleatoric"), three.sigma_noise_, rtol=1e-9)
    assert len({m.sigma_noise_ for m in members}) == 3
    epistemic = np.stack([m.predict_std(X_NEW, kind="epistemic") for m in members])
    np.testing.assert_allclose(three.predict_std(X_NEW, kind="epistemic") ** 2, (epistemic**2).mean(0) + means.var(0))
    densities = np.stack([m.log_predictive_density(X_NEW, Y[:9]) for m in members])
    np.testing.assert_allclose(
        three.log_predictive_density(X_NEW, Y[:9]), scipy.special.logsumexp(densities, axis=0) - np.log(3)
    )
    assert not np.allclose(means[0], means[1], rtol=1e-6, atol=1e-6)


def test_quantiles_are_those_of_the_mixture_and_not_of_a_normal(three):
    """At a quantile of the ensemble, the members' distribution functions average to the level."""
    lower = three.predict_quantiles(X_NEW, [0.1])[:, 0]
    below = np.mean([m.predict_dist(X_NEW).cdf(lower) for m in three.members_], 0)
    np.testing.assert_allclose(below, 0.1, atol=1e-9)
    mean, interval = three.predict_interval(X_NEW, 0.8)
    np.testing.assert_allclose(interval[:, 0], lower)
    np.testing.assert_allclose(mean, three.predict(X_NEW))


def test_scores_are_those_of_the_mixture(three):
    """CRPS by numerical integration of the mixture's distribution function, not of a normal with the same moments."""
    distribution, grid = three.predict_dist(X_NEW), np.linspace(-6, 6, 40_001)[:, None]
    below = np.stack([m.predict_dist(X_NEW).cdf(grid) for m in three.members_]).mean(0)
    crps = ((below - (grid >= Y[:9])) ** 2).sum(0) * (grid[1, 0] - grid[0, 0])
    assert metrics.neg_crps(three, X_NEW, Y[:9]) == pytest.approx(-crps.mean(), abs=1e-3)
    assert metrics.neg_nlpd(three, X_NEW, Y[:9]) == pytest.approx(distribution.logpdf(Y[:9]).mean(), rel=1e-12)


def test_joint_covariance_and_draws_are_the_mixtures(three):
    """The law of total covariance; the moments of draws agree within five standard errors."""
    mean, covariance = three.predict(X_NEW, return_cov=True)
    parts = [m.predict(X_NEW, return_cov=True) for m in three.members_]
    deviations = np.stack([m for m, _ in parts]) - mean
    expected = np.mean([c for _, c in parts], 0) + np.einsum("kn,km->nm", deviations, deviations) / 3
    np.testing.assert_allclose(covariance, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(covariance.diagonal(), three.predict_std(X_NEW) ** 2, rtol=1e-9)
    draws = three.sample_y(X_NEW, 4000, random_state=0)
    assert draws.shape == (9, 4000)
    assert (np.abs(draws.mean(1) - mean) < 5 * np.sqrt(covariance.diagonal() / 4000)).all()
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.1 * covariance.max())


def test_the_first_member_is_the_net_alone(three):
    """Its attributes are the estimator's, too."""
    alone = clone(three).set_params(n_members=1).fit(X, Y)
    np.testing.assert_array_equal(alone.predict(X_NEW), three.members_[0].predict(X_NEW))
    assert three.net_ is three.members_[0].net_ and alone.members_[0].predict(X_NEW).shape == (9,)
    np.testing.assert_allclose(three.member_weights_, 1 / 3)


@pytest.mark.usefixtures("complete_training")
def test_the_training_prior_of_the_first_is_shared(three):
    """Members have the first one's prior precision, and a noise level of their own."""
    origins = [m._ensemble.first.origin.hyper for m in three.members_]
    assert len({float(hyper.prior_precision[0]) for hyper in origins}) == 1
    assert len({round(hyper.dispersion, 6) for hyper in origins}) == 3
    assert clone(three).fit(X, Y).mode_distance_ < 1e-3


def test_classes_are_told_by_the_average_probability(classes):
    """Probabilities, their standard deviations, labels, draws and scores."""
    members, rows = classes.members_, X_NEW
    p = np.stack([m.predict_proba(rows) for m in members])
    np.testing.assert_allclose(classes.predict_proba(rows), p.mean(0), rtol=1e-10)
    epistemic = np.stack([m.predict_std(rows) for m in members])
    np.testing.assert_allclose(classes.predict_std(rows) ** 2, (epistemic**2).mean(0) + p.var(0), rtol=1e-8, atol=1e-12)
    np.testing.assert_array_equal(classes.predict(rows), p.mean(0).argmax(1))
    assert set(classes.sample_y(rows, 7).ravel()) <= {0, 1}
    drawn = classes.sample_y(rows, 3000, kind="epistemic")
    assert drawn.shape == (9, 2, 3000) and (np.abs(drawn.mean(-1) - p.mean(0)) < 0.1).all()
    informed = np.mean([m.predict_entropy(rows, kind="epistemic") for m in members], 0)
    assert (classes.score_samples(rows) <= -np.log(informed) + 1e-9).all()  # more by the differences of the members


@pytest.mark.parametrize("rule", ["loo", "evidence"])
def test_weights_by_a_rule_are_what_it_says(three, rule):
    """refit_laplace changes the weights without training, and predictions follow."""
    model = pickle.loads(pickle.dumps(three)).refit_laplace(n_members=Members(3, weights=rule))
    weights = model.member_weights_
    assert weights.shape == (3,) and weights.sum() == pytest.approx(1.0)
    if rule == "evidence":
        evidences = np.array([m.log_marginal_likelihood_value_ for m in model.members_])
        np.testing.assert_allclose(weights, scipy.special.softmax(evidences))
    else:
        moments = [m.loo_predict(return_std=True) for m in model.members_]
        densities = np.stack([scipy.stats.norm(mean, std).logpdf(Y) for mean, std in moments])
        np.testing.assert_allclose(weights, by_stacking(densities, np.ones(len(Y))), atol=1e-3)
    means = np.stack([m.predict(X_NEW) for m in model.members_])
    np.testing.assert_allclose(model.predict(X_NEW), weights @ means)
    np.testing.assert_allclose(three.member_weights_, 1 / 3)  # the original is unchanged


def test_rows_come_and_go_in_all_members():
    """forget reverts partial_fit; leave-one-out predictions are those of the mixture."""
    model = LaplaceRegressor(n_members=2, hessian_structure="full", **SMALL, **FIXED).fit(X[:30], Y[:30])
    before = model.predict(X_NEW, return_std=True)
    left_out = np.mean([m.loo_predict() for m in model.members_], 0)
    np.testing.assert_allclose(model.loo_predict(), left_out)
    model.partial_fit(X[30:], Y[30:])
    assert not np.allclose(model.predict(X_NEW), before[0], atol=1e-4)
    model.forget(X[30:], Y[30:])
    np.testing.assert_allclose(model.predict(X_NEW, return_std=True), before, rtol=1e-5, atol=1e-7)


def test_mixtures_are_saved_and_searched(three):
    """A pickle predicts the same; n_members works in a grid search, for counts and for two targets."""
    again = pickle.loads(pickle.dumps(three))
    np.testing.assert_array_equal(again.predict_std(X_NEW), three.predict_std(X_NEW))
    search = GridSearchCV(LaplaceRegressor(**SMALL, **FIXED), {"n_members": [1, 2]}, cv=2, scoring=metrics.neg_nlpd)
    assert search.fit(X, Y).best_params_["n_members"] in (1, 2)
    counts = LaplaceRegressor(n_members=2, **SMALL | {"likelihood": "poisson"}, prior_precision=1.0)
    counts.fit(X, np.random.default_rng(0).poisson(2, size=45))
    distribution = counts.predict_dist(X_NEW)
    assert isinstance(distribution, CountMixture)
    with pytest.raises(TypeError, match="for counts use log_density_scorer"):
        metrics.neg_crps(counts, X, np.ones(45))
    np.testing.assert_allclose(counts.predict(X_NEW), distribution.mean(), rtol=1e-9)
    np.testing.assert_allclose(counts.predict_std(X_NEW), distribution.std(), rtol=1e-9)
    two = LaplaceRegressor(n_members=2, **SMALL, **FIXED).fit(X, np.column_stack([Y, -Y]))
    assert two.predict_quantiles(X_NEW, [0.1, 0.9]).shape == (9, 2, 2) and two.sample_y(X_NEW, 3).shape == (9, 2, 3)


def test_members_are_estimators_of_their_own(three):
    """Members predict intervals and can be refitted alone; the ensemble is refitted under another temperature."""
    second = three.members_[1]
    _, interval = second.predict_interval(X_NEW, 0.8)
    assert (interval[:, 1] > interval[:, 0]).all()
    again, alone = (
        second.set_params(random_state=1).fit(X, Y),
        LaplaceRegressor(n_members=1, **SMALL | {"random_state": 1}).fit(X, Y),
    )
    np.testing.assert_array_equal(again.predict(X_NEW, return_std=True), alone.predict(X_NEW, return_std=True))
    chosen = LaplaceRegressor(n_members=2, prior_precision=0.1, map_prior_precision=1.0, **SMALL).fit(X, Y)
    before = chosen.predict_std(X_NEW, kind="epistemic")
    hotter = chosen.refit_laplace(temperature=2.0).predict_std(X_NEW, kind="epistemic")
    assert hotter.mean() > before.mean()


def test_as_many_members_as_there_are_nets(three):
    """A single one by "auto"; a fifth is trained under the same precision as four."""
    four, five = (LaplaceRegressor(n_members=n, prior_precision="evidence", **SMALL).fit(X, Y) for n in (4, 5))
    assert len(four.members_) == 4 and len(five.members_) == 5
    for one, other in zip(four.members_, five.members_, strict=False):
        np.testing.assert_array_equal(one.predict(X_NEW), other.predict(X_NEW))
    precisions = [float(m._ensemble.first.origin.hyper.prior_precision[0]) for m in five.members_]
    assert len(set(precisions)) == 1
    weights = {tuple(m.laplace_.theta.tolist()) for m in five.members_}
    assert len(weights) == 5
    single = [
        LaplaceRegressor(**SMALL).fit(X[:9], Y[:9]),
        LaplaceRegressor(**SMALL, **FIXED).fit(X, Y),
        LaplaceRegressor(**SMALL | {"hidden_layer_sizes": ()}).fit(X, Y),
        LaplaceRegressor(prior=FrozenEstimator(three), **SMALL).fit(X, Y),
    ]
    assert [len(m.members_) for m in single] == [1] * 4


def test_any_more_members_are_as_good_as_those_that_were_beside_the_first():
    """The fifth member uses the prior of the first four; evidence alone would choose a far too strong one here."""
    A, X_test, a, y_test = train_test_split(*load_digits(return_X_y=True), train_size=300, random_state=0)
    model = LaplaceClassifier(n_members=5, random_state=0).fit(A, a)
    *four, fifth = (log_loss(y_test, member.predict_proba(X_test)) for member in model.members_)
    assert fifth < 1.15 * np.mean(four)


@pytest.mark.parametrize(
    "options",
    [
        {"prior": "layer", "sigma_noise": "evidence"},
        {"prior": "layer", "prior_precision": "evidence"},
        {"prior_precision": "evidence"},
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
def test_what_goes_by_the_evidence_has_gone_by_it_in_the_first(options):
    """Members keep the first one's ratios between prior precisions and choose none themselves."""
    model = LaplaceRegressor(**SMALL, **options, n_members=4).fit(X, Y)
    ratios = [m.hyper_.prior_precision / m._ensemble.first.origin.hyper.prior_precision for m in model.members_]
    assert len(ratios) == 4
    for ratio in ratios:
        torch.testing.assert_close(ratio, ratios[0])


def test_a_number_of_members_is_a_promise(monkeypatch):
    """A member that cannot be trained is an error."""
    original, calls = ensemble_fit.approximate, []

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise NonFiniteError("no")
        return original(*args, **options)

    monkeypatch.setattr(ensemble_fit, "approximate", failing)
    with pytest.raises(NonFiniteError):
        LaplaceRegressor(n_members=4, **SMALL).fit(X, Y)


def test_each_kind_of_warning_is_given_once_for_all_members():
    """Bound warnings come from the first member only; a warning about another member names it as such."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LaplaceRegressor(**SMALL).fit(X, np.sin(2 * X[:, 0]))
    others = [warning for warning in caught if str(warning.message).startswith("another member of the ensemble")]
    assert len({warning.category for warning in others}) == len(others) <= 1
    assert len([warning for warning in caught if warning.category is BoundWarning]) <= 1


def test_members_train_under_the_noise_that_was_found():
    """Members share one noise model and are trained under it directly."""
    rows = np.random.default_rng(0).uniform(-2, 2, size=(240, 1))
    targets = np.sin(rows[:, 0]) + np.where(rows[:, 0] > 0, 0.4, 0.02) * np.random.default_rng(1).normal(size=240)
    model = LaplaceRegressor(hidden_layer_sizes=(5,), random_state=0).fit(rows, targets)
    assert model.noise_model_ is not None and model.noise_model_.is_trained_under
    for member in model.members_:
        assert member.noise_model_ is model.noise_model_
        np.testing.assert_allclose(member._scale.unit_noise, model._scale.unit_noise)
    std = model.predict_std([[-1.5], [1.5]], kind="aleatoric")
    assert std[1] > 5 * std[0]


def test_workers_change_nothing():
    """Members trained in parallel equal members trained one after another."""
    one, two = (LaplaceRegressor(n_members=3, n_jobs=n, **SMALL, **FIXED).fit(X, Y) for n in (1, 2))
    np.testing.assert_array_equal(one.predict(X_NEW), two.predict(X_NEW))


def test_nets_that_would_all_be_the_same_are_refused():
    """A module with weights, a frozen net, a previous posterior; also invalid values of n_members."""
    for net in (nn.Linear(2, 1), FrozenEstimator(None)):
        with pytest.raises(UnsupportedCombinationError, match="would all be the same"):
            LaplaceRegressor(net, n_members=2).fit(X, Y)
    previous = LaplaceRegressor(**SMALL, **FIXED).fit(X, Y)
    with pytest.raises(UnsupportedCombinationError, match="would all be the same"):
        LaplaceRegressor(n_members=2, prior=FrozenEstimator(previous), **SMALL, **FIXED).fit(X, Y)
    with pytest.raises(ValueError, match="n_members"):
        LaplaceRegressor(n_members=0).fit(X, Y)
    with pytest.raises(ValueError, match="weights of Members='best'"):
        LaplaceRegressor(n_members=Members(weights="best")).fit(X, Y)


def test_a_user_s_module_class_has_members_of_its_own():
    """Seeds differ between members, and torch's global generator is unchanged."""

    class Net(nn.Module):
        def __init__(self, in_features, out_features):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(in_features, 4), nn.Tanh(), nn.Linear(4, out_features))

        def forward(self, x):
            return self.layers(x)

    state = torch.random.get_rng_state()
    model = LaplaceRegressor(Net, n_members=2, random_state=0, **FIXED).fit(X, Y)
    assert torch.equal(torch.random.get_rng_state(), state)
    first, second = (m.predict(X_NEW) for m in model.members_)
    assert not np.allclose(first, second, atol=1e-4)
