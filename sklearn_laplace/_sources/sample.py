"""A uniform sample of the rows of a source, which does not depend on how the ranks have divided the rows.

A row belongs to the sample if the hash of its position in the whole table is small, so that samples of parts can be
merged. One pass over the rows draws it, and counts the rows, their weights, and the labels of a classification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._data.rows import rehashed
from .._runtime.group import Group
from .recognise import SAMPLE_ROWS, shard_of
from .source import Block, RowSource, joined

SAMPLE_CELLS, FEWEST = 2**25, 10_000
"""Maximum number of cells of a sample of a wide table, and its minimum number of rows."""
MOST_LABELS = 10_000
"""Maximum number of different labels."""
Tally = Callable[[Block], Mapping[Any, float]]
"""Function of a block that returns its labels and the sum of their weights."""


@dataclass(frozen=True)
class Sample:
    """Sample of the rows of all ranks, in the order of the table."""

    rows: Block
    is_all: bool  # these are all rows
    n_rows: int  # of all ranks
    total_weight: float  # of all ranks
    shard: RowSource  # rows of this rank
    labels: Mapping[Any, float] = field(default_factory=dict)  # sum of the weights of each label on all ranks, if any


def sample_of(source: RowSource, group: Group, most: int = SAMPLE_ROWS, tally: Tally | None = None) -> Sample:
    """Draw about ``most`` rows by one pass over those of this rank; ``tally`` finds the labels of all rows.

    Raises ``ValueError`` if a rank has no rows, or if there are more than ``MOST_LABELS`` labels.
    """
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
    """Positions and rows of the sample among the rows of this rank; weights and labels of all its rows."""
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
    """Fraction of the rows in the sample."""
    most = min(most, max(SAMPLE_CELLS // max(n_columns, 1), FEWEST))
    return most / n_rows


def _taken(values: Any, chosen: np.ndarray) -> Any:
    """Rows of an array or a dataframe by a mask or by positions."""
    if values is None:
        return None
    return values[chosen] if isinstance(values, np.ndarray) else values.iloc[chosen].reset_index(drop=True)
