"""BoTorch: posterior with gradients, and Bayesian optimisation by an acquisition function."""

from __future__ import annotations

import copy
import doctest
import pickle

import numpy as np
import pytest
import torch
from quick import QUICK, client

from sklearn_laplace import LaplaceRegressor, to_botorch

botorch = client("botorch")

RNG = np.random.default_rng(3)
X = RNG.uniform(size=(40, 2)) * [1.0, 50.0]
Y = 100 * np.sin(5 * X[:, 0]) + X[:, 1] + RNG.normal(size=40) * (1 + 5 * X[:, 0])
BOTH = np.column_stack([Y, 0.01 * (X[:, 0] - X[:, 1] ** 2)])
FIXED = {"prior_precision": 1.0, "sigma_noise": 3.0}
POINTS = RNG.uniform(size=(3, 4, 2)) * [1.0, 50.0]
FITS = {
    "one": (FIXED, Y),
    "two outputs": ({"sigma_noise": [2.0, 0.3], "prior_precision": 1.0}, BOTH),
    "members": ({"n_members": 3, **FIXED}, Y),
    "pieces": ({"n_bins": 4, **FIXED}, Y),
    "varying noise": ({"likelihood": "heteroscedastic"}, Y),
    "kron": ({"hessian_structure": "kron", "n_members": 2, "activation": "silu", "prior_precision": 1.0}, BOTH),
    "mc": ({"predictive": "mc", **FIXED}, Y),
}


@pytest.fixture(scope="module", params=FITS)
def model(request):
    """Fitted regressors whose posteriors are computed in different ways."""
    options, y = FITS[request.param]
    return LaplaceRegressor(**{**QUICK, "likelihood": "gaussian", **options}).fit(X, y)


def tensor(values, **options):
    return torch.tensor(values, dtype=torch.float64, **options)


def test_moments_are_those_of_predict(model):
    """Mean, both standard deviations, and joint covariance over the points, up to the jitter."""
    wrapped, rows = to_botorch(model), POINTS.reshape(-1, 2)
    shape = (*POINTS.shape[:2], model.n_outputs_)
    mean = model.predict(rows).reshape(shape)
    for noise, kind in ((False, "epistemic"), (True, "total")):
        posterior = wrapped.posterior(tensor(POINTS), observation_noise=noise)
        np.testing.assert_allclose(posterior.mean, mean, rtol=1e-9)
        std = model.predict_std(rows, kind=kind).reshape(shape)
        np.testing.assert_allclose(posterior.variance.sqrt(), std, rtol=1e-6)
        single = wrapped.posterior(tensor(POINTS[:, :1]), observation_noise=noise)
        np.testing.assert_allclose(single.variance.sqrt(), std[:, :1], rtol=1e-6)
    for points in POINTS:
        joint = wrapped.posterior(tensor(points), observation_noise=True).distribution.covariance_matrix
        cov = model.predict(points, return_cov=True)[1].reshape(4, 4, -1)
        by_output = joint.reshape(4, model.n_outputs_, 4, -1).diagonal(dim1=1, dim2=3)
        np.testing.assert_allclose(by_output, cov, rtol=1e-6, atol=1e-8 * cov.max())


def test_points_outside_the_range_have_the_variance_of_predict(model):
    """Single points and joint ones at similar distances: the jitter is relative to the mean variance."""
    rows = POINTS[0] + [5.0, 0.0]
    assert (model.outside(rows)[:, 0] > 0).all()
    std, joint = model.predict_std(rows, kind="epistemic"), to_botorch(model).posterior(torch.from_numpy(rows))
    single = to_botorch(model).posterior(torch.from_numpy(rows)[:, None])
    for posterior in (joint, single):
        np.testing.assert_allclose(posterior.variance.sqrt().reshape(std.shape), std, rtol=1e-6)


def test_samples_have_the_moments_and_the_gradient(model):
    """Sobol samples have the posterior's mean and covariance. Their gradient equals that of finite differences."""
    wrapped, points = to_botorch(model), tensor(POINTS, requires_grad=True)
    posterior = wrapped.posterior(points)
    sampler = botorch.sampling.get_sampler(posterior, torch.Size([4096]), seed=0)
    draws = sampler(posterior)
    assert draws.shape == (4096, *POINTS.shape[:2], model.n_outputs_)
    std = posterior.variance.sqrt().detach()
    torch.testing.assert_close((draws.mean(0) - posterior.mean) / std, torch.zeros_like(std), atol=0.01, rtol=0)
    covariance = torch.stack([torch.cov(batch.flatten(1).mT) for batch in draws.movedim(1, 0)])
    expected = posterior.distribution.covariance_matrix.detach()
    scale = expected.diagonal(dim1=1, dim2=2).sqrt()
    torch.testing.assert_close(
        covariance / scale[:, :, None] / scale[:, None], expected / scale[:, :, None] / scale[:, None], atol=0.1, rtol=0
    )
    base, direction = torch.randn(2, *posterior.base_sample_shape, dtype=torch.float64), tensor([0.01, 1.0])

    def value(moved):
        noisy = wrapped.posterior(moved, observation_noise=True)
        return noisy.rsample_from_base_samples(torch.Size([2]), base).square().mean()

    (gradient,) = torch.autograd.grad(value(points), points)
    for place in ((0, 0), (2, 3)):
        for column in range(2):
            step = torch.zeros_like(points)
            step[(*place, column)] = 1e-5 * direction[column]
            slope = (value(points + step) - value(points - step)) / 2e-5
            assert abs(gradient[(*place, column)] * direction[column] - slope) < 1e-4 * gradient.abs().max()


def test_covariance_between_members_is_part_of_the_mixture():
    """In closed form from the members: weighted covariances, plus the outer products of differences of the means."""
    model = LaplaceRegressor(**{**QUICK, **FITS["members"][0], "likelihood": "gaussian"}).fit(X, Y)
    parts = [to_botorch(member).posterior(tensor(POINTS[0])) for member in model.members_]
    means = torch.stack([part.mean[:, 0] for part in parts])
    away = means - means.mean(0)
    expected = torch.stack([part.distribution.covariance_matrix for part in parts]).mean(0) + away.mT @ away / 3
    found = to_botorch(model).posterior(tensor(POINTS[0])).distribution.covariance_matrix
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8 * float(expected.max()))


def test_outputs_of_small_units_keep_their_widths():
    """The jitter is relative to each output."""
    Y = np.column_stack([1e6 * X[:, 0], 0.1 * X[:, 0]]) * (1 + 0.05 * RNG.normal(size=(40, 1)))
    model = LaplaceRegressor(hidden_layer_sizes=(), prior_precision=1.0, random_state=0).fit(X, Y)
    std = to_botorch(model).posterior(tensor(POINTS[0])).variance.sqrt().numpy()
    np.testing.assert_allclose(std, model.predict_std(POINTS[0], kind="epistemic"), rtol=1e-6)


def test_outputs_noise_transforms_and_rows():
    """A subset of the outputs, known noise, a scalarised posterior, further rows, copies."""
    model = LaplaceRegressor(**{**QUICK, "likelihood": "gaussian", **FITS["two outputs"][0]}).fit(X[:30], BOTH[:30])
    wrapped, points = to_botorch(model), tensor(POINTS)
    both, second = wrapped.posterior(points), wrapped.subset_output([1])
    assert (wrapped.num_outputs, second.num_outputs, wrapped.batch_shape) == (2, 1, torch.Size())
    for alone in (second.posterior(points), wrapped.posterior(points, output_indices=[1])):
        torch.testing.assert_close(alone.variance, both.variance[..., 1:])
        torch.testing.assert_close(alone.mean, both.mean[..., 1:])
    known = wrapped.posterior(points, observation_noise=tensor([[7.0, 0.5]]))
    torch.testing.assert_close(known.variance - both.variance, tensor([7.0, 0.5]).expand_as(both.variance))
    total = botorch.acquisition.objective.ScalarizedPosteriorTransform(tensor([1.0, 2.0]))
    torch.testing.assert_close(
        wrapped.posterior(points, posterior_transform=total).mean, both.mean @ tensor([[1.0], [2.0]])
    )
    more = wrapped.condition_on_observations(tensor(X[30:]), tensor(BOTH[30:]))
    updated = copy.deepcopy(model).partial_fit(X[30:], BOTH[30:])
    np.testing.assert_allclose(more.posterior(points[0]).mean, updated.predict(POINTS[0]))
    assert model.predict_std(X[30:]).sum() > updated.predict_std(X[30:]).sum()
    for same in (pickle.loads(pickle.dumps(second)), copy.deepcopy(second)):
        torch.testing.assert_close(same.posterior(points).mean, second.posterior(points).mean)
    with torch.no_grad():
        assert not wrapped.posterior(points.clone().requires_grad_()).mean.requires_grad


def test_the_example_of_the_function_runs():
    """It is skipped elsewhere, because botorch is optional."""
    (example,) = (test for test in doctest.DocTestFinder().find(to_botorch) if test.examples)
    for line in example.examples:
        line.options.pop(doctest.SKIP, None)
    assert doctest.DocTestRunner().run(example).failed == 0


def test_wrong_shapes_are_refused():
    """The number of columns is that of the fit, and further rows have no batches."""
    model = LaplaceRegressor(**QUICK | FIXED).fit(X, Y)
    with pytest.raises(ValueError, match=r"X has shape \(4, 3\); expected \(…, q, 2\)"):
        to_botorch(model).posterior(torch.zeros(4, 3).double())
    with pytest.raises(ValueError, match=r"was given X of shape \(3, 4, 2\) and Y of shape \(3, 4, 1\); expected"):
        to_botorch(model).condition_on_observations(tensor(POINTS), torch.zeros(3, 4, 1).double())
    with pytest.raises(ValueError, match="does not take noise"):
        to_botorch(model).condition_on_observations(tensor(X), tensor(Y[:, None]), noise=tensor(Y[:, None]))


def minimised(function, seed, n_start, n_steps, **options):
    """Smallest value after Bayesian optimisation with qLogExpectedImprovement."""
    low, high = function.bounds
    torch.manual_seed(seed)
    points = torch.rand(n_start, len(low), dtype=torch.float64)
    values = function(low + (high - low) * points)
    place = torch.stack([torch.zeros_like(low), torch.ones_like(low)]).double()
    for _ in range(n_steps):
        model = LaplaceRegressor(sigma_noise=0.01 * float(values.std()), **options).fit(points.numpy(), -values.numpy())
        acquisition = botorch.acquisition.qLogExpectedImprovement(to_botorch(model), best_f=-values.min())
        point, _ = botorch.optim.optimize_acqf(acquisition, place, q=1, num_restarts=4, raw_samples=64)
        points = torch.cat([points, point])
        values = torch.cat([values, function(low + (high - low) * point)])
    return float(values.min())


def test_bayesian_optimisation_beats_random_search():
    """Branin's function, 22 evaluations: the median over seeds is in the best quarter of random searches.

    Each seed takes 14 fits and maximisations, about 3 s of processor time.
    """
    function = botorch.test_functions.Branin()
    options = {**QUICK, "hidden_layer_sizes": (50,), "prior_precision": 1.0, "likelihood": "gaussian"}
    best = [minimised(function, seed, 8, 14, **options) for seed in range(3)]
    low, high = function.bounds
    points = torch.rand(1000, 22, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    at_random = function(low + (high - low) * points).min(1).values
    assert np.median(best) < at_random.quantile(0.25)
    assert max(best) < at_random.quantile(0.5)


def test_batches_of_points_and_noisy_objectives():
    """Several points at once, and acquisition functions that need the posterior at the evaluated points."""
    model = to_botorch(LaplaceRegressor(**QUICK | FIXED).fit(X, Y))
    noisy = botorch.acquisition.qLogNoisyExpectedImprovement(model, X_baseline=tensor(X))
    bound = botorch.acquisition.qUpperConfidenceBound(model, beta=2.0)
    place = tensor([[0.0, 0.0], [1.0, 50.0]])
    for acquisition in (noisy, bound):
        points, value = botorch.optim.optimize_acqf(acquisition, place, q=3, num_restarts=2, raw_samples=16)
        assert points.shape == (3, 2)
        assert torch.isfinite(value)
    analytic = botorch.acquisition.LogExpectedImprovement(model, best_f=float(Y.max()))
    assert torch.isfinite(analytic(tensor(POINTS[:, :1]))).all()
