"""Standardised inputs of a given net, and the initial weights of a module instance."""

from __future__ import annotations

import copy
import pickle

import nets
import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from torch import nn
from torch.utils.data import DataLoader

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save, to_onnx
from sklearn_laplace.laplace.layers import StandardisedLinear
from sklearn_laplace.nets.skorch_net import first_layers, renewed

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(8)
Z = RNG.normal(size=(60, 3))
SCALE, SHIFT = np.array([1e3, 1e-2, 50.0]), np.array([1e4, 0.0, 5.0])
Z = (Z - Z.mean(0)) / Z.std(0)
X = Z * SCALE + SHIFT
Y = np.sin(Z[:, 0]) - 0.5 * Z[:, 1] + 0.1 * RNG.normal(size=60)
Z_NEW = RNG.normal(size=(7, 3))
X_NEW = Z_NEW * SCALE + SHIFT
FIXED = {"prior_precision": 1.0, "sigma_noise": 0.2, "hessian_structure": "full", "random_state": 0}


def module(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), activation(), nn.Linear(6, 1))


def two(**options):
    """The same net on raw columns, and without standardisation on standardised ones."""
    raw = LaplaceRegressor(module(), **{**FIXED, **options})
    return raw, clone(raw).set_params(standardize_X=False)


class Mixed(nn.Module):
    """Embedding of the first column, linear layer on the others, and a skip connection."""

    def __init__(self):
        super().__init__()
        self.embedding, self.numbers, self.out = nn.Embedding(4, 2), nn.Linear(2, 3), nn.Linear(5, 1)

    def forward(self, x):
        codes = self.embedding(x[:, 0].long())
        return self.out(torch.cat([codes, torch.tanh(self.numbers(x[:, 1:]))], 1)) + x[:, 1:2]


# ------------------------------------------------------------------------------ exact in every answer


@pytest.mark.usefixtures("complete_training")
def test_a_given_net_learns_from_unscaled_columns():
    """Without standardisation, the hidden units are saturated and the net learns next to nothing."""
    for seed in range(3):
        model = LaplaceRegressor(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)), random_state=seed)
        assert model.fit(X, Y).score(X, Y) > 0.9


@pytest.mark.usefixtures("complete_training")
def test_predictions_and_their_derivatives_are_those_for_standardised_columns():
    """The standardisation is part of the net: gradients and X_std are in the units of X."""
    raw, standardised = (model.fit(rows, Y) for model, rows in zip(two(), (X, Z), strict=True))
    assert raw.log_marginal_likelihood_value_ == pytest.approx(standardised.log_marginal_likelihood_value_, rel=1e-5)
    flags = {"return_std": True, "return_mean_grad": True, "return_std_grad": True}
    mean, std, mean_grad, std_grad = raw.predict(X_NEW, **flags)
    expected = standardised.predict(Z_NEW, **flags)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-6)
    np.testing.assert_allclose(std, expected[1], rtol=1e-6)
    np.testing.assert_allclose(mean_grad * SCALE, expected[2], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(std_grad * SCALE, expected[3], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        raw.predict_std(X_NEW, X_std=0.1 * SCALE), standardised.predict_std(Z_NEW, X_std=0.1), rtol=1e-6
    )
    np.testing.assert_allclose(raw.net_.predict(X_NEW)[:, 0] * Y.std() + Y.mean(), mean, rtol=1e-6)


def test_updates_keep_the_statistics_of_the_fit():
    """partial_fit, forget and a previous posterior as prior use the mean and scale of the first rows."""
    raw, standardised = (model.fit(rows[:40], Y[:40]) for model, rows in zip(two(), (X, Z), strict=True))
    mean, deviation = X[:40].mean(0), X[:40].std(0)
    again = LaplaceRegressor(module(), **FIXED, standardize_X=False).fit((X[:40] - mean) / deviation, Y[:40])
    for model, rows, new in ((raw, X, X_NEW), (again, (X - mean) / deviation, (X_NEW - mean) / deviation)):
        model.partial_fit(rows[40:], Y[40:]).forget(rows[:5], Y[:5])
        model.answer = model.predict_std(new)
    np.testing.assert_allclose(raw.answer, again.answer, rtol=1e-6)
    del raw.answer, again.answer, standardised
    following = LaplaceRegressor(module(), **FIXED, prior=FrozenEstimator(raw)).fit(X[:20], Y[:20])
    layers = [model.net_.module_[0] for model in (raw, following)]
    assert all(type(layer) is StandardisedLinear for layer in layers)
    assert torch.equal(layers[0].standardise.mean, layers[1].standardise.mean)
    with pytest.raises(ValueError, match="is not that of the previous posterior"):
        LaplaceRegressor(module(), **FIXED, prior=FrozenEstimator(raw), standardize_X=False).fit(X[:20], Y[:20])


def test_weights_as_the_prior_mean_bring_their_statistics():
    """A state with statistics keeps them; weights of another origin refer to the columns as they are."""
    fitted = LaplaceRegressor(module(), **FIXED).fit(X, Y).net_.module_
    held = LaplaceRegressor(module(), prior=fitted.state_dict(), **{**FIXED, "prior_precision": 1e6})
    after = held.fit(X[:30], Y[:30]).net_.module_[0]
    assert torch.equal(after.standardise.mean, fitted[0].standardise.mean)
    plain = LaplaceRegressor(module(), prior=module().state_dict(), **FIXED).fit(Z, Y)
    assert type(plain.net_.module_[0]) is nn.Linear


def test_copies_files_members_and_graphs_have_the_standardisation(tmp_path):
    """Pickles, files, ensemble members and ONNX graphs give the same predictions."""
    several = LaplaceRegressor(nets.Hidden, **{**FIXED, "n_members": 2}).fit(X, Y)
    members = [member.predict(X_NEW) for member in several.members_]
    np.testing.assert_allclose(np.mean(members, 0), several.predict(X_NEW), rtol=1e-10)
    model = LaplaceRegressor(module(), **FIXED).fit(X, Y)
    expected = model.predict(X_NEW, return_std=True)
    save(model, tmp_path / "model.safetensors")
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), load(tmp_path / "model.safetensors")):
        np.testing.assert_array_equal(again.predict(X_NEW, return_std=True), expected)
    session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
    mean, std = session.run(["mean", "std"], {"X": X_NEW})
    np.testing.assert_allclose(mean, expected[0], rtol=1e-8)
    np.testing.assert_allclose(std, expected[1], rtol=1e-8)
    frozen = LaplaceRegressor(FrozenEstimator(model.net_), sigma_noise=0.3, prior_precision=1.0).fit(X, (Y - Y.mean()))
    np.testing.assert_allclose(frozen.predict(X_NEW), model.net_.predict(X_NEW)[:, 0], rtol=1e-6)


def test_the_cache_distinguishes_both(tmp_path):
    """The parameter is part of the key."""
    raw, plain = two(memory=str(tmp_path))
    first = raw.fit(2 * Z, Y).predict(Z_NEW)
    assert not np.allclose(first, plain.fit(2 * Z, Y).predict(Z_NEW))
    np.testing.assert_array_equal(first, clone(raw).fit(2 * Z, Y).predict(Z_NEW))


def test_copies_of_rows_are_weights():
    """The statistics are weighted, and those of the merged rows: both fits are equal to the bit."""
    weights = RNG.integers(1, 4, 60)
    raw, _ = two()
    weighted = raw.fit(X, Y, weights).predict(X_NEW)
    np.testing.assert_array_equal(clone(raw).fit(X.repeat(weights, 0), Y.repeat(weights)).predict(X_NEW), weighted)


@pytest.mark.usefixtures("complete_training")
def test_each_column_has_its_own_prior_precision():
    """prior="ard" needs a linear first layer; relevances of standardised columns are comparable."""
    options = {**FIXED, "prior_precision": "evidence", "prior": "ard"}
    relevance = LaplaceRegressor(module(), **options).fit(X, Y).feature_relevance_
    assert relevance.shape == (3,) and relevance[2] < 0.2 * relevance[0]


# ------------------------------------------------------------------------------ which layers


def test_only_linear_layers_on_the_columns_standardise():
    """Indices of an embedding and skip connections get the values themselves."""
    rows = np.c_[RNG.integers(0, 4, 60), X[:, 1:]]
    fitted = LaplaceRegressor(Mixed(), **FIXED).fit(rows, Y).net_.module_
    assert isinstance(fitted.numbers, StandardisedLinear) and type(fitted.out) is nn.Linear
    np.testing.assert_allclose(fitted.numbers.standardise.mean, X[:, 1:].mean(0), rtol=1e-10, atol=1e-12)
    x = torch.randn(4, 3)
    assert first_layers(nn.Sequential(nn.Flatten(), nn.Linear(3, 1)), x) == {"1": slice(0, 3)}
    for other in (
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 1)),
        nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Linear(3, 1)),
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(4, 1)),
    ):
        assert first_layers(other, x) == {}


def test_layers_in_a_list_standardise_as_well():
    """The layer itself changes, and not its place in the module."""

    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 1)
            self.steps = [self.first]

        def forward(self, x):
            return self.steps[0](x)

    model = LaplaceRegressor(Listed(), **FIXED).fit(X, Y)
    assert model.score(X, Y) > 0.5
    np.testing.assert_allclose(model.net_.predict(X)[:, 0] * Y.std() + Y.mean(), model.predict(X), rtol=1e-8)


class Batches(DataLoader):
    """Iterator of the user's."""


@pytest.mark.parametrize("net", [nets.Hidden, nets.regressor(nets.Hidden, max_epochs=2)], ids=["class", "skorch"])
def test_auto_covers_classes_and_nets(net):
    """A module class, and a skorch net with its own training."""
    fitted = LaplaceRegressor(net, **FIXED).fit(X, Y).net_.module_
    assert isinstance(fitted.hidden, StandardisedLinear)
    assert [name for name, _ in fitted.named_parameters()] == ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]


def test_auto_leaves_out_nets_with_other_rows():
    """A frozen net was trained on the columns as they are, and an iterator of the user's may transform them."""
    skorch = nets.regressor(nets.Hidden, module__n_in=3, max_epochs=1, iterator_train=Batches)
    assert type(LaplaceRegressor(skorch, **FIXED).fit(Z, Y).net_.module_.hidden) is nn.Linear
    trained = nets.regressor(nets.Hidden, module__n_in=3).fit(Z.astype(np.float32), Y[:, None].astype(np.float32))
    assert type(LaplaceRegressor(FrozenEstimator(trained), **FIXED).fit(Z, Y).net_.module_.hidden) is nn.Linear
    with pytest.raises(ValueError, match=r"standardize_X=True cannot be used with a frozen net.*pipeline"):
        LaplaceRegressor(FrozenEstimator(trained), standardize_X=True).fit(Z, Y)


@pytest.mark.parametrize(
    ("net", "value", "message"),
    [
        (module(), "yes", "standardize_X='yes' has to be 'auto', True or False"),
        (None, False, "standardize_X=False can only be used with a given net.*give net="),
        (nn.Linear(3, 1, bias=False), True, "needs a torch.nn.Linear with a bias .* Linear has none.*StandardScaler"),
    ],
)
def test_a_wrong_value_is_an_error(net, value, message):
    """The message names the value and the cure."""
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(net, standardize_X=value, random_state=0).fit(X, Y)


@pytest.mark.usefixtures("complete_training")
def test_classes():
    """The same for a classifier."""
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    model = LaplaceClassifier(net, prior_precision=1.0, random_state=0).fit(X, Y > 0)
    assert isinstance(model.net_.module_[0], StandardisedLinear) and model.score(X, Y > 0) > 0.9


# ------------------------------------------------------------------------------ initial weights of an instance


def test_random_state_covers_the_weights_of_an_instance():
    """Instances that were made under different seeds of torch train from the same weights."""
    torch.manual_seed(1)
    first, second = (nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)) for _ in range(2))
    before = copy.deepcopy(first.state_dict())
    models = [LaplaceRegressor(net, **FIXED).fit(X, Y) for net in (first, second)]
    np.testing.assert_array_equal(*(model.predict(X_NEW) for model in models))
    other = LaplaceRegressor(first, **{**FIXED, "random_state": 1}).fit(X, Y)
    assert not np.array_equal(other.predict(X_NEW), models[0].predict(X_NEW))
    assert all(torch.equal(value, before[name]) for name, value in first.state_dict().items())


def test_trained_weights_of_an_instance_are_kept():
    """Weights out of the range of torch's initialisation, fixed parameters, or a module without a reset."""
    trained, fixed = module(), module()
    with torch.no_grad():
        trained[0].weight[0, 0] = 2.0
    fixed[0].weight.requires_grad_(False)
    attention = nn.MultiheadAttention(4, 2)
    for kept in (trained, fixed, attention):
        same = zip(renewed(kept).parameters(), kept.parameters(), strict=True)
        assert all(torch.equal(first, second) for first, second in same)
    start = LaplaceRegressor(trained, **FIXED, max_epochs=0, lr=0.1).fit(X[:2], Y[:2])
    assert start.net_.module_[0].weight.shape == (6, 3)


def test_a_skorch_net_keeps_the_weights_of_its_instance():
    """The way to start from the weights of an instance, whatever they are."""
    instance = module()
    net = nets.regressor(instance, max_epochs=0)
    shifted = LaplaceRegressor(net, prior=instance.state_dict(), **{**FIXED, "prior_precision": 1e12}).fit(Z, Y)
    np.testing.assert_allclose(shifted.net_.module_[0].weight.detach(), instance[0].weight.detach(), atol=1e-4)
