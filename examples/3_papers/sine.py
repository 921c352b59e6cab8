"""Sine data of four experiments, the small tanh net of the source with its training, and drawing of bands.

The source is a blog that implements the Laplace approximation from scratch. It draws x uniformly from 0 to 10 and y =
sin x + 0.3 ε, and predicts on a grid from −10 to 13. It trains a 1-10-1 tanh net by full-batch Adam with rate .01 on
the mean squared error. The source does not state the number of epochs, and calls the result overfitted.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNetRegressor
from torch import nn

NOISE = 0.3
LOW, HIGH = 0.0, 10.0
X_TEST = np.linspace(-10.0, 13.0, 500)[:, None]
INSIDE = ((X_TEST >= LOW) & (X_TEST <= HIGH))[:, 0]
EPOCHS, QUICK_EPOCHS = 5000, 100
EPOCHS_CHOICE = f"{EPOCHS:,} epochs: not specified by the source; a Laplace approximation needs a mode"
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"  # Okabe and Ito: safe for colour-blind readers


def sine_data(seed: int, n: int = 150, noise: float = NOISE) -> tuple[np.ndarray, np.ndarray]:
    """Draw n rows: x uniform on (0, 10) of shape (n, 1), and y = sin x + noise · ε of shape (n,)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(LOW, HIGH, (n, 1))
    return x, np.sin(x[:, 0]) + noise * rng.normal(size=n)


def adam_net(X: np.ndarray, y: np.ndarray, *, seed: int, epochs: int, n_hidden: int = 10) -> FrozenEstimator:
    """Return the source's net, trained with its loop in float64, as a frozen skorch net (torch's initial weights)."""
    return adam_nets(X, y, seed=seed, epochs=[epochs], n_hidden=n_hidden)[0]


def adam_nets(
    X: np.ndarray, y: np.ndarray, *, seed: int, epochs: Sequence[int], n_hidden: int = 10
) -> list[FrozenEstimator]:
    """Return copies of a net after the given numbers of epochs (ascending) of one training run.

    The loop is written out, because skorch's own loop takes ten times as long for such a small net.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(1, n_hidden), nn.Tanh(), nn.Linear(n_hidden, 1)).double()
    net = NeuralNetRegressor(module).initialize()
    inputs, targets = torch.from_numpy(X), torch.from_numpy(y)[:, None]
    optimizer = torch.optim.Adam(net.module_.parameters(), lr=0.01, fused=True)
    nets = []
    for epoch in range(1, epochs[-1] + 1):
        loss = ((targets - net.module_(inputs)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch in epochs:
            nets.append(FrozenEstimator(copy.deepcopy(net)))
    return nets


def inside_and_outside(std: np.ndarray) -> tuple[float, float]:
    """Return the mean standard deviation over the test inputs inside and outside the range of the data."""
    return float(std[INSIDE].mean()), float(std[~INSIDE].mean())


def draw_data(axis: Axes, X: np.ndarray, y: np.ndarray) -> None:
    """Draw the rows and the sine."""
    axis.plot(X_TEST[:, 0], np.sin(X_TEST[:, 0]), color="k", lw=1, ls="--", label="sin x")
    axis.scatter(X[:, 0], y, s=8, color=ORANGE, edgecolor="k", linewidth=0.2, zorder=3, label="data")


def draw_band(axis: Axes, mean: np.ndarray, epistemic: np.ndarray, total: np.ndarray | None = None) -> None:
    """Draw mean, two epistemic standard deviations and, if given, two total ones, on the test inputs."""
    x = X_TEST[:, 0]
    if total is not None:
        axis.fill_between(x, mean - 2 * total, mean + 2 * total, color=BLUE, alpha=0.18, lw=0, label="± 2 std, total")
    low, high = mean - 2 * epistemic, mean + 2 * epistemic
    axis.fill_between(x, low, high, color=BLUE, alpha=0.4, lw=0, label="± 2 std, epistemic")
    axis.plot(x, mean, color=BLUE, lw=1.5, label="mean")
