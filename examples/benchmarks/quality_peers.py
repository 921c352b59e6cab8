"""Peers of the quality benchmarks: estimators independent of this package, all with the same interface.

A regressor has ``predict(X, return_std=True)``, which returns mean and standard deviation of a normal distribution in
the units of y. A classifier has ``predict_proba``. A *family* is a function that fits related models together,
``family(X, y, seed)``, and yields ``(name, estimator, seconds)``. A net is trained once for all members of its family,
and its seconds count for each member. Seconds are processor time.

The nets are tanh nets with standardised columns and standardised numeric targets, trained by full-batch Adam for 2,000
steps at a rate of .01. Several nets are trained at once (:func:`trained_nets`).

- MAP: the net itself, with the std σ of the training residuals for regression, and the softmax for classification.
- laplace-torch 0.3 on the same net: full GGN of all weights and, for regression, of the last layer. Prior precision and
  noise maximise its marginal likelihood, and the link of classifiers is probit.
- ensemble: five nets from different initial weights, the first of which is the MAP. The variance is that of their means
  plus σ².
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

Fitted = Iterator[tuple[str, Any, float]]

ADAM_STEPS, RATE, MEMBERS, WEIGHT_DECAY = 2000, 0.01, 5, 1e-4
REGRESSION_LAYERS, CLASS_LAYERS = (50,), (50, 50)
CLASS_PRECISIONS = 0.01, 0.1, 1.0, 10.0, 100.0
"""Candidate prior precisions of the MAP of classes, chosen by the log-likelihood of held-out training rows."""
HELD_OUT = 0.2
LARGEST_GP = 2000


# ---------------------------------------------------------------------- estimators


class Normal(RegressorMixin, BaseEstimator):
    """Regressor from a function of X that returns mean and standard deviation."""

    def __init__(self, moments: Any) -> None:
        self.moments = moments

    def predict(self, X: Any, return_std: bool = False) -> Any:
        mean, std = self.moments(X)
        return (mean, std) if return_std else mean


class Probabilities(ClassifierMixin, BaseEstimator):
    """Classifier from a function of X that returns probabilities."""

    def __init__(self, probabilities: Any, classes: np.ndarray) -> None:
        self.probabilities, self.classes_ = probabilities, classes

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.probabilities(X)

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(1)]


# ---------------------------------------------------------------------- nets


def trained_nets(
    x: torch.Tensor, target: torch.Tensor, layers: Sequence[int], decays: Sequence[float], seed: int
) -> list[torch.nn.Sequential]:
    """Nets from torch's initial weights, one for each weight decay λ, which minimise mean loss + λ/2 ‖θ‖² jointly.

    The loss is the mean squared error for float targets (n, 1), and the cross-entropy for class indices (n,).
    """
    n_outputs = 1 if target.is_floating_point() else int(target.max()) + 1
    sizes = [x.shape[1], *layers, n_outputs]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nets = [_net(sizes) for _ in decays]
    weights = [torch.stack(each).detach() for each in zip(*(net.parameters() for net in nets), strict=True)]
    weights = [w.mT.contiguous() if w.ndim == 3 else w[:, None] for w in weights]  # (nets, in, out), (nets, 1, out)
    for w in weights:
        w.requires_grad_()
    decay = torch.tensor(decays, dtype=x.dtype)[:, None, None]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    for _ in range(ADAM_STEPS):
        h = x.expand(len(nets), *x.shape)
        for k in range(0, len(weights), 2):
            h = torch.baddbmm(weights[k + 1], h if k == 0 else h.tanh(), weights[k])
        if target.is_floating_point():
            loss = ((h - target) ** 2).mean((1, 2)).sum()
        else:
            loss = torch.nn.functional.cross_entropy(h.flatten(0, 1), target.repeat(len(nets))) * len(nets)
        loss = loss + sum((decay * w**2).sum() for w in weights) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for i, net in enumerate(nets):
        for parameter, w in zip(net.parameters(), weights, strict=True):
            parameter.data = (w[i].T if parameter.ndim == 2 else w[i, 0]).detach().contiguous().clone()
    return nets


def _net(sizes: Sequence[int]) -> torch.nn.Sequential:
    parts: list[torch.nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        parts += [torch.nn.Linear(n_in, n_out), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts[:-1])


def regression_nets(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
    scale, centre, spread = StandardScaler().fit(X), y.mean(), y.std()
    x, target = _tensor(scale.transform(X)), _tensor((y - centre) / spread)[:, None]

    def estimator(moments: Any) -> Normal:
        def in_units_of_y(X_new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean, variance = moments(_tensor(scale.transform(X_new)))
            return centre + spread * mean.double().numpy().ravel(), spread * variance.double().sqrt().numpy().ravel()

        return Normal(in_units_of_y)

    def outputs(nets: list[torch.nn.Sequential], points: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.stack([net(points) for net in nets]).double()

    start = time.process_time()
    (net,) = trained_nets(x, target, REGRESSION_LAYERS, [WEIGHT_DECAY], seed)
    noise = ((outputs([net], x)[0] - target) ** 2).mean()
    training = time.process_time() - start
    yield "MAP", estimator(lambda points: (outputs([net], points)[0], noise.expand(len(points)))), training
    for name, subset in {"laplace-torch": "all", "laplace-torch, last layer": "last_layer"}.items():
        start = time.process_time()
        fitted = laplace_torch(net, x, target, "regression", subset)

        def moments(points: torch.Tensor, fitted: Any = fitted) -> tuple[torch.Tensor, torch.Tensor]:
            mean, variance = fitted(points)
            return mean.detach(), variance.detach().ravel() + fitted.sigma_noise.detach().ravel() ** 2

        yield name, estimator(moments), training + time.process_time() - start
    start = time.process_time()
    nets = trained_nets(x, target, REGRESSION_LAYERS, [WEIGHT_DECAY] * MEMBERS, seed)
    residual = ((outputs(nets, x).mean(0) - target) ** 2).mean()

    def mixture(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        means = outputs(nets, points)
        return means.mean(0), means.var(0, unbiased=False) + residual

    yield "ensemble", estimator(mixture), time.process_time() - start


def class_nets(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
    """MAP and laplace-torch; held-out training rows choose the decay, and the net is trained on all of them."""
    classes, index = np.unique(y, return_inverse=True)
    scale = StandardScaler().fit(X)
    x, target = _tensor(scale.transform(X)), torch.from_numpy(index)
    start = time.process_time()
    fit, held = train_test_split(np.arange(len(y)), test_size=HELD_OUT, stratify=y, random_state=seed)
    tried = trained_nets(x[fit], target[fit], CLASS_LAYERS, [d / len(fit) for d in CLASS_PRECISIONS], seed)
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(net(x[held]), target[held]).item() for net in tried]
    precision = CLASS_PRECISIONS[int(np.argmin(losses))]
    (net,) = trained_nets(x, target, CLASS_LAYERS, [precision / len(y)], seed)
    training = time.process_time() - start

    def softmax(X_new: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return net(_tensor(scale.transform(X_new))).double().softmax(1).numpy()

    yield "MAP, 2 × 50", Probabilities(softmax, classes), training
    start = time.process_time()
    fitted = laplace_torch(net, x, target, "classification", "all")

    def probit(X_new: np.ndarray) -> np.ndarray:
        found = fitted(_tensor(scale.transform(X_new)), pred_type="glm", link_approx="probit")
        return found.detach().double().numpy()

    yield "laplace-torch, 2 × 50", Probabilities(probit, classes), training + time.process_time() - start


def laplace_torch(net: Any, x: torch.Tensor, target: torch.Tensor, likelihood: str, subset: str) -> Any:
    """Fit of laplace-torch with the full GGN; prior precision and, for numbers, noise by marginal likelihood."""
    from laplace import Laplace
    from laplace.curvature import AsdlGGN, BackPackGGN

    backend = BackPackGGN if likelihood == "regression" else AsdlGGN
    fitted = Laplace(net, likelihood, subset_of_weights=subset, hessian_structure="full", backend=backend)
    rows = torch.utils.data.TensorDataset(x, target)
    fitted.fit(torch.utils.data.DataLoader(rows, batch_size=len(x)))
    # its log_marginal_likelihood(δ, σ), from eigenvalues computed once, instead of a determinant at each step
    eigenvalues = torch.linalg.eigvalsh(fitted.H.double()).clamp_min(0.0).numpy()
    squares = float((fitted.mean.double() ** 2).sum()) if subset == "all" else float(_last(net).pow(2).sum())
    loss, n, p = float(fitted.loss), len(x), len(eigenvalues)

    def negative_evidence(logs: np.ndarray) -> float:
        delta, variance = np.exp(logs[0]), np.exp(2 * logs[1]) if likelihood == "regression" else 1.0
        fit = -loss / variance - (n * np.log(2 * np.pi * variance) / 2 if likelihood == "regression" else 0.0)
        occam = np.log(eigenvalues / variance + delta).sum() - p * logs[0] + delta * squares
        return -(fit - occam / 2)

    found = minimize(negative_evidence, np.zeros(2 if likelihood == "regression" else 1), method="L-BFGS-B").x
    fitted.prior_precision = torch.tensor([np.exp(found[0])]).float()
    if likelihood == "regression":
        fitted.sigma_noise = torch.tensor([np.exp(found[1])]).float()
    return fitted


def _last(net: torch.nn.Sequential) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(net[-1].parameters()).detach().double()


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float()


# ---------------------------------------------------------------------- without nets


def bayesian_ridge(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
    yield _timed("BayesianRidge", make_pipeline(StandardScaler(), BayesianRidge()), X, y)


def gaussian_process(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
    if len(y) <= LARGEST_GP:
        kernel = ConstantKernel() * RBF(np.sqrt(X.shape[1])) + WhiteKernel(0.1)
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
        yield _timed("Gaussian process", make_pipeline(StandardScaler(), process), X, y)


def ngboost(X: Any, y: np.ndarray, seed: int) -> Fitted:
    from ngboost import NGBRegressor

    start = time.process_time()
    columns = numeric_columns().fit(X)
    model = NGBRegressor(random_state=seed, verbose=False).fit(columns.transform(X), y)

    def moments(X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        found = model.pred_dist(columns.transform(X_new))
        return found.loc, found.scale

    yield "NGBoost", Normal(moments), time.process_time() - start


def ngboost_classes(X: Any, y: np.ndarray, seed: int) -> Fitted:
    from ngboost import NGBClassifier
    from ngboost.distns import k_categorical

    start = time.process_time()
    columns = numeric_columns().fit(X)
    classes, index = np.unique(y, return_inverse=True)
    model = NGBClassifier(Dist=k_categorical(len(classes)), random_state=seed, verbose=False)
    model.fit(columns.transform(X), index)
    found = Probabilities(lambda X_new: model.predict_proba(columns.transform(X_new)), classes)
    yield "NGBoost", found, time.process_time() - start


def logistic(X: Any, y: np.ndarray, seed: int) -> Fitted:
    model = LogisticRegressionCV(Cs=10, cv=5, scoring="neg_log_loss", l1_ratios=(0,), max_iter=2000)
    model.set_params(use_legacy_attributes=False)
    yield _timed("logistic", make_pipeline(numeric_columns(), model), X, y)


def boosting(X: Any, y: np.ndarray, seed: int) -> Fitted:
    """Boosted trees with one σ for all rows: the RMS held-out residual of five folds of the training rows."""
    start = time.process_time()
    model = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=seed)
    X = _categories(X)
    known = {name: X[name].dtype for name in X.columns}
    sigma = np.sqrt(np.mean((y - cross_val_predict(model, X, y, cv=5)) ** 2))
    model.fit(X, y)
    found = Normal(lambda X_new: (model.predict(X_new.astype(known)), np.full(len(X_new), sigma)))
    yield "HistGradientBoosting", found, time.process_time() - start


def boosting_classes(X: Any, y: np.ndarray, seed: int) -> Fitted:
    start = time.process_time()
    X = _categories(X)
    known = {name: X[name].dtype for name in X.columns}
    model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed).fit(X, y)
    found = Probabilities(lambda X_new: model.predict_proba(X_new.astype(known)), model.classes_)
    yield "HistGradientBoosting", found, time.process_time() - start


def constant(X: Any, y: np.ndarray, seed: int) -> Fitted:
    yield "constant", Normal(lambda X_new: (np.full(len(X_new), y.mean()), np.full(len(X_new), y.std()))), 0.0


def constant_classes(X: Any, y: np.ndarray, seed: int) -> Fitted:
    classes, counts = np.unique(y, return_counts=True)
    shares = counts / len(y)
    yield "constant", Probabilities(lambda X_new: np.tile(shares, (len(X_new), 1)), classes), 0.0


def _timed(name: str, model: Any, X: Any, y: np.ndarray) -> tuple[str, Any, float]:
    start = time.process_time()
    model.fit(X, y)
    return name, model, time.process_time() - start


def numeric_columns() -> Any:
    """Transformer to standardised numbers, with medians for missing values, and one-hot columns for text."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    text = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    by_type = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")), (text, make_column_selector(dtype_exclude="number"))
    )
    return make_pipeline(FunctionTransformer(pd.DataFrame), by_type)


def _categories(X: Any) -> Any:
    text = [name for name in X.columns if X[name].dtype.kind not in "fiub"]
    return X.astype(dict.fromkeys(text, "category"))
