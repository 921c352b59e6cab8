"""scikit-learn's callbacks are called for the stages of a fit; without callbacks a fit prints nothing."""

from __future__ import annotations

import pickle
import re
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from joblib import Memory
from nets import regressor as template
from scipy.stats import norm
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace._training import progress as _steps
from sklearn_laplace._training.progress import Clock, Steps, Task
from sklearn_laplace.errors import MemoryBudgetError

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=60)
SMALL = {"hidden_layer_sizes": (4,), "random_state": 0}
ONE = {**SMALL, "n_members": 1, "prior_precision": "evidence", "sigma_noise": "evidence", "likelihood": "gaussian"}
HAS_CALLBACKS = find_spec("sklearn.callback") is not None
reports = pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn before 1.9")


class Recorder:
    """Callback that records ("begin" or "end", path of task names from the root) in order, at all levels."""

    max_propagation_depth = None

    def __init__(self):
        self.seen, self.weights, self.most = [], [], {}

    def setup(self, estimator, context):
        self.seen.append("setup")

    def teardown(self, estimator, context):
        self.seen.append("teardown")

    def on_fit_task_begin(self, estimator, context, *, metadata=None):
        self.seen.append(("begin", self.path(context)))
        self.most[self.path(context)] = context.max_subtasks
        self.weights.append(metadata)

    def on_fit_task_end(self, estimator, context):
        self.seen.append(("end", self.path(context)))

    def path(self, context):
        return (*self.path(context.parent), f"{context.task_name} {context.task_id}") if context else ()

    def begun(self):
        return [path for kind, path in self.of_tasks() if kind == "begin"]

    def of_tasks(self):
        return [event for event in self.seen if isinstance(event, tuple)]


def without_ids(paths):
    return [tuple(name.rsplit(" ", 1)[0] for name in path) for path in paths]


def in_order(recorder):
    """True if tasks end in reverse order of their beginning and all have ended."""
    stack = []
    for kind, path in recorder.of_tasks():
        if kind == "begin":
            assert list(path[:-1]) == (list(stack[-1]) if stack else list(path[:-1]))
            stack.append(path)
        elif stack.pop() != path:
            return False
    return not stack


@pytest.fixture(scope="module")
def plain():
    return LaplaceRegressor(**SMALL, n_members=4).fit(X, Y)


@pytest.fixture(scope="module")
def watched():
    recorder = Recorder()
    model = LaplaceRegressor(**SMALL, n_members=4).set_callbacks(recorder) if HAS_CALLBACKS else None
    return model and model.fit(X, Y), recorder


@reports
def test_callbacks_hear_of_the_stages_in_order(watched):
    """The task tree of an ensemble of four, as ``_training/progress.py`` describes it; begin and end are paired."""
    model, recorder = watched
    assert recorder.seen[0] == "setup" and recorder.seen[-1] == "teardown" and in_order(recorder)
    begun = without_ids(recorder.begun())
    assert begun[0] == ("fit",)
    assert begun.count(("fit", "member")) == len(model.members_) == 4
    below = ("fit", "member", "training")
    assert begun[1:4] == [("fit", "member"), below, (*below, "mode")]
    first = [path for path in recorder.begun() if path[:2] == ("fit 0", "member 0")]
    assert without_ids(first)[-1] == ("fit", "member", "posterior")


@reports
def test_no_task_has_more_parts_than_it_says(watched):
    """max_subtasks is the total of a progress bar; scikit-learn raises an error above it."""
    _, recorder = watched
    for path, most in recorder.most.items():
        parts = [other for other in recorder.most if other[:-1] == path]
        assert most is None or len(parts) <= most
    assert recorder.most["fit 0",] == 8


@reports
def test_a_fit_is_the_same_with_and_without_callbacks(plain, watched):
    """Callbacks do not affect the fit: all numbers are bit-identical."""
    for method in (LaplaceRegressor.predict, LaplaceRegressor.predict_std):
        np.testing.assert_array_equal(method(plain, X), method(watched[0], X))
    assert plain.log_marginal_likelihood_value_ == watched[0].log_marginal_likelihood_value_


@reports
def test_nothing_of_a_fits_tasks_stays_on_the_estimators(plain, watched):
    """Neither the estimator nor its members keep the attributes that scikit-learn sets during a fit."""
    model, _ = watched
    assert vars(model).keys() - vars(plain).keys() == {"_skl_callbacks"}
    for member, other in zip(model.members_, plain.members_, strict=True):
        assert vars(member).keys() == vars(other).keys()
    model = LaplaceRegressor(**ONE).fit(X, Y)
    assert not [name for name in vars(model) if "callback" in name]


@reports
@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (LaplaceRegressor(random_state=0), Y),
        (LaplaceRegressor(random_state=0), X[:, 0] + X[:, 1] ** 2),  # nets with exact steps alone
        (LaplaceRegressor(random_state=0, likelihood="poisson"), np.round(np.exp(1 + Y))),
        (LaplaceClassifier(random_state=0), Y > 0),
        (LaplaceClassifier(random_state=0, n_members=1), Y > 0),  # with a copy that is trained without some rows
    ],
)
def test_every_kind_of_default_fit_reports_its_tasks(model, targets):
    """scikit-learn raises an error if a task has more parts than announced."""
    recorder = Recorder()
    model.set_callbacks(recorder).fit(X, targets)
    assert in_order(recorder)
    begun = without_ids(recorder.begun())
    assert begun[:3] == [("fit",), ("fit", "member"), ("fit", "member", "training")]
    assert ("fit", "member", "posterior") in begun


@reports
def test_members_that_train_in_threads_have_their_own_tasks():
    """Parallel members report the same tasks as sequential ones, each begun and ended once, in any order."""
    tasks = []
    for n_jobs in (1, 2):
        recorder = Recorder()
        options = {**ONE, "n_members": 3, "prior_precision": 1.0}
        LaplaceRegressor(**options, n_jobs=n_jobs).set_callbacks(recorder).fit(X, Y)
        tasks.append(sorted(recorder.of_tasks()))
    assert tasks[0] == tasks[1]
    assert len(tasks[0]) == 2 * (1 + 3 * 4)  # the fit; member, training, mode and posterior of each


@reports
def test_a_training_out_of_the_cache_has_no_parts(tmp_path):
    """The task is not part of the cache key: fits with and without callbacks share a cached training."""
    begun = []
    for _ in range(2):
        recorder = Recorder()
        model = LaplaceRegressor(**ONE, memory=Memory(tmp_path, verbose=0)).set_callbacks(recorder).fit(X, Y)
        begun.append(without_ids(recorder.begun()))
    model.set_callbacks().fit(X, Y)
    below = ("fit", "member", "training", "mode")
    assert below in begun[0] and begun[1] == [path for path in begun[0] if path != below]
    assert len(list(tmp_path.rglob("output.pkl"))) == 1


@reports
def test_epochs_are_tasks_of_a_net_that_trains_by_them():
    """max_epochs tasks; the trained net does not keep the skorch callback that reports them."""
    recorder = Recorder()
    model = LaplaceRegressor(template(max_epochs=3), prior_precision=1.0, sigma_noise=0.1, random_state=0)
    model.set_callbacks(recorder).fit(X, Y)
    begun = without_ids(recorder.begun())
    assert begun.count(("fit", "member", "training", "epochs", "epoch")) == 3 and in_order(recorder)
    assert "laplace_progress" not in str(vars(model.net_))


@reports
def test_a_fit_is_nested_below_a_search_and_a_pipeline():
    """Callbacks of the outermost estimator: one setup, and the fits' tasks below those of the search."""
    recorder = Recorder()
    pipeline = make_pipeline(StandardScaler(), LaplaceRegressor(**{**ONE, "prior_precision": 1.0}))
    search = GridSearchCV(pipeline, {"laplaceregressor__prior_precision": [1.0, 10.0]}, cv=2)
    search.set_callbacks(recorder).fit(X, Y)
    assert recorder.seen.count("setup") == recorder.seen.count("teardown") == 1
    paths = without_ids(recorder.begun())
    assert in_order(recorder)
    assert sum(path[-2:] == ("training", "mode") for path in paths) == 2 * 2 + 1
    deepest = next(path for path in paths if path[-1] == "mode")
    assert deepest[0] == "fit" and deepest[-3:] == ("member", "training", "mode") and len(deepest) >= 6
    inner = search.best_estimator_[-1]
    assert not [name for name in vars(inner) if "callback" in name]


@reports
def test_a_fit_that_fails_is_torn_down_and_leaves_nothing():
    """A progress bar that is not torn down after an error would stay on the screen."""
    recorder = Recorder()
    model = LaplaceRegressor(**ONE, memory_budget=1, hessian_structure="full").set_callbacks(recorder)
    before = dict(vars(model))
    with pytest.raises(MemoryBudgetError):
        model.fit(X, Y)
    assert recorder.seen[0] == "setup" and recorder.seen[-1] == "teardown"
    assert vars(model) == before


@reports
def test_weights_are_shown_to_callbacks():
    """In the metadata of the fit task, as scikit-learn's estimators do."""
    recorder, weights = Recorder(), np.linspace(1, 2, 60)
    LaplaceRegressor(**ONE).set_callbacks(recorder).fit(X, Y, weights)
    np.testing.assert_array_equal(recorder.weights[0]["sample_weight"], weights)


@reports
def test_a_first_call_of_partial_fit_is_a_fit_to_callbacks():
    """Also for a classifier with explicit classes, which takes a different path."""
    recorder = Recorder()
    model = LaplaceClassifier(**SMALL, n_members=1, prior_precision=1.0).set_callbacks(recorder)
    model.partial_fit(X, Y > 0, classes=[False, True])
    assert without_ids(recorder.begun())[:2] == [("fit",), ("fit", "member")]


@reports
def test_a_score_is_monitored_at_the_end_of_a_fit():
    """ScoringMonitor gets the fitted estimator and records its score."""
    from sklearn.callback import ScoringMonitor

    monitor = ScoringMonitor(scoring="r2")
    model = LaplaceRegressor(**ONE).set_callbacks(monitor).fit(X, Y)
    log = monitor.get_logs(select="most_recent")
    assert [entry["r2"] for entry in log.data] == [pytest.approx(model.score(X, Y))]


@reports
def test_copies_have_the_callbacks_and_the_members_have_none(watched):
    """As in scikit-learn, a clone shares the callbacks and a pickle has copies."""
    model, recorder = watched
    assert clone(model)._skl_callbacks == [recorder]
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again._skl_callbacks[0], Recorder)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert all("_skl_callbacks" not in vars(member) for member in model.members_)
    assert "_skl_callbacks" not in vars(again.set_callbacks())


@reports
def test_a_saved_file_has_no_callbacks(watched, tmp_path):
    """Callbacks are not part of a saved model."""
    save(watched[0], tmp_path / "model.safetensors")
    assert "_skl_callbacks" not in vars(load(tmp_path / "model.safetensors"))


@reports
def test_the_progress_bar_of_scikit_learn_shows_the_members(capsys):
    """The bars of the ensemble members are below that of the fit."""
    from sklearn.callback import ProgressBar

    LaplaceRegressor(**{**ONE, "n_members": 2}).set_callbacks(ProgressBar()).fit(X, Y)
    shown = capsys.readouterr().out
    assert "LaplaceRegressor - fit" in shown and "LaplaceRegressor - member #1" in shown and "100%" in shown


def test_a_fit_is_quiet_by_default(capsys):
    """No output on stdout or stderr, with the built-in net and with a skorch net as template."""
    LaplaceRegressor(**ONE).fit(X, Y)
    LaplaceRegressor(template(max_epochs=2), prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, Y)
    assert capsys.readouterr() == ("", "")


def test_verbose_prints_the_epochs_of_a_template(capsys):
    """skorch's own table of epochs for a skorch net, and no second one; the built-in net has none."""
    options = {"prior_precision": 1.0, "sigma_noise": 0.1, "random_state": 0, "verbose": 2}
    LaplaceRegressor(template(max_epochs=2), **options).fit(X, Y)
    out = capsys.readouterr().out
    assert "train_loss" in out and "epoch 1 of 2" not in out
    LaplaceRegressor(hidden_layer_sizes=(4,), n_members=1, **options).fit(X, Y)
    assert "train_loss" not in capsys.readouterr().out


def test_without_callbacks_a_task_has_no_context():
    """Without callbacks no task tree of scikit-learn is built."""
    assert Task().subtask("training", 3).context is None


LINE = re.compile(r" *[\d.]+ s  member, training, ([\w ,-]+): (step|epoch) (\d+)( of \d+)?(.*)")


def lines_of(out):
    """(stage, step, rest) of the lines on steps."""
    found = [LINE.fullmatch(line) for line in out.splitlines()]
    return [(line[1], int(line[3]), line[5]) for line in found if line]


def test_verbose_prints_the_steps_of_members_that_train_together(capsys):
    """About twenty lines on each training, its last step, and the density of held-out rows after each cycle."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(110, 2))
    y = np.sin(x[:, 0]) + rng.normal(size=110)
    options = {"n_bins": None, "hidden_layer_sizes": (4,), "likelihood": "gaussian", "random_state": 0}
    loud = LaplaceRegressor(**options, verbose=2).fit(x, 100 * y)
    lines = [line for line in lines_of(capsys.readouterr().out) if line[0].startswith("epochs, 8 members")]
    first = next(k for k in range(1, len(lines)) if lines[k][1] < lines[k - 1][1])
    lines = lines[:first]  # of the first repeat
    steps = [step for _, step, _ in lines]
    assert steps == sorted(steps) and 20 <= len(steps) <= 30
    losses = [float(re.search(r"loss ([\d.]+)", rest)[1]) for _, _, rest in lines if "loss" in rest]
    assert losses[-1] < losses[0]
    scores = [float(rest.rpartition("density ")[2]) for _, _, rest in lines if "density" in rest]
    assert len(scores) == 4 and abs(scores[-1] - norm(0, 100).logpdf(100 * rng.normal(size=10**4)).mean()) < 0.3
    quiet = LaplaceRegressor(**options).fit(x, 100 * y)
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(quiet.predict(x), loud.predict(x))


@pytest.mark.usefixtures("complete_training")
def test_verbose_prints_the_steps_of_exact_trainings_and_the_epochs_of_short_ones(capsys):
    """Gauss–Newton steps with the mean loss; epochs if their number is given."""
    LaplaceRegressor(**SMALL, n_members=4, verbose=2).fit(X, Y)
    lines = lines_of(capsys.readouterr().out)
    assert [step for stage, step, _ in lines if stage == "mode"][:3] == [1, 2, 3]
    assert all(re.fullmatch(r", loss [\d.e-]+", rest) for _, _, rest in lines)
    LaplaceClassifier(**SMALL, n_members=1, prior_precision=1.0, max_epochs=3, verbose=2).fit(X, Y > 0)
    out = capsys.readouterr().out
    assert [step for stage, step, _ in lines_of(out) if stage == "epochs"] == [1, 2, 3] and "epoch 3 of 3, loss" in out


def test_verbose_prints_the_place_of_each_member_and_the_time_that_is_left(capsys):
    """No time is left at the end."""
    LaplaceRegressor(**ONE | {"n_members": 4}, verbose=1).fit(X, Y)
    ends = re.findall(r" s  (member[^,]*) \([\d.]+ s(.*)\)", capsys.readouterr().out)
    names, rests = zip(*ends, strict=True)
    assert names == ("member", "member 2 of 4", "member 3 of 4", "member 4 of 4")
    assert [bool(re.fullmatch(r", about \d+ s left", rest)) for rest in rests] == [False, True, True, False]


def test_verbose_prints_the_time_that_is_left_of_a_long_training(capsys, monkeypatch):
    """Every few seconds, for steps of equal length: 10 of 40 steps have taken 20 s. A time limit bounds it."""
    now = iter(np.arange(0.0, 1e3, 2.0))
    for max_time, left in ((None, 60), (30.0, 10)):
        clock = Clock(max_time, verbose=1, begun=0.0)
        monkeypatch.setattr(_steps.time, "perf_counter", lambda: next(now))
        monkeypatch.setattr(Clock, "elapsed", 20.0)
        monkeypatch.setattr(_steps, "EVERY", 19.0)
        with Steps(Task(clock, ("training",)), 40, label="8 members") as steps:
            for _ in range(11):
                steps.advance(0.5)
        assert capsys.readouterr().out == f"   20.0 s  training, 8 members: step 10 of 40, about {left} s left\n"


def test_a_default_fit_prints_the_time_that_is_left(capsys, monkeypatch):
    """Of joint training with ``verbose=1``, without the losses, which a GPU would have to send."""
    monkeypatch.setattr(_steps, "EVERY", 0.0)
    LaplaceRegressor(hidden_layer_sizes=(4,), random_state=0, verbose=1).fit(X, Y)
    printed = capsys.readouterr().out
    assert re.search(r"epochs, 8 members: step \d+ of \d+, about \d+ s left\n", printed) and "loss" not in printed


def test_a_bar_shows_the_steps_and_is_gone_at_the_end(capsys):
    """On standard error, for trainings together and for epochs of a skorch net; no lines."""
    LaplaceRegressor(n_bins=None, hidden_layer_sizes=(4,), random_state=0, verbose="bar").fit(
        np.repeat(X, 2, 0) + np.linspace(0, 1, 120)[:, None], np.repeat(Y, 2)
    )
    out, bars = capsys.readouterr()
    assert out == "" and "member, training, epochs, 8 members: " in bars and "step/s, loss 0." in bars
    assert bars.rpartition("\r")[0].rpartition("\r")[2].strip() == "" and not bars.endswith("\n")
    model = LaplaceRegressor(template(max_epochs=2), prior_precision=1.0, sigma_noise=0.1, random_state=0)
    model.set_params(verbose="bar").fit(X, Y)
    out, bars = capsys.readouterr()
    assert out == "" and "2/2" in bars and "epoch" in bars


def test_no_bar_is_drawn_in_a_worker_process(monkeypatch, capsys):
    """Bars of several processes would overwrite each other."""
    for parent, shown in ((object(), False), (None, True)):
        monkeypatch.setattr(_steps.multiprocessing, "parent_process", lambda parent=parent: parent)
        with Steps(Task(Clock(has_bar=True), ("mode",)), 2) as steps:
            steps.advance(1.0)
            assert steps.is_shown == shown
        assert bool(capsys.readouterr().err) == shown


def test_a_line_is_written_at_once(monkeypatch):
    """A separate line end would let the lines of threads and processes mix."""
    written = []

    class Stream:
        write = staticmethod(written.append)
        flush = staticmethod(lambda: written.append("flushed"))

    monkeypatch.setattr(sys, "stdout", Stream)
    with Task(Clock(verbose=2), ("mode",)) as task, Steps(task) as steps:
        steps.advance(0.5)
    assert written[1::2] == ["flushed"] * 2 and all(text.endswith("\n") for text in written[::2])
    assert "mode: step 1, loss 0.5" in written[0]


def test_silent_steps_read_no_loss_and_load_no_bar(monkeypatch):
    """Reading a loss from a GPU would wait for it."""

    class Unread:
        def __float__(self):
            raise AssertionError

    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    for clock in (Clock(), Clock(verbose=1)):
        with Steps(Task(clock, ("mode",)), 3) as steps:
            steps.advance(Unread())
            steps.score(Unread(), 1)
            assert not steps.is_shown and not steps.is_over()


def test_the_held_out_density_is_that_of_normal_noise(capsys):
    """In units of y: two outputs, with the mean square of the errors as variance."""
    import torch

    scale, errors = 7.0, np.array([[0.3, -0.5], [0.1, 0.9]])
    level = np.mean(errors**2)
    steps = Steps(Task(Clock(verbose=2), ("epochs",)), log_volume=2 * np.log(scale))
    steps.score(torch.tensor([level]), 2)
    expected = norm(0, scale * np.sqrt(level)).logpdf(scale * errors).sum(1).mean()
    assert capsys.readouterr().out.endswith(f"epochs: step 0, held-out log density {expected:.3f}\n")


@pytest.mark.parametrize("value", ["bars", "2", 1.5, None])
def test_verbose_is_a_level_or_a_bar(value):
    """The message names the values."""
    with pytest.raises(ValueError, match=r"verbose=.* has to be a whole number, 0, 1 or 2, or 'bar'"):
        LaplaceRegressor(verbose=value).fit(X, Y)
