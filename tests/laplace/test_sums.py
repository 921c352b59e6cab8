"""Sums of float32 values by float32 operations against ``math.fsum``, and the GPUs that need them."""

from __future__ import annotations

import math

import pytest
import torch

from sklearn_laplace.laplace import linalg
from sklearn_laplace.laplace.linalg import compensated, sum_of_rows
from sklearn_laplace.laplace.torch_state import FAST_FLOAT64, is_slow_at_float64


def ill_conditioned(n: int, seed: int) -> torch.Tensor:
    """Values of 12 orders of magnitude that almost cancel, in random order."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(n // 2, generator=generator) * 10.0 ** (12 * torch.rand(n // 2, generator=generator) - 6)
    values = torch.cat([half, -half, torch.randn(7, generator=generator)])
    return values[torch.randperm(len(values), generator=generator)]


@pytest.mark.parametrize("n", [2, 100, 8192, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_sums_that_cancel_are_within_the_bound(n, seed):
    """2⁻⁴⁰ n max |x|; a float32 sum of many values loses at least a hundred times more than the compensated one."""
    values = ill_conditioned(n, seed)
    exact = math.fsum(values.tolist())
    bound = 2.0**-40 * len(values) * float(values.abs().max())
    error = abs(float(compensated(values)) - exact)
    assert error <= bound
    assert n < 8192 or 100 * error < abs(float(values.sum()) - exact)


def test_sums_of_losses_have_the_accuracy_of_float64():
    """Positive values, as the losses of a pass: relative error below 1e-11."""
    values = torch.rand(50_000, generator=torch.Generator().manual_seed(0)).square()
    assert float(compensated(values)) == pytest.approx(math.fsum(values.tolist()), rel=1e-11)


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [-0.0], [1e-45, 1e-45], [3.0], [1e30, -1e30, 2.0]])
def test_edges(values):
    """No value, zeros, the smallest float32, one value, and complete cancellation."""
    result = compensated(torch.tensor(values))
    assert result.dtype == torch.float64
    assert float(result) == math.fsum(torch.tensor(values).tolist())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_not_hidden(value):
    """The pass checks its sums once, at the end."""
    assert not math.isfinite(float(compensated(torch.tensor([1.0, value, 2.0]))))


@pytest.mark.parametrize(
    ("capability", "is_fast"),
    [
        ((7, 0), True),
        ((8, 0), True),
        ((9, 0), True),
        ((10, 0), True),
        ((7, 5), False),
        ((8, 6), False),
        ((12, 0), False),
    ],
)
def test_data_centre_gpus_are_fast_at_float64(capability, is_fast, monkeypatch):
    """The compute capability decides; no GPU is asked on the CPU."""
    assert (capability in FAST_FLOAT64) == is_fast
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert is_slow_at_float64(torch.device("cuda:0")) == (not is_fast)
    assert not is_slow_at_float64(torch.device("cpu"))


def test_only_float32_on_a_slow_gpu_is_summed_in_float32(monkeypatch):
    """Elsewhere the sum is that of float64, to the bit."""
    values, called = ill_conditioned(1000, 0), []
    monkeypatch.setattr(linalg, "compensated", lambda values: called.append(len(values)))
    assert torch.equal(sum_of_rows(values), values.double().sum())
    monkeypatch.setattr(linalg, "is_slow_at_float64", lambda device: True)
    assert torch.equal(sum_of_rows(values.double()), values.double().sum())
    assert called == []
    sum_of_rows(values)
    assert called == [len(values)]
