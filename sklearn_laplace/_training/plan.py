"""The plan of a training, and its result."""

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
"""Noise variance of standardised targets below which a net takes all of its steps, from initial weights: where there is
next to no noise, second-order steps find more than gradients have left to be found."""
BEGUN_DISPERSION = 0.5
"""Dispersion that such a training starts from, in units of the squared errors of held-out rows."""


@dataclass(frozen=True)
class WarmStart:
    """Warm start: the end state of an earlier training on the same rows.

    Parameters
    ----------
    theta : ndarray of shape (P,), float64, or None
        Weights, in the order of the network; None for initial ones. Arrays, as all of this: a cache tells equal ones by
        their values.
    prior_precision : ndarray of shape (G,), float64
    dispersion : float
    folds : tuple of ndarray of shape (P,)
        Weights of the nets that have not seen a part of the rows.
    by_evidence : bool
        Whether its prior precisions are those of largest evidence.
    by_gradients : bool
        Whether gradients have trained the nets (``_training/gradient_start.py``). Then the prior precisions are still
        to be chosen, and the dispersion is the squared error of held-out rows.
    """

    theta: np.ndarray | None
    prior_precision: np.ndarray
    dispersion: float
    folds: tuple[np.ndarray, ...]
    by_evidence: bool = True
    by_gradients: bool = False

    def for_fold(self, fold: int) -> WarmStart:
        """Where one of these nets may go on, with all rows; with more of them than there are, one that is new."""
        return replace(self, theta=self.folds[fold] if fold < len(self.folds) else None, folds=())

    @property
    def hyper(self) -> Hyper:
        """Under which that training has ended."""
        return Hyper(torch.from_numpy(self.prior_precision), self.dispersion)


@dataclass(frozen=True)
class Plan:
    """What the MAP stage is to find, and from where.

    Parameters
    ----------
    likelihood : Likelihood
    prior : callable
        Network → Prior: the grouping of the precisions.
    precision : Tensor or None
        Fixed precisions: 0-d, or one a group; None lets the evidence choose.
    dispersion : float or None
        Fixed dispersion; None lets ``update_dispersion`` choose.
    update_dispersion : callable
        (fit, hyper) → hyper with the next dispersion.
    natural_start : bool
        Whether precisions of 1 are natural (the built-in net); otherwise the fan-in decides.
    memory : MemoryBudget
        Of the stage's own curvature and a chunk of rows.
    previous : PreviousPosterior or None
        What stands for the rows seen so far.
    again : Hyper or None
        Where a training under much the same circumstances has ended.
    softens : bool
        Whether rows that were held out may weaken the prior.
    quick : bool
        Whether a few Gauss–Newton steps are enough, near a mode: of a net that is only to be scored.
    begun : float or None
        Where gradients have trained the net before (``_training/gradient_start.py``): the squared error of held-out
        rows.
    many : bool
        Whether there are at least ``ROWS_FOR_MEMBERS`` rows.
    is_over : callable
        → bool, whether the training has to end.
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
        """Whether the targets of many rows were seen to have more than next to no noise."""
        known = self.begun if self.again is None else self.again.dispersion
        return self.many and self.likelihood.has_dispersion and known is not None and known >= NOISELESS

    @property
    def first_dispersion(self) -> float:
        """φ that a training starts from which nothing else is known of."""
        start = self.likelihood.dispersion_start
        return start if self.begun is None else min(start, BEGUN_DISPERSION * self.begun)

    @property
    def free_dispersion(self) -> bool:
        """Whether φ is chosen by the data."""
        return self.dispersion is None and self.likelihood.has_dispersion

    def start(self, network: Network, prior: Prior) -> Hyper:
        """Fixed values where given; else the past's, or the natural prior and a noise of the targets' variance."""
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
        """The next dispersion, if it is free; the prior precisions stay."""
        if not self.free_dispersion:
            return hyper
        return replace(hyper, dispersion=self.update_dispersion(fit, hyper).dispersion)


@dataclass(frozen=True)
class Fold:
    """A net that has not seen some of the rows.

    Parameters
    ----------
    theta : Tensor of shape (P,), float64
        Its weights, in the order of the trained network.
    held_out : Tensor of shape (m,), int64
        Which rows it has not seen.
    """

    theta: Tensor
    held_out: Tensor

    def seen(self, n_rows: int) -> Tensor:
        """The rows that it has seen.

        Examples
        --------
        >>> Fold(torch.zeros(1), torch.tensor([0, 3])).seen(5)
        tensor([1, 2, 4])
        """
        kept = torch.ones(n_rows, dtype=torch.bool, device=self.held_out.device)
        kept[self.held_out] = False
        return kept.nonzero()[:, 0]


@dataclass(frozen=True)
class MapResult:
    """A trained net and the hyperparameters that it was trained under.

    Parameters
    ----------
    net : NeuralNet
        Trained, in eval mode, trimmed for prediction.
    mode : Mode
        The pass over the data at θ*, the hyperparameters, the distance to the mode.
    history : list of dict
        One entry an epoch of the net's own training.
    n_steps : int
        Epochs, Gauss–Newton and L-BFGS steps together.
    is_small : bool
        Whether more than one thread would not pay.
    input_dtype : torch.dtype
        In which the network takes its inputs.
    post_hoc : bool
        Whether the net was trained by somebody else, so that the hyperparameters are still to be chosen.
    folds : tuple of Fold
        Nets trained without a part of the rows each, see ``_approximation/held_out.py``.
    """

    net: NeuralNet
    mode: Mode
    history: list[dict[str, object]]
    n_steps: int
    is_small: bool
    input_dtype: torch.dtype
    post_hoc: bool = False
    by_evidence: bool = True
    folds: tuple[Fold, ...] = ()

    def warm_start(self) -> WarmStart:
        """Where another training of these rows may start."""
        theta, hyper, folds = self.mode.fit.network.theta, self.mode.hyper, [fold.theta for fold in self.folds]
        at, precision, *others = (part.cpu().numpy() for part in (theta, hyper.prior_precision, *folds))
        return WarmStart(at, precision, hyper.dispersion, tuple(others), self.by_evidence)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all trained tensors."""
        return self.mode.fit.network.parameter_names
