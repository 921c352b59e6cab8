"""The user's program that ``.ci/wheel`` checks with strict type checkers also runs."""

from __future__ import annotations

from typing import get_overloads

import pytest
import user_program

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.distributions import PredictiveDistribution
from sklearn_laplace.recalibration import SigmaScaling


def test_the_program_runs(capsys):
    """Types that a checker believes are of no use if the calls fail."""
    user_program.main()
    assert capsys.readouterr().out == "UnsupportedCombinationError\n"


@pytest.mark.parametrize(
    "method",
    [
        LaplaceRegressor.predict,
        LaplaceRegressor.predict_std,
        LaplaceRegressor.loo_predict,
        LaplaceClassifier.predict_std,
        LaplaceClassifier.predict_entropy,
        LaplaceClassifier.loo_predict,
        SigmaScaling.predict,
    ],
    ids=lambda method: method.__qualname__,
)
def test_a_result_that_depends_on_an_argument_has_overloads(method):
    """Without them a checker sees a union, and every user needs an assertion."""
    function = method
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    assert len(get_overloads(function)) >= 3


@pytest.mark.parametrize("options", [{}, {"likelihood": "poisson"}, {"target_transform": "log"}], ids=str)
@pytest.mark.parametrize("n_members", [1, 2])
def test_every_distribution_has_the_methods_of_the_protocol(options, n_members):
    """``scipy.stats`` has no types, so that a checker cannot compare them."""
    X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 2.0, 4.0]
    fixed = {"prior_precision": 1.0, "hidden_layer_sizes": (3,), "random_state": 0}
    distribution = LaplaceRegressor(n_members=n_members, **fixed, **options).fit(X, y).predict_dist(X)
    methods = [name for name in vars(PredictiveDistribution) if name[0] != "_"]
    assert len(methods) == 8
    for name in methods:
        assert callable(getattr(distribution, name)), name
