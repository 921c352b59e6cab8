"""Base class of both estimators: fits, updates and refits of an ensemble, and validation of rows.

Rows are arrays in the user's units; the subclasses convert targets to the network's units. A *source* is an X that is
read in blocks, such as a path (see ``sources.py``). An estimator holds one ensemble (``_ensemble/``). A fit or update
does not modify the ensemble but replaces it. A failed fit leaves the estimator unchanged.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from .._ensemble.conditions import device_of_fit
from .._ensemble.diagnose import diagnose
from .._ensemble.ensemble import Ensemble, reweighted
from .._ensemble.fit import fit_ensemble
from .._ensemble.joint_members import check_one_kind
from .._ensemble.member import Member
from .._ensemble.target_noise import ROUNDS
from .._ensemble.update import refitted, with_rows, without_rows
from .._storage.stored import set_state, state_of, stored
from .._table.limits import naming_the_budget
from .._table.reading import check_rows, column_names
from .._table.rows import PreparedData, TargetScale, canonical_rows, noise_variances, present_rows, row_keys
from .._table.source import Block, Group, RowSource
from .._table.source_of import Sample, Tally, source_of
from .._table.statistics import as_counts, relative_weights
from .._table.table import Table, check_columns, naming_rows
from .._training.checkpoint import Checkpoint, checkpoint_of
from .._training.plan import FitRequest
from .._training.progress import STAGES, Clock, ReportedFit
from .._training.recipe import FOLDS_OF_MANY
from .._validation.arguments import explained, random_numbers
from .._validation.rows import check_targets, check_weights, readable
from ..laplace.torch_state import ordinary_tensors
from ..nets.given_net import check_net, check_split, has_own_epochs, is_list
from ..options.likelihood import are_rates, for_counts
from ..options.resolve import check_post_hoc, check_post_hoc_names, verbosity
from ..options.resolved import Options
from ..options.training import number_of_members
from ..options.variants import Variant, check_inner_names, expanded
from .fitted import FittedModel, require_fitted
from .printing import ShownEstimator
from .sources import Reading, blocks_of_ranks, check_options, fit_source, stream_of


@stored
@explained
class LaplaceEstimator(FittedModel, ReportedFit, ShownEstimator, BaseEstimator, ABC):
    """Base class of :class:`LaplaceRegressor` and :class:`LaplaceClassifier`."""

    prior: Any
    memory_budget: Any
    n_members: Any
    max_time: float | None
    verbose: int | str
    _kind: str
    _weight_unit = 1.0
    _tally: Tally | None = None

    @abstractmethod
    def predict_std(self, X: Any, *, kind: str, X_std: Any = None) -> Any:
        """Standard deviation of the prediction; see the subclasses."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.net is None
        return tags

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return _names_of(cls)

    def __sklearn_is_fitted__(self) -> bool:
        return "_ensemble" in vars(self)

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self)

    def __setstate__(self, state: Any) -> None:
        set_state(self, state)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        sample_noise_variance: Any = None,
    ) -> Self:
        """Train the ensemble and approximate the posterior of each net by a Gaussian around its trained weights.

        A single built-in net is trained to a mode of its posterior. A skorch net passed as ``net`` is trained with its
        own epochs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), path, pyarrow Dataset, or dask collection
            Training inputs. The built-in net standardises and encodes the columns itself. A path refers to Parquet
            files.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), str or list of str
            Targets, or class labels of any type. For a path or Dataset as X: names of its target columns. For a
            collection: such names, or another collection.
        sample_weight : array-like of shape (n_samples,), or str, optional
            Non-negative row weights. A weight of k is equivalent to k copies of the row, unless the weights are
            rescaled (see Notes). If X is read in blocks (see Notes), a str names the column of the weights.
        sample_noise_variance : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            Known noise variances v > 0, such as squared measurement errors, in squared units of y. The noise variance
            of a row is σ²·v, where σ is ``sigma_noise`` or its estimate. With ``sigma_noise=1.0``, it is v itself. Only
            for regression on rows in memory, with ``likelihood="gaussian"`` or "auto" and no ``target_transform``.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For invalid data, unknown options, options that exclude each other, or a net that does not match the data.
        NonFiniteError
            If a weight, an activation, a gradient or the training loss becomes NaN or infinite. The message names the
            layer and the rows.
        MemoryBudgetError
            If the requested posterior does not fit in memory.

        Warns
        -----
        BoundWarning
            If a selected hyperparameter lies at a bound of its search interval.
        ModeWarning
            If the weights are far from a mode, and intervals are too narrow or cannot be checked.
        InterpolationWarning
            If intervals contain too few targets in a leave-one-out check, or if the rows are too few to determine the
            noise level.
        WeakPriorWarning
            If the prior is so weak that intervals are wider than those of a constant prediction.

        Notes
        -----
        Files, pyarrow Datasets, dask collections and large memory-mapped arrays are read in blocks. In a process
        group of ``torch.distributed``, every rank passes its own rows or the same files, and ends with the same model.
        See the page "Beyond one process".

        By default, except for counts, only the ratios of the weights matter. This holds if the built-in net has hidden
        layers and held-out rows select its regularisation. Weights are then numbers of copies if they are integers or
        small integer multiples of the smallest weight. In regression, copies of a row add no information, unless rows
        with equal inputs have different targets. Equal rows are merged only up to 10,000 rows. Other weights are
        rescaled to the sum (Σw)² / Σw², the effective sample size (Kish 1965). All other fits rescale only weights
        whose sum is at most 1. For the Poisson likelihood, weights are exposures if any target is not an integer.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, random_state=0)
        >>> model.fit(X, np.sin(X[:, 0]), sample_weight=np.repeat([1.0, 2.0], 20)).n_features_in_
        1
        """
        source = source_of(X, y, sample_weight, Group.current())
        if source is not None:
            check_options(sample_noise_variance=sample_noise_variance)
            return self._fit_source(source)
        return self._fit_rows(X, y, sample_weight, sample_noise_variance)

    def _fit_source(self, source: RowSource) -> Self:
        fit_source(self, source)
        return self

    def _fit_rows(self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any = None) -> Self:
        with self._unchanged_on_failure(X):
            self._resolve()  # errors about unknown options come before errors about unused arguments
            X, y = readable(X, "X"), check_targets(y, numeric=is_regressor(self))
            return self._fit(lambda: self._prepare(X, y, sample_weight, sample_noise_variance), X, y, sample_weight)

    def _fit(self, prepare: Callable[[], PreparedData], *arguments: Any, sample: Sample | None = None) -> Self:
        """Fit to the rows from ``prepare`` or, given a ``sample`` of a source, to all rows of this source; return self.

        ``arguments`` are X, y and the weights, for callbacks.
        """
        parameters = expanded(self.get_params(deep=False))
        options = self._options()
        check_net(self.net)
        n_given = len(self.net) if is_list(self.net) else 1
        most = n_given if is_list(self.net) else max(number_of_members(parameters["n_members"]), FOLDS_OF_MANY)
        n_fits = 2 * most
        # With varying noise or overdispersion, the first member may be trained again.
        n_trainings = 1 + ROUNDS if options.likelihood.is_overdispersed else 1 + (options.varying_noise is not False)
        clock = self._clock(Group() if sample is None else Group.current())
        cached = parameters["memory"] is not None and parameters["max_time"] is None and sample is None
        interruptible = nullcontext() if cached else clock.interruptible()
        with interruptible, self._reported(clock, n_fits, *arguments) as task:
            data = replace(prepare(), table=self._table)
            if self._extends_previous(data.n_outputs):  # no leave-one-out, as the previous rows are not stored
                data = replace(data, unmerged=None)
            # If all ranks fit the same rows in memory, only the first one saves checkpoints.
            is_saved = sample is not None or Group.current().rank == 0
            saved = checkpoint_of(parameters, data, clock.group) if is_saved else Checkpoint()
            drawn = random_numbers(self.random_state).randint(np.iinfo(np.int32).max, size=3).tolist()
            seeds = clock.group.of_first(drawn)
            data = self._rescaled(data, options)
            if are_rates(options.likelihood, data.targets):
                parameters = {**parameters, "of_rates": True}
            stream = None if sample is None else stream_of(self, sample, data)
            request = FitRequest.of(self._kind, parameters, options, data, seeds, stream=stream, saved=saved)
            request = request.with_parameters(device_of_fit(parameters, data.shape(), options))
            ensemble = fit_ensemble(request, n_trainings * STAGES, task)
            self._table = self._table if request.stream is None else request.stream.table()
            self._ensemble = reweighted(ensemble, parameters["member_weights"], options)
            if not (clock.was_cut or self._ensemble.is_calibrated):
                diagnose(self._ensemble, options)
        saved.remove()
        clock.warn_if_cut()
        return self

    def _rescaled(self, data: PreparedData, options: Options) -> PreparedData:
        """Return the rows; weights that only count copies get mean 1 if held-out rows select the noise level."""
        unit = data.weight_unit() if options.leaves_noise_open and self._weighs_relatively(options) else 1.0
        self._weight_unit *= unit
        return data.weighted(unit) if unit != 1.0 else data

    def _weighs_relatively(self, options: Options) -> bool:
        """True if only the ratios of weights matter, because held-out rows select the regularisation.

        For counts, the sizes matter as well, since weights may be exposures.
        """
        parameters = self._parameters()
        deep = self.net is None and len(parameters["hidden_layer_sizes"]) > 0
        selects = options.leaves_noise_open if options.likelihood.has_dispersion else options.leaves_prior_open
        return deep and selects and parameters["prior"] is None and not for_counts(parameters["likelihood"])

    def _clock(self, group: Group | None = None) -> Clock:
        """Return a clock that starts now, with the time limit of the fit; only rank 0 prints."""
        printing = verbosity(self.verbose) if Group.current().rank == 0 else (0, False)
        return Clock(self.max_time, *printing, group or Group())

    def set_params(self, **params: Any) -> Self:
        """Set parameters, including those of option objects and of a net (``hessian_structure__damping``, ``net__lr``).

        Parameters
        ----------
        **params
            Parameters of the constructor and their new values.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a name is unknown, or refers to an option of a parameter that is a string, a number or None.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceRegressor
        >>> from sklearn_laplace.options import Kron
        >>> LaplaceRegressor(hessian_structure=Kron()).set_params(hessian_structure__damping="ritter")
        LaplaceRegressor(hessian_structure=Kron(damping='ritter'))
        """
        check_inner_names(params, self.get_params(deep=False))
        self._resolved = None  # an option object is changed in place, which a comparison would miss
        return super().set_params(**params)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, sample_noise_variance: Any = None) -> Self:
        """Update the posterior with further rows, without training.

        The first call fits the estimator. Later calls keep the net linearised at the trained weights, and the current
        posterior becomes the prior for the new rows. In a process group, every rank adds the rows of all ranks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Further rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        sample_weight : array-like of shape (n_samples,), optional
            Row weights.
        sample_noise_variance : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            As in :meth:`fit`; pass it in all calls or in none. Predictions still use the noise level of an average row
            of the fit.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For data that do not match those of the first call.
        MemoryBudgetError
            If the posterior of all rows does not fit in memory.

        Notes
        -----
        For a linear net with Gaussian noise and an exact ``hessian_structure``, the result is Bayesian linear
        regression on all rows. ``net_``, prior precision, noise level and the scales of X and y do not change;
        :meth:`refit_laplace` selects prior precision and noise level again. If the new rows differ strongly from the
        old ones, a fit on all rows is better.

        The structure "functional", which keeps every row, becomes "full" once rows × outputs exceed the number of
        weights. The posterior stays the same, and its size stops growing. ``structure_`` is the current structure.

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
        return self._updated(with_rows, Table.with_trained_rows, X, y, sample_weight, sample_noise_variance)

    def forget(self, X: Any, y: Any, sample_weight: Any = None, sample_noise_variance: Any = None) -> Self:
        """Remove rows from the posterior, without training; the inverse of :meth:`partial_fit`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows of an earlier :meth:`fit` or :meth:`partial_fit`.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        sample_weight : array-like of shape (n_samples,), optional
            Their weights.
        sample_noise_variance : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            Their noise variances.

        Returns
        -------
        self

        Raises
        ------
        NotPositiveDefiniteError
            If the rows cannot have been in the fit.
        UnsupportedCombinationError
            For ``hessian_structure`` "functional" and "low_rank", and after a fit that read many rows in blocks (see
            :meth:`fit`). "auto" selects "functional" for few rows; "full" has the same posterior.
        ValueError
            If no row would be left.

        Notes
        -----
        The rows are removed from the curvature and from the mean of the linearised net. If they were part of
        :meth:`fit`, they still influence the linearisation, the prior precision and the noise level. The stored
        training rows are dropped, so leave-one-out is no longer available. If a removed row had extended the range of a
        column, the column gets the range of the fit again.

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
        require_fitted(self)
        return self._updated(without_rows, Table.without_rows, X, y, sample_weight, sample_noise_variance)

    def refit_laplace(self, **laplace_params: Any) -> Self:
        """Change parameters of the posterior without training: weights and curvature stay the same.

        This method sets the parameters and updates all fitted attributes that depend on them, in place. To compare
        several values, refit copies: ``copy.deepcopy(model).refit_laplace(...)``.

        Parameters
        ----------
        **laplace_params
            Any of ``prior_precision``, ``prior`` (the grouping of the weights), ``sigma_noise``, ``temperature``,
            ``predictive`` and ``link`` (classifier). Also ``hessian_structure`` if only ``damping`` changes, and
            ``n_members`` if only ``weights`` change. Without parameters, values that a rule selects are selected again.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For an invalid value, or a parameter on which the training or the curvature depends.

        Notes
        -----
        If ``map_prior_precision`` is a number, the result equals that of a new fit. If it is "same", a new fit would
        also train the net under the new prior.

        The rule "loo" of ``prior_precision`` and ``sigma_noise`` needs a pass over the training rows, which the fit
        stores for this purpose. After :meth:`partial_fit`, the rule "auto" of both parameters means "evidence", because
        the held-out folds do not include the new rows. Noise ratios between targets and between rows are kept, so
        ``sigma_noise`` can only change by a common factor.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.predict([[6.2]], return_std=True)
        >>> from copy import deepcopy
        >>> again, wider = deepcopy(model).refit_laplace(prior_precision=0.01).predict([[6.2]], return_std=True)
        >>> bool(again == mean), bool(wider > std), model.prior_precision_
        (True, True, 1.0)
        """
        require_fitted(self)
        check_post_hoc_names(laplace_params, self.get_params(deep=False))
        before = self._parameters()
        with self._unchanged_on_failure():
            for name, value in self.get_params(deep=False).items():
                if isinstance(value, Variant):  # set_params modifies it in place
                    setattr(self, name, clone(value))
            self.set_params(**laplace_params)
            parameters = self._parameters()
            check_post_hoc(laplace_params, before, parameters)
            kinds = [(member.n_bins, member.fit.network.parameter_names) for member in self._ensemble.members]
            check_one_kind(parameters, kinds)
            options = self._resolve()
            ensemble = refitted(self._ensemble, options)
            self._ensemble = reweighted(ensemble, parameters["member_weights"], options)
        return self

    @contextmanager
    def _unchanged_on_failure(self, X: Any = None) -> Iterator[None]:
        """Restore the estimator after any failure; errors about rows name their positions in X."""
        before = dict(vars(self))
        try:
            with naming_the_budget(self.memory_budget), naming_rows(X, lambda: self._table), ordinary_tensors():
                yield
        except BaseException:  # including an interrupt
            for name in [name for name in vars(self) if name not in before]:
                delattr(self, name)
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _take(self, fitted: Self) -> None:
        """Copy the fitted attributes of another estimator to this one."""
        parameters = self.get_params(deep=False)
        for name, value in vars(fitted).items():
            if name not in parameters:
                setattr(self, name, value)

    def _updated(
        self,
        change: Callable[..., Member],
        changed_table: Callable[[Table, np.ndarray], Table],
        X: Any,
        y: Any,
        sample_weight: Any,
        sample_noise_variance: Any,
    ) -> Self:
        """Add or remove rows, from memory or a source and from all ranks; return self."""
        group = Group.current()
        source = source_of(X, y, sample_weight, group)
        blocks = [Block(X, y, sample_weight)] if source is None else blocks_of_ranks(source, group)
        if source is not None:
            check_options(sample_noise_variance=sample_noise_variance)
        with self._unchanged_on_failure(X if source is None else None):
            for block in blocks:
                self._ensemble = self._changed(
                    change, changed_table, block.X, block.y, block.sample_weight, sample_noise_variance
                )
            if not group.is_alone:
                self._take(group.of_first(self))
        return self

    def _changed(
        self, change: Callable[..., Member], changed_table: Callable[[Table, np.ndarray], Table], *rows: Any
    ) -> Ensemble:
        """Add or remove rows in each member, update the column ranges, and return the new ensemble."""
        options, members = self._options(), []
        for member in self._ensemble.members:
            data = self._prepare_more(*rows, scale=member.scale).weighted(self._weight_unit)
            members.append(change(member, data, options))
            present = data.X[data.weights > 0]
            table = None if self._table is None else changed_table(self._table, present)
            ranges = None if self._ranges is None else changed_table(self._ranges, present)
        self._table, self._ranges = table, ranges
        return replace(self._ensemble, members=tuple(members))

    # ------------------------------------------------------------------ rows and options

    def _prepare_sample(self, sample: Sample) -> PreparedData:
        return self._prepare(sample.rows.X, sample.rows.y, sample.rows.sample_weight, None)

    def _reading(self, sample: Sample, scale: TargetScale) -> Reading:
        """Return the function that prepares rows of a source, and the total weights of the sample and of all rows."""
        weights = sample.rows.sample_weight
        of_sample = float(len(sample.rows) if weights is None else np.sum(weights))
        return Reading(partial(self._prepare_more, scale=scale), of_sample, sample.total_weight)

    @abstractmethod
    def _prepare(self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> PreparedData:
        """Return the validated data, with targets in the network's units."""

    @abstractmethod
    def _prepare_more(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, *, scale: TargetScale
    ) -> PreparedData:
        """Return validated rows of an update or of a source, with targets converted by ``scale``."""

    def _validate_rows(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, *, y_numeric: bool, reset: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Return X and y as arrays, weights (n,) that may include zeros, and known noise variances (n, C) or None."""
        tables = self._table is not None if not reset else self.net is None
        named, y = column_names(readable(X, "X")), check_targets(y, numeric=y_numeric)
        X, y = check_rows(self, X, y, tables=tables, reset=reset, multi_output=y_numeric, y_numeric=y_numeric)
        weights, options = check_weights(sample_weight, X), self._options()
        if reset:
            given, weights = weights, relative_weights(weights) if self._weighs_relatively(options) else weights
            self._weight_unit = float(weights.sum() / given.sum())
            previous, categorical = self._previous(), options.categorical
            check_columns(self, previous)
            self._table = Table.of(X, weights, categorical, named) if tables else None
            self._table = self._table if previous is None else previous._table
            if self._table is not None:
                self._table.warn()
        if self._table is not None:
            X = self._table.coded(X, weights)
        if reset:
            self._keep_ranges(X[weights > 0], named, previous)
        variances = noise_variances(sample_noise_variance, options.likelihood, (len(y), y.size // len(y)))
        return X, y, weights, variances

    def _keep_ranges(self, present: np.ndarray, names: Sequence[str] | None, previous: Any) -> None:
        """Store the range of each column over the rows of positive weight and those of a previous fit, if any."""
        self._ranges = None
        if previous is not None and previous._table is None and previous._ranges is None:
            return  # an earlier version stored it without ranges
        columns = Table.of_numbers(present, names) if self._table is None else self._table
        if previous is None:
            different = np.unique(row_keys(present), return_index=True)[1]  # a weight of k equals k copies
            columns = columns.with_reach(present[different])
        else:  # the previous fit may lack levels and ranges of these rows
            columns = previous._ranged().with_trained_rows(present)
        if self._table is None:
            self._ranges = columns
        else:
            self._table = columns

    def _rows_of_training(
        self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows of positive weight, in the user's order for a skorch net, otherwise by :func:`canonical_rows`."""
        check_split(self.net, weights)
        in_order = present_rows if has_own_epochs(self.net) else canonical_rows
        X, targets, weights = in_order(X, targets, weights)
        counted = as_counts(weights)
        self._weight_unit *= float(counted.sum() / weights.sum())
        return X, targets, counted

    def _previous(self) -> Any:
        """Return the fitted estimator whose posterior is the prior, or None."""
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

    def _extends_previous(self, n_outputs: int) -> bool:
        """True if a previous posterior is the prior; ``ValueError`` if its number of outputs differs."""
        previous = self._previous()
        if previous is not None and n_outputs != previous.n_outputs_:
            raise ValueError(
                f"the net has {n_outputs} outputs for these data, and {previous.n_outputs_} in the previous "
                "posterior. Use the same likelihood and net in both fits."
            )
        return previous is not None


@cache
def _names_of(kind: type[LaplaceEstimator]) -> list[str]:
    """Parameter names, cached: reading the signature would take a tenth of the time of a one-row prediction."""
    names: list[str] = super(LaplaceEstimator, kind)._get_param_names()  # type: ignore[misc]
    return names
