r"""Feature relevance by automatic relevance determination: the contribution of each input column to the hidden units.

The weights of column k in the first layer have one prior precision :math:`\delta_k` (MacKay 1994; Neal 1996, sec.
1.2.3). Their prior variance is :math:`1/\delta_k`. The data determine an effective number :math:`\gamma_k` of the
:math:`n_k` weights. The relevance is

.. math:: r_k \propto \frac{\gamma_k}{n_k}\,\frac{1}{\delta_k}, \qquad \sum_k r_k = 1.

For standardised columns, :math:`1/\delta_k` is proportional to column k's part of the prior variance of a hidden unit's
input. However, :math:`1/\delta_k` alone does not measure relevance. The data carry no information about the weights of
a constant column, so its precision keeps its initial value. :math:`\gamma_k = 0` then sets the relevance to zero. At
the maximum of the evidence, :math:`\gamma_k / \delta_k` is the squared norm of the column's weights (MacKay's fixed
point). :math:`r_k` is then proportional to the mean square of these weights. :math:`\gamma_k / n_k` alone does not
measure relevance either: with many rows, it is close to one for every column that has any effect.

The relevance of a column with several inputs, such as a number and a missing-value indicator, is the sum over these
inputs. The embeddings of a categorical column count as one input, because each row uses only one of them.
"""

from dataclasses import replace

import numpy as np

from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.prior_groups import input_columns, inputs_of


def relevance(fit: LaplaceFit, hyper: Hyper, n_features: int) -> np.ndarray:
    """Relevance (n_features,) of the columns at temperature 1; the sum is one, or zero if no column has an effect."""
    prior, columns = fit.prior, input_columns(fit.network)
    places = {name: place for place, name in enumerate(prior.names)}
    if not columns or not places.keys() >= set(columns):
        raise AttributeError(
            f"feature_relevance_ needs a prior precision for each input column, but this fit has {len(prior.names)} "
            "other groups of weights. Use prior='ard', with prior_precision as a rule or as one number per group, and "
            "a subset_of_weights that includes the first layer."
        )
    if len(columns) != n_features:
        raise AttributeError(
            f"feature_relevance_ needs a first layer with one input per column of X, but the layer has {len(columns)} "
            f"inputs and X has {n_features} columns. Use a net whose first layer takes the columns of X."
        )
    shrinkage = fit.posterior(replace(hyper, temperature=1.0), spectral=False).shrinkage(prior.groups, prior.n_groups)
    share = (1 - shrinkage / prior.counts.to(shrinkage)).clamp(0, 1)
    values = (share / hyper.prior_precision)[[places[name] for name in columns]].cpu().numpy()
    values = values * inputs_of(fit.network).numpy()
    total = values.sum()
    return np.asarray(values / total if total > 0 else values)
