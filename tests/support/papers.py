"""The page of reproduced experiments, generated from the results of full runs.

Each script of ``examples/3_papers`` writes ``NAME.json`` and ``NAME.png`` (``--out docs/papers``).
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

Each script in `examples/3_papers` reproduces a well-known experiment on the Laplace approximation. The claims are
conditions on measured numbers, fixed before the first run. Claims that do not hold (✗) are explained. *Kronecker
Laplace* and *diagonal Laplace* are named after the structure of the posterior precision.

Each command prints all measured numbers, and the choices that the source does not specify. It writes `NAME.json` and
the picture `NAME.png` to the folder of `--out`. The files of the runs below are in `docs/papers`. Data are bundled with
scikit-learn or generated, unless stated otherwise. Run times are for one of two cores, with other work on the machine.
Without the larger data, they add up to 31 minutes.
"""

# Numbers that explain failed claims, at most three per experiment: name in the results → label on the page.
DECISIVE = {
    "plot_02_identity_hessian": {
        "1/noise², root, inside": "std on the data: correct",
        "mean loss, root, inside": "as coded",
        "identity, covariance, inside": "with both errors",
    },
    "plot_16_mixture_and_active_learning": {
        "Friedman, evidence: gain, mean": "gain in nats per row of the mixture by evidence on Friedman",
        "diabetes, evidence: gain, mean": "on diabetes",
        "active, log-likelihood: gain, mean": "of active learning",
    },
}


def results() -> dict[str, dict[str, Any]]:
    """Return the stored results of the full runs, by the names of script and data."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def script_of(name: str) -> Path:
    """Return the script that produced the results of this name."""
    return max((path for path in SCRIPTS if name.startswith(path.stem)), key=lambda path: len(path.stem))


def command(name: str, result: dict[str, Any]) -> str:
    """Return the command that prints the numbers of a run."""
    data = " --data DIR" if result["data"] == "larger" else ""
    return f"python examples/3_papers/{script_of(name).name}{data}"


def number(value: float) -> str:
    """Format a number with four digits, which is enough for results of few seeds."""
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-")


def title_of(result: dict[str, Any]) -> str:
    """Return the title of an experiment, with its data if these are not bundled."""
    return result["title"] + (", larger data" if result["data"] == "larger" else "")


def section(name: str, result: dict[str, Any]) -> Iterator[str]:
    """Yield the section of an experiment: verdict, command, claims, explanation, picture."""
    yield f"\n## {title_of(result)}\n"
    yield f"**{result['verdict'].capitalize()}.** `{command(name, result)}`, {result['seconds']} s.\n"
    yield from (f"- {'✓' if held else '✗'} {sentence}" for sentence, held in result["claims"].items())
    if decisive := DECISIVE.get(name):
        numbers = ", ".join(f"{label} {number(result['measured'][what])}" for what, label in decisive.items())
        yield f"\nMeasured: {numbers}."
    if result["why"]:
        text = result["why"].removesuffix(".")
        yield "\n" + textwrap.fill(f"Why: {text}.", 120, break_on_hyphens=False)
    yield f"\n![{result['title'].split(': ')[0]}](papers/{name}.png)"


def page() -> str:
    """Return the text of ``docs/papers.md``."""
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
