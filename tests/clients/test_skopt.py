"""scikit-optimize: Bayesian optimisation with its default optimiser."""

from __future__ import annotations

import numpy as np
import pytest
from quick import client, regressor

skopt = client("skopt")
PLACE = [(-5.0, 10.0), (0.0, 15.0)]
OPTIMUM, NEAR, EVALUATIONS = 0.397887, 0.5, 60


def branin(x):
    """Branin function, with three equal minima."""
    a, b = x
    valley = b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6
    return float(valley**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10)


@pytest.mark.parametrize("seed", range(3))
def test_the_default_optimiser_finds_branins_minimum(seed):
    """Default options: the best of three acquisition functions, each maximised with the gradients of the estimator.

    A single net of 32 units with constant noise; prior and noise are chosen by the evidence. An evaluation needs a fit
    and about a hundred gradients.
    """
    optimiser = skopt.Optimizer(PLACE, base_estimator=regressor(hidden_layer_sizes=(32,)), random_state=seed)
    values = [np.inf]
    while min(values) > OPTIMUM + NEAR and len(values) <= EVALUATIONS:
        x = optimiser.ask()
        values.append(branin(x))
        optimiser.tell(x, values[-1])
    assert min(values) < OPTIMUM + NEAR


def test_minimisation_by_gradients_of_the_acquisition():
    """``acq_optimizer="lbfgs"`` uses the gradients of mean and standard deviation at a point."""
    optimiser = skopt.Optimizer(
        PLACE, base_estimator=regressor(), acq_func="EI", acq_optimizer="lbfgs", n_initial_points=6, random_state=0
    )
    for _ in range(9):
        x = optimiser.ask()
        optimiser.tell(x, branin(x))
    assert len(optimiser.models) == 4
