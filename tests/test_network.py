"""The traced network: which layers are factored, and that its Jacobian is autodiff's whatever the module does."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor

import oracles
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sklearn_laplace.network import Network

# torch's own word on the missing vmap rule of weight norm: slower, not wrong
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

D, C = 3, 2
X = torch.randn(7, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def built(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in float64 with seeded normal parameters, of which none is zero or one by chance."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def linear(d: int, c: int, bias: bool = True) -> nn.Linear:
    """A layer that does not draw from the global random state."""
    return nn.utils.skip_init(nn.Linear, d, c, bias=bias, dtype=torch.float64)


class Reused(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = linear(D, D), linear(D, C)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(nn.Module):
    """Two layers that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.outer = linear(D, D), linear(D, D), linear(D, C)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Bypassed(nn.Module):
    """A layer whose weight is used without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.outer = linear(D, 4), linear(4, C)

    def forward(self, x):
        return self.outer(torch.tanh(F.linear(x, self.first.weight, self.first.bias)))


class CalledAndBypassed(Bypassed):
    """A layer that is called once, and whose weight is used a second time behind its back."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.outer(hidden) + F.linear(hidden, self.outer.weight.sin())


class Branching(nn.Module):
    """Control flow that looks at each row."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.outer = linear(D, 4, bias=False), linear(D, 4, bias=False), linear(4, C)

    def forward(self, x):
        weights = [self.left.weight if row[0] > 0 else self.right.weight.cos() for row in x]
        return self.outer(torch.stack([torch.tanh(w @ row) for w, row in zip(weights, x, strict=True)]))


class Routed(nn.Module):
    """A mixture of experts: each row is passed to one of two layers, each called once."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = linear(D, C), linear(D, C)

    def forward(self, x):
        chosen = x[:, 0] > 0
        y = x.new_zeros(len(x), C)
        y[chosen] = self.left(x[chosen])
        y[~chosen] = self.right(x[~chosen])
        return y


class Pooled(nn.Module):
    """One layer on all positions of all rows at once, (n·T, I), then the sum over a row's positions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = linear(1, 4), linear(4, C)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x.reshape(-1, 1))).unflatten(0, x.shape).sum(1))


class Convolution(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.outer = nn.utils.skip_init(nn.Conv1d, 1, 2, 2, dtype=torch.float64), linear(2 * (D - 1), C)

    def forward(self, x):
        return self.outer(torch.relu(self.conv(x[:, None])).flatten(1))


class Image(nn.Module):
    """A two-dimensional convolution over the outer product of the row with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.outer = nn.utils.skip_init(nn.Conv2d, 1, 2, 2, dtype=torch.float64), linear(8, C)

    def forward(self, x):
        return self.outer(torch.tanh(self.conv((x[:, :, None] * x[:, None])[:, None])).flatten(1))


class Sequence(nn.Module):
    """A linear layer on each of several positions, inputs of shape (n, T, I)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = linear(1, 4), linear(4, C)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x[:, :, None])).sum(1))


class Flat(nn.Module):
    """Outputs of shape (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = linear(D, 4), linear(4, 1)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))[:, 0]


class Residual(nn.Module):
    """A skip connection and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))
        self.inner, self.outer = linear(D, D), linear(D, C)

    def forward(self, x):
        return self.outer(x * self.gain + torch.tanh(self.inner(x)))


def hooked() -> nn.Module:
    """A layer whose output the user's own hook doubles."""
    module = oracles.random_mlp((D, 4, C))
    module[0].register_forward_hook(lambda layer, args, output: 2 * output)
    return module


def batch_norm() -> nn.Module:
    """Running statistics that are not those of any batch."""
    module = built(nn.Sequential(linear(D, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), linear(4, C)))
    module[1].running_mean.fill_(0.3)
    module[1].running_var.fill_(2.0)
    return module.train()


CASES = {
    "plain": lambda: oracles.random_mlp((D, 4, 4, C)),
    "without bias": lambda: built(nn.Sequential(linear(D, 4, bias=False), nn.GELU(), linear(4, C, bias=False))),
    "reused layer": lambda: built(Reused()),
    "tied weights": lambda: built(Tied()),
    "in-place ReLU": lambda: built(nn.Sequential(linear(D, 6), nn.ReLU(inplace=True), linear(6, C))),
    "layer norm": lambda: built(nn.Sequential(linear(D, 4), nn.LayerNorm(4), nn.Tanh(), linear(4, C))),
    "convolution": lambda: built(Convolution()),
    "image": lambda: built(Image()),
    "sequence": lambda: built(Sequence()),
    "branching": lambda: built(Branching()),
    "batch norm and dropout": batch_norm,
    "bypassed layer": lambda: built(Bypassed()),
    "called and bypassed": lambda: built(CalledAndBypassed()),
    "one-dimensional outputs": lambda: built(Flat()),
    "residual": lambda: built(Residual()),
    "the user's hook": hooked,
    "weight norm": lambda: built(
        nn.Sequential(nn.utils.parametrizations.weight_norm(linear(D, 4)), nn.Tanh(), linear(4, C))
    ),
    "one linear layer": lambda: oracles.random_mlp((D, C)),
}

FACTORED = {
    "plain": ["0", "2", "4"],
    "without bias": ["0", "2"],
    "reused layer": ["outer"],
    "tied weights": ["outer"],
    "in-place ReLU": ["0", "2"],
    "layer norm": ["0", "3"],
    "convolution": ["outer"],
    "image": ["outer"],
    "sequence": ["inner", "outer"],
    "branching": ["outer"],
    "batch norm and dropout": ["0", "4"],
    "bypassed layer": ["outer"],
    "called and bypassed": ["first"],
    "one-dimensional outputs": ["inner", "outer"],
    "residual": ["inner", "outer"],
    "the user's hook": ["2"],
    "weight norm": ["2"],
    "one linear layer": ["0"],
}


def dense(network: Network, x: torch.Tensor) -> torch.Tensor:
    """The package's Jacobian (n, C, P) in the oracles' order."""
    pieces = network.tensors(network.jacobian(x)[1].rows())
    return torch.cat([pieces[name].flatten(2) for name in network.parameter_names], -1)


@pytest.mark.parametrize("case", CASES)
def test_jacobian_is_autodiff(case):
    """Rows one at a time through the oracle: also right where rows are batched, layers factored, hooks at work."""
    module = CASES[case]()
    network = Network.trace(module, X[:4])
    assert set(network.parameter_names) == set(oracles.all_names(module))
    expected = oracles.jacobian(module, network.parameter_names, X)
    torch.testing.assert_close(dense(network, X), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(network.linearise(X).outputs, oracles.outputs(module, X), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(network(X), oracles.outputs(module, X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_trace_factors_exactly_the_layers_that_it_may(case):
    """A layer called once on one vector a row, with tensors of its own; nothing else, and nothing left out."""
    network = Network.trace(CASES[case](), X)
    assert [layer.name for layer in network.layers] == FACTORED[case]


def test_control_flow_that_looks_at_the_data_is_taken_row_by_row():
    """torch.func cannot batch it; the fallback is slow, not wrong."""
    assert not Network.trace(CASES["branching"](), X).generic.batched
    assert Network.trace(CASES["reused layer"](), X).generic.batched


@pytest.mark.parametrize("kind", [Routed, Pooled])
def test_a_layer_called_once_but_not_once_a_row_is_not_factored(kind):
    """Experts that see some of the rows, positions folded into the rows: one call, yet no vector for each row."""
    module = built(kind())
    x = X.clone()
    x[:3, 0] = torch.tensor([1.0, -1.0, -2.0])
    network = Network.trace(module, x)
    expected = oracles.jacobian(module, network.parameter_names, x)
    torch.testing.assert_close(dense(network, x), expected, rtol=1e-10, atol=1e-10)


def test_positions_folded_into_the_rows_do_not_change_the_diagonal():
    """A row's gradient is the sum over its positions, taken before squaring; no error would tell otherwise."""
    module = built(Pooled())
    network = Network.trace(module, X)
    found = network.tensors(network.jacobian(X)[1].square_sum())
    squares = oracles.jacobian(module, network.parameter_names, X).square().sum((0, 1))
    flat = torch.cat([found[name].flatten() for name in network.parameter_names])
    torch.testing.assert_close(flat, squares, rtol=1e-10, atol=0)


@pytest.mark.parametrize("case", ["plain", "residual", "reused layer"])
def test_probabilities_are_taken_through_their_logarithm(case):
    """A softmax-ended net is a net of logits up to a constant; the oracle differentiates the logarithm itself."""

    class Log(nn.Module):
        def forward(self, p):
            return p.log()

    module = nn.Sequential(CASES[case](), nn.Softmax(1))
    network = Network.trace(module, X, log_outputs=True)
    logged = nn.Sequential(*module, Log())
    expected = oracles.jacobian(logged, network.parameter_names, X)
    torch.testing.assert_close(dense(network, X), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(network(X), oracles.outputs(logged, X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("names", [("0.weight",), ("2.bias",), ("0.bias", "4.weight", "4.bias")])
def test_selected_tensors_alone_are_differentiated(names):
    """Last layer and subnetworks are a choice of names."""
    module = CASES["plain"]()
    for network in (Network.trace(module, X, names), Network.trace(module, X).select(names, X)):
        assert network.parameter_names == names
        torch.testing.assert_close(dense(network, X), oracles.jacobian(module, names, X), rtol=1e-10, atol=1e-10)
        assert torch.equal(network.theta.sort().values, oracles.flatten(module, names).sort().values)


def test_frozen_parameters_are_not_selected():
    """requires_grad=False is how a user freezes a tensor."""
    module = CASES["plain"]()
    module[0].requires_grad_(False)
    assert Network.trace(module, X).parameter_names == ("2.weight", "2.bias", "4.weight", "4.bias")


def test_unknown_or_absent_parameters_are_refused():
    """The message names what there is."""
    module = CASES["plain"]()
    with pytest.raises(ValueError, match=r"unknown parameters \['9.weight'\]; the module has \['0.weight'"):
        Network.trace(module, X, ("9.weight",))
    with pytest.raises(ValueError, match="no parameter is selected"):
        Network.trace(module.requires_grad_(False), X)


def snapshot(module: nn.Module) -> dict[str, object]:
    """All that a visit could leave behind."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "state": {name: value.clone() for name, value in module.state_dict().items()},
        "identity": {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)},
        "pointer": {name: value.data_ptr() for name, value in module.state_dict().items()},
        "requires_grad": {name: p.requires_grad for name, p in module.named_parameters()},
        "gradient": {name: p.grad is None for name, p in module.named_parameters()},
        "train": {name: m.training for name, m in module.named_modules()},
        "hooks": {name: [list(getattr(m, hook).items()) for hook in hooks] for name, m in module.named_modules()},
    }


@pytest.mark.parametrize("case", CASES)
def test_the_module_is_untouched(case):
    """It belongs to the user: weights, buffers, hooks, mode and flags stay as they are, to the bit."""
    module = CASES[case]().train()
    next(iter(module.parameters())).requires_grad_(False)
    before, state = snapshot(module), torch.random.get_rng_state()
    network = Network.trace(module, X)
    moved = network.with_parameters(network.theta + 1)
    for visited in (network, moved):
        visited.linearise(X).pullback(torch.ones(len(X), network(X).shape[1], 1).double()).rows()
    private = snapshot(network.module)
    network.jacobian(X)
    for known, now in ((before, snapshot(module)), (private, snapshot(network.module))):
        assert known["state"].keys() == now["state"].keys()
        assert all(torch.equal(value, now["state"][name]) for name, value in known["state"].items())
        assert all(known[key] == now[key] for key in known if key != "state")
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("case", ["plain", "in-place ReLU", "layer norm", "batch norm and dropout"])
def test_threads_give_the_same(case):
    """A web server predicts from several threads; each forward pass has a replica and hooks of its own."""
    network = Network.trace(CASES[case](), X)
    inputs = [X[i : i + 4] + i for i in range(4)] * 15
    alone = [network.jacobian(x)[1].rows() for x in inputs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that what two threads share shows
    try:
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda x: network.jacobian(x)[1].rows(), inputs))
    finally:
        sys.setswitchinterval(interval)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_with_parameters_puts_theta_where_it_was(case):
    """θ out, θ in, and the outputs of the module that holds these weights."""
    module = CASES[case]()
    network = Network.trace(module, X)
    same = network.with_parameters(network.theta)
    assert torch.equal(same(X), network(X))
    theta = network.theta + torch.linspace(-1, 1, network.n_parameters, dtype=torch.float64)
    moved = network.with_parameters(theta)
    flat = torch.cat([network.tensors(theta)[name].flatten() for name in network.parameter_names])
    expected = oracles.with_parameters(module, network.parameter_names, flat)
    torch.testing.assert_close(moved(X), oracles.outputs(expected, X), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        dense(moved, X), oracles.jacobian(expected, network.parameter_names, X), rtol=1e-10, atol=1e-10
    )
    assert torch.equal(moved.theta, theta)
    gathered = torch.cat([dict(moved.module.named_parameters())[n].flatten() for n in network.parameter_names])
    assert torch.equal(gathered, flat)
    assert torch.equal(network.theta, Network.trace(module, X).theta)


def test_with_state_of_follows_training():
    """Evidence steps during training look at the live net again and again."""
    module = batch_norm()
    network = Network.trace(module, X)
    with torch.no_grad():
        module[0].weight.mul_(2)
        module[1].running_mean.add_(1)
    present = network.with_state_of(module)
    torch.testing.assert_close(present(X), oracles.outputs(module, X), rtol=1e-12, atol=1e-12)
    assert torch.equal(present.theta, Network.trace(module, X).theta)
    assert not torch.equal(network(X), present(X))


@pytest.mark.parametrize("case", ["plain", "residual", "in-place ReLU", "layer norm", "reused layer"])
def test_single_precision_nets(case):
    """Products in the net's own dtype, θ in float64; 1e-4 is a hundred times float32's rounding."""
    module = CASES[case]()
    single = copy.deepcopy(module).float()
    network = Network.trace(single, X.float())
    jacobian = network.jacobian(X.float())[1].rows()
    assert jacobian.dtype == torch.float32 and network.theta.dtype == torch.float64
    expected = oracles.jacobian(single, network.parameter_names, X.float())
    torch.testing.assert_close(dense(network, X.float()).double(), expected, rtol=1e-4, atol=1e-4)
    assert network.with_parameters(network.theta)(X.float()).dtype == torch.float32
    assert [layer.name for layer in network.layers] == FACTORED[case]


def test_tensor_prior_groups_by_tensor():
    """One group for each parameter tensor, whatever the blocks."""
    module = CASES["residual"]()
    network = Network.trace(module, X)
    prior = network.tensor_prior()
    assert (
        prior.names == network.parameter_names == ("gain", "inner.weight", "inner.bias", "outer.weight", "outer.bias")
    )
    pieces = network.tensors(prior.groups)
    assert all(bool((pieces[name] == i).all()) for i, name in enumerate(prior.names))
    squares = prior.group_sums(network.theta.square())
    expected = torch.stack([module.get_parameter(name).detach().square().sum() for name in prior.names])
    torch.testing.assert_close(squares, expected, rtol=1e-13, atol=0)
