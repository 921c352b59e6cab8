"""Fitted attributes and leave-one-out predictions of a regressor, and the predictive distribution of counts."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
import torch

from .._validation.arguments import explained, flag
from ..distributions.mixtures import CountMixture
from ..distributions.negative_binomial_log_normal import counts_of
from ..distributions.poisson_log_normal import PoissonLogNormal
from ..distributions.transformed import variances_of_kinds
from ..laplace.latent import Components, LatentGaussian, Predictive
from ..laplace.likelihoods import NegativeBinomial
from ..options.resolve import variance_of_kind
from .fitted import FittedModel, require_fitted


@explained
class NumericPredictive(FittedModel):
    """Base class with predictions of numeric targets, in units of y."""

    likelihood: str

    @property
    def target_transform_(self) -> str | None:
        """Transformation of the targets: "log" or None.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 3, 40)[:, None]
        >>> y = np.exp(X[:, 0] + 0.3 * np.random.default_rng(0).normal(size=40))
        >>> model = LaplaceRegressor(n_members=1, target_transform="log", random_state=0).fit(X, y)
        >>> model.target_transform_, bool((model.predict_interval([[0.0]], 0.99)[1] > 0).all())
        ('log', True)
        """
        require_fitted(self)
        return "log" if self._scale.transforms else None

    @property
    def sigma_noise_(self) -> float | np.ndarray:
        """Noise standard deviation of an average row, in units of y; one value per output.

        Under ``target_transform``, the unit is that of log y. After a fit with ``sample_noise_variance``, new rows have
        this noise level. If noise varies with X, ``predict_std(X, kind="aleatoric")`` returns that of each row. For an
        ensemble, the value is the square root of the members' mean noise variance, weighted by ``member_weights_``.

        Raises
        ------
        AttributeError
            For counts, whose variance follows from their mean.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.sigma_noise_
        0.1
        """
        require_fitted(self)
        if not self.laplace_.likelihood.has_dispersion:
            raise AttributeError(
                f"sigma_noise_ is not defined for likelihood={self.likelihood!r}: the variance of counts follows from "
                "their mean. Use predict_std(X, kind='aleatoric')."
            )
        sigma = np.sqrt(self._ensemble.mean_of(lambda member: member.noise_variance).numpy()) * self._scale.scale
        return float(sigma[0]) if self._single_output else sigma

    @property
    def overdispersion_(self) -> float | np.ndarray:
        """Overdispersion α of counts: a count with mean μ has the variance μ + α μ²; one value per output.

        Raises
        ------
        AttributeError
            For likelihoods without overdispersion.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 6, (100, 1))
        >>> y = rng.poisson(np.exp(1 + np.sin(X[:, 0])) * rng.gamma(2.0, 0.5, 100))
        >>> model = LaplaceRegressor(likelihood="negative_binomial", hidden_layer_sizes=(10,), random_state=0).fit(X, y)
        >>> bool(0.2 < model.overdispersion_ < 0.8)
        True
        """
        require_fitted(self)
        likelihood = self.laplace_.likelihood
        if not isinstance(likelihood, NegativeBinomial):
            raise AttributeError(
                f"overdispersion_ is not defined for likelihood={self.likelihood!r}. "
                "Use likelihood='negative_binomial'."
            )
        alpha = np.broadcast_to(likelihood.overdispersion, self.n_outputs_)
        return float(alpha[0]) if self._single_output else alpha.copy()

    @overload
    def loo_predict(self, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def loo_predict(self, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def loo_predict(self, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...
    def loo_predict(self, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Leave-one-out predictions of the training rows, in closed form and without a refit.

        Each row is predicted by the linearised net, given all other rows, under the current prior precision and noise
        level.

        Parameters
        ----------
        return_std : bool, default=False
            If True, return the standard deviation, noise included.

        Returns
        -------
        mean : ndarray of shape (n,) or (n, n_outputs)
            Predictions for the rows of :meth:`fit`, in their order, then for those of :meth:`partial_fit`. A row with
            weight zero has the ordinary prediction.
        std : ndarray of shape (n,) or (n, n_outputs)
            In units of y.

        Raises
        ------
        UnsupportedCombinationError
            After :meth:`forget`, with a previous posterior as ``prior``, or if ``temperature`` has several values.
        MemoryBudgetError
            If an exact curvature does not fit in memory.

        Notes
        -----
        A row is left out with all its weight; equal rows are left out one at a time. For a Gaussian likelihood, the
        mean is exact for the linearised net; for counts, it results from one Newton step. The mean needs the exact
        curvature of the weights in ``subset_of_weights``; the other weights keep their values. The fit has this
        curvature if ``structure_`` is "full" or "functional" and ``curvature`` is "ggn". Otherwise, computing it takes
        one more pass over the rows. The standard deviation uses the fitted curvature without the row; for "kron", with
        ``damping="exact"``.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.loo_predict(return_std=True)
        >>> mean.shape, bool((std > model.sigma_noise_).all())
        ((40,), True)
        """
        require_fitted(self)
        flag("return_std", return_std)
        mean, (std,) = self._mean_and_stds(Components.of(self._loo_predictive()), ("total",))
        return (mean, std) if return_std else mean

    def _epistemic(self, X: Any) -> np.ndarray:
        def moments(_: Any, latent: LatentGaussian) -> torch.Tensor:
            return torch.stack([latent.mean, latent.variance, latent.mean.square()], -1)

        with self._asked(X) as (x, options):
            mean, variance, square = self._ensemble.averages(x, options, moments).unbind(-1)
        several = len(self._ensemble.members) > 1
        return (variance + (square - mean.square()) * several).mean(-1).cpu().numpy()

    def _counts(self, X: Any) -> PoissonLogNormal | CountMixture:
        """Return the predictive distribution of counts."""

        def moments(latent: LatentGaussian, _: torch.Tensor) -> torch.Tensor:
            return torch.stack([latent.mean, latent.variance])

        with self._asked(X) as (x, options):
            answers = [torch.cat(member.answers(x, options, moments), 1) for member in self._ensemble.members]
        columns = 0 if self._single_output else slice(None)
        parts = tuple(
            counts_of(member.fit.likelihood, *answer.cpu().numpy()[..., columns])
            for member, answer in zip(self._ensemble.members, answers, strict=True)
        )
        return parts[0] if len(parts) == 1 else CountMixture(parts, self.member_weights_)

    # ------------------------------------------------------------------ units

    def _means(self, X: Any) -> torch.Tensor:
        with self._asked(X) as (x, options):
            return self._ensemble.means(x, options)

    def _moments(self, X: Any) -> Components:
        """Return the predictive mixture of each row. Components may be merged, except for transformed targets."""
        return self._components(X, merged=not self._scale.transforms)

    def _in_units(self, outputs: torch.Tensor, *, shift: bool = True) -> np.ndarray:
        """Convert outputs (n, C) or (n, C, …) to units of y; ``shift=False`` is for differences of outputs."""
        shape = -1, *[1] * (outputs.ndim - 2)
        values = outputs.cpu().numpy() * self._scale.scale.reshape(shape)
        values = values + self._scale.mean.reshape(shape) if shift else values
        return values[:, 0] if self._single_output else values

    def _std(self, moments: Predictive, kind: str) -> np.ndarray:
        variance = variance_of_kind(moments, kind)
        std = np.sqrt(variance.clamp_min(0.0).cpu().numpy()) * self._scale.scale
        return std[:, 0] if self._single_output else std

    def _mean_and_stds(self, parts: Components, kinds: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the mean of the targets and a standard deviation for each of ``kinds``, in units of y."""
        if not self._scale.transforms:
            moments = parts.moments
            return self._in_units(moments.mean), [self._std(moments, kind) for kind in kinds]
        latent, noise = (
            self._in_units(variance.clamp_min(0.0).sqrt(), shift=False)
            for variance in (parts.epistemic_variance, parts.aleatoric_variance)
        )
        arrays = self._in_units(parts.mean), latent, noise
        moments = Predictive(
            *map(torch.from_numpy, variances_of_kinds(self._scale.transforms, *arrays, parts.weights.cpu().numpy()))
        )
        return moments.mean.numpy(), [variance_of_kind(moments, kind).clamp_min(0.0).sqrt().numpy() for kind in kinds]

    def _original(self, values: np.ndarray) -> np.ndarray:
        """Convert transformed targets (n, …) or (n, C, …) to units of y."""
        transforms = self._scale.transforms
        if self._single_output and transforms:
            return transforms[0].inverse(values)
        columns = [transform.inverse(values[:, k]) for k, transform in enumerate(transforms)]
        return np.stack(columns, 1) if transforms else values

    def _covariance(self, X: Any) -> np.ndarray:
        """Return the joint covariance of the rows, shape (n, n) or (n, n, C)."""
        with self._asked(X) as (x, options):
            covariance = self._ensemble.covariance(x, options).cpu().numpy() * self._scale.squared()
        return covariance[..., 0] if self._single_output else covariance


def check_request(*, std: bool, cov: bool, mean_grad: bool, std_grad: bool, X_std: Any) -> None:
    """Raise ``ValueError`` for invalid arguments of ``predict``, or ``RuntimeError`` for std with cov."""
    for name, value in {"std": std, "cov": cov, "mean_grad": mean_grad, "std_grad": std_grad}.items():
        flag(f"return_{name}", value)
    if std and cov:
        raise RuntimeError("At most one of return_std or return_cov can be requested.")
    if std_grad and not (std and mean_grad):
        missing = "return_std=False" if not std else "return_mean_grad=False"
        raise ValueError(f"return_std_grad=True needs return_std=True and return_mean_grad=True, but {missing}.")
    if mean_grad and cov:
        raise ValueError(
            "return_mean_grad=True cannot be combined with return_cov=True: a joint covariance has no gradient at a "
            "single row. Use return_std=True."
        )
    if X_std is not None and not std:
        raise ValueError("X_std affects only the standard deviation, which is not returned. Add return_std=True.")
    if X_std is not None and std_grad:
        raise ValueError(
            "return_std_grad=True cannot be combined with X_std: the gradient of the variance that X_std adds needs "
            "second derivatives of the mean. Omit one of them."
        )
