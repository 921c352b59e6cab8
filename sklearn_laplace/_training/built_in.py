"""The built-in net for some rows: which of the two, its columns' statistics, its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .._data.rows import PreparedData
from .._data.statistics import ROUNDING, robust, spread, weighted_quantiles
from .._data.table import Column
from .._options.options import is_auto
from .._options.previous import previous_of
from ..laplace.likelihoods._base import Likelihood
from ..nets import MLP, TableMLP
from ..nets.mlp import Pieces

ALONE = {"hidden_layer_sizes": (50,), "activation": "tanh"}
"""What "auto" means for a net that is trained alone."""
STATISTICS_ROWS = 100_000
"""At least so many rows, evenly spread, give the quantiles of members that train together. All of them would take more
memory than the training."""


def of_one_net(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the layers and the activation of a net that is trained alone, where they are left open.

    Examples
    --------
    >>> of_one_net({"net": None, "hidden_layer_sizes": "auto", "activation": "relu"})
    {'net': None, 'hidden_layer_sizes': (50,), 'activation': 'relu'}
    """
    if parameters["net"] is not None:
        return dict(parameters)
    found = {name: value for name, value in ALONE.items() if is_auto(parameters[name])}
    return {**parameters, **found}


def built_in_net(
    parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood, seed: int
) -> tuple[type[nn.Module], dict[str, Any]]:
    """The net's class and what it is made with.

    A multilayer perceptron on standardised numbers; one with embeddings and indicators where there are categories and
    missing values, and with pieces of the numbers where these are asked for.

    Parameters
    ----------
    parameters : mapping
        The estimator's.
    data : PreparedData
    likelihood : Likelihood
    seed : int
        Of the initial weights.
    """
    table, (X, columns) = data.table, _numbers(data)
    both = _of_any_net(parameters, data, likelihood) | {"seed": seed}
    n_bins = parameters["n_bins"]
    if n_bins is None:
        both |= _statistics(X, data.weights, columns)
        if table is None or not (any(table.levels) or any(column.has_missing for column in table.columns)):
            return MLP, {"in_features": data.X.shape[1], **both}
    else:
        previous = previous_of(parameters["prior"])
        before = None if previous is None else previous.module
        if isinstance(before, TableMLP) and isinstance(before.standardise, Pieces):
            both["input_edges"] = before.standardise.edges  # all other statistics come with its weights
        else:
            both |= _statistics_of_pieces(X, data.weights, columns, n_bins)
    return TableMLP, {**_coding(data), **both}


def _numbers(data: PreparedData, stride: int = 1) -> tuple[np.ndarray, tuple[Column, ...]]:
    """The columns of numbers, of one row in ``stride``, and what is known of each where the rows are a table.

    In the order of rows, as it came: sums over another order round in another way.
    """
    table = data.table
    numeric = np.arange(data.X.shape[1]) if table is None else table.numeric
    columns = () if table is None else tuple(table.columns[k] for k in numeric)
    return np.ascontiguousarray(data.X[::stride][:, numeric]), columns


def _coding(data: PreparedData) -> dict[str, Any]:
    """Levels of each column, and which have an indicator of what is missing."""
    if data.table is None:
        return {"levels": (0,) * data.X.shape[1], "missing": (False,) * data.X.shape[1]}
    return {"levels": data.table.levels, "missing": data.table.flagged}


def _of_any_net(parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood) -> dict[str, Any]:
    """Arguments of all built-in nets."""
    start = likelihood.output_start(torch.from_numpy(data.targets), torch.from_numpy(data.weights))
    return {
        "out_features": data.n_outputs,
        "hidden_layer_sizes": tuple(parameters["hidden_layer_sizes"]),
        "activation": parameters["activation"],
        "output_shift": None if start is None else start.tolist(),
    }


def table_net(
    parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood, n_bins: int | None
) -> dict[str, Any]:
    """What a :class:`~sklearn_laplace.nets.TableMLP` is made with that sees each number as itself and as pieces.

    Parameters
    ----------
    parameters : mapping
        Of which the sizes and the activation of the hidden layers count.
    data : PreparedData
    likelihood : Likelihood
    n_bins : int or None
        Pieces of each column; None for the numbers alone.
    """
    stride = max(len(data.X) // STATISTICS_ROWS, 1)
    (X, columns), weights = _numbers(data, stride), data.weights[::stride]
    drawn_in, tails = _drawn_in(X, weights, columns)
    edges = [[0.0] if n_bins is None else _edges(column, weights, n_bins) for column in drawn_in.T]
    encoding = {"input_edges": edges, "input_quartiles": _quartiles(X, weights), **tails}
    return {**_coding(data), **_of_any_net(parameters, data, likelihood), **encoding}


def _quartiles(X: np.ndarray, weights: np.ndarray) -> tuple[list[float], list[float]]:
    """Median of each column and the distance of its quartiles; half the range where that is zero, or 1.

    Values that differ by rounding alone are one: their column is constant.
    """
    medians, widths = [], []
    for column in X.T:
        seen = ~np.isnan(column)
        low, middle, high = 0.0, 0.0, 0.0
        if seen.any():
            low, middle, high = weighted_quantiles(column[seen], weights[seen], np.array([0.25, 0.5, 0.75]))
        width = high - low if high > low else np.ptp(column[seen]) / 2 if seen.any() else 0.0
        medians.append(float(middle))
        widths.append(float(width) if width > ROUNDING * abs(middle) else max(1.0, ROUNDING * abs(middle)))
    return medians, widths


def _statistics(X: np.ndarray, weights: np.ndarray, columns: tuple[Column, ...]) -> dict[str, Any]:
    """Mean and scale of the columns of numbers; centre and width of those with heavy tails."""
    X, tails = _drawn_in(X, weights, columns)
    return {**tails, **_mean_and_scale(X, weights)}


def _statistics_of_pieces(
    X: np.ndarray, weights: np.ndarray, columns: tuple[Column, ...], n_bins: int
) -> dict[str, Any]:
    """Edges of the columns, at quantiles of the values that are there, and mean and scale of the pieces.

    Quantiles are those of the weighted empirical distribution, without interpolation: a weight of k is k copies. A
    column of fewer values has fewer pieces, one without any two values a single one.
    """
    X, tails = _drawn_in(X, weights, columns)
    found: dict[str, Any] = {**tails, "input_edges": [_edges(column, weights, n_bins) for column in X.T]}
    pieces = Pieces(found["input_edges"]).pieces(torch.from_numpy(X)).numpy()
    return {**found, **_mean_and_scale(pieces, weights)}


def _edges(values: np.ndarray, weights: np.ndarray, n_bins: int) -> list[float]:
    seen = ~np.isnan(values)
    if not seen.any():
        return [0.0, 1.0]
    shares = np.linspace(0.0, 1.0, n_bins + 1)
    edges: list[float] = np.unique(weighted_quantiles(values[seen], weights[seen], shares)).tolist()
    return edges if len(edges) > 1 else [edges[0], edges[0] + max(1.0, abs(edges[0]))]


def _drawn_in(
    X: np.ndarray, weights: np.ndarray, columns: tuple[Column, ...]
) -> tuple[np.ndarray, dict[str, list[float]]]:
    """The columns with heavy tails drawn in, and centre and width of that where there are any."""
    if not any(column.heavy for column in columns):
        return X, {}
    centre, width = np.zeros(len(columns)), np.full(len(columns), np.inf)
    X = X.copy()
    for k, column in enumerate(columns):
        seen = ~np.isnan(X[:, k])
        if column.heavy and (tails := robust(X[seen, k], weights[seen])) is not None:
            centre[k], width[k] = tails
            X[:, k] = np.arcsinh((X[:, k] - centre[k]) / width[k])
    return X, {"input_centre": centre.tolist(), "input_width": width.tolist()}


def _mean_and_scale(X: np.ndarray, weights: np.ndarray) -> dict[str, list[float]]:
    mean, deviation, constant = _spread(X, weights)
    # Of a constant column 1, and more where the rounding of its values is larger.
    unit = np.maximum(1.0, ROUNDING * np.abs(mean))
    return {"input_mean": mean.tolist(), "input_scale": np.where(constant, unit, deviation).tolist()}


def _spread(X: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As ``spread``, of the values that are there; zero and constant where none is."""
    absent = np.isnan(X).any(axis=0)
    mean, deviation, constant = np.zeros(X.shape[1]), np.zeros(X.shape[1]), np.ones(X.shape[1], dtype=bool)
    if not absent.any():
        return spread(X, weights) if X.shape[1] else (mean, deviation, constant)
    for k in range(X.shape[1]):
        seen = ~np.isnan(X[:, k])
        if seen.any():
            one = spread(X[seen, k][:, None], weights[seen])
            mean[k], deviation[k], constant[k] = (value[0] for value in one)
    return mean, deviation, constant
