"""Dask collections: the partitions of dataframes and the chunks of arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from .source import ArraySource, Block, RowSource, is_collection


@dataclass(frozen=True)
class DaskSource(RowSource):
    """Rows of a dask dataframe or array, whose partitions are computed one at a time."""

    partitions: tuple[tuple[Any, Any, Any], ...]  # delayed X, targets and weights, or None
    targets: Any  # names of columns, if in X
    weight: str | None  # name of a column, if in X

    @classmethod
    def of(cls, X: Any, y: Any, sample_weight: Any) -> Self:
        in_X = [value for value in (y, sample_weight) if _is_names(value)]
        for name in [name for value in in_X for name in ([value] if isinstance(value, str) else value)]:
            if name not in list(getattr(X, "columns", ())):
                raise ValueError(
                    f"there is no column {name!r} in X; its columns are {list(getattr(X, 'columns', ()))}."
                )
        beside = [None if value is None or _is_names(value) else _delayed(value, name)
                  for value, name in ((y, "y"), (sample_weight, "sample_weight"))]  # fmt: skip
        parts = _delayed(X, "X")
        for name, part in zip(("y", "sample_weight"), beside, strict=True):
            if part is not None and len(part) != len(parts):
                raise ValueError(
                    f"{name} has {len(part)} partitions, and X has {len(parts)}. Repartition them alike, or pass the "
                    "name of a column of X."
                )
        others = [[None] * len(parts) if part is None else part for part in beside]
        names = [value if _is_names(value) else None for value in (y, sample_weight)]
        targets = tuple(names[0]) if isinstance(names[0], list) else names[0]
        return cls(tuple(zip(parts, *others, strict=True)), targets, names[1])

    def blocks(self, part: int) -> Iterator[Block]:
        from dask.base import compute

        X, y, sample_weight = compute(*self.partitions[part], scheduler="synchronous")
        yield from _rows(X, y, sample_weight, self.targets, self.weight).all_blocks()

    @cached_property
    def lengths(self) -> Sequence[int]:
        """Number of rows of each partition. Counting computes all partitions; a fit on workers avoids this."""
        from dask.base import compute
        from dask.delayed import delayed

        lengths = []
        for place, (n, *rest) in enumerate(compute(*(delayed(_lengths)(*parts) for parts in self.partitions))):
            if any(other != n for other in rest if other is not None):
                raise ValueError(f"partition {place} of X has {n} rows, and those of y and sample_weight have {rest}.")
            lengths.append(n)
        if not sum(lengths):
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: X has no rows.")
        return lengths

    @property
    def identity(self) -> object:
        return tuple(str(X.key) for X, _, _ in self.partitions)


@dataclass(frozen=True)
class Partitions(RowSource):
    """Computed partitions of a collection, on one rank; the fields are those of :class:`DaskSource`."""

    partitions: list[list[Any]]
    targets: Any
    weight: str | None

    @property
    def lengths(self) -> Sequence[int]:
        return [len(X) for X, _, _ in self.partitions]

    def blocks(self, part: int) -> Iterator[Block]:
        X, y, sample_weight = self.partitions[part]
        yield from _rows(X, y, sample_weight, self.targets, self.weight).all_blocks()


def _rows(X: Any, y: Any, sample_weight: Any, targets: Any, weight: str | None) -> ArraySource:
    """Rows of a computed partition, whose targets and weights may be columns of X."""
    named = [*([targets] if isinstance(targets, str) else targets or ()), *([] if weight is None else [weight])]
    if targets is not None:
        y = X[targets if isinstance(targets, str) else list(targets)]
    if weight is not None:
        sample_weight = X[weight]
    return ArraySource(X.drop(columns=named) if named else X, y, sample_weight)


def lazily(function: Callable[[Any, Any], Any], model: Any, X: Any) -> Any:
    """Apply ``function`` to the model and each partition of X; return a lazy dask array, or a tuple of arrays."""
    import dask.array as da
    from dask.base import compute
    from dask.delayed import delayed

    parts = _delayed(X, "X")
    few = compute(parts[0], scheduler="synchronous")[0][:2]
    example, shared = function(model, few), delayed(model, pure=False)
    results = [delayed(function)(shared, part) for part in parts]

    def array(values: list[Any], like: np.ndarray) -> Any:
        shape = (np.nan, *like.shape[1:])
        return da.concatenate(
            [da.from_delayed(part, shape, like.dtype) for part in values], allow_unknown_chunksizes=True
        )

    if not isinstance(example, tuple):
        return array(results, example)
    return tuple(array([part[k] for part in results], like) for k, like in enumerate(example))


def _is_names(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
    )


def _delayed(value: Any, name: str) -> list[Any]:
    """Delayed partitions of a collection; ``TypeError`` if it is not a dask collection."""
    if not is_collection(value):
        raise TypeError(
            f"{name} is of type {type(value).__name__}, and X is a collection of dask. Pass a collection of dask with "
            "the same partitions, or the name of a column of X."
        )
    if getattr(value, "ndim", 1) == 2 and getattr(value, "rechunk", None) is not None:
        value = value.rechunk({1: -1})
    parts = value.to_delayed()
    return list(parts.ravel() if isinstance(parts, np.ndarray) else parts)


def _lengths(*values: Any) -> list[int | None]:
    return [None if value is None else len(value) for value in values]
