"""Text representation of an estimator, with its ``net`` in one line, and the report on its columns.

scikit-learn prints the parameters that differ from their defaults. A skorch net takes most of its parameters as
``**kwargs``, so all of them would count as changed. A torch module would print one line per layer.

The functions that draw plots import the package ``plotting`` only when they are called.
"""

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from html import escape
from importlib import import_module
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils._pprint import _EstimatorPrettyPrinter
from torch import nn

from .._table.column import CYCLES, Column
from .._table.table import Table
from ..nets.given_net import is_list

PACKAGE = __name__.partition(".")[0]


def overview(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    return import_module(f"{PACKAGE}.plotting").OverviewDisplay.from_estimator(estimator, X, y, **options)


def calibration(report: Any, **options: Any) -> Any:
    return import_module(f"{PACKAGE}.plotting").CalibrationReportDisplay(report).plot(**options)


HEADER = ("column", "read as", "values", "missing")
MOST_LEVELS = 3
"""Maximum number of listed levels of a column."""
MOST_CHARACTERS = 60
"""Maximum number of characters of a cell."""


class TableReport:
    """Columns of a fitted estimator, printed as a text table, or as HTML in notebooks.

    ``rows`` has the name, type, values and share of missing values of each column. ``notes`` has the problems of
    columns that a :class:`~sklearn_laplace.errors.TableWarning` also reports.
    """

    def __init__(self, table: Table) -> None:
        self.rows = [_row(column) for column in table.columns]
        self.notes = [column.concern for column in table.columns if column.concern]

    def __repr__(self) -> str:
        lines = [HEADER, *self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(HEADER))]
        printed = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*(line.rstrip() for line in printed), *self.notes])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in HEADER)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _row(column: Column) -> tuple[str, str, str, str]:
    name, missing = column.name.removeprefix("column ").strip("'\""), column.missing_share
    return _short(name), _kind(column), _short(_values(column)), f"{missing:.1%}" if missing else ""


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _kind(column: Column) -> str:
    if column.n_levels:
        return "category"
    kind = "date" if column.zoned is not None else "number"
    kind = f"{kind} from text" if column.of_text else kind
    kind = ", ".join([kind, *(CYCLES[period] for period in column.cycles)])
    return f"{kind}, heavy tails" if column.heavy else kind


def _values(column: Column) -> str:
    """Return the range of the numbers, or the number of levels with examples."""
    if column.n_levels:
        levels = [str(level) for level, _ in column.codes]
        listed = ", ".join(levels[:MOST_LEVELS]) + (", …" if len(levels) > MOST_LEVELS else "")
        return f"{len(levels):,} levels: {listed}"
    if column.low is None or column.high is None:
        return "all missing"
    if column.zoned is None:
        return f"{column.low:.6g}" if column.low == column.high else f"{column.low:.6g} to {column.high:.6g}"
    return " to ".join(_date(days) for days in (column.low, column.high))


def _date(days: float) -> str:
    try:
        moment = datetime(1970, 1, 1) + timedelta(days=days)
    except OverflowError:
        return f"{days:.6g} days"
    return moment.strftime("%Y-%m-%d") if days == int(days) else moment.strftime("%Y-%m-%d %H:%M")


HTML = "text/html"
LONGEST = 40
"""Maximum number of characters printed for a parameter of a net."""


class Words:
    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


class ShownEstimator:
    """Mixin for estimators, printed with ``net`` in one line and, in notebooks, with a report on the columns."""

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
        """Return an unfitted copy for printing, with a short representation in place of the net."""
        twin = object.__new__(type(self))
        for name, value in self.get_params(deep=False).items():
            setattr(twin, name, value)
        if is_list(self.net):
            twin.net = Words(f"[{', '.join(map(in_a_line, self.net))}]")
        elif not (self.net is None or isinstance(self.net, Words)):
            twin.net = Words(in_a_line(self.net))
        return twin


def in_a_line(value: Any) -> str:
    """Return a one-line representation of a net, or of one of its parameters.

    Classes are printed by name, modules without layers, and estimators with their non-default parameters.
    """
    if inspect.isclass(value):
        return value.__name__
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}(...)"
    if isinstance(value, BaseEstimator):
        changed = ", ".join(f"{name}={in_a_line(v)}" for name, v in _changed(value).items())
        return f"{type(value).__name__}({changed})"
    words = " ".join(repr(value).split())
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."


def _changed(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the public parameters that differ from their defaults."""
    defaults: dict[str, Any] = {}
    for base in reversed(type(estimator).__mro__):
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            defaults |= {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    public = {name: v for name, v in estimator.get_params(deep=False).items() if not name.startswith("_")}
    return {name: v for name, v in public.items() if repr(v) != repr(defaults.get(name, inspect.Parameter.empty))}


def _print(printer: Any, estimator: ShownEstimator, *place: Any) -> None:
    printer._pprint_estimator(estimator._with_short_net(), *place)


# Within a pipeline, scikit-learn does not call __repr__, but the printing function registered for it.
_EstimatorPrettyPrinter._dispatch[ShownEstimator.__repr__] = _print
