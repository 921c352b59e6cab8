"""Option objects: parameter values with options of their own, like scikit-learn's kernels.

A string such as ``hessian_structure="kron"`` selects a variant. An object such as ``Kron(damping="ritter")`` also sets
options that only this variant has. Objects have ``get_params`` and ``set_params``, so searches can set their options:
``GridSearchCV(LaplaceRegressor(hessian_structure=Kron()), {"hessian_structure__damping": ["exact", "ritter"]})``.

:func:`expanded` translates an estimator's parameters into flat internal options, which the rest of the package reads.
"""

from collections.abc import Mapping
from numbers import Number
from typing import Any, ClassVar

from sklearn.base import BaseEstimator

from .._validation.arguments import explained
from ..laplace.structures._base import RANK

DEFAULTS: dict[str, Any] = {
    "bias": "folded",
    "weight_sharing": "expand",
    "rank": RANK,
    "damping": "exact",
    "n_fisher_samples": 1,
    "subnetwork": "variance",
    "n_subnetwork_weights": 0.1,
    "n_samples": 100,
    "member_weights": "uniform",
    "prior_structure": "scalar",
    "prior_mean": 0.0,
}
"""Internal options, with the values that apply without an option object."""


class Variant(BaseEstimator):
    """Base class of the option objects below."""

    parameters: ClassVar[tuple[str, ...]]
    """Parameters of the estimators that accept the object."""
    value: ClassVar[str | None] = None
    """The string that selects the same variant; None if one of the object's options holds this string."""
    internal: ClassVar[dict[str, str]]
    """Name of the internal option for each option of the object."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        explained(cls)

    def expanded(self, name: str) -> dict[str, Any]:
        """Return the internal options and, unless it is None, ``value`` under the key ``name``."""
        inner = {internal: getattr(self, parameter) for parameter, internal in self.internal.items()}
        return inner if self.value is None else {name: self.value, **inner}


class BlockDiagonal(Variant):
    """Hessian structure with one dense block per layer.

    Parameters
    ----------
    bias : {"folded", "separate"}, default="folded"
        "folded": the bias is treated as a column of its layer's weight. "separate": the bias has its own dense block.

    Examples
    --------
    >>> from sklearn_laplace.options import BlockDiagonal
    >>> from sklearn_laplace import LaplaceRegressor
    >>> LaplaceRegressor(hessian_structure=BlockDiagonal(bias="separate")).get_params()["hessian_structure__bias"]
    'separate'
    """

    parameters = ("hessian_structure",)
    value = "block_diagonal"
    internal: ClassVar[dict[str, str]] = {"bias": "bias"}

    def __init__(self, bias: str = "folded") -> None:
        self.bias = bias


class Kron(Variant):
    """Hessian structure with two Kronecker factors per layer (K-FAC; Ritter et al. 2018).

    Parameters
    ----------
    damping : {"exact", "ritter"}, default="exact"
        How the prior precision δ enters the posterior precision. "exact": δ is added. "ritter": √δ is added to each
        factor (Ritter et al. 2018, eq. 9), which lowers variances; the evidence is that of "exact".
    bias : {"folded", "separate"}, default="folded"
        As in :class:`BlockDiagonal`.
    weight_sharing : {"expand", "reduce"}, default="expand"
        For layers that use their weights at several positions (convolutions, sequences). "expand": each position counts
        as a row. "reduce": output gradients are first summed over positions, and inputs averaged. This is cheaper, and
        intended for nets that end with an average over positions.

    Examples
    --------
    >>> from sklearn_laplace.options import Kron
    >>> from sklearn_laplace import LaplaceRegressor
    >>> LaplaceRegressor(hessian_structure=Kron(damping="ritter"))
    LaplaceRegressor(hessian_structure=Kron(damping='ritter'))
    """

    parameters = ("hessian_structure",)
    value = "kron"
    internal: ClassVar[dict[str, str]] = {"damping": "damping", "bias": "bias", "weight_sharing": "weight_sharing"}

    def __init__(self, damping: str = "exact", bias: str = "folded", weight_sharing: str = "expand") -> None:
        self.damping = damping
        self.bias = bias
        self.weight_sharing = weight_sharing


class EKFAC(Variant):
    """Hessian structure with the eigenvectors of :class:`Kron`, and exact second moments along them.

    Parameters
    ----------
    bias, weight_sharing
        See :class:`Kron`.

    Examples
    --------
    >>> from sklearn_laplace.options import EKFAC
    >>> EKFAC(weight_sharing="reduce").get_params()
    {'bias': 'folded', 'weight_sharing': 'reduce'}
    """

    parameters = ("hessian_structure",)
    value = "ekfac"
    internal: ClassVar[dict[str, str]] = {"bias": "bias", "weight_sharing": "weight_sharing"}

    def __init__(self, bias: str = "folded", weight_sharing: str = "expand") -> None:
        self.bias = bias
        self.weight_sharing = weight_sharing


class LowRankDiag(Variant):
    """Hessian structure with leading eigenpairs of :class:`EKFAC` per layer and the exact diagonal (Lee et al. 2020).

    Parameters
    ----------
    rank : int, default=100
        Number of eigenpairs kept in each layer.
    bias, weight_sharing
        See :class:`Kron`.

    Examples
    --------
    >>> from sklearn_laplace.options import LowRankDiag
    >>> LowRankDiag(rank=20)
    LowRankDiag(rank=20)
    """

    parameters = ("hessian_structure",)
    value = "low_rank_diag"
    internal: ClassVar[dict[str, str]] = {"rank": "rank", "bias": "bias", "weight_sharing": "weight_sharing"}

    def __init__(self, rank: int = RANK, bias: str = "folded", weight_sharing: str = "expand") -> None:
        self.rank = rank
        self.bias = bias
        self.weight_sharing = weight_sharing


class LowRank(Variant):
    """Hessian structure with the leading eigenpairs over all weights.

    Parameters
    ----------
    rank : int, default=100
        Number of eigenpairs of the curvature.

    Examples
    --------
    >>> from sklearn_laplace.options import LowRank
    >>> LowRank(rank=20)
    LowRank(rank=20)
    """

    parameters = ("hessian_structure",)
    value = "low_rank"
    internal: ClassVar[dict[str, str]] = {"rank": "rank"}

    def __init__(self, rank: int = RANK) -> None:
        self.rank = rank


class MCFisher(Variant):
    """Fisher matrix as the curvature, estimated with targets drawn from the model.

    Parameters
    ----------
    n_samples : int, default=1
        Number of targets drawn per row. The draws of a row depend on ``random_state``, but not on other rows.

    Examples
    --------
    >>> from sklearn_laplace.options import MCFisher
    >>> MCFisher(n_samples=5)
    MCFisher(n_samples=5)
    """

    parameters = ("curvature",)
    value = "mc_fisher"
    internal: ClassVar[dict[str, str]] = {"n_samples": "n_fisher_samples"}

    def __init__(self, n_samples: int = 1) -> None:
        self.n_samples = n_samples


class Subnetwork(Variant):
    """Posterior over a subset of single weights (Daxberger et al. 2021).

    Parameters
    ----------
    score : {"variance", "magnitude", "random"}, default="variance"
        Selection of the weights. "variance": those with the largest marginal variance in a diagonal posterior over all
        weights. "magnitude": the largest weights. "random": a random choice, seeded by ``random_state``.
    size : int or float, default=0.1
        Number of weights. A float is a share: 1.0 means all weights.

    Examples
    --------
    >>> from sklearn_laplace.options import Subnetwork
    >>> Subnetwork(size=50)
    Subnetwork(size=50)
    """

    parameters = ("subset_of_weights",)
    value = "subnetwork"
    internal: ClassVar[dict[str, str]] = {"score": "subnetwork", "size": "n_subnetwork_weights"}

    def __init__(self, score: str = "variance", size: float = 0.1) -> None:
        self.score = score
        self.size = size


class MonteCarlo(Variant):
    """Predictive that averages the net over weight samples.

    Parameters
    ----------
    n_samples : int, default=100
        Number of weight samples, which are the same for all rows.

    Examples
    --------
    >>> from sklearn_laplace.options import MonteCarlo
    >>> MonteCarlo(n_samples=1000)
    MonteCarlo(n_samples=1000)
    """

    parameters = ("predictive",)
    value = "mc"
    internal: ClassVar[dict[str, str]] = {"n_samples": "n_samples"}

    def __init__(self, n_samples: int = 100) -> None:
        self.n_samples = n_samples


class Link(Variant):
    """Link of a classifier, with the number of draws.

    Parameters
    ----------
    name : str, default="moderated"
        A value of ``link``.
    n_samples : int, default=100
        Number of quasi-random draws of the logits. ``link="mc"`` and ``predict_entropy`` use them, and so does
        ``predict_std`` for links whose variance has no closed form.

    Examples
    --------
    >>> from sklearn_laplace.options import Link
    >>> Link("mc", n_samples=1000)
    Link(n_samples=1000, name='mc')
    """

    parameters = ("link",)
    internal: ClassVar[dict[str, str]] = {"name": "link", "n_samples": "n_samples"}

    def __init__(self, name: str = "moderated", n_samples: int = 100) -> None:
        self.name = name
        self.n_samples = n_samples


class Members(Variant):
    """Number of ensemble members, and rule for their weights.

    Parameters
    ----------
    n : "auto" or int, default="auto"
        Number of members.
    weights : {"uniform", "loo", "evidence"}, default="uniform"
        "uniform": equal weights. In a joint ensemble (see the page "Parameters in detail"), nets of the same
        partition into folds have equal weights; held-out rows determine each partition's weight. "loo": weights that
        maximise the leave-one-out density of the training rows (stacking; Yao et al. 2018). "evidence": weights in
        proportion to the evidence of each member.

    Examples
    --------
    >>> from sklearn_laplace.options import Members
    >>> Members(5, weights="loo")
    Members(n=5, weights='loo')
    """

    parameters = ("n_members",)
    internal: ClassVar[dict[str, str]] = {"n": "n_members", "weights": "member_weights"}

    def __init__(self, n: Any = "auto", weights: str = "uniform") -> None:
        self.n = n
        self.weights = weights


class GaussianPrior(Variant):
    """Gaussian prior over the weights: groups that share a precision, and a mean or a previous posterior.

    Parameters
    ----------
    structure : {"scalar", "layer", "tensor", "ard", "parameter"}, default="scalar"
        Weights that share a prior precision. "scalar": all. "layer", "tensor": those of a layer, or of a parameter
        tensor. "ard": those of an input column in the first layer, and of each tensor elsewhere (automatic relevance
        determination). "parameter": every weight has its own.
    mean : float or dict, default=0.0
        One number, or arrays keyed by the names of parameter tensors (zero elsewhere), such as a ``state_dict()``.
    previous : None or FrozenEstimator, default=None
        If ``FrozenEstimator(fitted estimator)``, the posterior of this estimator is the prior (Ritter et al. 2018b).

    Examples
    --------
    >>> from sklearn_laplace.options import GaussianPrior
    >>> GaussianPrior("layer", mean=1.0)
    GaussianPrior(mean=1.0, structure='layer')
    """

    parameters = ("prior",)
    internal: ClassVar[dict[str, str]] = {"structure": "prior_structure", "mean": "prior_mean", "previous": "prior"}

    def __init__(self, structure: str = "scalar", mean: Any = 0.0, previous: Any = None) -> None:
        self.structure = structure
        self.mean = mean
        self.previous = previous


VARIANTS: tuple[type[Variant], ...] = (
    BlockDiagonal,
    Kron,
    EKFAC,
    LowRankDiag,
    LowRank,
    MCFisher,
    Subnetwork,
    MonteCarlo,
    Link,
    Members,
    GaussianPrior,
)


def expanded(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Translate an estimator's parameters, ``get_params(deep=False)``, into flat internal options.

    Raises ``ValueError`` for an object of another parameter, for a class, or for different values of ``n_samples``.
    """
    flat = {**DEFAULTS, **parameters}
    _check_sample_counts(parameters)
    for name, value in parameters.items():
        if isinstance(value, Variant):
            if name not in value.parameters:
                raise ValueError(f"{name}={value!r} is not supported; {value!r} is a value of {value.parameters[0]}.")
            flat |= value.expanded(name)
        elif isinstance(value, type) and issubclass(value, Variant):
            raise ValueError(f"{name}={value.__name__} is a class; pass an object: {name}={value.__name__}(…).")
    return {**flat, **_prior(parameters.get("prior"))}


def _check_sample_counts(parameters: Mapping[str, Any]) -> None:
    counts = {variant.n_samples for variant in parameters.values() if isinstance(variant, MonteCarlo | Link)}
    if parameters.get("predictive") == "mc":
        counts.add(DEFAULTS["n_samples"])
    if len(counts) > 1:
        raise ValueError(f"predictive and link have different n_samples, {sorted(counts)}; give both the same number.")


def check_inner_names(changes: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse options such as ``hessian_structure__damping`` in ``set_params`` if the parameter has no object."""
    for name, value in changes.items():
        parameter, _, inner = name.partition("__")
        outer = changes.get(parameter, present.get(parameter))
        if inner and parameter in present and isinstance(outer, str | Number | None):
            kinds = [kind.__name__ for kind in VARIANTS if parameter in kind.parameters and inner in kind.internal]
            example = f"{kinds[0]}({inner}={value!r})" if kinds else "…"
            raise ValueError(
                f"{name}={value!r} sets an option of {parameter}={outer!r}, which has none. Use an object, such as "
                f"{parameter}={example}."
            )


def _prior(prior: object) -> dict[str, Any]:
    """Return the internal options of a ``prior`` given as a structure or mean; otherwise an empty dict."""
    if isinstance(prior, str):
        return {"prior": None, "prior_structure": prior}
    if isinstance(prior, Mapping) or (isinstance(prior, Number) and not isinstance(prior, bool)):
        return {"prior": None, "prior_mean": prior}
    return {}
