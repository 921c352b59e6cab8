"""Collections of dask: the partitions of dataframes and the chunks of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .arrays import ArraySource
from .source import Block, RowSource


@dataclass(frozen=True)
class DaskSource(RowSource):
    """Rows of a dask dataframe or array, whose partitions are computed one at a time.

    Parameters
    ----------
    partitions : tuple of tuple
        Delayed X, targets and weights of each partition; targets and weights may be None.
    counts : tuple of int
        Number of rows of each partition.
    targets : str, tuple of str, or None
        Names of the columns of the targets, if they are in X.
    weight : str or None
        Name of the column of weights, if it is in X.
    """

    partitions: tuple[tuple[Any, Any, Any], ...]
    counts: tuple[int, ...]
    targets: Any
    weight: str | None

    @classmethod
    def of(cls, X: Any, y: Any, sample_weight: Any) -> DaskSource:
        """Source of the rows of a collection; targets and weights are collections too, or names of columns.

        Raises
        ------
        TypeError
            If targets or weights are neither.
        ValueError
            If there is no such column, or the partitions differ in their numbers of rows.
        """
        import dask

        in_X = [value for value in (y, sample_weight) if _is_names(value)]
        for name in [name for value in in_X for name in ([value] if isinstance(value, str) else value)]:
            if name not in list(getattr(X, "columns", ())):
                raise ValueError(
                    f"there is no column {name!r} in X; its columns are {list(getattr(X, 'columns', ()))}."
                )
        beside = [None if value is None or _is_names(value) else _delayed(value, name)
                  for value, name in ((y, "y"), (sample_weight, "sample_weight"))]  # fmt: skip
        parts = _delayed(X, "X")
        others = [[None] * len(parts) if part is None else part for part in beside]
        counts = [dask.delayed(_lengths)(*row) for row in zip(parts, *others, strict=True)]
        lengths = []
        for place, (n, *rest) in enumerate(dask.compute(*counts)):
            if any(other != n for other in rest if other is not None):
                raise ValueError(f"partition {place} of X has {n} rows, and those of y and sample_weight have {rest}.")
            lengths.append(n)
        if not sum(lengths):
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: X has no rows.")
        names = [value if _is_names(value) else None for value in (y, sample_weight)]
        targets = tuple(names[0]) if isinstance(names[0], list) else names[0]
        return cls(tuple(zip(parts, *others, strict=True)), tuple(lengths), targets, names[1])

    def blocks(self, part: int) -> Iterator[Block]:
        """Compute a partition and yield its rows in order."""
        import dask

        yield from self.of_values(*dask.compute(*self.partitions[part], scheduler="synchronous"))

    def of_values(self, X: Any, y: Any, sample_weight: Any) -> Iterator[Block]:
        """Yield the rows of a computed partition."""
        named = [*([self.targets] if isinstance(self.targets, str) else self.targets or ())]
        named += [] if self.weight is None else [self.weight]
        if self.targets is not None:
            y = X[self.targets if isinstance(self.targets, str) else list(self.targets)]
        if self.weight is not None:
            sample_weight = X[self.weight]
        yield from ArraySource(X.drop(columns=named) if named else X, y, sample_weight).all_blocks()

    @property
    def lengths(self) -> Sequence[int]:
        """Number of rows of each part."""
        return self.counts

    @property
    def identity(self) -> object:
        """Keys of the partitions."""
        return tuple(str(X.key) for X, _, _ in self.partitions), self.counts


def is_collection(value: Any) -> bool:
    """True for a dask dataframe, series or array; dask itself is not imported."""
    return type(value).__module__.split(".")[0] in ("dask", "dask_expr") and hasattr(value, "to_delayed")


def _is_names(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
    )


def _delayed(value: Any, name: str) -> list[Any]:
    """Delayed partitions of a collection.

    Raises
    ------
    TypeError
        If it is no collection of dask.
    """
    if not is_collection(value):
        raise TypeError(
            f"{name} is of type {type(value).__name__}, and X is a collection of dask. Pass a collection of dask with "
            "the same partitions, or the name of a column of X."
        )
    if getattr(value, "ndim", 1) == 2 and hasattr(value, "rechunk"):
        value = value.rechunk({1: -1})
    parts = value.to_delayed()
    return list(parts.ravel() if hasattr(parts, "ravel") else parts)


def _lengths(*values: Any) -> list[int | None]:
    return [None if value is None else len(value) for value in values]
