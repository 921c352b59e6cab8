"""The page of reproduced experiments, generated from the results of full runs.

Each script of ``examples/3_papers`` writes ``NAME.json`` and ``NAME.png`` (``--out docs/papers``);
``python tests/support/papers.py > docs/papers.md`` generates the page from them.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/papers"
SCRIPTS = sorted((ROOT / "examples/3_papers").glob("plot_*.py"))

HEADER = """\
<!-- python tests/support/papers.py > docs/papers.md -->

# The papers, reproduced

This page reproduces well-known experiments with the method, each by a script in `examples/3_papers`. The claims of a
source are predicates of measured numbers. They were committed before the first run; a claim that does not hold is kept
and explained.

The command of an experiment prints all measured numbers and the choices that its source does not specify. It writes
them to `NAME.json`, and the picture to `NAME.png`, in the folder of `--out`. The files of the runs below are in
`docs/papers`. `--quick` is a small run for tests only. Data are bundled with scikit-learn or generated, unless stated
otherwise. Seconds are for one of two cores, with other work on the machine. All experiments except the one with larger
data took 19 minutes in total.
"""

# Numbers without which failed claims cannot be read, at most three of an experiment: name in the results, on the page.
DECISIVE = {
    "plot_02_identity_hessian": {
        "1/noise², root, inside": "correct",
        "mean loss, root, inside": "as coded",
        "identity, covariance, inside": "both errors",
    },
    "plot_16_mixture_and_active_learning": {
        "Friedman, evidence: gain, mean": "nats per row gained on Friedman by evidence",
        "diabetes, evidence: gain, mean": "on diabetes",
        "active, log-likelihood: gain, mean": "by active learning",
    },
}


def results() -> dict[str, dict[str, Any]]:
    """Stored results of the full runs, by the names of script and data."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def script_of(name: str) -> Path:
    """Script that produced the results of this name."""
    return max((path for path in SCRIPTS if name.startswith(path.stem)), key=lambda path: len(path.stem))


def command(name: str, result: dict[str, Any]) -> str:
    """Command that prints the numbers of a run."""
    data = " --data DIR" if result["data"] == "larger" else ""
    return f"python examples/3_papers/{script_of(name).name}{data}"


def number(value: float) -> str:
    """Number with four digits, enough for results of a single seed."""
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-")


def title_of(result: dict[str, Any]) -> str:
    """Title of an experiment, with its data if they are not bundled."""
    return result["title"] + (", larger data" if result["data"] == "larger" else "")


def section(name: str, result: dict[str, Any]) -> Iterator[str]:
    """Section of an experiment: verdict, command, claims, explanation, picture."""
    yield f"\n## {title_of(result)}\n"
    yield f"**{result['verdict'].capitalize()}.** `{command(name, result)}`, {result['seconds']} s.\n"
    yield from (f"- {'✓' if held else '✗'} {sentence}" for sentence, held in result["claims"].items())
    if decisive := DECISIVE.get(name):
        numbers = ", ".join(f"{label} {number(result['measured'][what])}" for what, label in decisive.items())
        yield f"\nMeasured: {numbers}."
    if result["why"]:
        text = result["why"].removesuffix(".")
        yield "\n" + textwrap.fill(f"Why: {text}.", 120)
    yield f"\n![{result['title'].split(': ')[0]}](papers/{name}.png)"


def page() -> str:
    """Text of ``docs/papers.md``."""
    stored = results()
    parts = [HEADER, "| experiment | verdict | claims that hold |\n|---|---|---|"]
    for name, result in stored.items():
        held = list(result["claims"].values())
        link = f"../examples/3_papers/{script_of(name).name}"
        parts.append(f"| [{title_of(result)}]({link}) | {result['verdict']} | {sum(held)} of {len(held)} |")
    for name, result in stored.items():
        parts += section(name, result)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
