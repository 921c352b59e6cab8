"""Adapters to boards: TabArena and ScoringBench, with stand-ins for the classes of the boards, and two protocols."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from quick import MOONS, NEW, QUICK, SEEN, SIDE, X, Y
from sklearn.model_selection import ShuffleSplit, train_test_split

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

pytestmark = pytest.mark.skipif("ALL_CLIENTS" not in os.environ, reason="runs with the clients")

BOARDS = Path(__file__).parents[2] / "examples/boards"
SMALL = {**QUICK, "likelihood": "gaussian", "sigma_noise": "evidence"}


class AbstractModel:
    """What TabArena's base class does for a model: hyperparameters, preprocessing and predictions."""

    def __init__(self, problem_type, hyperparameters):
        self.problem_type, self.hyperparameters = problem_type, hyperparameters

    def _get_model_params(self):
        return dict(self.hyperparameters)

    def preprocess(self, X, **kwargs):
        return X.drop(columns="unused")

    def _predict_proba(self, X):
        X = self.preprocess(X)
        return self.model.predict(X) if self.problem_type == "regression" else self.model.predict_proba(X)


class ProbabilisticWrapper:
    """Base class of ScoringBench's wrappers."""


class DistributionPrediction(SimpleNamespace):
    """ScoringBench's container for bins."""

    @classmethod
    def from_histogram(cls, bin_edges, probas, mean=None, *, train_range):
        return cls(bin_edges=bin_edges, probas=probas, mean=mean, train_range=train_range)


def board(name, monkeypatch, **modules):
    """Module of a board, imported anew, with stand-ins for the modules of the harness."""
    monkeypatch.syspath_prepend(str(BOARDS))
    monkeypatch.delitem(sys.modules, name, raising=False)
    for path, attributes in modules.items():
        parts = path.split("__")
        for k in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:k]))
            monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(module).update(attributes)
    module = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module


@pytest.fixture
def arena(monkeypatch):
    space = SimpleNamespace(Categorical=lambda *values: values)
    return board(
        "tab_arena",
        monkeypatch,
        autogluon__core__constants={"REGRESSION": "regression"},
        autogluon__core__models={"AbstractModel": AbstractModel},
        autogluon__common={"space": space},
    )


def table(rows):
    return pd.DataFrame(rows, columns=[f"x{k}" for k in range(rows.shape[1])]).assign(unused=0.0)


@pytest.mark.usefixtures("short_training")
def test_the_model_of_tabarena_is_the_estimator_with_the_time_limit(arena):
    """The limit is below the harness', and the parameters are passed on; without a limit there is none."""
    limited = arena.LaplaceModel("regression", SMALL)
    limited._fit(table(X[SEEN]), pd.Series(Y[SEEN]), X_val=table(X[NEW]), y_val=pd.Series(Y[NEW]), time_limit=600.0)
    assert 400 < limited.model.max_time < 0.8 * 600
    free = arena.LaplaceModel("regression", SMALL)
    free._fit(table(X[SEEN]), pd.Series(Y[SEEN]))
    assert free.model.max_time is None
    expected = LaplaceRegressor(**SMALL).fit(table(X[SEEN]).drop(columns="unused"), Y[SEEN])
    for model in (limited, free):
        np.testing.assert_allclose(model._predict_proba(table(X[NEW])), expected.predict(table(X[NEW]).iloc[:, :-1]))


def test_the_model_of_tabarena_classifies(arena):
    """Labels need not be numbers."""
    labels = pd.Series(np.where(SIDE > 0, "up", "down"))
    model = arena.LaplaceModel("binary", QUICK)
    model._fit(table(MOONS), labels, time_limit=600.0)
    assert isinstance(model.model, LaplaceClassifier)
    found = model._predict_proba(table(MOONS))
    assert found.shape == (len(MOONS), 2)
    assert np.mean((found[:, 1] > 0.5) == (SIDE > 0)) > 0.9


@pytest.mark.filterwarnings("ignore")
def test_the_configurations_of_tabarena_are_parameters_of_the_estimators(arena):
    """A misspelled option would only fail in the harness; the first value is the default."""
    defaults = LaplaceRegressor().get_params()
    for name, values in arena.SEARCH_SPACE.items():
        assert values[0] == defaults[name]
    for values in zip(*[[*values, *values[:1] * 4][1:5] for values in arena.SEARCH_SPACE.values()], strict=True):
        options = dict(zip(arena.SEARCH_SPACE, values, strict=True))
        cheap = {"subset_of_weights": "last_layer", "max_epochs": 1, "n_members": 1}
        LaplaceRegressor(**options, **cheap, prior_precision=1.0, sigma_noise=1.0).fit(X[:30], Y[:30])


@pytest.mark.usefixtures("short_training")
def test_the_bins_of_scoringbench_have_the_probabilities_of_the_distribution(monkeypatch):
    """Contract of the board: rows of increasing edges, probabilities that sum to one, the mean of each row."""
    base = {"ProbabilisticWrapper": ProbabilisticWrapper, "DistributionPrediction": DistributionPrediction}
    module = board("scoring_bench", monkeypatch, scoringbench__univariate__wrappers__base=base)
    targets = Y.copy()
    targets[3] = np.nan
    wrapper = module.LaplaceWrapper(**{name: value for name, value in SMALL.items() if name != "random_state"})
    assert isinstance(wrapper, ProbabilisticWrapper)
    assert wrapper.fit(table(X[SEEN]), pd.Series(targets[SEEN])) is wrapper
    found = wrapper.predict_distribution(table(X[NEW]))
    known = np.isfinite(targets[SEEN])
    direct = LaplaceRegressor(**SMALL).fit(table(X[SEEN])[known], Y[SEEN][known])
    distribution = direct.predict_dist(table(X[NEW]))
    assert found.bin_edges.shape == (len(Y[NEW]), found.probas.shape[1] + 1)
    assert (np.diff(found.bin_edges, axis=1) > 0).all() and (found.probas >= 0).all()
    np.testing.assert_allclose(found.probas.sum(1), 1.0)
    for k in (0, 50, 150):  # the tails outside hold 2e-6
        below = distribution.cdf(found.bin_edges[:, k])
        np.testing.assert_allclose(found.probas[:, :k].sum(1), below, atol=3e-6)
    np.testing.assert_allclose(found.mean, direct.predict(table(X[NEW])))
    assert found.train_range == (Y[SEEN][known].min(), Y[SEEN][known].max())


def test_without_scoringbench_the_bins_are_still_there(monkeypatch):
    """The wrapper is importable, and the error states what is missing."""
    monkeypatch.setitem(sys.modules, "scoringbench", None)
    module = board("scoring_bench", monkeypatch)
    wrapper = module.LaplaceWrapper(**{name: value for name, value in SMALL.items() if name != "random_state"})
    edges, probabilities = wrapper.fit(X[SEEN], Y[SEEN]).bins(X[NEW])
    assert edges.shape == (len(Y[NEW]), probabilities.shape[1] + 1)
    with pytest.raises(ImportError, match="predict_distribution needs ScoringBench"):
        wrapper.predict_distribution(X[NEW])


def test_the_protocols_have_the_splits_of_their_papers(monkeypatch):
    """Ten folds of twenty for IBUG; one split, with a seed for each run, and standardised rows for bde."""
    module = board("protocols", monkeypatch)
    folds = list(module.splits("ibug", 200, 10))
    expected = list(ShuffleSplit(20, test_size=0.1, random_state=1).split(np.zeros(200)))[:10]
    assert [seed for seed, *_ in folds] == list(range(10))
    for (_, fit, test), (their_fit, their_test) in zip(folds, expected, strict=True):
        assert np.array_equal(fit, their_fit) and np.array_equal(test, their_test)
    rows = np.arange(200)
    for seed, (found, fit, test) in enumerate(module.splits("bde", 200, 5)):
        assert found == seed
        assert [*map(np.ndarray.tolist, train_test_split(rows, test_size=0.2, random_state=0))] == [
            fit.tolist(),
            test.tolist(),
        ]
    scaled, targets = module.standardised(table(X[:200]), Y[:200], fit)
    np.testing.assert_allclose(scaled.iloc[fit, :-1].to_numpy().std(0), 1.0)
    np.testing.assert_allclose([scaled.iloc[fit].to_numpy().mean(), targets[fit].mean()], 0.0, atol=1e-12)
    assert targets[fit].std() == pytest.approx(1.0)
