"""Single-precision nets with many rows: products in float32, sums in float64."""

import oracles
import pytest
import torch

from sklearn_laplace._table.limits import MemoryBudget
from sklearn_laplace.laplace import LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.fit import TrainingRows
from sklearn_laplace.laplace.likelihoods import Gaussian
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.structures import STRUCTURES

N = 40_000
SIZES = (8, 50, 1)


def linearised(structure: str, dtype: torch.dtype) -> LaplaceFit:
    """Laplace fit in the chunks that estimators use; all values are representable in float32."""
    module = oracles.random_mlp(SIZES, dtype=torch.float32).to(dtype)
    x, y = (t.float().to(dtype) for t in oracles.random_regression(N, 8, 1))
    network = trace(module, x)
    rows = TrainingRows(x, y, torch.ones(N, dtype=dtype))
    step = MemoryBudget(2**30).pass_rows(STRUCTURES[structure], network, 1, 0)
    chunks = rows.chunks(step)
    return fit_laplace(network, Gaussian(), GGN(), STRUCTURES[structure], network.scalar_prior(), chunks)


def stored(fit: LaplaceFit) -> list[torch.Tensor]:
    """All tensors that the structure stores: a matrix, a diagonal, or factors."""
    curvature = fit.curvature
    if hasattr(curvature, "matrix"):
        return [curvature.matrix]
    if hasattr(curvature, "diagonal"):
        return [curvature.diagonal]
    return [factor for part in curvature.parts for factor in part.factors(curvature.total_weight)]


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_curvature_of_many_rows_is_right_to_single_precision(structure):
    """Tolerance 1e-6 in Frobenius norm: a few times the error of rounding each row to float32 (3e-7)."""
    single, double = linearised(structure, torch.float32), linearised(structure, torch.float64)
    for ours, truth in zip(stored(single), stored(double), strict=True):
        assert ours.dtype == torch.float64
        assert float((ours - truth).norm() / truth.norm()) < 1e-6
    assert single.gradient.dtype == torch.float64
    assert float((single.gradient - double.gradient).norm() / double.gradient.norm()) < 1e-5  # large terms cancel
    assert single.nll == pytest.approx(double.nll, rel=1e-6)
    assert single.total_weight == N


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_sums_over_chunks_are_in_double_precision(structure):
    """A chunk repeated 1000 times equals 1000 times the chunk to 1e-11; sums in float32 reach only about 1e-5."""
    times = 1000
    module = oracles.random_mlp((3, 4, 1), dtype=torch.float32)
    x, y = (t.float() for t in oracles.random_regression(7, 3, 1))
    chunk = (x, y, torch.full((7,), 0.1))
    network = trace(module, x)
    prior = network.scalar_prior()
    once, often = (
        fit_laplace(network, Gaussian(), GGN(), STRUCTURES[structure], prior, [chunk] * n) for n in (1, times)
    )
    delta = torch.tensor(1.0, dtype=torch.float64)
    identity = torch.eye(network.n_parameters, dtype=torch.float64)
    # scaled to the same curvature, a thousand times the prior, both posteriors are equal
    roots = [
        f.curvature.posterior(delta, scale).apply_root(identity) for f, scale in ((once, 1e3), (often, 1e3 / times))
    ]
    expected, actual = (root.mT @ root for root in roots)
    assert float((actual - expected).norm() / expected.norm()) < 1e-11
    torch.testing.assert_close(often.gradient, times * once.gradient, rtol=1e-11, atol=0)
    assert often.nll == pytest.approx(times * once.nll, rel=1e-11)
    assert often.total_weight == pytest.approx(times * once.total_weight, rel=1e-11)
