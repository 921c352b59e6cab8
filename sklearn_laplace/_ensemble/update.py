"""Updates of a fitted ensemble without training: other posterior parameters, further rows, fewer rows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._table.rows import PreparedData, row_keys
from .._training.plan import fixed_dispersion, fixed_for_one_row, grouped
from ..errors import UnsupportedCombinationError
from ..laplace.fit import LaplaceFit
from ..laplace.torch_state import single_thread
from ..laplace.updates import add_rows, remove_rows
from ..options.resolved import Options
from .approximate import pass_over
from .choose import LeftOut, choose, left_out_of
from .diagnose import diagnose
from .ensemble import Ensemble
from .member import Member


def refitted(ensemble: Ensemble, options: Options) -> Ensemble:
    """Ensemble under other options of the posterior, at the same weights and curvature."""
    members = []
    for member in ensemble.members:
        with single_thread(member.is_small):
            settled = replace(options, likelihood=member.fit.likelihood)
            settled = fixed_for_one_row(settled, member.fit.total_weight, member.scale)
            members.append(_refitted(member, settled, options))
    changed_ensemble = replace(ensemble, members=tuple(members))
    if not changed_ensemble.is_calibrated:
        diagnose(changed_ensemble, options)
    return changed_ensemble


def _refitted(member: Member, settled: Options, options: Options) -> Member:
    fit = replace(member.fit, prior=grouped(member.fit.network, member.origin.tensors, settled))
    dispersion = fixed_dispersion(settled, member.scale)

    def left_out() -> LeftOut:
        return left_out_of(member.kept, member.input_dtype, member.seed, fit, options, in_order=True)

    hyper = choose(fit, member.origin, settled, dispersion, left_out)
    return member.with_hyper(fit, hyper, options)


def with_rows(member: Member, data: PreparedData, options: Options) -> Member:
    """Member updated with further rows, in the units of its network."""
    unseen = None if member.unseen is None else np.setdiff1d(member.unseen, row_keys(data.X, data.targets))
    data = member.under_noise(data)
    kept = None if member.kept is None else member.kept.followed_by(data)
    changed = _changed(member, data.present(), options, added=True)
    return replace(changed, unseen=unseen, kept=kept)


def without_rows(member: Member, data: PreparedData, options: Options) -> Member:
    """Member without some of its rows; no rows remain stored, because those to remove cannot be found reliably."""
    if member.is_streamed:
        raise UnsupportedCombinationError(
            "forget needs to know which rows each member was trained on, and this fit has read its rows from a source. "
            "Fit again without these rows."
        )
    data = data.without(member.unseen).present()
    data = member.under_noise(data) if len(data.X) else data
    changed = _changed(member, data, options, added=False)
    return replace(changed, origin=replace(changed.origin, scores=None), kept=None)


def _changed(member: Member, data: PreparedData, options: Options, *, added: bool) -> Member:
    if not len(data.X):
        return member
    change: Callable[..., LaplaceFit] = add_rows if added else remove_rows
    with single_thread(member.is_small):
        arguments = pass_over(member.fit, data, member.input_dtype, options.memory, added=added)
        return member.with_hyper(change(*arguments, member.hyper), member.hyper, options)
