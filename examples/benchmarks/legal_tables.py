"""Random legal tables, drawn from a seed: anything that a user may pass to a default fit.

``python examples/benchmarks/faults.py --part tables`` fits 300 of these tables; ``tests/laws/test_hard_data.py`` fits a
few.
"""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

LARGEST_SCALE = 250
FEW_ROWS, SOME_ROWS, MANY_ROWS = (1, 61), (301, 950), (950, 1_501)
"""Ranges of numbers of rows; the upper ends are excluded."""


@dataclass(frozen=True)
class LegalTable:
    """Training table, and new rows with values of the training rows in each column.

    Parameters
    ----------
    seed : int
    X, X_new : dataframe or ndarray
    y : ndarray of shape (n,) or (n, C)
    sample_weight : ndarray of shape (n,) or None
    description : str
        Size, kind of target and weights, and kinds of columns.
    """

    seed: int
    X: Any
    y: np.ndarray
    sample_weight: np.ndarray | None
    X_new: Any
    description: str

    @property
    def is_classification(self):
        """True if the targets are labels."""
        return self.y.dtype.kind in "US"

    @property
    def has_one_class(self):
        """True if all labels are equal, so that no classifier can be fitted."""
        counted = self.y if self.sample_weight is None else self.y[self.sample_weight > 0]
        return self.is_classification and len(set(counted.tolist())) < 2


# ------------------------------------------------------------------------------ columns: rng, n → values (n,)


def anywhere(rng, n):
    return rng.normal(size=n) * 10.0 ** rng.uniform(-12, 12) + rng.normal() * 10.0 ** rng.uniform(-12, 12)


def extreme(rng, n):
    return rng.normal(size=n) * 10.0 ** rng.uniform(-LARGEST_SCALE, LARGEST_SCALE)


def standard(rng, n):
    return rng.normal(size=n)


def constant(rng, n):
    return np.full(n, rng.choice([0.0, 1.0, -3e9, 0.1, 1e-200]))


def nearly_constant(rng, n):
    return rng.choice([1.0, -1e6, 0.1, 1e15]) * (1 + np.finfo(float).eps * rng.integers(0, 3, size=n))


def one_outlier(rng, n):
    return np.where(np.arange(n) == rng.integers(n), 10.0 ** rng.uniform(0, 15), rng.normal(size=n))


def whole(rng, n):
    return rng.integers(-3, 10, size=n)


def binary(rng, n):
    return rng.random(n) < 0.3


def heavy(rng, n):
    return rng.standard_cauchy(size=n) * 10.0 ** rng.uniform(-3, 3)


def decades(rng, n):
    return np.exp(rng.normal(size=n) * rng.uniform(1, 30))


def gaps(rng, n):
    return np.where(rng.random(n) < rng.uniform(0, 1), np.nan, rng.normal(size=n))


def words(rng, n):
    values = rng.choice(list("abcdefghij")[: rng.integers(1, 10)], size=n).astype(object)
    return np.where(rng.random(n) < rng.choice([0.0, 0.2]), None, values)


def names(rng, n):
    return np.array([f"row {i}" for i in range(n)], dtype=object)


def dates(rng, n):
    return np.datetime64("2020-01-01") + rng.integers(0, 1000, size=n).astype("timedelta64[D]")


NUMBERS = (anywhere, extreme, standard, standard, constant, nearly_constant, one_outlier, whole, binary, heavy, decades)
COLUMNS = (*NUMBERS, gaps, words, names, dates)


# ------------------------------------------------------------------------------ targets: rng, signal (n,) → (n,)


def noisy(rng, signal):
    return signal + rng.normal(size=len(signal))


def noise_free(rng, signal):
    return signal


def same(rng, signal):
    return np.full(len(signal), rng.choice([0.0, 7.0, -1e9, 1e-300]))


def same_but_for_rounding(rng, signal):
    return nearly_constant(rng, len(signal))


def two_values(rng, signal):
    return np.where(signal > np.median(signal), 1.0, rng.choice([0.0, -1e8]))


def heavy_tails(rng, signal):
    return signal + rng.standard_cauchy(size=len(signal))


def far_away(rng, signal):
    return signal + rng.choice([1e6, -1e9, 1e13])


def scaled(rng, signal):
    return (signal + 0.1 * rng.normal(size=len(signal))) * 10.0 ** rng.uniform(-LARGEST_SCALE, LARGEST_SCALE)


def several(rng, signal):
    return np.column_stack([TARGETS[k](rng, signal) for k in rng.integers(len(TARGETS) - 1, size=2)])


TARGETS = (noisy, noise_free, same, same_but_for_rounding, two_values, heavy_tails, far_away, scaled, several)


def labels(rng, signal):
    """Labels of at most six classes, which may have very different sizes."""
    n_classes = rng.integers(2, 7)
    shares = rng.dirichlet(np.ones(n_classes) * rng.choice([0.3, 3.0]))
    rank = (signal + rng.choice([0.0, 1.0]) * rng.normal(size=len(signal))).argsort().argsort() / len(signal)
    return np.array(list("uvwxyz"))[np.searchsorted(shares.cumsum()[:-1], rank)]


# ------------------------------------------------------------------------------ weights: rng, n → (n,) or None


def none(rng, n):
    return None


def counts(rng, n):
    weights = rng.integers(0, 4, size=n).astype(float)
    weights[rng.integers(n)] = 1.0
    return weights


def tiny(rng, n):
    return rng.random(n) * 10.0 ** rng.uniform(-90, -3)


def any_positive(rng, n):
    return 10.0 ** rng.uniform(-4, 2, size=n)


def large(rng, n):
    return 10.0 ** rng.uniform(3, 5) * rng.uniform(0.5, 2.0, size=n)


WEIGHTS = (none, none, none, counts, counts, tiny, any_positive, large)


# ------------------------------------------------------------------------------ the table


def legal_table(seed, rows=FEW_ROWS):
    """Table of a seed, with a number of rows in the given range; odd seeds give classification."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(*rows)), int(rng.integers(1, 9))
    if rng.random() < 0.1:
        n, d = 15, 200
    kinds = [NUMBERS[k] for k in rng.integers(len(NUMBERS), size=d)]
    if rng.random() < 0.5:
        kinds = [COLUMNS[k] for k in rng.integers(len(COLUMNS), size=d)]
    columns = {f"{k} {kind.__name__}": kind(rng, n) for k, kind in enumerate(kinds)}
    if rng.random() < 0.3:
        columns["copy"] = next(iter(columns.values()))
    base = standard(rng, n)
    for kind, values in zip(kinds, columns.values(), strict=False):
        if kind in (standard, whole, binary):
            base = base + np.sin(2.0 * values)
    X = pd.DataFrame(columns)
    if all(kind in NUMBERS for kind in kinds) and rng.random() < 0.5:
        X = X.to_numpy(dtype=np.float64)
    make = labels if seed % 2 else TARGETS[rng.integers(len(TARGETS))]
    y, weigh = make(rng, base), WEIGHTS[rng.integers(len(WEIGHTS))]
    if (copies := rng.random() < 0.2) and n > 1:
        rows = rng.integers(n, size=n)
        X, y = _rows(X, rows), y[rows]
    weights = weigh(rng, n)
    counted = np.arange(n) if weights is None else np.flatnonzero(weights > 0)
    described = ", ".join([f"{n} rows of {d}", make.__name__, weigh.__name__, *["copies"] * copies])
    shown = ", ".join(sorted({kind.__name__ for kind in kinds}))
    return LegalTable(seed, X, y, weights, _mixed_rows(X, counted, rng), f"{described}: {shown}")


def _rows(X, rows):
    return X[rows] if isinstance(X, np.ndarray) else X.iloc[rows].reset_index(drop=True)


def _mixed_rows(X, counted, rng):
    """Rows with each column permuted over the rows with non-zero weight."""
    if isinstance(X, np.ndarray):
        return np.column_stack([column[rng.permutation(counted)] for column in X.T])
    return pd.DataFrame({name: X[name].to_numpy()[rng.permutation(counted)] for name in X.columns})


def failure(table, **parameters):
    """Failure of a default fit of a table (an exception, non-finite numbers, or zero std), or None."""
    kind = LaplaceClassifier if table.is_classification else LaplaceRegressor
    model = kind(random_state=0, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(table.X, table.y, table.sample_weight)
            found = {"predict_std": model.predict_std(table.X_new)}
            if table.is_classification:
                found["predict_proba"] = model.predict_proba(table.X_new)
            else:
                found["predict"] = model.predict(table.X_new)
        except Exception as error:
            if table.has_one_class and "one class only" in str(error):
                return None
            return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    for name, values in found.items():
        if not np.isfinite(values).all():
            return f"{name} is not finite"
    if not table.is_classification and not (found["predict_std"] > 0).all():
        return "predict_std is zero"
    return None


def outcome(seed):
    """Outcome of a default fit of the seed's table: "ok", or the failure. Two tables in six have more rows."""
    rows = {4: SOME_ROWS, 5: MANY_ROWS}.get(seed // 2 % 6, FEW_ROWS)
    found = failure(legal_table(seed, rows))
    return "ok" if found is None else f"{found.splitlines()[0][:100]} (seed {seed})"
