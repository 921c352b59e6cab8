"""Rows of pyarrow datasets. Parquet files are read by row group, and all other formats by file.

Reading errors name the file. If the size or modification time of a file changes between two reads, an error is raised.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Self

import numpy as np

from .source import BLOCK_ROWS, Block, RowSource

NEEDS = 'install it with: pip install "sklearn-laplace[arrow]"'
"""Remedy in the error about a missing library."""
NO_FILES = "X={!r} has no files; expected a folder, a file or a pattern of Parquet files."


@dataclass(frozen=True)
class ArrowSource(RowSource):
    """Rows of a dataset of pyarrow: row groups or files, and the number of rows of each."""

    fragments: tuple[Any, ...]
    counts: tuple[int, ...]
    stamps: tuple[object, ...]  # size and modification time of each fragment's file; None in memory
    columns: tuple[str, ...]
    targets: tuple[str, ...]  # column names, like weight
    weight: str | None
    single: bool  # y is a column name, not a list of names

    @classmethod
    def of(cls, dataset: Any, y: Any, sample_weight: Any) -> Self:
        """Source of the rows of a dataset; ``y`` (one or more) and ``sample_weight`` name its columns, or are None."""
        single = isinstance(y, str)
        targets = _names(y)
        if sample_weight is not None and not isinstance(sample_weight, str):
            raise TypeError(
                f"sample_weight is of type {type(sample_weight).__name__}; with files as X it has to be the name of a "
                "column."
            )
        named = [*targets, *([] if sample_weight is None else [sample_weight])]
        columns = dataset.schema.names
        _check_columns(named, columns)
        counted = [part for fragment in dataset.get_fragments() for part in _parts(fragment)]
        if not counted:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: the dataset has no rows.")
        inputs = tuple(name for name in columns if name not in named)
        if not inputs:
            raise ValueError("Found array with 0 feature(s) while a minimum of 1 is required: no columns remain for X.")
        fragments, lengths, stamps = zip(*counted, strict=True)
        return cls(fragments, lengths, stamps, inputs, targets, sample_weight, single)

    def only(self, names: tuple[str, ...]) -> Self:
        """Source with some of the columns of X, in the order of ``names``; ``ValueError`` if a column is missing."""
        if missing := [name for name in names if name not in self.columns]:
            raise ValueError(
                f"X has no column {missing[0]!r}, which the fit had; its columns are {list(self.columns)}."
            )
        return replace(self, columns=names)

    def blocks(self, part: int) -> Iterator[Block]:
        fragment, stamp = self.fragments[part], self.stamps[part]
        names = [*self.columns, *self.targets, *([] if self.weight is None else [self.weight])]
        reading = {"columns": names, "batch_size": BLOCK_ROWS, "batch_readahead": 1, "fragment_readahead": 0}
        _check_same(fragment, stamp)
        with _naming(fragment, stamp):
            present = fragment.physical_schema.names
            if missing := [name for name in names if name not in present]:
                raise ValueError(f"there is no column {missing[0]!r}; its columns are {', '.join(present[:20])}")
            for batch in fragment.to_batches(**reading):
                if batch.num_rows:
                    yield self._block(batch.to_pandas())

    def _block(self, frame: Any) -> Block:
        y = None if not self.targets else frame[self.targets[0] if self.single else list(self.targets)].to_numpy()
        weight = None if self.weight is None else frame[self.weight].to_numpy()
        return Block(frame[list(self.columns)], y, weight)

    @property
    def lengths(self) -> Sequence[int]:
        return self.counts

    @property
    def identity(self) -> object:
        return tuple(str(getattr(fragment, "path", "")) for fragment in self.fragments), self.counts


def _check_columns(names: Sequence[str], columns: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            raise ValueError(f"there is no column {name!r} in X; its columns are {', '.join(columns[:20])}.")


def _names(y: Any) -> tuple[str, ...]:
    if y is None:
        return ()
    if isinstance(y, str):
        return (y,)
    if isinstance(y, list | tuple | np.ndarray) and len(y) and all(isinstance(name, str) for name in y):
        return tuple(y)
    raise TypeError(
        f"y is of type {type(y).__name__}; with files as X it has to be the name of a column, or a list of names."
    )


def _parts(fragment: Any) -> list[tuple[Any, int, object]]:
    """Row groups of a Parquet file, or another file as a whole; each with its number of rows and its file's stamp."""
    stamp = _stamp(fragment)
    with _naming(fragment, stamp):
        split = getattr(fragment, "split_by_row_group", None)
        parts = [fragment] if split is None else list(split())
        return [(part, n, stamp) for part in parts if (n := _n_rows(part))]


def _n_rows(part: Any) -> int:
    """Number of rows of a row group or a file. For a row group, pyarrow's ``count_rows`` counts the whole file."""
    groups = getattr(part, "row_groups", None)
    return int(part.count_rows()) if groups is None else sum(group.num_rows for group in groups)


def _stamp(fragment: Any) -> object:
    path = getattr(fragment, "path", "")
    info = fragment.filesystem.get_file_info(path) if path else None
    return None if info is None else (info.size, info.mtime_ns)


def _check_same(fragment: Any, stamp: object, cause: Exception | None = None) -> None:
    """Raise ``OSError`` if size or modification time of the file differs from ``stamp``."""
    if _stamp(fragment) != stamp:
        raise OSError(
            f"{fragment.path!r} was changed or removed while its rows were being read. Call again when all files are "
            "complete, and keep them until the end."
        ) from cause


@contextmanager
def _naming(fragment: Any, stamp: object) -> Iterator[None]:
    """Raise a ``ValueError`` that names the file if it cannot be read, or an ``OSError`` if it has changed."""
    cause = None
    try:
        yield
    except (ValueError, LookupError, TypeError, NotImplementedError, OSError) as error:
        cause = error
    _check_same(fragment, stamp, cause)
    if cause is not None:
        raise ValueError(
            f"{getattr(fragment, 'path', '')!r} cannot be read: {_reason(cause)}. All files of X have to be complete, "
            "with the same columns: write this one again, or remove it."
        ) from cause


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def dataset_of(path: Any) -> Any:
    """Dataset of Parquet files: those of a folder, of a pattern such as ``"rows/*.parquet"``, or a single file."""
    try:
        from pyarrow import dataset
    except ImportError as error:
        raise ImportError(f"X={str(path)!r} is a path, which pyarrow reads; {NEEDS}") from error
    text = str(path)
    files = sorted(glob(text, recursive=True)) if has_magic(text) else [text]
    if not files or not all(Path(file).exists() for file in files):
        raise FileNotFoundError(NO_FILES.format(text))
    options = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)  # checks pages with a checksum
    kind = dataset.ParquetFileFormat(default_fragment_scan_options=options)
    try:
        found = dataset.dataset(files if has_magic(text) else text, format=kind)
    except (ValueError, OSError) as error:
        raise ValueError(f"X={text!r} cannot be read: {_reason(error)}. Remove or replace this file.") from error
    if not found.files:
        raise FileNotFoundError(NO_FILES.format(text))
    return found
