r"""Multilayer perceptron on tables with numeric columns, missing values and categorical columns.

For d columns, m of which have missing values, a hidden unit of the first layer computes

.. math:: b + \frac{1}{\sqrt{d + m}} \Big( \sum_{k \text{ numeric}} (w_k z_k + u_k [x_k \text{ missing}])
          + \sum_{k \text{ categorical}} e_{k, x_k} \Big)

Here :math:`z_k` is the standardised number, zero if missing. The embedding :math:`e_{kv}` of level v of column k is as
wide as the layer; it equals a linear layer applied to the one-hot encoding of the level. A numeric column may enter as
several inputs, its bins (:class:`~sklearn_laplace.nets.mlp.Pieces`) and the waves of its cycles; each has a weight
and counts in d. The curvature of all these weights has the Kronecker form of a linear layer.

Each categorical column has one extra embedding, for unseen levels of rows that are added later. No row of the first
training uses it: its weights stay at the prior mean, and their posterior is the prior. All embeddings of a column share
one prior precision, set by the variance between the seen levels.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..laplace.prior_groups import ColumnsModule
from .mlp import ACTIVATIONS, Scale, Shift, linear, standardised, units_before


class Levels(nn.Module):
    """One-hot encoding of V levels, times ``factor``: 1/√(fan-in) in :class:`TableMLP`. Code V is the unknown level."""

    def __init__(self, n_levels: int, factor: float) -> None:
        super().__init__()
        self.n_levels, self.factor = n_levels, factor

    def forward(self, codes: Tensor, like: Tensor) -> Tensor:
        """Scaled one-hot rows of codes (n,), shape (n, V + 1), in the dtype of ``like``."""
        places = torch.arange(self.n_levels + 1, device=codes.device)
        return (codes[:, None] == places).to(like.dtype) * self.factor


class TableMLP(ColumnsModule):
    """Multilayer perceptron on numeric columns with missing values and embedded categorical columns.

    ``levels`` of each column are 0 for a numeric one; ``missing`` is True for columns that get an indicator of missing
    values. Other parameters are as in :class:`~sklearn_laplace.nets.MLP`, with statistics of the numeric columns, or of
    the encoded ones with ``input_edges`` (:class:`~sklearn_laplace.nets.mlp.Pieces`). With ``input_quartiles``, medians
    and interquartile ranges, each enters as a clipped number too (:class:`~sklearn_laplace.nets.mlp.NumbersAndPieces`).
    ``input_cycles`` are the periods of :class:`~sklearn_laplace.nets.mlp.Standardise`.

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
        # Without numeric columns the first embedding has the bias: a layer without inputs has an empty weight tensor.
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
        """Encoded numbers and missing-value indicators (n, D) of coded columns (n, d); independent of the weights."""
        numbers = self.standardise(x[:, self.numeric])
        flags = x[:, self.flagged].isnan().to(numbers.dtype)
        return torch.cat([torch.where(numbers.isnan(), 0.0, numbers), flags], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, C) of coded columns (n, d), float64."""
        inputs = self.numbers(x)
        hidden = inputs.new_zeros(len(x), 1) if self.first is None else self.first(inputs * self.factor)
        columns = x.index_select(1, self.categorical).unbind(1)  # an index that is a tensor would be read by the host
        for column, codes, embedding in zip(columns, self.codes, self.embeddings, strict=True):
            hidden = hidden + embedding(codes(column, hidden))
        return self.behind(hidden)
