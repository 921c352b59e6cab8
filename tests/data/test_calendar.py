"""Cycles of dates: time of day, day of week and day of year."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from shortened import shorten
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace.nets import TableMLP

N = 240
QUICK = {"hidden_layer_sizes": (12,), "prior_precision": 1.0, "sigma_noise": 0.3, "n_members": 1, "random_state": 0}
QUICK_CLASSES = {name: value for name, value in QUICK.items() if name != "sigma_noise"}
LINEAR = {**QUICK, "hidden_layer_sizes": ()}
NAMES = {1.0: "time of day", 7.0: "day of week", 365.2425: "day of year"}


def times(rng, n=N, span=900.0):
    """Times at random over a span of days."""
    return pd.Series(pd.Timestamp("2021-03-04 05:00") + pd.to_timedelta(rng.uniform(0, span, n), unit="D"))


def daily_and_weekly(when):
    """A pattern of the hour, and another level at weekends."""
    return 2 * np.sin(2 * np.pi * when.dt.hour / 24) + 1.5 * (when.dt.day_of_week >= 5)


@pytest.mark.parametrize(
    ("freq", "periods", "expected"),
    [
        ("h", 47, []),
        ("h", 50, ["time of day"]),
        ("h", 400, ["time of day", "day of week"]),
        ("D", 14, []),
        ("D", 15, ["day of week"]),
        ("W", 60, []),
        ("W", 120, ["day of year"]),
        ("MS", 24, ["day of week"]),
        ("MS", 26, ["day of week", "day of year"]),
        ("YS", 30, ["day of week"]),
        ("D", 731, ["day of week", "day of year"]),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_column_has_the_cycles_in_which_it_varies(freq, periods, expected, zone):
    """Over two periods at least, shown in ``table_``; as datetimes, as objects and as text."""
    when = pd.Series(pd.date_range("2020-01-01", periods=periods, freq=freq, tz=zone))
    for column in (when, when.astype(object), when.astype(str)):
        X = pd.DataFrame({"when": column, "x": np.arange(periods)})
        kind = LaplaceRegressor(**LINEAR).fit(X, np.arange(periods) % 5).table_.rows[0][1]
        if expected[-1:] == ["day of year"] and freq == "YS":
            continue
        assert [name for name in NAMES.values() if name in kind] == expected


def test_numbers_and_constant_dates_have_no_cycles():
    X = pd.DataFrame({"when": [pd.Timestamp("2020-01-01")] * N, "x": np.arange(N)})
    assert "day" not in str(LaplaceRegressor(**LINEAR).fit(X, np.arange(N)).table_)
    missing = LaplaceRegressor(**LINEAR).fit(X.assign(when=pd.Series([pd.NaT] * N)), np.arange(N))
    assert "day" not in str(missing.table_)


@pytest.mark.parametrize("n_bins", [None, 4])
@pytest.mark.parametrize("heavy", [False, True])
def test_waves_are_those_of_the_calendar(n_bins, heavy):
    """Oracle: hour, weekday and date by pandas, standardised over the rows."""
    rng = np.random.default_rng(n_bins or 0)
    when = times(rng)
    x = rng.standard_cauchy(N) if heavy else rng.normal(size=N)
    X = pd.DataFrame({"x": x, "when": when})
    model = LaplaceRegressor(**QUICK, n_bins=n_bins).fit(X, x > 0)
    net = model.net_.module_
    assert isinstance(net, TableMLP)
    coded = torch.from_numpy(model._table.coded(X))
    hours = when.dt.hour + when.dt.minute / 60 + (when.dt.second + when.dt.microsecond / 1e6) / 3600
    days = (when.dt.normalize() - pd.Timestamp(0)) / pd.Timedelta(1, "D")
    angles = [2 * np.pi * hours / 24, 2 * np.pi * (when.dt.day_of_week - 3) / 7, 2 * np.pi * days / 365.2425]
    expected = np.column_stack([wave(angle) for wave in (np.cos, np.sin) for angle in angles])
    expected = (expected - expected.mean(0)) / expected.std(0)
    np.testing.assert_allclose(net.numbers(coded)[:, -6:].detach().numpy(), expected, atol=1e-6)
    assert net.column_of["first.weight"][-6:] == (1,) * 6


@pytest.mark.parametrize("n_bins", [None, 4])
def test_daily_and_weekly_patterns_are_found(n_bins):
    """The day number alone has no part of them: R² was zero."""
    rng = np.random.default_rng(3)
    when = times(rng, 2 * N)
    y = daily_and_weekly(when) + 0.3 * rng.normal(size=2 * N)
    X = pd.DataFrame({"when": when})
    model = LaplaceRegressor(**QUICK, n_bins=n_bins).fit(X[:N], y[:N])
    assert model.score(X[N:], y[N:]) > 0.85
    days = X.assign(when=when.astype("datetime64[ns]").astype("int64") / 8.64e13)
    assert LaplaceRegressor(**QUICK, n_bins=n_bins).fit(days[:N], y[:N]).score(days[N:], y[N:]) < 0.1
    classes = LaplaceClassifier(**QUICK_CLASSES, n_bins=n_bins).fit(X[:N], y[:N] > 1)
    assert classes.score(X[N:], y[N:] > 1) > 0.85


def test_cycles_without_signal_cost_little():
    """Held-out log-likelihood of a default fit, against a fit without the column."""
    rng = np.random.default_rng(5)
    X = pd.DataFrame({"when": times(rng, 800), "x": rng.normal(size=800)})
    y = np.sin(X.x) + 0.3 * rng.normal(size=800)
    scores = [
        LaplaceRegressor(random_state=0).fit(rows[:200], y[:200]).predict_dist(rows[200:]).logpdf(y[200:]).mean()
        for rows in (X, X[["x"]])
    ]
    assert scores[0] > scores[1] - 0.1


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
@pytest.mark.usefixtures("short_training")
def test_files_updates_and_members_keep_the_cycles(tmp_path, likelihood):
    rng = np.random.default_rng(1)
    X = pd.DataFrame({"when": times(rng), "x": rng.normal(size=N), "kind": rng.choice(["a", "b"], N)})
    X.loc[3, "when"] = pd.NaT
    y = daily_and_weekly(X.when.fillna(X.when[0])) + X.x
    model = LaplaceRegressor(hidden_layer_sizes=(6,), likelihood=likelihood, n_members=2, random_state=0).fit(X, y)
    save(model, tmp_path / "model.safetensors")
    for other in (load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict_std(X), model.predict_std(X))
    later = X.assign(when=X.when + pd.Timedelta(1, "D"))[:14]  # spans less than a year
    after = LaplaceRegressor(**QUICK, prior=FrozenEstimator(LaplaceRegressor(**QUICK).fit(X, y))).fit(later, y[:14])
    assert after.net_.module_.standardise.period.tolist() == list(NAMES)


def test_members_that_train_together_have_cycles(monkeypatch):
    shorten(monkeypatch, 200, 200)
    rng = np.random.default_rng(2)
    when = times(rng, 800)
    y = daily_and_weekly(when) + 0.3 * rng.normal(size=800)
    X = pd.DataFrame({"when": when, "x": rng.normal(size=800)})
    assert LaplaceRegressor(random_state=0).fit(X[:400], y[:400]).score(X[400:], y[400:]) > 0.9


def test_a_graph_has_the_waves():
    onnxruntime = pytest.importorskip("onnxruntime")
    from sklearn_laplace import to_onnx

    rng = np.random.default_rng(4)
    X = pd.DataFrame({"when": times(rng), "x": rng.normal(size=N)})
    y = daily_and_weekly(X.when) + X.x
    for options in ({}, {"n_bins": 4}):
        model = LaplaceRegressor(**QUICK, **options).fit(X, y)
        session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString())
        outputs = dict(
            zip(
                [output.name for output in session.get_outputs()],
                session.run(None, {session.get_inputs()[0].name: model._table.coded(X)}),
                strict=True,
            )
        )
        np.testing.assert_allclose(outputs["mean"].ravel(), model.predict(X), rtol=1e-6, atol=1e-6)
