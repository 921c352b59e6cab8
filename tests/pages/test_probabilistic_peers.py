"""The benchmark of predictive distributions: densities of samples, unbiased scores, resuming, wins and losses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import norm

BENCHMARKS = Path(__file__).parents[2] / "examples/benchmarks"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("distribution_peers")


def test_the_score_of_draws_is_unbiased_and_that_of_quantiles_is_exact(peers):
    """CRPS of a standard normal at .3: two draws estimate it without bias, many quantiles come close to it."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(200_000, 2))
    target = np.full(len(draws), 0.3)
    exact = peers.normal(lambda X: (np.zeros(1), 1.0))(None).crps(target[:1])[0]
    scores = peers.Smoothed(draws, np.ones(len(draws)), drawn=True).crps(target)
    assert scores.mean() == pytest.approx(exact, abs=4 * scores.std() / len(scores) ** 0.5)
    assert scores.mean() < peers.Smoothed(draws, np.ones(len(draws)), drawn=False).crps(target).mean() - 0.1
    quantiles = norm.ppf((np.arange(100) + 0.5) / 100)[None]
    assert peers.Smoothed(quantiles, np.ones(1), drawn=False).crps(target[:1])[0] == pytest.approx(exact, rel=2e-3)


def test_the_density_of_points_is_a_mixture_of_their_kernels(peers):
    """It integrates to one, and kernels of width zero multiples have the common width."""
    points = np.array([[0.0, 1.0, 5.0]])
    found = peers.Smoothed(points, np.array([0.5]), drawn=True)
    assert quad(lambda y: np.exp(found.logpdf(np.array([y]))[0]), -5, 10)[0] == pytest.approx(1.0)
    assert found.logpdf(np.array([1.2]))[0] == pytest.approx(np.log(norm.pdf(1.2, points, 0.5).mean()))
    assert found.mean()[0] == pytest.approx(2.0)


def test_rows_outside_the_fit_choose_the_kernel(peers):
    """Points that are too narrow get wide kernels, and correct points narrow ones."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=400)
    y = mean + rng.normal(size=400)
    narrow = mean[:, None] + 0.01 * rng.normal(size=(400, 50))
    assert peers.chosen_kernel(narrow, y)(narrow).mean() == pytest.approx(1.0, rel=0.1)
    right = mean[:, None] + rng.normal(size=(400, 50))
    assert peers.chosen_kernel(right, y)(right).mean() < 0.6


def test_results_are_kept_and_losses_are_listed(peers, monkeypatch, tmp_path, capsys):
    """A second call measures nothing again; a failing peer does not end the run; gains have the right sign."""
    script = importlib.import_module("probabilistic_peers")
    monkeypatch.setattr("sys.argv", ["probabilistic_peers.py", "--only", "friedman", "--out", str(tmp_path)])
    calls = []

    def family(name, std, seconds):
        def fitted(X, y, seed):
            calls.append(name)
            yield name, peers.normal(lambda X: (np.full(len(X), y.mean()), std * y.std())), seconds

        return fitted

    def broken(X, y, seed):
        raise ValueError("no luck")

    families = {family("default", 1.0, 4.0): ("default",), family("CatBoost", 3.0, 2.0): ("CatBoost",),
                family("other", 0.9, 1.0): ("other",), family("one net", 0.5, 1.0): ("one net",),
                broken: ("broken",)}  # fmt: skip
    monkeypatch.setattr(peers, "FAMILIES", families)
    script.main()
    first = capsys.readouterr().out
    assert "friedman 0 broken: ValueError: no luck" in first
    assert (
        calls == ["default"] * 2 + ["CatBoost"] * 2 + ["other"] * 2
    )  # a fit of few rows to warm up, and the measured one
    script.main()
    second = capsys.readouterr().out
    assert len(calls) == 6 and second.count("broken") == 1
    assert [line for line in first.splitlines() if line.startswith("| ")] == [
        line for line in second.splitlines() if line.startswith("| ")
    ]
    scores = pd.read_csv(tmp_path / "peers_inner.csv").set_index("model")
    _, y, _, y_new = script.parts(None, "friedman", 0, script.arguments())
    expected = norm.logpdf(y_new, y.mean(), y.std())
    assert scores.loc["default", "log-likelihood"] == pytest.approx(expected.mean())
    losses = pd.read_csv(tmp_path / "probabilistic_losses.csv")
    lost = scores["log-likelihood"]["default"] < scores["log-likelihood"]["other"]
    assert ("CatBoost" in set(losses.peer)) is False
    assert ("other" in set(losses[losses.score == "log-likelihood"].peer)) is bool(lost)
    wins = pd.read_csv(tmp_path / "probabilistic_wins.csv").set_index("peer")
    assert wins.loc["CatBoost", "log-likelihood won"] == wins.loc["CatBoost", "CRPS won"] == 1
    assert float(wins.iloc[-1, -1].split()[0]) == 2.0  # 4 seconds of ours, 2 of CatBoost
    monkeypatch.setattr("sys.argv", [*sys.argv, "--models", "one net"])
    script.main()  # it runs because it is named, and is in no table
    assert calls[6:] == ["one net"] * 2
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")] == [
        line for line in first.splitlines() if line.startswith("| ")
    ]


def test_the_judged_rows_are_outside_the_training_rows(peers, monkeypatch, tmp_path):
    """Also with fewer rows: the caps draw from each part."""
    script = importlib.import_module("probabilistic_peers")
    outside = np.arange(100) % 10 == 0
    (tmp_path / "regression_folds").mkdir()
    np.savez(tmp_path / "regression_folds/stock.npz", X=np.arange(100.0)[:, None], y=np.arange(100.0),
             test_masks=outside[None])  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["", "--rows", "40", "--judged", "5"])
    for test in (True, False):
        options = script.arguments()
        options.test = test
        X, y, X_new, y_new = script.parts(tmp_path, "stock", 0, options)
        assert len(y) == 40 and len(y_new) == 5
        assert not set(y) & set(y_new) and not outside[y.astype(int)].any()
        assert outside[y_new.astype(int)].all() == test
        assert (X["x0"] == y).all() and (X_new["x0"] == y_new).all()
