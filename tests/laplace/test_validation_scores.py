"""Selection for a fixed net by rows that it was not trained on, against dense formulas and a search by brute force."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm

from sklearn_laplace._ensemble.fixed_weights import (
    BIAS,
    FACTOR,
    FACTOR_OF_CLASSES,
    LOG_NOISES,
    NOISE,
    validation_scores,
)
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.leave_one_out import class_density, gaussian_density
from sklearn_laplace.laplace.likelihoods import Categorical, Gaussian
from sklearn_laplace.laplace.links import Moderated
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.structures import STRUCTURES

LINK = Moderated(torch.zeros(0, 0))


def problem(structure, n_outputs=1, of_classes=False, seed=0):
    """Fit of 40 rows at random weights, 25 other rows, and their Jacobian as a dense matrix."""
    draw = oracles.random_classification if of_classes else oracles.random_regression
    x, y = draw(65, 3, n_outputs, seed=seed)
    network = trace(oracles.random_mlp((3, 6, n_outputs), seed=seed), x)
    likelihood = Categorical() if of_classes else Gaussian()
    ones = torch.ones(65, dtype=torch.float64)
    rows = [(part[0], part[1], part[2]) for part in ((x[:40], y[:40], ones[:40]), (x[40:], y[40:], 0.5 + ones[40:]))]
    fit = fit_laplace(network, likelihood, GGN(), STRUCTURES[structure], network.scalar_prior(), rows[:1])
    return fit, rows[1], likelihood


def dense_variance(fit, rows, hyper):
    """Output covariances from the posterior at φ itself, one row at a time."""
    _, jacobian = fit.network.jacobian(rows[0])
    return fit.posterior(hyper).covariance(jacobian.double())


def maximum(criterion, factors, noises):
    """Largest value within the ranges of the grids, by Nelder and Mead's method from the best point of the grids."""
    best = max(((f, phi) for f in factors for phi in noises), key=lambda point: criterion(*point))
    bounds = [(math.log(min(values)), math.log(max(values))) for values in (factors, noises)]
    free = [k for k, (low, high) in enumerate(bounds) if low < high]

    def cost(logs):
        point = list(best)
        for k, value in zip(free, logs, strict=True):
            point[k] = math.exp(value)
        return -criterion(*point)

    start = np.log([best[k] for k in free])
    options = {"initial_simplex": [start, *(start + 0.5 * np.eye(len(free)))], "xatol": 0.02, "fatol": 1e-3}
    return -minimize(cost, start, bounds=[bounds[k] for k in free], method="Nelder-Mead", options=options).fun


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag", "ekfac"])
def test_the_choice_maximises_the_criterion_of_the_docstring(structure):
    """Searches over f and φ with the posterior of each point: a coarse grid, then the maximum near its best point."""
    fit, rows, _ = problem(structure)
    unit = torch.tensor([3.0], dtype=torch.float64)
    scores = validation_scores([(fit, [rows])], unit, gaussian_density)
    x, y, w = rows
    errors = (y - fit.network(x)).numpy()[:, 0]
    level = np.average(errors**2, weights=w)
    assert scores.level == pytest.approx(level, rel=1e-9)

    def criterion(f, phi):
        variance = dense_variance(fit, rows, Hyper(f * unit, phi)).numpy()[:, 0, 0] + phi
        density = w.numpy() @ norm(0, np.sqrt(variance)).logpdf(errors)
        return density - 0.5 * (math.log(f) / FACTOR.sd) ** 2 - 0.5 * (math.log(phi / level) / NOISE.sd) ** 2

    factors, noises = np.logspace(-4, 5, 10), level * np.exp(LOG_NOISES[::20])
    best = maximum(criterion, factors, noises)
    chosen = scores.chosen(Hyper(unit, 1.0), free_prior=True, free_dispersion=True)
    reached = criterion(float(chosen.prior_precision / unit), chosen.dispersion)
    assert reached > best - 0.02  # nats; of the interpolation between half decades
    assert math.exp(LOG_NOISES[0]) * 0.999 < chosen.dispersion / level < math.exp(LOG_NOISES[-1]) * 1.001
    given = Hyper(0.02 * unit, 1.0)
    noise = scores.chosen(given, free_prior=False, free_dispersion=True).dispersion
    assert criterion(0.02, noise) > maximum(criterion, [0.02], noises) - 0.02
    fixed = scores.chosen(Hyper(unit, level / 2), free_prior=True, free_dispersion=False)
    assert fixed.dispersion == level / 2
    free = maximum(criterion, factors, [level / 2])
    assert criterion(float(fixed.prior_precision / unit), level / 2) > free - 0.02


def test_the_choice_for_classes_maximises_their_density():
    fit, rows, likelihood = problem("full", 3, of_classes=True)
    unit = torch.ones(1, dtype=torch.float64)
    density = class_density(likelihood, LINK)
    scores = validation_scores([(fit, [rows])], unit, density)

    def criterion(f):
        latent = LatentGaussian(fit.network(rows[0]).double(), dense_variance(fit, rows, Hyper(f * unit)))
        away = (math.log(f) - FACTOR_OF_CLASSES.mean) / FACTOR_OF_CLASSES.sd
        return float(rows[2] @ density(latent, rows[1], 1.0)) - 0.5 * away**2

    chosen = scores.chosen(Hyper(unit), free_prior=True, free_dispersion=False)
    best = max(criterion(f) for f in np.logspace(-4, 5, 73))
    assert criterion(float(chosen.prior_precision)) > best - 0.02
    assert scores.width(chosen) == 0


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_the_width_is_the_median_standard_deviation(n_outputs):
    """Relative to a constant prediction, whose variance the likelihood has."""
    fit, rows, _ = problem("full", n_outputs)
    unit = torch.ones(1, dtype=torch.float64)
    scores = validation_scores([(fit, [rows])], unit, gaussian_density)
    hyper = Hyper(0.01 * unit, scores.level)
    variance = dense_variance(fit, rows, hyper).diagonal(dim1=1, dim2=2).mean(1) + hyper.dispersion
    assert scores.width(hyper) == pytest.approx(float(variance.median()) ** 0.5, rel=0.02)


def test_leave_one_out_shares_in_the_level_of_few_rows():
    """Equal errors keep the level; else it is a geometric mean, weighted by relative variances and the bias."""
    fit, rows, _ = problem("full")
    unit = torch.ones(1, dtype=torch.float64)
    x, y, w = rows
    own = (w / w.mean() * (y - fit.network(x))[:, 0].square()).numpy()
    alone = validation_scores([(fit, [rows])], unit, gaussian_density)
    same = validation_scores([(fit, [rows])], unit, gaussian_density, torch.from_numpy(own * np.exp(-BIAS.mean)))
    assert same.level == pytest.approx(alone.level, rel=1e-9)
    other = np.random.default_rng(0).exponential(0.1 * own.mean(), size=400)
    both = validation_scores([(fit, [rows])], unit, gaussian_density, torch.from_numpy(other))
    variances = [np.var(part, ddof=1) / len(part) / part.mean() ** 2 for part in (own, other)]
    precisions = 1 / variances[0], 1 / (variances[1] + BIAS.sd**2)
    expected = np.exp(np.average([np.log(own.mean()), np.log(other.mean()) + BIAS.mean], weights=precisions))
    residuals = 2 * fit.nll / fit.total_weight
    assert both.level == pytest.approx(max(expected, residuals), rel=1e-9)
    np.testing.assert_allclose(both.squares[-1] / alone.squares[-1], both.level / alone.level, rtol=1e-3)


def test_a_structure_that_is_too_wide_gets_a_stronger_prior_not_more_noise():
    """Errors of a known noise; the diagonal posterior is far too wide at natural precisions."""
    torch.manual_seed(0)
    x = torch.randn(200, 5, dtype=torch.float64)
    network = trace(oracles.random_mlp((5, 40, 1), seed=1), x)
    y = network(x) + 0.1 * torch.randn(200, 1, dtype=torch.float64)
    ones = torch.ones(100, dtype=torch.float64)
    unit, noises = torch.ones(1, dtype=torch.float64), {}
    for structure in ("full", "diag"):
        seen = [(x[:100], y[:100], ones)]
        fit = fit_laplace(network, Gaussian(), GGN(), STRUCTURES[structure], network.scalar_prior(), seen)
        scores = validation_scores([(fit, [(x[100:], y[100:], ones)])], unit, gaussian_density)
        chosen = scores.chosen(Hyper(unit), free_prior=True, free_dispersion=True)
        noises[structure] = chosen.dispersion**0.5
        assert scores.width(chosen) == pytest.approx(0.1, rel=0.2)
    assert all(0.07 < noise < 0.12 for noise in noises.values())
