r"""Sums of Khatri–Rao products: exact curvature blocks of layer pairs, without the dense Jacobian."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..linalg import lower_gram, mirror_lower

PAIR_BUDGET = 2**21
"""Maximum size of a Khatri–Rao panel (rows × pairs) formed at once, 16 MB in float64."""
FEW_PAIRS = 128
"""A layer with fewer pairs of outputs than this, and more pairs of inputs, uses a Gram matrix per pair of outputs."""


def add_khatri_rao_(cotangents: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor], total: Tensor) -> None:
    """Add Σₙ [Σₖ g g′ᵀ] ⊗ [a a′ᵀ] of two layers to a matrix (O·I, O′·I′), float64."""
    (n_out, m_out), (n_in, m_in) = (tuple(part.shape[-1] for part in pair) for pair in (cotangents, inputs))
    product = _sum_over_panels(
        len(inputs[0]),
        max(n_out * m_out, n_in * m_in),
        lambda span: torch.einsum("nko,nkp->nop", cotangents[0][span], cotangents[1][span]).flatten(1),
        lambda span: torch.einsum("ni,nj->nij", inputs[0][span], inputs[1][span]).flatten(1),
    )
    total.unflatten(1, (m_out, m_in)).unflatten(0, (n_out, n_in)).add_(
        product.view(n_out, m_out, n_in, m_in).transpose(1, 2)
    )


def add_square_(cotangents: Tensor, inputs: Tensor, total: Tensor) -> None:
    """Add a layer's curvature block to a matrix (O·I, O·I), at a quarter of the cost of :func:`add_khatri_rao_`.

    Only the lower triangle of the result is valid.
    """
    device = inputs.device
    n_out, n_in = cotangents.shape[-1], inputs.shape[-1]
    o, p = torch.tril_indices(n_out, n_out, device=device)
    i, j = torch.tril_indices(n_in, n_in, device=device)

    def output_pairs(span: slice) -> Tensor:
        part = cotangents[span]
        return (part.mT @ part).flatten(1).index_select(1, o * n_out + p)

    if len(o) < FEW_PAIRS < len(i):
        blocks = _weighted_grams(output_pairs(slice(None)), inputs)
    else:
        packed = _sum_over_panels(
            inputs.shape[0],
            max(len(o), len(i)),
            output_pairs,
            lambda span: _packed_products(inputs[span]),
        )
        blocks = packed.index_select(1, _pair_of(i, j, n_in)).view(len(o), n_in, n_in)
    by_output = total.unflatten(1, (n_out, n_in)).unflatten(0, (n_out, n_in))
    for row, pairs in enumerate(blocks.split(list(range(1, n_out + 1)))):
        by_output[row, :, : row + 1] += pairs.transpose(0, 1)


def _packed_products(inputs: Tensor) -> Tensor:
    """Products a_i a_j, i ≥ j, of each row in the order of ``tril_indices``, shape (n, I (I + 1) / 2)."""
    n, size = inputs.shape
    panel = inputs.new_empty(n, size * (size + 1) // 2)
    for i, piece in enumerate(panel.split(list(range(1, size + 1)), 1)):
        torch.mul(inputs[:, : i + 1], inputs[:, i : i + 1], out=piece)
    return panel


def _pair_of(first: Tensor, second: Tensor, size: int) -> Tensor:
    """Position of each of the size² ordered pairs among the packed pairs, shape (size²,)."""
    place = torch.empty(size, size, dtype=torch.long, device=first.device)
    place[first, second] = place[second, first] = torch.arange(len(first), device=first.device)
    return place.flatten()


def _weighted_grams(weights: Tensor, inputs: Tensor) -> Tensor:
    """Weighted Gram matrices Σₙ weights[n, q] a aᵀ, shape (q, I, I), float64."""
    grams = [lower_gram(inputs, inputs * column[:, None]) for column in weights.unbind(1)]
    return mirror_lower(torch.stack(grams))


def _sum_over_panels(
    n_rows: int, width: int, left: Callable[[slice], Tensor], right: Callable[[slice], Tensor]
) -> Tensor:
    """Sum of leftᵀ right over panels of rows within the memory budget, accumulated in float64."""
    step = max(1, PAIR_BUDGET // max(width, 1))
    spans = [slice(start, start + step) for start in range(0, n_rows, step)]
    total = (left(spans[0]).mT @ right(spans[0])).double()
    for span in spans[1:]:
        total += left(span).mT @ right(span)
    return total
