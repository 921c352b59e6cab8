"""Specification, warm start and result of the MAP stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from skorch import NeuralNet
from torch import Tensor

from .._runtime.memory import MemoryBudget
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.likelihoods._base import Likelihood
from ..laplace.mode.problem import Mode
from ..laplace.network.network import Network
from ..laplace.previous import PreviousPosterior
from ..laplace.prior import Prior

NOISELESS = 0.005
"""Noise variance of standardised targets below which they count as almost free of noise.

A net for such targets takes all of its second-order steps from its initial weights, without gradient training.
"""
BEGUN_DISPERSION = 0.5
"""Initial φ after a gradient training, in units of the held-out mean squared error."""


@dataclass(frozen=True)
class WarmStart:
    """Warm start: the end state of an earlier training on the same rows.

    Parameters
    ----------
    theta : ndarray of shape (P,), float64, or None
        Weights, in the order of the network; None for a new initialisation. All fields are NumPy arrays or numbers,
        because the cache compares them by value.
    prior_precision : ndarray of shape (G,), float64
        Prior precisions at the end of the earlier training.
    dispersion : float
        φ at the end of the earlier training.
    folds : tuple of ndarray of shape (P,)
        Weights of the cross-fitted nets.
    by_evidence : bool
        True if the prior precisions maximise the evidence.
    by_gradients : bool
        True after a gradient training (``_training/gradient_start.py``). The prior precisions are then not selected
        yet, and the dispersion is the held-out mean squared error.
    """

    theta: np.ndarray | None
    prior_precision: np.ndarray
    dispersion: float
    folds: tuple[np.ndarray, ...]
    by_evidence: bool = True
    by_gradients: bool = False

    def for_fold(self, fold: int) -> WarmStart:
        """Warm start of a further member on all rows, from the weights of a cross-fitted net.

        If ``fold`` exceeds the number of folds, the member has a new initialisation.
        """
        return replace(self, theta=self.folds[fold] if fold < len(self.folds) else None, folds=())

    @property
    def hyper(self) -> Hyper:
        """Hyperparameters at the end of the earlier training."""
        return Hyper(torch.from_numpy(self.prior_precision), self.dispersion)


@dataclass(frozen=True)
class Plan:
    """Specification of the MAP stage: its model, its free hyperparameters and its start.

    Parameters
    ----------
    likelihood : Likelihood
    prior : callable
        Maps a network to a Prior, which defines the groups of prior precisions.
    precision : Tensor or None
        Fixed prior precisions: 0-d, or one per group. If None, they are selected by the evidence.
    dispersion : float or None
        Fixed φ. If None, it is selected by ``update_dispersion``.
    update_dispersion : callable
        Maps (fit, hyper) to hyperparameters with an updated φ.
    natural_start : bool
        If True, initial prior precisions are 1 (the built-in net); otherwise they depend on the fan-in.
    memory : MemoryBudget
        Budget of the stage's own curvature and of a chunk of rows.
    previous : PreviousPosterior or None
        Previous posterior, which represents the earlier rows.
    again : Hyper or None
        Final hyperparameters of an earlier training on the same rows, as a start.
    softens : bool
        If True, held-out rows may weaken the prior.
    quick : bool
        If True, a few Gauss–Newton steps are sufficient, because the net is only scored.
    begun : float or None
        Held-out mean squared error after a gradient training (``_training/gradient_start.py``); None without one.
    many : bool
        True for at least ``ROWS_FOR_MEMBERS`` rows.
    is_over : callable
        Returns True if the training must stop. Default: never.
    """

    likelihood: Likelihood
    prior: Callable[[Network], Prior]
    precision: Tensor | None
    dispersion: float | None
    update_dispersion: Callable[[LaplaceFit, Hyper], Hyper]
    natural_start: bool
    memory: MemoryBudget
    previous: PreviousPosterior | None = None
    again: Hyper | None = None
    softens: bool = False
    quick: bool = False
    begun: float | None = None
    many: bool = False
    is_over: Callable[[], bool] = bool  # never

    @property
    def is_noisy(self) -> bool:
        """True if there are many rows and an earlier training has found a noise variance of ``NOISELESS`` or more."""
        noise = self.begun if self.again is None else self.again.dispersion
        return self.many and self.likelihood.has_dispersion and noise is not None and noise >= NOISELESS

    @property
    def first_dispersion(self) -> float:
        """Initial φ of a training that has neither a fixed φ nor the hyperparameters of an earlier training."""
        start = self.likelihood.dispersion_start
        return start if self.begun is None else min(start, BEGUN_DISPERSION * self.begun)

    @property
    def free_dispersion(self) -> bool:
        """True if φ is selected by the data."""
        return self.dispersion is None and self.likelihood.has_dispersion

    def start(self, network: Network, prior: Prior) -> Hyper:
        """Initial hyperparameters.

        Fixed values come first, then those of a previous posterior, then those of an earlier training. Otherwise the
        prior precisions are natural ones, and φ is ``first_dispersion``.
        """
        ones = torch.ones(prior.n_groups, dtype=torch.float64, device=network.theta.device)
        values = ones if self.natural_start else network.natural_precisions(prior)
        dispersion = self.first_dispersion
        if self.again is not None:
            values, dispersion = self.again.prior_precision.to(ones), self.again.dispersion
        if self.previous is not None:
            same = self.previous.fit.prior.names == prior.names
            before, dispersion = self.previous.hyper.prior_precision, self.previous.hyper.dispersion
            values = before if same else before.log().mean().exp() * ones
        if self.precision is not None:
            values = self.precision.to(ones) * ones
        return Hyper(values, dispersion if self.dispersion is None else self.dispersion)

    def update(self, fit: LaplaceFit, hyper: Hyper) -> Hyper:
        """Update φ if it is free; the prior precisions do not change."""
        if not self.free_dispersion:
            return hyper
        return replace(hyper, dispersion=self.update_dispersion(fit, hyper).dispersion)


@dataclass(frozen=True)
class Fold:
    """A cross-fitted net: a net trained without one fold of the rows.

    Parameters
    ----------
    theta : Tensor of shape (P,), float64
        Weights, in the order of the network.
    held_out : Tensor of shape (m,), int64
        Indices of the held-out rows.
    """

    theta: Tensor
    held_out: Tensor

    def seen(self, n_rows: int) -> Tensor:
        """Indices of the rows that the net is trained on.

        Examples
        --------
        >>> Fold(torch.zeros(1), torch.tensor([0, 3])).seen(5)
        tensor([1, 2, 4])
        """
        return other_rows(self.held_out, n_rows)


def other_rows(index: Tensor, n_rows: int) -> Tensor:
    """Indices of all rows that are not among the given ones."""
    kept = torch.ones(n_rows, dtype=torch.bool, device=index.device)
    kept[index] = False
    return kept.nonzero()[:, 0]


@dataclass(frozen=True)
class MapResult:
    """Result of the MAP stage: a trained net and the hyperparameters of its training.

    Parameters
    ----------
    net : NeuralNet
        Trained net in eval mode, trimmed for prediction.
    mode : Mode
        Pass over the data at θ*, the hyperparameters, and the distance to the mode.
    history : list of dict
        One entry per epoch of gradient training.
    n_steps : int
        Total number of epochs, Gauss–Newton steps and L-BFGS steps.
    is_small : bool
        True if the net is too small to benefit from several threads.
    input_dtype : torch.dtype
        Dtype of the network's inputs.
    by_evidence : bool
        True if the prior precisions maximise the evidence.
    folds : tuple of Fold
        Cross-fitted nets, see ``_approximation/held_out.py``.
    """

    net: NeuralNet
    mode: Mode
    history: list[dict[str, object]]
    n_steps: int
    is_small: bool
    input_dtype: torch.dtype
    by_evidence: bool = True
    folds: tuple[Fold, ...] = ()

    def warm_start(self) -> WarmStart:
        """Warm start of another training on the same rows."""
        tensors = self.mode.fit.network.theta, self.mode.hyper.prior_precision, *(fold.theta for fold in self.folds)
        theta, precision, *folds = (tensor.cpu().numpy() for tensor in tensors)
        return WarmStart(theta, precision, self.mode.hyper.dispersion, tuple(folds), self.by_evidence)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all trained parameter tensors."""
        return self.mode.fit.network.parameter_names


@dataclass(frozen=True)
class GivenNet:
    """A net of the user's after its own training, or a frozen one; its curvature is not known yet.

    Parameters
    ----------
    net : NeuralNet
        Trained net in eval mode, trimmed for prediction.
    network : Network
        Traced module with the trained weights.
    prior : Prior
        Groups of the prior precisions of all weights.
    hyper : Hyper
        Initial hyperparameters of the posterior: precisions of natural size, unless they are given.
    held_out : Tensor of shape (m,), int64
        Rows that the net has held out from its training by its ``train_split``.
    history : list of dict
        One entry per epoch.
    is_small : bool
        True if the net is too small to benefit from several threads.
    input_dtype : torch.dtype
        Dtype of the network's inputs in the posterior.
    key : str
        Key of the training in a search; empty outside of a search.
    """

    net: NeuralNet
    network: Network
    prior: Prior
    hyper: Hyper
    held_out: Tensor
    history: list[dict[str, object]]
    is_small: bool
    input_dtype: torch.dtype
    key: str = ""

    @property
    def n_steps(self) -> int:
        """Number of epochs."""
        return len(self.history)

    def warm_start(self) -> WarmStart:
        """No weights: a further member starts anew."""
        return WarmStart(None, self.hyper.prior_precision.cpu().numpy(), self.hyper.dispersion, ())
