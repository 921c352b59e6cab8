"""Every registered variant satisfies the contract of its registry; new variants are tested automatically."""

import contracts
import oracles
import pytest
import torch

from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.layers import LAYERS
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.links import LINKS, Plugin, Probit
from sklearn_laplace.laplace.predictives import PREDICTIVES
from sklearn_laplace.laplace.structures import STRUCTURES


@pytest.mark.parametrize("key", sorted(STRUCTURES))
def test_structure_answers_like_its_own_dense_matrix(key):
    """All results agree with a single dense matrix; four published implementations fail this."""
    contracts.check_structure(key)


@pytest.mark.parametrize("key", sorted(STRUCTURES))
def test_structure_without_rows_is_the_prior(key):
    """A curvature without rows gives a valid posterior, the prior."""
    contracts.check_structure_without_rows(key)


@pytest.mark.parametrize("key", sorted(LIKELIHOODS))
def test_likelihood_derivatives_are_those_of_its_log_density(key):
    """Curvature rules and evidence depend only on residual, Hessian factor and normaliser."""
    contracts.check_likelihood(key)


@pytest.mark.parametrize("key", sorted(CURVATURES))
def test_curvature_rows_sum_to_the_dense_matrix(key):
    """Curvature of each rule against autodiff."""
    contracts.check_curvature(key)


@pytest.mark.parametrize("key", sorted(LAYERS))
def test_layer_jacobian_is_autodiff(key):
    """Jacobians of factored layers equal those of autodiff."""
    contracts.check_layer(key)


@pytest.mark.parametrize("key", sorted(PREDICTIVES))
def test_predictive_answers_of_one_law(key):
    """Mean, covariance and functions describe a single distribution, which is exact for a linear network."""
    contracts.check_predictive(key)


@pytest.mark.parametrize("key", sorted(LINKS))
def test_link_gives_probabilities(key):
    """Logits are defined up to a constant, so that links must be invariant under a common shift."""
    contracts.check_link(key)


@pytest.mark.parametrize("n_classes", [2, 3, 6])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
def test_probit_is_the_pairwise_formula(n_classes, spread):
    """Closed form against two loops in the oracle, up to the order of sums."""
    latent = contracts.random_latent(n_classes, seed=n_classes)
    latent = LatentGaussian(latent.mean, spread * latent.covariance)
    expected = [oracles.pairwise_probit(m, c) for m, c in zip(latent.mean, latent.covariance, strict=True)]
    torch.testing.assert_close(
        Probit(torch.zeros(1, n_classes)).mean(latent), torch.stack(expected), rtol=0, atol=1e-12
    )


def test_plugin_ignores_the_covariance():
    """The result is the softmax of the mean."""
    latent = contracts.random_latent(4, seed=0)
    expected = latent.mean.exp() / latent.mean.exp().sum(1, keepdim=True)
    torch.testing.assert_close(Plugin(torch.zeros(1, 4)).mean(latent), expected, rtol=1e-12, atol=0)
