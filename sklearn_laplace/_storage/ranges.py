"""Ranges of the numbers in a description, checked before an object is made of them.

Types alone admit a negative variance, a temperature of NaN or a complex scale, and a model with these may predict.
Every number of a data class has a range here; a test compares the list with the annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import StateError

Inside = Callable[[np.ndarray], Any]
RANGES: dict[str, Inside] = {
    "positive": lambda values: (values > 0) & (values < np.inf),
    "positive or infinite": lambda values: values > 0,
    "of at least 0": lambda values: (values >= 0) & (values < np.inf),
    "of at least 1": lambda values: (values >= 1) & (values < np.inf),
    "finite": np.isfinite,
    "real": lambda values: True,
}
"""Each range by the words of the message."""
FIELDS: dict[str, str] = {
    "positive": """
        FunctionalPosterior.scale HeldOutScores.factor ValidationScores.factor
        DiagPosterior.precision DiagPosterior.total FullPosterior.precision FunctionalPosterior.precision
        Gaussian.noise HeldOutScores.bounds HeldOutScores.unit Hyper.dispersion
        Hyper.prior_precision Hyper.temperature InfBlockPosterior.precision InfBlockPosterior.total
        KronBlockPosterior.precision KronBlockPosterior.spectrum LaplaceFit.total_weight
        PreparedData.noise SquaredErrors.dispersion TargetNoise.levels TargetScale.scale
        TargetScale.deviation TargetScale.unit_noise TemperedPosterior.temperatures ValidationScores.bounds
        ValidationScores.unit fitted._weight_unit NumbersAndPieces.quartile Pieces.length Standardise.period
        Standardise.scale Column.cycles LogTransform.high
    """,
    "positive or infinite": "Compress.width",
    "of at least 0": """
        Affine.bias Affine.weight Choice.value
        Column.missing Column.missing_share Column.n_levels Conv.bias Conv.weight Embedding.bias
        Embedding.weight Ensemble.shares Ensemble.weights Gaussian.target_variance Generic.sizes
        HeldOutScores.freedom HeldOutScores.ridge
        HeldOutScores.squares InfBlockPosterior.values Kron.total_weight Linear.bias Linear.weight MCFisher.seed
        Member.n_bins Member.n_steps Member.seed NegativeBinomial.overdispersion NoiseModel.spread
        PreparedData.weights Prior.groups ValidationScores.freedom ValidationScores.level ValidationScores.ridge
        ValidationScores.spread ValidationScores.squares ValidationScores.widths
        Standardise.cyclic
    """,
    "of at least 1": """
        BlockDiagonal.sizes BlockPosterior.sizes Conv.groups Conv.n_outputs Conv.positions Diag.sizes
        DiagPosterior.sizes Embedding.n_vectors Full.sizes KronPosterior.sizes LaplaceFit.n_outputs
        Linear.n_outputs Linear.positions LowRank.rank LowRankDiag.rank MCFisher.n_samples ParameterBlock.inputs
        ParameterBlock.outputs ParameterBlock.positions PreparedData.n_outputs fitted.n_features_in_
    """,
    "finite": """
        Affine.last_axes Column.later Column.reach Column.spread DenseFactor.values
        Diag.diagonal EKFACBlock.input_basis EKFACBlock.output_basis
        EKFACBlock.values Full.lower FullPosterior.half FullPosterior.logdet FunctionalPosterior.factor
        FunctionalPosterior.gram
        InfBlockPosterior.rows KronBlock.input_sum KronBlock.output_sum KronBlockPosterior.input_basis
        KronBlockPosterior.output_basis LaplaceFit.gradient LaplaceFit.log_noise LaplaceFit.nll LaplaceFit.shift
        LayerFactor.cotangents LayerFactor.inputs LowRank.kept Member.unseen NoiseModel.log_level
        PreparedData.targets Prior.mean SharedFactor.cotangents SharedFactor.inputs Standardise.mean
        TargetScale.log_slope TargetScale.mean
    """,
    "real": """
        Column.high Column.low Embedding.padding HeldOutScores.constants
        Layout.columns Layout.elements Member.gradient_norm Member.log_evidence
        Member.mode_distance Member.n_effective_parameters NoiseModel.gain PreparedData.X ValidationScores.constants
    """,
}
"""Attributes by the range of their numbers; "real" are those that may be NaN or infinite in a legal fit."""
RANGE_OF = {name: words for words, names in FIELDS.items() for name in names.split()}


def check_range(owner: str, name: str, value: Any) -> None:
    """Raise a StateError for complex numbers, and for those outside of the range of an attribute; see ``FIELDS``.

    The owner is the name of a class, or "fitted" for an attribute of an estimator.
    """
    words = RANGE_OF.get(f"{owner}.{name}")
    if words is None:
        return
    for values in numbers_in(value):
        if values.dtype.kind not in "biuf":
            raise StateError(f"the state holds {values.dtype} numbers as {name!r} of {owner}; they have to be real.")
        inside = np.broadcast_to(RANGES[words](values), values.shape)
        if not inside.all():
            found = values[~inside].flat[0]
            raise StateError(f"the state holds {found!s:.80} as {name!r} of {owner}; the numbers there are {words}.")


def numbers_in(value: Any) -> Iterator[np.ndarray]:
    """The numbers, arrays and tensors in a value, as arrays."""
    if isinstance(value, Tensor):
        yield value.detach().to("cpu", torch.float32 if value.dtype == torch.bfloat16 else value.dtype).numpy()
    elif isinstance(value, Mapping):
        for held in value.values():
            yield from numbers_in(held)
    elif isinstance(value, tuple | list):
        for held in value:
            yield from numbers_in(held)
    elif isinstance(value, np.ndarray | np.generic | int | float) and not isinstance(value, bool):
        yield np.asarray(value)
