"""Mistakes of the first hour: each message contains the value given, the place where it was given, and the cure."""

from __future__ import annotations

import inspect
import pickle
from types import SimpleNamespace

import nets
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from torch import nn

from sklearn_laplace import (
    LaplaceClassifier,
    LaplaceRegressor,
    load,
    metrics,
    predict_interval,
    predict_std,
    predictive,
    save,
    to_onnx,
)
from sklearn_laplace.nets import MLP
from sklearn_laplace.options import (
    GaussianPrior,
    Kron,
    Link,
    LowRank,
    MCFisher,
    Members,
    MonteCarlo,
    Subnetwork,
)
from sklearn_laplace.plotting import CoverageDisplay, PredictionIntervalDisplay, ReliabilityDisplay
from sklearn_laplace.recalibration import SigmaScaling

N = 30
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + 0.1 * RNG.normal(size=N)
LABELS = np.where(Y > 0, "up", "down")
FRAME = pd.DataFrame(X, columns=["age", "size", "rooms"])
ROW_4 = np.arange(N) == 4
FIRST = repr(str(LABELS[0]))
SMALL = nets.QUICK
LR, LC = LaplaceRegressor, LaplaceClassifier


def keeping_a_result():
    """A module that cannot be copied, as with torch's former weight norm."""
    net = nn.Sequential(nn.Linear(2, 1))
    net.doubled = 2 * net[0].weight
    return net


def fit(rows=X, y=Y, *arguments, weights=None, **parameters):
    """Fit of a small regressor, with other parameters."""
    return LR(**{**SMALL, **parameters}).fit(rows, y, weights, *arguments)


def fit_classes(rows=X, y=LABELS, **parameters):
    return LC(**{**SMALL, **parameters}).fit(rows, y)


@pytest.fixture(scope="module")
def m(tmp_path_factory):
    """Fitted models, predictions, and a folder with files."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "other.safetensors").write_bytes(b"hello")
    regressor, classifier, ridge = fit(), fit_classes(), Ridge().fit(X, Y)
    save(regressor, folder / "model.safetensors")
    return SimpleNamespace(
        r=regressor, c=classifier, f=fit(FRAME), ridge=ridge, folder=folder, pred=ridge.predict(X), std=np.full(N, 0.1)
    )


# fmt: off
CONSTRUCTORS = [
    ("alpha", lambda m: LR(alpha=0.01), TypeError, "alpha=0.01", "LaplaceRegressor()", "Use prior_precision=0.01"),
    ("max_iter", lambda m: LR(max_iter=200), TypeError, "max_iter=200", "LaplaceRegressor()", "Use max_epochs=200"),
    ("rate", lambda m: LR(learning_rate_init=0.01), TypeError, "learning_rate_init=0.01", "Regressor()", "Use lr=0.01"),
    ("solver", lambda m: LR(solver="adam"), TypeError, "solver='adam'", "LaplaceRegressor()", "pass a skorch net"),
    ("tol", lambda m: LR(tol=1e-4), TypeError, "tol=0.0001", "LaplaceRegressor()", "Omit it: the training ends at"),
    ("layers", lambda m: LC(layers=(9,)), TypeError, "layers=(9,)", "LaplaceClassifier()", "hidden_layer_sizes=(9,)"),
    ("estimators", lambda m: LR(n_estimators=9), TypeError, "n_estimators=9", "LaplaceRegressor()", "n_members=9"),
    ("spelling", lambda m: LR(prior_precison=1), TypeError,
     "prior_precison=1", "Regressor()", "mean 'prior_precision'?"),
    ("seed", lambda m: LR(seed=0), TypeError, "seed=0", "LaplaceRegressor()", "Use random_state=0"),
    ("former", lambda m: LR(damping="ritter"), TypeError, "damping='ritter'", "Regressor()", "hessian_structure=Kron("),
    ("cv", lambda m: LR(cv=5), TypeError, "cv=5", "LaplaceRegressor()", "Use GridSearchCV(model, {"),
    ("classes", lambda m: LR(class_weight="balanced"), TypeError,
     "'balanced'", "Regressor()", "Only LaplaceClassifier"),
    ("sigma", lambda m: LC(sigma_noise=0.1), TypeError,
     "sigma_noise=0.1", "LaplaceClassifier()", "Only LaplaceRegressor"),
    ("penalty", lambda m: LC(penalty="l1"), TypeError, "penalty='l1'", "LaplaceClassifier()", "prior_precision is its"),
    ("option", lambda m: Kron(dampng="exact"), TypeError, "dampng='exact'", "Kron()", "Did you mean 'damping'?"),
    ("mlp", lambda m: MLP(3, 1, activation="sigmoid"), ValueError, "'sigmoid'", "activation=", "one of 'gelu', 'relu'"),
    ("mlp sizes", lambda m: MLP(3, 1, 50), ValueError, "=50", "hidden_layer_sizes", "for example (50,)"),
    ("mlp columns", lambda m: MLP("3", 1), ValueError, "='3'", "in_features", "a whole number of at least 1"),
]
VALUES = [
    ("layer", lambda m: fit(hidden_layer_sizes=50), ValueError, "=50", "hidden_layer_sizes", "for example (50,)"),
    ("rule", lambda m: fit(prior_precision="cv"), ValueError, "'cv'", "prior_precision", "of 'auto', 'evidence'"),
    ("activation", lambda m: fit(activation="sigmoid"), ValueError, "'sigmoid'", "activation", "one of 'auto', 'gelu'"),
    ("quotes", lambda m: fit(prior_precision="1.0"), ValueError,
     "='1.0'", "prior_precision", "omit the quotes: prior_pr"),
    ("word", lambda m: fit(sigma_noise="high"), ValueError, "'high'", "sigma_noise", "or a finite number above zero"),
    ("members", lambda m: fit(n_members="5"), ValueError, "='5'", "n_members", "omit the quotes: n_members=5"),
    ("bins", lambda m: fit(n_bins="4"), ValueError, "='4'", "n_bins", "omit the quotes: n_bins=4"),
    ("negative", lambda m: fit(prior_precision=-1.0), ValueError,
     "=-1.0", "prior_precision", "finite number above zero"),
    ("structure", lambda m: fit(hessian_structure="kfac"), ValueError,
     "'kfac'", "hessian_structure", "of 'auto', 'block"),
    ("device", lambda m: fit(device="gpu"), ValueError, "'gpu'", "device", "expected 'auto', 'cpu' or 'cuda'"),
    ("likelihood", lambda m: fit(likelihood="normal"), ValueError,
     "'normal'", "likelihood", "one of 'auto', 'gaussian'"),
    ("columns", lambda m: fit(categorical_features=[7]), ValueError, "position 7", "categorical_features", "0 to 2"),
    ("weight", lambda m: fit_classes(class_weight={"left": 2.0}), ValueError,
     "['left']", "class_weight", "Remove them"),
    ("weights", lambda m: fit_classes(class_weight=[1, 2]), ValueError,
     "[1, 2]", "class_weight", "a dict {label: weight}"),
    ("link", lambda m: fit_classes(link="softmax"), ValueError, "'softmax'", "link", "one of 'bridge', 'bridge_norm'"),
    ("damping", lambda m: fit(hessian_structure=Kron(damping="x")), ValueError, "'x'", "damping", "'exact', 'ritter'"),
    ("class", lambda m: fit(hessian_structure=Kron), ValueError, "=Kron is a class", "hessian_structure", "=Kron(…)"),
    ("place", lambda m: fit(curvature=Kron()), ValueError, "Kron()", "curvature=", "is a value of hessian_structure"),
    ("rank", lambda m: fit(hessian_structure=LowRank("10")), ValueError,
     "='10'", "rank", "a whole number of at least 1"),
    ("draws", lambda m: fit(predictive=MonteCarlo(-1)), ValueError, "=-1", "n_samples", "a whole number of at least 1"),
    ("fisher", lambda m: fit(curvature=MCFisher(0)), ValueError, "=0", "n_samples of MCFisher", "number of at least 1"),
    ("share", lambda m: fit(subset_of_weights=Subnetwork(size=2.0)), ValueError,
     "=2.0", "size of Subnetwork", "at most 1"),
    ("prior", lambda m: fit(prior=GaussianPrior("layers")), ValueError, "'layers'", "prior=", "Did you mean 'layer'?"),
    ("unfrozen", lambda m: fit(prior=m.r), TypeError, "LaplaceRegressor(", "prior=", "or FrozenEstimator(fitted"),
    ("stacking", lambda m: fit(n_members=Members(3, "best")), ValueError,
     "'best'", "weights of Members", "'evidence', 'lo"),
    ("draw", lambda m: fit_classes(link=Link("logit")), ValueError,
     "'logit'", "link=", "one of 'bridge', 'bridge_norm'"),
    ("weight-norm", lambda m: LR(keeping_a_result()).fit(X, Y), ValueError,
     "Sequential", "copied", "parametrizations.weight_norm"),
    ("net", lambda m: LR("mlp").fit(X, Y), TypeError, "'mlp'", "net=", "pass None for the built-in net"),
    ("own net", lambda m: LR(nn.Linear, hidden_layer_sizes=(9,)).fit(X, Y), ValueError,
     "=(9,)", "hidden_layer_sizes", "net="),
    ("factory", lambda m: LR(lambda: None).fit(X, Y), TypeError, "<lambda>", "net=", "pass None for the built-in net"),
    ("foreign", lambda m: LR(Ridge()).fit(X, Y), TypeError, "Ridge()", "net=", "pass None for the built-in net"),
    ("refit", lambda m: m.r.refit_laplace(lr=0.1), ValueError, "lr=0.1", "refit_laplace", "Use set_params and fit"),
    ("refits", lambda m: m.r.refit_laplace(prior_precison=1), ValueError,
     "'prior_precison'", "parameter", "'prior_precision'?"),
    ("search", lambda m: LR().set_params(hessian_structure__damping="ritter"), ValueError,
     "damping='ritter'", "hessian_structure='auto'", "hessian_structure=Kron(damping='ritter')"),
    ("misspelt", lambda m: GridSearchCV(LR(), {"lrr": [1.0]}, cv=2).fit(X, Y), ValueError,
     "'lrr'", "LaplaceRegressor", "'lr'"),
]
ROWS = [
    ("None", lambda m: fit(None), ValueError, "None", "X is", "pass a table of shape (n_samples, n_features)"),
    ("text", lambda m: fit(y=pd.DataFrame({"t": LABELS})), ValueError, FIRST, "y holds", "use LaplaceClassifier"),
    ("y None", lambda m: fit(y=[None, *Y[1:]]), ValueError, "None", "y contains None: 1 of 30", "Drop these rows"),
    ("y nan", lambda m: fit(y=np.where(ROW_4, np.nan, Y)), ValueError, "NaN", "Input y", "the first in row 4. Drop"),
    ("y inf", lambda m: fit(y=np.where(ROW_4, np.inf, Y)), ValueError,
     "infinity", "y contains", "the first in row 4. Drop"),
    ("y dates", lambda m: fit(y=pd.date_range("2020", periods=N)), ValueError,
     "2020-01-01", "y holds", "timedelta64(1, 'D')"),
    ("y complex", lambda m: fit(y=Y + 1j), ValueError, "+1j", "y holds", "Pass the parts as two targets"),
    ("y 3d", lambda m: fit(y=np.zeros((N, 2, 2))), ValueError, "(30, 2, 2)", "y has shape", "expected one target, or"),
    ("swapped", lambda m: fit(Y, X), ValueError, "X has shape (30,)", "y has shape (30, 3)", "call fit(X, y)"),
    ("lengths", lambda m: fit(y=Y[:9]), ValueError, "30 rows", "y has 9", "Pass one target for each row"),
    ("dicts", lambda m: fit([{"a": 1.0}] * N), ValueError, "a list of dicts", "X is", "Pass pandas.DataFrame(X)"),
    ("sparse", lambda m: fit(csr_matrix(X)), TypeError, "Sparse data", "for X", "toarray()"),
    ("dict", lambda m: fit({"a": Y}), TypeError, "dict", "X is of type", "pandas.DataFrame(X)"),
    ("path", lambda m: fit("data.csv"), TypeError, "'data.csv'", "X=", "Pass a list, an array or a dataframe"),
    ("name", lambda m: fit(FRAME, "age"), TypeError, "'age'", "y=", "Pass a list, an array or a dataframe"),
    ("ragged", lambda m: fit([[1, 2], [3]], [1, 2]), ValueError,
     "has 1 values", "row 1 of X", "Make all rows equally long"),
    ("inf", lambda m: fit(np.where(X > 2, np.inf, X)), ValueError, "infinity", "column", "Replace it by a number"),
    ("lists", lambda m: fit(pd.DataFrame({"a": [[1, 2]] * N})), TypeError,
     "[1, 2]", "column 'a' of X", "Convert the column"),
    ("twice", lambda m: fit(FRAME.set_axis(["a", "a", "b"], axis=1)), ValueError, "'a'", "2 columns", "Rename them"),
    ("weight len", lambda m: fit(weights=np.ones(7)), ValueError, "has 7 entries", "sample_weight", "one for each row"),
    ("weight < 0", lambda m: fit(weights=-np.ones(N)), ValueError,
     "holds -1.0", "sample_weight", "Use 0 for rows to ignore"),
    ("weight nan", lambda m: fit(weights=np.where(ROW_4, np.nan, 1)), ValueError,
     "nan in row 4", "sample_weight", "Use 0 for"),
    ("weight name", lambda m: LR().fit(X, Y, weights=[1]), TypeError, "weights=[1]", "fit()", "Use sample_weight="),
    ("epochs", lambda m: LR().fit(X, Y, epochs=9), TypeError,
     "epochs=9", "fit()", "Pass max_epochs=9 to the constructor"),
    ("eval_set", lambda m: LR().fit(X, Y, eval_set=9), TypeError, "eval_set=9", "fit()", "cv=PredefinedSplit(…)"),
    ("noise", lambda m: fit(X, Y, -np.ones(N)), ValueError, "-1 in row 0", "sample_noise_variance", "above zero"),
    ("noise nan", lambda m: fit(X, Y, np.where(ROW_4, np.nan, 1)), ValueError,
     "nan in row 4", "noise_variance", "above zero"),
    ("one class", lambda m: fit_classes(y=["a"] * N), ValueError,
     "'a'", "y holds one class only", "at least 2 classes"),
    ("one-hot", lambda m: fit_classes(y=np.eye(2)[(Y > 0) * 1]), ValueError,
     "(30, 2)", "y should be", "y.argmax(axis=1)"),
    ("numbers", lambda m: fit_classes(y=Y), ValueError, str(Y[0]), "y holds numbers", "Use LaplaceRegressor"),
    ("mixed", lambda m: fit_classes(y=[1, *LABELS[1:]]), ValueError,
     "1 and", "y holds labels", "example with .astype(str)"),
]
METHODS = [
    ("unfitted", lambda m: LR().predict(X), NotFittedError, "not fitted yet", "LaplaceRegressor", "Call 'fit'"),
    ("width", lambda m: m.r.predict(X[:, :2]), ValueError, "2 features", "X has", "expecting 3 features"),
    ("one row", lambda m: m.r.predict(X[0]), ValueError, "1D array", "Expected 2D array", "array.reshape(1, -1)"),
    ("names", lambda m: m.f.predict(FRAME.rename(columns={"age": "Age"})), ValueError,
     "- Age", "feature names", "- age"),
    ("gaps", lambda m: m.r.partial_fit(np.where(ROW_4[:, None], np.nan, X), Y), ValueError,
     "NaN", "row 4", "Impute it"),
    ("strings", lambda m: m.r.predict([["a", 1, 2]]), ValueError,
     "'a'", "column 0 of X", "Convert the column to numbers"),
    ("std of classes", lambda m: m.c.predict(X, return_std=True), TypeError,
     "return_std=True", "Classifier.predict()", "Use predict_std(X), and predict_proba(X)"),
    ("std of proba", lambda m: m.c.predict_proba(X, return_std=True), TypeError,
     "return_std=True", "predict_proba()", "_std(X)"),
    ("letters", lambda m: m.r.predict(X, return_sdt=True), TypeError,
     "return_sdt=True", "predict()", "mean 'return_std'?"),
    ("kind", lambda m: m.r.predict(X, kind="epistemic"), TypeError,
     "kind='epistemic'", "predict()", "Use predict_std(X, kind="),
    ("flag", lambda m: m.r.predict(X, return_std="yes"), ValueError, "'yes'", "return_std=", "True or False"),
    ("both", lambda m: m.r.predict(X, True, True), RuntimeError, "return_std", "return_cov", "At most one"),
    ("proba", lambda m: m.r.predict_proba(X), AttributeError,
     "'predict_proba'", "LaplaceRegressor", "use predict_dist(X)"),
    ("interval", lambda m: m.c.predict_interval(X), AttributeError,
     "'predict_interval'", "Classifier", "use predict_proba(X)"),
    ("alpha", lambda m: m.r.predict_interval(X, alpha=0.1), TypeError,
     "alpha=0.1", "predict_interval()", "level=1 - alpha"),
    ("level", lambda m: m.r.predict_interval(X, level=0.9), TypeError,
     "level=0.9", "predict_interval()", "confidence_level=0.9"),
    ("percent", lambda m: m.r.predict_interval(X, 90), ValueError, "=90", "confidence_level", "90 % is 0.9"),
    ("level 1", lambda m: m.r.predict_interval(X, 1.0), ValueError,
     "=1.0", "confidence_level", "strictly between 0 and 1"),
    ("no level", lambda m: m.r.predict_interval(X, []), ValueError,
     "=[]", "confidence_level", "strictly between 0 and 1"),
    ("word level", lambda m: m.r.predict_interval(X, "high"), ValueError,
     "'high'", "confidence_level", "between 0 and 1"),
    ("quantile", lambda m: m.r.predict_quantiles(X, 95), ValueError, "=95", "quantiles", "95 % is 0.95"),
    ("quantile 0", lambda m: m.r.predict_quantiles(X, [0.5, 0.0]), ValueError,
     "[0.5, 0.0]", "quantiles", "between 0 and 1"),
    ("nested", lambda m: m.r.predict_quantiles(X, [[0.5]]), ValueError,
     "[[0.5]]", "quantiles", "strictly between 0 and 1"),
    ("q", lambda m: m.r.predict_quantiles(X, q=0.5), TypeError, "q=0.5", "predict_quantiles()", "Use quantiles=0.5"),
    ("part", lambda m: m.r.predict_std(X, kind="epistemc"), ValueError,
     "'epistemc'", "kind", "Did you mean 'epistemic'?"),
    ("no part", lambda m: m.c.predict_std(X, kind=None), ValueError,
     "=None", "kind", "expected one of 'aleatoric', 'all'"),
    ("X_std", lambda m: m.r.predict_std(X, X_std=np.ones(2)), ValueError, "(2,)", "X_std", "expected a number, (3,)"),
    ("nats", lambda m: m.c.predict_entropy(X, kind="nats"), ValueError,
     "'nats'", "kind", "expected one of 'aleatoric', 'all'"),
    ("draws", lambda m: m.r.sample_y(X, 0), ValueError, "=0", "n_samples", "a whole number of at least 1"),
    ("half draws", lambda m: m.r.sample_y(X, 1.5), ValueError, "=1.5", "n_samples", "a whole number"),
    ("true draws", lambda m: m.c.sample_y(X, True), ValueError, "=True", "n_samples", "a whole number"),
    ("size", lambda m: m.r.sample_y(X, size=3), TypeError, "size=3", "sample_y()", "Use n_samples=3"),
    ("draw kind", lambda m: m.c.sample_y(X, kind="all"), ValueError,
     "'all'", "kind", "expected one of 'epistemic', 'total'"),
    ("draw seed", lambda m: m.r.sample_y(X, random_state="a"), ValueError,
     "'a'", "random_state", "None, a whole number"),
    ("evidence", lambda m: m.r.log_marginal_likelihood(-1.0), ValueError,
     "=-1.0", "prior_precision", "number above zero"),
    ("rule", lambda m: m.r.log_marginal_likelihood("evidence"), ValueError,
     "'evidence'", "prior_precision", "number above zero"),
    ("groups", lambda m: m.r.log_marginal_likelihood([1.0, 2.0]), ValueError,
     "[1.0, 2.0]", "prior_precision", "one number or 1"),
    ("no noise", lambda m: m.r.log_marginal_likelihood(sigma_noise=0.0), ValueError,
     "=0.0", "sigma_noise", "above zero"),
    ("class noise", lambda m: m.c.log_marginal_likelihood(sigma_noise=1.0), ValueError,
     "=1.0", "sigma_noise", "cannot be used"),
    ("hot", lambda m: m.r.log_marginal_likelihood(temperature=np.inf), ValueError, "=inf", "temperature", "above zero"),
    ("theta", lambda m: m.r.log_marginal_likelihood(theta=1), TypeError,
     "theta=1", "likelihood()", "Use prior_precision=1"),
    ("report", lambda m: m.r.report(X, LABELS), ValueError, FIRST, "y holds values", "use LaplaceClassifier"),
    ("density", lambda m: m.r.log_predictive_density(X, Y[:3]), ValueError,
     "(3,)", "y has shape", "one target for each"),
    ("new class", lambda m: m.c.partial_fit(X, ["left"] * N), ValueError,
     "['left']", "y holds the labels", "Pass all classes"),
]
FUNCTIONS = [
    ("nlpd 3", lambda m: metrics.neg_nlpd(Y, m.pred, m.std), TypeError,
     "ndarray of shape (30,)", "first arg", "Pass a fitted"),
    ("dist", lambda m: metrics.neg_nlpd(m.r.predict_dist(X), X, Y), TypeError,
     "object of type", "first argument", "Pass a fit"),
    ("class", lambda m: metrics.coverage(LR, X, Y), TypeError,
     "class LaplaceRegressor", "first argument", "Pass a fitted"),
    ("order", lambda m: metrics.coverage(X, Y, m.r), TypeError,
     "ndarray of shape (30, 3)", "first argument", "then rows X"),
    ("classifier", lambda m: metrics.coverage(m.c, X, LABELS), TypeError,
     "LaplaceClassifier", "coverage", "use neg_nlpd"),
    ("points", lambda m: metrics.neg_crps(m.ridge, X, Y), TypeError,
     "Ridge", "predictive distribution", "expected a Laplace"),
    ("level", lambda m: metrics.coverage(m.r, X, Y, confidence_level=90), ValueError,
     "=90", "confidence_level", "is 0.9"),
    ("levels", lambda m: metrics.coverage(m.r, X, Y, confidence_level=[0.5]), ValueError,
     "[0.5]", "confidence", "a single n"),
    ("alpha", lambda m: metrics.neg_interval_score(m.r, X, Y, alpha=0.1), TypeError,
     "alpha=0.1", "score()", "level=1 - alpha"),
    ("weights", lambda m: metrics.neg_crps(m.r, X, Y, weights=9), TypeError,
     "weights=9", "neg_crps()", "sample_weight=9"),
    ("lengths", lambda m: metrics.neg_crps(m.r, X, Y[:3]), ValueError, "(3,)", "y has shape", "one target for each"),
    ("no y", lambda m: metrics.neg_crps(m.r, X, None), ValueError, "None", "y is", "pass the 30 targets"),
    ("nan", lambda m: metrics.neg_crps(m.r, X, np.where(ROW_4, np.nan, Y)), ValueError,
     "NaN", "y contains", "in row 4. Drop"),
    ("text", lambda m: metrics.neg_crps(m.r, X, LABELS), ValueError,
     FIRST, "y holds values such as", "use LaplaceClassifier"),
    ("kinds", lambda m: metrics.neg_nlpd(m.c, X, (Y > 0) * 1), ValueError,
     "such as ", "y holds labels", "of the same type"),
    ("label", lambda m: metrics.neg_nlpd(m.c, X, [None, *LABELS[1:]]), ValueError, "None", "y contains", "row 0. Drop"),
    ("ece", lambda m: metrics.expected_calibration_error(m.c.predict_proba(X), LABELS), ValueError,
     "(30, 2)", "y_true", "first"),
    ("ece labels", lambda m: metrics.expected_calibration_error(LABELS, LABELS), ValueError,
     FIRST, "y_prob", "predict_proba(X)"),
    ("ece bins", lambda m: ReliabilityDisplay.from_predictions(LABELS, LABELS), ValueError,
     FIRST, "y_prob", "predict_proba(X)"),
    ("table", lambda m: metrics.cross_validate_distribution(m.r, X, Y, levels=[50]), ValueError,
     "[50]", "levels", "is 0.5"),
    ("scaling", lambda m: SigmaScaling(m.std).fit(X, Y), TypeError,
     "ndarray of shape (30,)", "first argument", "Pass a fit"),
    ("scaled", lambda m: SigmaScaling(m.r).predict_interval(X, alpha=0.1), TypeError,
     "alpha=0.1", "interval()", "1 - alpha"),
    ("scale text", lambda m: SigmaScaling(m.r).fit(X, LABELS), ValueError,
     FIRST, "y holds values such as", "LaplaceClassifier"),
    ("scale classes", lambda m: SigmaScaling(m.c).fit(X, LABELS), TypeError,
     "LaplaceClassifier", "SigmaScaling", "use scikit"),
    ("std", lambda m: predict_std(X, m.r), TypeError,
     "ndarray of shape (30, 3)", "first argument", "Pass a fitted estimator"),
    ("interval", lambda m: predict_interval(m.r, X, alpha=0.1), TypeError,
     "alpha=0.1", "predict_interval()", "=1 - alpha"),
    ("of classes", lambda m: predict_interval(m.c, X), TypeError,
     "LaplaceClassifier", "predict_interval", "use predictive"),
    ("of points", lambda m: predictive(m.ridge, X), TypeError,
     "Ridge", "no predictive distribution", "expected a Laplace"),
    ("display", lambda m: CoverageDisplay.from_estimator(m.c, X, LABELS), TypeError,
     "LaplaceClassifier", "CoverageDisplay", "Re"),
    ("classes", lambda m: ReliabilityDisplay.from_estimator(m.r, X, Y), TypeError,
     "LaplaceRegressor", "ReliabilityD", "Covera"),
    ("column", lambda m: PredictionIntervalDisplay.from_estimator(m.r, X, Y, feature="age"), ValueError,
     "'age'", "feature", "0, 1"),
    ("arrays", lambda m: CoverageDisplay.from_estimator(Y, m.pred, m.std), TypeError,
     "ndarray of", "first argument", "Pass a"),
    ("labels", lambda m: CoverageDisplay.from_estimator(m.r, X, LABELS), ValueError,
     FIRST, "y holds values such", "use Laplace"),
    ("suffix", lambda m: save(m.r, m.folder / "m.pkl"), ValueError, "m.pkl", "path=", "m.safetensors"),
    ("onnx-suffix", lambda m: to_onnx(m.r, m.folder / "m.pt"), ValueError, "m.pt", "path=", "m.onnx"),
    ("no folder", lambda m: save(m.r, m.folder / "no" / "m.safetensors"), OSError,
     "m.safetensors", "the folder", "Create it"),
    ("folder", lambda m: save(m.r, m.folder), OSError, "files", "is a folder", "pass the path of a file"),
    ("model", lambda m: save(m.ridge, m.folder / "m.safetensors"), TypeError,
     "Ridge", "save was given", "expected a Laplace"),
    ("no file", lambda m: load(m.folder / "m.safetensors"), OSError,
     "m.safetensors", "does not exist", "Pass the path of"),
    ("a folder", lambda m: load(m.folder), ValueError, "files", "not a regular file", "Pass the path of a file"),
    ("other file", lambda m: load(m.folder / "other.safetensors"), ValueError,
     "other.safetensors", "file", "Write it again"),
    ("key", lambda m: save(m.r, m.folder / "m.safetensors", key="secret"), ValueError,
     "a str", "key is", "at least 16 bytes"),
    ("trusted", lambda m: load(m.folder / "model.safetensors", trusted="all"), ValueError,
     "'all'", "trusted", "[MyModule]"),
    ("onnx", lambda m: to_onnx(LogisticRegression()), TypeError,
     "LogisticRegression", "to_onnx was given", "expected a fit"),
]
# fmt: on


@pytest.mark.parametrize(
    ("call", "error", "given", "place", "cure"),
    [
        pytest.param(*row, id=f"{group}: {name}")
        for group, cases in {
            "constructor": CONSTRUCTORS,
            "value": VALUES,
            "fit": ROWS,
            "method": METHODS,
            "function": FUNCTIONS,
        }.items()
        for name, *row in cases
    ],
)
def test_a_mistake_is_named_with_its_place_and_cure(m, call, error, given, place, cure):
    """All three parts are in the message, and the message is short enough to be read."""
    with pytest.raises(error) as caught:
        call(m)
    message = str(caught.value)
    assert [part for part in (given, place, cure) if part not in message] == []
    assert len(message) < 1000


def test_explained_functions_are_the_same_to_tools():
    """Signatures, names and pickles do not change; a method of another estimator does not exist."""
    assert list(inspect.signature(LR.predict_interval).parameters) == ["self", "X", "confidence_level"]
    assert inspect.signature(metrics.coverage).parameters["confidence_level"].default == 0.9
    for function in (metrics.neg_nlpd, metrics.log_density_scorer, metrics.coverage, predict_interval, LR.fit):
        assert pickle.loads(pickle.dumps(function)) is function
    assert {"alpha", "epochs"}.isdisjoint(LR().get_params()) and clone(LR(lr=0.1)).lr == 0.1
    assert not hasattr(LC(), "predict_interval") and not hasattr(LR, "predict_proba")


def test_only_unknown_arguments_are_explained(m):
    """Python names missing ones, and those given twice."""
    with pytest.raises(
        TypeError, match=r"predict_std\(\) got an unexpected keyword argument 'q' \(q=1\)\. Its arguments are X, kind"
    ):
        m.r.predict_std(X, q=1)
    with pytest.raises(TypeError, match=r"predict_std\(\) got multiple values for argument 'X'"):
        m.r.predict_std(X, X=2)
    with pytest.raises(TypeError, match=r"fit\(\) missing 1 required positional argument: 'y'"):
        LR().fit(X)
