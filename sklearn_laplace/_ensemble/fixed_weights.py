r"""Laplace approximation of a user's net that was trained by its own epochs, or is frozen.

Prior precision and noise level are selected for the given structure, on the validation rows of the net's
``train_split``. Without validation rows, numeric targets use folds of the training rows. The errors are then the
closed-form leave-one-out errors of the linearised net (Antorán et al. 2022). The net is linearised in all weights or,
if this is too expensive, in those of the last layer. In all other cases, the evidence selects both values.

**Criterion.** Let :math:`e_n` be the errors on validation rows or folds, and :math:`\varphi V_n(\rho)` their variances,
including noise. The variances are computed with the posterior's structure, at noise variance φ and prior precisions
:math:`\delta = f \delta_0 = (\rho/\varphi)\, \delta_0`. The selected f and φ maximise

.. math:: \sum_n w_n \log N(e_n; 0, \varphi V_n(\rho)) - \tfrac12 \Big(\frac{\log f}{s_f}\Big)^2
          - \tfrac12 \Big(\frac{\log \varphi / \bar{e^2}}{2 s_\sigma}\Big)^2

with φ within a factor of 2.5 of the mean squared error :math:`\bar{e^2}`. The two weak priors (``FACTOR``, ``NOISE``)
matter if there are few rows. They favour the natural precisions :math:`\delta_0`, for which outputs are of order one,
and noise as large as the errors. If the posterior of a structure is too wide, f increases. φ cannot change much,
because the errors bound it. Without dispersion (classes and counts), the sum is the log density of the targets, and
only f is selected, under the prior ``FACTOR_OF_CLASSES``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Number
from typing import Any

import joblib
import numpy as np
import torch
from torch import Tensor

from .._table.limits import SMALL_ROWS, budget_for, exact_cost
from .._table.rows import PreparedData, row_keys
from .._training.cache import kept_in_search
from .._training.plan import GivenNet, SelectionState, other_rows
from .._validation.arguments import Choice
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError, UnsupportedCombinationError
from ..laplace.curvatures import GGN
from ..laplace.fit import CHUNK, Hyper, LaplaceFit, Rows, TrainingRows, fit_laplace
from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.rows import Density, normal_terms
from ..laplace.likelihoods._base import without_noise
from ..laplace.network.network import Network
from ..laplace.selection import HeldOutScores, loo_path, maximise_evidence
from ..laplace.selection.held_out import covariances
from ..laplace.structures import Full, Functional
from ..laplace.subsets import LastLayer
from ..options.resolve import DEFAULT_LINK
from ..options.resolved import AUTO, Options
from .approximate import PosteriorLayout
from .choose import _start, density_for

FACTORS = torch.logspace(-5.0, 6.0, 45, dtype=torch.float64)
"""Values of f if φ is the mean squared error. Every second one is used if each needs a factorisation of its own."""
FINE = 10 * (len(FACTORS) - 1) + 1
"""Number of values of ρ after interpolation: ten steps per interval of ``FACTORS``."""
LOG_NOISES = np.linspace(-1, 1, 81) * math.log(2.5)
"""Values of log φ, relative to the logarithm of the mean squared error."""


@dataclass(frozen=True)
class LogNormalPrior:
    """Normal prior for the logarithm of a quantity."""

    mean: float
    sd: float

    def penalty(self, value: np.ndarray) -> np.ndarray:
        """Squared distance of a logarithm from the mean, in standard deviations."""
        return ((value - self.mean) / self.sd) ** 2


FACTOR, FACTOR_OF_CLASSES = LogNormalPrior(0.0, math.log(10.0)), LogNormalPrior(math.log(10.0), 0.6)
"""Priors of f: for numeric targets, and for classes and counts."""
NOISE = LogNormalPrior(0.0, 2 * 0.2)
"""Prior of φ relative to the mean squared error; log σ has the standard deviation .2. See docs/decisions.md."""
BIAS = LogNormalPrior(0.2, 0.3)
"""Prior of the mean squared error of new rows, relative to the mean squared leave-one-out error."""


@dataclass(frozen=True, kw_only=True)
class ValidationScores(HeldOutScores):
    """Log density of validation rows or left-out folds under a fixed net, at k values of ρ."""

    level: float  # mean squared error relative to known noise, see :func:`_level`
    widths: Tensor  # (k,), medians over the rows of the variance V, noise included, at φ = 1
    spread: float  # variance of a constant prediction, in units of φ

    def chosen(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> Hyper:
        """Return ``hyper`` with the free values that maximise the criterion of this module."""
        ridges, squares, constants = self._interpolated()
        if not self.freedom:
            factor = math.exp(ridges[(constants - 0.5 * FACTOR_OF_CLASSES.penalty(ridges)).argmax()])
            return replace(hyper, prior_precision=factor * self.unit) if free_prior else hyper
        noises = np.array([math.log(hyper.dispersion)])
        if free_dispersion:
            low, high = (math.log(bound) for bound in self.bounds)
            noises = math.log(self.level) + LOG_NOISES
            noises = noises.clip(low, high)
        if not free_prior:
            factor = float(hyper.prior_precision[0] / self.unit[0])
            at = (math.log(factor) + noises).clip(ridges[0], ridges[-1])
            squares, constants = (np.interp(at, ridges, values) for values in (squares, constants))
            ridges = at
        else:
            ridges, squares, constants = ridges[:, None], squares[:, None], constants[:, None]
        density = constants - 0.5 * (self.freedom * (math.log(2 * math.pi) + noises) + squares * np.exp(-noises))
        penalty = NOISE.penalty(noises - math.log(self.level))
        factors = ridges - noises
        if free_prior:
            penalty = penalty + FACTOR.penalty(factors)
        best = np.unravel_index((density - 0.5 * penalty).argmax(), density.shape)
        noise = float(np.exp(np.broadcast_to(noises, density.shape)[best])) if free_dispersion else hyper.dispersion
        precision = math.exp(factors[best]) * self.unit if free_prior else hyper.prior_precision
        return replace(hyper, prior_precision=precision, dispersion=noise)

    def width(self, hyper: Hyper) -> float:
        """Median predictive standard deviation relative to that of a constant prediction; 0 without dispersion."""
        if not self.freedom:
            return 0.0
        factor = float(hyper.prior_precision[0] / self.unit[0])
        ridges, widths = (values.log().cpu().numpy() for values in (self.ridge, self.widths))
        variance = hyper.dispersion * math.exp(np.interp(math.log(factor * hyper.dispersion), ridges, widths))
        return math.sqrt(variance / self.spread)

    def _interpolated(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log ρ, squares and constants on a finer grid, each of shape (``FINE``,)."""
        known = self.ridge.log().cpu().numpy()
        fine = np.linspace(known[0], known[-1], FINE)
        return fine, *(np.interp(fine, known, values.cpu().numpy()) for values in (self.squares, self.constants))


def validation_scores(
    parts: Iterable[tuple[LaplaceFit, Iterable[Rows]]], unit: Tensor, density: Density, left_out: Tensor | None = None
) -> ValidationScores:
    """Compute the scores of rows that the fits do not include; ``density`` scores classes and counts.

    ``parts`` are Laplace fits at the weights of the net, each with batches of rows outside the fit. ``unit`` (G,)
    are prior precisions for f = 1. ``left_out`` (n,) are squared leave-one-out errors of the training rows, in units of
    their known noise. If given, they contribute to the ``level``.
    """
    listed = [(fit, list(batches)) for fit, batches in parts]
    first = listed[0][0]
    likelihood = first.likelihood
    normal = likelihood.has_dispersion
    level, factor = _level(first, _squares(listed), left_out) if normal else (1.0, 1.0)
    dear = any(fit.curvature.eigenbasis() is None for fit, _ in listed) or len(unit) > 1
    ridge = (FACTORS[::2] if dear else FACTORS).to(unit) * level
    squares, constants, total_weight = torch.zeros_like(ridge), torch.zeros_like(ridge), 0.0
    variances: list[list[Tensor]] = [[] for _ in ridge]
    for fit, batches in listed:
        for place, rows, covariance in covariances(fit, batches, ridge[:, None] * unit):
            weights = likelihood.score_weights(rows.weights)
            total_weight += float(weights.sum()) if place == 0 else 0.0
            if normal:
                y, noise = without_noise(rows.targets, fit.n_outputs)
                noise = noise.expand_as(rows.outputs)
                square, logdet = normal_terms(y - rows.outputs, covariance, noise)
                squares[place] += factor * (rows.weights @ square)
                constants[place] -= 0.5 * (rows.weights @ logdet)
                variances[place].append((covariance.diagonal(dim1=1, dim2=2) + noise).mean(1))
            else:
                scored = likelihood.scored(LatentGaussian(rows.outputs, covariance), rows.targets, rows.weights)
                constants[place] += weights @ density(*scored, 1.0)
    widths = torch.stack([torch.cat(part).median() for part in variances]) if normal else torch.zeros_like(ridge)
    return ValidationScores(
        unit=unit,
        ridge=ridge,
        squares=squares,
        constants=constants,
        freedom=first.n_outputs * total_weight if normal else 0.0,
        total_weight=total_weight,
        bounds=likelihood.dispersion_bounds,
        level=level,
        widths=widths,
        spread=likelihood.dispersion_start,
    )


def _level(fit: LaplaceFit, of_rows: Tensor, left_out: Tensor | None) -> tuple[float, float]:
    """Estimated mean squared error, at least that of training rows, and its ratio to the mean square ``of_rows``."""
    smallest = fit.likelihood.dispersion_bounds[0]
    of_training = 2 * fit.nll / (fit.total_weight * fit.n_outputs)
    own = max(float(of_rows.mean()), smallest)
    level = max(own if left_out is None else _pooled(of_rows, left_out), of_training, smallest)
    return level, level / own


def relative_squares(errors: Tensor, observed: Tensor, weights: Tensor) -> Tensor:
    """Squared errors (n,) divided by known noise and averaged over targets, times weights relative to their mean."""
    _, noise = without_noise(observed.double(), errors.shape[1])
    weights = weights.double()
    return weights / weights.mean() * (errors.square() / noise).mean(1)


def _squares(parts: Iterable[tuple[LaplaceFit, list[Rows]]]) -> Tensor:
    rows = [(fit, batch) for fit, batches in parts for batch in batches]
    observed, weights = (torch.cat([batch[k] for _, batch in rows]) for k in (1, 2))
    outputs = torch.cat([fit.network(batch[0]).double() for fit, batch in rows])
    targets, _ = without_noise(observed.double(), outputs.shape[1])
    return relative_squares(targets - outputs, observed, weights)


def _pooled(own: Tensor, left_out: Tensor) -> float:
    r"""Combined mean squared error of validation rows and leave-one-out, a precision-weighted geometric mean.

    A mean m of n squares has the relative variance :math:`s^2 = \mathrm{var}(e^2) / (n m^2)`. Leave-one-out errors are
    too small, because the features were learnt from the rows left out. Therefore the mean of ``BIAS`` is added to their
    log level, and the variance of ``BIAS`` to the variance of that level.
    """
    means = [max(float(squares.mean()), torch.finfo(squares.dtype).tiny) for squares in (own, left_out)]
    spreads = [_relative_variance(squares, mean) for squares, mean in zip((own, left_out), means, strict=True)]
    precisions = 1 / max(spreads[0], 1e-12), 1 / (spreads[1] + BIAS.sd**2)
    share = precisions[0] / sum(precisions)
    return math.exp(share * math.log(means[0]) + (1 - share) * (math.log(means[1]) + BIAS.mean))


def _relative_variance(squares: Tensor, mean: float) -> float:
    """Relative variance of the mean of squares; 2 for a single square, as for a normal error."""
    return float(squares.var()) / (len(squares) * mean**2) if len(squares) > 1 else 2.0


OF_SELECTION = {
    *("prior_precision", "sigma_noise", "temperature", "predictive", "link", "n_samples"),
    *("net", "memory", "verbose", "n_jobs", "map_prior_precision", "damping", "member_weights"),
}
"""Parameters that do not affect the pass over the rows of a trained net."""
N_FOLDS = 5
"""Number of folds of the rows if there are no validation rows. All folds are scored if the rows are few, otherwise only
the first. The fold of a row follows from a hash of its inputs."""
FEW = 500
"""Number of validation rows below which leave-one-out errors contribute to the estimated mean squared error."""
RIDGES = torch.logspace(-6, 6, 49, dtype=torch.float64)
"""Values of ρ for leave-one-out, in units of target variance times natural prior precision."""


def approximate_once(
    trained: GivenNet, data: PreparedData, options: Options, parameters: Mapping[str, Any], seed: int
) -> tuple[LaplaceFit, SelectionState]:
    """As :func:`approximate_given`, once for all candidates of a search; ``seed`` is for draws in the curvature."""
    key = ""
    if trained.key:
        relevant = {name: value for name, value in parameters.items() if name not in OF_SELECTION}
        # Several given values affect the scores; a single given value needs no scores.
        for name in ("prior_precision", "sigma_noise"):
            value = parameters.get(name)
            relevant[name] = isinstance(value, str) or (None if isinstance(value, Number) else value)
        key = joblib.hash((trained.key, relevant, seed))
    return kept_in_search(key, lambda: approximate_given(trained, data, options))


def approximate_given(trained: GivenNet, data: PreparedData, options: Options) -> tuple[LaplaceFit, SelectionState]:
    """Return the Laplace fit without held-out rows, and a state with scores for selecting prior and noise."""
    rows = data.training_rows(options.dtype, options.device, built_in=False)
    validation = rows.taken(trained.held_out)
    rows = rows if not len(validation) else rows.taken(other_rows(trained.held_out, len(rows)))
    layout = PosteriorLayout.of(trained.network, rows, options, trained.prior, trained.hyper)
    names = trained.network.parameter_names
    origin = SelectionState(trained.hyper, trained.prior.names, names, None)
    if not _has_scores(options):
        return layout.fit(rows), origin
    scores, left_out = None, None
    if len(validation):
        fit = layout.fit(rows)
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
        # ``refit_laplace`` can change the link of the predictions, but not that of the scores.
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
    """Hyperparameters with the prior precisions whose common factor is selected.

    A single precision has its natural size, whatever its given value. Several precisions are given, or maximise the
    evidence.
    """
    given = options.prior_precision.value
    is_open = given is None or given.size == 1
    free = replace(options, prior_precision=Choice(None, AUTO)) if is_open else options
    hyper = replace(_start(origin, fit, free), temperature=1.0)
    return maximise_evidence(fit, hyper, warn=False) if given is None and fit.prior.n_groups > 1 else hyper


def _folds(
    everything: Network, rows: TrainingRows, fold_of_row: Tensor, layout: PosteriorLayout
) -> tuple[LaplaceFit, list[tuple[LaplaceFit, list[Rows]]]]:
    """Return the fit to all rows and, per scored fold, a fit without it and the fold's rows.

    The targets of these rows are shifted: their errors are the leave-one-out errors.
    """
    folds = [(fold_of_row == k).nonzero()[:, 0] for k in fold_of_row.unique()]
    several = len(folds) > 1
    folds = folds if len(rows) <= SMALL_ROWS else folds[:1]
    if not (several and layout.options.likelihood.has_dispersion):
        return layout.fit(rows), []
    others = [other_rows(fold, len(rows)) for fold in folds]
    if layout.structure.is_monoid:
        of_folds = [layout.fit(rows.taken(fold)) for fold in folds]
        if len(folds) == 1:
            without = [layout.fit(rows.taken(others[0]))]
        else:
            without = [reduce(LaplaceFit.merge, [f for f in of_folds if f is not part]) for part in of_folds]
        fit = without[0].merge(of_folds[0])
    else:
        fit = layout.fit(rows)
        without = [layout.fit(rows.taken(index)) for index in others]
    without = [_dual_if_cheaper(f, rows.taken(index), layout) for f, index in zip(without, others, strict=True)]
    errors = _left_out_errors(everything, rows, fit, layout)
    if errors is None:
        return fit, []
    outputs = torch.cat([everything(inputs).double() for inputs, _, _ in rows.chunks(CHUNK)])
    shifted = replace(rows, targets=(outputs + errors).to(rows.targets))
    return fit, [(part, shifted.taken(fold).chunks(CHUNK)) for part, fold in zip(without, folds, strict=True)]


def _dual_if_cheaper(fit: LaplaceFit, rows: TrainingRows, layout: PosteriorLayout) -> LaplaceFit:
    """Return a full fit in dual form if that is cheaper, and other fits unchanged."""
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
    """Leave-one-out errors (n, C); None if too expensive. If ``only_all``, the net is linearised in all weights.

    The ridge ρ of the linearised net maximises the leave-one-out density, whatever the structure of the posterior. If
    the training errors are larger than the leave-one-out errors, the net is not at a mode of this linearised model. The
    training errors are then returned.
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
    """Exact fit of the first affordable candidate, with one prior precision; None if all are too expensive."""
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
    """Networks for leave-one-out, in order of preference: with all weights, and with those of the last layer."""
    try:
        return [everything, LastLayer().of(everything, layout.example)]
    except UnsupportedCombinationError:
        return [everything]
