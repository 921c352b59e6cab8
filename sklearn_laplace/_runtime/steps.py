"""Progress of a training by steps: lines of ``verbose``, or a bar of tqdm, which skorch depends on."""

from __future__ import annotations

import math
import multiprocessing
import time
from typing import Any, Self

from torch import Tensor

from .progress import Task, about

EVERY = 5.0
"""Seconds between two lines of ``verbose=1``."""


class Steps:
    """Steps of a training: ends them in time, and shows their progress if that is wanted; does neither without a task.

    ``total`` may be unknown; a line is printed every ``each`` steps, unless another part ``prints`` it. ``unit`` is
    "step" or "epoch", ``label`` the name of the training within its stage. ``log_volume`` is the log of the factor from
    the network's units of all outputs to those of y.
    """

    def __init__(
        self,
        task: Task | None = None,
        total: int | None = None,
        *,
        unit: str = "step",
        label: str = "",
        each: int = 1,
        log_volume: float = 0.0,
        prints: bool = True,
    ) -> None:
        self.task, self.total, self.unit, self.each, self.log_volume = task, total, unit, each, log_volume
        self.name = "" if task is None else ", ".join([*task.path, *([label] if label else [])])
        clock = None if task is None else task.clock
        # Bars of several processes would overwrite each other.
        has_bar = clock is not None and clock.has_bar and multiprocessing.parent_process() is None
        self.prints = prints and clock is not None and clock.verbose > 1
        self.is_shown = self.prints or has_bar
        self.is_timed = prints and clock is not None and clock.verbose == 1 and total is not None
        self.n_done = 0
        self._begun = self._told = time.perf_counter()
        self._losses: list[Tensor | float] = []
        self._bar: Any = None
        if has_bar:
            from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]

            self._bar = tqdm(total=total, desc=self.name, unit=unit, leave=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def is_over(self) -> bool:
        return self.task is not None and self.task.clock.is_over()

    def extend(self, n_steps: int) -> None:
        if (self.is_shown or self.is_timed) and self.total is not None:
            self.total += n_steps
            if self._bar is not None:
                self._bar.total = self.total

    def advance(self, loss: Tensor | float) -> None:
        """Count a step and its loss per row. With ``verbose=1``, the loss is not read."""
        self.n_done += 1
        if self.is_timed:
            self._tell_time()
        if not self.is_shown:
            return
        self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)  # read when they are shown
        if self._bar is not None:
            self._bar.update()
        if self.n_done % self.each == 0 or self.n_done == self.total:
            self._show()

    def score(self, mean_square: Tensor, n_outputs: int) -> None:
        """Show the log density of held-out rows under normal noise of the mean squared errors (K,), network units."""
        if self.is_shown:
            level = max(float(mean_square.mean()), 1e-300)
            density = -0.5 * n_outputs * (math.log(2 * math.pi * level) + 1) - self.log_volume
            self._show(f"held-out log density {density:.3f}")

    def score_log(self, log_likelihood: Tensor) -> None:
        """Show the mean log likelihood of held-out rows, given for each net (K,), in nats per row."""
        if self.is_shown:
            self._show(f"held-out log likelihood {float(log_likelihood.mean()):.3f}")

    def _tell_time(self) -> None:
        """Print the step and the seconds that are left, every few seconds."""
        now = time.perf_counter()
        if now - self._told < EVERY or self.task is None or self.total is None or self.n_done >= self.total:
            return
        self._told, left = now, (now - self._begun) / self.n_done * (self.total - self.n_done)
        part = f"{self.unit} {self.n_done} of {self.total}"
        self.task.clock.say(f"{self.name}: {part}, {about(min(left, self.task.clock.left))}")

    def _show(self, *results: str) -> None:
        """Print a line, or write the results behind the bar."""
        losses = [float(loss) for loss in self._losses]
        mean = [f"loss {sum(losses) / len(losses):.4g}"] if losses else []
        self._losses = []
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join([*mean, *results]))
        if self.prints and self.task is not None:
            part = f"{self.unit} {self.n_done}" + ("" if self.total is None else f" of {self.total}")
            self.task.clock.say(f"{self.name}: {', '.join([part, *mean, *results])}")
