"""Weights of classes are weights of rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from sklearn_laplace import LaplaceClassifier

RNG = np.random.default_rng(23)
X, X_NEW = RNG.normal(size=(70, 3)), 2 * RNG.normal(size=(8, 3))
LABELS = np.array(["no", "yes", "yes!"])[np.digitize(X[:, 0] + 0.5 * RNG.normal(size=70), [0.3, 1.0])]


@pytest.mark.parametrize("given", [{"no": 2.0, "yes!": 3.0}, "balanced"])
def test_class_weights_are_weights_of_rows(given):
    """To the bit; "balanced" is n / (n_classes · n_c), with weights counted as repetitions."""
    repeats = RNG.integers(1, 3, size=70)
    n_c = {label: repeats[label == LABELS].sum() for label in np.unique(LABELS)}
    factor = {label: repeats.sum() / (3 * n) for label, n in n_c.items()} if given == "balanced" else given
    model = LaplaceClassifier(hidden_layer_sizes=(6,), class_weight=given, random_state=0)
    by_hand = LaplaceClassifier(hidden_layer_sizes=(6,), random_state=0)
    by_hand.fit(X, LABELS, sample_weight=repeats * np.array([factor.get(label, 1.0) for label in LABELS]))
    model.fit(X, LABELS, sample_weight=repeats)
    np.testing.assert_allclose(model.predict_proba(X_NEW), by_hand.predict_proba(X_NEW), rtol=1e-9)
    np.testing.assert_allclose(model.laplace_.total_weight, by_hand.laplace_.total_weight, rtol=1e-12)
    repeated = clone(model).fit(np.repeat(X, repeats, axis=0), np.repeat(LABELS, repeats))
    np.testing.assert_array_equal(repeated.predict_proba(X_NEW), model.predict_proba(X_NEW))


def test_balanced_weights_move_the_boundary_as_logistic_regressions():
    """1 in 10 is rare: both call more rows positive, and about as many."""
    rng = np.random.default_rng(0)
    rare = (rng.random(300) < 0.1).astype(int)
    x = rng.normal(size=(300, 1)) + 1.5 * rare[:, None]
    share = {}
    for weight in (None, "balanced"):
        models = (
            LaplaceClassifier(hidden_layer_sizes=(4,), class_weight=weight, random_state=0),
            LogisticRegression(class_weight=weight),
        )
        share[weight] = [m.fit(x, rare).predict(x).mean() for m in models]
    assert share["balanced"][0] > 2 * share[None][0]
    np.testing.assert_allclose(share["balanced"][0], share["balanced"][1], atol=0.06)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("balansed", "Did you mean 'balanced'"),
        ({"maybe": 1.0}, r"class_weight names \['maybe'\], which are not among the classes \['no', 'yes', 'yes!'\]"),
        ({"no": -1.0}, "has to hold finite numbers that are not negative"),
        ({"no": 0.0, "yes": 0.0, "yes!": 0.0}, "leaves no row with a positive weight"),
        (3.0, "class_weight=3.0 is not known; expected one of 'balanced'"),
    ],
)
def test_a_wrong_class_weight_is_refused(given, message):
    """What was given and what is needed."""
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(class_weight=given).fit(X, LABELS)
