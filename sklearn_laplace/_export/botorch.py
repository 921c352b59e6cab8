r"""Adapter to BoTorch, for Bayesian optimisation with gradients of the acquisition function: :func:`to_botorch`.

The posterior at q points is one joint normal distribution over points and outputs, with the first two moments of the
ensemble. For members k with weights :math:`w_k`, means :math:`\mu_k` and covariances :math:`\Sigma_k` of the outputs,

.. math:: \mu = \sum_k w_k \mu_k, \qquad
          \Sigma = \sum_k w_k \big(\Sigma_k + (\mu_k - \mu)(\mu_k - \mu)^\top\big) .
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._ensemble.ensemble import Ensemble
from .._ensemble.input_gradients import check_varied
from .._ensemble.member import Member
from .._estimator.base import LaplaceEstimator
from .._estimator.classifier import LaplaceClassifier
from .._validation.arguments import explained
from ..errors import UnsupportedCombinationError
from ..laplace.torch_state import single_thread
from ..options.resolved import Options

ROWS = 128
"""Number of rows per chunk. Covariances between the batches of a chunk are computed too, but not used."""
JITTER = 1e-10
"""Variance added to the diagonal for Cholesky factors, relative to each output's mean over the q points."""


@explained
def to_botorch(estimator: Any) -> Any:
    """Wrap a fitted regressor as a BoTorch model, for acquisition functions and ``optimize_acqf``.

    ``posterior(X)`` takes a tensor of shape (…, q, n_features) in the units of X. It returns a ``GPyTorchPosterior``: a
    joint normal distribution over q points and all outputs, in units of y, differentiable in X. Its moments are those
    of the ensemble, including the spread of the members' means. With ``observation_noise=True``, the distribution
    includes the noise, which may vary with X. A tensor instead of True gives noise variances in squared units of y.

    ``condition_on_observations(X, Y)`` returns a model updated with these rows by ``partial_fit``, without training.

    Parameters
    ----------
    estimator : LaplaceRegressor
        Fitted regressor. It is neither copied nor changed, and the model always uses its current fit.

    Returns
    -------
    botorch.models.model.Model
        The model has no parameters to train.

    Raises
    ------
    TypeError, NotFittedError
        If the estimator is not a LaplaceRegressor, or not fitted.
    UnsupportedCombinationError, ValueError
        For counts and transformed targets; a ``ValueError`` for categorical columns.
    ImportError
        If the package botorch is not installed (``pip install botorch``).

    Notes
    -----
    BoTorch maximises: to minimise y, fit to −y. Use a smooth activation; with "relu", the covariance is not
    continuous in X.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor, to_botorch
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> model = LaplaceRegressor(n_members=1, prior_precision=1.0, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> posterior = to_botorch(model).posterior(torch.rand(5, 2, 1).double())  # doctest: +SKIP
    >>> posterior.rsample(torch.Size([16])).shape  # doctest: +SKIP
    torch.Size([16, 5, 2, 1])
    """
    if not isinstance(estimator, LaplaceEstimator) or isinstance(estimator, LaplaceClassifier):
        raise TypeError(
            f"to_botorch was given a {type(estimator).__name__}; expected a fitted LaplaceRegressor. Take it out of a "
            "pipeline or a search, and give the model X as its step receives it."
        )
    check_is_fitted(estimator)
    estimator._check_transformed(to_botorch=True)
    likelihood = estimator.laplace_.likelihood
    if not likelihood.additive_noise:
        raise UnsupportedCombinationError(
            f"to_botorch cannot be used with likelihood={likelihood.key()!r}: a normal posterior does not fit counts. "
            "Use likelihood='gaussian'."
        )
    check_varied(torch.zeros(0, estimator.n_features_in_), estimator._table)
    return _model_class(_base())(estimator)


def _base() -> Any:
    try:
        from botorch.models.model import Model
    except ImportError as error:
        raise ImportError(
            "sklearn_laplace.to_botorch needs the package botorch, which is not installed. Install it with `pip "
            "install botorch`."
        ) from error
    return Model


@cache
def _model_class(Model: Any) -> type:
    """Subclass of botorch's ``Model``, defined when botorch is first needed."""

    class LaplaceModel(Model):
        """BoTorch model of a fitted regressor; ``outputs`` are the positions of the selected outputs."""

        def __init__(self, estimator: Any, outputs: Sequence[int] | None = None) -> None:
            super().__init__()
            self.estimator = estimator
            self.outputs = list(range(estimator.n_outputs_) if outputs is None else outputs)

        def __reduce__(self) -> Any:
            return _restored, (self.estimator, self.outputs)

        num_outputs = property(lambda self: len(self.outputs))
        batch_shape = property(lambda self: torch.Size())

        def subset_output(self, idcs: list[int]) -> LaplaceModel:
            return LaplaceModel(self.estimator, [self.outputs[place] for place in idcs])

        def posterior(
            self,
            X: Tensor,
            output_indices: list[int] | None = None,
            observation_noise: bool | Tensor = False,
            posterior_transform: Any = None,
        ) -> Any:
            outputs = self.outputs if output_indices is None else [self.outputs[place] for place in output_indices]
            posterior = _posterior(self.estimator, self.transform_inputs(X), outputs, observation_noise)
            return posterior if posterior_transform is None else posterior_transform(posterior, X)

        def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> LaplaceModel:
            return LaplaceModel(_with_rows(self.estimator, self.transform_inputs(X), Y, kwargs), self.outputs)

    LaplaceModel.__module__, LaplaceModel.__qualname__ = __name__, "LaplaceModel"
    return LaplaceModel


def _restored(estimator: Any, outputs: Sequence[int]) -> Any:
    """Rebuild a model from a pickle. The class is not an attribute of this module, so pickle needs this function."""
    return _model_class(_base())(estimator, outputs)


def _with_rows(estimator: Any, X: Tensor, Y: Tensor, options: dict[str, Any]) -> Any:
    """Copy of an estimator, updated with further rows (n, d) and targets (n, C); the option ``noise`` is refused."""
    if X.ndim != 2 or Y.ndim != 2:
        raise UnsupportedCombinationError(
            f"condition_on_observations was given X of shape {tuple(X.shape)} and Y of shape {tuple(Y.shape)}; "
            "expected (n, d) and (n, m), since a fit has no batches. Condition one model for each batch."
        )
    if options.get("noise") is not None:
        raise UnsupportedCombinationError(
            "condition_on_observations does not take noise. Fit the estimator with sample_noise_variance, call its "
            "partial_fit(X, y, sample_noise_variance=…), and wrap it again."
        )
    rows, targets = X.detach().cpu().numpy(), Y.detach().cpu().numpy()
    return copy.deepcopy(estimator).partial_fit(rows, targets[:, 0] if estimator._single_output else targets)


def _posterior(estimator: Any, X: Tensor, outputs: list[int], noise: bool | Tensor) -> Any:
    """Joint normal posterior at points X (…, q, d), with noise if ``noise`` is True or holds variances."""
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal

    if X.ndim < 2 or X.shape[-1] != estimator.n_features_in_:
        raise ValueError(
            f"X has shape {tuple(X.shape)}; expected (…, q, {estimator.n_features_in_}), one value for each column."
        )
    ensemble, options = estimator._ensemble, estimator._extrapolating(estimator._options())
    q, n_outputs = X.shape[-2], len(outputs)
    x = X.to(ensemble.first.posterior.device, ensemble.first.input_dtype)
    with single_thread(ensemble.first.is_small):
        mean, covariance, own_noise = _moments(ensemble, options, x if torch.is_grad_enabled() else x.detach())
    scale, shift = (
        torch.from_numpy(part[outputs]).to(mean) for part in (estimator._scale.scale, estimator._scale.mean)
    )
    mean = mean[..., outputs] * scale + shift
    covariance = covariance[..., outputs, :, :][..., outputs] * scale[:, None, None] * scale
    covariance = covariance.reshape(*X.shape[:-1], n_outputs, q * n_outputs).flatten(-3, -2)
    variances = torch.zeros_like(mean)
    if isinstance(noise, Tensor):
        variances = noise.to(mean).expand_as(mean)
    elif noise:
        variances = own_noise[..., outputs] * scale**2
    of_output = covariance.diagonal(dim1=-2, dim2=-1).unflatten(-1, (q, n_outputs)).mean(-2, keepdim=True)
    variances = variances + JITTER * of_output.detach()
    mean, covariance = mean.to(X), (covariance + torch.diag_embed(variances.flatten(-2))).to(X)
    if n_outputs == 1:
        return GPyTorchPosterior(MultivariateNormal(mean[..., 0], covariance))
    return GPyTorchPosterior(MultitaskMultivariateNormal(mean, covariance))


def _moments(ensemble: Ensemble, options: Options, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of the mixture at points x (…, q, d), in the network's units, differentiable in x.

    Mean (…, q, C), joint covariance without noise (…, q, C, q, C), and noise variances (…, q, C).
    """
    q, counted = x.shape[-2], [(m, w) for m, w in zip(ensemble.members, ensemble.weights.tolist(), strict=True) if w]
    batches = x.reshape(-1, q, x.shape[-1])
    parts = []
    for member, weight in counted:
        chunks = [_member_moments(member, options, chunk) for chunk in batches.split(max(ROWS // q, 1))]
        parts.append((torch.tensor(weight, dtype=torch.float64), *map(torch.cat, zip(*chunks, strict=True))))
    weights, means, covariances, noises = (torch.stack(part) for part in zip(*parts, strict=True))
    weights = weights.to(means)
    mean = torch.einsum("k,k...->...", weights, means)
    away = means - mean
    covariance = torch.einsum("k,k...->...", weights, covariances)
    covariance = covariance + torch.einsum("k,kbic,kbjd->bicjd", weights, away, away)
    noise = torch.einsum("k,k...->...", weights, noises)
    ensemble.first.require_finite(mean.sum() + covariance.sum(), [batches.flatten(0, 1)])
    return tuple(part.reshape(*x.shape[:-2], *part.shape[1:]) for part in (mean, covariance, noise))  # type: ignore[return-value]


def _member_moments(member: Member, options: Options, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of one member at batches of points x (b, q, d), as in :func:`_moments`."""
    b, q = x.shape[:2]
    rows, fit, predictive = x.flatten(0, 1), member.fit, member.predictive(options)
    if q == 1:
        latent = predictive.latent(fit.network, member.posterior, rows, fit.shift)
        mean, covariance = latent.mean, latent.covariance
    else:
        mean = predictive.mean(fit.network, rows, fit.shift)
        joint = predictive.joint_covariance(fit.network, member.posterior, rows, fit.shift)
        covariance = joint.view(b, q * fit.n_outputs, b, -1).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    noise = member.hyper.dispersion * member.noise_ratios(rows)
    shape = b, q, fit.n_outputs
    return mean.view(shape), covariance.reshape(*shape, q, fit.n_outputs), noise.reshape(shape)
