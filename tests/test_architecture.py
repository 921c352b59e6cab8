"""The architecture: order of the packages, what a fit enters, registries, and habits that the code avoids.

Each rule is a function from source text to its violations, so that a planted violation can show that the rule works.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

import pytest
from measures import (
    Trace,
    constants,
    of_classes,
    of_regressions,
    of_source,
    own_bases,
    private_imports,
    private_tests,
    traces,
)

import sklearn_laplace
from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.layers import LAYERS
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.predictives import PREDICTIVES
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.selection import SELECTIONS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SUBSETS
from sklearn_laplace.options import resolve
from sklearn_laplace.options.resolved import DISPERSION_RULES

PACKAGE = pathlib.Path(sklearn_laplace.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]
SOURCES = dict(zip(NAMES, (path.read_text(encoding="utf-8") for path in FILES), strict=True))

PACKAGES = """
errors _files _validation laplace nets distributions _table options _training _ensemble _storage _estimator metrics
_export recalibration plotting __init__
"""
PARTS = """
torch_state linalg extrapolation jacobian replica layers prior network latent links likelihoods curvatures nonfinite
structures tempering fit evidence leave_one_out mode predictives prior_groups selection subsets updates __init__
"""
ORDER = PACKAGES.split()
"""Packages and modules of the top level; each imports only what stands before it."""
ENGINE = PARTS.split()
"""The same within ``laplace/``."""
WITHOUT_SKLEARN = {"numpy", "scipy", "sklearn", "skorch", "joblib"}
"""Libraries that the engine does not import."""
SKORCH = {"nets", "_training", "_storage"}
"""Packages that import skorch: nets, their own epochs, and storage; others may name the type of a net."""
NET_TYPES = {"NeuralNet"}
MADE_OF = {
    "block_diagonal": {"full"},
    "bridge_norm": {"bridge"},
    "ekfac": {"kron"},
    "low_rank_diag": {"block_diagonal", "diag", "ekfac"},
    "low_rank": {"functional"},
    "negative_binomial": {"poisson"},
}
"""Variants that are made of another variant."""
LATE = {"_estimator/printing.py", "_storage/describe.py"}
"""Files that import by a name at run time: the displays when a figure is drawn, and public names for a check."""
REGISTRIES = {
    "curvatures": CURVATURES,
    "layers": LAYERS,
    "likelihoods": LIKELIHOODS,
    "links": LINKS,
    "predictives": PREDICTIVES,
    "selection": SELECTIONS,
    "structures": STRUCTURES,
    "subsets": SUBSETS,
}
MOST_PRIVATE = 45
"""Maximum number of test files that import private modules or names; the others use the public interface."""
MOST_BASES = 5
"""Maximum number of bases of an estimator in this package."""
OPTION_STRINGS = {
    *resolve.STD_KINDS,
    *DISPERSION_RULES,
    *GROUPINGS,
    *(key for registry in REGISTRIES.values() for key in registry),
    "auto",
    "same",
}


@functools.cache
def nodes(text: str) -> list[ast.AST]:
    """All nodes of the syntax tree, which the rules share."""
    return list(ast.walk(ast.parse(text)))


def imported(name: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, file or package within ours) of each import of ours, as a path with slashes."""
    folder = name.split("/")[:-1]
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                whole = "/".join([*base, alias.name])
                is_file = f"{whole}.py" in SOURCES or f"{whole}/__init__.py" in SOURCES
                yield node.lineno, whole if is_file else "/".join(base)


def outside(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, library, name) of each import from elsewhere."""
    for node in nodes(text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0], "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, node.module.split(".")[0], alias.name) for alias in node.names)


def place(path: str) -> tuple[int, int]:
    """Rank in ``ORDER``, and in ``ENGINE`` for files of the engine."""
    parts = path.removesuffix(".py").split("/")
    inner = ENGINE.index(parts[1]) if parts[0] == "laplace" and len(parts) > 1 else 0
    return ORDER.index(parts[0]), inner


def upward(name: str, text: str) -> list[str]:
    """Imports from a package that does not stand before the file's own."""
    own, parts = place(name), name.split("/")
    found = []
    for line, target in imported(name, text):
        same = target.split("/")[: len(parts) - 1] == parts[:-1] and len(parts) > 1
        in_engine = parts[0] == target.split("/")[0] == "laplace"
        rank = place(target)
        allowed = rank < own or (rank == own and same) or (in_engine and target == "laplace")
        if not allowed:
            found.append(f"{name}:{line} imports {target}")
    return found


def libraries(name: str, text: str) -> list[str]:
    """Libraries in the wrong place: scikit-learn or numpy in the engine, skorch outside its host."""
    found = []
    for line, library, what in outside(text):
        wrong = name.startswith("laplace/") and library in WITHOUT_SKLEARN
        wrong |= library == "skorch" and name.split("/")[0] not in SKORCH and what not in NET_TYPES
        if wrong:
            found.append(f"{name}:{line} imports {library}")
    return found


def late(name: str, text: str) -> list[str]:
    """Imports at run time, which the rules above do not see."""
    called = [node.func for node in nodes(text) if isinstance(node, ast.Call)]
    names = {"import_module", "__import__"}
    found = [func for func in called if getattr(func, "attr", getattr(func, "id", "")) in names]
    return [] if name in LATE else [f"{name}:{func.lineno} imports at run time" for func in found]


def siblings(name: str, text: str) -> list[str]:
    """Variants of an axis that import each other; only the registry knows them all."""
    folder, _, file = name.rpartition("/")
    if not folder.startswith("laplace/") or folder.split("/")[1] not in REGISTRIES or file == "__init__.py":
        return []
    allowed = MADE_OF.get(file.removesuffix(".py"), set()) | {"_base"}
    inside = {target.removeprefix(f"{folder}/") for _, target in imported(name, text) if target.startswith(folder)}
    return [f"{name} imports its sibling {other}" for other in sorted(inside - allowed)]


def circles(sources: dict[str, str]) -> list[str]:
    """A loop of imports between files."""
    graph = {}
    for name, text in sources.items():
        own = name.removesuffix(".py").removesuffix("/__init__")
        graph[own] = {
            target for _, target in imported(name, text) if target != own and not own.startswith(f"{target}/")
        }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" → ".join(error.args[1])]
    return []


def _strings(node: ast.expr) -> set[str]:
    return {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)}


def option_strings(name: str, text: str) -> list[str]:
    """Comparisons with the string of an option outside ``options/``, which looks each up once."""
    if name.startswith("options/"):
        return []
    found = []
    for node in nodes(text):
        if isinstance(node, ast.Compare):
            compared = {s for side in (node.left, *node.comparators) for s in _strings(side)} & OPTION_STRINGS
            if compared:
                found.append(f"{name}:{node.lineno} compares {sorted(compared)}")
    return found


def parameters_as_strings(name: str, text: str) -> list[str]:
    """``isinstance(parameters[…], str)``, or of an attribute that is a parameter, outside ``options/``."""
    if name.startswith("options/"):
        return []
    found = []
    for node in nodes(text):
        is_check = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if is_check and isinstance(node.args[1], ast.Name) and node.args[1].id == "str":
            subject = ast.unparse(node.args[0])
            if re.search(r"\bparameters\b|\bself\.(?:" + "|".join(PARAMETERS) + r")\b", subject):
                found.append(f"{name}:{node.lineno} asks whether {subject} is a string")
    return found


def habits(name: str, text: str) -> list[str]:
    """Attribute sniffing, attribute magic, and writes to ``__dict__``."""
    found = []
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            found.append(f"{name}:{node.lineno} defines __getattr__")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
            found.append(f"{name}:{node.lineno} calls hasattr")
        written = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            found += [f"{name}:{node.lineno} writes to __dict__" for one in written if one and _is_state(one)]
        changes = {"update", "pop", "clear", "setdefault", "popitem", "__setitem__"}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changes:
            found += [f"{name}:{node.lineno} writes to __dict__"] * _is_state(node.func.value)
    return found


def _is_state(node: ast.expr) -> bool:
    """Whether an expression is ``x.__dict__`` or ``vars(x)``, or an item of it."""
    node = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "vars" and len(node.args) == 1
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def undocumented(name: str, text: str) -> list[str]:
    """Modules without a docstring."""
    return [] if ast.get_docstring(ast.parse(text)) else [f"{name} has no docstring"]


def undocumented_methods(kind: type) -> list[str]:
    """Public methods and properties of a class without a docstring, of their own or inherited."""
    methods = [name for name, x in vars(kind).items() if inspect.isroutine(x) or isinstance(x, property)]
    public = [name for name in methods if not name.startswith("_")]
    return [f"{kind.__qualname__}.{name}" for name in public if not inspect.getdoc(getattr(kind, name))]


PARAMETERS = sorted(sklearn_laplace.LaplaceClassifier().get_params() | sklearn_laplace.LaplaceRegressor().get_params())
RULES = [
    upward,
    libraries,
    late,
    siblings,
    option_strings,
    parameters_as_strings,
    habits,
    undocumented,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_file_breaks(rule):
    """See the docstring of each rule."""
    assert [line for name, text in SOURCES.items() for line in rule(name, text)] == []


def test_most_test_files_use_the_public_interface():
    """Tests of private code break when it is restructured. Lower the maximum when a file stops importing it."""
    assert len(private_tests()) <= MOST_PRIVATE, private_tests()


@pytest.mark.parametrize(
    ("planted", "is_private"),
    [
        ("from sklearn_laplace._table.rows import PreparedData", True),
        ("from sklearn_laplace.laplace.structures._base import Curvature", True),
        ("from sklearn_laplace import LaplaceRegressor, _searches", True),
        ("def f():\n    import sklearn_laplace._table.limits as memory", True),
        ("from sklearn_laplace import __version__, metrics", False),
        ("import sklearn_laplace.options", False),
        ("from _pytest import mark", False),
    ],
)
def test_a_planted_private_import_is_found(planted, is_private):
    """Also inside a function; ``__version__`` is public."""
    assert bool(private_imports(planted)) == is_private


def test_files_do_not_import_each_other_in_a_circle():
    """Also within a package, where the order is not fixed."""
    assert circles(SOURCES) == []


def test_every_part_has_its_place():
    """The two lists name each file and folder of their level once."""
    levels = {"": ORDER, "laplace": ENGINE}
    for folder, order in levels.items():
        inside = {path.stem for path in (PACKAGE / folder).iterdir() if path.suffix == ".py"}
        inside |= {path.parent.name for path in (PACKAGE / folder).glob("*/__init__.py")}
        assert sorted(order) == sorted(inside)


@pytest.mark.parametrize(
    ("rule", "name", "planted"),
    [
        (upward, "_table/rows.py", "from .._ensemble.member import Member"),
        (upward, "_table/rows.py", "from .._estimator.regressor import LaplaceRegressor"),
        (upward, "laplace/linalg.py", "from .fit import Hyper"),
        (upward, "errors.py", "from .laplace.fit import Hyper"),
        (libraries, "laplace/linalg.py", "import numpy as np"),
        (libraries, "_ensemble/member.py", "from skorch.callbacks import Callback"),
        (late, "_table/rows.py", "x = importlib.import_module('sklearn_laplace.plotting')"),
        (late, "_table/rows.py", "x = import_module('sklearn_laplace.plotting')"),
        (siblings, "laplace/structures/diag.py", "from .kron import Kron"),
        (option_strings, "_ensemble/fit.py", "is_kron = name == 'kron'"),
        (option_strings, "_ensemble/fit.py", "is_one = name in ('auto', 'other')"),
        (parameters_as_strings, "_ensemble/fit.py", "x = isinstance(parameters['n_members'], str)"),
        (parameters_as_strings, "_estimator/regressor.py", "x = isinstance(self.prior_precision, str)"),
        (habits, "_table/rows.py", "x = hasattr(y, 'z')"),
        (habits, "_table/rows.py", "class A:\n    def __getattr__(self, name): ..."),
        (habits, "_table/rows.py", "x.__dict__['a'] = 1"),
        (habits, "_table/rows.py", "del x.__dict__['a']"),
        (habits, "_table/rows.py", "vars(x)['a'] = 1"),
        (habits, "_table/rows.py", "x.__dict__.update(a=1)"),
        (undocumented, "_table/rows.py", "x = 1"),
    ],
)
def test_a_planted_violation_is_found(rule, name, planted):
    """A rule that cannot fail would keep nothing."""
    text = planted if rule is undocumented else f'"""Module."""\n\n{planted}\n'
    assert rule(name, text) != []


def test_a_planted_circle_is_found():
    """Two files of one package that import each other."""
    planted = {
        "_table/rows.py": SOURCES["_table/rows.py"] + "\nfrom .table import Table\n",
        "_table/table.py": SOURCES["_table/table.py"] + "\nfrom .rows import PreparedData\n",
    }
    assert circles({**SOURCES, **planted}) != []


def test_every_method_of_the_engine_is_documented():
    """Ruff's D102 is off there, because overrides inherit the docstring of their protocol."""
    files = [name.removesuffix(".py").removesuffix("/__init__") for name in NAMES if name.startswith("laplace/")]
    modules = [importlib.import_module(f"sklearn_laplace.{file.replace('/', '.')}") for file in files]
    kinds = {x for module in modules for x in vars(module).values() if isinstance(x, type)}
    ours = [kind for kind in kinds if kind.__module__.startswith("sklearn_laplace.laplace.")]
    assert [line for kind in ours for line in undocumented_methods(kind)] == []

    class Planted:
        @property
        def size(self): ...
        @classmethod
        def of(cls): ...
        @functools.cached_property
        def total(self): ...
        def copy(self): ...

    assert len(undocumented_methods(Planted)) == 4


MOST_OF_FIT = {(150, False): Trace(70, 40, 1, 30), (150, True): Trace(69, 34, 1, 29)}
"""Limits of a default fit, by the number of rows and True for classes."""
MOST_OF_PREDICTION = Trace(21, 14, 0, 12)


@pytest.mark.parametrize(("n", "classes"), list(MOST_OF_FIT))
@pytest.mark.usefixtures("short_training")
def test_a_default_fit_and_a_prediction_enter_few_files(n, classes):
    """The counts are upper limits that only fall. Rows travel inside objects, so that only following a call counts.

    The trainings have few steps, which enter what all steps enter.
    """
    fit, prediction = traces(n, classes=classes)
    assert not fit.exceeds(MOST_OF_FIT[n, classes]), fit
    assert fit.exceeds(replace(fit, files=fit.files - 1))
    assert fit.resolved == 1
    assert not prediction.exceeds(MOST_OF_PREDICTION), prediction


@pytest.mark.parametrize(
    ("planted", "n"),
    [("A = 1", 1), ("A: float = -1e3", 1), ("A, B = 2, (3, 4.0)", 2), ("A = True", 0), ("def f():\n    A = 1", 0)],
)
def test_planted_constants_are_counted(planted, n):
    assert constants(planted) == n


@pytest.mark.parametrize("estimator", [sklearn_laplace.LaplaceRegressor, sklearn_laplace.LaplaceClassifier])
def test_estimators_have_few_bases(estimator):
    """Bases of this package; storage, sources and scorers are functions."""
    assert len(own_bases(estimator)) <= MOST_BASES


def test_the_measures_are_read_from_their_sources():
    """``python tests/support/measures.py`` prints them and those of fits; a row has a name, a value and a limit."""
    rows = [*of_source(), *of_classes(), *of_regressions()]
    values = {name: value for name, value, _ in rows}
    assert values["files of the package"] == str(len(FILES))
    assert len({name for name, _, _ in rows}) == len(rows) == 12
    assert re.fullmatch(r"\d+ of 19", values["classes: log loss at most that of CatBoost"])


MOST_POSITIONAL = 7
"""Maximum number of positional parameters of a function; constructors of nets have those of their layers."""


LONG_BUNDLE = 4
"""Number of arguments that a call has to name, rather than take from a tuple."""


def has_many_positions(function: ast.FunctionDef) -> bool:
    """True if a function has too many positional parameters."""
    names = [parameter.arg for parameter in [*function.args.posonlyargs, *function.args.args]]
    return function.name != "__init__" and len([n for n in names if n not in ("self", "cls")]) > MOST_POSITIONAL


def bundles_arguments(function: ast.FunctionDef) -> bool:
    """True if a function makes a long tuple and unpacks it in a call."""
    tuples, unpacked = set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and len(node.value.elts) >= LONG_BUNDLE:
            tuples |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            unpacked.add(node.value.id)
    return bool(tuples & unpacked)


def packed(text: str) -> list[str]:
    """Names of the functions that hide what they take."""
    functions = [node for node in nodes(text) if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if has_many_positions(function) or bundles_arguments(function)]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_function_is_packed(path):
    assert not packed(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("planted", "is_packed"),
    [
        ("def f(a, b, c, d, e, g, h, i): pass", True),
        ("def f(self, a, b, c, d, e, g, h, *, i): pass", False),
        ("def f(a):\n    x = a, 1, 2, 3\n    return g(*x)", True),
        ("def f(a):\n    x = a, 1, 2\n    return g(*x)", False),
    ],
)
def test_a_planted_bundle_is_found(planted, is_packed):
    assert bool(packed(planted)) == is_packed


@pytest.mark.parametrize("folder", sorted(REGISTRIES))
def test_registry_keys_are_file_names(folder):
    """A stranger finds a variant by its name; a file without a registry line is dead."""
    files = {path.stem for path in (PACKAGE / "laplace" / folder).glob("[a-z]*.py")}
    assert set(REGISTRIES[folder]) == files
    for key, variant in REGISTRIES[folder].items():
        assert variant.__module__ == f"sklearn_laplace.laplace.{folder}.{key}"
        if isinstance(variant, type):
            assert variant.__name__.lower() == key.replace("_", "")


def test_the_docs_list_every_variant():
    """docs/developing.md has one row an axis, with all its variants."""
    text = (PACKAGE.parent / "docs" / "developing.md").read_text(encoding="utf-8")
    rows = {m[1]: {v.strip() for v in m[2].split(",")} for m in re.finditer(r"`(\w+)/` \| ([^|\n]+) \|", text)}
    assert rows == {folder: set(registry) for folder, registry in REGISTRIES.items()}


def test_the_docs_show_the_order():
    """docs/developing.md lists the packages in their order."""
    text = (PACKAGE.parent / "docs" / "developing.md").read_text(encoding="utf-8")
    for order in (ORDER, ENGINE):
        assert " → ".join(f"`{name}`" for name in order) in " ".join(text.split())
