"""Laplace approximations of jointly trained members, for classes and counts.

The steps are those of ``approximate_members.py``, but without a noise level or a noise model. The evidence of the first
member selects a prior precision. This precision is then multiplied by the factor that maximises the estimated density
of held-out rows. Among factors with almost the same density, the one closest to 1 is selected. For overdispersed
counts, held-out rows first select the overdispersion.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from .._training.plan import FitRequest, SelectionState
from .._training.progress import Clock
from .._training.stacked import of_mixture
from ..laplace.fit import CHUNK, Hyper, LaplaceFit, TrainingRows, some_rows
from ..laplace.selection import HeldOutScores, log_densities, maximise_evidence, prior_factors
from ..options.resolve import DEFAULT_LINK
from ..options.resolved import Options
from .approximate_members import curvature_rows, fits_of_stream, fits_on_rows, members_of, nets_of, traced
from .choose import density_for
from .joint_members import JointMembers
from .member import Member

PARTS = tuple(2.0**-k for k in range(6))
"""Candidate overdispersions, as fractions of the value from training; held-out rows select one of them."""
HELD_OUT_ROWS = 1000
"""Maximum number of rows for selecting the overdispersion and the prior precision."""


def approximate_counts_and_classes(joint_nets: JointMembers, request: FitRequest, clock: Clock) -> list[Member]:
    """Return the ensemble members, with the prior precision selected on held-out rows.

    If the pass over a stream would exceed the time limit, the curvature is computed on the sample in memory.
    """
    options, data, stream = request.options_for_rows(), request.data, request.stream
    rows = data.training_rows(options.dtype, options.device, built_in=True)
    nets = nets_of(joint_nets, rows, options, request.seeds[0])
    networks, begun = traced(nets, rows), clock.elapsed
    copies = 1.0 if stream is None else stream.total_weight / rows.total_weight
    fits, _ = fits_on_rows(networks, joint_nets, data, options, copies)
    if options.likelihood.is_overdispersed and not clock.lacks(clock.elapsed - begun):
        options = _dispersed(fits, joint_nets, rows, options)
        fits, _ = fits_on_rows(networks, joint_nets, data, options, copies)
    if stream is not None and not clock.lacks((clock.elapsed - begun) * curvature_rows(stream) / len(rows)):
        fits = fits_of_stream(fits, joint_nets.places, stream, options, None, rows.weights)
    start = _of_largest_evidence(fits[0])
    scores = _scored(fits, joint_nets, rows, start, len(fits))
    hyper = scores.chosen(start, free_prior=True, free_dispersion=False)
    origin = SelectionState(start, fits[0].prior.names, networks[0].parameter_names, None, scores)
    return members_of(joint_nets, request, nets, fits, [hyper] * len(fits), [origin] * len(fits), None)


def _of_largest_evidence(fit: LaplaceFit) -> Hyper:
    start = Hyper(torch.ones_like(fit.theta[: fit.prior.n_groups]))
    return maximise_evidence(fit, start, free_prior=True, free_dispersion=False, warn=False)


def _dispersed(fits: Sequence[LaplaceFit], joint_nets: JointMembers, rows: TrainingRows, options: Options) -> Options:
    """Return options with the overdispersion α of largest held-out density: that of training times one of ``PARTS``.

    In training, all held-out errors count as overdispersion. Here, the posterior variance explains part of the errors.
    """
    start, alpha = _of_largest_evidence(fits[0]), np.array(joint_nets.overdispersion)
    candidates = [options.with_overdispersion(tuple((alpha * part).tolist())) for part in PARTS]

    def density(under: Options) -> float:
        of_all = [replace(fit, likelihood=under.likelihood) for fit in fits]
        scores = _scored(of_all, joint_nets, rows, start, joint_nets.n_repeats)
        return float(scores.constants.max())

    return max(candidates, key=density)


def _scored(
    fits: Sequence[LaplaceFit], joint_nets: JointMembers, rows: TrainingRows, start: Hyper, n_nets: int
) -> HeldOutScores:
    """Log density of held-out rows under a mixture of ``n_nets`` nets, by factor of the prior precision.

    The density of a row is estimated from the members that are trained without it.
    """
    likelihood, factors = fits[0].likelihood, prior_factors(fits[0], start)
    chosen = some_rows(len(rows), HELD_OUT_ROWS).to(rows.weights.device)
    few, held_out, n_repeats = rows.taken(chosen), joint_nets.held_out[:, chosen], joint_nets.n_repeats
    repeat_of = joint_nets.repeat_of.tolist()
    precisions, density = factors[:, None] * start.prior_precision, density_for(likelihood, DEFAULT_LINK)
    logs = torch.zeros(n_repeats, len(factors), len(chosen), dtype=torch.float64, device=chosen.device)
    for k, (fit, mask) in enumerate(zip(fits, held_out, strict=True)):
        places = mask.nonzero()[:, 0]
        batches = few.taken(places).chunks(CHUNK)
        logs[repeat_of[k], :, places] = log_densities(fit, batches, precisions, density)
    weights = likelihood.score_weights(few.weights).double()
    mixed = of_mixture(logs, joint_nets.repeat_shares, n_nets) @ weights
    unit, none = start.prior_precision, torch.zeros_like(factors)
    return HeldOutScores(unit, factors, none, mixed, 0.0, likelihood.dispersion_bounds)
