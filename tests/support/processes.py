"""New processes that have imported the package already: a fork takes milliseconds, and imports take seconds.

A single-threaded server imports the package and runs nothing else. Each script runs in a fork of the server.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

SECONDS = 120
"""Time limit of a script."""
FORKS = sys.platform.startswith("linux")
"""On other systems each script is a process of its own."""
BLOCKS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""The C library returns freed blocks of 64 kB to the system at once: blocks that it keeps would count as used."""
SERVER = """
import json, os, sys, traceback
import numpy, pandas, skops.io, torch
import sklearn_laplace

torch.set_num_threads(1)


def run(script, arguments, folder, output):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(os.path.join(output, name), os.O_CREAT | os.O_WRONLY), number)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    code = 1
    try:
        exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(**json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Processes:
    """Scripts in processes that have imported numpy, pandas, skops, torch and the package, or that import them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[str] | None = None
        self.n_scripts = 0

    def run(self, script: str, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a script with arguments, in a folder, and return its exit status and its output."""
        if not FORKS:
            command = [sys.executable, "-c", script, *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder)
        output = self.folder / str(self.n_scripts)
        output.mkdir()
        self.n_scripts += 1
        where = {"folder": str(folder or Path.cwd()), "output": str(output)}
        status = self._status({"script": script, "arguments": [str(given) for given in arguments], **where})
        texts = [(output / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(script, status, *texts)

    def _status(self, job: dict[str, object]) -> int:
        if self.server is None:
            command = [sys.executable, "-c", SERVER]
            pipe = subprocess.PIPE
            environment = os.environ | BLOCKS
            self.server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        if not select.select([self.server.stdout], [], [], SECONDS)[0]:
            self.end()
            raise TimeoutError(f"a process takes more than {SECONDS} s")
        return int(self.server.stdout.readline())

    def end(self) -> None:
        """Kill the server."""
        if self.server is not None:
            self.server.kill()
            self.server.communicate()
            self.server = None
