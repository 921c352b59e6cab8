"""Fitted attributes of both estimators, and methods that leave the fit unchanged.

An estimator holds one ensemble. Attributes such as ``net_`` belong to its first member. Inputs are in the user's units,
and public methods return moments in units of y. A *given net* is one that the user passes as ``net``.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
import torch
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._ensemble.ensemble import Ensemble
from .._ensemble.input_gradients import InputGradients, check_varied, deviations
from .._ensemble.noise_model import NoiseModel
from .._ensemble.prior_path import prior_path
from .._ensemble.relevance import relevance
from .._ensemble.target_noise import TargetNoise
from .._storage.stored import joined, split
from .._table.limits import naming_the_budget
from .._table.reading import check_rows
from .._table.table import Table, naming_rows
from .._training.plan import tempering
from .._validation.arguments import choice, explained
from ..errors import UnsupportedCombinationError
from ..laplace.evidence import log_evidence
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.latent import Components, Predictive
from ..laplace.structures._base import Posterior
from ..laplace.torch_state import ordinary_tensors, single_thread
from ..nets.given_net import is_list
from ..options import prior as _prior
from ..options.prior import can_leave_out, check_left_out
from ..options.resolve import resolve
from ..options.resolved import Options
from ..options.variants import expanded
from .printing import TableReport
from .report import Report
from .sources import by_block

T = TypeVar("T")


def require_fitted(model: Any) -> None:
    """Raise ``NotFittedError`` for an unfitted estimator; faster than scikit-learn's check."""
    if not model.__sklearn_is_fitted__():
        check_is_fitted(model)


class Fitted(Generic[T]):
    """Descriptor of a read-only attribute of the estimator's ensemble, given by a dotted path."""

    def __init__(self, path: str) -> None:
        self._get = attrgetter(path)

    @overload
    def __get__(self, estimator: None, kind: type) -> Self: ...
    @overload
    def __get__(self, estimator: object, kind: type) -> T: ...
    def __get__(self, estimator: Any, kind: type) -> Any:
        if estimator is None:
            return self
        require_fitted(estimator)
        return self._get(estimator._ensemble)

    def __set__(self, estimator: Any, value: Any) -> None:
        raise AttributeError("fitted attributes cannot be set; use fit, refit_laplace or partial_fit to change them.")


@explained
class FittedModel(ABC):
    """Base class of both estimators with the attributes and methods of a fitted estimator."""

    net: Any
    prior: Any
    memory_budget: Any
    _kind: str
    _ensemble: Ensemble
    _table: Table | None = None
    _ranges: Table | None = None
    """Column ranges for a given net, which reads X unchanged; ``_table`` has those of the built-in net."""
    _column_names: tuple[str, ...] = ()
    _single_output = False
    _resolved: tuple[dict[str, Any], Options] | None = None

    net_: Fitted[Any] = Fitted("first.net")
    laplace_: Fitted[LaplaceFit] = Fitted("first.fit")
    posterior_: Fitted[Posterior] = Fitted("first.posterior")
    hyper_: Fitted[Hyper] = Fitted("first.hyper")
    noise_model_: Fitted[NoiseModel | TargetNoise | None] = Fitted("first.noise_model")
    n_outputs_: Fitted[int] = Fitted("first.fit.n_outputs")
    prior_precision_: Fitted[float | np.ndarray] = Fitted("first.prior_precision")
    prior_groups_: Fitted[tuple[str, ...]] = Fitted("first.fit.prior.names")
    structure_: Fitted[str] = Fitted("first.structure")
    log_marginal_likelihood_value_: Fitted[float] = Fitted("first.log_evidence")
    n_effective_parameters_: Fitted[float] = Fitted("first.n_effective_parameters")
    gradient_norm_: Fitted[float] = Fitted("first.gradient_norm")
    mode_distance_: Fitted[float] = Fitted("first.mode_distance")
    history_: Fitted[list[dict[str, Any]]] = Fitted("first.history")
    n_iter_: Fitted[int] = Fitted("first.n_steps")
    member_weights_: Fitted[np.ndarray] = Fitted("weights")
    _scale: Fitted[Any] = Fitted("first.scale")
    _kept: Fitted[Any] = Fitted("first.kept")

    get_params: Callable[..., dict[str, Any]]
    n_features_in_: int

    @property
    def table_(self) -> TableReport:
        """Encoding of each column: type, values and missing values.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = [[1.5, "Bern"], [2.5, "Graz"], [4.0, "Bern"]]
        >>> LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, [0.0, 1.0, 2.0]).table_
        column  read as   values                missing
        0       number    1.5 to 4
        1       category  2 levels: Bern, Graz
        """
        require_fitted(self)
        if self._table is None:
            raise AttributeError("table_ belongs to the built-in net (net=None); a given net reads X unchanged.")
        return TableReport(self._table)

    def _parameters(self) -> dict[str, Any]:
        """Return all parameters as internal options."""
        return expanded(self.get_params(deep=False))

    def _options(self) -> Options:
        """Return the resolved options of the fit, or of the current parameters if they have changed since."""
        given = self.get_params(deep=False)
        if self._resolved is None or any(self._resolved[0].get(name, given) is not given[name] for name in given):
            return resolve(self._kind, self._parameters())
        return self._resolved[1]

    def _resolve(self) -> Options:
        """Resolve the options, store them and return them."""
        self._resolved = self.get_params(deep=False), resolve(self._kind, self._parameters())
        return self._resolved[1]

    @contextmanager
    def _asked(self, X: Any) -> Iterator[tuple[Tensor, Options]]:
        """Yield the rows as a tensor, and the resolved options; errors name the memory budget and positions in X."""
        require_fitted(self)
        table, member, options = self._table, self._ensemble.first, self._options()
        with naming_the_budget(self.memory_budget), naming_rows(X, lambda: table), ordinary_tensors():
            rows, _ = check_rows(self, X, tables=table is not None, reset=False)
            rows = rows if table is None else table.coded(rows)
            fillings = None if table is None else table.fillings(rows)
            options = options if fillings is None else replace(options, fillings=fillings)
            if options.extrapolates and self._ranged().has_outside(rows):
                options = self._extrapolating(options)
            yield torch.tensor(rows, dtype=member.input_dtype, device=member.posterior.device), options

    def _ranged(self) -> Table:
        """Return the columns with their training ranges; ``AttributeError`` if an earlier version stored none."""
        columns = self._ranges if self._table is None else self._table
        if columns is None:
            raise AttributeError(
                "an earlier version stored this model without the ranges of its columns. Fit it again."
            )
        return columns

    def _components(self, X: Any, *, merged: bool = False) -> Components:
        """Predictive mixture of each row, in the network's units; if ``merged``, only its moments are exact."""
        with self._asked(X) as (x, options):
            return self._ensemble.components(x, options, merged=merged)

    def _extrapolating(self, options: Options) -> Options:
        """Return options that add variance outside the range of the training rows, if ``options`` extrapolate.

        Models of log y and of log rates get no such variance, which would raise the mean of y or lower its median.
        """
        likelihood, units = self.laplace_.likelihood, self._scale
        if not options.extrapolates or not likelihood.additive_noise or units.transforms:
            return options
        deviation = np.ones(self.n_outputs_) if units.deviation is None else units.deviation
        scale = torch.from_numpy(likelihood.scale_outside * deviation)
        return replace(options, outside=self._ranged().extrapolation(scale))

    # ------------------------------------------------------------------ members

    @property
    def members_(self) -> list[Self]:
        """Ensemble members as fitted estimators with one net each.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(n_members=2, prior_precision=1.0, sigma_noise=0.1, random_state=0)
        >>> len(model.fit(X, np.sin(X[:, 0])).members_)
        2
        """
        require_fitted(self)
        members = self._ensemble.members
        nets = self.net if is_list(self.net) else [self.net] * len(members)
        return [
            self._around(Ensemble.of([member]), net=net, n_members=1, n_bins=member.n_bins)
            for member, net in zip(members, nets, strict=True)
        ]

    def _around(self, ensemble: Ensemble, **parameters: Any) -> Self:
        """Return a copy with another ensemble and other parameters, without callbacks."""
        present, fitted = split(self)
        copy: Self = joined(type(self), {**present, **parameters}, {**fitted, "_ensemble": ensemble})
        return copy

    # ------------------------------------------------------------------ leave-one-out

    def _loo_predictive(self) -> Predictive:
        """Leave-one-out moments of the training targets, in the network's units."""
        require_fitted(self)
        check_left_out("loo_predict", self._parameters())
        with ordinary_tensors():
            return self._ensemble.left_out_moments(self._options())

    @property
    @ordinary_tensors()
    def prior_path_(self) -> Bunch:
        """Scores of the first member under other prior precisions, at the same weights.

        A Bunch of three arrays of shape (n_points,): the grid ``prior_precision``, and the scores
        ``log_marginal_likelihood`` and ``loo_log_density`` in nats, for y in its original units. If several groups of
        weights have their own precision, ``prior_precision`` has shape (n_points, n_groups). A score that is not
        available is NaN. If a rule selects the noise level, both scores use the best noise level at each point.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> sorted(model.prior_path_)
        ['log_marginal_likelihood', 'loo_log_density', 'prior_precision']
        """
        require_fitted(self)
        member, options = self._ensemble.first, self._options()
        has_rows = member.kept is not None and can_leave_out(self._parameters())
        with single_thread(member.is_small):
            left_out = member.left_out(options, "leave-one-out") if has_rows else None
            return Bunch(**prior_path(member.fit, member.hyper, options, left_out, self._scale.log_volume))

    # ------------------------------------------------------------------ attributes and methods

    @property
    def subset_(self) -> dict[str, np.ndarray]:
        """Masks of the weights with a posterior, a valid value of ``subset_of_weights``.

        A dict that maps the name of each parameter tensor with such weights to a boolean array of its shape.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> {name: mask.shape for name, mask in model.subset_.items()}
        {'2.weight': (50, 1), '2.bias': (50,), '5.weight': (1, 50), '5.bias': (1,)}
        """
        require_fitted(self)
        return {name: mask.cpu().numpy() for name, mask in self.laplace_.network.masks().items()}

    @property
    def feature_relevance_(self) -> np.ndarray:
        """Relevance of each column of X under ``prior="ard"``; the sum is one.

        Relevance is proportional to the prior variance of the column's weights in the first layer, times the fraction
        of these weights that the data determine. At the maximum of the evidence, this product is the mean square of the
        weights (MacKay 1994). Values are comparable if the columns are standardised, as in the built-in net.

        Raises
        ------
        AttributeError
            If the columns do not have separate prior precisions.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = LaplaceRegressor(prior="ard", prior_precision="evidence", sigma_noise=0.1, random_state=0)
        >>> first, second = model.fit(X, np.sin(X[:, 0])).feature_relevance_
        >>> bool(first > 0.9)
        True
        """
        require_fitted(self)
        return relevance(self.laplace_, self.hyper_, self.n_features_in_)

    @abstractmethod
    def _epistemic(self, X: Any) -> np.ndarray:
        """Epistemic uncertainty (n,) of each row: mean variance of standardised outputs, or epistemic entropy."""

    @by_block
    def score_samples(self, X: Any) -> np.ndarray:
        """Similarity of each row to the training data: −log of its epistemic uncertainty.

        For regression, this uncertainty is the epistemic variance, averaged over the standardised outputs. For
        classification, it is the epistemic entropy (``predict_entropy``).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score.

        Returns
        -------
        ndarray of shape (n_samples,)
            Higher values are more similar to the training data.

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
        require_fitted(self)
        return -np.log(np.maximum(self._epistemic(X), np.finfo(float).tiny))

    @by_block
    def outside(self, X: Any) -> Any:
        """Distance of each value of X from the range of its column in the training rows.

        If the variance grows outside the range (see ``predictive``), predictions become more uncertain with this
        distance. The range has a margin, so further rows from the same distribution usually lie inside.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to compare.

        Returns
        -------
        ndarray or pandas.DataFrame of shape (n_samples, n_features)
            In widths of the range without its margin; 0 inside. Infinite for categories absent from the training rows,
            and for missing numbers in a column without missing values in training. A DataFrame if X is a pandas
            DataFrame.

        Raises
        ------
        AttributeError
            If an earlier version saved the model, and its net is not built in.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = [[0.0, "Bern"], [1.0, "Graz"], [2.0, "Bern"], [2.0, "Graz"]]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, [0.0, 1.0, 2.0, 3.0])
        >>> model.outside([[1.5, "Bern"], [7.0, "Graz"], [1.0, "Rome"]])
        array([[ 0.,  0.],
               [ 2.,  0.],
               [ 0., inf]])
        """
        require_fitted(self)
        columns, is_given = self._ranged(), self._table is None
        rows, _ = check_rows(self, X, tables=not is_given, reset=False)
        excess = columns.excess(rows if is_given else columns.coded(rows, warn=False))
        frame: Any = getattr(sys.modules.get("pandas"), "DataFrame", ())
        return frame(excess, index=X.index, columns=X.columns) if isinstance(X, frame) else excess

    def _with_outside(self, report: Report, X: Any) -> Report:
        """Return the report, with a note about rows outside the training ranges if these are known."""
        if self._table is None and self._ranges is None:  # stored by an earlier version
            return report
        names = [column.name.removeprefix("column ") for column in self._ranged().columns]
        return report.with_outside(np.asarray(self.outside(X)), names)

    @ordinary_tensors()
    def log_marginal_likelihood(
        self,
        prior_precision: float | None = None,
        sigma_noise: Any = None,
        temperature: Any = None,
    ) -> float:
        """Log marginal likelihood of the first member under other hyperparameters, at the same weights.

        Parameters
        ----------
        prior_precision : float or array-like of shape (n_groups,), optional
            One value, or one per group of ``prior_groups_``. Default: the fitted value.
        sigma_noise : float or array-like of shape (n_outputs,), optional
            Noise standard deviation in units of ``sigma_noise_``, for regression only. Default: the fitted value.
        temperature : float or dict, optional
            As in the constructor. Default: the value of the estimator.

        Returns
        -------
        float
            Log density of the training targets, per unit of y, in nats.

        Raises
        ------
        ValueError
            If the number of prior precisions is wrong. If ``sigma_noise`` changes the noise ratios between targets, or
            is given for classes or counts.

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
        require_fitted(self)
        hyper = self.hyper_
        if prior_precision is not None:
            precisions = choice("prior_precision", prior_precision, []).value
            groups = self.laplace_.prior.n_groups
            if precisions is None or precisions.size not in (1, groups):
                raise ValueError(
                    f"prior_precision={prior_precision!r} has to be one number or {groups}, one for each of "
                    f"{self.prior_groups_}."
                )
            values = torch.tensor(precisions, dtype=torch.float64).reshape(-1).expand(groups)
            hyper = replace(hyper, prior_precision=values.to(hyper.prior_precision))
        if sigma_noise is not None and not self.laplace_.likelihood.has_dispersion:
            raise ValueError(
                f"sigma_noise={sigma_noise!r} cannot be used with classes or counts, which have no noise level. "
                "Omit sigma_noise."
            )
        if sigma_noise is not None:
            sigma = choice("sigma_noise", sigma_noise, []).value
            assert sigma is not None
            hyper = replace(hyper, dispersion=self._scale.dispersion(sigma))
        if temperature is not None:
            tempered = tempering(self.laplace_.network, _prior.temperature(temperature))
            hyper = replace(hyper, temperature=tempered)
        return log_evidence(self.laplace_, hyper) - self.laplace_.total_weight * self._scale.log_volume

    def _sloped(self, X: Any, X_std: Any = None, *, of_std: bool = False) -> tuple[Predictive, Tensor, Tensor | None]:
        """Moments under errors in X, and gradients of the mean and, with ``of_std``, of the standard deviation.

        Outputs are in the network's units and X in the user's; gradients have shape (n, d, C).
        """
        with self._asked(X) as (x, options):
            check_varied(x, self._table)
            names = getattr(self, "feature_names_in_", None)
            noise = None if X_std is None else torch.from_numpy(deviations(X_std, tuple(x.shape), names)).to(x.device)
            return InputGradients(self._ensemble, options).sloped(x, noise, of_std=of_std)

    def _per_column(self, values: Tensor) -> np.ndarray:
        """Convert gradients (n, d, C) to units of y; the last axis is dropped for a single output."""
        scaled: np.ndarray = values.cpu().numpy() * self._scale.scale
        return scaled[..., 0] if self._single_output else scaled

    def _check_transformed(self, **requests: Any) -> None:
        """If the targets are transformed, refuse each request whose value is neither None nor False."""
        refused = [name for name, value in requests.items() if value is not None and value is not False]
        if self._scale.transforms and refused:
            raise UnsupportedCombinationError(
                f"{refused[0]} is not available with target_transform='log'. Use target_transform=None, or transform y "
                "yourself."
            )
