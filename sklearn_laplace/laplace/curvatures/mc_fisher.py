r"""Sampled Fisher: :math:`H = \sum_n w_n \tfrac1S \sum_s J_n^\top r_{ns} r_{ns}^\top J_n`.

:math:`r_{ns}` is the residual of a target drawn from p(y given f) at unit dispersion. The expectation of its outer
product is Λₙ, so H equals the generalised Gauss–Newton matrix in expectation. The cost is S backward passes per row
instead of one per output (Martens & Grosse 2015, section 5).

The draws of a row depend only on its inputs and on the seed. The bits of the inputs are hashed with the mixing function
of SplitMix64 (Steele, Lea & Flood 2014). The hash is the state of the generator, whose next values are the draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.network import Linearisation
from ._base import CurvatureRule

GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Increment and multipliers of SplitMix64, unsigned."""


@dataclass(frozen=True)
class MCFisher(CurvatureRule):
    """Sampled Fisher: Sₙ = √(wₙ/S) (rₙ₁ … rₙₛ) for S sampled targets.

    >>> sorted(MCFisher.provides), MCFisher.dispersion_power
    (['layers', 'rows'], 1)
    """

    n_samples: int = 1  # draws S per row
    seed: int = 0  # of the draws
    provides: ClassVar[frozenset[str]] = frozenset({"rows", "layers"})
    dispersion_power: ClassVar[int] = 1

    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """Contribution of sampled residuals. Of ``targets``, only the known noise is used."""
        n, n_outputs = line.outputs.shape
        uniforms = row_uniforms(line.inputs, self.n_samples * n_outputs, self.seed).view(n, self.n_samples, n_outputs)
        drawn = (likelihood.sample(line.outputs, column, targets) for column in uniforms.unbind(1))
        residuals = torch.stack([likelihood.residual(line.outputs, y) for y in drawn], -1)
        return Batch(line.pullback(residuals * (weights / self.n_samples).sqrt()[:, None, None]), line.outputs, weights)

    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        return self.n_samples

    def sampling(self, n_samples: int, seed: int) -> MCFisher:
        return MCFisher(n_samples, seed)


def row_uniforms(inputs: Tensor, n_columns: int, seed: int) -> Tensor:
    """Uniform draws (n, n_columns), float64, as a function of each row's values (n, …) and the seed."""
    bits = (inputs.flatten(1).double() + 0.0).view(torch.int64)  # + 0.0 maps -0.0 to 0.0
    places = torch.arange(1, bits.shape[1] + 1, device=bits.device) * _signed(GAMMA)
    state = _mixed(_mixed(bits + places).sum(1) + seed)
    steps = torch.arange(1, n_columns + 1, device=bits.device) * _signed(GAMMA)
    return (_shifted(_mixed(state[:, None] + steps), 12).double() + 0.5) * 2.0**-52


def _mixed(values: Tensor) -> Tensor:
    """Output function of SplitMix64 on int64 values, arithmetic modulo 2⁶⁴."""
    values = (values ^ _shifted(values, 30)) * _signed(MIX_1)
    values = (values ^ _shifted(values, 27)) * _signed(MIX_2)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, places: int) -> Tensor:
    """Logical right shift, which fills with zeros. torch's right shift of int64 repeats the sign bit instead."""
    return (values >> places) & ((1 << (64 - places)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant
