"""Limits on the cost of a fit: multiply-adds, steps, and the memory for a posterior and one chunk of rows.

Fits of up to 300 rows have lower limits, since searches and ensembles run many of them. The default memory budget is
the smallest limit of machine, container and address space. It does not cover the data, the net, training by epochs, or
temporary arrays of up to 32 MB. Structures that exceed the budget are refused before they are allocated, and rows pass
through the network in small enough chunks.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, Self

import torch

from .._validation.rows import shown
from ..errors import MemoryBudgetError
from ..laplace.curvatures._base import CurvatureRule
from ..laplace.jacobian.jacobian import ParameterBlock
from ..laplace.network.network import Network
from ..laplace.structures import STRUCTURES, Diag, Full, Functional, Kron
from ..laplace.structures._base import Curvature, tensors_in

SMALL_ROWS = 300
"""Maximum number of rows in the lower budget tier."""
SINGLE_THREAD_FLOPS, SINGLE_THREAD_STEP = 1e9, 2e8
"""Multiply-adds of one exact step, and of one gradient step, up to which further threads save no time. On a busy
machine, further threads cost much time, because every parallel region waits until each thread gets a core."""
SINGLE_THREAD_PASS = 1e7
"""Rows × weights of a forward pass up to which further threads save no time, in training without exact steps."""
FLOAT32_ROWS = 10_000
"""Total weight up to which ``dtype="auto"`` means float64, unless the device is slow in float64."""


@dataclass(frozen=True)
class Budget:
    """Limits for one tier of fits, small or large: costs in multiply-adds, memory in bytes."""

    exact_step: float  # of a Gauss–Newton step in the training
    exact_posterior: float  # pass over the data and eigendecomposition of an automatic exact structure
    posterior_bytes: int  # of an automatic exact structure
    gauss_newton_steps: int  # maximum if steps are cheap; each alternates with an evidence step
    dear_gauss_newton_steps: int  # maximum if steps are expensive
    refine_steps: int  # L-BFGS, after the Gauss–Newton steps
    epoch_steps: int  # gradient steps of the built-in net if Gauss–Newton steps are too expensive
    batch_size: int  # −1: all rows
    evidence_steps: int  # during the epochs


def budget_for(n_rows: int) -> Budget:
    return SMALL if n_rows <= SMALL_ROWS else LARGE


def exact_cost(
    blocks: Sequence[ParameterBlock], n_dual: int, provides: frozenset[str] = frozenset({"rows"})
) -> tuple[float, type[Curvature]]:
    """Multiply-adds of one exact Gauss–Newton step, and the cheaper structure for it, ``Full`` or ``Functional``.

    ``n_dual`` is the number of rows times K, where S (C, K) is the factor of the output Hessian S Sᵀ of a row's loss.
    """
    p, m = float(sum(block.size for block in blocks)), float(n_dual)
    panel = sum(b.outputs + b.inputs if b.positions == 1 else b.size for b in blocks)
    primal, dual = m * p**2 + p**3, m**2 * panel + 2 * m**3
    return (dual, Functional) if dual < primal and Functional.accepts & provides else (primal, Full)


def automatic_structure(
    blocks: Sequence[ParameterBlock],
    n_dual: int,
    n_rows: int,
    provides: frozenset[str],
    unit: str,
    fits: Callable[[type[Curvature]], bool],
) -> type[Curvature]:
    """Most accurate structure that is affordable and ``fits`` in memory: an exact one, else ``kron``, else ``diag``.

    ``Functional`` and ``Kron`` need a form of curvature that the rule ``provides``. ``Kron`` also has to support the
    ``unit`` of weights with one prior precision, such as "layer".
    """
    budget = budget_for(n_rows)
    cost, exact = exact_cost(blocks, n_dual, provides)
    n_parameters = sum(block.size for block in blocks)
    size = min(n_dual, n_parameters) if exact is Functional else n_parameters
    cost += 10 * float(size) ** 3  # eigendecomposition for the evidence of one common prior precision
    if cost <= budget.exact_posterior and exact.memory(blocks, n_dual) <= budget.posterior_bytes and fits(exact):
        return exact
    return Kron if Kron.accepts & provides and unit in Kron.holds and fits(Kron) else Diag


SMALL = Budget(1.5e9, 5e9, 2**28, 60, 36, 30, 400, -1, 8)
LARGE = Budget(1e10, 2e11, 2**30, 60, 60, 120, 5000, 256, 20)


if sys.platform != "win32":
    import resource
CHUNK_ELEMENTS = 2**22
"""Target number of elements per chunk of rows, 32 MB in float64."""
CHUNK_ROWS = (64, 8192)
"""Minimum and maximum number of rows per chunk; fewer if the memory budget requires it."""
GPU_CHUNK = 16
"""Factor of ``CHUNK_ELEMENTS`` and the maximum of ``CHUNK_ROWS`` on a GPU: small chunks take as long as large ones."""
ROW_BYTES = 5 * 8
"""Bytes per element of a row, including activations, factors and copies; see docs/decisions.md."""
OUT_OF_MEMORY = (
    *("defaultcpuallocator", "out of memory", "bad_alloc", "allocate memory", "not enough memory"),
    *("without setting an exception", "without exception set", "can't start new thread"),
)
"""Phrases in torch's RuntimeError and Python's SystemError for a failed allocation, in lower case."""
UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
"""Bytes per unit."""


@dataclass(frozen=True)
class MemoryBudget:
    """Memory limit in bytes: set by the user, or the smallest limit of machine, container and address space."""

    size: int
    by_user: bool = False

    @classmethod
    def of(cls, value: object) -> Self:
        """Budget from bytes, a string with a unit, or None for the limit of the process; ``ValueError`` otherwise."""
        if value is None:
            return cls(_physical_memory())
        amount, unit = value, 1
        if isinstance(value, str):
            parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value.lower())
            amount, unit = (float(parts[1]), UNITS.get(parts[2], 0)) if parts else (None, 0)
        size = amount if isinstance(amount, Real) and not isinstance(amount, bool) and amount < 2**63 else 0
        number = float(size) * unit
        if not 1 <= number < 2**63:
            raise ValueError(
                f"memory_budget={shown(value)} has to be None, a number of bytes of at least 1, or a string such as "
                "'500MB', '2GB' or '1.5GiB'."
            )
        return cls(int(number), by_user=True)

    def __str__(self) -> str:
        amount = f"{self.size / 1e9:,.1f} GB" if self.size >= 1e9 else f"{self.size / 1e6:,.3g} MB"
        return f"memory_budget allows {amount}" if self.by_user else f"this process may use {amount}"

    def share(self, n_jobs: int) -> Self:
        return replace(self, size=self.size // n_jobs)

    def workers(self, n_jobs: int, each: int, used_bytes: int = 0) -> int:
        """Number of workers of ``each`` bytes, from 1 to ``n_jobs``, that fit in the memory left by ``used_bytes``.

        >>> MemoryBudget(1000).workers(8, each=300), MemoryBudget(1000).workers(8, each=3000)
        (3, 1)
        """
        return max(1, min(n_jobs, (self.size - used_bytes) // max(each, 1)))

    def pass_workers(
        self, structure: type[Curvature], network: Network, n_columns: int, used_bytes: int, n_jobs: int
    ) -> int:
        """Number of workers for a pass. Each needs memory for one row, and ``used_bytes`` for its structure."""
        return self.workers(n_jobs, used_bytes + ROW_BYTES * _row_width(structure, network, n_columns))

    def fits(self, structure: type[Curvature], network: Network, n_dual: int, n_columns: int) -> bool:
        row = ROW_BYTES * _row_width(structure, network, n_columns)
        return structure.memory(network.blocks, n_dual) + row <= self.size

    def pass_rows(self, structure: type[Curvature], network: Network, n_columns: int, used_bytes: int) -> int:
        return self.chunk_rows(_row_width(structure, network, n_columns), used_bytes, network.theta.device)

    def require(
        self,
        structure: type[Curvature],
        network: Network,
        n_dual: int,
        n_columns: int,
        rule: CurvatureRule,
        **options: Any,
    ) -> int:
        """Bytes of a structure and of the rule's matrix; ``MemoryBudgetError`` if these and one row do not fit."""
        blocks, size = network.blocks, network.n_parameters
        matrix = rule.memory(size)
        if matrix > self.size:
            raise MemoryBudgetError(
                f"the chosen curvature is a matrix of {size:,} × {size:,} and needs about {matrix / 1e9:,.3g} GB "
                f"({matrix:,} bytes); {self}. Use curvature='ggn', {of_last_layer(network)}or a larger memory_budget."
            )
        needed = structure.memory(blocks, n_dual, **options) + matrix
        if needed > self.size:
            name = next(key for key, value in STRUCTURES.items() if value is structure)
            advice = self._smaller(structure, network, n_dual, n_columns, matrix) + of_last_layer(network)
            raise MemoryBudgetError(
                f"hessian_structure={name!r} needs about {needed / 1e9:,.3g} GB ({needed:,} bytes) for {size:,} "
                f"weights and {n_dual:,} rows × outputs; {self}. Use {advice and advice + 'or '}a larger "
                "memory_budget, which the training may need in any case."
            )
        self.pass_rows(structure, network, n_columns, needed)
        return needed

    def _smaller(self, structure: type[Curvature], network: Network, n_dual: int, n_columns: int, matrix: int) -> str:
        """Advice for a message: a smaller structure; empty if none fits in addition to ``matrix`` bytes."""
        left = replace(self, size=self.size - matrix)
        # The exact Hessian and subsets of single weights have no Kronecker factors.
        smaller = (Diag,) if matrix or network.layout.elements else (Kron, Diag)
        able = (kind for kind in smaller if left.fits(kind, network, n_dual, n_columns) and kind is not structure)
        other = next(able, None)
        if other is None:
            return ""
        alternative = next(key for key, value in STRUCTURES.items() if value is other)
        return f"hessian_structure={alternative!r} ({other.memory(network.blocks, n_dual) / 1e9:,.3g} GB), "

    def chunk_workers(self, width: int, used_bytes: int, n_jobs: int) -> int:
        """Number of workers that fit in memory with one row of ``width`` elements each."""
        return self.workers(n_jobs, ROW_BYTES * max(width, 1), used_bytes)

    def chunk_rows(self, width: int, used_bytes: int, device: torch.device, n_jobs: int = 1) -> int:
        """Number of rows of ``width`` elements per chunk; ``MemoryBudgetError`` if a single row does not fit."""
        factor = GPU_CHUNK if device.type == "cuda" else 1
        usual = min(max(factor * CHUNK_ELEMENTS // max(width, 1), CHUNK_ROWS[0]), factor * CHUNK_ROWS[1])
        row, left = ROW_BYTES * max(width, 1), max(self.size - used_bytes, 0)
        if device.type == "cuda":
            left = min(left, free_bytes(device))
        if row > left:
            raise MemoryBudgetError(
                f"one row of the data needs about {row / 1e6:,.3g} MB in the network and its Jacobian, in addition to "
                f"{used_bytes / 1e6:,.3g} MB of the posterior; {self}. Use a larger memory_budget, a smaller net, or "
                "subset_of_weights='last_layer' in place of 'all'."
            )
        return min(usual, max(1, left // (row * n_jobs)))


def of_last_layer(network: Network) -> str:
    """Advice for a message: a posterior over the last layer only; empty if it is already restricted to this layer."""
    layers = {name.rpartition(".")[0] for name in network.parameter_names}
    return "" if layers == set(network.called[-1:]) else "subset_of_weights='last_layer', "


def free_bytes(device: torch.device) -> int:
    """Bytes of a CUDA device that torch can allocate, including those that it has reserved and does not use."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + reserved)


def held(*values: Any) -> int:
    """Bytes of all tensors in tuples and dataclasses; memory shared by several tensors counts once.

    >>> import torch
    >>> matrix = torch.zeros(4, 4, dtype=torch.float64)
    >>> held(matrix, (matrix, matrix[0]))
    128
    """
    storages = (tensor.untyped_storage() for tensor in tensors_in(values))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@contextmanager
def naming_the_budget(budget: object) -> Iterator[None]:
    """Turn a failed allocation of NumPy or torch into a :class:`MemoryBudgetError` with the budget and the remedies."""
    try:
        yield
    except MemoryBudgetError:
        raise
    except (MemoryError, RuntimeError, SystemError) as error:
        if not (isinstance(error, MemoryError) or any(word in str(error).lower() for word in OUT_OF_MEMORY)):
            raise
        cause = re.sub(r"^\[enforce fail[^\]]*\][^.]*\. ", "", str(error).partition("\n")[0]).rstrip(". ")
        raise MemoryBudgetError(
            f"memory ran out{f' ({cause})' if cause else ''}, though {MemoryBudget.of(budget)}. The budget excludes "
            "the data, the net, its epochs and other memory of the process. Allow the process more memory, or use a "
            "smaller memory_budget, hessian_structure='kron' or 'diag', subset_of_weights='last_layer', or fewer rows "
            "at a time."
        ) from error


def _row_width(structure: type[Curvature], network: Network, n_columns: int) -> int:
    """Number of elements of one row: its factors, and the arrays that the structure derives from the factors."""
    return network.row_width(n_columns) + structure.row_width(network.blocks, n_columns)


def _physical_memory(root: Path = Path("/")) -> int:
    """Smallest memory limit of machine, container and address space, in bytes; ``root`` has ``proc`` and ``sys``."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        installed = 8 * 2**30
    return max(1, min([installed, *_cgroup_limits(root, os.getpid()), *_address_space()]))


MEMORY_LIMITS = {"": (("", "memory.max"), ("unified", "memory.max")), "memory": (("memory", "memory.limit_in_bytes"),)}
"""Mounts and files of the limits, by controller; control groups of version 2 list no controllers."""


@lru_cache(maxsize=8)
def _cgroup_limits(root: Path, process: int) -> tuple[int, ...]:
    """Memory limits of the process's control groups (versions 1 and 2) and of all their parent groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    limits = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        steps = [step for step in path.split("/") if step not in ("", "..")]
        for controller in controllers.split(","):
            for mount, file in MEMORY_LIMITS.get(controller, ()):
                for depth in range(len(steps) + 1):
                    limits += _number_in(root.joinpath("sys/fs/cgroup", mount, *steps[:depth], file))
    return tuple(limits)


def _number_in(path: Path) -> list[int]:
    try:
        return [int(path.read_text())]
    except (OSError, ValueError):
        return []


def _address_space() -> list[int]:
    """Bytes that a limit of the address space (``ulimit -v``) leaves for fits; an empty list without such a limit."""
    if sys.platform == "win32":
        return []
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return [] if limit == resource.RLIM_INFINITY else [limit - MAPPED]


def _mapped() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


MAPPED = _mapped()
"""Address space that the libraries use at import; the memory of a fit is counted separately."""
