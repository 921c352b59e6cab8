"""Speed of curvature passes, training, predictions and evidence, against laplace-torch 0.3 and a plain epoch.

Times without a unit are ratios, measured in one process. Each case runs in turn with its peer and a plain epoch
(forward and backward pass over the same rows). A ratio is that of medians over several turns. All backends of the peer
are tried for a case, and the fastest one counts. A backend that would take minutes gets a part of the rows. If
laplace-torch is not installed, its columns are empty. The output also has the limits of the machine (matrix products,
copies) and the additional peak memory. The *floor* is the number of multiply-adds of the method, relative to the epoch.

``python examples/benchmarks/speed.py`` prints markdown tables. It saves each table as a CSV with the name of the
device, and a picture of the growth of the times (``--out DIR``, the working directory by default). ``--quick`` uses a
tenth of the rows and fewer repetitions. ``--rows`` adds the runs over ten million generated rows. ``--only A,C``
selects workloads. ``--tables passes,members`` selects tables and omits the picture. ``--device cuda`` runs on a GPU.
The table ``members`` has the seconds of default regressions. To compare devices, also run it with ``--device cpu`` on
the same machine.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import gc
import itertools
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from skorch import NeuralNet
from torch import Tensor, nn

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._table.limits import MemoryBudget
from sklearn_laplace._training.epochs import Watch, run_epochs
from sklearn_laplace._training.progress import Task
from sklearn_laplace.laplace import Hyper, LaplaceFit, Rows, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.evidence import log_evidence
from sklearn_laplace.laplace.fit import TrainingRows
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.likelihoods._base import Likelihood
from sklearn_laplace.laplace.network import Network, select, trace
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.structures._base import Posterior
from sklearn_laplace.laplace.subsets import SUBSETS
from sklearn_laplace.nets.skorch_net import build_net, initialise

try:
    import laplace
    from laplace.curvature import AsdlGGN, BackPackGGN, CurvlinopsGGN

    BACKENDS = {"curvlinops": CurvlinopsGGN, "backpack": BackPackGGN, "asdl": AsdlGGN}
except ImportError:
    laplace, BACKENDS = None, {}

TANH = 115
"""Number of multiply-adds that take as long as one tanh."""
PEER_STRUCTURES = ("full", "kron", "diag")
NAN = float("nan")
HEADINGS = {
    "passes": "Pass over the data",
    "covariances": "Covariances of 10,000 rows",
    "training": "Training",
    "members": "Default regressions",
    "ten_million_rows": "Generated rows, 8-50-1",
}


@dataclass(frozen=True)
class Workload:
    """Net, rows, and the cases to measure: subset, structure, and the goal of the pass in words."""

    name: str
    rows: int
    sizes: tuple[int, ...]
    classes: bool
    cases: tuple[tuple[str, str, str], ...]
    fewer_for_peer: dict[str, int]
    """Divisor of the rows for a backend that would take minutes for all rows; its time is scaled accordingly."""

    @property
    def title(self) -> str:
        return f"{self.name}: {self.rows:,} rows, {'-'.join(map(str, self.sizes))}"

    @property
    def likelihood(self) -> Likelihood:
        return LIKELIHOODS["categorical" if self.classes else "gaussian"]()

    @property
    def columns(self) -> int:
        """K, the number of columns of the output factor."""
        return self.sizes[-1] - self.classes

    def module(self) -> nn.Sequential:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for i, o in itertools.pairwise(self.sizes):
            layers += [nn.Linear(i, o), nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def data(self, n: int, device: torch.device) -> TrainingRows:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(n, self.sizes[0], generator=generator)
        y = torch.randint(self.sizes[-1], (n,), generator=generator) if self.classes else x[:, :1].sin()
        n_logits = self.sizes[-1] if self.classes else 0
        return TrainingRows(x.to(device), y.to(device), torch.ones(n, device=device), n_logits=n_logits)

    def network(self, subset: str, rows: TrainingRows) -> Network:
        network = trace(self.module().to(rows.inputs.device), rows.inputs[:10])
        return select(network, SUBSETS[subset]().names(network), rows.inputs[:10])


WORKLOADS = (
    Workload(
        "A",
        20_000,
        (8, 50, 1),
        False,
        (("all", "diag", "≤ 1.5 epochs"), ("all", "kron", "≤ 1.5 epochs"), ("all", "full", "≥ 3 × best")),
        {"curvlinops": 4},
    ),
    Workload(
        "B",
        50_000,
        (20, 128, 128, 1),
        False,
        (
            ("all", "diag", "≤ 1.5 epochs"),
            ("all", "kron", "≤ 1.5 epochs"),
            ("all", "ekfac", "–"),
            ("last_layer", "full", "≤ 1.5 epochs"),
        ),
        {"curvlinops": 20},
    ),
    Workload(
        "Cs",
        20_000,
        (54, 32, 7),
        True,
        (("all", "full", "≥ 50 % of products"), ("all", "block_diagonal", "–"), ("all", "ekfac", "–")),
        {"curvlinops": 20, "backpack": 20, "asdl": 20},
    ),
    Workload(
        "C",
        100_000,
        (54, 256, 256, 7),
        True,
        (
            ("all", "diag", "≤ 3.6 epochs"),
            ("all", "kron", "≤ 6.2 epochs"),
            ("last_layer", "full", "≥ 15 × default"),
        ),
        {"curvlinops": 100, "backpack": 20, "asdl": 20},
    ),
)


def chunked(rows: TrainingRows, network: Network, structure: str, columns: int) -> list[Rows]:
    """Rows in the chunks of the estimators."""
    return rows.chunks(MemoryBudget.of(None).pass_rows(STRUCTURES[structure], network, columns, used_bytes=0))


def chunk_rows(width: int, device: torch.device) -> int:
    return MemoryBudget.of(None).chunk_rows(width, 0, device)


# ---------------------------------------------------------------------------------------------- measuring


def chosen_device(name: str) -> torch.device:
    """Device of this name; ends the program if the machine does not have it."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit(f"--device {name}: torch {torch.__version__} finds no CUDA device. Use --device cpu.")
    return device


def title(device: torch.device) -> str:
    """Name of the GPU, or the number of threads."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def timed(function: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(functions: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each function, run in turn after one warm-up turn; a function that fails is omitted."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name in list(times):
            try:
                times[name].append(timed(functions[name], device))
            except Exception as error:  # a backend that does not support the case
                print(f"{name}: {type(error).__name__}: {str(error)[:80]}", file=sys.stderr, flush=True)
                del times[name]
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def peak(function: Callable[[], object], device: torch.device) -> float:
    """Additional peak memory, MB; NaN if the system does not report it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = resident("VmRSS")
    except OSError:
        return NAN
    function()
    return resident("VmHWM") - before


def resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def multiply_adds(sizes: tuple[int, ...], columns: int, subset: str, structure: str) -> tuple[float, float]:
    """Multiply-adds of one row, activations included, for the pass in this structure and for a plain epoch."""
    shapes = list(itertools.pairwise(sizes))
    forward = sum(i * o for i, o in shapes) + TANH * sum(o for _, o in shapes[:-1])
    backward = sum(i * o for i, o in shapes[1:])
    epoch = forward + backward + sum(i * o for i, o in shapes)
    if subset == "last_layer":
        shapes, backward = shapes[-1:], 0
    blocks = [(i + 1, o) for i, o in shapes]
    if structure == "diag":
        own = sum(i * o for i, o in blocks)
    elif structure in ("kron", "ekfac"):
        own = sum(i * i + columns * o * o for i, o in blocks)
        if structure == "ekfac":  # a second pass: rotations and squares
            own += forward + columns * backward + sum(i * i + columns * o * o + i * o for i, o in blocks)
    else:
        pairs = [(a, b) for k, a in enumerate(blocks) for b in (blocks[: k + 1] if structure == "full" else [a])]
        own = 0.0
        for (i, o), (j, p) in pairs:
            packed = (i * i + i) * (o * o + o) / 4 if columns > 1 else (i * o) ** 2 / 2
            own += packed if (i, o) == (j, p) else i * o * j * p
    return forward + columns * backward + own, epoch


def limits(device: torch.device) -> tuple[str, float]:
    """Limits of the machine as text, and the GFLOP/s of float32 products."""
    a = torch.randn(2048, 2048, device=device)
    product = min(timed(lambda: a @ a, device) for _ in range(10))
    wide = a.double()
    double = min(timed(lambda: wide @ wide, device) for _ in range(5))
    large = torch.randn(2**25, device=device)
    into = torch.empty_like(large)
    copy = min(timed(lambda: into.copy_(large), device) for _ in range(10))
    reached = 2 * 2048**3 / product / 1e9
    return (
        f"{title(device)}, torch {torch.__version__.split('+')[0]}: products {reached:.0f} GFLOP/s in float32, "
        f"{2 * 2048**3 / double / 1e9:.0f} in float64; copies {2 * 4 * 2**25 / copy / 1e9:.0f} GB/s."
    ), reached


# ---------------------------------------------------------------------------------------------- the cases


def epoch(module: nn.Module, rows: TrainingRows, classes: bool) -> None:
    """Forward and backward pass over all rows."""
    loss = nn.CrossEntropyLoss() if classes else nn.MSELoss()
    width = sum(layer.out_features for layer in module if isinstance(layer, nn.Linear))
    step = chunk_rows(width, rows.inputs.device)
    for x, y in zip(rows.inputs.split(step), rows.targets.split(step), strict=True):
        module.zero_grad()
        loss(module(x), y).backward()


def ours(work: Workload, network: Network, structure: str, chunks: list[Rows]) -> LaplaceFit:
    """Fit by a pass over the data, as in the estimators: the gradient at the mode is known from training."""
    known = torch.zeros_like(network.theta)
    prior = network.scalar_prior()
    return fit_laplace(network, work.likelihood, GGN(), STRUCTURES[structure], prior, chunks, gradient=known)


def peer(work: Workload, subset: str, structure: str, backend: type, rows: TrainingRows) -> object:
    data = torch.utils.data.TensorDataset(rows.inputs, rows.targets)
    shapes = itertools.pairwise(work.sizes if subset == "all" else work.sizes[-2:])
    size = sum((i + 1) * o for i, o in shapes)
    # Some backends hold a P × P matrix for each row of a batch, others several copies of its Jacobian: about 2 GB.
    held = size**2 if structure == "full" else 4 * size * work.sizes[-1]
    batch = min(1024, max(8, 2**29 // held))
    found = laplace.Laplace(
        work.module().to(rows.inputs.device),
        "classification" if work.classes else "regression",
        subset_of_weights=subset,
        hessian_structure=structure,
        backend=backend,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.fit(torch.utils.data.DataLoader(data, batch_size=batch))
    return found


def passes(work: Workload, n: int, repeats: int, device: torch.device, limit: float) -> Iterator[dict[str, object]]:
    """Rows of the table of passes over the data, one for each case."""
    rows = work.data(n, device)
    shorter = {name: work.data(n // work.fewer_for_peer.get(name, 1), device) for name in BACKENDS}
    module = work.module().to(device)
    for subset, structure, goal in work.cases:
        network = work.network(subset, rows)
        chunks = chunked(rows, network, structure, work.columns)
        functions: dict[str, Callable[[], object]] = {
            "epoch": lambda: epoch(module, rows, work.classes),
            "ours": partial(ours, work, network, structure, chunks),
        }
        if structure in PEER_STRUCTURES:
            for name, backend in BACKENDS.items():
                functions[name] = partial(peer, work, subset, structure, backend, shorter[name])
        seconds = interleaved(functions, repeats, device)
        peers = {name: value * n / len(shorter[name]) for name, value in seconds.items() if name in BACKENDS}
        needed, plain = multiply_adds(work.sizes, work.columns, subset, structure)
        yield {
            "workload": work.title,
            "weights": subset,
            "structure": structure,
            "P": network.n_parameters,
            "epochs": seconds["ours"] / seconds["epoch"],
            "floor": needed / plain,
            "% of products": 100 * 2 * needed * n / seconds["ours"] / 1e9 / limit,
            "× best backend": min(peers.values(), default=NAN) / seconds["ours"],
            "best": min(peers, key=peers.__getitem__, default="–"),
            "× default backend": peers.get("curvlinops", NAN) / seconds["ours"],
            "peak, MB": peak(functions["ours"], device),
            "goal": goal,
            **({"seconds": seconds["ours"]} if device.type == "cuda" else {}),
        }


def forwards(network: Network, x: Tensor) -> None:
    for piece in x.split(2048):
        network(piece)


def covariances(network: Network, posterior: Posterior, x: Tensor, step: int) -> None:
    for piece in x.split(step):
        posterior.covariance(network.jacobian(piece)[1])


def predictions(work: Workload, repeats: int, device: torch.device) -> Iterator[dict[str, object]]:
    """Rows of the table of covariances: time for 10,000 rows, in forward passes, and for the evidence."""
    rows = work.data(4096, device)
    new = work.data(10_000, device).inputs
    goals = {"A": ("≤ 4", "≤ 9"), "B": ("≤ 4", "≤ 9"), "C": ("≤ 12", "≤ 28")}
    for subset, structure, _ in work.cases:
        network = work.network(subset, rows)
        fit = ours(work, network, structure, chunked(rows, network, structure, work.columns))
        hyper = Hyper(torch.tensor([1.0], dtype=torch.float64, device=device))
        posterior = fit.posterior(hyper)
        width = max(posterior.row_width(network.blocks, work.sizes[-1]), network.row_width(work.sizes[-1]))
        functions: dict[str, Callable[[], object]] = {
            "forward": partial(forwards, network, new),
            "covariance": partial(covariances, network, posterior, new, chunk_rows(width, device)),
            "evidence": partial(log_evidence, fit, hyper),
        }
        few = 500
        if BACKENDS and structure in PEER_STRUCTURES:
            short = TrainingRows(rows.inputs[:1024], rows.targets[:1024], rows.weights[:1024])
            other = peer(work, subset, structure, BACKENDS["backpack"], short)
            functions["peer"] = partial(other._glm_predictive_distribution, new[:few])
        seconds = interleaved(functions, repeats, device)
        goal = goals.get(work.name, ("–", "–"))
        yield {
            "workload": work.title,
            "weights": subset,
            "structure": structure,
            "forward passes": seconds["covariance"] / seconds["forward"],
            "goal": {"diag": goal[0], "kron": goal[1]}.get(structure, "–"),
            "× peer": seconds.get("peer", NAN) * (len(new) / few) / seconds["covariance"],
            "evidence, ms": 1e3 * seconds["evidence"],
        }


def training(work: Workload, n: int, repeats: int, device: torch.device) -> Iterator[dict[str, object]]:
    """Rows of the table of training: epochs of MAP training in skorch, and of skorch's loop, over a plain loop."""
    rows = work.data(n, device)

    def plain(batch: int, epochs: int) -> None:
        module, loss = work.module().to(device), nn.CrossEntropyLoss() if work.classes else nn.MSELoss()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(epochs):
            x, y = rows.inputs, rows.targets
            if batch < n:
                order = torch.randperm(n)
                x, y = x[order], y[order]
            for start in range(0, n, batch):
                optimizer.zero_grad()
                loss(module(x[start : start + batch]), y[start : start + batch]).backward()
                optimizer.step()

    def inside(batch: int, epochs: int) -> None:
        net = build_net(
            work.module(),
            {},
            work.likelihood,
            rows,
            max_epochs=epochs,
            lr=None,
            batch_size=batch,
            seed=0,
            verbose=0,
        )
        initialise(net, rows.weights.dtype, rows)
        network = trace(net.module_, rows.inputs[:10])
        hyper = Hyper(torch.ones(1, dtype=torch.float64, device=device))
        net.criterion_.bind(network, net.module_, network.scalar_prior(), hyper)
        run_epochs(net, rows, Watch(lambda: False), Task())

    def default(batch: int, epochs: int) -> None:
        criterion = nn.CrossEntropyLoss if work.classes else nn.MSELoss
        net = NeuralNet(
            work.module(),
            criterion,
            optimizer=torch.optim.Adam,
            train_split=None,
            batch_size=batch,
            max_epochs=epochs,
            iterator_train__shuffle=True,
            verbose=0,
            device=str(device),
        )
        net.fit(rows.inputs, rows.targets)

    for batch, epochs, goal in ((256, 5, "≤ 1.3"), (n, 40, "≤ 1.6")):
        fewer = max(1, epochs // 10)
        functions: dict[str, Callable[[], object]] = {
            "plain": partial(plain, batch, epochs),
            "ours": partial(inside, batch, epochs),
            "skorch": partial(default, batch, fewer),
        }
        seconds = interleaved(functions, repeats, device)
        yield {
            "workload": work.title,
            "batch": "all rows" if batch == n else batch,
            "of a plain loop": seconds["ours"] / seconds["plain"],
            "goal": goal,
            "skorch's own loop": seconds["skorch"] * epochs / fewer / seconds["plain"],
        }


def members(quick: bool, device: torch.device) -> Iterator[dict[str, object]]:
    """Seconds of default regressions, whose members train together, and of their predictions."""
    rng = np.random.default_rng(0)
    n_new = 1000 if quick else 100_000
    X = rng.normal(size=(n_new, 10))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=len(X)) * (1 + X[:, 3] ** 2)
    model = LaplaceRegressor(device=str(device), random_state=0)
    model.fit(X[:150], y[:150])  # loads kernels and libraries
    for n in (150,) if quick else (1000, 10_000, 50_000):
        seconds = timed(lambda n=n: model.fit(X[:n], y[:n]), device)
        timed(lambda: model.predict(X, return_std=True), device)
        predicted = timed(lambda: model.predict(X, return_std=True), device)
        yield {"rows": n, "fit, s": seconds, f"mean and std of {n_new:,} rows, s": predicted}


# ---------------------------------------------------------------------------------------------- growth, memory, import


def growth(quick: bool, device: torch.device) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Growth of the pass with rows, weights and classes, and of predictions: panel → structure → (size, seconds)."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def measure(panel: str, structure: str, size: float, work: Workload, n: int) -> None:
        rows = work.data(n, device)
        network = work.network("all", rows)
        chunks = chunked(rows, network, structure, work.columns)
        seconds = interleaved({"ours": lambda: ours(work, network, structure, chunks)}, 3, device)["ours"]
        panels.setdefault(panel, {}).setdefault(structure, []).append((size, seconds))

    scale = 4 if quick else 1
    for structure in ("diag", "kron", "full"):
        for n in (10_000, 20_000, 40_000, 80_000):
            measure("rows, 8-50-1", structure, n // scale, Workload("", n, (8, 50, 1), False, (), {}), n // scale)
        for width in (16, 32, 64, 128, 256):
            if structure != "full" or width <= 64:
                work = Workload("", 0, (20, width, width, 1), False, (), {})
                size = work.network("all", work.data(10, device)).n_parameters
                measure("weights P, 20-w-w-1, 10,000 rows", structure, size, work, 10_000 // scale)
        for classes in (2, 4, 8, 16):
            work = Workload("", 0, (20, 32, classes), True, (), {})
            measure("classes, 20-32-C, 10,000 rows", structure, classes, work, 10_000 // scale)
        work = Workload("", 0, (8, 50, 1), False, (), {})
        rows = work.data(80_000 // scale, device)
        network = work.network("all", rows)
        fit = ours(work, network, structure, chunked(rows, network, structure, 1))
        posterior = fit.posterior(Hyper(torch.ones(1, dtype=torch.float64, device=device)))
        step = chunk_rows(max(posterior.row_width(network.blocks, 1), network.row_width(1)), device)
        for n in (10_000, 20_000, 40_000, 80_000):
            new = rows.inputs[: n // scale]
            seconds = interleaved({"ours": partial(covariances, network, posterior, new, step)}, 3, device)["ours"]
            panels.setdefault("rows predicted, 8-50-1", {}).setdefault(structure, []).append((n // scale, seconds))
    return panels


def picture(found: dict[str, dict[str, list[tuple[float, float]]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(3.4 * len(found), 3.2), layout="constrained")
    for axis, (panel, lines) in zip(axes, found.items(), strict=True):
        for (structure, points), marker in zip(lines.items(), "os^", strict=True):
            axis.loglog(*zip(*points, strict=True), marker=marker, label=structure)
        sizes, seconds = zip(*lines["diag"], strict=True)
        guide = [seconds[-1] * 0.5 * size / sizes[-1] for size in sizes]
        axis.loglog(sizes, guide, "k:", linewidth=1, label="linear")
        axis.set(xlabel=panel, xticks=sizes, xticklabels=[f"{size:,}" for size in sizes])
        axis.tick_params(axis="x", labelsize=7)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds")
    axes[1].legend(loc="upper right")
    figure.savefig(path, dpi=110)
    print(f"saved {path}", flush=True)


def many_rows(quick: bool) -> Iterator[dict[str, object]]:
    """Peak memory of passes over increasing numbers of generated rows, each in a separate process."""
    for structure in ("diag", "kron", "full"):
        for n in (10**5, 10**6) if quick else (10**5, 10**6, 10**7):
            run = subprocess.run(
                [sys.executable, __file__, "--generated", structure, str(n)], capture_output=True, text=True, check=True
            )
            yield {"structure": structure, "rows": f"{n:,}", "peak above the start, MB": float(run.stdout)}


def generated(structure: str, n: int, step: int = 8192) -> None:
    """Print the peak memory of a pass over rows that are generated one chunk at a time."""
    work = WORKLOADS[0]
    network = work.network("all", work.data(10, torch.device("cpu")))

    def chunks(n: int) -> Iterator[Rows]:
        generator = torch.Generator().manual_seed(0)
        for start in range(0, n, step):
            x = torch.randn(min(step, n - start), 8, generator=generator)
            yield x, x[:, :1].sin(), torch.ones(len(x))

    def run(n: int) -> LaplaceFit:
        return fit_laplace(network, work.likelihood, GGN(), STRUCTURES[structure], network.scalar_prior(), chunks(n))

    run(step)
    print(peak(lambda: run(n), torch.device("cpu")))


def import_time() -> str:
    """Sentence with the import time in addition to torch, scikit-learn and skorch."""
    code = (
        "import time, torch, sklearn.base, sklearn.frozen, skorch; t = time.perf_counter(); import sklearn_laplace; "
        "print(time.perf_counter() - t)"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    return (
        f"`import sklearn_laplace` after torch, scikit-learn and skorch: {statistics.median(times):.2f} s (goal ≤ .3)."
    )


def table(rows: list[dict[str, object]]) -> Iterator[str]:
    names = list(rows[0])
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)
    for row in rows:
        cells = [_cell(value) for value in row.values()]
        yield "| " + " | ".join("–" if cell == "nan" else cell for cell in cells) + " |"


def save(rows: list[dict[str, object]], path: Path) -> None:
    """Write a table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)])


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="names of workloads, as in A,B")
    parser.add_argument("--tables", default="", help="passes, covariances, training, members")
    parser.add_argument("--out", default=".")
    parser.add_argument("--generated", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generated:
        generated(options.generated[0], int(options.generated[1]))
        return
    device = chosen_device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    words, limit = limits(device)
    repeats = 3 if options.quick else 5
    works = [work for work in WORKLOADS if not options.only or work.name in options.only.split(",")]
    sizes = {work.name: work.rows // 10 if options.quick else work.rows for work in works}
    sections: dict[str, Callable[[], list[dict[str, object]]]] = {
        "passes": lambda: [r for w in works for r in passes(w, sizes[w.name], repeats, device, limit)],
        "covariances": lambda: [r for w in works for r in predictions(w, repeats, device)],
        "training": lambda: [r for w in works for r in training(w, min(sizes[w.name], 20_000), 3, device)],
        "members": lambda: list(members(options.quick, device)),
    }
    if options.rows:
        sections["ten_million_rows"] = lambda: list(many_rows(options.quick))
    names = options.tables.split(",") if options.tables else list(sections)
    if unknown := sorted({*names} - {*sections}):
        parser.error(f"--tables {options.tables} has no tables {unknown}; expected some of {', '.join(sections)}")
    print(f"{words}\n{import_time()}", flush=True)
    for name in names:
        rows = sections[name]()
        print("", HEADINGS[name], "", *table(rows), sep="\n", flush=True)
        save([{"device": title(device), **row} for row in rows], Path(options.out) / f"{name}.csv")
    if not options.tables:
        picture(growth(options.quick, device), Path(options.out) / "speed.png")


if __name__ == "__main__":
    main()
