"""Measures of the package and of its default fits, with their goals: ``python tests/support/measures.py``.

The first measures trace default fits and predictions call by call, and count source code. The others are read from
``docs/benchmarks``; the benchmarks page has their commands. The script takes about half a minute.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType

import numpy as np

import sklearn_laplace
from sklearn_laplace.options import resolve

PACKAGE = Path(sklearn_laplace.__file__).parent
ROOT = Path(__file__).parents[2]
CASES = ((60, False), (150, False), (1500, False), (150, True))
"""Rows of the default fits that are followed, and True for classes."""
PIPELINE = {"_training", "_ensemble"}
COMPLEX = 10
"""Largest cyclomatic complexity of a simple function."""


@dataclass(frozen=True)
class Trace:
    """What a call enters: files, data classes of which methods run, and how often options are resolved.

    With the files in the order of their first call, ``moves`` is the number of neighbours in different subpackages.
    """

    files: int
    data_classes: int
    resolved: int
    moves: int

    def exceeds(self, other: Trace) -> bool:
        """True if one of the counts is larger than that of ``other``."""
        return any(mine > most for mine, most in zip(astuple(self), astuple(other), strict=True))


def traced(call: Callable[[], object]) -> Trace:
    """Follow a call of this package, function by function."""
    files: dict[str, None] = {}  # in the order of entrance
    kinds: set[type] = set()
    resolved = 0

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal resolved
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)) or code.co_name == "<module>":
            return
        files[code.co_filename] = None
        resolved += code is resolve.resolve.__code__
        owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
        kind = owner if isinstance(owner, type) else type(owner)
        if kind.__module__.startswith("sklearn_laplace") and is_dataclass(kind):
            kinds.add(kind)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    rooms = [Path(file).relative_to(PACKAGE).parts[0] for file in files]
    return Trace(len(files), len(kinds), resolved, sum(a != b for a, b in pairwise(rooms)))


def traces(n: int, *, classes: bool) -> tuple[Trace, Trace]:
    """Traces of a default fit of n rows, and of a prediction."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.2 * rng.normal(size=n)
    model = (sklearn_laplace.LaplaceClassifier if classes else sklearn_laplace.LaplaceRegressor)(random_state=0)
    fit = traced(lambda: model.fit(X, (y > 0).astype(int) if classes else y))
    return fit, traced(lambda: model.predict(X[:5]))


def own_bases(estimator: type) -> list[type]:
    """Bases of an estimator in this package."""
    return [kind for kind in estimator.__mro__[1:] if kind.__module__.startswith("sklearn_laplace")]


def private_imports(text: str) -> list[str]:
    """Private modules and names of the package that a test file imports."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        ours = [name.split(".") for name in names if name.split(".")[0] == "sklearn_laplace"]
        found += [".".join(parts) for parts in ours if any(re.match("_(?!_)", part) for part in parts)]
    return found


@cache
def private_tests() -> list[str]:
    """Names of the test files that import private modules or names."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path.name for path in files if private_imports(path.read_text(encoding="utf-8"))]


def constants(text: str) -> int:
    """Number of names of a module that are bound to a number or to a tuple of numbers."""
    count = 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value, targets = node.value, node.targets if isinstance(node, ast.Assign) else [node.target]
            is_unpacked = isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple)
            count += sum(map(_is_numeric, value.elts if is_unpacked else [value]))
    return count


def _is_numeric(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_numeric, node.elts))
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return all(map(_is_numeric, (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))))
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def complex_functions() -> str:
    """Number of functions and methods of the package above ``COMPLEX``, as radon counts."""
    try:
        from radon.complexity import cc_visit
    except ModuleNotFoundError:
        return "needs radon"
    blocks = (block for path in PACKAGE.rglob("*.py") for block in cc_visit(path.read_text(encoding="utf-8")))
    functions = (part for block in blocks for part in (getattr(block, "methods", None) or [block]))
    return str(len({(part.name, part.lineno) for part in functions if part.complexity > COMPLEX}))


def of_classes() -> Iterator[tuple[str, str, str]]:
    """Shares of the tables of ``class_peers.csv`` on which the default is level, and its time."""
    with (ROOT / "docs/benchmarks/class_peers.csv").open(newline="", encoding="utf-8") as file:
        tables = list(csv.DictReader(file))
    score = {name: [[float(part) for part in row[name].split(" / ")] for row in tables] for name in list(tables[0])[2:]}
    ours, catboost = score["default"], score["CatBoost"]
    for place, name in enumerate(("log loss", "calibration error")):
        for peer in ("CatBoost", "HistGradientBoosting"):
            level = sum(a[place] <= b[place] for a, b in zip(ours, score[peer], strict=True))
            yield f"classes: {name} at most that of {peer}", f"{level} of {len(tables)}", "80 %"
    ratios = [a[2] / b[2] for a, b in zip(ours, catboost, strict=True)]
    yield "classes: processor seconds / CatBoost's, median; largest", f"{median(ratios):.2f}; {max(ratios):.2f}", "3"


def of_regressions() -> Iterator[tuple[str, str, str]]:
    """Tables of ``many_rows.csv`` on which the default has the largest log-likelihood, and the smallest RMSE."""
    with (ROOT / "docs/benchmarks/many_rows.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] in ("default", "CatBoost", "HistGradientBoosting")]
    for score, sign in (("log-likelihood", 1), ("RMSE", -1)):
        best = {}
        for row in rows:
            best.setdefault(row["table"], {})[row["model"]] = sign * float(row[score])
        level = sum(of_table["default"] >= max(of_table.values()) for of_table in best.values())
        yield f"numbers: {score} at least as good as both", f"{level} of {len(best)}", "every table"


def of_source() -> Iterator[tuple[str, str, str]]:
    """Counts of the source code."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    yield "lines of the package", f"{sum(text.count(chr(10)) for text in texts.values()):,}", "35,000"
    yield "files of the package", f"{len(texts)}", "210"
    numeric = sum(constants(text) for path, text in texts.items() if path.parent.name in PIPELINE)
    yield "numeric constants of the pipeline", f"{numeric}", "90"
    yield f"functions of complexity above {COMPLEX}", complex_functions(), "50"
    yield "test files that import private modules", f"{len(private_tests())}", "45"


def of_fits() -> Iterator[tuple[str, str, str]]:
    """Counts of default fits and predictions, one for each of ``CASES``."""
    fits, predictions = zip(*(traces(n, classes=classes) for n, classes in CASES), strict=True)
    estimators = sklearn_laplace.LaplaceRegressor, sklearn_laplace.LaplaceClassifier
    for name, counts, limit in (
        ("files that a fit enters", [trace.files for trace in fits], "70"),
        ("data classes of a fit", [trace.data_classes for trace in fits], "32"),
        ("changes of the subpackage in a fit", [trace.moves for trace in fits], "30"),
        ("options resolved by a fit", [trace.resolved for trace in fits], "1"),
        ("files that a prediction enters", [trace.files for trace in predictions], "22"),
        ("options resolved by a prediction", [trace.resolved for trace in predictions], "0"),
        ("bases of an estimator", [len(own_bases(estimator)) for estimator in estimators], "5"),
    ):
        yield name, ", ".join(map(str, counts)), limit


if __name__ == "__main__":
    print("| measure | value | goal |\n|---|---|---|")
    for measures in (of_fits, of_source, of_classes, of_regressions):
        for row in measures():
            print(f"| {' | '.join(row)} |", flush=True)
