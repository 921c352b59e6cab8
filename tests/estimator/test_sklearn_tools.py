"""The estimators under scikit-learn's own tools: each tool gives the numbers of the same work done by hand.

"By hand" means explicit clones, folds, means and formulas. A fit is a function of its rows, weights and seed, so most
comparisons are exact. A tolerance of 1e-12 allows for sums that the tool takes in another order.
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import nets
import numpy as np
import pandas
import polars
import pytest
import torch
from joblib import parallel_config
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal as assert_equal
from scipy.special import softmax
from scipy.stats import norm
from shortened import all_steps
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_moons
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_halving_search_cv, enable_iterative_imputer  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer
from sklearn.inspection import DecisionBoundaryDisplay, partial_dependence, permutation_importance
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score, get_scorer, log_loss, r2_score
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    learning_curve,
)
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, predict_interval, predict_std
from sklearn_laplace.metrics import neg_nlpd

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(23)
NOISE = 0.3
X = RNG.normal(loc=2.0, size=(80, 3))
Y = 2 * X[:, 0] + np.sin(2 * X[:, 1]) + NOISE * RNG.normal(size=80)
Y2 = np.column_stack([Y, X[:, 2] ** 2 + NOISE * RNG.normal(size=80)])
MOONS, SIDE = make_moons(90, noise=0.25, random_state=0)
LABELS = np.array(["no", "yes"])[SIDE]
NAMES = ["a", "b", "c"]
WEIGHTS = RNG.uniform(0.2, 3.0, size=80)
FOLDS = list(KFold(3, shuffle=True, random_state=0).split(X))
MOON_FOLDS = list(KFold(3, shuffle=True, random_state=0).split(MOONS))


def regressor(**options):
    """A small net with a given prior precision and noise level, since each tool fits many."""
    fixed = {"prior_precision": 0.3, "sigma_noise": NOISE, "n_members": 1}
    return LaplaceRegressor(**{"hidden_layer_sizes": (5,), "random_state": 0, **fixed, **options})


def classifier(**options):
    """A small net with a given prior precision."""
    return LaplaceClassifier(**{"hidden_layer_sizes": (5,), "random_state": 0, "prior_precision": 0.1, **options})


def on_folds(model, rows, targets, folds, *methods):
    """Out-of-fold predictions of explicit clones, as one array per method."""
    fits = [clone(model).fit(rows[train], targets[train]) for train, _ in folds]
    order = np.argsort(np.concatenate([test for _, test in folds]))
    for method in methods:
        yield np.concatenate([getattr(fit, method)(rows[test]) for fit, (_, test) in zip(fits, folds, strict=True)])[
            order
        ]


@pytest.fixture(scope="module")
def moons():
    with all_steps():
        return classifier().fit(MOONS, LABELS)


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y)


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


# ---------------------------------------------------------------------- columns and pipelines


def test_a_table_with_categories_is_one_hot_and_scaled_columns_by_hand():
    """Only the encoded column explains the offset of a category: R² is near its ceiling of .995."""
    kind = np.array(["a", "b", "c"])[np.arange(80) * 7 % 3]
    y = 2 * X[:, 0] + 3.0 * (kind == "b") - 4.0 * (kind == "c") + 0.3 * np.random.default_rng(1).normal(size=80)
    frame = pandas.DataFrame({"kind": kind, "size": X[:, 0], "unused": X[:, 1]})
    columns = ColumnTransformer([("kind", OneHotEncoder(), ["kind"]), ("size", StandardScaler(), ["size"])])
    pipe = make_pipeline(columns, regressor()).fit(frame[:60], y[:60])
    scaled = (X[:, :1] - X[:60, :1].mean(0)) / X[:60, :1].std(0)
    table = np.column_stack([kind == "a", kind == "b", kind == "c", scaled])
    by_hand = regressor().fit(table[:60], y[:60])
    # 1e-6: the scaler's moments differ in the last bit, which training amplifies up to its tolerance.
    assert_allclose(pipe.predict(frame[60:]), by_hand.predict(table[60:]), rtol=1e-6)
    assert_allclose(predict_std(pipe, frame[60:]), by_hand.predict_std(table[60:]), rtol=1e-6)
    assert pipe.score(frame[60:], y[60:]) > 0.99


def test_a_transformers_data_frame_hands_its_names_on():
    """With set_output(transform="pandas") feature names are recorded; predictions equal those for a plain array."""
    frame = pandas.DataFrame(X, columns=NAMES)
    named, plain = (
        make_pipeline(StandardScaler().set_output(transform=kind), regressor()).fit(frame, Y)
        for kind in ("pandas", "default")
    )
    assert list(named[-1].feature_names_in_) == NAMES
    assert not hasattr(plain[-1], "feature_names_in_")
    assert_equal(named.predict(frame, return_std=True), plain.predict(frame, return_std=True))


def test_a_frozen_classifier_is_not_refitted(moons):
    """Fitting a FrozenEstimator has no effect on its probabilities."""
    frozen = FrozenEstimator(moons).fit(MOONS[:10], LABELS[:10][::-1])
    assert_equal(frozen.predict_proba(MOONS), moons.predict_proba(MOONS))
    assert_equal(clone(frozen).predict(MOONS), moons.predict(MOONS))
    assert log_loss(LABELS, frozen.predict_proba(MOONS)) < 0.25  # a coin has .69


# ---------------------------------------------------------------------- searches and folds

GRID = {"prior_precision": [0.3, 1.0, 1e4]}
SEARCHES = {
    GridSearchCV: {},
    RandomizedSearchCV: {"n_iter": 2, "random_state": 0},
    HalvingGridSearchCV: {"factor": 2, "min_resources": "exhaust", "random_state": 0},
}


@pytest.mark.parametrize("kind", list(SEARCHES))
def test_a_search_scores_clones_on_the_folds_and_refits_the_best(kind):
    """The density score depends on the error bars. A prior precision of 1e4 leaves only the mean, and must lose."""
    search = kind(regressor(), GRID, scoring=neg_nlpd, cv=KFold(3), **SEARCHES[kind]).fit(X, Y)
    results = search.cv_results_
    on_all_rows = np.flatnonzero(np.asarray(results.get("n_resources", [80] * len(results["params"]))) == 80)
    for i in on_all_rows:
        model = regressor(**results["params"][i])
        for k, (train, test) in enumerate(KFold(3).split(X)):
            mean, std = clone(model).fit(X[train], Y[train]).predict(X[test], return_std=True)
            score = norm(mean, std).logpdf(Y[test]).mean()
            assert_allclose(results[f"split{k}_test_score"][i], score, rtol=1e-10)
    assert search.best_score_ == max(results["mean_test_score"][on_all_rows])
    assert search.best_params_["prior_precision"] <= 1
    assert_equal(search.predict(X), regressor(**search.best_params_).fit(X, Y).predict(X))


@pytest.mark.usefixtures("complete_training")
def test_cross_val_predict_is_clones_on_the_folds():
    """Exactly equal; the out-of-fold R² is near its ceiling of .98, and the errors match the standard deviations."""
    model = regressor(prior_precision="evidence", sigma_noise="evidence")
    mean, std = on_folds(model, X, Y, FOLDS, "predict", "predict_std")
    assert_equal(cross_val_predict(model, X, Y, cv=FOLDS), mean)
    assert r2_score(Y, mean) > 0.95
    assert 0.75 < np.sqrt(np.mean(((Y - mean) / std) ** 2)) < 1.3  # 80 rows: three standard errors about 1
    methods = {"predict_proba": np.asarray, "predict_log_proba": np.exp}
    by_hand = on_folds(classifier(), MOONS, LABELS, MOON_FOLDS, *methods)
    for (method, probabilities_of), expected in zip(methods.items(), by_hand, strict=True):
        got = cross_val_predict(classifier(), MOONS, LABELS, cv=MOON_FOLDS, method=method)
        assert_equal(got, expected)
        assert log_loss(LABELS, probabilities_of(got)) < 0.35  # constant probabilities of 1/2 have .69


@pytest.mark.usefixtures("complete_training")
def test_a_learning_curve_is_fits_on_the_first_rows():
    """More rows give a higher held-out density, below that of the true noise."""
    sizes, *curves = learning_curve(regressor(), X, Y, train_sizes=[20, 50], cv=FOLDS[:2], scoring=neg_nlpd)
    for i, size in enumerate(sizes):
        for k, (train, test) in enumerate(FOLDS[:2]):
            model = regressor().fit(X[train[:size]], Y[train[:size]])
            for scores, rows in zip(curves, (train[:size], test), strict=True):
                expected = norm(*model.predict(X[rows], return_std=True)).logpdf(Y[rows]).mean()
                assert_allclose(scores[i, k], expected, rtol=1e-10)
    few, many = curves[1].mean(1)
    assert few < many < norm(scale=NOISE).logpdf(NOISE)


# ---------------------------------------------------------------------- ensembles


@pytest.mark.usefixtures("complete_training")
def test_voting_is_the_mean_of_fits_by_hand():
    """Means of predictions and of probabilities, with the most probable class of the mean."""
    models = [regressor(), regressor(random_state=1), regressor(hidden_layer_sizes=(3,))]
    vote = VotingRegressor(list(zip(NAMES, models, strict=True))).fit(X, Y)
    assert_allclose(vote.predict(X), np.mean([clone(m).fit(X, Y).predict(X) for m in models], axis=0), rtol=1e-12)
    assert vote.score(X, Y) > 0.97
    models = [classifier(), classifier(link="mc", random_state=1), LogisticRegression()]
    soft = VotingClassifier(list(zip(NAMES, models, strict=True)), voting="soft").fit(MOONS, LABELS)
    expected = np.mean([clone(m).fit(MOONS, LABELS).predict_proba(MOONS) for m in models], axis=0)
    assert_allclose(soft.predict_proba(MOONS), expected, rtol=1e-12)
    assert_equal(soft.predict(MOONS), np.array(["no", "yes"])[expected.argmax(1)])


def test_bagging_is_the_mean_of_fits_on_repeated_rows():
    """Bootstrap samples as weights (0, 1, 2, …) or as repeated rows give exactly equal members."""
    bag = BaggingRegressor(regressor(), n_estimators=3, max_features=2, random_state=0).fit(X, Y)
    expected = []
    for member, rows, columns in zip(bag.estimators_, bag.estimators_samples_, bag.estimators_features_, strict=True):
        model = clone(member).fit(X[rows][:, columns], Y[rows])
        expected.append(model.predict(X[:, columns]))
        assert_equal(member.predict(X[:, columns]), expected[-1])
    assert_allclose(bag.predict(X), np.mean(expected, axis=0), rtol=1e-12)
    assert np.std(expected, axis=0).min() > 0


def test_a_class_that_a_bag_has_not_drawn_has_probability_zero_there():
    """A class with weight zero: the member has fewer classes, and the mean assigns its columns correctly."""
    y = np.where(np.arange(90) == 0, "rare", LABELS)
    bag = BaggingClassifier(classifier(), n_estimators=4, max_samples=0.6, random_state=1).fit(MOONS, y)
    expected = np.zeros((90, 3))
    for member, rows in zip(bag.estimators_, bag.estimators_samples_, strict=True):
        model = clone(member).fit(MOONS[rows], y[rows])
        expected[:, np.searchsorted(bag.classes_, model.classes_)] += model.predict_proba(MOONS) / 4
    assert {len(member.classes_) for member in bag.estimators_} == {2, 3}
    assert_allclose(bag.predict_proba(MOONS), expected, rtol=1e-12)


def test_stacking_fits_its_last_step_on_out_of_fold_answers():
    """The final regression by hand, on predictions and on the probability of the second class."""
    stack = StackingRegressor([("net", regressor())], Ridge(), cv=FOLDS, passthrough=True).fit(X, Y)
    final = Ridge().fit(np.column_stack([*on_folds(regressor(), X, Y, FOLDS, "predict"), X]), Y)
    assert_allclose(stack.final_estimator_.coef_, final.coef_, rtol=1e-10)
    by_hand = final.predict(np.column_stack([regressor().fit(X, Y).predict(X), X]))
    assert_allclose(stack.predict(X), by_hand, rtol=1e-10)
    stack = StackingClassifier([("net", classifier())], LogisticRegression(), cv=MOON_FOLDS).fit(MOONS, LABELS)
    (out_of_fold,) = on_folds(classifier(), MOONS, LABELS, MOON_FOLDS, "predict_proba")
    final = LogisticRegression().fit(out_of_fold[:, 1:], LABELS)
    by_hand = final.predict_proba(classifier().fit(MOONS, LABELS).predict_proba(MOONS)[:, 1:])
    assert_allclose(stack.predict_proba(MOONS), by_hand, rtol=1e-6)  # to the tolerance of its optimiser
    assert stack.score(MOONS, LABELS) > 0.85


@pytest.mark.usefixtures("complete_training")
def test_adaboost_regression_is_the_weighted_median_of_its_members():
    """AdaBoost.R2: the first error is the mean relative error, a member's weight log(1/β)."""
    boost = AdaBoostRegressor(regressor(), n_estimators=4, random_state=0).fit(X, Y)
    answers = np.array([member.predict(X) for member in boost.estimators_])
    distance = np.abs(answers[0] - Y)
    assert_allclose(boost.estimator_errors_[0], np.mean(distance / distance.max()), rtol=1e-12)
    weights = np.log((1 - boost.estimator_errors_) / boost.estimator_errors_)
    assert_allclose(boost.estimator_weights_, weights, rtol=1e-12)
    order = answers.argsort(0)
    half = (weights[order].cumsum(0) >= weights.sum() / 2).argmax(0)
    assert_equal(boost.predict(X), np.take_along_axis(answers, order, 0)[half, np.arange(80)])
    assert boost.score(X, Y) > 0.97


@pytest.mark.parametrize("options", [{}, {"prior_precision": 0.1}], ids=["evidence", "given"])
@pytest.mark.usefixtures("complete_training")
def test_adaboost_classification_is_weighted_fits_and_a_weighted_vote(options):
    """SAMME: a member wrong on a share e of the weight votes with log((1 − e)/e), and its errors weigh more next.

    AdaBoost's weights sum to one: shares, not counts.
    """
    model = LaplaceClassifier(hidden_layer_sizes=(5,), **options)
    boost = AdaBoostClassifier(model, n_estimators=2, random_state=0).fit(MOONS, LABELS)
    weights, votes = np.full(90, 1 / 90), np.zeros(90)
    for member, alpha in zip(boost.estimators_, boost.estimator_weights_, strict=True):
        answers = clone(member).fit(MOONS, LABELS, sample_weight=weights).predict(MOONS)
        wrong = answers != LABELS
        error = weights[wrong].sum()
        assert_allclose(alpha, np.log((1 - error) / error), rtol=1e-9, atol=1e-9)
        votes += alpha * np.where(answers == "yes", 1, -1)
        weights = weights * np.exp(alpha * wrong)
        weights /= weights.sum()
    assert_equal(boost.predict(MOONS), np.where(votes > 0, "yes", "no"))
    assert boost.score(MOONS, LABELS) > 0.9  # one line has .8


@pytest.mark.usefixtures("complete_training")
def test_multi_output_wrappers_are_independent_fits():
    """One net per target, exactly; a net with two outputs shares its hidden layer and predicts otherwise."""
    both = MultiOutputRegressor(regressor()).fit(X, Y2)
    expected = np.column_stack([regressor().fit(X, y).predict(X) for y in Y2.T])
    assert_equal(both.predict(X), expected)
    assert both.score(X, Y2) > 0.98
    assert np.abs(regressor().fit(X, Y2).predict(X) - expected).max() > 1e-3
    labels = np.column_stack([LABELS, np.where(MOONS[:, 0] > 0, "right", "left")])
    several = MultiOutputClassifier(classifier()).fit(MOONS, labels)
    for got, y in zip(several.predict_proba(MOONS), labels.T, strict=True):
        assert_equal(got, classifier().fit(MOONS, y).predict_proba(MOONS))


# ---------------------------------------------------------------------- inspection


@pytest.mark.usefixtures("complete_training")
def test_permutation_importance_is_twice_the_explained_share():
    """y depends on columns 0 and 1: a permuted column costs 2 Var(its part) / Var(y) in R², an unused one nothing."""
    parts = np.column_stack([2 * X[:, 0], np.sin(2 * X[:, 1]), np.zeros(80)])
    model = regressor(prior_precision="evidence", sigma_noise="evidence").fit(X, Y)
    importances = permutation_importance(model, X, Y, n_repeats=20, random_state=0).importances_mean
    # .15: 80 rows, 20 permutations and a fit from noisy rows
    assert_allclose(importances, 2 * parts.var(0) / Y.var(), atol=0.15)
    assert list(importances.argsort()) == [2, 1, 0]


@pytest.mark.usefixtures("complete_training")
def test_partial_dependence_is_the_mean_of_predictions_over_the_rows(moons):
    """By hand, with one column set to each value of the grid. The dependence on column 1 is the sine in y."""
    fitted = regressor().fit(X, Y)
    shown = partial_dependence(fitted, X, [1], kind="both", grid_resolution=7)
    (grid,) = shown["grid_values"]
    moved = np.tile(X, (7, 1, 1))
    moved[:, :, 1] = grid[:, None]
    by_hand = np.array([fitted.predict(rows) for rows in moved])
    assert_allclose(shown["average"][0], by_hand.mean(1), rtol=1e-12)
    assert_allclose(shown["individual"][0], by_hand.T, rtol=1e-12)
    centred = by_hand.mean(1) - by_hand.mean()
    assert_allclose(centred, np.sin(2 * grid) - np.sin(2 * grid).mean(), atol=2 * NOISE)
    shown = partial_dependence(moons, MOONS, [0], grid_resolution=5)
    for value, average in zip(shown["grid_values"][0], shown["average"][0], strict=True):
        rows = np.column_stack([np.full(90, value), MOONS[:, 1]])
        assert_allclose(average, moons.predict_proba(rows)[:, 1].mean(), rtol=1e-12)


def test_the_decision_boundary_shows_the_probabilities(moons, axes):
    """The probability of the second class on the mesh; never more extreme than the plugin probability."""
    shown = DecisionBoundaryDisplay.from_estimator(
        moons, MOONS, response_method="predict_proba", grid_resolution=9, eps=2.0, ax=axes
    )
    mesh = np.column_stack([shown.xx0.ravel(), shown.xx1.ravel()])
    assert_equal(shown.response.ravel(), moons.predict_proba(mesh)[:, 1])
    plugin = softmax(moons.net_.predict(mesh), axis=1)[:, 1]  # of the net alone
    assert np.all(np.abs(shown.response.ravel() - 0.5) <= np.abs(plugin - 0.5) + 1e-12)


def test_the_calibration_curve_shows_means_of_bins(moons, axes):
    """Mean probability and share of the second class in five bins, by hand."""
    shown = CalibrationDisplay.from_estimator(moons, MOONS, LABELS, n_bins=5, ax=axes)
    p = moons.predict_proba(MOONS)[:, 1]
    assert_equal(shown.y_prob, p)
    bins = [(p > low) & (p <= low + 0.2) for low in np.arange(5) / 5]
    bins = [chosen for chosen in bins if chosen.any()]
    assert_allclose(shown.prob_pred, [p[chosen].mean() for chosen in bins], rtol=1e-12)
    assert_allclose(shown.prob_true, [SIDE[chosen].mean() for chosen in bins], rtol=1e-12)
    assert_equal(shown.line_.get_ydata(), shown.prob_true)
    assert abs(p.mean() - SIDE.mean()) < 0.05  # the mean probability is the share of the class


# ---------------------------------------------------------------------- probabilities afterwards


def test_calibration_is_a_monotone_map_of_clones_probabilities(moons):
    """The mean of one isotonic map per fold; for a frozen net, one isotonic map of its probabilities."""
    folded = CalibratedClassifierCV(classifier(), method="isotonic", cv=MOON_FOLDS).fit(MOONS, LABELS)
    expected = np.zeros(90)
    for train, test in MOON_FOLDS:
        model = classifier().fit(MOONS[train], LABELS[train])
        curve = IsotonicRegression(out_of_bounds="clip").fit(model.predict_proba(MOONS[test])[:, 1], SIDE[test])
        expected += curve.predict(model.predict_proba(MOONS)[:, 1]) / 3
    assert_allclose(folded.predict_proba(MOONS), np.column_stack([1 - expected, expected]), atol=1e-12)
    frozen = CalibratedClassifierCV(FrozenEstimator(moons), method="isotonic", ensemble=False).fit(MOONS, LABELS)
    p = moons.predict_proba(MOONS)[:, 1]
    expected = IsotonicRegression(out_of_bounds="clip").fit(p, SIDE).predict(p)
    assert_allclose(frozen.predict_proba(MOONS)[:, 1], expected, atol=1e-12)


def test_the_tuned_threshold_is_the_best_of_all(moons):
    """On a frozen net: the score at every threshold by hand, and predictions at the best threshold."""
    y = np.where(MOONS[:, 1] > 0.9, "yes", "no")  # few yes: .5 is not the best threshold
    model = classifier().fit(MOONS, y)
    tuned = TunedThresholdClassifierCV(FrozenEstimator(model), cv="prefit", refit=False, store_cv_results=True)
    tuned.fit(MOONS, y)
    p = model.predict_proba(MOONS)[:, 1]
    thresholds = tuned.cv_results_["thresholds"]
    scores = [balanced_accuracy_score(y, np.where(p >= t, "yes", "no")) for t in thresholds]
    assert_allclose(tuned.cv_results_["scores"], scores, rtol=1e-12)
    assert tuned.best_threshold_ == thresholds[np.argmax(scores)]
    assert tuned.best_score_ > balanced_accuracy_score(y, model.predict(MOONS))
    assert_equal(tuned.predict(MOONS), np.where(p >= tuned.best_threshold_, "yes", "no"))


# ---------------------------------------------------------------------- multiple imputation


def test_imputations_are_draws_from_the_predictive():
    """A column has missing values.

    Over the seeds, imputations have the predictive mean and standard deviation, and the true values match them.
    """
    rng = np.random.default_rng(2)
    x = rng.uniform(-3, 3, size=100)
    table = np.column_stack([x, np.sin(x) + 0.2 * rng.normal(size=100)])
    observed, missing = np.arange(0, 100, 2), np.arange(1, 100, 2)
    incomplete = table.copy()
    incomplete[missing, 1] = np.nan
    net = regressor(sigma_noise=0.2)
    mean, std = clone(net).fit(table[observed, :1], table[observed, 1]).predict(table[missing, :1], return_std=True)
    tables = [
        IterativeImputer(net, sample_posterior=True, max_iter=1, random_state=seed).fit_transform(incomplete)
        for seed in [*range(12), 0]
    ]
    assert_equal(tables.pop(), tables[0])
    assert_equal(tables[1][observed], table[observed])
    z = (np.array(tables)[:, missing, 1] - mean) / std
    assert abs(z.mean()) < 4 / np.sqrt(600)  # 600 standard normals: four standard errors of their mean …
    assert abs(z.std() - 1) < 4 / np.sqrt(1200)  # … and of their deviation
    assert z.std(0, ddof=1).min() > 0.3 and z.std(0, ddof=1).max() < 2  # each of 50 rows, twelve draws
    truth = (table[missing, 1] - mean) / std
    assert 0.7 < np.sqrt(np.mean(truth**2)) < 1.3  # 50 rows: three standard errors about 1


# ---------------------------------------------------------------------- metadata routing


@pytest.mark.parametrize("routing", [False, True], ids=["plain", "routed"])
@pytest.mark.parametrize("wanted", ["return_std", "return_cov"])
def test_a_pipeline_hands_on_what_predict_is_asked(wanted, routing):
    """With routing on or off and no request set: the regressor's predictions for the scaled columns."""
    with config_context(enable_metadata_routing=routing):
        pipe = make_pipeline(StandardScaler(), regressor()).fit(X, Y)
        mean, spread = pipe.predict(X[:9], **{wanted: True})
    scaled = StandardScaler().fit_transform(X)
    expected = regressor().fit(scaled, Y).predict(scaled[:9], **{wanted: True})
    assert_equal(mean, expected[0])
    assert_equal(spread, expected[1])
    std = spread if wanted == "return_std" else np.sqrt(np.diag(spread))
    assert_allclose(std, predict_std(pipe, X[:9]), rtol=1e-9)  # both with the noise


def test_routed_weights_are_fits_with_the_weights_by_hand():
    """Through Pipeline and GridSearchCV, to fit and score, but not to the scaler."""

    def by_hand(train, **options):
        scaler = StandardScaler().fit(X[train])
        model = regressor(**options).fit(scaler.transform(X[train]), Y[train], sample_weight=WEIGHTS[train])
        return model, scaler.transform(X)

    with config_context(enable_metadata_routing=True):
        net = regressor().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), net)
        weighted = clone(pipe).fit(X, Y, sample_weight=WEIGHTS)
        score = weighted.score(X, Y, sample_weight=WEIGHTS)
        grid, scorer = {"laplaceregressor__prior_precision": [0.3, 1e4]}, get_scorer("r2")
        search = GridSearchCV(pipe, grid, cv=FOLDS, scoring=scorer.set_score_request(sample_weight=True))
        search.fit(X, Y, sample_weight=WEIGHTS)
    model, rows = by_hand(np.arange(80))
    assert_equal(weighted.predict(X), model.predict(rows))
    assert_allclose(score, r2_score(Y, model.predict(rows), sample_weight=WEIGHTS), rtol=1e-12)
    assert np.abs(model.predict(rows) - regressor().fit(rows, Y).predict(rows)).max() > 1e-3  # weights matter
    for k, (train, test) in enumerate(FOLDS):
        model, rows = by_hand(train, prior_precision=0.3)
        score = r2_score(Y[test], model.predict(rows[test]), sample_weight=WEIGHTS[test])
        assert_allclose(search.cv_results_[f"split{k}_test_score"][0], score, rtol=1e-12)
    model, rows = by_hand(np.arange(80), prior_precision=0.3)
    assert_equal(predict_std(search, X), model.predict_std(rows))
    assert_equal(predict_interval(search, X)[1], model.predict_interval(rows)[1])


# ---------------------------------------------------------------------- containers and names


def frames(kind):
    """A data frame and a series of one library, as functions of arrays."""
    library = {"pandas": pandas, "polars": polars}[kind]
    return lambda x: library.DataFrame({n: x[:, i] for i, n in enumerate(NAMES)}), lambda y: library.Series(list(y))


CONTAINERS = {
    "list": lambda: (np.ndarray.tolist, np.ndarray.tolist),
    "fortran": lambda: (np.asfortranarray, lambda y: np.repeat(y, 2)[::2]),
    "pandas": lambda: frames("pandas"),
    "polars": lambda: frames("polars"),
}


@pytest.mark.parametrize("container", list(CONTAINERS))
def test_containers_hold_the_same_numbers(container, fitted):
    """Exactly equal in fit and predict, for targets and labels."""
    table, column = CONTAINERS[container]()
    rows, labels = table(X), np.where(X[:, 0] > 2, "high", "low")
    model = regressor().fit(rows, column(Y), sample_weight=column(np.ones(80)))
    assert_equal(model.predict(rows, return_std=True), fitted.predict(X, return_std=True))
    assert_equal(model.sample_y(rows, 2), fitted.sample_y(X, 2))
    assert_equal(model.log_predictive_density(rows, column(Y)), fitted.log_predictive_density(X, Y))
    model = classifier().fit(rows, column(labels))
    assert_equal(model.predict_proba(rows), classifier().fit(X, labels).predict_proba(X))
    assert model.score(rows, column(labels)) > 0.95


def test_float32_is_its_float64_value():
    """float32 converts exactly to float64, so predictions are equal, and they are float64."""
    single, targets = X.astype(np.float32), Y.astype(np.float32)
    got = regressor().fit(single, targets).predict(single, return_std=True)
    double = single.astype(np.float64)
    assert_equal(got, regressor().fit(double, targets.astype(np.float64)).predict(double, return_std=True))
    assert got[0].dtype == got[1].dtype == np.float64


ANSWERS = {
    LaplaceRegressor: ["predict", "predict_std", "predict_interval", "predict_dist", "sample_y", "score_samples"],
    LaplaceClassifier: ["predict", "predict_std", "predict_proba", "predict_log_proba", "sample_y", "score_samples"],
}


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("kind", list(ANSWERS))
def test_columns_are_known_by_name_and_number(kind, library):
    """Every prediction method checks feature names and their number.

    Another order would give wrong predictions silently.
    """
    table, _ = frames(library)
    model = kind(hidden_layer_sizes=(2,), random_state=0, prior_precision=1.0).fit(table(X), Y > 4)
    assert list(model.feature_names_in_) == NAMES
    anonymous = clone(model).fit(X, Y > 4)
    assert not hasattr(anonymous, "feature_names_in_") and anonymous.n_features_in_ == 3
    renamed = table(X)
    renamed.columns = ["a", "b", "other"]
    wrong = {
        "must be in the same order": table(X)[["b", "a", "c"]],
        "unseen at fit time:\n- other": renamed,
        "yet now missing:\n- c": table(X)[["a", "b"]],
    }
    for answer in (getattr(model, name) for name in ANSWERS[kind]):
        for message, rows in wrong.items():
            with pytest.raises(ValueError, match=f"(?s)feature names should match.*{message}"):
                answer(rows)
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            answer(X)
    for answer in (getattr(anonymous, name) for name in ANSWERS[kind]):
        with pytest.raises(ValueError, match=f"X has 2 features, but {kind.__name__} is expecting 3 features"):
            answer(X[:, :2])


# ---------------------------------------------------------------------- parallel backends


def search_scores(model, grid, rows=X[:40], targets=Y[:40]):
    """Out-of-fold densities of a search, which depend on the error bars."""
    search = GridSearchCV(model, grid, scoring=neg_nlpd, cv=2, refit=False)

    def scores(jobs):
        results = clone(search).set_params(n_jobs=jobs).fit(rows, targets).cv_results_
        return [results["split0_test_score"], results["split1_test_score"]]

    return scores


def probabilities(jobs):
    model = LaplaceClassifier(link="mc", prior_precision=0.1, random_state=0)
    return cross_val_predict(model, MOONS, LABELS, cv=2, method="predict_proba", n_jobs=jobs)


def local_module():
    """A class that pickle cannot import, with a lambda; joblib sends its code."""

    class Local(torch.nn.Module):
        def __init__(self, n_in=3, n_out=1):
            super().__init__()
            self.layer = torch.nn.Linear(n_in, n_out)
            self.squash = lambda x: torch.tanh(x)

        def forward(self, x):
            return self.layer(self.squash(x))

    return Local


SKORCH = LaplaceClassifier(nets.classifier(max_epochs=5), prior_precision=0.1, random_state=0)
PARALLEL = {
    "built-in": search_scores(
        LaplaceRegressor(likelihood="gaussian", n_members=1, random_state=0), {"prior_precision": [0.1, "evidence"]}
    ),
    "skorch": search_scores(
        SKORCH, [{"prior_precision": [0.1, 1.0]}, {"link": ["plugin"]}, {"net__module__hidden": [3]}], MOONS, LABELS
    ),
    "local module": search_scores(LaplaceRegressor(local_module(), random_state=0), {"prior_precision": [0.1, 1.0]}),
    "probabilities": probabilities,
}


@pytest.fixture(scope="module")
def serial():
    with all_steps():  # as in worker processes
        return {task: run(1) for task, run in PARALLEL.items()}


@pytest.mark.parametrize(
    "backend",
    [{"backend": "loky", "inner_max_num_threads": 2}, {"backend": "threading"}],
    ids=["processes-of-two-threads", "threads"],
)
@pytest.mark.usefixtures("complete_training")
def test_parallel_backends_give_the_serial_numbers_to_the_bit(backend, serial):
    """The results of a small fit depend neither on the process or thread it runs in nor on the number of threads."""
    for task, run in PARALLEL.items():
        with parallel_config(**backend):
            parallel = run(2)
        assert_equal(parallel, serial[task], err_msg=task)
        assert len(np.unique(parallel)) == np.size(parallel), task  # every option and row has its own number
