"""Speed: the pass over the data, the evidence and the predictions of each structure, against laplace-torch 0.3.

Every figure is a ratio, measured in one process: each case runs in turn with its peer and with a plain epoch (forward
and backward pass over the same rows in the same chunks), several times, and the medians are divided. The limits of the
machine (matrix products, copies) are measured beside them. All of the peer's backends are tried for a case, and the
best one counts; without laplace-torch its columns are empty.

``python examples/benchmarks/speed.py`` prints markdown tables; ``--quick`` takes a tenth of the rows and fewer
repetitions, ``--rows`` adds a run over ten million generated rows at fixed memory, ``--device cuda`` runs on a GPU,
``--out FILE`` writes the tables as well.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sklearn_laplace.curvatures import GGN
from sklearn_laplace.evidence import log_evidence
from sklearn_laplace.laplace import Hyper, LaplaceFit, fit_laplace
from sklearn_laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.network import Network
from sklearn_laplace.structures import STRUCTURES
from sklearn_laplace.subsets import SUBSETS

try:
    import laplace
    from laplace.curvature import AsdlGGN, BackPackGGN, CurvlinopsGGN

    BACKENDS = {"curvlinops": CurvlinopsGGN, "backpack": BackPackGGN, "asdl": AsdlGGN}
except ImportError:
    laplace, BACKENDS = None, {}

CHUNK = 2**21
"""Elements of the widest tensor of a chunk of rows, as in the package."""


@dataclass(frozen=True)
class Workload:
    """A net and its rows."""

    name: str
    rows: int
    sizes: tuple[int, ...]
    classes: bool
    cases: tuple[tuple[str, str], ...]
    peer_rows: int

    def module(self) -> nn.Sequential:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for i, o in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            layers += [nn.Linear(i, o), nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def data(self, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(n, self.sizes[0], generator=generator)
        y = torch.randint(self.sizes[-1], (n,), generator=generator) if self.classes else x[:, :1].sin()
        return x.to(device), y.to(device)


WORKLOADS = (
    Workload("A", 20_000, (8, 50, 1), False, (("all", "diag"), ("all", "kron"), ("all", "full")), 20_000),
    Workload("B", 50_000, (20, 128, 128, 1), False, (("all", "diag"), ("all", "kron"), ("last_layer", "full")), 50_000),
    Workload("Cs", 20_000, (54, 32, 7), True, (("all", "full"), ("all", "block"), ("all", "ekfac")), 20_000),
    Workload("C", 100_000, (54, 256, 256, 7), True, (("all", "diag"), ("all", "kron"), ("last_layer", "full")), 10_000),
)


def timed(function: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(functions: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each, run in turn; a function that fails once is left out."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name in list(times):
            try:
                times[name].append(timed(functions[name], device))
            except Exception as error:  # a backend that does not support the case
                print(f"    {name}: {type(error).__name__}: {str(error)[:80]}", flush=True)
                del times[name]
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def chunks(x: Tensor, y: Tensor, width: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    step = min(max(CHUNK // width, 64), 8192)
    w = torch.ones(len(x), device=x.device)
    return list(zip(x.split(step), y.split(step), w.split(step), strict=True))


def epoch(module: nn.Module, pieces: list[tuple[Tensor, Tensor, Tensor]], classes: bool) -> None:
    loss = nn.CrossEntropyLoss() if classes else nn.MSELoss()
    for x, y, _ in pieces:
        module.zero_grad()
        loss(module(x), y).backward()


def ours(network: Network, structure: str, classes: bool, pieces: list[tuple[Tensor, Tensor, Tensor]]) -> LaplaceFit:
    """The pass as the estimators make it: the gradient at the mode is known from the training."""
    likelihood = LIKELIHOODS["categorical" if classes else "gaussian"]()
    known = torch.zeros_like(network.theta)
    prior = network.scalar_prior()
    return fit_laplace(network, likelihood, GGN(), STRUCTURES[structure], prior, pieces, gradient=known)


def peer(module: nn.Module, subset: str, structure: str, classes: bool, backend: type, loader: object) -> object:
    found = laplace.Laplace(
        module,
        "classification" if classes else "regression",
        subset_of_weights=subset,
        hessian_structure=structure,
        backend=backend,
    )
    found.fit(loader)
    return found


def measure(work: Workload, quick: bool, device: torch.device) -> Iterator[dict[str, object]]:
    n = work.rows // 10 if quick else work.rows
    n_peer = min(work.peer_rows, n)
    repeats = 3 if quick else 5
    x, y = work.data(n, device)
    module = work.module().to(device)
    for subset, structure in work.cases:
        network = Network.trace(module, x[:10])
        network = network.select(SUBSETS[subset]().names(network), x[:10])
        columns = work.sizes[-1] - work.classes
        width = network.row_width(columns) + STRUCTURES[structure].row_width(network.blocks, columns)
        pieces = chunks(x, y, width)
        plain = chunks(x, y, sum(work.sizes))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:n_peer], y[:n_peer]), batch_size=1024)
        functions: dict[str, Callable[[], object]] = {
            "epoch": lambda plain=plain: epoch(module, plain, work.classes),
            "ours": lambda network=network, structure=structure, pieces=pieces: ours(
                network, structure, work.classes, pieces
            ),
        }
        if structure in ("full", "kron", "diag"):
            for name, backend in BACKENDS.items():
                functions[name] = lambda backend=backend, subset=subset, structure=structure, loader=loader: peer(
                    work.module().to(device), subset, structure, work.classes, backend, loader
                )
        seconds = interleaved(functions, repeats, device)
        peers = {name: value * n / n_peer for name, value in seconds.items() if name in BACKENDS}
        yield {
            "workload": f"{work.name}: {n:,} rows, {'-'.join(map(str, work.sizes))}",
            "subset": subset,
            "structure": structure,
            "P": network.n_parameters,
            "fit": seconds["ours"],
            "epochs": seconds["ours"] / seconds["epoch"],
            "against best": min(peers.values(), default=float("nan")) / seconds["ours"],
            "best": min(peers, key=peers.__getitem__, default="–"),
            "against default": peers.get("curvlinops", float("nan")) / seconds["ours"],
            **predictions(work, module, network, structure, pieces, x, y, subset, n_peer, repeats, device, bool(peers)),
        }


def predictions(
    work: Workload,
    module: nn.Module,
    network: Network,
    structure: str,
    pieces: list[tuple[Tensor, Tensor, Tensor]],
    x: Tensor,
    y: Tensor,
    subset: str,
    n_peer: int,
    repeats: int,
    device: torch.device,
    with_peer: bool,
) -> dict[str, float]:
    """Covariances of 10,000 rows in forward passes, and the evidence once the eigenvalues are there."""
    fit = ours(network, structure, work.classes, pieces[:4])
    hyper = Hyper(torch.tensor([1.0], dtype=torch.float64, device=device))
    posterior = fit.posterior(hyper)
    new = work.data(10_000, device)[0]
    step = min(max(CHUNK // posterior.row_width(network.blocks, work.sizes[-1]), 64), 8192)

    def forward() -> None:
        for piece in new.split(2048):
            network(piece)

    def covariance() -> None:
        for piece in new.split(step):
            posterior.covariance(network.jacobian(piece)[1])

    functions: dict[str, Callable[[], object]] = {
        "forward": forward,
        "covariance": covariance,
        "evidence": lambda: log_evidence(fit, hyper),
    }
    few = 1000
    if with_peer:
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:1024], y[:1024]), batch_size=1024)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = peer(work.module().to(device), subset, structure, work.classes, BackPackGGN, loader)
        functions["peer"] = lambda: [other._glm_predictive_distribution(piece) for piece in new[:few].split(500)]
    seconds = interleaved(functions, repeats, device)
    return {
        "forwards": seconds["covariance"] / seconds["forward"],
        "predict against peer": seconds.get("peer", float("nan")) * (len(new) / few) / seconds["covariance"],
        "evidence, ms": 1e3 * seconds["evidence"],
    }


def limits(device: torch.device) -> str:
    """What the machine can do."""
    a = torch.randn(2048, 2048, device=device)
    product = min(timed(lambda: a @ a, device) for _ in range(5))
    wide = a.double()
    double = min(timed(lambda: wide @ wide, device) for _ in range(5))
    copy = min(timed(lambda: wide.clone(), device) for _ in range(20))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return (
        f"{name}, torch {torch.__version__}: products {2 * 2048**3 / product / 1e9:.0f} GFLOP/s in float32, "
        f"{2 * 2048**3 / double / 1e9:.0f} in float64; copy {2 * 8 * 2048**2 / copy / 1e9:.0f} GB/s."
    )


def generated(n: int, step: int = 8192) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows that exist one chunk at a time."""
    generator = torch.Generator().manual_seed(0)
    for start in range(0, n, step):
        x = torch.randn(min(step, n - start), 8, generator=generator)
        yield x, x[:, :1].sin(), torch.ones(len(x))


def many_rows(quick: bool) -> Iterator[str]:
    """Peak memory of a pass over ever more generated rows, process-wide."""
    module = Workload("A", 0, (8, 50, 1), False, (), 0).module()
    network = Network.trace(module, torch.zeros(10, 8))
    yield "| structure | rows | seconds | peak above the start, MB |"
    yield "|---|---|---|---|"
    for structure in ("diag", "kron", "full"):
        fit_laplace(
            network, LIKELIHOODS["gaussian"](), GGN(), STRUCTURES[structure], network.scalar_prior(), generated(50_000)
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for n in (10**5, 10**6) if quick else (10**5, 10**6, 10**7):
            start = time.perf_counter()
            fit_laplace(
                network, LIKELIHOODS["gaussian"](), GGN(), STRUCTURES[structure], network.scalar_prior(), generated(n)
            )
            peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            yield f"| {structure} | {n:,} | {time.perf_counter() - start:.1f} | {peak:.0f} |"


def table(rows: list[dict[str, object]]) -> Iterator[str]:
    names = list(rows[0])
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)
    for row in rows:
        cells = [f"{value:.3g}" if isinstance(value, float) else f"{value}" for value in row.values()]
        yield "| " + " | ".join("–" if cell == "nan" else cell for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="names of workloads, as in AB")
    parser.add_argument("--out")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    lines = [limits(device), ""]
    found = []
    for work in WORKLOADS:
        if not options.only or work.name in options.only.split(","):
            for row in measure(work, options.quick, device):
                found.append(row)
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    lines += list(table(found)) if found else []
    if options.rows:
        lines += ["", *many_rows(options.quick)]
    text = "\n".join(lines)
    print(text)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
