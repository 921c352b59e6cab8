"""A linear net in place of nets with hidden layers that have learnt nothing.

With a weak signal in few rows, the evidence of a net with hidden layers can be largest where all weights are nearly
zero. It then predicts a constant, although a linear net would find part of the signal. A linear net has one mode, and
its evidence for a Gaussian likelihood is exact (MacKay 1992). Without a signal it is nearly constant too.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .._options.options import is_auto
from .._training.built_in import of_one_net
from .encodings import are_left_open
from .ensemble import Ensemble
from .member import Member
from .request import FitRequest

ROWS = 10
"""Minimum number of rows for a linear net."""
FLAT = 0.1
"""Maximum standard deviation over the training rows of each output of a net that has learnt nothing. Outputs are
logits, log rates, or targets in units of their standard deviation."""
MOST_LEARNT = 0.1
"""Maximum total weight of members that have learnt something in an ensemble that has learnt nothing."""
AS_PROBABLE = 0.1
"""Difference in log evidence, in nats, up to which a linear net replaces nets that have learnt nothing. See
docs/decisions.md."""


def may_be_linear(request: FitRequest, ensemble: Ensemble) -> bool:
    """True if a default fit has learnt nothing: its outputs are nearly constant, and so is its noise.

    Parameters
    ----------
    request : FitRequest
        Rows and options.
    ensemble : Ensemble
        Fitted members.
    """
    parameters, options, n_rows = request.parameters, request.resolved, len(request.data.X)
    is_open = is_auto(parameters["hidden_layer_sizes"]) and are_left_open(parameters) and options.prior_precision.free
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    of_others = (n_bins, parameters["prior"], parameters["max_epochs"], options.map_precision, request.stream)
    if not is_open or n_rows < ROWS or any(value is not None for value in of_others) or options.prior_mean:
        return False
    first, members = ensemble.first, ensemble.members
    # The evidence of a first member without some rows is not comparable.
    if first.unseen is not None or any(member.noise_model is not None for member in members):
        return False
    if _has_learnt(first, request):
        return False
    weights = ensemble.weights.tolist()
    return sum(w for member, w in zip(members, weights, strict=True) if _has_learnt(member, request)) < MOST_LEARNT


def _has_learnt(member: Member, request: FitRequest) -> bool:
    """True if the outputs vary. A net with as many effective parameters as outputs needs no look at its outputs.

    Few effective parameters alone do not tell: those of separable classes are few.
    """
    if member.n_effective_parameters >= member.fit.n_outputs:
        return True
    inputs = torch.from_numpy(request.data.X).to(member.posterior.device, member.input_dtype)
    return float(member.fit.network(inputs).double().std(0).max()) > FLAT


def linear_request(request: FitRequest) -> FitRequest:
    """Request for a net without hidden layers, which is trained by exact steps."""
    exact = {"hidden_layer_sizes": (), "n_bins": None, "lr": None, "batch_size": None}
    return replace(request, parameters=of_one_net({**request.parameters, **exact}))
