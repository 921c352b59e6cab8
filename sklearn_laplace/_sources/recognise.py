"""Which arguments of a fit or of a prediction are sources of rows."""

from __future__ import annotations

from glob import has_magic
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from .._runtime.group import Group
from .arrays import ArraySource
from .arrow import ArrowSource, dataset_of
from .dask_collections import DaskSource
from .source import RowSource, SomeParts, is_collection, is_dataset

ENDINGS = (".parquet", ".pq")
"""Ends of the names of Parquet files."""
SAMPLE_ROWS = 200_000
"""Number of rows up to which a source is read into memory, and that are sampled from a larger one."""


def source_of(X: Any, y: Any = None, sample_weight: Any = None, group: Group | None = None) -> RowSource | None:
    """Source of the rows that the arguments stand for; None for rows in memory.

    X is an array, a path, a dataset of pyarrow, or a collection of dask; y and weights may be names of columns of X.
    Arrays of several ranks are shards of one table. Raises ``ImportError`` if the library that reads X is missing.
    """
    if _is_path(X):
        X = dataset_of(X)
    if is_dataset(X):
        return ArrowSource.of(X, y, sample_weight)
    if is_collection(X):
        return DaskSource.of(X, y, sample_weight)
    is_large_map = isinstance(X, np.memmap) and X.ndim == 2 and len(X) > SAMPLE_ROWS
    if is_large_map or (group is not None and not group.is_alone):
        return ArraySource(X, y, sample_weight)
    return None


def _is_path(X: Any) -> bool:
    """True for a path object, and for text that ends like a Parquet file, is a pattern, or names a folder."""
    if isinstance(X, str):
        return X.endswith(ENDINGS) or has_magic(X) or Path(X).is_dir()
    return isinstance(X, PathLike)


def shard_of(source: RowSource, group: Group) -> tuple[RowSource, list[int]]:
    """Rows of this rank, and the position in the whole table of the first row of each of its parts.

    A source that is the same on all ranks is divided by its parts. Otherwise, each rank has its own rows. Raises
    ``ValueError`` if only some ranks have the same source.
    """
    identities = group.gathered(source.identity)
    if group.is_alone or identities[0] is None or any(other != identities[0] for other in identities):
        before = sum(group.gathered(source.n_rows)[: group.rank])
        return source, (before + np.cumsum([0, *source.lengths])[:-1]).tolist()
    shard = SomeParts(source, group.rank, group.size)
    starts = np.cumsum([0, *source.lengths])[:-1]
    return shard, [int(starts[part]) for part in shard.chosen]
