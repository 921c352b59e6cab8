"""Whether an earlier posterior can be the prior of new rows: what of it has to be as it was.

The old rows are known by their curvature and by the weights at which it was taken alone, so that net, subset,
likelihood, curvature and structure stay what they were; prior, noise, temperature and predictive are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.frozen import FrozenEstimator
from torch import Tensor, nn

from ._prior_options import check_grouping
from ._resolve import Options
from .curvatures import CURVATURES
from .errors import UnsupportedCombinationError
from .laplace import LaplaceFit
from .network import Network
from .structures import STRUCTURES
from .subsets import All

SAME_OUTPUTS = 1e-3
"""Of two nets with the same weights, relative to the largest output; they may differ in precision."""


def check_past(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
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
    told = options.structure_options.told(kind)
    if told != past.curvature.options:
        raise UnsupportedCombinationError(
            f"the previous posterior was stored with {past.curvature.options}, and this fit asks for {told}: sums of "
            "different things. Use the same in both fits."
        )
    if options.structure_options.separate_biases or not past.network.folds_biases:
        raise UnsupportedCombinationError(
            "bias='separate' cannot be used with prior=FrozenEstimator(…): the training has a layer's bias as a column "
            "of its weight. Use bias='folded' in both fits."
        )
    check_grouping(options.grouping, name, kind)
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


def load(module: nn.Module, past: nn.Module) -> None:
    """Give a new net the weights and buffers of the previous one.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> load(nn.Linear(2, 1), nn.Linear(3, 1))
    Traceback (most recent call last):
        ...
    ValueError: the net Linear is not that of the previous posterior, which is over other weights. Give the same net, \
or the same hidden_layer_sizes and activation, to both.
    """
    try:
        module.load_state_dict(past.state_dict())
    except RuntimeError as error:
        raise _other(module) from error


def check_same_net(network: Network, past: Network, inputs: Tensor) -> None:
    """Whether a net with the previous one's weights is the previous one.

    Parameters
    ----------
    network, past : Network
        The new net, with the old weights, and the old one.
    inputs : Tensor of shape (n, …)
        Rows on which both are tried.

    Raises
    ------
    ValueError
    """
    if network.theta.device != past.theta.device:
        raise ValueError(
            f"the previous posterior is on {past.theta.device} and this fit on {network.theta.device}; use the same "
            "device in both."
        )
    same = network.parameter_names == past.parameter_names and network.blocks == past.blocks
    if same:
        ours = network(inputs).double()
        theirs = past(inputs.to(next(past.module.parameters()).dtype)).double()
        same = bool((ours - theirs).abs().max() <= SAME_OUTPUTS * (1 + theirs.abs().max()))
    if not same:
        raise _other(network.module)


def _other(module: nn.Module) -> ValueError:
    return ValueError(
        f"the net {type(module).__name__} is not that of the previous posterior, which is over other weights. Give the "
        "same net, or the same hidden_layer_sizes and activation, to both."
    )


def check_columns(fitted: Any, previous: Any) -> None:
    """The columns of the rows are those of the previous posterior, where there is one.

    Raises
    ------
    ValueError
    """
    given, known = (getattr(one, "feature_names_in_", None) for one in (fitted, previous))
    renamed = given is not None and known is not None and list(given) != list(known)
    if previous is not None and (fitted.n_features_in_ != previous.n_features_in_ or renamed):
        raise ValueError(
            f"X has the {fitted.n_features_in_} columns {'' if given is None else list(given)}, and the previous "
            f"posterior is of {previous.n_features_in_} {'' if known is None else list(known)}; give those, in their "
            "order."
        )
