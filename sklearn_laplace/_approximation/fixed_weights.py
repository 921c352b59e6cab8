"""Laplace approximation of a net that was trained by its owner's epochs, or is frozen.

The weights are fixed. Rows that the net was not trained on select prior precision and noise level for the structure
that was asked for (``validation_scores.py``). They are the validation rows of the net's ``train_split``. Without
them, and for numeric targets, folds of the rows take their place. Their errors are those of closed-form leave-one-out
of the linearised net (Antorán et al. 2022), over all weights or, if that is too expensive, over the last layer.
Without either, the evidence of the structure selects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from numbers import Number
from typing import Any

import joblib
import numpy as np
import torch
from torch import Tensor

from .._data.rows import PreparedData, row_keys
from .._host.rows import CHUNK, TrainingRows
from .._options.options import AUTO, Options
from .._options.resolve import DEFAULT_LINK
from .._runtime.budget import budget_for, exact_cost
from .._training.cache import kept_in_search
from .._training.plan import GivenNet, other_rows
from .._validation.values import Choice
from ..distributions.densities import density_for
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError, UnsupportedCombinationError
from ..laplace.curvatures import GGN
from ..laplace.fit import Hyper, LaplaceFit, Rows, fit_laplace
from ..laplace.likelihoods._base import without_noise
from ..laplace.network.network import Network
from ..laplace.selection import loo_path, maximise_evidence
from ..laplace.structures import Full, Functional
from ..laplace.subsets import LastLayer
from .approximate import PosteriorLayout
from .choose import SelectionState, _start
from .validation_scores import relative_squares, validation_scores

OF_SELECTION = {
    *("prior_precision", "sigma_noise", "temperature", "predictive", "link", "n_samples"),
    *("net", "memory", "verbose", "n_jobs", "map_prior_precision", "damping", "member_weights"),
}
"""Parameters that the pass over the rows of a trained net does not depend on."""
N_FOLDS = 5
"""Number of folds of the rows without validation rows. The fold of a row is a hash of its inputs."""
ALL_FOLDS = 300
"""Maximum number of rows for scores of all folds; with more rows, a single fold is scored."""
FEW = 500
"""Number of validation rows below which leave-one-out errors of the training rows share in the level of the errors."""
RIDGES = torch.logspace(-6, 6, 49, dtype=torch.float64)
"""ρ of leave-one-out, in units of the variance of the targets and of the natural prior precision."""


def approximate_once(
    trained: GivenNet, data: PreparedData, options: Options, parameters: Mapping[str, Any], seed: int
) -> tuple[LaplaceFit, SelectionState]:
    """Compute what :func:`approximate_given` returns, once for all candidates of a search with the same structure.

    ``seed`` is that of draws in the curvature. ``parameters`` are those of the estimator.
    """
    key = ""
    if trained.key:
        relevant = {name: value for name, value in parameters.items() if name not in OF_SELECTION}
        for name in ("prior_precision", "sigma_noise"):  # several values are a pattern, and given ones need no scores
            value = parameters.get(name)
            relevant[name] = isinstance(value, str) or (None if isinstance(value, Number) else value)
        key = joblib.hash((trained.key, relevant, seed))
    return kept_in_search(key, lambda: approximate_given(trained, data, options))


def approximate_given(trained: GivenNet, data: PreparedData, options: Options) -> tuple[LaplaceFit, SelectionState]:
    """Compute the curvature of the random weights, and the scores that select prior precision and noise level.

    ``data`` are all rows; those that the net has held out are not part of the posterior. Raises ``MemoryBudgetError``
    if the curvature does not fit in memory.
    """
    rows = data.training_rows(options.dtype, options.device, built_in=False)
    validation = rows.taken(trained.held_out)
    rows = rows if not len(validation) else rows.taken(other_rows(trained.held_out, len(rows)))
    layout = PosteriorLayout.of(trained.network, rows, options, trained.prior, trained.hyper)
    names = trained.network.parameter_names
    origin = SelectionState(trained.hyper, trained.prior.names, names, None)
    if not _has_scores(options):
        return layout.fit(trained.network, rows), origin
    scores, left_out = None, None
    if len(validation):
        fit = layout.fit(trained.network, rows)
        scored = _dual_if_cheaper(fit, rows, layout)
        parts = [(scored, validation.chunks(CHUNK))]
        if options.likelihood.has_dispersion and len(validation) < FEW:
            errors = kept_in_search(
                trained.key and f"{trained.key} left out",
                lambda: _left_out_errors(trained.network, rows, scored, layout, only_all=True),
            )
            left_out = None if errors is None else relative_squares(errors, rows.observed, rows.weights)
    else:
        hashed = (row_keys(data.X) % np.uint64(N_FOLDS)).astype(np.int64)
        fold_of_row = torch.from_numpy(hashed).to(rows.inputs.device)
        fit, parts = _folds(trained.network, rows, fold_of_row, layout)
    if parts:
        hyper = _pattern(parts[0][0], origin, options)
        # ``refit_laplace`` can change the link of the predictions, not that of the scores.
        density = density_for(fit.likelihood, DEFAULT_LINK)
        scores = validation_scores(parts, hyper.prior_precision, density, left_out)
    return fit, origin if scores is None else replace(origin, scores=scores)


def _has_scores(options: Options) -> bool:
    """True if rows outside the training can select a free hyperparameter."""
    free = options.prior_precision.free or options.sigma_noise.free
    scored = not options.likelihood.has_dispersion or (
        options.likelihood.quadratic and options.rule.dispersion_power == 1
    )
    return free and scored and options.previous is None


def _pattern(fit: LaplaceFit, origin: SelectionState, options: Options) -> Hyper:
    """Prior precisions whose common factor is selected.

    A single one is natural, so that scores do not depend on its given value. Of several, those that are given, or those
    of largest evidence.
    """
    given = options.prior_precision.value
    is_open = given is None or given.size == 1
    free = replace(options, prior_precision=Choice(None, AUTO)) if is_open else options
    hyper = replace(_start(origin, fit, free), temperature=1.0)
    return maximise_evidence(fit, hyper, warn=False) if given is None and fit.prior.n_groups > 1 else hyper


def _folds(
    everything: Network, rows: TrainingRows, fold_of_row: Tensor, layout: PosteriorLayout
) -> tuple[LaplaceFit, list[tuple[LaplaceFit, list[Rows]]]]:
    """Fit of all rows, and fits without a fold with that fold, whose targets have the errors of leave-one-out.

    A structure that is a sum over rows takes one pass in total.
    """
    folds = [(fold_of_row == k).nonzero()[:, 0] for k in fold_of_row.unique()]
    several = len(folds) > 1
    folds = folds if len(rows) <= ALL_FOLDS else folds[:1]
    if not (several and layout.options.likelihood.has_dispersion):
        return layout.fit(everything, rows), []
    others = [other_rows(fold, len(rows)) for fold in folds]
    if layout.structure.is_monoid:
        of_folds = [layout.refit(everything, rows.taken(fold)) for fold in folds]
        if len(folds) == 1:
            without = [layout.refit(everything, rows.taken(others[0]))]
        else:
            without = [reduce(LaplaceFit.merge, [f for f in of_folds if f is not part]) for part in of_folds]
        fit = without[0].merge(of_folds[0])
    else:
        fit = layout.fit(everything, rows)
        without = [layout.refit(everything, rows.taken(index)) for index in others]
    without = [_dual_if_cheaper(f, rows.taken(index), layout) for f, index in zip(without, others, strict=True)]
    errors = _left_out_errors(everything, rows, fit, layout)
    if errors is None:
        return fit, []
    outputs = torch.cat([everything(inputs).double() for inputs, _, _ in rows.chunks(CHUNK)])
    shifted = replace(rows, targets=(outputs + errors).to(rows.targets))
    return fit, [(part, shifted.taken(fold).chunks(CHUNK)) for part, fold in zip(without, folds, strict=True)]


def _dual_if_cheaper(fit: LaplaceFit, rows: TrainingRows, layout: PosteriorLayout) -> LaplaceFit:
    """The same posterior in dual form if a full one has more weights than the rows have outputs."""
    n_dual = layout.n_columns * len(rows)
    is_full = isinstance(fit.curvature, Full) and Functional.accepts & fit.rule.provides
    if not is_full or exact_cost(fit.network.blocks, n_dual)[1] is Full:
        return fit
    options, network = layout.options, fit.network
    chunks = rows.chunks(options.memory.pass_rows(Functional, network, layout.n_columns, layout.n_bytes))
    return fit_laplace(network, fit.likelihood, fit.rule, Functional, fit.prior, chunks)


def _left_out_errors(
    everything: Network, rows: TrainingRows, fit: LaplaceFit, layout: PosteriorLayout, *, only_all: bool = False
) -> Tensor | None:
    """Errors (n, C) of leave-one-out; None if that is not affordable, for ``only_all`` over all weights.

    The ridge of the linearised net is that of largest leave-one-out density, whatever the structure of the posterior.
    A net whose errors on its own rows are larger has not been trained to a mode of that model: these errors count.
    """
    batches = rows.chunks(CHUNK)
    try:
        candidates = [everything] if only_all else _candidates(everything, layout)
        exact = _exact_fit(candidates, rows, fit, layout)
        if exact is None:
            return None
        unit = float(exact.network.natural_precisions(exact.prior)[0]) * fit.likelihood.dispersion_start
        path = loo_path(exact, batches, (unit * RIDGES).to(exact.theta))
    except (NotPositiveDefiniteError, NonFiniteError, MemoryBudgetError):
        return None
    targets, _ = without_noise(rows.observed.double(), fit.n_outputs)
    outputs = torch.cat([everything(inputs).double() for inputs, _, _ in batches])
    of_net, left_out = (targets - mean for mean in (outputs, path.mean[path.log_density.argmax()]))
    larger = [float(relative_squares(errors, rows.observed, rows.weights).mean()) for errors in (of_net, left_out)]
    return of_net if larger[0] > larger[1] else left_out


def _exact_fit(
    candidates: Sequence[Network], rows: TrainingRows, fit: LaplaceFit, layout: PosteriorLayout
) -> LaplaceFit | None:
    """Exact fit with one prior precision of the first candidate for which it is affordable."""
    likelihood, memory = fit.likelihood, layout.options.memory
    n_columns = GGN().n_columns(likelihood, fit.n_outputs)
    n_dual = n_columns * len(rows)
    for network in candidates:
        prior = network.scalar_prior()
        cost, structure = exact_cost(network.blocks, n_dual)
        same = network.parameter_names == fit.network.parameter_names and network.blocks == fit.network.blocks
        if same and isinstance(fit.curvature, structure) and isinstance(fit.rule, GGN):
            return replace(fit, prior=prior)
        if cost <= budget_for(len(rows)).exact_step and memory.fits(structure, network, n_dual, n_columns):
            chunks = rows.chunks(
                memory.pass_rows(structure, network, n_columns, structure.memory(network.blocks, n_dual))
            )
            return fit_laplace(network, likelihood, GGN(), structure, prior, chunks)
    return None


def _candidates(everything: Network, layout: PosteriorLayout) -> list[Network]:
    """Networks of the weights that leave-one-out refits: all, else the last layer."""
    try:
        return [everything, LastLayer().of(everything, layout.example)]
    except UnsupportedCombinationError:
        return [everything]
