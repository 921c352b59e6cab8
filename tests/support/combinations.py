"""What goes with what, read off the registries' own declarations, which decide the refusals as well.

``python tests/support/combinations.py > docs/combinations.md`` writes the page of the documentation anew.
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass

import torch

from sklearn_laplace._options.likelihood import LIKELIHOODS_FOR
from sklearn_laplace._options.options import AUTO, DISPERSION_RULES, EVIDENCE
from sklearn_laplace._options.prior import PRIOR_STRUCTURES
from sklearn_laplace._options.resolve import DEFAULT_LINK, SAMPLE_LINK
from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.predictives import PREDICTIVES
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SUBSETS, Subnetwork

HEADER = """\
<!-- python tests/support/combinations.py > docs/combinations.md -->

# What goes with what

Every axis is a parameter of its own, and nearly all of their values go together. The others are refused by an
`UnsupportedCombinationError` that says what to use. These tables are made from what the package's registries declare,
which is what the refusals look at: ✓ works, – is refused.
"""
SUBSET_VALUES = {
    **{
        name: (name, kind() if kind is not Subnetwork else Subnetwork({"w": torch.eye(2, dtype=torch.bool)}))
        for name, kind in SUBSETS.items()
    },
    "list of tensors": (["out.weight"], Subnetwork({"out.weight": None})),
    "dict of masks": ({"out.weight": [[True, False]]}, Subnetwork({"w": torch.eye(2, dtype=torch.bool)})),
}
"""Values of ``subset_of_weights``, and the subset whose capabilities each has."""


@dataclass(frozen=True)
class Table:
    """Which values of one option go with which of another.

    Parameters
    ----------
    rows, columns : str
        Names of the options, or of methods.
    cells : dict of (row, column) to bool
    text : str
        What to know about it.
    """

    rows: str
    columns: str
    cells: dict[tuple[str, str], bool]
    text: str

    def instead(self, column: str) -> list[str]:
        """The rows that go with a column."""
        return [row for (row, other), works in self.cells.items() if other == column and works]


def _table(rows: str, columns: str, left, right, works, text: str) -> Table:
    return Table(rows, columns, {(a, b): bool(works(a, b)) for a, b in itertools.product(left, right)}, text)


def _streams(structure: str, method: str) -> bool:
    return method == "partial_fit" or STRUCTURES[structure].forgets


TABLES = (
    _table(
        "hessian_structure",
        "curvature",
        STRUCTURES,
        CURVATURES,
        lambda a, b: STRUCTURES[a].accepts & CURVATURES[b].provides,
        "The exact Hessian comes as one matrix; the others come row by row, and layer by layer.",
    ),
    _table(
        "hessian_structure",
        "subset_of_weights",
        STRUCTURES,
        SUBSET_VALUES,
        lambda a, b: STRUCTURES[a].accepts & SUBSET_VALUES[b][1].provides,
        "Factors of layers have no room for single weights. `last_layer` needs a net that has one: the last module "
        "with parameters has to be linear or a convolution, called once, with tensors of its own, and no other layer "
        "may reach the outputs past it.",
    ),
    _table(
        "curvature",
        "subset_of_weights",
        CURVATURES,
        SUBSET_VALUES,
        lambda a, b: CURVATURES[a].provides & SUBSET_VALUES[b][1].provides,
        "A matrix of all weights is not cut.",
    ),
    _table(
        "hessian_structure",
        "prior_structure",
        STRUCTURES,
        PRIOR_STRUCTURES,
        lambda a, b: PRIOR_STRUCTURES[b] in STRUCTURES[a].holds,
        "Kronecker factors keep their form under precisions that are equal within each input column of a layer, and "
        "eigenvectors of their own under one a layer.",
    ),
    _table(
        "hessian_structure",
        "method",
        STRUCTURES,
        ("partial_fit", "forget"),
        _streams,
        "Sums over parts of the rows are those over all of them, but for "
        f"{' and '.join(f'`{name}`' for name, kind in STRUCTURES.items() if not kind.is_monoid)}, which keep a basis "
        "or a rank of the rows of the first fit; there `partial_fit` is close to a fit on all rows, not equal to it.",
    ),
    _table(
        "predictive",
        "link",
        PREDICTIVES,
        LINKS,
        lambda a, b: PREDICTIVES[a].takes_link or b in (DEFAULT_LINK, SAMPLE_LINK),
        "Samples of the weights have an average softmax of their own, which is what their default link stands for.",
    ),
    _table(
        "likelihood",
        "sigma_noise",
        LIKELIHOODS_FOR["regressor"],
        DISPERSION_RULES,
        lambda a, b: LIKELIHOODS[a].has_dispersion or b in (AUTO, EVIDENCE),
        "Counts have no noise to choose: the default means nothing there.",
    ),
    _table(
        "likelihood",
        "link",
        LIKELIHOODS_FOR["classifier"],
        LINKS,
        lambda a, b: LIKELIHOODS[a].over_classes,
        "Numbers and counts take no link.",
    ),
)


def page() -> str:
    """The page of the documentation."""
    parts = [HEADER]
    for table in TABLES:
        rows, columns = (list(dict.fromkeys(pair[i] for pair in table.cells)) for i in (0, 1))
        parts += [f"\n## `{table.rows}` and `{table.columns}`\n", textwrap.fill(table.text, 120) + "\n"]
        parts += ["| | " + " | ".join(f"`{c}`" for c in columns) + " |", "|---|" + ":-:|" * len(columns)]
        for row in rows:
            parts += [f"| `{row}` | " + " | ".join("✓" if table.cells[row, c] else "–" for c in columns) + " |"]
        for column in columns:
            if len(able := table.instead(column)) < len(rows):
                parts += [f"\nFor `{column}` use {', '.join(f'`{name}`' for name in able)}."]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
