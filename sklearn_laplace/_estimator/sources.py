"""Fits and predictions on rows that ``_table`` reads from a source, in one process or on workers.

A source is a path, pyarrow Dataset, dask collection or large memory map, whose rows are read in blocks.

**On a dask cluster**, each worker is a rank and computes consecutive partitions. The assignment depends only on the
numbers of workers and partitions, so a fit can be repeated, and resumed after a crash. One task per worker joins a
process group of torch (gloo) at the address of the first worker. All ranks end with the same model, and the client
receives that of rank 0. If a worker dies, the other ranks lose their connections and fail too, so the fit raises an
error instead of hanging.
"""

import ctypes
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch.distributed as dist
from sklearn.base import clone

from .._table.arrow import ArrowSource
from .._table.dask_collections import DaskSource, Partitions, lazily
from .._table.rows import PreparedData
from .._table.source import Block, Group, RowSource, is_collection, joined
from .._table.source_of import SAMPLE_ROWS, Sample, sample_of, shard_of, source_of
from .._training.batches import RowStream
from ..errors import UnsupportedCombinationError
from ..errors.warn import experimental

SILENCE = timedelta(minutes=30)
"""Time after which a rank stops waiting for the other ranks."""
MMAP_THRESHOLD, TRIM_THRESHOLD, LARGEST_KEPT = -3, -1, 2**25
"""Two parameters of glibc's ``mallopt``, and the largest valid value of the first."""
MISSED = 5
"""Number of consecutive checks that miss a worker before it counts as lost; a busy worker may be absent briefly."""
AGAIN = "Call fit again; with memory= and an integer random_state it goes on where it was."
"""Advice in the error raised if a worker is lost or a rank fails."""
POLL = 1.0
"""Seconds between two checks that all workers are alive."""


def client_of() -> Any:
    """Return the current dask client if it has several workers; None otherwise, and inside a task."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client, get_worker

    with suppress(ValueError):
        get_worker()
        return None  # inside a task, whose worker computes the partitions itself
    with suppress(ValueError):
        client = default_client()
        return client if len(_workers(client)) > 1 else None
    return None


def fit_on_workers(estimator: Any, source: DaskSource, client: Any) -> Any:
    """Fit an estimator on the workers, which compute the partitions; return the fitted estimator of rank 0."""
    from distributed import wait

    workers = _workers(client)
    processes = client.run(os.getpid, workers=workers)
    hosts = [(urlsplit(worker).hostname, process) for worker, process in processes.items()]
    if len(set(hosts)) < len(hosts):
        raise ValueError("several workers of the cluster share a process; start it with processes=True.")
    partitions = _delayed(source)
    used = workers[: len(partitions)]
    shares = [
        [client.compute(list(partitions[place]), workers=[worker]) for place in chosen]
        for worker, chosen in zip(used, np.array_split(np.arange(len(partitions)), len(used)), strict=True)
    ]
    wait([future for share in shares for part in share for future in part])
    host = urlsplit(used[0]).hostname
    port = client.submit(_free_port, workers=[used[0]], pure=False).result()
    tasks = []
    for rank, worker in enumerate(used):
        task = client.submit(
            _fit_rank,
            estimator,
            rank,
            len(used),
            f"tcp://{host}:{port}",
            shares[rank],
            source.targets,
            source.weight,
            workers=[worker],
            pure=False,
            retries=0,
        )
        tasks.append(task)
    return _result(client, tasks, used)


def _delayed(source: DaskSource) -> list[tuple[Any, Any, Any]]:
    """Return the partitions as delayed objects; a missing target or weight becomes a delayed None."""
    from dask.delayed import delayed

    nothing = delayed(None)
    return [(X, nothing if y is None else y, nothing if w is None else w) for X, y, w in source.partitions]


def _workers(client: Any) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


def _fit_rank(
    estimator: Any, rank: int, size: int, address: str, parts: list[list[Any]], targets: Any, weight: str | None
) -> Any:
    """Fit as one rank; rank 0 returns the fitted estimator."""
    _keep_memory()
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=SILENCE)
    try:
        estimator._fit_source(Partitions(parts, targets, weight))
    finally:
        dist.destroy_process_group()
    return estimator if rank == 0 else None


def _keep_memory() -> None:
    """Let glibc keep the memory of freed tensors, which each training step needs again.

    A dask worker runs with the environment variable ``MALLOC_TRIM_THRESHOLD_``. With it, glibc requests each tensor of
    more than 128 kB from the system and returns it afterwards. Training then takes several times longer.
    """
    with suppress(OSError, AttributeError):  # no glibc
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(TRIM_THRESHOLD, 8 * LARGEST_KEPT)


def _result(client: Any, tasks: list[Any], workers: list[str]) -> Any:
    """Wait for all ranks and return the result of rank 0; ``RuntimeError`` if a worker is lost or a rank fails."""
    from distributed import wait

    missed = dict.fromkeys(workers, 0)
    while not all(task.done() for task in tasks):
        with suppress(TimeoutError):
            wait(tasks, timeout=POLL, return_when="FIRST_COMPLETED")
        present = _workers(client)
        missed = {worker: 0 if worker in present else missed[worker] + 1 for worker in workers}
        lost = [worker for worker, count in missed.items() if count >= MISSED]
        failed = [task for task in tasks if task.status in ("error", "cancelled", "lost")]
        if lost or failed:
            # Ranks that lose their connection to a failed rank raise a RuntimeError; any other error is the cause.
            errors = [(tasks.index(task), task.exception()) for task in failed if task.status == "error"]
            errors.sort(key=lambda rank_and_error: isinstance(rank_and_error[1], RuntimeError))
            client.cancel(tasks, force=True)
            if lost:
                raise RuntimeError(f"the worker {lost[0]} was lost during the fit. {AGAIN}")
            rank, error = errors[0] if errors else (tasks.index(failed[0]), None)
            raise RuntimeError(f"rank {rank} has failed: {error or failed[0].status}. {AGAIN}") from error
    return client.gather(tasks)[0]


F = TypeVar("F", bound=Callable[..., Any])


def check_options(**arguments: Any) -> None:
    """Raise an error for arguments other than None, which are not supported for rows from a source."""
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedCombinationError(
                f"{name} is not supported for rows that are read from a source. Omit it, or read the rows into memory."
            )


def by_block(method: F) -> F:
    """Decorate a prediction method so that it reads the rows of a source block by block.

    Only the columns of the fit are read. For a dask collection, the result is a lazy array.
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
    """Concatenate the results of several blocks: arrays, or tuples or Bunches of arrays."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(_joined(parts) for parts in zip(*results, strict=True))
    if isinstance(first, dict):
        return type(first)(**{name: _joined([result[name] for result in results]) for name in first})
    return np.concatenate(results)


def blocks_of_ranks(source: RowSource, group: Group) -> Iterator[Block]:
    """Yield the rows of an update, the same blocks on all ranks. Each one concatenates the next block of every rank."""
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
    """Function that prepares rows of a source, and total weights of sample and source."""

    prepare: Callable[..., PreparedData]  # maps (X, y, weights, None) to prepared rows
    of_sample: float  # total weight of the sample, class weights included
    of_all: float  # total weight of all rows, class weights included


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
    """Return a stream of all rows of a sampled source; ``data`` are the prepared rows of the sample."""
    reader = type(estimator)(**estimator.get_params(deep=False))  # a copy: a failed fit may restore the original
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
