r"""Known noise: what is given of it, per target or per row, in the units of y and in those of the network.

The noise of target c of row n is :math:`\sigma_c^2 v_{nc}`, with σ of the targets (one number for all, one each, or one
that is chosen) and v of the rows (``sample_noise_variance``; 1 where it is not given). The network sees targets divided
by s, and one dispersion φ, the noise variance of an average row there; what is left are ratios, known before the pass:

.. math:: \sigma_c^2 v_{nc} / s_c^2 = \varphi\, v'_{nc}, \qquad v'_{nc} = v_{nc}\, (u_c / s_c)^2,

where :math:`u_c` is the σ of target c for which φ is 1, chosen such that v′ is 1 on average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from .._validation.inputs import as_numbers
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods._base import Likelihood

LEAST, LARGEST = 1e-60, 1e60
"""Range of a noise variance, in squared units of y."""
FEWEST_ROWS = 2
"""Sum of weights below which rows tell nothing of their noise."""


def noise_variances(given: Any, likelihood: Likelihood, shape: tuple[int, int]) -> np.ndarray | None:
    """The noise variances of the rows, checked, shape (n, C); None where none are given.

    Parameters
    ----------
    given : array-like of shape (n,) or (n, C), or None
        One for all targets of a row, or one each.
    likelihood : Likelihood
    shape : tuple
        (n, C).

    Raises
    ------
    UnsupportedCombinationError
        For a likelihood whose spread follows from its mean.
    ValueError
        For another shape, or values that are not finite or not above zero.

    Examples
    --------
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> noise_variances([0.5, 2.0], Gaussian(), (2, 1)).tolist()
    [[0.5], [2.0]]
    >>> noise_variances([0.5, 0.0], Gaussian(), (2, 1))
    Traceback (most recent call last):
        ...
    ValueError: sample_noise_variance holds 0; expected variances above zero, from 1e-60 to 1e+60, in squared units \
of y.
    """
    if given is None:
        return None
    if not likelihood.takes_known_noise:
        raise UnsupportedCombinationError(
            f"sample_noise_variance cannot be used with likelihood={type(likelihood).__name__.lower()!r}, whose spread "
            "follows from its mean; rows that count less get a smaller sample_weight."
        )
    found = check_array(
        as_numbers(given, "sample_noise_variance"),
        ensure_2d=False,
        dtype=np.float64,
        input_name="sample_noise_variance",
    )
    if found.shape not in {shape, shape[:1]}:
        raise ValueError(
            f"sample_noise_variance has shape {found.shape}; expected {shape[:1]}, one variance for each row, or "
            f"{shape}, one for each target of each row."
        )
    if not ((found >= LEAST) & (found <= LARGEST)).all():
        raise ValueError(
            f"sample_noise_variance holds {found.min() if found.min() < LEAST else found.max():g}; expected variances "
            f"above zero, from {LEAST:g} to {LARGEST:g}, in squared units of y."
        )
    return np.broadcast_to(found.reshape(len(found), -1), shape).copy()


def check_noisy_rows(given: bool, known: bool) -> None:
    """Rows that come and go have noise variances where those of the fit had: σ² alone and σ² v differ in their units.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_noisy_rows(True, True)
    """
    if given != known:
        raise ValueError(
            f"sample_noise_variance was {'given' if known else 'not given'} in fit; "
            f"{'give it for these rows, too' if known else 'leave it out, or fit all rows with it'}."
        )


def noise_per_target(sigma: np.ndarray, n_outputs: int) -> np.ndarray:
    """A given σ, one number or one for each target, as shape (C,).

    Raises
    ------
    ValueError
        For another number of entries.

    Examples
    --------
    >>> noise_per_target(np.asarray(0.5), 2)
    array([0.5, 0.5])
    """
    if sigma.size not in (1, n_outputs):
        raise ValueError(
            f"sigma_noise has {sigma.size} entries; expected 1 or {n_outputs}, one for each target, in its own units."
        )
    return np.broadcast_to(sigma.reshape(-1), (n_outputs,))


def unit_noise(
    sigma: np.ndarray | None, variances: np.ndarray | None, scale: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """The u of the module's formula: σ of each target for which the network's φ is 1, in the units of y.

    It depends on the ratios of σ alone: what is chosen at one σ serves another one.

    Parameters
    ----------
    sigma : ndarray of shape (C,), or None
        None where it is chosen: then standardised targets are equally noisy, or v says all.
    variances : ndarray of shape (n, C), or None
    scale : ndarray of shape (C,)
        The targets' s.
    weights : ndarray of shape (n,)

    Returns
    -------
    ndarray of shape (C,)
        The scale itself where v′ is 1 throughout.

    Examples
    --------
    >>> unit_noise(np.array([0.1, 3.0]), None, np.array([1.0, 10.0]), np.ones(5)).round(3)
    array([ 0.447, 13.416])
    """
    ratios = np.ones_like(scale) if sigma is None else sigma / sigma[0]
    if variances is None and (sigma is None or (ratios / scale == ratios[0] / scale[0]).all()):
        return scale
    relative = (ratios / scale) ** 2
    mean = np.mean(relative if variances is None else np.average(variances, axis=0, weights=weights) * relative)
    return ratios / np.sqrt(mean)


def reliability(weights: np.ndarray, variances: np.ndarray | None) -> np.ndarray:
    """Weights of the rows in the mean and the scale of the targets: w, or w / (1 + v / median of v) of shape (n, C).

    A few very noisy rows would set the scale of all, were they counted in full; a few very exact ones, were they
    counted by 1/v. Here the noisy half counts by its precision, and no row more than twice as much as the median one.

    Examples
    --------
    >>> reliability(np.ones(3), np.array([[1e-9], [1.0], [99.0]])).ravel().round(3)
    array([1.  , 0.5 , 0.01])
    """
    if variances is None:
        return weights
    order = variances.argsort(axis=0)
    passed = weights[order].cumsum(axis=0)
    middle = (passed < passed[-1] / 2).sum(axis=0)
    median = np.take_along_axis(np.take_along_axis(variances, order, 0), middle[None], 0)
    return weights[:, None] / (1 + variances / median)
