"""Wrong types, shapes and values for every public method: how many error messages do not state the problem?

Each call passes arguments to a method of a small fitted model, or to a constructor followed by a fit. None, some or all
of the arguments are wrong. The outcome is one of four:

- an *answer*;
- a *clear* error, raised on purpose by this package or by scikit-learn's validation, of a type that a user may expect;
- an *unclear* error, from inside numpy, torch or scipy, or an accident such as an IndexError;
- a call that *hangs*, which takes more than ``--seconds``.

``python examples/benchmarks/fuzz.py --calls 100000`` prints the number of each outcome, and one example call for each
kind of unclear error. The package hypothesis draws the arguments from a seed.
"""

from __future__ import annotations

import argparse
import copy
import dis
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sklearn_laplace
from sklearn_laplace import (
    LaplaceClassifier,
    LaplaceRegressor,
    metrics,
    plotting,
    predict_interval,
    predict_std,
    predictive,
)
from sklearn_laplace.recalibration import SigmaScaling

matplotlib.use("Agg")

EXPECTED = (
    ValueError,
    TypeError,
    NotFittedError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    ImportError,
    OSError,
)
"""Types of clear errors."""
CONVERTS = ("sklearn/utils/validation.py", "sklearn/utils/_array_api.py", "sklearn/utils/_encode.py")
"""Conversions in scikit-learn whose own error message counts as clear."""
SMALL = {"hidden_layer_sizes": (4,), "n_members": 1, "prior_precision": "evidence", "random_state": 0}
ONE_NOISE = {"sigma_noise": "evidence", "likelihood": "gaussian"}
Call = tuple[str, str, dict[str, Any]]
"""Names of the model and of the method or function, and the arguments."""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)
TABLE = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 0, "u", "v")})


def models() -> dict[str, Any]:
    """One fitted model of each kind."""
    labels = np.where(Y > 0.3, "high", np.where(Y > -0.3, "mid", "low"))
    regressor = LaplaceRegressor(**SMALL, **ONE_NOISE)
    counts = LaplaceRegressor(**SMALL, likelihood="poisson", map_prior_precision=1.0)
    return {
        "regressor": regressor.fit(X, Y),
        "of two outputs": copy.deepcopy(regressor).fit(X, np.c_[Y, -Y]),
        "of a table": copy.deepcopy(regressor).fit(TABLE, Y),
        "of counts": counts.set_params(prior_precision=1.0).fit(X, np.round(np.exp(Y))),
        "mixture": LaplaceRegressor(**{**SMALL, "n_members": 2}, **ONE_NOISE).fit(X, Y),
        "noise that varies": LaplaceRegressor(**SMALL, likelihood="heteroscedastic").fit(X, Y),
        "pipeline": make_pipeline(StandardScaler(), copy.deepcopy(regressor)).fit(X, Y),
        "of two classes": LaplaceClassifier(**SMALL).fit(X, Y > 0),
        "of three classes": LaplaceClassifier(**SMALL).fit(X, labels),
        "not fitted": LaplaceRegressor(**SMALL),
    }


# ---------------------------------------------------------------------- what is given

NUMBERS = st.sampled_from([0, 1, -1, 2, 0.5, -0.5, 1e-300, 1e300, np.inf, -np.inf, np.nan, True, 2**70, 1 + 2j])
WORDS = st.sampled_from(["", "auto", "total", "epistemic", "aleatoric", "evidence", "glm"])
ODD: list[Any] = [
    None, object(), {}, {"a": 1}, set(), b"x", lambda: 0, int, [], [[]], [None], [[1.0], [1.0, 2.0]], [0.1, 0.9],
    np.array(3.0), np.array([]), np.zeros((0, 3)), np.zeros((2, 0)), np.zeros((2, 3, 1)), np.array(["a", "b"]),
    np.array([[1, "x", None]], dtype=object), np.zeros((2, 3), dtype=complex), np.array(["2026-01-01"], "datetime64"),
    sparse.csr_array(np.eye(3)), torch.zeros(2, 3), pd.DataFrame({"a": [1.0]}), pd.Series([1.0, 2.0]), range(3), "text",
]  # fmt: skip
"""Values that few or no methods accept."""


@st.composite
def rows(draw: Any) -> Any:
    """Rows of three columns, valid or almost valid."""
    n = draw(st.sampled_from([5, 5, 5, 5, 1, 2, 40]))
    wrong = draw(st.sampled_from(["no"] * 12 + ["columns", "flat", "value", "dtype", "list", "table", "names"]))
    good = X[:n].copy()
    if wrong == "columns":
        return np.resize(good, (n, draw(st.sampled_from([1, 2, 4, 100]))))
    if wrong == "flat":
        return good[:, 0]
    if wrong == "value":
        good[draw(st.integers(0, n - 1)), 1] = draw(st.sampled_from([np.nan, np.inf, 1e300, -1e30]))
        return good
    if wrong == "dtype":
        kind = draw(st.sampled_from(["float16", "float32", "int8", "uint64", "bool", "object", "str"]))
        with np.errstate(all="ignore"):
            return good.astype(kind)
    if wrong == "list":
        return good.tolist()
    if wrong == "table":
        return TABLE.iloc[:n]
    return pd.DataFrame(good, columns=["x", "y", "z"]) if wrong == "names" else good


@st.composite
def targets(draw: Any) -> Any:
    """Targets, whose number may differ from that of the rows."""
    n = draw(st.sampled_from([5, 5, 5, 5, 1, 2, 40]))
    return draw(st.sampled_from([Y[:n], Y[:n, None], np.c_[Y, Y][:n], Y[:n] > 0, np.array(["low", "mid"] * n)[:n]]))


ANYTHING = st.one_of(NUMBERS, WORDS, st.sampled_from(ODD), st.lists(NUMBERS, max_size=3), rows())


@st.composite
def mostly(draw: Any, right: st.SearchStrategy[Any]) -> Any:
    """Valid or almost valid value in seven of eight cases, otherwise a wrong one."""
    return draw(right if draw(st.integers(0, 7)) else ANYTHING)


FLAG, COUNT, KIND = mostly(st.booleans()), mostly(st.integers(-1, 5)), mostly(WORDS)
LEVELS = mostly(st.one_of(st.floats(0.01, 0.99), st.lists(st.floats(-0.1, 1.1), max_size=3)))
INPUTS, OUTPUTS = mostly(rows()), mostly(targets())
CALLS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "predict": {
        "X": INPUTS,
        "return_std": FLAG,
        "return_cov": FLAG,
        "return_mean_grad": FLAG,
        "return_std_grad": FLAG,
        "X_std": LEVELS,
    },
    "predict_std": {"X": INPUTS, "kind": KIND, "X_std": LEVELS},
    "predict_interval": {"X": INPUTS, "confidence_level": LEVELS},
    "predict_quantiles": {"X": INPUTS, "quantiles": LEVELS},
    "predict_dist": {"X": INPUTS},
    "predict_proba": {"X": INPUTS},
    "predict_log_proba": {"X": INPUTS},
    "predict_entropy": {"X": INPUTS},
    "sample_y": {"X": INPUTS, "n_samples": COUNT, "random_state": COUNT, "kind": KIND},
    "score_samples": {"X": INPUTS},
    "score": {"X": INPUTS, "y": OUTPUTS},
    "log_predictive_density": {"X": INPUTS, "y": OUTPUTS},
    "loo_predict": {"return_std": FLAG},
    "partial_fit": {"X": INPUTS, "y": OUTPUTS, "sample_weight": OUTPUTS},
    "forget": {"X": INPUTS, "y": OUTPUTS, "sample_weight": OUTPUTS},
}
"""Methods of the estimators; an estimator without the method raises an AttributeError."""
PARAMETERS = ("prior_precision", "sigma_noise", "temperature", "predictive", "link")
TRAINED = (
    "net", "hidden_layer_sizes", "activation", "max_epochs", "lr", "batch_size", "standardize_y", "device", "dtype",
    "subset_of_weights", "hessian_structure", "curvature", "likelihood", "n_members", "prior",
    "random_state", "memory_budget", "n_jobs", "verbose", "categorical_features", "class_weight",
)  # fmt: skip
CHANGES = {"partial_fit", "forget", "refit_laplace"}
"""Methods that change the model and therefore get a copy."""
FUNCTIONS: dict[str, tuple[Callable[..., Any], bool]] = {
    "predictive": (predictive, False),
    "predict_std": (predict_std, False),
    "predict_interval": (predict_interval, False),
    "save": (lambda model, path: sklearn_laplace.save(model, path), False),
    "load": (lambda model, path: sklearn_laplace.load(path), False),
    "to_onnx": (lambda model, path: sklearn_laplace.to_onnx(model, path), False),
    **{
        name: (getattr(metrics, name), True)
        for name in metrics.__all__
        if name not in ("CALIBRATION_LEVELS", "expected_calibration_error")
    },
    "expected_calibration_error": (
        lambda model, X, y: metrics.expected_calibration_error(y, X),
        True,
    ),
    "SigmaScaling": (lambda model, X, y: SigmaScaling(model).fit(X, y).predict_interval(X), True),
    **{
        name: (lambda model, X, y, name=name: closed(getattr(plotting, name).from_estimator(model, X, y)), True)
        for name in plotting.__all__
        if name not in ("FeatureRelevanceDisplay", "PriorPathDisplay")
    },
    "FeatureRelevanceDisplay": (lambda model, X: closed(plotting.FeatureRelevanceDisplay.from_estimator(model)), False),
    "PriorPathDisplay": (lambda model, X: closed(plotting.PriorPathDisplay.from_estimator(model)), False),
}
"""Functions of an estimator and X, with True if they need y as well."""


def closed(display: Any) -> None:
    """Close the figure of a display."""
    plt.close(display.figure_)


@st.composite
def calls(draw: Any, names: tuple[str, ...], share_of_fits: float) -> Call:
    """Random call of one of the models."""
    model = draw(st.sampled_from(names))
    if draw(st.floats(0, 1)) < share_of_fits:
        option = draw(st.sampled_from(PARAMETERS + TRAINED))
        return model, "fit", {option: draw(ANYTHING), "X": draw(INPUTS), "y": draw(OUTPUTS)}
    kind = draw(st.sampled_from(["method"] * 6 + ["function"] * 2 + ["refit"]))
    if kind == "refit":
        return model, "refit_laplace", {draw(st.sampled_from(PARAMETERS)): draw(ANYTHING)}
    if kind == "function":
        return model, draw(st.sampled_from(sorted(FUNCTIONS))), {"X": draw(INPUTS), "y": draw(OUTPUTS)}
    method = draw(st.sampled_from(sorted(CALLS)))
    arguments = CALLS[method]
    given_ones = [name for name in arguments if name in ("X", "y") or draw(st.booleans())]
    return model, method, {name: draw(arguments[name]) for name in given_ones}


# ---------------------------------------------------------------------- what comes back


class Hanging(BaseException):
    """Timeout of a call; not an Exception, so that no handler of the call catches it."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def end(*_: Any) -> None:
        raise Hanging

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def made(models: dict[str, Any], name: str, called: str, arguments: dict[str, Any]) -> None:
    """Make the call."""
    model = models[name]
    if called == "fit":
        rest = dict(arguments)
        given_rows, y = rest.pop("X"), rest.pop("y")
        kind = type(model) if isinstance(model, LaplaceRegressor | LaplaceClassifier) else LaplaceRegressor
        known = kind().get_params(deep=False)
        kind(**{**SMALL, "max_epochs": 2, **{k: v for k, v in rest.items() if k in known}}).fit(given_rows, y)
    elif called in FUNCTIONS:
        function, takes_y = FUNCTIONS[called]
        function(model, *((arguments["X"], arguments["y"]) if takes_y else (arguments["X"],)))
    else:
        getattr(copy.deepcopy(model) if called in CHANGES else model, called)(**arguments)


def way(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Frames from the call down to the origin of the error."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def file_of(traceback: TracebackType) -> str:
    return traceback.tb_frame.f_code.co_filename.replace("\\", "/")


def is_clear(error: Exception) -> bool:
    """True if the error was raised on purpose."""
    if not isinstance(error, EXPECTED) or not str(error):
        return False
    frames = list(way(error.__traceback__))
    if any(file_of(frame).endswith(CONVERTS) for frame in frames):
        return True
    last = frames[-1]
    if file_of(last) == __file__.replace("\\", "/"):  # Python's own: no such method, no such argument
        return isinstance(error, AttributeError | TypeError)
    operations = {i.offset: i.opname for i in dis.get_instructions(last.tb_frame.f_code)}
    by_statement = operations.get(last.tb_lasti, "") in ("RAISE_VARARGS", "RERAISE")
    return by_statement and any(package in file_of(last) for package in ("/sklearn_laplace/", "/sklearn/"))


def outcome(models: dict[str, Any], call: Call, seconds: int) -> tuple[str, str]:
    """Outcome of a call, as a word and as a line."""
    try:
        with at_most(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made(models, *call)
    except Hanging:
        return "hangs", f"{call[1]} of the model '{call[0]}'"
    except Exception as error:
        if is_clear(error):
            return "clear", ""
        place = "/".join(file_of(list(way(error.__traceback__))[-1]).split("/")[-2:])
        return "unclear", f"{call[1]}: {type(error).__name__} in {place}: {str(error)[:150]}"
    return "answer", ""


def fuzz(n_calls: int, share_of_fits: float, seconds: int, start: int = 0) -> tuple[Counter[str], dict[str, Call]]:
    """Count the outcomes of the calls, with an example of each unclear error and each hanging call."""
    fitted = models()
    counts: Counter[str] = Counter()
    examples: dict[str, Call] = {}

    @seed(start)
    @settings(
        max_examples=n_calls, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(calls(tuple(fitted), share_of_fits))
    def run(call: Call) -> None:
        word, line = outcome(fitted, call, seconds)
        counts[word] += 1
        if line:
            examples.setdefault(line, call)

    run()
    return counts, examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--fits", type=float, default=0.02, help="share of the calls that are fits")
    parser.add_argument("--seconds", type=int, default=30, help="a call that takes longer hangs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a thousand calls")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    counts, examples = fuzz(1000 if options.quick else options.calls, options.fits, options.seconds, options.seed)
    for line, (name, called, arguments) in examples.items():
        print(f"- {line}\n    '{name}'.{called}({', '.join(f'{k}={v!r:.80}' for k, v in arguments.items())})")
    print(f"\n{sum(counts.values())} calls in {time.perf_counter() - start:.0f} s: {dict(counts.most_common())}")
    print(f"{len(examples)} different kinds of errors are unclear.")


if __name__ == "__main__":
    main()
