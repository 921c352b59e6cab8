r"""Sampled Fisher: :math:`H = \sum_n w_n \tfrac1S \sum_s J_n^\top r_{ns} r_{ns}^\top J_n`, labels drawn from the model.

:math:`r_{ns}` is the residual of a target drawn from p(y given f) at unit dispersion; its outer product has the
expectation Λₙ, so H is the generalised Gauss–Newton matrix on average, at S backward passes a row instead of one for
each output (Martens & Grosse 2015, section 5).

The draws of a row are a function of its inputs and of the seed alone, not the next ones of a generator: they are the
same however the rows are cut into batches or ordered, in the second pass of a structure that needs one, for k copies
of a row and for one of weight k, and when the row is forgotten again; and rows that come one by one do not all get the
first draws of a stream. Each row is hashed, bit by bit of its inputs, by the mixing function of SplitMix64 (Steele, Lea
& Flood 2014), which then counts on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.linearisation import Linearisation
from ._base import CurvatureRule

GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64's increment and multipliers, unsigned."""


@dataclass(frozen=True)
class MCFisher(CurvatureRule):
    """Sₙ = √(wₙ/S) (rₙ₁ … rₙₛ) for S sampled targets.

    Parameters
    ----------
    n_samples : int
        S, draws a row.
    seed : int

    Examples
    --------
    >>> sorted(MCFisher.provides), MCFisher.dispersion_power
    (['layers', 'rows'], 1)
    """

    n_samples: int = 1
    seed: int = 0
    provides: ClassVar[frozenset[str]] = frozenset({"rows", "layers"})
    dispersion_power: ClassVar[int] = 1

    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """SᵀJ of the sampled residuals; of the targets only their known noise is needed."""
        n, n_outputs = line.outputs.shape
        uniforms = row_uniforms(line.inputs, self.n_samples * n_outputs, self.seed).view(n, self.n_samples, n_outputs)
        drawn = (likelihood.sample(line.outputs, column, targets) for column in uniforms.unbind(1))
        residuals = torch.stack([likelihood.residual(line.outputs, y) for y in drawn], -1)
        return Batch(line.pullback(residuals * (weights / self.n_samples).sqrt()[:, None, None]), line.outputs, weights)

    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        """The number of draws."""
        return self.n_samples

    def sampling(self, n_samples: int, seed: int) -> MCFisher:
        """With this number of draws and this seed."""
        return MCFisher(n_samples, seed)


def row_uniforms(inputs: Tensor, n_columns: int, seed: int) -> Tensor:
    """Uniform draws for each row, a function of the row's values and of the seed.

    Parameters
    ----------
    inputs : Tensor of shape (n, …)
    n_columns : int
    seed : int

    Returns
    -------
    Tensor of shape (n, n_columns), float64
        Strictly between 0 and 1, multiples of 2⁻⁵⁴.

    Examples
    --------
    >>> import torch
    >>> rows = torch.arange(4.0)[:, None]
    >>> draws = row_uniforms(rows, 3, seed=0)
    >>> torch.equal(draws[[2, 0]], row_uniforms(rows[[2, 0]], 3, seed=0))
    True
    """
    bits = (inputs.flatten(1).double() + 0.0).view(torch.int64)  # + 0.0: there is one zero
    places = torch.arange(1, bits.shape[1] + 1, device=bits.device) * _signed(GAMMA)
    state = _mixed(_mixed(bits + places).sum(1) + seed)
    steps = torch.arange(1, n_columns + 1, device=bits.device) * _signed(GAMMA)
    return ((_shifted(_mixed(state[:, None] + steps), 11)).double() + 0.5) * 2.0**-53


def _mixed(values: Tensor) -> Tensor:
    """SplitMix64's output function of int64 values, arithmetic modulo 2⁶⁴."""
    values = (values ^ _shifted(values, 30)) * _signed(MIX_1)
    values = (values ^ _shifted(values, 27)) * _signed(MIX_2)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, places: int) -> Tensor:
    """A right shift that fills with zeros; that of int64 repeats the sign."""
    return (values >> places) & ((1 << (64 - places)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant
