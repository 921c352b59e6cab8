"""Errors about NaN and infinity name the layer that produces them and the rows of X."""

from __future__ import annotations

import nets
import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import NonFiniteError, NonFiniteLossError
from sklearn_laplace.laplace import fit_laplace
from sklearn_laplace.laplace.curvatures import CURVATURES, GGN
from sklearn_laplace.laplace.likelihoods import Gaussian, Poisson
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.options import MonteCarlo

RNG = np.random.default_rng(53)
FINE = RNG.normal(size=(40, 3))
X = FINE.copy()
X[[3, 17]] = [-50.0, 0.0, 0.0]
ZERO = FINE.copy()
ZERO[[5, 21, 30]] = 0.0
Y = FINE[:, 1] + 0.1 * RNG.normal(size=40)
LABELS = (Y > 0).astype(int)


class Log(nn.Module):
    """Activation that is NaN below −30."""

    def forward(self, x):
        return torch.log(x + 30)


class Root(nn.Module):
    """Function that is finite at zero with an infinite derivative."""

    def forward(self, x):
        return x.abs().sqrt()


class Net(nn.Module):
    """A function between two layers; the first maps a row of zeros to zeros."""

    between: type[nn.Module] = nn.Tanh

    def __init__(self, n_in=3, n_out=1):
        super().__init__()
        self.first, self.middle = nn.Linear(n_in, 4, bias=False), self.between()
        self.last = nn.Linear(4, n_out)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


class LogFirst(Net):
    def __init__(self, n_in=3, n_out=1):
        super().__init__(n_in, n_out)
        self.log = Log()

    def forward(self, x):
        return super().forward(self.log(x))


class LogBetween(Net):
    """NaN in the net's forward method before its last layer."""

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * torch.log(x[:, :1] + 30))


class LogLast(Net):
    """NaN after the last layer."""

    def forward(self, x):
        return super().forward(x) + torch.log(x[:, :1] + 30)


class RootBetween(Net):
    between = Root


class RootInside(nn.Module):
    """Nested Sequential with an in-place activation."""

    def __init__(self, n_in=3, n_out=1):
        super().__init__()
        inner = nn.Sequential(nn.Linear(n_in, 4, bias=False), nn.LeakyReLU(inplace=True), Root())
        self.all = nn.Sequential(inner, nn.Linear(4, n_out))

    def forward(self, x):
        return self.all(x)


class RootByHand(Net):
    """NaN in the net's forward method after its first layer."""

    def forward(self, x):
        return self.last(self.first(x).abs().sqrt())


class RootOfAWeight(Net):
    """Infinite derivative at a zero weight."""

    def __init__(self, n_in=3, n_out=1):
        super().__init__(n_in, n_out)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return super().forward(x) * (1 + self.gain.sqrt())


FORWARD = {
    LogFirst: r"the output of layer 'log' \(Log\) is NaN or infinite",
    LogBetween: r"the input of layer 'last' \(Linear\) is NaN or infinite",
    LogLast: r"the output of the module LogLast itself is NaN or infinite",
}
BACKWARD = {
    RootBetween: r"the gradient of the input of layer 'middle' \(Root\) is NaN or infinite",
    RootInside: r"the gradient of the input of layer 'all.0.2' \(Root\) is NaN or infinite",
    RootByHand: r"the gradient of the output of layer 'first' \(Linear\) is NaN",
}


def frozen(kind, classes=False):
    """Fitted skorch net of this kind with finite weights."""
    torch.manual_seed(0)
    template = NeuralNetClassifier if classes else NeuralNetRegressor
    net = template(kind, module__n_out=2 if classes else 1, max_epochs=0, train_split=None, verbose=0)
    return FrozenEstimator(net.initialize())


# ---------------------------------------------------------------------- fits


@pytest.mark.parametrize("kind", [*FORWARD, *BACKWARD])
@pytest.mark.parametrize("frozen_net", [False, True], ids=["trained", "frozen"])
def test_the_layer_and_the_rows_are_named(kind, frozen_net):
    """Both estimators, with built-in or external training; duplicated rows are listed too."""
    rows, numbers = (X, "3, 17") if kind in FORWARD else (ZERO, "5, 21, 30")
    message = rf"{FORWARD.get(kind) or BACKWARD[kind]}.*or use float64\. First affected rows of X: {numbers}\."
    for estimator, y in ((LaplaceRegressor, Y), (LaplaceClassifier, LABELS)):
        net = frozen(kind, estimator is LaplaceClassifier) if frozen_net else kind
        with pytest.raises(NonFiniteError, match=message):
            estimator(net, random_state=0).fit(rows, y)


@pytest.mark.parametrize("curvature", sorted(CURVATURES))
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_every_structure_and_curvature_stops_at_the_layer(structure, curvature):
    """Any sum of a structure may be infinite; several chunks, and more rows than low_rank stores."""
    rule = CURVATURES[curvature]()
    if not STRUCTURES[structure].accepts & rule.provides:
        return
    x = torch.tensor(np.tile(ZERO, (8, 1)))
    targets, weights = torch.ones(len(x), 1).double(), torch.ones(len(x)).double()
    chunks = list(zip(x.split(100), targets.split(100), weights.split(100), strict=True))
    for kind, message in (
        (RootBetween, r"the gradient of the input of layer 'middle' \(Root\)"),
        (Net, "first.*has NaN or infinite values in 'weight'"),
    ):
        torch.manual_seed(0)
        module = kind().double()
        if kind is Net:
            nn.init.constant_(module.first.weight, float("nan"))
        network = trace(module, torch.tensor(FINE))
        with pytest.raises(NonFiniteError, match=message):
            fit_laplace(network, Gaussian(), rule, STRUCTURES[structure], network.scalar_prior(), chunks)


def test_only_what_overflows_when_it_is_squared_is_told_from_what_overflows():
    """Gradients of 1e25 overflow in float32 without a faulty layer."""
    network = trace(nn.Sequential(nn.Linear(3, 1)), torch.ones(1, 3))
    rows = [(torch.full((4, 3), 1e25), torch.zeros(4, 1), torch.ones(4))]
    small = network.with_parameters(1e-30 * network.theta)
    with pytest.raises(
        NonFiniteError, match=r"every layer's output and gradient is finite in torch.float32, but produ"
    ):
        fit_laplace(small, Gaussian(), GGN(), STRUCTURES["diag"], network.scalar_prior(), rows)


def test_a_loss_that_overflows_on_finite_outputs_is_named():
    """The rate e^800 overflows."""
    module = nn.Linear(3, 1).double()
    network = trace(module, torch.ones(1, 3).double())
    network = network.with_parameters(torch.tensor([800.0, 0.0, 0.0, 0.0]))
    rows = [(torch.eye(3).double(), torch.ones(3, 1).double(), torch.ones(3).double())]
    with pytest.raises(NonFiniteError, match=r"the poisson loss of outputs up to 8e\+02 is NaN or infinite\."):
        fit_laplace(network, Poisson(), GGN(), STRUCTURES["full"], network.scalar_prior(), rows)


def test_a_weight_whose_own_derivative_is_infinite_is_named():
    """All gradients of layers are finite."""
    for net in (RootOfAWeight, frozen(RootOfAWeight)):
        with pytest.raises(NonFiniteError, match=r"the gradient of parameter 'gain' is NaN or infinite\. Scale"):
            LaplaceRegressor(net, random_state=0).fit(FINE, Y)


def test_a_frozen_net_with_a_broken_weight_says_which():
    """Weights and buffers are checked; an infinite buffer is allowed where its effect is finite."""
    net = nets.regressor(module__n_in=3, module__norm=True, max_epochs=1)
    net.fit(FINE.astype(np.float32), Y[:, None].astype(np.float32))
    for layer, tensor, value in (
        (net.module_.out, "weight", np.inf),
        (net.module_.out, "bias", np.nan),
        (net.module_.norm, "running_var", np.nan),
    ):
        values = getattr(layer, tensor)
        kept = values.detach().clone()
        with torch.no_grad():
            values.view(-1)[0] = value
        name = type(layer).__name__
        with pytest.raises(NonFiniteError, match=rf"\({name}\) has NaN or infinite values in '{tensor}'\. Train"):
            LaplaceRegressor(FrozenEstimator(net)).fit(FINE, Y)
        with torch.no_grad():
            values.copy_(kept)
    LaplaceRegressor(FrozenEstimator(net)).fit(FINE, Y)


def test_inputs_that_leave_the_range_of_the_dtype_are_the_inputs_fault():
    """1e300 overflows in float32."""
    rows = FINE.copy()
    rows[7, 1] = 1e300
    with pytest.raises(NonFiniteError, match=r"X, as torch.float32, is NaN or infinite\..*rows of X: 7\."):
        LaplaceRegressor(Net, dtype="float32", random_state=0).fit(rows, Y)


def test_epochs_that_start_broken_name_the_layer_and_those_that_diverge_the_rate():
    """Only forward and backward passes name a layer."""
    for rows, lr, error, message in (
        (X, 1e-2, NonFiniteError, r"'log' \(Log\) is NaN or infinite"),
        (FINE, 1e30, NonFiniteLossError, r"in epoch \d+ with lr=1e\+30"),
    ):
        net = nets.regressor(LogFirst, max_epochs=9, lr=lr, optimizer=torch.optim.SGD)
        with pytest.raises(error, match=message):
            LaplaceRegressor(net, random_state=0).fit(rows, Y)


def test_an_estimator_is_left_as_it_was():
    """The check applies to fit and to partial_fit."""
    fresh = LaplaceRegressor(LogFirst, random_state=0)
    before = dict(vars(fresh))
    with pytest.raises(NonFiniteError):
        fresh.fit(X, Y)
    assert vars(fresh) == before
    model = LaplaceRegressor(LogFirst, random_state=0).fit(FINE, Y)
    std = model.predict_std(FINE)
    for again in (model.fit, model.partial_fit):
        with pytest.raises(NonFiniteError, match="First affected rows of X: 3, 17"):
            again(X, Y)
        np.testing.assert_array_equal(model.predict_std(FINE), std)


def test_rows_beyond_the_first_few_are_not_listed():
    """The message lists at most five rows."""
    rows = FINE.copy()
    rows[10:20, 0] = -40 - np.arange(10)
    with pytest.raises(NonFiniteError, match=r"First affected rows of X: (\d+, ){4}\d+\.$"):
        LaplaceRegressor(LogFirst, random_state=0).fit(rows, Y)


# ---------------------------------------------------------------------- predictions


@pytest.mark.parametrize("predictive", ["glm", "mc"])
def test_a_prediction_is_finite_or_says_where_it_is_not(predictive):
    """Every prediction method of both estimators, with several chunks; other rows are not affected."""
    many = np.tile(FINE, (30, 1))
    broken = many.copy()
    broken[[3, 1100]] = X[3]
    common = ["predict", "predict_std", "score_samples", "sample_y"]
    for estimator, y, methods in (
        (LaplaceRegressor, Y, ["predict_dist", "predict_interval"]),
        (LaplaceClassifier, LABELS, ["predict_proba", "predict_entropy"]),
    ):
        options = {"predictive": MonteCarlo(10) if predictive == "mc" else predictive, "random_state": 0}
        model = estimator(frozen(LogFirst, estimator is LaplaceClassifier), **options).fit(FINE, y)
        for method in common + methods:
            with pytest.raises(NonFiniteError, match=r"'log' \(Log\) is.*First affected rows of X: 3"):
                getattr(model, method)(broken)
        assert np.isfinite(model.predict_std(many)).all()
    model = LaplaceRegressor(frozen(LogFirst), **options).fit(FINE, Y)
    with pytest.raises(NonFiniteError, match="First affected rows of X: 3, 17"):
        model.predict(X, return_cov=True)


def test_a_variance_that_is_not_finite_is_no_prediction():
    """A finite output may have an infinite derivative."""
    model = LaplaceRegressor(frozen(RootBetween)).fit(FINE, Y)
    assert np.isfinite(model.predict(ZERO)).all()
    with pytest.raises(
        NonFiniteError, match=r"input of layer 'middle' \(Root\) is NaN.*First affected rows of X: 5, 21, 30"
    ):
        model.predict(ZERO, return_std=True)
    with pytest.raises(NonFiniteError, match="gradient of the input"):
        model.predict(ZERO, return_cov=True)
