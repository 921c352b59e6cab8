r"""Recalibration of a fitted regressor: one factor per output for its standard deviations, from held-out rows.

.. math:: s^2 = \sum_n w_n \Big(\frac{y_n - \mu_n}{\sigma_n}\Big)^2 \Big/ \sum_n w_n

maximises the log density of an output's held-out targets under :math:`N(\mu, s^2 \sigma^2)` (Laves et al. 2020,
sec. 2.3). With :math:`z = (y - \mu) / \sigma`, the derivative of the log density with respect to log s is
:math:`\sum w z^2 / s^2 - \sum w`. The total, aleatoric and epistemic standard deviations are multiplied by s; the
mean does not change. If the estimator transforms its targets, these statements hold for the transformed targets.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier
from sklearn.utils.validation import check_is_fitted

from ._estimator.unwrap import final_step, predict_std, predictive
from ._validation.arguments import explained, fractions
from ._validation.rows import check_weights, targets_like
from .distributions.evaluation import central_intervals, is_discrete, nested, without_level_axis
from .distributions.interface import Distributional, PredictiveDistribution
from .distributions.mixtures import NormalMixture
from .distributions.other_models import is_normal
from .distributions.transformed import TransformedMixture
from .options.resolve import STD_KINDS


@explained
class SigmaScaling(RegressorMixin, Distributional, BaseEstimator):
    """Recalibrate a fitted regressor by scaling its standard deviations, with one factor per output.

    Parameters
    ----------
    estimator : fitted regressor
        A Laplace regressor or another regressor with ``predict(X, return_std=True)``, possibly inside pipelines and
        searches. It is not refitted. Wrap it in ``FrozenEstimator`` before this object is cloned; a clone
        would otherwise contain an unfitted estimator.

    Attributes
    ----------
    scale_ : float or ndarray of shape (n_outputs,)
        Scaling factor; above 1 if the estimator is overconfident.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 6, size=(90, 1))
    >>> y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=90)
    >>> model = LaplaceRegressor(sigma_noise=0.05, prior_precision=1.0, random_state=0)  # true noise: .2
    >>> scaled = SigmaScaling(model.fit(X[:60], y[:60])).fit(X[60:], y[60:])
    >>> bool(scaled.scale_ > 2)
    True
    >>> mean, std = scaled.predict(X[60:], return_std=True)
    >>> round(float(np.mean(((y[60:] - mean) / std) ** 2)), 10)
    1.0
    """

    __metadata_request__predict: ClassVar[dict[str, bool]] = {"return_std": True}

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Estimate the scaling factor on held-out rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows on which the estimator was not fitted.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets of these rows.
        sample_weight : array-like of shape (n_samples,), optional
            A weight of k is equivalent to k copies of the row.

        Returns
        -------
        self

        Raises
        ------
        TypeError, NotFittedError
            If the estimator is a classifier, is not fitted, or has none of the distributions of :meth:`predict_dist`.
        ValueError
            If y does not have one target per prediction, or an output is predicted exactly in every row. Also if a
            target is outside the domain of the transformation.
        """
        distribution = self._inner(X)
        mean = distribution.mean()
        targets, weights = targets_like(y, mean), check_weights(sample_weight, mean)
        counted = weights > 0
        if isinstance(distribution, TransformedMixture):
            given, targets, distribution = targets, distribution.transformed(targets), distribution.latent
            if (outside := counted & ~np.isfinite(targets.reshape(len(targets), -1)).all(1)).any():
                row = int(np.argmax(outside))
                raise ValueError(
                    f"y holds {given[row]} in row {row}, which target_transform='log' of the estimator does not allow: "
                    "it needs targets above zero. Omit such rows, or give them the weight 0."
                )
        squares = ((targets[counted] - distribution.mean()[counted]) / distribution.std()[counted]) ** 2
        scale = np.sqrt(np.average(squares, axis=0, weights=weights[counted]))
        if not (scale > 0).all():
            raise ValueError(
                "all held-out targets of an output are predicted exactly, which gives a scaling factor of 0. Pass rows "
                "on which the estimator was not fitted."
            )
        self.scale_ = float(scale) if scale.ndim == 0 else scale
        return self

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...
    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of :meth:`predict_dist` and, optionally, its standard deviation, which includes the noise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool, default=False
            If True, also return the standard deviation.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        std : ndarray of the same shape
            In the units of y; only with ``return_std=True``.
        """
        check_is_fitted(self)
        distribution = self.predict_dist(X)
        mean: np.ndarray = distribution.mean()
        return (mean, distribution.std()) if return_std else mean

    def predict_std(self, X: Any, *, kind: str = "total") -> np.ndarray:
        """Scaled standard deviation, or one of its parts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        kind : {"total", "epistemic", "aleatoric"}
            Part of the uncertainty, with total² = epistemic² + aleatoric². "epistemic" and "aleatoric" require a
            Laplace regressor.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In the units of y.
        """
        check_is_fitted(self)
        distribution = self._inner(X)
        scaled = self._scaled(distribution).std()
        if kind == STD_KINDS[0]:
            return np.asarray(scaled)
        return np.asarray(scaled / distribution.std() * predict_std(self.estimator, X, kind=kind))

    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """Predictive distribution of the estimator, stretched around its mean by the scaling factor.

        With transformed targets, the distribution of the transformed targets is stretched.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        frozen ``scipy.stats.norm``, :class:`~sklearn_laplace.distributions.NormalMixture` or, with transformed targets,
        :class:`~sklearn_laplace.distributions.TransformedMixture`
        """
        check_is_fitted(self)
        return self._scaled(self._inner(X))

    def _scaled(self, distribution: Any) -> Any:
        """Return a distribution stretched around its mean, on the scale of transformed targets if there are any."""
        if isinstance(distribution, TransformedMixture):
            return replace(distribution, latent=self._scaled(distribution.latent))
        mean = distribution.mean()
        if not isinstance(distribution, NormalMixture):
            return norm(mean, self.scale_ * distribution.std())
        scale, centre = np.asarray(self.scale_)[..., None], mean[..., None]
        means = centre + scale * (distribution.means - centre)
        return NormalMixture(means, scale * distribution.stds, distribution.weights)

    def predict_interval(self, X: Any, confidence_level: Any = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central prediction intervals: quantiles of :meth:`predict_dist`.

        Parameters
        ----------
        X, confidence_level
            As in :meth:`LaplaceRegressor.predict_interval`.

        Returns
        -------
        mean, interval : ndarray
            As returned by :meth:`LaplaceRegressor.predict_interval`.
        """
        levels = fractions("confidence_level", confidence_level)
        distribution = self.predict_dist(X)
        intervals = nested(central_intervals(distribution, levels), levels)
        return distribution.mean(), without_level_axis(intervals, confidence_level)

    def _inner(self, X: Any) -> Any:
        """Predictive distribution before scaling; ``TypeError`` if it cannot be scaled."""
        step, rows = final_step(self.estimator, X)
        check_is_fitted(step)
        if is_classifier(step):
            raise TypeError(
                f"SigmaScaling scales standard deviations of numeric targets; found the classifier "
                f"{type(step).__name__}. For classes use scikit-learn's CalibratedClassifierCV."
            )
        distribution = predictive(step, rows)
        if is_discrete(distribution):
            raise TypeError(
                f"SigmaScaling needs normal predictive distributions; {type(step).__name__} predicts counts, whose "
                "variance is tied to their mean. Use likelihood='gaussian' or 'heteroscedastic'."
            )
        if not (isinstance(distribution, NormalMixture | TransformedMixture) or is_normal(distribution)):
            raise TypeError(
                f"SigmaScaling needs normal predictive distributions; that of {type(step).__name__} has another shape, "
                "which scaling would change. Fit the model to transformed targets with a normal distribution."
            )
        return distribution
