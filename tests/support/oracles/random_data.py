"""Random networks and random data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .functions import _seeded


def random_mlp(
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.Tanh,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """Linear layers of the given sizes, activation in between; names "0.weight", "0.bias" and on.

    Parameters
    ----------
    sizes : sequence of int
        Inputs, hidden widths, outputs; two entries give one linear layer.
    activation : module class without arguments
    seed : int
    dtype : torch.dtype
        Values are drawn in float64 and then cast, so that dtypes agree up to rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        # skip_init: the ordinary constructor would draw from the global random state
        linear = nn.utils.skip_init(nn.Linear, fan_in, fan_out, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(_normal((fan_out, fan_in), generator) / math.sqrt(fan_in))
            linear.bias.copy_(0.5 * _normal((fan_out,), generator))
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])


def random_regression(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal inputs (n, d); targets (n, C) = smooth + linear + noise of std 0.3."""
    generator = torch.Generator().manual_seed(seed)
    X = _normal((n, d), generator)
    bent, straight = _normal((d, C), generator), _normal((d, C), generator)
    noise = 0.3 * _normal((n, C), generator)
    return X, torch.sin(X @ bent) + 0.5 * X @ straight / math.sqrt(d) + noise


def random_classification(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal inputs (n, d); overlapping labels (n,), int64, each of 0..C-1 present."""
    if n < C:
        raise ValueError(f"{n} rows cannot hold {C} classes")
    generator = torch.Generator().manual_seed(seed)
    X = _normal((n, d), generator)
    logits = 2 * X @ _normal((d, C), generator) / math.sqrt(d)
    y = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
    y[:C] = torch.arange(C)
    return X, y


def random_binary(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """As `random_classification` with two classes, for a net with one logit; C has to be 1."""
    if C != 1:
        raise ValueError(f"{C} logits for two classes; expected 1")
    return random_classification(n, d, 2, seed) if n > 1 else (_normal((1, d), _seeded(seed)), torch.ones(1).long())


def random_counts(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal inputs (n, d); counts (n, C), float64, of rates between about 0.2 and 10."""
    generator = _seeded(seed)
    X = _normal((n, d), generator)
    return X, torch.poisson(torch.exp(0.5 + torch.sin(X @ _normal((d, C), generator))), generator=generator)


def random_weights(n: int, seed: int = 0, integer: bool = False) -> Tensor:
    """Row weights (n,), float64, a quarter or so exactly zero; integers from 0 to 3 on request.

    From two rows on there is at least one zero and one positive weight.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 4, (n,), generator=generator).double()
    fractions = 0.5 + torch.rand(n, dtype=torch.float64, generator=generator)
    w = counts if integer else counts * fractions
    w[0] = 1.0 if integer else fractions[0]
    if n > 1:
        w[1] = 0.0
    return w


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal draws in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=generator)
