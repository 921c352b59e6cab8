r"""Automatic relevance determination, read off a fit: what part each input column has in what the net makes of a row.

With one precision :math:`\delta_k` for the weights of column k in the first layer (MacKay 1994; Neal 1996, sec. 1.2.3),
their prior variance is :math:`1/\delta_k`, and the data determine :math:`\gamma_k` of these :math:`n_k` weights.

.. math:: r_k \propto \frac{\gamma_k}{n_k}\,\frac{1}{\delta_k}, \qquad \sum_k r_k = 1.

For standardised columns :math:`1/\delta_k` is column k's share in the variance of a hidden unit's input. Alone it says
what the prior allows; a column that the data say nothing of (a constant one) keeps whatever precision it had, and
:math:`\gamma_k = 0` takes it out. Where the evidence is largest, :math:`\gamma_k / \delta_k` is the squared length of
the column's weights (MacKay's fixed point), so that :math:`r_k` is their mean square. :math:`\gamma_k / n_k` alone is
no relevance: with many rows it is near one for every column that has any effect. A column that enters as several
inputs, a number and an indicator of missing ones, has the sum of theirs; of the embeddings of a category a row has one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.prior_groups import input_columns, inputs_of


def relevance(fit: LaplaceFit, hyper: Hyper, n_features: int) -> np.ndarray:
    """Relevance of each input column, summing to one; zeros where no column matters.

    Parameters
    ----------
    fit : LaplaceFit
    hyper : Hyper
        Its temperature counts as 1.
    n_features : int
        Columns of X.

    Returns
    -------
    ndarray of shape (n_features,)

    Raises
    ------
    AttributeError
        When the columns of X have no precisions of their own.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.prior_groups import GROUPINGS
    >>> from sklearn_laplace.laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(2, 1).double(), torch.zeros(1, 2).double())
    >>> rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double(), torch.zeros(2, 1).double(), torch.ones(2).double()
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, GROUPINGS["ard"].prior(network), [rows])
    >>> relevance(fit, Hyper(torch.ones(3).double()), 2)  # the second column is constant
    array([1., 0.])
    """
    prior, columns = fit.prior, input_columns(fit.network)
    places = {name: place for place, name in enumerate(prior.names)}
    if not columns or not places.keys() >= set(columns):
        raise AttributeError(
            f"feature_relevance_ needs a prior precision for each input column, and there is one for each of "
            f"{len(prior.names)} other groups. Use prior='ard' with a rule for prior_precision or one number "
            "a group, and a subset_of_weights that has the first layer."
        )
    if len(columns) != n_features:
        raise AttributeError(
            f"feature_relevance_ needs a first layer that sees the columns of X: it has {len(columns)} inputs, and X "
            f"{n_features} columns."
        )
    shrinkage = fit.posterior(replace(hyper, temperature=1.0), spectral=False).shrinkage(prior.groups, prior.n_groups)
    share = (1 - shrinkage / prior.counts.to(shrinkage)).clamp(0, 1)
    values = (share / hyper.prior_precision)[[places[name] for name in columns]].cpu().numpy()
    values = values * inputs_of(fit.network).numpy()
    total = values.sum()
    return np.asarray(values / total if total > 0 else values)
