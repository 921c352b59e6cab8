"""The built-in net for some rows: which of the two, its columns' statistics, its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ._data import PreparedData, spread
from ._tables import Column, robust
from .likelihoods._base import Likelihood
from .nets import MLP, TableMLP


def built_in_net(
    parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood, seed: int
) -> tuple[type[nn.Module], dict[str, Any]]:
    """The net's class and what it is made with.

    A multilayer perceptron on standardised numbers; one with embeddings and indicators where there are categories and
    missing values.

    Parameters
    ----------
    parameters : mapping
        The estimator's.
    data : PreparedData
    likelihood : Likelihood
    seed : int
        Of the initial weights.
    """
    table = data.table
    numeric = np.arange(data.X.shape[1]) if table is None else table.numeric
    columns = () if table is None else tuple(table.columns[k] for k in numeric)
    # In the order of rows, as it came: sums over another order round in another way.
    statistics = _statistics(np.ascontiguousarray(data.X[:, numeric]), data.weights, columns)
    start = likelihood.output_start(torch.from_numpy(data.targets), torch.from_numpy(data.weights))
    both = {
        "out_features": data.n_outputs,
        "hidden_layer_sizes": tuple(parameters["hidden_layer_sizes"]),
        "activation": parameters["activation"],
        "output_shift": None if start is None else start.tolist(),
        "seed": seed,
        **statistics,
    }
    if table is None or not (any(table.levels) or any(column.has_missing for column in table.columns)):
        return MLP, {"in_features": data.X.shape[1], **both}
    return TableMLP, {"levels": table.levels, "missing": table.flagged, **both}


def _statistics(X: np.ndarray, weights: np.ndarray, columns: tuple[Column, ...]) -> dict[str, Any]:
    """Mean and scale of the columns of numbers; centre and width of those with heavy tails."""
    found: dict[str, Any] = {}
    if any(column.heavy for column in columns):
        centre, width = np.zeros(len(columns)), np.full(len(columns), np.inf)
        X = X.copy()
        for k, column in enumerate(columns):
            seen = ~np.isnan(X[:, k])
            if column.heavy and (tails := robust(X[seen, k], weights[seen])) is not None:
                centre[k], width[k] = tails
                X[:, k] = np.arcsinh((X[:, k] - centre[k]) / width[k])
        found = {"input_centre": centre.tolist(), "input_width": width.tolist()}
    mean, deviation, constant = _spread(X, weights)
    scale = np.where(constant, 1.0, deviation)
    return {**found, "input_mean": mean.tolist(), "input_scale": scale.tolist()}


def _spread(X: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As :func:`~sklearn_laplace._data.spread`, of the values that are there; zero and constant where none is."""
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
