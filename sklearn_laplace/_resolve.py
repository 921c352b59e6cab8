"""Names to objects: the only place where an option's string is looked at, and the one capability check.

An unknown name lists the known ones and the closest; a combination that cannot work says what is missing and what to
use. Values that have to be positive are checked here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from torch import Tensor

from ._augment import check_augment
from ._given import as_float
from ._memory import MemoryBudget
from ._prior_options import check_grouping, check_left_out, grouping_of, mean_of
from ._skorch import device_of, has_one_output, names_criterion
from ._structure_options import BIASES, DAMPINGS, SHARINGS, StructureOptions, check_taken
from ._tables import Categorical
from ._values import Choice, choice, count, count_or_share, jobs, kinds, layer_sizes, lookup, optional_count, positive
from .by_name import GROUPINGS, Grouping
from .curvatures import CURVATURES
from .curvatures._base import CurvatureRule
from .errors import UnsupportedCombinationError
from .evidence import mackay_dispersion
from .latent import Predictive
from .likelihoods import LIKELIHOODS
from .likelihoods._base import Likelihood
from .links import LINKS
from .links._base import Link
from .nets import ACTIVATIONS
from .predictives import PREDICTIVES
from .predictives._base import PosteriorPredictive
from .selection import residual_dispersion
from .structures import STRUCTURES
from .structures._base import Curvature
from .subsets import SCORES, SUBSETS, Scored, Subnetwork
from .subsets._base import Subset

PRIOR_STRUCTURES = {name: grouping.unit for name, grouping in GROUPINGS.items()}
"""Each with the unit within which its precisions are equal, see ``Curvature.holds``."""
STD_KINDS = ("total", "epistemic", "aleatoric")
INTERVAL_METHODS = {"normal": False, "jackknife+": True}
"""Each with whether it goes by leave-one-out."""
AUTO, EVIDENCE, LOO = "auto", "evidence", "loo"
BY_EVIDENCE = (AUTO, EVIDENCE)
PRIOR_RULES = (AUTO, EVIDENCE, LOO, "cv", "validation")
BALANCED = "balanced"
DEFAULT_LINK, SAMPLE_LINK = "moderated", "mc"
DISPERSION_RULES = {**dict.fromkeys((AUTO, EVIDENCE, LOO), mackay_dispersion), "residual": residual_dispersion}
"""What the training goes by; afterwards the rows that were left out have the last word."""
FROM_DTYPE = "from_dtype"
BUILT_IN_ONLY = {"hidden_layer_sizes": AUTO, "activation": AUTO, "n_bins": AUTO, "categorical_features": FROM_DTYPE}
"""Options of the built-in net, at their defaults."""
SUBNETWORK_ONLY = {"subnetwork": "variance", "n_subnetwork_weights": 0.1}
"""Options of ``subset_of_weights="subnetwork"``, at their defaults."""
FLOAT32_ROWS = 10_000
"""``dtype="auto"``: float64 up to this sum of weights."""
POST_HOC = {
    "damping",
    "prior_precision",
    "prior_structure",
    "sigma_noise",
    "temperature",
    "predictive",
    "link",
    "n_samples",
    "return_std_kind",
    "member_weights",
}
"""Parameters that need neither training nor data."""
LIKELIHOODS_FOR = {"regressor": ("gaussian", "poisson"), "classifier": ("categorical", "bernoulli")}
"""The first is "auto"; for a classifier the second where two classes share one logit."""
VARYING_NOISE = {AUTO: None, "heteroscedastic": True}
"""Likelihoods, Gaussian all of them, whose noise varies with the inputs; None where the rows decide."""
WEIGHTINGS = {"uniform": None, LOO: True, EVIDENCE: False}
"""What the weights of a mixture's members go by: nothing, left-out rows, or the evidence."""
SINGLE_LOGIT = {"auto": None, "categorical": False, "bernoulli": True}
"""Whether two classes share one logit; None where the given net decides."""


def is_auto(value: Any) -> bool:
    """Whether an option is left to the data."""
    return isinstance(value, str) and value == AUTO


@dataclass(frozen=True)
class Options:
    """An estimator's options as objects.

    Parameters
    ----------
    subset : Subset
    rule : CurvatureRule
    structure : Curvature class or None
        None: chosen by :func:`~sklearn_laplace._budget.automatic_structure`.
    structure_options : StructureOptions
    likelihood : Likelihood
    predictive : PosteriorPredictive class
    n_samples : int
        Weight samples of the predictive, and draws of the link.
    link : Link class or None
    grouping : Grouping
        Which weights share a prior precision.
    prior_precision, sigma_noise : Choice
    prior_mean : float or dict of str to Tensor
        One for all weights, or those of some tensors.
    map_precision : float or None
        A fixed prior precision of the training; None: the posterior's own.
    temperature : float or dict of str to float
        One for all weights, or those of some layers or tensors.
    device : torch.device
    dtype : torch.dtype or None
        None: chosen by the number of rows.
    memory : MemoryBudget
    n_jobs : int or None
    categorical : Categorical
        Which columns are.
    varying_noise : bool or None
        Whether the noise varies with the inputs; None: where it does.
    """

    subset: Subset
    rule: CurvatureRule
    structure: type[Curvature] | None
    structure_options: StructureOptions
    likelihood: Likelihood
    predictive: type[PosteriorPredictive]
    n_samples: int
    link: type[Link] | None
    grouping: Grouping
    prior_precision: Choice
    prior_mean: float | dict[str, Tensor]
    sigma_noise: Choice
    map_precision: float | None
    temperature: float | dict[str, float]
    device: torch.device
    dtype: torch.dtype | None
    memory: MemoryBudget
    n_jobs: int | None
    categorical: Categorical
    varying_noise: bool | None = False

    @property
    def by_evidence(self) -> tuple[bool, bool]:
        """Whether prior precision and noise are each chosen by the evidence, where nothing better is known."""
        return self.prior_precision.rule in BY_EVIDENCE, self.sigma_noise.rule in BY_EVIDENCE

    @property
    def by_held_out(self) -> tuple[bool, bool]:
        """Whether prior precision and noise are each chosen by held-out rows, where there are nets without them."""
        alone = not any(self.by_loo)
        return alone and self.prior_precision.rule == AUTO, alone and self.sigma_noise.rule == AUTO

    @property
    def leaves_noise_open(self) -> bool:
        """Whether rows that were held out choose the prior and a normal noise."""
        return all((self.cross_fits, *self.by_held_out, self.likelihood.has_dispersion, self.likelihood.quadratic))

    @property
    def cross_fits(self) -> bool:
        """Whether nets without a part of the rows each would serve."""
        return any(self.by_held_out) and self.map_precision is None

    @property
    def by_loo(self) -> tuple[bool, bool]:
        """Whether prior precision and noise are each chosen by leave-one-out."""
        return self.prior_precision.rule == LOO, self.sigma_noise.rule == LOO

    @property
    def as_trained(self) -> tuple[Choice, Choice, str]:
        """What the training makes of the choice of prior precision and noise, and of what shares a precision."""
        prior, noise = (
            Choice(None, EVIDENCE) if chosen.rule in (AUTO, LOO) else chosen
            for chosen in (self.prior_precision, self.sigma_noise)
        )
        return prior, noise, self.grouping.each

    @property
    def rechooses_noise(self) -> bool:
        """Whether the noise is chosen with the prior precision, and not beforehand."""
        return any((self.by_evidence[1], self.by_loo[1]))


def resolve(kind: str, parameters: Mapping[str, Any], seed: int = 0, *, single_logit: bool = False) -> Options:
    """Check an estimator's parameters and turn their names into objects.

    Parameters
    ----------
    kind : str
        "regressor" or "classifier".
    parameters : mapping
        ``get_params(deep=False)``.
    seed : int
        Of what the curvature draws.
    single_logit : bool
        Whether two classes share one logit, where the likelihood is left open.

    Raises
    ------
    ValueError
        For an unknown name or a value out of range.
    UnsupportedCombinationError
        For options that exclude each other.
    """
    likelihoods = {name: LIKELIHOODS[name] for name in LIKELIHOODS_FOR[kind]}
    likelihoods["auto"] = likelihoods[LIKELIHOODS_FOR[kind][int(single_logit)]]
    if kind == "regressor":
        likelihoods |= dict.fromkeys(VARYING_NOISE, LIKELIHOODS["gaussian"])
    likelihood = lookup("likelihood", parameters["likelihood"], likelihoods)()
    structures: dict[str, type[Curvature] | None] = {**STRUCTURES, "auto": None}
    rule: CurvatureRule = lookup("curvature", parameters["curvature"], CURVATURES)()
    rule = rule.sampling(count("n_fisher_samples", parameters["n_fisher_samples"]), seed)
    structure = lookup("hessian_structure", parameters["hessian_structure"], structures)
    check_capabilities(parameters["curvature"], rule, parameters["hessian_structure"], structure)
    structure_options = StructureOptions(
        lookup("bias", parameters["bias"], BIASES),
        lookup("weight_sharing", parameters["weight_sharing"], SHARINGS),
        count("rank", parameters["rank"]),
        lookup("damping", parameters["damping"], DAMPINGS),
    )
    check_taken(parameters, structure)
    subset = _subset(parameters, seed)
    _check_subset(subset, rule, parameters["hessian_structure"], structure)
    lookup("activation", parameters["activation"], {AUTO: None, **ACTIVATIONS})
    if not is_auto(parameters["hidden_layer_sizes"]):
        layer_sizes(parameters["hidden_layer_sizes"])
    kinds("n_bins", parameters["n_bins"])
    optional_count("max_epochs", parameters["max_epochs"], 0)
    optional_count("batch_size", parameters["batch_size"], 1)
    for name in ("lr", "max_time"):
        if parameters[name] is not None:
            positive(name, parameters[name])
    if not isinstance(parameters["verbose"], Integral):
        raise ValueError(f"verbose={parameters['verbose']!r} has to be a whole number; 0 is silent.")
    check_augment(parameters["augment"])
    count("n_augmentations", parameters["n_augmentations"])
    _check_net_options(parameters)
    map_precision = parameters["map_prior_precision"]
    if isinstance(map_precision, str):
        lookup("map_prior_precision", map_precision, {"same": None})
    if kind == "regressor":
        lookup("return_std_kind", parameters["return_std_kind"], dict.fromkeys(STD_KINDS))
        if not isinstance(parameters["standardize_y"], bool | np.bool_):
            raise ValueError(f"standardize_y={parameters['standardize_y']!r} has to be True or False.")
    n_samples = count("n_samples", parameters["n_samples"])
    _check_members(parameters)
    precision = choice("prior_precision", parameters["prior_precision"], PRIOR_RULES, array=True)
    grouping = grouping_of(lookup("prior_structure", parameters["prior_structure"], GROUPINGS), precision.value)
    check_grouping(
        grouping,
        parameters["hessian_structure"],
        structure,
        separate_biases=structure_options.separate_biases,
        damped=structure_options.damped,
    )
    predictive = lookup("predictive", parameters["predictive"], PREDICTIVES)
    noise = _noise(parameters, likelihood)
    for option, chosen in (("prior_precision", precision), ("sigma_noise", noise)):
        if chosen.rule == LOO:
            check_left_out(f"{option}={LOO!r}", parameters["augment"], parameters["prior"])
    return Options(
        subset=subset,
        rule=rule,
        structure=structure,
        structure_options=structure_options,
        likelihood=likelihood,
        predictive=predictive,
        n_samples=n_samples,
        link=_link(predictive, parameters) if "link" in parameters else None,
        grouping=grouping,
        prior_precision=precision,
        prior_mean=mean_of(parameters["prior_mean"]),
        sigma_noise=noise,
        map_precision=None if isinstance(map_precision, str) else positive("map_prior_precision", map_precision),
        temperature=temperature(parameters["temperature"]),
        device=_device(parameters["device"], parameters["net"]),
        dtype=lookup("dtype", parameters["dtype"], {"auto": None, "float32": torch.float32, "float64": torch.float64}),
        memory=MemoryBudget.of(parameters["memory_budget"]),
        n_jobs=jobs("n_jobs", parameters["n_jobs"]),
        varying_noise=_varying_noise(parameters, noise) if kind == "regressor" else False,
        categorical=categorical(parameters["categorical_features"]),
    )


def _varying_noise(parameters: Mapping[str, Any], noise: Choice) -> bool | None:
    """Whether the noise varies with the inputs; where the rows decide, not under a noise that is asked for."""
    found = VARYING_NOISE.get(parameters["likelihood"], False)
    return False if found is None and noise.rule != AUTO else found


def _check_members(parameters: Mapping[str, Any]) -> None:
    """Several nets have to differ in something."""
    lookup("member_weights", parameters["member_weights"], WEIGHTINGS)
    given = parameters["net"]
    if n_members(parameters["n_members"], 0) == 1:
        return
    if WEIGHTINGS[parameters["member_weights"]]:
        check_left_out(f"member_weights={parameters['member_weights']!r}", parameters["augment"], parameters["prior"])
    if parameters["prior"] is not None or isinstance(given, FrozenEstimator | torch.nn.Module):
        raise UnsupportedCombinationError(
            f"n_members={parameters['n_members']} nets would all be the same: they start at the weights of "
            f"net={type(given).__name__}(…) or of the previous posterior. Give the module's class and no prior=, or "
            "n_members=1."
        )


def n_members(value: object, n_folds: int) -> int:
    """Of a mixture: as many as asked for, or all that a fit has, with nets of so many folds beside that of all rows.

    Examples
    --------
    >>> n_members("auto", 3), n_members(2, 3)
    (4, 2)
    """
    return lookup("n_members", value, {AUTO: 1 + n_folds}) if isinstance(value, str) else count("n_members", value)


def categorical(value: Any) -> Categorical:
    """Which columns are categorical: by their type, none, or by names, positions or a mask.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> categorical("from_dtype").by_type, categorical([0, 2]).columns
    (True, (0, 2))
    >>> categorical("colour")
    Traceback (most recent call last):
        ...
    ValueError: categorical_features='colour' has to be 'from_dtype', None, or a list of column names or positions, or \
a mask.
    """
    if isinstance(value, str) and value == FROM_DTYPE:
        return Categorical(True)
    given = () if value is None else value
    columns = given.tolist() if isinstance(given, np.ndarray) else given
    valid = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not (valid and all(isinstance(column, str | Integral | np.bool_) for column in columns)):
        raise ValueError(
            f"categorical_features={value!r} has to be {FROM_DTYPE!r}, None, or a list of column names or positions, "
            "or a mask."
        )
    return Categorical(False, tuple(columns))


def trained_as(option: str, value: object) -> object:
    """What the training makes of an option: a choice by leave-one-out comes after it, and it goes by the evidence.

    Examples
    --------
    >>> trained_as("prior_precision", "loo"), trained_as("lr", 0.1)
    ('evidence', 0.1)
    """
    chosen = option in ("prior_precision", "sigma_noise") and isinstance(value, str) and value == LOO
    return EVIDENCE if chosen else value


def temperature(value: object) -> float | dict[str, float]:
    """A positive number, or one for each of some layers or tensors by name; the names are looked up in the net.

    Examples
    --------
    >>> temperature({"2.bias": 3})
    {'2.bias': 3.0}
    """
    if isinstance(value, Mapping):
        return {str(name): positive(f"temperature[{name!r}]", number) for name, number in value.items()}
    return positive("temperature", value)


def _noise(parameters: Mapping[str, Any], likelihood: Likelihood) -> Choice:
    """The noise, or one that counts for nothing where the likelihood has none."""
    given = parameters.get("sigma_noise", AUTO)
    found = choice("sigma_noise", given, list(DISPERSION_RULES), array=True)
    if likelihood.has_dispersion:
        return found
    if found.rule not in BY_EVIDENCE:
        raise UnsupportedCombinationError(
            f"sigma_noise={given!r} cannot be used with likelihood={parameters['likelihood']!r}, whose spread follows "
            f"from its mean. Use likelihood='gaussian', or leave sigma_noise={AUTO!r}."
        )
    return Choice(np.asarray(1.0), "")


def class_outputs(parameters: Mapping[str, Any], X: np.ndarray, n_classes: int) -> int:
    """How many outputs tell the classes apart: one a class, or one logit for two.

    Parameters
    ----------
    parameters : mapping
        A classifier's.
    X : ndarray of shape (n, d)
        Rows on which a given net can be tried.
    n_classes : int

    Raises
    ------
    ValueError
        When one logit is asked for and there are more classes.
    """
    single = lookup("likelihood", parameters["likelihood"], SINGLE_LOGIT)
    if binary_only(parameters["likelihood"], parameters["net"]):
        if n_classes != 2:
            raise ValueError(
                "Only binary classification is supported with one logit (likelihood='bernoulli', or a net with "
                f"BCEWithLogitsLoss). The type of the target is multiclass: {n_classes} classes. Use "
                "likelihood='categorical', and a net with one output a class."
            )
        return 1
    if single is None and n_classes == 2 and parameters["net"] is not None:
        return 1 if has_one_output(parameters["net"], X, n_classes) else n_classes
    return n_classes


def binary_only(likelihood: object, net: Any) -> bool:
    """Whether two classes share one logit, so that there can be no more.

    Examples
    --------
    >>> binary_only("bernoulli", None), binary_only("auto", None)
    (True, False)
    """
    single = SINGLE_LOGIT.get(likelihood, False) if isinstance(likelihood, str) else False
    return bool(single) or (single is None and names_criterion(net, (torch.nn.BCEWithLogitsLoss,)))


def for_counts(likelihood: object) -> bool:
    """Whether targets have to be zero at least.

    Examples
    --------
    >>> for_counts("poisson"), for_counts("gaussian")
    (True, False)
    """
    return isinstance(likelihood, str) and LIKELIHOODS.get(likelihood, Likelihood).least_target == 0


def check_targets(likelihood: Likelihood, targets: np.ndarray) -> None:
    """Whether the likelihood can have made these targets.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_targets(LIKELIHOODS["poisson"](), np.array([[2.0], [-1.0]]))
    Traceback (most recent call last):
        ...
    ValueError: y holds -1; likelihood='poisson' is for counts, 0 and above. For numbers of either sign use \
likelihood='gaussian'.
    """
    if (targets < likelihood.least_target).any():
        raise ValueError(
            f"y holds {targets.min():g}; likelihood='poisson' is for counts, 0 and above. For numbers of either sign "
            "use likelihood='gaussian'."
        )


def check_post_hoc(given: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Parameters that neither the training nor the pass over the data depends on.

    Parameters
    ----------
    given : mapping
        What is to change.
    parameters : mapping
        All parameters of the estimator.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_post_hoc({"lr": 0.1}, {"lr": None, "temperature": 1.0})
    Traceback (most recent call last):
        ...
    ValueError: lr=0.1 changes the training or the curvature, which refit_laplace keeps. Use set_params and fit; \
with memory= a training is not repeated for Laplace parameters.
    """
    for name, value in given.items():
        lookup("refit_laplace's parameter", name.split("__")[0], parameters)
        if name not in POST_HOC:
            raise ValueError(
                f"{name}={value!r} changes the training or the curvature, which refit_laplace keeps. Use set_params "
                "and fit; with memory= a training is not repeated for Laplace parameters."
            )


def class_weights(given: Any, classes: np.ndarray, index: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The factor of each class on the weights of its rows, shape (n_classes,).

    Parameters
    ----------
    given : None, "balanced" or dict
    classes : ndarray of shape (n_classes,)
    index : ndarray of shape (n,)
        Class of each row.
    weights : ndarray of shape (n,)

    Raises
    ------
    ValueError
        For another name, an unknown label in the dict, a weight that is negative or not finite.

    Examples
    --------
    >>> class_weights("balanced", np.array(["a", "b"]), np.array([0, 0, 0, 1]), np.ones(4)).round(3)
    array([0.667, 2.   ])
    """
    if given is None:
        return np.ones(len(classes))
    if isinstance(given, Mapping):
        labels = classes.tolist()
        if unknown := [label for label in given if label not in labels]:
            raise ValueError(f"class_weight names {unknown}, which are not among the classes {labels}.")
        found = np.array([as_float(given.get(label, 1.0), "class_weight") for label in labels])
        if not (np.isfinite(found).all() and (found >= 0).all()):
            raise ValueError(f"class_weight={given!r} has to hold finite numbers that are not negative.")
        return found
    lookup("class_weight", given, {BALANCED: None})
    totals = np.bincount(index, weights=weights, minlength=len(classes))
    present = totals > 0
    return np.where(present, totals.sum() / (present.sum() * np.where(present, totals, 1.0)), 1.0)


def check_streaming_weights(class_weight: Any) -> None:
    """Balanced weights need all rows at once.

    Examples
    --------
    >>> check_streaming_weights({"yes": 2.0})
    """
    if isinstance(class_weight, str):
        lookup("class_weight", class_weight, {BALANCED: None})
        raise ValueError(
            f"class_weight={class_weight!r} weighs all rows against each other and cannot be used with partial_fit and "
            "forget, which see a part of them; give the weights as a dict {label: weight}."
        )


def check_capabilities(
    curvature_name: str, rule: CurvatureRule, structure_name: str, structure: type[Curvature] | None
) -> None:
    """A structure has to find in the rule a form that it can take.

    Raises
    ------
    UnsupportedCombinationError
    """
    if structure is not None and not structure.accepts & rule.provides:
        able = sorted(name for name, other in STRUCTURES.items() if other.accepts & rule.provides)
        raise UnsupportedCombinationError(
            f"hessian_structure={structure_name!r} cannot store curvature={curvature_name!r}: it needs "
            f"{' or '.join(sorted(structure.accepts))}, the curvature provides {', '.join(sorted(rule.provides))}. "
            f"Use hessian_structure in {able}, or curvature='ggn'."
        )


def variance_of_kind(moments: Predictive, kind: str) -> Tensor:
    """Total, epistemic or aleatoric variance (n, C)."""
    by_kind = {
        "total": moments.total_variance,
        "epistemic": moments.epistemic_variance,
        "aleatoric": moments.aleatoric_variance,
    }
    return lookup("kind", kind, by_kind)


def _device(name: object, net: Any) -> torch.device:
    """The device of this name; where it is left open that of the given net, else the CPU."""
    named = device_of(net) or "cpu" if str(name) == "auto" else str(name)
    try:
        device = torch.device(named)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is not known; expected 'auto', 'cpu' or 'cuda'.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={name!r} is not supported; expected 'auto', 'cpu' or 'cuda'.")
    return device


def check_device(device: torch.device) -> None:
    """Whether it is there to train on; a trained model predicts without it.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_device(torch.device("cpu"))
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device='{device}' was asked for, but torch finds no CUDA device; use device='cpu'.")


def _check_net_options(parameters: Mapping[str, Any]) -> None:
    """Options that the given net cannot take are refused, not ignored."""
    net = parameters["net"]
    if net is not None:
        # Without pieces a net sees the numbers, as any does.
        ours = {name: parameters[name] for name in BUILT_IN_ONLY} | {"n_bins": parameters["n_bins"] or AUTO}
        changed = [name for name, v in ours.items() if isinstance(v, np.ndarray) or v != BUILT_IN_ONLY[name]]
        if changed:
            raise ValueError(
                f"{' and '.join(changed)} are options of the built-in net; with net= given, set them there."
            )
    if isinstance(net, FrozenEstimator):
        given = [name for name in ("max_epochs", "lr", "batch_size") if parameters[name] is not None]
        if given:
            raise ValueError(f"{' and '.join(given)} cannot be used with a frozen net, which is not trained.")


def _subset(parameters: Mapping[str, Any], seed: int) -> Subset:
    """By name, by names of tensors, or by their masks; the names themselves are looked up in the traced network."""
    value = parameters["subset_of_weights"]
    score = lookup("subnetwork", parameters["subnetwork"], SCORES)
    scored = Scored(score, count_or_share("n_subnetwork_weights", parameters["n_subnetwork_weights"]), seed)
    if isinstance(value, str):
        subsets = {name: kind if kind is Subnetwork else kind() for name, kind in SUBSETS.items()}
        try:
            subset: Any = lookup("subset_of_weights", value, subsets)
        except ValueError as error:
            raise ValueError(f"{error} Or give a list of tensors or modules by name, or a dict of masks.") from None
        if subset is Subnetwork:
            return scored
    elif isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        masks = {name: np.asarray(m.cpu() if isinstance(m, Tensor) else m) for name, m in value.items()}
        if wrong := [name for name, mask in masks.items() if mask.dtype != bool]:
            raise ValueError(f"subset_of_weights has masks for {wrong} that do not hold True and False alone.")
        subset = Subnetwork({name: torch.tensor(mask) for name, mask in masks.items()})
    elif isinstance(value, Sequence) and value and all(isinstance(name, str) for name in value):
        subset = Subnetwork(dict.fromkeys(value))
    else:
        raise ValueError(
            f"subset_of_weights={value!r} has to be one of {', '.join(map(repr, SUBSETS))}, a list of tensors "
            "or modules by name, or a dict of masks of tensors."
        )
    if changed := [name for name, default in SUBNETWORK_ONLY.items() if parameters[name] != default]:
        raise ValueError(f"{' and '.join(changed)} would be ignored; they go with subset_of_weights='subnetwork'.")
    return subset


def _check_subset(subset: Subset, rule: CurvatureRule, structure_name: str, structure: type[Curvature] | None) -> None:
    """A structure of whole layers has no room for single weights, and a matrix of all weights is not cut."""
    if not rule.provides & subset.provides:
        raise UnsupportedCombinationError(
            "subset_of_weights selects single weights of a tensor, whose rows this curvature does not provide. Use "
            "curvature='ggn', or name whole tensors."
        )
    if structure is not None and not structure.accepts & subset.provides:
        able = sorted(name for name, other in STRUCTURES.items() if other.accepts & subset.provides)
        raise UnsupportedCombinationError(
            f"hessian_structure={structure_name!r} holds whole layers, and subset_of_weights selects single weights of "
            f"them. Use hessian_structure in {able}, or name whole tensors."
        )


def _link(predictive: type[PosteriorPredictive], parameters: Mapping[str, Any]) -> type[Link]:
    """The link; a predictive of samples has one of its own, and another one that was asked for is refused."""
    name = parameters["link"]
    link = lookup("link", name, LINKS)
    if predictive.takes_link:
        return link
    if name not in (DEFAULT_LINK, SAMPLE_LINK):
        raise UnsupportedCombinationError(
            f"link={name!r} cannot be used with predictive={parameters['predictive']!r}: it makes probabilities of a "
            "Gaussian over the logits, and this predictive averages the softmax of its samples. Use "
            f"predictive='glm', or leave link={DEFAULT_LINK!r}."
        )
    return LINKS[SAMPLE_LINK]
