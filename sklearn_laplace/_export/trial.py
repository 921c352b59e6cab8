"""Check that a model loaded from a file can predict, before it is returned.

Types are checked while a file is read (``_storage/restore.py``), but arrays of wrong shapes only show when they are
used. So the model predicts two rows and then three: broadcasting may hide a wrong shape for one of these numbers.

The work is bounded. One of the members that share all parts is tried, of many members the first, and of too many
outputs none. Models with layers that can enlarge their input (padding, upsampling) are not tried, since a small file
could request any memory.
"""

from __future__ import annotations

from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, clone
from torch import nn

from .._approximation.noise_model import NoiseModel
from .._ensemble.ensemble import Ensemble
from .._ensemble.member import Member
from .._estimator.base import LaplaceEstimator
from .._options.variants import Link, MonteCarlo, expanded
from .._runtime.memory import held
from .._storage.registry import FITTED
from .._validation.values import jobs
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
PARTS = ("net", "fit", "hyper", "posterior", "scale", "noise_model", "input_dtype")
"""Attributes of a member that predictions depend on."""
MOST_TRIED = 32
"""Members."""
MOST_WORK = 10**9
"""Multiply-adds of the trial: rows × outputs × (outputs² + numbers of the posterior + weights), over the members."""
FLOAT = 8
"""Bytes of a number."""
OPTIONAL = {"feature_names_in_", "classes_", "_column_names", "_single_output"}
"""Attributes that some fits do not set."""
MOST_SAMPLES = 10**6
"""Largest ``n_samples`` of a file."""
FEW_SAMPLES = 20


def check_answers(model: LaplaceEstimator) -> None:
    """Raise a StateError for a fitted model that cannot predict."""
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
        is_bounded = all(map(_is_bounded, _modules(model)))
        if is_bounded and (tried := _tried(model)) and (rows := example_rows(model)) is not None:
            _answer(_twin(model, tried), rows)
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"the model cannot predict ({type(error).__name__}: {str(error)[:300]}).") from error


def _check_sizes(model: Any) -> None:
    """Refuse blocks of more weights than the net has: torch would make matrices of their sizes."""
    for member in _distinct(model):
        network, posterior = member.fit.network, vars(member.posterior)
        most = sum(tensor.numel() for tensor in network.module.parameters())
        blocks = [block.size for block in network.layout.blocks]
        held = [block.size for block in posterior.get("blocks", ())]
        if max(sum(blocks), sum(held), sum(posterior.get("sizes", ()))) > most or min(blocks, default=1) < 1:
            raise StateError(f"the state has blocks of {_few(blocks)} weights, and the net has {most}.")
        if tuple(member.fit.gradient.shape) != (sum(blocks),):
            size = member.fit.gradient.numel()
            raise StateError(f"the state has a gradient of {size} weights, and blocks of {sum(blocks)}.")


def _few(values: list[int]) -> str:
    return ", ".join(map(str, values[:5]))


def _distinct(model: Any) -> list[Member]:
    """One member of those that share all parts."""
    parts = {tuple(id(getattr(member, name)) for name in PARTS): member for member in model._ensemble.members}
    return list(parts.values())


def _tried(model: Any) -> list[Member]:
    """The first distinct members whose predictions are affordable together."""
    tried: list[Member] = []
    work = 0
    for member in _distinct(model)[:MOST_TRIED]:
        fit, n_outputs = member.fit, member.fit.n_outputs
        layers = [layer for _, layer in fit.network.module.named_modules(remove_duplicate=False)]
        n_weights = sum(
            tensor.numel() for layer in layers for tensor in layer._parameters.values() if tensor is not None
        )
        n_held = held(member.posterior, fit.curvature) // FLOAT
        work += sum(N_ROWS) * n_outputs * (n_outputs**2 + n_held + n_weights)
        if work > MOST_WORK:
            _check_outputs(model, member)
            break
        tried.append(member)
    return tried


def _check_outputs(model: Any, member: Member) -> None:
    """Check the outputs of a net that is not tried by a forward pass: their number may be wrong to avoid the trial."""
    fit = member.fit
    n_columns = model.n_features_in_ if model._table is None else len(model._table.columns)
    with torch.no_grad():
        shape = fit.network(torch.zeros(2, n_columns, dtype=member.input_dtype, device=fit.theta.device)).shape
    if shape != (2, fit.n_outputs) or any(block.positions != 1 for block in fit.network.blocks):
        raise StateError(
            f"the state has {fit.n_outputs:,} outputs, and those of its net have the shape {tuple(shape)}."
        )


def _answer(model: Any, rows: np.ndarray) -> None:
    is_classifier = isinstance(model, ClassifierMixin)
    for n_rows in N_ROWS:
        part = rows[:n_rows]
        means = model.predict_proba(part) if is_classifier else model.predict(part)
        std = model.predict_std(part)
        for answers in (means, std):
            if len(answers) != n_rows:
                raise StateError(f"the model has {len(answers)} predictions for {n_rows} rows.")
            if answers.dtype.kind != "f" or not np.isfinite(answers).all():
                raise StateError("the model predicts numbers that are not finite and real.")
        if not ((std >= 0) if is_classifier else (std > 0)).all():  # 1 - p underflows for certain classes
            raise StateError(f"the model predicts a standard deviation of {std.min():.3g}.")
        if is_classifier and not (means.min() >= 0 and np.allclose(means.sum(1), 1)):
            raise StateError("the model predicts probabilities whose sum is not one.")


def _twin(model: Any, tried: list[Member]) -> Any:
    """A copy of these members without column names, since the rows are an array, and with few weight samples."""
    parameters = model.get_params(deep=False)
    jobs("n_jobs", parameters["n_jobs"])
    sampled = {name: value for name, value in parameters.items() if isinstance(value, MonteCarlo | Link)}
    few = {name: clone(value).set_params(n_samples=FEW_SAMPLES) for name, value in sampled.items()}
    ensemble = model._ensemble
    if len(tried) < len(ensemble.members):
        ensemble = Ensemble.of(tried)
    twin = model._around(ensemble, **few, n_jobs=None)
    if "feature_names_in_" in vars(twin):
        del twin.feature_names_in_
    return twin


def _modules(model: Any) -> list[nn.Module]:
    modules: list[nn.Module] = []
    for member in _distinct(model):
        noise = member.noise_model
        fits = [member.fit, noise.fit] if isinstance(noise, NoiseModel) else [member.fit]
        modules += [member.net.module_, *(fit.network.module for fit in fits)]
    return list(dict.fromkeys(modules))


def _is_bounded(module: nn.Module) -> bool:
    """True if a forward pass takes memory and time in proportion to the weights; False for layers of other types.

    Tensors with more axes than their layer takes raise a StateError, because they multiply by broadcasting.
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
    """Rows (3, d) that a fitted model must be able to predict; None if it keeps no rows and has no table.

    They are its training rows if it keeps them, else the means of its columns.
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
