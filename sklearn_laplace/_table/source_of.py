"""Sources of rows among the arguments of a fit or a prediction, and a uniform sample of the rows of a source.

The sample does not depend on how the rows are divided among the ranks (processes). A row belongs to the sample if the
hash of its position in the whole table is small. Therefore samples of parts can be merged.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import has_magic
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from .arrow import ArrowSource, dataset_of
from .dask_collections import DaskSource
from .rows import rehashed
from .source import ArraySource, Block, Group, RowSource, SomeParts, is_collection, is_dataset, joined

ENDINGS = (".parquet", ".pq")
"""Endings of the names of Parquet files."""
SAMPLE_ROWS = 200_000
"""Maximum number of rows of a source that is read into memory, and approximate sample size for larger sources."""


def source_of(X: Any, y: Any = None, sample_weight: Any = None, group: Group | None = None) -> RowSource | None:
    """Return a source of the rows in the arguments; None if one process has them in memory.

    X is an array, a path, a pyarrow dataset, or a dask collection; y and weights may be names of the columns of X.
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
    """True for a path object, and for a string that names a Parquet file or a folder, or is a pattern."""
    if isinstance(X, str):
        return X.endswith(ENDINGS) or has_magic(X) or Path(X).is_dir()
    return isinstance(X, PathLike)


def shard_of(source: RowSource, group: Group) -> tuple[RowSource, list[int]]:
    """Source with the rows of this rank, and the positions in the table at which its parts start.

    A source that is the same on all ranks is divided among them; otherwise each rank has its own rows.
    """
    identities = group.gathered(source.identity)
    if group.is_alone or identities[0] is None or any(other != identities[0] for other in identities):
        before = sum(group.gathered(source.n_rows)[: group.rank])
        return source, (before + np.cumsum([0, *source.lengths])[:-1]).tolist()
    shard = SomeParts(source, group.rank, group.size)
    starts = np.cumsum([0, *source.lengths])[:-1]
    return shard, [int(starts[part]) for part in shard.chosen]


SAMPLE_CELLS, FEWEST = 2**25, 10_000
"""Maximum number of cells in a sample, and minimum number of rows in a sample of a wide table."""
MOST_LABELS = 10_000
"""Maximum number of different labels."""
Tally = Callable[[Block], Mapping[Any, float]]
"""Function that maps a block to the total weight of each of its labels."""


@dataclass(frozen=True)
class Sample:
    """Sample from the rows of all ranks, in the order of the table."""

    rows: Block
    is_all: bool  # the sample has all rows
    n_rows: int  # of all ranks
    total_weight: float  # of all ranks
    shard: RowSource  # rows of this rank
    labels: Mapping[Any, float] = field(default_factory=dict)  # total weight of each label on all ranks, if any


def sample_of(source: RowSource, group: Group, most: int = SAMPLE_ROWS, tally: Tally | None = None) -> Sample:
    """Draw about ``most`` rows from all ranks, in one pass over each rank's rows; ``tally`` gives label weights."""
    shard, starts = shard_of(source, group)
    n_rows = sum(group.gathered(shard.n_rows))
    piece, error = None, None
    try:
        piece = _drawn(shard, starts, n_rows, most, tally)
    except Exception as failure:
        error = failure
    group.raise_together(error)
    assert piece is not None
    positions, blocks, weights, counts = zip(*group.gathered(piece), strict=True)
    order = np.concatenate(positions).argsort(kind="stable")
    rows = joined(blocks)
    rows = Block(*(_taken(part, order) for part in (rows.X, rows.y, rows.sample_weight)))
    return Sample(rows, len(rows) == n_rows, n_rows, sum(weights), shard, sum(counts, Counter()))


def _drawn(
    shard: RowSource, starts: Sequence[int], n_rows: int, most: int, tally: Tally | None
) -> tuple[np.ndarray, Block, float, Counter[Any]]:
    """Positions and rows of this rank's part of the sample; total weight and labels of all rows of this rank."""
    kept: list[Block] = []
    labels: Counter[Any] = Counter()
    positions: list[np.ndarray] = []
    weight, limit = 0.0, None
    for part, start in enumerate(starts):
        for block in shard.blocks(part):
            if limit is None:
                limit = _limit(n_rows, block.X.shape[1], most)
            place = np.arange(start, start + len(block), dtype=np.uint64)
            start += len(block)
            chosen = np.ones(len(block), dtype=bool) if limit >= 1 else rehashed(place) < np.uint64(limit * 2.0**64)
            positions.append(place[chosen])
            kept.append(Block(*(_taken(part, chosen) for part in (block.X, block.y, block.sample_weight))))
            weight += float(len(block) if block.sample_weight is None else np.sum(block.sample_weight))
            labels.update({} if tally is None else tally(block))
            if len(labels) > MOST_LABELS:
                raise ValueError(
                    f"y has more than {MOST_LABELS:,} different labels, such as {next(iter(labels))}. A classifier "
                    "needs classes; use LaplaceRegressor for numbers."
                )
    if not kept:
        raise ValueError("this rank has no rows; divide the rows among fewer ranks, or into more parts.")
    return np.concatenate(positions), joined(kept), weight, labels


def _limit(n_rows: int, n_columns: int, most: int) -> float:
    most = min(most, max(SAMPLE_CELLS // max(n_columns, 1), FEWEST))
    return most / n_rows


def _taken(values: Any, chosen: np.ndarray) -> Any:
    """Rows of an array or a dataframe by a mask or by positions."""
    if values is None:
        return None
    return values[chosen] if isinstance(values, np.ndarray) else values.iloc[chosen].reset_index(drop=True)
