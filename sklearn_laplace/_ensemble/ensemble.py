"""Mixture of ensemble members, with predictions in the network's units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .._options.options import Options
from .._options.training import WEIGHTINGS
from .._runtime.memory import held
from ..laplace.latent import Components, LatentGaussian, Predictive
from ..laplace.predictives import GLM
from .member import Member
from .stacked import Together
from .weights import by_evidence, by_stacking


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Members of a mixture; the first member provides the estimator's attributes."""

    members: tuple[Member, ...]
    weights: np.ndarray  # (K,), with sum 1
    shares: np.ndarray | None = None  # (K,), for ``Members(weights="uniform")``; None for equal weights

    @classmethod
    def of(cls, members: Sequence[Member], shares: np.ndarray | None = None) -> Ensemble:
        """Ensemble with the shares as weights, or with equal weights."""
        equal = np.full(len(members), 1 / len(members))
        return cls(tuple(members), equal if shares is None else shares, shares)

    @property
    def first(self) -> Member:
        return self.members[0]

    def mean_of(self, answer: Callable[[Member], Tensor]) -> Tensor:
        """Weighted mean over the members of a function's values."""
        answers = torch.stack([answer(member) for member in self.members], -1)
        return answers @ torch.from_numpy(self.weights).to(answers)

    def means(self, x: Tensor, options: Options) -> Tensor:
        """Mean of numeric targets (n, C), float64; takes forward passes alone."""
        mean = self.first.fit.likelihood.conditional_mean
        if (together := self._together(options)) is None:
            return self.mean_of(lambda member: mean(member.outputs(x, options)))
        answers = mean(together.outputs(x, options))
        return answers @ torch.from_numpy(self.weights).to(answers)

    def components(self, x: Tensor, options: Options, *, merged: bool = False) -> Components:
        """Moments of the targets of rows x (n, d), as a mixture over the members and over uncertain noise levels.

        If ``merged``, the noise levels of a member may become one component, which keeps all moments.
        """
        if (together := self._together(options)) is None:
            return self.joined([member.components(x, options) for member in self.members])
        return together.components(x, options, torch.from_numpy(self.weights), merged=merged)

    def averages(self, x: Tensor, options: Options, answer: Callable[[Member, LatentGaussian], Tensor]) -> Tensor:
        """Weighted mean over the members of a function (n, …) of the outputs of rows."""
        if (together := self._together(options)) is None:
            return self.mean_of(
                lambda member: torch.cat(member.answers(x, options, lambda latent, _: answer(member, latent)))
            )
        return together.averages(x, options, torch.from_numpy(self.weights), answer)

    def _together(self, options: Options) -> Together | None:
        """All members as one tensor program, whose copies need memory; None if they have to predict one after the
        other.
        """
        has_room = 2 * self._used <= options.memory.size
        is_plain = options.fillings is None and issubclass(options.predictive, GLM)
        return self._stacked if has_room and is_plain else None

    @cached_property
    def _used(self) -> int:
        return held(*((member.posterior, member.fit.curvature) for member in self.members))

    @cached_property
    def _stacked(self) -> Together | None:
        return Together.of(self.members, self._used)

    def joined(self, parts: list[Components]) -> Components:
        return Components.joined(parts, torch.from_numpy(self.weights).to(parts[0].mean))

    def draws(self, count: int, generator: torch.Generator, draw: Callable[[Member, int], Tensor]) -> Tensor:
        """Draws from the mixture along the last axis, in random order; ``draw`` makes those of one member."""
        if len(self.members) == 1:
            return draw(self.first, count)
        chosen = torch.multinomial(torch.from_numpy(self.weights), count, replacement=True, generator=generator)
        counts = torch.bincount(chosen, minlength=len(self.weights)).tolist()
        draws = [draw(member, n) for member, n in zip(self.members, counts, strict=True) if n]
        return torch.cat(draws, -1)[..., torch.randperm(count, generator=generator)]

    def covariance(self, x: Tensor, options: Options) -> Tensor:
        """Joint covariance of new numeric targets over the rows, shape (n, n, C)."""
        moments = [member.joint_covariance(x, options) for member in self.members]
        weights = torch.from_numpy(self.weights).to(moments[0][0])
        means, covariances = (torch.stack(part, -1) for part in zip(*moments, strict=True))
        away = means - (means @ weights)[..., None]
        return covariances @ weights + torch.einsum("nck,mck,k->nmc", away, away, weights)

    def left_out_moments(self, options: Options) -> Predictive:
        link = self.first.link(options)
        return self.joined([Components.of(member.left_out_moments(options, link)) for member in self.members]).moments


def reweighted(ensemble: Ensemble, rule: str, options: Options) -> Ensemble:
    """Ensemble with the member weights of a rule; unchanged if the rule needs rows that are not stored."""
    members, left_out = ensemble.members, WEIGHTINGS[rule]
    if left_out is None or len(members) == 1:
        return Ensemble.of(members, ensemble.shares)
    if not left_out:
        return replace(ensemble, weights=by_evidence(np.array([member.log_evidence for member in members])))
    kept = [member.kept.weights for member in members if member.kept is not None]
    if not kept:
        return ensemble
    purpose = f"n_members=Members(weights={rule!r})"
    densities = np.stack([member.left_out_densities(options, purpose) for member in members])
    row_weights = members[0].fit.likelihood.score_weights(torch.from_numpy(np.max(kept, axis=0)))
    return replace(ensemble, weights=by_stacking(densities, row_weights.numpy()))
