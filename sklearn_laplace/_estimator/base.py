"""What both estimators share: parameters, validation and units; ``fit`` as a handful of calls.

Here the user's units begin: inputs and targets come in as arrays, are standardised, and moments go back out as float64
arrays in the units of y. An estimator holds one ensemble (``_ensemble/``), which is replaced as a whole and never
changed. A fit that fails leaves the estimator as it was.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._approximation.prior_path import prior_path
from .._approximation.prior_scores import PriorScores
from .._approximation.relevance import relevance
from .._data.augmentation import check_forgetting
from .._data.known_noise import noise_variances
from .._data.reading import check_rows, column_names
from .._data.rows import PreparedData, augmented
from .._data.table import Table, check_columns, naming_rows
from .._data.target_scale import TargetScale
from .._ensemble.encodings import check_one_kind, most_kinds
from .._ensemble.ensemble import Ensemble, reweighted
from .._ensemble.fit import MEMBER_STAGES, diagnosed, fit_ensemble
from .._ensemble.input_gradients import InputGradients, baseline_of, check_varied, deviations, some
from .._ensemble.member import Member
from .._ensemble.request import FitRequest
from .._ensemble.update import refitted, with_rows, without_rows
from .._host.given_net import check_net
from .._options import members as _members
from .._options import prior as _prior
from .._options.options import Options
from .._options.prior import can_leave_out, check_left_out
from .._options.resolve import check_post_hoc, resolve
from .._options.variants import Variant, expanded
from .._runtime.autograd import ordinary_tensors
from .._runtime.memory import naming_the_budget
from .._runtime.progress import Clock, ReportedFit
from .._runtime.threads import single_thread
from .._storage.stored import StoredEstimator
from .._training.folds import N_FOLDS
from .._training.random_weights import tempering
from .._validation.inputs import readable
from .._validation.targets import check_targets, check_weights
from .._validation.values import choice, random_numbers
from ..errors import IncompleteWarning
from ..laplace.evidence import log_evidence
from ..laplace.latent import Components, LatentGaussian, Predictive
from ..laplace.links._base import centred
from .cross_validation import GivenRows, check_without_rows, rule_for, settled, without_rule
from .printing import ShownEstimator


class Fitted:
    """An attribute that the estimator's ensemble holds.

    Parameters
    ----------
    path : str
        Names of attributes from the ensemble on.
    """

    def __init__(self, path: str) -> None:
        self._get = attrgetter(path)

    def __get__(self, estimator: Any, kind: type) -> Any:
        if estimator is None:
            return self
        check_is_fitted(estimator)
        return self._get(estimator._ensemble)

    def __set__(self, estimator: Any, value: Any) -> None:
        raise AttributeError("attributes of a fit cannot be set; call fit or refit_laplace.")


class LaplaceEstimator(ReportedFit, StoredEstimator, ShownEstimator, BaseEstimator, ABC):
    """Parameters and ``fit`` of :class:`LaplaceRegressor` and :class:`LaplaceClassifier`."""

    augment: Any
    prior: Any
    memory_budget: Any
    n_members: Any
    max_time: float | None
    verbose: int
    _kind: str
    _ensemble: Ensemble
    _table: Table | None = None
    _prior_scores: PriorScores | None = None
    _single_output = False
    _weight_unit = 1.0
    _is_candidate = False
    _is_quick = False

    net_ = Fitted("first.net")
    laplace_ = Fitted("first.fit")
    posterior_ = Fitted("first.posterior")
    hyper_ = Fitted("first.hyper")
    noise_model_ = Fitted("first.noise_model")
    n_outputs_ = Fitted("first.fit.n_outputs")
    prior_precision_ = Fitted("first.prior_precision")
    prior_groups_ = Fitted("first.fit.prior.names")
    structure_ = Fitted("first.structure")
    log_marginal_likelihood_value_ = Fitted("first.log_evidence")
    n_effective_parameters_ = Fitted("first.n_effective_parameters")
    gradient_norm_ = Fitted("first.gradient_norm")
    mode_distance_ = Fitted("first.mode_distance")
    history_ = Fitted("first.history")
    n_iter_ = Fitted("first.n_steps")
    member_weights_ = Fitted("weights")
    _scale = Fitted("first.scale")
    _kept = Fitted("first.kept")

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

    def _parameters(self) -> dict[str, Any]:
        """All parameters by name, with the prior precision that held-out rows have chosen in place of its rule."""
        return settled(expanded(self.get_params(deep=False)), self._prior_scores)

    def _options(self) -> Options:
        return resolve(self._kind, self._parameters())

    @contextmanager
    def _asked(self, X: Any) -> Iterator[tuple[Tensor, Options]]:
        """Rows as a tensor, and the options, to answer with; errors name the memory budget and the rows of X."""
        check_is_fitted(self)
        table, member, options = self._table, self._ensemble.first, self._options()
        with naming_the_budget(self.memory_budget), naming_rows(X, lambda: table), ordinary_tensors():
            rows, _ = check_rows(self, X, tables=table is not None, reset=False)
            rows = rows if table is None else table.coded(rows)
            yield torch.tensor(rows, dtype=member.input_dtype, device=member.posterior.device), options

    def _components(self, X: Any) -> Components:
        """The predictive of each row as a mixture, in the network's units."""
        with self._asked(X) as (x, options):
            return self._ensemble.components(x, options)

    # ------------------------------------------------------------------ members

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
        return [
            self._around(self._ensemble.of_one(member), n_members=1, n_bins=member.n_bins)
            for member in self._ensemble.members
        ]

    def _around(self, ensemble: Ensemble, **parameters: Any) -> Self:
        """Another estimator with the same attributes but for its ensemble and some parameters; without callbacks."""
        given, fitted = self._split()
        found: Self = self._joined({**given, **parameters}, {**fitted, "_ensemble": ensemble})
        return found

    # ------------------------------------------------------------------ leave-one-out

    def _loo_predictive(self) -> Predictive:
        """Moments of each training row's target under the model without the row, in the network's units."""
        check_is_fitted(self)
        check_left_out("loo_predict", self._parameters())
        with ordinary_tensors():
            return self._ensemble.left_out_moments(self._options())

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
        member, options = self._ensemble.first, self._options()
        known = member.kept is not None and can_leave_out(self._parameters())
        with single_thread(member.is_small):
            left_out = member.left_out(options, "leave-one-out") if known else None
            given = member.fit, member.hyper, options, left_out
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

        def moments(latent: LatentGaussian, _: Tensor) -> Tensor:
            logits = likelihood.class_logits(latent)
            logits = centred(logits) if likelihood.over_classes else logits
            return torch.stack([logits.mean, logits.variance, logits.mean.square()], -1)

        with self._asked(X) as (x, options):
            found = self._ensemble.mean_of(lambda member: torch.cat(member.answers(x, options, moments)))
            mean, variance, square = found.unbind(-1)
        several = len(self._ensemble.members) > 1
        variance = (variance + (square - mean.square()) * several).mean(-1)
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
            given = choice("prior_precision", prior_precision, [], array=True).value
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
            sigma = choice("sigma_noise", sigma_noise, [], array=True).value
            assert sigma is not None
            hyper = replace(hyper, dispersion=self._scale.dispersion(sigma))
        if temperature is not None:
            found = tempering(self.laplace_.network, _prior.temperature(temperature))
            hyper = replace(hyper, temperature=found)
        return log_evidence(self.laplace_, hyper) - self.laplace_.total_weight * self._scale.log_volume

    def explain_std(self, X: Any, *, baseline: Any = None) -> np.ndarray:
        """Why a row is uncertain: its epistemic variance, shared out among the columns by integrated gradients.

        The gradient of the variance, averaged on the straight way from a baseline to the row, times the way in each
        column (Sundararajan, Taly & Yan 2017). What a column gets is how much of the variance is due to this column
        being where it is and not where it is in the baseline: negative where that makes the net more certain. A column
        that the predictive does not depend on gets nothing.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Of numbers, none missing.
        baseline : array-like of shape (n_features,), optional
            Where the way begins; the weighted mean of the training rows by default.

        Returns
        -------
        ndarray of shape (n_samples, n_features), (n_samples, n_features, n_outputs) or (n_samples, n_features, \
n_classes)
            The sum over the columns is ``predict_std(X, kind="epistemic")**2`` minus that of the baseline, in squared
            units of y. For classes the variance is that of each logit against the mean of the logits, of which
            :meth:`score_samples` has the mean over the classes.

        Raises
        ------
        ValueError
            For columns of categories, missing values, a baseline that does not fit, or where none is known: after
            :meth:`forget`, and with ``prior``.

        Warns
        -----
        IncompleteWarning
            When the attributions of a row do not add up, since its variance jumps on the way: that of a net with
            ``activation="relu"`` does, at every kink.

        Notes
        -----
        The path has at least sixteen rows. With pieces (``n_bins``) it has four between any two places where a column
        passes from one piece to the next. There are up to 64 times as many, until the sum is right to a millionth. Each
        row costs as much as a gradient of :meth:`predict`.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, X[:, 0])
        >>> first, second = model.explain_std([[9.0, 0.0]])[0]  # far away in the first column
        >>> bool(first > 10 * abs(second))
        True

        Of a linear net, from another baseline:

        >>> X = np.random.default_rng(0).normal(size=(30, 2))
        >>> model = LaplaceRegressor(hidden_layer_sizes=(), sigma_noise=0.1, n_members=1, random_state=0)
        >>> shares = model.fit(X, X[:, 0] - X[:, 1]).explain_std([[5.0, 0.0], [5.0, 5.0]], baseline=[0.0, 0.0])
        >>> shares.shape, bool(shares[0, 0] > 0), bool(shares[0, 1] == 0)
        ((2, 2), True, True)
        """
        with self._asked(X) as (x, options):
            check_varied(x, self._table)
            start = baseline_of(baseline, self._kept, self.n_features_in_).to(x)
            found, missed = InputGradients(self._ensemble, options).attributions(start, x)
        if missed:
            warnings.warn(
                f"the attributions of {len(missed)} rows do not add up to the difference of their epistemic variances "
                f"(rows {some(missed)}): the variance jumps on the way from the baseline, as it does at every kink of "
                "activation='relu'. Use 'tanh', 'gelu', 'silu' or 'softplus', or a nearer baseline.",
                IncompleteWarning,
                stacklevel=2,
            )
        return self._per_column(found, 2)

    def _sloped(self, X: Any, X_std: Any = None, kind: str | None = None) -> tuple[Predictive, Tensor, Tensor | None]:
        """Moments of the rows with the noise of the inputs, the mean's gradient, and that of the std of some kind.

        In the network's units of y and the user's units of X; gradients of shape (n, d, C).
        """
        with self._asked(X) as (x, options):
            check_varied(x, self._table)
            noise = None if X_std is None else torch.from_numpy(deviations(X_std, tuple(x.shape))).to(x.device)
            return InputGradients(self._ensemble, options).sloped(x, noise, kind)

    def _per_column(self, values: Tensor, power: int = 1) -> np.ndarray:
        """Values of each row, column and output (n, d, C), in the units of y to a power; one output has no axis."""
        found: np.ndarray = values.cpu().numpy() * self._scale.power(power)
        return found[..., 0] if self._single_output else found
