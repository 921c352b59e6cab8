"""low_rank_diag, the leading eigenpairs of EKFAC plus the exact diagonal, against dense matrices."""

from __future__ import annotations

import contracts
import oracles
import pytest
import torch

from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.evidence import evidence_derivatives, log_evidence
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.selection import maximise_evidence
from sklearn_laplace.laplace.structures import STRUCTURES, LowRankDiag

SIZES = {"gaussian": (2, 3, 1), "categorical": (2, 3, 3)}
"""With several Gaussian outputs the last layer has equal moments, so that leading pairs are not unique."""


def dense(curvature, size):
    """Dense H from products with unit vectors."""
    return torch.stack([curvature.times(row) for row in torch.eye(size, dtype=torch.float64)])


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("rank", [1, 2, 5, 7, 100])
def test_the_leading_eigenpairs_and_the_rest_of_the_diagonal_are_kept(kind, rank):
    """Ranks below and above those of the layers, with a precision per parameter."""
    problem = contracts.example(kind, seed=3, n=12, sizes=SIZES[kind])
    H = contracts.dense_curvature("low_rank_diag", problem, rank=rank)
    curvature = problem.fit("low_rank_diag", rank=rank).curvature
    contracts.close(dense(curvature, len(H)), H, 1e-9, "H")
    contracts.close(curvature.eigenvalues().sort().values, torch.linalg.eigvalsh(H), 1e-9, "eigenvalues")
    delta = 0.1 + torch.rand(len(H), generator=torch.Generator().manual_seed(rank)).double()
    posterior = curvature.posterior(delta, 1.7)
    P = oracles.posterior_precision(H, delta, 1.7)
    contracts.close(contracts.covariance_of(posterior, len(H)), torch.linalg.inv(P), 1e-8, "covariance")
    contracts.close(posterior.logdet_precision(), torch.linalg.slogdet(P).logabsdet, 1e-9, "log determinant")


def test_the_diagonal_is_that_of_the_curvature_or_more():
    """The diagonal is exact where the leading pairs do not exceed it, and never smaller."""
    clipped = 0
    for seed in range(4):
        problem = contracts.example("categorical", seed, n=12)
        exact = contracts.dense_curvature("full", problem).diagonal()
        for rank in (1, 3, 12):
            H = dense(problem.fit("low_rank_diag", rank=rank).curvature, len(exact))
            more = H.diagonal() - exact
            assert bool((more >= -1e-12 * exact.max()).all())
            clipped += int((more > 1e-6 * exact.max()).sum())
            assert bool((more <= 1e-9 * exact.max()).any())
    assert clipped > 0, "no case in which the leading pairs have more than the diagonal"


def test_at_full_rank_it_is_ekfac_where_that_is_exact():
    """For linear regression the leading pairs have the exact diagonal, so that D is zero."""
    module = oracles.random_mlp((4, 1), seed=2)
    x, y = contracts.random_rows("gaussian", 12, 4, 1, 2)
    problem = contracts.Example("gaussian", module, trace(module, x), x, y, oracles.random_weights(12, 2))
    exact = contracts.dense_curvature("full", problem)
    contracts.close(dense(problem.fit("low_rank_diag").curvature, 5), exact, 1e-10, "H")


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_sampler_is_exact_however_much_the_data_outweigh_the_prior(scale):
    """Rᵀ P R = I for condition numbers up to 1e10; the shrinkage (1 − (1 + l)^−½)/l must not cancel."""
    problem = contracts.example("gaussian", seed=1, n=30, sizes=SIZES["gaussian"])
    H = contracts.dense_curvature("low_rank_diag", problem, rank=4)
    delta = torch.linspace(0.01, 1, len(H), dtype=torch.float64)
    root = (
        problem.fit("low_rank_diag", rank=4).curvature.posterior(delta, scale).apply_root(torch.eye(len(H)).double()).mT
    )
    P = oracles.posterior_precision(H, delta, scale)
    contracts.close(root.mT @ P @ root, torch.eye(len(H)).double(), 1e-8, "Rᵀ P R")


def test_the_evidence_goes_without_the_eigenvalues_of_whole_layers(monkeypatch):
    """Eigenvalues of the sum would cost the cube of a layer's size."""
    problem = contracts.example("gaussian", seed=5, n=12)
    fit, hyper = problem.fit("low_rank_diag", rank=3), Hyper(torch.tensor([0.7]).double(), dispersion=0.3)

    def refuse(self):
        raise AssertionError("eigenvalues of a dense layer")

    monkeypatch.setattr(LowRankDiag, "eigenvalues", refuse)
    best = maximise_evidence(fit, hyper)
    assert log_evidence(fit, best) > log_evidence(fit, hyper)
    assert float(evidence_derivatives(fit, best).gradient.abs().max()) < 1e-4


def test_it_adds_up_in_one_basis_and_in_no_other():
    """Leading pairs add up in a single eigenbasis, as for ekfac; the diagonal adds up in any."""
    problem = contracts.example("categorical", seed=2, n=12)
    fit = problem.fit("low_rank_diag", rank=4)
    again = [(problem.x, problem.y, problem.weights)]
    arguments = (
        problem.network,
        problem.likelihood,
        GGN(),
        STRUCTURES["low_rank_diag"],
        problem.network.scalar_prior(),
        again,
    )
    twice = fit.curvature.merge(fit_laplace(*arguments, like=fit.curvature).curvature)
    assert twice.options == fit.curvature.options
    size = problem.network.n_parameters
    once = dense(fit.curvature, size)
    contracts.close(dense(twice, size), 2 * once, 1e-12, "the same rows again")
    contracts.close(dense(twice.subtract(fit.curvature), size), once, 1e-12, "and out")
    with pytest.raises(UnsupportedCombinationError, match="can only merge or subtract curvatures"):
        fit.curvature.merge(fit_laplace(*arguments, rank=4).curvature)


def test_it_takes_no_more_memory_than_it_says():
    """Memory is linear in the size of a layer: 10⁵ weights at rank 10."""
    module = torch.nn.Linear(1000, 100)
    network = trace(module, torch.zeros(3, 1000))
    needed = LowRankDiag.memory(network.blocks, 3, rank=10)
    assert needed < 8 * network.n_parameters * 100
    rows = [(torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)), torch.zeros(3, 100), torch.ones(3))]
    likelihood = LIKELIHOODS["gaussian"]()
    fit = fit_laplace(network, likelihood, GGN(), LowRankDiag, network.scalar_prior(), rows, rank=10)
    posterior = fit.posterior(Hyper(torch.ones(1).double()))
    (part,) = posterior.parts
    assert part.rows.shape[0] <= 10
    assert bool(torch.isfinite(posterior.covariance(network.jacobian(rows[0][0])[1])).all())


def test_a_prediction_counts_its_leading_directions():
    """The batch size accounts for products of each row with all leading directions and outputs."""
    problem = contracts.example("categorical", seed=1, n=9, sizes=(2, 30, 3))
    posterior = problem.fit("low_rank_diag", rank=20).posterior(Hyper(torch.ones(1, dtype=torch.float64)))
    assert posterior.row_width(problem.network.blocks, 3) == 20 * (3 + 30)
