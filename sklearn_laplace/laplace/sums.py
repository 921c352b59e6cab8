r"""Sums of float32 values to more than float32 accuracy, also on GPUs that are slow at float64.

Consumer GPUs compute float64 at 1/32 or 1/64 of the float32 rate. There the sum of n values is split as in Rump, Ogita
& Oishi (2008), algorithm 3.2: with :math:`\sigma = 2^{\lceil \log_2 (n + 2) \rceil} 2^e` and :math:`\max |x| < 2^e`,

.. math:: q_i = (\sigma + x_i) - \sigma, \qquad r_i = x_i - q_i .

Both are exact in float32, and so is the sum of the q in any order. The remainders r are at most
:math:`2^{-24} \sigma`, and are split in turn. The host reads no value.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities of the data-centre GPUs, whose float64 rate is half of their float32 rate."""
LEVELS = 3
"""Number of splits; the error is below 2⁻⁴⁰ n max |x| for up to 10⁵ values."""


def has_fast_float64(capability: tuple[int, int]) -> bool:
    """True for the compute capability of a GPU with a float64 rate of half its float32 rate."""
    return tuple(capability) in FAST_FLOAT64


def is_slow_at_float64(device: torch.device) -> bool:
    """True for a GPU that computes float64 at a small part of its float32 rate."""
    return device.type == "cuda" and not has_fast_float64(torch.cuda.get_device_capability(device))


def sum_of_rows(values: Tensor) -> Tensor:
    """Sum of values (n,), a 0-d tensor, float64; on a slow GPU float32 values are summed by :func:`compensated`."""
    if values.dtype == torch.float32 and is_slow_at_float64(values.device):
        return compensated(values)
    return values.double().sum()


def compensated(values: Tensor) -> Tensor:
    r"""Sum of float32 values (n,) by float32 operations, as float64; the error is below :math:`2^{-40} n \max |x|`.

    At most 10⁵ values of magnitudes up to 10³⁸ / 4n; NaN and infinity result in NaN.

    Examples
    --------
    >>> compensated(torch.tensor([1e8, 1.0, -1e8]))
    tensor(1., dtype=torch.float64)
    """
    if not len(values):
        return values.double().sum()
    growth = 2.0 ** math.ceil(math.log2(len(values) + 2))
    largest = values.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    unit, rest, sums = growth * (largest / largest.frexp().mantissa), values, []
    for _ in range(LEVELS):
        split = (unit + rest) - unit
        sums.append(split.sum())
        unit, rest = unit * (growth * 2.0**-24), rest - split  # |rest| is at most 2⁻²⁴ unit
    return torch.stack([*sums, rest.sum()]).double().sum()
