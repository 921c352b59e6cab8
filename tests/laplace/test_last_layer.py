"""Detection of the last layer by its influence on the outputs; errors for nets without one."""

from __future__ import annotations

import contracts
import numpy as np
import oracles
import pytest
import torch
from torch import nn

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.subsets import LastLayer

X = torch.randn(9, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


class Net(nn.Module):
    """Two layers; subclasses differ after the first layer."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__()
        self.body, self.head = nn.Linear(n_in, 5), nn.Linear(5, n_out)

    def features(self, x):
        return torch.tanh(self.body(x))

    def forward(self, x):
        return self.head(self.features(x))


class Scaled(Net):
    """A parameter of the net itself after the last layer."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__(n_in, n_out)
        self.gain = nn.Parameter(torch.tensor(1.7))

    def forward(self, x):
        return self.gain * self.head(self.features(x))


class Skipping(Net):
    """A parameter-free path from inputs to outputs bypasses the head."""

    def forward(self, x):
        return self.head(self.features(x)) + x[:, :1]


class Flattened(Net):
    """A convolution, followed only by a view."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__(n_in, n_out)
        self.head, self.flat = nn.Conv1d(1, 1, 4), nn.Flatten()

    def forward(self, x):
        return self.flat(self.head(self.features(x)[:, None]))


class Normed(Net):
    """A norm without parameters."""

    def forward(self, x):
        return nn.functional.layer_norm(self.head(self.features(x)), (2,))


class Heads(Net):
    """A separate layer per output."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__(n_in, n_out)
        self.head, self.other = nn.Linear(5, 1), nn.Linear(5, n_out - 1)

    def forward(self, x):
        return torch.cat([self.head(self.features(x)), self.other(self.features(x))], 1)


class Wide(Net):
    """A linear branch in parallel to the deep branch."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__(n_in, n_out)
        self.wide = nn.Sequential(nn.Linear(n_in, n_out))

    def forward(self, x):
        return self.wide(x) + self.head(self.features(x))


class Reused(Net):
    """The last layer is called twice."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__(n_in, n_out)
        self.body, self.head = nn.Linear(n_in, n_out), nn.Linear(n_out, n_out)

    def forward(self, x):
        return self.head(torch.tanh(self.head(self.features(x))))


class Tied(Net):
    """The last layer shares the weight of the first."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__(n_in, n_out)
        self.body, self.head = nn.Linear(n_in, n_in), nn.Linear(n_in, n_in)
        self.head.weight = self.body.weight


class Unregistered(Net):
    """Parameters of the net itself replace the last layer."""

    def __init__(self, n_in=4, n_out=2):
        super().__init__(n_in, n_out)
        self.head = nn.LSTM(5, n_out, batch_first=True)

    def forward(self, x):
        return self.head(self.features(x)[:, None])[0][:, 0]


def traced(kind) -> Network:
    torch.manual_seed(3)
    return trace(kind().double(), X)


@pytest.mark.parametrize("kind", [Net, Scaled, Skipping, Flattened, Normed])
def test_what_is_behind_the_last_layer_may_be_anything_without_layers(kind):
    """Names of the tensors, and the Jacobian of the net with respect to them against autodiff."""
    network = traced(kind)
    part = LastLayer().of(network, X)
    assert part.parameter_names == ("head.weight", "head.bias")
    rows = part.jacobian(X)[1].rows()[..., contracts.oracle_order(part)]
    expected = oracles.jacobian(network.module, part.parameter_names, X)
    torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Heads,
            r"found 'other' as the last layer, but \['body', 'head'\] reach the outputs without passing through it",
        ),
        (Wide, r"found 'head' as the last layer, but \['wide.0'\] reach.*Give a list of the random ten"),
        (Reused, r"found 'head' \(Linear\). Use subset_of_weights='all'"),
        (Tied, r"called once, with tensors that nothing else uses.*found 'head' \(Linear\)"),
        (Unregistered, r"found 'head' \(LSTM\)"),
    ],
)
def test_a_net_without_one_last_layer_says_why(kind, message):
    """The message names the last layer and an alternative."""
    with pytest.raises(UnsupportedCombinationError, match=message):
        LastLayer().of(traced(kind), X)


def test_another_layer_past_the_last_one_may_be_frozen():
    """Frozen tensors are not selected."""
    torch.manual_seed(3)
    module = Wide().double()
    module.wide.requires_grad_(False)
    assert LastLayer().of(trace(module, X), X).parameter_names == ("head.weight", "head.bias")


def test_several_heads_are_refused_before_training_and_taken_by_name():
    """Two heads selected by name are a linear model in the features, with variance in each output."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 4))
    targets = rows[:, :2] + 0.3 * rng.normal(size=(30, 2))
    model = LaplaceRegressor(Heads, subset_of_weights="last_layer", random_state=0)
    with pytest.raises(UnsupportedCombinationError, match="found 'other'"):
        model.fit(rows, targets)
    heads = ["head.weight", "head.bias", "other.weight", "other.bias"]
    model.set_params(subset_of_weights=heads, max_epochs=1).fit(rows, targets)
    assert (model.predict_std(rows, kind="epistemic") > 0).all()
