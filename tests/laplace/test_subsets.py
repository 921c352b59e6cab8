"""Subsets of weights by name or mask, against the dense posterior of the selected weights."""

from __future__ import annotations

import functools
import importlib
import pickle
import re

import contracts
import nets
import numpy as np
import oracles
import pytest
import test_network
import torch
import trainings
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch.utils.data import DataLoader, TensorDataset

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.evidence import log_evidence
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.predictives import GLM
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import Subnetwork, largest

# torch warns that weight norm has no vmap rule and is slower
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

RNG = np.random.default_rng(43)
X, X_NEW = RNG.normal(size=(60, 3)), 2 * RNG.normal(size=(7, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=60)
LABELS = np.array(["no", "yes", "maybe"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
SMALL = {"hidden_layer_sizes": (5,), "map_prior_precision": 1.0, "random_state": 0, "memory": trainings.MEMORY}
NORMAL = {**SMALL, "likelihood": "gaussian"}
NAMES = ("2.weight", "2.bias", "5.weight", "5.bias")
"""Parameters of the built-in net with a single hidden layer."""
OF_ROWS = sorted(name for name, kind in STRUCTURES.items() if "rows" in kind.accepts)


def random_masks(network: Network, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random masks with half of the elements of each tensor, at least 1."""
    generator = torch.Generator().manual_seed(seed)
    masks = {}
    for name in network.parameter_names:
        scores = torch.rand(network.layout.shapes[name], generator=generator)
        masks |= largest({name: scores}, max(scores.numel() // 2, 1))
    return masks


def chosen(names, masks: dict[str, torch.Tensor]) -> torch.Tensor:
    """Positions of the masked elements among all elements of the named tensors, in the oracles' order."""
    return torch.cat([masks[name].flatten() for name in names]).nonzero()[:, 0]


def estimators():
    return (LaplaceRegressor(**NORMAL), Y), (LaplaceClassifier(**SMALL), LABELS)


@functools.cache
def references(structure: str, subset: str) -> list[tuple[np.ndarray, float]]:
    """Standard deviations and evidence of both kinds of estimators, for a subset given as a string."""
    fits = [
        model.set_params(hessian_structure=structure, subset_of_weights=subset).fit(X, y) for model, y in estimators()
    ]
    return [(model.predict_std(X_NEW), model.log_marginal_likelihood_value_) for model in fits]


# ---------------------------------------------------------------------- the network of some elements


@pytest.mark.parametrize("case", test_network.CASES)
def test_the_jacobian_of_some_elements_is_their_columns(case):
    """For factored and other layers; θ, the groups of the prior and new weights refer to the same elements."""
    module = test_network.CASES[case]()
    x = test_network.X
    whole = trace(module, x)
    masks = random_masks(whole)
    part = Subnetwork(masks).of(whole, x)
    index = contracts.oracle_order(whole)
    mask = torch.cat([masks[name].flatten() for name in whole.parameter_names])
    # positions of the masked elements in the oracles' order, sorted as in the package
    kept = index.argsort()[mask[index.argsort()]]
    truth = oracles.jacobian(module, whole.parameter_names, x)
    outputs, jacobian = part.jacobian(x)
    torch.testing.assert_close(jacobian.rows(), truth[..., kept], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(outputs, whole(x), rtol=1e-12, atol=1e-12)
    flat = torch.cat([whole.tensors(whole.theta)[name].flatten() for name in whole.parameter_names])
    assert torch.equal(part.theta, flat[kept])
    assert part.n_parameters == int(mask.sum())
    theta = part.theta + torch.linspace(-1, 1, part.n_parameters, dtype=torch.float64)
    moved = flat.clone()
    moved[kept] = theta
    expected = oracles.with_parameters(module, whole.parameter_names, moved)
    torch.testing.assert_close(part.with_parameters(theta)(x), oracles.outputs(expected, x), rtol=1e-12, atol=1e-12)
    pair = part.tensors(torch.stack([part.theta, theta]))
    assert all(torch.equal(pair[name][0], tensor) for name, tensor in whole.tensors(whole.theta).items())
    prior = GROUPINGS["tensor"].prior(part)
    assert prior.names == whole.parameter_names
    assert prior.counts.tolist() == [int(masks[name].sum()) for name in prior.names]
    natural = part.natural_precisions(prior)
    torch.testing.assert_close(natural, whole.natural_precisions(GROUPINGS["tensor"].prior(whole)))


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", OF_ROWS)
def test_a_posterior_over_some_elements_is_that_of_the_dense_truth(kind, structure):
    """J_S (s H_SS + δ)⁻¹ J_Sᵀ and the evidence of the selected weights, with the GGN of the oracles."""
    problem = contracts.example(kind)
    whole, rows = problem.network, (problem.x, problem.y, problem.weights)
    masks = random_masks(whole)
    network = Subnetwork(masks).of(whole, problem.x)
    for prior, values in (
        (network.scalar_prior(), [1.7]),
        (GROUPINGS["tensor"].prior(network), [0.5, 1.0, 2.0, 4.0, 8.0]),
    ):
        hyper = Hyper(torch.tensor(values).double(), 0.3 if kind == "gaussian" else 1.0)
        fit = fit_laplace(network, problem.likelihood, GGN(), STRUCTURES[structure], prior, [rows])
        names = whole.parameter_names
        picked = chosen(names, masks)
        H = oracles.ggn(kind, problem.module, names, *rows)[picked][:, picked]
        delta = torch.cat([torch.full((int(masks[n].sum()),), v) for n, v in zip(names, values * 5, strict=False)])
        if structure == "diag":
            H = oracles.diagonal(H)
        if structure == "block_diagonal":
            layers = [("scale",), ("body.0.weight", "body.0.bias"), ("body.2.weight", "body.2.bias")]
            H = oracles.block_diagonal(H, [sum(int(masks[n].sum()) for n in layer) for layer in layers])
        precision = oracles.posterior_precision(H, delta.double(), 1 / hyper.dispersion)
        J = oracles.jacobian(problem.module, names, problem.x)[..., picked]
        covariance_of_outputs = GLM().latent(network, fit.posterior(hyper), problem.x).covariance
        torch.testing.assert_close(covariance_of_outputs, oracles.glm_covariance(J, precision), rtol=1e-8, atol=1e-10)
        theta = torch.cat([problem.module.get_parameter(n).flatten() for n in names])[picked].detach()
        logdet = torch.linalg.slogdet(precision)[1] - delta.double().log().sum()
        expected = fit.log_likelihood(hyper) - 0.5 * float(logdet + delta.double() @ theta.square())
        assert log_evidence(fit, hyper) == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize(
    ("names", "same"),
    [
        (["5.weight", "5.bias"], "last_layer"),
        (("5.bias", "5.weight"), "last_layer"),
        (NAMES, "all"),
        (NAMES[::-1], "all"),
    ],
    ids=["last", "last reversed", "all", "all reversed"],
)
def test_names_of_tensors_are_the_subset_of_that_name(names, same, structure):
    """Identical results, in any order, as list or tuple, for every structure and both estimators."""
    for (model, y), (std, evidence) in zip(estimators(), references(structure, same), strict=True):
        named = model.set_params(hessian_structure=structure, subset_of_weights=names).fit(X, y)
        np.testing.assert_array_equal(named.predict_std(X_NEW), std)
        assert named.log_marginal_likelihood_value_ == evidence


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize("names", [["2.weight"], ["2.bias", "5.weight"]])
def test_any_tensors_work_with_every_structure(names, structure):
    """The variance is positive and below that of the prior."""
    for model, y in estimators():
        model.set_params(hessian_structure=structure, prior_precision=1.0)
        named = clone(model).set_params(subset_of_weights=names).fit(X, y)
        assert named.structure_ == structure
        assert set(named.laplace_.network.parameter_names) == set(names)
        variance = named.laplace_.network.jacobian(torch.tensor(X_NEW))[1]
        prior = variance.rows().square().sum(-1)  # J Jᵀ / δ bounds the posterior variance
        assert bool((named.posterior_.variance(variance) <= prior * (1 + 1e-9)).all())
        assert bool((named.posterior_.variance(variance) > 0).all())


def test_a_users_net_is_selected_by_its_own_names():
    """Names of a skorch template; a shared tensor can be selected by any of its names."""
    model = LaplaceRegressor(nets.regressor(), subset_of_weights=["out.weight"], random_state=0).fit(X, Y)
    assert model.laplace_.network.parameter_names == ("out.weight",)
    tied = trace(test_network.CASES["tied weights"](), test_network.X)
    assert Subnetwork({"second.weight": None}).names(tied) == ("first.weight",)


@pytest.mark.parametrize("structure", ["auto", "full", "kron", "diag"])
@pytest.mark.parametrize(
    ("names", "tensors"),
    [(["5"], NAMES[2:]), (["5.bias", "2"], ("2.weight", "2.bias", "5.bias")), (("5", "2", "5.bias"), NAMES)],
    ids=["last layer", "layer and tensor", "twice"],
)
def test_names_of_modules_are_all_tensors_in_them(names, tensors, structure):
    """Identical to the names of their tensors, also mixed with these and in any order."""
    for model, y in estimators():
        model.set_params(hessian_structure=structure)
        named = clone(model).set_params(subset_of_weights=names).fit(X, y)
        other = clone(model).set_params(subset_of_weights=list(tensors)).fit(X, y)
        assert named.laplace_.network.parameter_names == tensors
        np.testing.assert_array_equal(named.predict_std(X_NEW), other.predict_std(X_NEW))
        loaded = pickle.loads(pickle.dumps(named)).partial_fit(X[:5] + 1, y[:5])
        other.partial_fit(X[:5] + 1, y[:5])
        np.testing.assert_array_equal(loaded.predict_std(X_NEW), other.predict_std(X_NEW))


class Blocks(torch.nn.Module):
    """Names with a common prefix, a nested module, a frozen tensor and a parameter of the net itself."""

    def __init__(self) -> None:
        super().__init__()
        deep = torch.nn.Sequential(torch.nn.Linear(4, 4))
        self.block = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), deep)
        self.block2 = torch.nn.Linear(4, 2)
        self.block[0].bias.requires_grad_(False)
        self.gain = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * self.block2(self.block(x))


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("block", {"block.0.weight", "block.2.0.weight", "block.2.0.bias"}),
        ("block.2", {"block.2.0.weight", "block.2.0.bias"}),
        ("block2", {"block2.weight", "block2.bias"}),
        ("gain", {"gain"}),
    ],
)
def test_a_module_is_what_its_dotted_name_says(name, tensors):
    """Complete dotted names at any depth select the trained tensors of the module."""
    assert set(Subnetwork({name: None}).names(trace(Blocks(), torch.zeros(1, 3)))) == tensors


def test_a_module_with_a_shared_tensor_selects_it():
    """A shared tensor is stored under the name of another module."""
    tied = trace(test_network.CASES["tied weights"](), test_network.X)
    assert "second.weight" not in tied.parameter_names
    assert "first.weight" in Subnetwork({"second": None}).names(tied)


@pytest.mark.parametrize("name", ["block.1", "bloc", "block.", "", "block.0.bias"])
def test_a_module_without_trained_tensors_is_an_unknown_name(name):
    """Activations, prefixes, the net itself and frozen tensors are unknown; the message lists the alternatives."""
    network = trace(Blocks(), torch.zeros(1, 3))
    modules = r"'block', 'block\.0', 'block\.2', 'block\.2\.0', 'block2'"
    message = rf"names \['{re.escape(name)}'\]; the trained parameters are .*'gain'.*, in the modules \[{modules}\]\."
    with pytest.raises(ValueError, match=message):
        Subnetwork({name: None, "block2": None}).names(network)


# ---------------------------------------------------------------------- masks


def masks_for(model, seed=0):
    return random_masks(model.laplace_.network, seed)


@pytest.mark.parametrize("structure", ["auto", *OF_ROWS])
def test_a_mask_works_from_end_to_end(structure):
    """Fit, predict, refit, pickle and partial_fit; masks as tensors, arrays or lists."""
    for model, y in estimators():
        masks = masks_for(clone(model).fit(X, y))
        model.set_params(subset_of_weights=masks, hessian_structure=structure)
        part = clone(model).fit(X, y)
        as_arrays = {name: mask.numpy() for name, mask in masks.items()}
        as_lists = {name: mask.tolist() for name, mask in masks.items()}
        for same in (as_arrays, as_lists):
            again = clone(model).set_params(subset_of_weights=same).fit(X, y)
            np.testing.assert_array_equal(again.predict_std(X_NEW), part.predict_std(X_NEW))
        network = part.laplace_.network
        assert network.n_parameters == sum(int(mask.sum()) for mask in masks.values())
        loaded = pickle.loads(pickle.dumps(part))
        np.testing.assert_array_equal(loaded.predict_std(X_NEW), part.predict_std(X_NEW))
        before = part.predict_std(X_NEW)
        part.partial_fit(X[:5] + 1, y[:5])
        assert not np.array_equal(part.predict_std(X_NEW), before)
        part.refit_laplace(prior_precision=1e8, predictive="mc")
        assert part.predict_std(X_NEW, kind="epistemic").max() < 1e-2


def test_full_masks_are_whole_tensors():
    """Identical results, also with structures of whole layers. Each fit trains its own net."""
    for model, y in estimators():
        whole = clone(model).set_params(hessian_structure="kron", memory=None).fit(X, y)
        masks = {name: np.ones(whole.laplace_.network.layout.shapes[name], dtype=bool) for name in NAMES}
        masked = clone(whole).set_params(subset_of_weights=masks).fit(X, y)
        np.testing.assert_array_equal(masked.predict_std(X_NEW), whole.predict_std(X_NEW))


def test_only_the_masked_elements_move():
    """In every weight sample the other elements stay at the mode."""
    model = LaplaceRegressor(predictive="mc", **NORMAL).fit(X, Y)
    masks = {"2.weight": masks_for(model)["2.weight"]}
    part = clone(model).set_params(subset_of_weights=masks).fit(X, Y)
    network = part.laplace_.network
    drawn = network.tensors(network.theta + part.posterior_.sample(10, torch.Generator().manual_seed(0)))
    assert list(drawn) == ["2.weight"]
    still = drawn["2.weight"] == network.module.get_parameter("2.weight")
    assert bool((still == ~masks["2.weight"]).all())


@pytest.mark.parametrize("structure", sorted(set(STRUCTURES) - set(OF_ROWS)))
def test_structures_of_whole_layers_refuse_masks(structure):
    """Factors per layer cannot hold single weights; refused before training."""
    masks = {"2.weight": np.eye(5, 3, dtype=bool)}
    message = (
        f"hessian_structure='{structure}' needs whole tensors, but subset_of_weights selects single weights.*"
        r"Use hessian_structure in \['block_diagonal', 'diag', 'full', 'functional', 'low_rank'\], or select whole ten"
    )
    with pytest.raises(UnsupportedCombinationError, match=message):
        LaplaceRegressor(subset_of_weights=masks, hessian_structure=structure, **SMALL).fit(X, Y)


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        (
            ["2.weigth"],
            r"names \['2.weigth'\]; the trained parameters are \['2.weight', .*, in the modules \['2', '5'\]\.",
        ),
        (["2.weight", "all"], r"names \['all'\]; the trained parameters are"),
        ([], r"subset_of_weights=\[\] has to be one of 'all', 'last_layer', 'subnetwork', a list of names of tensors"),
        ([2], r"subset_of_weights=\[2\] has to be"),
        (3, "subset_of_weights=3 has to be"),
        ({}, r"subset_of_weights=\{\} has to be"),
        (None, "subset_of_weights=None has to be"),
        (
            "subnet",
            "expected one of 'all', 'last_layer', 'subnetwork'.*Or pass a list of names of tensors or modules",
        ),
        ({"2.weight": np.ones((5, 3))}, r"has masks for \['2.weight'\] that are not boolean"),
        ({"2.weight": "all"}, r"has masks for \['2.weight'\] that are not boolean"),
        ({"2.weight": np.ones(15, dtype=bool)}, r"a mask of shape \(15,\) for '2.weight'; expected \(5, 3\)"),
        (
            {"2": np.ones((5, 3), dtype=bool)},
            r"has a mask for '2', which is a module. Give a mask for each of its tensors \['2.weight', '2.bias'\]\.",
        ),
        ({"2.bias": np.zeros(5, dtype=bool)}, "subset_of_weights selects no weight; at least one"),
    ],
    ids=str,
)
def test_a_wrong_subset_is_refused_before_training(subset, message):
    """The message names the value and the alternatives."""
    model = LaplaceRegressor(subset_of_weights=subset, **SMALL)
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


# ---------------------------------------------------------------------- which weights


def test_the_largest_are_chosen_over_all_tensors():
    """Exactly the requested number, also with equal scores."""
    scores = {"a": torch.tensor([[1.0, 5.0], [3.0, 0.0]]), "b": np.array([4.0, 2.0])}
    masks = largest(scores, 3)
    assert masks["a"].tolist() == [[False, True], [True, False]]
    assert masks["b"].tolist() == [True, False]
    assert sum(int(m.sum()) for m in largest({"a": torch.ones(7), "b": torch.ones(2)}, 4).values()) == 4
    for n in (0, 7):
        with pytest.raises(ValueError, match=f"n_weights={n} must be a whole number from 1 to 6 .all weights"):
            largest(scores, n)


def test_weights_of_large_marginal_variance_leave_least_out():
    """Daxberger et al. (2021), section 5: the score minimises the variance of the weights that stay at the mode.

    This variance is the squared Wasserstein distance to the diagonal posterior of all weights.
    """
    first = LaplaceRegressor(hessian_structure="diag", **NORMAL).fit(X, Y)
    variance = first.laplace_.network.tensors(first.posterior_.marginal_variance())
    left_out = {}
    for name, scores in (("variance", variance), *((seed, masks_for(first, seed)) for seed in range(8))):
        masks = largest(scores, 8)
        model = clone(first).set_params(subset_of_weights=masks, hessian_structure="full").fit(X, Y)
        assert model.laplace_.network.n_parameters == 8
        left_out[name] = float(sum(values[~masks[name]].sum() for name, values in variance.items()))
    assert min(left_out, key=left_out.__getitem__) == "variance"


@pytest.mark.filterwarnings("ignore")  # warnings of laplace-torch and its backends
@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_subnetwork_is_laplace_torchs(task, structure):
    """Evidence and predictive variance for the same indices, in float64."""
    pytest.importorskip("laplace.baselaplace")  # "laplace" alone would find the folder tests/laplace
    peer = importlib.import_module("laplace")
    kind, n_outputs = {"regression": ("gaussian", 2), "classification": ("categorical", 3)}[task]
    x, y = contracts.random_rows(kind, 40, 3, n_outputs, seed=1)
    module = oracles.random_mlp((3, 5, n_outputs), seed=3)
    whole = trace(module, x)
    masks = random_masks(whole)
    index = torch.cat([masks[name].flatten() for name, _ in module.named_parameters()]).nonzero()[:, 0]
    sigma = 0.55 if task == "regression" else 1.0
    theirs = peer.Laplace(
        oracles.random_mlp((3, 5, n_outputs), seed=3),
        task,
        subset_of_weights="subnetwork",
        hessian_structure=structure,
        subnetwork_indices=index,
        sigma_noise=sigma,
        prior_precision=1.7,
        backend=peer.curvature.BackPackGGN,
    )
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=40))
    network = Subnetwork(masks).of(whole, x)
    rows = [(x, y, torch.ones(40).double())]
    likelihood = LIKELIHOODS[kind]()
    fit = fit_laplace(network, likelihood, GGN(), STRUCTURES[structure], network.scalar_prior(), rows)
    hyper = Hyper(torch.tensor([1.7]).double(), sigma**2)
    assert log_evidence(fit, hyper) == pytest.approx(float(theirs.log_marginal_likelihood()), rel=1e-6)
    new = x[:6] + 1
    covariance_of_outputs = GLM().latent(network, fit.posterior(hyper), new).covariance
    torch.testing.assert_close(
        covariance_of_outputs, theirs._glm_predictive_distribution(new)[1].detach(), rtol=1e-6, atol=1e-9
    )
