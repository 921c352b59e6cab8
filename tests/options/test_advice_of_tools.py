"""Advice of exports, files, plots and metrics, about absent packages and devices, and in warnings.

The snippets are cut out of a message and executed, and the call then works; after the advice of a warning, the fit is
silent.
"""

from __future__ import annotations

import pickle
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import joblib
import joblib.parallel
import nets
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from torch import nn

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, plotting
from sklearn_laplace.metrics import cross_validate_distribution

N = 24
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + 0.3 * RNG.normal(size=N)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "n_members": 1, "random_state": 0}


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


def stub_of_ray(monkeypatch):
    """Put an empty module in the place of ray, and a class in that of its backend of joblib."""
    for name in ("ray", "ray.util", "ray.util.joblib", "ray.util.joblib.ray_backend"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["ray.util.joblib.ray_backend"].RayBackend = type("RayBackend", (), {})
    monkeypatch.setattr(joblib.parallel, "BACKENDS", dict(joblib.parallel.BACKENDS))


def installed(name: str) -> Callable[[Any], Any]:
    """Skip the test if a package is not installed; nothing is put in its place."""
    return lambda monkeypatch: pytest.importorskip(name)


ABSENT = {  # modules that cannot be imported, the call, and what installs the package
    "botorch": (["botorch.models.model"], lambda folder: sklearn_laplace.to_botorch(fit()), stub_of_botorch),
    "ray": (["ray.util.joblib.ray_backend"], lambda folder: sklearn_laplace.register_ray(), stub_of_ray),
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
    named = re.search(r"pip install ['\"]?([\w\[\]-]+)", str(refused.value)).group(1)
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
