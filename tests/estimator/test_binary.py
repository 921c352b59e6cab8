"""Binary classification with one logit: the same model as two logits, with half the prior precision."""

from __future__ import annotations

import pickle

import nets
import numpy as np
import oracles
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.frozen import FrozenEstimator
from torch import nn

from sklearn_laplace import LaplaceClassifier
from sklearn_laplace.laplace.likelihoods import Bernoulli, Categorical
from sklearn_laplace.options import Link

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(29)
X, X_NEW = RNG.normal(size=(70, 4)), 2 * RNG.normal(size=(9, 4))
LABELS = np.where(X @ [1.0, -1.0, 0.5, 0.0] + 0.7 * RNG.normal(size=70) > 0, "spam", "ham")
WEIGHTS = RNG.integers(0, 3, size=70).astype(float)
MOONS = make_moons(200, noise=0.2, random_state=0)


class OneOutput(nn.Module):
    """No size arguments: one output for any data."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)


class FlatOutput(OneOutput):
    def forward(self, x):
        return super().forward(x)[:, 0]


class Silent(nn.Module):
    """Cannot be built without its argument."""

    def __init__(self, width):
        super().__init__()


# ---------------------------------------------------------------------- exactness


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_a_one_layer_net_has_the_logistic_hessian(weights):
    """The posterior precision is XᵀSX + δI at the exact MAP of logistic regression, with and without sample weights."""
    options = {"standardize_X": False, "hessian_structure": "full", "random_state": 0}
    model = LaplaceClassifier(nets.binary(nets.Linear), prior_precision=2.0, **options).fit(X, LABELS, weights)
    features, y = torch.tensor(np.column_stack([X, np.ones(70)])), torch.tensor((LABELS == "spam").astype(int))
    w = None if weights is None else torch.tensor(weights)
    exact = oracles.gauss_newton_map("bernoulli", nn.Linear(5, 1, bias=False), ("weight",), features, y, w, 2.0)
    tensors = model.laplace_.network.tensors(model.laplace_.network.theta)
    got = torch.cat([tensors["linear.weight"][0], tensors["linear.bias"]])
    torch.testing.assert_close(got, exact, rtol=1e-7, atol=1e-8)
    precision = model.laplace_.curvature.matrix + 2.0 * torch.eye(5)
    expected = oracles.bayesian_logistic_hessian(features, (features @ exact).sigmoid(), 2.0, w)
    torch.testing.assert_close(precision, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("link", ["moderated", "probit", "plugin", "mc"])
@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
def test_one_logit_is_two_with_twice_the_precision(structure, link):
    """The difference of two logits has half their prior precision; the likelihood does not depend on their sum.

    Probabilities and evidence are equal. With "diag" they differ: the likelihood's curvature is split between the
    logits. Links that sample draw other samples.
    """
    one, two = (
        LaplaceClassifier(
            nets.Linear(4, k),
            likelihood=name,
            prior_precision=k * 1.5,
            hessian_structure=structure,
            link=Link(link, n_samples=4096),
            random_state=0,
        ).fit(X, LABELS)
        for k, name in ((1, "bernoulli"), (2, "categorical"))
    )
    assert isinstance(one.laplace_.likelihood, Bernoulli) and isinstance(two.laplace_.likelihood, Categorical)
    tolerance = 5e-3 if link == "mc" else 1e-6
    if structure != "diag":
        np.testing.assert_allclose(one.predict_proba(X_NEW), two.predict_proba(X_NEW), atol=tolerance)
        np.testing.assert_allclose(one.predict_std(X_NEW), two.predict_std(X_NEW), atol=5e-3)
    if structure in ("full", "functional"):
        assert one.log_marginal_likelihood_value_ == pytest.approx(two.log_marginal_likelihood_value_, rel=1e-6)


def test_the_second_class_is_that_of_the_logit():
    """σ(f) is the probability of the second of the sorted classes, moderated by MacKay's formula."""
    model = LaplaceClassifier(nets.binary(), random_state=0).fit(X, LABELS)
    assert model.classes_.tolist() == ["ham", "spam"]
    with model._asked(X_NEW) as (x, options):
        (latent,) = model._ensemble.first.answers(x, options, lambda latent, _: latent)
    f, v = latent.mean[:, 0], latent.variance[:, 0]
    p = model.predict_proba(X_NEW)
    np.testing.assert_allclose(p[:, 1], torch.sigmoid(f / (1 + torch.pi / 8 * v).sqrt()), rtol=1e-10)
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-15)
    plain = model.refit_laplace(link="plugin").predict_proba(X_NEW)
    np.testing.assert_allclose(plain[:, 1], torch.sigmoid(f), rtol=1e-10)
    np.testing.assert_array_equal(model.predict(X_NEW), np.where(f > 0, "spam", "ham"))
    np.testing.assert_array_equal(model.net_.predict(X_NEW), (f > 0).numpy())
    np.testing.assert_allclose(model.net_.predict_proba(X_NEW)[:, 1], torch.sigmoid(f), rtol=1e-6)


# ---------------------------------------------------------------------- the estimator


@pytest.mark.parametrize("module", [OneOutput, FlatOutput, nets.Linear])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_net_with_one_output_is_recognised(module, wrapped):
    """By its criterion, or by a forward pass. A module class with an output size argument gets one output per class."""
    net = nets.binary(module) if wrapped else module
    model = LaplaceClassifier(net, random_state=0).fit(X, LABELS)
    kind = Bernoulli if wrapped or module is not nets.Linear else Categorical
    assert isinstance(model.laplace_.likelihood, kind)
    assert model.n_outputs_ == (1 if kind is Bernoulli else 2)
    assert model.predict_proba(X_NEW).shape == model.predict_std(X_NEW).shape == (9, 2)
    assert model.score(X, LABELS) > 0.8


def test_moons_are_learned_by_a_template_as_it_stands():
    """A skorch binary classifier with its own criterion is trained, less confident far away, and pickled."""
    features, y = MOONS
    model = LaplaceClassifier(nets.binary(module__hidden=16, max_epochs=50), random_state=0).fit(features, y)
    assert model.score(features, y) > 0.95
    np.testing.assert_allclose(model.predict_proba(features).sum(1), 1.0, atol=1e-14)
    far = model.predict_proba([[40.0, -40.0]]).max()
    assert far < model.predict_proba(features).max()
    opened = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(opened.predict_proba(features), model.predict_proba(features))


@pytest.mark.usefixtures("complete_training")
def test_the_built_in_net_takes_one_logit_on_request():
    """One output for 0/1 labels, booleans, strings and other numbers; two outputs by default."""
    features, y = MOONS
    fixed = {"prior_precision": 0.1, "hidden_layer_sizes": (10,), "n_members": 1}
    for labels, options in ((y, {}), (y.astype(bool), fixed), (np.array(["b", "a"])[y], fixed), (2.0 * y + 7, fixed)):
        model = LaplaceClassifier(likelihood="bernoulli", random_state=0, **options).fit(features, labels)
        assert model.n_outputs_ == 1
        assert model.score(features, labels) > 0.95
    assert LaplaceClassifier(random_state=0, **fixed).fit(features, y).n_outputs_ == 2


def test_everything_a_classifier_answers():
    """Total, epistemic and aleatoric standard deviation, samples, score_samples and predictive density."""
    features, y = MOONS
    model = LaplaceClassifier(
        likelihood="bernoulli", hessian_structure="full", n_members=1, prior_precision=0.1, random_state=0
    ).fit(features, y)
    p = model.predict_proba(features)
    parts = model.predict_std(features, kind="all")
    np.testing.assert_allclose(parts.total**2, p * (1 - p), rtol=1e-10)
    np.testing.assert_allclose(parts.epistemic**2 + parts.aleatoric**2, parts.total**2, rtol=1e-10)
    np.testing.assert_allclose(parts.epistemic[:, 0] ** 2, parts.epistemic[:, 1] ** 2, rtol=1e-6)
    probabilities = model.sample_y(features[:5], 4000, kind="epistemic")
    assert probabilities.shape == (5, 2, 4000)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-12)
    exact = model.refit_laplace(link=Link("mc", n_samples=8192))
    np.testing.assert_allclose(probabilities.mean(-1), exact.predict_proba(features[:5]), atol=0.02)
    labels = model.sample_y(features[:5], 4000)
    np.testing.assert_allclose((labels == 1).mean(1), exact.predict_proba(features[:5])[:, 1], atol=0.04)
    scores = model.score_samples(np.vstack([features[:1], [[50.0, 50.0]]]))
    assert scores[0] > scores[1]
    np.testing.assert_allclose(scores[0], -np.log(model.predict_entropy(features[:1], kind="epistemic"))[0])
    density = model.log_predictive_density(features, y)
    np.testing.assert_allclose(density, np.log(model.predict_proba(features)[np.arange(200), y]))


def test_rows_come_and_go():
    """forget undoes partial_fit, with class weights."""
    model = LaplaceClassifier(
        likelihood="bernoulli",
        hidden_layer_sizes=(4,),
        hessian_structure="full",
        class_weight={"spam": 2.0},
        random_state=0,
    )
    model.partial_fit(X[:50], LABELS[:50], classes=["ham", "spam"])
    before = model.predict_proba(X_NEW)
    after = model.partial_fit(X[50:], LABELS[50:]).predict_proba(X_NEW)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(model.forget(X[50:], LABELS[50:]).predict_proba(X_NEW), before, rtol=1e-6)


def test_a_frozen_binary_net_is_kept():
    """A forward pass detects the single logit; with the plugin link the probabilities are those of the frozen net."""
    net = nets.binary(nets.Linear, module__in_features=4, max_epochs=200)
    net.fit(X.astype(np.float32), (LABELS == "spam").astype(np.float32))
    model = LaplaceClassifier(FrozenEstimator(net), link="plugin", random_state=0).fit(X, LABELS)
    assert isinstance(model.laplace_.likelihood, Bernoulli)
    expected = net.predict_proba(X_NEW.astype(np.float32))
    np.testing.assert_allclose(model.predict_proba(X_NEW), expected, atol=1e-5)


def test_looking_at_a_net_leaves_no_trace():
    """The template is not initialised or changed, torch's random state is restored, and the fit is reproducible."""
    template, instance = nets.binary(OneOutput), OneOutput()
    weights = {name: value.clone() for name, value in instance.state_dict().items()}
    state = torch.random.get_rng_state()
    first, second = (LaplaceClassifier(OneOutput, random_state=0).fit(X, LABELS).predict_proba(X) for _ in range(2))
    LaplaceClassifier(template, random_state=0).fit(X, LABELS)
    LaplaceClassifier(instance, random_state=0).fit(X, LABELS)
    np.testing.assert_array_equal(first, second)
    assert not template.initialized_
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(value, weights[name]) for name, value in instance.state_dict().items())


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        (
            {"net": OneOutput, "likelihood": "categorical"},
            LABELS,
            r"returned \(2, 1\) for 2 rows; expected \(2, 2\): one column for each class. Set its number of outputs to "
            "2, or use likelihood='bernoulli'",
        ),
        (
            {"net": nets.Linear(4, 3), "likelihood": "bernoulli"},
            LABELS,
            r"returned \(2, 3\) for 2 rows; expected \(2, 1\): one logit for two classes. Set its number of outputs",
        ),
        (
            {"likelihood": "bernoulli"},
            RNG.integers(0, 3, size=70),
            "Only binary classification is supported with one logit.*multiclass: 3 classes. Use likelihood='categorica",
        ),
        (
            {"net": nets.binary()},
            RNG.integers(0, 3, size=70),
            "Only binary classification is supported.*BCEWithLogitsLoss",
        ),
        (
            {"net": nets.binary(), "likelihood": "categorical"},
            LABELS,
            "criterion BCEWithLogitsLoss belongs to another likelihood than .* \\(categorical\\)",
        ),
        (
            {"net": nets.binary(criterion=nn.HingeEmbeddingLoss, module__n_in=4), "likelihood": "bernoulli"},
            LABELS,
            "criterion HingeEmbeddingLoss belongs to another likelihood than .* \\(bernoulli\\).*BCEWithLogitsLoss",
        ),
        ({"net": nets.binary(nets.Hidden, module__n_out=2)}, LABELS, r"returned \(2, 2\).*one logit for two classes"),
        ({"net": nets.classifier(Silent)}, LABELS, "could not be built.*'width'"),
        ({"net": nets.classifier(nets.Hidden, module__n_in=9)}, LABELS, r"does not accept inputs of shape \(n, 4\)"),
    ],
    ids=["one for two", "three for one", "three classes", "template", "own loss", "foreign", "two", "unbuilt", "width"],
)
def test_what_two_classes_cannot_share_is_refused(options, y, message):
    """The error states the given value and the expected one."""
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(**options).fit(X, y)
