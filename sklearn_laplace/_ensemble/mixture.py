"""Mixtures of several kinds of nets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .._data.rows import row_keys
from .._options.options import Options
from ..laplace.fit import Hyper
from .ensemble import Ensemble
from .intervals import HoldingOut, held_out_mixture, left_out_errors
from .member import Member
from .request import FitRequest


def keys_of(request: FitRequest) -> np.ndarray:
    """Keys of the training rows."""
    return row_keys(request.data.X, request.data.targets)


def mixture_of_kinds(
    holding_out: Sequence[HoldingOut],
    kinds: Sequence[Sequence[Member]],
    weights: np.ndarray,
    factor: float,
    options: Options,
    keys: np.ndarray,
    *,
    by_members: bool,
) -> Ensemble:
    """Ensemble of members of several kinds, with all variances multiplied by a factor.

    Parameters
    ----------
    holding_out : sequence of HoldingOut
        Nets of each kind that hold out rows; empty if there are none.
    kinds : sequence of sequences of Member
        Members of each kind.
    weights : ndarray of shape (K,)
        Weight of each member.
    factor : float
        Factor of all variances.
    options : Options
        Resolved options.
    keys : ndarray of shape (m,), uint64
        Keys of the rows that are held out.
    by_members : bool
        True if most of the nets that hold out rows are members themselves.
    """
    if factor != 1:
        kinds = [
            [one.conditioned(one.fit, mixed(one.hyper, factor, options), options) for one in kind] for kind in kinds
        ]
    members = [member for kind in kinds for member in kind]
    ensemble = Ensemble.of(members, weights, factor)
    if not holding_out:
        return ensemble
    left_out = None if by_members else left_out_errors(members, options)
    return replace(ensemble, held_out=held_out_mixture(holding_out, kinds, weights, keys, left_out))


def mixed(hyper: Hyper, factor: float, options: Options) -> Hyper:
    """Multiply all variances of the hyperparameters by a factor, if held-out rows select both of them."""
    if factor == 1 or not all(options.by_held_out):
        return hyper
    return replace(hyper, prior_precision=hyper.prior_precision / factor, dispersion=hyper.dispersion * factor)
