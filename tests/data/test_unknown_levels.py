"""Unknown categories: one of the training levels each, and predictions that widen with each of them."""

import pickle

import numpy as np
import pandas as pd
import pytest
import trainings
from shortened import shorten

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.laplace.structures import STRUCTURES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
"""Whole columns are set to unknown categories, and few steps or rows are no subject here."""

EVIDENCE = {
    "hidden_layer_sizes": (6,),
    "prior_precision": "evidence",
    "n_members": 1,
    "random_state": 0,
    "memory": trainings.MEMORY,  # all structures have the same training
}
COLUMNS = "pqrs"
EFFECTS = {"a": -1.0, "b": 0.0, "c": 0.4, "d": 0.9}


def table(n: int, seed: int = 0, shares: tuple[float, ...] | None = None) -> tuple[pd.DataFrame, np.ndarray]:
    """Four text columns that all have an effect, with these shares of the levels; one number; a balanced target."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({name: rng.choice(list(EFFECTS), n, p=shares) for name in COLUMNS} | {"x": rng.normal(size=n)})
    y = X["x"] + sum(X[name].map(EFFECTS).astype(float) * (1 + k / 4) for k, name in enumerate(COLUMNS))
    return X, (y - y.median() + 0.3 * rng.normal(size=n)).to_numpy()


def more_and_more_unknown(X: pd.DataFrame) -> list[pd.DataFrame]:
    """The table with 0, 1, …, 4 unknown columns."""
    return [X.assign(**dict.fromkeys(COLUMNS[:k], "elsewhere")) for k in range(len(COLUMNS) + 1)]


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_the_std_of_a_regressor_grows_with_each_unknown_column_in_every_structure(structure):
    X, y = table(160)
    model = LaplaceRegressor(hessian_structure=structure, likelihood="gaussian", **EVIDENCE).fit(X, y)
    stds = [model.predict_std(new, kind="epistemic").mean() for new in more_and_more_unknown(X)]
    assert np.all(np.diff(stds) > 0.02)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_logits_of_a_classifier_widen_and_its_confidence_falls_in_every_structure(structure, n_classes):
    X, y = table(160)
    labels = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    model = LaplaceClassifier(hessian_structure=structure, **EVIDENCE).fit(X, labels)
    tables = more_and_more_unknown(X)
    assert np.all(np.diff([model.score_samples(new).mean() for new in tables]) < 0)
    confidence = [model.predict_proba(new).max(1).mean() for new in tables]
    assert np.all(np.diff(confidence) < 0.005)
    assert confidence[-1] < confidence[0] - 0.1


@pytest.mark.parametrize("share", [0.5, 0.25], ids=["balanced classes", "unbalanced classes"])
@pytest.mark.parametrize("shares", [(0.25, 0.25, 0.25, 0.25), (0.7, 0.1, 0.1, 0.1)], ids=["even", "uneven levels"])
def test_confidence_falls_with_each_unknown_column_whatever_is_frequent(share, shares):
    """A mean embedding would be one combination of levels, of which the net may be certain."""
    for seed in range(3):
        X, y = table(200, seed, shares)
        model = LaplaceClassifier(hidden_layer_sizes=(6,), prior_precision=0.3, n_members=1, random_state=0)
        model.fit(X, y > np.quantile(y, 1 - share))
        confidence = [model.predict_proba(new).max(1).mean() for new in more_and_more_unknown(X)]
        assert np.all(np.diff(confidence) < 0)
        assert confidence[-1] < confidence[0] - 0.08


@pytest.fixture
def fixed():
    X, y = table(160)
    X["p"] = np.repeat(list("abcd"), [80, 40, 20, 20])
    options = {"hidden_layer_sizes": (6,), "prior_precision": 1.0, "sigma_noise": 0.3, "n_members": 1}
    return LaplaceRegressor(**options, random_state=0).fit(X, y), X, y


def test_an_unknown_level_is_one_of_the_training_levels_in_proportion_to_their_rows(fixed):
    """The oracle predicts 16 rows with known levels, as many of each as its share of the rows."""
    model, X, _ = fixed
    mean, std = model.predict(X[:5].assign(p="elsewhere"), return_std=True)
    known = [model.predict(X[:5].assign(p=level), return_std=True) for level in "aaaaaaaabbbbccdd"]
    means, stds = (np.array(part) for part in zip(*known, strict=True))
    np.testing.assert_allclose(mean, means.mean(0), rtol=1e-5)  # float32 forward passes
    np.testing.assert_allclose(std**2, (stds**2).mean(0) + means.var(0), rtol=1e-4)
    np.testing.assert_allclose(model.predict(X[:5].assign(p=None)), mean, rtol=1e-6)
    draws = model.sample_y(X[:2].assign(p="elsewhere"), 4000, random_state=0)
    np.testing.assert_allclose(draws.std(1), std[:2], rtol=0.06)  # five standard errors of 4,000 draws
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X[:5].assign(p="elsewhere")), mean)


def test_rows_of_an_unknown_level_that_are_added_are_learnt(fixed):
    """Unknown levels of a column share an embedding, which such rows train. Other columns keep their mixture."""
    model, X, y = fixed
    new, other = X[::3].assign(p="elsewhere"), X[::3].assign(q="elsewhere")
    before = np.mean((model.predict(new) - y[::3]) ** 2)
    std, of_other = (model.predict_std(rows, kind="epistemic").mean() for rows in (new, other))
    model.partial_fit(new, y[::3])
    assert np.mean((model.predict(new) - y[::3]) ** 2) < before
    assert model.predict_std(new, kind="epistemic").mean() < 0.5 * std
    assert model.predict_std(other, kind="epistemic").mean() > 0.7 * of_other


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
@pytest.mark.usefixtures("short_training")
def test_a_joint_ensemble_widens_with_each_unknown_column(kind, monkeypatch):
    """Its members train together, under prior precisions that held-out rows select."""
    shorten(monkeypatch, 100, 90)
    X, y = table(200)
    model = kind(hidden_layer_sizes=(10,), random_state=0).fit(X, y if kind is LaplaceRegressor else y > 0)
    assert len(model.members_) > 1
    tables = more_and_more_unknown(X)
    assert np.all(np.diff([model.score_samples(new).mean() for new in tables]) < 0)
    if kind is LaplaceClassifier:
        assert model.predict_proba(tables[-1]).max(1).mean() < model.predict_proba(X).max(1).mean() - 0.02
    else:
        assert np.all(np.diff([model.predict_std(new, kind="epistemic").mean() for new in tables]) > 0)
