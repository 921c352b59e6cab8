"""Fitted attributes, and methods that both estimators share besides fitting.

An estimator holds one ensemble. Attributes such as ``net_`` are those of its first member. Inputs come in the user's
units, and moments leave in units of y.
"""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._approximation.prior_path import prior_path
from .._approximation.prior_scores import PriorScores
from .._approximation.relevance import relevance
from .._data.reading import check_rows
from .._data.table import Table, naming_rows
from .._ensemble.ensemble import Ensemble
from .._ensemble.input_gradients import InputGradients, baseline_of, check_varied, deviations, some
from .._options import prior as _prior
from .._options.options import Options
from .._options.prior import can_leave_out, check_left_out
from .._options.resolve import resolve
from .._options.variants import expanded
from .._runtime.autograd import ordinary_tensors
from .._runtime.memory import naming_the_budget
from .._runtime.threads import single_thread
from .._training.random_weights import tempering
from .._validation.values import choice
from ..errors import IncompleteWarning
from ..laplace.evidence import log_evidence
from ..laplace.latent import Components, LatentGaussian, Predictive
from ..laplace.links._base import centred
from .cross_validation import settled


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


class FittedModel(ABC):
    """Attributes and methods of a fitted estimator: its ensemble, and the options it answers with."""

    prior: Any
    memory_budget: Any
    _kind: str
    _ensemble: Ensemble
    _table: Table | None = None
    _prior_scores: PriorScores | None = None
    _single_output = False

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

    get_params: Callable[..., dict[str, Any]]
    n_features_in_: int
    _split: Callable[..., tuple[dict[str, Any], dict[str, Any]]]
    _joined: Callable[..., Any]

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
        """Relevance of each column of X under ``prior="ard"``, summing to one.

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
        >>> model = LaplaceRegressor(prior="ard", prior_precision="evidence", sigma_noise=0.1, random_state=0)
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
