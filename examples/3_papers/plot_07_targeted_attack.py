r"""07 · Targeted attack: every picture a zero
==========================================

Ritter et al. (2018, section 5.3, figure 4; after Li & Gal 2017) push the test pictures towards class 0. Each step uses
the gradient of the averaged prediction of a method,

.. math:: x^{(t+1)} = x^{(t)} + \eta\,\mathrm{sgn}\,\nabla_x \log p^{(M)}(y = 0 \mid x^{(t)}), \qquad \eta = 10^{-2} .

The authors count the steps until the method is fooled. Pictures that a method already classifies as 0 are excluded.
In the source, half of the pictures fool the Kronecker-factored posterior after about 20 steps, and the other methods
after about 10.
"""

import itertools
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
from attacks import CHOICES, CONFIDENT, LOOSE, steps_to, style, targeted, ways
from ensembles import SHOWN
from experiment import Experiment

OTHERS = tuple(name for name in SHOWN if "Kron" not in name)
CLAIMS = {
    "half of the pictures fool Kronecker Laplace last of all methods": (
        lambda m: m["Kronecker Laplace, steps to half"] > max(m[f"{name}, steps to half"] for name in OTHERS)
    ),
    "Kronecker Laplace takes at least 1.5 times as many steps as any other method": (
        lambda m: m["Kronecker Laplace, steps to half"] >= 1.5 * max(m[f"{name}, steps to half"] for name in OTHERS)
    ),
    "the peak entropy of Kronecker Laplace is no higher than that of any other method": (
        lambda m: m["Kronecker Laplace, peak entropy"] <= min(m[f"{name}, peak entropy"] for name in OTHERS)
    ),
    "the numbers of steps of diagonal Laplace and MC dropout differ by at most a quarter": (
        lambda m: abs(m["diagonal Laplace, steps to half"] / m["MC dropout, steps to half"] - 1) <= 0.25
    ),
}
MEASURES = ("steps to half", "steps to all but 1 %", "peak entropy", "mean accuracy")
STEP = 1e-2


def main():
    run = Experiment("plot_07_targeted_attack", __doc__, CLAIMS)
    seeds = range(run.seed, run.seed + (1 if run.quick else 3))
    n_steps = 5 if run.quick else 50 if run.data else 60
    n_rows = 20 if run.quick else 60
    run.choose(
        *CHOICES,
        f"{n_steps} steps of η = {STEP}, not scaled and not clipped"
        + ("" if run.data else ": with 64 pixels one step moves a logit by about √(64 / 784) of its change with 784"),
        f"the first {n_rows} test pictures of each of the seeds {list(seeds)}",
    )
    curves, chosen = defaultdict(list), defaultdict(list)
    for seed, confident in itertools.product(seeds, (False, True)):
        found = ways(run.data, seed, run.quick, confident)
        for name, method in found.methods.items():
            few = (rows[:n_rows] for rows in found.data.test)
            curves[name].append(targeted(method, *few, STEP, n_steps))
        for name, scale in found.scales.items():
            chosen[name].append(scale)
    mean = {name: np.mean(values, axis=0) for name, values in curves.items()}
    run.table(
        "Geometric mean of what was chosen", ("N / n", "τ"), {n: np.exp(np.log(v).mean(0)) for n, v in chosen.items()}
    )
    rows = {
        n: (steps_to(0.5, curve), steps_to(0.99, curve), curve[:, 0].max(), curve[:, 1].mean())
        for n, curve in mean.items()
    }
    run.table(f"Under attack ({n_steps + 1}: never)", MEASURES, rows)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    wanted = ("mean entropy [nats]", "accuracy on the true class", "share taken for a 0")
    for part, (axis, what) in enumerate(zip(axes, wanted, strict=True)):
        for name, curve in mean.items():
            axis.plot(curve[:, part], label=name, **style(name))
        axis.set(xlabel=f"steps of η = {STEP}", ylabel=what, title=f"targeted attack: {what}")
        axis.grid(alpha=0.3)
    axes[2].legend(fontsize=7)
    run.save(figure)
    measured = {f"{name}, {what}": v for name, row in rows.items() for what, v in zip(MEASURES, row, strict=True)}
    run.judge(measured, why(measured, chosen))


def why(m, chosen):
    """Return an explanation by N and τ, and by the posteriors with a small τ."""
    kron, loose = "Kronecker Laplace", f"Kronecker Laplace{LOOSE}"
    n, tau = np.exp(np.log(chosen[kron]).mean(0))
    half = {name: m[f"{name}, steps to half"] for name in (*SHOWN, loose, f"diagonal Laplace{LOOSE}")}
    return (
        f"for n rows, validation selects N / n = {n:.0f} and τ = {tau:.0f} (explained in experiment 5). Half of the "
        f"pictures fool Kronecker Laplace after {half[kron]:.0f} steps, the deterministic pass after "
        f"{half['deterministic']:.0f}, and MC dropout after {half['MC dropout']:.0f}. With N = n and the smallest τ "
        f"that keeps the accuracy, the numbers of steps are {half[loose]:.0f} (Kronecker) and "
        f"{half[f'diagonal Laplace{LOOSE}']:.0f} (diagonal). The peaks of the entropy are "
        + ", ".join(f"{m[f'{name}, peak entropy']:.3f} ({name})" for name in SHOWN)
        + ". For overconfident nets without dropout, the numbers of steps with tuned posteriors are "
        + ", ".join(f"{m[f'{CONFIDENT}{name}, steps to half']:.0f} ({name})" for name in SHOWN if name != "MC dropout")
        + "."
    )


if __name__ == "__main__":
    main()
