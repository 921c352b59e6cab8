r"""Stacked weights of several nets of the same shape, with one forward and one backward pass for all nets.

The gradient is coded explicitly, which takes about half the time of autograd for small nets. Let layer l have the
inputs :math:`h_{l-1}`, the scale :math:`s_l` and the pre-activations :math:`z_l = s_l W_l h_{l-1} + b_l`. With the
activation a and the cotangent :math:`g_l` of :math:`z_l`,

.. math::
    \nabla W_l = s_l\, g_l h_{l-1}^\top, \quad \nabla b_l = g_l \mathbf 1, \quad
    g_{l-1} = a'(z_{l-1}) \odot s_l W_l^\top g_l.

With dropout, a random mask multiplies the outputs :math:`h_{l-1}` of the activations and their cotangents.

Losses are squared errors for normal noise, and negative log likelihoods of classes and counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from .._table.limits import SINGLE_THREAD_STEP
from ..laplace.likelihoods._base import Likelihood
from ..nets import MLP, TableMLP
from ..nets.mlp import Scale, Shift
from .progress import Steps
from .recipe import Schedule

MOST_FACTOR = 8.0
"""Maximum factor of the outputs for classes, and maximum of its inverse."""
SPARE = 2**16
"""Number of random values of :class:`Dropout` in addition to those of two batches."""


def of_mixture(log_densities: Tensor, shares: Tensor, n_nets: int) -> Tensor:
    r"""Log density of each row under a mixture of K = ``n_nets`` nets, from the log densities (D, …, n) of D nets.

    A row is held out from D nets with ``shares`` (D,) in the mixture, whereas new rows are predicted by all K nets. To
    first order in 1 / K,

    .. math:: \log p_K = \overline{\log p_1} + \frac{1 - 1/K}{1 - 1/D} (\log p_D - \overline{\log p_1}),

    where :math:`\overline{\log p_1}` is the nets' mean log density. The estimate is at most that of the best net.
    """
    n_known, shares = len(shares), shares.view(-1, *(1,) * (log_densities.dim() - 1))
    mixed = (log_densities + shares.log()).logsumexp(0)
    if n_nets <= n_known or n_known == 1:
        return mixed
    single = (log_densities * shares).sum(0)
    larger = single + (1 - 1 / n_nets) / (1 - 1 / n_known) * (mixed - single)
    return torch.minimum(larger, log_densities.amax(0))


class Squares:
    """Loss of the outputs (K, n, C) of K nets: half the squared errors. Errors of held-out rows are squared errors."""

    has_noise = True  # φ is set to the held-out error after each cycle; without noise, φ stays 1
    first_noise = 0.1  # φ of the first cycle, in units of the target variance

    def terms(self, outputs: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
        """Terms ½ factor · error² (K, n, C) of targets (n, C) with factors (K, n, 1) or (K, n, C)."""
        return 0.5 * factors * (outputs - targets).square()

    def slope(self, outputs: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
        """Derivatives factor · error of the terms with respect to the outputs."""
        return (outputs - targets) * factors

    def first_outputs(self, targets: Tensor, weights: Tensor, n_outputs: int) -> Tensor | None:
        """Outputs (C,) of all nets before the training, or None: targets are standardised."""
        return None

    def errors(self, outputs: Tensor, targets: Tensor, precision: Tensor | float = 1.0) -> Tensor:
        """Errors (K, n), float64, for comparing training runs: mean over the outputs of precision · squared error."""
        return ((outputs - targets.double()).square() * precision).mean(-1)

    def show(self, steps: Steps, errors: Tensor, n_outputs: int) -> None:
        """Show the mean errors (K,) of held-out rows."""
        steps.score(errors, n_outputs)


class NegativeLog:
    """Negative log likelihood of classes or counts, in nats, for a likelihood without dispersion."""

    has_noise = False
    first_noise = 1.0

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood

    def terms(self, outputs: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
        """Terms factor · nll (K, n, 1) of targets (n, C), or (n,) for classes, with factors (K, n, 1)."""
        return self.likelihood.nll(*self._flat(outputs, targets)).view(*outputs.shape[:2], 1) * factors

    def slope(self, outputs: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
        """Derivatives factor · residual (K, n, C) of the terms with respect to the outputs."""
        return self.likelihood.residual(*self._flat(outputs, targets)).view_as(outputs) * factors

    def first_outputs(self, targets: Tensor, weights: Tensor, n_outputs: int) -> Tensor | None:
        """Logits (C,) of the class frequencies plus half a row, as a rare class may be missing; None for counts."""
        if not self.likelihood.over_classes:
            return None
        logs = (targets.bincount(weights.double(), minlength=max(n_outputs, 2)) + 0.5).log()
        return logs[1:] - logs[:1] if n_outputs == 1 else logs - logs.mean()

    def errors(self, outputs: Tensor, targets: Tensor, precision: Tensor | float = 1.0) -> Tensor:
        """Negative log likelihood of each row; the precision is 1."""
        return self.likelihood.nll(*self._flat(outputs.double(), targets)).view(outputs.shape[:2])

    def best_factor(
        self, outputs: Tensor, targets: Tensor, weights: Tensor, shares: Tensor | None = None, n_nets: int = 1
    ) -> tuple[float, float]:
        """Factor of the outputs (D, n, C) with the smallest loss of a mixture of ``n_nets``, and the mean loss.

        The loss is in nats, see :func:`of_mixture`; ``weights`` are (n,) and ``shares`` (D,), equal by default. The
        logarithm of the factor has a standard normal prior. Without this prior, rows that are all classified correctly
        would lead to the largest factor. Counts have factor 1.
        """
        scored = weights > 0
        shares = outputs.new_full((len(outputs),), 1 / len(outputs)) if shares is None else shares
        outputs, targets, weights = outputs[:, scored], targets[scored], weights[scored].double()

        def loss(log_factor: float) -> float:
            logs = of_mixture(-self.errors(math.exp(log_factor) * outputs, targets), shares, n_nets)
            return -float(logs @ weights / weights.sum())

        if not self.likelihood.over_classes:
            return 1.0, loss(0.0)
        best: float = minimize_scalar(
            lambda log_factor: len(targets) * loss(log_factor) + log_factor**2 / 2,
            bounds=(-math.log(MOST_FACTOR), math.log(MOST_FACTOR)),
        ).x
        return math.exp(best), loss(best)

    def show(self, steps: Steps, errors: Tensor, n_outputs: int) -> None:
        steps.score_log(-errors)

    def _flat(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of all nets as rows (K n, C), and the target of each such row."""
        return outputs.flatten(0, 1), targets.expand(len(outputs), *targets.shape).flatten(0, 1)


Loss = Squares | NegativeLog


def loss_of(likelihood: Likelihood) -> Loss:
    return Squares() if likelihood.has_dispersion else NegativeLog(likelihood)


class Adam:
    """AdamW for the stacked ``tensors`` (K, …), updated in place by torch's fused kernel.

    ``places`` are their positions among the gradients; ``rate`` is a factor of the schedule's learning rate. The checks
    of ``torch.optim`` take longer than a step of small nets, and its import of torch's compiler takes a second.
    """

    def __init__(self, tensors: Sequence[Tensor], places: slice, schedule: Schedule, rate: float, decay: float) -> None:
        self.places, self.rate, self.decay, self.tensors = places, rate * schedule.lr, decay, list(tensors)
        self.betas, self.epsilon = schedule.betas, schedule.epsilon
        self.first = [torch.zeros_like(tensor) for tensor in self.tensors]
        self.second = [torch.zeros_like(tensor) for tensor in self.tensors]
        self.counts = [torch.zeros((), device=tensor.device) for tensor in tensors]

    def step(self, gradients: list[Tensor], rate: float, decay: float) -> None:
        """Take one step; ``rate`` and ``decay`` are fractions of the maximum learning rate and weight decay."""
        torch._foreach_add_(self.counts, 1)
        torch._fused_adamw_(
            self.tensors,
            gradients[self.places],
            self.first,
            self.second,
            [],
            self.counts,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=rate * self.rate,
            weight_decay=decay * self.decay,
            eps=self.epsilon,
            maximize=False,
        )

    @classmethod
    def of(cls, stacked: Stacked, schedule: Schedule) -> list[Adam]:
        """Return the optimisers of all trainable tensors."""
        begin, optimisers = 0, []
        for tensors, rate, decay in (
            (stacked.scales, schedule.scale_rate, 0.0),
            (stacked.weights, 1.0, schedule.weight_decay),
            ([bias for bias in stacked.biases if bias is not None], schedule.bias_rate, 0.0),
        ):
            places, begin = slice(begin, begin + len(tensors)), begin + len(tensors)
            optimisers += [cls(tensors, places, schedule, rate, decay)] if tensors else []
        return optimisers


class Dropout:
    """Masks of hidden units: 0 with the dropout probability, else 1 / (1 − probability) (Srivastava et al. 2014).

    All masks are parts of one random sequence. The start of a mask depends on step and layer. New random numbers for
    each step would take as long as the step itself. Nets with the same dropout probability have the same mask.
    """

    def __init__(self, rates: Sequence[float], stacked: Stacked, batch_size: int, seed: int) -> None:
        self.widths = [weight.shape[2] for weight in stacked.weights[stacked.n_first :]]
        self.seed, self.runs = seed, []
        if any(rates) and self.widths:
            random = torch.Generator().manual_seed(seed)
            values = torch.rand(2 * batch_size * max(self.widths) + SPARE, generator=random)
            for rate, run in groupby(rates):
                kept = (values >= rate) / (1 - rate)
                self.runs.append((kept.to(stacked.weights[0]), len(list(run))))

    def masks(self, step: int, n_rows: int) -> list[Tensor | None]:
        """Masks (K, n_rows, h), or (n_rows, h) for all nets, of each layer in a step; None without dropout."""
        if not self.runs:
            return [None] * len(self.widths)
        last = len(self.runs[0][0]) - n_rows * max(self.widths)
        begins = np.random.default_rng([self.seed, step]).integers(last, size=len(self.widths))
        return [self._mask(int(begin), n_rows, width) for begin, width in zip(begins, self.widths, strict=True)]

    def _mask(self, begin: int, n_rows: int, width: int) -> Tensor:
        of_runs = [values[begin : begin + n_rows * width].view(n_rows, width) for values, _ in self.runs]
        if len(of_runs) == 1:
            return of_runs[0]
        return torch.cat([mask.expand(n, -1, -1) for mask, (_, n) in zip(of_runs, self.runs, strict=True)])


LEAST_SCALE = 1e-3
"""Minimum magnitude of a column scale that is merged into the encoding's divisor after training."""
DERIVATIVES: dict[type[nn.Module], Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    nn.Tanh: lambda cotangent, inputs, outputs: torch.ops.aten.tanh_backward(cotangent, outputs),
    nn.ReLU: lambda cotangent, inputs, outputs: torch.ops.aten.threshold_backward(cotangent, outputs, 0),
    nn.GELU: lambda cotangent, inputs, outputs: torch.ops.aten.gelu_backward(cotangent, inputs),
    nn.SiLU: lambda cotangent, inputs, outputs: torch.ops.aten.silu_backward(cotangent, inputs),
    nn.Softplus: lambda cotangent, inputs, outputs: torch.ops.aten.softplus_backward(cotangent, inputs, 1, 20),
}
"""For each activation, the map from (cotangent, inputs, outputs) to the cotangent of its inputs."""


class Stacked:
    """Stacked copies of the weights of K nets of one shape; ``learns_scales`` adds a scale of each encoded column."""

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
        self.activations = [layer for layer in first.behind if type(layer) in DERIVATIVES]
        self.factors = [layer.factor for layer in first.behind if isinstance(layer, Scale)]
        self.shift = first.behind[-1] if len(first.behind) and isinstance(first.behind[-1], Shift) else None
        numbers: list[list[Any]] = [] if first.first is None else [[module.first] for module in modules]
        embeddings = [list(module.embeddings) for module in modules] if len(first.embeddings) else []
        places = [k for k, layer in enumerate(first.behind) if isinstance(layer, nn.Linear)]
        later = [[[module.behind[k]] for module in modules] for k in places]
        # Layers of each net for each stacked weight: a single one, or the embeddings of all categories.
        self.layers = [of_nets for of_nets in (numbers, embeddings, *later) if of_nets]
        self.n_numeric, self.n_first = int(bool(numbers)), len(self.layers) - len(later)
        self.weights = [self._weight(of_nets) for of_nets in self.layers]
        self.biases = [self._bias(of_nets) for of_nets in self.layers]
        with_scales = self.n_numeric if learns_scales else 0
        self.scales = [torch.ones_like(weight[:, :1]) for weight in self.weights[:with_scales]]
        self.has_levels = bool(embeddings)
        if self.has_levels:
            # In memory, all weights of a level lie together, for embedding_bag.
            levels_first = self.weights[self.n_numeric].permute(2, 0, 1).contiguous()
            self.weights[self.n_numeric] = levels_first.permute(1, 2, 0)

    def _weight(self, of_nets: Sequence[Sequence[Any]]) -> Tensor:
        """Weights (K, h, D) of the layers of each net, D the number of all their inputs."""
        weight = torch.stack([torch.cat([layer.weight for layer in layers], 1) for layers in of_nets])
        return weight.detach().to(self.dtype)

    def _bias(self, of_nets: Sequence[Sequence[Any]]) -> Tensor | None:
        """Biases (K, h) of the first given layer of each net, or None."""
        if of_nets[0][0].bias is None:
            return None
        return torch.stack([layers[0].bias.detach().to(self.dtype) for layers in of_nets])

    def is_small(self, schedule: Schedule) -> bool:
        """Return True if a step of this schedule is too small to benefit from several threads."""
        return schedule.batch_size * sum(weight.numel() for weight in self.weights) <= SINGLE_THREAD_STEP

    @torch.no_grad()
    def __call__(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Outputs (K, n, C) for encoded rows: numbers (n, D) and levels (n, q), as in :class:`.Encoded`."""
        return self._forward(numbers, codes, [None] * len(self.activations))[0]

    def _forward(
        self, numbers: Tensor, codes: Tensor, masks: Sequence[Tensor | None]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
        """Outputs (K, n, C), and for each activation its inputs, outputs, and outputs times mask (K, n, h)."""
        hidden, passed = self._first(numbers, codes), []
        biases = [bias for bias in self.biases[self.n_first :] if bias is not None]
        layers = zip(self.activations, self.factors, self.weights[self.n_first :], biases, masks, strict=True)
        for activation, factor, weight, bias, mask in layers:
            activated = activation(hidden)
            kept = activated if mask is None else activated * mask
            passed.append((hidden, activated, kept))
            hidden = torch.baddbmm(bias[:, None], kept, weight.mT, alpha=factor)
        return hidden if self.shift is None else self.shift(hidden).to(hidden), passed

    def _first(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Pre-activations (K, n, h) of the first hidden layer."""
        bias = self.biases[0]
        assert bias is not None
        hidden = bias[:, None]
        if self.n_numeric:
            weight = self.weights[0] * self._first_scale
            hidden = torch.baddbmm(hidden, numbers.expand(len(weight), -1, -1), weight.mT)
        if self.has_levels:
            table = self.weights[self.n_numeric].permute(2, 0, 1)  # (levels of all categories, K, h)
            summed = nn.functional.embedding_bag(codes, table.flatten(1), mode="sum")
            hidden = torch.add(hidden, summed.unflatten(1, table.shape[1:]).transpose(0, 1), alpha=self.factor)
        return hidden

    @torch.no_grad()
    def gradients(
        self,
        numbers: Tensor,
        codes: Tensor,
        targets: Tensor,
        factors: Tensor,
        loss: Loss,
        masks: Sequence[Tensor | None] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """Outputs (K, n, C) for a mini-batch, and the gradient of its loss for each of ``tensors``.

        Numbers are (n, D), codes (n, q), int64, targets (n, C) or (n,) for classes, factors (K, n, 1) or (K, n, C).
        """
        masks = masks or [None] * len(self.activations)
        outputs, passed = self._forward(numbers, codes, masks)
        slope = loss.slope(outputs, targets, factors)
        of_weights: list[Tensor] = []
        of_biases: list[Tensor] = []
        later = zip(self.activations, self.factors, self.weights[self.n_first :], passed, masks, strict=True)
        for activation, factor, weight, (before, activated, kept), mask in reversed(list(later)):
            of_biases.insert(0, slope.sum(1))
            slope = slope * factor
            of_weights.insert(0, torch.bmm(slope.mT, kept))
            slope = torch.bmm(slope, weight)
            slope = DERIVATIVES[type(activation)](slope if mask is None else slope * mask, before, activated)
        of_biases.insert(0, slope.sum(1))
        if self.has_levels:
            of_weights.insert(0, self._of_levels(codes, slope * self.factor))
        of_scales = []
        if self.n_numeric:
            of_scaled = torch.bmm(slope.mT, numbers.expand(len(slope), -1, -1))
            of_scales = [(of_scaled * self.weights[0]).sum(1, keepdim=True) * self.factor for _ in self.scales]
            of_weights.insert(0, of_scaled * self._first_scale)
        return outputs, [*of_scales, *of_weights, *of_biases]

    def _of_levels(self, levels: Tensor, slope: Tensor) -> Tensor:
        """Sum of the cotangents (K, n, h) of the rows with each level, for levels (n, q) of q categories."""
        n_rows, n_categories = levels.shape
        weight = self.weights[self.n_numeric]
        bags = torch.arange(n_rows, device=levels.device)
        # torch's backward pass of embedding_bag; the bag sizes and maxima are not used for mode 0, "sum".
        summed = torch.ops.aten._embedding_bag_dense_backward(
            slope.transpose(0, 1).flatten(1),
            levels.flatten(),
            bags.repeat_interleave(n_categories),
            bags,
            bags,
            weight.shape[2],
            False,
            0,
            None,
        )
        gradient: Tensor = summed.unflatten(1, weight.shape[:2]).permute(1, 2, 0)
        return gradient

    @property
    def n_outputs(self) -> int:
        return self.weights[-1].shape[1]

    @property
    def _first_scale(self) -> Tensor | float:
        """Factor of the encoded columns, (K, 1, D) with column scales."""
        return self.scales[0] * self.factor if self.scales else self.factor

    @property
    def tensors(self) -> list[Tensor]:
        """Trainable tensors: column scales, weights and biases."""
        return [*self.scales, *self.weights, *(bias for bias in self.biases if bias is not None)]

    @torch.no_grad()
    def start_at(self, outputs: Tensor | None) -> None:
        """Set the last layer's weights, or all of a linear net, to zero, and its bias to any given outputs (C,)."""
        for weight in self.weights[-1:] if self.activations else self.weights:
            weight.zero_()
        bias = [bias for bias in self.biases if bias is not None][-1]
        if outputs is not None:
            bias.copy_(outputs.expand_as(bias))

    def copied(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self.tensors]

    @torch.no_grad()
    def put(self, values: Sequence[Tensor]) -> None:
        for tensor, value in zip(self.tensors, values, strict=True):
            tensor.copy_(value)

    @torch.no_grad()
    def written(self) -> list[dict[str, Tensor]]:
        """State dict of each net with the trained weights, in the net's dtype; scales are merged into the encoding."""
        return [self._state(k, module) for k, module in enumerate(self.modules)]

    def _state(self, k: int, module: MLP | TableMLP) -> dict[str, Tensor]:
        state = {name: value.clone() for name, value in module.state_dict().items()}
        names = {id(layer): name for name, layer in module.named_modules()}
        for of_nets, weight, bias in zip(self.layers, self.weights, self.biases, strict=True):
            parts = weight[k].split([layer.in_features for layer in of_nets[k]], 1)
            for layer, part in zip(of_nets[k], parts, strict=True):
                name = f"{names[id(layer)]}.weight"
                state[name] = part.to(state[name]).contiguous()
            if bias is not None:
                name = f"{names[id(of_nets[k][0])]}.bias"
                state[name] = bias[k].to(state[name])
        for scale in self.scales:
            _absorb(state, scale[k, 0].double())
        return state


def _absorb(state: dict[str, Tensor], scale: Tensor) -> None:
    """Merge column scales (D,) into a state dict. The magnitudes for numeric columns go into the encoding's divisors.

    Their signs, and the scales of indicator columns, go into the weights of the first layer.
    """
    divisor, weight = state["standardise.scale"], state["first.weight"]
    n_numbers = len(divisor)
    sign = torch.where(scale < 0, -1.0, 1.0).to(scale)
    state["first.weight"] = weight * torch.cat([sign[:n_numbers], scale[n_numbers:]]).to(weight)
    state["standardise.scale"] = divisor / scale[:n_numbers].abs().clamp_min(LEAST_SCALE).to(divisor)
