"""The noise variance as the mean squared residual of the training rows; too small where the net over-fits."""

from __future__ import annotations

from dataclasses import replace

from ..laplace import Hyper, LaplaceFit


def residual_dispersion(fit: LaplaceFit, hyper: Hyper) -> Hyper:
    """φ = Σ w‖y − f‖² / (N_w C), the maximum-likelihood value at the fit's weights.

    Parameters
    ----------
    fit : LaplaceFit
    hyper : Hyper

    Returns
    -------
    Hyper
        The same where the likelihood has no dispersion.

    Examples
    --------
    >>> import torch
    >>> from sklearn_laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.network import Network
    >>> from sklearn_laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> x = torch.tensor([[1.0], [2.0], [3.0]]).double()
    >>> rows = [(x, 2 * x + torch.tensor([[0.1], [0.0], [-0.1]]), torch.ones(3).double())]
    >>> near = network.with_parameters(torch.tensor([2.0]).double())
    >>> fit = fit_laplace(near, Gaussian(), GGN(), Full, network.scalar_prior(), rows)
    >>> round(residual_dispersion(fit, Hyper(torch.ones(1).double())).dispersion, 6)  # .02 / 3
    0.006667
    """
    if not fit.likelihood.has_dispersion:
        return hyper
    value = 2 * fit.nll / (fit.total_weight * fit.n_outputs)
    low, high = fit.likelihood.dispersion_bounds
    return replace(hyper, dispersion=min(max(value, low), high))
