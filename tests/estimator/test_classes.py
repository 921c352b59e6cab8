"""Rare classes, and labels of any type: the classifier works, or its message names labels, place and cure."""

from __future__ import annotations

import nets
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import KFold, cross_val_score

from sklearn_laplace import LaplaceClassifier, metrics
from sklearn_laplace.options import CrossValidated, Validated

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


def test_a_class_without_training_rows_in_the_validation_set_is_named():
    """Its log density is −inf for every candidate; scores of predicted labels are possible."""
    y_val = ["left", *LABELS[1:10]]
    message = (
        r"y_val holds the labels \['left'\], .* among the classes of its training rows, \['down', 'up'\].*Drop these"
    )
    with pytest.raises(ValueError, match=message):
        classifier(prior_precision="validation").fit(X, LABELS, X_val=X[:10], y_val=y_val)
    by_label = classifier(prior_precision=Validated([1.0, 2.0], scoring="accuracy"))
    assert by_label.fit(X, LABELS, X_val=X[:10], y_val=y_val).classes_.tolist() == ["down", "up"]


def test_labels_of_another_type_in_the_validation_set_are_located():
    with pytest.raises(ValueError, match=r"labels such as 0, .* of the same type\. These are rows of X_val"):
        classifier(prior_precision="validation").fit(X, LABELS, X_val=X[:3], y_val=[0, 1, 1])


@SINGLE_MEMBER
def test_a_class_with_a_single_row_is_named_by_cross_validation():
    """The fold that holds the row out has no training row of its class."""
    message = r"held-out part of y holds the labels \['rare'\].*Use stratified folds and at least 2 rows of each class"
    with pytest.raises(ValueError, match=message):
        classifier(prior_precision=CrossValidated([1.0, 2.0])).fit(X, ONE_ROW)
    by_label = classifier(prior_precision=CrossValidated([1.0, 2.0], 2, "accuracy")).fit(X, ONE_ROW)
    assert by_label.classes_.tolist() == ["down", "rare", "up"]


@SINGLE_MEMBER
@pytest.mark.parametrize(
    "call",
    [
        lambda: cross_val_score(classifier(), X, ONE_POSITIVE, cv=3, error_score="raise"),
        lambda: classifier(prior_precision=CrossValidated([1.0, 2.0])).fit(X, ONE_POSITIVE),
    ],
    ids=["cross_val_score", "prior_precision='cv'"],
)
def test_a_fold_with_one_class_says_what_folds_need(call):
    """One positive row; the message is the same in scikit-learn's and in our own cross-validation."""
    with pytest.raises(ValueError, match=r"one class only, 'down'.*use stratified folds and at least 2 rows of each"):
        call()


def test_sorted_labels_need_stratified_folds():
    order = np.argsort(LABELS)
    with pytest.raises(ValueError, match=r"one class only, 'up'.*use stratified folds"):
        classifier(prior_precision=CrossValidated(cv=KFold(2))).fit(X[order], LABELS[order])


@MANY_CLASSES
def test_classes_of_one_row_cannot_be_split():
    with pytest.raises(
        ValueError, match=r"cv=None .* cannot split 40 rows: n_splits=5 .* or use prior_precision='auto'"
    ):
        classifier(prior_precision="cv").fit(X, np.arange(N))


def test_a_class_of_weight_zero_is_ignored():
    """The same classes and probabilities as without its rows, also with a rule that holds out rows."""
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
