r"""Joint training of several nets of the same shape as one tensor program.

The weights of K nets share a leading dimension, so that one forward and one backward pass updates all nets.
Mini-batches are shared, and a mask selects the nets that are trained on a row. The nets are trained by Adam in single
precision with

- a cyclic learning rate that falls to zero four times, :math:`\tfrac12 (1 - \cos(2\pi \log_2(1 + 15u)))` after a
  fraction u of the steps, and :math:`\beta_2 = .95` (Holzmüller, Grinsztajn & Steinwart 2024),
- a learnable scale of each encoded column, which becomes a constant of the encoding after the training,
- decoupled weight decay, which falls to zero in the second half of the steps,
- a Gaussian prior of precision δ, which adds :math:`\tfrac{\delta\varphi}{2n} |W|^2` to half the mean squared error.
  The noise level :math:`\varphi` is the held-out error after the previous cycle.

Each layer divides its inputs by √(fan-in) (``nets/mlp.py``). The last layer of an ensemble member starts at zero.

Before the last of the four cycles, rows may be weighted by a power of their inverse noise variances. The exponent is
less than one for many rows. Targets that are almost free of noise benefit from many steps. Therefore further cycles
follow, as long as each one reduces the held-out errors substantially.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from .._host.rows import TrainingRows
from .._runtime.budget import SINGLE_THREAD_FLOPS
from .._runtime.steps import Steps
from ..nets import MLP, TableMLP
from .checkpoint import Checkpoint, NoCheckpoint
from .schedule import Schedule
from .stream import StreamedBatches

BETAS, EPSILON = (0.9, 0.95), 1e-8
SCALE_RATE = 6.0
"""Learning rate of the column scales, relative to that of the weights."""
LEAST_SCALE = 1e-3
"""Minimum magnitude of a column scale after the training, when the encoding's divisor is divided by it."""
NOISE_AT_START = 0.1
"""φ of the first cycle, in units of the target variance."""
ENCODED_BYTES = 2**28
"""Maximum size of encoded rows that are kept in memory. Larger data are encoded batch by batch."""
REWARD = 0.6
"""A further cycle follows if the previous one reduced the mean held-out squared error to less than this fraction."""
TRIAL_STEPS = 5
"""Number of timed steps of a speed measurement, after the same number of warm-up steps."""
CHUNK = 4096
"""Number of rows per chunk in encoding and in forward passes without a gradient."""


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


@dataclass(frozen=True)
class Encoded:
    """Rows encoded as inputs of the first layer.

    Parameters
    ----------
    module : MLP or TableMLP
        Net that encodes the rows.
    inputs : Tensor of shape (n, d), float64
        Inputs of the net: numbers and category codes.
    dtype : torch.dtype
        Dtype of the encoded numbers.
    numbers : Tensor of shape (n, D) or None
        Encoded numbers of all rows; None if they are too large to keep.
    """

    module: MLP | TableMLP
    inputs: Tensor
    dtype: torch.dtype
    numbers: Tensor | None

    @classmethod
    @torch.no_grad()
    def of(cls, module: MLP | TableMLP, inputs: Tensor, dtype: torch.dtype) -> Encoded:
        """Encode the rows, unless the result would be larger than ``ENCODED_BYTES``."""
        width = 0 if module.first is None else module.first.weight.shape[1]
        if 4 * len(inputs) * width > ENCODED_BYTES:
            return cls(module, inputs, dtype, None)
        parts = [module.numbers(chunk).to(dtype) for chunk in inputs.split(CHUNK)]
        return cls(module, inputs, dtype, torch.cat(parts))

    @torch.no_grad()
    def taken(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Encoded numbers and category codes of the rows with these indices."""
        inputs = self.inputs[chosen]
        numbers = self.module.numbers(inputs).to(self.dtype) if self.numbers is None else self.numbers[chosen]
        return numbers, inputs[:, self.module.categorical].long()


@dataclass(frozen=True)
class RowNoise:
    """Noise variances, up to a factor.

    Parameters
    ----------
    values : Tensor of shape (n, C)
        Variances of the rows of a training.
    of : callable
        Maps inputs (m, d) to variances (m, C).
    """

    values: Tensor
    of: Callable[[Tensor], Tensor]


def train_members(
    stacked: Stacked,
    rows: TrainingRows,
    seen: Tensor,
    schedules: Sequence[Schedule],
    seed: int,
    prior: Sequence[float],
    noise_of: Callable[[Tensor], RowNoise | None],
    steps: Steps | None = None,
    streamed: StreamedBatches | None = None,
    saved: Checkpoint | NoCheckpoint | None = None,
) -> tuple[Tensor, RowNoise | None]:
    """Train all nets on targets with normal noise.

    Parameters
    ----------
    stacked : Stacked
        Nets to train, changed in place.
    rows : TrainingRows
    seen : Tensor of shape (K, n)
        1 if the net is trained on the row, else 0.
    schedules : sequence of Schedule
        One schedule for each of several equal groups of consecutive nets. Only the learning rate and the weight decay
        may differ.
    seed : int
        Seed of the mini-batch order.
    prior : sequence of K floats
        Prior precision δ of each net's weights.
    noise_of : callable
        Maps outputs (K, n, C) to noise variances, or to None for a constant noise level. Called once, before the last
        cycle.
    steps : Steps, optional
        Progress of the steps, which may end them early.
    streamed : StreamedBatches, optional
        Mini-batches of a larger table. ``rows`` are then a sample of its rows, for the held-out errors.
    saved : Checkpoint, optional
        State of the same training before its process was killed, and place of later states.

    Returns
    -------
    outputs : Tensor of shape (K, n, C), float64
        Outputs of each net for all rows.
    noise : RowNoise or None
        Noise variances from ``noise_of``.
    """
    training, schedule = Training.of(stacked, rows, seen, schedules, seed, prior, streamed=streamed), schedules[0]
    held_out, steps = (1 - seen) * rows.weights, Steps() if steps is None else steps
    outputs, error, before, saved = torch.empty(0), math.inf, math.inf, NoCheckpoint() if saved is None else saved
    begun, noise = training.resumed(saved.state, noise_of, schedule.noise_power)
    for cycle, (begin, end) in enumerate(schedule.cycles):
        if cycle < begun.cycle:
            continue
        if cycle == begun.cycle and begun.errors:
            before, error = begun.errors
        save = partial(training.save, saved, cycle, (before, error))
        training.run(schedule.rate, schedule.decay, range(begin, end), steps, begun.done.pop(cycle, 0), save)
        outputs = training.outputs()
        training.noise = mean_squares(rows, outputs, held_out, training.precision.double()).to(training.noise)
        errors = mean_squares(rows, outputs, held_out)
        steps.score(errors, rows.n_outputs)
        if end == schedule.last_cycle and not steps.is_over() and (noise := noise_of(outputs)) is not None:
            training.before_noise = stacked.copied()
            training.take(noise, schedule.noise_power)
        before, error = error, float(errors.mean())
    for _ in range(schedule.most_further):
        if not error < REWARD * before or steps.is_over():
            break
        kept = stacked.copied()
        steps.extend(schedule.n_steps)
        training.run(schedule.rate_of_cycle, lambda step: 0.0, range(schedule.n_steps), steps)
        further = training.outputs()
        errors = mean_squares(rows, further, held_out)
        steps.score(errors, rows.n_outputs)
        before, error = error, float(errors.mean())
        if not error < before:
            stacked.put(kept)
            break
        outputs = further
    return outputs, noise


def seconds_of_step(stacked: Stacked, rows: TrainingRows, schedule: Schedule) -> float:
    """Measure the duration of one training step, by a few steps whose result is not used.

    Parameters
    ----------
    stacked : Stacked
        Nets, which are changed and must be discarded afterwards.
    rows : TrainingRows
    schedule : Schedule

    Returns
    -------
    float
        Seconds.
    """
    seen = torch.ones(len(stacked.modules), len(rows), device=rows.inputs.device)
    training = Training.of(stacked, rows, seen, [schedule], 0, [1.0] * len(seen))
    training.run(schedule.rate, schedule.decay, range(TRIAL_STEPS), Steps())
    begun = time.perf_counter()
    training.run(schedule.rate, schedule.decay, range(TRIAL_STEPS), Steps())
    return (time.perf_counter() - begun) / TRIAL_STEPS


@dataclass(frozen=True)
class Batch:
    """Mini-batch: encoded numbers and codes of n rows, and their targets, shares (K, n) and precisions."""

    numbers: Tensor
    codes: Tensor
    targets: Tensor
    shares: Tensor
    precision: Tensor


class StreamedRows:
    """Mini-batches of a larger table than its sample in memory; an iterator, so that all cycles read on.

    Parameters
    ----------
    module : MLP or TableMLP
        Net that encodes the rows.
    batches : StreamedBatches
    unit : Tensor of shape (K, 1)
        Factor of the row weights of each net.
    rows : TrainingRows
        Sample of the rows, whose dtypes and device the batches have.
    """

    def __init__(self, module: MLP | TableMLP, batches: StreamedBatches, unit: Tensor, rows: TrainingRows) -> None:
        self.module, self.batches, self.unit, self.like = module, batches, unit, rows
        self.precision_of: Callable[[Tensor], Tensor] = lambda inputs: torch.ones(1, 1)
        self.n_read, self._skipped = 0, 0
        self._all = self._yielded()

    def skip(self, n_batches: int) -> None:
        """Begin after a number of mini-batches."""
        self.n_read = self._skipped = n_batches

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._all)
        self.n_read += 1
        return batch

    def _yielded(self) -> Iterator[Batch]:
        dtype, size = self.unit.dtype, self.batches.rows_of_rank
        for data, seen in self.batches.buffers():
            n_whole = max(len(data.X) // size, 1)
            if self._skipped >= n_whole:
                self._skipped -= n_whole
                continue
            rows = data.tensors(self.like.inputs.dtype, dtype, self.like.inputs.device)
            shares = torch.from_numpy(seen).to(self.unit) * rows.weights * self.unit
            encoded = Encoded.of(self.module, rows.inputs, dtype)
            whole = torch.arange(len(rows), device=rows.inputs.device).split(size)
            for chosen in islice(whole, self._skipped, n_whole):
                numbers, codes = encoded.taken(chosen)
                precision = self.precision_of(rows.inputs[chosen]).to(shares)
                yield Batch(numbers, codes, rows.targets[chosen], shares[:, chosen], precision)
            self._skipped = 0


@dataclass(frozen=True)
class Begun:
    """Place at which a training begins: its cycle, the steps done in cycles, and the last two held-out errors."""

    cycle: int = 0
    done: dict[int, int] = field(default_factory=dict)
    errors: tuple[float, ...] = ()


@dataclass
class Training:
    """State of a joint training of several nets.

    Parameters
    ----------
    stacked : Stacked
        Weights of the nets.
    encoded : Encoded
        Encoded rows.
    targets : Tensor of shape (n, C)
    shares : Tensor of shape (K, n)
        Weight of each row for each net, with mean 1 per net.
    precision : Tensor of shape (n, 1) or (n, C)
        Factor of the squared errors: inverse noise variances, or 1.
    optimisers : list of _Adam
        Optimisers of all trainable tensors.
    generator : Generator
        Generator of the mini-batch order.
    batch_size : int
    prior : Tensor of shape (K,)
        Prior precision δ divided by the total weight of the net's rows.
    noise : Tensor of shape (K,)
        Noise level φ of each net, the factor of the prior in the loss.
    streamed : StreamedRows or None
        Mini-batches of a larger table; None for those of the encoded rows.
    before_noise : list of Tensor or None
        Weights whose errors have determined the precision; None if it is constant.
    """

    stacked: Stacked
    encoded: Encoded
    targets: Tensor
    shares: Tensor
    precision: Tensor
    optimisers: list[_Adam]
    generator: torch.Generator
    batch_size: int
    prior: Tensor
    noise: Tensor
    streamed: StreamedRows | None = None
    before_noise: list[Tensor] | None = None

    def __post_init__(self) -> None:
        self.order_of_run = self.generator.get_state()

    @classmethod
    def of(
        cls,
        stacked: Stacked,
        rows: TrainingRows,
        seen: Tensor,
        schedules: Sequence[Schedule],
        seed: int,
        prior: Sequence[float],
        *,
        from_zero: bool = True,
        streamed: StreamedBatches | None = None,
    ) -> Training:
        """Return a training at its start; if ``from_zero``, the last layer's weights start at zero."""
        dtype, n = stacked.dtype, len(rows)
        weights = (seen * rows.weights).to(dtype)
        stacked.start(from_zero=from_zero)
        unit = n / weights.sum(1, keepdim=True)
        more = 1.0 if streamed is None else streamed.stream.total_weight / rows.total_weight
        return cls(
            stacked,
            Encoded.of(stacked.modules[0], rows.inputs, dtype),
            rows.targets.to(dtype),
            weights * unit,
            torch.ones_like(weights[0])[:, None] if rows.noise is None else (1 / rows.noise).to(dtype),
            _Adam.of(stacked, schedules),
            torch.Generator().manual_seed(seed),
            min(schedules[0].batch_size, n),
            torch.tensor(prior).to(weights) / (more * weights.sum(1)),
            torch.full_like(weights[:, 0], NOISE_AT_START),
            None if streamed is None else StreamedRows(stacked.modules[0], streamed, unit, rows),
        )

    def take(self, noise: RowNoise, power: float) -> None:
        """Weight the squared errors from now on by a power of the inverse noise variances."""
        mean = noise.values.mean(0)
        self.precision = (mean / noise.values).pow(power).to(self.precision)
        if self.streamed is not None:
            self.streamed.precision_of = lambda inputs: (mean / noise.of(inputs)).pow(power)

    def run(
        self,
        rate: Callable[[int], float],
        decay: Callable[[int], float],
        places: range,
        steps: Steps,
        done: int = 0,
        save: Callable[[int], None] | None = None,
    ) -> None:
        """Take the steps of these places; ``rate`` and ``decay`` map a place to fractions of their maxima.

        The first ``done`` places were taken before the process was killed. ``save`` is called after each step with the
        number of places that have been taken.
        """
        penalty = (self.prior * self.noise)[:, None, None]
        is_penalised = bool(penalty.any())
        batches = self._batches(done) if self.streamed is None else self.streamed
        for place, batch in zip(places[done:], batches, strict=False):
            if steps.is_over():
                break
            outputs = self.stacked(batch.numbers, batch.codes)
            squares = (outputs - batch.targets).square() * batch.precision
            losses = 0.5 * squares.sum(-1)
            loss = (losses * batch.shares).sum() / len(batch.targets)
            loss.backward()
            if self.streamed is not None:
                self.streamed.batches.average_([tensor.grad for tensor in self.stacked.tensors])
            if is_penalised:
                for weight in self.stacked.weights:
                    assert weight.grad is not None
                    weight.grad.addcmul_(penalty, weight.detach())
            for optimiser in self.optimisers:
                optimiser.step(rate(place), decay(place))
            for tensor in self.stacked.tensors:
                tensor.grad = None
            if steps.is_shown:
                steps.advance(loss / len(self.shares))
            if save is not None:
                save(place + 1 - places.start)

    def save(self, saved: Checkpoint | NoCheckpoint, cycle: int, errors: tuple[float, float], done: int) -> None:
        """Save the state after a number of steps of a cycle, if the last one is old enough."""
        if saved.is_due():
            optimisers = [(optimiser.first, optimiser.second, optimiser.counts) for optimiser in self.optimisers]
            state = {"cycle": cycle, "done": done, "errors": errors, "generator": self.order_of_run}
            tensors = {"tensors": self.stacked.copied(), "optimisers": optimisers, "noise": self.noise}
            n_read = 0 if self.streamed is None else self.streamed.n_read
            saved.save({**state, **tensors, "before_noise": self.before_noise, "n_read": n_read})

    def resumed(
        self, state: dict[str, Any] | None, noise_of: Callable[[Tensor], RowNoise | None], power: float
    ) -> tuple[Begun, RowNoise | None]:
        """Restore a saved state, if there is one; return its place, and the noise of the last cycle."""
        if state is None:
            return Begun(), None
        noise, self.before_noise = None, state["before_noise"]
        if self.before_noise is not None:
            self.stacked.put(self.before_noise)
            noise = noise_of(self.outputs())
            assert noise is not None
            self.take(noise, power)
        self.stacked.put(state["tensors"])
        self.noise = state["noise"].to(self.noise)
        self.generator.set_state(state["generator"])
        for optimiser, parts in zip(self.optimisers, state["optimisers"], strict=True):
            for kept, values in zip((optimiser.first, optimiser.second, optimiser.counts), parts, strict=True):
                for tensor, value in zip(kept, values, strict=True):
                    tensor.copy_(value)
        if self.streamed is not None:
            self.streamed.skip(state["n_read"])
        return Begun(state["cycle"], {state["cycle"]: state["done"]}, state["errors"]), noise

    def _batches(self, done: int = 0) -> Iterator[Batch]:
        """Yield mini-batches without end, after the first ones; each epoch is a new random order."""
        for chosen in islice(self._orders(), done, None):
            numbers, codes = self.encoded.taken(chosen)
            yield Batch(numbers, codes, self.targets[chosen], self.shares[:, chosen], self.precision[chosen])

    def _orders(self) -> Iterator[Tensor]:
        """Yield the row indices of each mini-batch, without end."""
        n, device = len(self.targets), self.targets.device
        self.order_of_run = self.generator.get_state()
        while True:
            order = torch.randperm(n, generator=self.generator).to(device)
            yield from (batch for batch in order.split(self.batch_size) if len(batch) == self.batch_size)

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Outputs of all nets for all rows, (K, n, C), float64."""
        # Allocate the result first: small results between large temporary arrays would fragment the memory.
        result = torch.empty(*self.shares.shape, self.targets.shape[1], dtype=torch.float64, device=self.targets.device)
        for chosen in torch.arange(len(self.targets), device=self.targets.device).split(CHUNK):
            result[:, chosen] = self.stacked(*self.encoded.taken(chosen)).double()
        return result


def mean_squares(rows: TrainingRows, outputs: Tensor, weights: Tensor, precision: Tensor | float = 1.0) -> Tensor:
    """Weighted mean (K,) of precision · squared error for each net's outputs (K, n, C), with row weights (K, n)."""
    squares = ((outputs - rows.targets.double()).square() * precision).mean(-1)
    return (weights * squares).sum(1) / weights.sum(1)


class _Adam:
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
    def of(cls, stacked: Stacked, schedules: Sequence[Schedule]) -> list[_Adam]:
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
