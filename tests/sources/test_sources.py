"""Sources of rows: blocks, samples that do not depend on the division of the rows, and folds by hashes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._table import source as arrays
from sklearn_laplace._table.rows import PreparedData, TargetScale
from sklearn_laplace._table.source import ArraySource, Block, Group, RowSource, SomeParts, joined
from sklearn_laplace._table.source_of import Sample, sample_of, shard_of, source_of
from sklearn_laplace._training import batches as stream
from sklearn_laplace._training.batches import RowStream, folds_of, held_out_by_hash

UNIT = TargetScale(np.zeros(1), np.ones(1), np.ones(1))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 100 rows in parts of 400."""
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 100)
    monkeypatch.setattr(arrays, "PART_ROWS", 400)


class Shared(ArraySource):
    """Source that all ranks have, like files."""

    @property
    def identity(self) -> object:
        return "rows"


class Ranks:
    """Groups of ranks that are threads of this process; values are exchanged by a barrier."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.values = size, threading.Barrier(size), [None] * size

    def group(self, rank: int) -> Group:
        ranks = self

        class OfThreads(Group):
            def gathered(self, value):
                ranks.values[rank] = value
                ranks.barrier.wait(10)
                values = list(ranks.values)
                ranks.barrier.wait(10)
                return values

            def of_first(self, value):
                return self.gathered(value)[0]

        return OfThreads(rank, self.size)

    def run(self, function: Callable[[Group], object]) -> list:
        results = [None] * self.size

        def of_rank(rank: int) -> None:
            results[rank] = function(self.group(rank))

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=n), rng.uniform(0.5, 2, size=n)


def read(block: Block) -> PreparedData:
    return PreparedData(block.X, block.y[:, None], block.sample_weight, 1, UNIT)


@pytest.mark.parametrize("n", [1, 99, 100, 401, 1234])
def test_blocks_are_the_rows_in_order(n):
    X, y, w = table(n)
    source = ArraySource(X, y, w)
    blocks = list(source.all_blocks())
    assert max(len(block) for block in blocks) <= 100
    assert sum(source.lengths) == source.n_rows == n
    whole = joined(blocks)
    for part, expected in ((whole.X, X), (whole.y, y), (whole.sample_weight, w)):
        np.testing.assert_array_equal(part, expected)


def test_blocks_of_a_memory_mapped_array_are_copies(tmp_path):
    """A view would keep the pages of the file in memory."""
    X = np.memmap(tmp_path / "x", np.float64, "w+", shape=(150, 2))
    blocks = list(ArraySource(X).all_blocks())
    assert all(type(block.X) is np.ndarray and block.X.base is None for block in blocks)


def same(first: Sample, second: Sample) -> bool:
    pairs = ((getattr(first.rows, name), getattr(second.rows, name)) for name in ("X", "y", "sample_weight"))
    return all(np.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("size", [2, 3])
def test_the_sample_does_not_depend_on_the_ranks(size):
    """Shared files are divided by their parts; arrays of the ranks are consecutive shards. The rows are the same."""
    X, y, w = table(3000)
    alone = sample_of(ArraySource(X, y, w), Group(), most=500)
    assert 400 < len(alone.rows) < 600
    assert not alone.is_all
    shared = Ranks(size).run(lambda group: sample_of(Shared(X, y, w), group, most=500))
    cuts = np.linspace(0, 3000, size + 1).astype(int)

    def own(group: Group) -> Sample:
        mine = slice(cuts[group.rank], cuts[group.rank + 1])
        return sample_of(ArraySource(X[mine], y[mine], w[mine]), group, most=500)

    for sample in [*shared, *Ranks(size).run(own)]:
        assert same(sample, alone)
        assert sample.n_rows == 3000
        assert abs(sample.total_weight / w.sum() - 1) < 1e-12
    assert sum(sample.shard.n_rows for sample in shared) == 3000


def test_a_small_source_is_its_own_sample():
    X, y, w = table(300)
    sample = sample_of(ArraySource(X, y, w), Group(), most=300)
    assert sample.is_all
    np.testing.assert_array_equal(sample.rows.X, X)


def test_a_sample_is_uniform():
    """Mean of the positions, within four standard errors."""
    n, most = 20_000, 2000
    places = np.arange(n, dtype=float)
    sample = sample_of(ArraySource(places[:, None], places), Group(), most=most)
    assert abs(sample.rows.y.mean() / n - 0.5) < 4 * (1 / 12 / most) ** 0.5


def test_an_error_of_one_rank_ends_all():
    """No rank waits for the others for ever."""

    class Broken(ArraySource):
        def blocks(self, part):
            raise OSError("the disk is gone")

    X, y, _ = table(500)
    messages = []

    def drawn(group: Group) -> None:
        try:
            sample_of((Broken if group.rank == 1 else ArraySource)(X, y), group, most=50)
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")

    Ranks(2).run(drawn)
    assert sorted(messages) == [
        "OSError: the disk is gone",
        "RuntimeError: rank 1 of 2 has failed: OSError: the disk is gone",
    ]


def test_a_rank_without_rows_is_an_error():
    X, y, _ = table(300)  # a single part
    failed = []

    def drawn(group: Group) -> None:
        try:
            sample_of(Shared(X, y), group)
        except (ValueError, RuntimeError) as error:
            failed.append(str(error))

    Ranks(2).run(drawn)
    assert len(failed) == 2
    assert all("divide the rows among fewer ranks" in message for message in failed)


def streamed(X, y, w, group: Group | None = None) -> RowStream:
    return RowStream(ArraySource(X, y, w), read, len(X), float(w.sum()), group or Group(), lambda: None)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_shuffled_epoch_has_each_row_once(monkeypatch, epochs):
    monkeypatch.setattr(stream, "BUFFER_ROWS", 1000)
    X, y, w = table(4000)
    taken, buffers = 0, []
    for rows in streamed(X, y, w).shuffled(0):
        buffers.append(rows)
        taken += len(rows.X)
        if taken >= epochs * 4000:
            break
    seen = np.concatenate([rows.X for rows in buffers])
    expected = np.concatenate([X] * epochs)
    np.testing.assert_array_equal(np.sort(seen, axis=0), np.sort(expected, axis=0))
    assert not np.array_equal(seen[:4000], X)


def test_the_order_of_a_stream_is_that_of_its_seed():
    """Although a thread reads ahead."""
    X, y, w = table(4000)

    def first(seed: int) -> np.ndarray:
        return next(iter(streamed(X, y, w).shuffled(seed))).X

    np.testing.assert_array_equal(first(3), first(3))
    assert not np.array_equal(first(3), first(4))


def test_a_buffer_mixes_several_parts(monkeypatch):
    monkeypatch.setattr(stream, "BUFFER_ROWS", 800)
    places = np.arange(8000.0)
    rows = next(iter(streamed(places[:, None], places, np.ones(8000)).shuffled(0)))
    assert len(np.unique(rows.X // 400)) >= 4


def test_folds_depend_on_the_content_alone():
    """Equal rows are in one fold, in whatever block; each repeat holds out about a quarter of the rows in each fold."""
    X, y, w = table(2000)
    X[1000:], y[1000:] = X[:1000], y[:1000]
    whole = folds_of(read(Block(X, y, w)))
    np.testing.assert_array_equal(whole[:, :1000], whole[:, 1000:])
    np.testing.assert_array_equal(folds_of(read(Block(X[37:90], y[37:90], w[37:90]))), whole[:, 37:90])
    masks = held_out_by_hash(read(Block(X, y, w)))
    assert masks.shape == (8, 2000)
    np.testing.assert_array_equal(masks[:4].sum(0) + masks[4:].sum(0), 2)
    assert (abs(masks.mean(1) - 0.25) < 0.06).all()
    agree = (whole[0] == whole[1]).mean()
    assert abs(agree - 0.25) < 0.06  # the repeats are independent


def test_arrays_are_sources_of_a_group_only(tmp_path):
    X, y, _ = table(20)
    assert source_of(X, y) is None
    assert isinstance(source_of(X, y, group=Group(0, 2)), ArraySource)
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(20, 2))
    assert source_of(mapped, y) is None  # few rows


def test_shards_of_the_same_files_are_disjoint():
    source = Shared(*table(2000))
    parts = Ranks(2).run(lambda group: shard_of(source, group))
    assert all(isinstance(shard, SomeParts) and isinstance(shard, RowSource) for shard, _ in parts)
    rows = [joined(list(shard.all_blocks())).X for shard, _ in parts]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows), axis=0), np.sort(source.X, axis=0))


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
@pytest.mark.parametrize("path", ["nothing.parquet", "nothing/*.parquet"])
def test_a_path_without_files_is_an_error(kind, path, tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(FileNotFoundError, match=r"has no files; expected a folder, a file or a pattern"):
        kind().fit(str(tmp_path / path), "y")
