"""Searches over Laplace parameters, and the number of trainings that they need."""

from __future__ import annotations

import nets
import numpy as np
import pytest
from joblib import Memory
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal as assert_equal
from scipy.stats import norm
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401  # registers HalvingGridSearchCV
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, KFold, PredefinedSplit

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.metrics import neg_crps, neg_interval_score, neg_nlpd

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(37)
X = RNG.normal(size=(48, 3))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * RNG.normal(size=48)
LABELS = np.array(["no", "yes"])[(X[:, 0] + 0.5 * RNG.normal(size=48) > 0).astype(int)]
FOLDS = KFold(3, shuffle=True, random_state=0)
SMALL = {"hidden_layer_sizes": (3,), "map_prior_precision": 1.0, "n_members": 1, "random_state": 0}


@pytest.fixture
def cache(tmp_path):
    """A cache in a folder, and a function that counts the cached trainings."""
    return Memory(tmp_path, verbose=0), lambda: len(list(tmp_path.rglob("output.pkl")))


@pytest.mark.parametrize(
    ("model", "y", "grid"),
    [
        (
            LaplaceRegressor(**SMALL),
            Y,
            {"prior_precision": [0.1, "evidence"], "sigma_noise": [0.3, "residual"], "temperature": [0.3, 1.0]},
        ),
        (
            LaplaceClassifier(**SMALL),
            LABELS,
            {
                "link": ["moderated", "quadrature"],
                "hessian_structure": ["kron", "diag"],
                "subset_of_weights": ["last_layer"],
            },
        ),
    ],
    ids=["regressor", "classifier"],
)
def test_a_grid_of_laplace_parameters_trains_once_for_each_split(model, y, grid, cache):
    """Three folds and all rows, for any number of candidates; the scores equal those without a cache."""
    memory, count = cache
    search = GridSearchCV(model, grid, scoring=neg_nlpd, cv=FOLDS).fit(X, y)
    cached = clone(search).set_params(estimator__memory=memory).fit(X, y)
    assert count() == 4
    assert_equal(cached.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])
    assert cached.best_params_ == search.best_params_
    assert_equal(cached.best_estimator_.predict_std(X), search.best_estimator_.predict_std(X))
    assert len(np.unique(cached.cv_results_["mean_test_score"])) == len(cached.cv_results_["params"])


def test_the_scores_of_a_linear_net_are_those_of_bayesian_linear_regression():
    """Held-out densities in closed form, under given prior and noise; the prior includes the bias."""
    grid, sigma = [0.01, 1.0, 30.0, 1000.0], 0.4
    model = LaplaceRegressor(nets.Linear(3), standardize_X=False, standardize_y=False, sigma_noise=sigma)
    search = GridSearchCV(model, {"prior_precision": grid}, scoring=neg_nlpd, cv=FOLDS).fit(X, Y)
    design = np.column_stack([X, np.ones(48)])
    expected = np.empty((3, 4))
    for k, (train, test) in enumerate(FOLDS.split(X)):
        for c, delta in enumerate(grid):
            covariance = np.linalg.inv(design[train].T @ design[train] / sigma**2 + delta * np.eye(4))
            mean = design[test] @ covariance @ design[train].T @ Y[train] / sigma**2
            variance = np.einsum("np,pq,nq->n", design[test], covariance, design[test]) + sigma**2
            expected[k, c] = norm(mean, np.sqrt(variance)).logpdf(Y[test]).mean()
    scores = [search.cv_results_[f"split{k}_test_score"] for k in range(3)]
    assert_allclose(scores, expected, rtol=1e-6)  # the training stops at a gradient tolerance
    assert search.best_params_["prior_precision"] == grid[expected.mean(0).argmax()]


def test_a_validation_set_is_a_predefined_split(cache):
    """Candidates share one training, without the validation rows; without a refit there is no other training."""
    memory, count = cache
    split, grid = PredefinedSplit(np.repeat([-1, 0], [32, 16])), [0.01, 1.0, 100.0]
    model = LaplaceRegressor(**SMALL, likelihood="gaussian", memory=memory)
    search = GridSearchCV(model, {"prior_precision": grid}, scoring=neg_nlpd, cv=split, refit=False).fit(X, Y)
    assert count() == 1
    fits = [LaplaceRegressor(**SMALL, prior_precision=delta).fit(X[:32], Y[:32]) for delta in grid]
    scores = [neg_nlpd(fit, X[32:], Y[32:]) for fit in fits]
    assert_equal(search.cv_results_["mean_test_score"], scores)
    assert search.best_params_["prior_precision"] == grid[np.argmax(scores)] and len(set(scores)) == 3


def test_a_parameter_of_the_training_trains_again(cache):
    """Two widths and three priors: two trainings per split, and one of the best candidate on all rows."""
    memory, count = cache
    grid = {"hidden_layer_sizes": [(2,), (3,)], "prior_precision": [0.1, 1.0, 10.0]}
    model = LaplaceRegressor(**SMALL, likelihood="gaussian", memory=memory)
    GridSearchCV(model, grid, scoring=neg_nlpd, cv=FOLDS).fit(X, Y)
    assert count() == 2 * 3 + 1


def test_halving_trains_once_for_each_split_of_each_number_of_rows(cache):
    """Two rungs of 24 and 48 rows in three folds, and all rows; the last rung scores explicit fits."""
    memory, count = cache
    model = LaplaceRegressor(**SMALL, likelihood="gaussian", memory=memory)
    grid = {"prior_precision": [0.01, 0.1, 1.0, 10.0]}
    search = HalvingGridSearchCV(
        model, grid, scoring=neg_nlpd, cv=FOLDS, factor=2, min_resources=24, random_state=0, refit=True
    ).fit(X, Y)
    assert search.n_resources_ == [24, 48] and search.n_candidates_ == [4, 2]
    assert count() == 2 * 3 + 1
    results = search.cv_results_
    last = results["iter"] == 1
    for delta, mean in zip(results["param_prior_precision"][last], results["mean_test_score"][last], strict=True):
        plain = LaplaceRegressor(**SMALL, likelihood="gaussian", prior_precision=delta)
        explicit = [neg_nlpd(clone(plain).fit(X[train], Y[train]), X[test], Y[test]) for train, test in FOLDS.split(X)]
        assert_allclose(mean, np.mean(explicit), rtol=1e-9)  # halving subsamples the rows in another order


def test_optuna_trains_once_for_each_split(cache):
    """For any number of trials: three folds and all rows; the best score equals that of explicit fits."""
    optuna = pytest.importorskip("optuna")
    integration = pytest.importorskip("optuna_integration")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    memory, count = cache
    space = {
        "prior_precision": optuna.distributions.FloatDistribution(1e-3, 1e3, log=True),
        "temperature": optuna.distributions.FloatDistribution(0.1, 10.0, log=True),
    }
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize")
    with pytest.warns() as raised:  # optuna marks the class as experimental
        search = integration.OptunaSearchCV(
            LaplaceRegressor(**SMALL, memory=memory),
            space,
            cv=FOLDS,
            n_trials=6,
            scoring=neg_interval_score,
            study=study,
        ).fit(X, Y)
    assert {warning.category.__name__ for warning in raised} <= {"ExperimentalWarning", "FutureWarning"}
    assert count() == 4
    assert len(search.trials_) == 6 and len({trial.value for trial in search.trials_}) == 6
    model = LaplaceRegressor(**SMALL, **search.best_params_)
    scores = [
        neg_interval_score(clone(model).fit(X[train], Y[train]), X[test], Y[test]) for train, test in FOLDS.split(X)
    ]
    assert_allclose(search.best_score_, np.mean(scores), rtol=1e-12)


@pytest.mark.usefixtures("complete_training")
def test_a_search_over_the_prior_precision_selects_what_predicts_best():
    """Weak priors fit the noise of 90 rows, strong ones predict the mean; the choice is best on 500 fresh rows."""
    rng = np.random.default_rng(2)
    X, X_new = rng.normal(size=(90, 2)), rng.normal(size=(500, 2))
    y, y_new = (np.sin(2 * rows[:, 0]) + 0.5 * rng.normal(size=len(rows)) for rows in (X, X_new))
    grid, scorers = [1e-6, 1.0, 1e5], {"r2": get_scorer("r2"), "log density": neg_nlpd, "crps": neg_crps}
    model = LaplaceRegressor(hidden_layer_sizes=(30,), n_members=1, n_bins=None, sigma_noise=0.5, random_state=0)
    search = GridSearchCV(model, {"prior_precision": grid}, scoring=scorers, refit="r2", cv=FOLDS).fit(X, y)
    fits = [clone(model).set_params(prior_precision=value).fit(X, y) for value in grid]
    for name, scorer in scorers.items():
        assert np.argmax(search.cv_results_[f"mean_test_{name}"]) == 1
        assert np.argmax([scorer(fit, X_new, y_new) for fit in fits]) == 1
    assert search.best_params_ == {"prior_precision": 1.0}
    assert_equal(search.predict(X_new), fits[1].predict(X_new))
