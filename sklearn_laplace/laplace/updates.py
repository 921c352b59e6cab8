r"""Rows that come and go after the training: the curvature adds up, the mean of the linearised network moves.

At the mode θ* of the rows that were trained on, the network is replaced by its linearisation for good, and the Gaussian
posterior :math:`N(\theta, P^{-1})` so far is the prior of what comes (Opper & Winther 1998, Bayesian online learning;
Ritter et al. 2018b with one fixed point of linearisation). Rows with gradient g at θ and curvature :math:`\hat H`, not
approximated by any structure, move the mean by the minimum d of

.. math:: \tfrac12 d^\top P d + \tfrac1\varphi g^\top d + \tfrac{1}{2\varphi^p} d^\top \hat H d, \qquad
          (P + \hat H/\varphi^p)\, d = -g/\varphi ,

with p the power of the dispersion in the curvature (1, or 2 for the empirical Fisher), and the structure's own
:math:`H` of these rows is added to the curvature. Why not one solve with the structure's sum:
where H is a diagonal, every weight would make the whole correction by itself, and the outputs would overshoot by as
many times as weights share it. The system is solved by conjugate gradients, preconditioned by the posterior of all
rows: one step where the structure is exact. Rows that go move the mean back by the same equation, read from the other
side: :math:`d = -P^{-1} g/\varphi` for P without them and g at the mean with them.

For a linear network with a Gaussian likelihood and an exact structure this is Bayesian linear regression on the rows
that are there, in whatever order they came or went; with any structure, what came last goes without a trace. For other
likelihoods it is one Newton step. Prior precision and dispersion stay: choosing them again is the selection's matter.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .fit import Hyper, LaplaceFit
from .linalg import conjugate_gradients
from .structures import Full, Functional
from .structures._base import Curvature

LEAST_WEIGHT = 1e-9
"""What has to be left when rows are removed, relative to what there was."""


def with_room_for(fit: LaplaceFit, n_dual: int) -> LaplaceFit:
    """The fit in the form that takes in more rows at the lower price: ``full`` where dual rows outnumber weights.

    The dual form keeps every row, and its Gram matrix grows with their square. Both forms are the same posterior.

    Parameters
    ----------
    fit : LaplaceFit
    n_dual : int
        Rows to come, times columns of the output factor.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> network = trace(torch.nn.Linear(1, 1).double(), torch.ones(1, 1).double())
    >>> x, w = torch.ones(1, 1).double(), torch.ones(1).double()
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Functional, network.scalar_prior(), [(x, x, w)])
    >>> [type(with_room_for(fit, n_dual).curvature).__name__ for n_dual in (1, 2)]  # one row so far, two weights
    ['Functional', 'Full']
    """
    curvature, blocks = fit.curvature, fit.network.blocks
    if not isinstance(curvature, Functional) or curvature.n_dual + n_dual <= fit.network.n_parameters:
        return fit
    return replace(fit, curvature=Full.of_rows(blocks, curvature.pieces, curvature.device))


def add_rows(fit: LaplaceFit, rows: LaplaceFit, exact: Curvature, hyper: Hyper) -> LaplaceFit:
    """The fit with more rows, at its moved mean.

    Parameters
    ----------
    fit : LaplaceFit
    rows : LaplaceFit
        A pass over the rows at θ*, with the network, the structure and the prior of ``fit``.
    exact : Curvature
        The same rows' curvature in an exact structure; where that of ``fit`` is exact, the same object.
    hyper : Hyper
        Under which the mean moves; the temperature does not enter.

    Returns
    -------
    LaplaceFit
        Loss and gradient of the old rows by their quadratic model.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> network = network.with_parameters(torch.zeros(1).double())
    >>> x, w = torch.ones(1, 1).double(), torch.ones(1).double()
    >>> old, new = (
    ...     fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), [(x, y * x, w)]) for y in (0.0, 3.0)
    ... )
    >>> found = add_rows(old, new, new.curvature, Hyper(torch.ones(1).double()))
    >>> round(float(found.theta), 9)  # of 0, 3 and the prior's 0
    1.0
    """
    curvature = fit.curvature.merge(rows.curvature)
    shift = torch.zeros_like(fit.network.theta) if fit.shift is None else fit.shift
    hyper = replace(hyper, temperature=1.0)
    unit = _at_unit_dispersion(fit, hyper)
    gradient = rows.gradient + unit * exact.times(shift)
    scale, precision = hyper.scale(fit.dispersion_power), fit.prior.precision(hyper.prior_precision)
    together = replace(fit, curvature=curvature)

    def system(vector: Tensor) -> Tensor:
        return scale * (fit.curvature.times(vector) + exact.times(vector)) + precision * vector

    move = conjugate_gradients(system, -gradient / hyper.dispersion, together.posterior(hyper).solve)
    shift = shift + move
    old_nll, old_gradient = fit.quadratic_model(move, unit)
    new_nll, new_gradient = replace(rows, curvature=exact).quadratic_model(shift, unit)
    return replace(
        together,
        nll=old_nll + new_nll,
        gradient=old_gradient + new_gradient,
        total_weight=fit.total_weight + rows.total_weight,
        shift=shift,
        log_noise=fit.log_noise + rows.log_noise,
    )


def remove_rows(fit: LaplaceFit, rows: LaplaceFit, exact: Curvature, hyper: Hyper) -> LaplaceFit:
    """The fit without some of its rows: the reverse of :func:`add_rows`.

    Parameters
    ----------
    fit, rows, exact, hyper
        As for :func:`add_rows`.

    Raises
    ------
    NotPositiveDefiniteError
        When the rows cannot have been in the fit.
    UnsupportedCombinationError
        When the structure cannot take rows out.
    ValueError
        When nothing would be left.
    """
    left = fit.total_weight - rows.total_weight
    if left <= LEAST_WEIGHT * fit.total_weight:
        raise ValueError(
            f"rows of weight {rows.total_weight:g} are to be forgotten where rows of weight {fit.total_weight:g} are "
            "known; some have to be left. To start anew, use fit."
        )
    without = replace(fit, curvature=fit.curvature.subtract(rows.curvature), total_weight=left)
    shift = torch.zeros_like(fit.network.theta) if fit.shift is None else fit.shift
    unit = _at_unit_dispersion(fit, hyper)
    gone_nll, gone = replace(rows, curvature=exact).quadratic_model(shift, unit)
    without = replace(without, nll=fit.nll - gone_nll, gradient=fit.gradient - gone)
    move = without.posterior(replace(hyper, temperature=1.0)).solve(gone / hyper.dispersion)
    nll, gradient = without.quadratic_model(move, unit)
    log_noise = fit.log_noise - rows.log_noise
    return replace(without, nll=nll, gradient=gradient, shift=shift + move, log_noise=log_noise)


def _at_unit_dispersion(fit: LaplaceFit, hyper: Hyper) -> float:
    """φ^(1−p): what makes of H, as it is stored, the second derivative of the loss at unit dispersion."""
    return hyper.dispersion ** (1 - fit.dispersion_power)
