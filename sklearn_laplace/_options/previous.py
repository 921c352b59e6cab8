"""Previous posterior as the prior of new rows (``prior=``), and checks of the options that it fixes.

The previous posterior stores the curvature of the old rows and the weights at which it was computed, but not the rows.
Therefore net, subset, likelihood, curvature and structure have to stay the same. Prior, noise level, temperature and
predictive may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.frozen import FrozenEstimator

from .._host.given_net import is_frozen
from ..errors import UnsupportedCombinationError
from ..laplace.curvatures import CURVATURES
from ..laplace.fit import LaplaceFit
from ..laplace.previous import PreviousPosterior
from ..laplace.structures import STRUCTURES
from ..laplace.subsets import All
from .options import Options
from .prior import check_grouping


def previous_of(prior: object) -> PreviousPosterior | None:
    """Posterior of the fitted estimator in ``prior=``, or None.

    The estimator is one of this package, frozen and fitted; its type has been checked before.
    """
    if not isinstance(prior, FrozenEstimator):
        return None
    fitted = prior.estimator
    return PreviousPosterior(fitted.laplace_, fitted.hyper_, fitted.net_.module_)


def check_previous(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Check that the options are compatible with a previous posterior, that of the fit ``past``.

    Otherwise an ``UnsupportedCombinationError`` names the options to use; ``parameters`` are the internal options.
    """
    _check_structure(options, parameters, past)
    _check_model(options, parameters, past)


def _check_structure(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Check that structure and structure options are the same, since the curvatures are added."""
    kind = type(past.curvature)
    name = next(key for key, structure in STRUCTURES.items() if structure is kind)
    if not kind.is_monoid:
        able = sorted(key for key, structure in STRUCTURES.items() if structure.is_monoid)
        raise UnsupportedCombinationError(
            f"prior=FrozenEstimator(…) holds a posterior with hessian_structure={name!r}, whose curvature cannot be "
            f"added to that of other rows. Fit the previous estimator with hessian_structure in {able}."
        )
    if options.structure not in (None, kind):
        raise UnsupportedCombinationError(
            f"hessian_structure={parameters['hessian_structure']!r} cannot be combined with a previous posterior of "
            f"hessian_structure={name!r}. Use {name!r} or 'auto'."
        )
    structure_options = options.structure_options.options_of(kind)
    if structure_options != past.curvature.options:
        raise UnsupportedCombinationError(
            f"the previous posterior has the structure options {past.curvature.options}, and this fit has "
            f"{structure_options}: the two curvatures cannot be added. Use the same options in both fits."
        )
    if options.structure_options.separate_biases or not past.network.folds_biases:
        raise UnsupportedCombinationError(
            "bias='separate' cannot be used with prior=FrozenEstimator(…): the training treats a bias as a column of "
            "its layer's weight. Use bias='folded' in both fits."
        )
    check_grouping(options.grouping, name, kind)


def _check_model(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Check that curvature rule, likelihood and subset are the same, and that the net is trained."""
    if type(options.rule) is not type(past.rule):
        rule = next(key for key, value in CURVATURES.items() if value is type(past.rule))
        raise UnsupportedCombinationError(
            f"curvature={parameters['curvature']!r} cannot be added to that of the previous posterior. Use "
            f"curvature={rule!r}."
        )
    if past.dispersion_power != 1 and past.likelihood.has_dispersion:
        raise UnsupportedCombinationError(
            f"curvature={parameters['curvature']!r} cannot be used with prior=FrozenEstimator(…) and a noise level, on "
            "which the curvature of the previous rows depends. Use curvature='ggn' in both fits."
        )
    if type(options.likelihood) is not type(past.likelihood):
        raise UnsupportedCombinationError(
            f"likelihood={parameters['likelihood']!r} is not that of the previous posterior. Use "
            f"likelihood={past.likelihood.key()!r}."
        )
    if not isinstance(options.subset, All):
        raise UnsupportedCombinationError(
            f"subset_of_weights={parameters['subset_of_weights']!r} cannot be used with prior=FrozenEstimator(…): the "
            "training changes all weights and needs a previous posterior over all of them. Use 'all' in both fits."
        )
    if is_frozen(parameters["net"]):
        raise UnsupportedCombinationError(
            "net=FrozenEstimator(…) is not trained, but prior=FrozenEstimator(…) is the starting point of a training. "
            "Pass only one of them."
        )
