"""refit_laplace: equal to a new fit if the training is fixed, or an error."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from sklearn.base import clone

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.options import Link

RNG = np.random.default_rng(23)
X, X_NEW = RNG.normal(size=(70, 3)), 2 * RNG.normal(size=(8, 3))
Y = np.column_stack([np.sin(X[:, 0]) + 0.2 * RNG.normal(size=70), 50 * X[:, 1] + RNG.normal(size=70)])
BY_EVIDENCE = {"prior_precision": "evidence", "sigma_noise": "evidence"}
LABELS = np.array(["no", "yes", "yes!"])[np.digitize(X[:, 0] + 0.5 * RNG.normal(size=70), [0.3, 1.0])]
FITTED = ("prior_precision_", "log_marginal_likelihood_value_", "n_effective_parameters_", "gradient_norm_")


def assert_same(model, other):
    """Fitted attributes and predictions, to the bit."""
    for name in FITTED:
        np.testing.assert_array_equal(getattr(model, name), getattr(other, name), err_msg=name)
    assert model.prior_groups_ == other.prior_groups_
    np.testing.assert_array_equal(model.predict(X_NEW), other.predict(X_NEW))
    np.testing.assert_array_equal(model.predict_std(X_NEW), other.predict_std(X_NEW))
    assert str(model.get_params()) == str(other.get_params())


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
@pytest.mark.usefixtures("short_training")
def test_a_refit_under_a_fixed_training_is_a_new_fit(structure):
    """With a number as map_prior_precision, the training does not depend on the later choices."""
    start = LaplaceRegressor(
        hidden_layer_sizes=(6,), map_prior_precision=1.0, hessian_structure=structure, random_state=0
    )
    model = clone(start).fit(X, Y[:, 0])
    for change in (
        {"prior_precision": 7.0},
        {"prior_precision": [0.5, 1.0, 2.0, 4.0], "temperature": 0.3},
        {"prior_precision": "evidence", "prior": "tensor", "sigma_noise": 0.4},
        {"sigma_noise": "residual"},
        {"sigma_noise": "evidence", "prior": "scalar", "temperature": 1.0},
    ):
        assert model.refit_laplace(**change) is model
        assert_same(model, clone(model).fit(X, Y[:, 0]))


def test_a_classifier_refits_its_link_and_draws():
    """With another link or other Monte-Carlo draws, equal to a new fit."""
    model = LaplaceClassifier(hidden_layer_sizes=(6,), map_prior_precision=1.0, random_state=0).fit(X, LABELS)
    for change in ({"link": Link("mc", n_samples=33), "prior_precision": 0.2}, {"link": "plugin"}):
        model.refit_laplace(**change)
        assert_same(model, clone(model).fit(X, LABELS))
        np.testing.assert_array_equal(model.predict_proba(X_NEW), clone(model).fit(X, LABELS).predict_proba(X_NEW))


def test_a_refit_without_changes_keeps_what_the_training_has_found():
    """The values chosen in the training are kept, also after a refit with another prior precision and back."""
    model = LaplaceRegressor(**BY_EVIDENCE, hidden_layer_sizes=(6,), random_state=0).fit(X, Y[:, 0])
    std, precision = model.predict_std(X_NEW), model.prior_precision_
    np.testing.assert_array_equal(model.refit_laplace().predict_std(X_NEW), std)
    model.refit_laplace(prior_precision=100 * precision)
    assert (model.predict_std(X_NEW, kind="epistemic") < std).all()
    np.testing.assert_array_equal(model.refit_laplace(prior_precision="evidence").predict_std(X_NEW), std)


def test_a_new_noise_alone_lets_the_evidence_choose_the_prior_again():
    """A prior precision chosen for another noise level is not kept."""
    model = LaplaceRegressor(**BY_EVIDENCE, hidden_layer_sizes=(6,), random_state=0).fit(X, Y[:, 0])
    before = model.prior_precision_
    model.refit_laplace(sigma_noise=5 * model.sigma_noise_)
    assert model.prior_precision_ != before
    assert model.log_marginal_likelihood_value_ >= model.log_marginal_likelihood(before)


@pytest.fixture(scope="module")
def two_targets():
    """Fitted model; tests must not change it."""
    return LaplaceRegressor(hidden_layer_sizes=(3,), n_members=1, random_state=0).fit(X, Y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hessian_structure": "diag"}, "hessian_structure='diag' changes the training or the curvature.*memory="),
        ({"subset_of_weights": "last_layer"}, "changes the training or the curvature"),
        ({"lr": 0.1}, "lr=0.1 changes the training"),
        ({"net__lr": 0.1}, "net__lr=0.1 changes the training"),
        ({"temprature": 0.1}, "Did you mean 'temperature'"),
        ({"temperature": -1.0}, "temperature=-1.0 has to be a finite number above zero"),
        ({"prior_precision": [1.0, 2.0, 3.0]}, "has 3 entries; expected 1 .scalar. or 4"),
        ({"prior_precision": "evidense"}, "Did you mean 'evidence'"),
        ({"sigma_noise": 0.5}, "sigma_noise=0.5 has other noise ratios between the 2 targets than .* fit with this"),
        ({"sigma_noise": [1.0, 2.0, 3.0]}, "sigma_noise has 3 entries; expected 1 or 2, one for each target"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_refit_cannot_do_is_refused_and_nothing_is_lost(two_targets, change, message):
    """The error leaves parameters and predictions unchanged."""
    model = copy.deepcopy(two_targets)
    before, parameters = model.predict_std(X_NEW), model.get_params()
    with pytest.raises(ValueError, match=message):
        model.refit_laplace(**change)
    np.testing.assert_array_equal(model.predict_std(X_NEW), before)
    assert model.get_params() == parameters


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_refits_of_copies_can_be_compared(copied):
    """As the guide does: each copy keeps its link, and the model keeps its own. Without a copy all are one object."""
    model = LaplaceClassifier(hidden_layer_sizes=(4,), prior_precision=0.1, random_state=0).fit(X, LABELS)
    before, links = model.predict_proba(X_NEW), ("plugin", "moderated", "mc")
    models = {link: copied(model).refit_laplace(link=link) for link in links}
    assert [models[link].get_params()["link"] for link in links] == list(links)
    assert len({models[link].predict_proba(X_NEW).tobytes() for link in links}) == len(links)
    np.testing.assert_array_equal(model.predict_proba(X_NEW), before)
    assert copied(model).get_params() == model.get_params()


def test_noise_ratios_that_the_curvature_does_not_hold_have_no_evidence(two_targets):
    """log_marginal_likelihood can only change the noise levels of all targets by a common factor."""
    model = two_targets
    with pytest.raises(ValueError, match="other noise ratios between the 2 targets"):
        model.log_marginal_likelihood(sigma_noise=0.5)
    fitted = model.log_marginal_likelihood(sigma_noise=model.sigma_noise_)
    np.testing.assert_allclose(fitted, model.log_marginal_likelihood_value_, rtol=1e-9)
