"""Class weights multiply the sample weights."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from sklearn_laplace import LaplaceClassifier

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(23)
X, X_NEW = RNG.normal(size=(70, 3)), 2 * RNG.normal(size=(8, 3))
LABELS = np.array(["no", "yes", "yes!"])[np.digitize(X[:, 0] + 0.5 * RNG.normal(size=70), [0.3, 1.0])]


@pytest.mark.parametrize("class_weight", [{"no": 2.0, "yes!": 3.0}, "balanced"])
def test_class_weights_are_weights_of_rows(class_weight):
    """Balanced weights are n / (n_classes · n_c), where sample weights count as repetitions of rows."""
    repeats = RNG.integers(1, 3, size=70)
    n_c = {label: repeats[label == LABELS].sum() for label in np.unique(LABELS)}
    factor = {label: repeats.sum() / (3 * n) for label, n in n_c.items()}
    factor = factor if class_weight == "balanced" else class_weight
    small = {"hidden_layer_sizes": (4,), "n_members": 1, "prior_precision": 1.0, "random_state": 0}
    model = LaplaceClassifier(class_weight=class_weight, **small)
    by_hand = LaplaceClassifier(**small)
    by_hand.fit(X, LABELS, sample_weight=repeats * np.array([factor.get(label, 1.0) for label in LABELS]))
    model.fit(X, LABELS, sample_weight=repeats)
    np.testing.assert_allclose(model.predict_proba(X_NEW), by_hand.predict_proba(X_NEW), rtol=1e-9)
    np.testing.assert_allclose(model.laplace_.total_weight, by_hand.laplace_.total_weight, rtol=1e-12)
    repeated = clone(model).fit(np.repeat(X, repeats, axis=0), np.repeat(LABELS, repeats))
    np.testing.assert_array_equal(repeated.predict_proba(X_NEW), model.predict_proba(X_NEW))


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_have_the_weights_of_other_labels(unit):
    positive = (X[:, 0] > 0).astype(int)
    dates = np.array(["2020-01-01", "2020-01-02"], dtype=f"datetime64[{unit}]")
    linear = {"hidden_layer_sizes": (), "prior_precision": 1.0, "random_state": 0}
    expected = LaplaceClassifier(class_weight={1: 20.0}, **linear).fit(X, positive).predict_proba(X_NEW)
    model = LaplaceClassifier(class_weight={dates[1]: 20.0}, **linear).fit(X, dates[positive])
    np.testing.assert_array_equal(model.predict_proba(X_NEW), expected)


def test_balanced_weights_move_the_boundary_as_logistic_regressions():
    """With a class share of .1, both models predict more positives, and about as many."""
    rng = np.random.default_rng(0)
    rare = (rng.random(300) < 0.1).astype(int)
    x = rng.normal(size=(300, 1)) + 1.5 * rare[:, None]
    share = {}
    for weight in (None, "balanced"):
        models = (
            LaplaceClassifier(hidden_layer_sizes=(4,), n_members=1, class_weight=weight, random_state=0),
            LogisticRegression(class_weight=weight),
        )
        share[weight] = [m.fit(x, rare).predict(x).mean() for m in models]
    assert share["balanced"][0] > 2 * share[None][0]
    np.testing.assert_allclose(share["balanced"][0], share["balanced"][1], atol=0.06)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("balansed", "Did you mean 'balanced'"),
        ({"maybe": 1.0}, r"class_weight names \['maybe'\], which are not among the classes \['no', 'yes', 'yes!'\]"),
        ({"no": -1.0}, "has to hold finite numbers that are not negative"),
        ({"no": 0.0, "yes": 0.0, "yes!": 0.0}, "leaves no row with a positive weight"),
        (3.0, "class_weight=3.0 is not known; expected one of 'balanced'"),
    ],
)
def test_a_wrong_class_weight_is_refused(class_weight, message):
    """The error states the given value and the expected ones."""
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(class_weight=class_weight).fit(X, LABELS)
