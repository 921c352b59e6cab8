r"""Joint training of K nets of the same shape as one tensor program: one forward and one backward pass for all.

The nets share mini-batches, and a mask selects the nets that are trained on each row. Training uses Adam in single
precision with

- a cyclic learning rate that falls to almost zero four times, :math:`\tfrac12 (1 - \cos(2\pi \log_2(1 + 15u)))` after a
  fraction u of the steps, and :math:`\beta_2 = .95` (Holzmüller, Grinsztajn & Steinwart 2024),
- a learnable scale of each encoded column, which becomes a constant of the encoding after the training,
- decoupled weight decay, which falls to zero in the second half of the steps,
- dropout of hidden units,
- a Gaussian prior of precision δ, which adds :math:`\tfrac{\delta\varphi}{2n} |W|^2` to half the mean squared error.
  The noise level :math:`\varphi` is the mean squared held-out error after the previous cycle.

For classes and counts (``stacked.py``), the mean negative log likelihood replaces half the mean squared error, and
:math:`\varphi = 1`. The result is the state after the cycle with the smallest held-out loss
(``_ensemble/train_members.py``). The last cycle is omitted if the third is not the best so far. For this loss, a row is
predicted by the net that was trained without it, under the best common factor of all outputs. The factor itself is
chosen in a later step ("refine, then calibrate", Berta, Holzmüller, Jordan & Bach 2025). Each layer divides its inputs
by √(fan-in) (``nets/mlp.py``). The last layer of an ensemble member starts at zero.

In the last of the four cycles, rows may be weighted by a power of their inverse noise variances. A few further cycles
follow as long as each reduces the held-out errors substantially.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..laplace.fit import TrainingRows
from .batches import BUFFER_ROWS, FORWARD_ROWS, Batch, Encoded, RowNoise, StreamedBatches, StreamedRows
from .checkpoint import Checkpoint
from .progress import Steps
from .recipe import TRIAL, Schedule
from .stacked import Adam, Dropout, Loss, Stacked

TRIAL_STEPS = 5
"""Number of timed steps in a speed measurement, after the same number of warm-up steps."""


def train_stacked(
    stacked: Stacked,
    loss: Loss,
    rows: TrainingRows,
    seen: Tensor,
    schedule: Schedule,
    *,
    seed: int,
    prior: Sequence[float],
    dropout: Sequence[float] = (),
    noise_of: Callable[[Tensor], RowNoise | None],
    steps: Steps | None = None,
    streamed: StreamedBatches | None = None,
    saved: Checkpoint | None = None,
    score: Callable[[Tensor], float] | None = None,
) -> tuple[Tensor, RowNoise | None]:
    """Train all nets in place; return their outputs (K, n, C), float64, for all rows, and the noise variances.

    ``seen`` (K, n) is 1 for rows that a net is trained on, else 0. ``prior`` has the δ of each net. ``dropout`` has,
    for each net, the probability that a hidden unit is set to zero in a step; it is empty without dropout. Before the
    last cycle, ``noise_of`` maps outputs to noise variances, or to None if the noise is constant. With ``streamed``
    batches, ``rows`` are a sample. If a ``score`` of the outputs is given, the weights after the cycle with the
    smallest score are kept. The last cycle, more than half of all steps, then follows only if the one before is the
    best so far.
    """
    training = Training(stacked, loss, rows, seen, schedule, seed, prior, dropout=dropout, streamed=streamed)
    held_out, steps = (1 - seen) * rows.weights, Steps() if steps is None else steps
    outputs, error, before, saved = torch.empty(0), math.inf, math.inf, Checkpoint() if saved is None else saved
    (first, n_taken, last_errors), noise = training.resumed(saved.state, noise_of, schedule.noise_power)
    is_best = True
    cycles = schedule.cycles
    for cycle, (begin, end) in enumerate(cycles):
        if cycle < first:
            continue
        if end == schedule.n_steps and not is_best:
            break
        if cycle == first and last_errors:
            before, error = last_errors
        n_done = n_taken if cycle == first else 0
        at_step = partial(training.save, saved, cycle, (before, error))
        training.run(schedule.rate, schedule.decay, range(begin, end), steps, n_done, at_step)
        outputs = training.outputs()
        if loss.has_noise:
            level = mean_errors(loss, rows, outputs, held_out, training.precision.double())
            training.noise = level.to(training.noise)
        errors = mean_errors(loss, rows, outputs, held_out)
        loss.show(steps, errors, rows.n_outputs)
        if end == cycles[-1][0] and not steps.is_over() and (noise := noise_of(outputs)) is not None:
            training.before_noise = stacked.copied()
            training.take(noise, schedule.noise_power)
        before, error = error, float(errors.mean())
        is_best = score is None or training.keep_if_best(steps.clock.group.of_first(score(outputs)))
    if training.best is not None and not is_best:
        stacked.put(training.best[1])
        outputs = training.outputs()
    for _ in range(schedule.most_further if is_best else 0):
        if not error < schedule.further_below * before or steps.is_over():
            break
        kept = stacked.copied()
        steps.extend(schedule.n_steps)
        training.run(schedule.rate_of_cycle, lambda step: 0.0, range(schedule.n_steps), steps)
        further = training.outputs()
        errors = mean_errors(loss, rows, further, held_out)
        loss.show(steps, errors, rows.n_outputs)
        before, error = error, float(errors.mean())
        if not error < before:
            stacked.put(kept)
            break
        outputs = further
    return outputs, noise


def seconds_of_step(stacked: Stacked, loss: Loss, rows: TrainingRows, schedule: Schedule) -> float:
    """Measure the duration of one training step with dropout, in seconds. The nets are changed, so discard them."""
    seen = torch.ones(len(stacked.modules), len(rows), device=rows.inputs.device)
    dropout = [max(dropout for _, dropout in TRIAL[0])] * len(seen)
    training = Training(stacked, loss, rows, seen, schedule, 0, [1.0] * len(seen), dropout=dropout)
    training.run(schedule.rate, schedule.decay, range(TRIAL_STEPS), Steps())
    begun = time.perf_counter()
    training.run(schedule.rate, schedule.decay, range(TRIAL_STEPS), Steps())
    return (time.perf_counter() - begun) / TRIAL_STEPS


class Training:
    """State of the joint training of K nets; if ``from_zero``, the last layer's weights start at zero."""

    def __init__(
        self,
        stacked: Stacked,
        loss: Loss,
        rows: TrainingRows,
        seen: Tensor,
        schedule: Schedule,
        seed: int,
        prior: Sequence[float],
        *,
        dropout: Sequence[float] = (),
        from_zero: bool = True,
        streamed: StreamedBatches | None = None,
    ) -> None:
        dtype, n = stacked.dtype, len(rows)
        weights = (seen * rows.weights).to(dtype)
        if from_zero:
            stacked.start_at(loss.first_outputs(rows.targets, rows.weights, stacked.n_outputs))
        unit, self.batch_size = n / weights.sum(1, keepdim=True), min(schedule.batch_size, n)
        more = 1.0 if streamed is None else streamed.stream.total_weight / rows.total_weight
        self.stacked, self.loss = stacked, loss
        self.encoded = Encoded.of(stacked.modules[0], rows.inputs, dtype)
        self.targets = rows.targets.to(dtype) if rows.targets.is_floating_point() else rows.targets
        # Row weights of each net, (K, n), with mean 1.
        self.shares = weights * unit
        # Factor of the squared errors, (n, 1) or (n, C): inverse noise variances, or 1.
        self.precision = torch.ones_like(weights[0])[:, None] if rows.noise is None else (1 / rows.noise).to(dtype)
        self.optimisers = Adam.of(stacked, schedule)
        batch_size = self.batch_size if streamed is None else schedule.batch_size
        self.dropout = Dropout(dropout or [0.0], stacked, batch_size, seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.order_of_run = self.generator.get_state()
        # Both (K,): δ over the total weight of the net's rows, and the noise level φ, a factor of the penalty.
        self.prior = torch.tensor(prior).to(weights) / (more * weights.sum(1))
        self.noise = torch.full_like(weights[:, 0], loss.first_noise)
        # None: mini-batches are taken from the encoded rows.
        self.streamed = None if streamed is None else StreamedRows(stacked.modules[0], streamed, unit, rows)
        self.before_noise: list[Tensor] | None = None  # weights whose errors determined the precision
        self.best: tuple[float, list[Tensor]] | None = None  # smallest score after a cycle, and its weights

    def take(self, noise: RowNoise, power: float) -> None:
        """From now on, weight the squared errors by a power of the inverse noise variances."""
        mean = noise.values.mean(0)
        self.precision = (mean / noise.values).pow(power).to(self.precision)
        if self.streamed is not None:
            self.streamed.precision_of = lambda inputs: (mean / noise.of(inputs)).pow(power)

    @torch.no_grad()
    def run(
        self,
        rate: Callable[[int], float],
        decay: Callable[[int], float],
        places: range,
        steps: Steps,
        done: int = 0,
        at_step: Callable[[int], None] | None = None,
    ) -> None:
        """Take the steps ``places`` except the first ``done``; ``rate`` and ``decay`` give fractions of the maxima."""
        penalty, first = (self.prior * self.noise)[:, None, None], len(self.stacked.scales)
        is_penalised = bool(penalty.any())
        if done == len(places) and self.streamed is None:  # resumed from the end of a cycle: draw its orders again
            deque(self._orders(len(places)), maxlen=0)
        batches = self._batches(len(places), done) if self.streamed is None else self.streamed
        for place, batch in zip(places[done:], batches, strict=False):
            if steps.is_over():
                break
            masks = self.dropout.masks(place, len(batch.targets))
            outputs, gradients = self.stacked.gradients(
                batch.numbers, batch.codes, batch.targets, batch.factors, self.loss, masks
            )
            if self.streamed is not None:
                self.streamed.batches.average_(gradients)
            if is_penalised:
                for gradient, weight in zip(gradients[first:], self.stacked.weights, strict=False):
                    gradient.addcmul_(penalty, weight)
            for optimiser in self.optimisers:
                optimiser.step(gradients, rate(place), decay(place))
            shown = self.loss.terms(outputs, batch.targets, batch.factors).sum() if steps.is_shown else 0.0
            steps.advance(shown / len(self.shares))
            if at_step is not None:
                at_step(place + 1 - places.start)

    def keep_if_best(self, score: float) -> bool:
        """Keep the weights, and return True, if the score is the smallest so far."""
        is_best = self.best is None or score < self.best[0]
        self.best = (score, self.stacked.copied()) if is_best else self.best
        return is_best

    def save(self, saved: Checkpoint, cycle: int, errors: tuple[float, float], done: int) -> None:
        """Save the state after a number of steps of a cycle, if the last saved state is old enough."""
        if saved.is_due():
            optimisers = [(optimiser.first, optimiser.second, optimiser.counts) for optimiser in self.optimisers]
            state = {"cycle": cycle, "done": done, "errors": errors, "generator": self.order_of_run}
            tensors = {"tensors": self.stacked.copied(), "optimisers": optimisers, "noise": self.noise}
            n_read = 0 if self.streamed is None else self.streamed.n_read
            saved.save({**state, **tensors, "before_noise": self.before_noise, "best": self.best, "n_read": n_read})

    def resumed(
        self, state: dict[str, Any] | None, noise_of: Callable[[Tensor], RowNoise | None], power: float
    ) -> tuple[tuple[int, int, tuple[float, ...]], RowNoise | None]:
        """Restore a saved state; return its cycle, the steps done in it, the last two errors, and the noise."""
        if state is None:
            return (0, 0, ()), None
        noise, self.before_noise, self.best = None, state["before_noise"], state["best"]
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
        return (state["cycle"], state["done"], state["errors"]), noise

    def _batches(self, n_batches: int, done: int) -> Iterator[Batch]:
        """Yield ``n_batches`` mini-batches or more, except the first ``done``; each epoch has a new random order."""
        factors = self.shares[:, :, None] / self.batch_size * self.precision
        for chosen in islice(self._orders(n_batches), done, None):
            targets = self.targets.index_select(0, chosen)
            yield Batch(*self.encoded.taken(chosen), targets, factors.index_select(1, chosen))

    def _orders(self, n_batches: int) -> Iterator[Tensor]:
        """Yield the row indices of each mini-batch; the orders of several epochs are sent to the device at once."""
        n, device = len(self.targets), self.targets.device
        per_epoch, at_once = n // self.batch_size, max(BUFFER_ROWS // n, 1)
        n_epochs, used = -(-n_batches // per_epoch), per_epoch * self.batch_size
        self.order_of_run = self.generator.get_state()
        for first in range(0, n_epochs, at_once):
            epochs = range(first, min(first + at_once, n_epochs))
            orders = torch.stack([torch.randperm(n, generator=self.generator)[:used] for _ in epochs])
            yield from orders.to(device).view(-1, self.batch_size)

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Outputs of all nets for all rows, (K, n, C), float64."""
        # Allocate the result first: small results between large temporary arrays would fragment the memory.
        shape, device = (*self.shares.shape, self.stacked.n_outputs), self.targets.device
        result = torch.empty(shape, dtype=torch.float64, device=device)
        for chosen in torch.arange(len(self.targets), device=device).split(FORWARD_ROWS):
            result[:, chosen] = self.stacked(*self.encoded.taken(chosen)).double()
        return result


def mean_errors(
    loss: Loss, rows: TrainingRows, outputs: Tensor, weights: Tensor, precision: Tensor | float = 1.0
) -> Tensor:
    """Weighted mean (K,) of the errors of each net's outputs (K, n, C), with row weights (K, n)."""
    return (weights * loss.errors(outputs, rows.targets, precision)).sum(1) / weights.sum(1)
