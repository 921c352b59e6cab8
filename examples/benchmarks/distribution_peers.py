"""Peers with a predictive distribution, for :mod:`probabilistic_peers`.

A *family* is a function that fits related models together, ``family(X, y, seed)``. It yields
``(name, predictive, seconds)``. ``predictive`` is a function from rows to a distribution with ``mean``, ``logpdf``,
``crps`` and ``interval``, and ``seconds`` is the processor time of the fit. Tables are data frames. All peers run on
one thread, with the defaults of their packages unless a docstring states otherwise.

A normal distribution is a mixture of one component. If a peer predicts points (draws of treeffuser, quantiles of a
forest), normal kernels give a density (:class:`Smoothed`). The kernel width :math:`h_i = \\sqrt{(c s_i)^2 + b^2}` has
two parameters: a multiple c of the standard deviation :math:`s_i` of a row's points, and a width b common to all rows.
Both maximise the log-likelihood of out-of-bag or held-out training rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import many_rows
import numpy as np
import pandas as pd
import quality_peers as peers
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.distributions import NormalMixture

Predictive = Callable[[pd.DataFrame], Any]
Fitted = Iterator[tuple[str, Predictive, float]]

POINTS, DRAWS = 100, 50
"""Quantiles of a forest and draws of treeffuser for each row."""
MULTIPLES = 0.0, 0.2, 0.4, 0.7, 1.0, 1.5
WIDTHS = 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0
"""Candidates for the kernel: c, and b in units of the root-mean-square error of the rows used for the choice."""
HELD_OUT, MOST_HELD_OUT = 0.1, 100
"""Share and maximum number of the training rows used to choose the kernels of treeffuser."""
VALIDATION = 0.2
"""Share of the rows for early stopping and for the residual σ of RealMLP and TabM: the default of pytabkit."""
MEMBERS, EPOCHS, BATCH, RATE, UNITS = 5, 40, 100, 0.01, 50
"""Lakshminarayanan et al. (2017), sec. 3.2, except for their learning rate of .1."""
SHORTEST_STD = 1e-3
"""Lower bound of a net's standard deviation, in units of the standard deviation of the targets."""
BDE = {"n_members": 8, "hidden_layers": [16, 16], "epochs": 1000, "validation_split": 0.15, "lr": 1e-3,
       "weight_decay": 1e-4, "patience": 20, "warmup_steps": 5000, "n_samples": 200, "n_thinning": 10}  # fmt: skip
"""Parameters of the usage example in the paper of bde; the defaults of the package only draw ten samples."""


class Smoothed:
    """Equally likely points for each row: kernels give density and intervals; the points give mean and CRPS.

    Parameters
    ----------
    points : ndarray of shape (n, K)
    widths : ndarray of shape (n,)
        Standard deviations of the kernels.
    drawn : bool
        Whether the points are random draws, for which the CRPS is estimated without bias. Otherwise they are quantiles
        at the levels (k - 1/2) / K.
    """

    def __init__(self, points: np.ndarray, widths: np.ndarray, drawn: bool) -> None:
        self.points, self.drawn = np.sort(points, axis=1), drawn
        self.mixture = _mixture(points, np.broadcast_to(widths[:, None], points.shape))
        self.logpdf, self.interval = self.mixture.logpdf, self.mixture.interval

    def mean(self) -> np.ndarray:
        """Mean of the points."""
        return self.points.mean(1)

    def crps(self, y: np.ndarray) -> np.ndarray:
        """E|x − y| − E|x − x'|/2, over pairs of different draws, or over all pairs of quantiles."""
        n = self.points.shape[1]
        pairs = n * (n - 1) if self.drawn else n**2
        half_spread = self.points @ (2 * np.arange(n) - n + 1) / pairs
        return np.abs(self.points - y[:, None]).mean(1) - half_spread


def chosen_kernel(points: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Function from points (n, K) to kernel widths (n,), chosen by the log-likelihood of the given rows."""
    unit = np.sqrt(np.mean((points.mean(1) - y) ** 2)) or 1.0

    def of(multiple: float, width: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda points: np.hypot(multiple * points.std(1), width * unit)

    candidates = [of(multiple, width) for multiple in MULTIPLES for width in WIDTHS]
    scores = [Smoothed(points, widths(points), drawn=False).logpdf(y).mean() for widths in candidates]
    return candidates[int(np.argmax(scores))]


def _mixture(means: np.ndarray, stds: np.ndarray) -> NormalMixture:
    return NormalMixture(means, stds, np.full(means.shape[1], 1 / means.shape[1]))


def normal(moments: Callable[[Any], tuple[np.ndarray, np.ndarray]]) -> Predictive:
    """Predictive normal distribution, given a function from rows to mean and standard deviation."""

    def predictive(X: pd.DataFrame) -> NormalMixture:
        mean, std = moments(X)
        return _mixture(np.asarray(mean, dtype=float)[:, None], np.broadcast_to(std, np.shape(mean))[:, None])

    return predictive


# ---------------------------------------------------------------------- ours and those of the quality benchmark


class Ours:
    """Predictive distribution of :class:`~sklearn_laplace.LaplaceRegressor`, with the intervals of its method."""

    def __init__(self, model: LaplaceRegressor, X: pd.DataFrame) -> None:
        self.model, self.X, self.distribution = model, X, model.predict_dist(X)
        self.mean, self.crps = self.distribution.mean, self.distribution.crps

    def logpdf(self, y: np.ndarray) -> np.ndarray:
        """Log density of the targets."""
        return self.model.log_predictive_density(self.X, y)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the interval of a level."""
        return tuple(self.model.predict_interval(self.X, level)[1].T)


def default(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    start = time.process_time()
    model = LaplaceRegressor(random_state=seed).fit(X, y)
    yield "default", lambda X: Ours(model, X), time.process_time() - start


def one_net(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    """Cheapest fit of this package: one net with the prior precision and noise of largest evidence."""
    start = time.process_time()
    options = {"n_members": 1, "prior_precision": "evidence", "sigma_noise": "evidence"}
    model = LaplaceRegressor(random_state=seed, **options).fit(X, y)
    yield "one net", normal(lambda X: model.predict(X, return_std=True)), time.process_time() - start


def catboost(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    start = time.process_time()
    moments = many_rows.catboost_moments(X, y, seed)
    yield "CatBoost", normal(moments), time.process_time() - start


def of_quality(family: Callable[..., peers.Fitted], *, numbers: bool = True) -> Callable[..., Fitted]:
    """Family of ``quality_peers`` with normal distributions; ``numbers``: one-hot columns instead of data frames."""

    def fitted(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
        coder = peers.numeric_columns().fit(X) if numbers else None
        for name, estimator, seconds in family(coder.transform(X) if coder else X, y, seed):

            def moments(X: pd.DataFrame, estimator: Any = estimator) -> tuple[np.ndarray, np.ndarray]:
                return estimator.predict(coder.transform(X) if coder else X, return_std=True)

            yield name, normal(moments), seconds

    return fitted


# ---------------------------------------------------------------------- trees


def pgbm(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    from pgbm.sklearn import HistGradientBoostingRegressor

    start = time.process_time()
    few, coded = many_rows.coding(X)
    model = HistGradientBoostingRegressor(categorical_features=few or None, random_state=seed).fit(coded(X), y)
    found = normal(lambda X: model.predict(coded(X), return_std=True))
    yield "PGBM", found, time.process_time() - start


def quantile_forest(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    """Quantiles at the midpoints of 100 equal levels; out-of-bag predictions determine the kernel."""
    from quantile_forest import RandomForestQuantileRegressor

    start = time.process_time()
    columns = peers.numeric_columns().fit(X)
    levels = list((np.arange(POINTS) + 0.5) / POINTS)
    forest = RandomForestQuantileRegressor(random_state=seed).fit(columns.transform(X), y)
    out_of_bag = forest.predict(columns.transform(X), quantiles=levels, oob_score=True)
    known = np.isfinite(out_of_bag).all(1)
    widths = chosen_kernel(out_of_bag[known], y[known])

    def predictive(X: pd.DataFrame) -> Smoothed:
        points = forest.predict(columns.transform(X), quantiles=levels)
        return Smoothed(points, widths(points), drawn=False)

    yield "quantile forest", predictive, time.process_time() - start


def treeffuser(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    """50 draws per row. A first fit without a tenth of the rows determines the kernel; its seconds count."""
    from treeffuser import Treeffuser

    start = time.process_time()
    columns = peers.numeric_columns().fit(X)

    def fitted(rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        model = Treeffuser(seed=seed, n_jobs=1).fit(columns.transform(X.iloc[rows]), y[rows])
        return lambda table: model.sample(table, DRAWS, n_parallel=DRAWS, seed=seed).reshape(DRAWS, -1).T

    rows, held = train_test_split(np.arange(len(y)), test_size=HELD_OUT, random_state=seed)
    held = held[:MOST_HELD_OUT]
    widths = chosen_kernel(fitted(rows)(columns.transform(X.iloc[held])), y[held])
    draws = fitted(np.arange(len(y)))

    def predictive(X: pd.DataFrame) -> Smoothed:
        points = draws(columns.transform(X))
        return Smoothed(points, widths(points), drawn=True)

    yield "treeffuser", predictive, time.process_time() - start


# ---------------------------------------------------------------------- nets


def deep_ensemble(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    """Five nets with mean and variance as outputs, trained by likelihood (Lakshminarayanan et al. 2017)."""
    start = time.process_time()
    columns = peers.numeric_columns().fit(X)
    scale, centre, spread = StandardScaler().fit(columns.transform(X)), y.mean(), y.std() or 1.0
    x, target = tensor(scale.transform(columns.transform(X))), tensor((y - centre) / spread)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nets = [_trained_by_likelihood(x, target) for _ in range(MEMBERS)]

    def predictive(X: pd.DataFrame) -> NormalMixture:
        points = tensor(scale.transform(columns.transform(X)))
        with torch.no_grad():
            both = [_moments_of(net(points)) for net in nets]
        means, stds = (torch.stack(part, 1).double().numpy() for part in zip(*both, strict=True))
        return _mixture(centre + spread * means, spread * stds)

    yield "deep ensemble", predictive, time.process_time() - start


def _trained_by_likelihood(x: torch.Tensor, target: torch.Tensor) -> torch.nn.Module:
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], UNITS), torch.nn.ReLU(), torch.nn.Linear(UNITS, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            mean, std = _moments_of(net(x[batch]))
            loss = (std.log() + ((target[batch] - mean) / std) ** 2 / 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def _moments_of(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, raw = outputs.unbind(1)
    return mean, (torch.nn.functional.softplus(raw) + SHORTEST_STD**2).sqrt()


def pytabkit(name: str, estimator: str) -> Callable[..., Fitted]:
    """Net of pytabkit with the standard deviation of its errors on its validation rows."""

    def fitted(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
        import pytabkit

        for logger in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        medians = X.median(numeric_only=True)
        text = dict.fromkeys(X.select_dtypes(exclude="number"), "category")

        def predicted(X: pd.DataFrame) -> np.ndarray:
            return model.predict(X.fillna(medians).astype(text)).ravel()

        start = time.process_time()
        model = getattr(pytabkit, estimator)(device="cpu", random_state=seed, n_threads=1)
        _, held = train_test_split(np.arange(len(y)), test_size=VALIDATION, random_state=seed)
        model.fit(X.fillna(medians).astype(text), y, val_idxs=held)
        std = np.sqrt(np.mean((predicted(X.iloc[held]) - y[held]) ** 2))
        yield name, normal(lambda X: (predicted(X), std)), time.process_time() - start

    return fitted


def bde(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
    """Bayesian deep ensemble, with standardised columns and targets as recommended by its guide."""
    import os

    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    from bde import BdeRegressor
    from bde.loss import GaussianNLL

    start = time.process_time()
    columns = peers.numeric_columns().fit(X)
    scale, centre, spread = StandardScaler().fit(columns.transform(X)), y.mean(), y.std() or 1.0
    model = BdeRegressor(seed=seed, loss=GaussianNLL(), **BDE)
    model.fit(scale.transform(columns.transform(X)).astype(np.float32), ((y - centre) / spread).astype(np.float32))

    def predictive(X: pd.DataFrame) -> NormalMixture:
        raw = np.asarray(model.predict(scale.transform(columns.transform(X)).astype(np.float32), raw=True), dtype=float)
        means, stds = raw[..., 0], np.logaddexp(0, raw[..., 1]) + 1e-6
        means, stds = (part.reshape(-1, len(X)).T for part in (means, stds))
        return _mixture(centre + spread * means, spread * stds)

    yield "bde", predictive, time.process_time() - start


def tensor(values: np.ndarray) -> torch.Tensor:
    """Float32 tensor of an array."""
    return torch.from_numpy(np.ascontiguousarray(values)).float()


FAMILIES: dict[Callable[..., Fitted], tuple[str, ...]] = {
    default: ("default",),
    one_net: ("one net",),
    catboost: ("CatBoost",),
    of_quality(peers.ngboost, numbers=False): ("NGBoost",),
    pgbm: ("PGBM",),
    quantile_forest: ("quantile forest",),
    deep_ensemble: ("deep ensemble",),
    of_quality(peers.regression_nets): ("laplace-torch", "ensemble"),
    of_quality(peers.gaussian_process): ("Gaussian process",),
    pytabkit("RealMLP", "RealMLP_TD_Regressor"): ("RealMLP",),
    pytabkit("TabM", "TabM_D_Regressor"): ("TabM",),
    treeffuser: ("treeffuser",),
    bde: ("bde",),
}
"""Families and the names that they yield, cheap ones first."""
SLOW = "TabM", "treeffuser", "bde"
"""Peers that need no warm-up: loading and compiling is a small part of a fit."""
UNLISTED = ("one net",)
"""Models that are not peers: they are fitted only if named, and the report omits them."""
