"""``subset_of_weights="subnetwork"``: the weights with the largest scores, selected during the fit."""

from __future__ import annotations

import pickle

import contracts
import nets
import numpy as np
import pytest
import torch
import trainings
from joblib import Memory
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace.errors import MemoryBudgetError, UnsupportedCombinationError
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SCORES, Scored
from sklearn_laplace.options import Subnetwork

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(47)
X, X_NEW = RNG.normal(size=(60, 3)), 2 * RNG.normal(size=(7, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=60)
LABELS = np.array(["no", "yes", "maybe"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
SMALL = {"hidden_layer_sizes": (5,), "map_prior_precision": 1.0, "random_state": 0, "memory": trainings.MEMORY}
CHOSEN = {**SMALL, "subset_of_weights": "subnetwork"}
SIZES = {"regressor": 26, "classifier": 38}
OF_ROWS = sorted(name for name, kind in STRUCTURES.items() if "rows" in kind.accepts)


def estimators(**options):
    return (LaplaceRegressor(**options, likelihood="gaussian"), Y), (LaplaceClassifier(**options), LABELS)


def flat(model) -> np.ndarray:
    """Mask of all weights in the order of the module's parameters."""
    network = model.laplace_.network
    masks = model.subset_
    shapes = {name: tuple(p.shape) for name, p in network.module.named_parameters()}
    return np.concatenate([masks.get(name, np.zeros(shape, dtype=bool)).ravel() for name, shape in shapes.items()])


# ---------------------------------------------------------------------- which weights


@pytest.mark.parametrize(
    ("prior_structure", "curvature", "precision"),
    [("tensor", "ggn", "evidence"), ("scalar", "empirical_fisher", "evidence"), ("tensor", "ggn", [30, 0.1, 0.1, 30])],
)
def test_the_largest_variances_of_the_dense_diagonal_posterior_are_taken(prior_structure, curvature, precision):
    """Variances from the diagonal of the curvature by autodiff, with the prior and noise of the training."""
    for model, y in estimators(
        **{**SMALL, "map_prior_precision": "same", "n_members": 1, "prior_precision": precision}
    ):
        model.set_params(prior=prior_structure, curvature=curvature, hidden_layer_sizes=(3,))
        model.set_params(subset_of_weights=Subnetwork(size=7)).fit(X, y)
        kind = "gaussian" if isinstance(model, LaplaceRegressor) else "categorical"
        names = [name for name, _ in model.net_.module_.named_parameters()]
        module, mode = model.laplace_.network.module, model._ensemble.first.origin
        targets = (y - y.mean()) / y.std() if kind == "gaussian" else np.unique(y, return_inverse=True)[1]
        targets = torch.tensor(targets[:, None] if kind == "gaussian" else targets)
        rows = (torch.tensor(X), targets, torch.ones(60).double())
        H = contracts.DENSE_RULES[curvature](kind, module, names, *rows)
        by_name = dict(zip(mode.groups, mode.hyper.prior_precision.tolist(), strict=True))
        delta = torch.cat(
            [torch.full((module.get_parameter(n).numel(),), by_name.get(n, by_name.get("all"))) for n in names]
        )
        power = 2 if curvature == "empirical_fisher" else 1
        variance = 1 / (H.diagonal() / mode.hyper.dispersion**power + delta)
        expected = np.zeros(len(variance), dtype=bool)
        expected[variance.argsort(descending=True)[:7]] = True
        np.testing.assert_array_equal(flat(model), expected)


def test_the_largest_weights_are_taken():
    """The score is the magnitude at the mode."""
    for model, y in estimators(**SMALL, subset_of_weights=Subnetwork("magnitude", size=9)):
        model.fit(X, y)
        weights = model.laplace_.network.module.parameters()
        theta = np.concatenate([p.detach().numpy().ravel() for p in weights])
        expected = np.zeros(len(theta), dtype=bool)
        expected[np.argsort(-np.abs(theta))[:9]] = True
        np.testing.assert_array_equal(flat(model), expected)


def test_random_weights_follow_from_the_seed():
    """Equal seeds select equal weights, another seed selects others, and every weight is selected for some seed."""
    model = LaplaceRegressor(**SMALL, likelihood="gaussian", subset_of_weights=Subnetwork("random", size=13))
    first, again = (flat(clone(model).fit(X, Y)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, flat(clone(model).set_params(random_state=1).fit(X, Y)))
    network = model.fit(X, Y).laplace_.network
    whole = trace(network.module.requires_grad_(), torch.tensor(X))
    hits = sum(
        torch.cat([m.flatten() for m in Scored(SCORES["random"], 0.5, seed).chosen(whole, None).masks.values()])
        for seed in range(60)
    )
    assert int(hits.min()) > 10
    assert int(hits.max()) < 50


@pytest.mark.parametrize("score", sorted(SCORES))
@pytest.mark.parametrize("size", [1, 5, 0.5, 0.001, 1.0, "all"])
def test_as_many_are_random_as_asked_for(score, size):
    """The size is a count, or a share of all weights; at least 1 is selected."""
    for (model, y), n in zip(estimators(**SMALL, subset_of_weights=Subnetwork(score)), SIZES.values(), strict=True):
        size = n if size == "all" else size
        model.set_params(subset_of_weights__size=size).fit(X, y)
        expected = size if isinstance(size, int) else max(round(size * n), 1)
        assert flat(model).sum() == model.laplace_.network.n_parameters == expected


# ---------------------------------------------------------------------- what becomes of them


@pytest.mark.parametrize("score", sorted(SCORES))
def test_all_weights_are_the_subset_all(score):
    """For any score and structure, up to rounding; ``auto`` selects the same structure."""
    for structure in ("full", "auto", "diag"):
        for model, y in estimators(**SMALL, hessian_structure=structure):
            whole = clone(model).fit(X, y)
            model.set_params(subset_of_weights=Subnetwork(score=score, size=1.0)).fit(X, y)
            np.testing.assert_allclose(model.predict_std(X_NEW), whole.predict_std(X_NEW), rtol=1e-12)
            evidence = [fit.log_marginal_likelihood_value_ for fit in (model, whole)]
            np.testing.assert_allclose(*evidence, rtol=1e-12)
            assert model.structure_ == whole.structure_


@pytest.mark.parametrize("score", sorted(SCORES))
def test_more_weights_have_more_variance_up_to_that_of_all(score):
    """The k best weights are among the k + 1 best, and fixing weights at the mode can only reduce variances."""
    for model, y in estimators(
        **SMALL, subset_of_weights=Subnetwork(score), hessian_structure="full", prior_precision=1.0
    ):
        stds = []
        for k in (1, 5, 15, 1.0):
            stds.append(
                clone(model).set_params(subset_of_weights__size=k).fit(X, y).predict_std(X_NEW, kind="epistemic")
            )
        latent = isinstance(model, LaplaceRegressor)
        if latent:
            assert (np.diff(stds, axis=0) >= -1e-12).all()
        assert (np.diff([std.mean() for std in stds]) > 0).all()


@pytest.mark.parametrize("link", sorted(LINKS))
def test_one_weight_makes_probabilities_by_every_link(link):
    """Covariances of rank one, for any prior precision."""
    model = LaplaceClassifier(**SMALL, subset_of_weights=Subnetwork(size=1), link=link).fit(X, LABELS)
    for precision in (1e-50, 1.0, 1e50):
        p = model.refit_laplace(prior_precision=precision).predict_proba(10 * X_NEW)
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
        assert (p >= 0).all()
        assert np.isfinite(model.predict_std(10 * X_NEW)).all()


def test_the_masks_of_a_fit_are_a_subset_of_weights():
    """``subset_`` as an explicit subset gives the same posterior; it does not exist before the fit."""
    for model, y in estimators(**SMALL, subset_of_weights=Subnetwork(size=6)):
        with pytest.raises(NotFittedError):
            _ = model.subset_
        model.fit(X, y)
        assert {mask.dtype for mask in model.subset_.values()} == {np.dtype(bool)}
        by_hand = clone(model).set_params(subset_of_weights=model.subset_).fit(X, y)
        np.testing.assert_array_equal(by_hand.predict_std(X_NEW), model.predict_std(X_NEW))
        whole = clone(model).set_params(subset_of_weights="all").fit(X, y)
        assert all(mask.all() for mask in whole.subset_.values())
        last = clone(whole).set_params(subset_of_weights="last_layer").fit(X, y)
        assert list(last.subset_) == ["5.weight", "5.bias"]


@pytest.mark.parametrize("structure", ["auto", *OF_ROWS])
def test_a_subnetwork_works_from_end_to_end(structure):
    """Pickle, refit, partial_fit and forget."""
    for model, y in estimators(**SMALL, subset_of_weights=Subnetwork(size=8), hessian_structure=structure):
        model.fit(X, y)
        loaded = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(loaded.predict_std(X_NEW), model.predict_std(X_NEW))
        again = clone(model).set_params(prior_precision=3.0, prior="tensor", temperature=0.5).fit(X, y)
        loaded.refit_laplace(prior_precision=3.0, prior="tensor", temperature=0.5)
        np.testing.assert_allclose(loaded.predict_std(X_NEW), again.predict_std(X_NEW), rtol=1e-10)
        masks = model.subset_
        model.partial_fit(X[:9] + 1, y[:9])
        if STRUCTURES[model.structure_].is_monoid and model.structure_ != "functional":
            before = loaded.refit_laplace(prior_precision="evidence", prior="scalar", temperature=1.0)
            model.forget(X[:9] + 1, y[:9])
            np.testing.assert_allclose(model.predict_std(X_NEW), before.predict_std(X_NEW), rtol=1e-6)
        assert all(np.array_equal(model.subset_[name], mask) for name, mask in masks.items())


def test_a_search_over_the_number_of_weights_trains_once_a_fold(tmp_path):
    """2 sizes × 2 scores × 2 folds need a training per fold and a final one."""
    grid = {"subset_of_weights__size": [2, 0.3], "subset_of_weights__score": ["variance", "random"]}
    plain = {"n_members": 1, "likelihood": "gaussian"}

    def search(memory):
        model = LaplaceRegressor(**{**SMALL, "memory": memory}, **plain, subset_of_weights=Subnetwork())
        return GridSearchCV(model, grid, cv=2, scoring=metrics.neg_nlpd).fit(X, Y)

    cached = search(Memory(tmp_path, verbose=0))
    assert len(list(tmp_path.rglob("output.pkl"))) == 3
    np.testing.assert_array_equal(cached.cv_results_["mean_test_score"], search(None).cv_results_["mean_test_score"])


def test_a_users_net_and_a_frozen_one_have_subnetworks():
    """Parameters keep the user's names; a frozen net keeps its weights."""
    net = nets.regressor(module__n_in=3)
    model = LaplaceRegressor(net, subset_of_weights=Subnetwork(size=5), map_prior_precision=1.0, random_state=0).fit(
        X, Y
    )
    assert set(model.subset_) <= {"hidden.weight", "hidden.bias", "out.weight", "out.bias"}
    net.fit(X.astype(np.float32), Y[:, None].astype(np.float32))
    frozen = LaplaceRegressor(FrozenEstimator(net), subset_of_weights=Subnetwork("magnitude", size=1)).fit(X, Y)
    weights = {name: np.abs(p.detach().numpy()) for name, p in net.module_.named_parameters()}
    ((name, mask),) = frozen.subset_.items()
    assert weights[name][mask].item() == max(values.max() for values in weights.values())


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size of Subnetwork=0 has to be a whole number of at least 1, or a float"),
        ({"size": 1.5}, "size of Subnetwork=1.5 has to be"),
        ({"size": True}, "size of Subnetwork=True has to be"),
        ({"size": "many"}, "size of Subnetwork='many' has to be"),
        ({"size": float("nan")}, "size of Subnetwork=nan has to be"),
        (
            {"size": 27},
            r"Subnetwork\(size=27\) selects more .* has, 26\. Give at most that number, or a share",
        ),
        (
            {"score": "largest"},
            "score of Subnetwork='largest' is not known; expected one of 'magnitude', 'random', 'v",
        ),
    ],
    ids=str,
)
def test_a_wrong_subnetwork_is_refused_before_training(monkeypatch, options, message):
    """The message names the value and what is expected."""
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", None)
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(**{**SMALL, "memory": None}, subset_of_weights=Subnetwork(**options)).fit(X, Y)


@pytest.mark.parametrize("structure", sorted(set(STRUCTURES) - set(OF_ROWS)))
def test_structures_of_whole_layers_refuse_subnetworks(monkeypatch, structure):
    """Refused before training."""
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", None)
    with pytest.raises(UnsupportedCombinationError, match=f"'{structure}' needs whole tensors.*Use hessian_structure"):
        LaplaceRegressor(**CHOSEN, hessian_structure=structure).fit(X, Y)


def test_the_matrix_of_all_weights_is_not_cut():
    """The exact Hessian cannot be reduced to single weights."""
    with pytest.raises(UnsupportedCombinationError, match=r"which this curvature does not support\. Use"):
        LaplaceRegressor(**CHOSEN, curvature="hessian").fit(X, Y)


@pytest.mark.parametrize("structure", ["full", "block_diagonal"])
def test_a_subnetwork_too_large_for_the_memory_is_refused_before_training(monkeypatch, structure):
    """The limit applies to the number of selected weights; a small subnetwork of the same net is accepted."""
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", None)
    large = {**SMALL, "memory": None, "hidden_layer_sizes": (500, 500), "hessian_structure": structure}
    with pytest.raises(MemoryBudgetError, match=r"for 253,001 weights and 60 rows × outputs"):
        LaplaceRegressor(**large, subset_of_weights=Subnetwork(size=1.0)).fit(X, Y)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # it would train
        LaplaceRegressor(**large, subset_of_weights=Subnetwork(size=100)).fit(X, Y)
