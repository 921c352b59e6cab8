"""Datasets of pyarrow: Parquet files, row group by row group, and all other formats that it reads, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np

from .source import BLOCK_ROWS, Block, RowSource

NEEDS = 'install it with: pip install "sklearn-laplace[arrow]"'
"""Cure in the error about a missing library."""


@dataclass(frozen=True)
class ArrowSource(RowSource):
    """Rows of a dataset of pyarrow: row groups or files, and the number of rows of each.

    ``columns``, ``targets`` and ``weight`` are names of columns. ``single`` is True if y is one column, given by its
    name and not in a list.
    """

    fragments: tuple[Any, ...]
    counts: tuple[int, ...]
    columns: tuple[str, ...]
    targets: tuple[str, ...]
    weight: str | None
    single: bool

    @classmethod
    def of(cls, dataset: Any, y: Any, sample_weight: Any) -> ArrowSource:
        """Source of the rows of a dataset, with the names of its columns of targets and of weights.

        Raises ``TypeError`` if ``y`` or ``sample_weight`` is no name of a column, and ``ValueError`` if there is no
        such column, or no row.
        """
        single = isinstance(y, str)
        targets = () if y is None else (y,) if single else _names(y)
        if sample_weight is not None and not isinstance(sample_weight, str):
            raise TypeError(
                f"sample_weight is of type {type(sample_weight).__name__}; with files as X it has to be the name of a "
                "column."
            )
        named = [*targets, *([] if sample_weight is None else [sample_weight])]
        columns = dataset.schema.names
        for name in named:
            if name not in columns:
                raise ValueError(f"there is no column {name!r} in X; its columns are {', '.join(columns[:20])}.")
        parts = [part for fragment in dataset.get_fragments() for part in _parts(fragment)]
        counted = [(part, n) for part in parts if (n := _n_rows(part))]
        if not counted:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: the dataset has no rows.")
        inputs = tuple(name for name in columns if name not in named)
        if not inputs:
            raise ValueError("Found array with 0 feature(s) while a minimum of 1 is required: no columns remain for X.")
        fragments, lengths = zip(*counted, strict=True)
        return cls(fragments, lengths, inputs, targets, sample_weight, single)

    def only(self, names: tuple[str, ...]) -> ArrowSource:
        """Source with some of the columns of X, in this order; ``ValueError`` if a column is missing."""
        if missing := [name for name in names if name not in self.columns]:
            raise ValueError(
                f"X has no column {missing[0]!r}, which the fit had; its columns are {list(self.columns)}."
            )
        return replace(self, columns=names)

    def blocks(self, part: int) -> Iterator[Block]:
        """Yield the rows of a part in order."""
        names = [*self.columns, *self.targets, *([] if self.weight is None else [self.weight])]
        reading = {"columns": names, "batch_size": BLOCK_ROWS, "batch_readahead": 1, "fragment_readahead": 0}
        for batch in self.fragments[part].to_batches(**reading):
            if not batch.num_rows:
                continue
            frame = batch.to_pandas()
            y = None if not self.targets else frame[self.targets[0] if self.single else list(self.targets)].to_numpy()
            weight = None if self.weight is None else frame[self.weight].to_numpy()
            yield Block(frame[list(self.columns)], y, weight)

    @property
    def lengths(self) -> Sequence[int]:
        """Number of rows of each part."""
        return self.counts

    @property
    def identity(self) -> object:
        """Names and lengths of the files."""
        return tuple(str(getattr(fragment, "path", "")) for fragment in self.fragments), self.counts


def _names(y: Any) -> tuple[str, ...]:
    if isinstance(y, list | tuple | np.ndarray) and len(y) and all(isinstance(name, str) for name in y):
        return tuple(y)
    raise TypeError(
        f"y is of type {type(y).__name__}; with files as X it has to be the name of a column, or a list of names."
    )


def _parts(fragment: Any) -> list[Any]:
    """Row groups of a Parquet file; any other file as a whole."""
    split = getattr(fragment, "split_by_row_group", None)
    return [fragment] if split is None else list(split())


def _n_rows(part: Any) -> int:
    """Number of rows of a row group or a file; pyarrow's ``count_rows`` counts those of the whole file."""
    groups = getattr(part, "row_groups", None)
    return int(part.count_rows()) if groups is None else sum(group.num_rows for group in groups)


def is_dataset(X: Any) -> bool:
    """True for a dataset of pyarrow; pyarrow itself is not imported."""
    return any(kind.__module__.startswith("pyarrow") and kind.__name__ == "Dataset" for kind in type(X).__mro__)


def dataset_of(path: Any) -> Any:
    """Dataset of the Parquet files of a folder, a pattern such as ``"rows/*.parquet"``, or a single file.

    Raises ``ImportError`` if pyarrow is not installed, and ``FileNotFoundError`` if there is no such file.
    """
    try:
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError(f"X={str(path)!r} is a path, which pyarrow reads; {NEEDS}") from error
    text = str(path)
    files = sorted(glob(text, recursive=True)) if has_magic(text) else [text]
    if not files or not all(Path(file).exists() for file in files):
        raise FileNotFoundError(f"X={text!r} has no files; expected a folder, a file or a pattern of Parquet files.")
    return pyarrow.dataset.dataset(files if has_magic(text) else text, format="parquet")
