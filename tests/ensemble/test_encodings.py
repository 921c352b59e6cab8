"""Encodings (plain numbers and binned columns): which are fitted, and how members of several ones answer together."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceRegressor, load, save
from sklearn_laplace._ensemble.joint_members import exact_kinds
from sklearn_laplace._table.rows import PreparedData, TargetScale
from sklearn_laplace.errors import BoundWarning
from sklearn_laplace.laplace.likelihoods import Gaussian

SMALL = {"hidden_layer_sizes": (8,), "random_state": 0}
X, Y = make_friedman1(80, noise=1.0, random_state=0)
NEW, NEW_Y = make_friedman1(300, noise=1.0, random_state=1)


@pytest.fixture(scope="module")
def both() -> LaplaceRegressor:
    """Nets with exact steps on numbers, and members with pieces."""
    return LaplaceRegressor(**SMALL).fit(X, Y)


def test_members_of_two_encodings_answer_together(both):
    members, weights = both.members_, both.member_weights_
    assert {member.n_bins for member in members} == {None, 8, 24}
    assert weights.sum() == pytest.approx(1)
    means = np.array([member.predict(NEW) for member in members])
    np.testing.assert_allclose(both.predict(NEW), weights @ means, rtol=1e-10)
    variances = np.array([member.predict_std(NEW) ** 2 for member in members])
    expected = weights @ (variances + (means - weights @ means) ** 2)
    np.testing.assert_allclose(both.predict_std(NEW) ** 2, expected, rtol=1e-6)
    densities = np.exp([member.log_predictive_density(NEW, NEW_Y) for member in members])
    np.testing.assert_allclose(np.exp(both.log_predictive_density(NEW, NEW_Y)), weights @ densities, rtol=1e-6)


def test_intervals_of_both_cover(both):
    low, high = both.predict_interval(NEW, 0.9)[1].T
    assert 0.85 < np.mean((low <= NEW_Y) & (high >= NEW_Y)) < 0.97


def test_it_is_kept_and_read_again(both, tmp_path):
    save(both, tmp_path / "model.laplace")
    for again in (pickle.loads(pickle.dumps(both)), load(tmp_path / "model.laplace")):
        np.testing.assert_array_equal(again.predict_std(NEW), both.predict_std(NEW))
        np.testing.assert_array_equal(again.member_weights_, both.member_weights_)
        assert [member.n_bins for member in again.members_] == [member.n_bins for member in both.members_]


def test_weights_stay_where_the_posterior_is_made_anew(both):
    again = pickle.loads(pickle.dumps(both)).refit_laplace(prior_precision=3.0)
    np.testing.assert_array_equal(again.member_weights_, both.member_weights_)
    assert not np.array_equal(again.predict_std(NEW), both.predict_std(NEW))
    back = again.refit_laplace(prior_precision="auto")
    np.testing.assert_allclose(back.predict_std(NEW), both.predict_std(NEW), rtol=1e-8)


def test_weights_by_name_are_those_of_one_net(both):
    """Weight names are ambiguous with two encodings: the error quotes the value, and the model stays unchanged."""
    before = both.predict_std(NEW)
    with pytest.raises(ValueError, match=r"temperature=\{'first': 0.5\} names weights of one net.*n_members=1"):
        both.refit_laplace(temperature={"first": 0.5})
    np.testing.assert_array_equal(both.predict_std(NEW), before)
    colder = both.members_[0].refit_laplace(temperature={"first": 0.5})
    assert not np.array_equal(colder.predict_std(NEW), both.members_[0].predict_std(NEW))


def test_targets_that_do_not_vary_have_no_say_in_the_encoding(monkeypatch):
    """All held-out errors are zero: no noise level can be learnt, and the prediction is the constant."""
    monkeypatch.setattr("sklearn_laplace._ensemble.joint_members.SMALL_ROWS", 60)
    with pytest.warns(BoundWarning):
        model = LaplaceRegressor(**SMALL).fit(X[:61], np.full(61, 3.0))
    np.testing.assert_allclose(model.predict(NEW), 3.0, atol=1e-3)
    assert np.isfinite(model.member_weights_).all() and model.member_weights_.sum() == pytest.approx(1)


def test_more_rows_are_taken_in_by_every_member(both):
    later = pickle.loads(pickle.dumps(both)).partial_fit(NEW[:100], NEW_Y[:100])
    for before, after in zip(both.members_, later.members_, strict=True):
        assert not np.array_equal(before.predict(NEW), after.predict(NEW))
    before, after = (np.square(model.predict(NEW[:100]) - NEW_Y[:100]).mean() for model in (both, later))
    assert after < before


def test_a_previous_posterior_has_one_encoding(both):
    later = LaplaceRegressor(**SMALL, prior=FrozenEstimator(both)).fit(NEW[:50], NEW_Y[:50])
    assert [member.n_bins for member in later.members_] == [None]


def test_leave_one_out_has_the_noise_of_each_member(both):
    """The leave-one-out variance combines the members'."""
    mean, std = both.loo_predict(return_std=True)
    of_each = [member.loo_predict(return_std=True) for member in both.members_]
    means, stds = (np.array(part) for part in zip(*of_each, strict=True))
    np.testing.assert_allclose(mean, both.member_weights_ @ means, rtol=1e-9)
    expected = both.member_weights_ @ (stds**2 + (means - mean) ** 2)
    np.testing.assert_allclose(std**2, expected, rtol=1e-7)


@pytest.mark.parametrize("value", [(), (None, 8), 0, 2.5, "many"])
def test_what_is_no_number_of_pieces_is_refused(value):
    with pytest.raises(ValueError, match="n_bins="):
        LaplaceRegressor(**SMALL, n_bins=value).fit(X, Y)


def test_pieces_are_of_the_built_in_net():
    with pytest.raises(ValueError, match="n_bins can only be used with the built-in net"):
        LaplaceRegressor(torch.nn.Linear(10, 1), n_bins=8).fit(X, Y)


def test_nets_that_are_trained_alone_have_numbers_alone_by_default():
    model = LaplaceRegressor(**SMALL, prior_precision="evidence").fit(X, Y)
    assert {member.n_bins for member in model.members_} == {None}


def test_columns_of_two_values_have_no_pieces():
    """Binary columns have a single bin, so both encodings coincide. A missing value is not a third value."""
    flags = (X > 0.5).astype(float)
    flags[::9, 2] = np.nan
    for table, expected in ((flags, (None,)), (np.column_stack([flags, X[:, 3]]), (None, 8))):
        rows = np.repeat(table, 5, axis=0)
        scale = TargetScale(np.zeros(1), np.ones(1), np.ones(1))
        data = PreparedData(rows, np.zeros((len(rows), 1)), np.ones(len(rows)), 1, scale)
        parameters = {**LaplaceRegressor().get_params(), "hidden_layer_sizes": (50,)}
        assert exact_kinds(parameters, data.shape(), Gaussian()) == expected


def test_a_net_of_ones_own_has_no_pieces():
    net = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    models = [LaplaceRegressor(net, n_bins=n, max_epochs=2, random_state=0).fit(X, Y) for n in ("auto", None)]
    assert [len(model.members_) for model in models] == [1, 1]
    np.testing.assert_array_equal(*(model.predict(NEW) for model in models))
