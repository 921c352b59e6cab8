"""ONNX export: onnxruntime reproduces the predictions of the estimator; unsupported estimators are rejected."""

from __future__ import annotations

import json
import sys

import nets
import numpy as np
import onnx
import onnxruntime
import pytest
import trainings
from sklearn.model_selection import KFold
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, to_onnx
from sklearn_laplace._export import onnx as _onnx
from sklearn_laplace.errors import MemoryBudgetError, UnsupportedCombinationError
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.options import Kron, Members

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(37)
X = RNG.normal(size=(60, 3)) * [1.0, 100.0, 0.01] + [0.0, 5e4, 3.0]
Z = (X - [0.0, 5e4, 3.0]) / [1.0, 100.0, 0.01]
X_NEW = np.vstack([X[:5], X[:5] + 3 * X.std(0)])
Y = 1e3 + 50 * (np.sin(Z[:, 0]) + Z[:, 1] + 0.3 * (1 + Z[:, 2] ** 2) * RNG.normal(size=60))
TARGETS = np.c_[Y, 1e-3 * Z[:, 0] ** 2]
LABELS = np.where(Z[:, 0] > 0.5, "up", np.where(Z[:, 1] < -0.3, "down", "flat"))
CHEAP = {"prior_precision": "evidence", "n_members": 1, "random_state": 0, "memory": trainings.MEMORY}
NOISE = {"sigma_noise": "evidence", "likelihood": "gaussian"}


def regressor(**options):
    return LaplaceRegressor(**{"hidden_layer_sizes": (7,), **CHEAP, **NOISE, **options})


def classifier(**options):
    return LaplaceClassifier(**{"hidden_layer_sizes": (7,), **CHEAP, "prior_precision": 0.1, **options})


def outputs_of(graph, rows):
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"X": rows}), strict=True))


def assert_same_regressor(model, targets, graph=None):
    """Errors relative to the std of each target: 1e-5 is far below any noise, and allows for a float32 erf."""
    outputs = outputs_of(to_onnx(model) if graph is None else graph, X_NEW)
    mean, std = model.predict(X_NEW, return_std=True)
    for name, expected in {
        "mean": mean,
        "std": std,
        "std_epistemic": model.predict_std(X_NEW, kind="epistemic"),
    }.items():
        assert outputs[name].shape == expected.shape and outputs[name].dtype == np.float64
        error = np.abs(outputs[name] - expected) / targets.std(0)
        assert error.max() < 1e-5, name
    assert np.ptp(outputs["std_epistemic"]) > 0


def assert_same_classifier(model, graph):
    probabilities = outputs_of(graph, X_NEW)["probabilities"]
    np.testing.assert_allclose(probabilities, model.predict_proba(X_NEW), atol=1e-5)


# ---------------------------------------------------------------------- regressors


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu", "softplus"])
@pytest.mark.parametrize(("subset", "dtype"), [("last_layer", "float32"), ("all", "float64")])
def test_a_graph_predicts_as_the_estimator(activation, subset, dtype):
    """Mean and both standard deviations, from raw columns to the units of y, for every activation."""
    options = {"activation": activation, "dtype": dtype, "subset_of_weights": subset}
    assert_same_regressor(regressor(**options, hidden_layer_sizes=(4, 3), hessian_structure="full").fit(X, Y), Y)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_the_posterior_of_every_structure_is_exported(structure):
    """Two targets whose outputs are correlated under the posterior."""
    model = regressor(hessian_structure=structure, sigma_noise=np.array([10.0, 1e-4]))
    assert_same_regressor(model.fit(X, TARGETS), TARGETS)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_layer_sizes": ()},
        {"hessian_structure": Kron(bias="separate")},
        {"hessian_structure": Kron(damping="ritter")},
        {"subset_of_weights": "subnetwork", "hessian_structure": "full"},
        {"subset_of_weights": ["2.bias", "5.weight"], "hessian_structure": "full"},
        {"temperature": {"2.weight": 0.3}, "hessian_structure": "full"},
        {"prior": "ard"},
        {"n_members": Members(3, weights="evidence"), "map_prior_precision": 1.0},
        {"n_bins": 3},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_of_the_posterior_are_in_the_graph(options):
    """Options that change the order of the weights, the random weights, or the number of nets."""
    assert_same_regressor(regressor(**options).fit(X, Y), Y)


@pytest.mark.parametrize("n_bins", [None, 5])
def test_a_noise_that_varies_is_in_the_graph(n_bins):
    """Heteroscedastic noise: a noise net with its own posterior and quadrature."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(150, 3))
    targets = 100 * (np.abs(rows[:, 0]) + np.exp(rows[:, 2] - 1) * rng.normal(size=150))
    model = LaplaceRegressor(hidden_layer_sizes=(5,), likelihood="heteroscedastic", n_members=2, random_state=0)
    model.set_params(n_bins=n_bins).fit(rows, targets)
    assert np.ptp(model.predict_std(rows[:9], kind="aleatoric")) > 30
    predictions = outputs_of(to_onnx(model), rows[:9])
    for kind, name in (("total", "std"), ("epistemic", "std_epistemic")):
        np.testing.assert_allclose(predictions[name], model.predict_std(rows[:9], kind=kind), rtol=1e-6)
    np.testing.assert_allclose(predictions["mean"], model.predict(rows[:9]), atol=1e-6 * targets.std())


def test_noise_levels_of_targets_are_in_the_graph():
    """Each of two targets has a level of its own."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, 2))
    targets = rows + np.array([0.1, 1.0]) * rng.normal(size=(80, 2))
    model = LaplaceRegressor(hidden_layer_sizes=(5,), likelihood="gaussian", n_members=2, random_state=0)
    model.fit(rows, targets)
    assert model.noise_model_ is not None
    predictions = outputs_of(to_onnx(model), rows[:9])
    np.testing.assert_allclose(predictions["std"], model.predict_std(rows[:9]), rtol=1e-6)


@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_members_that_trained_together_are_in_the_graph(subset):
    """Jointly trained members with encodings and column scales; with Kronecker factors the graph is small."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(800, 3))
    targets = 100 * (np.sin(rows[:, 0]) + np.abs(rows[:, 1])) + 20 * random.normal(size=800)
    model = LaplaceRegressor(hidden_layer_sizes=(40, 40), subset_of_weights=subset, random_state=0)
    model.fit(rows, targets)
    assert len(model.members_) >= 4 and all(member.n_bins for member in model.members_[1:])
    graph = to_onnx(model)
    if subset == "all":
        n_weights = [member.fit.network.n_parameters for member in model._ensemble.members]
        assert len(graph.SerializeToString()) < 8 * sum(n**2 for n in n_weights) / 4
    predictions = outputs_of(graph, rows[:20])
    for name, expected in (("mean", model.predict(rows[:20])), ("std", model.predict_std(rows[:20]))):
        assert np.abs(predictions[name] - expected).max() < 1e-3 * model.predict_std(rows[:20]).max(), name


def test_rows_that_came_later_are_in_the_graph():
    """partial_fit shifts the mean of the linearised net."""
    model = regressor(hessian_structure="full").fit(X[:40], Y[:40]).partial_fit(X[40:], Y[40:])
    assert model.laplace_.shift is not None
    assert_same_regressor(model, Y)


def test_heavy_tails_are_drawn_in_by_the_graph():
    """asinh is only applied to the heavy-tailed column."""
    heavy = X.copy()
    heavy[:, 0] = np.sinh(9 * Z[:, 0])
    model = regressor(hessian_structure="full").fit(heavy, Y)
    assert type(model.net_.module_[0]).__name__ == "Compress"
    assert_same_regressor(model, Y)


def test_the_growth_outside_the_range_of_a_given_net_is_in_the_graph():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model = LaplaceRegressor(net=net, predictive="extrapolating", random_state=0).fit(Z, Y)
    outputs = outputs_of(to_onnx(model), 5 * Z[:9])
    assert model.outside(5 * Z[:9]).max() > 0
    np.testing.assert_allclose(outputs["std"], model.predict_std(5 * Z[:9]), rtol=1e-5)


def test_a_sequential_of_ones_own_is_exported():
    """A user-defined torch.nn.Sequential of linear layers, an activation and dropout."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Dropout(0.1), nn.Linear(4, 1, bias=False))
    scaled = LaplaceRegressor(net, **CHEAP, **NOISE).fit(Z, Y)
    predictions = outputs_of(to_onnx(scaled), Z)
    np.testing.assert_allclose(predictions["mean"], scaled.predict(Z), rtol=1e-7)
    np.testing.assert_allclose(predictions["std"], scaled.predict_std(Z), rtol=1e-7)


# ---------------------------------------------------------------------- classes


@pytest.mark.parametrize("link", ["moderated", "probit", "plugin"])
@pytest.mark.parametrize(("labels", "n_members"), [(LABELS, 1), (LABELS == "up", 2)], ids=["three", "two"])
def test_class_probabilities_are_exported(link, labels, n_members):
    """All closed-form links, with several logits or one; the metadata contain the class labels."""
    model = classifier(link=link, hidden_layer_sizes=(4,), n_members=n_members).fit(X, labels)
    graph = to_onnx(model)
    assert_same_classifier(model, graph)
    metadata = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(metadata["classes"]) == model.classes_.tolist()


def test_two_logits_are_exported():
    """``likelihood="categorical"`` with two classes has two logits, here with a last-layer posterior."""
    model = classifier(likelihood="categorical", subset_of_weights="last_layer").fit(X, LABELS == "up")
    assert model.n_outputs_ == 2
    assert_same_classifier(model, to_onnx(model))


# ---------------------------------------------------------------------- the file


@pytest.fixture(scope="module")
def model():
    return regressor(subset_of_weights="last_layer").fit(X, Y)


def test_a_graph_is_written_as_a_file(model, tmp_path):
    """The file is valid, of the widely supported opset 17, and works for any number of rows."""
    graph = to_onnx(model, tmp_path / "model.onnx")
    loaded = onnx.load(tmp_path / "model.onnx")
    assert loaded == graph and loaded.opset_import[0].version == 17
    onnx.checker.check_model(loaded, full_check=True)
    assert_same_regressor(model, Y, loaded)
    assert outputs_of(loaded, X_NEW[:0])["std"].shape == (0,)
    assert outputs_of(loaded, X_NEW[:1])["std"].shape == (1,)


def test_the_last_layer_stores_little(model):
    """Only the root of the 8 last-layer weights is stored, 8 × 8 numbers, and the 36 weights of the net."""
    assert len(to_onnx(model).SerializeToString()) < 10_000


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: regressor(categorical_features=[0]).fit(np.c_[np.arange(60) % 3, X], Y),
            r"the net TableMLP cannot be exported to ONNX: .*encode categories and impute before it",
        ),
        (
            lambda: LaplaceRegressor(nets.Hidden, **CHEAP, **NOISE).fit(Z, Y),
            r"the net Hidden cannot be exported to ONNX",
        ),
        (
            lambda: LaplaceRegressor(nn.Sequential(nn.Linear(3, 2), nn.ELU(), nn.Linear(2, 1)), **CHEAP, **NOISE).fit(
                Z, Y
            ),
            r"the layer '1' of the net, ELU\(alpha=1.0\), cannot be exported to ONNX. Use the layers Dropout, GELU",
        ),
        (
            lambda: LaplaceRegressor(
                nn.Sequential(nn.Linear(3, 2), nn.Softplus(2.0), nn.Linear(2, 1)), **CHEAP, **NOISE
            ).fit(Z, Y),
            r"the layer '1' of the net, Softplus\(beta=2.0",
        ),
        (lambda: regressor(predictive="mc").fit(X, Y), r"predictive='mc' has no closed form for ONNX; use refit_lapl"),
        (
            lambda: LaplaceRegressor(likelihood="poisson", **CHEAP).fit(Z, RNG.poisson(3, 60)),
            r"likelihood='poisson' cannot be exported to ONNX",
        ),
        (
            lambda: LaplaceRegressor(likelihood="negative_binomial", **CHEAP).fit(Z, RNG.poisson(3, 60)),
            r"likelihood='negative_binomial' cannot be exported to ONNX",
        ),
        (lambda: classifier(link="bridge").fit(X, LABELS), r"link='bridge' cannot be exported to ONNX; use refit_lap"),
    ],
)
def test_what_is_not_exported_is_refused(make, message):
    """The message names the alternatives."""
    with pytest.raises(UnsupportedCombinationError, match=message):
        to_onnx(make())


def test_a_net_that_uses_a_layer_twice_is_refused():
    """Its Jacobian would be a sum over both uses, which is not implemented."""
    layer = nn.Linear(3, 3)
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 1))
    with pytest.raises(UnsupportedCombinationError, match="the net Sequential cannot be exported to ONNX"):
        to_onnx(LaplaceRegressor(net, **CHEAP, **NOISE).fit(Z, Y))


def test_a_graph_that_is_too_large_is_refused(model, monkeypatch):
    """ONNX is limited to 2 GB; the message states the size and what to do."""
    monkeypatch.setattr(_onnx, "LARGEST_FILE", 100.0)
    with pytest.raises(MemoryBudgetError, match=r"the posterior is over 8 weights, .*subset_of_weights='last_layer'"):
        to_onnx(model)


def test_other_things_are_refused():
    """Only Laplace estimators can be exported."""
    with pytest.raises(TypeError, match=r"to_onnx was given a KFold; expected a fitted LaplaceRegressor"):
        to_onnx(KFold())


def test_a_missing_package_is_named(model, monkeypatch):
    """The package onnx is optional; the error names it."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"needs the package onnx, .*pip install \"sklearn-laplace\[onnx\]\""):
        to_onnx(model)
