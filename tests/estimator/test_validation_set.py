"""prior_precision="validation": candidates scored on a validation set, against explicit fits."""

from __future__ import annotations

import pickle
import warnings

import nets
import numpy as np
import pandas
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal as assert_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import fit as ensemble_fit
from sklearn_laplace.errors import BoundWarning, NonFiniteError
from sklearn_laplace.metrics import neg_crps, neg_nlpd
from sklearn_laplace.options import Validated

pytestmark = pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
RNG = np.random.default_rng(33)
X, X_VAL, X_NEW = RNG.normal(size=(30, 3)), RNG.normal(size=(14, 3)), 2 * RNG.normal(size=(7, 3))


def truth(x):
    return np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.3 * RNG.normal(size=len(x))


Y, Y_VAL = truth(X), truth(X_VAL)
LABELS, LABELS_VAL = (np.array(["no", "yes", "yes!"])[np.digitize(y, [-0.4, 0.4])] for y in (Y, Y_VAL))
WEIGHTS, NOISE = RNG.uniform(0.2, 3.0, size=30), RNG.uniform(0.5, 2.0, size=30)
GIVEN = [0.01, 1.0, 100.0, 1e4]
SMALL = {
    "hidden_layer_sizes": (3,),
    "map_prior_precision": 1.0,
    "random_state": 0,
}


def regressor(**options):
    return LaplaceRegressor(**SMALL, prior_precision=Validated(GIVEN)).set_params(**options)


def classifier(**options):
    model = LaplaceClassifier(**SMALL, prior_precision=Validated(GIVEN))
    return model.set_params(**{"map_prior_precision": 0.01, **options})


def explicit(model, fit_with, held_out, score, **rows):
    """The score of each candidate and the best model, with a new fit per candidate."""
    fits = [clone(model).set_params(prior_precision=delta).fit(*fit_with, **rows) for delta in GIVEN]
    scores = [score(fit, *held_out) for fit in fits]
    return np.array(scores), fits[int(np.argmax(scores))]


@pytest.fixture
def trainings(monkeypatch):
    """The number of rows of each training."""
    n_rows, train = [], ensemble_fit.train
    monkeypatch.setattr(ensemble_fit, "train", lambda *args: n_rows.append(len(args[0].data.X)) or train(*args))
    return n_rows


@pytest.mark.parametrize("trained_under", [1.0, "same"], ids=["one-training", "a-training-each"])
def test_each_candidate_is_a_fit_that_the_set_scores(trained_under):
    """Exactly equal scores, choice and predictions. Sample weights and noise variances belong to the training rows."""
    model = regressor(map_prior_precision=trained_under, prior_precision__scoring=neg_crps)
    rows = {"sample_weight": WEIGHTS, "sample_noise_variance": NOISE}
    scores, best = explicit(model, (X, Y), (X_VAL, Y_VAL), neg_crps, **rows)
    model.fit(X, Y, **rows, X_val=X_VAL, y_val=Y_VAL)
    prior_scores = model._prior_scores
    assert prior_scores.kind == "validation" and prior_scores.grid.tolist() == GIVEN
    assert_equal(prior_scores.mean, scores)
    assert_equal(prior_scores.folds, scores[None])
    assert len(np.unique(scores)) == 4
    assert isinstance(model.prior_precision, Validated) and prior_scores.best == best.prior_precision
    assert_equal(model.predict_std(X_NEW), best.predict_std(X_NEW))
    assert_equal(model.predict(X_NEW), best.predict(X_NEW))
    assert model.log_marginal_likelihood_value_ == best.log_marginal_likelihood_value_


@pytest.mark.parametrize("scoring", [None, "neg_log_loss"], ids=["density", "name"])
def test_a_classifier_is_scored_by_its_labels(scoring):
    """By the log probability of the true class, as scikit-learn's neg_log_loss."""
    model = classifier(prior_precision__scoring=scoring, class_weight="balanced")
    scores, best = explicit(
        model,
        (X, LABELS),
        (X_VAL, LABELS_VAL),
        lambda fit, x, y: -log_loss(y, fit.predict_proba(x), labels=fit.classes_),
    )
    model.fit(X, LABELS, X_val=X_VAL, y_val=LABELS_VAL)
    assert_allclose(model._prior_scores.mean, scores, rtol=1e-12)
    assert_equal(model.predict_proba(X_NEW), best.predict_proba(X_NEW))


def test_by_default_it_is_the_mean_log_density():
    """In nats per row."""
    model = regressor().fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    scores, _ = explicit(model, (X, Y), (X_VAL, Y_VAL), neg_nlpd)
    assert_allclose(model._prior_scores.mean, scores, rtol=1e-12)


def test_it_is_a_search_with_one_split_and_without_a_refit_on_the_union():
    """Scores equal those of GridSearchCV, which refits on both sets; the final model has the training rows only."""
    split = PredefinedSplit(np.repeat([-1, 0], [30, 14]))
    plain = regressor(prior_precision="evidence")
    search = GridSearchCV(plain, {"prior_precision": GIVEN}, cv=split, scoring=neg_nlpd)
    search.fit(np.vstack([X, X_VAL]), np.append(Y, Y_VAL))
    model = regressor(prior_precision__scoring=neg_nlpd).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert_equal(model._prior_scores.mean, search.cv_results_["mean_test_score"])
    assert model._prior_scores.best == search.best_params_["prior_precision"]
    assert np.abs(model.predict(X_NEW) - search.predict(X_NEW)).max() > 1e-3


@pytest.mark.parametrize(("trained_under", "count"), [(1.0, 1), ("same", 4)])
def test_it_trains_once_or_once_for_each_candidate(trained_under, count, trainings):
    """The validation rows are in no training, and the best model is not trained again."""
    regressor(map_prior_precision=trained_under).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert trainings == count * [30]


@pytest.mark.parametrize("trained_under", [1.0, "same"])
def test_all_candidates_start_from_the_same_random_state(trained_under):
    """Each candidate gets a copy of the RandomState, like the clones of a search."""
    model = regressor(map_prior_precision=trained_under, random_state=np.random.RandomState(4), predictive="mc")
    scores, best = explicit(model, (X, Y), (X_VAL, Y_VAL), neg_nlpd)
    model.fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert_allclose(model._prior_scores.mean, scores, rtol=1e-12)
    assert_equal(model.predict_std(X_NEW), best.predict_std(X_NEW))


def test_the_choice_stays_with_the_model():
    """Through refit_laplace, pickling and partial_fit."""
    model = regressor().fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    best = model.prior_precision_
    copy = pickle.loads(pickle.dumps(model.refit_laplace(temperature=0.5)))
    assert_equal(copy.predict_std(X_NEW), model.predict_std(X_NEW))
    assert_equal(copy._prior_scores.mean, model._prior_scores.mean)
    assert copy.partial_fit(X_NEW, np.zeros(7)).refit_laplace().prior_precision_ == best
    with pytest.raises(ValueError, match="needs a validation set"):
        clone(model).partial_fit(X, Y)


# ---------------------------------------------------------------------- what goes wrong


def test_a_set_and_the_rule_that_uses_it_go_together(trainings):
    """Errors for a missing set, an unused set, half of a set, and a prior structure that has no grid."""
    pair = {"X_val": X_VAL, "y_val": Y_VAL}
    for model, rows, message in (
        (regressor(), {}, r"='validation' needs a validation set: fit\(X, y, X_val=\.\.\., y_val=\.\.\.\).*'cv'"),
        (regressor(prior_precision="cv"), pair, "X_val and y_val would be ignored with prior_precision='cv'"),
        (LaplaceRegressor(), pair, "ignored with prior_precision='auto'. Use prior_precision='validation'"),
        (regressor(), {"X_val": X_VAL}, "X_val and y_val go together"),
        (regressor(), {"y_val": Y_VAL}, "X_val and y_val go together"),
        (regressor(prior="tensor"), pair, "prior structure 'tensor' needs several"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(X, Y, **rows)
    assert not trainings


def test_a_set_that_does_not_fit_the_rows_is_refused_before_the_training(trainings):
    """Columns, lengths, values and feature names are validated."""
    for rows, y, message in (
        (X_VAL[:, :2], Y_VAL, "X has 2 features, but LaplaceRegressor is expecting 3"),
        (X_VAL, Y_VAL[1:], "inconsistent numbers of samples"),
        (np.where(X_VAL > 1, np.nan, X_VAL), Y_VAL, "Input X contains NaN"),
        (X_VAL, np.full(14, np.inf), "Input y_val contains infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            regressor().fit(X, Y, X_val=rows, y_val=y)
    frame = pandas.DataFrame(X, columns=list("abc"))
    with pytest.raises(ValueError, match="feature names should match"):
        regressor().fit(frame, Y, X_val=pandas.DataFrame(X_VAL, columns=list("abd")), y_val=Y_VAL)
    assert not trainings
    named = regressor().fit(frame, Y, X_val=pandas.DataFrame(X_VAL, columns=list("abc")), y_val=Y_VAL)
    assert_equal(named._prior_scores.mean, regressor().fit(X, Y, X_val=X_VAL, y_val=Y_VAL)._prior_scores.mean)


def test_labels_that_no_training_row_has_leave_no_choice():
    """Every candidate has probability zero; a failed fit leaves the estimator unchanged."""
    model = classifier()
    with pytest.raises(ValueError, match=r"y_val holds the labels \['perhaps'\].*their log density is -inf"):
        model.fit(X, LABELS, X_val=X_VAL, y_val=np.full(14, "perhaps"))
    assert repr(model) == repr(classifier()) and set(vars(model)) == set(vars(classifier()))


def test_rows_of_the_set_that_break_the_net_are_named_as_such():
    """The error states that the row numbers refer to X_val."""

    class Squared(nets.Linear):
        def forward(self, x):
            return super().forward(x**2)

    rows = X_VAL.copy()
    rows[5] = 1e200
    torch.manual_seed(0)
    model = regressor(net=Squared(3), hidden_layer_sizes="auto")
    with pytest.raises(NonFiniteError, match=r"First affected rows of X: 5\. These are rows of X_val\.$"):
        model.fit(X, Y, X_val=rows, y_val=Y_VAL)


def test_the_end_of_the_grid_is_a_warning():
    """The best candidate at an end of the grid issues a warning, unless there is only one candidate."""
    grid = [1e4, 1e5, 1e6]
    with pytest.warns(
        BoundWarning, match="prior_precision='validation': the best candidate, .* at the end of the grid"
    ):
        regressor(map_prior_precision="same", prior_precision__grid=grid).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BoundWarning)
        regressor(prior_precision__grid=[3.0]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)


# ---------------------------------------------------------------------- through a pipeline


def test_a_pipeline_hands_the_set_on_as_it_is_or_transforms_it():
    """A step parameter passes X_val unchanged; routing with transform_input scales it."""
    scaler = StandardScaler().fit(X)
    scaled = scaler.transform(X), scaler.transform(X_VAL)
    expected = regressor().fit(scaled[0], Y, X_val=scaled[1], y_val=Y_VAL)
    untransformed = regressor().fit(scaled[0], Y, X_val=X_VAL, y_val=Y_VAL)
    pipe = make_pipeline(StandardScaler(), regressor())
    pipe.fit(X, Y, laplaceregressor__X_val=X_VAL, laplaceregressor__y_val=Y_VAL)
    assert_equal(pipe[-1]._prior_scores.mean, untransformed._prior_scores.mean)
    with config_context(enable_metadata_routing=True):
        net = regressor().set_fit_request(X_val=True, y_val=True)
        routed = make_pipeline(StandardScaler(), net, transform_input=["X_val"]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert_equal(routed[-1]._prior_scores.mean, expected._prior_scores.mean)
    assert_equal(routed.predict(X_NEW), expected.predict(scaler.transform(X_NEW)))
