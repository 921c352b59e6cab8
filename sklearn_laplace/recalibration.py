r"""A fitted regressor whose spread is corrected by one factor, learnt from rows that it has not seen.

.. math:: s^2 = \sum_n w_n \Big(\frac{y_n - \mu_n}{\sigma_n}\Big)^2 \Big/ \sum_n w_n

maximises the normal log density of the held-out targets under :math:`N(\mu, s^2 \sigma^2)`: its derivative in log s is
:math:`\sum w z^2 / s^2 - \sum w`. The mean stays; every spread is multiplied by s, aleatoric and epistemic alike.

References
----------
M.-H. Laves, S. Ihler, J. Fast, L. Kahrs, T. Ortmaier (2020), Well-calibrated regression uncertainty in medical imaging
with deep learning. MIDL, sec. 2.3 (σ scaling).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier
from sklearn.utils.validation import check_array, check_is_fitted

from ._unwrap import final_step, predict_std, predictive
from ._validation.inputs import unmasked
from ._validation.targets import check_weights
from ._validation.values import fractions
from .distributions.distributional import Distributional
from .distributions.mixtures import CountMixture, NormalMixture
from .distributions.poisson_log_normal import PoissonLogNormal


class SigmaScaling(RegressorMixin, Distributional, BaseEstimator):
    """Multiplies the standard deviations of a fitted regressor by one factor an output.

    Parameters
    ----------
    estimator : fitted regressor
        A Laplace regressor or another with ``predict(X, return_std=True)``, also inside pipelines and searches. It is
        not fitted again. ``clone`` would make an unfitted one of it; give ``FrozenEstimator(estimator)`` where this
        object is cloned.

    Attributes
    ----------
    scale_ : float or ndarray of shape (n_outputs,)
        The factor; above 1 where the estimator was too sure.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 6, size=(90, 1))
    >>> y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=90)
    >>> model = LaplaceRegressor(sigma_noise=0.05, prior_precision=1.0, random_state=0)  # the noise is .2
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
        """Learn the factor.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows that the estimator has not seen.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array-like of shape (n_samples,), optional
            A weight of k is the same as k copies of the row.

        Returns
        -------
        self

        Raises
        ------
        TypeError
            For a classifier and for counts, whose spread follows from their mean.
        ValueError
            For targets that do not fit the predictions, and where all of them are exact.
        NotFittedError
            When the estimator is not fitted.
        """
        distribution = self._inner(X)
        mean, std = distribution.mean(), distribution.std()
        targets = check_array(unmasked("y", y), ensure_2d=False, dtype=np.float64, input_name="y")
        if len(targets) != len(mean) or targets.size != mean.size:
            raise ValueError(f"y has shape {targets.shape}; expected {mean.shape}, one target for each prediction.")
        weights = check_weights(sample_weight, mean)
        squares = ((targets.reshape(mean.shape) - mean) / std) ** 2
        scale = np.sqrt(np.average(squares, axis=0, weights=weights))
        if not (scale > 0).all():
            raise ValueError(
                "every held-out target is predicted exactly, and a factor of 0 would leave no distribution. Give rows "
                "that the estimator has not seen."
            )
        self.scale_ = float(scale) if scale.ndim == 0 else scale
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The estimator's mean, and on request the corrected standard deviation, noise included.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        std : ndarray of the same shape
            In the units of y.
        """
        check_is_fitted(self)
        distribution = self._inner(X)
        mean: np.ndarray = distribution.mean()
        return (mean, self.scale_ * distribution.std()) if return_std else mean

    def predict_std(self, X: Any, *, kind: str = "total") -> np.ndarray:
        """The estimator's standard deviation times the factor.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        kind : {"total", "epistemic", "aleatoric"}
            total² = epistemic² + aleatoric² as before; the estimator has to be a Laplace regressor.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
        """
        check_is_fitted(self)
        return np.asarray(self.scale_ * predict_std(self.estimator, X, kind=kind))

    def predict_dist(self, X: Any) -> Any:
        """The estimator's predictive distribution, stretched around its mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        frozen ``scipy.stats.norm`` or :class:`~sklearn_laplace.distributions.NormalMixture`
        """
        check_is_fitted(self)
        distribution = self._inner(X)
        mean = distribution.mean()
        if not isinstance(distribution, NormalMixture):
            return norm(mean, self.scale_ * distribution.std())
        scale, centre = np.asarray(self.scale_)[..., None], mean[..., None]
        means = centre + scale * (distribution.means - centre)
        return NormalMixture(means, scale * distribution.stds, distribution.weights)

    def predict_interval(self, X: Any, confidence_level: Any = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central intervals of :meth:`predict_dist`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        confidence_level : float or sequence of float
            Strictly between 0 and 1.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        interval : ndarray of shape (n_samples, 2, n_levels) or (n_samples, 2, n_levels, n_outputs)
            Lower and upper ends in the units of y.

        Raises
        ------
        ValueError
            For a level outside (0, 1).
        """
        levels = fractions("confidence_level", confidence_level)
        distribution = self.predict_dist(X)
        ends = [np.stack(distribution.interval(level), axis=1) for level in levels]
        return distribution.mean(), np.stack(ends, axis=2)

    def _inner(self, X: Any) -> Any:
        """The estimator's own predictive, if it has a spread to correct."""
        step, rows = final_step(self.estimator, X)
        check_is_fitted(step)
        if is_classifier(step):
            raise TypeError(
                f"SigmaScaling corrects standard deviations of numeric targets; found the classifier "
                f"{type(step).__name__}. For classes use scikit-learn's CalibratedClassifierCV."
            )
        distribution = predictive(step, rows)
        if isinstance(distribution, PoissonLogNormal | CountMixture):
            raise TypeError(
                f"SigmaScaling needs normal predictives; {type(step).__name__} predicts counts, whose spread follows "
                "from their mean."
            )
        return distribution
