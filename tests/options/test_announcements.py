"""Experimental features warn once in a process."""

from __future__ import annotations

import pytest

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._estimator import sources
from sklearn_laplace._table.source import Group
from sklearn_laplace.errors import ExperimentalWarning
from sklearn_laplace.errors import warn as announcements
from sklearn_laplace.errors.warn import experimental


def test_an_experimental_feature_warns_once(monkeypatch):
    """Once per feature in a process: a search would repeat it with each fit."""
    monkeypatch.setattr(announcements, "SEEN", set())
    message = r"^a fit on .* is experimental: .* in any release\. Silence this with warnings\.simplefilter\('ignore'"

    def fits():
        for place in ("the moon", "the moon", "Mars"):
            experimental(f"a fit on {place}")

    with pytest.warns(ExperimentalWarning, match=message) as caught:
        fits()
    assert [str(warning.message).split(" is")[0] for warning in caught] == ["a fit on the moon", "a fit on Mars"]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fit_of_several_ranks_is_experimental(rank, monkeypatch):
    """Rank 0 warns for all; the fit itself is tested with real ranks (tests/clients/test_scaling.py)."""
    monkeypatch.setattr(announcements, "SEEN", set())
    monkeypatch.setattr(Group, "current", classmethod(lambda cls: cls(rank, 2)))
    monkeypatch.setattr(sources, "sample_of", lambda *arguments: pytest.fail("the fit starts"))
    with pytest.raises(ExperimentalWarning if rank == 0 else pytest.fail.Exception):
        LaplaceRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
