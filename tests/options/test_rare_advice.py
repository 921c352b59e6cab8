"""Advice in rare errors: limits of memory, sources of rows, epochs of a given net, curvatures of different rows.

Each test cuts the advice out of a message and follows it in place of the mistake. Warnings about experimental features
are rare too: once in a process.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import contracts
import nets
import numpy as np
import oracles
import pytest
import torch
import trainings
from sklearn.datasets import make_friedman1
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import PredefinedSplit
from skorch.dataset import Dataset, ValidSplit
from skorch.helper import predefined_split
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._estimator import sources
from sklearn_laplace._table import source as arrays
from sklearn_laplace._table import source_of as recognise
from sklearn_laplace._table import source_of as sample
from sklearn_laplace._table.source import ArraySource, Group, SomeParts
from sklearn_laplace._table.source_of import sample_of
from sklearn_laplace._training import batches as stream
from sklearn_laplace._training import recipe
from sklearn_laplace.errors import ExperimentalWarning, MemoryBudgetError, NonFiniteLossError
from sklearn_laplace.errors import warn as announcements
from sklearn_laplace.errors.warn import experimental
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.network.network import Network
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import Full
from sklearn_laplace.options import Subnetwork

pytestmark = pytest.mark.usefixtures("short_trainings")

N = 24
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + 0.3 * RNG.normal(size=N)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "n_members": 1, "random_state": 0}
SMALL["memory"] = trainings.MEMORY


def template(module: Any = nn.Linear, **options: Any):
    sizes = {"module__out_features": 1} if module is nn.Linear else {}
    return nets.regressor(module, **{"max_epochs": 2, **sizes, **options})


def trained(*widths: int):
    torch.manual_seed(0)
    sizes = [3, *widths]
    layers = [layer for k, width in enumerate(widths) for layer in (nn.Linear(sizes[k], width), nn.Tanh())]
    net = template(nn.Sequential(*layers, nn.Linear(sizes[-1], 1)))
    return FrozenEstimator(net.fit(X.astype("float32"), Y[:, None].astype("float32")))


def fit(rows=X, y=Y, **given: Any):
    of_net = {"prior_precision": 1.0, "sigma_noise": 0.3, "random_state": 0}
    base = of_net if given.get("net") is not None else SMALL
    return LaplaceRegressor(**{**base, **given}).fit(rows, y)


def refusal(call, *kinds: type[Exception]) -> str:
    """Message of the error that a call raises."""
    with pytest.raises(kinds or (ValueError,)) as refused:
        call()
    return str(refused.value)


def offered(message: str) -> dict[str, Any]:
    """Options in quotation marks after "Use", such as ``curvature='ggn'``."""
    return dict(re.findall(r"(\w+)='([^']*)'", message.partition(" Use ")[2]))


# ------------------------------------------------------------------------------ memory

WIDE = {"hidden_layer_sizes": (100,)}
LAST = {"subset_of_weights": "last_layer"}
TOO_LARGE = {  # options, and those that the message offers
    "full": ({**WIDE, "hessian_structure": "full", "memory_budget": "600kB"}, {"hessian_structure": "kron", **LAST}),
    "kron": ({**WIDE, "hessian_structure": "kron", "memory_budget": "300kB"}, {"hessian_structure": "diag", **LAST}),
    "diag": ({"net": trained(100), "hessian_structure": "diag", "memory_budget": "7kB"}, LAST),
    "last layer": (
        {**WIDE, **LAST, "hessian_structure": "full", "memory_budget": "100kB"},
        {"hessian_structure": "diag"},
    ),
    "single weights": (
        {**WIDE, "subset_of_weights": Subnetwork(size=250), "hessian_structure": "full", "memory_budget": "1MB"},
        {"hessian_structure": "diag", **LAST},
    ),
    "Hessian": ({**WIDE, "curvature": "hessian", "memory_budget": "700kB"}, {"curvature": "ggn", **LAST}),
    "Hessian of the last layer": (
        {**WIDE, **LAST, "curvature": "hessian", "memory_budget": "75kB"},
        {"curvature": "ggn"},
    ),
    "one row": ({**WIDE, "hessian_structure": "full", "memory_budget": 6_024_024}, LAST),
}


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ClippedWarning")
@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_posterior_that_is_too_large_fits_after_each_advice(case):
    given, expected = TOO_LARGE[case]
    message = refusal(lambda: fit(**given), MemoryBudgetError)
    assert offered(message) == expected, message
    for name, value in expected.items():
        fit(**{**given, name: value})
    assert "a larger memory_budget" in message
    fit(**{**given, "memory_budget": "16MB"})


def test_a_budget_is_accepted_after_each_advice():
    message = refusal(lambda: fit(memory_budget="much"))
    assert "None, a number of bytes of at least 1, or a string such as" in message
    texts = re.findall(r"'(\w[\w.]*)'", message.partition("such as")[2])
    assert texts == ["500MB", "2GB", "1.5GiB"]
    for value in (None, 10**8, *texts):
        fit(memory_budget=value)


def test_the_training_fits_after_each_advice():
    """A small posterior may leave too little memory for the training, of which the first message warns."""
    given = {**WIDE, "hessian_structure": "full", "memory_budget": "30kB", "memory": None}
    message = refusal(lambda: fit(**given), MemoryBudgetError)
    assert "or a larger memory_budget, which the training may need in any case." in message
    given.update(hessian_structure=offered(message)["hessian_structure"])
    message = refusal(lambda: fit(**given), MemoryBudgetError)
    assert "a larger memory_budget or a smaller net, or train the net elsewhere and give net=Froz" in message
    n_bytes = int(re.search(r"posterior's, ([\d,]+) bytes", message).group(1).replace(",", ""))
    for followed in ({"memory_budget": 2 * n_bytes}, {"hidden_layer_sizes": (4,)}):
        fit(**{**given, **followed})
    fit(net=trained(100), hessian_structure="diag", memory_budget="30kB")


def test_predictions_fit_after_each_advice():
    """A limit that is set after the fit."""
    model = fit(hidden_layer_sizes=(20,), hessian_structure="full")
    message = refusal(lambda: model.set_params(memory_budget="100kB").predict_std(X), MemoryBudgetError)
    assert "a larger memory_budget, a smaller net, or subset_of_weights='last_layer' in place of 'all'" in message
    assert len(model.set_params(memory_budget="1MB").predict_std(X)) == N
    for followed in ({"hidden_layer_sizes": (4,)}, offered(message)):
        other = fit(**{"hidden_layer_sizes": (20,), "hessian_structure": "full", **followed})
        assert len(other.set_params(memory_budget="100kB").predict_std(X)) == N


def test_an_allocation_succeeds_after_each_advice(monkeypatch):
    """Allocations for a chunk of many rows, then those for a dense posterior, fail."""
    given = {"net": trained(4), "hessian_structure": "full"}
    model, usual = fit(**given), Network.linearise

    def linearise(self, x, **options):
        if len(x) * self.n_parameters > 130:
            raise MemoryError
        return usual(self, x, **options)

    def posterior(self, *args, **options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Network, "linearise", linearise)
        message = refusal(lambda: fit(**given), MemoryBudgetError)
        assert "or use a smaller memory_budget, " in message
        fit(**{**given, "memory_budget": "18kB"})
        fit(**given, **LAST)
        assert LAST.items() <= offered(message.replace("or use", "Use")).items()
        assert refusal(lambda: model.predict_std(X), MemoryBudgetError).endswith("or fewer rows at a time.")
        assert [len(model.predict_std(rows)) for rows in np.split(X, 6)] == [4] * 6
    monkeypatch.setattr(Full, "posterior", posterior)
    message = refusal(lambda: fit(**given), MemoryBudgetError)
    for structure in re.search(r"hessian_structure='(\w+)' or '(\w+)'", message).groups():
        fit(**{**given, "hessian_structure": structure})


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
def test_leave_one_out_fits_after_each_advice():
    """Too little memory for the exact curvature, then for the Jacobians."""
    given = {"net": trained(80, 4), "hessian_structure": "diag", "prior_precision": "loo", "memory_budget": "40kB"}
    message = refusal(lambda: fit(**given), MemoryBudgetError)
    assert "Use a larger memory_budget, subset_of_weights='last_layer', or 'evidence' in place of 'loo'" in message
    for followed in ({"memory_budget": "200kB"}, LAST, {"prior_precision": "evidence"}):
        fit(**{**given, **followed})
    given["memory_budget"] = "60kB"
    message = refusal(lambda: fit(**given), MemoryBudgetError)
    assert "MB for Jacobians" in message
    assert "Use subset_of_weights='last_layer', or a larger memory_budget." in message
    for followed in ({"memory_budget": "200kB"}, LAST):
        fit(**{**given, **followed})
    message = refusal(lambda: fit(**{**given, **LAST, "memory_budget": "5kB"}), MemoryBudgetError)
    assert "last_layer" not in message


# ------------------------------------------------------------------------------ given nets


def sgd(**options: Any):
    return nets.regressor(nets.Hidden, module__n_in=3, max_epochs=3, optimizer=torch.optim.SGD, **options)


def test_the_epochs_converge_after_each_advice():
    """A large learning rate, and columns of different sizes."""
    message = refusal(lambda: fit(net=sgd(lr=1e20)), NonFiniteLossError)
    assert "Use a smaller lr, scale the inputs, or look for extreme values in X and y." in message
    fit(net=sgd(lr=0.01))
    given = {"net": template(nn.Linear, module__in_features=3, max_epochs=50, optimizer=torch.optim.SGD)}
    given.update(standardize_X=False, map_prior_precision=0)
    assert "scale the inputs" in refusal(lambda: fit(1e12 * X, **given), NonFiniteLossError)
    fit(X, **given)


def validation_rows_elsewhere():
    return predefined_split(Dataset(X[18:].astype("float32"), Y[18:, None].astype("float32")))


def overlapping(data, y=None):
    return data, torch.utils.data.Subset(data, range(10))


def test_a_split_has_rows_of_the_fit_after_the_advice():
    """Validation rows elsewhere, positions of other rows, and rows in both parts."""
    message = refusal(lambda: fit(X[:18], Y[:18], net=sgd(train_split=validation_rows_elsewhere())))
    assert "Pass these rows to fit as well" in message
    split = re.search(r"train_split=(ValidSplit\(PredefinedSplit\(test_fold\)\))", message).group(1)
    names = {"ValidSplit": ValidSplit, "PredefinedSplit": PredefinedSplit}
    fit(net=sgd(train_split=eval(split, names, {"test_fold": np.where(np.arange(N) >= 18, 0, -1)})))
    split = ValidSplit(PredefinedSplit(np.where(np.arange(N) >= 18, 0, -1)))
    message = refusal(lambda: fit(X[:20], Y[:20], net=sgd(train_split=split)))
    assert "has to be made for the rows of the fit" in message
    fit(X[:20], Y[:20], net=sgd(train_split=ValidSplit(PredefinedSplit(np.where(np.arange(20) >= 18, 0, -1)))))
    message = refusal(lambda: fit(net=sgd(train_split=overlapping)))
    fit(net=sgd(train_split=eval(re.search(r"such as (ValidSplit\(5\))", message).group(1), names)))


CLASSES = np.array(["down", "flat", "up"])[np.arange(N) % 3]
CRITERIA = {  # option of the criterion, words of the advice, and each option or row weights that follow it
    "weight": (
        {"criterion__weight": torch.tensor([1.0, 1.0, 2.0])},
        "Use class_weight= of the estimator, or sample_weight in fit.",
        [({"class_weight": {"down": 1.0, "flat": 1.0, "up": 2.0}}, None), ({}, np.where(CLASSES == "up", 2.0, 1.0))],
    ),
    "label_smoothing": ({"criterion__label_smoothing": 0.1}, "Omit it; a prior precision", [({}, None)]),
    "ignore_index": (
        {"criterion__ignore_index": 1},
        "Omit these rows, or give them a sample_weight of 0.",
        [({}, np.where(CLASSES == "flat", 0.0, 1.0))],
    ),
    **{
        name: ({f"criterion__{name}": value}, "Omit it; the loss is the mean over the rows.", [({}, None)])
        for name, value in (("reduction", "sum"), ("size_average", False), ("reduce", False))
    },
}


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_is_accepted_after_each_advice(name):
    option, advice, followed = CRITERIA[name]

    def classify(weights=None, estimator: Any = None, **options: Any):
        of_classes = {"module__n_in": 3, "max_epochs": 2, "criterion": nn.CrossEntropyLoss}
        net = nets.classifier(nets.Hidden, **of_classes, **options)
        model = LaplaceClassifier(net, prior_precision=1.0, random_state=0, **(estimator or {}))
        return model.fit(X, CLASSES, sample_weight=weights)

    message = refusal(lambda: classify(**option))
    assert advice in message
    for estimator, weights in followed:
        classify(weights, estimator)
    if "Omit these rows" in message:
        classify().fit(X[CLASSES != "flat"], CLASSES[CLASSES != "flat"])


def test_a_weight_of_the_positive_class_is_given_to_the_estimator():
    """A criterion of one logit; both kinds of weights in the message have the same result."""

    def classify(weights=None, class_weight=None, **options: Any):
        net = nets.binary(module__n_in=3, **options)
        model = LaplaceClassifier(net, prior_precision=1.0, random_state=0, class_weight=class_weight)
        return model.fit(X, LABELS, sample_weight=weights)

    message = refusal(lambda: classify(criterion__pos_weight=torch.tensor(3.0)))
    assert "Use class_weight= of the estimator, or sample_weight in fit." in message
    weighted = classify(class_weight={"down": 1.0, "up": 3.0}).predict_proba(X)
    np.testing.assert_allclose(classify(np.where(LABELS == "up", 3.0, 1.0)).predict_proba(X), weighted, rtol=1e-6)
    assert (weighted[:, 1] > classify().predict_proba(X)[:, 1]).all()


class Normalised(nn.Module):
    """Net whose last layer with weights is normalisation."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 1), nn.LayerNorm(1)

    def forward(self, x):
        return self.norm(self.linear(x))


class Parallel(nn.Module):
    """Net with a linear branch in parallel to the last layer."""

    def __init__(self):
        super().__init__()
        self.wide, self.body, self.head = nn.Linear(3, 1), nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.wide(x) + self.head(torch.tanh(self.body(x)))


TENSORS = ["head.weight", "head.bias", "wide.weight", "wide.bias"]


@pytest.mark.parametrize(
    ("module", "advice", "followed"),
    [
        (Normalised, "Use subset_of_weights='all'.", ["all"]),
        (Parallel, "Give a list of the random tensors, or use subset_of_weights='all'.", [TENSORS, "all"]),
    ],
)
def test_other_weights_are_random_after_each_advice(module, advice, followed):
    message = refusal(lambda: fit(net=template(module), **LAST))
    assert message.endswith(advice)
    for value in followed:
        fit(net=template(module), subset_of_weights=value)


class Slope(torch.autograd.Function):
    """Derivative of the square, without a derivative of its own."""

    @staticmethod
    def forward(context, x, gradient):
        return 2 * x * gradient

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("the derivative of Slope is not implemented.")


class Once(torch.autograd.Function):
    """Square that can be differentiated once."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(context, gradient):
        return Slope.apply(*context.saved_tensors, gradient)


class Wrong(torch.autograd.Function):
    """Product of two factors; the derivative in the second one takes the first one for a constant."""

    @staticmethod
    def forward(context, x, y):
        context.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(context, gradient):
        x, y = context.saved_tensors
        return gradient * y, gradient * x.detach()


class Operation(nn.Module):
    """Net with an operation of its own."""

    def __init__(self, operation):
        super().__init__()
        self.operation, self.inner, self.other, self.outer = (
            operation,
            *(nn.Linear(3, 4) for _ in "12"),
            nn.Linear(4, 1),
        )

    def forward(self, x):
        inner, other = torch.tanh(self.inner(x)), torch.tanh(self.other(x))
        return self.outer(self.operation.apply(*([inner] if self.operation is Once else [inner, other])))


@pytest.mark.parametrize(("operation", "cause"), [(Once, "does not implement"), (Wrong, "is not symmetric")])
def test_a_curvature_exists_after_the_advice(operation, cause):
    """Second derivatives that torch does not have, and wrong ones."""
    torch.manual_seed(0)
    if operation is Once and torch.__version__.startswith("2.4."):
        pytest.skip("torch 2.4 has another error")
    given = {"net": template(Operation(operation)), "hessian_structure": "full", "map_prior_precision": 1.0}
    message = refusal(lambda: fit(**given, curvature="hessian"))
    assert cause in message
    fit(**given, **offered(message))


# ------------------------------------------------------------------------------ several encodings


def test_names_of_weights_are_unique_after_each_advice():
    """Nets with and without an encoding have different names."""
    rows, targets = make_friedman1(80, noise=1.0, random_state=0)
    options = {"hidden_layer_sizes": (8,), "random_state": 0}
    model = LaplaceRegressor(**options).fit(rows, targets)
    message = refusal(lambda: model.refit_laplace(temperature={"first": 0.5}))
    assert "Fit with n_members=1 and a single value of n_bins, or change a single one of members_." in message
    model.members_[0].refit_laplace(temperature={"first": 0.5})
    LaplaceRegressor(**options, n_members=1, n_bins=6).fit(rows, targets).refit_laplace(temperature={"first": 0.5})


# ------------------------------------------------------------------------------ curvatures


def of_layers() -> contracts.Example:
    """Rows of the contracts, with a net whose first layer is linear."""
    problem = contracts.example("gaussian")
    module = oracles.random_mlp((problem.x.shape[1], 3, problem.y.shape[1]))
    return replace(problem, module=module, network=trace(module, problem.x))


def precisions(problem: contracts.Example, prior: str) -> torch.Tensor:
    """Different precisions of the groups of a prior, one for each weight."""
    return 1.0 + GROUPINGS[prior].prior(problem.network).groups.double()


def separately(problem: contracts.Example) -> contracts.Example:
    return replace(problem, network=problem.network.with_separate_biases())


def test_a_precision_of_each_tensor_has_a_posterior_after_each_advice():
    """EKFAC needs one precision per layer."""
    problem = of_layers()
    message = refusal(lambda: problem.fit("ekfac").curvature.posterior(precisions(problem, "tensor"), 1.0))
    assert "Use prior='scalar', Kron(bias='separate') if the precisions differ only between weight and bi" in message
    problem.fit("ekfac").curvature.posterior(precisions(problem, "scalar"), 1.0)
    apart = separately(problem)
    apart.fit("ekfac").curvature.posterior(precisions(apart, "tensor"), 1.0)
    structures = re.findall(r"'(\w+)'", message.rpartition("hessian_structure=")[2])
    assert structures == ["kron", "low_rank_diag", "block_diagonal", "full", "diag"]
    for structure in structures:
        problem.fit(structure).curvature.posterior(precisions(problem, "tensor"), 1.0)


def test_a_precision_of_each_tensor_has_a_damped_posterior_after_each_advice():
    """Damped factors need one precision per layer too."""
    problem = of_layers()
    message = refusal(lambda: problem.fit("kron").curvature.damped_posterior(precisions(problem, "tensor"), 1.0))
    assert message.endswith("or Kron(damping='exact'), which supports one precision per tensor.")
    problem.fit("kron").curvature.damped_posterior(precisions(problem, "scalar"), 1.0)
    apart = separately(problem)
    apart.fit("kron").curvature.damped_posterior(precisions(apart, "tensor"), 1.0)
    problem.fit("kron").curvature.posterior(precisions(problem, "tensor"), 1.0)


def test_a_precision_of_each_weight_has_a_posterior_after_each_advice():
    problem = of_layers()
    of_each = torch.linspace(1, 2, problem.network.n_parameters, dtype=torch.float64)
    message = refusal(lambda: problem.fit("kron").curvature.posterior(of_each, 1.0))
    priors, structures = (re.findall(r"'(\w+)'", part) for part in message.partition("Use ")[2].split("hessian_str"))
    assert (priors, structures) == (["scalar", "layer", "tensor", "ard"], ["full", "diag"])
    for prior in priors:
        problem.fit("kron").curvature.posterior(precisions(problem, prior), 1.0)
    for structure in structures:
        problem.fit(structure).curvature.posterior(of_each, 1.0)


def test_curvatures_of_other_rows_are_added_after_each_advice():
    """Eigenvectors of EKFAC depend on the rows."""
    problem = contracts.example("gaussian")
    halves = [replace(problem, x=problem.x[k::2], y=problem.y[k::2], weights=problem.weights[k::2]) for k in range(2)]

    def added(structure: str) -> Any:
        first, second = (half.fit(structure).curvature for half in halves)
        return first.merge(second)

    message = refusal(lambda: added("ekfac"))
    assert message.endswith("Use hessian_structure='kron' or 'block_diagonal', or fit all rows at once.")
    assert added("kron").eigenvalues().isfinite().all()
    assert added("block_diagonal").eigenvalues().isfinite().all()
    assert problem.fit("ekfac").curvature.eigenvalues().isfinite().all()


# ------------------------------------------------------------------------------ sources of rows

N_ROWS, N_SAMPLED = 220, 120
NEW = np.random.default_rng(5).normal(size=(N_ROWS, 3))
TARGETS = np.sin(3 * NEW[:, 0]) + 0.2 * NEW[:, 1]


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Memory-mapped rows, of which less than all are sampled; few steps of training."""
    monkeypatch.setattr(recipe, "STEPS_AT_1000", (3, 2))
    monkeypatch.setattr(stream, "BUFFER_ROWS", 200)
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", N_SAMPLED)
    rows = np.memmap(tmp_path / "rows", np.float64, "w+", shape=NEW.shape)
    rows[:] = NEW
    return rows


def stream_fit(rows, targets=TARGETS, of_fit: Any = None, **options: Any):
    quick = {"hidden_layer_sizes": (3,), "n_bins": None, "likelihood": "gaussian", "random_state": 0}
    model = LaplaceRegressor(**{**quick, **options})
    return model.fit(rows, targets, **(of_fit or {}))


IN_MEMORY = {"n_members": 1, "prior_precision": 1.0, "sigma_noise": 0.3}


def test_options_of_a_source_are_supported_after_each_advice(source):
    message = refusal(lambda: stream_fit(source, n_members=3))
    assert "n_members, prior, prior_precision and max_epochs at their defaults and sigma_noise" in message
    assert message.endswith("or read the rows into memory.")
    stream_fit(np.array(source), **{**IN_MEMORY, "n_members": 3})


@pytest.mark.parametrize("refused", ["low_rank", "functional"])
def test_a_structure_of_a_source_is_a_sum_after_each_advice(source, refused):
    message = refusal(lambda: stream_fit(source, hessian_structure=refused))
    assert message.endswith("or read the rows into memory.")
    stream_fit(np.array(source), hessian_structure=refused, **IN_MEMORY)
    structures = re.findall(r"'(\w+)'", message.partition("Use ")[2])
    assert structures == ["kron", "block_diagonal", "diag", "full"]
    for structure in structures if refused == "low_rank" else []:
        stream_fit(source, hessian_structure=structure)


def test_arguments_of_a_source_are_supported_after_each_advice(source):
    given = {"sample_noise_variance": np.ones(N_ROWS)}
    message = refusal(lambda: stream_fit(source, of_fit=given))
    assert "Omit it, or read the rows into memory." in message
    stream_fit(source)
    stream_fit(np.array(source), of_fit=given, **IN_MEMORY)


def test_numbers_are_targets_after_the_advice(source, monkeypatch):
    monkeypatch.setattr(sample, "MOST_LABELS", 100)
    message = refusal(lambda: LaplaceClassifier().fit(source, TARGETS))
    assert "use LaplaceRegressor for numbers" in message
    stream_fit(source)


def test_each_rank_has_rows_after_each_advice(monkeypatch):
    """A single part for two ranks."""
    rows, group = ArraySource(NEW, TARGETS), Group()
    message = refusal(lambda: sample_of(SomeParts(rows, 1, 2), group))
    assert "divide the rows among fewer ranks, or into more parts" in message
    assert sample_of(SomeParts(rows, 0, 1), group).n_rows == N_ROWS
    monkeypatch.setattr(arrays, "PART_ROWS", 110)
    assert sample_of(SomeParts(rows, 1, 2), group).n_rows == 110


def test_the_missing_library_is_installed_by_the_advice(monkeypatch):
    """The extra of the message has the library."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = refusal(lambda: fit("rows.parquet", "price"), ImportError)
    extra = re.search(r'pip install "sklearn-laplace\[(\w+)\]"$', message).group(1)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(needed.startswith("pyarrow") for needed in project["optional-dependencies"][extra])


def test_an_experimental_feature_warns_once(monkeypatch):
    """Once per feature in a process: a search would repeat it with each fit."""
    monkeypatch.setattr(announcements, "SEEN", set())
    message = r"^a fit on .* is experimental: .* in any release\. Silence this with warnings\.simplefilter\('ignore'"

    def fits():
        for place in ("the moon", "the moon", "Mars"):
            experimental(f"a fit on {place}")

    with pytest.warns(ExperimentalWarning, match=message) as caught:
        fits()
    assert [str(warning.message).split(" is")[0] for warning in caught] == ["a fit on the moon", "a fit on Mars"]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fit_of_several_ranks_is_experimental(rank, monkeypatch):
    """Rank 0 warns for all; the fit itself is tested with real ranks (tests/clients/test_scaling.py)."""
    monkeypatch.setattr(announcements, "SEEN", set())
    monkeypatch.setattr(Group, "current", classmethod(lambda cls: cls(rank, 2)))
    monkeypatch.setattr(sources, "sample_of", lambda *arguments: pytest.fail("the fit starts"))
    with pytest.raises(ExperimentalWarning if rank == 0 else pytest.fail.Exception):
        LaplaceRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
