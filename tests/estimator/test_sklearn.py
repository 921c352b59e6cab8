"""scikit-learn's contract: its own checks, cloning, pickling, searches and pipelines."""

from __future__ import annotations

import inspect
import pickle
import time
from contextlib import nullcontext

import joblib
import nets
import numpy as np
import pytest
import torch
from shortened import few_steps, shorten, skip_choices
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch import NeuralNetBinaryClassifier

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

X, Y = load_diabetes(return_X_y=True)
X_CLASS, Y_CLASS = load_breast_cancer(return_X_y=True)
X_SCALED = StandardScaler().fit_transform(X_CLASS)


ORDER_OF_LABELS = {
    "check_sample_weight_equivalence_on_dense_data": "scikit-learn 1.6 reduces three classes to two by the label of "
    "the first row, which differs between weighted and repeated rows"
}
NEGATIVE_COUNTS = {"check_regressor_multioutput": "it ignores the tag positive_only and passes negative targets"}


GIVEN = {"prior_precision": 0.1}
"""A given prior precision makes the fits of the non-default estimators faster."""


def expected_failures(estimator):
    """Checks that fail because of the check itself."""
    if isinstance(estimator.net, NeuralNetBinaryClassifier):
        relabels = "y.flat[0]" in inspect.getsource(estimator_checks._enforce_estimator_tags_y)
        return ORDER_OF_LABELS if relabels else {}
    return NEGATIVE_COUNTS if "poisson" in repr(estimator) else {}


DEFAULTS = LaplaceRegressor(), LaplaceClassifier()
OF_EVERY_NET = (
    "check_classifiers_classes",
    "check_classifiers_one_label",
    "check_classifiers_train",
    "check_dict_unchanged",
    "check_dont_overwrite_parameters",
    "check_estimators_dtypes",
    "check_estimators_overwrite_params",
    "check_estimators_partial_fit_n_features",
    "check_estimators_pickle",
    "check_f_contiguous_array_estimator",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_fit_idempotent",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_readonly_memmap_input",
    "check_regressor_multioutput",
    "check_regressors_int",
    "check_regressors_train",
    "check_sample_weight_equivalence_on_dense_data",
    "check_supervised_y_2d",
)
"""Checks that depend on the training and the posterior. The others are about arguments, which all nets share."""


def name_of(check):
    return getattr(check, "func", check).__name__


def checks_of(estimators, **options):
    """All checks of default estimators, and those of ``OF_EVERY_NET`` of the others."""
    mark = parametrize_with_checks(estimators, **options).mark
    names, cases = mark.args

    def is_kept(case):
        estimator, check = getattr(case, "values", case)
        return any(estimator is default for default in DEFAULTS) or name_of(check) in OF_EVERY_NET

    return pytest.mark.parametrize(names, [case for case in cases if is_kept(case)], **mark.kwargs)


OF_TRAINED_NETS = ("check_classifiers_train", "check_regressors_train")
"""Checks that ask for a score."""


def is_of_complete_nets(check):
    """True for a check of a score. Those of memory maps have the same data, and few steps meet their limits."""
    return name_of(check) in OF_TRAINED_NETS and not getattr(check, "keywords", {})


@pytest.fixture
def trained_for(monkeypatch, check):
    """The members of default ensembles take a tenth of their steps, and all nets a few unless their score is checked.

    Ensembles have no nets with exact steps for checks that are not in ``OF_EVERY_NET``.
    """
    shorten(monkeypatch, 50, 45)
    if name_of(check) not in OF_EVERY_NET:
        skip_choices(monkeypatch)
    with nullcontext() if is_of_complete_nets(check) else few_steps():
        yield


@checks_of(
    [
        *DEFAULTS,
        LaplaceRegressor(nets.regressor(max_epochs=60, batch_size=-1), sigma_noise=0.1, dtype="float64", **GIVEN),
        LaplaceClassifier(nets.classifier(max_epochs=2), dtype="float64", **GIVEN),
        LaplaceRegressor(likelihood="poisson", hidden_layer_sizes=(5,), **GIVEN),
        LaplaceClassifier(nets.binary(max_epochs=60), dtype="float64", **GIVEN),
    ],
    expected_failed_checks=expected_failures,
)
@pytest.mark.usefixtures("trained_for")
@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.InterpolationWarning")  # random labels
@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
def test_scikit_learns_checks_all_pass(estimator, check):
    """Built-in nets and user nets pass every check, except one that passes negative counts."""
    if estimator.net is not None and name_of(check) not in OF_TRAINED_NETS:
        estimator = clone(estimator).set_params(net__max_epochs=2)
    check(estimator)


@pytest.mark.parametrize(
    ("estimator", "features", "targets"),
    [(LaplaceRegressor, X[:300], Y[:300]), (LaplaceClassifier, X_CLASS[:300], Y_CLASS[:300])],
)
def test_a_default_fit_takes_no_longer_than_a_few_plain_trainings(estimator, features, targets):
    """Searches and ensembles fit many times. Plain: 2,000 full-batch steps of Adam, extrapolated from 200.

    Processor time on one thread, because test processes share the machine; the best of three ratios of neighbouring
    times, because its speed changes.
    """
    x, ratios = torch.tensor(features).float(), []
    while len(ratios) < 3 and min(ratios, default=np.inf) > 5:
        plain = 10 * processor_time(lambda: plain_training(x, 200))
        ratios.append(processor_time(lambda: estimator(random_state=0).fit(features, targets)) / plain)
    assert min(ratios) <= 5, ratios


def processor_time(work):
    start, n_threads = time.process_time(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work()
    finally:
        torch.set_num_threads(n_threads)
    return time.process_time() - start


def plain_training(x, steps):
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (LaplaceRegressor(random_state=0), Y),
        (LaplaceRegressor(nets.regressor(), random_state=0, hessian_structure="kron"), Y),
        (LaplaceClassifier(random_state=0), Y > 140),
        (LaplaceClassifier(nets.classifier(), random_state=0, subset_of_weights="last_layer"), Y > 140),
    ],
    ids=["regressor", "regressor-net", "classifier", "classifier-net"],
)
@pytest.mark.usefixtures("short_training")
def test_pickle_joblib_and_clone_are_exact(estimator, y, tmp_path):
    """A loaded model and a refitted clone have bit-identical predictions."""
    fitted = clone(estimator).fit(X[:60], y[:60])
    joblib.dump(fitted, tmp_path / "model.joblib")
    for other in (
        pickle.loads(pickle.dumps(fitted)),
        joblib.load(tmp_path / "model.joblib"),
        clone(fitted).fit(X[:60], y[:60]),
    ):
        np.testing.assert_array_equal(other.predict(X[:90]), fitted.predict(X[:90]))
        np.testing.assert_array_equal(other.predict_std(X[:90]), fitted.predict_std(X[:90]))
        np.testing.assert_array_equal(other.sample_y(X[:3], 2), fitted.sample_y(X[:3], 2))


def test_grid_search_in_a_pipeline_over_everything():
    """Laplace options, the structure and the module's own parameters can be searched."""
    net = nets.regressor(max_epochs=5)
    pipe = make_pipeline(StandardScaler(), LaplaceRegressor(net, random_state=0))
    first = {
        "laplaceregressor__prior_precision": [1.0],
        "laplaceregressor__hessian_structure": ["full"],
        "laplaceregressor__net__module__hidden": [3],
    }
    grid = [
        {**first, "laplaceregressor__prior_precision": [1.0, "evidence"]},
        {**first, "laplaceregressor__hessian_structure": ["diag"]},
        {**first, "laplaceregressor__net__module__hidden": [6]},
    ]
    search = GridSearchCV(pipe, grid, cv=2, scoring=_log_density).fit(X[:120], Y[:120])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4  # every option matters
    hidden = search.best_params_["laplaceregressor__net__module__hidden"]
    assert search.best_estimator_[-1].net_.module_.hidden.out_features == hidden


def test_cross_validation_scores_are_sane():
    """Defaults, no tuning: R² near the known .48 of diabetes, accuracy near the known .97 of breast cancer.

    A third and a half of the rows, which are in no order, predict the others.
    """
    third, half = (np.split(np.arange(len(rows)), [n]) for rows, n in ((X, 150), (X_CLASS, 284)))
    assert cross_val_score(LaplaceRegressor(random_state=0), X, Y, cv=[third]).item() > 0.44
    assert cross_val_score(LaplaceClassifier(random_state=0), X_CLASS, Y_CLASS, cv=[half]).item() > 0.95


def test_set_params_reaches_the_nets_own_parameters():
    """Nested parameters reach the clone; the template is unchanged by a fit."""
    template = nets.regressor(max_epochs=2)
    model = LaplaceRegressor(template, random_state=0).set_params(net__lr=0.2, net__module__hidden=4)
    assert template.lr == 0.2
    before = {k: v for k, v in template.get_params().items() if not k.startswith("callbacks")}
    model.fit(X[:50], Y[:50])
    after = {k: v for k, v in template.get_params().items() if not k.startswith("callbacks")}
    assert before == after
    assert not template.initialized_
    assert model.net_.module_.hidden.out_features == 4


def _log_density(estimator, features, targets):
    mean, std = estimator.predict(features, return_std=True)
    return float(np.mean(-0.5 * ((targets - mean) / std) ** 2 - np.log(std)))
