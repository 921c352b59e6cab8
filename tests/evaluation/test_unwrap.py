"""Access to Laplace estimators inside wrappers: exact ones in any nesting, and errors for all others."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, PolynomialFeatures, StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._estimator.unwrap import final_step, laplace_step, predict_interval, predict_std, predictive

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(7)
X = RNG.normal(loc=3.0, size=(30, 2))
Y = np.sin(X[:, 0]) + 0.2 * RNG.normal(size=30)
Y2 = np.column_stack([Y, 10 * X[:, 1] + RNG.normal(size=30)])
LABELS = np.array(["no", "yes"])[(X[:, 0] > 3).astype(int)]
X_NEW = RNG.normal(loc=3.0, size=(5, 2))
GRID = {"prior_precision": [0.1, 10.0]}


def small(**options):
    """Small Laplace regressor with fixed prior precision and noise level."""
    defaults = {"hidden_layer_sizes": (3,), "random_state": 0, "prior_precision": 1.0, "sigma_noise": 0.2}
    return LaplaceRegressor(**{**defaults, **options})


@pytest.fixture(scope="module")
def regressor():
    return small().fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    return LaplaceClassifier(hidden_layer_sizes=(3,), random_state=0, prior_precision=1.0).fit(X, LABELS)


@pytest.fixture(scope="module")
def pipeline():
    return make_pipeline(MinMaxScaler(), PolynomialFeatures(2, include_bias=False), small()).fit(X, Y)


@pytest.fixture(scope="module")
def search():
    return GridSearchCV(small(), GRID, cv=2).fit(X, Y)


# ---------------------------------------------------------------------- looking through


def test_a_bare_estimator_is_its_own_step(regressor):
    """A bare estimator and its input are returned unchanged, without copies."""
    step, inputs = laplace_step(regressor, X_NEW)
    assert step is regressor
    assert inputs is X_NEW


def test_the_earlier_steps_of_a_pipeline_transform_x(pipeline):
    """Equal to applying the transforms of the steps one after the other."""
    step, inputs = laplace_step(pipeline, X_NEW)
    assert step is pipeline[-1]
    np.testing.assert_array_equal(inputs, pipeline[1].transform(pipeline[0].transform(X_NEW)))
    np.testing.assert_array_equal(step.predict(inputs), pipeline.predict(X_NEW))


@pytest.mark.parametrize(
    "before", [[], ["passthrough"], ["passthrough", "passthrough"], [MinMaxScaler(), "passthrough"]]
)
def test_pipelines_of_one_step_and_steps_that_pass_through(before, regressor):
    """scikit-learn accepts pipelines of one step, and "passthrough" steps."""
    steps = [(f"step{i}", step if isinstance(step, str) else clone(step)) for i, step in enumerate(before)]
    pipe = Pipeline([*steps, ("net", small())]).fit(X, Y)
    step, inputs = laplace_step(pipe, X_NEW)
    np.testing.assert_array_equal(step.predict_std(inputs), predict_std(pipe, X_NEW))
    np.testing.assert_array_equal(step.predict(inputs), pipe.predict(X_NEW))
    assert (inputs is X_NEW) == (len(before) == 0 or all(isinstance(b, str) for b in before))


@pytest.mark.parametrize(
    "kind",
    [
        lambda net: GridSearchCV(net, GRID, cv=2),
        lambda net: RandomizedSearchCV(net, GRID, n_iter=1, cv=2, random_state=0),
        lambda net: HalvingGridSearchCV(net, GRID, cv=2, min_resources=15, random_state=0),
    ],
    ids=["grid", "randomized", "halving"],
)
def test_searches_give_their_best_estimator(kind):
    """The refitted estimator of any kind of search."""
    found = kind(small()).fit(X, Y)
    assert laplace_step(found, X_NEW)[0] is found.best_estimator_
    np.testing.assert_array_equal(predict_std(found, X_NEW), found.best_estimator_.predict_std(X_NEW))


def test_a_pipeline_in_a_search_equals_doing_it_by_hand():
    """Search(Pipeline(scaler, net))."""
    pipe = Pipeline([("scale", MinMaxScaler()), ("net", small())])
    found = GridSearchCV(pipe, {"net__prior_precision": [0.1, 10.0]}, cv=2).fit(X, Y)
    scaler = MinMaxScaler().fit(X)
    by_hand = small(prior_precision=found.best_params_["net__prior_precision"]).fit(scaler.transform(X), Y)
    inputs = scaler.transform(X_NEW)
    np.testing.assert_array_equal(
        predict_std(found, X_NEW, kind="epistemic"), by_hand.predict_std(inputs, kind="epistemic")
    )
    np.testing.assert_array_equal(predict_interval(found, X_NEW, 0.8)[1], by_hand.predict_interval(inputs, 0.8)[1])


def test_a_search_in_a_pipeline_equals_doing_it_by_hand():
    """Pipeline(scaler, Search(net)): the other order of nesting."""
    pipe = make_pipeline(MinMaxScaler(), GridSearchCV(small(), GRID, cv=2)).fit(X, Y)
    scaler = MinMaxScaler().fit(X)
    by_hand = small(**pipe[-1].best_params_).fit(scaler.transform(X), Y)
    inputs = scaler.transform(X_NEW)
    np.testing.assert_array_equal(predictive(pipe, X_NEW).std(), by_hand.predict_dist(inputs).std())
    np.testing.assert_array_equal(predict_interval(pipe, X_NEW)[0], by_hand.predict(inputs))


def test_deep_nests_come_apart(regressor, pipeline, search):
    """Frozen estimators, nested pipelines, and TransformedTargetRegressor without a transformation."""
    frozen = make_pipeline(FunctionTransformer(), FrozenEstimator(FrozenEstimator(regressor))).fit(X, Y)
    assert laplace_step(FrozenEstimator(frozen), X_NEW)[0] is regressor
    assert laplace_step(Pipeline([("search", FrozenEstimator(search))]), X_NEW)[0] is search.best_estimator_
    outer = make_pipeline(FunctionTransformer(np.negative), make_pipeline(FunctionTransformer(np.tanh), small())).fit(
        X, Y
    )
    np.testing.assert_array_equal(laplace_step(outer, X_NEW)[1], np.tanh(-X_NEW))
    same = make_pipeline(StandardScaler(), TransformedTargetRegressor(small())).fit(X, Y)
    step, inputs = laplace_step(same, X_NEW)
    assert step is same[-1].regressor_
    np.testing.assert_array_equal(step.predict(inputs), same.predict(X_NEW))


def test_looking_changes_nothing(pipeline):
    """Steps, parameters and X are not modified."""
    steps, before = list(pipeline.steps), X_NEW.copy()
    laplace_step(pipeline, X_NEW)
    assert pipeline.steps == steps
    np.testing.assert_array_equal(X_NEW, before)


def test_data_frames_pass_through_the_steps():
    """Column names are passed to the steps that check them."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b"])
    pipe = make_pipeline(StandardScaler(), small()).set_output(transform="pandas").fit(frame, Y)
    step, inputs = laplace_step(pipe, frame)
    assert list(inputs.columns) == ["a", "b"]
    np.testing.assert_array_equal(step.predict(inputs), pipe.predict(frame))


# ---------------------------------------------------------------------- predictions


def test_the_predictive_of_a_regressor_is_its_distribution(pipeline):
    """In the units of y, noise included."""
    step, inputs = laplace_step(pipeline, X_NEW)
    distribution = predictive(pipeline, X_NEW)
    np.testing.assert_array_equal(distribution.mean(), pipeline.predict(X_NEW))
    np.testing.assert_array_equal(distribution.std(), step.predict_std(inputs, kind="total"))


def test_the_predictive_of_a_classifier_is_its_probabilities(classifier):
    """A classifier's predictive distribution is its class probabilities."""
    np.testing.assert_array_equal(predictive(FrozenEstimator(classifier), X_NEW), classifier.predict_proba(X_NEW))


def test_std_has_the_estimators_own_default(regressor, classifier):
    """kind=None means "total" for regressors and "epistemic" for classifiers; an explicit kind is passed on."""
    for model, default in ((regressor, "total"), (classifier, "epistemic")):
        frozen = FrozenEstimator(model)
        np.testing.assert_array_equal(predict_std(frozen, X_NEW), model.predict_std(X_NEW, kind=default))
        for kind in ("total", "epistemic", "aleatoric"):
            np.testing.assert_array_equal(predict_std(frozen, X_NEW, kind=kind), model.predict_std(X_NEW, kind=kind))
        for kind, std in predict_std(frozen, X_NEW, kind="all").items():
            np.testing.assert_array_equal(std, model.predict_std(X_NEW, kind=kind))
        with pytest.raises(ValueError, match="kind='both' is not known"):
            predict_std(frozen, X_NEW, kind="both")


def test_intervals_keep_their_shape():
    """Outputs are the second axis and several levels the last; one level has no axis."""
    pipe = make_pipeline(StandardScaler(), small(sigma_noise="evidence")).fit(X, Y2)
    mean, interval = predict_interval(pipe, X_NEW, [0.5, 0.9, 0.99])
    assert mean.shape == (5, 2)
    assert interval.shape == (5, 2, 2, 3)
    assert predict_interval(pipe, X_NEW)[1].shape == (5, 2, 2)


def test_other_probabilistic_models_have_a_predictive_too():
    """Other models can be compared; final_step returns an estimator of any type."""
    pipe = make_pipeline(StandardScaler(), BayesianRidge()).fit(X, Y)
    mean, std = pipe.predict(X_NEW, return_std=True)
    distribution = predictive(pipe, X_NEW)
    np.testing.assert_array_equal(distribution.mean(), mean)
    np.testing.assert_array_equal(distribution.std(), std)
    assert final_step(pipe, X_NEW)[0] is pipe[-1]


# ---------------------------------------------------------------------- refusals


def test_no_laplace_step_is_named():
    """The message states what was found, where, and what is expected."""
    pipe = make_pipeline(StandardScaler(), LinearRegression()).fit(X, Y)
    with pytest.raises(TypeError, match="found LinearRegression inside Pipeline; expected a LaplaceRegressor or"):
        laplace_step(pipe, X_NEW)
    with pytest.raises(TypeError, match=r"^found BayesianRidge; expected"):
        predict_std(BayesianRidge().fit(X, Y), X_NEW)
    with pytest.raises(TypeError, match="the last step of Pipeline is 'passthrough'; expected a scikit-learn est"):
        laplace_step(Pipeline([("scale", StandardScaler()), ("net", "passthrough")]).fit(X), X_NEW)
    with pytest.raises(TypeError, match="StandardScaler has no predictive distribution"):
        predictive(make_pipeline(StandardScaler()).fit(X), X_NEW)


def test_several_models_are_no_laplace_step(classifier):
    """A recalibrated classifier predicts differently from the net inside."""
    calibrated = CalibratedClassifierCV(FrozenEstimator(classifier), cv=3).fit(X, LABELS)
    with pytest.raises(TypeError, match="found CalibratedClassifierCV; expected"):
        laplace_step(calibrated, X_NEW)


def test_a_search_without_refit_is_refused():
    """Such a search stores scores but no model."""
    found = GridSearchCV(small(), GRID, cv=2, refit=False).fit(X, Y)
    with pytest.raises(ValueError, match=r"GridSearchCV\(refit=False\) has no fitted estimator; set refit=True"):
        laplace_step(found, X_NEW)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"transformer": StandardScaler()}, "StandardScaler"),
        ({"func": np.exp, "inverse_func": np.log}, "FunctionTransformer"),
    ],
)
def test_transformed_targets_are_refused(options, name):
    """The net inside predicts a transformed target, not y."""
    wrapper = TransformedTargetRegressor(small(), **options).fit(X, Y)
    message = f"transforms y with {name}: its inner regressor predicts the transformed target.*target_transform='log'"
    with pytest.raises(ValueError, match=message):
        laplace_step(make_pipeline(wrapper), X_NEW)


@pytest.mark.parametrize(
    "unfitted",
    [
        small(),
        make_pipeline(StandardScaler(), small()),
        make_pipeline(small()),
        GridSearchCV(small(), GRID),
        GridSearchCV(small(), GRID, refit=False),
        FrozenEstimator(small()),
        TransformedTargetRegressor(small()),
        make_pipeline(StandardScaler(), GridSearchCV(small(), GRID)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_unfitted_is_not_fitted(unfitted):
    """scikit-learn's NotFittedError comes first."""
    with pytest.raises(NotFittedError):
        laplace_step(unfitted, X_NEW)


def test_classes_have_no_interval(classifier):
    """The message names the alternatives."""
    with pytest.raises(
        TypeError, match=r"predict_interval needs numeric targets; found LaplaceClassifier.* predictive"
    ):
        predict_interval(make_pipeline(classifier), X_NEW)
