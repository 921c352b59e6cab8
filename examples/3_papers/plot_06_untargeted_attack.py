r"""06 · Untargeted attack: pictures pushed away from their class
=============================================================

Ritter et al. (2018, section 5.3, figure 3) change the test pictures by one step of the fast gradient sign method
(Goodfellow et al. 2014). The step is directed against the class that a method M finds most probable,

.. math:: x_\mathrm{adv} = x - \eta\,(\max x - \min x) \odot \mathrm{sgn}\,\nabla_x \max_y \log p^{(M)}(y \mid x),

where :math:`\max x - \min x` is the range of each pixel in the data. The gradient is that of the averaged prediction
:math:`p^{(M)} = \frac1S \sum_s p(y \mid x, \theta_s)` of each method. The pictures end far from all data, so a method
should become uncertain about them.
"""

import itertools
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
from attacks import CHOICES, CONFIDENT, LOOSE, pixel_ranges, style, untargeted, ways
from ensembles import SHOWN
from experiment import Experiment

CLAIMS = {
    "from no step to the largest step, the entropy of Kronecker Laplace grows most": (
        lambda m: m["Kronecker Laplace, entropy gained"] == max(m[f"{name}, entropy gained"] for name in SHOWN)
    ),
    "at the largest step, Kronecker Laplace has the highest entropy": (
        lambda m: m["Kronecker Laplace, entropy at the end"] == max(m[f"{name}, entropy at the end"] for name in SHOWN)
    ),
    "both Laplace approximations keep a higher accuracy than MC dropout": (
        lambda m: (
            min(m[f"{name} Laplace, mean accuracy"] for name in ("diagonal", "Kronecker"))
            > m["MC dropout, mean accuracy"]
        )
    ),
    "the deterministic pass keeps the highest accuracy": (
        lambda m: m["deterministic, mean accuracy"] == max(m[f"{name}, mean accuracy"] for name in SHOWN)
    ),
    "the deterministic pass has the lowest mean entropy": (
        lambda m: m["deterministic, mean entropy"] == min(m[f"{name}, mean entropy"] for name in SHOWN)
    ),
}
MEASURES = ("entropy gained", "entropy at the end", "mean entropy", "mean accuracy")
STEPS = np.linspace(0.0, 0.5, 11)
"""η."""


def main():
    run = Experiment("plot_06_untargeted_attack", __doc__, CLAIMS)
    seeds = range(run.seed, run.seed + (1 if run.quick else 3))
    run.choose(
        *CHOICES, f"η = {', '.join(f'{step:.2f}' for step in STEPS)}; pixels are not clipped", f"seeds {list(seeds)}"
    )
    curves, chosen = defaultdict(list), defaultdict(list)
    for seed, confident in itertools.product(seeds, (False, True)):
        attacked = ways(run.data, seed, run.quick, confident)
        for name, method in attacked.methods.items():
            curves[name].append(untargeted(method, *attacked.data.test, pixel_ranges(attacked.data), STEPS))
        for name, scale in attacked.scales.items():
            chosen[name].append(scale)
    mean = {name: np.mean(values, axis=0) for name, values in curves.items()}
    run.table(
        "Geometric mean of what was chosen", ("N / n", "τ"), {n: np.exp(np.log(v).mean(0)) for n, v in chosen.items()}
    )
    rows = {n: (c[-1, 0] - c[0, 0], c[-1, 0], c[1:, 0].mean(), c[1:, 1].mean()) for n, c in mean.items()}
    run.table(f"Under attack, η up to {STEPS[-1]} (mean over the seeds)", MEASURES, rows)
    run.table(
        "Without attack", ("entropy", "accuracy"), {name: (curve[0, 0], curve[0, 1]) for name, curve in mean.items()}
    )
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for axis, part, what in zip(axes, (0, 1), ("mean entropy [nats]", "accuracy on the true class"), strict=True):
        for name, curve in mean.items():
            axis.plot(STEPS, curve[:, part], label=name, **style(name))
        axis.set(xlabel="step η (share of each pixel's range)", ylabel=what, title=f"untargeted attack: {what}")
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=7)
    run.save(figure)
    measured = {f"{name}, {what}": v for name, row in rows.items() for what, v in zip(MEASURES, row, strict=True)}
    measured |= {f"{name}, accuracy without attack": curve[0, 1] for name, curve in mean.items()}
    run.judge(measured, why(measured, chosen))


def why(m, chosen):
    """Return an explanation by N and τ, and by the posteriors with a small τ."""
    kron, diag, one, dropout = "Kronecker Laplace", "diagonal Laplace", "deterministic", "MC dropout"
    n, tau = np.exp(np.log(chosen[kron]).mean(0))
    gained, end, kept = (
        {name: m[f"{name}, {what}"] for name in (one, dropout, kron, kron + LOOSE, diag + LOOSE)}
        for what in ("entropy gained", "entropy at the end", "mean accuracy")
    )
    return (
        f"for n rows, validation selects N / n = {n:.0f} and τ = {tau:.0f} (explained in experiment 5). Kronecker "
        "Laplace then differs from the deterministic pass by "
        f"{abs(gained[kron] - gained[one]):.4f} nats in gained entropy and "
        f"{abs(kept[kron] - kept[one]):.4f} in accuracy. With N = n and the smallest τ that keeps the accuracy, "
        f"Kronecker Laplace gains {gained[kron + LOOSE]:.3f} nats (diagonal "
        f"{gained[diag + LOOSE]:.3f}, MC dropout {gained[dropout]:.3f}, deterministic {gained[one]:.3f}). Its entropy "
        f"ends at {end[kron + LOOSE]:.3f} (diagonal {end[diag + LOOSE]:.3f}, MC dropout {end[dropout]:.3f}, "
        f"deterministic {end[one]:.3f}), and its mean accuracy is {kept[kron + LOOSE]:.3f} (MC dropout "
        f"{kept[dropout]:.3f}). For overconfident nets without dropout, the tuned posteriors differ. The "
        "entropies at the end are "
        + ", ".join(f"{m[f'{CONFIDENT}{name}, entropy at the end']:.3f} ({name})" for name in (kron, diag, one))
        + ", after gains of "
        + ", ".join(f"{m[f'{CONFIDENT}{name}, entropy gained']:.3f}" for name in (kron, diag, one))
        + "."
    )


if __name__ == "__main__":
    main()
