"""Derivatives in the inputs: gradients of mean and std, uncertain inputs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from nets import Hidden
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace.network.input_gradients import root_gradients
from sklearn_laplace.options import Kron, LowRank, LowRankDiag, MonteCarlo

pytestmark = pytest.mark.usefixtures("short_trainings")

QUICK = {
    "n_members": 1,
    "prior_precision": "evidence",
    "sigma_noise": "evidence",
    "likelihood": "gaussian",
    "random_state": 0,
}
UNITS = np.array([1.0, 10.0, 0.1])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)) * UNITS + [5.0, 0.0, 3.0]
Y = 100 + 20 * np.sin(X[:, 0]) + X[:, 1] + (0.5 + 0.5 * (X[:, 0] > 5)) * RNG.normal(size=60)
TWO = np.column_stack([Y, X[:, 2] ** 2 + 0.01 * RNG.normal(size=60)])
COUNTS = RNG.poisson(np.exp(0.3 * (X[:, 0] - 5)))
X_NEW = X[:4] + 0.3 * UNITS
GRADIENTS = {"return_std": True, "return_mean_grad": True, "return_std_grad": True}


class Normed(nn.Module):
    """A layer norm with a closed form, and a bare parameter that needs the generic Jacobian."""

    def __init__(self, n_in=3, n_out=1):
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(n_in, 6), nn.LayerNorm(6), nn.Linear(6, n_out)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = (x - torch.tensor([5.0, 0.0, 3.0], dtype=x.dtype)) / torch.tensor([1.0, 10.0, 0.1], dtype=x.dtype)
        return self.scale * self.out(torch.tanh(self.norm(self.into(x))))


def fitted(y=Y, **options):
    sizes = {} if "net" in options else {"hidden_layer_sizes": (8,)}
    return LaplaceRegressor(**{**QUICK, **sizes, **options}).fit(X, y)


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def mixture():
    """The noise grows a hundredfold across the first column, so a noise model is certain to be learnt."""
    noise = 0.5 * np.exp(X[:, 0] - 5) * np.random.default_rng(1).normal(size=60)
    y = 100 + 20 * np.sin(X[:, 0]) + X[:, 1] + noise
    return fitted(y, n_members=2, likelihood="heteroscedastic")


@pytest.fixture(scope="module")
def classifier():
    options = {name: value for name, value in QUICK.items() if name not in ("sigma_noise", "likelihood")}
    return LaplaceClassifier(hidden_layer_sizes=(8,), **options).fit(X, np.digitize(X[:, 0], [4.5, 5.5]))


def central_differences(function, x, step=1e-4):
    """d function(x)[n] / d x[n] by central differences, with steps in the unit of each column; shape (n, d, …)."""
    parts = []
    for column, unit in enumerate(UNITS):
        move = np.zeros(3)
        move[column] = step * unit
        parts.append((function(x + move) - function(x - move)) / (2 * step * unit))
    return np.stack(parts, 1)


def assert_gradients(model, x=X_NEW):
    """Central differences have an error of step² times a third derivative, plus rounding over step."""
    mean, std, mean_grad, std_grad = model.predict(x, **GRADIENTS)
    np.testing.assert_allclose((mean, std), model.predict(x, return_std=True), rtol=1e-9)
    for place, gradient in enumerate((mean_grad, std_grad)):
        expected = central_differences(lambda x, place=place: model.predict(x, return_std=True)[place], x)
        units = UNITS.reshape(-1, *[1] * (expected.ndim - 2))
        size = np.abs(expected * units).max()
        np.testing.assert_allclose(gradient * units, expected * units, rtol=1e-5, atol=2e-6 * size)


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    "options",
    [
        {"hessian_structure": "full"},
        {"hessian_structure": "functional"},
        {"hessian_structure": "block_diagonal"},
        {"hessian_structure": "kron"},
        {"hessian_structure": "ekfac"},
        {"hessian_structure": LowRankDiag(5)},
        {"hessian_structure": "diag"},
        {"hessian_structure": LowRank(5)},
        {"subset_of_weights": "last_layer"},
        {"subset_of_weights": "subnetwork"},
        {"hessian_structure": Kron(bias="separate")},
        {"prior": "tensor", "hessian_structure": "full"},
        {"temperature": {"hidden.weight": 0.5}, "net": Hidden(3)},
        {"activation": "gelu"},
        {"activation": "silu"},
        {"activation": "softplus"},
        {"n_bins": 3},
        {"hidden_layer_sizes": (5, 5)},
        {"hidden_layer_sizes": ()},
        {"predictive": MonteCarlo(20)},
    ],
    ids=str,
)
def test_gradients_are_those_of_what_predict_says(options):
    """Compared with central differences of predict in double precision."""
    assert_gradients(fitted(**options))


@pytest.mark.usefixtures("complete_training")
def test_gradients_in_the_units_of_targets_that_are_not_standardised():
    assert_gradients(fitted(standardize_y=False))


def test_gradients_of_a_net_with_relu_away_from_its_kinks():
    """Between kinks the net is linear; the rows are so far from all kinks that no step crosses one."""
    assert_gradients(fitted(activation="relu"), X[:6] + 0.3 * UNITS)


def test_gradients_of_any_net():
    """A layer norm in closed form, and a bare parameter through torch.func."""
    assert_gradients(fitted(net=Normed(), hessian_structure="full"))


def test_gradients_of_a_mixture_under_learnt_noise(mixture):
    """Gradients of the mixture's moments include the members' disagreement and the learnt noise."""
    assert mixture.noise_model_ is not None
    assert len(mixture.members_) == 2
    assert_gradients(mixture)
    assert np.ptp(mixture.predict_std(X_NEW, kind="aleatoric")) > 0


def test_gradients_of_several_targets():
    """Outputs are on the last axis, as everywhere in predict."""
    model = fitted(TWO)
    assert model.predict(X_NEW, **GRADIENTS)[3].shape == (4, 3, 2)
    assert model.predict(X_NEW[:1], **GRADIENTS)[3].shape == (3, 2)
    assert_gradients(model)


def test_gradients_of_counts():
    """Gradients are of the counts' moments, not of their log rates."""
    assert_gradients(fitted(COUNTS, likelihood="poisson", sigma_noise="auto"))


def test_gradients_through_heavy_tails():
    """The asinh compression of a heavy-tailed column enters by the chain rule."""
    heavy = X.copy()
    heavy[0, 1] = 1e5
    model = LaplaceRegressor(hidden_layer_sizes=(8,), **QUICK).fit(heavy, Y)
    assert model._table.columns[1].heavy
    assert_gradients(model)


def test_gradients_after_more_rows_have_moved_the_mean(model):
    """After partial_fit the mean is f + J·shift."""
    moved = fitted().partial_fit(X[:5] + UNITS, Y[:5] + 3)
    assert not np.allclose(moved.predict(X_NEW), model.predict(X_NEW))
    assert_gradients(moved)


def test_one_row_has_gradients_of_scikit_optimizes_shape(model):
    """One row has no row axis, as scikit-optimize expects; several rows keep the axis and have equal values."""
    mean, std, mean_grad, std_grad = model.predict(X_NEW[:1], **GRADIENTS)
    assert (mean.shape, std.shape, mean_grad.shape, std_grad.shape) == ((1,), (1,), (3,), (3,))
    every = model.predict(X_NEW, **GRADIENTS)
    np.testing.assert_allclose(mean_grad, every[2][0], rtol=1e-9)
    np.testing.assert_allclose(std_grad, every[3][0], rtol=1e-9)
    np.testing.assert_allclose(model.predict(X_NEW, return_mean_grad=True)[1], every[2], rtol=1e-9)
    assert len(model.predict(X_NEW, return_std=True, return_mean_grad=True)) == 3


def test_a_small_budget_gives_the_same_gradients(model):
    """Chunks of rows give the same gradients as all rows at once."""
    budget = fitted(memory_budget=2_000_000)
    rows = np.tile(X_NEW, (200, 1))
    sizes = []
    with register_module_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0]))):
        gradients, expected = budget.predict(rows, **GRADIENTS)[3], model.predict(X_NEW, **GRADIENTS)[3]
    assert 0 < max(sizes) < len(rows)
    np.testing.assert_allclose(gradients, np.tile(expected, (200, 1)), rtol=1e-6)


def test_a_standard_deviation_of_zero_has_the_gradient_zero():
    """√v has no derivative at v = 0; the gradient is zero instead of NaN."""
    x = torch.zeros((1, 3), requires_grad=True)
    np.testing.assert_array_equal(root_gradients((x**2).sum(1, keepdim=True), x), 0.0)


def test_predict_lists_its_keywords_for_metadata_routing(model):
    """With metadata routing, a pipeline passes them on."""
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(LaplaceRegressor(hidden_layer_sizes=(8,), **QUICK)).fit(X, Y)
        routed = pipe.predict(X_NEW, **GRADIENTS)
        noisy = pipe.predict(X_NEW, return_std=True, X_std=UNITS)
    np.testing.assert_array_equal(routed[3], model.predict(X_NEW, **GRADIENTS)[3])
    np.testing.assert_array_equal(noisy, model.predict(X_NEW, return_std=True, X_std=UNITS))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"return_std_grad": True}, ValueError, "return_std_grad=True needs return_std=True .*, but return_std=False"),
        ({"return_std_grad": True, "return_std": True}, ValueError, "but return_mean_grad=False"),
        ({"return_mean_grad": True, "return_cov": True}, ValueError, "cannot be combined with return_cov=True"),
        ({"return_std": True, "return_cov": True}, RuntimeError, "At most one of return_std or return_cov"),
        ({"X_std": 1.0}, ValueError, "X_std affects only the standard deviation, .* Add return_std=True"),
        ({**GRADIENTS, "X_std": 1.0}, ValueError, "return_std_grad=True cannot be combined with X_std"),
        ({"return_std": True, "X_std": [1.0, 2.0]}, ValueError, r"X_std has shape \(2,\); expected a number, \(3,\)"),
        ({"return_std": True, "X_std": [1, -2, 0]}, ValueError, r"X_std holds -2.0; .* finite and not negative"),
        ({"return_std": True, "X_std": np.inf}, ValueError, "X_std holds inf"),
        ({"return_std": True, "X_std": "wide"}, ValueError, "X_std='wide' has to hold numbers"),
    ],
)
def test_requests_that_do_not_go_together(model, keywords, error, message):
    """The error explains what is missing or in conflict."""
    with pytest.raises(error, match=message):
        model.predict(X_NEW, **keywords)


def test_a_dataframe_of_errors_has_the_columns_of_the_rows():
    table = pd.DataFrame(X, columns=list("abc"))
    model = LaplaceRegressor(hidden_layer_sizes=(8,), **QUICK).fit(table, Y)
    errors = pd.DataFrame(np.tile([0.1, 1.0, 2.0], (len(X), 1)), columns=list("abc"))
    by_column = model.predict_std(table, X_std=[0.1, 1.0, 2.0])
    np.testing.assert_array_equal(model.predict_std(table, X_std=errors), by_column)
    np.testing.assert_array_equal(model.predict_std(table, X_std=errors.iloc[0]), by_column)
    np.testing.assert_array_equal(model.predict_std(table, X_std=errors.set_axis(range(3), axis=1)), by_column)
    for wrong in (errors[list("cba")], errors.iloc[0][list("cba")]):
        with pytest.raises(ValueError, match="X_std has the names c, b, a; expected those of X in their order"):
            model.predict_std(table, X_std=wrong)


def test_categories_and_gaps_have_no_gradients():
    """The error names the column; rows without missing values have gradients even if training rows had gaps."""
    table = pd.DataFrame({"size": X[:, 0], "town": np.where(X[:, 1] > 0, "Ulm", "Bonn")})
    model = LaplaceRegressor(hidden_layer_sizes=(8,), **QUICK).fit(table, Y)
    with pytest.raises(ValueError, match="column 'town' of X holds categories"):
        model.predict(table, return_mean_grad=True)
    gaps = X.copy()
    gaps[3, 1] = np.nan
    model = LaplaceRegressor(hidden_layer_sizes=(8,), **QUICK).fit(gaps, Y)
    assert_gradients(model)
    with pytest.raises(ValueError, match=r"no value in row 3, column 1 \(1 missing in total\)\. Impute"):
        model.predict_std(gaps, X_std=1.0)


# ---------------------------------------------------------------------- uncertain inputs


def test_uncertain_inputs_of_a_linear_net_in_closed_form():
    """For a mean wᵀx + b the variance grows by exactly Σ w² s²; the epistemic part does not change."""
    model = fitted(hidden_layer_sizes=())
    slope = model.predict(X_NEW[1:]) - model.predict(X_NEW[:-1])
    slope = np.linalg.solve(np.diff(X_NEW, axis=0), slope)
    s = np.array([0.5, 3.0, 0.2])
    for X_std in (s, np.tile(s, (4, 1))):
        expected = model.predict_std(X_NEW) ** 2 + (slope**2 * s**2).sum()
        np.testing.assert_allclose(model.predict_std(X_NEW, X_std=X_std) ** 2, expected, rtol=1e-8)
    np.testing.assert_allclose(
        model.predict_std(X_NEW, kind="aleatoric", X_std=s) ** 2 - model.predict_std(X_NEW, kind="aleatoric") ** 2,
        (slope**2 * s**2).sum(),
        rtol=1e-8,
    )
    epistemic = model.predict_std(X_NEW, kind="epistemic", X_std=s)
    np.testing.assert_allclose(epistemic, model.predict_std(X_NEW, kind="epistemic"), rtol=1e-9)
    np.testing.assert_allclose(model.predict_std(X_NEW, X_std=0.0), model.predict_std(X_NEW), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X_NEW, return_std=True, X_std=s)[1], model.predict_std(X_NEW, X_std=s))


def test_uncertain_inputs_by_monte_carlo(mixture):
    """Law of total variance over draws of the input.

    20,000 draws estimate a variance to 1 %; the input errors are small, so second-order terms stay below 5 %.
    """
    s = 0.05 * UNITS
    draws = np.random.default_rng(1).normal(size=(20_000, 3)) * s
    for row in X_NEW[:2]:
        mean, std = mixture.predict(row + draws, return_std=True)
        before, after = (mixture.predict_std(row[None], X_std=X_std)[0] ** 2 for X_std in (None, s))
        wanted = mean.var() + (std**2).mean()
        assert after > 1.05 * before
        np.testing.assert_allclose(after - before, wanted - before, rtol=0.05)


def test_uncertain_inputs_of_classes_are_refused(classifier):
    """To first order, input noise does not change the variance of a class indicator."""
    with pytest.raises(UnsupportedCombinationError, match=r"X_std needs numeric targets: .* predict_proba over draws"):
        classifier.predict_std(X_NEW, X_std=0.1)
