"""All public names, collected from the package.

``python tests/support/api.py > docs/api.md`` writes the documentation page.
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

Every public name with its summary. Its docstring has an executed example. Docstrings of estimators, methods, functions
and options also have parameters with shapes and units, and the errors of methods and functions:
`help(sklearn_laplace.LaplaceRegressor.predict_interval)`. Classes of the engine have the shapes of their fields as
comments in the source.
"""
ESTIMATORS = sklearn_laplace.LaplaceRegressor, sklearn_laplace.LaplaceClassifier
SCIKIT_LEARN = ["get_metadata_routing", "get_params", "set_callbacks", "set_params"]
"""Inherited methods that scikit-learn documents; ``set_…_request`` is another kind of them."""
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
    """Public name as listed on the page, and its object."""

    name: str
    value: Any

    @property
    def documentation(self) -> str:
        return inspect.getdoc(self.value.fget if isinstance(self.value, property) else self.value) or ""

    @property
    def summary(self) -> str:
        """First paragraph of the docstring as a single line without markup."""
        text = " ".join(self.documentation.split("\n\n")[0].split())
        for markup in (":class:", ":meth:", ":func:", ":math:", "~sklearn_laplace.", "``"):
            text = text.replace(markup, "`" if markup == "``" else "")
        return text.replace("|", "\\|")


def of_estimator(kind: type) -> list[Public]:
    """Documented methods and properties of an estimator."""
    names = [n for n in dir(kind) if n[0] != "_" and n not in SCIKIT_LEARN and not n.endswith("_request")]
    members = [(n, inspect.getattr_static(kind, n)) for n in names]
    return [
        Public(f"{kind.__name__}.{n}", value) for n, value in members if callable(value) or isinstance(value, property)
    ]


def of_module(module: Any, names: list[str] | None = None) -> list[Public]:
    """Exported names of a module, or those in ``names``."""
    prefix = module.__name__.removeprefix("sklearn_laplace").removeprefix(".")
    listed = module.__all__ if names is None else names
    return [Public(f"{prefix}.{n}" if prefix else n, getattr(module, n)) for n in listed]


def defined_in(module: Any) -> list[str]:
    return [n for n, o in vars(module).items() if n[0] != "_" and getattr(o, "__module__", None) == module.__name__]


def sections() -> dict[str, list[Public]]:
    """Public names under the headings of the page."""
    top = [entry for entry in of_module(sklearn_laplace) if not inspect.ismodule(entry.value) and entry.name[0] != "_"]
    headings = {"Estimators": [entry for entry in top if entry.value in ESTIMATORS]}
    headings |= {f"Methods of {kind.__name__}": of_estimator(kind) for kind in ESTIMATORS}
    headings["Functions"] = [entry for entry in top if entry.value not in ESTIMATORS]
    headings["Option objects"] = of_module(options)
    headings["Metrics"] = [entry for entry in of_module(metrics) if callable(entry.value)]
    headings["Recalibration"] = of_module(recalibration, ["SigmaScaling"])
    headings["Displays"] = of_module(plotting)
    headings["Errors and warnings"] = of_module(errors, defined_in(errors))
    return headings


def engine() -> dict[str, list[Public]]:
    """Implementations of the values of each parameter."""
    return {axis: [Public(name, value) for name, value in registry.items()] for axis, registry in AXES.items()}


def lines() -> Iterator[str]:
    yield HEADER
    for heading, listed in sections().items():
        yield f"## {heading}\n\n| name | |\n|---|---|"
        yield from (f"| `{entry.name}` | {entry.summary} |" for entry in listed)
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
        yield from (
            f"| {entry.name} | `{entry.value.__module__}.{entry.value.__name__}` | {entry.summary} |"
            for entry in listed
        )
        yield ""


def page() -> str:
    """Text of ``docs/api.md``."""
    return "\n".join(lines())


if __name__ == "__main__":
    print(page(), end="")
