"""The skorch host: options of a user's net are respected, and the user's net is not modified."""

from __future__ import annotations

import os
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import nets
import numpy as np
import pytest
import torch
from joblib import Memory
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import EarlyStopping, EpochScoring, LRScheduler
from skorch.dataset import ValidSplit
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace._ensemble import approximate
from sklearn_laplace._training import fit_map
from sklearn_laplace.laplace.network import trace

RNG = np.random.default_rng(41)
X = RNG.normal(size=(80, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=80)
LABELS = (X[:, 0] > 0).astype(int)
X_NEW = RNG.normal(size=(9, 3))


class Bound(nn.Module):
    """Net whose forward pass uses its layers through a bound method and a list."""

    def __init__(self, n_in=3, n_out=1):
        super().__init__()
        self.first, self.last = nn.Linear(n_in, 6), nn.Linear(6, n_out)
        self.steps = [self.first, torch.tanh, self.last]
        self.run = self._run

    def _run(self, x):
        for step in self.steps:
            x = step(x)
        return x

    def forward(self, x):
        return self.run(x)


class Plain(Bound):
    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def test_layers_behind_bound_methods_and_lists_are_found():
    """Two implementations of the same architecture give the same posterior."""
    models = [LaplaceRegressor(module, random_state=0).fit(X, Y) for module in (Bound, Plain)]
    np.testing.assert_allclose(*(m.predict_std(X_NEW, kind="epistemic") for m in models), rtol=1e-6)


def test_a_module_that_cannot_be_copied_is_refused():
    """The forward pass is a closure over the original layer, so that copies would use the old weights."""
    layer = nn.Linear(3, 1)

    class Closure(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return layer(x)

    with pytest.raises(ValueError, match="does not use the layers of a copied module"):
        trace(Closure(), torch.zeros(1, 3))


def test_outputs_without_a_gradient_are_refused():
    """The forward pass calls detach()."""

    class Detached(nets.Hidden):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(ValueError, match="do not depend on its parameters differentiably"):
        LaplaceRegressor(Detached(3, 1)).fit(X, Y)


@pytest.mark.parametrize(
    "options",
    [
        {"callbacks": "disable"},
        {"callbacks__valid_acc": None},
        {"callbacks": [EpochScoring("accuracy", on_train=True, name="train_acc", lower_is_better=False)]},
    ],
    ids=["disabled", "without-accuracy", "scoring"],
)
def test_callbacks_of_a_template_work(options):
    """All forms of callbacks that skorch accepts."""
    net = NeuralNetClassifier(nets.Hidden, max_epochs=4, train_split=None, verbose=0, **options)
    model = LaplaceClassifier(net, random_state=0).fit(X, LABELS)
    assert len(model.history_) == 4
    assert ("train_acc" in model.history_[0]) == ("callbacks" in options and options["callbacks"] != "disable")


def test_early_stopping_watches_a_random_part_of_the_rows():
    """The rows of X are in no order, so that the validation loss does not measure extrapolation."""
    net = NeuralNetRegressor(
        nets.Hidden,
        max_epochs=200,
        lr=0.05,
        optimizer=torch.optim.Adam,
        train_split=ValidSplit(4),
        callbacks=[EarlyStopping(patience=10)],
        verbose=0,
    )
    model = LaplaceRegressor(net, random_state=0).fit(X, Y)
    best = min(entry["valid_loss"] for entry in model.history_)
    assert best < 0.5  # of the variance of y; the extreme quarter in column 0 would be far above


def test_a_templates_own_schedule_and_optimiser_run():
    """With the user's schedule, each epoch has half the learning rate of the previous epoch."""
    schedule = LRScheduler(policy=torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    net = nets.regressor(optimizer=torch.optim.SGD, lr=0.1, max_epochs=4, callbacks=[schedule])
    model = LaplaceRegressor(net, random_state=0).fit(X, Y)
    assert [entry["event_lr"] for entry in model.history_] == [0.1, 0.05, 0.025, 0.0125]


def test_a_default_fit_leaves_torchs_compiler_alone(processes):
    """The import of the compiler, or of sympy, takes longer than the fit. Nor does the package import matplotlib.

    The trainings have few steps of each kind, which call what all steps call.
    """
    script = """
        import os
        import sys
        sys.path[:] = sys.argv[1].split(os.pathsep)
        import numpy as np
        import torch
        from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, plotting
        slow = {"torch._dynamo", "sympy", "matplotlib"} - set(sys.modules)
        from shortened import few_steps
        few_steps().__enter__()
        if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
            slow.discard("sympy")
        x = np.arange(120.0)[:, None]
        for n in (20, 120):
            LaplaceRegressor(random_state=0).fit(x[:n], np.sin(x[:n, 0])).predict(x, return_std=True)
        LaplaceClassifier(random_state=0).fit(x, x[:, 0] > 60).predict_proba(x)
        assert not slow & set(sys.modules), slow & set(sys.modules)
        assert len(LaplaceRegressor(n_members=1, max_epochs=2).fit(x, np.sin(x[:, 0])).history_) == 2
    """
    done = processes.run(textwrap.dedent(script), os.pathsep.join(filter(None, sys.path)))
    assert done.returncode == 0, done.stderr


def test_a_templates_own_device_is_asked_for(monkeypatch):
    """device="auto" is the device of the net; if it is not available, an error is raised before any training."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    net = nets.regressor(device="cuda")
    with pytest.raises(ValueError, match="device='cuda' is not available: torch finds no CUDA device"):
        LaplaceRegressor(net).fit(X, Y)
    assert LaplaceRegressor(net, device="cpu", random_state=0).fit(X, Y).net_.device == "cpu"


@pytest.mark.parametrize(
    ("estimator", "criterion", "y"),
    [(LaplaceRegressor, nn.L1Loss, Y), (LaplaceClassifier, nn.MultiMarginLoss, LABELS)],
)
def test_a_foreign_criterion_is_refused(estimator, criterion, y):
    """A different loss is a different likelihood."""
    template = nets.regressor if estimator is LaplaceRegressor else nets.classifier
    with pytest.raises(ValueError, match=f"criterion {criterion.__name__} belongs to another likelihood"):
        estimator(template(criterion=criterion)).fit(X, y)


def test_options_of_the_built_in_net_are_refused_with_another():
    """They raise an error with a user's net."""
    with pytest.raises(ValueError, match="hidden_layer_sizes can only be used with the built-in net"):
        LaplaceRegressor(nets.Hidden, hidden_layer_sizes=(7,)).fit(X, Y)


def test_the_trained_net_predicts_by_itself():
    """net_ is a skorch net in evaluation mode, with the MAP estimate as weights."""
    for net in (nets.Hidden, nets.regressor()):
        model = LaplaceRegressor(net, standardize_y=False, random_state=0).fit(X, Y)
        np.testing.assert_allclose(model.net_.predict(X_NEW)[:, 0], model.predict(X_NEW), rtol=1e-10)


def test_threads_train_users_nets_reproducibly():
    """Fits in threads seed the same global generator of torch, and have to wait for each other."""

    def fit(seed):
        model = LaplaceRegressor(nets.regressor(max_epochs=3), prior_precision=1.0, sigma_noise=0.2, random_state=seed)
        return model.fit(X, Y).predict_std(X_NEW)

    serial = [fit(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(fit, range(4))), serial)


def test_the_number_of_threads_is_put_back():
    """After fits in other threads, and after a fit in the same thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = LaplaceRegressor(hidden_layer_sizes=(4,), n_members=2, random_state=0)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: clone(model).fit(X[:20], Y[:20]), range(2)))
        model.fit(X[:20], Y[:20])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 0.01), ("float64", 1e-3)])
def test_columns_far_from_zero_lose_no_digits(dtype, atol):
    """For example time stamps: columns are centred in double precision before they are converted to ``dtype``."""
    fits = [
        LaplaceRegressor(random_state=0, dtype=dtype, prior_precision=1.0, sigma_noise=0.2).fit(X + shift, Y)
        for shift in (0.0, 2.0**30)
    ]
    np.testing.assert_allclose(fits[0].predict(X), fits[1].predict(X + 2.0**30), atol=atol)


@pytest.mark.parametrize(("n_members", "of_mean", "of_noise"), [("auto", 0.4, 0.25), (1, 4e-3, 1e-3)])
def test_tiny_and_huge_units_are_units(n_members, of_mean, of_noise):
    """All thresholds are relative to the scale of the data. The folds of a joint ensemble depend on the values of X."""
    x, y = X[:60], Y[:60]
    first = LaplaceRegressor(n_members=n_members, random_state=0).fit(x, y)
    for scale in (1e-13, 1e13):
        second = LaplaceRegressor(n_members=n_members, random_state=0).fit(x * scale, y * scale)
        np.testing.assert_allclose(second.predict(X_NEW * scale) / scale, first.predict(X_NEW), atol=of_mean)
        np.testing.assert_allclose(second.sigma_noise_ / scale, first.sigma_noise_, rtol=of_noise)


def test_the_temperature_does_not_enter_the_choice():
    """A low temperature gives the same δ and σ, and a narrower posterior."""
    options = {"hidden_layer_sizes": (8,), "n_members": 1, "likelihood": "gaussian", "random_state": 0}
    for structure in ("functional", "kron"):
        cold, warm = (
            LaplaceRegressor(**options, hessian_structure=structure, temperature=t).fit(X, Y) for t in (0.1, 1.0)
        )
        assert cold.prior_precision_ == warm.prior_precision_
        assert cold.sigma_noise_ == warm.sigma_noise_
        assert (cold.predict_std(X_NEW, kind="epistemic") < warm.predict_std(X_NEW, kind="epistemic")).all()


def test_memory_trains_once_for_all_laplace_options(tmp_path):
    """6 candidates × 2 folds share 2 trainings, and the refit is the third. The scores are those without a cache."""
    options = {"map_prior_precision": 1.0, "hidden_layer_sizes": (8,), "likelihood": "gaussian", "random_state": 0}
    grid = {"prior_precision": [0.1, 10.0, "evidence"], "hessian_structure": ["functional", "diag"]}

    def scores(memory):
        model = LaplaceRegressor(**options, memory=memory)
        return GridSearchCV(model, grid, cv=2, scoring=metrics.neg_nlpd).fit(X, Y).cv_results_["mean_test_score"]

    plain = scores(None)
    np.testing.assert_array_equal(scores(Memory(tmp_path, verbose=0)), plain)
    assert len(list(tmp_path.rglob("output.pkl"))) == 3
    assert len(np.unique(plain)) == 6


def test_a_module_of_a_notebook_travels_to_worker_processes_and_back(processes, tmp_path):
    """A net class of __main__: the model is fitted in a loky worker, returned, and sent there again."""
    script = """
        import numpy as np, torch
        from joblib.externals.loky import get_reusable_executor
        from sklearn_laplace import LaplaceRegressor

        class Net(torch.nn.Module):
            def __init__(self, n_in=3, n_out=1):
                super().__init__()
                self.layer = torch.nn.Linear(n_in, n_out)
            def forward(self, x):
                return self.layer(x)

        assert Net.__module__ == "__main__"
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40, 3)); y = X[:, 0] + 0.1 * rng.normal(size=40)
        worker = get_reusable_executor(max_workers=1)
        model = worker.submit(LaplaceRegressor(Net, random_state=0).fit, X, y).result()
        std = worker.submit(model.predict_std, X).result()
        np.testing.assert_allclose(std, model.predict_std(X), rtol=1e-7)
        worker.shutdown()
        print("arrived")
    """
    run = processes.run(textwrap.dedent(script), folder=tmp_path)
    assert run.stdout.strip() == "arrived", run.stderr


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_a_frozen_net_with_given_prior_and_noise_takes_one_pass(monkeypatch, structure):
    """Without hyperparameters to choose, the only pass over the rows is that of the posterior."""
    passes = []
    for module in (fit_map, approximate):
        original = module.fit_laplace
        counted = partial(lambda fit, *inputs, **options: passes.append(inputs[3]) or fit(*inputs, **options), original)
        monkeypatch.setattr(module, "fit_laplace", counted)
    inputs, targets = X.astype(np.float32), Y[:, None].astype(np.float32)
    frozen = FrozenEstimator(NeuralNetRegressor(Bound(), max_epochs=2, verbose=0).fit(inputs, targets))
    options = {"prior_precision": 1.0, "sigma_noise": 0.3, "hessian_structure": structure}
    model = LaplaceRegressor(frozen, **options).fit(inputs, targets)
    assert [kind.__name__.lower() for kind in passes] == [structure]
    exact = LaplaceRegressor(frozen, **options | {"hessian_structure": "full"}).fit(inputs, targets)
    np.testing.assert_allclose(model.predict(inputs), exact.predict(inputs))
