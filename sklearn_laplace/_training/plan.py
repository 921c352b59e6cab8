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

    ``theta`` (P,), float64, are the weights in the order of the network; None for a new initialisation.
    ``prior_precision`` has shape (G,), ``dispersion`` is φ, and ``folds`` are the weights (P,) of the cross-fitted
    nets. All fields are NumPy arrays or numbers, because the cache compares them by value.

    ``by_evidence`` is True if the prior precisions maximise the evidence. ``by_gradients`` is True after a gradient
    training (``_training/gradient_start.py``): the prior precisions are then not selected yet, and the dispersion is
    the held-out mean squared error.
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

    ``prior`` maps a network to a Prior. ``precision``, 0-d or one per group, and ``dispersion`` φ are fixed; None if
    they are selected, by the evidence and by ``update_dispersion``. That function maps (fit, hyper) to hyperparameters
    with an updated φ.

    With ``natural_start`` the initial prior precisions are 1 (the built-in net); otherwise they depend on the fan-in.
    ``previous`` represents earlier rows; ``again`` has the final hyperparameters of an earlier training on the same
    rows, as a start. ``begun`` is the held-out mean squared error after a gradient training
    (``_training/gradient_start.py``).

    With ``softens``, held-out rows may weaken the prior. With ``quick``, a few Gauss–Newton steps are sufficient,
    because the net is only scored. ``many`` is True for at least ``ROWS_FOR_MEMBERS`` rows. ``is_over`` returns True if
    the training must stop.
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

    ``theta`` (P,), float64, are its weights in the order of the network; ``held_out`` (m,), int64, are the indices of
    the held-out rows.
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

    ``net`` is in eval mode and trimmed for prediction. ``mode`` has the pass over the data at θ*, the hyperparameters,
    and the distance to the mode. ``history`` has one entry per epoch of gradient training; ``n_steps`` is the total
    number of epochs, Gauss–Newton steps and L-BFGS steps.

    ``is_small`` is True if the net is too small to benefit from several threads, ``by_evidence`` if the prior
    precisions maximise the evidence. ``folds`` are the cross-fitted nets, see ``_approximation/held_out.py``.
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

    ``net`` is in eval mode and trimmed for prediction; ``network`` is its trace with the trained weights. ``prior``
    groups the prior precisions of all weights. ``hyper`` are initial hyperparameters of the posterior: precisions of
    natural size, unless they are given.

    ``held_out`` (m,), int64, are the rows that its ``train_split`` has held out. ``history`` has one entry per epoch,
    and ``input_dtype`` is the dtype of the network's inputs in the posterior. ``is_small`` is as in :class:`MapResult`.
    ``key`` identifies the training in a search; it is empty elsewhere.
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
