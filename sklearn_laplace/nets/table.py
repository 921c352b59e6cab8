r"""A multilayer perceptron on the columns of a table: numbers, numbers that may be missing, categories.

A hidden unit of the first layer adds up, with d columns and m of them with missing values,

.. math:: b + \frac{1}{\sqrt{d + m}} \Big( \sum_{k \text{ numeric}} (w_k z_k + u_k [x_k \text{ missing}])
          + \sum_{k \text{ categorical}} e_{k, x_k} \Big)

with z the standardised number, zero where it is missing, and :math:`e_{kv}` the embedding of level v of column k, as
wide as the layer: what a linear layer makes of the level as an indicator vector. A number may come as several inputs,
its pieces (:class:`~sklearn_laplace.nets.mlp.Pieces`), each with a weight and counted in d. That is linear in all of
these weights, so that their Laplace approximation is as good as that of any first layer, and its curvature has the
Kronecker form of a linear layer, which a table that is looked up has not.

Each categorical column has one embedding more than levels, for what was not seen: no row of the training uses it, so
that its weights stay at the prior's mean and their posterior is the prior. The embeddings of a column share a prior
precision of their own: the variance between the levels that were seen is what is known of one that was not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..laplace.prior_groups import ColumnsModule
from .mlp import ACTIVATIONS, Scale, Shift, linear, standardised


class Levels(nn.Module):
    """The indicator vector of a level, divided by √(fan-in), for a linear layer behind it.

    Parameters
    ----------
    n_levels : int
        V; level V is the unknown one.
    factor : float
        What the ones are.

    Examples
    --------
    >>> import torch
    >>> Levels(2, 0.5)(torch.tensor([0.0, 2.0]), torch.zeros(0))
    tensor([[0.5000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.5000]])
    """

    def __init__(self, n_levels: int, factor: float) -> None:
        super().__init__()
        self.n_levels, self.factor = n_levels, factor

    def forward(self, codes: Tensor, like: Tensor) -> Tensor:
        """From codes (n,) to (n, V + 1), in the dtype of ``like``."""
        places = torch.arange(self.n_levels + 1, device=codes.device)
        return (codes[:, None] == places).to(like.dtype) * self.factor


class TableMLP(ColumnsModule):
    """Numbers with their missing values, embedded categories, hidden layers with an activation, a linear output.

    Parameters
    ----------
    levels : sequence of int
        Levels of each column; 0 for a column of numbers.
    missing : sequence of bool
        Which columns of numbers have an indicator of what is missing.
    out_features : int
    hidden_layer_sizes : sequence of int
    activation : str
    input_mean, input_scale, input_centre, input_width, output_shift, seed
        As in :class:`~sklearn_laplace.nets.MLP`; the statistics are of the columns of numbers alone, mean and scale of
        their pieces where there are edges.
    input_edges : sequence of sequence of float, optional
        Of each column of numbers, see :class:`~sklearn_laplace.nets.mlp.Pieces`.
    input_quartiles : tuple of two sequences of float, optional
        Median and distance of the quartiles of each column of numbers, which then enter beside their pieces, see
        :class:`~sklearn_laplace.nets.mlp.NumbersAndPieces`.

    Examples
    --------
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
        output_shift: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        numeric = [k for k, n in enumerate(levels) if n == 0]
        flagged = [k for k in numeric if missing[k]]
        categorical = [k for k, n in enumerate(levels) if n > 0]
        statistics = input_mean, input_scale, input_centre, input_width
        self.standardise = standardised(len(numeric), *statistics, input_edges, input_quartiles)
        sources = self.standardise.sources
        n_numbers = len(sources) + len(flagged)
        fan_in = n_numbers + len(categorical)
        self.factor = 1 / math.sqrt(fan_in)
        for name, columns in (("numeric", numeric), ("flagged", flagged), ("categorical", categorical)):
            self.register_buffer(name, torch.tensor(columns, dtype=torch.long))
        sizes = [*hidden_layer_sizes, out_features]
        # Without numbers the bias is the first embedding's: a layer of no inputs would be a tensor without elements.
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

    def check_parts(self) -> None:
        """Check that each column has as many levels as its embedding; in a damaged file it may not.

        Raises
        ------
        ValueError
        """
        for codes, embedding in zip(self.codes, self.embeddings, strict=True):
            if not (isinstance(codes, Levels) and isinstance(embedding, nn.Linear)):
                raise ValueError(f"a {type(codes).__name__} and a {type(embedding).__name__} are no embedding.")
            if codes.n_levels + 1 != embedding.weight.shape[1]:
                raise ValueError(
                    f"an embedding of {embedding.weight.shape[1] - 1} levels belongs to a column of {codes.n_levels}."
                )

    def numbers(self, x: Tensor) -> Tensor:
        """Encoded numbers and indicators of missing ones (n, D), of coded columns (n, d): what no weight changes."""
        numbers = self.standardise(x[:, self.numeric])
        flags = x[:, self.flagged].isnan().to(numbers.dtype)
        return torch.cat([torch.where(numbers.isnan(), 0.0, numbers), flags], 1)

    def forward(self, x: Tensor) -> Tensor:
        """From coded columns (n, d), float64, to outputs (n, C)."""
        inputs = self.numbers(x)
        hidden = inputs.new_zeros(len(x), 1) if self.first is None else self.first(inputs * self.factor)
        for place, (codes, embedding) in enumerate(zip(self.codes, self.embeddings, strict=True)):
            hidden = hidden + embedding(codes(x[:, self.categorical[place]], hidden))
        return self.behind(hidden)
