"""Replacement of nets that have learnt nothing by a linear net, unless the linear net has less evidence.

With a weak signal in few rows, the evidence of a net with hidden layers can be largest where all weights are nearly
zero. A linear net would find part of the signal. A linear net has a single mode, and its evidence for a Gaussian
likelihood is exact (MacKay 1992). Without a signal, its outputs are nearly constant, too.
"""

from dataclasses import replace

import torch

from .._training.built_in import of_one_net
from .._training.plan import FitRequest
from .conditions import leaves_layers_open
from .ensemble import Ensemble
from .member import Member

ROWS = 10
"""Minimum number of rows for a linear net."""
FLAT = 0.1
"""Maximum standard deviation, over the training rows, of each output of a net that has learnt nothing. Outputs are
logits, log rates, or targets in units of their standard deviation."""
AS_PROBABLE = 0.1
"""Maximum deficit in log evidence, in nats, at which a linear net is still preferred. See docs/decisions.md."""


def has_learnt_nothing(request: FitRequest, ensemble: Ensemble) -> bool:
    """True if nets with default layers have nearly constant outputs and constant noise."""
    members = ensemble.members
    if not leaves_layers_open(request, request.resolved) or len(request.data.X) < ROWS:
        return False
    # A noise model is something learnt, and jointly trained members, which have held-out rows, are not replaced.
    if any(member.unseen is not None or member.noise_model is not None for member in members):
        return False
    return not any(_has_learnt(member, request) for member in members)


def _has_learnt(member: Member, request: FitRequest) -> bool:
    """True if the outputs vary (as for separable classes), or with at least as many effective parameters as outputs."""
    if member.n_effective_parameters >= member.fit.n_outputs:
        return True
    inputs = torch.from_numpy(request.data.X).to(member.posterior.device, member.input_dtype)
    return float(member.fit.network(inputs).double().std(0).max()) > FLAT


def linear_request(request: FitRequest) -> FitRequest:
    """Request for a net without hidden layers and with exact steps."""
    exact = {"hidden_layer_sizes": (), "n_bins": None, "lr": None, "batch_size": None}
    parameters = of_one_net({**request.parameters, **exact})
    return replace(request, parameters=parameters, warm_start=None)
