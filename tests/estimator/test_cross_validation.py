"""prior_precision="cv" against explicit clones on explicit folds and GridSearchCV; the number of trainings."""

from __future__ import annotations

import pickle
import warnings
from functools import partial

import nets
import numpy as np
import pandas
import polars
import pytest
import torch
from joblib import Memory
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal as assert_equal
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import max_error, r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from skorch import NeuralNetRegressor

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import fit as ensemble_fit
from sklearn_laplace._estimator.cross_validation import GRID
from sklearn_laplace.errors import BoundWarning, NonFiniteError, UnsupportedCombinationError
from sklearn_laplace.metrics import neg_crps, neg_interval_score, neg_nlpd
from sklearn_laplace.options import Augmentation, CrossValidated, Link, MonteCarlo, Subnetwork

pytestmark = pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
RNG = np.random.default_rng(33)
X, X_NEW = RNG.normal(size=(36, 3)), 2 * RNG.normal(size=(7, 3))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * RNG.normal(size=36)
Y2 = np.column_stack([Y, 20 * X[:, 2] + 5 * RNG.normal(size=36)])
LABELS = np.array(["no", "yes", "yes!"])[np.digitize(X[:, 0] + 0.5 * RNG.normal(size=36), [0.0, 0.8])]
WEIGHTS = RNG.uniform(0.2, 3.0, size=36)
CHECKS = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weights_not_an_array",
    "check_fit_idempotent",
    "check_n_features_in_after_fitting",
)
GIVEN = [0.01, 1.0, 100.0]
FOLDS = list(KFold(2, shuffle=True, random_state=1).split(X))
SMALL = {"hidden_layer_sizes": (2,), "map_prior_precision": 1.0, "random_state": 0}


def regressor(**options):
    return LaplaceRegressor(**SMALL, prior_precision=CrossValidated(GIVEN, FOLDS)).set_params(**options)


def classifier(**options):
    model = LaplaceClassifier(**SMALL, prior_precision=CrossValidated(GIVEN, FOLDS))
    return model.set_params(**{"map_prior_precision": 0.01, **options})


def plain(model, **options):
    """The same estimator with a prior precision that needs no held-out rows."""
    return clone(model).set_params(**{"prior_precision": "evidence", **options})


def skorch_net():
    return nets.regressor(module__n_in=3, module__hidden=3, max_epochs=5)


def fitted_net():
    net = NeuralNetRegressor(nets.Hidden(3, 1, 3), train_split=None, max_epochs=20, verbose=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return net.fit(X.astype(np.float32), Y[:, None].astype(np.float32))


@pytest.fixture
def trainings(monkeypatch):
    """The number of rows of each training."""
    n_rows, train = [], ensemble_fit.train
    monkeypatch.setattr(ensemble_fit, "train", lambda *args: n_rows.append(len(args[0].data.X)) or train(*args))
    return n_rows


# ---------------------------------------------------------------------- equivalence to a grid search


CASES = {
    "regressor": lambda: (regressor(), Y),
    "several targets, kron": lambda: (regressor(hessian_structure="kron", sigma_noise="residual"), Y2),
    "diag, last layer, cold": lambda: (
        regressor(hessian_structure="diag", subset_of_weights="last_layer", temperature=0.3),
        Y,
    ),
    "subnetwork": lambda: (regressor(subset_of_weights=Subnetwork(size=0.5)), Y),
    "weight samples": lambda: (regressor(predictive=MonteCarlo(20)), Y),
    "a training a candidate": lambda: (regressor(map_prior_precision="same", n_members=1), Y),
    "a RandomState": lambda: (
        regressor(random_state=np.random.RandomState(5), map_prior_precision="same", n_members=1),
        Y,
    ),
    "labels": lambda: (classifier(class_weight="balanced"), LABELS),
    "two labels": lambda: (classifier(link=Link("mc", n_samples=16), likelihood="bernoulli"), LABELS == "no"),
    "a module": lambda: (regressor(net=nets.Linear(3), hidden_layer_sizes="auto"), Y),
    "a skorch net": lambda: (regressor(net=skorch_net(), hidden_layer_sizes="auto"), Y),
    "a frozen net": lambda: (regressor(net=FrozenEstimator(fitted_net()), hidden_layer_sizes="auto"), Y),
    "augmented": lambda: (regressor(augment=Augmentation(nudged, n_copies=2)), Y),
    "after a posterior": lambda: (
        regressor(prior=FrozenEstimator(LaplaceRegressor(hidden_layer_sizes=(2,), random_state=0).fit(X[:20], Y[:20]))),
        Y,
    ),
}


def nudged(X, random_state):
    return X + 0.1 * random_state.normal(size=X.shape)


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.parametrize("case", list(CASES))
def test_it_is_a_grid_search_over_the_prior_precision(case):
    """Best δ, scores and the final model are bit-identical to those of GridSearchCV."""
    model, y = CASES[case]()
    search = GridSearchCV(plain(model), {"prior_precision": GIVEN}, cv=FOLDS, scoring=neg_nlpd).fit(X, y)
    model = model.set_params(prior_precision__scoring=neg_nlpd).fit(X, y)
    scores = model._prior_scores
    assert_equal(scores.mean, search.cv_results_["mean_test_score"])
    assert_equal(scores.folds.T, np.column_stack([search.cv_results_[f"split{k}_test_score"] for k in range(2)]))
    assert len(np.unique(scores.mean)) == 3
    assert scores.kind == "cv" and scores.grid.tolist() == GIVEN
    assert isinstance(model.prior_precision, CrossValidated)
    assert scores.best == search.best_params_["prior_precision"]
    best = search.best_estimator_
    assert model.prior_precision_ == best.prior_precision_
    assert_equal(model.predict(X_NEW), best.predict(X_NEW))
    assert_equal(model.predict_std(X_NEW), best.predict_std(X_NEW))
    assert model.log_marginal_likelihood_value_ == best.log_marginal_likelihood_value_


def test_the_scores_of_a_linear_net_are_those_of_bayesian_linear_regression():
    """Held-out densities in closed form, under given prior and noise; the prior includes the bias."""
    grid, sigma = [0.01, 1.0, 30.0, 1000.0], 0.4
    model = LaplaceRegressor(
        nets.Linear(3),
        standardize_X=False,
        standardize_y=False,
        sigma_noise=sigma,
        random_state=0,
        prior_precision=CrossValidated(grid, FOLDS),
    ).fit(X, Y)
    design = np.column_stack([X, np.ones(36)])
    expected = np.empty((2, 4))
    for k, (train, test) in enumerate(FOLDS):
        for c, delta in enumerate(grid):
            covariance = np.linalg.inv(design[train].T @ design[train] / sigma**2 + delta * np.eye(4))
            mean = design[test] @ covariance @ design[train].T @ Y[train] / sigma**2
            variance = np.einsum("np,pq,nq->n", design[test], covariance, design[test]) + sigma**2
            expected[k, c] = norm(mean, np.sqrt(variance)).logpdf(Y[test]).mean()
    assert_allclose(model._prior_scores.folds, expected, rtol=1e-6)  # the training stops at a gradient tolerance
    assert model._prior_scores.best == grid[expected.mean(0).argmax()]


@pytest.mark.parametrize(
    ("scoring", "trained_under"),
    [(neg_crps, 1.0), (partial(neg_interval_score, confidence_level=0.5), 1.0), ("neg_mean_absolute_error", "same")],
    ids=["callable", "partial", "name"],
)
def test_other_scores_choose_by_themselves(scoring, trained_under):
    """Scorer names and callables, as in a search. A score of the mean needs a training per candidate."""
    model = regressor(map_prior_precision=trained_under, prior_precision__scoring=scoring, n_members=1)
    model.set_params(hidden_layer_sizes=()).fit(X, Y)
    search = GridSearchCV(plain(model), {"prior_precision": GIVEN}, cv=FOLDS, scoring=scoring).fit(X, Y)
    assert_equal(model._prior_scores.mean, search.cv_results_["mean_test_score"])


# ---------------------------------------------------------------------- trainings


@pytest.mark.parametrize("n_candidates", [1, 4, 9])
def test_one_training_a_fold_and_one_of_all_rows(n_candidates, trainings):
    """With a fixed training prior, for any grid: two folds of 18 of 36 rows, then all rows."""
    regressor(prior_precision__grid=np.logspace(-2, 2, n_candidates)).fit(X, Y)
    assert trainings == [18, 18, 36]


def test_a_training_that_depends_on_the_precision_is_repeated(trainings):
    """map_prior_precision="same": one training per candidate and fold, and one of the best candidate on all rows."""
    regressor(map_prior_precision="same").fit(X, Y)
    assert trainings == 6 * [18] + [36]


def test_candidates_of_a_default_mixture_are_nets_of_a_few_steps(monkeypatch):
    """In the folds a candidate is one quickly trained Gaussian net; the final fit on all rows is the default mixture.

    A mixture per candidate and fold would take minutes. An explicit n_members also holds in the folds.
    """
    requests, train = [], ensemble_fit.train
    names = ("n_members", "n_bins", "likelihood", "sigma_noise")

    def watched(request, *rest):
        requests.append((*(request.parameters[name] for name in names), request.is_quick))
        return train(request, *rest)

    monkeypatch.setattr(ensemble_fit, "train", watched)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=120)
    options = {"hidden_layer_sizes": (8,), "prior_precision": CrossValidated(GIVEN, cv=2)}
    model = LaplaceRegressor(random_state=0, **options).fit(x, y)
    assert requests[:6] == 6 * [(1, None, "gaussian", "evidence", True)]
    assert len(model.members_) == 4 and not any(quick for *_, quick in requests[6:])
    assert {request[:-1] for request in requests[6:]} == {("auto", None, "auto", "auto")}
    assert model.prior_precision_ == 1.0 and model.score(x, y) > 0.8
    best = LaplaceRegressor(random_state=0, hidden_layer_sizes=(8,), prior_precision=1.0).fit(x, y)
    assert_equal(model.predict_std(x), best.predict_std(x))
    requests.clear()
    LaplaceRegressor(random_state=0, sigma_noise=0.3, n_bins=4, **options).fit(x[:40], y[:40])
    assert requests[:6] == 6 * [(1, 4, "gaussian", 0.3, True)]
    requests.clear()
    LaplaceRegressor(random_state=0, sigma_noise=0.3, n_members=1, **options).fit(x[:40], y[:40])
    assert not any(quick for *_, quick in requests) and {request[2] for request in requests} == {"auto"}


def test_a_cache_makes_another_fit_and_a_search_around_it_free(tmp_path):
    """Cached trainings are reused with another score, other Laplace parameters and folds of the same rows."""
    model = regressor(memory=Memory(tmp_path, verbose=0))
    first = clone(model).fit(X, Y)
    assert len(list(tmp_path.rglob("output.pkl"))) == 3
    again = clone(model).set_params(
        prior_precision__grid=[1.0, 2.0, 3.0, 1e3], temperature=2.0, prior_precision__scoring=neg_crps
    )
    again.fit(X, Y)
    assert len(list(tmp_path.rglob("output.pkl"))) == 3
    assert_equal(first.predict_std(X_NEW), regressor().fit(X, Y).predict_std(X_NEW))
    # Two outer folds with two inner folds and a final model each. The refit reuses the outer folds' trainings.
    inner = clone(model).set_params(prior_precision__cv=2)
    search = GridSearchCV(inner, {"temperature": [0.3, 3.0]}, cv=2, scoring=neg_nlpd).fit(X, Y)
    assert len(list(tmp_path.rglob("output.pkl"))) == 3 + 2 * 3
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 2


# ---------------------------------------------------------------------- folds


def test_the_default_is_five_folds_in_an_order_that_follows_from_the_seed():
    """Rows sorted by target: contiguous folds would hold out a range of targets that no training row has."""
    order = np.argsort(Y)
    rows, y = X[order], Y[order]
    default = regressor(prior_precision__cv=None, random_state=7).fit(rows, y)._prior_scores
    folds = list(KFold(5, shuffle=True, random_state=7).split(rows))
    explicit = regressor(prior_precision__cv=folds, random_state=7).fit(rows, y)._prior_scores
    assert_equal(default.folds, explicit.folds)
    assert default.folds.shape == (5, 3)
    state = np.random.RandomState(3)
    default = regressor(prior_precision__cv=None, random_state=state).fit(rows, y)._prior_scores
    folds = list(KFold(5, shuffle=True, random_state=np.random.RandomState(3)).split(rows))
    explicit = regressor(prior_precision__cv=folds, random_state=state).fit(rows, y)._prior_scores
    assert_equal(default.folds, explicit.folds)
    assert state.randint(2**31) == np.random.RandomState(3).randint(2**31)  # the fits left the state unchanged


def test_a_classifiers_folds_have_its_classes_in_equal_shares():
    """The default folds of sorted labels are stratified and shuffled. An integer gives scikit-learn's folds."""
    order = np.argsort(LABELS)
    rows, y = X[order], LABELS[order]

    def scores_of(model, x, y, cv):
        return model.set_params(prior_precision__cv=cv, map_prior_precision=1.0).fit(x, y)._prior_scores.folds

    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(rows, y))
    assert_equal(scores_of(classifier(), rows, y, None), scores_of(classifier(), rows, y, folds))
    assert_equal(scores_of(classifier(), rows, y, 3), scores_of(classifier(), rows, y, StratifiedKFold(3)))
    assert_equal(scores_of(regressor(), X, Y, 3), scores_of(regressor(), X, Y, KFold(3)))


def test_splits_may_come_from_groups_or_once():
    """A splitter that needs groups is passed as its list of splits. A generator is exhausted in a second fit."""
    groups = np.arange(36) % 6
    by_group = list(GroupKFold(3).split(X, Y, groups))
    expected = regressor(prior_precision__cv=by_group).fit(X, Y)._prior_scores.folds
    model = regressor(prior_precision__cv=GroupKFold(3))
    with pytest.raises(ValueError, match="'groups' parameter should not be None"):
        model.fit(X, Y)
    model = regressor(prior_precision__cv=iter(by_group)).fit(X, Y)
    assert_equal(model._prior_scores.folds, expected)
    with pytest.raises(
        ValueError, match=r"cv=<.*iterator.*> has no splits\. A generator yields its splits only once: pass list"
    ):
        model.fit(X, Y)
    assert_equal(model._prior_scores.folds, expected)


@pytest.mark.parametrize("scoring", [None, "r2"], ids=["density", "name"])
def test_weights_and_known_noise_go_with_their_rows(scoring):
    """Weights and noise variances enter the fit of a fold, and weights its score: compared with explicit fits."""
    noise = RNG.uniform(0.2, 2.0, size=36)
    model = regressor(prior_precision__scoring=scoring, map_prior_precision="same", sigma_noise=0.4, n_members=1)
    model.set_params(hidden_layer_sizes=()).fit(X, Y, sample_weight=WEIGHTS, sample_noise_variance=noise)
    expected = np.empty((2, 3))
    for k, (train, test) in enumerate(FOLDS):
        for c, delta in enumerate(GIVEN):
            fit = plain(model, prior_precision=delta).fit(X[train], Y[train], WEIGHTS[train], noise[train])
            mean, std = fit.predict(X[test], return_std=True)
            density = np.average(norm(mean, std).logpdf(Y[test]), weights=WEIGHTS[test])
            expected[k, c] = r2_score(Y[test], mean, sample_weight=WEIGHTS[test]) if scoring == "r2" else density
    assert_allclose(model._prior_scores.folds, expected, rtol=1e-12)
    best = plain(model, prior_precision=model.prior_precision_).fit(X, Y, WEIGHTS, noise)
    assert_equal(model.predict_std(X_NEW), best.predict_std(X_NEW))
    unweighted = clone(model).fit(X, Y, sample_noise_variance=noise)._prior_scores.folds
    assert (np.abs(unweighted / expected - 1) > 1e-6).all()


def test_a_row_of_weight_zero_is_in_no_training_and_no_score():
    """Its target may be anything. A scalar weight counts for all rows."""
    y, weights = np.append(Y, 1e6), np.append(WEIGHTS, 0.0)
    rows, folds = np.vstack([X, X[:1]]), [(train, np.append(test, 36)) for train, test in FOLDS]
    scores = regressor(prior_precision__cv=folds).fit(rows, y, weights)._prior_scores.folds
    assert_allclose(scores, regressor().fit(X, Y, WEIGHTS)._prior_scores.folds, rtol=1e-12)
    assert_equal(
        regressor().fit(X, Y, 2.0)._prior_scores.folds, regressor().fit(X, Y, np.full(36, 2.0))._prior_scores.folds
    )
    weights[30:] = 0.0
    with pytest.raises(ValueError, match="every held-out row has sample_weight zero") as error:
        regressor(prior_precision__cv=[(np.arange(30), np.arange(30, 37))]).fit(rows, y, weights)
    assert error.value.__notes__ == ["In fold 0 of prior_precision='cv'."]


def test_a_metric_without_weights_is_asked_without_them():
    """max_error takes no weights, as in a search without metadata routing."""
    model = regressor(prior_precision__scoring="neg_max_error", map_prior_precision="same", n_members=1)
    model.set_params(hidden_layer_sizes=()).fit(X, Y, WEIGHTS)
    train, test = FOLDS[0]
    fit = plain(model, prior_precision=GIVEN[2]).fit(X[train], Y[train], WEIGHTS[train])
    assert model._prior_scores.folds[0, 2] == -max_error(Y[test], fit.predict(X[test]))


@pytest.mark.parametrize("library", [pandas, polars], ids=["pandas", "polars"])
def test_tables_keep_their_names_in_the_folds(library):
    """Fits and scorers get data frames with the original column names."""
    table = library.DataFrame({name: X[:, i] for i, name in enumerate("abc")})
    columns = []

    def scoring(model, rows, y):
        columns.append(list(rows.columns))
        return neg_nlpd(model, rows, y)

    model = regressor(prior_precision__scoring=scoring).fit(table, library.Series(list(Y)))
    assert columns == 6 * [["a", "b", "c"]] and list(model.feature_names_in_) == ["a", "b", "c"]
    assert_equal(model._prior_scores.folds, regressor(prior_precision__scoring=neg_nlpd).fit(X, Y)._prior_scores.folds)
    lists = regressor(prior_precision__scoring=neg_nlpd).fit(X.tolist(), Y.tolist(), WEIGHTS.tolist())
    arrays = regressor(prior_precision__scoring=neg_nlpd).fit(X, Y, WEIGHTS)
    assert_equal(lists.predict_std(X_NEW), arrays.predict_std(X_NEW))


# ---------------------------------------------------------------------- afterwards


def test_the_chosen_precision_stays_until_another_one_is_asked_for():
    """Through refit_laplace, partial_fit and pickling, as in a fit with that number."""
    model = regressor().fit(X, Y)
    best = model.prior_precision_
    fixed = plain(model, prior_precision=best)
    for change in ({"temperature": 0.5}, {"sigma_noise": 0.7, "predictive": "mc"}, {"predictive": "glm"}):
        model.refit_laplace(**change)
        fixed.set_params(**change).fit(X, Y)
        assert model.prior_precision_ == best and isinstance(model.prior_precision, CrossValidated)
        assert_equal(model.predict_std(X_NEW), fixed.predict_std(X_NEW))
    copy = pickle.loads(pickle.dumps(model))
    assert_equal(copy._prior_scores.folds, model._prior_scores.folds)
    assert copy._prior_scores.best == best
    copy.refit_laplace(temperature=3.0)
    assert copy.prior_precision_ == best
    more = X_NEW, np.zeros(7)
    assert_equal(model.partial_fit(*more).predict_std(X_NEW), fixed.partial_fit(*more).predict_std(X_NEW))
    model.refit_laplace(prior_precision=best / 3)
    assert model._prior_scores is None and model.prior_precision_ == best / 3


def test_only_a_choice_on_held_out_rows_has_scores():
    """A fit with another rule removes the scores."""
    model = regressor()
    assert model._prior_scores is None
    assert model.fit(X, Y)._prior_scores is not None
    model.set_params(prior_precision="evidence").fit(X, Y)
    assert model._prior_scores is None and model.prior_precision_ not in GIVEN
    assert GRID.tolist() == regressor(prior_precision__grid=None).fit(X, Y)._prior_scores.grid.tolist()


def test_without_rows_it_cannot_be_chosen():
    """Neither in refit_laplace nor for classes without rows; a failed call leaves the fit unchanged."""
    model = LaplaceRegressor(**SMALL).fit(X, Y)
    before = model.predict_std(X_NEW)
    message = r"refit_laplace cannot use prior_precision='{}', which needs fits without.*\. Use fit, a number"
    for rule in ("cv", "validation"):
        with pytest.raises(ValueError, match=message.format(rule)):
            model.refit_laplace(prior_precision=rule)
    assert_equal(model.predict_std(X_NEW), before)
    model.set_params(prior_precision="cv")  # without a fit
    assert_equal(model.predict_std(X_NEW), before)
    with pytest.raises(ValueError, match=message.format("cv")):
        model.refit_laplace(temperature=2.0)
    chosen = regressor().fit(X, Y)
    with pytest.raises(ValueError, match=message.format("cv")):
        chosen.refit_laplace(prior_precision="cv")
    unfitted = classifier()
    with pytest.raises(ValueError, match="partial_fit with classes cannot use prior_precision='cv'"):
        unfitted.partial_fit(X, LABELS, classes=["maybe", *np.unique(LABELS)])
    with pytest.raises(NotFittedError):
        unfitted.predict(X)


def test_the_first_call_of_partial_fit_is_a_fit():
    """Regressor and classifier choose on the same folds as in fit."""
    for model, y in ((regressor(), Y), (classifier(), LABELS)):
        partial, expected = clone(model).partial_fit(X, y), clone(model).fit(X, y)
        assert_equal(partial._prior_scores.folds, expected._prior_scores.folds)
        assert_equal(partial.predict_std(X_NEW), expected.predict_std(X_NEW))


class NamedFolds:
    """Exposes the folds as a parameter ``cv``, which scikit-learn's checks set for weighted and repeated rows."""

    def get_params(self, deep=True):
        params = super().get_params(deep)
        return {**params, "cv": self.prior_precision.cv} if "prior_precision__cv" in params else params

    def set_params(self, **params):
        return super().set_params(**{"prior_precision__cv" if name == "cv" else name: params[name] for name in params})


class RegressorWithFolds(NamedFolds, LaplaceRegressor):
    pass


class ClassifierWithFolds(NamedFolds, LaplaceClassifier):
    pass


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.filterwarnings("ignore:The least populated class in y")
@pytest.mark.parametrize("kind", [RegressorWithFolds, ClassifierWithFolds])
@pytest.mark.parametrize("name", CHECKS)
def test_scikit_learns_checks_of_rows_and_weights_pass(name, kind):
    """The checks that folds can break: weights as repeated rows, containers without indexing."""
    model = kind(hidden_layer_sizes=(2,), map_prior_precision=1.0, prior_precision=CrossValidated(grid=GIVEN))
    getattr(estimator_checks, name)(kind.__name__, model)


def test_a_pipeline_around_it_scales_all_rows_that_it_was_given():
    """The scaler is fitted on all training rows, not per inner fold."""
    scaled = StandardScaler().fit_transform(X)
    pipe = make_pipeline(StandardScaler(), regressor()).fit(X, Y)
    assert_equal(pipe.predict(X), regressor().fit(scaled, Y).predict(scaled))


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": 1.0}, r"grid=1\.0 has to be None or a sequence of finite numbers above"),
        ({"grid": []}, r"grid=\[\] has to be None or a sequence"),
        ({"grid": [1.0, 0.0]}, r"grid=\[1\.0, 0\.0\] has to be None or a sequence"),
        ({"grid": ["evidence"]}, r"grid=\['evidence'\] has to be None or a sequence"),
        ({"grid": [[1.0], [2.0]]}, r"has to be None or a sequence"),
        ({"scoring": "neg_logloss"}, "scoring='neg_logloss' is not known; .* Did you mean 'neg_log_loss'"),
        (
            {"scoring": ["r2", "neg_mean_absolute_error"]},
            r"scoring=\['r2', .*\] has to be None, the name of a scorer, or",
        ),
        ({"scoring": r2_score}, "metric"),
        ({"cv": 1}, "n_splits=1"),
        ({"cv": "five"}, "Expected .?cv.? as an integer"),
        ({"cv": []}, r"cv=\[\] has no splits"),
    ],
)
def test_wrong_options_are_refused_before_any_training(options, message, trainings):
    """The message names the wrong option."""
    rule = CrossValidated(**{"grid": GIVEN, "cv": FOLDS, **options})
    for model, y in ((regressor(prior_precision=rule), Y), (classifier(prior_precision=rule), LABELS)):
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
    assert not trainings


def test_an_unknown_rule_is_refused_with_the_known_ones(trainings):
    """The message lists the known rules; no training is started."""
    message = "prior_precision='cross' is not known; expected one of 'auto', 'cv', 'evidence'"
    for model, y in ((regressor(prior_precision="cross"), Y), (classifier(prior_precision="cross"), LABELS)):
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
    assert not trainings


def test_several_precisions_have_no_grid(trainings):
    """A grid of scalars cannot choose one precision per layer."""
    with pytest.raises(UnsupportedCombinationError, match=r"'layer' needs several\. Use prior='scalar'"):
        regressor(prior="layer").fit(X, Y)
    assert not trainings


def test_wrong_rows_are_refused_before_any_training(trainings):
    """All rows are validated before they are split into folds."""
    model = regressor()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, Y[:-1])
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.fit(np.where(X[5, 1] == X, np.inf, X), Y)
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, Y, sample_weight=WEIGHTS[:-1])
    assert not trainings


@pytest.mark.parametrize("value", [np.nan, np.inf, "high", {"r2": 1.0}], ids=str)
def test_a_score_that_is_no_number_is_an_error(value):
    """The error names the candidate and the fold; a fitted model is unchanged."""
    model = regressor().fit(X, Y)
    before = model.predict_std(X_NEW)

    def scoring(fit, rows, y):
        return value if fit.prior_precision == 100.0 else 0.0

    model.set_params(prior_precision__scoring=scoring)
    with pytest.raises(
        ValueError, match=r"gave .* for prior_precision=100; a score has to be one finite number"
    ) as error:
        model.fit(X, Y)
    assert error.value.__notes__ == ["In fold 0 of prior_precision='cv'."]
    assert_equal(model.predict_std(X_NEW), before)


def test_a_candidate_that_scores_minus_infinity_loses():
    """-inf is worse than any finite score; if all candidates score -inf, an error is raised."""
    grid = [1.0, 10.0, 5.0]
    wanted = {1.0: -np.inf, 10.0: -3.0, 5.0: -4.0}
    model = regressor(
        prior_precision__scoring=lambda fit, rows, y: wanted[fit.prior_precision], prior_precision__grid=[*grid, 20.0]
    )
    wanted[20.0] = -9.0
    assert model.fit(X, Y)._prior_scores.best == 10.0
    model.set_params(prior_precision__scoring=lambda fit, rows, y: -np.inf)
    with pytest.raises(ValueError, match="prior_precision='cv': every candidate scores -inf"):
        model.fit(X, Y)


def test_a_class_that_no_training_of_a_fold_has_is_an_error():
    """The class has probability zero under every candidate; with two classes the fold has one class left."""
    rare = LABELS == "yes!"
    folds = [(np.flatnonzero(~rare), np.flatnonzero(rare)), *FOLDS]
    with pytest.raises(ValueError, match=r"holds the labels \['yes!'\].* Use stratified folds"):
        classifier(prior_precision__cv=folds).fit(X, LABELS)
    with pytest.raises(ValueError, match="holds one class only") as error:
        classifier(prior_precision__cv=folds).fit(X, rare)
    assert error.value.__notes__ == ["In fold 0 of prior_precision='cv'."]
    finite = CrossValidated(GIVEN, folds, "accuracy")  # accuracy is finite, as in a search
    model = classifier(prior_precision=finite, map_prior_precision="same", hidden_layer_sizes=())
    search = GridSearchCV(plain(model), {"prior_precision": GIVEN}, cv=folds, scoring="accuracy").fit(X, LABELS)
    model.fit(X, LABELS)
    assert_equal(model._prior_scores.mean, search.cv_results_["mean_test_score"])


def test_rows_that_break_the_net_are_named_by_their_numbers_in_all_rows():
    """Row numbers refer to X, not to the fold, in a training and in a score."""
    rows = X.copy()
    rows[[20, 31]] = 1e200  # squared in the net: infinite
    for held_out in ([20, 31], [3, 4]):
        train = np.setdiff1d(np.arange(36), held_out)
        model = regressor(
            net=Squared(), hidden_layer_sizes="auto", prior_precision__cv=[(train, np.array(held_out))], max_epochs=1
        )
        with pytest.raises(NonFiniteError, match=r"First affected rows of X: 20, 31\.$"):
            model.fit(rows, Y)


class Squared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x**2)


def test_the_end_of_the_grid_is_a_warning_unless_there_is_nothing_between():
    """Smallest and largest candidates, in any order. A grid of two has no interior candidate, so no warning."""
    scores = {1.0: 3.0, 2.0: 2.0, 3.0: 1.0}
    for best, grid in ((1.0, [2.0, 1.0, 3.0]), (3.0, [2.0, 3.0, 1.0])):
        scores[best] = 4.0
        model = regressor(
            prior_precision__scoring=lambda fit, rows, y: scores[fit.prior_precision], prior_precision__grid=grid
        )
        message = f"the best candidate, {best:g}, is at the end of the grid, which goes from 1 to 3. Extend"
        with pytest.warns(BoundWarning, match=message) as caught:
            model.fit(X, Y)
        assert caught[0].filename == __file__  # where fit was called
        scores[best], scores[2.0] = 3.0, 9.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit(X, Y)
            model.set_params(prior_precision__grid=[1.0, 2.0]).fit(X, Y)
        scores[2.0] = 2.0


def test_a_score_that_the_precision_does_not_reach_is_a_warning():
    """With a fixed training prior the mean does not depend on the candidate, so R² is constant."""
    with pytest.warns(
        BoundWarning, match="scoring='r2' is the same for every candidate, and the first one was selected"
    ):
        assert regressor(prior_precision__scoring="r2").fit(X, Y)._prior_scores.best == GIVEN[0]
