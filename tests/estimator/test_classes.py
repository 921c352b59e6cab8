"""Rare classes, and labels of any type: the classifier works, or its message names labels, place and cure."""

from __future__ import annotations

import nets
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import KFold, cross_val_score

from sklearn_laplace import LaplaceClassifier, metrics

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(11)
N = 40
X = RNG.normal(size=(N, 3))
LABELS = np.where(X[:, 0] > 0, "up", "down")
ONE_ROW = np.where(np.arange(N) == 3, "rare", LABELS)
"""Three classes, one of them with a single row."""
ONE_POSITIVE = np.where(np.arange(N) == 3, "up", "down")
SINGLE_MEMBER = pytest.mark.filterwarnings("ignore:The least populated class in y has only 1 member")
MANY_CLASSES = pytest.mark.filterwarnings("ignore:The number of unique classes is greater than 50%")


def classifier(**parameters):
    return LaplaceClassifier(**{**nets.QUICK, **parameters})


def log_loss(model, X, y):
    return -metrics.neg_nlpd(model, X, y)


# ---------------------------------------------------------------------- rare classes


@MANY_CLASSES
@pytest.mark.parametrize("n_rows", [1, 2])
def test_a_hundred_classes_of_one_or_two_rows(n_rows):
    """Fresh rows have a smaller log loss than under the class frequencies, which is log 100."""
    centres = 3 * RNG.normal(size=(100, 4))
    y, fresh = np.repeat(np.arange(100), n_rows), np.repeat(np.arange(100), 5)
    model = classifier(hidden_layer_sizes=(5,), hessian_structure="diag").fit(
        centres[y] + RNG.normal(size=(len(y), 4)), y
    )
    assert log_loss(model, centres[fresh] + RNG.normal(size=(500, 4)), fresh) < np.log(100)


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.usefixtures("complete_training")
def test_two_positives_in_a_thousand_rows(shift):
    """With a signal, log loss beats the class frequencies; without one, it is not worse by more than 0.01 nats."""

    def drawn(n_rows, n_positive):
        rows, y = RNG.normal(size=(n_rows, 3)), np.arange(n_rows) < n_positive
        rows[y, 0] += shift
        return rows, y

    model, share = classifier(hidden_layer_sizes=(5,)).fit(*drawn(1000, 2)), 0.002
    by_frequency = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert log_loss(model, *drawn(10_000, 20)) < by_frequency + (0.0 if shift else 0.01)


# ---------------------------------------------------------------------- classes missing from a part of the rows


@SINGLE_MEMBER
def test_the_error_of_a_fold_with_one_class_advises_stratified_folds():
    """One positive row."""
    with pytest.raises(ValueError, match=r"one class only, 'down'.*use stratified folds and at least 2 rows of each"):
        cross_val_score(classifier(), X, ONE_POSITIVE, cv=3, error_score="raise")


def test_sorted_labels_need_stratified_folds():
    order = np.argsort(LABELS)
    with pytest.raises(ValueError, match=r"one class only, 'up'.*use stratified folds"):
        cross_val_score(classifier(), X[order], LABELS[order], cv=KFold(2), error_score="raise")


def test_a_class_of_weight_zero_is_ignored():
    """The same classes and probabilities as without its rows."""
    present = ONE_ROW != "rare"
    model = classifier(prior_precision=1.0).fit(X, ONE_ROW, sample_weight=present.astype(float))
    expected = classifier(prior_precision=1.0).fit(X[present], ONE_ROW[present])
    assert model.classes_.tolist() == ["down", "up"]
    np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(X), rtol=1e-6)  # sums in another order


# ---------------------------------------------------------------------- types of labels


@pytest.mark.parametrize(
    "y",
    [
        pd.Series(LABELS == "up", dtype="boolean"),
        pd.Series((LABELS == "up").astype(int), dtype="Int64"),
        pd.Series(LABELS, dtype="string"),
        pd.Series(LABELS, dtype="category"),
        LABELS.astype(object),
        (LABELS == "up").tolist(),
    ],
    ids=["boolean", "Int64", "string", "category", "object", "bool"],
)
def test_metrics_take_the_labels_of_the_fit(y):
    """Predictions, density and table of scores under any type that ``fit`` accepts."""
    model = classifier().fit(X, y)
    assert model.score(X, y) == np.mean(model.predict(X) == np.asarray(y)) > 0.8
    assert metrics.neg_nlpd(model, X, y) == pytest.approx(np.mean(model.log_predictive_density(X, y)), rel=1e-12)
    assert metrics.expected_calibration_error(y, model.predict_proba(X)) < 0.3


@pytest.mark.parametrize(
    "labels", [[None, *LABELS[1:]], [np.nan, *LABELS[1:]], pd.Series(LABELS).mask(np.arange(N) == 0)]
)
def test_a_missing_label_is_no_impossible_one(labels):
    """It had a log density of −inf, as a label that is not among the classes."""
    model = classifier().fit(X, LABELS)
    for call in (model.fit, model.score, model.log_predictive_density, lambda X, y: metrics.neg_nlpd(model, X, y)):
        with pytest.raises(
            ValueError, match=r"Input y contains (None|NaN): 1 of 40 values missing, the first in row 0"
        ):
            call(X, labels)
