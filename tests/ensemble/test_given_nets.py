"""A list of trained nets as one ensemble: each keeps its weights and gets its own posterior."""

from __future__ import annotations

import copy
import pickle

import nets
import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import norm
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetRegressor
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace.options import Members

RNG = np.random.default_rng(28)
X = RNG.normal(size=(50, 3)).astype(np.float32)
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=50)
LABELS = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
X_NEW = 2 * RNG.normal(size=(9, 3))
FIXED = {"prior_precision": 0.7, "sigma_noise": 0.3, "random_state": 0}


def trained(seed, module=nets.Hidden, max_epochs=3, **options):
    """Frozen skorch net with its own size, fitted to the targets."""
    torch.manual_seed(seed)
    net = nets.regressor(module, module__n_in=3, module__hidden=4 + seed, max_epochs=max_epochs, **options)
    return FrozenEstimator(net.fit(X, Y[:, None].astype(np.float32)))


def trained_classifier(seed, module=nets.Probabilities, n_out=3):
    torch.manual_seed(seed)
    net = nets.classifier(module, module__n_in=3, module__n_out=n_out, module__hidden=4 + seed, max_epochs=3)
    return FrozenEstimator(net.fit(X, np.unique(LABELS, return_inverse=True)[1] % n_out))


NETS = [trained(0), trained(1), trained(2)]
CLASSIFIERS = trained_classifier(0), trained_classifier(1)


@pytest.mark.parametrize("options", [{}, {"hessian_structure": "kron"}, {"predictive": "mc"}, {"prior": "tensor"}])
@pytest.mark.parametrize("fixed", [FIXED, {"random_state": 0}], ids=["fixed", "chosen"])
def test_the_ensemble_is_the_mixture_of_its_nets(fixed, options):
    """Its moments and log density are those of the equally weighted mixture of the fits of single nets, in closed form.

    Also if each net selects its own prior precision and noise level; equal up to rounding.
    """
    options = {**fixed, **options}
    model = LaplaceRegressor(NETS, **options).fit(X, Y)
    singles = [LaplaceRegressor(net, **options).fit(X, Y) for net in NETS]
    means, stds = (np.array(part) for part in zip(*(m.predict(X_NEW, return_std=True) for m in singles), strict=True))
    mean = means.mean(0)
    std = np.sqrt((stds**2 + means**2).mean(0) - mean**2)
    np.testing.assert_allclose(model.predict(X_NEW), mean, rtol=1e-9)
    np.testing.assert_allclose(model.predict_std(X_NEW), std, rtol=1e-9)
    densities = [single.log_predictive_density(X_NEW, mean + 1) for single in singles]
    mixed = np.log(np.exp(densities).mean(0))
    np.testing.assert_allclose(model.log_predictive_density(X_NEW, mean + 1), mixed, rtol=1e-9)
    np.testing.assert_array_equal(model.member_weights_, np.full(3, 1 / 3))


def test_class_probabilities_are_those_of_the_mixture():
    """Nets that return probabilities and nets that return logits may be in one list."""
    logits = trained_classifier(2, nets.Hidden)
    ensemble = [*CLASSIFIERS, logits]
    model = LaplaceClassifier(ensemble, prior_precision=0.5, random_state=0).fit(X, LABELS)
    singles = [LaplaceClassifier(net, prior_precision=0.5, random_state=0).fit(X, LABELS) for net in ensemble]
    mean = np.mean([single.predict_proba(X_NEW) for single in singles], 0)
    np.testing.assert_allclose(model.predict_proba(X_NEW), mean, rtol=1e-9)
    assert model.members_[2].classes_.tolist() == ["a", "b", "c"]


def test_the_nets_are_untouched_and_a_list_of_one_is_one_net():
    states = [copy.deepcopy(net.estimator.module_.state_dict()) for net in NETS]
    model = LaplaceRegressor(NETS[:1], **FIXED).fit(X, Y)
    single = LaplaceRegressor(NETS[0], n_members=1, **FIXED).fit(X, Y)
    np.testing.assert_array_equal(model.predict_std(X_NEW), single.predict_std(X_NEW))
    for net, state in zip(NETS, states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in net.estimator.module_.state_dict().items())


def test_all_methods_refer_to_the_mixture():
    """Draws, leave-one-out, members, refits, and updates by rows."""
    model = LaplaceRegressor(NETS, n_members=3, **FIXED).fit(X[:40], Y[:40])
    single = [member.predict(X_NEW) for member in model.members_]
    np.testing.assert_allclose(np.mean(single, 0), model.predict(X_NEW))
    refitted = clone(model.members_[1]).fit(X[:40], Y[:40])
    np.testing.assert_array_equal(refitted.predict_std(X_NEW), model.members_[1].predict_std(X_NEW))
    draws = model.sample_y(X_NEW[:2], 4000)
    np.testing.assert_allclose(draws.std(1), model.predict_std(X_NEW[:2]), rtol=0.1)  # 2000 draws or more: 2 %
    left_out = np.mean([member.loo_predict() for member in model.members_], 0)
    np.testing.assert_allclose(model.loo_predict(), left_out)
    wider = copy.deepcopy(model).refit_laplace(prior_precision=0.01)
    assert (wider.predict_std(X_NEW, kind="epistemic") > model.predict_std(X_NEW, kind="epistemic")).all()
    before = model.predict_std(X_NEW)
    model.partial_fit(X[40:], Y[40:])
    assert (model.predict_std(X[40:]) < LaplaceRegressor(NETS, **FIXED).fit(X[:40], Y[:40]).predict_std(X[40:])).all()
    np.testing.assert_allclose(model.forget(X[40:], Y[40:]).predict_std(X_NEW), before, rtol=1e-6)


def test_member_weights_may_follow_a_rule():
    """Those of stacking maximise the density of left-out rows; those of the evidence are proportional to it."""
    torch.manual_seed(0)
    untrained = FrozenEstimator(nets.regressor(module__n_in=3, module__hidden=3).initialize())
    ensemble = [trained(1, lr=0.1, max_epochs=15), untrained]
    stacked, by_evidence = (
        LaplaceRegressor(ensemble, n_members=Members(weights=weights), **FIXED).fit(X, Y)
        for weights in ("loo", "evidence")
    )
    left_out = np.array([norm.pdf(Y, *member.loo_predict(return_std=True)) for member in stacked.members_])
    grid = np.linspace(0, 1, 1001)
    best = grid[np.argmax([np.log(w * left_out[0] + (1 - w) * left_out[1]).sum() for w in grid])]
    assert 0.1 < best < 0.9
    np.testing.assert_allclose(stacked.member_weights_, [best, 1 - best], atol=0.01)
    evidences = [member.log_marginal_likelihood_value_ for member in by_evidence.members_]
    np.testing.assert_allclose(by_evidence.member_weights_, softmax(evidences), rtol=1e-9)


def test_counts_and_varying_noise():
    """Overdispersion and noise model are those of each net, as in its own fit."""
    counts = RNG.poisson(np.exp(Y.clip(-2, 2)))
    model = LaplaceRegressor(NETS, likelihood="negative_binomial", random_state=0).fit(X, counts)
    alone = [LaplaceRegressor(net, likelihood="negative_binomial", random_state=0).fit(X, counts) for net in NETS]
    assert [m.overdispersion_ for m in model.members_] == [m.overdispersion_ for m in alone]
    varying = LaplaceRegressor(NETS[:2], likelihood="heteroscedastic", random_state=0).fit(X, Y)
    assert len({id(member.noise_model_) for member in varying.members_}) == 2


def test_clone_search_pickle_and_file(tmp_path):
    """A list is a parameter as any other; copies of an estimator share the frozen nets."""
    model = LaplaceRegressor(NETS[:2], **FIXED).fit(X, Y)
    assert clone(model).net == model.net
    assert model.get_params()["net"] is model.net
    search = GridSearchCV(LaplaceRegressor(NETS[:2], **FIXED), {"prior_precision": [0.1, 1.0]}, cv=2).fit(X, Y)
    assert len(search.best_estimator_.members_) == 2
    save(model, tmp_path / "model.safetensors")
    for copied in (pickle.loads(pickle.dumps(model)), load(tmp_path / "model.safetensors", trusted=[nets.Hidden])):
        np.testing.assert_array_equal(copied.predict_std(X_NEW), model.predict_std(X_NEW))
        np.testing.assert_array_equal(clone(copied).fit(X, Y).predict_std(X_NEW), model.predict_std(X_NEW))
    assert repr(model).count("NeuralNetRegressor(module=Hidden") == 2
    assert "FrozenEstimator" in model._repr_html_()


def test_plain_modules_of_any_dtype():
    """A trained torch module in a skorch net; single and double precision may be mixed."""
    modules = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), nn.Linear(3, 1).double()]
    ensemble = [FrozenEstimator(NeuralNetRegressor(module).initialize()) for module in modules]
    model = LaplaceRegressor(ensemble, **FIXED).fit(X, Y)
    x = torch.tensor(X_NEW, dtype=torch.float64)
    with torch.no_grad():
        outputs = torch.stack([copy.deepcopy(module).double()(x)[:, 0] for module in modules])
    np.testing.assert_allclose(model.predict(X_NEW), outputs.mean(0), rtol=1e-9)


@pytest.mark.parametrize(
    ("net", "options", "error", "message"),
    [
        ([], {}, ValueError, r"net=\[\] holds no net; pass at least one FrozenEstimator"),
        ([NETS[0], nets.regressor()], {}, TypeError, r"net\[1\] is a NeuralNetRegressor; a list holds trained nets"),
        ([NETS[0], nn.Linear], {}, TypeError, r"net\[1\] is a Linear; a list holds trained nets only"),
        ([NETS[0], NETS[1], NETS[0]], {}, ValueError, r"net\[0\] and net\[2\] have equal weights"),
        (NETS, {"n_members": 2}, ValueError, r"n_members=2 is not the number of nets in net=\[…\], 3"),
        (NETS, {"n_members": 1}, ValueError, r"n_members=1 is not the number of nets"),
        (NETS, {"lr": 0.1}, ValueError, "lr cannot be used with a frozen net"),
        (NETS, {"standardize_X": True}, ValueError, "cannot be used with a frozen net"),
        (NETS, {"hidden_layer_sizes": (3,)}, ValueError, "can only be used with the built-in net"),
        ([NETS[0], CLASSIFIERS[0]], {}, ValueError, r"net\[1\]: the net's module Probabilities returned \(2, 3\)"),
        (
            [NETS[0], FrozenEstimator(NeuralNetRegressor(nn.Linear(2, 1)).initialize())],
            {},
            ValueError,
            r"net\[1\]: the net's module Linear does not accept inputs of shape \(n, 3\)",
        ),
    ],
)
def test_what_is_no_ensemble_is_refused(net, options, error, message):
    with pytest.raises(error, match=message):
        LaplaceRegressor(net, **options).fit(X, Y)


def test_classifiers_need_the_same_number_of_outputs():
    """One logit and one output per class cannot be mixed."""
    torch.manual_seed(0)
    single = FrozenEstimator(nets.binary(module__n_in=3).fit(X, (Y > 0).astype(np.float32)))
    double = trained_classifier(0, n_out=2)
    with pytest.raises(ValueError, match=r"net\[0\]: the net's module Hidden returned \(2, 1\) for 2 rows"):
        LaplaceClassifier([single, double]).fit(X, Y > 0)
    model = LaplaceClassifier([single], prior_precision=1.0).fit(X, Y > 0)
    assert model.n_outputs_ == 1
