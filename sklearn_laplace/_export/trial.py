"""Check that a model loaded from a file can predict, before it is returned.

Types are checked while a file is read (``_storage/restore.py``). Arrays of wrong shapes only show when they are used.
So the model predicts two rows and then three: broadcasting may hide a wrong shape for one of these numbers. Models with
layers that can enlarge their input (padding, upsampling) are not tried, since a small file could request any memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from torch import nn

from .._approximation.noise_model import NoiseModel
from .._estimator.base import LaplaceEstimator
from .._options.variants import Link, MonteCarlo, expanded
from .._storage.registry import FITTED
from ..errors import StateError
from ..laplace.layers import StandardisedLinear
from ..nets import MLP, TableMLP
from ..nets.mlp import Compress, NumbersAndPieces, Pieces, Scale, Shift, Standardise
from ..nets.table import Levels

BOUNDED = (
    *(
        nn.Linear,
        StandardisedLinear,
        nn.Identity,
        nn.Sequential,
        nn.ModuleList,
        nn.Dropout,
        nn.LayerNorm,
        nn.BatchNorm1d,
    ),
    *(nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.ELU, nn.SELU, nn.LeakyReLU, nn.Mish),
    *(nn.Softmax, nn.LogSoftmax),
    *(MLP, TableMLP, Standardise, Compress, Pieces, NumbersAndPieces, Scale, Shift, Levels),
)
"""Layers whose outputs are as large as inputs or weights."""
MOST_LAYERS = 1000
"""Calls of layers in a forward pass."""
N_ROWS = (2, 3)
OPTIONAL = {
    *("feature_names_in_", "classes_", "_column_names"),
    *("_single_output", "_is_candidate", "_is_quick", "_prior_scores"),
}
"""Attributes that some fits do not set."""
MOST_SAMPLES = 10**6
"""Largest ``n_samples`` of a file."""
FEW_SAMPLES = 20


def check_answers(model: LaplaceEstimator) -> None:
    """Refuse a fitted model that cannot predict.

    Parameters
    ----------
    model : LaplaceRegressor or LaplaceClassifier

    Raises
    ------
    StateError

    Examples
    --------
    >>> from sklearn_laplace import LaplaceRegressor
    >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit([[0.0], [1.0]], [0.0, 1.0])
    >>> check_answers(model)
    >>> del model._weight_unit
    >>> check_answers(model)
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.StateError: the state holds a part of a fit, without _weight_unit.
    """
    fitted = sorted(set(vars(model)) - set(model.get_params(deep=False)))
    if not fitted:
        return
    if lacking := sorted(set(FITTED) - OPTIONAL - set(fitted)):
        raise StateError(f"the state holds a part of a fit, without {', '.join(lacking[:3])}.")
    n_samples = expanded(model.get_params(deep=False))["n_samples"]
    if not isinstance(n_samples, Integral) or not 1 <= int(n_samples) <= MOST_SAMPLES:
        raise StateError(f"the state has n_samples={n_samples!r:.50}; expected a number from 1 to {MOST_SAMPLES:,}.")
    names = vars(model).get("feature_names_in_")
    if names is not None and not (names.shape == (model.n_features_in_,) and all(type(name) is str for name in names)):
        raise StateError(f"the state names the columns {names!r:.100}; expected {model.n_features_in_} strings.")
    try:
        _check_sizes(model)
        if all(map(_is_bounded, _modules(model))) and (rows := example_rows(model)) is not None:
            _answer(_twin(model), rows)
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"the model cannot predict ({type(error).__name__}: {str(error)[:300]}).") from error


def _check_sizes(model: Any) -> None:
    """Refuse blocks of more weights than the net has: torch would make matrices of their sizes."""
    for member in model._ensemble.members:
        network, posterior = member.fit.network, vars(member.posterior)
        most = sum(tensor.numel() for tensor in network.module.parameters())
        blocks = [block.size for block in network.layout.blocks]
        held = [block.size for block in posterior.get("blocks", ())]
        if max(sum(blocks), sum(held), sum(posterior.get("sizes", ()))) > most or min(blocks, default=1) < 1:
            raise StateError(f"the state has blocks of {_few(blocks)} weights, and the net has {most}.")


def _few(values: list[int]) -> str:
    return ", ".join(map(str, values[:5]))


def _answer(model: Any, rows: np.ndarray) -> None:
    for n_rows in N_ROWS:
        for answers in (model.predict(rows[:n_rows]), model.predict_std(rows[:n_rows])):
            if len(answers) != n_rows:
                raise StateError(f"the model has {len(answers)} predictions for {n_rows} rows.")
            if answers.dtype.kind == "f" and not np.isfinite(answers).all():
                raise StateError("the model predicts numbers that are not finite.")


def _twin(model: Any) -> Any:
    """A copy without column names, since the rows are an array, and with few weight samples."""
    parameters = model.get_params(deep=False)
    sampled = {name: value for name, value in parameters.items() if isinstance(value, MonteCarlo | Link)}
    few = {name: clone(value).set_params(n_samples=FEW_SAMPLES) for name, value in sampled.items()}
    twin = model._around(model._ensemble, **few)
    if "feature_names_in_" in vars(twin):
        del twin.feature_names_in_
    return twin


def _modules(model: Any) -> Iterator[nn.Module]:
    for member in model._ensemble.members:
        noise = member.noise_model
        fits = [member.fit, noise.fit] if isinstance(noise, NoiseModel) else [member.fit]
        yield member.net.module_
        yield from (fit.network.module for fit in fits)


def _is_bounded(module: nn.Module) -> bool:
    """True if a forward pass takes memory and time in proportion to the weights; False for layers of other types.

    Raises
    ------
    StateError
        For layers of these types that take more: tensors with more axes multiply by broadcasting.
    """
    if not all(type(layer) in BOUNDED for layer in module.modules()):
        return False
    layers = [layer for _, layer in islice(module.named_modules(remove_duplicate=False), MOST_LAYERS + 1)]
    tensors = [(tensor, 2) for layer in layers for tensor in layer._parameters.values()]
    tensors += [(tensor, 1) for layer in layers for tensor in layer._buffers.values()]
    if len(layers) > MOST_LAYERS or any(tensor is not None and tensor.ndim > most for tensor, most in tensors):
        raise StateError(f"the net has more than {MOST_LAYERS} layers, or a tensor of more axes than its layer takes.")
    return True


def example_rows(model: Any) -> np.ndarray | None:
    """Rows that a fitted model must be able to predict; None if it has no rows and no table.

    Parameters
    ----------
    model : LaplaceRegressor or LaplaceClassifier
        The rows are its training rows if it keeps them, else the means of its columns.

    Returns
    -------
    ndarray of shape (3, d), float64 or object
    """
    kept, table = model._kept, model._table
    if kept is not None and len(kept.X):
        coded = kept.X[np.arange(max(N_ROWS)) % len(kept.X)]
    elif table is not None:
        coded = np.zeros((max(N_ROWS), len(table.columns)))
        coded[:, table.numeric] = _means(model, len(table.numeric))
    else:
        return None
    if table is None or not any(table.levels):
        return coded
    columns = [_levels(column, values) for column, values in zip(table.columns, coded.T, strict=True)]
    return np.array(columns, dtype=object).T


def _means(model: Any, n_columns: int) -> np.ndarray:
    for module in model.net_.module_.modules():
        if isinstance(module, Standardise) and len(module.mean) == n_columns:
            return module.mean.cpu().numpy()
    return np.zeros(n_columns)


def _levels(column: Any, values: np.ndarray) -> list[Any]:
    """Values of a column from its codes."""
    if not column.n_levels:
        return values.tolist()
    levels = {code: level for level, code in column.codes} | {column.missing: None}
    return [levels.get(int(code)) for code in values]
