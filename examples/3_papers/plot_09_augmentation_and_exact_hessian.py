r"""09 · Augmentation and exact Hessian: what the curvature is made of
==================================================================

Ritter et al. (2018, appendix C, figures 6 and 7) repeat the attacks of experiments 6 and 7 with other curvatures of the
same net. They compare curvatures with and without the augmentation of the training, a random binarisation. They also
compare approximate and exact expectations of the layers' output factors. Without augmentation, they had to regularise
much more; the approximation made hardly any difference.

Here, the *needed* τ of a posterior measures this regularisation. It is the smallest τ, with N = n, at which weight
samples lose at most one point of validation accuracy against the net itself.

The second part uses a smaller net, for which the exact Hessian is affordable. If activations are piecewise linear, the
block of each layer equals that of the generalised Gauss–Newton matrix (Botev et al. 2017),

.. math:: \frac{\partial^2 E}{\partial W_l^2} = \sum_n a_{nl} a_{nl}^\top \otimes
          J_{nl}^\top\,\frac{\partial^2 E}{\partial f_n^2}\,J_{nl}, \qquad f'' = 0,

and the two matrices differ only in the blocks between layers, through which the Hessian may have negative eigenvalues.
"""

import warnings
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
import torch
from attacks import pixel_ranges, steps_to, targeted, untargeted
from ensembles import LOOSE_PRECISIONS, choose_scale, laplace, loosest, weight_samples
from experiment import Experiment
from pictures import binarised, copied, load, relu_net, seeded, trained

WITH, WITHOUT, DRAWN = "augmented", "not augmented", "not augmented, Fisher by one draw"
FULL, EXACT, BLOCK, EXACT_BLOCK, KRON = "GGN, full", "Hessian, full", "GGN, layers", "Hessian, layers", "GGN, Kronecker"
CLAIMS = {
    "without augmentation, the needed τ is at least ten times as large": (
        lambda m: m[f"{WITHOUT}, needed τ"] >= 10 * m[f"{WITH}, needed τ"]
    ),
    "with augmentation, the untargeted attack yields a higher mean entropy": (
        lambda m: m[f"{WITH}, mean entropy"] > m[f"{WITHOUT}, mean entropy"]
    ),
    "with augmentation, the targeted attack takes more steps": (
        lambda m: m[f"{WITH}, steps to half"] > m[f"{WITHOUT}, steps to half"]
    ),
    "approximate expectations change the entropy by less than .1 nats, and the number of steps by less than a tenth": (
        lambda m: (
            abs(m[f"{DRAWN}, mean entropy"] - m[f"{WITHOUT}, mean entropy"]) < 0.1
            and abs(m[f"{DRAWN}, steps to half"] / m[f"{WITHOUT}, steps to half"] - 1) < 0.1
        )
    ),
    "each layer's block of the exact Hessian equals that of the GGN to 1e-6": (
        lambda m: m["largest relative difference of a layer's block"] < 1e-6
    ),
}
MEASURES = ("needed τ", "τ by cross-entropy", "mean entropy", "mean accuracy", "steps to half", "share known")
STEPS, STEP = np.linspace(0.0, 0.5, 11), 1e-2
COLOURS = {WITH: "tab:blue", WITHOUT: "tab:red", DRAWN: "black"}


def attacked(net, model, data, seed, budget):
    """Return both curves of a model with its needed τ, this τ, the τ of least cross-entropy, and a share.

    The share is that of the curvature's eigenvalues above the needed τ.
    """
    samples, to_choose, n_steps, n_rows, precisions = budget
    best = choose_scale(model, *data.validation, to_choose, (1.0,), precisions[::2]).prior_precision
    tau = loosest(model, net, *data.validation, to_choose, precisions)
    method = weight_samples(model, samples, seed)
    first = untargeted(method, *data.test, pixel_ranges(data), STEPS)
    second = targeted(method, *(rows[:n_rows] for rows in data.test), STEP, n_steps)
    known = float((model.laplace_.curvature.eigenvalues() > tau).double().mean())
    return first, second, tau, best, known


def row_of(curves):
    """Return the six ``MEASURES`` of one curvature, over the seeds."""
    first, second, needed, best, known = zip(*curves, strict=True)
    first, second = np.mean(first, axis=0), np.mean(second, axis=0)
    taus = (float(np.exp(np.log(values).mean())) for values in (needed, best))
    return *taus, first[1:, 0].mean(), first[1:, 1].mean(), steps_to(0.5, second), np.mean(known)


def difference_of_blocks(one, other):
    """Return the largest difference between two block-diagonal curvatures, relative to each block's largest entry."""
    pairs = zip(one.laplace_.curvature.parts, other.laplace_.curvature.parts, strict=True)
    return max(float((a.matrix - b.matrix).abs().max() / a.matrix.abs().max()) for a, b in pairs)


def exact_part(run, data, budget):
    """Return results for five curvatures, the difference of blocks, and the share of negative Hessian eigenvalues."""
    width, epochs, rows = (4, 20, 60) if run.quick else (16, 100, 500)
    X, y = (values[:rows] for values in data.train)
    net = trained(seeded(relu_net, run.seed, X.shape[1], width), X, y, epochs)
    models, curves = {}, {}
    for name, structure, curvature in (
        (FULL, "full", "ggn"),
        (EXACT, "full", "hessian"),
        (BLOCK, "block_diagonal", "ggn"),
        (EXACT_BLOCK, "block_diagonal", "hessian"),
        (KRON, "kron", "ggn"),
    ):
        models[name] = laplace(net, X, y, structure, run.seed, curvature=curvature, dtype="float64")
        with warnings.catch_warnings():  # Negative eigenvalues of the Hessian are clipped, with a warning at each use.
            warnings.simplefilter("ignore", UserWarning)
            curves[name] = attacked(net, models[name], data, run.seed, budget)
    values = torch.linalg.eigvalsh(models[EXACT].laplace_.curvature.lower)  # negative ones not yet set to zero
    return (
        curves,
        difference_of_blocks(models[BLOCK], models[EXACT_BLOCK]),
        float((values < -1e-9 * values.max()).double().mean()),
    )


def main():
    run = Experiment("plot_09_augmentation_and_exact_hessian", __doc__, CLAIMS)
    sizes, width, epochs, copies = ((200, 60, 60, 1), 32, 20, 2) if run.quick else ((1000, 297, 500, 1), 128, 100, 30)
    budget = (5, 5, 3, 10, LOOSE_PRECISIONS[::8]) if run.quick else (100, 30, 60, 60, LOOSE_PRECISIONS)
    seeds = range(run.seed, run.seed + (1 if run.quick else 3))
    run.choose(
        f"data and net of experiment 5: {sizes[0]} small digits, 2 × {width} hidden units, trained with random "
        "binarisation",
        f"augmented: {copies} binarisations of each row; not augmented: the grey pictures",
        "the output factors are exact expectations here, row by row, not the source's recursion over a minibatch; the "
        "approximate version is the Fisher matrix of one drawn label a row (the source's KFAC)",
        f"smaller net: 2 × {4 if run.quick else 16} hidden units, {60 if run.quick else 500} grey digits, float64",
        f"attacks as in experiments 6 and 7; seeds {list(seeds)}",
    )
    curves = defaultdict(list)
    for seed in seeds:
        data = load(run.data, seed, sizes)
        net = trained(seeded(relu_net, seed, data.train[0].shape[1], width), *data.train, epochs)
        for name, (X, y, weight), curvature in (
            (WITH, copied(binarised, *data.train, copies, seed), "ggn"),
            (WITHOUT, (*data.train, None), "ggn"),
            (DRAWN, (*data.train, None), "mc_fisher"),
        ):
            model = laplace(net, X, y, "kron", seed, sample_weight=weight, dtype="float32", curvature=curvature)
            curves[name].append(attacked(net, model, data, seed, budget))
        if seed == run.seed:
            small, difference, negative = exact_part(run, data, budget)
    rows = {name: row_of(values) for name, values in curves.items()}
    run.table("Kronecker-factored posterior (over the seeds)", MEASURES, rows, digits=4)
    rows_small = {name: row_of([values]) for name, values in small.items()}
    run.table("Smaller net (first seed)", MEASURES, rows_small, digits=4)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for name, values in curves.items():
        first, second = (np.mean([value[part] for value in values], axis=0) for part in (0, 1))
        line = "--" if name == DRAWN else "-"
        axes[0].plot(STEPS, first[:, 0], line, color=COLOURS[name], label=name)
        axes[1].plot(second[:, 2], line, color=COLOURS[name])
    for name, (first, *_) in small.items():
        axes[2].plot(STEPS, first[:, 0], "--" if "Hessian" in name else "-", label=name)
    axes[0].set(xlabel="step η (share of range)", ylabel="mean entropy [nats]", title="untargeted attack, Kronecker")
    axes[1].set(xlabel=f"steps of η = {STEP}", ylabel="share taken for a 0", title="targeted attack, Kronecker")
    axes[2].set(xlabel="step η (share of range)", ylabel="mean entropy [nats]", title="untargeted attack, smaller net")
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    axes[2].legend(fontsize=8)
    run.save(figure)
    measured = {
        f"{name}, {what}": v for name, row in (rows | rows_small).items() for what, v in zip(MEASURES, row, strict=True)
    }
    measured["largest relative difference of a layer's block"] = difference
    measured["negative share of the Hessian's eigenvalues"] = negative
    run.judge(measured, why(measured))


def why(m):
    """Return an explanation by the effect of augmentation on the curvature."""
    tau, known, heights = (
        {name: m[f"{name}, {what}"] for name in (WITH, WITHOUT)} for what in ("needed τ", "share known", "mean entropy")
    )
    return (
        "the needed τ, the smallest that keeps the accuracy, determines the posterior. It is "
        f"{tau[WITH]:.0f} with augmentation, and {tau[WITHOUT]:.0f} without. The data dominate this prior in "
        f"{100 * known[WITH]:.2f} % of all directions with "
        f"augmentation, and in {100 * known[WITHOUT]:.2f} % without. In the source, augmentation of 784 pixels adds "
        "orders of magnitude more data; augmentation of 64 grey pixels does not. So the mean entropies are "
        f"{heights[WITH]:.2f} and {heights[WITHOUT]:.2f} nats, and the targeted attacks take "
        f"{m[f'{WITH}, steps to half']:.0f} and {m[f'{WITHOUT}, steps to half']:.0f} steps."
    )


if __name__ == "__main__":
    main()
