"""Stacked weights of several nets of the same shape, and Adam on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from .._runtime.budget import SINGLE_THREAD_FLOPS
from ..nets import MLP, TableMLP
from .schedule import Schedule

BETAS, EPSILON = (0.9, 0.95), 1e-8
SCALE_RATE = 6.0
"""Learning rate of the column scales, relative to that of the weights."""
LEAST_SCALE = 1e-3
"""Minimum magnitude of a column scale after the training, when the encoding's divisor is divided by it."""


class Stacked:
    """Stacked weights of K nets of the same shape.

    Parameters
    ----------
    modules : sequence of MLP with hidden layers, or of TableMLP
        Nets of the same shape, which are not changed. Nets with the same activation are consecutive.
    dtype : torch.dtype
        Dtype of the stacked weights.
    learns_scales : bool
        If True, each encoded column has a learnable scale.

    Examples
    --------
    >>> nets = [TableMLP([0, 3], [False, False], 1, hidden_layer_sizes=(5,), seed=seed) for seed in (0, 1)]
    >>> stacked, x = Stacked(nets), torch.tensor([[0.5, 1.0], [2.0, 3.0]], dtype=torch.float64)
    >>> outputs = stacked(*Encoded.of(nets[0], x, torch.float32).taken(torch.arange(2)))
    >>> torch.allclose(outputs, torch.stack([net(x) for net in nets]), atol=1e-6)
    True
    """

    def __init__(
        self,
        modules: Sequence[MLP] | Sequence[TableMLP],
        dtype: torch.dtype = torch.float32,
        *,
        learns_scales: bool = True,
    ) -> None:
        first: MLP | TableMLP = modules[0]
        self.modules: tuple[MLP | TableMLP, ...] = tuple(modules)
        self.dtype, self.factor = dtype, first.factor
        runs = [list(run) for _, run in groupby(modules, lambda module: [type(layer) for layer in module.behind])]
        self.behind = [module.behind for module, *_ in runs]
        self.counts = [len(run) for run in runs]
        numbers: list[list[Any]] = [] if first.first is None else [[module.first for module in modules]]
        embeddings = [[module.embeddings[k] for module in modules] for k in range(len(first.embeddings))]
        places = [k for k, layer in enumerate(first.behind) if isinstance(layer, nn.Linear)]
        self.layers = [*numbers, *embeddings, *([module.behind[k] for module in modules] for k in places)]
        self.n_numeric, self.n_first = len(numbers), len(numbers) + len(embeddings)
        self.weights = [self._stacked(layers, "weight") for layers in self.layers]
        self.biases = [None if layers[0].bias is None else self._stacked(layers, "bias") for layers in self.layers]
        with_scales = self.n_numeric if learns_scales else 0
        self.scales = [torch.ones_like(weight[:, :1]) for weight in self.weights[:with_scales]]

    def _stacked(self, layers: Sequence[Any], name: str) -> Tensor:
        return torch.stack([getattr(layer, name).detach().to(self.dtype) for layer in layers])

    def is_small(self, schedule: Schedule) -> bool:
        """Return True if a step of this schedule is too small to benefit from several threads."""
        return schedule.batch_size * sum(weight.numel() for weight in self.weights) <= SINGLE_THREAD_FLOPS

    def start(self, *, from_zero: bool) -> None:
        """Require gradients of all tensors; if ``from_zero``, first set the weights of the last layer to zero."""
        if from_zero:
            self.weights[-1].zero_()
        for tensor in self.tensors:
            tensor.requires_grad_()

    def __call__(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Outputs (K, n, C) for encoded rows: numbers (n, D) and category codes (n, q)."""
        hidden = self._first(numbers, codes)
        layers = zip(self.weights[self.n_first :], self.biases[self.n_first :], strict=True)
        for several in zip(*self.behind, strict=True):
            if isinstance(several[0], nn.Linear):
                weight, bias = next(layers)
                assert bias is not None
                hidden = torch.baddbmm(bias[:, None], hidden, weight.mT)
            elif len(several) == 1:
                hidden = several[0](hidden)
            else:
                parts = zip(several, hidden.split(self.counts), strict=True)
                hidden = torch.cat([layer(part) for layer, part in parts])
        return hidden

    def _first(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Pre-activations (K, n, h) of the first hidden layer."""
        parts = []
        if self.n_numeric:
            scale = self.scales[0] * self.factor if self.scales else self.factor
            weight, bias = self.weights[0] * scale, self.biases[0]
            assert bias is not None
            # All nets share these inputs: one product with the weights of all nets is faster than one per net.
            product = torch.addmm(bias.flatten(), numbers, weight.flatten(0, 1).mT)
            parts.append(product.view(len(numbers), *bias.shape).transpose(0, 1))
        for place in range(self.n_numeric, self.n_first):
            looked_up = self.weights[place].mT[:, codes[:, place - self.n_numeric]] * self.factor
            bias = self.biases[place]
            parts.append(looked_up if bias is None else looked_up + bias[:, None])
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    @property
    def tensors(self) -> list[Tensor]:
        """Trainable tensors: column scales, weights and biases."""
        return [*self.scales, *self.weights, *(bias for bias in self.biases if bias is not None)]

    def copied(self) -> list[Tensor]:
        """Copies of the trainable tensors."""
        return [tensor.detach().clone() for tensor in self.tensors]

    @torch.no_grad()
    def put(self, values: Sequence[Tensor]) -> None:
        """Set the trainable tensors."""
        for tensor, value in zip(self.tensors, values, strict=True):
            tensor.copy_(value)

    @torch.no_grad()
    def written(self) -> list[dict[str, Tensor]]:
        """State dict of each net with the trained weights, in the net's dtype; scales are merged into the encoding."""
        return [self._state(k, module) for k, module in enumerate(self.modules)]

    def _state(self, k: int, module: MLP | TableMLP) -> dict[str, Tensor]:
        state = {name: value.clone() for name, value in module.state_dict().items()}
        names = {id(layer): name for name, layer in module.named_modules()}
        for layers, weight, bias in zip(self.layers, self.weights, self.biases, strict=True):
            name = names[id(layers[k])]
            state[f"{name}.weight"] = weight[k].to(state[f"{name}.weight"])
            if bias is not None:
                state[f"{name}.bias"] = bias[k].to(state[f"{name}.bias"])
        for scale in self.scales:
            _absorb(state, scale[k, 0].double())
        return state


def _absorb(state: dict[str, Tensor], scale: Tensor) -> None:
    """Merge column scales (D,) into a net's state dict.

    The magnitudes of the scales of numeric columns go into the divisors of the encoding. Their signs, and the scales of
    indicator columns, go into the weights of the first layer.
    """
    divisor, weight = state["standardise.scale"], state["first.weight"]
    n_numbers = len(divisor)
    sign = torch.where(scale < 0, -1.0, 1.0).to(scale)
    state["first.weight"] = weight * torch.cat([sign[:n_numbers], scale[n_numbers:]]).to(weight)
    state["standardise.scale"] = divisor / scale[:n_numbers].abs().clamp_min(LEAST_SCALE).to(divisor)


class Adam:
    """AdamW for some tensors of some nets, with one maximum learning rate and one maximum weight decay.

    Calls torch's functional ``adamw``: an optimiser object would import torch's compiler, which takes a second.

    Parameters
    ----------
    tensors : sequence of Tensor of shape (K, ...)
        Stacked tensors.
    nets : slice
        Nets whose tensors are updated.
    rate, decay : float
        Maximum learning rate and weight decay.
    """

    def __init__(self, tensors: Sequence[Tensor], nets: slice, rate: float, decay: float) -> None:
        self.leaves, self.nets, self.rate, self.decay = list(tensors), nets, rate, decay
        with torch.no_grad():
            self.tensors = [tensor[nets] for tensor in tensors]
        self.first = [torch.zeros_like(tensor) for tensor in self.tensors]
        self.second = [torch.zeros_like(tensor) for tensor in self.tensors]
        self.counts = [torch.zeros((), device=tensor.device) for tensor in tensors]

    @torch.no_grad()
    def step(self, rate: float, decay: float) -> None:
        """Take one step; ``rate`` and ``decay`` are fractions of the maximum learning rate and weight decay."""
        adamw(
            self.tensors,
            [leaf.grad[self.nets] for leaf in self.leaves if leaf.grad is not None],
            self.first,
            self.second,
            [],
            self.counts,
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate * self.rate,
            weight_decay=decay * self.decay,
            eps=EPSILON,
            maximize=False,
        )

    @classmethod
    def of(cls, stacked: Stacked, schedules: Sequence[Schedule]) -> list[Adam]:
        """Return the optimisers of all trainable tensors; each schedule applies to an equal group of nets."""
        biases = [bias for bias in stacked.biases if bias is not None]
        size, optimisers = len(stacked.modules) // len(schedules), []
        for place, schedule in enumerate(schedules):
            nets = slice(place * size, (place + 1) * size)
            parts = (
                (stacked.scales, SCALE_RATE, 0.0),
                (stacked.weights, 1.0, schedule.weight_decay),
                (biases, schedule.bias_rate, 0.0),
            )
            optimisers += [cls(tensors, nets, rate * schedule.lr, decay) for tensors, rate, decay in parts if tensors]
        return optimisers
