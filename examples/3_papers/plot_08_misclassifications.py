"""08 · Misclassifications: is a residual net uncertain where it is wrong?
===========================================================================

Ritter et al. (2018, section 5.4, figure 5 and table 2) train a wide residual net with batch norm on CIFAR-100, with and
without dropout. They compare the predictive entropy of right and wrong predictions. Here, a smaller net has the same
components: convolutions, batch norm with running moments, residual sums :math:`x + f(x)`, and downsampling by 2 × 2
convolutions. Training and curvature use augmentation by random shifts.

The parameters of the batch norms are random as well; each batch norm has a dense block of the precision. The
convolutions have Kronecker factors over patches.
"""

import copy
import math
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
import torch
from ensembles import (
    PRETENDED,
    PRIOR_PRECISIONS,
    STRUCTURES,
    accuracy,
    choose_scale,
    deterministic,
    draw_inverse_ecdf,
    entropy,
    laplace,
)
from experiment import Experiment
from pictures import copied, load, seeded, trained
from sklearn.metrics import roc_auc_score
from skorch.callbacks import LRScheduler
from torch import nn
from torch.nn import functional as F

NETS = {"with dropout": 0.3, "without dropout": 0.0}
KRON, DIAG, ONE = "Kronecker Laplace", "diagonal Laplace", "deterministic"
AVERAGED = [("with dropout", "MC dropout"), ("with dropout", KRON), ("without dropout", KRON)]
ALL = [*AVERAGED, *((net, name) for net in NETS for name in (ONE, DIAG))]


def gained(m, net, name, where):
    """Return the difference of a measure from that of the deterministic pass."""
    return m[f"{net}: {name}, {where}"] - m[f"{net}: {ONE}, {where}"]


CLAIMS = {
    "with every method, every net has a higher entropy where it is wrong": (
        lambda m: all(
            m[f"{net}: {name}, entropy if wrong"] > m[f"{net}: {name}, entropy if right"] for net, name in ALL
        )
    ),
    "MC dropout and Kronecker Laplace raise the entropy where the net is wrong": (
        lambda m: all(gained(m, *pair, "entropy if wrong") > 0 for pair in AVERAGED)
    ),
    "MC dropout and Kronecker Laplace also raise the entropy where the net is right": (
        lambda m: all(gained(m, *pair, "entropy if right") > 0 for pair in AVERAGED)
    ),
    "MC dropout and Kronecker Laplace change the accuracy by at most half a point": (
        lambda m: all(abs(gained(m, *pair, "accuracy")) <= 0.005 for pair in AVERAGED)
    ),
    "where the net is wrong, diagonal Laplace changes the entropy less than Kronecker Laplace": (
        lambda m: all(
            abs(gained(m, net, DIAG, "entropy if wrong")) < abs(gained(m, net, KRON, "entropy if wrong"))
            for net in NETS
        )
    ),
}
MEASURES = ("accuracy", "entropy if right", "entropy if wrong", "AUROC of errors")


class Shifted(nn.Module):
    """Random shift of each picture by up to a pixel during training."""

    def forward(self, x):
        """Shift pictures (n, 1, s, s)."""
        if not self.training:
            return x
        side = x.shape[-1]
        windows = F.pad(x, (1, 1, 1, 1)).unfold(2, side, 1).unfold(3, side, 1)
        down, right = torch.randint(3, (2, len(x)))
        return windows[torch.arange(len(x)), :, down, right]


def shifted(X, random_state):
    """Return rows (n, s²), each shifted at random by up to a pixel."""
    side = math.isqrt(X.shape[1])
    padded = np.pad(X.reshape(-1, side, side), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), (1, 2))
    down, right = random_state.randint(3, size=(2, len(X)))
    return windows[np.arange(len(X)), down, right].reshape(len(X), -1)


class Residual(nn.Module):
    """Residual block x + f(x): f has two convolutions, each after batch norm and ReLU, with dropout in between."""

    def __init__(self, channels, dropout):
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
            nn.Dropout(dropout),
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
        )

    def forward(self, x):
        """Apply the block to feature maps (n, C, s, s)."""
        return x + self.inner(x)


def residual_net(side, channels, dropout):
    """Return a net from side² pixels to ten logits: two residual blocks, the second at half the resolution."""
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        Shifted(),
        nn.Conv2d(1, channels, 3, padding=1),
        Residual(channels, dropout),
        nn.Conv2d(channels, channels, 2, stride=2),
        Residual(channels, dropout),
        *(nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)),
    )


def dropout_passes(module, X, n_samples, seed):
    """Return averaged probabilities with dropout in training mode and batch norm in evaluation mode."""
    torch.manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.train()
    with torch.no_grad():
        mean = sum(module(torch.as_tensor(X)).double().softmax(1) for _ in range(n_samples)) / n_samples
    module.eval()
    return mean.numpy()


def with_own_moments(module, X, n_passes=20):
    """Return a copy with running moments of the training rows without dropout, shifted as in training."""
    found = copy.deepcopy(module).eval()
    for layer in found.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # the plain average over the passes
            layer.train()
        elif isinstance(layer, Shifted):
            layer.train()
    with torch.no_grad():
        for _ in range(n_passes):
            found(torch.as_tensor(X))
    return found.eval()


def main():
    run = Experiment("plot_08_misclassifications", __doc__, CLAIMS)
    sizes = (100, 50, 100, 1) if run.quick else (300, 200, 1297, 1) if run.data is None else (1000, 500, 2000, 1)
    channels, epochs, copies, samples, to_choose = (4, 4, 1, 5, 3) if run.quick else (12, 60, 10, 100, 20)
    candidates = ((1.0,), (1.0, 1e3)) if run.quick else (PRETENDED, PRIOR_PRECISIONS)
    seeds = range(run.seed, run.seed + (1 if run.quick else 2))
    run.choose(
        f"data: digits, {sizes[0]} for training (few, so that there are errors), {sizes[1]} for N and τ, {sizes[2]} "
        "for "
        "testing",
        f"net: {channels} channels, two residual blocks, dropout {NETS['with dropout']} in one of the two nets",
        f"training: Nesterov, rate .1, a fifth of it from each third of the {epochs} epochs on, ½ · 5e-4 ‖θ‖²; shifts "
        "by up to a pixel",
        f"curvature: GGN over {copies} shifted copies of each row; {to_choose} weight samples for each N and τ, "
        f"{samples} for the claims",
        f"seeds {list(seeds)}; each method has its own errors",
    )
    found, right, wrong, chosen = (defaultdict(list) for _ in range(4))
    own = defaultdict(list)
    for seed in seeds:
        data = load(run.data, seed, sizes)
        X, y = data.test
        for label, dropout in NETS.items():
            module = seeded(residual_net, seed, math.isqrt(X.shape[1]), channels, dropout)
            schedule = LRScheduler("StepLR", step_size=max(epochs // 3, 1), gamma=0.2)
            nesterov = {"lr": 0.1, "optimizer__nesterov": True, "callbacks": [("rate", schedule)]}
            net = trained(module, *data.train, epochs, 5e-4, **nesterov)
            predicted = {ONE: deterministic(net.module_).predict_proba(X)}
            moments = deterministic(with_own_moments(net.module_, data.train[0])).predict_proba(X)
            own[f"{label}: {ONE}, accuracy with moments of no dropout"].append(accuracy(moments, y))
            if dropout:
                predicted["MC dropout"] = dropout_passes(net.module_, X, samples, seed)
            moved, labels, weight = copied(shifted, *data.train, copies, seed)
            options = {"sample_weight": weight, "dtype": "float32", "n_samples": samples}
            for name, structure in STRUCTURES.items():
                model = laplace(net, moved, labels, structure, seed, **options)
                choice = choose_scale(model, *data.validation, to_choose, *candidates)
                chosen[f"{label}: {name}"].append((choice.pretended, choice.prior_precision))
                predicted[name] = model.predict_proba(X)
            for name, p in predicted.items():
                h, hit = entropy(p), p.argmax(1) == y
                right[label, name].append(h[hit])
                wrong[label, name].append(h[~hit])
                found[f"{label}: {name}"].append(
                    (accuracy(p, y), h[hit].mean(), h[~hit].mean(), roc_auc_score(~hit, h))
                )
    rows = {name: np.mean(values, axis=0) for name, values in found.items()}
    geometric = {name: np.exp(np.log(values).mean(0)) for name, values in chosen.items()}
    run.table("Geometric mean of what was chosen", ("N / n", "τ"), geometric)
    run.table(f"Digits (mean over {len(seeds)} seeds)", MEASURES, rows, digits=4)
    figure, axes = plt.subplots(2, 2, figsize=(11, 8.2), layout="constrained", sharex=True, sharey=True)
    for row, label in zip(axes, NETS, strict=True):
        for axis, values, where in zip(row, (wrong, right), ("wrong", "right"), strict=True):
            pooled = {name: np.concatenate(v) for (net, name), v in values.items() if net == label}
            draw_inverse_ecdf(axis, pooled, f"trained {label}, prediction {where}")
        row[0].set_ylabel("share of pictures with more entropy")
        row[1].legend()
    run.save(figure)
    measured = {f"{name}, {what}": v for name, row in rows.items() for what, v in zip(MEASURES, row, strict=True)}
    measured |= {name: np.mean(values) for name, values in own.items()}
    run.judge(measured, why(measured))


def why(m):
    """Return an explanation by the accuracy with running moments without dropout."""
    points = {pair: 100 * gained(m, *pair, "accuracy") for pair in AVERAGED}
    collected, fresh = (
        m[f"with dropout: {ONE}, {what}"] for what in ("accuracy", "accuracy with moments of no dropout")
    )
    return (
        "relative to the deterministic pass, the accuracies change by "
        + ", ".join(f"{gain:+.2f} points ({name}, net {net})" for (net, name), gain in points.items())
        + f". The outlier is the deterministic pass of the net with dropout: its accuracy is {collected:.3f}, against "
        f"{m[f'without dropout: {ONE}, accuracy']:.3f} without dropout. The moments of its batch norms were collected "
        "under dropout. With moments from the same rows without dropout, its "
        f"accuracy is {fresh:.3f} ({100 * (fresh - collected):+.2f} points)."
    )


if __name__ == "__main__":
    main()
