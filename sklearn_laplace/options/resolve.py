"""Resolve an estimator's options: look up names, check values, and check combinations.

Only this folder compares option strings. The error for an unknown name lists the valid names and the closest one. The
error for a combination that is not supported gives the reason and the alternatives.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral, Number
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils import Bunch
from torch import Tensor

from .._table.limits import MemoryBudget
from .._table.table import categorical
from .._validation.arguments import choice, count, count_or_share, jobs, layer_sizes, lookup, optional_count, positive
from ..errors import UnsupportedCombinationError
from ..laplace.curvatures import CURVATURES
from ..laplace.curvatures._base import CurvatureRule
from ..laplace.latent import Predictive
from ..laplace.likelihoods import LIKELIHOODS, NegativeBinomial, Poisson
from ..laplace.likelihoods._base import Likelihood
from ..laplace.links import LINKS
from ..laplace.links._base import Link
from ..laplace.predictives import GLM, PREDICTIVES
from ..laplace.predictives._base import PosteriorPredictive
from ..laplace.prior_groups import GROUPINGS
from ..laplace.structures import STRUCTURES
from ..laplace.structures._base import Curvature
from ..laplace.subsets import SCORES, SUBSETS, Scored, Subnetwork
from ..laplace.subsets._base import Subset
from ..nets import ACTIVATIONS
from ..nets.given_net import has_own_epochs
from .likelihood import LIKELIHOODS_FOR, VARYING_NOISE, _noise, _varying_noise
from .prior import check_grouping, check_left_out, grouping_of, mean_of, temperature
from .resolved import AUTO, BIASES, DAMPINGS, LOO, PRIOR_RULES, SHARINGS, Options, is_auto, is_number
from .training import _check_members, _check_net_options, _device, _standardises, check_target_transform


def is_plain_subset(value: object) -> bool:
    """True if a value of ``subset_of_weights`` is a rule, not a list of tensors or a dict of masks."""
    return isinstance(value, str)


def _subset(parameters: Mapping[str, Any]) -> Subset:
    """Return the subset given by a rule, a list of names or a dict of masks; the traced net resolves names later."""
    value = parameters["subset_of_weights"]
    score = lookup("score of Subnetwork", parameters["subnetwork"], SCORES)
    scored = Scored(score, count_or_share("size of Subnetwork", parameters["n_subnetwork_weights"]), seed=0)
    if isinstance(value, str):
        return _subset_of_rule(value, scored)
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        return Subnetwork(_masks(value))
    if isinstance(value, Sequence) and value and all(isinstance(name, str) for name in value):
        return Subnetwork(dict.fromkeys(value))
    raise ValueError(
        f"subset_of_weights={value!r} has to be one of {', '.join(map(repr, SUBSETS))}, a list of names of tensors or "
        "modules, or a dict of masks of tensors."
    )


def _subset_of_rule(rule: str, scored: Scored) -> Subset:
    try:
        kind = lookup("subset_of_weights", rule, SUBSETS)
    except ValueError as error:
        raise ValueError(f"{error} Or pass a list of names of tensors or modules, or a dict of masks.") from None
    return scored if kind is Subnetwork else kind()


def _masks(masks: Mapping[str, Any]) -> dict[str, Tensor]:
    arrays = {name: np.asarray(m.cpu() if isinstance(m, Tensor) else m) for name, m in masks.items()}
    if wrong := [name for name, mask in arrays.items() if mask.dtype != bool]:
        raise ValueError(
            f"subset_of_weights has masks for {wrong} that are not boolean. Pass arrays of True and False."
        )
    return {name: torch.tensor(mask) for name, mask in arrays.items()}


def _check_subset(subset: Subset, rule: CurvatureRule, structure_name: str, structure: type[Curvature] | None) -> None:
    """Check that curvature rule and structure support the subset, which may select single weights of a tensor."""
    if not rule.provides & subset.provides:
        raise UnsupportedCombinationError(
            "subset_of_weights selects single weights of a tensor, which this curvature does not support. Use "
            "curvature='ggn', or select whole tensors."
        )
    if structure is not None and not structure.accepts & subset.provides:
        able = sorted(name for name, other in STRUCTURES.items() if other.accepts & subset.provides)
        raise UnsupportedCombinationError(
            f"hessian_structure={structure_name!r} needs whole tensors, but subset_of_weights selects single weights. "
            f"Use hessian_structure in {able}, or select whole tensors."
        )


DTYPES = {"auto": None, "float32": torch.float32, "float64": torch.float64}
STD_KINDS = ("total", "epistemic", "aleatoric")
STD_REQUESTS = {**{kind: (kind,) for kind in STD_KINDS}, "all": STD_KINDS}
"""Values of ``kind`` in methods, each with the kinds of standard deviation that it returns."""
Kind = Literal["total", "epistemic", "aleatoric"]
"""Type of ``kind`` for a single part of the uncertainty."""
DEFAULT_LINK, SAMPLE_LINK = "moderated", "mc"
POST_HOC = {
    "damping",
    "prior_precision",
    "prior_structure",
    "sigma_noise",
    "temperature",
    "predictive",
    "link",
    "n_samples",
    "member_weights",
}
"""Internal options that ``refit_laplace`` can change, because trained weights and curvature can be kept."""
PARTLY_POST_HOC = {"hessian_structure", "n_members", "prior"}
"""Parameters of which some internal options are in ``POST_HOC``."""
EXTRAPOLATING = "extrapolating"
"""Value of ``predictive`` that widens predictions outside the range of the training rows, also for the user's net."""
PREDICTIVES_BY_NAME: dict[str, type[PosteriorPredictive]] = {AUTO: GLM, **PREDICTIVES, EXTRAPOLATING: GLM}
"""Values of ``predictive``; "auto" is "extrapolating" for the built-in net with hidden layers, otherwise "glm"."""


def resolve(kind: str, parameters: Mapping[str, Any]) -> Options:
    """Check the internal options of a "regressor" or "classifier", and resolve names to objects.

    ``parameters`` are from ``variants.expanded``. ``FitRequest`` adds the options that depend on rows and seeds.
    """
    likelihood = likelihood_of(kind, parameters)
    rule, structure, subset = _curvature(parameters)
    separate_biases = lookup("bias", parameters["bias"], BIASES)
    damped = lookup("damping", parameters["damping"], DAMPINGS)
    _check_values(parameters)
    if kind == "regressor":
        _check_regressor(parameters)
        check_target_transform(parameters, likelihood)
    precision = choice("prior_precision", parameters["prior_precision"], PRIOR_RULES)
    grouping = grouping_of(lookup("prior", parameters["prior_structure"], GROUPINGS), precision.value)
    name = parameters["hessian_structure"]
    check_grouping(grouping, name, structure, separate_biases=separate_biases, damped=damped)
    predictive = lookup("predictive", parameters["predictive"], PREDICTIVES_BY_NAME)
    noise, map_precision = _noise(parameters, likelihood), parameters["map_prior_precision"]
    for option, chosen in (("prior_precision", precision), ("sigma_noise", noise)):
        if chosen.rule == LOO:
            check_left_out(f"{option}={LOO!r}", parameters)
    _check_net_options(parameters)
    _check_members(parameters)
    return Options(
        subset=subset,
        rule=rule,
        structure=structure,
        separate_biases=separate_biases,
        weight_sharing=lookup("weight_sharing", parameters["weight_sharing"], SHARINGS),
        rank=count("rank", parameters["rank"]),
        damped=damped,
        likelihood=likelihood,
        predictive=predictive,
        extrapolates=_extrapolates(parameters, likelihood),
        n_samples=count("n_samples", parameters["n_samples"]),
        link=_link(predictive, parameters) if "link" in parameters else None,
        grouping=grouping,
        prior_precision=precision,
        prior_mean=mean_of(parameters["prior_mean"]),
        sigma_noise=noise,
        map_precision=_map_precision(map_precision, parameters["net"]) if is_number(map_precision) else None,
        temperature=temperature(parameters["temperature"]),
        device=_device(parameters["device"], parameters["net"]),
        dtype=lookup("dtype", parameters["dtype"], DTYPES),
        memory=MemoryBudget.of(parameters["memory_budget"]),
        n_jobs=jobs("n_jobs", parameters["n_jobs"]),
        varying_noise=_varying_noise(parameters, noise) if kind == "regressor" else False,
        categorical=categorical(parameters["categorical_features"]),
        standardises=_standardises(parameters),
    )


def _extrapolates(parameters: Mapping[str, Any], likelihood: Likelihood) -> bool:
    """True if the variance grows outside the range of the training rows, except for counts and log targets."""
    if parameters["predictive"] != EXTRAPOLATING:
        has_hidden_layers = parameters["net"] is None and len(parameters["hidden_layer_sizes"]) > 0
        return is_auto(parameters["predictive"]) and has_hidden_layers
    if likelihood.additive_noise and not parameters.get("target_transform"):
        return True
    raise UnsupportedCombinationError(
        f"predictive={EXTRAPOLATING!r} cannot be used with counts or target_transform='log': a growing variance of a "
        "logarithm would raise the mean of y, or lower its median. Use predictive='glm'."
    )


def _map_precision(value: object, net: object) -> float:
    """Return the prior precision of the training; 0 (no penalty) needs a net with its own epochs."""
    if isinstance(value, Number) and value == 0 and not isinstance(value, bool):
        if has_own_epochs(net):
            return 0.0
        raise ValueError(
            f"map_prior_precision={value!r} trains without a prior, by the epochs of a skorch net that you give as "
            "net=. Use a positive number, or 'same'."
        )
    return positive("map_prior_precision", value)


def likelihood_of(kind: str, parameters: Mapping[str, Any], *, single_logit: bool = False) -> Likelihood:
    """Return the likelihood of a fit; with ``single_logit``, a classifier's "auto" is one logit for two classes."""
    likelihoods = {name: LIKELIHOODS[name] for name in LIKELIHOODS_FOR[kind]}
    likelihoods["auto"] = likelihoods[LIKELIHOODS_FOR[kind][int(single_logit)]]
    if kind == "regressor":
        likelihoods |= dict.fromkeys(VARYING_NOISE, LIKELIHOODS["gaussian"])
    likelihood: Likelihood = lookup("likelihood", parameters["likelihood"], likelihoods)()
    if isinstance(likelihood, NegativeBinomial) and parameters.get("overdispersion") is not None:
        return NegativeBinomial(parameters["overdispersion"])  # selected by a fit
    if type(likelihood) is Poisson and parameters.get("of_rates"):
        return Poisson(of_rates=True)  # decided by the targets of a fit
    return likelihood


def _curvature(parameters: Mapping[str, Any]) -> tuple[CurvatureRule, type[Curvature] | None, Subset]:
    """Return curvature rule, structure and subset of weights, checked for compatibility."""
    structures: dict[str, type[Curvature] | None] = {**STRUCTURES, "auto": None}
    rule: CurvatureRule = lookup("curvature", parameters["curvature"], CURVATURES)()
    rule = rule.sampling(count("n_samples of MCFisher", parameters["n_fisher_samples"]), seed=0)
    name = parameters["hessian_structure"]
    structure = lookup("hessian_structure", name, structures)
    check_capabilities(parameters["curvature"], rule, name, structure)
    subset = _subset(parameters)
    _check_subset(subset, rule, name, structure)
    return rule, structure, subset


def _check_values(parameters: Mapping[str, Any]) -> None:
    """Check the option values of the net and its training."""
    lookup("activation", parameters["activation"], {AUTO: None, **ACTIVATIONS})
    if not is_auto(parameters["hidden_layer_sizes"]):
        layer_sizes(parameters["hidden_layer_sizes"])
    if isinstance(parameters["n_bins"], str):
        lookup("n_bins", parameters["n_bins"], {AUTO: None}, "None or a whole number of at least 1")
    else:
        optional_count("n_bins", parameters["n_bins"], 1)
    optional_count("max_epochs", parameters["max_epochs"], 0)
    optional_count("batch_size", parameters["batch_size"], 1)
    for name in ("lr", "max_time"):
        if parameters[name] is not None:
            positive(name, parameters[name])
    verbosity(parameters["verbose"])
    if not is_number(parameters["map_prior_precision"]):
        lookup("map_prior_precision", parameters["map_prior_precision"], {"same": None}, "a number")


def verbosity(value: object) -> tuple[int, bool]:
    """Return the verbosity level of printed lines, and True if progress bars are drawn."""
    if isinstance(value, str) and value == "bar":
        return 0, True
    if not isinstance(value, Integral):
        raise ValueError(f"verbose={value!r} has to be a whole number, 0, 1 or 2, or 'bar'.")
    return int(value), False


def _check_regressor(parameters: Mapping[str, Any]) -> None:
    if not isinstance(parameters["standardize_y"], bool | np.bool_):
        raise ValueError(f"standardize_y={parameters['standardize_y']!r} has to be True or False.")


def check_post_hoc_names(changes: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse names that ``refit_laplace`` cannot change, before any of them is set."""
    for name, value in changes.items():
        parameter = name.partition("__")[0]
        lookup("parameter", parameter, known)
        if parameter not in POST_HOC | PARTLY_POST_HOC:
            raise _not_post_hoc(name, value)


def check_post_hoc(changes: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse the user's ``changes`` of options on which the training or the curvature depends."""
    changed = {name for name in after if name not in POST_HOC and not _is_same(before[name], after[name])}
    partly = {name: value for name, value in changes.items() if name.partition("__")[0] not in POST_HOC}
    if changed and partly:
        at_fault = (name for name in partly if name.rpartition("__")[2] in changed)
        name = next(at_fault, next(iter(partly)))
        raise _not_post_hoc(name, partly[name])


def _not_post_hoc(name: str, value: object) -> ValueError:
    return ValueError(
        f"{name}={value!r} changes the training or the curvature, which refit_laplace keeps. Use set_params and fit; "
        "with memory= a training is not repeated for Laplace parameters."
    )


def _is_same(first: object, second: object) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, str | Number | None) and first == second


def check_capabilities(
    curvature_name: str, rule: CurvatureRule, structure_name: str, structure: type[Curvature] | None
) -> None:
    """Check that the rule computes the curvature in a form that the structure accepts."""
    if structure is not None and not structure.accepts & rule.provides:
        able = sorted(name for name, other in STRUCTURES.items() if other.accepts & rule.provides)
        raise UnsupportedCombinationError(
            f"hessian_structure={structure_name!r} cannot store curvature={curvature_name!r}: it needs "
            f"{' or '.join(sorted(structure.accepts))}, the curvature provides {', '.join(sorted(rule.provides))}. "
            f"Use hessian_structure in {able}, or curvature='ggn'."
        )


class Parts(Bunch):
    """Total, epistemic and aleatoric part of an uncertainty, as attributes and as items."""

    total: np.ndarray
    epistemic: np.ndarray
    aleatoric: np.ndarray


def one_or_all(values: dict[str, np.ndarray]) -> Any:
    """Return the only value of a dict, or several values as :class:`Parts`."""
    return Parts(**values) if len(values) > 1 else next(iter(values.values()))


def variance_of_kind(moments: Predictive, kind: str) -> Tensor:
    """Return the total, epistemic or aleatoric variance, shape (n, C)."""
    by_kind = {
        "total": moments.total_variance,
        "epistemic": moments.epistemic_variance,
        "aleatoric": moments.aleatoric_variance,
    }
    return lookup("kind", kind, by_kind)


def _link(predictive: type[PosteriorPredictive], parameters: Mapping[str, Any]) -> type[Link]:
    """Return the link; predictives that sample weights average the softmax and refuse other links."""
    name = parameters["link"]
    link = lookup("link", name, LINKS)
    if predictive.takes_link:
        return link
    if name not in (DEFAULT_LINK, SAMPLE_LINK):
        raise UnsupportedCombinationError(
            f"link={name!r} cannot be used with predictive={parameters['predictive']!r}: it maps a Gaussian over the "
            "logits to probabilities, but this predictive averages the softmax of weight samples. Use "
            f"predictive='auto', or link={DEFAULT_LINK!r}."
        )
    return LINKS[SAMPLE_LINK]
