"""Several nets as one: how the members of a mixture of Laplace approximations are trained, weighed and answer together.

The estimator is its own first member; what ``fit`` sets is the first member's, and ``_others`` are the other ones,
estimators as well. A method that answers for the mixture asks each member's ``_own…`` (``_prediction.py``).
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import joblib
import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from . import _resolve
from ._built_in import of_one_net
from ._cached_training import cached_training
from ._data import PreparedData, row_keys
from ._ensemble.approximate import approximate_bag
from ._ensemble.train import is_bagged, train_bag
from ._kinds import kinds_of_nets
from ._loo import LeftOut
from ._map import MapResult, Start
from ._member_weights import RowDensities, by_evidence, by_stacking, of_kinds
from ._memory import within_memory
from ._prediction import LaplacePrediction
from ._progress import Task, without_callbacks
from ._stages import TRAINING_STAGES, Origin, options_for
from ._threads import single_thread
from .errors import (
    BoundWarning,
    ClippedWarning,
    JitterWarning,
    MemoryBudgetError,
    ModeWarning,
    NonFiniteError,
    NotPositiveDefiniteError,
)
from .laplace import Hyper, LaplaceFit
from .latent import Components
from .likelihoods._base import Link

OF_MEMBERS = ModeWarning, ClippedWarning, JitterWarning
"""Warnings that are of one net alone."""
FAILURES = NonFiniteError, NotPositiveDefiniteError
"""What a net may end with that nobody has asked for by name."""
MEMBER_STAGES = 2
"""Training and posterior: the tasks of a member."""
LEAST_SHARE = 0.1
"""Of a kind of nets that has more than one member."""

Caught: TypeAlias = "list[warnings.WarningMessage]"


@contextmanager
def _kept_back() -> Iterator[Caught]:
    """What is warned of meanwhile, to be said later."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _say(caught: Caught, *, of_others: bool, counts: bool = True) -> None:
    """Warnings that were kept back: those of a net that does not count are not said.

    Of other members than the first one of each kind is said; of bounds the first has warned, who has chosen. A training
    factorises hundreds of times, and the first jitter tells of all.
    """
    said: set[type[Warning]] = set()
    for one in caught:
        message: Warning | str = one.message
        if issubclass(one.category, OF_MEMBERS):
            if not counts or (one.category in said and (of_others or issubclass(one.category, JitterWarning))):
                continue
            message = f"another member of the mixture: {message}" if of_others else message
        elif of_others and issubclass(one.category, BoundWarning):
            continue
        said.add(one.category)
        warnings.warn_explicit(message, one.category, one.filename, one.lineno)


@dataclass(frozen=True)
class _Lead:
    """The first net of a kind.

    Parameters
    ----------
    model : LaplaceMixture
        Fitted.
    parameters : dict
        Under which.
    seed : int
        Of the members that follow.
    start : Start
        From where they go on.
    densities : RowDensities or None
        Of nets of this kind that have not seen the rows; None where there is one kind, or no such net.
    """

    model: LaplaceMixture
    parameters: dict[str, Any]
    seed: int
    start: Start
    densities: RowDensities | None


class LaplaceMixture(LaplacePrediction):
    """The members of an estimator, of which it is the first."""

    n_members: int | str
    member_weights: str
    member_weights_: np.ndarray
    log_marginal_likelihood_value_: float
    _others: tuple[Self, ...] = ()
    _origin: Origin
    _lead: Origin | None = None
    _kept: PreparedData | None = None
    _is_candidate = False
    _is_quick = False
    _n_bins: int | None = None
    _shares: np.ndarray | None = None
    _factor = 1.0
    _weight_unit = 1.0
    _is_compared = False
    _unseen: np.ndarray | None = None
    _densities: RowDensities | None = None

    @abstractmethod
    def _fit_rows(
        self,
        parameters: dict[str, Any],
        data: PreparedData,
        kept: PreparedData | None,
        seeds: Sequence[int],
        task: Task,
    ) -> Start:
        """Train one net and approximate its posterior; from where it, and the nets beside it, could go on."""

    @abstractmethod
    def _with_noise(self, data: PreparedData) -> PreparedData:
        """The rows under the noise that was found."""

    @abstractmethod
    def _left_out(self, fit: LaplaceFit, asked: str = "leave-one-out", *, in_order: bool = False) -> LeftOut:
        """The rows of the fit; an error names what has asked for them where they are not there."""

    @property
    def members_(self) -> list[Self]:
        """The nets of the mixture, each as an estimator of its own that is fitted; this one alone without a mixture.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(n_members=2, prior_precision=1.0, sigma_noise=0.1, random_state=0)
        >>> len(model.fit(X, np.sin(X[:, 0])).members_)
        2
        """
        check_is_fitted(self)
        members = [member._twin() for member in self._models()]
        for member in members:
            member.n_members, member._others, member.member_weights_ = 1, (), np.ones(1)
            member.n_bins, member._shares = member._n_bins, None
            member._is_candidate = self._is_candidate
        return members

    def _twin(self) -> Self:
        """Another estimator with the same parameters and the same fitted state, nothing of which is copied.

        It has no callbacks: they are told of the mixture's fit.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(without_callbacks(self.__dict__))
        return twin

    def _models(self) -> tuple[Self, ...]:
        """The members, under the parameters that are set now; each answers for itself by ``_own…``."""
        if not self._others:
            return (self,)
        parameters = {name: getattr(self, name) for name in self.get_params(deep=False)}
        for other in self._others:
            other.__dict__.update(parameters, _prior_scores=self._prior_scores)
        return (self, *self._others)

    # ------------------------------------------------------------------ trained and weighed

    def _fit_members(
        self,
        parameters: dict[str, Any],
        data: PreparedData,
        kept: PreparedData | None,
        seeds: list[int],
        n_stages: int,
        task: Task,
    ) -> None:
        """Train the first net of each kind, then the other members of the kinds that count.

        Kinds are weighed by stacking: by what the nets beside each first one say of the rows that they have not seen,
        which say as well how much less than each of them the mixture errs. Where there are no such nets the first kind
        is the only one.
        """
        options = options_for(self._kind, parameters, data, seeds[2])
        if is_bagged(parameters, data, options):
            self._fit_bag(parameters, data, kept, seeds, task)
            return
        parameters, likelihood = of_one_net(parameters), options.likelihood
        kinds = kinds_of_nets(parameters, data, likelihood)
        drawn = np.random.RandomState(seeds[1]).randint(np.iinfo(np.int32).max, size=(len(kinds) - 1, 3)).tolist()
        dispensable = (*FAILURES, MemoryBudgetError) if isinstance(self.n_bins, str) else ()
        leads: list[_Lead] = []
        said: list[Caught] = []
        for model, n_bins, own in zip((self, *(self._twin() for _ in drawn)), kinds, (seeds, *drawn), strict=True):
            not_alone = bool(leads)
            with (
                task.subtask("member", n_stages) as stages,
                suppress(*dispensable if not_alone else ()),
                _kept_back() as caught,
            ):
                found = model._as_lead({**parameters, "n_bins": n_bins}, data, kept, own, stages, alone=len(kinds) == 1)
                if not not_alone or found.densities is not None:
                    leads.append(found)
                    said.append(caught)
            if leads[0].densities is None or task.clock.is_over():
                break
        densities = [lead.densities for lead in leads if lead.densities is not None]
        shares, factor = of_kinds(densities, data.weights) if len(leads) > 1 else (np.ones(1), 1.0)
        counted = [(lead, share) for lead, share in zip(leads, shares.tolist(), strict=True) if share > LEAST_SHARE]
        if not counted or counted[0][0] is not leads[0]:
            counted.insert(0, (leads[0], float(shares[0])))
        for lead, share, caught in zip(leads, shares.tolist(), said, strict=True):
            if lead is leads[0] or share > LEAST_SHARE:
                _say(caught, of_others=lead is not leads[0], counts=share > LEAST_SHARE)
        members: list[LaplaceMixture] = []
        of_members: list[float] = []
        for lead, share in counted:
            others = lead.model._trained_others(lead, data, kept, task) if share > LEAST_SHARE else []
            members += [lead.model, *others]
            of_members += [share / (1 + len(others))] * (1 + len(others))
        self._others, self._shares = tuple(members[1:]), None
        if len(counted) > 1:
            self._shares = np.array(of_members) / sum(of_members)
            for member in members:
                member._factor = factor
                member._condition(member.laplace_, member._as_mixed(member.hyper_))

    def _fit_bag(
        self,
        parameters: dict[str, Any],
        data: PreparedData,
        kept: PreparedData | None,
        seeds: list[int],
        task: Task,
    ) -> None:
        """Train all members together, each without a part of the rows."""
        self.noise_model_, self._lead, self._shares, self._factor = None, None, None, 1.0
        self._is_compared, self._densities = False, None
        with task.subtask("member", MEMBER_STAGES) as stages:
            with stages.subtask("training", TRAINING_STAGES) as own:
                bag = cached_training(train_bag, self._kind, parameters, data, seeds, own)
            with stages.subtask("posterior"):
                found = approximate_bag(bag, self._kind, parameters, data, seeds, task.clock)
        self.noise_model_ = found.noise_model
        members = (self, *(self._twin() for _ in found.members[1:]))
        for place, (member, (trained, fit)) in enumerate(zip(members, found.members, strict=True)):
            member._is_candidate, member._n_bins = place > 0 or self._is_candidate, found.n_bins[place]
            member._publish(trained, found.data, found.origin if place == 0 else found.origin_of_others, seeds[2])
            member._unseen = np.unique(row_keys(data.X, data.targets)[found.held_out[place]])
            member._kept = None if kept is None else member._without_unseen(kept)
            member._condition(fit, found.hyper)
        self._others, self._shares = members[1:], found.shares

    def _see(self, data: PreparedData) -> None:
        """Take note that this member now knows these rows."""
        if self._unseen is not None:
            self._unseen = np.setdiff1d(self._unseen, row_keys(data.X, data.targets))

    def _without_unseen(self, data: PreparedData) -> PreparedData:
        """The rows, those of weight zero that this member has not seen in its training."""
        if self._unseen is None:
            return data
        unseen = np.isin(row_keys(data.X, data.targets), self._unseen)
        return replace(data, weights=np.where(unseen, 0.0, data.weights))

    @abstractmethod
    def _publish(self, trained: MapResult, data: PreparedData, origin: Origin, seed: int) -> None:
        """Set the fitted attributes that only a training changes."""

    @abstractmethod
    def _condition(self, fit: LaplaceFit, hyper: Hyper) -> None:
        """Set the fitted attributes that the rows seen and the hyperparameters determine."""

    @abstractmethod
    def _as_mixed(self, hyper: Hyper) -> Hyper:
        """With all variances as they suit the mixture, where rows that were held out have chosen them."""

    def _as_lead(
        self,
        parameters: dict[str, Any],
        data: PreparedData,
        kept: PreparedData | None,
        seeds: list[int],
        task: Task,
        *,
        alone: bool,
    ) -> _Lead:
        """Fit this one as the first net of its kind, which others follow."""
        self.noise_model_, self._lead, self._shares, self._factor = None, None, None, 1.0
        self._is_compared, self._densities, self._unseen = not alone, None, None
        start = self._fit_rows(parameters, data, kept, seeds, task)
        densities, self._densities = self._densities, None
        return _Lead(self, parameters, seeds[0], start, densities)

    def _trained_others(
        self, lead: _Lead, data: PreparedData, kept: PreparedData | None, task: Task
    ) -> list[LaplaceMixture]:
        """The members of a kind after its first, with what that one has chosen on held-out rows, under its noise.

        The nets beside it, which have not seen a part of the rows yet, go on with all of them, under its prior
        precisions; so does any member more, from initial weights of its own. Without such nets, each has the precisions
        of its own evidence. Where no number was asked for, a net that cannot be trained is left out.
        """
        if data.noise is None and self.noise_model_ is not None and self.noise_model_.is_trained_under:
            data, kept = self._with_noise(data), kept and self._with_noise(kept)

        first = lead.start
        n_nets = 0 if self._origin.cross is None else len(first.folds)
        n_others = 0 if task.clock.is_over() else _resolve.n_members(self.n_members, n_nets) - 1
        dispensable = FAILURES if isinstance(self.n_members, str) else ()

        def fitted(place: int, seeds: list[int], own: Task) -> LaplaceMixture | None:
            if own.clock.is_over():
                return None
            other = self._twin()
            other._lead, other._is_candidate = self._origin, True
            start = first.of_fold(place) if first.folds else None
            with own, single_thread(n_jobs > 1), suppress(*dispensable):
                other._fit_rows(lead.parameters, replace(data, alone=True, start=start), kept, seeds, own)
                return other
            return None

        drawn = np.random.RandomState(lead.seed).randint(np.iinfo(np.int32).max, size=(n_others, 3)).tolist()
        n_jobs = min(joblib.effective_n_jobs(self.n_jobs), max(n_others, 1))
        tasks = [task.subtask("member", MEMBER_STAGES) for _ in drawn]  # numbered here, before there are threads
        fits = (joblib.delayed(fitted)(place, *given) for place, given in enumerate(zip(drawn, tasks, strict=True)))
        with _kept_back() as caught:
            found = joblib.Parallel(n_jobs, require="sharedmem")(fits)
        _say(caught, of_others=True)
        return [other for other in found if other is not None]

    def _weigh_members(self) -> None:
        """Set the weights of the members by the rule that was asked for; without rows, what they were stays."""
        members, left_out = self._models(), _resolve.WEIGHTINGS[self.member_weights]
        if left_out is None or len(members) == 1:
            alike = np.full(len(members), 1 / len(members))
            self.member_weights_ = alike if self._shares is None else self._shares
        elif not left_out:
            evidences = np.array([member.log_marginal_likelihood_value_ for member in members])
            self.member_weights_ = by_evidence(evidences)
        elif self._kept is not None:
            densities = np.stack([member._left_out_densities() for member in members])
            seen = [member._kept.weights for member in members if member._kept is not None]
            self.member_weights_ = by_stacking(densities, np.max(seen, axis=0))

    def _left_out_densities(self) -> np.ndarray:
        """log p of each kept row as of the model without it (n,), nats, in the network's units."""
        fit, hyper = self.laplace_, self.hyper_
        with single_thread(self._small):
            left_out = self._left_out(fit, f"member_weights={self.member_weights!r}")
            found = left_out.density(left_out.latent(fit, hyper), left_out.rows.observed, hyper.dispersion)
        return found.cpu().numpy()

    # ------------------------------------------------------------------ asked together

    @within_memory
    def _components(self, X: Any, link: Callable[[Self], Link | None]) -> Components:
        """The predictive as a mixture: over the members, and over what is not known of the noise."""
        parts = [member._own_components(X, link(member)) for member in self._models()]
        return Components.joined(parts, torch.from_numpy(self.member_weights_).to(parts[0].mean))

    @within_memory
    def _mixed(self, own: Callable[[Self], Tensor]) -> Tensor:
        """The weighted mean of what each member says."""
        every = torch.stack([own(member) for member in self._models()], -1)
        return every @ torch.from_numpy(self.member_weights_).to(every)

    @within_memory
    def _shared_draws(self, count: int, generator: torch.Generator, own: Callable[[Self, int], Tensor]) -> Tensor:
        """Draws of the mixture, the last axis: of each member as many as fall on it, in any order."""
        if not self._others:
            return own(self, count)
        chosen = torch.multinomial(torch.from_numpy(self.member_weights_), count, replacement=True, generator=generator)
        shares = torch.bincount(chosen, minlength=len(self.member_weights_)).tolist()
        drawn = [own(member, share) for member, share in zip(self._models(), shares, strict=True) if share]
        return torch.cat(drawn, -1)[..., torch.randperm(count, generator=generator)]

    def _outputs(self, X: Any) -> Tensor:
        """Mean of the outputs (n, C), float64: forward passes alone where the predictive allows it."""
        return self._mixed(lambda member: member._own_outputs(X))
