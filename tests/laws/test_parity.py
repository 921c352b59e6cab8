"""Comparison with laplace-torch 0.3 on the same float64 net: curvature, evidence and predictive variance.

Structures full and diag agree completely, for all weights and for the last layer. In Kronecker form, laplace-torch
keeps each bias as a separate block Σ g gᵀ, and factors B ⊗ A for the weights only. This is bias="separate" here. For
folded biases, B and the upper left part of A are compared. All rows are in one batch, because the Kronecker curvature
of laplace-torch depends on the batches: A and B are both sums over a batch.
"""

import importlib
from dataclasses import replace

import oracles
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sklearn_laplace.laplace import Hyper, LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.evidence import log_evidence
from sklearn_laplace.laplace.likelihoods import Categorical, Gaussian
from sklearn_laplace.laplace.network import select, trace
from sklearn_laplace.laplace.predictives import GLM
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SUBSETS

pytest.importorskip("laplace.baselaplace")  # "laplace" alone would find the folder tests/laplace
peer = importlib.import_module("laplace")

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of laplace-torch and its backends

NOISE, DELTA = 0.3, 1.7
KINDS = {"regression": ("gaussian", 2), "classification": ("categorical", 3)}
NEW = oracles.random_regression(6, 3, 1, seed=9)[0]


def net(n_outputs: int, bias: bool) -> nn.Module:
    """3-5-n_outputs, tanh."""
    module = oracles.random_mlp((3, 5, n_outputs), seed=3)
    if not bias:
        for layer in (module[0], module[2]):
            layer.register_parameter("bias", None)
    return module


def both(task: str, structure: str, subset: str, bias: bool = True, separate: bool = False):
    """The object of laplace-torch, and our fit and hyperparameters, for the same net and rows."""
    kind, n_outputs = KINDS[task]
    draw = {"gaussian": oracles.random_regression, "categorical": oracles.random_classification}[kind]
    x, y = draw(40, 3, n_outputs, seed=1)
    module = net(n_outputs, bias)
    sigma = NOISE**0.5 if task == "regression" else 1.0
    theirs = peer.Laplace(
        net(n_outputs, bias),
        task,
        subset_of_weights=subset,
        hessian_structure=structure,
        sigma_noise=sigma,
        prior_precision=DELTA,
        backend=peer.curvature.BackPackGGN,
    )
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=40))
    network = trace(module, x)
    network = network.with_separate_biases() if separate else network
    network = select(network, SUBSETS[subset]().names(network), x)
    likelihood = {"gaussian": Gaussian, "categorical": Categorical}[kind]()
    rows = [(x, y, torch.ones(len(x), dtype=torch.float64))]
    fit = fit_laplace(network, likelihood, GGN(), STRUCTURES[structure], network.scalar_prior(), rows)
    hyper = Hyper(torch.tensor([DELTA], dtype=torch.float64), sigma**2)
    return theirs, fit, hyper


def order(fit: LaplaceFit) -> torch.Tensor:
    """Indices that put our parameters into the order of the module's tensors, as in laplace-torch."""
    pieces = fit.network.tensors(torch.arange(fit.network.n_parameters))
    return torch.cat([pieces[name].flatten() for name in fit.network.parameter_names])


def variances(fit: LaplaceFit, hyper: Hyper) -> torch.Tensor:
    return GLM().latent(fit.network, fit.posterior(hyper), NEW).covariance


def their_variances(theirs) -> torch.Tensor:
    return theirs._glm_predictive_distribution(NEW)[1]


@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("task", KINDS)
def test_full_and_diag_agree_in_everything(task, structure, subset):
    """Equal up to 1e-6, because the order of summation differs."""
    theirs, fit, hyper = both(task, structure, subset)
    index = order(fit)
    ours = fit.curvature.diagonal[index] if structure == "diag" else fit.curvature.matrix[index][:, index]
    torch.testing.assert_close(ours, theirs.H.detach(), rtol=1e-6, atol=1e-9)
    assert log_evidence(fit, hyper) == pytest.approx(float(theirs.log_marginal_likelihood()), rel=1e-6)
    torch.testing.assert_close(variances(fit, hyper), their_variances(theirs), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("task", KINDS)
def test_kron_factors_agree(task, subset):
    """B and A of each weight, up to a factor that cancels in their product."""
    theirs, fit, _ = both(task, "kron", subset)
    weights = [factors for factors in theirs.H_facs.kfacs if len(factors) == 2]
    assert len(weights) == len(fit.curvature.parts)
    for part, (B, A) in zip(fit.curvature.parts, weights, strict=True):
        ours_B, ours_A = part.factors(fit.curvature.total_weight)
        n = len(A)
        assert n == len(ours_A) - 1, "only our A has a row and a column for the bias"
        balance = float(torch.trace(ours_B) / torch.trace(B))
        torch.testing.assert_close(ours_B, balance * B.detach(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(ours_A[:n, :n] * balance, A.detach(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("task", KINDS)
def test_kron_without_biases_agrees_in_everything(task, subset):
    """Without biases, the posteriors are the same."""
    theirs, fit, hyper = both(task, "kron", subset, bias=False)
    _agree(theirs, fit, hyper)


@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("task", KINDS)
def test_kron_with_separate_biases_agrees_in_everything(task, subset):
    """Blocks in the order of the module's tensors, evidence and output covariances."""
    theirs, fit, hyper = both(task, "kron", subset, separate=True)
    assert len(fit.curvature.parts) == len(theirs.H_facs.kfacs)
    for part, factors in zip(fit.curvature.parts, theirs.H_facs.kfacs, strict=True):
        ours = torch.kron(*part.factors(fit.curvature.total_weight))
        expected = factors[0] if len(factors) == 1 else torch.kron(*factors)
        torch.testing.assert_close(ours, expected.detach(), rtol=1e-6, atol=1e-9)
    _agree(theirs, fit, hyper)


def test_kron_with_a_precision_for_each_tensor_agrees_where_biases_are_separate():
    """With separate biases, both packages have one prior precision per parameter tensor."""
    theirs, fit, hyper = both("regression", "kron", "all", separate=True)
    values = torch.tensor([0.3, 1.0, 4.0, 9.0], dtype=torch.float64)
    theirs.prior_precision = values
    fit = replace(fit, prior=GROUPINGS["tensor"].prior(fit.network))
    _agree(theirs, fit, replace(hyper, prior_precision=values))


def _agree(theirs, fit: LaplaceFit, hyper: Hyper) -> None:
    """Evidence and output covariances."""
    assert log_evidence(fit, hyper) == pytest.approx(float(theirs.log_marginal_likelihood()), rel=1e-6)
    torch.testing.assert_close(variances(fit, hyper), their_variances(theirs), rtol=1e-6, atol=1e-9)
