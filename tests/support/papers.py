"""The page of reproduced experiments, made from what their full runs have kept.

Each script of ``examples/3_papers`` writes ``NAME.json`` and ``NAME.png`` (``--out docs/papers``);
``python tests/support/papers.py > docs/papers.md`` makes a page of them. No number on it was typed.
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

Well-known experiments with the method, each as one script in `examples/3_papers`. The claims of a source are predicates
of measured numbers. They were committed before the first run; a claim that does not hold is kept and explained.
`python examples/3_papers/NAME.py --out DIR` prints these numbers and draws the picture; `--quick` is a small run for
tests only. Data are bundled with scikit-learn or generated, unless stated otherwise. Seconds are for one of two cores,
with other work on the machine: all experiments except the one with larger data took 19 minutes together.
"""


def results() -> dict[str, dict[str, Any]]:
    """What each full run has kept, by the name of its script and, behind it, of its data."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def script_of(name: str) -> Path:
    """The script whose run was kept under this name."""
    return max((path for path in SCRIPTS if name.startswith(path.stem)), key=lambda path: len(path.stem))


def command(name: str, found: dict[str, Any]) -> str:
    """What prints a run's numbers."""
    data = " --data DIR" if found["data"] == "larger" else ""
    return f"python examples/3_papers/{script_of(name).name}{data}"


def number(value: float) -> str:
    """Four digits are what a figure of one seed may have."""
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-")


def section(name: str, found: dict[str, Any]) -> Iterator[str]:
    """One experiment: verdict, claims, numbers, choices, picture."""
    title = found["title"] + (", larger data" if found["data"] == "larger" else "")
    yield f"\n## {title}\n"
    yield f"**{found['verdict'].capitalize()}.** `{command(name, found)}`, {found['seconds']} s.\n"
    yield from (f"- {'✓' if held else '✗'} {sentence}" for sentence, held in found["claims"].items())
    if found["why"]:
        yield "\n" + textwrap.fill(f"Why: {found['why']}", 120)
    yield "\n| measured | |\n|---|---|"
    yield from (f"| {what} | {number(value)} |" for what, value in found["measured"].items())
    if found["choices"]:
        yield "\nChoices that the source does not specify:\n"
        yield from (f"- {sentence}" for sentence in found["choices"])
    yield f"\n![{found['title']}](papers/{name}.png)"


def page() -> str:
    """The page of the documentation."""
    found = results()
    parts = [HEADER, "| experiment | verdict | claims that hold |\n|---|---|---|"]
    for name, one in found.items():
        held = list(one["claims"].values())
        title = one["title"] + (", larger data" if one["data"] == "larger" else "")
        link = f"../examples/3_papers/{script_of(name).name}"
        parts.append(f"| [{title}]({link}) | {one['verdict']} | {sum(held)} of {len(held)} |")
    for name, one in found.items():
        parts += section(name, one)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
