"""Curvatures of all members over the rows of a stream, in one pass; ranks add up their sums.

A block is read once for all members. Each member's fit of the block is merged with its fit of the earlier ones, which
is exact for structures that are sums over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import torch

from .._approximation.noise_model import NoiseModel
from .._approximation.target_noise import TargetNoise
from .._options.options import Options
from .._training.stream import RowStream, held_out_by_hash
from ..laplace.fit import LaplaceFit, fit_laplace

CURVATURE_ROWS = 2_000_000
"""Number of rows of all ranks up to which the curvature is the sum over all of them. Of more rows, a random choice of
this number is weighted like all."""
SUMS = "curvature", "nll", "gradient", "total_weight", "log_noise"
"""Fields of a fit that are sums over rows."""


def summed(fits: Sequence[LaplaceFit], stream: RowStream) -> list[LaplaceFit]:
    if stream.group.is_alone:
        return list(fits)
    parts = stream.group.gathered([{name: getattr(fit, name) for name in SUMS} for fit in fits])
    return [
        reduce(LaplaceFit.merge, [replace(fit, **of_rank[place]) for of_rank in parts])
        for place, fit in enumerate(fits)
    ]


def curvature_rows(stream: RowStream) -> int:
    """Number of rows of this rank in the pass."""
    return min(stream.share, CURVATURE_ROWS // stream.group.size)


def fits_of_stream(
    fits: Sequence[LaplaceFit],
    places: Sequence[int],
    stream: RowStream,
    options: Options,
    model: NoiseModel | TargetNoise | None,
    like: torch.Tensor,
) -> list[LaplaceFit]:
    """Laplace fit of each member on its rows of the stream; ``fits`` on a sample determine the structures.

    ``places`` are the folds of the members among those of all repeats. ``model`` has noise variances up to a factor.
    ``like`` is a tensor with the dtype and the device of the rows.
    """
    structure = type(fits[0].curvature)
    n_columns = fits[0].rule.n_columns(fits[0].likelihood, fits[0].n_outputs)
    step = options.memory.pass_rows(structure, fits[0].network, n_columns, 0)
    sums: list[LaplaceFit | None] = [None] * len(fits)
    for data in stream.some(curvature_rows(stream)):
        held_out = held_out_by_hash(data)[list(places)]
        under = data if model is None else data.under_noise(model.ratios_of(data.X))
        rows = under.tensors(torch.float64, like.dtype, like.device)
        for place, fit in enumerate(fits):
            chunks = rows.taken(torch.from_numpy(~held_out[place]).nonzero()[:, 0].to(like.device)).chunks(step)
            more = fit_laplace(fit.network, fit.likelihood, fit.rule, structure, fit.prior, chunks, like=fit.curvature)
            before = sums[place]
            sums[place] = more if before is None else before.merge(more)
    return summed([total for total in sums if total is not None], stream)
