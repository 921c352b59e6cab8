"""Curvature rules other than Gauss–Newton: scales, random draws, negative eigenvalues and use in estimators."""

from __future__ import annotations

import pickle
import warnings

import contracts
import nets
import numpy as np
import oracles
import pytest
import scipy.stats
import torch
from joblib import Memory

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, options
from sklearn_laplace.errors import ClippedWarning, MemoryBudgetError, UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import CURVATURES, GGN, EmpiricalFisher, Hessian, MCFisher
from sklearn_laplace.laplace.curvatures.mc_fisher import row_uniforms
from sklearn_laplace.laplace.evidence import evidence_derivatives, mackay_fixed_point
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.updates import add_rows, remove_rows

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 3))
Y = np.sin(X[:, 0]) + 0.3 * RNG.normal(size=60)
LABELS = np.where(Y + 0.5 * RNG.normal(size=60) > 0, "yes", "no")
X_NEW = 2 * RNG.normal(size=(7, 3))
ONE = torch.ones(1, dtype=torch.float64)
indefinite = pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ClippedWarning")


def fit_of(problem: contracts.Example, rule, structure: str = "full", prior=None) -> LaplaceFit:
    """Laplace fit of a problem in batches of three rows."""
    rows = [(problem.x[s], problem.y[s], problem.weights[s]) for s in torch.arange(len(problem.x)).split(3)]
    prior = problem.network.scalar_prior() if prior is None else prior
    return fit_laplace(problem.network, problem.likelihood, rule, STRUCTURES[structure], prior, rows)


def precision_of(fit: LaplaceFit, hyper: Hyper) -> torch.Tensor:
    """Posterior precision in the order of the oracles."""
    covariance = contracts.covariance_of(fit.posterior(hyper), fit.network.n_parameters)
    return contracts.to_oracle(fit.network, torch.linalg.inv(covariance))


def arguments(problem: contracts.Example) -> tuple:
    """Arguments of the oracles for curvatures."""
    return problem.kind, problem.module, problem.network.parameter_names, problem.x, problem.y, problem.weights


# ---------------------------------------------------------------------- scales


@pytest.mark.parametrize("sigma", [0.5, 2.0])
@pytest.mark.parametrize("rule", ["empirical_fisher", "hessian", "ggn"])
@indefinite
def test_the_noise_enters_as_in_the_log_density(rule, sigma):
    """Against autodiff of −log p at σ: the empirical Fisher scales with 1/σ⁴, the other rules with 1/σ²."""
    problem = contracts.example("gaussian", seed=1)
    oracle = {"empirical_fisher": oracles.empirical_fisher, "hessian": oracles.hessian}.get(rule)
    if oracle is None:
        expected = oracles.ggn(*arguments(problem)) / sigma**2
    else:
        expected = oracles.nearest_semidefinite(oracle(*arguments(problem), noise_variance=sigma**2))
    precision = precision_of(fit_of(problem, CURVATURES[rule]()), Hyper(3 * ONE, dispersion=sigma**2))
    contracts.close(precision, oracles.posterior_precision(expected, 3.0), 1e-9, rule)


def test_the_sampled_fisher_is_divided_by_the_variance_once():
    """Residuals are drawn at unit dispersion, so the matrix scales with 1/σ²; tolerance: six standard errors."""
    problem, n_draws = contracts.example("gaussian", seed=2), 3000
    precision = precision_of(fit_of(problem, MCFisher(n_draws)), Hyper(ONE, dispersion=0.25)) - torch.eye(
        problem.network.n_parameters
    )
    expected = oracles.ggn(*arguments(problem)) / 0.25
    # Variance of a Wishart mean: at most (H_ij² + H_ii H_jj) / n_draws for any number of rows.
    error = ((expected.square() + expected.diagonal().outer(expected.diagonal())) / n_draws).sqrt()
    assert bool(((precision - expected).abs() <= 6 * error + 1e-8).all())


@pytest.mark.parametrize("curvature", sorted(CURVATURES))
@indefinite
def test_a_classifier_uses_its_own_curvature(curvature):
    """Curvature of the softmax likelihood at the MAP estimate, not of a regression on class indices."""
    rule = options.MCFisher(2) if curvature == "mc_fisher" else curvature
    model = LaplaceClassifier(nets.Hidden, hessian_structure="full", curvature=rule, random_state=3).fit(X, LABELS)
    fit = model.laplace_
    x, y = torch.tensor(X), torch.tensor((LABELS == "yes").astype(int))
    names = fit.network.parameter_names
    if curvature == "mc_fisher":
        f = oracles.outputs(fit.network.module, x)
        uniforms = row_uniforms(x, 4, fit.rule.seed).view(-1, 2, 2)
        drawn = [fit.likelihood.sample(f, uniforms[:, s]) for s in range(2)]
        expected = sum(oracles.empirical_fisher("categorical", fit.network.module, names, x, t) for t in drawn) / 2
    else:
        oracle = {"ggn": oracles.ggn, "hessian": oracles.hessian}.get(curvature, oracles.empirical_fisher)
        expected = oracles.nearest_semidefinite(oracle("categorical", fit.network.module, names, x, y))
    contracts.close(contracts.to_oracle(fit.network, fit.curvature.matrix), expected, 1e-9, curvature)


@pytest.mark.parametrize("structure", ["full", "functional", "diag"])
def test_mackays_noise_is_stationary_for_the_empirical_fisher(structure):
    """A curvature that scales with 1/φ² counts each effective parameter twice."""
    problem = contracts.example("gaussian", seed=3, n=40)
    fit = fit_of(problem, EmpiricalFisher(), structure)
    hyper = Hyper(ONE, dispersion=0.5)
    for _ in range(400):
        hyper = mackay_fixed_point(fit, hyper)
    gradient = evidence_derivatives(fit, hyper).gradient
    assert float(gradient.abs().max()) < 1e-6


# ---------------------------------------------------------------------- draws


@pytest.mark.parametrize("kind", contracts.ALL_KINDS)
def test_the_sampled_fisher_is_gauss_newton_on_average(kind):
    """The mean over independent seeds is within six standard errors; the spread is neither zero nor large."""
    problem = contracts.example(kind, seed=1)
    line = problem.network.linearise(problem.x)

    def matrix(rule):
        return contracts.dense_contribution(rule.batch(line, problem.likelihood, problem.y, problem.weights))[0]

    matrices = torch.stack([matrix(MCFisher(4, seed)) for seed in range(300)])
    truth = matrix(GGN())
    error = matrices.std(0) / len(matrices) ** 0.5
    assert bool(((matrices.mean(0) - truth).abs() <= 6 * error + 1e-12).all())
    assert 0.01 < float(matrices.std(0).max() / truth.max()) < 1.0


def test_uniform_draws_are_uniform_and_independent():
    """Draws are hashed from the rows: a bit, a sign or the order of columns gives independent draws."""
    counting = torch.arange(4096.0, dtype=torch.float64)
    rows = {
        "whole numbers": counting[:, None],
        "last bits": (1 + counting * 2.0**-52)[:, None],
        "signs": torch.stack([counting, -counting.flip(0)], 1)[1:-1],
        "two columns": torch.cartesian_prod(torch.arange(64.0), torch.arange(64.0)),
    }
    for name, inputs in rows.items():
        draws = row_uniforms(inputs, 3, seed=1)
        assert float(draws.min()) > 0 and float(draws.max()) < 1
        assert len(draws.unique()) == draws.numel(), name
        others = [row_uniforms(inputs, 3, seed=2), draws.roll(1, 0), row_uniforms(inputs.flip(0), 3, seed=1)]
        for column in draws.unbind(1):
            assert scipy.stats.kstest(column.numpy(), "uniform").pvalue > 1e-4, name
        stacked = torch.cat([draws, *others], 1)
        correlation = torch.corrcoef(stacked.mT) - torch.eye(12)
        assert float(correlation.abs().max()) < 5 / len(inputs) ** 0.5, name


def test_the_draws_of_a_row_are_its_own():
    """Independent of batch, order, precision, the sign of zero and torch's global generator."""
    rows = torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    rows[0, 0, 0] = 0.0
    draws = row_uniforms(rows, 5, seed=4)
    state = torch.random.get_rng_state()
    order = torch.tensor([4, 0, 8])
    assert torch.equal(row_uniforms(rows[order], 5, seed=4), draws[order])
    assert torch.equal(row_uniforms(rows.float(), 5, seed=4), draws)
    assert torch.equal(row_uniforms(-(-rows - 0.0), 5, seed=4), draws)
    assert torch.equal(row_uniforms(rows, 7, seed=4)[:, :5], draws)
    assert not torch.equal(row_uniforms(rows, 5, seed=5), draws)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_sampled_rows_are_forgotten_exactly():
    """Removing some of the fitted rows, in another order; a sequential stream of draws could not reproduce theirs."""
    small = {"hidden_layer_sizes": (4,), "hessian_structure": "full", "curvature": "mc_fisher", "random_state": 0}
    model = LaplaceRegressor(**small, map_prior_precision=1.0, prior_precision=1.0, sigma_noise=0.3).fit(X, Y)
    whole = model.laplace_.curvature.matrix
    some = np.array([31, 2, 17])
    left = model.forget(X[some], Y[some]).laplace_.curvature.matrix
    rest = model.partial_fit(X[some], Y[some]).laplace_.curvature.matrix
    contracts.close(rest, whole, 1e-12, "forgotten and taken in again")
    assert float(torch.linalg.eigvalsh(whole - left)[0]) > -1e-10
    assert int(torch.linalg.matrix_rank(whole - left, tol=1e-8)) == 3


@pytest.mark.parametrize("curvature", ["empirical_fisher", "mc_fisher", "hessian"])
@indefinite
def test_a_weight_is_a_repetition_for_every_rule(curvature):
    """An integer weight equals repeated rows, up to the order of sums in float64."""
    problem = contracts.example("categorical", seed=5)
    rule = CURVATURES[curvature]().sampling(2, 1)
    counts = oracles.random_weights(len(problem.x), 5, integer=True)
    index = torch.repeat_interleave(torch.arange(len(counts)), counts.long())
    weighted = contracts.Example("categorical", problem.module, problem.network, problem.x, problem.y, counts)
    ones = torch.ones(len(index), dtype=torch.float64)
    repeated = contracts.Example(
        "categorical", problem.module, problem.network, problem.x[index], problem.y[index], ones
    )
    first, second = (fit_of(p, rule).curvature.lower.tril() for p in (weighted, repeated))
    contracts.close(first, second, 1e-12, curvature)


# ---------------------------------------------------------------------- negative eigenvalues


@pytest.mark.parametrize("structure", ["full", "block_diagonal", "diag"])
def test_negative_eigenvalues_are_clipped_and_counted(structure):
    """Each factorisation warns with their number; equal precisions as scalar and vector give the same posterior."""
    problem = contracts.example("categorical", seed=0)
    network = problem.network
    exact = contracts.to_package(network, oracles.hessian(*arguments(problem)))
    sizes = [block.size for block in network.blocks] if structure == "block_diagonal" else [len(exact)]
    if structure == "diag":
        blocks = [torch.diag(exact.diagonal())]
    else:
        blocks = [exact[s][:, s] for s in torch.arange(len(exact)).split(sizes)]
    expected = torch.block_diag(*map(oracles.nearest_semidefinite, blocks))
    fit = fit_of(problem, Hessian(), structure)
    delta = torch.tensor(0.7, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        covariances = [
            contracts.covariance_of(fit.curvature.posterior(precision, 2.0), len(exact))
            for precision in (delta, delta.expand(len(exact)), delta)
        ]
    messages = [str(w.message) for w in caught if w.category is ClippedWarning]
    counted = [int((torch.linalg.eigvalsh(b) < -1e-6 * torch.linalg.eigvalsh(b).abs().max()).sum()) for b in blocks]
    assert [int(m.split(" of ")[0]) for m in messages] == [n for n in counted if n] != []
    assert all("eigenvalues of the curvature are negative, down to -" in m for m in messages)
    assert all("Use curvature='ggn'" in m for m in messages)
    for covariance in covariances:
        contracts.close(
            covariance, torch.linalg.inv(oracles.posterior_precision(expected, delta, 2.0)), 1e-9, structure
        )
    vector = torch.linspace(-1, 1, len(exact), dtype=torch.float64)
    contracts.close(fit.curvature.times(vector), expected @ vector, 1e-9, f"{structure}: times")
    contracts.close(
        fit.curvature.eigenvalues().sort().values, torch.linalg.eigvalsh(expected), 1e-9, f"{structure}: eigenvalues"
    )


@pytest.mark.parametrize("structure", ["full", "block_diagonal", "diag"])
@indefinite
def test_the_hessian_is_clipped_after_the_sum(structure):
    """Single batches may be indefinite: sums and differences use the unclipped matrices."""
    problem = contracts.example("gaussian", seed=2)
    line = problem.network.linearise

    def curvature(rows):
        batch = Hessian().batch(line(problem.x[rows]), problem.likelihood, problem.y[rows], problem.weights[rows])
        return STRUCTURES[structure].zero(problem.network.blocks, contracts.CPU).add_(batch)

    whole, part, rest = (curvature(rows) for rows in (slice(None), slice(0, 4), slice(4, None)))
    delta = torch.tensor(0.3, dtype=torch.float64)
    p = problem.network.n_parameters
    for actual, expected in ((part.merge(rest), whole), (whole.subtract(part), rest)):
        ours, theirs = (contracts.covariance_of(c.posterior(delta, 1.5), p) for c in (actual, expected))
        contracts.close(ours, theirs, 1e-9, structure)


def test_a_hessian_without_negative_eigenvalues_is_silent():
    """For a linear net it equals the Gauss–Newton matrix; rounding causes no warning in either precision."""
    for dtype in ("float64", "float32"):
        models = [
            LaplaceRegressor(
                nets.regressor(nets.Linear, module__in_features=3),
                hessian_structure="full",
                curvature=curvature,
                prior_precision=1.0,
                sigma_noise=0.4,
                dtype=dtype,
                random_state=0,
            ).fit(X[:3], Y[:3])
            for curvature in ("ggn", "hessian")
        ]
        np.testing.assert_allclose(*(m.predict_std(X_NEW) for m in models), rtol=1e-9 if dtype == "float64" else 1e-5)


# ---------------------------------------------------------------------- estimators


@pytest.mark.parametrize("curvature", ["empirical_fisher", "mc_fisher", "hessian"])
@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
@indefinite
def test_every_rule_fits_predicts_and_travels(estimator, curvature):
    """Same weights as with the Gauss–Newton matrix, different posterior; reproducible, also after pickling."""
    y = Y if estimator is LaplaceRegressor else LABELS
    small = {"hidden_layer_sizes": (6,), "map_prior_precision": 1.0, "n_members": 1, "random_state": 0}
    usual = estimator(**small).fit(X, y)
    model = estimator(**small, curvature=curvature).fit(X, y)
    assert torch.equal(model.laplace_.network.theta, usual.laplace_.network.theta)
    std = model.predict_std(X_NEW)
    assert np.isfinite(std).all() and (std > 0).all()
    assert np.abs(std / usual.predict_std(X_NEW) - 1).max() > 1e-3
    assert np.isfinite(model.log_marginal_likelihood_value_)
    np.testing.assert_array_equal(estimator(**small, curvature=curvature).fit(X, y).predict_std(X_NEW), std)
    opened = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(opened.predict_std(X_NEW), std)
    assert opened.laplace_.rule == model.laplace_.rule
    assert opened.log_marginal_likelihood(2.0) == model.log_marginal_likelihood(2.0)


@pytest.mark.usefixtures("complete_training")
def test_more_fisher_samples_come_closer():
    """More samples approach the Gauss–Newton posterior at the same δ and σ; the seed follows from random_state."""
    fixed = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "sigma_noise": 0.3, "hessian_structure": "full"}
    fixed["n_members"] = 1
    truth = LaplaceRegressor(**fixed, random_state=0).fit(X, Y).predict_std(X_NEW, kind="epistemic")

    def error(n, seed):
        model = LaplaceRegressor(**fixed, curvature=options.MCFisher(n), random_state=seed).fit(X, Y)
        return np.abs(model.predict_std(X_NEW, kind="epistemic") / truth - 1).max()

    assert error(500, 0) < 0.1 < error(1, 0)
    model = LaplaceRegressor(**fixed, curvature="mc_fisher", random_state=0).fit(X, Y)
    assert model.laplace_.rule == MCFisher(1, model._ensemble.first.seed)


@pytest.mark.parametrize("curvature", sorted(CURVATURES))
@indefinite
def test_auto_finds_a_structure_for_every_rule(curvature, monkeypatch):
    """An exact structure if it is affordable, otherwise the best one that can store the rule."""
    small = {"hidden_layer_sizes": (5,), "map_prior_precision": 1.0, "random_state": 0}
    model = LaplaceRegressor(**small, curvature=curvature).fit(X, Y)
    assert model.structure_ in ("full", "functional")
    monkeypatch.setattr("sklearn_laplace._table.limits.exact_cost", lambda *_: (1e20, STRUCTURES["full"]))
    expensive = LaplaceRegressor(**small, curvature=curvature).fit(X, Y)
    assert expensive.structure_ == ("diag" if curvature == "hessian" else "kron")


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_a_structure_that_cannot_hold_the_hessian_says_which_can(structure):
    """Refused before training."""
    can_store = "matrix" in STRUCTURES[structure].accepts
    model = LaplaceRegressor(hidden_layer_sizes=(2,), hessian_structure=structure, curvature="hessian", max_epochs=0)
    if can_store:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClippedWarning)
            assert model.fit(X, Y).structure_ == structure
        return
    with pytest.raises(
        UnsupportedCombinationError,
        match=rf"hessian_structure='{structure}' cannot store curvature='hessian'.*'block_diagonal', 'diag'.*='ggn'",
    ):
        model.fit(X, Y)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize("rule", [EmpiricalFisher(), MCFisher(2)], ids=["empirical_fisher", "mc_fisher"])
def test_every_structure_holds_rules_of_rows(structure, rule):
    """Full and dual forms have equal eigenvalues; structures with the exact diagonal have the trace of the full matrix.

    The trace of low_rank_diag may be larger.
    """
    problem = contracts.example("categorical", seed=4)
    actual, full = (fit_of(problem, rule, s).curvature for s in (structure, "full"))
    if structure in ("functional", "low_rank"):
        contracts.close(actual.eigenvalues(), full.eigenvalues(), 1e-9, structure)
    elif structure == "low_rank_diag":
        assert float(actual.eigenvalues().sum()) >= float(full.matrix.trace()) * (1 - 1e-10)
    elif structure != "kron":
        contracts.close(actual.eigenvalues().sum(), full.matrix.trace(), 1e-10, structure)
    assert float(actual.eigenvalues().min()) >= 0


def test_a_hessian_that_does_not_fit_in_memory_is_refused(monkeypatch):
    """The full matrix is computed first, even for a diagonal structure."""
    monkeypatch.setattr("sklearn_laplace._table.limits._physical_memory", lambda: 10_000)
    with pytest.raises(MemoryBudgetError, match=r"a matrix of 31 × 31 and needs .* \(15,376 bytes\).*curvature='ggn'"):
        LaplaceRegressor(n_members=1, hidden_layer_sizes=(6,), curvature="hessian", hessian_structure="diag").fit(X, Y)


@pytest.mark.parametrize("value", [0, 2.5, None, True])
def test_the_number_of_fisher_samples_is_checked(value):
    """Refused before training."""
    with pytest.raises(ValueError, match=r"n_samples of MCFisher=.* has to be a whole number of at least 1"):
        LaplaceClassifier(curvature=options.MCFisher(value)).fit(X, LABELS)


@indefinite
def test_one_training_serves_all_rules(tmp_path):
    """The training and its cache do not depend on the curvature of the posterior."""
    memory = Memory(tmp_path, verbose=0)
    small = {"hidden_layer_sizes": (3,), "n_members": 1, "likelihood": "gaussian", "random_state": 0}
    for curvature in ("ggn", "empirical_fisher", "hessian", options.MCFisher(2)):
        cached, plain = (LaplaceRegressor(**small, curvature=curvature, memory=m).fit(X, Y) for m in (memory, None))
        np.testing.assert_array_equal(cached.predict_std(X_NEW), plain.predict_std(X_NEW))
    assert len(list(tmp_path.rglob("output.pkl"))) == 1


@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("curvature", sorted(CURVATURES))
@indefinite
def test_rows_that_come_later_come_by_the_rule_of_the_fit(curvature, structure):
    """A later change of the parameter has no effect; the sum equals a fit on all rows, and forget undoes it."""
    small = {"hidden_layer_sizes": (3,), "map_prior_precision": 1.0, "hessian_structure": structure, "random_state": 0}
    model = LaplaceRegressor(**small, curvature=curvature).fit(X[:40], Y[:40])
    before = model.predict(X_NEW, return_std=True)
    model.set_params(curvature=options.MCFisher(9) if curvature == "ggn" else "ggn").partial_fit(X[40:], Y[40:])
    network, fit = model.laplace_.network, model.laplace_
    targets = torch.tensor((Y - model._scale.mean) / model._scale.scale)[:, None]
    rows = [(torch.tensor(X), targets, torch.ones(60, dtype=torch.float64))]
    whole = fit_laplace(network, fit.likelihood, fit.rule, STRUCTURES[structure], fit.prior, rows)
    contracts.close(fit.curvature.eigenvalues(), whole.curvature.eigenvalues(), 1e-9, curvature)
    after = model.predict(X_NEW, return_std=True)
    assert np.abs(after[0] - before[0]).max() > 1e-4
    model.forget(X[40:], Y[40:])
    np.testing.assert_allclose(model.predict(X_NEW, return_std=True), before, rtol=1e-6)


@pytest.mark.parametrize("sigma", [0.3, 1.7])
def test_the_empirical_fisher_moves_the_mean_by_its_own_scale(sigma):
    """Newton step of the linearised net by dense algebra: the curvature scales with 1/φ², the gradient with 1/φ."""
    problem = contracts.example("gaussian", seed=6, n=20)
    old, new = (
        contracts.Example("gaussian", problem.module, problem.network, problem.x[s], problem.y[s], problem.weights[s])
        for s in (slice(0, 12), slice(12, None))
    )
    hyper = Hyper(0.8 * ONE, dispersion=sigma**2)
    first = fit_of(old, EmpiricalFisher())
    more = fit_of(new, EmpiricalFisher())
    updated = add_rows(add_rows(first, more, more.curvature, hyper), more, more.curvature, hyper)
    H, h = (contracts.to_package(p.network, oracles.empirical_fisher(*arguments(p))) for p in (old, new))
    phi, eye = sigma**2, 0.8 * torch.eye(len(H), dtype=torch.float64)
    shift = torch.zeros(len(H), dtype=torch.float64)
    for total in (H + h, H + 2 * h):
        pull = more.gradient / phi + h @ shift / phi**2
        shift = shift - torch.linalg.solve(total / phi**2 + eye, pull)
    contracts.close(updated.shift, shift, 1e-8, "mean")
    back = remove_rows(remove_rows(updated, more, more.curvature, hyper), more, more.curvature, hyper)
    assert float(back.shift.abs().max()) < 1e-8 * float(shift.abs().max())
    assert back.nll == pytest.approx(first.nll, rel=1e-9)
