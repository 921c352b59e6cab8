"""Shared code of the experiments: options, evaluation of the claims, printing and storage.

The *claims* of an experiment are conditions on its measured numbers, fixed before its first run. A dict maps each
sentence to a function of the numbers. If all claims hold, the experiment is reproduced; if some claims hold, it is
reproduced in part; otherwise it is not reproduced. The script explains the claims that do not hold (``why``).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

Measured = dict[str, float]
Claims = Mapping[str, Callable[[Measured], bool]]


@dataclass
class Experiment:
    """Run of one experiment: its options, choices and measured numbers.

    Parameters
    ----------
    name : str
        Name of its script, without ``.py``; also the name of its picture and its results.
    doc : str
        The script's docstring; the first line is its title.
    claims : dict from str to callable
        Sentence → condition on the measured numbers.
    """

    name: str
    doc: str
    claims: Claims
    measured: Measured = field(default_factory=dict)
    choices: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        parser = argparse.ArgumentParser(description=self.doc.split("\n")[0])
        parser.add_argument("--quick", action="store_true", help="smoke test: less data, fewer samples")
        parser.add_argument(
            "--out", type=Path, default=Path(), metavar="DIR", help="folder of the picture and the results"
        )
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument(
            "--data", metavar="DIR", help="folder of larger data, or 'openml' to fetch them; default: bundled"
        )
        options = parser.parse_args()
        self.quick: bool = options.quick
        self.seed: int = options.seed
        self.data: str | None = options.data
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        print(self.doc.split("\n")[0])
        print(f"seed {self.seed}" + (", quick run: no conclusions" if self.quick else ""))

    def choose(self, *sentences: str) -> None:
        """Print and store choices that the source does not specify."""
        for sentence in sentences:
            self.choices.append(sentence)
            print(f"choice: {sentence}")

    def table(self, title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]], digits: int = 3) -> None:
        """Print numbers, one row per method."""
        left = max(map(len, rows)) + 2
        cells = {"": columns} | {name: [f"{v:.{digits}f}" for v in values] for name, values in rows.items()}
        widths = [2 + max(map(len, column)) for column in zip(*cells.values(), strict=True)]
        print(f"\n{title}")
        for name, texts in cells.items():
            print(f"{name:{left}}" + "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True)))
        print()

    def save(self, figure: Figure, suffix: str = "") -> None:
        """Write the picture and print its path."""
        path = self.out / f"{self.name}{suffix}.png"
        figure.savefig(path, dpi=100)
        plt.close(figure)
        print(f"saved {path}")

    def judge(self, measured: Measured, why: str = "") -> None:
        """Print each claim with its verdict, and store the results in ``NAME.json``.

        Parameters
        ----------
        measured : dict from str to float
            Numbers used by the conditions.
        why : str
            Explanation of the claims that do not hold; required if a claim does not hold, except with ``--quick``.
        """
        self.measured |= {name: float(value) for name, value in measured.items()}
        holds = {sentence: bool(predicate(self.measured)) for sentence, predicate in self.claims.items()}
        verdict = (
            "reproduced" if all(holds.values()) else "reproduced in part" if any(holds.values()) else "not reproduced"
        )
        print("\n".join(f"measured: {name} = {value:.4g}" for name, value in self.measured.items()))
        print("\n".join(f"{'holds' if held else 'DOES NOT HOLD'}: {sentence}" for sentence, held in holds.items()))
        explained = "" if all(holds.values()) else why
        if explained:
            print(f"why: {explained}")
        seconds = time.perf_counter() - self.started
        print(f"verdict: {verdict}\n{seconds:.0f} s")
        kept = {
            "title": self.doc.split("\n")[0],
            "verdict": verdict,
            "claims": holds,
            "measured": self.measured,
            "why": explained,
            "choices": self.choices,
            "quick": self.quick,
            "seed": self.seed,
            "data": "bundled or generated" if self.data is None else "larger",
            "seconds": round(seconds),
        }
        (self.out / f"{self.name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")
        if not self.quick and not explained and not all(holds.values()):
            raise SystemExit(f"{self.name}: a claim does not hold, and nothing explains why")
