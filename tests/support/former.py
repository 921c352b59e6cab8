"""Translation of former, flat parameters to option objects.

Earlier versions had an argument per option, such as ``damping="ritter"`` next to ``hessian_structure="kron"``.
:func:`current` translates these arguments, so tests can vary single options. ``docs/changelog.md`` lists them.
"""

from __future__ import annotations

from typing import Any

from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge

from sklearn_laplace import options

STRUCTURES = {
    "block_diagonal": options.BlockDiagonal,
    "kron": options.Kron,
    "ekfac": options.EKFAC,
    "low_rank": options.LowRank,
    "low_rank_diag": options.LowRankDiag,
}
OF_OBJECTS = {
    "curvature": {"n_fisher_samples": "n_samples"},
    "subset_of_weights": {"subnetwork": "score", "n_subnetwork_weights": "size"},
}
KINDS = {
    "mc_fisher": options.MCFisher,
    "subnetwork": options.Subnetwork,
}
PREVIOUS = FrozenEstimator(Ridge())  # stands for a fitted estimator
FORMER: list[dict[str, Any]] = [
    {"hessian_structure": "block_diagonal", "bias": "separate"},
    {"hessian_structure": "kron", "damping": "ritter"},
    {"hessian_structure": "kron", "damping": "ritter", "bias": "separate", "weight_sharing": "reduce"},
    {"hessian_structure": "ekfac", "weight_sharing": "reduce", "bias": "separate"},
    {"hessian_structure": "low_rank", "rank": 7},
    {"hessian_structure": "low_rank_diag", "rank": 7, "bias": "separate", "weight_sharing": "reduce"},
    {"curvature": "mc_fisher", "n_fisher_samples": 5},
    {"subset_of_weights": "subnetwork", "subnetwork": "magnitude", "n_subnetwork_weights": 50},
    {"prior": None, "prior_structure": "ard"},
    {"prior": None, "prior_mean": 0.5},
    {"prior": None, "prior_mean": {"5.bias": [1.0]}},
    {"prior": None, "prior_structure": "layer", "prior_mean": 0.5},
    {"prior": PREVIOUS},
    {"prior": PREVIOUS, "prior_structure": "layer", "prior_mean": 0.5},
    {"predictive": "mc", "n_samples": 1000},
    {"n_members": 5, "member_weights": "loo"},
]
"""Former parameters of a regressor, each option with a value other than its default."""
FORMER_OF_CLASSIFIERS: list[dict[str, Any]] = [
    {"link": "mc", "n_samples": 1000},
    {"link": "bridge", "n_samples": 1000},
    {"predictive": "mc", "link": "mc", "n_samples": 1000},
]
"""Former parameters of classifiers only."""


def current(**former: Any) -> dict[str, Any]:
    """Return current parameters for former ones; current parameters are unchanged.

    Examples
    --------
    >>> current(hessian_structure="kron", damping="ritter", random_state=0)
    {'random_state': 0, 'hessian_structure': Kron(damping='ritter')}
    """
    parameters = dict(former)
    values = {
        name: parameters.pop(name) for name in ("bias", "weight_sharing", "rank", "damping") if name in parameters
    }
    if values:
        parameters["hessian_structure"] = STRUCTURES[parameters.pop("hessian_structure", "kron")](**values)
    for parameter, names in OF_OBJECTS.items():
        values = {new: parameters.pop(old) for old, new in names.items() if old in parameters}
        if values and parameter not in parameters:  # as in set_params
            parameters |= {f"{parameter}__{name}": value for name, value in values.items()}
        elif values and isinstance(parameters[parameter], str) and parameters[parameter] in KINDS:
            parameters[parameter] = KINDS[parameters[parameter]](**values)
    if "n_samples" in parameters:
        n_samples = parameters.pop("n_samples")
        if parameters.get("predictive") == "mc":
            parameters["predictive"] = options.MonteCarlo(n_samples)
        else:
            parameters["link"] = options.Link(parameters.get("link", "moderated"), n_samples)
    if "member_weights" in parameters:
        parameters["n_members"] = options.Members(parameters.pop("n_members", "auto"), parameters.pop("member_weights"))
    values = {name: parameters.pop(f"prior_{name}") for name in ("structure", "mean") if f"prior_{name}" in parameters}
    if values:
        previous = {"previous": parameters["prior"]} if parameters.get("prior") is not None else {}
        parameters["prior"] = options.GaussianPrior(**values, **previous)
        if set(values) == {"structure"} and not previous:
            parameters["prior"] = values["structure"]
    return parameters
