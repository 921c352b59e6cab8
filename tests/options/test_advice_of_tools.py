"""Advice of exports, files, plots and metrics, about absent packages and devices, and in warnings.

The snippets are cut out of a message and executed, and the call then works; after the advice of a warning, the fit is
silent.
"""

from __future__ import annotations

import pickle
import re
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import joblib
import joblib.parallel
import matplotlib.pyplot as plt
import nets
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import gamma, norm
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import make_column_transformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from skorch.dataset import ValidSplit
from torch import nn

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, errors, metrics, plotting
from sklearn_laplace._ensemble import noise_model
from sklearn_laplace._export import onnx as onnx_export
from sklearn_laplace.metrics import CalibrationReport, cross_validate_distribution
from sklearn_laplace.recalibration import SigmaScaling

N = 24
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + 0.3 * RNG.normal(size=N)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (), "prior_precision": 1.0, "n_members": 1, "random_state": 0}


def fit(rows=X, y=Y, **given: Any):
    """Fit of a small regressor."""
    base = {"prior_precision": 1.0, "sigma_noise": 0.3} if given.get("net") is not None else SMALL
    return LaplaceRegressor(**{**base, **given}).fit(rows, y)


def fit_classes(rows=X, y=LABELS, **given: Any):
    return LaplaceClassifier(**{**SMALL, **given}).fit(rows, y)


def template(module: Any = nn.Linear, **options: Any):
    sizes = {"module__in_features": 3, "module__out_features": 1} if module is nn.Linear else {}
    return nets.regressor(module, **{"max_epochs": 2, **sizes, **options})


def trained():
    return template().fit(X.astype("float32"), Y[:, None].astype("float32"))


# ------------------------------------------------------------------------------ absent packages


def packages_of_the_project() -> set[str]:
    """Names of all packages that the extras install, and of the extras in brackets."""
    path = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = {re.split(r"[\[<>=]", package)[0] for packages in extras.values() for package in packages}
    return names | {f"sklearn-laplace[{name}]" for name in extras}


def stub_of_botorch(monkeypatch):
    """Put a class in the place of botorch's base of models."""
    models = ModuleType("botorch.models.model")
    models.Model = type("Model", (nn.Module,), {"transform_inputs": lambda self, X: X})
    for name, module in (("botorch", ModuleType("botorch")), ("botorch.models", ModuleType("botorch.models"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "botorch.models.model", models)


def installed(name: str) -> Callable[[Any], Any]:
    """Skip the test if a package is not installed; nothing is put in its place."""
    return lambda monkeypatch: pytest.importorskip(name)


ABSENT = {  # modules that cannot be imported, the call, and what installs the package
    "botorch": (["botorch.models.model"], lambda folder: sklearn_laplace.to_botorch(fit()), stub_of_botorch),
    "pyarrow": (["pyarrow"], lambda folder: fit(str(folder / "rows.parquet"), "y"), installed("pyarrow")),
    "onnx": (["onnx"], lambda folder: sklearn_laplace.to_onnx(fit()), installed("onnx")),
    "safetensors": (
        ["safetensors"],
        lambda folder: sklearn_laplace.save(fit(), folder / "model.safetensors"),
        installed("safetensors"),
    ),
    "matplotlib": (
        ["matplotlib", "matplotlib.axes", "matplotlib.figure", "matplotlib.pyplot"],
        lambda folder: plotting.CoverageDisplay([0.1, 0.9]).plot(),
        installed("matplotlib"),
    ),
}


@pytest.mark.parametrize("package", ABSENT)
def test_the_command_names_a_package_with_which_the_call_works(package, tmp_path, monkeypatch):
    """Botorch and ray are replaced by stubs, since the call needs only a base class of theirs."""
    modules, call, install = ABSENT[package]
    with monkeypatch.context() as absence:
        for name in modules:
            absence.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match="pip install") as refused:
            call(tmp_path)
    quoted, named = re.search(r"pip install (['\"]?)([\w\[\]-]+)\1", str(refused.value)).groups()
    assert quoted or "[" not in named  # some shells expand brackets
    assert named in packages_of_the_project()
    install(monkeypatch)
    if package == "pyarrow":
        pd.DataFrame(X, columns=list("abc")).assign(y=Y).to_parquet(tmp_path / "rows.parquet")
    call(tmp_path)


def test_models_are_stored_by_other_tools_without_safetensors(tmp_path, monkeypatch):
    """The message offers pickle, joblib and skops instead of the package."""
    skops_io = pytest.importorskip("skops.io")
    model = fit()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError) as refused:
        sklearn_laplace.save(model, tmp_path / "model.safetensors")
    tools = re.search(r"or use (\w+), (\w+) or (\w+)\.", str(refused.value)).groups()
    written = {
        "pickle": pickle.dumps,
        "joblib": lambda model: joblib.dump(model, tmp_path / "model.joblib"),
        "skops": skops_io.dumps,
    }
    for tool in tools:
        assert written[tool](model)


def test_tables_of_scores_need_pandas(monkeypatch):
    with monkeypatch.context() as absence:
        absence.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError) as refused:
            cross_validate_distribution(LaplaceRegressor(**SMALL), X, Y, cv=2)
    assert re.search(r"install (\w+)", str(refused.value)).group(1) in packages_of_the_project()
    assert len(cross_validate_distribution(LaplaceRegressor(**SMALL), X, Y, cv=2)) == 2


def test_conditioning_a_model_of_botorch_follows_its_messages(monkeypatch):
    """One model for each batch, and noise variances by ``partial_fit``."""
    stub_of_botorch(monkeypatch)
    model, rows, targets = fit(), torch.from_numpy(X[None, :4]), torch.from_numpy(Y[None, :4, None])
    wrapped = sklearn_laplace.to_botorch(model)
    with pytest.raises(ValueError, match="Condition one model for each batch"):
        wrapped.condition_on_observations(rows, targets)
    for batch, values in zip(rows, targets, strict=True):
        assert wrapped.condition_on_observations(batch, values).num_outputs == 1
    with pytest.raises(ValueError, match="does not take noise") as refused:
        wrapped.condition_on_observations(rows[0], targets[0], noise=torch.ones(4, 1))
    argument, call = re.search(
        r"Fit the estimator with (\w+), call its (partial_fit\(.*?\)), and", str(refused.value)
    ).groups()
    known = LaplaceRegressor(**SMALL).fit(X, Y, **{argument: np.full(N, 0.1)})
    names = {"model": known, "X": X[:4], "y": Y[:4], "variances": np.full(4, 0.1)}
    again = eval(f"model.{call.replace('…', 'variances')}", names)
    assert sklearn_laplace.to_botorch(again).num_outputs == 1
    with pytest.raises(ValueError, match="does not fit counts") as refused:
        sklearn_laplace.to_botorch(fit(y=np.arange(N) % 4, likelihood="poisson"))
    (name,) = re.findall(r"Use likelihood='(\w+)'", str(refused.value))
    assert sklearn_laplace.to_botorch(fit(y=np.arange(N) % 4, likelihood=name)).num_outputs == 1


# ------------------------------------------------------------------------------ devices and jobs


def test_a_fit_without_cuda_uses_the_device_in_the_message(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for given in ({"device": "cuda"}, {"net": template(device="cuda")}):
        with pytest.raises(ValueError, match="finds no CUDA device") as refused:
            fit(**given)
        (device,) = re.findall(r"Use device='(\w+)'", str(refused.value))
        fit(**{**given, "device": device})


def test_nets_on_several_devices_get_one():
    moved = FrozenEstimator(trained())
    moved.estimator.device = "cuda"  # as after training elsewhere
    members = [FrozenEstimator(trained()), moved]
    with pytest.raises(ValueError, match=r"an ensemble needs one\. Set device=\.$"):
        fit(net=members)
    assert len(fit(net=members, device="cpu").predict(X)) == N


@pytest.mark.parametrize("device", ["gpu", "meta"])
def test_another_name_of_a_device_has_alternatives(device):
    with pytest.raises(ValueError, match="expected") as refused:
        fit(device=device)
    names = re.findall(r"'(\w+)'", str(refused.value).partition("expected")[2])
    assert names == ["auto", "cpu", "cuda"]
    for name in names if torch.cuda.is_available() else names[:-1]:
        fit(device=name)


def test_a_number_of_jobs_has_alternatives():
    with pytest.raises(ValueError, match=r"to be None or .* other than 0; -1 means all processors") as refused:
        fit(n_jobs=0)
    for value in (None, 2, int(re.search(r"-\d", str(refused.value)).group())):
        fit(n_jobs=value)


# ------------------------------------------------------------------------------ exports, files, metrics and plots


def own_net(*layers: nn.Module, **options: Any):
    return fit(net=template(nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 1))), **options)


def own_classifier(module: type[nn.Module]):
    net = nets.classifier(module, module__n_in=3, module__n_out=2, max_epochs=2, classes=[0, 1])
    return LaplaceClassifier(net, prior_precision=1.0).fit(X, (LABELS == "up").astype(int))


def export(model: Any):
    pytest.importorskip("onnx")
    return sklearn_laplace.to_onnx(model).graph


class Chain(nn.Sequential):
    """Classifier of logits, or of probabilities with a softmax at the end."""

    def __init__(self, n_in, n_out, *last):
        super().__init__(nn.Linear(n_in, n_out), *last)


class Softmax(Chain):
    def __init__(self, n_in, n_out):
        super().__init__(n_in, n_out, nn.Softmax(-1))


class Skewed(RegressorMixin, BaseEstimator):
    """Regressor with predictive distributions that are not normal."""

    def fit(self, X, y):
        self.fitted_ = True
        return self

    def predict(self, X):
        return np.full(len(X), 2.0)

    def predict_dist(self, X):
        return gamma(np.full(len(X), 2.0))


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What an expression may name."""
    folder = tmp_path_factory.mktemp("files")
    saved, two = fit(net=template(nets.Hidden, module__n_in=3)), np.column_stack([Y, -Y])
    sklearn_laplace.save(saved, folder / "own.safetensors")
    sklearn_laplace.save(fit(), folder / "of_model.safetensors")
    zoned = [f"2024-01-{1 + k:02} 10:00+02:00" for k in range(N)]
    naive = [text.removesuffix("+02:00") for text in zoned]
    mixed = naive[:9] + zoned[9:]
    whole = np.round(np.exp(Y))
    return {
        **globals(),
        **{"numpy": np, "pandas": pd, "Hidden": nets.Hidden, "MyModule": nets.Hidden, "folder": folder},
        **{"path": folder / "own.safetensors", "load": sklearn_laplace.load, "saved": saved, "two": two},
        **{"of_model": folder / "of_model.safetensors"},
        **{name: pd.DataFrame({"when": values}) for name, values in (("zoned", zoned), ("naive", naive))},
        "mixed": pd.DataFrame({"when": mixed}),
        "gappy": pd.DataFrame({"when": [None, *naive[1:]], "x": ["?", *(f"{x:.2f}" for x in X[1:, 0])]}),
        "objects": pd.DataFrame({"when": pd.Series([pd.Timestamp(text) for text in mixed], dtype=object)}),
        "towns": pd.DataFrame({"town": ["Bern", "Graz", "Linz"] * (N // 3), "x": X[:, 0]}),
        "model": fit(),
        "classifier": fit_classes(),
        "of_two": fit(y=two),
        "counts": whole,
        "of_counts": fit(y=whole, likelihood="poisson"),
        "positive": fit(y=np.exp(Y), target_transform="log"),
        "P": np.full((N, 2), 0.5),
        **{name: getattr(plotting, name) for name in plotting.__all__},
        **{"CalibrationReport": CalibrationReport, "SigmaScaling": SigmaScaling, "metrics": metrics, "norm": norm},
        **{tool.__name__: tool for tool in (make_pipeline, make_column_transformer, OneHotEncoder, SimpleImputer)},
        "StandardScaler": StandardScaler,
    }


CASES = {
    # exports
    "exported pipeline": (
        "export(make_pipeline(StandardScaler(), LaplaceRegressor(**SMALL)).fit(X, Y))",
        r"(Export) the other steps",
        "'{}' and export(make_pipeline(StandardScaler(), LaplaceRegressor(**SMALL)).fit(X, Y)[-1])",
    ),
    "exported categories": (
        "export(fit(towns))",
        r"\((encode) categories and (impute) before it, in a (pipeline)\)",
        "'{} {}' and export(make_{}(make_column_transformer((OneHotEncoder(sparse_output=False), ['town']),"
        "remainder=SimpleImputer()), LaplaceRegressor(**SMALL)).fit(towns, Y)[-1])",
    ),
    "exported module": (
        "export(saved)",
        r"or a torch\.(nn\.Sequential) of .*?, (each) used once",
        "'{1}' and export(fit(net=template({0}(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))))",
    ),
    "exported probabilities": ("export(own_classifier(Softmax))", r"returns (logits)", "'{}' and export(logits())"),
    "exported layers": (
        "export(own_net(nn.Softplus(beta=2)))",
        r"Use the layers (.*), with the default options of the activations",
        "layers('{}')",
    ),
    # files
    "names of classes": (
        "load(path, trusted='nets.Hidden')",
        r"such as (trusted=\[MyModule\])",
        "load(path, {})",
    ),
    "untrusted class": ("load(path)", r"pass it: (load\(path, trusted=\[\w+\]\))", "{}"),
    "moved class": ("load(path)", r"or (trusted={.*?: )…(}) if it has moved", "load(path, {}Hidden{})"),
    "folder": ("load(folder)", r"Pass the (path) of a file written by", "(lambda path: load({}))(of_model)"),
    "absent file": ("load(folder / 'no.safetensors')", r"Pass the (path) of a", "(lambda path: load({}))(of_model)"),
    # times
    "times of both kinds in text": (
        "fit(zoned).predict(mixed)",
        r"with (pandas\.to_datetime\(column, .*?\))\.",
        "(lambda column: fit(zoned).predict(mixed.assign(when={})))(mixed['when'])",
    ),
    "times of another kind": (
        "fit(naive).predict(zoned)",
        r"Convert (both) to UTC, for example with (pandas\.to_datetime\(column, .*?\))\.",
        "'{}' and (lambda utc: fit(utc(naive)).predict(utc(zoned)))("
        "lambda table: table.assign(when=(lambda column: {})(table['when'])))",
    ),
    "times of both kinds": (
        "fit(objects)",
        r"to UTC: X\['when'\] = (.*)\.$",
        "(lambda X: fit(X.assign(when={})))(objects)",
    ),
    "text in place of times": (
        "fit(gappy).predict(gappy.assign(when='soon'))",
        r"expected a date such as (.*?), or a missing value \((NaN) or (None)\)",
        "[fit(gappy).predict(gappy.assign(when=value)) for value in ('{}', dict(NaN=numpy.nan)['{}'], {})]",
    ),
    "text in place of numbers": (
        "fit(gappy).predict(gappy.assign(x='many'))",
        r"expected (a number), or a missing value \((NaN) or (None)\)",
        "[fit(gappy).predict(gappy.assign(x=value)) for value in ({{'a number': '1.5'}}['{}'],"
        "dict(NaN=numpy.nan)['{}'], {})]",
    ),
    # metrics
    "second label": (
        "metrics.expected_calibration_error(LABELS[:1], [0.3])",
        r"Pass (labels=), the two labels",
        "metrics.expected_calibration_error(LABELS[:1], [0.3], {}classifier.classes_)",
    ),
    "order of arguments": (
        "metrics.expected_calibration_error(P, LABELS)",
        r"Pass the (labels) first, then the (probabilities)",
        "(lambda labels, probabilities: metrics.expected_calibration_error({}, {}))(LABELS, P)",
    ),
    "no noise": (
        "CalibrationReport.from_distribution(norm(Y, 0 * Y), Y)",
        r"(includes the observation noise)",
        "'{}' and CalibrationReport.from_distribution(model.predict_dist(X), Y)",
    ),
    "report of two": (
        "CalibrationReport.from_estimator(of_two, X, two)",
        r"pass an (output) from (\d) to (\d)",
        "[CalibrationReport.from_estimator(of_two, X, two, {0}=k) for k in ({1}, {2})]",
    ),
    "report of one": (
        "CalibrationReport.from_estimator(model, X, Y, output=3)",
        r"pass (output=0)",
        "CalibrationReport.from_estimator(model, X, Y, {})",
    ),
    # recalibration
    "rescaled counts": (
        "SigmaScaling(of_counts).fit(X, counts)",
        r"Use (likelihood='gaussian') or '(\w+)'",
        "[SigmaScaling(fit(y=counts, **given)).fit(X, counts) for given in (dict({}), dict(likelihood='{}'))]",
    ),
    "rescaled shape": (
        "SigmaScaling(Skewed().fit(X, Y)).fit(X, Y)",
        r"Fit the model to (transformed) targets with a (normal) distribution",
        "'{} {}' and SigmaScaling(positive).fit(X, numpy.exp(Y))",
    ),
    "rescaled zeros": (
        "SigmaScaling(positive).fit(X, numpy.r_[0.0, numpy.exp(Y[1:])])",
        r"(Omit) such rows, or give them the weight (0)",
        "'{}' and SigmaScaling(positive).fit(X[1:], numpy.exp(Y[1:])) and SigmaScaling(positive).fit("
        "X, numpy.r_[0.0, numpy.exp(Y[1:])], sample_weight=numpy.r_[{}, numpy.ones(N - 1)])",
    ),
    "rescaled exact predictions": (
        "SigmaScaling(model).fit(X, model.predict(X))",
        r"Pass rows on which the estimator was (not fitted)",
        "'{}' and SigmaScaling(model).fit(X + 0.1, Y)",
    ),
    # plots
    "plot of classes": (
        "PredictionIntervalDisplay.from_estimator(classifier, X, LABELS)",
        r"For classes use (\w+), (\w+) or (\w+)\.",
        "[display.from_estimator(classifier, X, LABELS) for display in ({}, {}, {})]",
    ),
    "plot of numbers": (
        "ReliabilityDisplay.from_estimator(model, X, Y)",
        r"For numeric targets use (\w+), (\w+) or (\w+)\.",
        "[display.from_estimator(model, X, Y) for display in ({}, {}, {})]",
    ),
    "plot of an estimator": (
        "CalibrationReportDisplay(model)",
        r"Use (from_estimator) for a fitted regressor",
        "CalibrationReportDisplay.{}(model, X, Y)",
    ),
    "output of a plot": (
        "CoverageDisplay.from_estimator(of_two, X, two)",
        r"pass (output=)(\d) to (\d)",
        "[CoverageDisplay.from_estimator(of_two, X, two, {0}k) for k in ({1}, {2})]",
    ),
    "column of a plot": (
        "PredictionIntervalDisplay.from_estimator(fit(towns), towns, Y, feature='town')",
        r"choose a (numeric) column, or (feature=None)",
        "'{}' and [PredictionIntervalDisplay.from_estimator(fit(towns), towns, Y, **given)"
        " for given in (dict({}), dict(feature='x'))]",
    ),
    "labels of a plot": (
        "EntropyDisplay.from_predictions(P[:3], ['up'] * 3)",
        r"Pass (labels=) if y_true does not contain all classes",
        "EntropyDisplay.from_predictions(P[:3], ['up'] * 3, {}['down', 'up'])",
    ),
    "score of a path": (
        "PriorPathDisplay.from_estimator(fit(hessian_structure='full').forget(X[:2], Y[:2]), scores='loo_log_density')",
        r"available are (.*?)\.",
        "PriorPathDisplay.from_estimator(fit(hessian_structure='full').forget(X[:2], Y[:2]), scores={})",
    ),
    "overview of classes": (
        "OverviewDisplay.from_estimator(classifier, X, LABELS, output=0)",
        r"(Omit) it",
        "'{}' and OverviewDisplay.from_estimator(classifier, X, LABELS, max_features=1)",
    ),
    "axes of an overview": (
        "OverviewDisplay.from_estimator(model, X, Y, ax=axes(2))",
        r"Pass (\d) Axes, or (one)",
        "'{1}' and [OverviewDisplay.from_estimator(model, X, Y, ax=given) for given in (axes({0}), axes(1)[0])]",
    ),
    "axes and figure": (
        "OverviewDisplay.from_estimator(model, X, Y, ax=axes(1)[0], figure=axes(1)[0].figure)",
        r"(ax=) and (figure=); pass one of them",
        "[OverviewDisplay.from_estimator(model, X, Y, {}axes(1)[0]),"
        "OverviewDisplay.from_estimator(model, X, Y, {}axes(1)[0].figure)]",
    ),
}
LINEAR = {"hidden_layer_sizes": (), "map_prior_precision": 1.0}


def axes(n: int):
    return list(plt.subplots(1, n, squeeze=False)[1][0])


def logits():
    net = nets.classifier(Chain, module__n_in=3, module__n_out=2, criterion=nn.CrossEntropyLoss, max_epochs=2)
    return LaplaceClassifier(net, prior_precision=1.0).fit(X, (LABELS == "up").astype(int))


def layers(text: str):
    """Export a net with each layer of a list in words."""
    found = re.findall(r"\w+", text.replace(" and ", ", ").replace(" or ", ", "))
    assert len(found) > 5
    return [export(own_net(getattr(nn, name)() if name != "Linear" else nn.Linear(4, 4))) for name in found]


@pytest.mark.filterwarnings(
    "ignore::sklearn_laplace.errors.BoundWarning",
    "ignore:column 'x' of X is text. It is read as numbers:sklearn_laplace.errors.TableWarning",
)
@pytest.mark.parametrize("case", CASES)
def test_the_advice_of_a_tool_works_in_place_of_the_mistake(case, names):
    mistake, pattern, followed = CASES[case]
    with pytest.raises((ValueError, TypeError, FileNotFoundError)) as refused:
        eval(mistake, names)
    found = re.search(pattern, str(refused.value))
    assert found, str(refused.value)
    assert eval(followed.format(*found.groups()), names) is not False
    plt.close("all")


def test_a_graph_that_is_too_large_has_alternatives(monkeypatch):
    """The limit is that of ONNX, 2 GB; here it is five kilobytes, and each alternative stays below it."""
    pytest.importorskip("onnx")
    monkeypatch.setattr(onnx_export, "LARGEST_FILE", 5e3)
    large = {"hidden_layer_sizes": (4,), "hessian_structure": "full", "n_members": 2}
    with pytest.raises(MemoryError, match="ONNX is limited to 2 GB") as refused:
        export(fit(**large))
    advice = str(refused.value).partition("Fit with ")[2]
    changes = [{name: value} for name, value in re.findall(r"(\w+)='(\w+)'", advice)]
    assert len(changes) == 2 and "with fewer members" in advice
    for change in (*changes, {"n_members": 1}):
        assert export(fit(**{**large, **change})).output


# ------------------------------------------------------------------------------ warnings


SAME = np.random.default_rng(41)  # the rows of ``test_diagnosis.py``
MANY = SAME.normal(size=(80, 3))
WAVE = np.sin(MANY[:, 0]) + MANY[:, 1] + 0.2 * SAME.normal(size=80)
NOISE = SAME.normal(size=80)
LINE = MANY[:, 0] - 0.5 * MANY[:, 1] + 0.1 * NOISE
UNSCALED = MANY * [1e3, 1e-2, 50.0] + [1e4, 0.0, 5.0]
COPIES = {"X": np.tile(MANY[:20], (5, 1)), "y": np.tile(WAVE[:20], 5)}
OF_ONE = np.random.default_rng(0)
ONE = OF_ONE.normal(size=(60, 1))
NOISY = {"X": ONE, "y": np.sin(ONE[:, 0]) + 0.5 * OF_ONE.normal(size=60)}
CURVE = np.linspace(0, 6, 20)[:, None]
EIGHT = np.random.default_rng(1).normal(size=(80, 8))
OTHER = {"X": EIGHT, "y": np.sin(EIGHT[:, 0]) + EIGHT[:, 1] + 0.2 * np.random.default_rng(2).normal(size=80)}
TRAINED_WEAKLY = {"map_prior_precision": 1e-4, "hidden_layer_sizes": (50,), "y": NOISE}
BOTH = {"prior_precision": "auto", "sigma_noise": "auto"}


NARROW = errors.InterpolationWarning, errors.ModeWarning
"""Warnings of a noise level that is too small; the last bits of a processor's kernels decide which one is issued."""


def module():
    return nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1))


def wide_net():
    return template(nets.Hidden, module__n_in=8, module__hidden=60, max_epochs=5, train_split=ValidSplit(5))


def warned(given: dict[str, Any]) -> dict[type[Warning], str]:
    """Categories and messages of the warnings of a fit; ``net`` is a function that makes a net."""
    kept = {"n_members": 1, "random_state": 0, **given}
    rows, targets = kept.pop("X", MANY), kept.pop("y", WAVE)
    if "net" in kept:
        kept["net"] = kept["net"]()
    else:
        kept = {"hidden_layer_sizes": (20,), **kept}
    estimator = LaplaceClassifier if targets.dtype.kind == "U" else LaplaceRegressor
    if estimator is LaplaceRegressor:
        kept = {"likelihood": "gaussian", **kept}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator(**kept).fit(rows, targets)
    return {warning.category: str(warning.message) for warning in caught}


WARNED = {  # the options of a fit, the category of its warning, and the words and the options of each piece of advice
    "interpolation": (
        {"prior_precision": 1e-3, "sigma_noise": "evidence", "y": NOISE},
        errors.WeakPriorWarning,
        {
            "prior_precision above 0.001": {"prior_precision": 10.0},
            "or prior_precision='auto'": {"prior_precision": "auto"},
        },
    ),
    "interpolation by the training": (
        TRAINED_WEAKLY,
        errors.WeakPriorWarning,
        {
            "map_prior_precision='same'": {"map_prior_precision": "same"},
            "or a larger number": {"map_prior_precision": 1.0},
        },
    ),
    "duplicates": (
        {**COPIES, "prior_precision": 1.0},
        errors.InterpolationWarning,
        {
            "prior_precision='auto' with sigma_noise='auto'": BOTH,
            "a larger prior_precision": {"prior_precision": 10.0},
            "check the data for duplicate rows": {**BOTH, "X": MANY[:20], "y": WAVE[:20]},
        },
    ),
    "underestimated noise": (
        {"prior_precision": 1.0, "sigma_noise": 0.1, **NOISY},
        NARROW,
        {"sigma_noise='auto'": {"sigma_noise": "auto"}, "or a larger one": {"sigma_noise": 0.6}},
    ),
    "weak prior": (
        {"prior_precision": 1e-6, "sigma_noise": 0.2},
        errors.WeakPriorWarning,
        {
            "Use a prior_precision above 1e-06": {"prior_precision": 1.0},
            "or prior_precision='auto'": {"prior_precision": "auto"},
        },
    ),
    "weak prior of the training": (
        {**TRAINED_WEAKLY, "prior_precision": "evidence", "sigma_noise": 1.0},
        errors.WeakPriorWarning,
        {
            "map_prior_precision='same'": {"map_prior_precision": "same"},
            "or a larger number": {"map_prior_precision": 1.0},
        },
    ),
    "far from a mode": (
        {"hidden_layer_sizes": (5,), "prior_precision": 1.0, "sigma_noise": 1e-5, "X": CURVE, "y": np.sin(CURVE[:, 0])},
        NARROW,
        {"sigma_noise='auto'": {"sigma_noise": "auto"}, "or a larger one": {"sigma_noise": 1e-2}},
    ),
    "single row": (
        {"X": MANY[:1], "y": WAVE[:1]},
        errors.InterpolationWarning,
        {"Fit more rows": {"X": MANY[:12], "y": WAVE[:12]}, "sigma_noise as a number": {"sigma_noise": 0.2}},
    ),
    "weak prior on a given net": (
        {"net": wide_net, "prior_precision": 1e-5, "hessian_structure": "full", **OTHER},
        errors.WeakPriorWarning,
        {"prior_precision above": {"prior_precision": 10.0}, "prior_precision='auto'": {"prior_precision": "auto"}},
    ),
    "constant targets": (
        {"X": CURVE, "y": np.ones(20), "prior_precision": "evidence", "sigma_noise": "evidence"},
        errors.BoundWarning,
        {"Give it as a number": {"prior_precision": 1.0, "sigma_noise": 0.1}},
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_a_fit_is_silent_after_the_advice_of_its_warning(case):
    given, category, advice = WARNED[case]
    found = warned(given)
    (message,) = [text for kind, text in found.items() if issubclass(kind, category)]
    for words, change in advice.items():
        assert re.search(words, message), message
        after = warned({**given, **change})
        assert not after, (change, after)


# ------------------------------------------------------------------------------ other warnings


def quiet(call: Callable[[], Any]) -> Any:
    """Result of a call that may not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


def test_a_search_by_the_scorer_in_the_message_has_no_ties():
    net = template(nets.Hidden, module__n_in=3)
    model = LaplaceRegressor(net, map_prior_precision=1.0, random_state=0)
    grid = {"prior_precision": [0.1, 10.0]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GridSearchCV(model, grid, cv=2).fit(X, Y)
    (message,) = [str(warning.message) for warning in caught if warning.category is errors.TiedScoresWarning]
    name, home = re.search(r"scoring=(\w+) of sklearn_laplace\.(\w+)", message).groups()
    scoring = getattr(getattr(sklearn_laplace, home), name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search = GridSearchCV(model, grid, cv=2, scoring=scoring).fit(X, Y)
    assert errors.TiedScoresWarning not in {warning.category for warning in caught}
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 2


def test_noise_at_its_bound_is_constant_after_the_advice(monkeypatch):
    """The bound is a factor of a thousand; here it is so near that ordinary noise reaches it."""
    monkeypatch.setattr(noise_model, "REACH", 0.05)
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (150, 1))
    targets = np.exp(2 * rows[:, 0]) * rng.normal(size=150)
    with pytest.warns(errors.BoundWarning, match="noise std of .* rows is at its bound") as caught:
        fit(rows, targets, likelihood="heteroscedastic")
    (advised,) = re.findall(r"use likelihood='(\w+)' for a constant noise level", str(caught[0].message))
    quiet(lambda: fit(rows, targets, likelihood=advised))


def test_a_hint_on_skewed_targets_keeps_intervals_above_zero(capsys):
    skewed = np.exp(1.5 * Y)
    fit(y=skewed, verbose=1)
    hint = capsys.readouterr().out
    (name,) = re.search(r"y is positive and skewed.*use target_transform='(\w+)'", hint).groups()
    model = fit(y=skewed, target_transform=name, verbose=1)
    assert "skewed" not in capsys.readouterr().out
    assert model.predict_interval(X)[1].min() > 0


def test_a_training_that_was_cut_is_whole_with_more_time():
    with pytest.warns(errors.CutWarning, match="Allow more time"):
        LaplaceRegressor(max_time=1e-3, random_state=0).fit(X, Y)
    quiet(lambda: fit(max_time=1e4))
