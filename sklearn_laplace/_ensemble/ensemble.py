"""Several members that predict together, as a mixture; all of it in the network's units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._options.members import WEIGHTINGS
from .._options.options import Options
from .._runtime.threads import single_thread
from ..errors import UnsupportedCombinationError
from ..laplace.latent import Components, Predictive
from .member import Member
from .weights import by_evidence, by_stacking

LARGEST = torch.finfo(torch.float64).max


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Members and their weights.

    Parameters
    ----------
    members : tuple of Member
    weights : ndarray of shape (K,)
        Of sum 1.
    shares : ndarray of shape (K,), or None
        Weights of ``Members(weights="uniform")`` that the fit has chosen; None for equal ones.
    factor : float
        Factor of all variances that suits a mixture of several kinds of nets.
    """

    members: tuple[Member, ...]
    weights: np.ndarray
    shares: np.ndarray | None = None
    factor: float = 1.0

    @classmethod
    def of(cls, members: Sequence[Member], shares: np.ndarray | None = None, factor: float = 1.0) -> Ensemble:
        """The members with these shares as their weights, or with equal ones."""
        equal = np.full(len(members), 1 / len(members))
        return cls(tuple(members), equal if shares is None else shares, shares, factor)

    @property
    def first(self) -> Member:
        """The member whose net, posterior and hyperparameters are the estimator's attributes."""
        return self.members[0]

    def of_one(self, member: Member) -> Ensemble:
        """An ensemble of one of the members."""
        return Ensemble.of([replace(member, is_later=False)], factor=self.factor)

    def mean_of(self, answer: Callable[[Member], Tensor]) -> Tensor:
        """The weighted mean of the members' answers."""
        answers = torch.stack([answer(member) for member in self.members], -1)
        return answers @ torch.from_numpy(self.weights).to(answers)

    def outputs(self, x: Tensor, options: Options) -> Tensor:
        """Mean of the outputs (n, C), float64."""
        return self.mean_of(lambda member: member.outputs(x, options))

    def components(self, x: Tensor, options: Options) -> Components:
        """Moments of the targets, as a mixture over the members and over what is not known of the noise."""
        return self.joined([member.components(x, options) for member in self.members])

    def joined(self, parts: list[Components]) -> Components:
        """The mixture of one part from each member."""
        return Components.joined(parts, torch.from_numpy(self.weights).to(parts[0].mean))

    def draws(self, count: int, generator: torch.Generator, draw: Callable[[Member, int], Tensor]) -> Tensor:
        """Draws of the mixture along the last axis, in random order.

        Parameters
        ----------
        count : int
        generator : torch.Generator
        draw : callable
            (member, number of draws) → draws of that member.
        """
        if len(self.members) == 1:
            return draw(self.first, count)
        chosen = torch.multinomial(torch.from_numpy(self.weights), count, replacement=True, generator=generator)
        counts = torch.bincount(chosen, minlength=len(self.weights)).tolist()
        drawn = [draw(member, own) for member, own in zip(self.members, counts, strict=True) if own]
        return torch.cat(drawn, -1)[..., torch.randperm(count, generator=generator)]

    def covariance(self, x: Tensor, options: Options) -> Tensor:
        """Joint covariance over the rows of new numeric targets, (n, n, C)."""
        answers = [member.joint_covariance(x, options) for member in self.members]
        weights = torch.from_numpy(self.weights).to(answers[0][0])
        means, covariances = (torch.stack(part, -1) for part in zip(*answers, strict=True))
        away = means - (means @ weights)[..., None]
        return covariances @ weights + torch.einsum("nck,mck,k->nmc", away, away, weights)

    def left_out_moments(self, options: Options) -> Predictive:
        """Moments of each training row's target under the members without the row."""
        link = self.first.link(options)
        return self.joined([Components.of(member.left_out_moments(options, link)) for member in self.members]).moments

    def intervals(self, x: Tensor, levels: Tensor, options: Options, asked: str) -> Tensor:
        """Ends of the jackknife+ intervals (n, 2, L, C), for levels (L,).

        Parameters
        ----------
        x : Tensor of shape (n, d)
        levels : Tensor of shape (L,)
        options : Options
        asked : str
            What needs the rows, for the message.

        Raises
        ------
        UnsupportedCombinationError
            If the noise varies, and no nets with held-out rows know all rows.
        """
        with single_thread(self.first.is_small):
            return self._intervals(x, levels, options, asked)

    def _intervals(self, x: Tensor, levels: Tensor, options: Options, asked: str) -> Tensor:
        first = self.first
        leads = [k for k, member in enumerate(self.members) if member.is_scored]
        if leads and first.fit.shift is None:
            shares = np.add.reduceat(self.weights, leads).tolist()
            counted = [(self.members[k], share) for k, share in zip(leads, shares, strict=True) if share > 0]
            found = torch.stack([share * _cross_fitted(lead, x, levels, options) for lead, share in counted]).sum(0)
        elif first.noise_model is None:
            found = first.left_out(options, asked).intervals(first.fit, first.hyper, x, levels)
        else:  # the cross-fitted nets do not know later rows
            raise UnsupportedCombinationError(
                f"{asked} needs cross-fitted nets that know all rows where the noise varies: of single rows left out "
                "every residual counts as one that any row could have. Use method='normal', or fit again."
            )
        first.require_finite(found.clamp(-LARGEST, LARGEST), [x])  # an end may be infinite
        return found


def _cross_fitted(member: Member, x: Tensor, levels: Tensor, options: Options) -> Tensor:
    """Ends of one kind of nets, see :meth:`CrossFit.intervals`."""
    assert member.origin.cross is not None
    noise = member.noise_ratios if member.noise_model is None else member.noise_model.ratios
    return member.origin.cross.intervals(member.fit, x, levels, options.memory, noise)


def reweighted(ensemble: Ensemble, rule: str, options: Options) -> Ensemble:
    """The ensemble with the weights of a rule; they stay as they are if the rule needs rows that were not kept.

    Parameters
    ----------
    ensemble : Ensemble
    rule : str
        A value of ``member_weights``.
    options : Options
    """
    members, left_out = ensemble.members, WEIGHTINGS[rule]
    if left_out is None or len(members) == 1:
        return Ensemble.of(members, ensemble.shares, ensemble.factor)
    if not left_out:
        return replace(ensemble, weights=by_evidence(np.array([member.log_evidence for member in members])))
    kept = [member.kept.weights for member in members if member.kept is not None]
    if not kept:
        return ensemble
    purpose = f"n_members=Members(weights={rule!r})"
    densities = np.stack([member.left_out_densities(options, purpose) for member in members])
    return replace(ensemble, weights=by_stacking(densities, np.max(kept, axis=0)))
