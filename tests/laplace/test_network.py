"""The traced network: selection of factored layers, and Jacobians against autodiff for many kinds of modules."""

import copy
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import oracles
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import layers
from sklearn_laplace.laplace.network import Network, select, trace
from sklearn_laplace.laplace.prior_groups import GROUPINGS

# torch warns that weight norm has no vmap rule and is slower
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

D, C = 3, 2
X = torch.randn(7, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def built(module: nn.Module, seed: int = 0) -> nn.Module:
    """Convert a module to float64, with seeded normal parameters."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def linear(d: int, c: int, bias: bool = True) -> nn.Linear:
    """Linear layer that does not use the global random state."""
    return nn.utils.skip_init(nn.Linear, d, c, bias=bias, dtype=torch.float64)


class Reused(nn.Module):
    """A layer that is called twice."""

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
    """A layer that is called once and whose weight is also used directly."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.outer(hidden) + F.linear(hidden, self.outer.weight.sin())


class Branching(nn.Module):
    """Control flow that depends on the data."""

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
    """A layer on all positions of all rows, (n·T, I), then the sum over the positions of a row."""

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


class Normed(nn.Module):
    """Residual sums of branches with several kinds of layers and norms."""

    def __init__(self) -> None:
        super().__init__()
        conv = nn.utils.skip_init
        self.stem = conv(nn.Conv1d, 1, 4, 1, dtype=torch.float64)
        self.wide = conv(nn.Conv1d, 4, 4, 3, padding="same", padding_mode="circular", dtype=torch.float64)
        self.deep = conv(nn.Conv1d, 4, 4, 3, padding=1, groups=4, bias=False, dtype=torch.float64)
        self.point = conv(nn.Conv1d, 4, 4, 1, groups=2, dtype=torch.float64)
        self.batch, self.group, self.layer = nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.LayerNorm(D)
        self.skip, self.outer = linear(D, C), linear(4, C)

    def forward(self, x):
        y = self.batch(self.stem(x[:, None]))
        y = y + torch.tanh(self.group(self.wide(y))) + self.point(torch.relu(self.layer(self.deep(y))))
        return self.outer(y.mean(-1)) + self.skip(x)


class ReusedConvolution(nn.Module):
    """A convolution called twice, and a norm called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.utils.skip_init(nn.Conv1d, 1, 1, 3, padding=1, dtype=torch.float64), linear(D, C)
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        x = torch.tanh(self.norm(self.inner(x[:, None])))
        return self.outer(torch.tanh(self.norm(self.inner(x)))[:, 0])


class TiedConvolutions(nn.Module):
    """Two convolutions that share their weight only."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (nn.utils.skip_init(nn.Conv1d, 1, 1, 3, padding=1, dtype=torch.float64) for _ in range(2))
        self.first, self.second, self.outer = first, second, linear(D, C)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.second(torch.tanh(self.first(x[:, None]))))[:, 0])


class Words(nn.Module):
    """Sum of token and position embeddings; there are as many positions as rows in the trace."""

    def __init__(self, expand: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(5, 4, padding_idx=0), nn.Embedding(D, 4)
        self.outer, self.expand = linear(4, C), expand

    def forward(self, x):
        places = torch.arange(D, device=x.device)
        places = places.expand(len(x), D) if self.expand else places
        tokens = (2 * x).abs().floor().clamp(max=4).long()
        return self.outer(torch.tanh(self.words(tokens) + self.places(places)).sum(1))


class Unusual(nn.Module):
    """Layers without a factored form: transposed and 3d convolutions, EmbeddingBag, a token shared by all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.utils.skip_init(nn.ConvTranspose1d, 1, 2, 2, dtype=torch.float64)
        self.cube = nn.utils.skip_init(nn.Conv3d, 1, 2, (2, 1, 1), dtype=torch.float64)
        self.bag, self.token = nn.EmbeddingBag(5, 2), nn.Embedding(3, 2)
        self.outer = linear(2, C)

    def forward(self, x):
        tokens = (2 * x).abs().floor().clamp(max=4).long()
        y = self.up(x[:, None]).mean(-1) + self.cube(x[:, None, :, None, None]).mean((2, 3, 4))
        return self.outer(torch.tanh(y + self.bag(tokens) + self.token(torch.tensor(1))))


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
    """A skip connection and a parameter of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))
        self.inner, self.outer = linear(D, D), linear(D, C)

    def forward(self, x):
        return self.outer(x * self.gain + torch.tanh(self.inner(x)))


def hooked() -> nn.Module:
    """A layer whose output a user's hook doubles."""
    module = oracles.random_mlp((D, 4, C))
    module[0].register_forward_hook(lambda layer, args, output: 2 * output)
    return module


def batch_norm() -> nn.Module:
    """Running statistics that differ from those of any batch."""
    module = built(nn.Sequential(linear(D, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), linear(4, C)))
    module[1].running_mean.fill_(0.3)
    module[1].running_var.fill_(2.0)
    return module.train()


class Gain(nn.Module):
    """A scalar parameter of the net itself after its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.gain = linear(D, C), nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return self.gain * self.outer(x)


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
    "branches and norms": lambda: built(Normed()),
    "reused convolution": lambda: built(ReusedConvolution()),
    "tied convolutions": lambda: built(TiedConvolutions()),
    "words and places": lambda: built(Words()),
    "words and a place for each": lambda: built(Words(expand=True)),
    "unusual layers": lambda: built(Unusual()),
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
    "one number": lambda: built(Gain()),
    "a learnt slope": lambda: built(nn.Sequential(linear(D, 4), nn.PReLU(), linear(4, C))),
}

FACTORED = {
    "plain": ["0", "2", "4"],
    "without bias": ["0", "2"],
    "reused layer": ["outer"],
    "tied weights": ["outer"],
    "in-place ReLU": ["0", "2"],
    "layer norm": ["0", "1", "3"],
    "convolution": ["conv", "outer"],
    "image": ["conv", "outer"],
    "sequence": ["inner", "outer"],
    "branches and norms": ["stem", "wide", "deep", "point", "batch", "group", "layer", "skip", "outer"],
    "reused convolution": ["outer"],
    "tied convolutions": ["outer"],
    "words and places": ["words", "outer"],
    "words and a place for each": ["words", "places", "outer"],
    "unusual layers": ["outer"],
    "branching": ["outer"],
    "batch norm and dropout": ["0", "1", "4"],
    "bypassed layer": ["outer"],
    "called and bypassed": ["first"],
    "one-dimensional outputs": ["inner", "outer"],
    "residual": ["inner", "outer"],
    "the user's hook": ["2"],
    "weight norm": ["2"],
    "one linear layer": ["0"],
    "one number": ["outer"],
    "a learnt slope": ["0", "2"],
}


def dense(network: Network, x: torch.Tensor) -> torch.Tensor:
    """Jacobian (n, C, P) of the package in the oracles' order."""
    pieces = network.tensors(network.jacobian(x)[1].rows())
    return torch.cat([pieces[name][..., None].flatten(2) for name in network.parameter_names], -1)


@pytest.mark.parametrize("case", CASES)
def test_jacobian_is_autodiff(case):
    """The oracle evaluates rows one at a time; the package batches rows and factors layers."""
    module = CASES[case]()
    network = trace(module, X[:4])
    assert set(network.parameter_names) == set(oracles.all_names(module))
    expected = oracles.jacobian(module, network.parameter_names, X)
    torch.testing.assert_close(dense(network, X), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(network.linearise(X).outputs, oracles.outputs(module, X), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(network(X), oracles.outputs(module, X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_trace_factors_exactly_the_layers_that_it_may(case):
    """A layer is factored if its type is known, it is called once per row, and its tensors are not shared."""
    network = trace(CASES[case](), X)
    assert [layer.name for layer in network.layers] == FACTORED[case]


class Mixed(nn.Module):
    """A norm without running statistics, which mixes the rows of a batch in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.skip_init(nn.Conv1d, 1, 2, 2, dtype=torch.float64)
        self.norm, self.outer = nn.BatchNorm1d(2, track_running_stats=False), linear(4, C)

    def forward(self, x):
        return self.outer(torch.tanh(self.norm(self.conv(x[:, None]))).flatten(1))


def test_a_layer_before_a_mixture_of_rows_is_not_factored():
    """The total gradient would be correct, but not the gradients of single rows."""
    assert [layer.name for layer in trace(built(Mixed()), X).layers] == ["outer"]


class OwnLinear(nn.Linear):
    """Subclass that may change the behaviour."""


VECTORS, IMAGES, TOKENS = torch.zeros(3, 4), torch.zeros(3, 4, 5, 5), torch.zeros(3, 4, dtype=torch.long)
OTHERS = {
    "a subclass": (OwnLinear(4, 2), VECTORS),
    "a linear layer on one vector": (nn.Linear(4, 2), VECTORS[0]),
    "a convolution of one image": (nn.Conv2d(4, 2, 1), IMAGES[0]),
    "a transposed convolution": (nn.ConvTranspose2d(4, 2, 1), IMAGES),
    "a weight by spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 2, 1)), IMAGES),
    "a renormalised table": (nn.Embedding(5, 2, max_norm=1.0), TOKENS),
    "sparse gradients": (nn.Embedding(5, 2, sparse=True), TOKENS),
    "gradients scaled by frequency": (nn.Embedding(5, 2, scale_grad_by_freq=True), TOKENS),
    "a bag of vectors": (nn.EmbeddingBag(5, 2), TOKENS),
    "batch norm without running statistics": (nn.BatchNorm2d(4, track_running_stats=False), IMAGES),
    "instance norm of one image": (nn.InstanceNorm2d(3, affine=True), IMAGES[0]),
    "layer norm over the rows": (nn.LayerNorm((3, 4)), VECTORS),
}


@pytest.mark.parametrize("case", OTHERS)
def test_no_kind_takes_a_layer_that_behaves_differently(case):
    """The factored form would not hold for these layers."""
    layer, inputs = OTHERS[case]
    assert not any(kind.handles(layer, inputs) for kind in layers.FACTORED)


def test_control_flow_that_looks_at_the_data_is_taken_row_by_row():
    """torch.func cannot batch it; the slower fallback is correct."""
    assert not trace(CASES["branching"](), X).generic.batched
    assert not trace(CASES["a learnt slope"](), X).generic.batched
    assert trace(CASES["reused layer"](), X).generic.batched


@pytest.mark.parametrize("kind", [Routed, Pooled])
def test_a_layer_called_once_but_not_once_a_row_is_not_factored(kind):
    """Experts on subsets of the rows, and positions folded into the rows."""
    module = built(kind())
    x = X.clone()
    x[:3, 0] = torch.tensor([1.0, -1.0, -2.0])
    network = trace(module, x)
    expected = oracles.jacobian(module, network.parameter_names, x)
    torch.testing.assert_close(dense(network, x), expected, rtol=1e-10, atol=1e-10)


def test_positions_folded_into_the_rows_do_not_change_the_diagonal():
    """Gradients are summed over the positions of a row before squaring."""
    module = built(Pooled())
    network = trace(module, X)
    diagonal = network.tensors(network.jacobian(X)[1].square_sum())
    squares = oracles.jacobian(module, network.parameter_names, X).square().sum((0, 1))
    flat = torch.cat([diagonal[name].flatten() for name in network.parameter_names])
    torch.testing.assert_close(flat, squares, rtol=1e-10, atol=0)


@pytest.mark.parametrize("case", ["plain", "residual", "reused layer"])
def test_probabilities_are_taken_through_their_logarithm(case):
    """The logarithm of a softmax output serves as logits."""

    class Log(nn.Module):
        def forward(self, p):
            return p.log()

    module = nn.Sequential(CASES[case](), nn.Softmax(1))
    network = trace(module, X, log_outputs=True)
    logged = nn.Sequential(*module, Log())
    expected = oracles.jacobian(logged, network.parameter_names, X)
    torch.testing.assert_close(dense(network, X), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(network(X), oracles.outputs(logged, X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("names", [("0.weight",), ("2.bias",), ("0.bias", "4.weight", "4.bias")])
def test_selected_tensors_alone_are_differentiated(names):
    """trace and select restrict the network to the named tensors."""
    module = CASES["plain"]()
    for network in (trace(module, X, names), select(trace(module, X), names, X)):
        assert network.parameter_names == names
        torch.testing.assert_close(dense(network, X), oracles.jacobian(module, names, X), rtol=1e-10, atol=1e-10)
        assert torch.equal(network.theta.sort().values, oracles.flatten(module, names).sort().values)


def test_frozen_parameters_are_not_selected():
    """Tensors with requires_grad=False are fixed."""
    module = CASES["plain"]()
    module[0].requires_grad_(False)
    assert trace(module, X).parameter_names == ("2.weight", "2.bias", "4.weight", "4.bias")


def test_unknown_or_absent_parameters_are_refused():
    """The message lists the parameters."""
    module = CASES["plain"]()
    with pytest.raises(ValueError, match=r"unknown parameters \['9.weight'\]; the module has \['0.weight'"):
        trace(module, X, ("9.weight",))
    with pytest.raises(ValueError, match="no parameter is selected"):
        trace(module.requires_grad_(False), X)


def snapshot(module: nn.Module) -> dict[str, object]:
    """State of a module that tracing could change."""
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
    """Weights, buffers, hooks, training mode and flags of the user's module do not change."""
    module = CASES[case]().train()
    next(iter(module.parameters())).requires_grad_(False)
    before, state = snapshot(module), torch.random.get_rng_state()
    network = trace(module, X)
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


@pytest.mark.parametrize("case", ["plain", "in-place ReLU", "layer norm", "batch norm and dropout", "image"])
def test_threads_give_the_same(case):
    """Concurrent forward passes use separate replicas and hooks."""
    network = trace(CASES[case](), X)
    inputs = [X[i : i + 4] + i for i in range(4)] * 15
    alone = [network.jacobian(x)[1].rows() for x in inputs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # exposes state shared between threads
    try:
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda x: network.jacobian(x)[1].rows(), inputs))
    finally:
        sys.setswitchinterval(interval)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_with_parameters_puts_theta_where_it_was(case):
    """Outputs and Jacobians of the new network are those of a module with these weights."""
    module = CASES[case]()
    network = trace(module, X)
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
    assert torch.equal(network.theta, trace(module, X).theta)


def test_with_state_of_follows_training():
    """A network can follow the changing state of a module during training."""
    module = batch_norm()
    network = trace(module, X)
    with torch.no_grad():
        module[0].weight.mul_(2)
        module[1].running_mean.add_(1)
    present = network.with_state_of(module)
    torch.testing.assert_close(present(X), oracles.outputs(module, X), rtol=1e-12, atol=1e-12)
    assert torch.equal(present.theta, trace(module, X).theta)
    assert not torch.equal(network(X), present(X))
    expected = oracles.jacobian(module, present.parameter_names, X)
    torch.testing.assert_close(dense(present, X), expected, rtol=1e-10, atol=1e-10)


def test_rows_are_counted_with_the_patches_and_cotangents_of_their_positions():
    """The memory per row determines the batch size; it includes patches and cotangents of all positions."""
    conv = nn.utils.skip_init(nn.Conv2d, 1, 2, 3, dtype=torch.float64)
    network = trace(built(nn.Sequential(nn.Unflatten(1, (1, 8, 8)), conv, nn.Flatten())), torch.ones(1, 64).double())
    (block,) = network.blocks
    assert (block.inputs, block.outputs, block.positions) == (10, 2, 36)
    assert network.row_width(3) == 36 * (10 + 3 * 2) + 3 * block.size


@pytest.mark.parametrize("case", ["plain", "residual", "in-place ReLU", "layer norm", "reused layer", "image"])
def test_single_precision_nets(case):
    """Jacobians have the net's dtype, θ is float64; the tolerance 1e-4 is about a hundred times float32 rounding."""
    module = CASES[case]()
    single = copy.deepcopy(module).float()
    network = trace(single, X.float())
    jacobian = network.jacobian(X.float())[1].rows()
    assert jacobian.dtype == torch.float32 and network.theta.dtype == torch.float64
    expected = oracles.jacobian(single, network.parameter_names, X.float())
    torch.testing.assert_close(dense(network, X.float()).double(), expected, rtol=1e-4, atol=1e-4)
    assert network.with_parameters(network.theta)(X.float()).dtype == torch.float32
    assert [layer.name for layer in network.layers] == FACTORED[case]


def test_tensor_prior_groups_by_tensor():
    """A group per parameter tensor, independent of the blocks."""
    module = CASES["residual"]()
    network = trace(module, X)
    prior = GROUPINGS["tensor"].prior(network)
    assert (
        prior.names == network.parameter_names == ("gain", "inner.weight", "inner.bias", "outer.weight", "outer.bias")
    )
    pieces = network.tensors(prior.groups)
    assert all(bool((pieces[name] == i).all()) for i, name in enumerate(prior.names))
    squares = prior.group_sums(network.theta.square())
    expected = torch.stack([module.get_parameter(name).detach().square().sum() for name in prior.names])
    torch.testing.assert_close(squares, expected, rtol=1e-13, atol=0)


NOT_TWICE = {
    "unusual layers": r"(?s)torch does not implement one of an operation in Unusual: .* Use curvature='ggn'",
    "weight norm": r"of Sequential is not\s+symmetric.* for example weight normalisation. Use curvature='ggn'",
}
"""Modules whose second derivatives torch 2.13 does not implement or gets wrong."""


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives_are_autodiff(case, monkeypatch):
    """Hessian of a function of the outputs, computed at once or column by column."""
    module = CASES[case]()
    network = trace(module, X)
    names = network.parameter_names

    def loss(outputs):
        return outputs.sin().sum() + outputs.logsumexp(1).square().sum()

    line = network.linearise(X)
    refusal = None
    try:
        hessian = line.hessian(loss)
    except UnsupportedCombinationError as error:
        refusal = str(error)
    if refusal is not None:
        assert re.search(NOT_TWICE[case], refusal)
        return
    f = oracles.network_function(module, names)
    truth = torch.autograd.functional.hessian(lambda theta: loss(f(theta, X)), oracles.flatten(module, names))
    order = torch.cat([network.tensors(torch.arange(network.n_parameters))[name].flatten() for name in names])
    torch.testing.assert_close(hessian[order][:, order], truth, rtol=1e-10, atol=1e-10)
    monkeypatch.setattr("sklearn_laplace.laplace.network.network.HESSIAN_BUDGET", 1)
    torch.testing.assert_close(line.hessian(loss), hessian, rtol=1e-12, atol=1e-12)
    assert not network.theta.requires_grad
    assert line.pullback(torch.zeros(*line.outputs.shape, 0).double()).rows().shape == (len(X), 0, network.n_parameters)


def test_attention_is_differentiated_twice():
    """Fast attention kernels have no second derivative; reference: differences of gradients."""
    module = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, dtype=torch.float64).eval()
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).cos().mul(0.3 + 0.1 * i).view_as(parameter))
    x = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x).flatten(1)[:, :2]

    network = trace(Flattened(), x)
    hessian = network.hessian(x, lambda f: f.sin().sum())
    for i in (0, 20, network.n_parameters - 1):
        step = 1e-5 * torch.eye(network.n_parameters, dtype=torch.float64)[i]
        lines = [network.with_parameters(network.theta + sign * step).linearise(x) for sign in (1, -1)]
        up, down = (line.pullback(line.outputs.cos()[..., None]).total() for line in lines)
        torch.testing.assert_close(hessian[i], (up - down) / 2e-5, rtol=1e-6, atol=1e-6)


def test_a_function_without_curvature_has_none():
    """The gradient of an affine function does not depend on the weights."""
    network = trace(oracles.random_mlp((D, C)), X)
    assert torch.equal(network.hessian(X, torch.sum), torch.zeros(8, 8, dtype=torch.float64))
