"""Report of the quality benchmarks: means, paired differences with standard errors, and a figure.

A *row* is the score of one model on one split: ``{"set", "split", "model", "rows", "judged", metrics…}``. For two
models, the difference d_j of their scores is computed for each split j = 1 … J. The training parts overlap, so the d_j
are not independent. The standard error of their mean (Nadeau & Bengio 2003, eq. 9) is √((1/J + n_judged / n_fit) · s²),
where s² is the variance of the d_j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uci_sets

Row = dict[str, Any]

TIE = 0.005
"""Largest difference of two scores that counts as a tie, in nats a row."""
SURE = 2.0
"""Number of standard errors above which a set counts as won or lost."""


def paired(first: Sequence[float], second: Sequence[float], share: float) -> tuple[float, float]:
    """Mean of first − second, and its corrected standard error; share is n_judged / n_fit.

    >>> paired([2.0, 4.0], [1.0, 1.0], 0.5)
    (2.0, 1.4142135623730951)
    """
    difference = np.subtract(first, second)
    if len(difference) < 2:
        return float(difference.mean()), float("nan")
    return float(difference.mean()), float(np.sqrt((1 / len(difference) + share) * difference.var(ddof=1)))


def by_split(rows: Sequence[Row], name: str, model: str, metric: str) -> dict[int, float]:
    return {row["split"]: row[metric] for row in rows if row["set"] == name and row["model"] == model}


def names(rows: Sequence[Row], key: str) -> list[str]:
    """Distinct names, in the order of their first row."""
    return list(dict.fromkeys(row[key] for row in rows))


def means(rows: Sequence[Row], metrics: Sequence[str], main: str, main_summary: str = "± s.e.") -> Iterator[str]:
    """Lines of means over the splits, with the standard error of the main metric, or its median and worst split."""
    extra = [main_summary] if main_summary == "± s.e." else ["median", "worst"]
    columns = [c for m in metrics for c in ([m, *extra] if m == main else [m])]
    yield uci_sets.header("Means over the splits", ["table", "model", "splits", *columns])
    for name in names(rows, "set"):
        for model in names([row for row in rows if row["set"] == name], "model"):
            cells: list[float | str] = []
            for metric in metrics:
                values = np.array(list(by_split(rows, name, model, metric).values()))
                cells.append(float(values.mean()))
                if metric == main:
                    cells += _spread(values, main_summary, worst=min if main == "log-likelihood" else max)
            yield uci_sets.line([name, model, str(len(values)), *cells])


def _spread(values: np.ndarray, summary: str, worst: Callable[[Any], float]) -> list[float]:
    if summary != "± s.e.":
        return [float(np.median(values)), float(worst(values))]
    return [float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")]


def differences(rows: Sequence[Row], base: str, metrics: dict[str, int]) -> Iterator[str]:
    """Lines of the gains of the base over each other model: positive values favour the base for every metric.

    The first metric also has the numbers of splits won, tied and lost.
    """
    main = next(iter(metrics))
    columns = [c for metric in metrics for c in (f"gain, {metric}", "± s.e.")]
    yield uci_sets.header(
        f"{base} against the others, split by split", ["table", "against", *columns, "won / tied / lost"]
    )
    sure: dict[str, list[int]] = {}
    for name in names(rows, "set"):
        for other in names([row for row in rows if row["set"] == name], "model"):
            cells: list[float] = []
            for metric, sign in metrics.items():
                cells += gain(rows, name, base, other, metric, sign)[:2]
            if other == base or np.isnan(cells[0]):
                continue
            each = gain(rows, name, base, other, main, metrics[main])[2]
            tally = np.sum(each > TIE), np.sum(np.abs(each) <= TIE), np.sum(each < -TIE)
            yield uci_sets.line([name, other, *cells, " / ".join(map(str, tally))])
            if not np.isnan(cells[1]):
                index = 1 if abs(cells[0]) <= SURE * cells[1] else 0 if cells[0] > 0 else 2
                sure.setdefault(other, [0, 0, 0])[index] += 1
    yield uci_sets.header(
        f"Sets won / tied / lost by {base}; won or lost: {SURE:.0f} standard errors of {main}", ["against", "sets"]
    )
    for other, counts in sure.items():
        yield uci_sets.line([other, " / ".join(map(str, counts))])


def gain(
    rows: Sequence[Row], name: str, base: str, other: str, metric: str, sign: int
) -> tuple[float, float, np.ndarray]:
    """Mean gain, its corrected standard error, and the gain of each split; NaN if the two have no split in common."""
    ours, theirs = (by_split(rows, name, model, metric) for model in (base, other))
    common = [split for split in ours if split in theirs]
    if not common:
        return float("nan"), float("nan"), np.zeros(0)
    sizes = next(row for row in rows if row["set"] == name and row["model"] == base)
    first, second = (np.array([sign * each[split] for split in common]) for each in (ours, theirs))
    return *paired(first, second, sizes["judged"] / sizes["rows"]), first - second


def figure(rows: Sequence[Row], base: str, metric: str, sign: int, title: str, path: Path) -> None:
    """Draw a panel per set: gains over the other models with standard errors, as text if beyond the axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import matplotlib.ticker

    sets = names(rows, "set")
    others = [model for model in names(rows, "model") if model != base]
    size = max(2.6 + 2.1 * len(sets), 6.8), max(2.8, 1.3 + 0.34 * len(others))
    fig, axes = plt.subplots(1, len(sets), figsize=size, sharey=True, squeeze=False)
    for ax, name in zip(axes[0], sets, strict=True):
        gains = [gain(rows, name, base, other, metric, sign) for other in others]
        limit = _limit([(mean, error) for mean, error, _ in gains])
        for i, (mean, error, _) in enumerate(gains):
            if np.isnan(mean):
                continue
            colour = "tab:gray" if not abs(mean) > SURE * error else "tab:blue" if mean > 0 else "tab:red"
            if abs(mean) > limit:
                ax.text(np.sign(mean) * limit * 0.95, i, f"{mean:+.2g} ▸" if mean > 0 else f"◂ {mean:+.2g}",
                        ha="right" if mean > 0 else "left", va="center", color=colour, fontsize=8)  # fmt: skip
            else:
                ax.errorbar(mean, i, xerr=error, fmt="o", color=colour, markersize=4, capsize=2)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(title=name, xlim=(-limit, limit), ylim=(len(others) - 0.5, -0.5))
        ax.set_yticks(range(len(others)), others)
        ax.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
        ax.grid(axis="x", alpha=0.3)
        ax.tick_params(labelsize=8)
    fig.suptitle(title, fontsize=10)
    fig.tight_layout()
    fig.savefig(path, dpi=130)
    plt.close(fig)


def _limit(gains: Sequence[tuple[float, float]]) -> float:
    """Axis limit that keeps outliers from compressing the rest: three times the median of |mean| + error."""
    ends = np.abs([mean for mean, _ in gains]) + np.nan_to_num([error for _, error in gains])
    ends = ends[~np.isnan(ends)]
    return 1.1 * float(min(ends.max(), 3 * np.median(ends))) if len(ends) and ends.max() > 0 else 1.0
