"""The house: import levels, the cap on a file's size, registries, no option strings outside ``_resolve``."""

from __future__ import annotations

import ast
import io
import pathlib
import re
import tokenize

import pytest

import sklearn_laplace
from sklearn_laplace import _resolve
from sklearn_laplace.curvatures import CURVATURES
from sklearn_laplace.layers import LAYERS
from sklearn_laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.links import LINKS
from sklearn_laplace.predictives import PREDICTIVES
from sklearn_laplace.selection import SELECTIONS
from sklearn_laplace.structures import STRUCTURES
from sklearn_laplace.subsets import SUBSETS

PACKAGE = pathlib.Path(sklearn_laplace.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]
LEVELS = (
    "errors latent linalg jacobian",
    "gradients prior replica likelihoods layers links",
    "network structures",
    "curvatures by_name nonfinite tempering",
    "laplace predictives",
    "subsets evidence data_loss streaming leave_one_out",
    "mode",
    "selection jackknife",
    "_annotations _atomic _autograd _given _persistence _progress _tree_bounds",
    "_augment _budget _member_weights _memory _noise _prior_options _restoring _show _skorch _structure_options "
    "_tables _targets _threads _values counts nets",
    "_cross_validation _map _noise_model _resolve mixtures reliability",
    "_data _diagnosis _onnx_layers _past _loo _relevance",
    "_approximation _built_in _cross_fit _few_rows _path _shared_pass _training",
    "_kinds _learnt_noise _stages",
    "_cached_training",
    "_ensemble",
    "_state",
    "_estimator",
    "regressor classifier",
    "_trial resolver",
    "_files _onnx metrics plotting recalibration",
    "__init__",
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names.split()}
WITHIN_A_LEVEL = {("linalg", "errors"), ("jacobian", "linalg")}
"""Imports within one level: a factorisation raises the package's own errors; symmetric products of factors."""
MADE_OF = {
    "block": {"full"},
    "bridge_norm": {"bridge"},
    "ekfac": {"kron"},
    "inf": {"block", "diag", "ekfac"},
    "low_rank": {"functional"},
}
"""Variants that are made of another one."""
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
FROM_LEVEL_8 = {"numpy", "scipy", "sklearn", "skorch", "joblib"}


def part(path: pathlib.Path) -> str:
    """The top-level module or folder that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: pathlib.Path) -> list[tuple[int, str]]:
    """(relative level, dotted name) of every import, wherever it stands in the file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level and not base:
                found += [(node.level, alias.name) for alias in node.names]
            else:
                found.append((node.level, base))
    return found


def targets(path: pathlib.Path) -> list[tuple[str, str]]:
    """(part of the package, file within it) that a file imports."""
    package_depth = len(path.relative_to(PACKAGE).parts)
    found = []
    for level, name in imports(path):
        if level == 0:
            continue
        pieces = name.split(".") if name else []
        inside_own_folder = level < package_depth
        if inside_own_folder:
            found.append((part(path), pieces[0] if pieces else ""))
        else:
            found.append((pieces[0], pieces[1] if len(pieces) > 1 else ""))
    return found


def code_lines(path: pathlib.Path) -> int:
    """Lines of code: docstrings, comments and blank lines aside."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        owner = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if owner and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            documented.update(range(first.lineno, first.end_lineno + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_imports_only_lower_levels(path):
    """The order of ideas is the order of imports; a cycle of ideas would be one of imports."""
    own = part(path)
    assert own in LEVEL, f"{own} has no level: give it one in docs/developing.md and here"
    for target, _ in targets(path):
        if target != own and (own, target) not in WITHIN_A_LEVEL:
            assert LEVEL[target] < LEVEL[own], f"{path.name} (level {LEVEL[own]}) imports {target} ({LEVEL[target]})"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_siblings_do_not_import_each_other(path):
    """A variant knows its base and nothing of the other variants; the registry alone knows them all."""
    if part(path) not in REGISTRIES or path.name == "__init__.py":
        return
    inside = {file for target, file in targets(path) if target == part(path)} - {"_base"}
    assert inside <= MADE_OF.get(path.stem, set()), f"{path.name} imports its siblings {inside}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_arrays_and_estimators_stay_above(path):
    """Below level 8 there is torch alone: the engine can be used and tested without scikit-learn."""
    if LEVEL[part(path)] < 8:
        outside = {name.split(".")[0] for level, name in imports(path) if level == 0}
        assert not outside & FROM_LEVEL_8, f"{path.name} imports {outside & FROM_LEVEL_8}"


def test_skorch_is_imported_in_few_places():
    """The training host is one file; the others only name its types."""
    users = {str(p.relative_to(PACKAGE)) for p in FILES if any(n.split(".")[0] == "skorch" for _, n in imports(p))}
    assert users <= {"_skorch.py", "_map.py", "_state.py", "_ensemble/member.py", "_ensemble/train_one.py"}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_file_is_long(path):
    """One concept a file: 400 lines of code is the cap."""
    assert code_lines(path) <= 400


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_module_says_what_it_owns(path):
    """The docstring comes first in every module."""
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.name} has no docstring"


@pytest.mark.parametrize("folder", sorted(REGISTRIES))
def test_registry_keys_are_file_names(folder):
    """A stranger finds a variant by its name; a file without a registry line is dead."""
    files = {path.stem for path in (PACKAGE / folder).glob("[a-z]*.py")}
    assert set(REGISTRIES[folder]) == files
    for key, variant in REGISTRIES[folder].items():
        assert variant.__module__ == f"sklearn_laplace.{folder}.{key}"
        if isinstance(variant, type):
            assert variant.__name__.lower() == key.replace("_", "")


def test_the_docs_list_every_variant():
    """docs/developing.md has one row an axis, with all its variants."""
    text = (PACKAGE.parent / "docs" / "developing.md").read_text()
    rows = {m[1]: {v.strip() for v in m[2].split(",")} for m in re.finditer(r"`(\w+)/` \| ([^|\n]+) \|", text)}
    assert rows == {folder: set(registry) for folder, registry in REGISTRIES.items()}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_option_string_is_compared_outside_resolve(path):
    """A string that a user may pass is looked up once; elsewhere objects decide."""
    if path.name == "_resolve.py":
        return
    values = {*_resolve.STD_KINDS, *_resolve.DISPERSION_RULES, *_resolve.PRIOR_STRUCTURES, "auto", "same"}
    values |= {*_resolve.BIASES, *_resolve.DAMPINGS, *_resolve.SHARINGS}
    values |= {key for registry in REGISTRIES.values() for key in registry}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            strings = {
                leaf.value
                for side in (node.left, *node.comparators)
                for leaf in ast.walk(side)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            }
            assert not strings & values, f"{path.name}:{node.lineno} compares {strings & values}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_forbidden_habits(path):
    """No attribute sniffing, no attribute magic, no file called utils (``__sklearn_is_fitted__`` is the protocol)."""
    assert path.stem != "utils"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.name != "__getattr__"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
            assert path.name == "_estimator.py", f"{path.name}:{node.lineno} sniffs an attribute"
