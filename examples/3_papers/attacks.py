"""Attacks on all ways to predict with the nets of experiment 5 (Ritter et al. 2018, section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ensembles import (
    LOOSE_PRECISIONS,
    PRETENDED,
    PRIOR_PRECISIONS,
    SHOWN,
    STRUCTURES,
    Ensemble,
    accuracy,
    choose_scale,
    deterministic,
    entropy,
    laplace,
    loosest,
    mc_dropout,
    weight_samples,
)
from pictures import Pictures, binarised, copied, load, plain_net, relu_net, seeded, trained
from skorch import NeuralNetClassifier

LOOSE = ", loose"
"""Label of the posterior with N = n and the smallest τ that costs at most one point of validation accuracy."""
CONFIDENT = "without dropout: "
"""Prefix of the ways to predict with an overconfident net; see experiment 5."""


@dataclass(frozen=True)
class Ways:
    """A net trained on digits, and the ways to predict with this net.

    Parameters
    ----------
    data : Pictures
    net : NeuralNetClassifier
    methods : dict from str to Ensemble
    scales : dict from str to (float, float)
        N / n and τ of the Laplace approximations.
    """

    data: Pictures
    net: NeuralNetClassifier
    methods: dict[str, Ensemble]
    scales: dict[str, tuple[float, float]]


def ways(source: str | None, seed: int, quick: bool, confident: bool = False) -> Ways:
    """Return a net of experiment 5 trained on its data, with all ways to predict.

    Parameters
    ----------
    source : str or None
    seed : int
    quick : bool
    confident : bool
        If True, train without dropout and binarisation and with hardly any weight decay, unlike the source.
    """
    sizes, width, epochs, copies, samples, to_choose = (1000, 297, 500, 1), 128, 100, 30, 100, 30
    if source is not None:
        sizes, width, epochs, copies, samples, to_choose = (7000, 1000, 1000, 1), 1024, 12, 1, 100, 10
    if quick:
        sizes, width, epochs, copies, samples, to_choose = (200, 60, 60, 1), 32, 20, 2, 10, 5
    candidates = ((1.0, 100.0), (1.0, 1e3)) if quick else (PRETENDED, PRIOR_PRECISIONS)
    data = load(source, seed, sizes)
    kind, decay = (plain_net, 1e-5) if confident else (relu_net, 1e-3)
    net = trained(seeded(kind, seed, data.train[0].shape[1], width), *data.train, epochs, decay)
    X, y, weight = (*data.train, None) if confident else copied(binarised, *data.train, copies, seed)
    methods, scales = {"deterministic": deterministic(net.module_)}, {}
    if not confident:
        methods["MC dropout"] = mc_dropout(net.module_, samples, seed)
    for name, structure in STRUCTURES.items():
        model = laplace(net, X, y, structure, seed, sample_weight=weight, dtype="float32")
        choice = choose_scale(model, *data.validation, to_choose, *candidates)
        methods[name] = weight_samples(model, samples, seed)
        scales[name] = choice.pretended, choice.prior_precision
        if not confident:
            loose = LOOSE_PRECISIONS[::6] if quick else LOOSE_PRECISIONS
            scales[name + LOOSE] = 1.0, loosest(model, net, *data.validation, to_choose, loose)
            methods[name + LOOSE] = weight_samples(model, samples, seed)
    start = CONFIDENT if confident else ""
    methods, scales = ({start + name: value for name, value in given.items()} for given in (methods, scales))
    return Ways(data, net, methods, scales)


CHOICES = (
    "data, net and training of experiment 5: 1,000 of scikit-learn's 8 × 8 digits (of MNIST 7,000), 2 × 128 hidden "
    "units (2 × 1024), 100 epochs (12), random binarisation, dropout of a half",
    "100 weight samples or dropout masks, the same ones for the gradient and for the measures",
    "and as in experiment 5, nets without dropout and binarisation and with hardly any decay, which are more confident",
    "in addition to the source's N and τ, by cross-entropy on validation rows: 'loose', N = n and the smallest τ that "
    "costs at most a point of accuracy there",
)
"""Choices common to both attacks."""


def style(name: str) -> dict[str, str]:
    """Return colour and line style of a method."""
    line = ":" if name.startswith(CONFIDENT) else "--" if name.endswith(LOOSE) else "-"
    return {"color": SHOWN[name.removeprefix(CONFIDENT).removesuffix(LOOSE)], "linestyle": line}


def untargeted(
    method: Ensemble, X: np.ndarray, y: np.ndarray, spread: np.ndarray, steps: Sequence[float]
) -> np.ndarray:
    """Return mean entropy and accuracy, (len(steps), 2), after one step of each size away from the predicted class.

    Parameters
    ----------
    method : Ensemble
    X, y : ndarray of shape (n, d) and (n,)
    spread : ndarray of shape (d,)
        Range of each pixel in the data.
    steps : sequence of float
        η, as fractions of the range.
    """
    x = torch.tensor(X, requires_grad=True)
    (gradient,) = torch.autograd.grad(method.log_probabilities(x).max(1).values.sum(), x)
    measures = []
    for step in steps:
        p = method.predict_proba(X - np.float32(step) * spread * gradient.sign().numpy())
        measures.append((entropy(p).mean(), accuracy(p, y)))
    return np.array(measures)


def targeted(method: Ensemble, X: np.ndarray, y: np.ndarray, step: float, n_steps: int) -> np.ndarray:
    """Return mean entropy, accuracy and share classified as 0, (n_steps + 1, 3), after each step towards class 0.

    Parameters
    ----------
    method : Ensemble
    X, y : ndarray of shape (n, d) and (n,)
        Rows that the method classifies as 0 are excluded, unless it classifies all of them as 0.
    step : float
        η.
    n_steps : int
    """
    kept = method.predict_proba(X).argmax(1) != 0
    kept |= not kept.any()
    x, y = torch.tensor(X[kept]), y[kept]
    measures = []
    for _ in range(n_steps + 1):
        x.requires_grad_()
        log_p = method.log_probabilities(x)
        (gradient,) = torch.autograd.grad(log_p[:, 0].sum(), x)
        p = log_p.detach().double().exp().numpy()
        measures.append((entropy(p).mean(), accuracy(p, y), accuracy(p, np.zeros_like(y))))
        x = x.detach() + step * gradient.sign()
    return np.array(measures)


def steps_to(share: float, curve: np.ndarray) -> int:
    """Return the first step after which more than this share is classified as 0, or else the number of steps + 1."""
    reached = np.flatnonzero(curve[:, 2] > share)
    return int(reached[0]) if len(reached) else len(curve)


def pixel_ranges(data: Pictures) -> np.ndarray:
    """Return the range (maximum minus minimum) of each pixel in the digits, (d,)."""
    return np.ptp(np.concatenate([data.train[0], data.validation[0], data.test[0]]), axis=0)
