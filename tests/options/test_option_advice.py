"""Advice about options: each alternative is taken from the words of the message, and the fit is repeated with it.

An alternative is ``name=value``, a value in quotation marks for the option that the message begins with, ``name in
[values]``, or to omit an argument.
"""

from __future__ import annotations

import re
from typing import Any

import nets
import numpy as np
import pytest
import trainings
from sklearn.frozen import FrozenEstimator
from torch import nn

import sklearn_laplace.options
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.options import Kron, Subnetwork

pytestmark = pytest.mark.usefixtures("short_trainings")

N = 24
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + 0.3 * RNG.normal(size=N)
COUNTS = np.arange(N) % 4
LABELS = np.where(Y > 0, "up", "down")
ONES = np.ones(N)
SMALL = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "n_members": 1, "random_state": 0}
SMALL["memory"] = trainings.MEMORY
OF_FIT = ("sample_weight", "sample_noise_variance")
VALUE = r"'[^']*'|None|True|False|\d+(?:\.\d+)?(?:e[-+]?\d+)?|\w+\([^)]*\)"
PROBLEMS = (ValueError, TypeError, MemoryError)


def own_net(*layers: nn.Module):
    return nets.regressor(nn.Sequential(*(layers or (nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))), max_epochs=2)


def of_images():
    return own_net(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(4, 1))


def trained():
    net = own_net().fit(X.astype("float32"), Y[:, None].astype("float32"))
    return FrozenEstimator(net)


def fit(given: dict[str, Any]):
    """Fit with options of the constructor and arguments of ``fit``; functions make a net, ``previous`` a posterior."""
    options = dict(given)
    of_fit = {name: options.pop(name) for name in OF_FIT if name in options}
    rows, targets, previous = options.pop("X", X), options.pop("y", Y), options.pop("previous", None)
    if previous is not None:
        options["prior"] = FrozenEstimator(fit(previous))
    net = options.get("net")
    if net is not None:
        options["net"] = net() if callable(net) else [make() for make in net]
    base = SMALL if net is None else {"prior_precision": 1.0, "sigma_noise": 0.3, "random_state": 0}
    estimator = LaplaceClassifier if np.asarray(targets).dtype.kind == "U" or "classes" in options else LaplaceRegressor
    options.pop("classes", None)
    return estimator(**{**base, **options}).fit(rows, targets, **of_fit)


def advice_of(message: str) -> str:
    """The part of the message from the first sentence on that says what to do."""
    verb = r"(?:For [\w ]+, |Without [\w ]+, )?(?:[Uu]se|Give|Fit|Omit|Pass|Standardise) "
    parts = re.split(rf"(?<=[.:;]) (?={verb})", message, maxsplit=1)
    assert len(parts) == 2, message
    return parts[1]


def alternatives(message: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the options after each alternative in the advice."""
    advice, names = advice_of(message), vars(sklearn_laplace.options)
    first = [name for name in re.findall(r"\w+", message.split("cannot")[0].split("would")[0]) if name in given]
    changes = [{name: eval(value, names)} for name, value in re.findall(rf"(\w+)=({VALUE})", advice)]
    for name, values in re.findall(r"(\w+) in (\[.*?\])", advice):
        changes += [{name: value} for value in eval(values)]
    bare = re.sub(r"\w+=(?:'[^']*')|\[.*?\]|\(.*?\)", "", advice)
    changes += [{first[0]: value} for value in re.findall(r"(?<![=\w])'(\w[\w-]*)'", bare)]
    if "default None" in advice:
        changes.append({first[0]: None})
    kept = [{**given, **change} for change in changes]
    if "in both fits" in advice:
        kept = [{**new, "previous": {**given["previous"], **change}} for new, change in zip(kept, changes, strict=True)]
    if "Fit the previous estimator with" in advice:
        kept = [{**given, "previous": {**given["previous"], **change}} for change in changes]
    for omitted in re.findall(r"[Oo]mit (\w+)", advice):
        dropped = first if omitted in ("it", "them") else [omitted]
        kept.append({name: value for name, value in given.items() if name not in dropped})
    return kept


NOISY = {"sigma_noise": 0.3}
QUICK = {"hidden_layer_sizes": (), "map_prior_precision": 1.0}
COUNTED = {"y": COUNTS, "likelihood": "poisson"}
# fmt: off
REFUSED = {  # options, and the number of alternatives
    "kron of the Hessian": ({**QUICK, "curvature": "hessian", "hessian_structure": "kron"}, 4),
    "noise twice": ({"likelihood": "heteroscedastic", "sample_noise_variance": ONES}, 2),
    "noise of counts": ({**COUNTED, "sigma_noise": 0.3}, 2),
    "negative counts": ({**COUNTED, "y": COUNTS - 1}, 1),
    "fractions": ({**COUNTED, "y": COUNTS + 0.5, "likelihood": "negative_binomial"}, 2),
    "several classes": ({"y": COUNTS, "likelihood": "bernoulli", "classes": True}, 1),
    "transformed counts": ({**COUNTED, "y": COUNTS + 1, "target_transform": "log"}, 2),
    "transformed noise": ({"y": np.exp(Y), "target_transform": "log", "sample_noise_variance": ONES}, 1),
    "logarithm": ({"target_transform": "log"}, 1),
    "standardised frozen net": ({"net": trained, "standardize_X": True}, 1),
    "unstandardised": ({"standardize_X": False}, 1),
    "standardised images": ({"net": of_images, "standardize_X": True}, 1),
    "relevance of images": ({"net": of_images, "prior": "ard", "prior_precision": "evidence"}, 2),
    "epochs of a frozen net": ({"net": trained, "max_epochs": 3}, 1),
    "members of a list": ({"net": [trained], "n_members": 3}, 1),
    "members of one start": ({"previous": NOISY, **NOISY, "n_members": 3}, 1),
    "other structure": ({"previous": {**NOISY, "hessian_structure": "full"}, **NOISY, "hessian_structure": "diag"}, 2),
    "truncated previous rows": ({"previous": {**NOISY, "hessian_structure": "low_rank"}, **NOISY}, 5),
    "other curvature": ({"previous": NOISY, **NOISY, "curvature": "hessian", "hessian_structure": "full"}, 1),
    "Fisher": ({"previous": {**NOISY, "curvature": "empirical_fisher"}, "curvature": "empirical_fisher"}, 1),
    "other likelihood": ({"previous": NOISY, **COUNTED}, 1),
    "part of the weights": ({"previous": NOISY, **NOISY, "subset_of_weights": "last_layer"}, 1),
    "EKFAC by columns": ({**QUICK, "hessian_structure": "ekfac", "prior": "ard", "prior_precision": "evidence"}, 9),
    "damping by tensors": ({**QUICK, "hessian_structure": Kron(damping="ritter"), "prior": "tensor",
                            "prior_precision": "evidence"}, 9),
    "EKFAC of temperatures": ({**QUICK, "hessian_structure": "ekfac", "temperature": {"2.weight": 0.5}}, 7),
    "single weights": ({"subset_of_weights": Subnetwork(size=5), "hessian_structure": "kron"}, 5),
    "Hessian of single weights": ({"subset_of_weights": Subnetwork(size=5), "curvature": "hessian",
                                   "hessian_structure": "full"}, 1),
    "no prior": ({"map_prior_precision": 0}, 1),
    "link of samples": ({"y": LABELS, "link": "probit", "predictive": "mc"}, 2),
    "unused rate": ({"lr": 0.1}, 1),
    "tiny targets": ({"y": Y * 1e-200, "standardize_y": False}, 1),
    "ratios of a learnt noise": ({"y": np.column_stack([Y, Y]), "sigma_noise": [0.3, 0.6],
                                  "likelihood": "heteroscedastic"}, 1),
    "memory": ({"hidden_layer_sizes": (200,), "hessian_structure": "full", "memory_budget": "1MB"}, 2),
    "memory of a Hessian": ({"hidden_layer_sizes": (200,), "curvature": "hessian", "memory_budget": "3MB"}, 2),
}
# fmt: on


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_each_alternative_in_the_message_of_refused_options_fits(case):
    given, n_alternatives = REFUSED[case]
    with pytest.raises(PROBLEMS) as refused:
        fit(given)
    message = str(refused.value)
    offered = alternatives(message, given)
    assert len(offered) == n_alternatives, message
    for options in offered:
        fit(options)


CALLS = {  # options, a call that they do not allow, and the number of alternatives
    "relevance": ({**QUICK, "prior_precision": "evidence"}, "feature_relevance_", 1),
    "overdispersion": (COUNTED, "overdispersion_", 1),
    "forget by low rank": ({"hessian_structure": "low_rank"}, "forget(X[:2], Y[:2])", 4),
    "forget by rows": ({"hessian_structure": "functional"}, "forget(X[:2], Y[:2])", 3),
}


@pytest.mark.parametrize("case", CALLS)
def test_each_alternative_in_the_message_of_a_refused_call_allows_it(case):
    given, call, n_alternatives = CALLS[case]
    with pytest.raises((ValueError, AttributeError)) as refused:
        eval(f"model.{call}", {"model": fit(given), "X": X, "Y": Y})
    offered = alternatives(str(refused.value), given)
    assert len(offered) == n_alternatives, str(refused.value)
    for options in offered:
        eval(f"model.{call}", {"model": fit(options), "X": X, "Y": Y})
