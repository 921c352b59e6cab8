"""Advice about arguments, targets and rows: snippets are cut out of a message and executed in place of the mistake.

Each case has an expression that is refused, a regular expression whose groups are the snippets, and the expression that
they complete.
"""

from __future__ import annotations

import datetime
import re
import secrets
from typing import Any

import nets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn.calibration
import sklearn.impute
import sklearn.pipeline
import sklearn.preprocessing
import trainings
from scipy.sparse import csr_array
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from skorch.callbacks import EarlyStopping
from skorch.dataset import ValidSplit
from torch import nn

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics, options
from sklearn_laplace.recalibration import SigmaScaling

pytestmark = pytest.mark.usefixtures("short_trainings")

N = 24
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + 0.3 * RNG.normal(size=N)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "n_members": 1, "random_state": 0}
SMALL["memory"] = trainings.MEMORY


def template(module: Any = nn.Linear, **options: Any):
    sizes = {"module__out_features": 1} if module is nn.Linear else {}
    return nets.regressor(module, **{"max_epochs": 2, **sizes, **options})


def fit(rows=X, y=Y, **given: Any):
    """Fit of a small regressor."""
    base = {"prior_precision": 1.0, "sigma_noise": 0.3} if given.get("net") is not None else SMALL
    return LaplaceRegressor(**{**base, **given}).fit(rows, y)


def fit_classes(rows=X, y=LABELS, **given: Any):
    return LaplaceClassifier(**{**SMALL, **given}).fit(rows, y)


def own_classes(**given: Any):
    """Fit of a small classifier with a net of its own."""
    return LaplaceClassifier(nets.binary(module__n_in=3, max_epochs=2), prior_precision=1.0, **given).fit(X, LABELS)


LINEAR = {"hidden_layer_sizes": (), "map_prior_precision": 1.0}
WAVE = np.linspace(0, 6, 20)[:, None]


def Locked():
    """Net without a trained parameter."""
    return nn.Linear(3, 1).requires_grad_(False)


def trained():
    return template(nn.Linear(3, 1)).fit(X.astype("float32"), Y[:, None].astype("float32"))


def search(**given: Any):
    return GridSearchCV(LaplaceRegressor(**SMALL), {"sigma_noise": [0.3]}, cv=2, **given).fit(X, Y)


def logged():
    return TransformedTargetRegressor(LaplaceRegressor(**SMALL), func=np.log, inverse_func=np.exp).fit(X, np.exp(Y))


def weights(name: str):
    return np.ones(fit().net_.module_.get_parameter(name).shape)


def Normed(n_in):
    """Net with batch norm."""
    return nets.Hidden(n_in, norm=True)


def gaps(rows=X):
    return np.where(np.eye(N, 3) > 0, np.nan, rows)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What an expression may name."""
    counts = np.arange(N) % 4
    return {
        **vars(options),
        **globals(),
        **{"numpy": np, "pandas": pd, "pl": pl, "secrets": secrets, "metrics": metrics},
        **{"EarlyStopping": EarlyStopping, "ValidSplit": ValidSplit, "PredefinedSplit": PredefinedSplit},
        "counts": counts,
        "model": fit(),
        "classifier": fit_classes(),
        "of_counts": fit(y=np.column_stack([counts, counts]), likelihood="poisson"),
        "of_frame": fit(pd.DataFrame(X, columns=[1, 2, 3])),
        "folder": tmp_path_factory.mktemp("files"),
        "masked": np.ma.masked_array(X, np.eye(N, 3)),
        "masked_y": np.ma.masked_array(Y, np.arange(N) == 3),
        "times": np.datetime64("2024-01-01") + np.arange(N),
        "records": [dict(zip("abc", row, strict=True)) for row in X],
        "structured": np.array([tuple(row) for row in X], dtype=[(name, float) for name in "abc"]),
        "sparse_y": csr_array(Y[:, None]),
        "one_hot": np.eye(2, dtype=int)[(Y > 0) * 1],
        "mixed": np.array([1, *LABELS[1:]], dtype=object),
        "large": np.array([2**70, *np.arange(N - 1) % 2], dtype=object),
        "days": np.array([datetime.date(2024, 1, 1 + k % 2) for k in range(N)], dtype=object),
        "towns": np.array(["Bern", "Graz", "Linz"] * N, dtype=object).reshape(3, N).T,
        "separate": fit(hessian_structure=options.Kron(bias="separate"), sigma_noise=0.3),
        **{"SigmaScaling": SigmaScaling, "FrozenEstimator": FrozenEstimator, "preprocessing": sklearn.preprocessing},
        **{"pipeline": sklearn.pipeline, "calibration": sklearn.calibration},
    }


CASES = {
    # methods
    "noise of counts": ("of_counts.sigma_noise_", r"Use (predict_std\(.*?\))\.", "of_counts.{}"),
    "gradient of a covariance": (
        "model.predict(X, return_cov=True, return_mean_grad=True)",
        r"Use (return_std=True)",
        "model.predict(X, {}, return_mean_grad=True)",
    ),
    "gradient of a std": (
        "model.predict(X, return_std_grad=True)",
        r"needs (return_std=True) and (return_m.*?=True)",
        "model.predict(X, {}, {}, return_std_grad=True)",
    ),
    "X_std": ("model.predict(X, X_std=0.1)", r"Add (return_std=True)", "model.predict(X, X_std=0.1, {})"),
    "noise of classes": (
        "classifier.log_marginal_likelihood(sigma_noise=1.0)",
        r"(Omit) sigma_noise",
        "'{}' and classifier.log_marginal_likelihood()",
    ),
    "refit": ("fit().refit_laplace(lr=0.1)", r"Use (set_params) and (fit);", "fit().{}(lr=0.1, max_epochs=2).{}(X, Y)"),
    "ratios": (
        "fit(y=numpy.c_[Y, Y], sigma_noise=[0.3, 0.3]).refit_laplace(sigma_noise=[0.3, 0.6])",
        r"Pass a multiple of (\[.*?\])",
        "fit(y=numpy.c_[Y, Y], sigma_noise=[0.3, 0.3]).refit_laplace(sigma_noise=2 * numpy.array({}))",
    ),
    "option object": ("fit().set_params(hessian_structure__damping='ritter')", r"such as (.*)\.$", "fit({})"),
    "another class": (
        "fit_classes().partial_fit(X, ['left'] * N)",
        r"(partial_fit)\(X, y, (classes=)\.\.\.\)",
        "LaplaceClassifier(**SMALL).{}(X, LABELS, {}['down', 'left', 'up']).partial_fit(X, ['left'] * N)",
    ),
    "balanced": (
        "fit_classes(class_weight='balanced').partial_fit(X, LABELS)",
        r"as a dict (\{label: weight\})",
        "fit_classes(class_weight=(lambda label, weight: {})('up', 2.0)).partial_fit(X, LABELS)",
    ),
    "std of classes": (
        "classifier.predict(X, return_std=True)",
        r"Use (predict_std\(X\)), and (predict_proba\(X\))",
        "(classifier.{}, classifier.{})",
    ),
    "covariance of classes": (
        "classifier.predict(X, return_cov=True)",
        r"(LaplaceRegressor).*use (predict_std\(X\))",
        "{} and classifier.{}",
    ),
    "kind": (
        "model.predict(X, kind='epistemic')",
        r"Use predict_std\(X, kind='(epistemic)'\), '(.*?)' or '(.*?)'",
        "[model.predict_std(X, kind=kind) for kind in ('{}', '{}', '{}')]",
    ),
    "alpha": (
        "model.predict_interval(X, alpha=0.1)",
        r"Use (confidence_level=1 - alpha)",
        "(lambda alpha: model.predict_interval(X, {}))(0.1)",
    ),
    "percent": ("model.predict_interval(X, 90)", r"90 % is ([\d.]+\d)", "model.predict_interval(X, {})"),
    "percentage of quantiles": (
        "model.predict_quantiles(X, 95)",
        r"95 % is ([\d.]+\d)",
        "model.predict_quantiles(X, {})",
    ),
    "size of draws": ("model.sample_y(X, size=3)", r"Use (n_samples=3)", "model.sample_y(X, {})"),
    "probabilities": (
        "model.predict_proba(X)",
        r"use (predict_dist\(X\)), (predict_interval\(X\)) or (predict_std\(X\))",
        "(model.{}, model.{}, model.{})",
    ),
    "interval of classes": (
        "classifier.predict_interval(X)",
        r"use (predict_proba\(X\)), (predict_std\(X\)) or (predict_entropy\(X\))",
        "(classifier.{}, classifier.{}, classifier.{})",
    ),
    # constructors
    "penalty": ("LaplaceRegressor(alpha=0.01)", r"Use (prior_precision=0.01)", "fit({})"),
    "C": ("LaplaceRegressor(C=2.0)", r"Use (prior_precision=1 / C)", "(lambda C: fit({}))(2.0)"),
    "epochs": ("LaplaceRegressor(max_iter=2)", r"Use (max_epochs=2)", "fit({})"),
    "noise": (
        "LaplaceRegressor(noise_variance=0.04)",
        r"Use (sigma_noise=noise_variance \*\* 0.5)",
        "(lambda noise_variance: fit({}))(0.04)",
    ),
    "damping": ("LaplaceRegressor(damping='ritter')", r"Use (hessian_structure=Kron\()…\)", "fit({}damping='ritter'))"),
    "width": ("fit(hidden_layer_sizes=4)", r"for example (\(50,\))", "fit(hidden_layer_sizes={})"),
    "quotes": ("fit(n_members='2')", r"omit the quotes: (n_members=2)", "fit({}, hidden_layer_sizes=())"),
    "class": ("fit(hessian_structure=Kron)", r"pass an object: (hessian_structure=Kron\()…\)", "fit({}))"),
    # tables
    "one row": (
        "model.predict(X[0])",
        r"or (array\.reshape\(1, -1\)) if it contains a single",
        "(lambda array: model.predict({}))(X[0])",
    ),
    "one column": ("fit(X[:, 0])", r"either using (array\.reshape\(-1, 1\)) if", "(lambda array: fit({}))(X[:, 0])"),
    "dicts": ("fit(records)", r"Pass (pandas\.DataFrame\()X\)", "fit({}records))"),
    "fields": ("fit(structured)", r"for example (pandas\.DataFrame\()X\)", "fit({}structured))"),
    "query": ("(lambda X: fit(X))(pl.LazyFrame(X))", r"Pass (X\.collect\(\))", "(lambda X: fit({}))(pl.LazyFrame(X))"),
    "generator": ("(lambda X: fit(X))(iter(X))", r"Pass (list\(X\))", "(lambda X: fit({}))(iter(X))"),
    "swapped": ("fit(Y, X)", r"call (fit)\((X), (y)\)", "(lambda X, y: {}({}, {}))(X, Y)"),
    "order": (
        "of_frame.predict(pd.DataFrame(X[:, ::-1], columns=[3, 2, 1]))",
        r": (X\[list\(X_train\.columns\)\])",
        "(lambda X, X_train: of_frame.predict({}))(pd.DataFrame(X[:, ::-1], columns=[3, 2, 1]),"
        "pd.DataFrame(columns=[1, 2, 3]))",
    ),
    "masked rows": (
        "fit(masked, net=template())",
        r"\((sklearn\.impute\.SimpleImputer) in a pipeline, on X(\.filled\(.*?\))\)",
        "pipeline.make_pipeline({}(), LaplaceRegressor(template(), prior_precision=1.0)).fit(masked{}, Y)",
    ),
    "masked rows, built-in": ("fit(masked, net=template())", r"use (net=None)", "fit(masked, {})"),
    "gaps": (
        "fit(gaps(), net=template())",
        r"\((SimpleImputer) in a pipeline",
        "pipeline.make_pipeline(sklearn.impute.{}(), LaplaceRegressor(template(), prior_precision=1.0)).fit(gaps(), Y)",
    ),
    "gaps, built-in": ("fit(gaps(), net=template())", r"use (net=None)", "fit(gaps(), {})"),
    # targets
    "times": ("fit(y=times)", r"days: (\(y - .*)\.$", "(lambda y: fit(y={}))(times)"),
    "sparse": ("fit(y=sparse_y)", r"Use (\.toarray\(\))", "fit(y=sparse_y{})"),
    "masked": ("fit(y=masked_y)", r"\((numpy\.ma\.filled)\)", "fit(y={}(masked_y, 0.0))"),
    "one-hot": ("fit_classes(y=one_hot)", r"by (y\.argmax\(axis=1\))", "(lambda y: fit_classes(y={}))(one_hot)"),
    "mixed labels": ("fit_classes(y=mixed)", r"with (\.astype\(str\))", "fit_classes(y=mixed{})"),
    "large labels": ("fit_classes(y=large)", r"with (\.astype\(str\))", "fit_classes(y=large{})"),
    "text": ("fit(y=LABELS)", r"use (LaplaceClassifier)", "{}(**SMALL).fit(X, LABELS)"),
    "numbers": ("fit_classes(y=Y)", r"Use (LaplaceRegressor)", "{}(**SMALL).fit(X, Y)"),
    "large weights": (
        "LaplaceRegressor(**SMALL).fit(X, Y, numpy.full(N, 1e150))",
        r"(divide) all weights by their (mean)",
        "('{}', LaplaceRegressor(**SMALL).fit(X, Y, (lambda w: w / w.{}())(numpy.full(N, 1e150))))",
    ),
    "validation set": (
        "LaplaceRegressor().fit(X, Y, eval_set=1)",
        r"Use (GridSearchCV)\(model, \{'(prior_precision)': \[…\]\}, (cv=PredefinedSplit)\(…\)\)",
        "{}(LaplaceRegressor(**SMALL), {{'{}': [0.1, 1.0]}}, {}(numpy.arange(N) % 2 - 1)).fit(X, Y)",
    ),
    "epochs in fit": ("LaplaceRegressor().fit(X, Y, epochs=2)", r"Pass (max_epochs=2) to the constructor", "fit({})"),
    # functions
    "score of classes": (
        "metrics.coverage(classifier, X, LABELS)",
        r"use (neg_nlpd)",
        "metrics.{}(classifier, X, LABELS)",
    ),
    "interval function": (
        "sklearn_laplace.predict_interval(classifier, X)",
        r"use (predictive) \(.*or (predict_std)",
        "(sklearn_laplace.{}(classifier, X), sklearn_laplace.{}(classifier, X))",
    ),
    "labels first": (
        "metrics.expected_calibration_error(LABELS, LABELS)",
        r"as (predict_proba\(X\)) returns",
        "metrics.expected_calibration_error(LABELS, classifier.{})",
    ),
    "suffix": ("sklearn_laplace.save(model, folder / 'm.pkl')", r"Use ('.*')\.", "sklearn_laplace.save(model, {})"),
    "key": (
        "sklearn_laplace.save(model, folder / 'k.safetensors', key='secret')",
        r"such as (secrets\..*?\))",
        "sklearn_laplace.save(model, folder / 'k.safetensors', key={})",
    ),
    # given nets
    "monitor": (
        "fit(net=template(callbacks=[EarlyStopping()]))",
        r"Use (train_split=ValidSplit\(5\))",
        "fit(net=template(callbacks=[EarlyStopping()], {}))",
    ),
    "monitor of training": (
        "fit(net=template(callbacks=[EarlyStopping()]))",
        r"or (monitor='train_loss')",
        "fit(net=template(callbacks=[EarlyStopping({})]))",
    ),
    "batch of one row": (
        "fit(net=template(Normed, module__n_in=3, batch_size=N - 1))",
        r"Use (iterator_train__drop_last=True)",
        "fit(net=template(Normed, module__n_in=3, batch_size=N - 1, {}))",
    ),
    "criterion": (
        "fit(net=template(criterion=nn.CrossEntropyLoss))",
        r"Use (\w+)(?: or \w+)*, or",
        "fit(net=template(criterion=nn.{}))",
    ),
    "no criterion": (
        "fit(net=template(criterion=nn.CrossEntropyLoss))",
        r"or (omit) the criterion",
        "'{}' and fit(net=template())",
    ),
    "untrained list": (
        "fit(net=[template()])",
        r"as (FrozenEstimator)\(fitted skorch net\)",
        "fit(net=[{}(trained())])",
    ),
    "empty list": (
        "fit(net=[])",
        r"at least one (FrozenEstimator)\(.*?\), or (None)",
        "(fit(net=[{}(trained())]), fit(net={}))",
    ),
    "unfitted": ("fit(net=FrozenEstimator(template()))", r"(without FrozenEstimator)", "'{}' and fit(net=template())"),
    "foreign net": ("fit(net='mlp')", r"pass (None) for", "fit(net={})"),
    "text in a table": (
        "fit(towns, net=template())",
        r"\(sklearn\.preprocessing\.(OneHotEncoder), or (OrdinalEncoder)",
        "[pipeline.make_pipeline(encoder(), LaplaceRegressor(template(), prior_precision=1.0)).fit(towns, Y)"
        " for encoder in (lambda: preprocessing.{}(sparse_output=False), preprocessing.{})]",
    ),
    "frozen parameters": ("fit(net=template(Locked))", r"Call (requires_grad_\(\))", "fit(net=Locked().{})"),
    # selections and searches
    "no best estimator": (
        "sklearn_laplace.predict_std(search(refit=False), X)",
        r"set (refit=True)",
        "sklearn_laplace.predict_std(search({}), X)",
    ),
    "transformed target": (
        "sklearn_laplace.predict_std(logged(), X)",
        r"and (LaplaceRegressor)\((target_transform='log')\)",
        "{}(**SMALL, {}).fit(X, numpy.exp(Y))",
    ),
    "rescaled classes": (
        "SigmaScaling(classifier).fit(X, LABELS)",
        r"scikit-learn's (\w+)",
        "calibration.{}(LaplaceClassifier(**SMALL), cv=2).fit(X, LABELS)",
    ),
    # other methods and arguments
    "gradient of a transformed target": (
        "fit(y=numpy.exp(Y), target_transform='log').predict(X, return_mean_grad=True)",
        r"Use (target_transform=None)",
        "fit({}).predict(X, return_mean_grad=True)",
    ),
    "weights of classes": (
        "LaplaceRegressor(class_weight='balanced')",
        r"use (fit\(X, y, sample_weight=)…\)",
        "(lambda X, y: LaplaceRegressor(**SMALL).{}numpy.ones(N)))(X, Y)",
    ),
    "mask of a module": (
        "fit(subset_of_weights={'2': numpy.ones(3, dtype=bool)})",
        r"each of its tensors (\[.*?\])",
        "fit(subset_of_weights={{name: weights(name) > 0 for name in {}}})",
    ),
    "folded bias": (
        "fit(hessian_structure=Kron(bias='separate'), sigma_noise=0.3, prior=FrozenEstimator(separate))",
        r"Use (bias='folded') in both fits",
        "fit(hessian_structure=Kron({0}), sigma_noise=0.3,"
        "prior=FrozenEstimator(fit(hessian_structure=Kron({0}), sigma_noise=0.3)))",
    ),
    "labels of columns": (
        "metrics.expected_calibration_error(LABELS, numpy.full((N, 3), 1 / 3))",
        r"pass (labels=)",
        "metrics.expected_calibration_error(LABELS, numpy.full((N, 3), 1 / 3), {}['down', 'left', 'up'])",
    ),
    "labels of other types": ("fit_classes(y=days)", r"with (\.astype\(str\))", "fit_classes(y=days{})"),
    "a gap in new rows": (
        "fit().partial_fit(gaps(), Y)",
        r"\((SimpleImputer) in a pipeline",
        "fit().partial_fit(sklearn.impute.{}().fit_transform(gaps()), Y)",
    ),
    "negative curvature": (
        "fit(WAVE, numpy.sin(WAVE[:, 0]), curvature='hessian', sigma_noise=0.1)",
        r"Use (curvature='ggn')",
        "fit(WAVE, numpy.sin(WAVE[:, 0]), {}, sigma_noise=0.1)",
    ),
    "order of batches": (
        "fit(net=template(iterator_train__sampler=[0, 1]))",
        r"or (iterator_train__shuffle=True)",
        "fit(net=template({}))",
    ),
    "weights of batches": (
        "fit(net=template(iterator_train__sampler=[0, 1]))",
        r"Use (sample_weight) in fit or (class_weight=) for weights",
        "(LaplaceRegressor(template(), prior_precision=1.0).fit(X, Y, {}=numpy.ones(N)), own_classes({}'balanced'))",
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
@pytest.mark.parametrize("case", CASES)
def test_the_advice_of_a_message_works_in_place_of_the_mistake(case, names):
    mistake, pattern, followed = CASES[case]
    with pytest.raises((ValueError, TypeError, AttributeError, RuntimeError, UserWarning)) as refused:
        eval(mistake, names)
    found = re.search(pattern, str(refused.value))
    assert found, str(refused.value)
    assert eval(followed.format(*found.groups()), names) is not False


@pytest.mark.parametrize(
    ("given", "call"), [({"predictive": "mc"}, "predictive='auto'"), ({"link": "quadrature"}, "link='moderated'")]
)
def test_a_fit_is_exported_after_the_advice(given, call):
    pytest.importorskip("onnx")
    fitted = fit_classes(**given)
    with pytest.raises(ValueError, match="ONNX") as refused:
        sklearn_laplace.to_onnx(fitted)
    advice = re.search(r"use (refit_laplace\(.*?\))", str(refused.value)).group(1)
    assert call in advice
    assert sklearn_laplace.to_onnx(eval(f"model.{advice}", {"model": fitted})).graph
