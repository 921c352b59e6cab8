"""Simulation-based calibration of the linear net, whose posterior is exact: ranks of true values are uniform."""

from __future__ import annotations

import numpy as np
import pytest
import simulation_based as sbc

QUANTITIES = *(f"weight {j}" for j in range(5)), "bias", "function", "target", "log-likelihood"


@pytest.fixture(scope="module")
def exact():
    return sbc.linear_ranks(500, seed=0)


def test_the_band_holds_whole_ecdfs_of_uniform_ranks_with_its_probability():
    """1,000 ECDFs: the share inside has a standard error of .007, and binomial counts are discrete."""
    low, high = sbc.ecdf_band(500)
    rng = np.random.default_rng(1)
    curves = np.stack([sbc.ecdf(rng.integers(sbc.RANKS, size=500)) for _ in range(1000)])
    assert 0.925 < ((low <= curves) & (curves <= high)).all(1).mean() < 0.975


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_ranks_of_an_exact_posterior_are_inside_the_simultaneous_band(exact, quantity):
    """500 simulations. Over 12 seeds, 95.4 % of the curves are inside the 95 % band; those of this seed all are."""
    assert len(exact[quantity]) == 500
    assert sbc.inside(exact[quantity])


@pytest.mark.parametrize("fault", [{"widened": 1.15}, {"widened": 0.87}, {"believed_precision": 3.0}])
def test_a_planted_fault_is_outside(fault):
    """A standard deviation off by 15 %, and a fit under another prior than that of the weights."""
    assert not sbc.inside(sbc.linear_ranks(300, seed=1, **fault)["log-likelihood"])
