"""A previous posterior as the prior of new rows (``prior=``), and the options that it fixes.

All that is known of the old rows is their curvature and the weights at which it was taken. So net, subset, likelihood,
curvature and structure have to stay the same; prior, noise, temperature and predictive are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.frozen import FrozenEstimator

from ..errors import UnsupportedCombinationError
from ..laplace.curvatures import CURVATURES
from ..laplace.fit import LaplaceFit
from ..laplace.previous import PreviousPosterior
from ..laplace.structures import STRUCTURES
from ..laplace.subsets import All
from .options import Options
from .prior import check_grouping


def previous_of(prior: object) -> PreviousPosterior | None:
    """Return the posterior of the fitted estimator that ``prior=`` holds, or None without one.

    Parameters
    ----------
    prior : None or FrozenEstimator
        Around a fitted estimator of ours, which the estimator has checked.
    """
    if not isinstance(prior, FrozenEstimator):
        return None
    fitted = prior.estimator
    return PreviousPosterior(fitted.laplace_, fitted.hyper_, fitted.net_.module_)


def check_previous(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Options that a previous posterior excludes.

    Parameters
    ----------
    options : Options
    parameters : mapping
        The estimator's, for the messages.
    past : LaplaceFit

    Raises
    ------
    UnsupportedCombinationError
        With what the previous estimator, or this one, has to be instead.
    """
    _check_structure(options, parameters, past)
    _check_model(options, parameters, past)


def _check_structure(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Structure and its options have to be the same: the curvatures are added."""
    kind = type(past.curvature)
    name = next(key for key, structure in STRUCTURES.items() if structure is kind)
    if not kind.is_monoid:
        able = sorted(key for key, structure in STRUCTURES.items() if structure.is_monoid)
        raise UnsupportedCombinationError(
            f"prior=FrozenEstimator(…) holds a posterior of hessian_structure={name!r}, whose sums over other rows are "
            f"not those over all of them. Fit the previous estimator with hessian_structure in {able}."
        )
    if options.structure not in (None, kind):
        raise UnsupportedCombinationError(
            f"hessian_structure={parameters['hessian_structure']!r} cannot take in a previous posterior of "
            f"hessian_structure={name!r}; use that, or 'auto'."
        )
    told = options.structure_options.options_of(kind)
    if told != past.curvature.options:
        raise UnsupportedCombinationError(
            f"the previous posterior was stored with {past.curvature.options}, and this fit asks for {told}: sums of "
            "different things. Use the same in both fits."
        )
    if options.structure_options.separate_biases or not past.network.folds_biases:
        raise UnsupportedCombinationError(
            "bias='separate' cannot be used with prior=FrozenEstimator(…): during training the bias is a column of its "
            "layer's weight. Use bias='folded' in both fits."
        )
    check_grouping(options.grouping, name, kind)


def _check_model(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Curvature rule, likelihood and subset have to be the same, and the net has to be trained."""
    if type(options.rule) is not type(past.rule):
        rule = next(key for key, value in CURVATURES.items() if value is type(past.rule))
        raise UnsupportedCombinationError(
            f"curvature={parameters['curvature']!r} cannot be added to that of the previous posterior; use "
            f"curvature={rule!r}."
        )
    if past.dispersion_power != 1 and past.likelihood.has_dispersion:
        raise UnsupportedCombinationError(
            f"curvature={parameters['curvature']!r} of a likelihood with noise cannot be carried on: what it says of "
            "the previous rows depends on the noise. Use curvature='ggn' in both fits."
        )
    if type(options.likelihood) is not type(past.likelihood):
        raise UnsupportedCombinationError(
            f"likelihood={parameters['likelihood']!r} is not that of the previous posterior, "
            f"{type(past.likelihood).__name__.lower()}."
        )
    if not isinstance(options.subset, All):
        raise UnsupportedCombinationError(
            f"subset_of_weights={parameters['subset_of_weights']!r} cannot be used with prior=FrozenEstimator(…): the "
            "training moves all weights, and the previous posterior has to be over all of them. Use 'all' in both fits."
        )
    if isinstance(parameters["net"], FrozenEstimator):
        raise UnsupportedCombinationError(
            "net=FrozenEstimator(…) is not trained, and prior=FrozenEstimator(…) is what a training starts from; give "
            "one of them."
        )
