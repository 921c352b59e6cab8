"""Kill fits at random moments, and check that none hangs, leaves a partial file, or ends with a different model.

``python tests/support/kills.py --kills 20`` kills, in turn, the only process of a fit, one of two ranks of torchrun,
the client of a dask cluster, and one of its workers. Each fit uses 20,000 rows of Parquet files and saves its state.
After a kill, the state file must be complete or absent, and all processes must end within ``LIMIT`` seconds. The next
call must end with the model of an uninterrupted fit. The script needs POSIX and the extras ``[arrow]`` and ``[dask]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
FEW, SCRIPTS = ROOT / "tests" / "clients" / "few_rows.py", ROOT / "examples" / "scaling"
LIMIT, N = 120, 20_000
KINDS = "process", "rank", "dask client", "dask worker"


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(FEW.parent), os.environ.get("PYTHONPATH", "")]
    limits = {"OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__WORKER__PRELOAD": "few_rows"}
    return {**os.environ, **limits, "PYTHONPATH": os.pathsep.join(paths)}


def started(kind: str, folder: Path, memory: Path) -> subprocess.Popen:
    """Start a fit in a process group of its own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if kind == "rank" else []
    script = "with_dask.py" if kind.startswith("dask") else "with_torchrun.py"
    command = [sys.executable, *launcher, str(FEW), str(SCRIPTS / script), "--folder", str(folder), "--rows", str(N)]
    pipe = subprocess.PIPE
    arguments = [*command, "--memory", str(memory)]
    return subprocess.Popen(arguments, env=environment(), stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def children(process: int) -> list[int]:
    """All processes below another one, those started last at the end."""
    found = []
    for child in subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout.split():
        found += [int(child), *children(int(child))]
    return found


def victim(kind: str, process: subprocess.Popen) -> int:
    """Process to kill."""
    if kind in ("process", "dask client"):
        return process.pid
    below = children(process.pid)
    if kind == "rank":
        return random.choice(below) if below else process.pid
    workers = [child for child in below if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return random.choice(workers) if workers else process.pid


def digest(text: str) -> str:
    """Digest of the predictions, the same for all lines."""
    lines = [json.loads(line[line.index("{") :]) for line in text.splitlines() if '{"' in line]
    digests = {line["digest"] for line in lines}
    assert len(digests) == 1, text
    return digests.pop()


def result(process: subprocess.Popen) -> tuple[int, str]:
    """Exit status and output; a process that hangs is an error."""
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output if process.returncode == 0 else output + errors[-1500:]


def one(kind: str, folder: Path, memory: Path, seconds: tuple[float, float], reference: str) -> str:
    """Kill one fit, check what is left, and let it go on."""
    process, delay = started(kind, folder, memory), random.uniform(*seconds)
    time.sleep(delay)
    if process.poll() is None:
        os.kill(victim(kind, process), signal.SIGKILL)
    status, _ = result(process)
    if kind == "dask client" or status != 0:  # what a killed launcher leaves behind
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    held = "no file"
    for state in memory.glob("sklearn_laplace/*.state"):
        held = f"state of {len(torch.load(state, weights_only=True)['finished'])} stages"
    status, output = result(started(kind, folder, memory))
    assert status == 0, output
    assert digest(output) == reference, "another model"
    left = list(memory.glob("sklearn_laplace/*"))
    assert not left, left
    return f"{kind:12s} killed after {delay:5.1f} s, {held}: the same model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    with tempfile.TemporaryDirectory() as path:
        folder, references, seconds = Path(path) / "rows", {}, {}
        for kind in args.kinds:
            begun = time.monotonic()
            status, output = result(started(kind, folder, Path(path) / kind))
            assert status == 0, output
            references[kind], seconds[kind] = digest(output), time.monotonic() - begun
        for k in range(args.kills):
            kind = args.kinds[k % len(args.kinds)]
            print(
                one(kind, folder, Path(path) / kind, (0.2 * seconds[kind], seconds[kind]), references[kind]), flush=True
            )


if __name__ == "__main__":
    main()
