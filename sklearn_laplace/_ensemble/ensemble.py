"""Mixture of ensemble members, with predictions in the network's units.

With the linearised predictive of built-in nets, all members predict the same rows in one tensor program. Consecutive
members of one kind (nets with the same layers and inputs) share the encoding of the columns, and compute one batched
product per layer. A noise model that several members share is evaluated once. With other predictives or nets, the
members predict one after the other (``member.py``). Both ways give the same numbers up to rounding. The second way is
also taken for rows with gaps, for lack of memory, or if the first one overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, TypeVar

import joblib
import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from .._table.limits import held
from ..laplace.extrapolation import Extrapolation
from ..laplace.latent import Components, LatentGaussian, Predictive
from ..laplace.predictives import GLM
from ..laplace.structures.kron import KronPosterior
from ..laplace.torch_state import single_thread
from ..nets.stacked import StackedNets, StackedPass, is_built_in, is_same_kind
from ..options.resolved import Options
from ..options.training import WEIGHTINGS
from .joint_members import by_stacking
from .member import Member, with_sum

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class KronRoots:
    """Eigendecomposition of one layer's posterior covariance in Kronecker form, for K members with stacked nets.

    Covariances of jointly trained members are computed in single precision. They are sums of squares, without
    cancellation, so their relative error is about 1e-6.
    """

    output_basis: Tensor  # (K, O, O), of the cotangents
    input_basis: Tensor  # (K, I, J), or (I, K·J) for a layer that reads the columns
    bias: Tensor  # (K, J), row of the input basis for the bias; zero without a bias
    variances: Tensor  # (K, J, O), inverse precisions in both bases

    def covariance(self, inputs: Tensor, cotangents: Tensor) -> Tensor:
        """Contribution (K, n, C, C) to output covariances; inputs are (n, I) or (K, n, I), cotangents (K, C, n, O)."""
        n_nets, n_outputs = cotangents.shape[:2]
        inputs = inputs.to(self.variances)
        if inputs.ndim == 2:
            rotated = torch.addmm(self.bias.flatten(), inputs, self.input_basis)
            rotated = rotated.unflatten(1, (n_nets, -1)).transpose(0, 1)
        else:
            rotated = torch.baddbmm(self.bias[:, None], inputs, self.input_basis)
        per_output = rotated.square_() @ self.variances
        turned = (cotangents.flatten(1, 2) @ self.output_basis).unflatten(1, (n_outputs, -1))
        if n_outputs == 1:
            return (turned[:, 0].square_() * per_output).sum(-1)[..., None, None].double()
        turned = turned.transpose(1, 2)
        return ((turned * per_output[:, :, None]) @ turned.mT).double()


@dataclass(frozen=True, eq=False)
class Stack:
    """Members of one kind with stacked nets; ``roots`` has an entry per layer if all posteriors have Kronecker form."""

    members: tuple[Member, ...]
    nets: StackedNets
    roots: tuple[KronRoots, ...]

    @classmethod
    def of(cls, members: Sequence[Member]) -> Self:
        """Stack members of one kind."""
        nets = StackedNets.of([member.fit.network for member in members])
        posteriors = [member.posterior for member in members]
        dtype = torch.float32 if all(map(_is_joint, members)) else nets.weights[0].dtype
        return cls(tuple(members), nets, _roots(nets, [p for p in posteriors if isinstance(p, KronPosterior)], dtype))

    def latents(self, x: Tensor) -> list[LatentGaussian]:
        """Distribution of the outputs of rows (n, d) for each member."""
        line = self.nets.linearise(x, self.roots[0].variances.dtype if self.roots else None)
        pairs = zip(line.outputs.double(), self._covariances(line), strict=True)
        return [LatentGaussian(mean, covariance) for mean, covariance in pairs]

    def _covariances(self, line: StackedPass) -> Sequence[Tensor]:
        if not self.roots:
            jacobians = (self.nets.jacobian(line, k) for k in range(len(self.members)))
            return [one.posterior.covariance(jacobian) for one, jacobian in zip(self.members, jacobians, strict=True)]
        inputs = [*line.shared, *line.hidden]
        places = [max(k - len(line.shared) + 1, 0) for k in range(len(inputs))]
        parts = [root.covariance(a, line.cotangents[k]) for root, a, k in zip(self.roots, inputs, places, strict=True)]
        return torch.stack(parts).sum(0).unbind()


@dataclass(frozen=True, eq=False)
class Together:
    """Members of an ensemble, in their order, as stacks of consecutive members of one kind."""

    stacks: tuple[Stack, ...]
    width: int  # number of elements per row, over all members
    used: int  # memory of posteriors, curvatures and their copies, bytes

    @classmethod
    def of(cls, members: Sequence[Member], used: int) -> Self | None:
        """Stacks of all members; None if a member cannot be stacked.

        ``used`` is the memory of their posteriors and curvatures in bytes.
        """
        runs: list[list[Member]] = []
        if any(member.fit.shift is not None or not is_built_in(member.fit.network) for member in members):
            return None
        for member in members:
            if runs and is_same_kind(runs[-1][0].fit.network, member.fit.network):
                runs[-1].append(member)
            else:
                runs.append([member])
        stacks = [Stack.of(run) for run in runs]
        width = sum(member.row_width for member in members)
        return cls(tuple(stacks), width, used + held(*((stack.nets, stack.roots) for stack in stacks)))

    @property
    def members(self) -> list[Member]:
        return [member for stack in self.stacks for member in stack.members]

    def outputs(self, x: Tensor, options: Options) -> Tensor | None:
        """Outputs (n, C, K), float64, of all members; None if not finite."""

        def answer(part: Tensor) -> Tensor:
            return torch.cat([stack.nets.outputs(part) for stack in self.stacks]).double().movedim(0, -1)

        chunks = self._chunked(x, options, lambda part: with_sum(answer(part)))
        return None if chunks is None else torch.cat(chunks)

    def components(self, x: Tensor, options: Options, weights: Tensor, *, merged: bool) -> Components | None:
        """As :meth:`.Ensemble.components`, for members with weights (K,); if ``merged``, one component per member.

        None if not finite.
        """
        members, links = self.members, [member.link(options) for member in self.members]
        weights = weights.to(x.device)

        def answer(part: Tensor) -> tuple[Components, Tensor]:
            latents, total = self._latents(part, options.outside)
            nodes: dict[int, tuple[Tensor, Tensor]] = {}
            parts = []
            for member, latent, link in zip(members, latents, links, strict=True):
                noise = member.noise_model
                if noise is not None and id(noise) not in nodes:
                    nodes[id(noise)] = noise.merged_nodes(part) if merged else noise.nodes(part)
                parts.append(member.targets(latent, part, link, nodes.get(id(noise))))
            return Components.joined(parts, weights.to(parts[0].mean)), total

        chunks = self._chunked(x, options, answer)
        return None if chunks is None else Components.of_rows(chunks)

    def averages(
        self, x: Tensor, options: Options, weights: Tensor, answer: Callable[[Member, LatentGaussian], Tensor]
    ) -> Tensor | None:
        """As :meth:`.Ensemble.averages`, for members with weights (K,); None if not finite."""
        members = self.members

        def average(part: Tensor) -> tuple[Tensor, Tensor]:
            latents, total = self._latents(part, options.outside)
            values = [answer(member, latent) for member, latent in zip(members, latents, strict=True)]
            return torch.stack(values, -1) @ weights.to(values[0]), total

        chunks = self._chunked(x, options, average)
        return None if chunks is None else torch.cat(chunks)

    def _latents(self, x: Tensor, outside: Extrapolation | None) -> tuple[list[LatentGaussian], Tensor]:
        """Output distributions of all members, and the sum of their means and covariances."""
        latents = [latent for stack in self.stacks for latent in stack.latents(x)]
        if outside is not None:
            wider = torch.diag_embed(outside.variance(x))
            latents = [replace(latent, covariance=latent.covariance + wider) for latent in latents]
        return latents, torch.stack([latent.mean.sum() + latent.covariance.sum() for latent in latents]).sum()

    def _chunked(self, x: Tensor, options: Options, answer: Callable[[Tensor], tuple[T, Tensor]]) -> list[T] | None:
        """Return the first result of ``answer`` for each chunk of rows; None if the second one, a sum, is not finite.

        Each thread takes whole chunks, because threads that share an operation wait for each other after it.
        """
        memory, n_jobs = options.memory, joblib.effective_n_jobs(options.n_jobs)
        n_jobs = max(n_jobs, torch.get_num_threads()) if x.device.type == "cpu" else n_jobs
        n_jobs = memory.chunk_workers(self.width, self.used, n_jobs)
        chunks = x.split(memory.chunk_rows(self.width, self.used, x.device, n_jobs))

        def of_chunk(part: Tensor) -> tuple[T, Tensor]:
            with single_thread(True):
                return answer(part)

        if len(chunks) == 1:
            with single_thread(all(member.is_small for member in self.members)):
                results = [answer(chunks[0])]
        else:
            jobs = (joblib.delayed(of_chunk)(part) for part in chunks)
            results = joblib.Parallel(min(n_jobs, len(chunks)), require="sharedmem")(jobs)
        is_finite = bool(torch.isfinite(torch.stack([total for _, total in results])).all())
        return [value for value, _ in results] if is_finite else None


def _is_joint(member: Member) -> bool:
    """True if the net was trained jointly with others, each without some rows."""
    return member.unseen is not None and not member.is_given


def _roots(nets: StackedNets, posteriors: Sequence[KronPosterior], dtype: torch.dtype) -> tuple[KronRoots, ...]:
    """Stacked Kronecker factors of the posteriors; empty if some posterior has another structure."""
    if len(posteriors) < len(nets.nets):
        return ()
    roots = []
    layers = zip(*(p.parts for p in posteriors), strict=True)
    stacked = zip(layers, nets.weights, nets.biases, nets.factors, strict=True)
    for place, (parts, weight, bias, factor) in enumerate(stacked):
        outer, inner, spectra = (
            torch.stack([getattr(part, name) for part in parts]) for name in ("output_basis", "input_basis", "spectrum")
        )
        ones = torch.zeros_like(inner[:, -1])
        if bias is not None:
            inner, ones = inner[:, :-1], inner[:, -1]
        inner = inner * (factor if isinstance(factor, float) else factor[..., None].to(inner))
        inner = inner.transpose(0, 1).flatten(1) if place < nets.n_shared else inner
        roots.append(KronRoots(*(part.to(weight.device, dtype) for part in (outer, inner, ones, (1 / spectra).mT))))
    return tuple(roots)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Mixture of members; most fitted attributes of the estimator are those of the first."""

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

    @property
    def is_calibrated(self) -> bool:
        """True if the members were trained jointly, and are therefore calibrated on held-out rows."""
        return any(map(_is_joint, self.members))

    def mean_of(self, answer: Callable[[Member], Tensor]) -> Tensor:
        """Weighted mean of ``answer`` over the members."""
        answers = torch.stack([answer(member) for member in self.members], -1)
        return answers @ torch.from_numpy(self.weights).to(answers)

    def means(self, x: Tensor, options: Options) -> Tensor:
        """Mean of numeric targets (n, C), float64; needs only forward passes if the predictive allows it."""
        mean = self.first.fit.likelihood.conditional_mean
        together = self._together(options)
        outputs = None if together is None else together.outputs(x, options)
        if outputs is None:
            return self.mean_of(lambda member: mean(member.outputs(x, options)))
        answers = mean(outputs)
        return answers @ torch.from_numpy(self.weights).to(answers)

    def components(self, x: Tensor, options: Options, *, merged: bool = False) -> Components:
        """Moments of the targets of rows x (n, d), by component.

        If ``merged``, one component may stand for all noise levels of a member.
        """
        together, weights = self._together(options), torch.from_numpy(self.weights)
        found = None if together is None else together.components(x, options, weights, merged=merged)
        return self.joined([member.components(x, options) for member in self.members]) if found is None else found

    def averages(self, x: Tensor, options: Options, answer: Callable[[Member, LatentGaussian], Tensor]) -> Tensor:
        """Weighted mean over the members of ``answer`` (n, …), a function of member and output distribution."""
        together, weights = self._together(options), torch.from_numpy(self.weights)
        found = None if together is None else together.averages(x, options, weights, answer)
        if found is not None:
            return found
        return self.mean_of(
            lambda member: torch.cat(member.answers(x, options, lambda latent, _: answer(member, latent)))
        )

    def _together(self, options: Options) -> Together | None:
        """Stacks of all members; None for rows with gaps (``gaps.py``), other predictives, or too little memory."""
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
        """Draws from the mixture along the last axis, in random order; ``draw(member, n)`` returns n draws."""
        if len(self.members) == 1:
            return draw(self.first, count)
        chosen = torch.multinomial(torch.from_numpy(self.weights), count, replacement=True, generator=generator)
        counts = torch.bincount(chosen, minlength=len(self.weights)).tolist()
        draws = [draw(member, n) for member, n in zip(self.members, counts, strict=True) if n]
        return torch.cat(draws, -1)[..., torch.randperm(count, generator=generator)]

    def covariance(self, x: Tensor, options: Options) -> Tensor:
        """Covariances (n, n, C) between rows, for new numeric targets."""
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
        return replace(ensemble, weights=softmax([member.log_evidence for member in members]))
    kept = [member.kept.weights for member in members if member.kept is not None]
    if not kept:
        return ensemble
    purpose = f"n_members=Members(weights={rule!r})"
    densities = np.stack([member.left_out_densities(options, purpose) for member in members])
    row_weights = members[0].fit.likelihood.score_weights(torch.from_numpy(np.max(kept, axis=0)))
    return replace(ensemble, weights=by_stacking(densities, row_weights.numpy()))
