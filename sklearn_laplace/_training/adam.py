"""AdamW on the stacked weights of several nets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .schedule import Schedule
from .stacked import Stacked

BETAS, EPSILON = (0.9, 0.95), 1e-8
SCALE_RATE = 6.0
"""Learning rate of the column scales, relative to that of the weights."""


class Adam:
    """AdamW for the stacked ``tensors`` (K, …) of the nets ``nets``, updated in place by torch's fused kernel.

    ``places`` is their place in the list of gradients. The checks of ``torch.optim`` take longer than a step of small
    nets, and its import of torch's compiler takes a second.
    """

    def __init__(self, tensors: Sequence[Tensor], places: slice, nets: slice, rate: float, decay: float) -> None:
        self.places, self.nets, self.rate, self.decay = places, nets, rate, decay
        self.tensors = [tensor[nets] for tensor in tensors]
        self.first = [torch.zeros_like(tensor) for tensor in self.tensors]
        self.second = [torch.zeros_like(tensor) for tensor in self.tensors]
        self.counts = [torch.zeros((), device=tensor.device) for tensor in tensors]

    def step(self, gradients: Sequence[Tensor], rate: float, decay: float) -> None:
        """Take one step; ``rate`` and ``decay`` are fractions of the maximum learning rate and weight decay."""
        torch._foreach_add_(self.counts, 1)
        torch._fused_adamw_(
            self.tensors,
            [gradient[self.nets] for gradient in gradients[self.places]],
            self.first,
            self.second,
            [],
            self.counts,
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
        size, optimisers = len(stacked.modules) // len(schedules), []
        for group, schedule in enumerate(schedules):
            nets, begin = slice(group * size, (group + 1) * size), 0
            parts = (
                (stacked.scales, SCALE_RATE, 0.0),
                (stacked.weights, 1.0, schedule.weight_decay),
                ([bias for bias in stacked.biases if bias is not None], schedule.bias_rate, 0.0),
            )
            for tensors, rate, decay in parts:
                places, begin = slice(begin, begin + len(tensors)), begin + len(tensors)
                optimisers += [cls(tensors, places, nets, rate * schedule.lr, decay)] if tensors else []
        return optimisers
