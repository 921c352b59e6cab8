"""Report on the columns of a table: what the net reads from each."""

from __future__ import annotations

from datetime import datetime, timedelta
from html import escape

from .column import CYCLES, Column
from .table import Table

HEADER = ("column", "read as", "values", "missing")
MOST_LEVELS = 3
"""Number of levels listed."""
LONGEST = 60
"""Maximum number of characters of a cell."""


class TableReport:
    """Columns of a fitted estimator, printed as a table, in notebooks as HTML.

    ``rows`` has name, kind, values and share of missing values of each column; ``notes`` has concerns about columns, as
    in a :class:`~sklearn_laplace.errors.TableWarning`.
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
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _kind(column: Column) -> str:
    if column.n_levels:
        return "category"
    kind = "date" if column.zoned is not None else "number"
    kind = f"{kind} from text" if column.of_text else kind
    kind = ", ".join([kind, *(CYCLES[period] for period in column.cycles)])
    return f"{kind}, heavy tails" if column.heavy else kind


def _values(column: Column) -> str:
    """Range of the numbers, or number and examples of the levels."""
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
