"""A skorch net is trained as its owner trains it; rows outside its training select prior precision and noise level."""

from __future__ import annotations

import copy
import gc
import warnings

import nets
import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, LRScheduler
from skorch.dataset import Dataset, ValidSplit
from skorch.helper import predefined_split
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace.errors import TiedScoresWarning, WeakPriorWarning

FRIEDMAN = make_friedman1(400, n_features=8, noise=1.0, random_state=0)
X, Y = FRIEDMAN[0][:300].astype(np.float32), FRIEDMAN[1][:300]
X_NEW, Y_NEW = FRIEDMAN[0][300:].astype(np.float32), FRIEDMAN[1][300:]
STANDARD = ((Y - Y.mean()) / Y.std()).astype(np.float32)[:, None]
LABELS = np.digitize(Y, [11.0, 17.0])
ADAM = {"max_epochs": 30, "lr": 0.01, "optimizer": torch.optim.Adam, "verbose": 0}
STRUCTURES = ["full", "kron", "ekfac", "diag", "low_rank"]


class Deep(nn.Module):
    """Net with BatchNorm and Dropout, which depend on the order of the rows and on torch's generator."""

    def __init__(self, n_in=8, n_out=1):
        super().__init__()
        first = nn.Linear(n_in, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(0.2)
        self.layers = nn.Sequential(*first, nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, n_out))

    def forward(self, x):
        return self.layers(x)


class Casting(nets.Hidden):
    def forward(self, x):
        return super().forward(x.float())


class Noisy(nets.Hidden):
    def forward(self, x):
        return super().forward(x) + 0.01 * torch.randn(len(x), 1)


def template(module=Deep, **options):
    return NeuralNetRegressor(module, **{**ADAM, **options})


def of_classes(module=Deep, **options):
    sizes = {"module__n_out": 3, "criterion": nn.CrossEntropyLoss}
    return NeuralNetClassifier(module, **{**ADAM, **sizes, **options})


def by_skorch_alone(net, inputs, targets, random_state=0):
    """The net trained by skorch, with the seed that a fit with this ``random_state`` gives to torch."""
    torch.manual_seed(int(np.random.RandomState(random_state).randint(np.iinfo(np.int32).max, size=3)[1]))
    return net.fit(inputs, targets)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"train_split": None, "iterator_train__shuffle": True},
        {"optimizer": torch.optim.SGD, "lr": 0.05},
        {"batch_size": 50, "iterator_train__drop_last": True, "callbacks": [EarlyStopping(patience=3, load_best=True)]},
    ],
    ids=["default", "shuffled", "sgd", "early-stopping"],
)
def test_a_regressor_trains_as_skorch_alone(options):
    """Same epochs, losses, batches, draws and validation rows; predictions differ by rounding."""
    alone = by_skorch_alone(template(**options), X, STANDARD)
    model = LaplaceRegressor(template(**options), standardize_X=False, random_state=0).fit(X, Y)
    expected = alone.predict(X_NEW)[:, 0] * Y.std() + Y.mean()
    np.testing.assert_allclose(model.predict(X_NEW), expected, atol=2e-3 * Y.std())  # float32, up to 30 epochs
    assert len(model.net_.history) == len(alone.history) == len(model.history_)
    np.testing.assert_allclose(model.net_.history[:, "train_loss"], alone.history[:, "train_loss"], rtol=1e-2)


def test_a_classifier_trains_as_skorch_alone():
    alone = by_skorch_alone(of_classes(), X, LABELS)
    model = LaplaceClassifier(of_classes(), standardize_X=False, random_state=0).fit(X, LABELS)
    agree = model.predict(X_NEW) == alone.forward(X_NEW).argmax(1).numpy()
    assert agree.mean() > 0.98  # the moderated link may exchange nearly equal classes
    np.testing.assert_allclose(model.net_.history[:, "valid_loss"], alone.history[:, "valid_loss"], rtol=1e-2)


def test_validation_rows_are_no_part_of_the_posterior(capsys):
    """The posterior is that of the training rows; ``verbose=1`` says which rows are held out, without a warning."""
    model = LaplaceRegressor(template(), hessian_structure="full", random_state=0, verbose=1).fit(X, Y)
    assert "holds out 60 of 300 rows by its train_split" in capsys.readouterr().out
    held_out = template().get_split_datasets(X, STANDARD)[1].indices
    seen = np.setdiff1d(np.arange(300), held_out)
    known = {"prior_precision": model.prior_precision_, "sigma_noise": model.sigma_noise_ / Y.std()}
    frozen = NeuralNetRegressor(copy.deepcopy(model.net_.module_)).initialize()
    alone = LaplaceRegressor(FrozenEstimator(frozen), hessian_structure="full", **known)
    expected = Y.std() * alone.fit(X[seen], STANDARD[seen, 0]).predict_std(X_NEW, kind="epistemic")
    before = model.predict_std(X_NEW, kind="epistemic")
    np.testing.assert_allclose(before, expected, rtol=1e-5)
    assert (model.partial_fit(X[held_out], Y[held_out]).predict_std(X_NEW, kind="epistemic") < before).all()


@pytest.mark.parametrize("split", [ValidSplit(5), None], ids=["validation", "left-out"])
def test_every_structure_is_as_good_as_the_net_with_its_residuals(split):
    """With the default rules; no structure drives the noise level up, however wide its posterior is."""
    scores = {}
    for structure in STRUCTURES:
        net = template(nets.Hidden, module__n_in=8, train_split=split, max_epochs=60)
        model = LaplaceRegressor(net, hessian_structure=structure, random_state=0).fit(X, Y)
        mean, std = model.predict(X_NEW, return_std=True)
        scores[structure] = norm(mean, std).logpdf(Y_NEW).mean()
        error = np.sqrt(np.mean((mean - Y_NEW) ** 2))
        assert 0.5 * error < model.sigma_noise_ < 1.5 * error
    with_test_error = norm(mean, error).logpdf(Y_NEW).mean()
    assert min(scores.values()) > with_test_error - 0.1
    assert max(scores.values()) - min(scores.values()) < 0.08


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_given_prior_keeps_the_noise_near_the_residuals(structure):
    """Over four decades; a prior so weak that intervals are wider than a constant prediction's is reported."""
    wide = []
    for prior in (1e-4, 1e-2, 1.0, 100.0):
        net = template(nets.Hidden, module__n_in=8, module__hidden=60)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = LaplaceRegressor(net, prior_precision=prior, hessian_structure=structure, random_state=0).fit(X, Y)
        mean, std = model.predict(X_NEW, return_std=True)
        error = np.sqrt(np.mean((mean - Y_NEW) ** 2))
        assert 0.5 * error < model.sigma_noise_ < 2 * error
        is_wide = np.median(std) > 1.5 * Y.std()
        wide.append(is_wide)
        warned = any(issubclass(warning.category, WeakPriorWarning) for warning in caught)
        assert warned or not is_wide
        assert not warned or np.median(std) > 0.8 * Y.std()
    assert wide[0] == (structure in ("full", "low_rank"))  # factors and diagonals bound the variance
    assert not wide[3]


def test_a_search_gives_one_voice_and_trains_once():
    """Default settings of skorch: no warning but that of tied scores, which names the scorer that separates them."""
    rows, targets = load_diabetes(return_X_y=True)
    model = LaplaceRegressor(
        template(nets.Hidden, module__n_in=10, max_epochs=5), map_prior_precision=0, random_state=0
    )
    pipe = make_pipeline(StandardScaler(), model)
    priors, structures = [1.0, 10.0, 100.0], ["kron", "diag"]
    grid = {"laplaceregressor__prior_precision": priors, "laplaceregressor__hessian_structure": structures}
    runs, loop = [], NeuralNetRegressor.fit_loop
    NeuralNetRegressor.fit_loop = lambda self, *args, **options: runs.append(1) or loop(self, *args, **options)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            search = GridSearchCV(pipe, grid, cv=3, scoring=metrics.neg_nlpd).fit(rows, targets)
        assert caught == []
        assert len(runs) == 3 + 1
        assert len(np.unique(search.cv_results_["mean_test_score"])) == 6
        with pytest.warns(TiedScoresWarning, match="differ in their error bars alone.*Use scoring=neg_nlpd") as caught:
            GridSearchCV(pipe, grid, cv=3).fit(rows, targets)
        assert len(caught) == 1
    finally:
        NeuralNetRegressor.fit_loop = loop


def test_a_search_warns_once_of_weak_priors():
    net = template(nets.Hidden, module__n_in=8, module__hidden=60, max_epochs=5)
    model = LaplaceRegressor(net, hessian_structure="full", random_state=0)
    with pytest.warns(WeakPriorWarning, match="times that of a constant prediction") as caught:
        GridSearchCV(model, {"prior_precision": [1e-5, 1e-4, 1.0]}, cv=3, scoring=metrics.neg_nlpd).fit(X, Y)
    assert len(caught) == 1


def test_the_choice_of_a_grid_is_as_good_as_the_built_in_choice():
    """Log density of new rows under the prior that ``GridSearchCV`` selects by ``neg_nlpd``, and under "auto"."""
    model = LaplaceRegressor(template(nets.Hidden, module__n_in=8), map_prior_precision=0, random_state=0)
    grid = {"prior_precision": [0.1, 1.0, 10.0, 100.0, 1000.0]}
    search = GridSearchCV(model, grid, cv=4, scoring=metrics.neg_nlpd).fit(X, Y)
    built_in = model.fit(X, Y)
    found, chosen = (metrics.neg_nlpd(fitted, X_NEW, Y_NEW) for fitted in (search.best_estimator_, built_in))
    assert abs(found - chosen) < 0.05


def test_callbacks_work_as_in_skorch(tmp_path):
    """Schedules, checkpoints and early stopping that returns to its best weights."""
    callbacks = [
        ("rate", LRScheduler("ExponentialLR", gamma=0.9)),
        ("saved", Checkpoint(dirname=tmp_path, load_best=True)),
        ("early", EarlyStopping(patience=5)),
    ]
    model = LaplaceRegressor(template(max_epochs=40, callbacks=callbacks), random_state=0).fit(X, Y)
    history = model.net_.history
    assert history[-1, "event_lr"] == pytest.approx(0.01 * 0.9 ** (len(history) - 1))
    assert (tmp_path / "params.pt").exists()
    held_out = template().get_split_datasets(X, STANDARD)[1].indices
    error = np.mean((model.predict(X[held_out]) - Y[held_out]) ** 2) / Y.var()
    assert error == pytest.approx(min(history[:, "valid_loss"]), rel=1e-3)


@pytest.mark.parametrize("callback", [EarlyStopping(), ("best", Checkpoint()), EarlyStopping(monitor="valid_acc")])
def test_a_monitor_of_validation_rows_needs_some(callback):
    """One error before any training."""
    net = template(train_split=None, callbacks=[callback])
    with pytest.raises(
        ValueError, match=r"watches 'valid_.*no validation rows \(train_split=None\). Use train_split=V"
    ):
        LaplaceRegressor(net).fit(X, Y)
    fixed = template(train_split=ValidSplit(5), max_epochs=2, callbacks=[EarlyStopping()])
    assert len(LaplaceRegressor(fixed, random_state=0).fit(X, Y).history_) == 2


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ({"criterion__weight": torch.ones(3)}, r"criterion__weight cannot be used: .* Use class_weight= of the est"),
        ({"criterion": nn.CrossEntropyLoss(weight=torch.ones(3))}, "CrossEntropyLoss's weight cannot be used"),
        ({"criterion__label_smoothing": 0.1}, "criterion__label_smoothing cannot be used.*a prior precision"),
        ({"criterion": nn.CrossEntropyLoss(label_smoothing=0.1)}, "CrossEntropyLoss's label_smoothing cannot"),
        ({"criterion": nn.CrossEntropyLoss, "criterion__reduction": "sum"}, "criterion__reduction cannot be used"),
        ({"iterator_train__sampler": [0, 1]}, "iterator_train__sampler cannot be used: .*sample_weight in fit"),
    ],
)
def test_what_the_loss_cannot_honour_is_refused(net, message):
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(of_classes(**net)).fit(X, LABELS)


def test_neutral_options_of_a_criterion_are_accepted():
    for options in ({"criterion__label_smoothing": 0.0}, {"criterion": nn.CrossEntropyLoss()}):
        model = LaplaceClassifier(of_classes(max_epochs=2, **options), random_state=0).fit(X, LABELS)
        assert model.predict_proba(X[:2]).shape == (2, 3)


def test_weights_of_the_positive_class_are_refused():
    net = nets.binary(module__n_in=8, criterion__pos_weight=torch.tensor([2.0]))
    with pytest.raises(ValueError, match="criterion__pos_weight cannot be used"):
        LaplaceClassifier(net).fit(X, LABELS > 0)


def test_a_cast_of_the_input_is_named():
    """Its advice works."""
    net = template(Casting, module__n_in=8, max_epochs=2)
    with pytest.raises(ValueError, match=r"accepts float32 alone: it casts.*use dtype='float32'"):
        LaplaceRegressor(net, standardize_X=False).fit(X, Y)
    assert LaplaceRegressor(net, standardize_X=False, dtype="float32").fit(X, Y).predict_std(X[:3]).shape == (3,)


def test_noise_in_evaluation_mode_is_named():
    with pytest.raises(ValueError, match=r"draws random numbers in evaluation mode.*only if self\.training is True"):
        LaplaceRegressor(template(Noisy, module__n_in=8)).fit(X, Y)


def test_validation_rows_from_elsewhere_are_refused():
    """Their targets are in other units; the advice works."""
    net = template(train_split=predefined_split(Dataset(X_NEW, Y_NEW)))
    with pytest.raises(ValueError, match=r"not among the rows of the fit.*PredefinedSplit"):
        LaplaceRegressor(net).fit(X, Y)
    folds = np.where(np.arange(300) < 50, 0, -1)
    net = template(train_split=ValidSplit(PredefinedSplit(folds)), max_epochs=2)
    model = LaplaceRegressor(net, random_state=0).fit(X, Y)
    assert model.posterior_ is not None
    assert model.members_[0].net_.history[-1, "valid_loss"] > 0


def test_random_validation_rows_follow_the_seed():
    """A share draws rows from NumPy's global generator, whose state is restored."""
    net = template(nets.Hidden, module__n_in=8, max_epochs=3, train_split=ValidSplit(0.2))
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (LaplaceRegressor(net, random_state=1).fit(X, Y).predict_std(X_NEW) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_a_prior_that_is_given_is_a_penalty_of_the_training():
    """The weights shrink with the prior precision; a noise level that is given, or learnt, is the loss's unit."""
    net = template(nets.Hidden, module__n_in=8)
    sizes = []
    for prior in (0.01, 10.0, 1000.0):
        model = LaplaceRegressor(net, prior_precision=prior, random_state=0).fit(X, Y)
        sizes.append(float(torch.nn.utils.parameters_to_vector(model.net_.module_.parameters()).detach().norm()))
    assert sizes[0] > 1.2 * sizes[1] > 1.5 * sizes[2]


def test_refits_select_by_the_same_rows():
    """With the training apart from the prior, ``refit_laplace`` equals a new fit for every rule of held-out rows."""
    net = template(nets.Hidden, module__n_in=8, max_epochs=10)
    for split in (ValidSplit(5), None):
        options = {"map_prior_precision": 0, "random_state": 0, "hessian_structure": "kron"}
        fitted = LaplaceRegressor(net.set_params(train_split=split), **options).fit(X, Y)
        for change in ({"prior_precision": 10.0}, {"sigma_noise": 1.2}, {"prior_precision": "auto"}):
            again = LaplaceRegressor(net, **options).set_params(**fitted.refit_laplace(**change).get_params(deep=False))
            again.fit(X, Y)
            np.testing.assert_allclose(again.sigma_noise_, fitted.sigma_noise_, rtol=1e-6)
            np.testing.assert_allclose(again.prior_precision_, fitted.prior_precision_, rtol=1e-6)
            np.testing.assert_allclose(again.predict_std(X_NEW), fitted.predict_std(X_NEW), rtol=1e-6)


def test_without_a_penalty_the_net_must_be_given():
    with pytest.raises(
        ValueError, match=r"map_prior_precision=0 trains without a prior, by the epochs of a skorch net"
    ):
        LaplaceRegressor(map_prior_precision=0).fit(X, Y)


@pytest.mark.parametrize("rule", ["loo", "auto", "evidence"])
def test_a_rule_selects_the_same_in_a_fit_and_in_a_refit(rule):
    """The rows that the net has held out are no part of leave-one-out, before and after the fit."""
    net = template(nets.Hidden, module__n_in=8, max_epochs=8)
    model = LaplaceRegressor(net, prior_precision=rule, sigma_noise=rule, random_state=0).fit(X[:60], Y[:60])
    known = model.prior_precision_, model.sigma_noise_
    model.refit_laplace()
    np.testing.assert_allclose([model.prior_precision_, model.sigma_noise_], known, rtol=1e-9)


def test_varying_noise_and_counts_are_learnt_without_held_out_rows():
    """Leave-one-out of the training rows; the validation rows have no part."""
    net = template(nets.Hidden, module__n_in=8, max_epochs=8)
    varying = LaplaceRegressor(net, likelihood="heteroscedastic", random_state=0).fit(X[:40], Y[:40])
    assert np.isfinite(varying.predict_std(X_NEW)).all()
    for likelihood in ("poisson", "negative_binomial"):
        model = LaplaceRegressor(net, likelihood=likelihood, prior_precision="loo", random_state=0)
        assert (model.fit(X[:40], np.round(Y[:40])).predict(X_NEW) > 0).all()


def test_scoring_callbacks_see_targets_without_weights_and_noise():
    """The default callbacks of a classifier score labels; so does a score of the user's."""
    balanced = LaplaceClassifier(of_classes(max_epochs=2), class_weight="balanced", random_state=0).fit(X, LABELS)
    assert 0 < balanced.net_.history[-1, "valid_acc"] < 1
    scored = template(max_epochs=2, callbacks=[EpochScoring("r2", lower_is_better=False, use_caching=True)])
    model = LaplaceRegressor(scored, random_state=0).fit(X, Y, sample_weight=np.linspace(0.5, 1.5, 300))
    assert model.net_.history[-1, "r2"] < 1
    noisy = LaplaceRegressor(scored, random_state=0).fit(X, Y, sample_noise_variance=np.linspace(0.5, 1.5, 300))
    assert noisy.net_.history[-1, "r2"] < 1


def test_weights_enter_the_losses_of_training_and_validation():
    """The validation loss is the weighted mean of the squared errors."""
    weights = np.where(np.arange(300) % 2, 3.0, 0.5)
    model = LaplaceRegressor(template(max_epochs=1), random_state=0).fit(X, Y, sample_weight=weights)
    mean = np.average(Y, weights=weights)
    scale = np.sqrt(np.average((Y - mean) ** 2, weights=weights))
    held_out = template().get_split_datasets(X, STANDARD)[1].indices
    errors = (model.predict(X[held_out]) - Y[held_out]) / scale
    expected = np.mean(weights[held_out] * errors**2) / weights.mean()
    assert model.net_.history[-1, "valid_loss"] == pytest.approx(expected, rel=1e-3)


def test_a_split_by_positions_refers_to_the_rows_of_the_fit():
    """Rows of weight zero would shift them; positions that are not there, and rows on both sides, are refused."""
    weights = np.r_[np.zeros(5), np.ones(295)]
    folds = ValidSplit(PredefinedSplit(np.where(np.arange(300) < 50, 0, -1)))
    with pytest.raises(ValueError, match=r"5 rows have weight zero.*Omit these rows from X, y and the split"):
        LaplaceRegressor(template(train_split=folds)).fit(X, Y, sample_weight=weights)
    with pytest.raises(ValueError, match=r"train_split has row 299, and the fit has 250 rows"):
        LaplaceRegressor(template(train_split=folds)).fit(X[:250], Y[:250])

    def overlapping(dataset, y=None):
        return dataset, torch.utils.data.Subset(dataset, range(10))

    with pytest.raises(ValueError, match="trains on 10 of its 10 validation rows"):
        LaplaceRegressor(template(train_split=overlapping)).fit(X, Y)

    def nested(dataset, y=None):
        part = torch.utils.data.Subset(dataset, range(100, 200))
        return torch.utils.data.Subset(part, range(80)), torch.utils.data.Subset(part, range(80, 100))

    model = LaplaceRegressor(template(train_split=nested, max_epochs=2), random_state=0).fit(X, Y)
    assert model.laplace_.total_weight == 80  # rows that no part has select hyperparameters too


@pytest.mark.parametrize("n_rows", [5, 6, 10])
def test_one_validation_row_is_enough(n_rows):
    """A single squared error has the relative variance of a normal one."""
    net = template(nets.Hidden, module__n_in=8, max_epochs=3)
    model = LaplaceRegressor(net, random_state=0).fit(X[:n_rows], Y[:n_rows])
    assert np.isfinite(model.predict_std(X_NEW)).all()


def n_modules():
    """Number of modules of the class ``nets.Hidden`` that are still referenced."""
    gc.collect()
    return sum(type(found) is nets.Hidden for found in gc.get_objects())


def test_a_search_forgets_and_warns_again():
    """What its fits share ends with the call; a second one on other data warns anew."""
    n_before = n_modules()
    net = template(nets.Hidden, module__n_in=8, module__hidden=60, max_epochs=2)
    model = LaplaceRegressor(net, hessian_structure="full", random_state=0)
    search = GridSearchCV(model, {"prior_precision": [1e-5]}, cv=2, scoring=metrics.neg_nlpd)
    for factor in (1.0, 2.0):
        with pytest.warns(WeakPriorWarning):
            search.fit(X, factor * Y)
    assert n_modules() > n_before
    del model, net, search
    assert n_modules() <= n_before


def test_scores_of_the_mean_of_counts_are_called_tied():
    """Their mean rates are those of the net, as the means of numbers are."""
    net = template(nets.Hidden, module__n_in=8, max_epochs=2, train_split=None)
    counts = LaplaceRegressor(net, likelihood="poisson", map_prior_precision=0, random_state=0)
    with pytest.warns(TiedScoresWarning, match="the first one is selected"):
        search = GridSearchCV(counts, {"prior_precision": [0.01, 1.0, 100.0]}, cv=2).fit(X, np.round(Y))
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 1


def test_left_out_errors_are_those_of_refits_without_a_row():
    """Under a prior without epistemic variance, σ² is the mean squared leave-one-out error of ridge regression.

    A linear net is its own linearisation, so that refits by brute force over all ridges are an oracle. The grid of
    noise levels has steps of 2 %.
    """
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(40, 6)).astype(np.float32)
    targets = inputs @ rng.normal(size=6) + rng.normal(size=40)
    design = np.column_stack([inputs, np.ones(40)]).astype(float)
    module = nn.Linear(6, 1)
    solution = torch.from_numpy(np.linalg.lstsq(design, targets, rcond=None)[0]).float()
    module.load_state_dict({"weight": solution[None, :6], "bias": solution[6:]})
    net = FrozenEstimator(NeuralNetRegressor(module).initialize())

    def left_out(ridge):
        """Errors, and densities with the variance σ² (1 + x' P⁻¹ x) at the best σ."""
        errors, spreads = [], []
        for k in range(40):
            seen = np.arange(40) != k
            inverse = np.linalg.inv(design[seen].T @ design[seen] + ridge * np.eye(7))
            errors.append(targets[k] - design[k] @ inverse @ design[seen].T @ targets[seen])
            spreads.append(1 + design[k] @ inverse @ design[k])
        errors, spreads = np.array(errors), np.array(spreads)
        noise = np.mean(errors**2 / spreads)
        return np.mean(errors**2), norm(0, np.sqrt(noise * spreads)).logpdf(errors).sum()

    expected = max((left_out(ridge) for ridge in np.logspace(-5, 5, 81)), key=lambda found: found[1])[0]
    model = LaplaceRegressor(net, prior_precision=1e9, hessian_structure="diag").fit(inputs, targets)
    assert model.sigma_noise_**2 == pytest.approx(expected, rel=0.05)
