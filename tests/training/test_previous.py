"""A previous posterior as the prior: exact for linear nets, dense algebra otherwise, less forgetting."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import contracts
import nets
import numpy as np
import oracles
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._training import fit_map as _map
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.mode import DataLoss
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.nets.skorch_net import MAPLoss
from sklearn_laplace.options import GaussianPrior, Kron

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(43)
X, X_NEW = RNG.normal(size=(60, 4)), 2 * RNG.normal(size=(7, 4))
Y = X @ RNG.normal(size=(4, 2)) + [1.0, -2.0] + 0.3 * RNG.normal(size=(60, 2))
LABELS = np.array(["low", "mid", "top"])[np.digitize(Y[:, 0], [0.0, 2.0])]
WEIGHTS = RNG.integers(1, 4, size=60).astype(float)
PARTS = (slice(0, 20), slice(20, 21), slice(21, 60))
DELTA, SIGMA = 2.0, 0.5
SMALL = {"hidden_layer_sizes": (4,), "n_members": 1, "random_state": 0}
MONOIDS = sorted(name for name, structure in STRUCTURES.items() if structure.is_monoid)


def linear(structure, **options):
    options = {"standardize_X": False, "standardize_y": False, "random_state": 0, **options}
    options = {"prior_precision": DELTA, "sigma_noise": SIGMA, **options}
    return LaplaceRegressor(nets.regressor(nets.Linear), hessian_structure=structure, **options)


def sequential(model, parts, X, y, weights):
    """Fit part after part, each time with the last posterior as the prior."""
    for part in parts:
        following = clone(model).fit(X[part], y[part], sample_weight=weights[part])
        model = clone(model).set_params(prior=FrozenEstimator(following))
    return following


# ------------------------------------------------------------------------------ exact cases


def test_rows_of_known_noise_fitted_in_parts_are_one_fit():
    """With known noise variances, a fit in two parts is one fit: very exact rows first, very noisy ones second."""
    v = np.where(np.arange(60) < 20, 1e-4, 1.0)
    options = {"sigma_noise": 1.0, "prior_precision": DELTA}
    whole = linear("full", **options).fit(X, Y[:, 0], sample_noise_variance=v)
    first = linear("full", **options).fit(X[:20], Y[:20, 0], sample_noise_variance=v[:20])
    then = linear("full", prior=FrozenEstimator(first), **options).fit(X[20:], Y[20:, 0], sample_noise_variance=v[20:])
    np.testing.assert_allclose(then.predict(X_NEW), whole.predict(X_NEW), rtol=1e-9)
    epistemic = (model.predict_std(X_NEW, kind="epistemic") for model in (then, whole))
    np.testing.assert_allclose(*epistemic, rtol=1e-9)
    with pytest.raises(ValueError, match="sample_noise_variance"):
        linear("full", prior=FrozenEstimator(first), **options).fit(X[20:], Y[20:, 0])


def test_other_noise_ratios_than_those_of_the_previous_rows_are_refused():
    first = linear("full", sigma_noise=[0.1, 3.0]).fit(X[:20], Y[:20])
    again = linear("full", sigma_noise=[0.2, 6.0], prior=FrozenEstimator(first)).fit(X[20:], Y[20:])
    np.testing.assert_allclose(again.sigma_noise_, [0.2, 6.0])
    with pytest.raises(ValueError, match="noise ratios"):
        linear("full", sigma_noise=[3.0, 0.1], prior=FrozenEstimator(first)).fit(X[20:], Y[20:])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (Kron(weight_sharing="reduce"), Kron(), "Use the same options in both fits"),
        (Kron(bias="separate"), Kron(bias="separate"), "Use bias='folded' in both fits"),
        (Kron(bias="separate"), "kron", "Use bias='folded' in both fits"),
    ],
)
def test_factors_of_another_kind_are_not_added(before, after, message):
    first = linear(before).fit(X[:20], Y[:20, 0])
    with pytest.raises(UnsupportedCombinationError, match=message):
        linear(after, prior=FrozenEstimator(first)).fit(X[20:], Y[20:, 0])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[::2])
@pytest.mark.parametrize("structure", ["full", "functional", "kron"])
@pytest.mark.parametrize("options", [{}, {"prior": 0.7, "prior_precision": [0.5, 20.0]}], ids=["", "tensors"])
def test_a_linear_net_fitted_in_parts_is_bayesian_linear_regression_on_all(structure, order, options):
    """In any order the prior enters once. 'kron' is exact for one output."""
    y = Y[:, 0]
    model = sequential(linear(structure, **options), [PARTS[i] for i in order], X, y, WEIGHTS)
    delta = torch.tensor([0.5] * 4 + [20.0]).double() if options else DELTA
    features = [torch.tensor(np.column_stack([rows, np.ones(len(rows))])) for rows in (X, X_NEW)]
    data = features[0], torch.tensor(y)[:, None], torch.tensor(WEIGHTS)
    exact = oracles.bayesian_linear_regression(*data, delta, SIGMA**2, options.get("prior", 0.0))
    mean, covariance = exact.predict(features[1])
    got_mean, got_covariance = model.predict(X_NEW, return_cov=True)
    np.testing.assert_allclose(got_mean, mean[:, 0], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(got_covariance, covariance + SIGMA**2 * torch.eye(7), rtol=1e-8)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(exact.log_evidence), rtol=1e-8)
    assert model.laplace_.total_weight == WEIGHTS.sum()


@pytest.mark.usefixtures("complete_training")
@pytest.mark.parametrize("structure", ["full", "functional"])
def test_what_the_evidence_chooses_is_what_it_chooses_on_all_rows(structure):
    """The joint evidence at the joint mode, for two targets in the scales of the previous fit."""
    options = {"prior_precision": "evidence", "sigma_noise": "evidence", "standardize_y": False}
    whole = linear(structure, **options).fit(X, Y)
    parts = sequential(linear(structure, **options), PARTS, X, Y, np.ones(60))
    np.testing.assert_allclose(parts.sigma_noise_, whole.sigma_noise_, rtol=1e-2)
    np.testing.assert_allclose(
        parts.prior_precision_, whole.prior_precision_, rtol=0.2
    )  # the evidence is flat: 20 % change it by 0.1 nats
    assert parts.log_marginal_likelihood_value_ == pytest.approx(whole.log_marginal_likelihood_value_, abs=0.2)


def test_rows_that_come_after_are_added_and_taken_out():
    """partial_fit and forget update the joint posterior; the next training starts at the updated mean."""
    y = Y[:, 0]
    first = linear("full").fit(X[:10], y[:10]).partial_fit(X[10:30], y[10:30])
    assert first.laplace_.shift is not None
    second = linear("full", prior=FrozenEstimator(first)).fit(X[30:50], y[30:50])
    second.partial_fit(X[50:], y[50:]).forget(X[:5], y[:5])
    whole = linear("full").fit(X[5:], y[5:])
    np.testing.assert_allclose(second.predict(X_NEW, return_std=True), whole.predict(X_NEW, return_std=True), rtol=1e-8)


# ------------------------------------------------------------------------------ the engine


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", MONOIDS)
def test_old_rows_enter_by_their_quadratic_model(structure, kind):
    """Loss, gradient, curvature and the criterion of the epochs at other weights, by dense algebra and autodiff."""
    whole = contracts.example(kind, seed=3, n=12)
    old, new = (
        replace(whole, x=whole.x[rows], y=whole.y[rows], weights=whole.weights[rows])
        for rows in (slice(0, 5), slice(5, 12))
    )
    past, H = old.fit(structure), contracts.dense_curvature(structure, old)
    noise = torch.randn(len(H), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    past = replace(past, shift=0.05 * noise)
    network = whole.network.with_parameters(whole.network.theta + 0.3 * noise.flip(0))
    move = network.theta - past.theta
    rows = [(new.x, new.y, new.weights)]
    alone = fit_laplace(network, new.likelihood, GGN(), STRUCTURES[structure], past.prior, rows)
    joint = fit_laplace(network, new.likelihood, GGN(), STRUCTURES[structure], past.prior, rows, past=past)
    nll = alone.nll + past.nll + float(past.gradient @ move + 0.5 * move @ H @ move)
    gradient = alone.gradient + past.gradient + H @ move
    assert joint.nll == pytest.approx(nll, rel=1e-10)
    contracts.close(joint.gradient, gradient, 1e-9, "gradient")
    contracts.close(joint.curvature.times(noise), alone.curvature.merge(past.curvature).times(noise), 1e-12, "H")
    assert joint.total_weight == pytest.approx(float(whole.weights.sum()))
    loss = DataLoss(whole.network, new.likelihood, rows, past)
    assert loss(network.theta) == pytest.approx(nll, rel=1e-10)
    contracts.close(loss.gradient(), gradient, 1e-9, "gradient")

    hyper = Hyper(torch.tensor([0.7]).double(), 0.4 if kind == "gaussian" else 1.0)
    total = float(new.weights.sum())
    live = oracles.with_parameters(
        whole.module, network.parameter_names, contracts.to_oracle(network, network.theta)
    ).requires_grad_()
    criterion = MAPLoss(new.likelihood, total, len(new.x))
    criterion.bind(whole.network, live, past.prior, hyper, past)
    criterion(live(new.x), (new.y, new.weights)).backward()
    parameters = dict(live.named_parameters())
    slopes = torch.cat([parameters[name].grad.flatten() for name in network.parameter_names])
    expected = contracts.to_oracle(network, joint.objective_gradient(hyper)) * hyper.dispersion / total
    contracts.close(slopes, expected, 1e-9, "gradient of the criterion")


@pytest.mark.usefixtures("complete_training")
@pytest.mark.parametrize("structure", MONOIDS)
def test_the_training_ends_at_the_mode_of_the_joint_objective(structure):
    """The joint gradient vanishes: autodiff for the new rows, the quadratic model for the old ones."""
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
    options = {"hessian_structure": structure, "prior_precision": 0.8, "standardize_y": False, **SMALL}
    first = LaplaceRegressor(sigma_noise=0.3, **options).fit(X[:30], y[:30])
    second = LaplaceRegressor(sigma_noise=0.3, prior=FrozenEstimator(first), **options).fit(X[30:], y[30:])
    network, past, module = second.laplace_.network, first.laplace_, second.net_.module_
    theta = contracts.to_oracle(network, network.theta)
    rows = torch.tensor(X[30:]), torch.tensor(y[30:])[:, None], None
    new = oracles.map_gradient("gaussian", module, network.parameter_names, theta, *rows, 0.8, 0.09)
    old = (past.gradient + past.curvature.times(network.theta - past.theta)) / 0.09
    gradient = contracts.to_package(network, new) + old
    assert float(gradient.norm()) < 1e-3 * float(old.norm())
    assert second.mode_distance_ < 1e-2
    assert second.structure_ == structure
    assert float((network.theta - past.theta).norm()) > 0.1


@pytest.mark.usefixtures("complete_training")
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_the_old_task_is_forgotten_less_than_by_plain_retraining(structure):
    """Two halves of the plane, two seeds: the loss on the first half grows less than half as much."""
    kept, lost = [], []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(200, 2))
        y = (np.sin(2 * x[:, 0]) + x[:, 1] > 0).astype(int)
        old = x[:, 0] < 0
        shared = {"prior_precision": "evidence", "n_members": 1, "random_state": 0}  # the same rule in all three fits
        options = {"hidden_layer_sizes": (10,), "hessian_structure": structure, **shared}
        first = LaplaceClassifier(**options).fit(x[old], y[old])
        second = LaplaceClassifier(prior=FrozenEstimator(first), **options).fit(x[~old], y[~old])
        plain = LaplaceClassifier(first.net_.module_, **shared).fit(x[~old], y[~old])
        before, with_prior, without = (log_loss(y[old], m.predict_proba(x[old])) for m in (first, second, plain))
        kept.append(with_prior - before)
        lost.append(without - before)
        assert second.score(x[~old], y[~old]) > 0.9
    assert np.mean(kept) < 0.5 * np.mean(lost)


@pytest.mark.parametrize("structure", ["kron", "diag", "functional"])
def test_a_large_net_goes_on_by_epochs(structure, monkeypatch):
    """If no exact step is affordable, the criterion of the epochs includes the old rows."""
    budget = replace(_map.budget_for(10), exact_step=0, epoch_steps=150)
    for file in ("fit_map", "epochs"):
        monkeypatch.setattr(f"sklearn_laplace._training.{file}.budget_for", lambda n_rows: budget)
    y = np.sin(X[:, 0]) + X[:, 1]
    options = {"hessian_structure": structure, "prior_precision": 0.5, "sigma_noise": 0.2, **SMALL}
    old, new = X[:, 0] < 0, X[:, 0] >= 0
    first = LaplaceRegressor(**options).fit(X[old], y[old])
    second = LaplaceRegressor(prior=FrozenEstimator(first), **options).fit(X[new], y[new])
    alone = LaplaceRegressor(**options).fit(X[new], y[new])
    assert len(second.history_) == 150
    errors = [np.mean((model.predict(X[old]) - y[old]) ** 2) for model in (second, alone)]
    assert errors[0] < 0.6 * errors[1]
    assert second.score(X[new], y[new]) > 0.7


# ------------------------------------------------------------------------------ as an estimator


def test_the_scales_are_those_of_the_previous_rows():
    """The net keeps its input and target scales, whatever the scales of the new rows."""
    first = LaplaceRegressor(**SMALL).fit(X, 10 * Y + 100)
    second = LaplaceRegressor(prior=FrozenEstimator(first), **SMALL).fit(5 * X[:20] + 3, Y[:20])
    np.testing.assert_array_equal(second._scale.mean, first._scale.mean)
    np.testing.assert_array_equal(second._scale.scale, first._scale.scale)
    torch.testing.assert_close(second.net_.module_[0].mean, first.net_.module_[0].mean)
    assert second.laplace_.likelihood == first.laplace_.likelihood


@pytest.mark.usefixtures("complete_training")
def test_a_classifier_learns_what_it_was_told_of():
    """The classes are those of the previous estimator; the new rows may have only one of them."""
    first = LaplaceClassifier(**SMALL).partial_fit(X, np.where(LABELS == "top", "mid", LABELS), ["low", "mid", "top"])
    top = LABELS == "top"
    second = LaplaceClassifier(prior=FrozenEstimator(first), **SMALL).fit(X[top], LABELS[top])
    assert second.classes_.tolist() == ["low", "mid", "top"]
    assert second.predict_proba(X[top])[:, 2].mean() > first.predict_proba(X[top])[:, 2].mean() + 0.3
    with pytest.raises(ValueError, match=r"labels \['zebra'\], which are not among the classes"):
        clone(second).fit(X[:3], ["low", "zebra", "mid"])


def test_it_is_cloned_searched_pickled_and_refitted():
    """Copies include the frozen estimator, which never changes."""
    first = LaplaceRegressor(hessian_structure="kron", **SMALL).fit(X[:30], Y[:30, 0])
    before = first.predict_std(X_NEW)
    model = LaplaceRegressor(prior=FrozenEstimator(first), hessian_structure="kron", **SMALL).fit(X[30:], Y[30:, 0])
    for other in (clone(model).fit(X[30:], Y[30:, 0]), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict_std(X_NEW), model.predict_std(X_NEW))
    again = clone(pickle.loads(pickle.dumps(model))).fit(X[30:], Y[30:, 0])
    np.testing.assert_allclose(again.predict_std(X_NEW), model.predict_std(X_NEW), rtol=1e-6)
    search = GridSearchCV(clone(model), {"prior_precision": [0.1, 10.0]}, cv=2).fit(X[30:], Y[30:, 0])
    assert search.best_estimator_.laplace_.total_weight == 60
    evidence = model.log_marginal_likelihood_value_
    with pytest.raises(ValueError, match="prior='ard' changes the training or the curvature"):
        model.refit_laplace(prior="ard")  # without the previous posterior
    model.refit_laplace(prior=GaussianPrior("ard", previous=model.prior), temperature={"2": 0.5})
    assert model.log_marginal_likelihood() != evidence and len(model.prior_groups_) == 7
    assert model.refit_laplace(prior__structure="layer").prior_groups_ == ("2", "5")
    np.testing.assert_array_equal(first.predict_std(X_NEW), before)


def test_two_posteriors_share_their_precisions():
    """Explicit precisions are kept; otherwise the choice starts at the previous ones."""
    first = LaplaceRegressor(prior="ard", **SMALL).fit(X, Y[:, 0])
    kept = LaplaceRegressor(
        prior=GaussianPrior("ard", previous=FrozenEstimator(first)),
        prior_precision=first.prior_precision_,
        sigma_noise=first.sigma_noise_,
        **SMALL,
    ).fit(X[:9], Y[:9, 0])
    np.testing.assert_allclose(kept.prior_precision_, first.prior_precision_)
    assert kept.sigma_noise_ == pytest.approx(first.sigma_noise_)
    chosen = LaplaceRegressor(prior=GaussianPrior("layer", previous=FrozenEstimator(first)), **SMALL).fit(
        X[:9], Y[:9, 0]
    )
    assert chosen.prior_groups_ == ("2", "5")


class Twice(nets.Hidden):
    def forward(self, x):
        return 2 * super().forward(x)


def previous(**options):
    fixed = {**SMALL, "prior_precision": 1.0, "sigma_noise": 0.5}
    return FrozenEstimator(LaplaceRegressor(**{**fixed, **options}).fit(X, Y[:, 0]))


def hidden(module=nets.Hidden, **options):
    return nets.regressor(module, max_epochs=1, module__n_in=4, **options)


@pytest.mark.parametrize(
    ("before", "options", "error", "message"),
    [
        (
            {"hessian_structure": "ekfac"},
            {},
            UnsupportedCombinationError,
            r"structure='ekfac', whose curvature.*\['block_diagonal', 'di",
        ),
        (
            {"hessian_structure": "low_rank"},
            {},
            UnsupportedCombinationError,
            "structure='low_rank', whose curvature cannot be added",
        ),
        (
            {"hessian_structure": "kron"},
            {"hessian_structure": "full"},
            UnsupportedCombinationError,
            "'full' cannot be combined with a previous posterior of hessian_structure='kron'. Use 'kron' or 'auto'",
        ),
        (
            {"hessian_structure": "kron"},
            {"prior": GaussianPrior("parameter")},
            UnsupportedCombinationError,
            "'kron' does not support one prior precision for each weight",
        ),
        (
            {"hessian_structure": "full"},
            {"curvature": "mc_fisher"},
            UnsupportedCombinationError,
            "'mc_fisher' cannot be added to that of the previous posterior. Use curvature='ggn'",
        ),
        (
            {"curvature": "empirical_fisher"},
            {"curvature": "empirical_fisher"},
            UnsupportedCombinationError,
            "'empirical_fisher' cannot be used with .* and a noise level",
        ),
        ({}, {"likelihood": "poisson"}, UnsupportedCombinationError, "'poisson' is not that of the previous.*gaussian"),
        (
            {},
            {"subset_of_weights": "last_layer"},
            UnsupportedCombinationError,
            "'last_layer' cannot be used with prior=",
        ),
        ({"subset_of_weights": "last_layer"}, {}, ValueError, "the net MLP is not that of the previous posterior"),
        ({}, {"hidden_layer_sizes": (5,)}, ValueError, "the net MLP is not that of the previous.*hidden_layer_sizes"),
        ({}, {"activation": "relu"}, ValueError, "the net MLP is not that of the previous posterior"),
        ({"net": nets.Hidden}, {"net": Twice}, ValueError, "the net Twice is not that of the previous posterior"),
        (
            {"net": nets.Hidden},
            {"net": FrozenEstimator(hidden().fit(X.astype(np.float32), Y[:, :1].astype(np.float32)))},
            UnsupportedCombinationError,
            "is not trained, but prior=.*Pass only one of them",
        ),
    ],
)
def test_what_cannot_be_carried_on_is_refused_before_training(before, options, error, message, monkeypatch):
    """The error names the parameter and an alternative."""
    for each in (before, options):
        if "net" in each:
            each["hidden_layer_sizes"] = "auto"
    frozen = previous(**before)
    parameters = {**SMALL, "prior": GaussianPrior(), **options}
    parameters["prior"] = clone(parameters["prior"]).set_params(previous=frozen)
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(error, match=message):
        LaplaceRegressor(**parameters).fit(X, np.abs(Y[:, 0]))


def test_other_data_are_refused():
    """Columns, column names and the number of targets have to match the previous rows."""
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = LaplaceRegressor(prior=FrozenEstimator(LaplaceRegressor(**SMALL).fit(frame, Y[:, 0])), **SMALL)
    with pytest.raises(ValueError, match=r"X has 3 columns; expected the 4 columns of the previous posterior"):
        model.fit(X[:, :3], Y[:, 0])
    with pytest.raises(ValueError, match="in the same order"):
        model.fit(frame[list("abdc")], Y[:, 0])
    with pytest.raises(ValueError, match="y has 2 columns; expected 1"):
        model.fit(frame, Y)
    binary = LaplaceClassifier(likelihood="bernoulli", **SMALL).fit(X, LABELS == "low")
    with pytest.raises(ValueError, match="the net has 2 outputs for these data, and 1 in the previous posterior"):
        LaplaceClassifier(likelihood="categorical", prior=FrozenEstimator(binary), **SMALL).fit(X, LABELS == "low")


@pytest.mark.parametrize(
    "prior",
    [
        LaplaceRegressor(),
        GaussianPrior(previous=LaplaceRegressor()),
        FrozenEstimator(LaplaceClassifier()),
        FrozenEstimator(nn.Linear(1, 1)),
    ],
    ids=["not-frozen", "not-frozen-inside", "other-kind", "no-estimator"],
)
def test_only_a_frozen_estimator_of_the_same_kind_is_a_prior(prior):
    """clone would reset an estimator that is not frozen."""
    with pytest.raises(
        TypeError, match=r"is not supported; give None, .* or FrozenEstimator\(fitted LaplaceRegressor\)"
    ):
        LaplaceRegressor(prior=prior).fit(X, Y)


def test_a_string_that_names_no_structure_is_refused():
    """Strings name groups of weights."""
    with pytest.raises(ValueError, match="prior='previous' is not known; expected one of 'ard', 'layer'"):
        LaplaceRegressor(prior="previous").fit(X, Y)


def test_a_previous_estimator_has_to_be_fitted():
    """The error is scikit-learn's."""
    with pytest.raises(ValueError, match="not fitted yet"):
        LaplaceRegressor(prior=FrozenEstimator(LaplaceRegressor())).fit(X, Y)
