"""The evidence, its derivatives and its maximum against dense formulas, finite differences and Nelder–Mead."""

import warnings
from dataclasses import replace

import contracts
import oracles
import pytest
import torch
from torch import nn

from sklearn_laplace.errors import BoundWarning
from sklearn_laplace.laplace import Hyper, LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.evidence import (
    PRECISION_BOUNDS,
    effective_parameters,
    evidence_derivatives,
    log_evidence,
    mackay_dispersion,
    mackay_fixed_point,
    residual_dispersion,
)
from sklearn_laplace.laplace.likelihoods import Gaussian
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.prior import Prior
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.selection import maximise_evidence
from sklearn_laplace.laplace.structures import STRUCTURES, Full

PRIORS = ("scalar", "tensor")
CASES = [
    (s, k, p) for s in sorted(STRUCTURES) for k in contracts.KINDS for p in PRIORS if (s, p) != ("ekfac", "tensor")
]


def prior_of(network: Network, name: str) -> Prior:
    return GROUPINGS[name].prior(network)


class Dense:
    """Dense evidence of a structure from the oracles, as a function of (log δ_1, …, log δ_G, log φ)."""

    def __init__(self, structure: str, problem: contracts.Example, prior: Prior, temperature: float = 1.0) -> None:
        self.kind, self.y, self.w = problem.kind, problem.y, problem.weights
        self.H = contracts.dense_curvature(structure, problem)
        self.f = oracles.outputs(problem.module, problem.x)
        theta = oracles.flatten(problem.module, problem.network.parameter_names)
        self.theta = contracts.to_package(problem.network, theta)
        self.groups, self.temperature = prior.groups, temperature

    def __call__(self, logs: torch.Tensor) -> float:
        delta, noise = logs[:-1].exp()[self.groups], float(logs[-1].exp())
        noise = noise if self.kind == "gaussian" else 1.0
        log_lik = (self.w * oracles.log_likelihood(self.kind, self.f, self.y, noise)).sum()
        return float(oracles.log_evidence(log_lik, self.H, delta, 1 / (noise * self.temperature), self.theta))


def logs_of(hyper: Hyper) -> torch.Tensor:
    return torch.cat([hyper.prior_precision, torch.tensor([hyper.dispersion], dtype=torch.float64)]).log()


def hyper_for(problem: contracts.Example, prior: Prior, temperature: float = 1.0) -> Hyper:
    values = torch.logspace(0.6, -0.4, prior.n_groups, dtype=torch.float64)
    return Hyper(values, dispersion=0.6 if problem.kind == "gaussian" else 1.0, temperature=temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize(("structure", "kind", "prior"), CASES)
def test_log_evidence_is_the_dense_formula(structure, kind, prior, temperature):
    """The evidence includes all constants; the temperature scales only the curvature."""
    problem = contracts.example(kind, seed=1)
    prior = prior_of(problem.network, prior)
    hyper = hyper_for(problem, prior, temperature)
    fit = problem.fit(structure, prior)
    expected = Dense(structure, problem, prior, temperature)(logs_of(hyper))
    assert log_evidence(fit, hyper) == pytest.approx(expected, rel=1e-9)
    for spectral in (True, False):
        posterior = fit.posterior(hyper, spectral=spectral)
        assert log_evidence(fit, hyper, posterior) == pytest.approx(expected, rel=1e-9)


def test_log_evidence_of_a_linear_net_is_the_density_of_its_targets():
    """For Bayesian linear regression Laplace is exact: the evidence is log N(y; 0, σ² I + A diag(1/δ) Aᵀ)."""
    module = oracles.random_mlp((3, 2))
    x, y = oracles.random_regression(8, 3, 2)
    w = oracles.random_weights(8, integer=True)
    A = torch.cat([x, torch.ones(8, 1).double()], 1)
    truth = oracles.bayesian_linear_regression(A, y, w, torch.tensor([2.0, 2.0, 2.0, 0.5]).double(), 0.3)
    network = trace(module, x).with_parameters(truth.mean.T.flatten())  # [W | b] row by row
    for structure in (STRUCTURES["full"], STRUCTURES["functional"]):
        fit = fit_laplace(network, Gaussian(), GGN(), structure, GROUPINGS["tensor"].prior(network), [(x, y, w)])
        hyper = Hyper(torch.tensor([2.0, 0.5], dtype=torch.float64), 0.3)
        assert log_evidence(fit, hyper) == pytest.approx(truth.log_density, rel=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize(("structure", "kind", "prior"), CASES)
def test_derivatives_are_finite_differences(structure, kind, prior, temperature):
    """Gradient and Hessian by central differences; the tolerance exceeds their rounding error, 1e-14 / step 1e-5."""
    problem = contracts.example(kind, seed=2)
    prior = prior_of(problem.network, prior)
    hyper = hyper_for(problem, prior, temperature)
    fit, logs = problem.fit(structure, prior), logs_of(hyper)
    derivatives = evidence_derivatives(fit, hyper)
    dense = Dense(structure, problem, prior, temperature)
    gradient = oracles.evidence_gradient_by_differences(dense, logs)
    torch.testing.assert_close(derivatives.gradient, gradient, rtol=1e-6, atol=1e-6)

    def slope(k):
        def along(point):
            values = point.exp()
            moved = replace(hyper, prior_precision=values[:-1], dispersion=float(values[-1]))
            return float(evidence_derivatives(fit, moved).gradient[k])

        return along

    free = len(logs) if kind == "gaussian" else len(logs) - 1
    rows = [oracles.evidence_gradient_by_differences(slope(k), logs)[:free] for k in range(free)]
    torch.testing.assert_close(derivatives.hessian[:free, :free], torch.stack(rows), rtol=1e-6, atol=1e-6)
    assert float(torch.linalg.eigvalsh(derivatives.hessian[:free, :free]).max()) <= 1e-9, "concave at fixed weights"
    if kind == "categorical":
        assert float(derivatives.gradient[-1]) == 0, "no dispersion, no slope"


@pytest.mark.parametrize(("structure", "kind", "prior"), CASES)
def test_maximum_is_the_one_found_without_derivatives(structure, kind, prior):
    """Nelder–Mead on the dense evidence; it is so flat at the optimum that logarithms agree only to 1e-3."""
    problem = contracts.example(kind, seed=3, n=14, sizes=(2, 2, 2))
    prior = prior_of(problem.network, prior)
    fit, start = problem.fit(structure, prior), hyper_for(problem, prior)
    best = maximise_evidence(fit, start)
    dense = Dense(structure, problem, prior)
    free = slice(None) if kind == "gaussian" else slice(0, -1)

    def value(point):
        logs = logs_of(start)
        logs[free] = point
        return dense(logs)

    argument, reached = oracles.numerical_optimum(value, logs_of(start)[free])
    assert log_evidence(fit, best) == pytest.approx(reached, abs=1e-7)
    torch.testing.assert_close(logs_of(best)[free], argument, rtol=0, atol=1e-3)
    assert best.dispersion == 1.0 or kind == "gaussian"


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("free", ["prior", "noise"])
def test_what_is_not_free_keeps_its_value(prior, free):
    """A fixed hyperparameter keeps its value, and the others are optimal for it."""
    problem = contracts.example("gaussian", seed=4, n=14, sizes=(2, 2, 2))
    prior = prior_of(problem.network, prior)
    fit, start = problem.fit("full", prior), hyper_for(problem, prior)
    best = maximise_evidence(fit, start, free_prior=free == "prior", free_dispersion=free == "noise")
    moving = slice(0, -1) if free == "prior" else slice(-1, None)
    dense = Dense("full", problem, prior)

    def value(point):
        logs = logs_of(start)
        logs[moving] = point
        return dense(logs)

    argument, reached = oracles.numerical_optimum(value, logs_of(start)[moving])
    torch.testing.assert_close(logs_of(best)[moving], argument, rtol=0, atol=1e-4)
    assert log_evidence(fit, best) == pytest.approx(reached, abs=1e-8)
    if free == "prior":
        assert best.dispersion == pytest.approx(start.dispersion, rel=1e-14)
    else:
        torch.testing.assert_close(best.prior_precision, start.prior_precision, rtol=1e-14, atol=0)


@pytest.mark.parametrize("far", [1e-5, 1e7])
def test_maximum_does_not_depend_on_the_start(far):
    """At fixed weights the evidence is concave in the logarithms, so that any start leads to the same optimum."""
    problem = contracts.example("gaussian", seed=6, n=14)
    prior = GROUPINGS["tensor"].prior(problem.network)
    fit, start = problem.fit("full", prior), hyper_for(problem, prior)
    best = maximise_evidence(fit, start)
    other = maximise_evidence(fit, Hyper(far * start.prior_precision, dispersion=far**0.5))
    torch.testing.assert_close(logs_of(other), logs_of(best), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("structure", "kind", "prior"), CASES)
def test_effective_parameters_are_the_trace(structure, kind, prior):
    """γ = tr(s H P⁻¹): the rank of H without a prior, 0 for an infinite prior precision."""
    problem = contracts.example(kind, seed=5)
    prior = prior_of(problem.network, prior)
    fit, hyper = problem.fit(structure, prior), hyper_for(problem, prior)
    H, scale = contracts.dense_curvature(structure, problem), 1 / hyper.dispersion
    P = oracles.posterior_precision(H, hyper.prior_precision[prior.groups], scale)
    gamma = effective_parameters(fit, hyper)
    assert gamma == pytest.approx(float(torch.trace(scale * H @ torch.linalg.inv(P))), rel=1e-9)
    assert 0 < gamma < len(H)
    assert effective_parameters(fit, replace(hyper, prior_precision=1e9 * hyper.prior_precision)) < 1e-5
    weak = effective_parameters(fit, replace(hyper, prior_precision=1e-9 * hyper.prior_precision))
    assert weak == pytest.approx(int(torch.linalg.matrix_rank(H, rtol=1e-12)), abs=1e-3)


@pytest.mark.parametrize(("structure", "kind", "prior"), CASES)
def test_mackay_is_stationary_at_the_maximum(structure, kind, prior):
    """The fixed points of MacKay's updates are stationary points of the evidence."""
    problem = contracts.example(kind, seed=7, n=14)
    prior = prior_of(problem.network, prior)
    fit = problem.fit(structure, prior)
    best = maximise_evidence(fit, hyper_for(problem, prior))
    again = mackay_fixed_point(fit, best)
    torch.testing.assert_close(logs_of(again), logs_of(best), rtol=0, atol=1e-3)
    away = mackay_fixed_point(fit, hyper_for(problem, prior))
    alone = mackay_dispersion(fit, hyper_for(problem, prior))
    assert alone.dispersion == pytest.approx(away.dispersion, rel=1e-12)
    assert torch.equal(alone.prior_precision, hyper_for(problem, prior).prior_precision)
    assert float((logs_of(away) - logs_of(hyper_for(problem, prior))).abs().max()) > 0.05, "elsewhere it moves"


def test_residual_dispersion_is_the_mean_square():
    """Weighted mean over rows and outputs; a categorical likelihood has no dispersion."""
    problem = contracts.example("gaussian", seed=8)
    hyper = hyper_for(problem, problem.network.scalar_prior())
    dispersion = residual_dispersion(problem.fit("diag"), hyper).dispersion
    squares = (oracles.outputs(problem.module, problem.x) - problem.y).square().mean(1)
    assert dispersion == pytest.approx(float(problem.weights @ squares / problem.weights.sum()), rel=1e-12)
    assert residual_dispersion(contracts.example("categorical").fit("diag"), hyper) is hyper


# ------------------------------------------------------------------------------ optima on a bound


def linear_fit(weight: list[float], bias: float, x: torch.Tensor, y: torch.Tensor, tensorwise: bool) -> LaplaceFit:
    """Laplace fit of a linear net with the given weights and a single output."""
    module = nn.utils.skip_init(nn.Linear, len(weight), 1, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([weight]))
        module.bias.fill_(bias)
    network = trace(module, x)
    prior = prior_of(network, "tensor" if tensorwise else "scalar")
    return fit_laplace(network, Gaussian(), GGN(), Full, prior, [(x, y, torch.ones(len(x)).double())])


INPUTS = oracles.random_regression(20, 2, 1)[0]


def unrelated_targets() -> torch.Tensor:
    """Noise orthogonal to all linear functions of the inputs: the mode is zero under any prior."""
    noise = torch.randn(20, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    A = torch.cat([INPUTS, torch.ones(20, 1).double()], 1)
    return noise - A @ torch.linalg.lstsq(A, noise).solution


def test_targets_without_relation_to_the_inputs_give_a_warning():
    """Zero weights have an infinite optimal precision; the noise variance is the variance of the targets."""
    y = unrelated_targets()
    fit = linear_fit([0.0, 0.0], 0.0, INPUTS, y, tensorwise=False)
    with pytest.warns(BoundWarning, match=r"at the bound.*prior_precision of 'all' = 1e\+08") as caught:
        best = maximise_evidence(fit, Hyper(torch.ones(1).double(), 1.0))
    assert "noise variance =" not in str(caught[0].message)
    assert float(best.prior_precision) == pytest.approx(PRECISION_BOUNDS[1])
    assert best.dispersion == pytest.approx(float(y.square().mean()), rel=1e-4)


def test_constant_targets_give_a_warning():
    """The bias leaves no residual, so that the noise variance ends at its lower bound."""
    fit = linear_fit([0.0, 0.0], 1.5, INPUTS, torch.full((20, 1), 1.5).double(), tensorwise=True)
    with pytest.warns(BoundWarning, match=r"at the bound.*noise variance = 1e-08.*targets that are constant") as caught:
        best = maximise_evidence(fit, Hyper(torch.ones(2).double(), 1.0))
    assert best.dispersion == pytest.approx(Gaussian().dispersion_bounds[0])
    assert "prior_precision of" not in str(caught[0].message), "the bias has a precision, the weight is pruned"


def test_enormous_weights_give_a_warning():
    """Extreme scales of inputs or targets lead to a precision at the lower bound."""
    y = 1e5 * INPUTS.sum(1, keepdim=True) + unrelated_targets()
    fit = linear_fit([1e5, 1e5], 1e5, INPUTS, y + 1e5, tensorwise=True)
    with pytest.warns(BoundWarning, match=r"prior_precision of 'weight' = 1e-06, prior_precision of 'bias' = 1e-06"):
        maximise_evidence(fit, Hyper(torch.ones(2).double(), 1.0))


@pytest.mark.parametrize("warn", [True, False])
def test_one_pruned_tensor_of_several_is_silent(warn):
    """Pruning an irrelevant tensor is intended, so that it causes no warning."""
    y = INPUTS @ torch.tensor([[1.0], [-2.0]]).double() + unrelated_targets()
    fit = linear_fit([1.0, -2.0], 0.0, INPUTS, y, tensorwise=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best = maximise_evidence(fit, Hyper(torch.ones(2).double(), 1.0), warn=warn)
    assert float(best.prior_precision[1]) == pytest.approx(PRECISION_BOUNDS[1])
    assert 1e-2 < float(best.prior_precision[0]) < 1e2


def test_warn_false_is_silent_at_a_bound():
    """Training maximises the evidence repeatedly and warns only at the end."""
    fit = linear_fit([0.0, 0.0], 0.0, INPUTS, unrelated_targets(), tensorwise=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maximise_evidence(fit, Hyper(torch.ones(1).double(), 1.0), warn=False)
