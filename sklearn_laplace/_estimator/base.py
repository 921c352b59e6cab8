"""What both estimators share: parameters, validation and units; ``fit`` as a handful of calls.

Here the user's units begin: inputs and targets come in as arrays, are standardised, and moments go back out as float64
arrays in the units of y. An estimator holds one ensemble (``_ensemble/``), which is replaced as a whole and never
changed. A fit that fails leaves the estimator as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from .._data.augmentation import check_forgetting
from .._data.known_noise import noise_variances
from .._data.reading import check_rows, column_names
from .._data.rows import PreparedData, augmented
from .._data.table import Table, check_columns, naming_rows
from .._data.target_scale import TargetScale
from .._ensemble.encodings import check_one_kind, most_kinds
from .._ensemble.ensemble import Ensemble, reweighted
from .._ensemble.fit import MEMBER_STAGES, diagnosed, fit_ensemble
from .._ensemble.member import Member
from .._ensemble.request import FitRequest
from .._ensemble.update import refitted, with_rows, without_rows
from .._host.given_net import check_net
from .._options import members as _members
from .._options.resolve import check_post_hoc, resolve
from .._options.variants import Variant, expanded
from .._runtime.autograd import ordinary_tensors
from .._runtime.memory import naming_the_budget
from .._runtime.progress import Clock, ReportedFit
from .._storage.stored import StoredEstimator
from .._training.folds import N_FOLDS
from .._validation.inputs import readable
from .._validation.targets import check_targets, check_weights
from .._validation.values import random_numbers
from .cross_validation import GivenRows, check_without_rows, rule_for, without_rule
from .fitted import FittedModel
from .printing import ShownEstimator


class LaplaceEstimator(FittedModel, ReportedFit, StoredEstimator, ShownEstimator, BaseEstimator, ABC):
    """Parameters and ``fit`` of :class:`LaplaceRegressor` and :class:`LaplaceClassifier`."""

    augment: Any
    prior: Any
    memory_budget: Any
    n_members: Any
    max_time: float | None
    verbose: int
    _kind: str
    _weight_unit = 1.0
    _is_candidate = False
    _is_quick = False

    @abstractmethod
    def predict_std(self, X: Any, *, kind: str, X_std: Any = None) -> Any:
        """Standard deviation of the prediction, see the subclasses."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.net is None
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "_ensemble" in vars(self)

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
            held_out = rule_for(expanded(self.get_params(deep=False)), X_val, y_val)
            if held_out is None:
                return self._fit(lambda: self._prepare(*given), *given[:3])
            self._prepare(*given)  # what is wrong with the rows is said of all of them, before any training
            if X_val is not None:
                self._validate_rows(X_val, y_val, None, None, y_numeric=numeric, reset=False)
            rows = GivenRows.of(*given)
            with self._reported(self._clock(), 2, *given[:3]) as task:
                fitted, scores = held_out.chosen(without_rule(self), rows, task)
                self._take(fitted)
                self._prior_scores, self._is_candidate = scores, False
            options = self._options()
            diagnosed(self._ensemble.first, options, options)
        return self

    def _fit(self, prepare: Callable[[], PreparedData], *given: Any) -> Self:
        """Fit to the rows as they are prepared; callbacks are shown X, y and weights as they were given."""
        parameters = expanded(self.get_params(deep=False))
        options = resolve(self._kind, parameters)
        check_without_rows(parameters, "partial_fit with classes")
        check_net(self.net)
        n_folds = N_FOLDS if options.cross_fits and self.net is None else 0
        most = _members.n_members(parameters["n_members"], n_folds)
        n_kinds = most_kinds(parameters, given[0])
        again = options.varying_noise is not False  # the first one's training may be repeated
        clock = self._clock()
        cached = parameters["memory"] is not None and parameters["max_time"] is None
        with nullcontext() if cached else clock.interruptible(), self._reported(clock, n_kinds * most, *given) as task:
            data = replace(self._after_previous(prepare()), table=self._table)
            seeds = random_numbers(self.random_state).randint(np.iinfo(np.int32).max, size=3).tolist()
            deep = self.net is None and len(parameters["hidden_layer_sizes"]) > 0
            is_open = deep and options.leaves_noise_open and parameters["prior"] is None
            self._weight_unit = data.weight_unit() if is_open else 1.0
            data = data.weighted(self._weight_unit) if self._weight_unit != 1.0 else data
            data = augmented(data, parameters["augment"], parameters["n_augmentations"], seeds[2])
            kept, data = data.unmerged, replace(data, unmerged=None)
            request = FitRequest(
                kind=self._kind,
                parameters=parameters,
                data=data,
                seeds=seeds,
                resolved=options,
                kept=kept,
                is_candidate=self._is_candidate,
                is_quick=self._is_quick,
            )
            ensemble = fit_ensemble(request, (1 + again) * MEMBER_STAGES, task)
            self._ensemble = reweighted(ensemble, parameters["member_weights"], options)
        clock.say_if_cut(stacklevel=4)
        return self

    def _clock(self) -> Clock:
        """When the training that begins now has to end."""
        return Clock(self.max_time, int(self.verbose))

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
            self._ensemble = self._changed(with_rows, X, y, sample_weight, sample_noise_variance)
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
        check_forgetting(self._parameters()["augment"])
        with self._unchanged_on_failure(X):
            self._ensemble = self._changed(without_rows, X, y, sample_weight, sample_noise_variance)
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
        before = self._parameters()
        chooses = any(name.startswith("prior_precision") for name in laplace_params)
        with self._unchanged_on_failure():
            for name, value in self.get_params(deep=False).items():
                if isinstance(value, Variant):  # set_params changes it in place
                    setattr(self, name, clone(value))
            self.set_params(**laplace_params)
            self._prior_scores = None if chooses else self._prior_scores
            parameters = self._parameters()
            check_post_hoc(laplace_params, before, parameters)
            check_without_rows(parameters, "refit_laplace")
            check_one_kind(parameters, [member.n_bins for member in self._ensemble.members])
            options = self._options()
            ensemble = refitted(self._ensemble, options, is_candidate=self._is_candidate)
            self._ensemble = reweighted(ensemble, parameters["member_weights"], options)
        return self

    @contextmanager
    def _unchanged_on_failure(self, X: Any = None) -> Iterator[None]:
        """The estimator as it was after any failure; one that has to do with rows says which of X they are."""
        before = dict(vars(self))
        try:
            with naming_the_budget(self.memory_budget), naming_rows(X, lambda: self._table), ordinary_tensors():
                yield
        except BaseException:  # an interrupt as well
            for name in [name for name in vars(self) if name not in before]:
                delattr(self, name)
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _take(self, fitted: Self) -> None:
        """Take over the fitted attributes of another estimator."""
        parameters = self.get_params(deep=False)
        for name, value in vars(fitted).items():
            if name not in parameters:
                setattr(self, name, value)

    def _changed(self, change: Callable[..., Member], *rows: Any) -> Ensemble:
        """The ensemble with each member changed by rows."""
        options, parameters = self._options(), self._parameters()

        def copies(data: PreparedData, seed: int) -> PreparedData:
            return augmented(data, parameters["augment"], parameters["n_augmentations"], seed)

        members = []
        for member in self._ensemble.members:
            data = self._prepare_more(*rows, scale=member.scale).weighted(self._weight_unit)
            members.append(change(member, data, options, copies))
        return replace(self._ensemble, members=tuple(members))

    # ------------------------------------------------------------------ rows and options

    @abstractmethod
    def _prepare(self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> PreparedData:
        """Validate the data and bring the targets into the network's units."""

    @abstractmethod
    def _prepare_more(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, *, scale: TargetScale
    ) -> PreparedData:
        """Validate rows that come after the fit, in the units of a member."""

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
        prior = self._parameters()["prior"]
        if prior is None:
            return None
        previous = prior.estimator if isinstance(prior, FrozenEstimator) else None
        if not isinstance(previous, LaplaceEstimator) or previous._kind != self._kind:
            raise TypeError(
                f"prior={prior!r} is not supported; give None, a structure such as 'layer', a mean, GaussianPrior(…), "
                f"or FrozenEstimator(fitted {type(self).__name__})."
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
        return replace(data, unmerged=None)
