"""Closed-form leave-one-out predictions against dense refits of the linearised net and refits of the net itself."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import contracts
import oracles
import pytest
import torch
from torch import Tensor

from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN, EmpiricalFisher, Hessian, MCFisher
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.leave_one_out import (
    class_density,
    gaussian_density,
    leave_one_out,
    linearised_mode,
    loo_log_density,
)
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.linalg import downdated
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.mode import DataLoss, Problem, gauss_newton_step, refine
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.selection import loo_path, select_loo
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.updates import add_rows

EXACT = ["full", "functional", "low_rank"]
OWN = ["full", "functional", "low_rank", "block_diagonal", "diag"]
"""Structures whose leave-one-out covariance is exactly that of their curvature without the row."""
NOT_GAUSSIAN = sorted(set(contracts.ALL_KINDS) - {"gaussian"})


def at(problem: contracts.Example) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (n, C), Jacobian (n, C, P) by autodiff and parameters (P,), in the package's order."""
    J = oracles.jacobian(problem.module, problem.network.parameter_names, problem.x)
    back = contracts.oracle_order(problem.network).argsort()
    return oracles.outputs(problem.module, problem.x), J[..., back], problem.network.theta


def batches(problem: contracts.Example, size: int = 5) -> list[tuple[Tensor, Tensor, Tensor]]:
    rows = torch.arange(len(problem.x)).split(size)
    return [(problem.x[i], problem.observed[i], problem.weights[i]) for i in rows]


def hyper_of(problem: contracts.Example, prior, temperature: float = 1.0) -> Hyper:
    values = torch.linspace(0.4, 2.0, prior.n_groups, dtype=torch.float64)
    return Hyper(values, 0.3 if problem.kind == "gaussian" else 1.0, temperature)


def dense(problem: contracts.Example, hyper: Hyper, prior) -> tuple:
    """Arguments of the dense oracles."""
    f, J, theta = at(problem)
    delta = hyper.prior_precision[prior.groups]
    return problem.kind, f, J, problem.y, problem.weights, theta, delta, hyper.dispersion


def without(problem: contracts.Example, n: int) -> contracts.Example:
    keep = torch.arange(len(problem.x)) != n
    return replace(problem, x=problem.x[keep], y=problem.y[keep], weights=problem.weights[keep])


# ------------------------------------------------------------------------------ the mode


@pytest.mark.parametrize(
    ("structure", "kind"),
    [*((s, "categorical") for s in sorted(STRUCTURES)), *(("diag", k) for k in contracts.ALL_KINDS)],
)
def test_the_mode_of_the_linearised_network_is_that_of_dense_newton_steps(structure, kind):
    """For every structure, which acts as a preconditioner only, from arbitrary weights."""
    problem = contracts.example(kind, seed=3, n=12)
    prior = problem.network.scalar_prior() if structure == "ekfac" else GROUPINGS["tensor"].prior(problem.network)
    hyper = hyper_of(problem, prior, temperature=3.0)
    mode = linearised_mode(problem.fit(structure, prior), batches(problem), hyper)
    expected, _ = oracles.linearised_map(*dense(problem, hyper, prior))
    contracts.close(mode.theta, expected, 1e-8, "mode")
    f, J, theta = at(problem)
    moved = f + J @ (expected - theta)
    nll = -oracles.log_likelihood(kind, moved, problem.y) - LIKELIHOODS[kind]().log_normaliser(1.0, f.shape[1])
    assert mode.nll == pytest.approx(float(problem.weights @ nll), rel=1e-8)
    assert float(mode.objective_gradient(hyper).norm()) < 1e-8


@pytest.mark.parametrize("kind", contracts.ALL_KINDS)
def test_the_curvature_at_the_mode_is_that_of_its_outputs(kind):
    """At the fixed point of IRLS, H is evaluated at the moved outputs; expected Hessians approach it linearly."""
    problem = contracts.example(kind, seed=5, n=12)
    prior = problem.network.scalar_prior()
    hyper = hyper_of(problem, prior)
    mode = linearised_mode(problem.fit("full"), batches(problem), hyper)
    _, precision = oracles.linearised_map(*dense(problem, hyper, prior))
    H = (precision - torch.diag(hyper.prior_precision[prior.groups])) * hyper.dispersion
    contracts.close(mode.curvature.matrix, H, 1e-7 if kind == "negative_binomial" else 1e-8, "curvature")


def test_a_mode_stays_where_it_is():
    """From a mode the shift and the curvature object do not change."""
    problem = contracts.example("categorical", seed=1, n=12)
    hyper = hyper_of(problem, problem.network.scalar_prior())
    mode = linearised_mode(problem.fit("kron"), batches(problem), hyper)
    again = linearised_mode(mode, batches(problem), hyper)
    assert again.shift is mode.shift and again.curvature is mode.curvature


def test_rows_that_are_not_held_give_the_same(monkeypatch):
    """Beyond the memory budget each pass recomputes the Jacobians."""
    problem = contracts.example("categorical", seed=2, n=12)
    hyper = hyper_of(problem, problem.network.scalar_prior())
    fit = problem.fit("full")
    held = leave_one_out(fit, fit, batches(problem), hyper)
    monkeypatch.setattr("sklearn_laplace.laplace.leave_one_out.rows.HELD", 100)
    again = leave_one_out(fit, fit, batches(problem), hyper)
    torch.testing.assert_close(again.mean, held.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(again.covariance, held.covariance, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------ Gaussian: exact


@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("grouped", [False, True], ids=["scalar", "tensors"])
def test_gaussian_leave_one_out_is_the_refit_without_the_row(structure, grouped):
    """Against n dense refits, with three outputs, zero weights and different batches."""
    problem = contracts.example("gaussian", seed=1, n=14)
    prior = GROUPINGS["tensor"].prior(problem.network) if grouped else problem.network.scalar_prior()
    hyper, fit = hyper_of(problem, prior), problem.fit(structure, prior)
    mean, covariance = oracles.leave_one_out_refits(*dense(problem, hyper, prior))
    for size in (4, 14):
        left_out = leave_one_out(fit, fit, batches(problem, size), hyper)
        contracts.close(left_out.mean, mean, 1e-9, "mean")
        contracts.close(left_out.covariance, covariance, 1e-9, "covariance")


def test_a_known_noise_variance_is_a_smaller_weight_in_the_latents_and_a_wider_density():
    """With a single output, known noise v acts as weight 1/v, and the density is N(y; mean, variance + φ v)."""
    problem = contracts.example("gaussian", seed=8, n=12, sizes=(2, 3, 1))
    v = torch.logspace(-1, 1, 12, dtype=torch.float64)[:, None]
    noisy, lighter = replace(problem, noise=v), replace(problem, weights=problem.weights / v[:, 0])
    hyper = hyper_of(problem, problem.network.scalar_prior())
    left_out, expected = (leave_one_out(p.fit("full"), p.fit("full"), batches(p), hyper) for p in (noisy, lighter))
    contracts.close(left_out.mean, expected.mean, 1e-10, "mean")
    contracts.close(left_out.covariance, expected.covariance, 1e-10, "covariance")
    spread = (left_out.covariance[:, 0] + hyper.dispersion * v).sqrt()
    normal = torch.distributions.Normal(left_out.mean, spread).log_prob(problem.y)[:, 0]
    value = loo_log_density(noisy.fit("full"), noisy.fit("full"), batches(noisy), hyper, gaussian_density)
    assert value == pytest.approx(float(problem.weights @ normal), rel=1e-10)


def test_the_temperature_scales_the_covariance_and_not_the_mean():
    """The mode is independent of the temperature; P = H / (T φ) + diag(δ), with and without the row."""
    problem = contracts.example("gaussian", seed=2, n=10)
    prior = problem.network.scalar_prior()
    hyper, fit = hyper_of(problem, prior, temperature=2.5), problem.fit("full")
    arguments = dense(problem, hyper, prior)
    mean, _ = oracles.leave_one_out_refits(*arguments)
    _, covariance = oracles.leave_one_out_refits(*arguments[:-1], hyper.dispersion * 2.5)
    left_out = leave_one_out(fit, fit, batches(problem), hyper)
    contracts.close(left_out.mean, mean, 1e-9, "mean")
    contracts.close(left_out.covariance, covariance, 1e-9, "covariance")


def test_ridge_regression_has_the_residual_over_one_minus_the_leverage():
    """Textbook identity for linear models."""
    x, y = oracles.random_regression(25, 3, 1, seed=1)
    w, network = torch.ones(25, dtype=torch.float64), trace(oracles.random_mlp((3, 1), seed=2), x)
    fit = fit_laplace(
        network, LIKELIHOODS["gaussian"](), GGN(), STRUCTURES["full"], network.scalar_prior(), [(x, y, w)]
    )
    left_out = leave_one_out(fit, fit, [(x, y, w)], Hyper(torch.tensor([0.7], dtype=torch.float64), 0.2))
    A = torch.cat([x, torch.ones(25, 1, dtype=torch.float64)], 1)
    hat = A @ torch.linalg.solve(A.mT @ A + 0.7 * 0.2 * torch.eye(4, dtype=torch.float64), A.mT)
    expected = (y - hat @ y) / (1 - hat.diagonal())[:, None]
    torch.testing.assert_close(y - left_out.mean, expected, rtol=1e-10, atol=1e-10)


def test_rows_of_weight_zero_are_plain_predictions():
    """Rows of weight zero have no influence, so that removing them changes nothing."""
    problem = contracts.example("categorical", seed=4, n=12)
    prior = problem.network.scalar_prior()
    hyper, fit = hyper_of(problem, prior), problem.fit("full")
    mode = linearised_mode(fit, batches(problem), hyper)
    left_out = leave_one_out(fit, fit, batches(problem), hyper)
    outputs, jacobian = problem.network.jacobian(problem.x)
    outputs = outputs + jacobian.times(mode.shift[:, None])[..., 0]
    covariance = mode.posterior(hyper).covariance(jacobian)
    idle = problem.weights == 0
    assert 0 < int(idle.sum()) < 12
    torch.testing.assert_close(left_out.mean[idle], outputs[idle], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left_out.covariance[idle], covariance[idle], rtol=1e-12, atol=1e-12)
    assert bool((left_out.variance[~idle] > covariance[~idle].diagonal(dim1=1, dim2=2)).all())


def test_a_float32_net_is_answered_in_float64():
    """The results differ only by the rounding of the net."""
    problem = contracts.example("gaussian", seed=3, n=12)
    network = trace(copy.deepcopy(problem.module).float(), problem.x.float())
    single = [tuple(part.float() for part in batch) for batch in batches(problem)]
    fit = fit_laplace(network, problem.likelihood, GGN(), STRUCTURES["full"], network.scalar_prior(), single)
    hyper = hyper_of(problem, network.scalar_prior())
    left_out, truth = leave_one_out(fit, fit, single, hyper), problem.fit("full")
    expected = leave_one_out(truth, truth, batches(problem), hyper)
    assert left_out.mean.dtype == left_out.covariance.dtype == torch.float64
    torch.testing.assert_close(left_out.mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(left_out.covariance, expected.covariance, rtol=1e-4, atol=1e-6)


def test_after_rows_came_it_is_the_leave_one_out_of_all():
    """After add_rows the result equals that of a fit on all rows."""
    problem = contracts.example("gaussian", seed=6, n=12)
    old, new = (
        replace(problem, x=problem.x[rows], y=problem.y[rows], weights=problem.weights[rows])
        for rows in (slice(0, 7), slice(7, 12))
    )
    hyper = hyper_of(problem, problem.network.scalar_prior())
    rows = new.fit("full")
    moved, whole = add_rows(old.fit("full"), rows, rows.curvature, hyper), problem.fit("full")
    left_out = leave_one_out(moved, moved, batches(problem), hyper)
    expected = leave_one_out(whole, whole, batches(problem), hyper)
    torch.testing.assert_close(left_out.mean, expected.mean, rtol=1e-9, atol=1e-9)
    ridge = torch.tensor([0.1, 1.0], dtype=torch.float64)
    paths = [loo_path(fit, batches(problem), ridge).log_density for fit in (moved, whole)]
    torch.testing.assert_close(*paths, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", EXACT)
def test_shared_weights_are_taken_out_as_a_sum_over_positions(structure):
    """A convolution shares weights between positions; mean and covariance equal those of refits."""
    layers = [torch.nn.Conv1d(1, 2, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(6, 2)]
    net, generator = torch.nn.Sequential(*layers).double(), torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data.normal_(0.0, 0.5, generator=generator)
    x = torch.randn(9, 1, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, y = oracles.random_regression(9, 2, 2, seed=1)
    problem = contracts.Example("gaussian", net, trace(net, x), x, y, oracles.random_weights(9, seed=1))
    prior = problem.network.scalar_prior()
    hyper, fit = hyper_of(problem, prior), problem.fit(structure)
    mean, covariance = oracles.leave_one_out_refits(*dense(problem, hyper, prior))
    for structured in (fit, problem.fit("kron")):
        left_out = leave_one_out(structured, fit, batches(problem), hyper)
        contracts.close(left_out.mean, mean, 1e-9, "mean")
        if structured is fit:
            contracts.close(left_out.covariance, covariance, 1e-9, "covariance")


# ------------------------------------------------------------------------------ other structures and rules


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", OWN)
def test_the_covariance_is_that_of_the_structure_without_the_row(structure, kind):
    """Against the curvature of the other rows from the oracles; categorical factors have fewer columns than outputs."""
    problem = contracts.example(kind, seed=1, n=8)
    prior = GROUPINGS["tensor"].prior(problem.network)
    hyper = hyper_of(problem, prior, temperature=1.6)
    fit, scale = problem.fit(structure, prior), hyper.scale(1)
    _, J, _ = at(problem)
    line = problem.network.linearise(problem.x)
    factor = problem.likelihood.hessian_factor(line.outputs) * (scale * problem.weights).sqrt()[:, None, None]
    covariances = fit.posterior(hyper).left_out_covariance(line.jacobian(), factor)
    for n in range(8):
        H = contracts.dense_curvature(structure, without(problem, n))
        P = oracles.posterior_precision(H, hyper.prior_precision[prior.groups], scale)
        contracts.close(covariances[n], J[n] @ torch.linalg.solve(P, J[n].T), 1e-9, "covariance")


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block_diagonal"])
def test_the_mean_is_the_refits_whatever_the_structure(structure):
    """The mean is exact for every structure; Kronecker factors keep their covariance, since a row hardly changes it."""
    problem = contracts.example("gaussian", seed=3, n=12)
    prior = problem.network.scalar_prior()
    hyper, fit, exact = hyper_of(problem, prior), problem.fit(structure), problem.fit("full")
    left_out = leave_one_out(fit, exact, batches(problem), hyper)
    mean, _ = oracles.leave_one_out_refits(*dense(problem, hyper, prior))
    contracts.close(left_out.mean, mean, 1e-9, "mean")
    plain = fit.posterior(hyper).covariance(problem.jacobian(problem.x))
    assert torch.allclose(left_out.covariance, plain, rtol=1e-12) == (structure in ("kron", "ekfac"))


@pytest.mark.parametrize(
    "rule", [EmpiricalFisher(), MCFisher(3, seed=1), Hessian()], ids=["empirical", "mc", "hessian"]
)
@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.filterwarnings("ignore:.*eigenvalues of the curvature are negative")
def test_the_covariance_is_that_of_the_rule_without_the_row(kind, rule):
    """S Sᵀ of the row is subtracted, scaled by the rule's power of φ; the mean is that of Gauss–Newton.

    The exact Hessian has no S, so that the Gauss–Newton part is subtracted, bounded by the prior.
    """
    problem = contracts.example(kind, seed=2, n=9)
    prior = problem.network.scalar_prior()
    hyper, rows = hyper_of(problem, prior, temperature=1.3), batches(problem)
    exact = problem.fit("full")
    fit = fit_laplace(problem.network, problem.likelihood, rule, STRUCTURES["full"], prior, rows)
    left_out = leave_one_out(fit, exact, rows, hyper)
    plain = leave_one_out(exact, exact, rows, hyper)
    torch.testing.assert_close(left_out.mean, plain.mean, rtol=1e-9, atol=1e-9)
    shift = linearised_mode(exact, rows, hyper).shift
    scale, eye = hyper.scale(rule.dispersion_power), torch.eye(problem.network.n_parameters, dtype=torch.float64)
    line = problem.network.linearise(problem.x).moved(shift)
    J = line.jacobian().rows()
    whole = scale * fit_laplace(
        problem.network, problem.likelihood, rule, STRUCTURES["full"], prior, rows, shift=shift
    ).curvature.matrix + eye * float(hyper.prior_precision)
    S = problem.likelihood.hessian_factor(line.outputs) * problem.weights.sqrt()[:, None, None]
    removed = (
        S.mT @ J if isinstance(rule, Hessian) else rule.batch(line, problem.likelihood, problem.y, problem.weights)
    )
    removed = removed if isinstance(removed, Tensor) else removed.jacobian.rows()
    for n in range(9):
        P = whole - scale * removed[n].mT @ removed[n]
        if isinstance(rule, Hessian) and float(torch.linalg.eigvalsh(P)[0]) < float(hyper.prior_precision):
            assert bool(torch.isfinite(left_out.covariance[n]).all())
        else:
            contracts.close(left_out.covariance[n], J[n] @ torch.linalg.solve(P, J[n].T), 1e-8, "covariance")


# ------------------------------------------------------------------------------ leverages of one


@pytest.mark.parametrize("n_columns", [1, 3])
def test_a_covariance_without_a_site_is_the_inverse_of_the_difference(n_columns):
    """The covariance without the row; where rounding makes the leverage 1 or more it is bounded by the prior's."""
    generator = torch.Generator().manual_seed(n_columns)
    root, S = (torch.randn(5, 3, k, generator=generator, dtype=torch.float64) for k in (3, n_columns))
    without_site = root @ root.mT + 0.1 * torch.eye(3, dtype=torch.float64)
    q = torch.linalg.inv(torch.linalg.inv(without_site) + S @ S.mT)
    torch.testing.assert_close(downdated(q, S, 3 * without_site), without_site, rtol=1e-10, atol=1e-10)
    for growth in (1.0, 5.0):  # leverages of one and of five: the bound holds along S
        site = growth**0.5 * S @ torch.linalg.inv(torch.linalg.cholesky(S.mT @ q @ S)).mT
        downdated_covariance = downdated(q, site, without_site)
        assert bool(torch.isfinite(downdated_covariance).all())
        assert bool((torch.linalg.eigvalsh(downdated_covariance - q) > -1e-9).all())
        if n_columns == 1:
            along = q + (q @ site) * (1 + site.mT @ without_site @ site) @ (q @ site).mT
            torch.testing.assert_close(downdated_covariance, along, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("structure", ["full", "functional"])
def test_a_net_that_interpolates_has_finite_answers(structure):
    """With more weights than rows and a weak prior, leverages are 1 in float64; the prior bounds the covariance."""
    problem = contracts.example("gaussian", seed=0, n=3, sizes=(2, 8, 1))
    problem = replace(problem, weights=torch.ones(3, dtype=torch.float64))
    fit, prior = problem.fit(structure), problem.network.scalar_prior()
    for delta, noise in ((1e-2, 1e-5), (1e-6, 1e-8)):
        hyper = Hyper(torch.tensor([delta], dtype=torch.float64), noise)
        left_out = leave_one_out(fit, fit, batches(problem), hyper)
        most = problem.jacobian(problem.x).weighted_inner(torch.ones(fit.network.n_parameters).double() / delta)
        assert bool(torch.isfinite(left_out.mean).all()) and bool((left_out.variance > 0).all())
        assert bool((left_out.covariance <= most * (1 + 1e-9)).all())
        if delta == 1e-2:  # the other's P has a condition number of 1e16
            mean, covariance = oracles.leave_one_out_refits(*dense(problem, hyper, prior))
            torch.testing.assert_close(left_out.mean, mean, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(left_out.covariance, covariance, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------ other likelihoods: one Newton step


def settled_in_outputs(problem: contracts.Example, hyper: Hyper, fit: LaplaceFit) -> Tensor:
    """Outputs after further steps for each row, z = f + q w r(z)/φ, with a quadratic loss of the other rows."""
    mode = linearised_mode(fit, batches(problem), hyper)
    outputs, jacobian = problem.network.jacobian(problem.x)
    f = outputs + jacobian.times(mode.shift[:, None])[..., 0]
    q, z = mode.posterior(hyper).covariance(jacobian), f
    for _ in range(200):
        pull = problem.weights[:, None] * problem.likelihood.residual(z, problem.y) / hyper.dispersion
        z = z + 0.3 * (f + (q @ pull[..., None])[..., 0] - z)
    return z


@pytest.mark.parametrize("kind", NOT_GAUSSIAN)
def test_one_newton_step_is_near_the_refit_and_more_in_the_outputs_are_not_nearer(kind):
    """The error is a few per cent of the effect of the row, and of second order in its leverage.

    Further steps in the outputs of the row alone do not help, since the curvature of the other rows stays fixed.
    """
    problem = contracts.example(kind, seed=7, n=20)
    problem = replace(problem, weights=torch.ones(20, dtype=torch.float64))
    prior = problem.network.scalar_prior()
    hyper, fit = Hyper(torch.ones(1, dtype=torch.float64)), problem.fit("full")
    refit, covariance = oracles.leave_one_out_refits(*dense(problem, hyper, prior))
    left_out = leave_one_out(fit, fit, batches(problem), hyper)
    outputs, jacobian = problem.network.jacobian(problem.x)
    outputs = outputs + jacobian.times(linearised_mode(fit, batches(problem), hyper).shift[:, None])[..., 0]
    change, error = (refit - outputs).norm(dim=1), (left_out.mean - refit).norm(dim=1)
    assert float(error.median() / change.median()) < 0.1
    assert float(error.max() / change.max()) < 0.25
    spread = (left_out.variance / covariance.diagonal(dim1=1, dim2=2)).log().abs()
    assert float(spread.median()) < 0.1 and float(spread.max()) < 0.5
    local = (settled_in_outputs(problem, hyper, fit) - refit).norm(dim=1)
    assert float(local.median()) > float(error.median())


@pytest.mark.parametrize("kind", sorted(set(NOT_GAUSSIAN) - {"negative_binomial"}))
def test_the_error_of_the_step_is_of_second_order(kind):
    """A tenth of the row weight gives a hundredth of the error; of first order for a Hessian that depends on y."""
    problem = contracts.example(kind, seed=8, n=16)
    prior, hyper, errors = problem.network.scalar_prior(), Hyper(torch.ones(1, dtype=torch.float64)), []
    for weight in (0.2, 0.02):
        light = replace(problem, weights=torch.cat([torch.full((1,), weight).double(), torch.ones(15).double()]))
        fit = light.fit("full")
        kind_, f, J, y, w, theta, delta, noise = dense(light, hyper, prior)
        w = w.index_fill(0, torch.tensor([0]), 0.0)
        t, _ = oracles.linearised_map(kind_, f, J, y, w, theta, delta, noise)
        refit = f[0] + J[0] @ (t - theta)
        errors.append(float((leave_one_out(fit, fit, batches(light), hyper).mean[0] - refit).norm()))
    assert errors[0] > 1e-9, "there is an error to shrink"
    assert 40 < errors[0] / errors[1] < 250


# ------------------------------------------------------------------------------ refits of the network itself


def test_eighty_true_refits_of_a_net_agree():
    """Refits of a 1-16-1 net from its mode without each row: correlation .9997, median error .6 %."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(80, 1, generator=generator, dtype=torch.float64) - 2
    y = torch.sin(2 * x) + 0.2 * torch.randn(80, 1, generator=generator, dtype=torch.float64)
    network = trace(oracles.random_mlp((1, 16, 1), seed=1), x)
    prior, likelihood, hyper = network.scalar_prior(), LIKELIHOODS["gaussian"](), Hyper(torch.ones(1).double(), 0.04)

    def problem_of(w: Tensor) -> Problem:
        rows = [(x, y, w)]
        return Problem(
            lambda net: fit_laplace(net, likelihood, GGN(), STRUCTURES["full"], prior, rows),
            lambda net: DataLoss(net, likelihood, rows),
        )

    ones = torch.ones(80, dtype=torch.float64)
    everything = problem_of(ones)
    mode, damping = everything.linearise(network), 1.0
    for _ in range(30):
        step = gauss_newton_step(everything, mode, hyper, damping)
        if step.fit is None:
            break
        mode, damping = step.fit, step.damping
    mode = refine(everything, mode, hyper, max_steps=100).fit
    left_out = leave_one_out(mode, mode, [(x, y, ones)], hyper)
    refits = []
    for n in range(80):
        fewer = problem_of(ones.index_fill(0, torch.tensor([n]), 0.0))
        settled = refine(fewer, fewer.linearise(mode.network), hyper, max_steps=10).fit
        refits.append(settled.network(x[n : n + 1])[0])
    ours, truth = (y - left_out.mean)[:, 0], y[:, 0] - torch.stack(refits)[:, 0]
    assert float(torch.corrcoef(torch.stack([ours, truth]))[0, 1]) > 0.999
    assert float(((ours - truth) / truth).abs().median()) < 0.01


# ------------------------------------------------------------------------------ densities


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_the_gaussian_density_is_the_multivariate_normals(n_outputs):
    """Against torch, with the noise variance on the diagonal."""
    root = torch.randn(6, n_outputs, n_outputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, y = torch.randn(2, 6, n_outputs, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    covariance = root @ root.mT
    log_density = gaussian_density(LatentGaussian(mean, covariance), y, 0.3)
    noisy = covariance + 0.3 * torch.eye(n_outputs, dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(mean, noisy).log_prob(y)
    torch.testing.assert_close(log_density, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
def test_the_density_of_classes_is_the_linked_probability_of_the_label(kind):
    """Weighted sum over batches; impossible labels have a finite density."""
    problem = contracts.example(kind, seed=2, n=12)
    hyper, fit = hyper_of(problem, problem.network.scalar_prior()), problem.fit("full")
    link = LINKS["moderated"](torch.zeros(1, 3))
    latent = leave_one_out(fit, fit, batches(problem), hyper)
    p = link.mean(problem.likelihood.class_logits(latent))[torch.arange(12), problem.y]
    density = class_density(problem.likelihood, link)
    density_sum = loo_log_density(fit, fit, batches(problem), hyper, density)
    assert density_sum == pytest.approx(float(problem.weights @ p.log()), rel=1e-12)
    certain = LatentGaussian(torch.full((1, p.ndim), 1e5).double(), torch.zeros(1, 1, 1).double())
    if kind == "bernoulli":
        assert math.isfinite(float(density(certain, torch.tensor([0]), 1.0)))


# ------------------------------------------------------------------------------ the path


@pytest.mark.parametrize(
    ("n", "n_outputs", "temperature", "known"),
    [(6, 1, 1.0, False), (6, 3, 1.7, True), (25, 1, 1.7, False), (25, 3, 1.0, False), (25, 2, 1.0, True)],
)
@pytest.mark.parametrize("structure", ["full", "functional"])
def test_the_path_is_the_density_of_each_of_its_points(structure, n, n_outputs, temperature, known):
    """The path equals separate evaluations at each point, with fewer or more rows than weights."""
    problem = contracts.example("gaussian", seed=4, n=n, sizes=(2, 3, n_outputs))
    if known:
        problem = replace(problem, noise=0.5 + problem.y.abs())
    fit, rows = problem.fit(structure), batches(problem)
    ridge = torch.logspace(-3, 2, 4, dtype=torch.float64)
    noise = torch.linspace(0.1, 0.6, 4, dtype=torch.float64)
    path = loo_path(fit, rows, ridge, noise, temperature)
    torch.testing.assert_close(path.prior_precision, ridge / noise)
    points = zip(path.prior_precision, noise.tolist(), path.log_density.tolist(), path.mean, strict=True)
    for delta, phi, value, mean in points:
        hyper = Hyper(delta[None], phi, temperature)
        assert value == pytest.approx(loo_log_density(fit, fit, rows, hyper, gaussian_density), rel=1e-10)
        torch.testing.assert_close(mean, leave_one_out(fit, fit, rows, hyper).mean, rtol=1e-9, atol=1e-9)
    best = loo_path(fit, rows, ridge, None, temperature)
    for factor in (0.99, 1.01):  # the closed form is a maximum for each ρ
        assert bool(
            (loo_path(fit, rows, ridge, factor * best.dispersion, temperature).log_density < best.log_density).all()
        )
    again = loo_path(fit, rows, ridge, best.dispersion, temperature)
    torch.testing.assert_close(again.log_density, best.log_density, rtol=1e-12, atol=1e-12)


def test_a_path_is_refused_where_there_is_none():
    """The message names an alternative."""
    ridge = torch.ones(1, dtype=torch.float64)
    for kind, structure, tensors in [
        ("categorical", "full", False),
        ("gaussian", "kron", False),
        ("gaussian", "full", True),
    ]:
        problem = contracts.example(kind)
        prior = GROUPINGS["tensor"].prior(problem.network) if tensors else problem.network.scalar_prior()
        with pytest.raises(UnsupportedCombinationError, match=r"needs a Gaussian likelihood.*Use loo_log_density"):
            loo_path(problem.fit(structure, prior), batches(problem), ridge)


# ------------------------------------------------------------------------------ selection


def refitted_density(problem: contracts.Example, hyper: Hyper) -> float:
    """Σ w log p(yₙ | other rows) from n dense refits; Gaussian likelihood."""
    prior = problem.network.scalar_prior()
    mean, covariance = oracles.leave_one_out_refits(*dense(problem, hyper, prior))
    noisy = covariance + hyper.dispersion * torch.eye(mean.shape[1], dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(mean, noisy)
    return float(problem.weights @ normal.log_prob(problem.y))


@pytest.mark.parametrize(
    ("structure", "free_prior", "free_dispersion"),
    [("full", True, True), ("functional", True, False), ("full", False, True)],
)
def test_what_is_selected_is_the_maximum_of_a_refitted_grid(structure, free_prior, free_dispersion):
    """No point of a coarse or fine grid of dense refits is better; fixed values do not change."""
    problem = contracts.example("gaussian", seed=9, n=12, sizes=(2, 3, 1))
    start = Hyper(torch.tensor([30.0], dtype=torch.float64), 0.7)
    fit, free = problem.fit(structure), {"free_prior": free_prior, "free_dispersion": free_dispersion}
    selected = select_loo(fit, fit, batches(problem), start, gaussian_density, **free)
    assert free_prior or torch.equal(selected.prior_precision, start.prior_precision)
    assert free_dispersion or selected.dispersion == start.dispersion
    top = refitted_density(problem, selected)
    steps = [10.0**power for power in (-2, -0.1, 0.1, 2)]
    for a in steps if free_prior else [1.0]:
        for b in steps if free_dispersion else [1.0]:
            other = replace(selected, prior_precision=a * selected.prior_precision, dispersion=b * selected.dispersion)
            assert refitted_density(problem, other) <= top + 1e-4, f"{a} {b}"


@pytest.mark.parametrize(("structure", "free_dispersion"), [("kron", True), ("diag", False)])
def test_point_by_point_ends_at_a_maximum_too(structure, free_dispersion):
    """An approximate structure has no path; the selected density is higher than that of neighbouring values."""
    problem = contracts.example("gaussian", seed=3, n=30)
    fit, exact, rows = problem.fit(structure), problem.fit("full"), batches(problem, 30)
    start = Hyper(torch.tensor([50.0], dtype=torch.float64), 0.3)
    selected = select_loo(fit, exact, rows, start, gaussian_density, free_dispersion=free_dispersion)

    def value(hyper: Hyper) -> float:
        return loo_log_density(fit, exact, rows, hyper, gaussian_density)

    top = value(selected)
    assert top > value(start) + 0.5
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert value(replace(selected, prior_precision=factor * selected.prior_precision)) < top
        if free_dispersion:
            assert value(replace(selected, dispersion=factor * selected.dispersion)) < top


def test_two_coordinates_of_another_power_are_searched_in_turn():
    """The empirical Fisher scales with φ⁻², so that both coordinates are searched."""
    problem = contracts.example("gaussian", seed=3, n=30)
    rows, exact = batches(problem, 30), problem.fit("full")
    fit = fit_laplace(problem.network, problem.likelihood, EmpiricalFisher(), STRUCTURES["full"], exact.prior, rows)
    selected = select_loo(fit, exact, rows, Hyper(torch.tensor([5.0], dtype=torch.float64), 1.0), gaussian_density)
    top = loo_log_density(fit, exact, rows, selected, gaussian_density)
    for factor in (0.5, 2.0):
        delta = replace(selected, prior_precision=factor * selected.prior_precision)
        noise = replace(selected, dispersion=factor * selected.dispersion)
        assert loo_log_density(fit, exact, rows, delta, gaussian_density) < top
        assert loo_log_density(fit, exact, rows, noise, gaussian_density) < top


def test_classes_choose_their_prior_by_the_linked_probability():
    """The selected prior precision is better than neighbouring values; there is no dispersion."""
    problem = contracts.example("categorical", seed=1, n=30)
    fit, rows = problem.fit("full"), batches(problem, 30)
    density = class_density(problem.likelihood, LINKS["moderated"](torch.zeros(1, 3)))
    selected = select_loo(fit, fit, rows, Hyper(torch.tensor([100.0], dtype=torch.float64)), density)
    values = [
        loo_log_density(fit, fit, rows, Hyper(factor * selected.prior_precision), density) for factor in (1.0, 0.5, 2.0)
    ]
    assert selected.dispersion == 1.0 and values[0] == max(values)


def test_several_prior_precisions_are_searched_in_turn():
    """A precision per tensor is better than a single one."""
    problem = contracts.example("gaussian", seed=3, n=15)
    rows, groups = batches(problem, 15), GROUPINGS["tensor"].prior(problem.network)
    one, many = problem.fit("full"), problem.fit("full", groups)
    together = select_loo(one, one, rows, Hyper(torch.ones(1, dtype=torch.float64), 0.1), gaussian_density)
    start = replace(together, prior_precision=together.prior_precision.expand(groups.n_groups).clone())
    selected = select_loo(many, many, rows, start, gaussian_density)
    assert len(selected.prior_precision.unique()) > 1
    before, after = (loo_log_density(many, many, rows, hyper, gaussian_density) for hyper in (start, selected))
    assert after > before + 0.1


def test_nothing_free_is_nothing_chosen():
    """The hyperparameters are returned unchanged."""
    problem = contracts.example("categorical")
    fit, hyper = problem.fit("full"), Hyper(torch.ones(1, dtype=torch.float64))
    density = class_density(problem.likelihood, LINKS["moderated"](torch.zeros(1, 3)))
    assert select_loo(fit, fit, batches(problem), hyper, density, free_prior=False) is hyper
