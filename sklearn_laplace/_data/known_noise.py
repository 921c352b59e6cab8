r"""Known noise per target or per row, in the units of y and in those of the network.

The noise variance of target c of row n is :math:`\sigma_c^2 v_{nc}`: σ is one number, one per target, or selected by
the fit, and v is ``sample_noise_variance`` or 1. The network's targets are divided by s, and its dispersion φ is the
noise variance of an average row in these units. The remaining ratios v′ are known before the fit:

.. math:: \sigma_c^2 v_{nc} / s_c^2 = \varphi\, v'_{nc}, \qquad v'_{nc} = v_{nc}\, (u_c / s_c)^2,

where :math:`u_c` is the σ of target c for which φ is 1. It is scaled such that v′ is 1 on average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from .._validation.inputs import as_numbers
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods._base import Likelihood

LEAST, LARGEST = 1e-60, 1e60
"""Valid range of a noise variance, in squared units of y."""
FEWEST_ROWS = 2
"""Total weight below which rows carry no information about their noise."""


def noise_variances(value: Any, likelihood: Likelihood, shape: tuple[int, int]) -> np.ndarray | None:
    """Validated noise variances (n, C), in squared units of y, from a value (n,), for all targets of a row, or (n, C).

    Raises ``UnsupportedCombinationError`` for a likelihood whose variance follows from its mean, and ``ValueError`` for
    another shape than ``shape``, or values that are not finite and above zero.
    """
    if value is None:
        return None
    if not likelihood.takes_known_noise:
        raise UnsupportedCombinationError(
            f"sample_noise_variance cannot be used with likelihood={likelihood.key()!r}, whose "
            "variance follows from its mean. For less reliable rows use a smaller sample_weight."
        )
    variances = check_array(
        as_numbers(value, "sample_noise_variance"),
        ensure_2d=False,
        dtype=np.float64,
        ensure_all_finite=False,
        input_name="sample_noise_variance",
    )
    if variances.shape not in {shape, shape[:1]}:
        raise ValueError(
            f"sample_noise_variance has shape {variances.shape}; expected {shape[:1]}, one variance for each row, or "
            f"{shape}, one for each target of each row."
        )
    if (wrong := ~((variances >= LEAST) & (variances <= LARGEST))).any():
        raise ValueError(
            f"sample_noise_variance holds {variances[wrong][0]:g} in row {np.argwhere(wrong)[0, 0]}; expected "
            f"variances above zero, from {LEAST:g} to {LARGEST:g}, in squared units of y."
        )
    return np.broadcast_to(variances.reshape(len(variances), -1), shape).copy()


def check_noisy_rows(noisy_rows: bool, known: bool) -> None:
    """``ValueError`` if either new rows or those of the fit have noise variances: the units of σ² and σ² v differ."""
    if noisy_rows != known:
        raise ValueError(
            f"sample_noise_variance was {'given' if known else 'not given'} in fit; "
            f"{'pass it for these rows, too' if known else 'omit it, or fit all rows with it'}."
        )


def noise_per_target(sigma: np.ndarray, n_outputs: int) -> np.ndarray:
    """User-set σ as an array (C,); ``ValueError`` if the number of entries is neither 1 nor C."""
    if sigma.size not in (1, n_outputs):
        raise ValueError(
            f"sigma_noise has {sigma.size} entries; expected 1 or {n_outputs}, one for each target, in units of y."
        )
    return np.broadcast_to(sigma.reshape(-1), (n_outputs,))


def unit_noise(
    sigma: np.ndarray | None, variances: np.ndarray | None, scale: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Noise level u (C,) of each target for which the network's φ is 1, in the units of y; see the module's docstring.

    A common factor of ``sigma`` (C,) does not change u. Without σ, noise variances are proportional to ``variances`` v
    (n, C), or to the squared ``scale`` s (C,). The result is s itself if v′ is 1 for all rows and targets.
    """
    ratios = np.ones_like(scale) if sigma is None else sigma / sigma[0]
    if variances is None and (sigma is None or (ratios / scale == ratios[0] / scale[0]).all()):
        return scale
    relative = (ratios / scale) ** 2
    mean = np.mean(relative if variances is None else np.average(variances, axis=0, weights=weights) * relative)
    return ratios / np.sqrt(mean)


def row_reliability(weights: np.ndarray, variances: np.ndarray | None) -> np.ndarray:
    """Weights (n,) or (n, C) of rows for the mean and scale of the targets: w / (1 + v / median of v), or w without v.

    With w alone, a few very noisy rows would determine the scale; with 1/v, a few nearly exact ones. Here very noisy
    rows get about 1/v, and no row more than twice the weight of a row with median noise.

    >>> row_reliability(np.ones(3), np.array([[1e-9], [1.0], [99.0]])).ravel().round(3)
    array([1.  , 0.5 , 0.01])
    """
    if variances is None:
        return weights
    order = variances.argsort(axis=0)
    passed = weights[order].cumsum(axis=0)
    middle = (passed < passed[-1] / 2).sum(axis=0)
    median = np.take_along_axis(np.take_along_axis(variances, order, 0), middle[None], 0)
    return weights[:, None] / (1 + variances / median)
