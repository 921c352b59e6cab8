r"""Ways to predict with one trained net (Ritter et al. 2018, section 5.2), and scores of their probabilities.

Each way is an average over nets of one architecture, :math:`p(y \mid x) = \frac1S \sum_s \mathrm{softmax}(f_s(x))_y`.
The nets are a single net, nets with dropped units, or nets with weights drawn from a Laplace approximation. A dropped
unit is a zero column in the weights of the next layer. So each way is a set of weights, which is the same for all rows
and for the gradient of an attack.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.axes import Axes
from scipy.special import xlogy
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNetClassifier
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sklearn_laplace import LaplaceClassifier
from sklearn_laplace.options import Kron, MonteCarlo

Members = dict[str, Tensor]
"""Tensors of a module by name, each with a first axis of S sets of weights."""
SHOWN = {
    "deterministic": "0.3",
    "MC dropout": "tab:orange",
    "diagonal Laplace": "tab:green",
    "Kronecker Laplace": "tab:blue",
}
"""Colour of each method."""
UNTUNED = ", untuned"
"""Label of a Laplace approximation with the N and τ of the training itself."""
STRUCTURES = {"diagonal Laplace": "diag", "Kronecker Laplace": "kron"}
LOOSE_PRECISIONS = tuple(10.0 ** np.arange(-4, 5.1, 0.5))
PRIOR_PRECISIONS = tuple(10.0 ** np.arange(-2, 5))
PRETENDED = (1.0, 10.0, 100.0, 1000.0)
"""Candidates for τ, and for N as multiples of the number of rows."""
ROWS_AT_ONCE = 500


@dataclass(frozen=True)
class Ensemble:
    """Ensemble of nets whose probabilities are averaged.

    Parameters
    ----------
    module : nn.Module
        In eval mode.
    members : dict of str to Tensor of shape (S, …)
    """

    module: nn.Module
    members: Members

    def log_probabilities(self, x: Tensor) -> Tensor:
        """Return log p(y | x) of shape (n, C), differentiable in x (n, d)."""
        logits = vmap(lambda tensors: functional_call(self.module, tensors, (x,)))(self.members)
        return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return averaged probabilities of shape (n, C), computed for a few hundred rows at a time."""
        with torch.no_grad():
            parts = [self.log_probabilities(x) for x in torch.as_tensor(X).split(ROWS_AT_ONCE)]
        return torch.cat(parts).double().exp().numpy()


def deterministic(module: nn.Module) -> Ensemble:
    """Return an ensemble of the net alone."""
    return Ensemble(module, {name: tensor.detach()[None] for name, tensor in module.named_parameters()})


def mc_dropout(module: nn.Sequential, n_samples: int, seed: int) -> Ensemble:
    """Return nets with dropped units: inputs of the layer after a dropout are zero or scaled by 1/(1 − p)."""
    generator = torch.Generator().manual_seed(seed)
    members = {name: t.detach().expand(n_samples, *t.shape) for name, t in module.named_parameters()}
    for position, layer in enumerate(module):
        if isinstance(layer, nn.Dropout):
            name = f"{position + 1}.weight"
            kept = torch.rand(n_samples, 1, members[name].shape[-1], generator=generator) >= layer.p
            members[name] = members[name] * kept / (1 - layer.p)
    return Ensemble(module, members)


def weight_samples(model: LaplaceClassifier, n_samples: int, seed: int) -> Ensemble:
    """Return an ensemble of nets with weights drawn from the posterior."""
    network = model.laplace_.network
    deviations = model.posterior_.sample(n_samples, torch.Generator().manual_seed(seed))
    return Ensemble(network.module, dict(network.tensors((network.theta + deviations).float())))


def laplace(
    net: NeuralNetClassifier,
    X: np.ndarray,
    y: np.ndarray,
    structure: str,
    seed: int,
    n_samples: int = 100,
    sample_weight: np.ndarray | None = None,
    **options: object,
):
    """Return a Laplace approximation of a trained net; Kronecker factors have the damping of the source's equation 9.

    Parameters
    ----------
    net : NeuralNetClassifier
        Fitted.
    X, y : ndarray of shape (n, d) and (n,)
    structure : str
        ``hessian_structure``.
    seed : int
    n_samples : int
        Weight samples of the predictive.
    sample_weight : ndarray of shape (n,), optional
    **options
        Parameters of ``LaplaceClassifier``.
    """
    model = LaplaceClassifier(
        FrozenEstimator(net),
        hessian_structure=Kron(damping="ritter") if structure == "kron" else structure,
        predictive=MonteCarlo(n_samples),
        prior_precision=1.0,
        n_members=1,
        random_state=seed,
        **options,
    )
    with warnings.catch_warnings():  # an optimum with dropout is not a mode without dropout: every fit would warn
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(X, y, sample_weight)


@dataclass(frozen=True)
class Choice:
    """N and τ chosen on validation rows.

    Parameters
    ----------
    pretended, prior_precision : float
        N, as a multiple of the number of rows, and τ.
    loss : float
        Mean of −log p(y | x) under this choice.
    losses : dict from (float, float) to float
        Mean loss of each candidate (N, τ).
    """

    pretended: float
    prior_precision: float
    loss: float
    losses: dict[tuple[float, float], float] = field(repr=False)


def choose_scale(
    model: LaplaceClassifier,
    X: np.ndarray,
    y: np.ndarray,
    n_samples: int,
    pretended: Sequence[float] = PRETENDED,
    precisions: Sequence[float] = PRIOR_PRECISIONS,
) -> Choice:
    """Return the N and τ of smallest cross-entropy on held-out rows, and refit the model with them.

    Parameters
    ----------
    model : LaplaceClassifier
        Fitted.
    X, y : ndarray of shape (n, d) and (n,)
    n_samples : int
        Weight samples of each candidate, from the same random numbers.
    pretended, precisions : sequence of float
        Candidates.
    """
    losses = {}
    for n in pretended:
        for tau in precisions:
            refit(model, n, tau)
            p = weight_samples(model, n_samples, 0).predict_proba(X)
            losses[n, tau] = float(cross_entropy(p, y))
    n, tau = min(losses, key=losses.__getitem__)
    refit(model, n, tau)
    return Choice(n, tau, losses[n, tau], losses)


def loosest(
    model: LaplaceClassifier,
    net: NeuralNetClassifier,
    X: np.ndarray,
    y: np.ndarray,
    n_samples: int,
    precisions: Sequence[float] = LOOSE_PRECISIONS,
) -> float:
    """Refit the model with N = n and the smallest τ that costs at most one point of accuracy; return this τ.

    Parameters
    ----------
    model : LaplaceClassifier
        Fitted.
    net : NeuralNetClassifier
        Net that the model approximates.
    X, y : ndarray of shape (n, d) and (n,)
        Validation rows.
    n_samples : int
    precisions : sequence of float
        Candidates in ascending order; the last one is used if none qualifies.
    """
    needed = accuracy(deterministic(net.module_).predict_proba(X), y) - 0.01
    for tau in precisions:
        refit(model, 1.0, tau)
        if accuracy(weight_samples(model, n_samples, 0).predict_proba(X), y) >= needed:
            break
    return tau


def refit(model: LaplaceClassifier, pretended: float, prior_precision: float) -> LaplaceClassifier:
    """Return the model refitted with N and τ: N rows instead of n correspond to a temperature of n/N."""
    with warnings.catch_warnings():  # a prior precision selected on validation rows may be very small or large
        warnings.simplefilter("ignore", UserWarning)
        return model.refit_laplace(prior_precision=prior_precision, temperature=1 / pretended)


# ---------------------------------------------------------------------- measures and pictures


def cross_entropy(p: np.ndarray, y: np.ndarray) -> float:
    """Return the mean of −log p(y | x)."""
    return float(-np.log(p[np.arange(len(y)), y].clip(min=1e-30)).mean())


def entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropy of each row of probabilities (n, C), in nats, at most log C."""
    return -xlogy(p, p).sum(1)


def accuracy(p: np.ndarray, y: np.ndarray) -> float:
    """Return the share of rows whose class is the most probable one."""
    return float((p.argmax(1) == y).mean())


def sharpening(net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """Return the factor of the logits with the smallest cross-entropy; above 1, the net is underconfident."""
    with torch.no_grad():
        logits = net.module_(torch.as_tensor(X)).double()
    factors = np.geomspace(0.2, 5.0, 101)
    return float(min(factors, key=lambda factor: cross_entropy((factor * logits).softmax(1).numpy(), y)))


def draw_inverse_ecdf(axis: Axes, entropies: dict[str, np.ndarray], title: str, n_classes: int = 10) -> None:
    """Draw the share of rows above each entropy, one curve per method (dashed for N and τ of the training)."""
    for name, values in entropies.items():
        ordered = np.concatenate([[0.0], np.sort(values), [math.log(n_classes)]])
        above = np.concatenate([[1.0], 1 - np.arange(1, len(values) + 1) / len(values), [0.0]])
        style = "--" if name.endswith(UNTUNED) else "-"
        axis.step(ordered, above, style, where="post", color=SHOWN.get(name.removesuffix(UNTUNED)), label=name)
    axis.set(title=title, xlabel="predictive entropy [nats]", xlim=(0, math.log(n_classes)), ylim=(0, 1))
    axis.grid(alpha=0.3)
