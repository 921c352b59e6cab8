"""What the estimators promise: shapes, units, consistent predictions, and errors that leave the estimator unchanged."""

from __future__ import annotations

import copy
import dataclasses
import warnings

import nets
import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import fit_alone as ensemble_fit
from sklearn_laplace._ensemble import update
from sklearn_laplace._table import limits as _budget
from sklearn_laplace._table import limits as _memory
from sklearn_laplace.errors import (
    BoundWarning,
    InterpolationWarning,
    MemoryBudgetError,
    NonFiniteLossError,
    UnsupportedCombinationError,
)
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.options import Link

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(11)
X = RNG.normal(size=(60, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=60)
Y2 = np.column_stack([Y, 100 * X[:, 2] + 5 * RNG.normal(size=60)])
LABELS = np.array(["no", "yes", "maybe"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
X_NEW = RNG.normal(size=(7, 3))


@pytest.fixture(scope="module")
def regressor():
    return LaplaceRegressor(n_members=1, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def two_outputs():
    return LaplaceRegressor(n_members=1, random_state=0).fit(X, Y2)


@pytest.fixture(scope="module")
def classifier():
    return LaplaceClassifier(n_members=1, random_state=0).fit(X, LABELS)


SMALL = {"hidden_layer_sizes": (8,), "n_members": 1, "random_state": 0}
"""A small net for tests with many samples or without claims about the defaults."""


# ---------------------------------------------------------------------- answers that agree


@pytest.mark.parametrize(("name", "shape"), [("regressor", (7,)), ("two_outputs", (7, 2))])
def test_answers_have_the_shape_of_y(name, shape, request):
    """Predictions have shape (n,) or (n, k) like y; the covariance has a trailing axis for k outputs."""
    model = request.getfixturevalue(name)
    mean, std = model.predict(X_NEW, return_std=True)
    _, cov = model.predict(X_NEW, return_cov=True)
    assert mean.shape == std.shape == model.predict_std(X_NEW, kind="epistemic").shape == shape
    assert cov.shape == (7, 7, *shape[1:])
    assert model.sample_y(X_NEW, 5).shape == (*shape, 5)
    assert all(array.dtype == np.float64 for array in (mean, std, cov))


@pytest.mark.parametrize("name", ["regressor", "two_outputs", "classifier"])
def test_variances_add(name, request):
    """total² = epistemic² + aleatoric², for regression and classification."""
    model = request.getfixturevalue(name)
    total, epistemic, aleatoric = (model.predict_std(X_NEW, kind=k) for k in ("total", "epistemic", "aleatoric"))
    np.testing.assert_allclose(total**2, epistemic**2 + aleatoric**2, rtol=1e-10)
    assert (epistemic > 0).all()


@pytest.mark.parametrize("name", ["regressor", "two_outputs"])
def test_the_covariance_has_the_total_variance_on_its_diagonal(name, request):
    """return_std, return_cov and sigma_noise_ agree, in the units of y."""
    model = request.getfixturevalue(name)
    _, cov = model.predict(X_NEW, return_cov=True)
    std = model.predict(X_NEW, return_std=True)[1]
    np.testing.assert_allclose(np.diagonal(cov).T.reshape(std.shape), std**2, rtol=1e-9)
    np.testing.assert_allclose(
        model.predict_std(X_NEW, kind="aleatoric"), np.broadcast_to(model.sigma_noise_, std.shape)
    )


@pytest.mark.parametrize(("kind", "noise"), [("total", 1.0), ("epistemic", 0.0)])
def test_draws_are_joint_and_agree_with_the_covariance(kind, noise):
    """20,000 samples: moments within 4 % of the largest variance (standard error .7 %)."""
    model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.2, hessian_structure="functional", **SMALL).fit(X, Y)
    mean, cov = model.predict(X_NEW, return_cov=True)
    expected = cov - (1 - noise) * model.sigma_noise_**2 * np.eye(7)
    draws = model.sample_y(X_NEW, 20_000, random_state=3, kind=kind)
    np.testing.assert_allclose(np.cov(draws), expected, atol=0.04 * expected.max())
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.03 * np.sqrt(expected.max()))
    np.testing.assert_array_equal(draws, model.sample_y(X_NEW, 20_000, random_state=3, kind=kind))


def test_predict_returns_the_total(regressor):
    """As the default of predict_std, and as scikit-learn's Gaussian process with a noise kernel."""
    np.testing.assert_array_equal(regressor.predict(X_NEW, return_std=True)[1], regressor.predict_std(X_NEW))


def test_probabilities_are_consistent(classifier):
    """They sum to one; predict is the argmax, predict_log_proba the logarithm, and the total variance p (1 − p)."""
    p = classifier.predict_proba(X_NEW)
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(classifier.predict(X_NEW), classifier.classes_[p.argmax(1)])
    np.testing.assert_allclose(classifier.predict_log_proba(X_NEW), np.log(p))
    np.testing.assert_allclose(classifier.predict_std(X_NEW, kind="total"), np.sqrt(p * (1 - p)), rtol=1e-12)
    np.testing.assert_array_equal(classifier.classes_, ["maybe", "no", "yes"])


def test_the_links_agree_where_they_should(classifier):
    """The moderated probabilities are near the Monte-Carlo average; the plugin is sharper."""
    narrow = copy.deepcopy(classifier).refit_laplace(prior_precision=3.0)
    probabilities = {
        link: copy.deepcopy(narrow).refit_laplace(link=Link(link, n_samples=4096)).predict_proba(X_NEW)
        for link in ("moderated", "mc", "plugin")
    }
    assert np.abs(probabilities["moderated"] - probabilities["mc"]).max() < 0.06
    assert probabilities["plugin"].max(1).mean() > probabilities["moderated"].max(1).mean()


def test_label_draws_follow_the_probabilities():
    """The shares of the sampled labels are the mean of the sampled class probabilities."""
    model = LaplaceClassifier(prior_precision=0.1, hessian_structure="functional", **SMALL).fit(X, LABELS)
    labels = model.sample_y(X_NEW, 20_000)
    functions = model.sample_y(X_NEW, 20_000, kind="epistemic")
    assert labels.shape == (7, 20_000)
    assert functions.shape == (7, 3, 20_000)
    shares = np.stack([(labels == name).mean(1) for name in model.classes_], 1)
    np.testing.assert_allclose(shares, functions.mean(2), atol=0.02)


@pytest.mark.parametrize(
    ("structure", "subset"), [*((name, "all") for name in sorted(STRUCTURES)), ("diag", "last_layer")]
)
def test_the_training_knows_nothing_of_structure_and_subset(structure, subset, regressor):
    """The mean does not depend on the posterior, up to rounding: nets with all weights random run as one program."""
    model = LaplaceRegressor(
        prior_precision="evidence",
        sigma_noise="evidence",
        hessian_structure=structure,
        subset_of_weights=subset,
        random_state=0,
    ).fit(X, Y)
    np.testing.assert_allclose(model.predict(X_NEW), regressor.predict(X_NEW), rtol=1e-12)
    assert model.structure_ == structure
    assert 0 < model.n_effective_parameters_ < model.laplace_.network.n_parameters


@pytest.mark.usefixtures("complete_training")
def test_fitted_attributes_are_plain_numbers(regressor, two_outputs):
    """Scalars are floats; several outputs or groups give arrays."""
    assert isinstance(regressor.sigma_noise_, float)
    assert isinstance(regressor.prior_precision_, float)
    assert isinstance(regressor.log_marginal_likelihood_value_, float)
    assert two_outputs.sigma_noise_.shape == (2,)
    assert regressor.structure_ == "functional"  # 60 rows, 251 weights
    assert regressor.n_iter_ > 0
    assert clone(regressor).fit(X, Y).gradient_norm_ < 1e-2
    assert regressor.n_outputs_ == 1
    per_tensor = LaplaceRegressor(prior="tensor", sigma_noise=0.2, **SMALL).fit(X, Y)
    assert per_tensor.prior_precision_.shape == (4,)
    assert per_tensor.prior_groups_ == ("2.weight", "2.bias", "5.weight", "5.bias")


def test_outputs_of_other_scales_keep_their_own_noise(two_outputs):
    """Each target is standardised separately, and each noise level is in the units of its target."""
    assert 0.1 < two_outputs.sigma_noise_[0] < 0.4
    assert two_outputs.sigma_noise_[1] > 4


# ---------------------------------------------------------------------- nets of the user's


@pytest.mark.parametrize("module", [nets.Hidden, nets.Probabilities, nets.LogProbabilities])
def test_a_classifier_net_may_end_in_logits_or_probabilities(module):
    """skorch expects probabilities and torch logits; the logarithm of probabilities is used as logits."""
    net = nets.classifier(module, max_epochs=40)
    model = LaplaceClassifier(net, prior_precision=1.0, random_state=0).fit(X, LABELS)
    other = LaplaceClassifier(nets.classifier(nets.Hidden, max_epochs=40), prior_precision=1.0, random_state=0)
    np.testing.assert_allclose(model.predict_proba(X_NEW), other.fit(X, LABELS).predict_proba(X_NEW), atol=1e-4)


def test_dropout_and_batch_norm_are_off_in_the_curvature():
    """Evaluation mode: repeated predictions are equal and do not depend on the other rows of a batch."""
    net = nets.regressor(nets.Hidden, module__dropout=0.5, module__norm=True, max_epochs=30)
    model = LaplaceRegressor(net, prior_precision=1.0, sigma_noise=0.2, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(model.predict_std(X_NEW), model.predict_std(X_NEW))
    np.testing.assert_allclose(model.predict_std(X_NEW[:1]), model.predict_std(X_NEW)[:1], rtol=1e-10)


def test_flat_training_options_reach_the_clone():
    """max_epochs, lr and batch_size override those of the skorch net."""
    model = LaplaceRegressor(nets.regressor(), max_epochs=3, lr=0.01, batch_size=10, random_state=0).fit(X, Y)
    assert len(model.history_) == 3
    assert (model.net_.lr, model.net_.batch_size) == (0.01, 10)
    assert len(model.history_[0]["batches"]) == 6


def test_the_given_prior_and_noise_are_used():
    """With a fixed training prior, prior_precision and sigma_noise do not change the mean."""
    model = LaplaceRegressor(random_state=0, map_prior_precision=1.0, prior_precision=3.0, sigma_noise=0.25).fit(X, Y)
    assert (model.prior_precision_, model.sigma_noise_) == (3.0, 0.25)
    other = LaplaceRegressor(random_state=0, map_prior_precision=1.0, prior_precision=30.0, sigma_noise=0.25).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X_NEW), other.predict(X_NEW))
    assert (other.predict_std(X_NEW, kind="epistemic") < model.predict_std(X_NEW, kind="epistemic")).all()


def test_the_residual_noise_is_that_of_the_training_rows():
    """sigma_noise="residual" is the root mean squared residual."""
    model = LaplaceRegressor(random_state=0, sigma_noise="residual", n_members=1).fit(X, Y)
    rms = np.sqrt(np.mean((Y - model.predict(X)) ** 2))
    np.testing.assert_allclose(model.sigma_noise_, rms, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_precisions_answer_alike(dtype, regressor):
    """float32 training and float64 posterior: predictions agree to the precision of the weights."""
    model = LaplaceRegressor(random_state=0, dtype=dtype, prior_precision=1.0, sigma_noise=0.2).fit(X, Y)
    reference = LaplaceRegressor(random_state=0, prior_precision=1.0, sigma_noise=0.2).fit(X, Y)
    np.testing.assert_allclose(model.predict_std(X_NEW), reference.predict_std(X_NEW), rtol=1e-3)
    assert next(model.net_.module_.parameters()).dtype == getattr(torch, dtype)


@pytest.mark.usefixtures("complete_training")
def test_large_data_train_by_epochs(monkeypatch):
    """Without affordable Gauss–Newton steps the net trains by Adam, with evidence steps on a Kronecker curvature."""
    large = dataclasses.replace(_budget.LARGE, exact_step=0.0, epoch_steps=300)
    monkeypatch.setattr(_budget, "SMALL", large)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LaplaceRegressor(n_members=1, random_state=0).fit(X, Y)
    assert len(model.history_) == -(-300 * 256 // 60)  # epochs that contain as many rows as 300 batches of 256
    assert model.score(X, Y) > 0.8
    assert 0.05 < model.sigma_noise_ < 0.6


# ---------------------------------------------------------------------- degenerate data


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (X[:2], Y[:2]),
        (np.ones((30, 2)), Y[:30]),
        (np.column_stack([X[:30], np.ones(30)]), Y[:30]),
        (X[:30] * [1e6, 1e-6, 1.0], Y[:30] * 1e-8),
        (np.repeat(X[:10], 3, axis=0), np.repeat(Y[:10], 3) + np.tile([-0.3, 0.0, 0.3], 10)),
        (RNG.normal(size=(40, 30)), RNG.normal(size=40)),
    ],
    ids=["two-rows", "constant-columns", "one-constant-column", "odd-units", "repeated-rows", "only-noise"],
)
def test_poor_data_give_finite_widths(X, y):
    """Degenerate data give finite predictions and positive standard deviations of bounded size."""
    model = LaplaceRegressor(random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all() and (std < 20 * y.std()).all()


@pytest.mark.parametrize(
    ("X", "y", "category", "message"),
    [
        (X[:1], Y[:1], InterpolationWarning, "the total weight of the rows is 1,"),
        (X[:30], np.full(30, 3.0), BoundWarning, "noise variance = 1e-08"),
    ],
    ids=["one-row", "constant-targets"],
)
def test_targets_that_do_not_vary_are_reported(X, y, category, message):
    """The noise level cannot be estimated: the prediction is constant, with a warning."""
    with pytest.warns(category, match=message):
        model = LaplaceRegressor(random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-3)


@pytest.mark.usefixtures("complete_training")
def test_only_noise_gives_the_mean_and_its_width():
    """Irrelevant features: the prediction is the mean, with the standard deviation of the targets."""
    noise = np.random.default_rng(0).normal(size=60)
    mean, std = LaplaceRegressor(random_state=0).fit(X, noise).predict(X_NEW, return_std=True)
    np.testing.assert_allclose(mean, noise.mean(), atol=0.3)
    np.testing.assert_allclose(std, noise.std(), rtol=0.15)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_precision": 0.0}, r"prior_precision=0\.0 has to be a finite number above zero, or one of 'auto'"),
        ({"prior_precision": "evidense"}, r"Did you mean 'evidence'"),
        ({"prior_precision": [1.0, -1.0]}, "has to be a finite number above zero"),
        ({"prior_precision": [1.0, 2.0, 3.0]}, r"has 3 entries; expected 1 \(scalar\) or 4 \(one per tensor: 2.weight"),
        ({"sigma_noise": -1}, "sigma_noise=-1 has to be a finite number above zero"),
        ({"sigma_noise": np.nan}, "sigma_noise=nan has to be a finite number above zero"),
        ({"temperature": 0}, "temperature=0 has to be a finite number above zero"),
        ({"map_prior_precision": -2.0}, "map_prior_precision=-2.0 has to be a finite number"),
        ({"map_prior_precision": "sane"}, "Did you mean 'same'"),
        (
            {"hessian_structure": "krom"},
            "expected one of 'auto', 'block_diagonal', 'diag', 'ekfac', 'full', 'functional', .* Did you mean 'kron'",
        ),
        ({"subset_of_weights": "last"}, "expected one of 'all', 'last_layer', 'subnetwork'"),
        ({"curvature": "fisher"}, "curvature='fisher' is not known; expected one of 'empirical_fisher', 'ggn', 'h"),
        (
            {"likelihood": "bernoulli"},
            "expected one of 'auto', 'gaussian', 'heteroscedastic', 'negative_binomial', 'po",
        ),
        ({"predictive": "gml"}, "Did you mean 'glm'"),
        (
            {"prior": "layers"},
            "expected one of 'ard', 'layer', 'parameter', 'scalar', 'tensor'. Did you mean",
        ),
        ({"activation": "rleu"}, "Did you mean 'relu'"),
        ({"hidden_layer_sizes": 50}, "has to be a tuple of whole numbers above zero"),
        ({"hidden_layer_sizes": (5, 0)}, "has to be a tuple of whole numbers above zero"),
        ({"max_epochs": -1}, "max_epochs=-1 has to be None or a whole number of at least 0"),
        ({"batch_size": 0}, "batch_size=0 has to be None or a whole number of at least 1"),
        ({"lr": 0.0}, "lr=0.0 has to be a finite number above zero"),
        ({"device": "tpu9"}, "device='tpu9' is not known"),
        ({"dtype": "float16"}, "expected one of 'auto', 'float32', 'float64'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_refused_with_what_is_known(options, message):
    """fit raises an error with the given value and the allowed ones."""
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(**options).fit(X, Y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"link": "probti"}, "Did you mean 'probit'"),
        ({"link": Link(n_samples=0)}, "n_samples=0 has to be a whole number of at least 1"),
        ({"likelihood": "gaussian"}, "expected one of 'auto', 'bernoulli', 'categorical'"),
    ],
)
def test_a_wrong_classifier_option_is_refused(options, message):
    """fit raises an error with the given value and the allowed ones."""
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(**options).fit(X, LABELS)


@pytest.mark.parametrize(
    ("net", "error", "message"),
    [
        (nets, TypeError, "is not supported; pass None for the built-in net, a torch module"),
        (
            nets.regressor(module__n_out=3),
            ValueError,
            r"returned \(2, 3\) for 2 rows; expected \(2, 1\): one column for",
        ),
        (nets.regressor(module__n_in=9), ValueError, r"does not accept inputs of shape \(n, 3\)"),
        (nets.regressor(nets.NoSizes), ValueError, "could not be built.*'width'.*net__module__"),
    ],
    ids=["not-a-net", "output-width", "input-width", "missing-size"],
)
def test_a_net_that_does_not_fit_is_refused_before_training(net, error, message):
    """One forward pass is enough; outputs of width one would otherwise broadcast silently."""
    with pytest.raises(error, match=message):
        LaplaceRegressor(net).fit(X, Y)


def test_a_posterior_that_does_not_fit_in_memory_is_refused_before_training():
    """The error states the bytes and an alternative structure; nothing is allocated."""
    model = LaplaceRegressor(n_members=1, hidden_layer_sizes=(1000, 1000), hessian_structure="full")
    with pytest.raises(
        MemoryBudgetError, match=r"needs about .* bytes\) for 1,006,001 weights.*hessian_structure='kron'"
    ):
        model.fit(X, Y)


def test_an_exploding_loss_names_the_epoch_and_the_learning_rate():
    """A loss of NaN or infinity stops the training."""
    net = nets.regressor(optimizer=torch.optim.SGD, lr=1e30, max_epochs=10)
    with pytest.raises(NonFiniteLossError, match=r"in epoch \d+ with lr=1e\+30. Use a smaller lr"):
        LaplaceRegressor(net, random_state=0).fit(X, 1e3 * Y)


def test_one_class_is_refused():
    """A classifier needs two classes."""
    with pytest.raises(ValueError, match="one class only"):
        LaplaceClassifier().fit(X, np.zeros(60))


class EndsInNorm(nn.Module):
    def __init__(self, n_in=3, n_out=1):
        super().__init__()
        self.linear, self.norm = nn.Linear(n_in, n_out), nn.LayerNorm(n_out)

    def forward(self, x):
        return self.norm(self.linear(x))


class EndsInEmbedding(EndsInNorm):
    def __init__(self, n_in=3, n_out=1):
        super().__init__(n_in, n_out)
        self.norm = nn.Embedding(2, n_out)

    def forward(self, x):
        return self.linear(x) + self.norm((x[:, 0] > 0).long())


class EndsInReused(EndsInNorm):
    def __init__(self, n_in=3, n_out=1):
        super().__init__(n_in, n_out)
        self.norm = nn.Linear(n_out, n_out)

    def forward(self, x):
        return self.norm(torch.tanh(self.norm(self.linear(x))))


@pytest.mark.parametrize(
    ("module", "kind"), [(EndsInNorm, "LayerNorm"), (EndsInEmbedding, "Embedding"), (EndsInReused, "Linear")]
)
def test_a_last_layer_that_is_not_linear_is_refused_before_training(module, kind):
    """The error states the reason and the alternative."""
    message = (
        r"needs a torch.nn.Linear, Conv1d or Conv2d as the last layer with weights, called once, with tensors that "
        rf"nothing else uses and that are not frozen; found 'norm' \({kind}\). Use subset_of_weights='all'"
    )
    with pytest.raises(UnsupportedCombinationError, match=message):
        LaplaceRegressor(nets.regressor(module), subset_of_weights="last_layer").fit(X, Y)


@pytest.mark.parametrize("method", ["predict_std", "sample_y"])
def test_an_unknown_kind_is_refused(regressor, method):
    """The message names the wrong value."""
    with pytest.raises(ValueError, match="kind='both' is not known"):
        getattr(regressor, method)(X_NEW, kind="both")


def test_std_and_cov_together_are_refused(regressor):
    """As in scikit-learn's Gaussian process regressor."""
    with pytest.raises(RuntimeError, match="At most one of return_std or return_cov"):
        regressor.predict(X_NEW, return_std=True, return_cov=True)


def test_weights_that_are_all_zero_are_refused():
    """At least one row needs a positive weight."""
    with pytest.raises(ValueError, match=r"at least one (row needs a positive weight|non-zero number)"):
        LaplaceRegressor().fit(X, Y, sample_weight=np.zeros(60))


def test_a_failed_fit_leaves_the_estimator_as_it_was():
    """A failed refit keeps the previous fit; a failed first fit sets no fitted attribute."""
    model = LaplaceClassifier(prior_precision=0.1, n_members=1, random_state=0).fit(X, LABELS)
    before = model.predict_proba(X_NEW)
    attributes = set(vars(model))
    model.set_params(net=nets.classifier(module__n_out=2))
    with pytest.raises(ValueError, match="expected"):
        model.fit(np.column_stack([X, X]), (X[:, 0] > 0).astype(int) + (X[:, 1] > 0))
    assert set(vars(model)) == attributes
    np.testing.assert_array_equal(model.predict_proba(X_NEW), before)
    fresh = LaplaceRegressor(temperature=-1.0)
    with pytest.raises(ValueError, match="temperature"):
        fresh.fit(X, Y)
    assert not any(name.endswith("_") for name in vars(fresh))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["first", "training", "posterior"])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_an_interrupted_pass_leaves_the_estimator_as_it_was(monkeypatch, method, share):
    """Ctrl-C in the first chunk of rows, in the training, or in the last chunk of the posterior's pass."""
    monkeypatch.setattr(_memory, "CHUNK_ROWS", (1, 25))
    calls, batch = 0, GGN.batch

    def counted(*args):
        nonlocal calls
        calls += 1
        if calls == last:
            raise KeyboardInterrupt
        return batch(*args)

    fresh = LaplaceRegressor(hidden_layer_sizes=(5,), hessian_structure="diag", map_prior_precision=1.0, random_state=0)
    fitted = clone(fresh).fit(X, Y)
    std = fitted.predict_std(X)
    monkeypatch.setattr(GGN, "batch", counted)
    for model in (fresh, fitted):
        calls, last = 0, None
        getattr(copy.deepcopy(model), method)(X + 1, Y)
        calls, last = 0, max(round(share * calls), 1)
        before = dict(vars(model))
        with pytest.raises(KeyboardInterrupt):
            getattr(model, method)(X + 1, Y)
        assert vars(model) == before
    np.testing.assert_array_equal(fitted.predict_std(X), std)
    assert torch.get_num_threads() == 1  # set in conftest.py


@pytest.mark.parametrize("method", ["fit", "refit_laplace"])
def test_an_interrupted_choice_leaves_the_estimator_as_it_was(monkeypatch, method):
    """Ctrl-C while the hyperparameters are chosen."""
    model = LaplaceRegressor(hidden_layer_sizes=(5,), map_prior_precision=1.0, random_state=0).fit(X, Y)
    before = dict(vars(model))

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(ensemble_fit if method == "fit" else update, "choose", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y) if method == "fit" else model.refit_laplace(temperature=0.5)
    assert vars(model) == before


def test_fits_are_quiet(capfd):
    """Nothing is printed without verbose."""
    LaplaceRegressor(nets.regressor(max_epochs=3), random_state=0).fit(X, Y).predict(X_NEW)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
