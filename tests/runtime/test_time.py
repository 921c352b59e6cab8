"""Early end of training by ``max_time`` or Ctrl-C, and the progress lines of ``verbose``."""

from __future__ import annotations

import itertools
import re
import signal
import sys
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from joblib import Memory
from nets import regressor as template
from shortened import shorten, skip_choices

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import approximate_members as approximate
from sklearn_laplace._ensemble import train_members
from sklearn_laplace._estimator import base as _estimator
from sklearn_laplace._training import batched
from sklearn_laplace._training.checkpoint import Checkpoint
from sklearn_laplace._training.progress import Clock, Task
from sklearn_laplace.errors import CutWarning

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(1500, 5))
Y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * RNG.normal(size=1500)


class CountingClock(Clock):
    """Clock whose time is over after a given number of calls of ``is_over``."""

    n_calls = 0
    limit = 0

    def is_over(self) -> bool:
        self.n_calls += 1
        self.was_cut |= self.n_calls > self.limit
        return self.was_cut


def clock_of(limit: int):
    def made(self, group: object = None) -> Clock:
        clock = CountingClock(self.max_time, self.verbose)
        clock.limit = limit
        return clock

    return made


class ProcessorClock(Clock):
    """Clock that counts processor time: on a busy machine a fit gets as far as on an idle one."""

    @property
    def elapsed(self) -> float:
        return time.process_time() - self.begun


@pytest.fixture
def processor_clock(monkeypatch) -> None:
    """Time limits, and the measured seconds of a step, are processor time."""

    def made(self, group: object = None) -> Clock:
        return ProcessorClock(self.max_time, begun=time.process_time())

    monkeypatch.setattr(_estimator.LaplaceEstimator, "_clock", made)
    monkeypatch.setattr(batched, "time", SimpleNamespace(perf_counter=time.process_time))


def r2(model, n: int = 300) -> float:
    return model.score(X[-n:], Y[-n:])


@pytest.mark.parametrize("n_rows", [50, 400, 1200])
def test_a_training_ends_at_its_time(n_rows):
    """The training differs at 50, 400 and 1,200 rows; a cut one still gives a predictive distribution."""
    begun = time.perf_counter()
    with pytest.warns(CutWarning, match=r"max_time=0\.2"):
        model = LaplaceRegressor(max_time=0.2, random_state=0).fit(X[:n_rows], Y[:n_rows])
    assert time.perf_counter() - begun < 5
    mean, std = model.predict(X[-300:], return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


@pytest.mark.parametrize("n_rows", [60, 310, 1010])
def test_wherever_a_training_is_cut_it_is_a_model(n_rows, monkeypatch):
    """Cut after 0 to 1,000 checks of the clock: never an exception, never a bad R²."""
    scores = []
    for limit in (0, 5, 50, 1000):
        monkeypatch.setattr(_estimator.LaplaceEstimator, "_clock", clock_of(limit))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores.append(r2(LaplaceRegressor(random_state=0).fit(X[:n_rows], Y[:n_rows])))
    assert min(scores) > -0.5
    assert scores[-1] > 0.6


def test_a_whole_call_ends_soon_after_its_limit():
    """Beyond 1.5 times the limit, 5,000 rows take at most as long as a fit of 400 rows without one.

    Processor time: where others use the machine, an operation in progress takes longer by the clock. The better of two
    calls.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5000, 10))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=5000)

    def seconds(n_rows: int, limit: float | None, seed: int) -> float:
        begun = time.process_time()
        model = LaplaceRegressor(max_time=limit, random_state=seed).fit(x[:n_rows], y[:n_rows])
        took = time.process_time() - begun
        assert np.isfinite(model.predict_std(x[:500])).all()
        return took

    of_few = seconds(400, None, 0)
    for limit in (0.5, 1.0):
        most, took = 1.5 * limit + of_few, []
        while len(took) < 2 and min(took, default=np.inf) >= most:  # a second call only if the first was too slow
            with pytest.warns(CutWarning):
                took.append(seconds(5000, limit, len(took)))
        assert min(took) < most


def test_many_classes_take_little_more_time_than_numbers():
    """A fit and predictions of 25 classes, whose covariances have 25 × 25 entries for each row."""
    rng = np.random.default_rng(0)
    y = rng.integers(25, size=150)
    x = 2 * rng.normal(size=(25, 8))[y] + rng.normal(size=(150, 8))
    begun = time.process_time()
    LaplaceRegressor(random_state=0).fit(x, x[:, 0] * x[:, 1] + rng.normal(size=150))
    numbers, begun = time.process_time() - begun, time.process_time()
    model = LaplaceClassifier(random_state=0).fit(x, y)
    fitted = time.process_time()
    assert np.mean(model.predict(x) == y) > 0.7
    assert fitted - begun < 5 * numbers
    assert time.process_time() - fitted < numbers


@pytest.mark.usefixtures("short_training")
def test_with_enough_time_nothing_is_different():
    plain, timed = (
        LaplaceRegressor(hidden_layer_sizes=(8,), max_time=limit, random_state=0).fit(X[:40], Y[:40])
        for limit in (None, 1e3)
    )
    np.testing.assert_array_equal(timed.predict(X), plain.predict(X))


@pytest.mark.usefixtures("processor_clock")
def test_members_that_train_together_have_a_schedule_that_ends_in_time():
    """The schedule gets fewer steps but keeps all its cycles, which beats cutting the full schedule."""
    with pytest.warns(CutWarning):
        model = LaplaceRegressor(max_time=1.0, random_state=0).fit(X[:1200], Y[:1200])
    assert r2(model) > 0.8
    assert len(model.members_) in (4, 8)


def test_a_table_for_which_the_time_is_too_short_is_sampled(monkeypatch):
    """Passes over all rows would exceed the limit. Leave-one-out treats the omitted rows as new ones."""
    monkeypatch.setattr(train_members, "PASSES_OF_FIT", 1e9)
    monkeypatch.setattr(train_members, "affords_exact_net", lambda *args: False)
    random = np.random.default_rng(1)
    x = random.uniform(size=(3 * train_members.MANY_ROWS, 2))
    y = x[:, 0] + 0.1 * random.normal(size=len(x))
    with pytest.warns(CutWarning):
        model = LaplaceRegressor(max_time=5.0, random_state=0).fit(x, y)
    member = model._ensemble.members[0]
    assert member.fit.total_weight == 0.75 * train_members.MANY_ROWS  # without the fold that it holds out
    assert (member.kept.weights > 0).sum() == 0.75 * train_members.MANY_ROWS
    assert len(member.kept.X) == len(x)
    assert model.score(x, y) > 0.5


@pytest.mark.usefixtures("processor_clock")
def test_in_a_short_time_few_members_are_trained(monkeypatch):
    """Half of the members with twice as many steps predict better."""
    monkeypatch.setattr(train_members, "seconds_of_step", lambda *args: 0.01)
    monkeypatch.setattr(train_members, "affords_exact_net", lambda *args: False)
    with pytest.warns(CutWarning):
        model = LaplaceRegressor(max_time=2.0, random_state=0).fit(X[:1200], Y[:1200])
    assert len(model.members_) == 4
    assert r2(model) > 0.8


def test_without_a_limit_all_rows_are_used():
    request = SimpleNamespace(data=SimpleNamespace(X=np.zeros((10**7, 1))), saved=Checkpoint())
    assert train_members.within_time(request, Clock()) is request


def test_without_time_for_more_scores_a_rough_noise_model_is_kept(monkeypatch):
    """The noise model still follows the data, and ``forget`` uses it. A third of the steps do for both."""
    shorten(monkeypatch, 160, 150)
    skip_choices(monkeypatch)
    random = np.random.default_rng(1)
    x = random.uniform(-1, 1, size=(400, 2))
    level = np.exp(1.5 * x[:, 1])
    y = x[:, 0] + level * random.normal(size=400)
    scored, made = [], approximate._scored
    monkeypatch.setattr(approximate, "_scored", lambda *args: scored.append(0) or made(*args))
    monkeypatch.setattr(approximate, "PASSES_LEFT", 1e9)
    with pytest.warns(CutWarning):
        model = LaplaceRegressor(max_time=1e4, random_state=0).fit(x, y)
    assert len(scored) == 1
    ratio = model.predict_std(x, kind="aleatoric") / level
    assert 0.6 < ratio.min() < ratio.max() < 1.7
    before = model.predict_std(x[:5], kind="epistemic")
    assert (model.forget(x[:300], y[:300]).predict_std(x[:5], kind="epistemic") > before).all()


@pytest.mark.usefixtures("short_training")
def test_a_fit_without_noise_to_learn_is_not_cut_by_it(monkeypatch):
    """No warning of an early end if no stage was skipped."""
    monkeypatch.setattr(approximate, "PASSES_LEFT", 1e9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CutWarning)
        LaplaceRegressor(likelihood="gaussian", max_time=1e4, random_state=0).fit(X[:200], Y[:200])


def test_a_template_ends_between_batches():
    net = template(max_epochs=10**6)
    with pytest.warns(CutWarning):
        model = LaplaceRegressor(net, prior_precision=1.0, sigma_noise=0.1, max_time=0.5).fit(X[:100, :3], Y[:100])
    assert 1 <= len(model.history_) < 10**5


def test_classes_end_in_time():
    with pytest.warns(CutWarning):
        model = LaplaceClassifier(max_time=0.1, random_state=0).fit(X, Y > 1)
    assert model.score(X, Y > 1) >= 0.5


def test_what_ended_early_is_not_cached(tmp_path):
    memory = Memory(tmp_path, verbose=0)
    with pytest.warns(CutWarning):
        LaplaceRegressor(max_time=0.01, random_state=0, memory=memory).fit(X[:200], Y[:200])
    assert not list(tmp_path.rglob("output.pkl"))


@pytest.mark.parametrize("limit", [0, -1.0, "1", np.nan])
def test_a_limit_is_a_positive_number(limit):
    with pytest.raises(ValueError, match="max_time"):
        LaplaceRegressor(max_time=limit).fit(X[:50], Y[:50])


CTRL_C = """
import os, signal, threading, warnings
import numpy as np
from sklearn_laplace import LaplaceRegressor
signal.signal(signal.SIGINT, signal.default_int_handler)
random = np.random.default_rng(0)
X = random.uniform(size=(1500, 5))
y = np.sin(6 * X[:, 0]) + 0.1 * random.normal(size=1500)
timers = [threading.Timer(at, os.kill, (os.getpid(), signal.SIGINT)) for at in {times}]
for timer in timers:
    timer.daemon = True
    timer.start()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = LaplaceRegressor(random_state=0).fit(X, y)
print([str(w.message) for w in caught if w.category.__name__ == "CutWarning"])
print(np.isfinite(model.predict_std(X)).all(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_keeps_what_there_is(processes):
    done = processes.run(CTRL_C.format(times=[0.6]))
    assert done.returncode == 0, done.stderr
    assert "by Ctrl-C" in done.stdout
    assert "True True" in done.stdout
    assert "Press Ctrl-C again" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_second_ctrl_c_stops_at_once(processes):
    times = [0.6 + 0.02 * k for k in range(10)]  # signals that arrive within one operation count once
    done = processes.run(CTRL_C.format(times=times))
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr


@pytest.mark.usefixtures("short_training")
def test_verbose_prints_a_line_for_each_stage(capsys):
    LaplaceRegressor(n_members=4, verbose=1, random_state=0).fit(X[:60], Y[:60])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" s  ")[1].split(" (")[0] for line in lines[:4]] == [
        "member, training, mode",
        "member, training",
        "member, posterior",
        "member",
    ]
    assert all(
        re.fullmatch(r" *[\d.]+ s  [\w, -]+ \([\d.]+ s(, about \d+ s left)?(, held-out .*)?\)", line) for line in lines
    )


def printed_scores(capsys, model, x, y):
    """Scores and best scores in the lines of a fit."""
    model.set_params(verbose=1).fit(x, y)
    found = re.findall(r"held-out log density (\S+), best so far (\S+)\)", capsys.readouterr().out)
    return [tuple(map(float, pair)) for pair in found]


@pytest.mark.parametrize("n", [60, 200])
@pytest.mark.usefixtures("short_training")
def test_verbose_prints_the_log_density_of_held_out_rows(n, capsys):
    """In units of y, close to the density of new rows, with the best of the kinds of nets."""
    model = LaplaceRegressor(hidden_layer_sizes=(8,), random_state=0)
    noisy = X[:, 0] + np.random.default_rng(2).normal(size=len(X))
    scores = printed_scores(capsys, model, X[:n], noisy[:n])
    assert [best for _, best in scores] == list(itertools.accumulate((score for score, _ in scores), max))
    assert abs(scores[-1][0] - model.log_predictive_density(X[n:], noisy[n:]).mean()) < 0.25
    scaled = printed_scores(capsys, model, X[:n], 100 * noisy[:n])
    np.testing.assert_allclose(np.array(scaled) + np.log(100), scores, atol=0.1)


def test_verbose_prints_the_log_probability_of_held_out_classes(capsys):
    model = LaplaceClassifier(hidden_layer_sizes=(8,), n_members=1, random_state=0)
    [(score, best)] = printed_scores(capsys, model, X[:90], Y[:90] > 0)
    assert score == best
    found = model.log_predictive_density(X[100:600], Y[100:600] > 0).mean()
    assert 0.7 * found > score > 1.4 * found, (score, found)


def test_tasks_share_a_clock():
    clock = Clock(max_time=1e-9)
    assert Task(clock).subtask("member").subtask("training").clock is clock
    assert clock.is_over()
    assert clock.was_cut
