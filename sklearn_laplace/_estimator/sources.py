"""Fits and predictions whose rows are read from a source; ``_sources`` reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from .._data.rows import PreparedData
from .._runtime.group import Group
from .._sources.arrow import ArrowSource
from .._sources.dask_collections import DaskSource, lazily
from .._sources.recognise import SAMPLE_ROWS, shard_of, source_of
from .._sources.sample import Sample, sample_of
from .._sources.source import Block, RowSource, is_collection, joined
from .._training.stream import RowStream
from .._validation.announcements import experimental
from ..errors import UnsupportedCombinationError
from .on_workers import client_of, fit_on_workers

F = TypeVar("F", bound=Callable[..., Any])


def check_options(**arguments: Any) -> None:
    """Refuse arguments of ``fit`` with one value per row that a source does not have."""
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedCombinationError(
                f"{name} is not supported for rows that are read from a source. Omit it, or read the rows into memory."
            )


def by_block(method: F) -> F:
    """Let a prediction read the rows of a source block by block; the results are arrays in memory.

    Of files and of dask dataframes, only the columns of the fit are read. For a collection of dask, the results are
    lazy arrays of dask.
    """

    @wraps(method)
    def call(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if type(X) is np.ndarray:  # rows in memory, unlike a memory map
            return method(self, X, *args, **kwargs)
        names = getattr(self, "feature_names_in_", None)
        if is_collection(X):
            if names is not None and getattr(X, "columns", None) is not None:
                X = X[list(names)]
            return lazily(lambda model, rows: method(model, rows, *args, **kwargs), self, X)
        source = source_of(X)
        if source is None:
            return method(self, X, *args, **kwargs)
        check_options(X_std=kwargs.get("X_std"))
        if isinstance(source, ArrowSource) and names is not None:
            source = source.only(tuple(names))
        return _joined([method(self, block.X, *args, **kwargs) for block in source.all_blocks()])

    return call  # type: ignore[return-value]


def _joined(results: Sequence[Any]) -> Any:
    """Results of several blocks as one: arrays, or tuples or bunches of arrays."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(_joined(parts) for parts in zip(*results, strict=True))
    if isinstance(first, dict):
        return type(first)(**{name: _joined([result[name] for result in results]) for name in first})
    return np.concatenate(results)


def blocks_of_ranks(source: RowSource, group: Group) -> Iterator[Block]:
    """Yield the rows of an update block by block; all ranks receive the same blocks, with the rows of all ranks."""
    shard, _ = shard_of(source, group)
    blocks = shard.all_blocks()
    while True:
        block, error = None, None
        try:
            block = next(blocks, None)
        except Exception as failure:
            error = failure
        group.raise_together(error)
        parts = [part for part in group.gathered(block) if part is not None]
        if not parts:
            return
        yield joined(parts)


@dataclass(frozen=True)
class Reading:
    """Preparation of the rows of a source, of which a sample has been prepared."""

    prepare: Callable[..., PreparedData]  # maps (X, y, weights, None) to prepared rows
    of_sample: float  # sum of the weights that it gives to the sample
    of_all: float  # the same for all rows


def fit_source(estimator: Any, source: RowSource) -> None:
    """Fit to the rows of a source; all ranks of a process group end with the model of rank 0."""
    group = Group.current()
    with estimator._unchanged_on_failure():
        if isinstance(source, DaskSource) and (client := client_of()) is not None:
            experimental("a fit on the workers of a dask cluster")
            estimator._take(fit_on_workers(clone(estimator), source, client))
            return
        if not group.is_alone and group.rank == 0:
            experimental("a fit of several ranks of torch.distributed")
        estimator._resolve()
        sample = sample_of(source, group, SAMPLE_ROWS, estimator._tally)
        X, y, weights = sample.rows.X, sample.rows.y, sample.rows.sample_weight
        if sample.is_all:
            estimator._fit_rows(X, y, weights)
        else:
            estimator._fit(lambda: estimator._prepare_sample(sample), X, y, weights, sample=sample)
        if not group.is_alone:
            estimator._take(group.of_first(estimator))


def stream_of(estimator: Any, sample: Sample, data: PreparedData) -> RowStream:
    """The whole table of a sample, whose prepared rows are given."""
    reader = type(estimator)(**estimator.get_params(deep=False))  # a failed fit restores the other while it reads
    reader._take(estimator)
    reading = reader._reading(sample, data.scale)
    unit = data.total_weight / reading.of_sample
    warned, table = set[int](), data.table

    def read(block: Block) -> PreparedData:
        rows = reading.prepare(block.X, block.y, block.sample_weight, None).weighted(unit)
        nonlocal table
        if table is not None:
            table.warn_of_far(rows.X, warned)
            table = table.with_later(rows.X[rows.weights > 0])
        return rows

    return RowStream(sample.shard, read, sample.n_rows, reading.of_all * unit, Group.current(), lambda: table)
