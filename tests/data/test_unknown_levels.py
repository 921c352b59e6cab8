"""Unknown categories: the prior's variance in their embedding, and predictions that widen with each of them."""

import numpy as np
import pandas as pd
import pytest

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import conditions
from sklearn_laplace._training import recipe
from sklearn_laplace.laplace.structures import STRUCTURES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
"""Whole columns are set to unknown categories, and few steps or rows are no subject here."""

COLUMNS = "pqrs"
EFFECTS = {"a": -1.0, "b": 0.0, "c": 0.4, "d": 0.9}


def table(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Four text columns that all have an effect, one number, and a balanced target."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({name: rng.choice(list(EFFECTS), n) for name in COLUMNS} | {"x": rng.normal(size=n)})
    y = X["x"] + sum(X[name].map(EFFECTS).astype(float) * (1 + k / 4) for k, name in enumerate(COLUMNS))
    return X, (y - y.median() + 0.3 * rng.normal(size=n)).to_numpy()


def more_and_more_unknown(X: pd.DataFrame) -> list[pd.DataFrame]:
    """The table with 0, 1, …, 4 unknown columns."""
    return [X.assign(**dict.fromkeys(COLUMNS[:k], "elsewhere")) for k in range(len(COLUMNS) + 1)]


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_the_std_of_a_regressor_grows_with_each_unknown_column_in_every_structure(structure):
    X, y = table(160)
    model = LaplaceRegressor(
        hidden_layer_sizes=(6,), hessian_structure=structure, prior_precision="evidence", n_members=1, random_state=0
    ).fit(X, y)
    stds = [model.predict_std(new, kind="epistemic").mean() for new in more_and_more_unknown(X)]
    assert np.all(np.diff(stds) > 0.02)
    blocks = model.laplace_.network.blocks
    ends = np.cumsum([0, *(block.size for block in blocks)])
    variance = model.posterior_.marginal_variance()
    for k, block in enumerate(blocks):
        if block.name.startswith("embeddings."):
            group = model.prior_groups_.index(f"{block.name}.weight")
            unknown = variance[ends[k] : ends[k + 1]].view(block.outputs, -1)[:, -1]
            np.testing.assert_allclose(unknown, 1 / model.prior_precision_[group], rtol=1e-4)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_logits_of_a_classifier_widen_and_its_confidence_falls_in_every_structure(structure, n_classes):
    """For balanced classes, where unknown levels do not move the mean towards the more frequent class."""
    X, y = table(160)
    labels = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    model = LaplaceClassifier(
        hidden_layer_sizes=(6,), hessian_structure=structure, prior_precision="evidence", n_members=1, random_state=0
    ).fit(X, labels)
    tables = more_and_more_unknown(X)
    assert np.all(np.diff([model.score_samples(new).mean() for new in tables]) < 0)
    confidence = [model.predict_proba(new).max(1).mean() for new in tables]
    assert np.all(np.diff(confidence) < 0.005)
    assert confidence[-1] < confidence[0] - 0.05


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
def test_a_joint_ensemble_widens_with_each_unknown_column(kind, monkeypatch):
    """Its members train together, under prior precisions that held-out rows select."""
    monkeypatch.setattr(recipe, "STEPS_AT_1000", (100, 90))
    monkeypatch.setattr(conditions, "ROWS_OF_CLASSES", 300)
    monkeypatch.setattr(conditions, "has_exact_steps", lambda *arguments: False)
    X, y = table(400)
    model = kind(hidden_layer_sizes=(10,), random_state=0).fit(X, y if kind is LaplaceRegressor else y > 0)
    assert len(model.members_) > 1
    tables = more_and_more_unknown(X)
    assert np.all(np.diff([model.score_samples(new).mean() for new in tables]) < 0)
    if kind is LaplaceClassifier:
        assert model.predict_proba(tables[-1]).max(1).mean() < model.predict_proba(X).max(1).mean() - 0.02
    else:
        assert np.all(np.diff([model.predict_std(new, kind="epistemic").mean() for new in tables]) > 0)
