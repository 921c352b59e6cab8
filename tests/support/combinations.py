"""Tables of supported combinations, generated from the registries that also decide which combinations are refused.

``python tests/support/combinations.py > docs/combinations.md`` writes the documentation page.
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass

import torch

from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SUBSETS, Subnetwork
from sklearn_laplace.options.likelihood import LIKELIHOODS_FOR
from sklearn_laplace.options.resolve import DEFAULT_LINK, PREDICTIVES_BY_NAME, SAMPLE_LINK
from sklearn_laplace.options.resolved import AUTO, DISPERSION_RULES, EVIDENCE

HEADER = """\
<!-- python tests/support/combinations.py > docs/combinations.md -->

# Combinations

The parameters are independent, and nearly all of their values can be combined. The other combinations raise an
`UnsupportedCombinationError`, whose message names the values to use instead. The tables are generated from the
registries of the package, which also determine what is refused. ✓ means supported, and – means refused.
"""
SUBSET_VALUES = {
    **{
        name: (name, kind() if kind is not Subnetwork else Subnetwork({"w": torch.eye(2, dtype=torch.bool)}))
        for name, kind in SUBSETS.items()
    },
    "list of tensors": (["out.weight"], Subnetwork({"out.weight": None})),
    "dict of masks": ({"out.weight": [[True, False]]}, Subnetwork({"w": torch.eye(2, dtype=torch.bool)})),
}
"""Values of ``subset_of_weights``, each with the argument and the resulting subset."""


@dataclass(frozen=True)
class Table:
    """Supported combinations of the values of two parameters.

    Parameters
    ----------
    rows, columns : str
        Names of the parameters, or "method".
    cells : dict of (row, column) to bool
    text : str
        Text above the table.
    """

    rows: str
    columns: str
    cells: dict[tuple[str, str], bool]
    text: str

    def instead(self, column: str) -> list[str]:
        """Return the rows that are supported with a column."""
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
        "The exact Hessian is a matrix summed over rows. The other curvatures are available row by row and layer by "
        "layer.",
    ),
    _table(
        "hessian_structure",
        "subset_of_weights",
        STRUCTURES,
        SUBSET_VALUES,
        lambda a, b: STRUCTURES[a].accepts & SUBSET_VALUES[b][1].provides,
        "Structures with factors per layer do not support subsets of single weights. For `last_layer`, the last module "
        "with parameters must be linear or a convolution. It must be called once, without shared or frozen tensors, "
        "and no layer may bypass it.",
    ),
    _table(
        "curvature",
        "subset_of_weights",
        CURVATURES,
        SUBSET_VALUES,
        lambda a, b: CURVATURES[a].provides & SUBSET_VALUES[b][1].provides,
        "The exact Hessian is available for whole tensors, but not for single weights.",
    ),
    _table(
        "hessian_structure",
        "prior",
        STRUCTURES,
        GROUPINGS,
        lambda a, b: GROUPINGS[b].unit in STRUCTURES[a].holds,
        "Kronecker factors need equal prior precisions within each column of a layer's weight matrix. `ekfac` needs "
        "equal prior precisions within each layer.",
    ),
    _table(
        "hessian_structure",
        "method",
        STRUCTURES,
        ("partial_fit", "forget"),
        _streams,
        "The curvatures of parts of the rows add up to the curvature of all rows. Exceptions are "
        f"{', '.join(f'`{name}`' for name, kind in STRUCTURES.items() if not kind.is_monoid)}, which keep the basis "
        "or the rank of the first fit. For these, the curvature after `partial_fit` is only approximately that of all "
        "rows.",
    ),
    _table(
        "predictive",
        "link",
        PREDICTIVES_BY_NAME,
        LINKS,
        lambda a, b: PREDICTIVES_BY_NAME[a].takes_link or b in (DEFAULT_LINK, SAMPLE_LINK),
        "With weight samples (`mc`), probabilities are the average softmax of the samples. The default link then "
        "denotes this average.",
    ),
    _table(
        "likelihood",
        "sigma_noise",
        LIKELIHOODS_FOR["regressor"],
        DISPERSION_RULES,
        lambda a, b: LIKELIHOODS[a].has_dispersion or b in (AUTO, EVIDENCE),
        "Counts have no noise level, so the supported values have no effect.",
    ),
    _table(
        "likelihood",
        "link",
        LIKELIHOODS_FOR["classifier"],
        LINKS,
        lambda a, b: LIKELIHOODS[a].over_classes,
        "Only classifiers have a link.",
    ),
)


def page() -> str:
    """Return the text of ``docs/combinations.md``."""
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
