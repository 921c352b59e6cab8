"""Feature tables: every claim links to a test, every missing feature has a reason, every option value has a row."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.layers import LAYERS
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.predictives import PREDICTIVES
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.selection import SELECTIONS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SCORES, SUBSETS
from sklearn_laplace.nets import ACTIVATIONS
from sklearn_laplace.options.likelihood import BALANCED, SINGLE_LOGIT, VARYING_NOISE
from sklearn_laplace.options.resolve import STD_KINDS
from sklearn_laplace.options.resolved import BIASES, DAMPINGS, DISPERSION_RULES, PRIOR_RULES, SHARINGS
from sklearn_laplace.options.training import WEIGHTINGS

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS = ["capability", "here", "source", "test"]
SOURCES = (
    "MacKay 1992",
    "Ritter 2018",
    "curvature",
    "LaplaceRedux.jl",
    "laplace-torch",
    "sine tutorial",
    "own",
)
LINK = re.compile(r"\[(\w+)\]\(([^)]+)\)")
OPTIONS = {
    "subset_of_weights": SUBSETS,
    "subset_of_weights__score": SCORES,
    "curvature": CURVATURES,
    "hessian_structure": STRUCTURES,
    "hessian_structure__bias": BIASES,
    "hessian_structure__weight_sharing": SHARINGS,
    "hessian_structure__damping": DAMPINGS,
    "layers": LAYERS,
    "likelihood": chain(LIKELIHOODS, SINGLE_LOGIT, VARYING_NOISE),
    "predictive": PREDICTIVES,
    "link": LINKS,
    "selection": SELECTIONS,
    "prior_precision": PRIOR_RULES,
    "sigma_noise": DISPERSION_RULES,
    "prior": GROUPINGS,
    "kind": STD_KINDS,
    "n_members__weights": WEIGHTINGS,
    "class_weight": [BALANCED],
    "categorical_features": ["from_dtype"],
    "activation": ACTIVATIONS,
    "dtype": ["float32", "float64"],
    "map_prior_precision": ["same"],
    "device": ["cuda"],
}


def lines() -> list[str]:
    return (DOCS / "features.md").read_text(encoding="utf-8").splitlines()


def rows() -> list[list[str]]:
    """Cells of all table rows, without headers and rulers."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines() if line.startswith("| ")]
    return [row for row in cells if row != COLUMNS]


@cache
def functions_of(path: Path) -> set[str]:
    """Names of the test functions of a file, which is parsed and not imported."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_table_has_the_same_columns():
    """The other tests rely on the columns; a vertical bar within a cell would shift them."""
    sections = [line for line in lines() if line.startswith("## ")]
    assert lines().count("| " + " | ".join(COLUMNS) + " |") == len(sections) > 10
    assert len(rows()) > 150
    assert [row for row in rows() if len(row) != len(COLUMNS)] == []


def test_every_capability_has_one_row():
    """Capabilities are not repeated per source."""
    assert len({row[0] for row in rows()}) == len(rows())


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_has_rows(source):
    """A source is described above the tables and named in rows."""
    assert f"- **{source}**" in "\n".join(lines())
    assert sum(source in row[2] for row in rows()) >= 4


def test_every_linked_test_exists():
    """The linked file has a test function of this name."""
    links = [link for row in rows() for link in LINK.findall(row[3])]
    assert len(links) > 150
    missing = [(name, target) for name, target in links if name not in functions_of((DOCS / target).resolve())]
    assert missing == []


def test_a_row_has_a_test_or_a_reason():
    """A capability that is absent has a reason and no test."""
    for row in rows():
        refused = re.match(r"no: .{8,}", row[1])
        assert bool(LINK.search(row[3])) != bool(refused), row
        assert refused is None or row[3] == "–", row


@pytest.mark.parametrize("option", OPTIONS)
def test_every_value_of_an_option_is_in_a_row(option):
    """Values are quoted, as in code."""
    claimed = " ".join(row[1] for row in rows() if not row[1].startswith("no:"))
    assert [value for value in OPTIONS[option] if f'"{value}"' not in claimed] == []
