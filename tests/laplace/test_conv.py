"""Convolutional nets: every structure with every subset, and curvatures with sums over positions."""

from __future__ import annotations

import contracts
import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_laplace import LaplaceClassifier
from sklearn_laplace.laplace import LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.layers import conv
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.options.resolved import SHARINGS

CLASSES, ROWS = 4, 300


class Digits(nn.Module):
    """Residual net on 64 columns as an 8 × 8 image, with a depthwise convolution and batch norms."""

    def __init__(self, n_out: int = CLASSES) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.deep, self.second = nn.Conv2d(4, 4, 3, padding="same", bias=False), nn.BatchNorm2d(4)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.out = nn.Linear(16, n_out)

    def forward(self, x):
        y = torch.relu(self.first(self.stem(x.unflatten(1, (1, 8, 8)) / 16)))
        y = torch.relu(y + self.second(self.deep(y)))
        y = nn.functional.max_pool2d(y + self.depthwise(y), 4)
        return self.out(y.flatten(1))


class Pooled(nn.Module):
    """Net whose last layer is a convolution, averaged over positions."""

    def __init__(self, n_out: int = CLASSES) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv1d(1, 3, 9, stride=4), nn.Conv1d(3, n_out, 2)

    def forward(self, x):
        return self.out(torch.relu(self.stem(x[:, None] / 16))).mean(-1)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(n_class=CLASSES, return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], y[order]


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    """Cache folder, so that the tests share a single training and vary the posterior only."""
    return str(tmp_path_factory.mktemp("trained"))


def fitted(digits, memory, **options) -> LaplaceClassifier:
    module = options.pop("module", Digits)
    net = NeuralNetClassifier(
        module, max_epochs=2, lr=0.02, batch_size=16, optimizer=torch.optim.Adam, train_split=None, verbose=0
    )
    X, y = digits
    options = {"map_prior_precision": 1.0, "random_state": 0, "memory": memory, **options}
    return LaplaceClassifier(net, **options).fit(X[:ROWS], y[:ROWS])


@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_every_structure_takes_a_convolutional_net(structure, subset, digits, memory):
    """A net with shared and dense blocks; held-out accuracy is .99."""
    model = fitted(digits, memory, hessian_structure=structure, subset_of_weights=subset)
    X, y = (values[ROWS : 2 * ROWS] for values in digits)
    probabilities = model.predict_proba(X)
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=0, atol=1e-12)
    assert (probabilities.argmax(1) == y).mean() > 0.9
    network = model.laplace_.network
    assert network.generic is None
    assert len(network.layers) == {"all": 6, "last_layer": 1}[subset]
    assert model.posterior_.n_parameters == {"all": 308, "last_layer": 68}[subset]


def test_covariance_of_the_logits_is_the_dense_one(digits, memory):
    """J (H + δ)⁻¹ Jᵀ with the oracle's J and H; tolerance for a condition number of about 1e5."""
    model = fitted(digits, memory, hessian_structure="full")
    network = model.laplace_.network
    x, new = (torch.tensor(digits[0][rows]) for rows in (slice(ROWS), slice(ROWS, ROWS + 20)))
    y, names = torch.tensor(digits[1][:ROWS]), network.parameter_names
    H = oracles.ggn("categorical", network.module, names, x, y)
    P = oracles.posterior_precision(H, model.hyper_.prior_precision)
    J = oracles.jacobian(network.module, names, new)
    covariance = model.posterior_.covariance(network.jacobian(new)[1])
    contracts.close(covariance, J @ torch.linalg.inv(P) @ J.mT, 1e-8, "covariance of the logits")


def test_a_last_layer_may_be_a_convolution(digits, memory):
    """Neural linear model with a sum over positions."""
    model = fitted(digits, memory, module=Pooled, hessian_structure="kron", subset_of_weights="last_layer")
    assert model.laplace_.network.parameter_names == ("out.weight", "out.bias")
    assert np.isfinite(model.predict_proba(digits[0][:9])).all()


# --------------------------------------------------------------------------------------------------
# Sums over positions
# --------------------------------------------------------------------------------------------------

KERNEL, STRIDE, PADDING = (3, 2), (2, 1), (1, 0)


class Small(nn.Module):
    """A convolution of a 2 × 4 × 4 image between a nonlinearity and a sum over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.skip_init(nn.Conv2d, 2, 3, KERNEL, stride=STRIDE, padding=PADDING, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        self.register_buffer("readout", torch.randn(18, 3, generator=generator, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(self.conv(x.unflatten(1, (2, 4, 4)))).flatten(1) @ self.readout


def small_fit(
    kind: str, structure: str, separate: bool = False, **options: object
) -> tuple[LaplaceFit, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    x, y = contracts.random_rows(kind, 6, 32, 3, seed=0)
    rows = x, y, oracles.random_weights(6, seed=1)
    network = trace(Small(), x)
    network = network.with_separate_biases() if separate else network
    chunks = [tuple(part[span] for part in rows) for span in (slice(0, 4), slice(4, None))]
    rule, prior = GGN(), network.scalar_prior()
    return fit_laplace(network, LIKELIHOODS[kind](), rule, STRUCTURES[structure], prior, chunks, **options), rows


def by_loops(x: torch.Tensor) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each row and position: the patch with a 1 appended (I + 1,) and the derivative (C, O) of the outputs."""
    module = Small()
    rows = []
    for row in x:
        image = torch.zeros(2, 4 + 2 * PADDING[0], 4 + 2 * PADDING[1], dtype=torch.float64)
        image[:, PADDING[0] : PADDING[0] + 4, PADDING[1] : PADDING[1] + 4] = row.view(2, 4, 4)
        z = module.conv(row.view(1, 2, 4, 4)).detach()

        def outputs(z: torch.Tensor) -> torch.Tensor:
            return torch.tanh(z).flatten(1) @ module.readout

        G = torch.autograd.functional.jacobian(outputs, z)[0, :, 0]
        positions = []
        for i in range(z.shape[2]):
            for j in range(z.shape[3]):
                top, left = i * STRIDE[0], j * STRIDE[1]
                patch = image[:, top : top + KERNEL[0], left : left + KERNEL[1]].flatten()
                positions.append((torch.cat([patch, patch.new_ones(1)]), G[:, :, i, j]))
        rows.append(positions)
    return rows


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_kron_of_a_convolution_expands_its_positions(kind):
    """B sums over rows, columns and positions, A averages over rows and positions (Grosse & Martens 2016)."""
    fit, (x, y, w) = small_fit(kind, "kron")
    Lambda = oracles.output_hessian(kind, oracles.outputs(Small(), x), y)
    A, B = torch.zeros(13, 13).double(), torch.zeros(3, 3).double()
    for n, positions in enumerate(by_loops(x)):
        for a, G in positions:
            A += w[n] * torch.outer(a, a) / (w.sum() * len(positions))
            B += w[n] * G.mT @ Lambda[n] @ G
    outputs, inputs = fit.curvature.parts[0].factors(fit.curvature.total_weight)
    contracts.close(inputs, A, 1e-12, "A")
    contracts.close(outputs, B, 1e-12, "B")


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_kron_of_a_convolution_reduces_its_positions_on_request(kind):
    """A from the mean patch of a row, B from its summed derivatives (Eschenhagen et al. 2023)."""
    fit, (x, y, w) = small_fit(kind, "kron", weight_sharing=SHARINGS["reduce"])
    Lambda = oracles.output_hessian(kind, oracles.outputs(Small(), x), y)
    A, B = torch.zeros(13, 13).double(), torch.zeros(3, 3).double()
    for n, positions in enumerate(by_loops(x)):
        a = sum(a for a, _ in positions) / len(positions)
        G = sum(G for _, G in positions)
        A += w[n] * torch.outer(a, a) / w.sum()
        B += w[n] * G.mT @ Lambda[n] @ G
    outputs, inputs = fit.curvature.parts[0].factors(fit.curvature.total_weight)
    contracts.close(inputs, A, 1e-12, "A")
    contracts.close(outputs, B, 1e-12, "B")


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize("sharing", list(SHARINGS.values()))
def test_a_separate_bias_of_a_convolution_has_its_exact_block(kind, sharing):
    """Σ g gᵀ with derivatives summed over positions; the factors of the weight have no column of ones."""
    fit, (x, y, w) = small_fit(kind, "kron", separate=True, weight_sharing=sharing)
    whole, _ = small_fit(kind, "kron", weight_sharing=sharing)
    exact = oracles.ggn(kind, Small(), ("conv.bias",), x, y, w)
    weight, bias = fit.curvature.parts
    contracts.close(bias.factors(fit.curvature.total_weight)[1], exact, 1e-12, "bias")
    outputs, inputs = whole.curvature.parts[0].factors(whole.curvature.total_weight)
    contracts.close(weight.factors(fit.curvature.total_weight)[0], outputs, 1e-12, "B")
    contracts.close(weight.factors(fit.curvature.total_weight)[1], inputs[:-1, :-1], 1e-12, "A")


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize("sharing", list(SHARINGS.values()))
def test_ekfac_of_a_convolution_is_never_farther_from_the_truth_than_kron(kind, sharing):
    """Frobenius norm for both weight-sharing options; moments are those of sums over positions."""
    eye = torch.eye(39).double()
    exact = small_fit(kind, "full")[0].curvature.matrix
    fits = [small_fit(kind, key, weight_sharing=sharing)[0] for key in ("kron", "ekfac")]
    far, near = ((torch.stack([fit.curvature.times(row) for row in eye]) - exact).norm() for fit in fits)
    assert near < far


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_diag_of_a_convolution_sums_over_positions_before_it_squares(kind):
    """Diagonal of the full matrix; squaring before the sum over positions is wrong by at least 9 per cent."""
    fit, (x, y, w) = small_fit(kind, "diag")
    Lambda = oracles.output_hessian(kind, oracles.outputs(Small(), x), y)
    summed, squared_first = torch.zeros(39).double(), torch.zeros(39).double()
    for n, positions in enumerate(by_loops(x)):
        parts = [torch.einsum("co,i->coi", G, a).flatten(1) for a, G in positions]
        for J, total in [(sum(parts), summed), *((part, squared_first) for part in parts)]:
            total += w[n] * torch.einsum("cp,cd,dp->p", J, Lambda[n], J)
    contracts.close(fit.curvature.diagonal, summed, 1e-12, "diagonal")
    contracts.close(fit.curvature.diagonal, small_fit(kind, "full")[0].curvature.matrix.diagonal(), 1e-12, "of full")
    assert float(((squared_first - summed).abs() / summed).median()) > 0.05


def test_patches_are_made_once_a_batch(monkeypatch):
    """Patches, the largest tensor of a convolution, are shared by curvature and gradient."""
    made = []

    def counted(layer, inputs, patches=conv._patches):
        made.append(len(inputs))
        return patches(layer, inputs)

    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    network = trace(Small(), x)
    monkeypatch.setattr(conv, "_patches", counted)
    line = network.linearise(x)
    for n_columns in (3, 1):
        line.pullback(torch.ones(5, 3, n_columns).double())
    assert made == [5]


@pytest.mark.parametrize("shape", [(1, 6), (2, 3), (1, 1, 6)])
def test_functional_is_full_where_a_layer_has_positions(shape):
    """For a single or several positions the dual form stores the same rows as the primal one."""
    module = contracts.Around(shape, nn.Linear(shape[-1], 4), nn.Linear(4, 3))
    x, y = contracts.random_rows("gaussian", 7, 6, 2, seed=0)
    network, w = trace(module, x), torch.ones(7).double()
    jacobian = network.jacobian(x)[1]
    covariances = []
    for key in ("full", "functional"):
        chunks = [(x[:4], y[:4], w[:4]), (x[4:], y[4:], w[4:])]
        prior = GROUPINGS["tensor"].prior(network)
        fit = fit_laplace(network, LIKELIHOODS["gaussian"](), GGN(), STRUCTURES[key], prior, chunks)
        precision = prior.precision(torch.linspace(0.5, 2, prior.n_groups, dtype=torch.float64))
        covariances.append(fit.curvature.posterior(precision, 1.7).covariance(jacobian))
    contracts.close(covariances[1], covariances[0], 1e-9, f"positions {shape}")


# --------------------------------------------------------------------------------------------------
# Random nets
# --------------------------------------------------------------------------------------------------


@st.composite
def nets(draw) -> tuple[nn.Module, torch.Tensor]:
    """A convolution with random options, a norm, and a second convolution over several positions."""
    dimensions, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    channels, width = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    shape = (channels, *(draw(st.integers(5, 7)) for _ in range(dimensions)))

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dimensions))

    named = draw(st.sampled_from([None, "same", "valid"]))
    first = contracts.convolution(
        dimensions,
        channels,
        width,
        kernel_size=sizes(1, 3),
        stride=1 if named else sizes(1, 3),
        padding=named or sizes(0, 2),
        dilation=sizes(1, 2),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )
    batch_norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}[dimensions]
    norm = draw(st.sampled_from([lambda: batch_norm(width), lambda: nn.GroupNorm(groups, width, eps=0.1)]))()
    second = contracts.convolution(dimensions, width, 2, kernel_size=2, padding=1, stride=sizes(1, 2))
    module = contracts.Around(shape, first, norm, second)
    n, seed = draw(st.integers(1, 4)), draw(st.integers(0, 2**31))
    x = torch.randn(n, np.prod(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    names = [name for name, _ in module.named_parameters()]
    for name in draw(st.lists(st.sampled_from(names), max_size=len(names) - 1, unique=True)):
        module.get_parameter(name).requires_grad_(False)
    return module, x


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@given(problem=nets())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_jacobian_of_a_random_convolutional_net_is_autodiff(problem):
    """Random combinations of the options of a convolution, with random frozen tensors."""
    module, x = problem
    network = trace(module, x)
    assert network.generic is None
    pieces = network.tensors(network.jacobian(x)[1].rows())
    rows = torch.cat([pieces[name].flatten(2) for name in network.parameter_names], -1)
    contracts.close(rows, oracles.jacobian(module, network.parameter_names, x), 1e-10, "Jacobian")
