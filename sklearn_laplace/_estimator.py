"""What both estimators share: parameters, validation, ``fit`` as a handful of calls. Prediction is in ``_prediction``.

Here the user's units begin: inputs and targets come in as arrays, are standardised, and moments go back out as float64
arrays in the units of y. A fit that fails leaves the estimator as it was.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from . import _cross_validation, _resolve, _skorch, _values
from ._augment import check_forgetting
from ._autograd import ordinary_tensors
from ._cached_training import cached_training
from ._cross_fit import N_FOLDS
from ._cross_validation import GivenRows
from ._data import PreparedData, augmented
from ._diagnosis import diagnose
from ._few_rows import told_by_rows
from ._given import readable
from ._kinds import check_one_kind, most_kinds
from ._loo import LeftOut
from ._map import MapResult, Past, Start
from ._memory import naming_the_budget
from ._mixture import MEMBER_STAGES
from ._noise import noise_variances
from ._noise_model import NoiseModel
from ._past import check_columns
from ._path import prior_path
from ._prediction import naming_rows
from ._prior_options import check_left_out
from ._progress import Clock, ReportedFit, Task
from ._relevance import relevance
from ._resolve import Options
from ._sensitivity import LaplaceSensitivity
from ._stages import (
    TRAINING_STAGES,
    Origin,
    approximate,
    borrowed,
    choose,
    fixed_dispersion,
    options_for,
    pass_over,
    regrouped,
    rows_left_out,
    tempering,
    train,
)
from ._state import StoredEstimator
from ._tables import Table, check_rows, column_names
from ._targets import check_targets, check_weights
from ._threads import single_thread
from .evidence import effective_parameters, log_evidence
from .laplace import Hyper, LaplaceFit
from .latent import Components, LatentGaussian, Predictive
from .leave_one_out import Density
from .likelihoods._base import Link
from .links._base import centred
from .streaming import add_rows, remove_rows
from .structures import STRUCTURES


class LaplaceEstimator(ReportedFit, StoredEstimator, LaplaceSensitivity):
    """Parameters and ``fit`` of :class:`LaplaceRegressor` and :class:`LaplaceClassifier`."""

    augment: Any
    prior: Any
    max_time: float | None
    verbose: int

    @abstractmethod
    def predict_std(self, X: Any, *, kind: str, X_std: Any = None) -> np.ndarray:
        """Standard deviation of the prediction, see the subclasses."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.net is None
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        sample_noise_variance: Any = None,
        X_val: Any = None,
        y_val: Any = None,
    ) -> Self:
        """Train the net to the mode of its posterior and approximate the posterior around it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Raw columns; the built-in net standardises them.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, or class labels of any type.
        sample_weight : array-like of shape (n_samples,), optional
            Weights, not negative. A weight of k is the same as k copies of the row. Weights that sum to one at most
            are shares (AdaBoost's are), of as many rows as they are worth: (Σw)² / Σw² of them (Kish 1965). Where rows
            that were held out choose prior and noise ("auto"), weights of a larger mean are divided by it, unless rows
            with the same inputs have different targets: copies of rows say nothing new.
        sample_noise_variance : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            What is known of the noise of each row beforehand, such as the squared error of a measurement; above zero,
            in squared units of y. Row n has the noise variance σ²·v, with the σ that ``sigma_noise`` gives (1.0: v
            itself) or chooses (a factor by which v is off). A regressor's with ``likelihood="gaussian"`` alone.
        X_val, y_val : array-like of shape (n_val, n_features) and (n_val,) or (n_val, n_outputs), optional
            Rows that score the candidates of ``prior_precision="validation"``, and take no part in the fit otherwise. A
            pipeline hands them on as they are, unless it is told to transform them (``transform_input``).

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For invalid data, options that are unknown or exclude each other, a net that does not fit the data.
        NonFiniteError
            When a weight, an activation, a gradient or the training loss becomes NaN or infinite; names the layer and
            the rows.
        MemoryBudgetError
            When the posterior asked for would not fit in memory.

        Warns
        -----
        BoundWarning
            When a hyperparameter is chosen at the end of its search.
        ModeWarning
            When the weights are not close to a mode.
        PinnedWarning, InterpolationWarning, WeakPriorWarning
            When the prior leaves the data no say, the net goes through all targets, or the prior leaves it too free.
            Each says what it has seen, why that matters and what to do.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, random_state=0)
        >>> model.fit(X, np.sin(X[:, 0]), sample_weight=np.repeat([1.0, 2.0], 20)).n_features_in_
        1
        """
        with self._unchanged_on_failure(X):
            self._prior_scores = None
            self._options()  # a name that is not known comes before one that is not used
            numeric = is_regressor(self)
            X_val, y_val = readable(X_val, "X_val"), check_targets(y_val, numeric=numeric, name="y_val")
            given = readable(X, "X"), check_targets(y, numeric=numeric), sample_weight, sample_noise_variance
            held_out = _cross_validation.rule_for(self.get_params(deep=False), X_val, y_val)
            if held_out is None:
                return self._fit(lambda: self._prepare(*given), *given[:3])
            self._prepare(*given)  # what is wrong with the rows is said of all of them, before any training
            if X_val is not None:
                self._validate_rows(X_val, y_val, None, None, y_numeric=numeric, reset=False)
            rows = GivenRows.of(*given)
            with self._reported(self._clock(), 2, *given[:3]) as task:
                fitted, scores = held_out.chosen(_cross_validation.without_rule(self), rows, task)
                parameters = self.get_params(deep=False)
                self.__dict__.update({name: value for name, value in vars(fitted).items() if name not in parameters})
                self._prior_scores, self._is_candidate = scores, False
            self._diagnose(self._options())
        return self

    def _fit(self, prepare: Callable[[], PreparedData], *given: Any) -> Self:
        """Fit to the rows as they are prepared; callbacks are shown X, y and weights as they were given."""
        parameters = self.get_params(deep=False)
        options = _resolve.resolve(self._kind, parameters)
        _cross_validation.check_without_rows(parameters, "partial_fit with classes")
        _skorch.check_net(self.net)
        most = _resolve.n_members(self.n_members, N_FOLDS if options.cross_fits and self.net is None else 0)
        n_kinds = most_kinds(parameters, given[0])
        again = options.varying_noise is not False  # the first one's training may be repeated
        clock = self._clock()
        cached = parameters["memory"] is not None and parameters["max_time"] is None
        with nullcontext() if cached else clock.interruptible(), self._reported(clock, n_kinds * most, *given) as task:
            data = replace(self._after_previous(prepare()), table=self._table, quick=self._is_quick)
            seeds = _values.random_numbers(self.random_state).randint(np.iinfo(np.int32).max, size=3).tolist()
            deep = self.net is None and len(parameters["hidden_layer_sizes"]) > 0
            self._weight_unit = data.weight_unit() if deep and options.leaves_noise_open and self.prior is None else 1.0
            data = data.weighted(self._weight_unit) if self._weight_unit != 1.0 else data
            data = augmented(data, self.augment, self.n_augmentations, seeds[2])
            kept, data = data.unmerged, replace(data, unmerged=None)
            self._others = ()
            self._fit_members(parameters, data, kept, seeds, (1 + again) * MEMBER_STAGES, task)
            self._weigh_members()
        clock.say_if_cut(stacklevel=4)
        return self

    def _clock(self) -> Clock:
        """When the training that begins now has to end."""
        return Clock(self.max_time, int(self.verbose))

    def _fit_rows(
        self,
        parameters: dict[str, Any],
        data: PreparedData,
        kept: PreparedData | None,
        seeds: Sequence[int],
        task: Task,
    ) -> Start:
        """One net and its posterior; trained on, where the noise varies, under the noise that was found."""
        self._n_bins = parameters["n_bins"]
        with task.subtask("training", TRAINING_STAGES) as own:
            trained = cached_training(train, self._kind, parameters, data, list(seeds[:2]), own)
        with task.subtask("posterior"), single_thread(trained.is_small):
            options = options_for(self._kind, parameters, data, seeds[2])
            fit, origin = approximate(trained, data, options, built_in=self.net is None)
            if self._lead is not None:
                origin = borrowed(self._lead, origin, fit, options)
            self._publish(trained, data, origin, seeds[2])
            self._kept = kept
            dispersion = fixed_dispersion(options, data.scale)
            hyper = choose(fit, origin, options, dispersion, lambda: self._left_out(fit, in_order=True))
            if self._lead is None and self.noise_model_ is None and options.varying_noise is not False:
                self.noise_model_ = self._learnt_noise(fit, hyper, data, options, seeds[0])
                if self.noise_model_ is not None and self.noise_model_.is_trained_under and task.clock.is_over():
                    self.noise_model_ = None  # there is no time for a training under it
        if self.noise_model_ is not None and self.noise_model_.is_trained_under and data.noise is None:
            again = replace(self._with_noise(data), start=trained.start())
            return self._fit_rows(parameters, again, kept and self._with_noise(kept), seeds, task)
        with single_thread(trained.is_small):
            self._condition(fit, hyper)
            if origin.cross is not None and origin.cross.networks:
                if self._is_compared:
                    self._densities = origin.cross.densities_of_rows(replace(hyper, temperature=1.0))
                scored = origin.cross.scored(hyper, lambda: self._left_out(fit), fit)
                self._origin = replace(origin, cross=scored)
            self._diagnose(options, len(data.X) if data.past is None else None)
        return trained.start()

    def _learnt_noise(
        self, fit: LaplaceFit, hyper: Hyper, data: PreparedData, options: Options, seed: int
    ) -> NoiseModel | None:
        """How the noise varies with the inputs; None where it does not, or nothing tells."""
        return None

    def _with_noise(self, data: PreparedData) -> PreparedData:
        """The rows under the noise that was found."""
        assert self.noise_model_ is not None
        ratios = self.noise_model_.ratios(torch.from_numpy(data.X).to(self.noise_model_.fit.theta)).cpu().numpy()
        return data.under_noise(ratios)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, sample_noise_variance: Any = None) -> Self:
        """Take in more rows without training: their curvature is added, and the mean of the linearised net moves.

        The first call is :meth:`fit`. Afterwards the net stays linearised where it was trained, and the posterior so
        far is the prior of the new rows: for a linear net with Gaussian noise, exactly Bayesian linear regression on
        all rows. Prior precision, noise and the scales of X and y stay; :meth:`refit_laplace` chooses the former two
        again. ``net_`` stays as it was trained. Where the new rows say much that is new, a fit on all rows is better.
        "functional", which keeps every row, becomes "full" once its rows × outputs outnumber the weights: the same
        posterior, and memory that no longer grows. ``structure_`` names the one in use.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array-like of shape (n_samples,), optional
        sample_noise_variance : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            As in :meth:`fit`, for all rows or for none. The noise of a new row stays that of an average row of the fit.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For data that do not fit those of the first call.
        MemoryBudgetError
            When the posterior of all rows would not fit in memory.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).partial_fit(X[:30], y[:30])
        >>> before = model.predict_std([[6.0]])
        >>> bool(model.partial_fit(X[30:], y[30:]).predict_std([[6.0]]) < before)
        True
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, sample_weight, sample_noise_variance)
        with self._unchanged_on_failure(X):
            self._others = tuple(other._twin() for other in self._models()[1:])
            for member in self._models():
                data = member._change_rows(add_rows, X, y, sample_weight, sample_noise_variance)
                member._kept = None if member._kept is None else member._kept.followed_by(data)
        return self

    def forget(self, X: Any, y: Any, sample_weight: Any = None, sample_noise_variance: Any = None) -> Self:
        """Take rows out again, as if they had never been there: the reverse of :meth:`partial_fit`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows of an earlier :meth:`fit` or :meth:`partial_fit`. Those of ``fit`` leave curvature and mean of the
            linearised net; prior precision, noise and the linearisation itself still come from them. Of the rows that
            a fit keeps none stays, so that there is no leave-one-out afterwards.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        sample_weight : array-like of shape (n_samples,), optional
            Their weights.
        sample_noise_variance : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            Their known noise.

        Returns
        -------
        self

        Raises
        ------
        NotPositiveDefiniteError
            For rows that cannot have been in the fit.
        UnsupportedCombinationError
            For ``hessian_structure="functional"``, which "auto" chooses for few rows; "full" is the same posterior. For
            ``augment``, whose copies cannot be drawn again.
        ValueError
            When no row would be left.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, hessian_structure="full", random_state=0)
        >>> before = model.fit(X, y).predict_std([[6.0]])
        >>> bool(model.forget(X[30:], y[30:]).predict_std([[6.0]]) > before)
        True
        """
        check_is_fitted(self)
        check_forgetting(self.augment)
        with self._unchanged_on_failure(X):
            self._others = tuple(other._twin() for other in self._models()[1:])
            for member in self._models():
                member._change_rows(remove_rows, X, y, sample_weight, sample_noise_variance)
                member._origin = replace(member._origin, cross=None)
                member._kept = None  # not even those that stay: a row that is to be forgotten may be there in any form
        return self

    def refit_laplace(self, **laplace_params: Any) -> Self:
        """Other Laplace parameters at the same weights and curvature: no training, no data.

        Sets the parameters, as ``set_params`` does, and everything fitted that depends on them; a choice by "loo" goes
        over the rows that the fit has kept. With a number for ``map_prior_precision`` the result is that of a new fit
        with these parameters; with "same", a new fit would train under another prior as well.

        Parameters
        ----------
        **laplace_params
            Of ``damping``, ``prior_precision``, ``prior_structure``, ``sigma_noise``, ``temperature``, ``predictive``,
            ``n_samples``, ``return_std_kind`` (regressor), ``link`` (classifier). None at all: what is chosen by a rule
            is chosen again, for example after :meth:`partial_fit` (where "auto" is "evidence", since its nets do not
            know the new rows); what "cv" or "validation" has chosen stays. Noise ratios between targets and rows stay:
            of ``sigma_noise`` only a common factor can change.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For a parameter that the training or the curvature depends on, or an invalid value.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.predict([[30.0]], return_std=True)
        >>> again, wider = model.refit_laplace(prior_precision=0.01).predict([[30.0]], return_std=True)
        >>> bool(again == mean), bool(wider > 5 * std)
        (True, True)
        """
        check_is_fitted(self)
        parameters = self._parameters()
        _resolve.check_post_hoc(laplace_params, parameters)
        _cross_validation.check_without_rows({**parameters, **laplace_params}, "refit_laplace")
        check_one_kind(laplace_params, [member._n_bins for member in self._models()])
        with self._unchanged_on_failure(), single_thread(self._small):
            self.set_params(**laplace_params)
            self._prior_scores = None if "prior_precision" in laplace_params else self._prior_scores
            options = replace(self._options(), likelihood=self.laplace_.likelihood)
            options = told_by_rows(options, self.laplace_.total_weight, self._scale)
            fit = regrouped(self.laplace_, self._origin, options)
            given = fit, self._origin, options, fixed_dispersion(options, self._scale)
            self._condition(fit, self._as_mixed(choose(*given, lambda: self._left_out(fit, in_order=True))))
            self._diagnose(options)
            self._others = tuple(other._twin().refit_laplace(**laplace_params) for other in self._models()[1:])
            self._weigh_members()
        return self

    @contextmanager
    def _unchanged_on_failure(self, X: Any = None) -> Iterator[None]:
        """The estimator as it was after any failure; one that has to do with rows says which of X they are."""
        before = dict(self.__dict__)
        try:
            with naming_the_budget(self.memory_budget), naming_rows(X, lambda: self._table), ordinary_tensors():
                yield
        except BaseException:  # an interrupt as well
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _change_rows(self, change: Callable[..., LaplaceFit], *rows: Any) -> PreparedData:
        """The rows as they were given."""
        given = self._prepare_more(*rows).weighted(self._weight_unit)
        if change is add_rows:
            self._see(given)
        else:
            given = self._without_unseen(given)
        varies = self.noise_model_ is not None and self.noise_model_.is_trained_under
        given = replace(self._with_noise(given), scale=self._scale) if varies else given
        data = augmented(given.present(), self.augment, self.n_augmentations, self._seed)
        if not len(data.X):
            return given
        with single_thread(self._small):
            found = pass_over(self.laplace_, data, self._input_dtype, self._options().memory, added=change is add_rows)
            self._condition(change(*found, self.hyper_), self.hyper_)
        return given

    # ------------------------------------------------------------------ the stages of fit

    @abstractmethod
    def _prepare(self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> PreparedData:
        """Validate the data and bring the targets into the network's units."""

    @abstractmethod
    def _prepare_more(self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> PreparedData:
        """Validate rows that come after the fit, in the units that it has settled."""

    def _validate_rows(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, *, y_numeric: bool, reset: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """X and y as arrays, weights (n,) of which some may be zero, and known noise (n, C) or None."""
        tables = self._table is not None if not reset else self.net is None
        named, y = column_names(readable(X, "X")), check_targets(y, numeric=y_numeric)
        X, y = check_rows(self, X, y, tables=tables, reset=reset, multi_output=y_numeric, y_numeric=y_numeric)
        weights = check_weights(sample_weight, X)
        if reset:
            previous, asked = self._previous(), self._options().categorical
            check_columns(self, previous)
            self._table = Table.of(X, weights, asked, named) if tables else None
            self._table = self._table if previous is None else previous._table
        X = X if self._table is None else self._table.coded(X, weights)
        shape = (len(y), y.size // len(y))
        variances = noise_variances(sample_noise_variance, self._options().likelihood, shape)
        return X, y, weights, variances

    def _previous(self) -> Any:
        """The fitted estimator whose posterior is the prior, or None."""
        if self.prior is None:
            return None
        previous = self.prior.estimator if isinstance(self.prior, FrozenEstimator) else None
        if not isinstance(previous, LaplaceEstimator) or previous._kind != self._kind:
            raise TypeError(
                f"prior={self.prior!r} is not supported; give None or FrozenEstimator(fitted {type(self).__name__}): "
                "clone would make an unfitted one of an estimator that is not frozen."
            )
        check_is_fitted(previous)
        return previous

    def _after_previous(self, data: PreparedData) -> PreparedData:
        """The rows with the previous posterior as their prior."""
        previous = self._previous()
        if previous is None:
            return data
        if data.n_outputs != previous.n_outputs_:
            raise ValueError(
                f"the net of these data has {data.n_outputs} outputs, that of the previous posterior "
                f"{previous.n_outputs_}; give the same likelihood and net."
            )
        return replace(data, past=Past(previous.laplace_, previous.hyper_, previous.net_.module_), unmerged=None)

    def _publish(self, trained: MapResult, data: PreparedData, origin: Origin, seed: int) -> None:
        """Set the fitted attributes that only a training changes."""
        gradient = trained.mode.fit.objective_gradient(trained.mode.hyper)
        self.net_ = trained.net
        self.gradient_norm_ = float(gradient.norm()) / max(trained.mode.fit.total_weight, 1.0)
        self.mode_distance_ = trained.mode.decrement
        self.history_ = trained.history
        self.n_iter_ = trained.n_steps
        self.n_outputs_ = data.n_outputs
        self._origin = origin
        self._scale = data.scale
        self._seed = seed
        self._small = trained.is_small
        self._input_dtype = trained.input_dtype

    def _condition(self, fit: LaplaceFit, hyper: Hyper) -> None:
        """Set the fitted attributes that the rows seen and the hyperparameters determine."""
        posterior = fit.posterior(hyper)
        # MacKay's formulas are those of exact damping: another one shapes what is predicted, and no evidence.
        self.posterior_ = fit.damped_posterior(hyper) if self._options().structure_options.damped else posterior
        precision = hyper.prior_precision.cpu().numpy()
        self.laplace_ = fit
        self.hyper_ = hyper
        self.prior_precision_ = float(precision[0]) if fit.prior.n_groups == 1 else precision
        self.prior_groups_ = fit.prior.names
        self.structure_ = next(k for k, v in STRUCTURES.items() if isinstance(fit.curvature, v))
        evidence = log_evidence(fit, hyper, posterior)
        self.log_marginal_likelihood_value_ = evidence - fit.total_weight * self._scale.log_volume
        self.n_effective_parameters_ = effective_parameters(fit, hyper, posterior)

    def _as_mixed(self, hyper: Hyper) -> Hyper:
        if self._factor == 1 or not all(self._options().by_held_out):
            return hyper
        precision, dispersion = hyper.prior_precision / self._factor, hyper.dispersion * self._factor
        return replace(hyper, prior_precision=precision, dispersion=dispersion)

    def _diagnose(self, options: Options, n_different: int | None = None) -> None:
        """Warn where this posterior should not be trusted, if it is the one that was asked for."""
        if self._is_candidate:
            return
        evidence = self.log_marginal_likelihood_value_ + self.laplace_.total_weight * self._scale.log_volume
        scores, (prior, noise) = self._origin.held_out(self.laplace_, self.hyper_), options.by_held_out
        held_out = (False, False)
        if scores is not None:
            held_out = prior, prior and noise and not scores.is_capped(self.hyper_.dispersion)
        given = self.laplace_, self.hyper_, self.n_effective_parameters_, evidence, self._options()
        diagnose(*given, held_out, n_different)

    # ------------------------------------------------------------------ leave-one-out

    @abstractmethod
    def _density(self, fit: LaplaceFit) -> Density:
        """What leave-one-out makes of a Gaussian over the outputs and a target."""

    def _left_out(self, fit: LaplaceFit, asked: str = "leave-one-out", *, in_order: bool = False) -> LeftOut:
        """The rows of the fit, as given or in an order of their own; an error names what needs them and has none."""
        check_left_out(asked, self.augment, self.prior)
        kept, memory = self._kept.in_order() if in_order and self._kept else self._kept, self._options().memory
        return rows_left_out(kept, fit.network, self._input_dtype, memory, self._density(fit), asked)

    @ordinary_tensors()
    def _loo_predictive(self, link: Link | None) -> Predictive:
        """Moments of each training row's target as of the model without the row, in the network's units."""
        parts = []
        for member in self._models():
            fit, hyper = member.laplace_, member.hyper_
            with single_thread(self._small):
                left_out = member._left_out(fit, "loo_predict")
                moments = fit.likelihood.predict(left_out.latent(fit, hyper), hyper.dispersion, link)
                if (varying := member.noise_model_) is not None:
                    ratios = varying.ratios(left_out.rows.inputs.to(varying.fit.theta))
                    moments = replace(moments, aleatoric_variance=hyper.dispersion * ratios)
            parts.append(Components.of(moments))
        return Components.joined(parts, torch.from_numpy(self.member_weights_).to(parts[0].mean)).moments

    @property
    @ordinary_tensors()
    def prior_path_(self) -> Bunch:
        """Scores of other prior precisions at the same weights, see the attributes of the subclasses.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> sorted(model.prior_path_)
        ['cv_score', 'log_marginal_likelihood', 'loo_log_density', 'prior_precision', 'validation_score']
        """
        check_is_fitted(self)
        known = self._kept is not None and self.augment is None and self.prior is None
        with single_thread(self._small):
            left_out = self._left_out(self.laplace_) if known else None
            given = self.laplace_, self.hyper_, self._options(), left_out
            return Bunch(**prior_path(*given, self._scale.log_volume, self._prior_scores))

    # ------------------------------------------------------------------ what both kinds answer

    @property
    def subset_(self) -> dict[str, np.ndarray]:
        """Which weights are random: a mask of the shape of each tensor that has some, a value of subset_of_weights.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> {name: mask.shape for name, mask in model.subset_.items()}
        {'2.weight': (50, 1), '2.bias': (50,), '5.weight': (1, 50), '5.bias': (1,)}
        """
        check_is_fitted(self)
        return {name: mask.cpu().numpy() for name, mask in self.laplace_.network.masks().items()}

    @property
    def feature_relevance_(self) -> np.ndarray:
        """Relevance of each column of X under ``prior_structure="ard"``, summing to one.

        The prior variance of a column's weights in the first layer, times the share of them that the data determine:
        the mean square of these weights where the evidence is largest (MacKay 1994). Without a unit for the built-in
        net, which standardises its columns; a net of one's own should see standardised ones.

        Raises
        ------
        AttributeError
            When the columns have no precisions of their own.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = LaplaceRegressor(prior_structure="ard", prior_precision="evidence", sigma_noise=0.1, random_state=0)
        >>> first, second = model.fit(X, np.sin(X[:, 0])).feature_relevance_
        >>> bool(first > 0.9)
        True
        """
        check_is_fitted(self)
        return relevance(self.laplace_, self.hyper_, self.n_features_in_)

    def predict_uncertainty(self, X: Any) -> Bunch:
        """The variance of each prediction and its parts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        Bunch with ``total``, ``aleatoric``, ``epistemic``
            Arrays of the shape of ``predict_std``, squared: units of y squared for a regressor; for a classifier the
            variances of the class indicators. total = aleatoric + epistemic.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> found = model.predict_uncertainty([[3.0], [30.0]])
        >>> bool(np.allclose(found.total, found.aleatoric + found.epistemic))
        True
        >>> found.aleatoric.round(3)
        array([0.01, 0.01])
        """
        std = {kind: self.predict_std(X, kind=kind) for kind in _resolve.STD_KINDS}
        return Bunch(**{kind: values**2 for kind, values in std.items()})

    def score_samples(self, X: Any) -> np.ndarray:
        """How much each row is like the training data: −log of its mean epistemic variance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
            Higher: more like the training data. Of the standardised outputs; for classes of the logits, each
            against their mean, since a common shift changes nothing.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> like_the_data, far_away = model.score_samples([[3.0], [30.0]])
        >>> bool(like_the_data > far_away)
        True
        """
        check_is_fitted(self)
        likelihood = self.laplace_.likelihood

        def own(member: Self) -> Tensor:
            return torch.cat(member._answers(X, moments))

        def moments(latent: LatentGaussian, x: Tensor) -> Tensor:
            logits = likelihood.class_logits(latent)
            logits = centred(logits) if likelihood.over_classes else logits
            return torch.stack([logits.mean, logits.variance, logits.mean.square()], -1)

        mean, variance, square = self._mixed(own).unbind(-1)
        variance = (variance + (square - mean.square()) * bool(self._others)).mean(-1)
        return -variance.clamp_min(torch.finfo(torch.float64).tiny).log().cpu().numpy()

    @ordinary_tensors()
    def log_marginal_likelihood(
        self,
        prior_precision: float | None = None,
        sigma_noise: Any = None,
        temperature: Any = None,
    ) -> float:
        """Log evidence of the training targets under other hyperparameters, at the same weights.

        Parameters
        ----------
        prior_precision : float or array-like, optional
            One for all weights, or one for each of ``prior_groups_``; the fitted one by default.
        sigma_noise : float or array-like of shape (n_outputs,), optional
            As the parameter of this name, in the units of y (regression); the fitted one by default.
        temperature : float or dict, optional
            The estimator's by default.

        Returns
        -------
        float
            Nats, of y in its own units.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> bool(np.isclose(model.log_marginal_likelihood(), model.log_marginal_likelihood_value_))
        True
        >>> bool(model.log_marginal_likelihood(prior_precision=100.0) < model.log_marginal_likelihood())
        True
        """
        check_is_fitted(self)
        hyper = self.hyper_
        if prior_precision is not None:
            given = _values.choice("prior_precision", prior_precision, [], array=True).value
            groups = self.laplace_.prior.n_groups
            if given is None or given.size not in (1, groups):
                raise ValueError(
                    f"prior_precision={prior_precision!r} has to be one number or {groups}, one for each of "
                    f"{self.prior_groups_}."
                )
            values = torch.tensor(given, dtype=torch.float64).reshape(-1).expand(groups)
            hyper = replace(hyper, prior_precision=values.to(hyper.prior_precision))
        if sigma_noise is not None and not self.laplace_.likelihood.has_dispersion:
            raise ValueError(f"sigma_noise={sigma_noise!r} is for numbers; classes and counts have no noise to set.")
        if sigma_noise is not None:
            sigma = _values.choice("sigma_noise", sigma_noise, [], array=True).value
            assert sigma is not None
            hyper = replace(hyper, dispersion=self._scale.dispersion(sigma))
        if temperature is not None:
            found = tempering(self.laplace_.network, _resolve.temperature(temperature))
            hyper = replace(hyper, temperature=found)
        return log_evidence(self.laplace_, hyper) - self.laplace_.total_weight * self._scale.log_volume
