"""A multilayer perceptron on standardised columns.

The first layer standardises the raw columns with fixed statistics (a constant column becomes zero), so that raw tables
work and one prior scale fits all inputs. The weights start as Xavier normals from a generator of their own: neither
the global generator nor other threads can change them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
}
"""What ``activation`` may name."""
CLIP = 3.0
"""Where scaled numbers end."""


class Standardise(nn.Module):
    """(x − mean) / scale with fixed statistics, column by column.

    Always in double precision, also in a module of single precision: a column far from zero would lose its digits.

    Parameters
    ----------
    mean, scale : sequence of float or None
        One value a column; None leaves the columns as they are.

    Examples
    --------
    >>> import torch
    >>> Standardise(2, [1.0, 0.0], [2.0, 1.0])(torch.tensor([[5.0, 3.0]]))
    tensor([[2., 3.]])
    """

    mean: Tensor
    scale: Tensor
    like: Tensor

    def __init__(
        self, in_features: int, mean: Sequence[float] | None = None, scale: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        double = torch.float64
        self.register_buffer("mean", torch.tensor([0.0] * in_features if mean is None else list(mean), dtype=double))
        self.register_buffer("scale", torch.tensor([1.0] * in_features if scale is None else list(scale), dtype=double))
        self.register_buffer("like", torch.zeros(0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Standardise:
        double = {name: value for name, value in self.named_buffers() if value.dtype == torch.float64}
        super()._apply(fn, recurse)
        for name, value in double.items():
            setattr(self, name, value.to(self.like.device))
        return self

    @property
    def sources(self) -> tuple[int, ...]:
        """Which column each output comes from."""
        return tuple(range(len(self.mean)))

    def forward(self, x: Tensor) -> Tensor:
        """Standardised columns, same shape (n, d), in the module's dtype."""
        return ((x.double() - self.mean) / self.scale).to(self.like.dtype)


class Compress(Standardise):
    """Heavy tails drawn in, then standardised: asinh((x − centre) / width) in some columns, x itself in the others.

    The inverse hyperbolic sine is linear within the width and logarithmic beyond, monotone and unbounded: inputs far
    outside the data stay far outside.

    Parameters
    ----------
    in_features : int
    centre, width : sequence of float
        One value a column; an infinite width leaves a column as it is.
    mean, scale : sequence of float or None
        Of the columns that come out.

    Examples
    --------
    >>> import torch
    >>> Compress(2, [1.0, 0.0], [2.0, float("inf")])(torch.tensor([[1e6, 3.0]]))
    tensor([[13.8155,  3.0000]])
    """

    centre: Tensor
    width: Tensor

    def __init__(
        self,
        in_features: int,
        centre: Sequence[float],
        width: Sequence[float],
        mean: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_features, mean, scale)
        self.register_buffer("centre", torch.tensor(list(centre), dtype=torch.float64))
        self.register_buffer("width", torch.tensor(list(width), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Standardised columns, same shape (n, d), in the module's dtype; NaN stays NaN."""
        return super().forward(self.drawn_in(x))

    def drawn_in(self, x: Tensor) -> Tensor:
        """The columns before they are standardised, same shape (n, d), float64."""
        x = x.double()
        return torch.where(self.width.isinf(), x, ((x - self.centre) / self.width).asinh())


class Pieces(Compress):
    r"""Columns as piecewise linear pieces (Gorishniy, Rubachev & Babenko 2022), heavy tails drawn in, standardised.

    Of a column with edges :math:`e_0 < e_1 < \dots < e_K` it makes K columns, :math:`(x - e_{k-1}) / (e_k - e_{k-1})`,
    zero below its piece and one above; the first goes on below, the last above. A weight on each is the slope over one
    piece: a layer behind it makes any function that is linear between the edges, and x itself by equal slopes.

    Parameters
    ----------
    edges : sequence of sequence of float
        Those of each column, rising, two at least.
    centre, width : sequence of float, optional
        As in :class:`Compress`, one value a column.
    mean, scale : sequence of float, optional
        Of the columns that come out.

    Examples
    --------
    >>> import torch
    >>> Pieces([[0.0, 1.0, 4.0]])(torch.tensor([[-1.0], [0.5], [2.5], [7.0]]))
    tensor([[-1.0000,  0.0000],
            [ 0.5000,  0.0000],
            [ 1.0000,  0.5000],
            [ 1.0000,  2.0000]])
    """

    column: Tensor
    left: Tensor
    length: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        edges: Sequence[Sequence[float]],
        centre: Sequence[float] | None = None,
        width: Sequence[float] | None = None,
        mean: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
    ) -> None:
        counts = [len(own) - 1 for own in edges]
        centre = [0.0] * len(edges) if centre is None else centre
        width = [math.inf] * len(edges) if width is None else width
        super().__init__(sum(counts), centre, width, mean, scale)
        self.register_buffer(
            "column", torch.arange(len(edges)).repeat_interleave(torch.tensor(counts, dtype=torch.long))
        )
        found = [
            (lower, upper - lower, -math.inf if k == 0 else 0.0, math.inf if k == len(own) - 2 else 1.0)
            for own in edges
            for k, (lower, upper) in enumerate(itertools.pairwise(own))
        ]
        values = torch.tensor(found, dtype=torch.float64).view(len(found), 4)
        for name, of_each in zip(("left", "length", "low", "high"), values.unbind(1), strict=True):
            self.register_buffer(name, of_each.clone())

    @property
    def sources(self) -> tuple[int, ...]:
        """Which column each output comes from."""
        return tuple(self.column.tolist())

    @property
    def counts(self) -> tuple[int, ...]:
        """Pieces of each column."""
        return tuple(torch.bincount(self.column, minlength=len(self.centre)).tolist())

    @property
    def edges(self) -> list[list[float]]:
        """Those of each column."""
        ends = self.left + self.length
        of_each = [self.column == k for k in range(len(self.centre))]
        return [[*self.left[own].tolist(), *ends[own][-1:].tolist()] for own in of_each]

    @property
    def bends(self) -> list[Tensor]:
        """Where each column bends, in its own units, rising, float64: the edges between its pieces.

        Examples
        --------
        >>> [own.tolist() for own in Pieces([[0.0, 1.0, 4.0], [0.0, 1.0]]).bends]
        [[1.0], []]
        """
        found = []
        for own, centre, width in zip(self.edges, self.centre, self.width, strict=True):
            inner = torch.tensor(own[1:-1], dtype=torch.float64, device=self.left.device)
            found.append(inner if bool(width.isinf()) else centre + width * inner.sinh())
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Standardised pieces (n, Σ K) of columns (n, d), in the module's dtype; NaN stays NaN."""
        return Standardise.forward(self, self.pieces(x))

    def pieces(self, x: Tensor) -> Tensor:
        """Before they are standardised, (n, Σ K), float64."""
        parts = (self.drawn_in(x)[:, self.column] - self.left) / self.length
        return parts.clamp(self.low, self.high)


class NumbersAndPieces(Pieces):
    r"""Each column twice: as a number, robustly scaled and smoothly clipped, and as its pieces (:class:`Pieces`).

    The number is :math:`z / \sqrt{1 + (z/3)^2}` with :math:`z = (x - m) / q`, m the median and q the distance between
    the quartiles (Holzmüller, Grinsztajn & Steinwart 2024): linear near the median, and never beyond 3. A column with
    fewer than two pieces has none, since one piece is the number again. The numbers come first, then all pieces.

    Parameters
    ----------
    edges : sequence of sequence of float
        Those of each column, rising.
    median, quartile : sequence of float
        m and q of each column.
    centre, width : sequence of float, optional
        As in :class:`Compress`, for the pieces.
    mean, scale : sequence of float, optional
        Of the columns that come out; by default zero and one for numbers, a half and one for pieces.

    Examples
    --------
    >>> import torch
    >>> NumbersAndPieces([[0.0, 1.0, 4.0]], [1.0], [2.0])(torch.tensor([[1.0], [5.0]])).round(decimals=3)
    tensor([[ 0.0000,  0.5000, -0.5000],
            [ 1.6640,  0.5000,  0.8330]])
    """

    median: Tensor
    quartile: Tensor

    def __init__(
        self,
        edges: Sequence[Sequence[float]],
        median: Sequence[float],
        quartile: Sequence[float],
        centre: Sequence[float] | None = None,
        width: Sequence[float] | None = None,
        mean: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
    ) -> None:
        edges = [own if len(own) > 2 else own[:1] for own in edges]
        n_pieces = sum(len(own) - 1 for own in edges if len(own) > 1)
        mean = [0.0] * len(edges) + [0.5] * n_pieces if mean is None else mean
        scale = [1.0] * len(mean) if scale is None else scale
        super().__init__(edges, centre, width, mean, scale)
        self.register_buffer("median", torch.tensor(list(median), dtype=torch.float64))
        self.register_buffer("quartile", torch.tensor(list(quartile), dtype=torch.float64))

    @property
    def sources(self) -> tuple[int, ...]:
        """Which column each output comes from."""
        return (*range(len(self.centre)), *super().sources)

    def forward(self, x: Tensor) -> Tensor:
        """Scaled numbers and pieces (n, d + Σ K) of columns (n, d), in the module's dtype; NaN stays NaN."""
        return Standardise.forward(self, torch.cat([self.clipped(x), self.pieces(x)], 1))

    def clipped(self, x: Tensor) -> Tensor:
        """The numbers, (n, d), float64."""
        z = (x.double() - self.median) / self.quartile
        return z / (1 + (z / CLIP).square()).sqrt()


class Scale(nn.Module):
    """Multiplication by a constant.

    Parameters
    ----------
    factor : float

    Examples
    --------
    >>> import torch
    >>> Scale(0.5)(torch.tensor([4.0]))
    tensor([2.])
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the factor."""
        return x * self.factor


class Shift(nn.Module):
    """Addition of a constant to each output.

    Parameters
    ----------
    values : sequence of float

    Examples
    --------
    >>> import torch
    >>> Shift([1.0, 2.0])(torch.zeros(1, 2))
    tensor([[1., 2.]])
    """

    values: Tensor

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("values", torch.tensor(list(values)))

    def forward(self, x: Tensor) -> Tensor:
        """Add the values."""
        return x + self.values


class MLP(nn.Sequential):
    """Standardisation, hidden layers with an activation, a linear output.

    Each linear layer sees its input divided by √(number of inputs) (Jacot et al. 2018), so that weights of order one
    make outputs of order one whatever the width: one prior precision, and 1 as its natural value, suits all layers.

    Parameters
    ----------
    in_features, out_features : int
        Columns of the table; outputs (targets, or one logit a class).
    hidden_layer_sizes : sequence of int
        Units of each hidden layer; an empty one makes a linear model.
    activation : str
        A key of :data:`ACTIVATIONS`.
    input_mean, input_scale : sequence of float, optional
        Statistics of the columns.
    input_centre, input_width : sequence of float, optional
        Those of columns with heavy tails, see :class:`Compress`.
    output_shift : sequence of float, optional
        Added to the outputs, for targets that are not of mean zero.
    seed : int
        Seed of the initial weights.

    Examples
    --------
    >>> import torch
    >>> net = MLP(3, 1, hidden_layer_sizes=(5,), seed=1)
    >>> net(torch.zeros(4, 3)).shape
    torch.Size([4, 1])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden_layer_sizes: Sequence[int] = (50,),
        activation: str = "tanh",
        input_mean: Sequence[float] | None = None,
        input_scale: Sequence[float] | None = None,
        input_centre: Sequence[float] | None = None,
        input_width: Sequence[float] | None = None,
        output_shift: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = [standardised(in_features, input_mean, input_scale, input_centre, input_width)]
        sizes = [in_features, *hidden_layer_sizes, out_features]
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [Scale(1 / math.sqrt(n_in)), linear(n_in, n_out, n_in, generator), ACTIVATIONS[activation]()]
        del layers[-1]  # no activation behind the output
        if output_shift is not None:
            layers.append(Shift(output_shift))
        super().__init__(*layers)

    # The parts of a :class:`~sklearn_laplace.nets.TableMLP` without categories, for programs that take either.
    embeddings: tuple[nn.Module, ...] = ()

    @property
    def factor(self) -> float:
        """What the inputs of the first linear layer are multiplied by."""
        scale = self[1]
        assert isinstance(scale, Scale)
        return scale.factor

    @property
    def first(self) -> nn.Linear:
        """The first linear layer."""
        layer = self[2]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def behind(self) -> tuple[nn.Module, ...]:
        """What follows it."""
        return tuple(self)[3:]

    @property
    def categorical(self) -> Tensor:
        """Places of the columns of categories: there are none."""
        return torch.zeros(0, dtype=torch.long, device=self.first.weight.device)

    def numbers(self, x: Tensor) -> Tensor:
        """Encoded columns (n, d): what no weight changes."""
        encoded: Tensor = self[0](x)
        return encoded


def standardised(
    in_features: int,
    mean: Sequence[float] | None,
    scale: Sequence[float] | None,
    centre: Sequence[float] | None,
    width: Sequence[float] | None,
    edges: Sequence[Sequence[float]] | None = None,
    quartiles: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Standardise:
    """The first layer over columns of numbers.

    Examples
    --------
    >>> standardised(1, [0.0], [1.0], None, None)
    Standardise()
    """
    if edges is not None and quartiles is not None:
        return NumbersAndPieces(edges, *quartiles, centre, width, mean, scale)
    if edges is not None:
        return Pieces(edges, centre, width, mean, scale)
    if centre is None or width is None:
        return Standardise(in_features, mean, scale)
    return Compress(in_features, centre, width, mean, scale)


def linear(n_in: int, n_out: int, fan_in: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """A linear layer with Xavier normal weights for inputs that come divided by √(fan-in), its bias at zero.

    Parameters
    ----------
    n_in, n_out : int
        Inputs and outputs.
    fan_in : int
        Of all that a unit behind it adds up.
    generator : torch.Generator
    bias : bool
    """
    layer = nn.utils.skip_init(nn.Linear, n_in, n_out, bias=bias)
    std = math.sqrt(2.0 * fan_in / (fan_in + n_out))
    with torch.no_grad():
        layer.weight.copy_(std * torch.randn(n_out, n_in, generator=generator, dtype=torch.float64))
        if bias:
            layer.bias.zero_()
    return layer
