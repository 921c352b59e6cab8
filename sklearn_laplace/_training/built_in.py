"""Class and arguments of the built-in net, such as the statistics of its columns and its initial output."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from .._table.column import Column
from .._table.rows import PreparedData
from .._table.statistics import ROUNDING, ranges, robust, spread, weighted_quantiles
from ..laplace.fit import TrainingRows
from ..laplace.likelihoods._base import Likelihood
from ..nets import ACTIVATIONS, MLP, TableMLP
from ..nets.mlp import Compress, NumbersAndPieces, Pieces, Standardise
from ..nets.skorch_net import build_net, initialise
from ..options.prior import previous_of
from ..options.resolved import is_auto

ALONE = {"hidden_layer_sizes": (50,), "activation": "tanh"}
"""Values of "auto" for an independently trained net."""
OF_NOISE = {"hidden_layer_sizes": (16,), "activation": "tanh", "n_bins": None}
"""Options of the noise net, which predicts log noise variances. See docs/decisions.md."""
MOST_LEVELS = 32
"""Maximum number of levels of a column in the noise net, because an exact step costs P³ for P weights. Of a column with
more levels, only the first two have indicators."""
NOISE_SEED = 100
"""Offset of the noise net's seed from that of the mean's net, so that their initial weights differ."""
STATISTICS_ROWS = 100_000
"""Minimum number of rows for estimating encodings. If there are more, every k-th row is used, to save memory."""


def of_one_net(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Replace "auto" with layers, activation and bins of a previous net, or else with the values of ``ALONE``."""
    if parameters["net"] is not None:
        return dict(parameters)
    defaults = {name: value for name, value in ALONE.items() if is_auto(parameters[name])}
    previous = previous_of(parameters.get("prior"))
    if previous is not None and isinstance(module := previous.module, MLP | TableMLP):
        types = {type(layer) for layer in module.modules()}
        names = [name for name, activation in ACTIVATIONS.items() if activation in types]  # none in a linear net
        known: dict[str, Any] = {"activation": (*names, ALONE["activation"])[0]}
        known |= {"hidden_layer_sizes": module.hidden_layer_sizes, "n_bins": None}
        if isinstance(module, TableMLP) and isinstance(module.standardise, Pieces):
            known["n_bins"] = max(*module.standardise.counts, 1)
        defaults = {name: value for name, value in known.items() if is_auto(parameters[name])}
    return {**parameters, **defaults}


def initialised(arguments: dict[str, Any], likelihood: Likelihood, rows: TrainingRows, seed: int) -> NeuralNet:
    """Skorch net around a new :class:`~sklearn_laplace.nets.TableMLP`, without training by epochs."""
    training: dict[str, Any] = {"max_epochs": None, "lr": None, "batch_size": None, "seed": seed, "verbose": 0}
    net = build_net(TableMLP, arguments | {"seed": seed}, likelihood, rows, **training)
    initialise(net, rows.weights.dtype, rows)
    return net


def built_in_net(
    parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood, seed: int, *, as_table: bool = False
) -> tuple[type[nn.Module], dict[str, Any]]:
    """Class and arguments of the built-in net: an ``MLP`` for plain numbers without bins, otherwise a ``TableMLP``.

    If ``as_table``, the class is always ``TableMLP``.
    """
    table, (X, columns) = data.table, _numbers(data)
    arguments = _of_any_net(parameters, data, likelihood) | {"seed": seed}
    n_bins, previous = parameters["n_bins"], previous_of(parameters["prior"])
    before = None if previous is None else previous.module
    if isinstance(before, TableMLP) and (n_bins is not None) == isinstance(before.standardise, Pieces):
        arguments |= _encoding_like(before.standardise)
    elif n_bins is None:
        arguments |= _statistics_of_numbers(X, data.weights, columns)
        is_table = as_table or (table is not None and any(table.levels))
        if not (is_table or any(column.has_missing or column.cycles for column in columns)):
            return MLP, {"in_features": data.X.shape[1], **arguments}
    else:
        arguments |= _statistics_of_pieces(X, data.weights, columns, n_bins)
    return TableMLP, {**_coding(data), **arguments, "input_cycles": _cycles(columns)}


def _encoding_like(layer: Standardise) -> dict[str, Any]:
    """Arguments of an encoding with the shape of ``layer``. The buffers are later loaded with the weights."""
    arguments: dict[str, Any] = {}
    if isinstance(layer, Compress):
        arguments |= {"input_centre": layer.centre.tolist(), "input_width": layer.width.tolist()}
    if isinstance(layer, Pieces):
        arguments["input_edges"] = [edges or [0.0] for edges in layer.edges]
    if isinstance(layer, NumbersAndPieces):
        arguments["input_quartiles"] = layer.median.tolist(), layer.quartile.tolist()
    return arguments


def noise_net(
    parameters: Mapping[str, Any],
    data: PreparedData,
    likelihood: Likelihood,
    seed: int,
    levels: Sequence[float] = (),
) -> nn.Module:
    """Noise net, shifted by the log ``levels`` (C,) of targets. ``seed`` is that of the net for the mean."""
    net_class, arguments = built_in_net({**parameters, **OF_NOISE}, data, likelihood, seed + NOISE_SEED)
    if levels:
        arguments["output_shift"] = np.log(levels).tolist()
    if "levels" in arguments:
        arguments["levels"] = tuple(1 if n > MOST_LEVELS else n for n in arguments["levels"])
    return net_class(**arguments)


def _numbers(data: PreparedData, stride: int = 1) -> tuple[np.ndarray, tuple[Column, ...]]:
    """Numeric columns of every ``stride``-th row, and their metadata. Rows keep their order, which affects rounding."""
    table = data.table
    numeric = np.arange(data.X.shape[1]) if table is None else table.numeric
    columns = () if table is None else tuple(table.columns[k] for k in numeric)
    return np.ascontiguousarray(data.X[::stride][:, numeric]), columns


def _cycles(columns: tuple[Column, ...]) -> list[list[float]]:
    return [list(column.cycles) for column in columns]


def _coding(data: PreparedData) -> dict[str, Any]:
    """Number of levels of each column, and the columns that have a missing-value indicator."""
    if data.table is None:
        return {"levels": (0,) * data.X.shape[1], "missing": (False,) * data.X.shape[1]}
    return {"levels": data.table.levels, "missing": data.table.flagged}


def _of_any_net(parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood) -> dict[str, Any]:
    """Arguments shared by all built-in nets."""
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
    """Arguments of a :class:`~sklearn_laplace.nets.TableMLP` with ``n_bins`` bins per column; None: plain numbers.

    A linear net reads the numbers without clipping, which it could not undo.
    """
    stride = max(len(data.X) // STATISTICS_ROWS, 1)
    (X, columns), weights = _numbers(data, stride), data.weights[::stride]
    arguments = {**_coding(data), **_of_any_net(parameters, data, likelihood), "input_cycles": _cycles(columns)}
    if not parameters["hidden_layer_sizes"]:
        return {**arguments, **_statistics_of_numbers(X, weights, columns)}
    drawn_in, tails = _drawn_in(X, weights, columns)
    edges = [[0.0] if n_bins is None else _edges(column, weights, n_bins) for column in drawn_in.T]
    return {**arguments, **tails, "input_edges": edges, "input_quartiles": _quartiles(X, weights)}


def _quartiles(X: np.ndarray, weights: np.ndarray) -> tuple[list[float], list[float]]:
    """Median and interquartile range of each column. An interquartile range of zero is replaced by half the range.

    A column whose values differ only by rounding is constant; its width is 1, or the rounding error if that is larger.
    """
    medians, widths = [], []
    for column in X.T:
        present = ~np.isnan(column)
        middle, width = 0.0, 0.0
        if present.any():
            whole = float(ranges(column[present]))
            low, middle, high = weighted_quantiles(column[present], weights[present], np.array([0.25, 0.5, 0.75]))
            width = high - low if high > low else whole / 2
        medians.append(float(middle))
        widths.append(float(width) if width > ROUNDING * abs(middle) else max(1.0, ROUNDING * abs(middle)))
    return medians, widths


def _with_waves(plain: np.ndarray, X: np.ndarray, columns: tuple[Column, ...]) -> np.ndarray:
    """Inputs of numeric columns, followed by a sine and a cosine for each of their cycles."""
    if not any(cycles := _cycles(columns)):
        return plain
    encoded = Standardise(X.shape[1], cycles=cycles).encoded(torch.from_numpy(X)).numpy()
    return np.hstack([plain, encoded[:, X.shape[1] :]])


def _statistics_of_numbers(X: np.ndarray, weights: np.ndarray, columns: tuple[Column, ...]) -> dict[str, Any]:
    """Mean and scale of numeric columns and of the sines and cosines of cycles, after heavy tails are compressed."""
    drawn_in, tails = _drawn_in(X, weights, columns)
    return {**tails, **_mean_and_scale(_with_waves(drawn_in, X, columns), weights)}


def _statistics_of_pieces(
    X: np.ndarray, weights: np.ndarray, columns: tuple[Column, ...], n_bins: int
) -> dict[str, Any]:
    """Edges of the bins at weighted quantiles of the present values, and mean and scale of the encoded bins.

    A weight of k equals k copies of a row. Columns with few distinct values have fewer bins; a constant column has one.
    """
    drawn_in, tails = _drawn_in(X, weights, columns)
    statistics: dict[str, Any] = {**tails, "input_edges": [_edges(column, weights, n_bins) for column in drawn_in.T]}
    pieces = Pieces(statistics["input_edges"]).pieces(torch.from_numpy(drawn_in)).numpy()
    return {**statistics, **_mean_and_scale(_with_waves(pieces, X, columns), weights)}


def _edges(values: np.ndarray, weights: np.ndarray, n_bins: int) -> list[float]:
    present = ~np.isnan(values)
    if not present.any():
        return [0.0, 1.0]
    shares = np.linspace(0.0, 1.0, n_bins + 1)
    edges: list[float] = np.unique(weighted_quantiles(values[present], weights[present], shares)).tolist()
    return edges if len(edges) > 1 else [edges[0], edges[0] + max(1.0, abs(edges[0]))]


def _drawn_in(
    X: np.ndarray, weights: np.ndarray, columns: tuple[Column, ...]
) -> tuple[np.ndarray, dict[str, list[float]]]:
    """Apply an arsinh transform to heavy-tailed columns; also return its centre and width if there is such a column."""
    if not any(column.heavy for column in columns):
        return X, {}
    centre, width = np.zeros(len(columns)), np.full(len(columns), np.inf)
    X = X.copy()
    for k, column in enumerate(columns):
        present = ~np.isnan(X[:, k])
        if column.heavy and (tails := robust(X[present, k], weights[present])) is not None:
            centre[k], width[k] = tails
            X[:, k] = np.arcsinh((X[:, k] - centre[k]) / width[k])
    return X, {"input_centre": centre.tolist(), "input_width": width.tolist()}


def statistics_of(X: np.ndarray, weights: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and scale of each column, for a user's net."""
    values = _mean_and_scale(X, weights)
    return values["input_mean"], values["input_scale"]


def _mean_and_scale(X: np.ndarray, weights: np.ndarray) -> dict[str, list[float]]:
    mean, deviation, constant = _spread(X, weights)
    # The scale of a constant column is 1, or the rounding error of its values if that is larger.
    unit = np.maximum(1.0, ROUNDING * np.abs(mean))
    return {"input_mean": mean.tolist(), "input_scale": np.where(constant, unit, deviation).tolist()}


def _spread(X: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As ``spread`` for present values; a column without values has mean 0 and counts as constant."""
    absent = np.isnan(X).any(axis=0)
    mean, deviation, constant = np.zeros(X.shape[1]), np.zeros(X.shape[1]), np.ones(X.shape[1], dtype=bool)
    if not absent.any():
        return spread(X, weights) if X.shape[1] else (mean, deviation, constant)
    for k in range(X.shape[1]):
        present = ~np.isnan(X[:, k])
        if present.any():
            of_column = spread(X[present, k][:, None], weights[present])
            mean[k], deviation[k], constant[k] = (value[0] for value in of_column)
    return mean, deviation, constant
