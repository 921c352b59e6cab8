r"""Multilayer perceptrons on standardised columns (:class:`MLP`), and on tables (:class:`TableMLP`).

The first layer standardises the raw columns with fixed statistics; a constant column becomes zero. For a table of d
columns, m of which have missing values, a hidden unit of the first layer computes

.. math:: b + \frac{1}{\sqrt{d + m}} \Big( \sum_{k \text{ numeric}} (w_k z_k + u_k [x_k \text{ missing}])
          + \sum_{k \text{ categorical}} e_{k, x_k} \Big)

Here :math:`z_k` is the standardised number, zero if missing. The embedding :math:`e_{kv}` of level v of column k has
one entry per hidden unit. Embeddings are equivalent to a linear layer applied to the one-hot encoding of the levels. A
numeric column may enter as several inputs: its bins (:class:`Pieces`), and a sine and a cosine for each of its cycles
(:class:`Standardise`). Each of these inputs has its own weight, and is counted in d. The curvature of all these weights
has the Kronecker form of a linear layer.

Each categorical column has one extra embedding, for unseen levels of rows that are added later. No row of the first
training run uses this embedding: its weights stay at the prior mean, and their posterior is the prior. By default,
the embeddings of each column form a separate group of weights with one prior precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from .._validation.arguments import count, layer_sizes, lookup
from ..laplace.prior_groups import ColumnsModule

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
}
"""Activation module of each valid value of ``activation``."""
CLIP = 3.0
"""Bound on the absolute value of a clipped number in :class:`NumbersAndPieces`."""


class Standardise(nn.Module):
    r"""Standardise the inputs derived from each column with fixed statistics: (x − mean) / scale, by default x itself.

    A cycle of period p adds the inputs :math:`\cos(2πx/p)` and :math:`\sin(2πx/p)`, all cosines before all sines.
    For a period above 1, x is first rounded down to a whole number, such as a day in a weekly cycle.

    >>> Standardise(1, cycles=[[4.0]])(torch.tensor([[1.0]])).round()
    tensor([[1., 0., 1.]])
    """

    mean: Tensor
    scale: Tensor
    like: Tensor
    cyclic: Tensor
    period: Tensor

    def __init__(
        self,
        in_features: int,
        mean: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        cycles: Sequence[Sequence[float]] = (),
    ) -> None:
        super().__init__()
        double, waves = torch.float64, [(k, period) for k, periods in enumerate(cycles) for period in periods]
        n_inputs = in_features + 2 * len(waves)
        self.register_buffer("mean", torch.tensor([0.0] * n_inputs if mean is None else list(mean), dtype=double))
        self.register_buffer("scale", torch.tensor([1.0] * n_inputs if scale is None else list(scale), dtype=double))
        self.register_buffer("like", torch.zeros(0))
        self.register_buffer("cyclic", torch.tensor([k for k, _ in waves], dtype=torch.long))
        self.register_buffer("period", torch.tensor([period for _, period in waves], dtype=double))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Standardise:
        double = {name: value for name, value in self.named_buffers() if value.dtype == torch.float64}
        super()._apply(fn, recurse)
        for name, value in double.items():
            setattr(self, name, value.to(self.like.device))
        return self

    @property
    def sources(self) -> tuple[int, ...]:
        """Column from which each output is computed."""
        return (*self._plain_sources, *self.cyclic.tolist() * 2)

    @property
    def _plain_sources(self) -> tuple[int, ...]:
        return tuple(range(len(self.mean) - 2 * len(self.cyclic)))

    def forward(self, x: Tensor) -> Tensor:
        """Standardised inputs (n, D) computed from columns (n, d), in the module's dtype; NaN stays NaN."""
        return ((self.encoded(x) - self.mean) / self.scale).to(self.like.dtype)

    def encoded(self, x: Tensor) -> Tensor:
        """Inputs before standardisation, shape (n, D), float64."""
        plain = self.plain(x)
        if not len(self.cyclic):
            return plain
        columns = x.double()[:, self.cyclic]
        angles = torch.where(self.period > 1, columns.floor(), columns) * (2 * math.pi / self.period)
        return torch.cat([plain, angles.cos(), angles.sin()], 1)

    def plain(self, x: Tensor) -> Tensor:
        """Inputs before standardisation, without those of cycles, float64."""
        return x.double()


class Compress(Standardise):
    """Compress heavy tails by asinh((x − centre) / width), then standardise. Infinite widths mean no compression.

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
        cycles: Sequence[Sequence[float]] = (),
    ) -> None:
        super().__init__(in_features, mean, scale, cycles)
        self.register_buffer("centre", torch.tensor(list(centre), dtype=torch.float64))
        self.register_buffer("width", torch.tensor(list(width), dtype=torch.float64))

    def plain(self, x: Tensor) -> Tensor:
        """Compressed columns before standardisation, shape (n, d), float64."""
        x = x.double()
        return torch.where(self.width.isinf(), x, ((x - self.centre) / self.width).asinh())


class Pieces(Compress):
    r"""Piecewise linear encoding of each column (Gorishniy, Rubachev & Babenko 2022), standardised.

    A column with edges :math:`e_0 < e_1 < \dots < e_K` becomes K inputs, :math:`(x - e_{k-1}) / (e_k - e_{k-1})`. Each
    input is clipped to 0 below its bin and to 1 above it. The first one is not clipped below its bin, nor the last one
    above its bin. A linear layer on this encoding can represent any continuous function that is linear between the
    edges, including x itself.
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
        cycles: Sequence[Sequence[float]] = (),
    ) -> None:
        counts = [len(column_edges) - 1 for column_edges in edges]
        centre = [0.0] * len(edges) if centre is None else centre
        width = [math.inf] * len(edges) if width is None else width
        super().__init__(sum(counts), centre, width, mean, scale, cycles)
        self.register_buffer(
            "column", torch.arange(len(edges)).repeat_interleave(torch.tensor(counts, dtype=torch.long))
        )
        pieces = [
            (lower, upper - lower, -math.inf if k == 0 else 0.0, math.inf if k == len(column_edges) - 2 else 1.0)
            for column_edges in edges
            for k, (lower, upper) in enumerate(itertools.pairwise(column_edges))
        ]
        values = torch.tensor(pieces, dtype=torch.float64).view(len(pieces), 4)
        for name, per_piece in zip(("left", "length", "low", "high"), values.unbind(1), strict=True):
            self.register_buffer(name, per_piece.clone())

    @property
    def _plain_sources(self) -> tuple[int, ...]:
        return tuple(self.column.tolist())

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of bins of each column."""
        return tuple(torch.bincount(self.column, minlength=len(self.centre)).tolist())

    @property
    def edges(self) -> list[list[float]]:
        """Edges of each column, in units of the compressed column."""
        ends = self.left + self.length
        masks = [self.column == k for k in range(len(self.centre))]
        return [[*self.left[mask].tolist(), *ends[mask][-1:].tolist()] for mask in masks]

    def plain(self, x: Tensor) -> Tensor:
        """Encoded bins of columns (n, d), shape (n, Σ K), float64."""
        return self.pieces(x)

    def pieces(self, x: Tensor) -> Tensor:
        """Encoded bins before standardisation, shape (n, Σ K), float64."""
        parts = (super().plain(x)[:, self.column] - self.left) / self.length
        return parts.clamp(self.low, self.high)


class NumbersAndPieces(Pieces):
    r"""Encode each column as a robustly scaled, smoothly clipped number and as bins (:class:`Pieces`).

    The number is :math:`z / \sqrt{1 + (z/3)^2}` with :math:`z = (x - m) / q`, where m is the median and q the
    interquartile range (Holzmüller, Grinsztajn & Steinwart 2024). A column with fewer than two bins enters only as this
    number, because a single bin would add no information. All numbers come before all bins.

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
        cycles: Sequence[Sequence[float]] = (),
    ) -> None:
        edges = [column_edges if len(column_edges) > 2 else column_edges[:1] for column_edges in edges]
        n_pieces = sum(len(column_edges) - 1 for column_edges in edges if len(column_edges) > 1)
        waves = [0.0] * 2 * sum(map(len, cycles))
        mean = [0.0] * len(edges) + [0.5] * n_pieces + waves if mean is None else mean
        scale = [1.0] * len(mean) if scale is None else scale
        super().__init__(edges, centre, width, mean, scale, cycles)
        self.register_buffer("median", torch.tensor(list(median), dtype=torch.float64))
        self.register_buffer("quartile", torch.tensor(list(quartile), dtype=torch.float64))

    @property
    def _plain_sources(self) -> tuple[int, ...]:
        return (*range(len(self.centre)), *super()._plain_sources)

    def plain(self, x: Tensor) -> Tensor:
        """Clipped numbers and bins of columns (n, d), shape (n, d + Σ K), float64."""
        return torch.cat([self.clipped(x), self.pieces(x)], 1)

    def clipped(self, x: Tensor) -> Tensor:
        """Clipped numbers before standardisation, shape (n, d), float64."""
        z = (x.double() - self.median) / self.quartile
        return z / (1 + (z / CLIP).square()).sqrt()


class Scale(nn.Module):
    """Multiplication by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the factor."""
        return x * self.factor


class Shift(nn.Module):
    """Addition of a constant to each output."""

    values: Tensor

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("values", torch.tensor(list(values)))

    def forward(self, x: Tensor) -> Tensor:
        """Add the values."""
        return x + self.values


class MLP(nn.Sequential):
    """Multilayer perceptron: input standardisation, hidden layers (none for a linear model) and a linear output layer.

    The input of each linear layer is divided by √(number of inputs) (Jacot et al. 2018). Weights of order one then give
    outputs of order one at any width. Therefore one prior precision suits all layers, and 1 is its natural value.

    Parameters
    ----------
    in_features, out_features : int
        Number of columns, and number of outputs (targets, or one logit per class).
    hidden_layer_sizes : sequence of int
        Units of each hidden layer. If empty, the model is linear.
    activation : str
        A key of :data:`ACTIVATIONS`.
    input_mean, input_scale, input_centre, input_width : sequence of float, optional
        Statistics of the columns, see :class:`Standardise`, and :class:`Compress` for heavy tails.
    output_shift : sequence of float, optional
        Constant added to each output, for targets with non-zero mean.
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
        sizes = [
            count("in_features", in_features),
            *layer_sizes(hidden_layer_sizes),
            count("out_features", out_features),
        ]
        activate = lookup("activation", activation, ACTIVATIONS)
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = [standardised(in_features, input_mean, input_scale, input_centre, input_width)]
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [Scale(1 / math.sqrt(n_in)), linear(n_in, n_out, n_in, generator), activate()]
        del layers[-1]  # no activation after the output layer
        if output_shift is not None:
            layers.append(Shift(output_shift))
        super().__init__(*layers)

    # Interface of a :class:`~sklearn_laplace.nets.TableMLP` without categories, for code that accepts both.
    embeddings: tuple[nn.Module, ...] = ()

    @property
    def factor(self) -> float:
        """Factor applied to the inputs of the first linear layer."""
        scale = self[1]
        assert isinstance(scale, Scale)
        return scale.factor

    @property
    def first(self) -> nn.Linear:
        """First linear layer."""
        layer = self[2]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def behind(self) -> tuple[nn.Module, ...]:
        """Modules after the first linear layer."""
        return tuple(self)[3:]

    @property
    def hidden_layer_sizes(self) -> tuple[int, ...]:
        """Units of each hidden layer."""
        return units_before(self.behind)

    @property
    def categorical(self) -> Tensor:
        """Indices of the categorical columns: empty."""
        return torch.zeros(0, dtype=torch.long, device=self.first.weight.device)

    def numbers(self, x: Tensor) -> Tensor:
        """Encoded columns, shape (n, d); independent of the weights."""
        return self[0](x)


class Levels(nn.Module):
    """One-hot encoding of V levels, times ``factor``, which is 1/√(fan-in) in TableMLP. Code V is the unknown level."""

    def __init__(self, n_levels: int, factor: float) -> None:
        super().__init__()
        self.n_levels, self.factor = n_levels, factor

    def forward(self, codes: Tensor, like: Tensor) -> Tensor:
        """Scaled one-hot encoding (n, V + 1) of codes (n,), in the dtype of ``like``."""
        places = torch.arange(self.n_levels + 1, device=codes.device)
        return (codes[:, None] == places).to(like.dtype) * self.factor


class TableMLP(ColumnsModule):
    """Multilayer perceptron on numeric columns with missing values and embedded categorical columns.

    ``levels`` is the number of levels of each column, 0 for a numeric one. ``missing`` is True for columns that get an
    indicator of missing values. Other parameters are as in :class:`~sklearn_laplace.nets.MLP`. Statistics are those of
    numeric columns; with ``input_edges``, means and scales are those of the encoded columns (:class:`Pieces`). With
    ``input_quartiles`` (medians and interquartile ranges), numeric columns also enter as clipped numbers
    (:class:`NumbersAndPieces`). ``input_cycles`` are the periods of cycles, see :class:`Standardise`.

    >>> import torch
    >>> net = TableMLP([0, 3], [True, False], 1, hidden_layer_sizes=(5,))
    >>> net(torch.tensor([[0.5, 1.0], [float("nan"), 3.0]], dtype=torch.float64)).shape
    torch.Size([2, 1])
    >>> net.column_of["first.weight"], net.column_of["embeddings.0.weight"], net.apart
    ((0, 0), (1, 1, 1, 1), ('embeddings.0.weight',))
    """

    numeric: Tensor
    flagged: Tensor
    categorical: Tensor

    def __init__(
        self,
        levels: Sequence[int],
        missing: Sequence[bool],
        out_features: int,
        hidden_layer_sizes: Sequence[int] = (50,),
        activation: str = "tanh",
        input_mean: Sequence[float] | None = None,
        input_scale: Sequence[float] | None = None,
        input_centre: Sequence[float] | None = None,
        input_width: Sequence[float] | None = None,
        input_edges: Sequence[Sequence[float]] | None = None,
        input_quartiles: tuple[Sequence[float], Sequence[float]] | None = None,
        input_cycles: Sequence[Sequence[float]] = (),
        output_shift: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        numeric = [k for k, n in enumerate(levels) if n == 0]
        flagged = [k for k in numeric if missing[k]]
        categorical = [k for k, n in enumerate(levels) if n > 0]
        self.standardise = standardised(
            len(numeric),
            input_mean,
            input_scale,
            input_centre,
            input_width,
            edges=input_edges,
            quartiles=input_quartiles,
            cycles=input_cycles,
        )
        sources = self.standardise.sources
        n_numbers = len(sources) + len(flagged)
        fan_in = n_numbers + len(categorical)
        self.factor = 1 / math.sqrt(fan_in)
        for name, columns in (("numeric", numeric), ("flagged", flagged), ("categorical", categorical)):
            self.register_buffer(name, torch.tensor(columns, dtype=torch.long))
        sizes = [*hidden_layer_sizes, out_features]
        # Without numeric columns, the first embedding has the bias: a layer without inputs would have an empty weight.
        self.first = linear(n_numbers, sizes[0], fan_in, generator) if n_numbers else None
        self.codes = nn.ModuleList(Levels(levels[k], self.factor) for k in categorical)
        embeddings = [
            linear(levels[k] + 1, sizes[0], fan_in, generator, bias=not n_numbers and place == 0)
            for place, k in enumerate(categorical)
        ]
        with torch.no_grad():
            for embedding in embeddings:
                embedding.weight[:, -1].zero_()
        self.embeddings = nn.ModuleList(embeddings)
        behind: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(sizes):
            behind += [ACTIVATIONS[activation](), Scale(1 / math.sqrt(n_in)), linear(n_in, n_out, n_in, generator)]
        if output_shift is not None:
            behind.append(Shift(output_shift))
        self.behind = nn.Sequential(*behind)
        self.apart = tuple(f"embeddings.{place}.weight" for place in range(len(categorical)))
        columns = [numeric[k] for k in sources]
        self.column_of = {"first.weight": (*columns, *flagged)} if n_numbers else {}
        self.column_of |= {name: (k,) * (levels[k] + 1) for name, k in zip(self.apart, categorical, strict=True)}

    @property
    def hidden_layer_sizes(self) -> tuple[int, ...]:
        """Units of each hidden layer."""
        return units_before(self.behind)

    def numbers(self, x: Tensor) -> Tensor:
        """Encoded numbers and missing-value indicators (n, D) of a table (n, d); independent of the weights."""
        numbers = self.standardise(x[:, self.numeric])
        flags = x[:, self.flagged].isnan().to(numbers.dtype)
        return torch.cat([torch.where(numbers.isnan(), 0.0, numbers), flags], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, C) for a float64 table (n, d) with category codes."""
        inputs = self.numbers(x)
        hidden = inputs.new_zeros(len(x), 1) if self.first is None else self.first(inputs * self.factor)
        columns = x.index_select(1, self.categorical).unbind(1)  # tensor indices would be read by the host
        for column, codes, embedding in zip(columns, self.codes, self.embeddings, strict=True):
            hidden = hidden + embedding(codes(column, hidden))
        return self.behind(hidden)


def units_before(layers: Iterable[nn.Module]) -> tuple[int, ...]:
    """Number of inputs of each linear layer among the given modules."""
    return tuple(layer.in_features for layer in layers if isinstance(layer, nn.Linear))


def standardised(
    in_features: int,
    mean: Sequence[float] | None,
    scale: Sequence[float] | None,
    centre: Sequence[float] | None,
    width: Sequence[float] | None,
    *,
    edges: Sequence[Sequence[float]] | None = None,
    quartiles: tuple[Sequence[float], Sequence[float]] | None = None,
    cycles: Sequence[Sequence[float]] = (),
) -> Standardise:
    """Input layer for numeric columns: the simplest of the four classes that uses all given statistics."""
    if edges is not None and quartiles is not None:
        return NumbersAndPieces(edges, *quartiles, centre, width, mean, scale, cycles)
    if edges is not None:
        return Pieces(edges, centre, width, mean, scale, cycles)
    if centre is None or width is None:
        return Standardise(in_features, mean, scale, cycles)
    return Compress(in_features, centre, width, mean, scale, cycles)


def linear(n_in: int, n_out: int, fan_in: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Linear layer with zero bias, and Xavier normal weights times √fan-in, because inputs are divided by √fan-in."""
    layer = nn.Linear(n_in, n_out, bias=bias, device="meta")  # draws nothing; nn.utils.skip_init would import sympy
    std, dtype = math.sqrt(2.0 * fan_in / (fan_in + n_out)), torch.get_default_dtype()
    weight = std * torch.randn(n_out, n_in, generator=generator, dtype=torch.float64)
    layer.weight = nn.Parameter(weight.to(dtype))
    if bias:
        layer.bias = nn.Parameter(torch.zeros(n_out, dtype=dtype))
    return layer
