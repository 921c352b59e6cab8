"""Representation of an estimator as in scikit-learn, with its ``net`` shortened to one line.

scikit-learn prints the parameters that differ from their defaults. A skorch net takes most of its parameters as
keywords, so that all of them would count as changed. A torch module would print one line per layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils._pprint import _EstimatorPrettyPrinter
from torch import nn

from .._data.report import TableReport
from .._data.table import Table
from .._host.given_net import is_list

HTML = "text/html"
LONGEST = 40
"""Maximum number of characters of a printed parameter of a net."""


class Words:
    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


class ShownEstimator:
    """Estimator whose parameter ``net`` is printed in one line, with a report on the columns in notebooks."""

    net: Any
    _table: Table | None
    get_params: Callable[..., dict[str, Any]]

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = BaseEstimator.__repr__(self._with_short_net(), N_CHAR_MAX)
        return text

    def _repr_html_inner(self) -> str:
        return self._with_report(super()._repr_html_inner())  # type: ignore[misc]

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)  # type: ignore[misc]
        return {kind: self._with_report(page) if kind == HTML else page for kind, page in bundle.items()}

    def _with_report(self, page: str) -> str:
        return page if self._table is None else page + TableReport(self._table)._repr_html_()

    def _with_short_net(self) -> Any:
        """Unfitted copy for printing, with a short representation in place of the net."""
        twin = object.__new__(type(self))
        for name, value in self.get_params(deep=False).items():
            setattr(twin, name, value)
        if is_list(self.net):
            twin.net = Words(f"[{', '.join(map(in_a_line, self.net))}]")
        elif not (self.net is None or isinstance(self.net, Words)):
            twin.net = Words(in_a_line(self.net))
        return twin


def in_a_line(value: Any) -> str:
    """Representation of a net, or of one of its parameters, in one line.

    Classes are given by their names, modules without their layers, estimators with their changed parameters.
    """
    if inspect.isclass(value):
        return value.__name__
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}(...)"
    if isinstance(value, BaseEstimator):
        defaults = _defaults(type(value))
        public = {name: v for name, v in value.get_params(deep=False).items() if not name.startswith("_")}
        changed = {name: v for name, v in public.items() if name not in defaults or repr(v) != repr(defaults[name])}
        return f"{type(value).__name__}({', '.join(f'{name}={in_a_line(v)}' for name, v in changed.items())})"
    words = " ".join(repr(value).split())
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."


def _defaults(kind: type) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and base is not object:
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            defaults |= {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return defaults


def _print(printer: Any, estimator: ShownEstimator, *place: Any) -> None:
    printer._pprint_estimator(estimator._with_short_net(), *place)


# Within a pipeline, scikit-learn does not call __repr__ but looks up a printing function for it.
_EstimatorPrettyPrinter._dispatch[ShownEstimator.__repr__] = _print
