r"""05 · Out of distribution: letters for a net trained on digits
================================================================

Ritter et al. (2018, section 5.2, figure 2 and table 1) train a net on digits, with dropout, and test it on letters. All
ways to predict share the trained net and differ in the weights that are averaged:

.. math:: p(y \mid x) \approx \frac1S \sum_{s=1}^{S} p(y \mid x, \theta_s), \qquad
          H(x) = -\sum_y p(y \mid x) \log p(y \mid x) \in [0, \log 10].

A single :math:`\theta` gives the deterministic pass, and random dropout masks give MC dropout. Otherwise,
:math:`\theta_s` is drawn from a Laplace approximation with diagonal or Kronecker-factored precision. The
Kronecker-factored precision of a layer has the damping of the source's equation 9:

.. math:: (\sqrt N\,\mathrm E[g g^\top] + \sqrt\tau I) \otimes (\sqrt N\,\mathrm E[a a^\top] + \sqrt\tau I).

N and τ minimise the cross-entropy on validation rows. The curvature and the training use binarised digits: each pixel
is 0 or 1, with its intensity as the probability of 1.

If the net is underconfident on validation rows, N and τ chosen on them leave almost no posterior variance. Therefore
two more results are shown: the posterior with N and τ of the training ("untuned"), and more confident nets. These nets
are trained without dropout and binarisation, and with hardly any weight decay.

With ``--data DIR``, the experiment uses MNIST, clothes (Fashion-MNIST) and the source's net of 2 × 1024 hidden units.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import numpy as np
from ensembles import (
    PRETENDED,
    PRIOR_PRECISIONS,
    SHOWN,
    STRUCTURES,
    UNTUNED,
    accuracy,
    choose_scale,
    cross_entropy,
    deterministic,
    draw_inverse_ecdf,
    entropy,
    laplace,
    mc_dropout,
    refit,
    sharpening,
)
from experiment import Experiment
from pictures import binarised, copied, load, plain_net, relu_net, seeded, trained
from sklearn.metrics import roc_auc_score

OUT = "mean entropy outside"
CLAIMS = {
    "out of distribution, Kronecker Laplace has the highest entropy": (
        lambda m: m[f"Kronecker Laplace, {OUT}"] > max(m[f"{name}, {OUT}"] for name in SHOWN if "Kron" not in name)
    ),
    "the accuracy of Kronecker Laplace is within half a point of the deterministic accuracy": (
        lambda m: abs(m["Kronecker Laplace, accuracy"] - m["deterministic, accuracy"]) <= 0.005
    ),
    "the accuracies of diagonal Laplace and MC dropout are within half a point of the deterministic accuracy": (
        lambda m: all(
            abs(m[f"{name}, accuracy"] - m["deterministic, accuracy"]) <= 0.005
            for name in ("diagonal Laplace", "MC dropout")
        )
    ),
    "out of distribution, all other methods have a higher entropy than the deterministic pass": (
        lambda m: min(m[f"{name}, {OUT}"] for name in SHOWN if name != "deterministic") > m[f"deterministic, {OUT}"]
    ),
    "out of distribution, diagonal Laplace has an entropy closer to that of MC dropout than Kronecker Laplace has": (
        lambda m: (
            abs(m[f"diagonal Laplace, {OUT}"] - m[f"MC dropout, {OUT}"])
            < abs(m[f"Kronecker Laplace, {OUT}"] - m[f"MC dropout, {OUT}"])
        )
    ),
    "diagonal Laplace needs more regularisation: its weights vary less": (
        lambda m: m["diagonal Laplace, mean variance of weights"] < m["Kronecker Laplace, mean variance of weights"]
    ),
}
MEASURES = ("accuracy", "cross-entropy", "mean entropy inside", OUT, "AUROC of entropy")
N_SEEDS = 5
N_SAMPLES = 100


@dataclass(frozen=True)
class Recipe:
    """Training of the nets, and options of their curvature.

    Parameters
    ----------
    net : callable
        Function from the numbers of pixels and of hidden units to a module.
    epochs : int
    copies : int
        Number of binarisations of each row in the curvature; 0: use the grey pictures.
    decay : float
        Factor of ½‖θ‖², added to the mean loss.
    curvature : str
    """

    net: Callable
    epochs: int
    copies: int
    decay: float = 1e-3
    curvature: str = "ggn"


@dataclass
class Found:
    """Results of the methods, one value per seed."""

    scores: dict = field(default_factory=lambda: defaultdict(list))
    entropies: dict = field(default_factory=lambda: defaultdict(list))
    variances: dict = field(default_factory=lambda: defaultdict(list))
    chosen: dict = field(default_factory=lambda: defaultdict(list))
    sharpening: list = field(default_factory=list)
    confidence: list = field(default_factory=list)

    def add(self, name, p, y):
        """Add the probabilities of the test rows, with classes y, followed by those of rows of other classes."""
        inside, outside = np.split(entropy(p), [len(y)])
        auroc = roc_auc_score(np.arange(len(p)) >= len(y), np.concatenate([inside, outside]))
        head = p[: len(y)]
        self.scores[name].append((accuracy(head, y), cross_entropy(head, y), inside.mean(), outside.mean(), auroc))
        self.entropies[name].append((inside, outside))

    def mean(self):
        """Return the means of the measures over the seeds."""
        return {name: np.mean(rows, axis=0) for name, rows in self.scores.items()}


def tried(run, recipe, seeds, sizes, width, samples, to_choose, candidates):
    """Return results of all ways to predict, with a net for each seed."""
    result, scale = Found(), {}
    for seed in seeds:
        data = load(run.data, seed, sizes)
        net = trained(seeded(recipe.net, seed, data.outside.shape[1], width), *data.train, recipe.epochs, recipe.decay)
        rows, y = np.concatenate([data.test[0], data.outside]), data.test[1]
        own = deterministic(net.module_).predict_proba(data.validation[0])
        result.sharpening.append(sharpening(net, *data.validation))
        result.confidence.append(own.max(1).mean() - accuracy(own, data.validation[1]))
        result.add("deterministic", deterministic(net.module_).predict_proba(rows), y)
        if recipe.net is relu_net:
            result.add("MC dropout", mc_dropout(net.module_, samples, seed).predict_proba(rows), y)
        X, labels, weight = (
            copied(binarised, *data.train, recipe.copies, seed) if recipe.copies else (*data.train, None)
        )
        options = {"sample_weight": weight, "curvature": recipe.curvature, "dtype": "float32", "n_samples": samples}
        for name, structure in STRUCTURES.items():
            model = laplace(net, X, labels, structure, seed, **options)
            if run.data is None or seed == seeds[0]:
                scale[name] = choose_scale(model, *data.validation, to_choose, *candidates)
                untuned = refit(model, 1.0, recipe.decay * len(data.train[0]))
                result.add(name + UNTUNED, untuned.predict_proba(rows), y)
            refit(model, scale[name].pretended, scale[name].prior_precision)
            result.variances[name].append(float(model.posterior_.marginal_variance().mean()))
            result.chosen[f"seed {seed}"].extend([scale[name].pretended, scale[name].prior_precision])
            result.add(name, model.predict_proba(rows), y)
        print(f"seed {seed}: {OUT} " + ", ".join(f"{v[-1][3]:.3f} {name}" for name, v in result.scores.items()))
    return result


def recipes(run):
    """Return numbers of rows (training, validation, test, other classes), hidden units, and recipes of the training."""
    if run.quick:
        return (200, 60, 60, 60), 32, {"the source's": Recipe(relu_net, 20, 2)}
    if run.data is None:
        both = {"the source's": Recipe(relu_net, 100, 30), "without dropout": Recipe(plain_net, 100, 0, 1e-5)}
        return (1000, 297, 500, 210), 128, both
    return (7000, 1000, 1000, 1000), 1024, {"the source's": Recipe(relu_net, 12, 1, curvature="mc_fisher")}


def main():
    run = Experiment("plot_05_out_of_distribution", __doc__, CLAIMS)
    run.name += "" if run.data is None else "_mnist"
    sizes, width, ways = recipes(run)
    samples, to_choose = (10, 5) if run.quick else (N_SAMPLES, 30 if run.data is None else 10)
    candidates = ((1.0, 100.0), (1.0, 1e3)) if run.quick else (PRETENDED, PRIOR_PRECISIONS)
    if run.data is not None:
        candidates = PRETENDED[:3], PRIOR_PRECISIONS[2:]
    seeds = range(run.seed, run.seed + (1 if run.quick else N_SEEDS))
    own = ways["the source's"]
    run.choose(
        "data: scikit-learn's 8 × 8 digits, and the letters A to J of the fonts that come with matplotlib"
        if run.data is None
        else "data: 10,000 MNIST digits, and garments of Fashion-MNIST in place of letters",
        f"rows: {sizes[0]} for training, {sizes[1]} for N and τ, {sizes[2]} for testing, {sizes[3]} of other classes",
        f"net: 2 × {width} hidden units; {own.epochs} epochs; factor {own.decay:g} of ½‖θ‖² added to the mean loss "
        "(its "
        "validation accuracy on the small digits is .96, that of the source's 1e-2 .95)",
        f"curvature: {own.curvature}, {own.copies} binarisations a row",
        f"N / n in {candidates[0]}, τ in {tuple(map(float, candidates[1]))}, by {to_choose} weight samples",
        f"seeds {list(seeds)}, each with its split, net and draws"
        + ("" if run.data is None else "; N and τ by the first seed"),
    )
    measured = {}
    results = {
        way: tried(run, recipe, seeds, sizes, width, samples, to_choose, candidates) for way, recipe in ways.items()
    }
    columns = [f"{short} {part}" for short in ("diag", "kron") for part in ("N / n", "τ")]
    for way, result in results.items():
        mean, spread = result.mean(), {name: np.std(rows, axis=0) for name, rows in result.scores.items()}
        run.table(f"Training: {way}. Chosen on validation rows", columns, result.chosen, digits=2)
        run.table(f"Training: {way}. Mean over the seeds ({len(seeds)})", MEASURES, mean, digits=4)
        run.table(f"Training: {way}. Standard deviation over the seeds", MEASURES, spread, digits=4)
        start = "" if way == "the source's" else f"{way}: "
        measured |= {f"{start}{n}, {m}": v for n in mean for m, v in zip(MEASURES, mean[n], strict=True)}
        measured |= {f"{start}{n}, mean variance of weights": np.mean(v) for n, v in result.variances.items()}
        measured |= {
            f"{start}confidence minus accuracy on validation rows": np.mean(result.confidence),
            f"{start}best factor of the logits on validation rows": np.mean(result.sharpening),
        }
    figure, axes = plt.subplots(
        len(results), 2, figsize=(11, 4.2 * len(results)), layout="constrained", sharey=True, squeeze=False
    )
    for row, (way, result) in zip(axes, results.items(), strict=True):
        for part, what in enumerate(("test digits", "letters" if run.data is None else "garments")):
            pooled = {name: np.concatenate([pair[part] for pair in pairs]) for name, pairs in result.entropies.items()}
            draw_inverse_ecdf(row[part], pooled, f"{what} (training: {way})")
        row[0].set_ylabel("share of pictures with more entropy")
        row[1].legend(fontsize=8)
    run.save(figure)
    run.judge(measured, why(measured))


def why(m):
    """Return an explanation by two extra measures and an extra training."""
    factor, gap = (
        m[f"{name} on validation rows"] for name in ("best factor of the logits", "confidence minus accuracy")
    )
    state = "underconfident" if factor > 1.1 else "overconfident" if factor < 0.9 else "as confident as it is accurate"
    text = (
        f"the trained net is {state} on validation digits (confidence minus accuracy: {100 * gap:+.1f} points, best "
        f"factor of the logits: {factor:.2f}). "
    )
    if factor > 0.9:
        text += (
            "An average over weights reduces confidence. Validation therefore selects the end of the grid of N "
            "(pseudo-rows) and τ (prior precision), with almost no posterior variance. "
        )
    kron, plain, dropout = (
        m[f"{name}, {OUT}"] for name in (f"Kronecker Laplace{UNTUNED}", "deterministic", "MC dropout")
    )
    text += (
        f"With N and τ of the training, Kronecker Laplace has an entropy of {kron:.2f} out of distribution "
        f"(deterministic {plain:.2f}, MC dropout {dropout:.2f}), and an accuracy of "
        f"{m[f'Kronecker Laplace{UNTUNED}, accuracy']:.3f}. "
    )
    if f"without dropout: deterministic, {OUT}" in m:
        factor = m["without dropout: best factor of the logits on validation rows"]
        kron, diag, plain = (
            m[f"without dropout: {n}, {OUT}"] for n in ("Kronecker Laplace", "diagonal Laplace", "deterministic")
        )
        text += (
            "For nets trained without dropout and binarisation and with hardly any decay (best factor "
            f"{factor:.2f}), the entropies are {kron:.2f} (Kronecker, tuned), {diag:.2f} (diagonal, tuned) and "
            f"{plain:.2f} (deterministic)."
        )
    return text.strip()


if __name__ == "__main__":
    main()
