"""Intervals, quantiles, distributions and densities of one predictive distribution agree."""

from __future__ import annotations

import copy

import nets
import numpy as np
import oracles
import pytest
import torch
from scipy.special import entr
from scipy.stats import norm

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.options import Link

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(31)
X = RNG.normal(size=(60, 3))
Y = np.column_stack([X[:, 0] + 0.1 * RNG.normal(size=60), 50 * X[:, 1] ** 2 + RNG.normal(size=60)])
LABELS = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
X_NEW = RNG.normal(size=(5, 3))
NORMAL = {"likelihood": "gaussian", "n_members": 1, "random_state": 0}
"""One net with one noise level: the predictive is a normal distribution."""


@pytest.fixture(scope="module", params=["one", "two"])
def regressor(request):
    return LaplaceRegressor(**NORMAL).fit(X, Y[:, 0] if request.param == "one" else Y)


@pytest.fixture(scope="module")
def one_output():
    return LaplaceRegressor(**NORMAL).fit(X, Y[:, 0])


@pytest.fixture(scope="module")
def classifier():
    return LaplaceClassifier(n_members=1, random_state=0).fit(X, LABELS)


def test_the_distribution_is_the_mean_and_the_total_std(regressor):
    """predict_dist returns a scipy-like distribution that agrees with predict."""
    mean, std = regressor.predict(X_NEW, return_std=True)
    distribution = regressor.predict_dist(X_NEW)
    np.testing.assert_allclose(distribution.mean(), mean)
    np.testing.assert_allclose(distribution.std(), regressor.predict_std(X_NEW))
    np.testing.assert_allclose(distribution.std(), std)


def test_quantiles_and_intervals_are_those_of_the_distribution(regressor):
    """Several levels add a last axis; a scalar level adds none."""
    tail = regressor.predict(X_NEW).shape[1:]
    distribution = regressor.predict_dist(X_NEW)
    quantiles = regressor.predict_quantiles(X_NEW, [0.1, 0.5])
    assert quantiles.shape == (5, 2, *tail)
    np.testing.assert_allclose(quantiles[:, 0], distribution.ppf(0.1))
    np.testing.assert_allclose(quantiles[:, 1], regressor.predict(X_NEW), rtol=1e-12)
    mean, interval = regressor.predict_interval(X_NEW, [0.5, 0.9])
    assert interval.shape == (5, *tail, 2, 2)
    np.testing.assert_allclose(mean, regressor.predict(X_NEW), rtol=1e-12)
    np.testing.assert_allclose(interval[..., 0, 1], distribution.ppf(0.05))
    np.testing.assert_allclose(interval[..., 1, 0], distribution.ppf(0.75))
    np.testing.assert_array_equal(regressor.predict_interval(X_NEW)[1], interval[..., 1])
    np.testing.assert_array_equal(regressor.predict_interval(X_NEW, [0.9])[1], interval[..., 1:])


def test_the_density_is_that_of_the_distribution(regressor):
    """In nats per row, summed over the outputs, in the units of y."""
    y = Y[:5, 0] if regressor.predict(X_NEW).ndim == 1 else Y[:5]
    density = regressor.log_predictive_density(X_NEW, y)
    mean, std = regressor.predict(X_NEW, return_std=True)
    expected = norm(mean, std).logpdf(y)
    np.testing.assert_allclose(density, expected if expected.ndim == 1 else expected.sum(1))
    with pytest.raises(ValueError, match=r"y has shape \(4,.*one target for each prediction"):
        regressor.log_predictive_density(X_NEW, y[:4])


def test_the_density_of_a_classifier_is_the_probability_of_the_label(classifier):
    """An unknown label has probability zero."""
    p = classifier.predict_proba(X_NEW[:3])
    got = classifier.log_predictive_density(X_NEW[:3], ["a", "c", "zebra"])
    np.testing.assert_allclose(got, [np.log(p[0, 0]), np.log(p[1, 2]), -np.inf])


@pytest.mark.parametrize("name", ["one_output", "classifier"])
def test_the_parts_of_the_uncertainty_add(name, request):
    """total² = aleatoric² + epistemic²; kind="all" returns a Bunch of the three."""
    model = request.getfixturevalue(name)
    parts = model.predict_std(X_NEW, kind="all")
    assert set(parts) == {"total", "epistemic", "aleatoric"}
    np.testing.assert_allclose(parts.total**2, parts.aleatoric**2 + parts.epistemic**2, rtol=1e-10)
    for kind, std in parts.items():
        np.testing.assert_array_equal(std, model.predict_std(X_NEW, kind=kind))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_members", [1, 3])
def test_the_entropy_splits_into_that_of_functions_and_what_they_disagree_about(n_classes, n_members):
    """H(E[p]) = E[H(p)] + I(y; f), by the trapezoid rule over the Gaussian logits of the members."""
    rng = np.random.default_rng(7 * n_classes + n_members)
    rows = rng.normal(size=(60, 2))
    labels = (rows[:, 0] + 0.7 * rng.normal(size=60) > 0).astype(int) + (n_classes > 2) * (rows[:, 1] > 0.8)
    model = LaplaceClassifier(n_members=n_members, prior_precision=0.1, link=Link(n_samples=4096), random_state=0)
    entropies = model.fit(rows, labels).predict_entropy(2 * rows[:4], kind="all")
    with model._asked(2 * rows[:4]) as (x, options):
        latents = [
            member.answers(x, options, lambda latent, _: torch.cat([latent.mean[:, :, None], latent.covariance], 2))
            for member in model._ensemble.members
        ]
    both = torch.stack([torch.cat(parts) for parts in latents], 1)
    weights = torch.from_numpy(model.member_weights_)
    expected = np.array([oracles.entropy_parts(row[..., 0], row[..., 1:], weights) for row in both])
    np.testing.assert_allclose(np.stack([entropies.total, entropies.aleatoric], 1), expected, atol=2e-3)
    np.testing.assert_allclose(entropies.epistemic, entropies.total - entropies.aleatoric, atol=1e-12)
    assert (entropies.epistemic > 0.01).any()


def test_entropies_are_bounded_and_of_the_probabilities_that_are_predicted(classifier):
    """From 0 to log C; with link "mc" the total is the entropy of predict_proba.

    A very strong prior has no epistemic part.
    """
    model = copy.deepcopy(classifier).set_params(link="mc")
    entropies = model.predict_entropy(10 * X_NEW, kind="all")
    for kind, entropy in entropies.items():
        np.testing.assert_array_equal(model.predict_entropy(10 * X_NEW, kind=kind), entropy)
    np.testing.assert_array_equal(model.predict_entropy(10 * X_NEW), entropies.total)
    np.testing.assert_allclose(entropies.total, entr(model.predict_proba(10 * X_NEW)).sum(1), rtol=1e-9)
    assert (entropies.aleatoric >= 0).all() and (entropies.epistemic >= 0).all()
    assert (entropies.total <= np.log(len(model.classes_)) + 1e-12).all()
    certain = model.refit_laplace(prior_precision=1e8).predict_entropy(X_NEW, kind="all")
    assert (certain.epistemic < 1e-5).all() and (entropies.epistemic > 1e-3).any()
    with pytest.raises(ValueError, match="kind='nats' is not known; expected one of 'aleatoric', 'all', 'epistemic'"):
        model.predict_entropy(X_NEW, kind="nats")


@pytest.mark.parametrize("name", ["one_output", "classifier"])
def test_rows_far_away_score_low(name, request):
    """score_samples is higher for rows that resemble the training rows."""
    model = request.getfixturevalue(name)
    assert model.score_samples(X).mean() > model.score_samples(20 * X).max()


def test_scores_are_minus_the_log_of_the_variance():
    """The epistemic variance of the standardised outputs."""
    model = LaplaceRegressor(random_state=0).fit(X, Y[:, 0])
    variance = model.predict_std(X_NEW, kind="epistemic") ** 2 / Y[:, 0].std() ** 2
    np.testing.assert_allclose(model.score_samples(X_NEW), -np.log(variance), rtol=1e-8)


def test_the_evidence_at_other_hyperparameters_is_that_of_a_fit_with_them():
    """With a fixed training prior the weights are equal, so the evidence is equal."""
    model = LaplaceRegressor(
        nets.Hidden, map_prior_precision=1.0, prior_precision=2.0, sigma_noise=0.3, random_state=0
    ).fit(X, Y[:, 0])
    np.testing.assert_allclose(model.log_marginal_likelihood(), model.log_marginal_likelihood_value_, rtol=1e-10)
    for options in ({"prior_precision": 7.0}, {"temperature": 0.3}):
        other = LaplaceRegressor(**{**model.get_params(), **options}).fit(X, Y[:, 0])
        expected = other.log_marginal_likelihood_value_
        np.testing.assert_allclose(model.log_marginal_likelihood(**options), expected, rtol=1e-9)


def test_the_chosen_noise_has_the_largest_evidence():
    """The noise level is at the maximum of the evidence."""
    model = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", random_state=0).fit(X, Y[:, 0])
    best = model.log_marginal_likelihood_value_
    for factor in (0.9, 1.1):
        assert model.log_marginal_likelihood(sigma_noise=factor * model.sigma_noise_) < best


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.predict_quantiles(X_NEW, [0.5, 1.0]), r"quantiles=\[0.5, 1.0\] has to hold numbers strictly"),
        (lambda m: m.predict_quantiles(X_NEW, []), "has to hold numbers strictly between 0 and 1"),
        (lambda m: m.predict_interval(X_NEW, 90), "confidence_level=90 has to hold numbers strictly"),
        (lambda m: m.predict_interval(X_NEW, "wide"), "confidence_level='wide' has to hold"),
        (lambda m: m.log_marginal_likelihood(prior_precision=[1.0, 2.0]), "has to be one number or 1"),
        (lambda m: m.log_marginal_likelihood(prior_precision=-1.0), "finite number above zero"),
        (lambda m: m.log_marginal_likelihood(temperature=0.0), "temperature=0.0 has to be"),
        (lambda m: m.log_marginal_likelihood(sigma_noise=-3), "sigma_noise=-3 has to be"),
    ],
)
def test_wrong_arguments_are_refused(regressor, call, message):
    """The error states the given value and the expected one."""
    with pytest.raises(ValueError, match=message):
        call(regressor)
