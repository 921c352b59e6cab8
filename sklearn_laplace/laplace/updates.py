r"""Add and remove rows after training, without retraining: update the curvature and the posterior mean.

The network is replaced by its linearisation at θ*, the mode for the training rows. The current Gaussian posterior
:math:`N(\theta, P^{-1})` is the prior for the new rows (Opper & Winther 1998; Ritter et al. 2018b). Unlike in these
papers, the point of linearisation stays fixed. Let the new rows have gradient g at θ and exact curvature :math:`\hat
H`, without a structure's approximation. The new rows move the mean by the minimiser d of

.. math:: \tfrac12 d^\top P d + \tfrac1\varphi g^\top d + \tfrac{1}{2\varphi^p} d^\top \hat H d, \qquad
          (P + \hat H/\varphi^p)\, d = -g/\varphi ,

with p the power of the dispersion in the curvature (1, or 2 for the empirical Fisher). The structure's approximation of
:math:`\hat H` is added to the curvature. Conjugate gradients, preconditioned by the posterior of all rows, solve the
system. With exact structures, one iteration suffices. Removing rows reverses the equation:
:math:`d = P^{-1} g/\varphi`, where P excludes these rows, and g is their gradient at the previous mean.

For a linear network, a Gaussian likelihood and an exact structure, the result is Bayesian linear regression on the
current rows. It does not depend on the order of updates. With any structure that can remove rows, removing the rows
added last restores the previous posterior. For other likelihoods, the update is one Newton step. δ and φ stay fixed.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .fit import Hyper, LaplaceFit
from .linalg import conjugate_gradients
from .structures import Full, Functional
from .structures._base import Curvature


@dataclass(frozen=True)
class PreviousPosterior:
    """A previous posterior that serves as the prior for new rows."""

    fit: LaplaceFit  # of the earlier rows; its curvature is additive over rows
    hyper: Hyper
    module: nn.Module  # the trained net

    def dual_rows(self, n_columns: int) -> int:
        """Number of dual rows (total weight × ``n_columns`` rows of SᵀJ) if the curvature is ``Functional``, else 0."""
        return round(self.fit.total_weight) * n_columns if isinstance(self.fit.curvature, Functional) else 0

    def within(self, structure: type[Curvature]) -> LaplaceFit:
        """The fit, with its curvature converted to ``Full`` by P products unless its type is ``structure``."""
        if isinstance(self.fit.curvature, structure):
            return self.fit
        blocks, theta = self.fit.network.blocks, self.fit.theta
        identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        matrix = torch.stack([self.fit.curvature.times(row) for row in identity])
        return replace(self.fit, curvature=Full(matrix, tuple(block.size for block in blocks)))


LEAST_WEIGHT = 1e-9
"""Minimum remaining weight when rows are removed, relative to the weight before."""


def with_room_for(fit: LaplaceFit, n_dual: int) -> LaplaceFit:
    """``fit``, converted from ``functional`` to ``full`` if its dual rows plus ``n_dual`` outnumber its weights."""
    curvature, blocks = fit.curvature, fit.network.blocks
    if not isinstance(curvature, Functional) or curvature.n_dual + n_dual <= fit.network.n_parameters:
        return fit
    return replace(fit, curvature=Full.of_rows(blocks, curvature.pieces, curvature.device))


def add_rows(fit: LaplaceFit, rows: LaplaceFit, exact: Curvature, hyper: Hyper) -> LaplaceFit:
    """Return a fit with added rows and moved mean; the temperature is ignored.

    ``rows`` is a fit to the new rows at θ* with network, structure and prior of ``fit``. ``exact`` is the exact
    curvature of the new rows.
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
    """Return a fit with removed rows and moved mean: the inverse of :func:`add_rows`, with the same arguments."""
    remaining = fit.total_weight - rows.total_weight
    if remaining <= LEAST_WEIGHT * fit.total_weight:
        raise ValueError(
            f"cannot remove rows of total weight {rows.total_weight:g} from a fit of total weight "
            f"{fit.total_weight:g}: some rows must remain. To start from scratch, call fit."
        )
    without = replace(fit, curvature=fit.curvature.subtract(rows.curvature), total_weight=remaining)
    shift = torch.zeros_like(fit.network.theta) if fit.shift is None else fit.shift
    unit = _at_unit_dispersion(fit, hyper)
    removed_nll, removed_gradient = replace(rows, curvature=exact).quadratic_model(shift, unit)
    without = replace(without, nll=fit.nll - removed_nll, gradient=fit.gradient - removed_gradient)
    move = without.posterior(replace(hyper, temperature=1.0)).solve(removed_gradient / hyper.dispersion)
    nll, gradient = without.quadratic_model(move, unit)
    log_noise = fit.log_noise - rows.log_noise
    return replace(without, nll=nll, gradient=gradient, shift=shift + move, log_noise=log_noise)


def _at_unit_dispersion(fit: LaplaceFit, hyper: Hyper) -> float:
    """Factor φ^(1−p) that turns the stored H into the second derivative of the loss at unit dispersion."""
    return hyper.dispersion ** (1 - fit.dispersion_power)
