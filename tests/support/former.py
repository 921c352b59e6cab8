"""Parameters in their former, flat form, and as they are now.

Versions before the option objects had one argument per option, such as ``damping="ritter"`` beside
``hessian_structure="kron"``. :func:`current` translates them, so that tests can vary one option at a time. The table in
``docs/changelog.md`` says the same.
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
    "prior_precision": {"prior_precision_grid": "grid", "cv": "cv", "scoring": "scoring"},
}
KINDS = {
    "mc_fisher": options.MCFisher,
    "subnetwork": options.Subnetwork,
    "cv": options.CrossValidated,
    "validation": options.Validated,
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
    {"prior_precision": "cv", "prior_precision_grid": [0.1, 1.0], "cv": 3, "scoring": "r2"},
    {"prior_precision": "validation", "prior_precision_grid": [0.1, 1.0], "scoring": "r2"},
    {"prior": None, "prior_structure": "ard"},
    {"prior": None, "prior_mean": 0.5},
    {"prior": None, "prior_mean": {"5.bias": [1.0]}},
    {"prior": None, "prior_structure": "layer", "prior_mean": 0.5},
    {"prior": PREVIOUS},
    {"prior": PREVIOUS, "prior_structure": "layer", "prior_mean": 0.5},
    {"augment": abs, "n_augmentations": 10},
    {"predictive": "mc", "n_samples": 1000},
    {"n_members": 5, "member_weights": "loo"},
]
"""Former parameters of a regressor, each option at another value than its default."""
FORMER_OF_CLASSIFIERS: list[dict[str, Any]] = [
    {"link": "mc", "n_samples": 1000},
    {"link": "bridge", "n_samples": 1000},
    {"predictive": "mc", "link": "mc", "n_samples": 1000},
]
"""Those of a classifier alone."""


def current(**former: Any) -> dict[str, Any]:
    """Return the present parameters for former ones; present ones stay as they are.

    Examples
    --------
    >>> current(hessian_structure="kron", damping="ritter", random_state=0)
    {'random_state': 0, 'hessian_structure': Kron(damping='ritter')}
    """
    found = dict(former)
    own = {name: found.pop(name) for name in ("bias", "weight_sharing", "rank", "damping") if name in found}
    if own:
        found["hessian_structure"] = STRUCTURES[found.pop("hessian_structure", "kron")](**own)
    for parameter, names in OF_OBJECTS.items():
        own = {new: found.pop(old) for old, new in names.items() if old in found}
        if own and parameter not in found:  # as in set_params
            found |= {f"{parameter}__{name}": value for name, value in own.items()}
        elif own and isinstance(found[parameter], str) and found[parameter] in KINDS:
            found[parameter] = KINDS[found[parameter]](**own)
    if "n_augmentations" in found:
        found["augment"] = options.Augmentation(found["augment"], found.pop("n_augmentations"))
    if "n_samples" in found:
        n_samples = found.pop("n_samples")
        if found.get("predictive") == "mc":
            found["predictive"] = options.MonteCarlo(n_samples)
        else:
            found["link"] = options.Link(found.get("link", "moderated"), n_samples)
    if "member_weights" in found:
        found["n_members"] = options.Members(found.pop("n_members", "auto"), found.pop("member_weights"))
    own = {name: found.pop(f"prior_{name}") for name in ("structure", "mean") if f"prior_{name}" in found}
    if own:
        previous = {"previous": found["prior"]} if found.get("prior") is not None else {}
        found["prior"] = options.GaussianPrior(**own, **previous)
        if set(own) == {"structure"} and not previous:
            found["prior"] = own["structure"]
    return found
