"""Every method for every kind of model: documented shapes, and results that are consistent with each other."""

from __future__ import annotations

import numpy as np
import pytest
import trainings

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.options import Subnetwork

RNG = np.random.default_rng(17)
N, NEW = 24, 5
X = RNG.normal(size=(N, 3))
F = np.sin(X @ RNG.normal(size=(3, 2)))
Y = F + 0.1 * RNG.normal(size=F.shape)
COUNTS = RNG.poisson(np.exp(F))
LABELS = np.array(["low", "mid", "high"])[np.digitize(F[:, 0], [-0.3, 0.3])]
ROWS = RNG.normal(size=(NEW, 3))
FIXED = {
    "hidden_layer_sizes": (4,),
    "prior_precision": 1.0,
    "n_members": 1,
    "random_state": 0,
    "memory": trainings.MEMORY,
}
GAUSSIAN = {**FIXED, "sigma_noise": 0.2, "likelihood": "gaussian"}
KINDS = {
    **{f"structure-{name}": {**GAUSSIAN, "hessian_structure": name} for name in STRUCTURES},
    "subset-last_layer": {**GAUSSIAN, "subset_of_weights": "last_layer"},
    "subset-subnetwork": {**GAUSSIAN, "subset_of_weights": Subnetwork(size=6)},
    "curvature-hessian": {**GAUSSIAN, "curvature": "hessian", "hessian_structure": "full"},
    "curvature-empirical_fisher": {**GAUSSIAN, "curvature": "empirical_fisher"},
    "predictive-mc": {**GAUSSIAN, "predictive": "mc"},
    "mixture": {**GAUSSIAN, "n_members": 3},
    "mixture-kron": {**GAUSSIAN, "n_members": 2, "hessian_structure": "kron"},
    "heteroscedastic": {**GAUSSIAN, "sigma_noise": "evidence", "likelihood": "heteroscedastic"},
    "mixture-heteroscedastic": {
        **GAUSSIAN,
        "n_members": 2,
        "sigma_noise": "evidence",
        "likelihood": "heteroscedastic",
    },
    "poisson": {**FIXED, "likelihood": "poisson"},
    "mixture-poisson": {**FIXED, "n_members": 2, "likelihood": "poisson"},
}
CLASSIFIERS = {
    **{f"structure-{name}": {"hessian_structure": name} for name in STRUCTURES},
    **{f"link-{name}": {"link": name} for name in LINKS},
    "subset-last_layer": {"subset_of_weights": "last_layer"},
    "predictive-mc": {"predictive": "mc", "link": "mc"},
    "mixture": {"n_members": 2},
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ClippedWarning"),
    pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning"),
    pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning"),
    pytest.mark.usefixtures("short_trainings"),
]


ONE_COLUMN = ["structure-functional", "structure-kron", "predictive-mc", "mixture", "heteroscedastic", "poisson"]
"""Kinds for y of shape (n, 1), which differs from (n,) in the shapes alone."""


@pytest.mark.parametrize(
    ("kind", "k"),
    [*((kind, k) for kind in KINDS for k in (None, 2)), *((kind, 1) for kind in ONE_COLUMN)],
    ids=lambda value: value if isinstance(value, str) else f"{value}-outputs",
)
def test_every_method_of_a_regressor(kind, k):
    """Predictions have shape (n,) for y of shape (n,), and (n, k) for (n, k), also for k = 1."""
    options = KINDS[kind]
    targets = COUNTS if options["likelihood"] == "poisson" else Y
    y = targets[:, 0] if k is None else targets[:, :k]
    tail = () if k is None else (k,)
    model = LaplaceRegressor(**options).fit(X, y)
    mean, std = model.predict(ROWS, return_std=True)
    assert mean.shape == std.shape == model.predict(ROWS).shape == (NEW, *tail)
    assert model.predict(ROWS, return_cov=True)[1].shape == (NEW, NEW, *tail)
    parts = [model.predict_std(ROWS, kind=part) for part in ("epistemic", "aleatoric", "total")]
    assert [part.shape for part in parts] == [(NEW, *tail)] * 3
    np.testing.assert_allclose(parts[0] ** 2 + parts[1] ** 2, parts[2] ** 2)
    together = model.predict_std(ROWS, kind="all")
    np.testing.assert_array_equal([together.epistemic, together.aleatoric, together.total], parts)
    middle, ends = model.predict_interval(ROWS, [0.5, 0.9])
    assert middle.shape == (NEW, *tail) and ends.shape == (NEW, *tail, 2, 2)
    assert (ends[..., 0, :] <= ends[..., 1, :]).all() and (ends[..., 1, 0] <= ends[..., 1, 1]).all()
    np.testing.assert_array_equal(model.predict_interval(ROWS, 0.9)[1], ends[..., 1])
    quantiles = model.predict_quantiles(ROWS, (0.1, 0.5, 0.9))
    assert quantiles.shape == (NEW, 3, *tail) and (np.diff(quantiles, axis=1) >= 0).all()
    distribution = model.predict_dist(ROWS)
    np.testing.assert_allclose(distribution.mean(), mean)
    np.testing.assert_allclose(distribution.std(), parts[2])
    for part in ("total", "epistemic"):
        draws = model.sample_y(ROWS, 7, kind=part)
        assert draws.shape == ((NEW, 7) if k is None else (NEW, k, 7))
    assert model.score_samples(ROWS).shape == (NEW,)
    assert model.log_predictive_density(X, y).shape == (N,)
    assert isinstance(model.log_marginal_likelihood(), float)
    loo_mean, loo_std = model.loo_predict(return_std=True)
    assert loo_mean.shape == loo_std.shape == (N, *tail)
    gradient = model.predict(ROWS, return_mean_grad=True)[1]
    assert gradient.shape == (NEW, 3, *tail)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_every_method_of_a_classifier(kind, n_classes):
    """One column per class, in the order of ``classes_``."""
    labels = LABELS if n_classes == 3 else np.where(LABELS == "low", "low", "high")
    model = LaplaceClassifier(**{**FIXED, **CLASSIFIERS[kind]}).fit(X, labels)
    proba = model.predict_proba(ROWS)
    assert proba.shape == (NEW, n_classes)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(ROWS)), proba)
    np.testing.assert_array_equal(model.predict(ROWS), model.classes_[proba.argmax(1)])
    epistemic, total = model.predict_std(ROWS), model.predict_std(ROWS, kind="total")
    assert epistemic.shape == total.shape == (NEW, n_classes)
    np.testing.assert_allclose(total, np.sqrt(proba * (1 - proba)), rtol=1e-6, atol=1e-9)
    parts = model.predict_std(ROWS, kind="all")
    assert parts.total.shape == parts.epistemic.shape == parts.aleatoric.shape == (NEW, n_classes)
    np.testing.assert_allclose(parts.total**2, parts.epistemic**2 + parts.aleatoric**2)
    np.testing.assert_array_equal([parts.total, parts.epistemic], [total, epistemic])
    entropy = model.predict_entropy(ROWS, kind="all")
    assert entropy.total.shape == entropy.epistemic.shape == entropy.aleatoric.shape == (NEW,)
    np.testing.assert_allclose(entropy.total, entropy.epistemic + entropy.aleatoric)
    assert set(model.sample_y(ROWS, 6).ravel()) <= set(model.classes_)
    assert model.sample_y(ROWS, 6).shape == (NEW, 6)
    assert model.sample_y(ROWS, 6, kind="epistemic").shape == (NEW, n_classes, 6)
    assert model.score_samples(ROWS).shape == (NEW,)
    assert model.log_predictive_density(X, labels).shape == (N,)
    assert isinstance(model.log_marginal_likelihood(), float)
    if "mc" not in kind:
        assert model.loo_predict().shape == (N, n_classes)
