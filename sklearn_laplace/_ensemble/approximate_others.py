"""Laplace approximations of members for classes and counts that train together.

As ``approximate_members.py``, without a noise level and its model. The prior precision of largest evidence of the first
member is multiplied by the factor that held-out rows select (``laplace/selection/held_out.py``).
"""

from __future__ import annotations

import numpy as np
import torch

from .._approximation.choose import SelectionState
from .._approximation.held_out import CrossFit
from .._runtime.progress import Clock
from .._training.folds import density_for
from ..laplace.fit import Hyper
from ..laplace.network.tracing import trace
from ..laplace.selection import held_out_scores, maximise_evidence
from .approximate_members import CHUNK, JointFits, fits_on_rows, initialised, pieces_of, results_of
from .joint_members import JointMembers
from .request import FitRequest
from .streamed import curvature_rows, fits_of_stream

SCORED_ROWS, FEW_SCORED_ROWS = 1000, 125
"""Number of held-out rows of each member for selecting the prior precision; the same if less time is left than the
curvatures have taken."""


def approximate_others(joint_nets: JointMembers, request: FitRequest, clock: Clock) -> JointFits:
    """Laplace approximations with the prior precision selected on held-out rows.

    If the pass over a stream would exceed the time limit, the curvature of the sample is used.
    """
    options, data, stream = request.options_for_rows(), request.data, request.stream
    rows = data.training_rows(options.dtype, options.device, built_in=True)
    nets = initialised(joint_nets, rows, options, request.seeds[0])
    networks, begun = [trace(net.module_, rows.inputs) for net in nets], clock.elapsed
    copies = 1.0 if stream is None else stream.total_weight / rows.total_weight
    fits, held_out = fits_on_rows(networks, joint_nets, data, options, copies)
    if stream is not None and not clock.lacks((clock.elapsed - begun) * curvature_rows(stream) / len(rows)):
        fits = fits_of_stream(fits, joint_nets.places, stream, options, None, rows.weights)
    most = FEW_SCORED_ROWS if clock.lacks(clock.elapsed - begun) else SCORED_ROWS
    fit, parts = fits[0], []
    start = maximise_evidence(
        fit, Hyper(torch.ones_like(fit.theta[: fit.prior.n_groups])), free_prior=True, free_dispersion=False, warn=False
    )
    for k, (member_fit, unseen) in enumerate(zip(fits, held_out, strict=True)):
        few = torch.randperm(len(unseen), generator=torch.Generator().manual_seed(k))[:most].sort().values
        parts.append((member_fit, unseen.taken(few.to(unseen.inputs.device)).chunks(CHUNK)))
    scores = held_out_scores(parts, start, density_for(fit.likelihood))
    hyper = scores.chosen(start, free_prior=True, free_dispersion=False)
    cross = CrossFit(torch.zeros(0, dtype=torch.int64), scores)
    return JointFits(
        members=results_of(joint_nets, nets, fits, hyper, rows),
        hyper=hyper,
        origin=SelectionState(start, fit.prior.names, networks[0].parameter_names, None, cross),
        noise_model=None,
        data=data,
        held_out=joint_nets.held_out.cpu().numpy(),
        n_bins=pieces_of(joint_nets),
        shares=np.array(joint_nets.shares),
        scored=np.zeros(0, dtype=np.int64),
        densities=None,
    )
