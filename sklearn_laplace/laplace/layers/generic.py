r"""Any module: dense rows :math:`S_n^\top J_n` from ``torch.func``, by one backward pass per row and column of S."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from ..jacobian.jacobian import DenseFactor, ParameterBlock


@dataclass(frozen=True)
class Generic:
    """Parameter tensors without a factored form.

    >>> Generic(("scale",), (4,), batched=True).blocks[0].size
    4
    """

    names: tuple[str, ...]  # one block per tensor
    sizes: tuple[int, ...]  # elements of the tensors
    batched: bool  # differentiate under ``torch.func.vmap``, else row by row

    @property
    def blocks(self) -> tuple[ParameterBlock, ...]:
        """One dense block per tensor."""
        return tuple(
            ParameterBlock(name, 1, size, factored=False) for name, size in zip(self.names, self.sizes, strict=True)
        )

    def factors(self, module: nn.Module, x: Tensor, cotangents: Tensor) -> tuple[DenseFactor, ...]:
        """The tensors' parts of SᵀJ for rows ``x`` and output factors S (n, C, K): n·K·p memory."""
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        state = {name: tensor.detach() for name, tensor in tensors.items()}
        chosen = {name: state[name] for name in self.names}

        def pull(row: Tensor, factor: Tensor) -> dict[str, Tensor]:
            def outputs(weights: dict[str, Tensor]) -> Tensor:
                return functional_call(module, {**state, **weights}, (row[None],)).reshape(-1)

            back = vjp(outputs, chosen)[1]
            if self.batched:
                return vmap(lambda column: back(column)[0], in_dims=1)(factor)
            columns = [back(column)[0] for column in factor.unbind(1)]
            return {name: torch.stack([column[name] for column in columns]) for name in self.names}

        if self.batched:
            parts = vmap(pull, randomness="different")(x, cotangents)
        else:
            rows = [pull(row, factor) for row, factor in zip(x, cotangents, strict=True)]
            parts = {name: torch.stack([row[name] for row in rows]) for name in self.names}
        shape = (len(x), cotangents.shape[-1], -1)
        dense = (parts[name].reshape(shape) for name in self.names)
        return tuple(DenseFactor(part if x.requires_grad else part.detach()) for part in dense)
