"""All public names, collected from the package itself.

``python tests/support/api.py > docs/api.md`` writes the page of the documentation.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sklearn_laplace
from sklearn_laplace import errors, metrics, options, plotting, recalibration
from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.layers import LAYERS
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.predictives import PREDICTIVES
from sklearn_laplace.laplace.selection import SELECTIONS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SUBSETS

HEADER = """\
<!-- python tests/support/api.py > docs/api.md -->

# API in one page

Every public name with its summary. Docstrings have parameters, shapes, units, errors and an executed example:
`help(sklearn_laplace.LaplaceRegressor.predict_interval)`.
"""
ESTIMATORS = sklearn_laplace.LaplaceRegressor, sklearn_laplace.LaplaceClassifier
SCIKIT_LEARN = ["get_metadata_routing", "get_params", "set_callbacks", "set_params"]
"""Inherited methods that scikit-learn documents, as it does ``set_…_request``."""
AXES: dict[str, Mapping[str, Any]] = {
    "subset_of_weights": SUBSETS,
    "curvature": CURVATURES,
    "hessian_structure": STRUCTURES,
    "layers, by the module's type": LAYERS,
    "likelihood": LIKELIHOODS,
    "predictive": PREDICTIVES,
    "link": LINKS,
    "choice of prior and noise": SELECTIONS,
}


@dataclass(frozen=True)
class Public:
    """A name as on the page, and the object that has it."""

    name: str
    found: Any

    @property
    def documentation(self) -> str:
        return inspect.getdoc(self.found.fget if isinstance(self.found, property) else self.found) or ""

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, in a line, without its markup."""
        text = " ".join(self.documentation.split("\n\n")[0].split())
        for markup in (":class:", ":meth:", ":func:", ":math:", "~sklearn_laplace.", "``"):
            text = text.replace(markup, "`" if markup == "``" else "")
        return text.replace("|", "\\|")


def of_estimator(kind: type) -> list[Public]:
    """Methods and properties that this package documents."""
    names = [n for n in dir(kind) if n[0] != "_" and n not in SCIKIT_LEARN and not n.endswith("_request")]
    found = [(n, inspect.getattr_static(kind, n)) for n in names]
    return [Public(f"{kind.__name__}.{n}", one) for n, one in found if callable(one) or isinstance(one, property)]


def of_module(module: Any, names: list[str] | None = None) -> list[Public]:
    """Exported names of a module, or the listed ones."""
    prefix = module.__name__.removeprefix("sklearn_laplace").removeprefix(".")
    listed = module.__all__ if names is None else names
    return [Public(f"{prefix}.{n}" if prefix else n, getattr(module, n)) for n in listed]


def defined_in(module: Any) -> list[str]:
    return [n for n, o in vars(module).items() if n[0] != "_" and getattr(o, "__module__", None) == module.__name__]


def sections() -> dict[str, list[Public]]:
    """Names by the headings of the page."""
    top = [one for one in of_module(sklearn_laplace) if not inspect.ismodule(one.found) and one.name[0] != "_"]
    found = {"Estimators": [one for one in top if one.found in ESTIMATORS]}
    found |= {f"Methods of {kind.__name__}": of_estimator(kind) for kind in ESTIMATORS}
    found["Functions"] = [one for one in top if one.found not in ESTIMATORS]
    found["Option objects"] = of_module(options)
    found["Metrics"] = [one for one in of_module(metrics) if callable(one.found)]
    found["Recalibration"] = of_module(recalibration, ["SigmaScaling"])
    found["Displays"] = of_module(plotting)
    found["Errors and warnings"] = of_module(errors, defined_in(errors))
    return found


def engine() -> dict[str, list[Public]]:
    """Implementations of the values of each axis."""
    return {axis: [Public(name, found) for name, found in registry.items()] for axis, registry in AXES.items()}


def lines() -> Iterator[str]:
    yield HEADER
    for heading, listed in sections().items():
        yield f"## {heading}\n\n| name | |\n|---|---|"
        yield from (f"| `{one.name}` | {one.summary} |" for one in listed)
        yield ""
    yield "## Implementations of the values\n"
    yield textwrap.fill(
        "The engine below the estimators needs torch only and can be used without them. Each value of a parameter is "
        "one file; `docs/developing.md` describes the layout.",
        width=120,
    )
    yield ""
    for axis, listed in engine().items():
        yield f"| {axis} | | |\n|---|---|---|"
        yield from (f"| {one.name} | `{one.found.__module__}.{one.found.__name__}` | {one.summary} |" for one in listed)
        yield ""


def page() -> str:
    """Text of ``docs/api.md``."""
    return "\n".join(lines())


if __name__ == "__main__":
    print(page(), end="")
