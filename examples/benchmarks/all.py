"""Run every benchmark of this folder, one after the other, and write a page with their output.

``python examples/benchmarks/all.py --quick --out OUT`` runs each script in its quick form and writes ``OUT/page.md``,
with the status, processor time and output of each script. The files of a script are in a subfolder of OUT.
``--data DIR`` is the folder of the tables; without it, scripts that need tables are skipped.
``--only speed,price`` selects scripts. The exit status is 1 if a script has failed.

Without ``--quick`` the scripts run in full, which takes days. They never run with ``--test``: test parts are scored
only by the commands of ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import sklearn_laplace

FOLDER = Path(__file__).parent
LIMIT = 900
"""Seconds after which a quick script counts as failed."""
LAST_LINES = 15
"""Number of lines of an error on the page."""


@dataclass(frozen=True)
class Script:
    """A benchmark.

    Parameters
    ----------
    path : Path
        File with a command line.
    """

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """First line of its documentation."""
        return (ast.get_docstring(ast.parse(self.text)) or "").partition("\n")[0]

    @property
    def is_uci(self) -> bool:
        """True if it has the options of ``uci_sets.py``."""
        return "uci_sets.parser(" in self.text

    @property
    def needs_data(self) -> bool:
        """True if it needs tables even in its quick form."""
        return self.is_uci or '"--data", type=Path, required=True' in self.text

    def arguments(self, quick: bool, data: Path | None, out: Path) -> list[str]:
        """Options for its command line."""
        found = ["--quick"] if quick else []
        if self.needs_data or (data is not None and '"--data"' in self.text):
            inner = "uci_regression" if self.is_uci else ""
            found += ["--data", str((data or Path()) / inner)]
        return [*found, "--out", str(out / self.path.stem)] if '"--out"' in self.text else found


@dataclass(frozen=True)
class Result:
    """Result of a script.

    Parameters
    ----------
    script : Script
    status : str
        "fine", "failed" or "left out".
    command : str
        Command line, from the folder above ``examples``.
    seconds : float
        Processor time.
    output : str
    """

    script: Script
    status: str
    command: str = ""
    seconds: float = 0.0
    output: str = ""


def scripts(folder: Path, only: Sequence[str]) -> list[Script]:
    """Scripts with a command line except this one, or those named in ``only``.

    Raises
    ------
    SystemExit
        For an unknown name in ``only``.
    """
    found = [path for path in sorted(folder.glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]
    names = [path.stem for path in found if path.name != Path(__file__).name]
    if unknown := set(only) - set(names):
        raise SystemExit(f"--only names {sorted(unknown)}; the scripts are {', '.join(names)}.")
    return [Script(folder / f"{name}.py") for name in only or names]


def run(script: Script, quick: bool, data: Path | None, out: Path) -> Result:
    """Result of a script, run in a separate process."""
    if script.needs_data and data is None:
        return Result(script, "left out")
    arguments = script.arguments(quick, data, out)
    (out / script.path.stem).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(script.path.resolve()), *arguments]
    before = _of_children()
    try:
        ended = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT if quick else None,
            env={**os.environ, "MPLBACKEND": "Agg"},
        )
        status, output = "failed" if ended.returncode else "fine", ended.stdout
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
        status = "failed"
        output = f"{printed.decode(errors='replace')}\nstopped after {LIMIT} s"
    shown = " ".join(["python", f"examples/benchmarks/{script.path.name}", *arguments])
    return Result(script, status, shown, _of_children() - before, output)


def _of_children() -> float:
    """Processor seconds of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def page(results: Sequence[Result], quick: bool) -> str:
    """Markdown text with a table of all scripts, followed by the output of each."""
    form = "in their quick forms, whose numbers compare nothing" if quick else "in full"
    versions = f"sklearn_laplace {sklearn_laplace.__version__}, torch {torch.__version__}"
    machine = f"Python {platform.python_version()}, {datetime.date.today().isoformat()}"
    lines = ["# Benchmarks", "", f"{versions}, {machine}. All scripts {form}.", ""]
    lines += [
        "| script | status | s of processor | what it measures |",
        "|---|---|---|---|",
    ]
    for one in results:
        lines.append(f"| {one.script.path.stem} | {one.status} | {one.seconds:.0f} | {one.script.title} |")
    for one in results:
        if one.status != "left out":
            tail = one.output.splitlines()
            shown = tail[-LAST_LINES:] if one.status == "failed" else tail
            lines += ["", f"## {one.script.path.stem}", "", f"`{one.command}`: {one.status}", "", "```text"]
            lines += [*(line.replace("```", "'''") for line in shown), "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """Run the scripts, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each script in its quick form")
    parser.add_argument("--data", type=Path, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path("benchmarks"), help="folder of the page (default: benchmarks)")
    parser.add_argument("--only", help="names of scripts, separated by commas")
    options = parser.parse_args(arguments)
    chosen = scripts(folder, options.only.split(",") if options.only else [])
    options.out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for script in chosen:
        results.append(run(script, options.quick, options.data, options.out))
        print(f"{results[-1].status:8} {script.path.stem:24} {results[-1].seconds:6.0f} s", flush=True)
        (options.out / "page.md").write_text(page(results, options.quick), encoding="utf-8")
    failed = [one.script.path.stem for one in results if one.status == "failed"]
    left_out = [one.script.path.stem for one in results if one.status == "left out"]
    print(f"saved {options.out / 'page.md'}")
    if left_out:
        print(f"left out, because they need --data DIR: {', '.join(left_out)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
