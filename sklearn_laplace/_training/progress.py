"""Tree of the tasks of a fit, reported to the callbacks of scikit-learn 1.9 (``sklearn.callback``) and later.

.. code-block:: text

    fit
    ├── member                                    each ensemble member
    │   ├── training
    │   │   ├── epochs → epoch, …                 if the net trains by epochs
    │   │   ├── nets with exact steps → net, …    nets of a joint ensemble, each without a fold of the rows
    │   │   └── mode                              Gauss–Newton and L-BFGS steps to the mode
    │   └── posterior                             both twice if training is repeated under varying noise
    └── …

A task that fails reports its beginning but not its end, as in scikit-learn. The tasks of a fit share a :class:`Clock`.
The clock ends the training after ``max_time`` or Ctrl-C, and prints progress lines.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from .._table.source import Group
from ..errors import CutWarning
from ..errors.warn import warn_user

CALLBACKS = "_skl_callbacks"
"""Attribute in which scikit-learn stores the callbacks passed to ``set_callbacks``."""
OF_A_FIT = ("_callback_fit_ctx", "_skl_callbacks_to_teardown", "_parent_callback_ctx")
"""Further attributes that scikit-learn sets on an estimator during a fit."""
NOT_PRINTED = ("epoch", "net")
"""Tasks too small to print a line."""
INTERRUPTED = "\nThe training stops and keeps its best result so far. Press Ctrl-C again to abort at once.\n"
"""Message on standard error after the first Ctrl-C."""

STAGES = 2
"""Maximum number of subtasks of a member (training, posterior), and of its training (epochs; exact steps or mode)."""


@dataclass
class Clock:
    """Time limit of a training run, counted from the creation of the clock. The clock also prints a line per stage."""

    max_time: float | None = None  # seconds; None: no limit
    verbose: int = 0  # 1: a line per stage; 2: per epoch as well
    has_bar: bool = False  # training steps draw a progress bar
    group: Group = field(default_factory=Group)  # its ranks stop together: rank 0 decides
    was_cut: bool = False  # training has ended early
    is_interrupted: bool = False  # after the first Ctrl-C
    begun: float = field(default_factory=time.perf_counter)
    best: float = -math.inf  # largest mean log density of held-out rows so far, in nats per row

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was created."""
        return time.perf_counter() - self.begun

    @property
    def left(self) -> float:
        """Seconds until the training has to end; infinite without a limit."""
        return math.inf if self.max_time is None else self.max_time - self.elapsed

    def is_over(self) -> bool:
        """True if the training has to end now; the training then counts as cut."""
        return self.lacks(0.0)

    def lacks(self, seconds: float) -> bool:
        """True if at most the given number of seconds is left; the training then counts as cut.

        >>> Clock().lacks(1e6), Clock(max_time=5.0).lacks(1e6)
        (False, True)
        """
        if self.group.agrees(self.is_interrupted or self.left <= seconds):
            self.was_cut = True
            return True
        return False

    def say(self, text: str) -> None:
        """Print a line with the elapsed time in a single write, so lines of several processes do not mix."""
        sys.stdout.write(f"{self.elapsed:7.1f} s  {text}\n")
        sys.stdout.flush()

    def warn_if_cut(self) -> None:
        """Warn if training has ended early."""
        if self.was_cut:
            cause = "Ctrl-C" if self.is_interrupted else f"max_time={self.max_time!r}"
            warn_user(
                f"the training was stopped after {self.elapsed:.3g} seconds by {cause}, and the best model so far is "
                "kept. Allow more time for better means and narrower intervals.",
                CutWarning,
            )

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """In the main thread without another handler, the first Ctrl-C ends training; the second aborts the fit."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, number: int, frame: object) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True
        sys.stderr.write(INTERRUPTED)


@dataclass
class Task:
    """Part of a fit, as a context manager: the task begins on entry and ends on exit."""

    clock: Clock = field(default_factory=Clock)
    path: tuple[str, ...] = ()  # names of the enclosing tasks and of this task
    estimator: Any = None  # if it has callbacks
    context: Any = None  # scikit-learn's CallbackContext of the task, with an estimator
    score: float | None = None  # mean log density of held-out rows, in nats per row, set before the end
    rounds: int = 0  # number of equally long rounds that follow; 0 if unknown

    def subtask(
        self, name: str, most: int | None = 0, *, place: tuple[int, int] | None = None, n_jobs: int = 1
    ) -> Task:
        """Create a subtask with up to ``most`` subtasks; ``place`` is (position, total); ``n_jobs`` run at a time."""
        context = self.context
        if context is not None:
            context = context.subcontext(task_name=name, max_subtasks=most)
        shown, rounds = name, 0
        if place is not None:
            shown, rounds = f"{name} {place[0]} of {place[1]}", -(-(place[1] - place[0]) // n_jobs)
        return Task(self.clock, (*self.path, shown), self.estimator, context, rounds=rounds)

    def __enter__(self) -> Self:
        self._begun = time.perf_counter()
        if self.context is not None:
            self.context.call_on_fit_task_begin(estimator=self.estimator)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            return
        if self.clock.verbose > 0 and self.path and self.path[-1] not in NOT_PRINTED:
            self.clock.say(f"{', '.join(self.path)} ({self._result()})")
        if self.context is not None:
            self.context.call_on_fit_task_end(estimator=self.estimator)

    def _result(self) -> str:
        """Duration of the task, and its score with the best one so far."""
        seconds = time.perf_counter() - self._begun
        duration = f"{seconds:.2f} s"
        if self.rounds:
            duration += f", {about(min(self.rounds * seconds, self.clock.left))}"
        if self.score is None:
            return duration
        self.clock.best = max(self.clock.best, self.score)
        return f"{duration}, held-out log density {self.score:.3f}, best so far {self.clock.best:.3f}"


def about(seconds: float) -> str:
    """Text about the remaining time.

    >>> about(0.2), about(71.4)
    ('about 1 s left', 'about 72 s left')
    """
    return f"about {max(math.ceil(seconds), 1)} s left"


def without_callbacks(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in (CALLBACKS, *OF_A_FIT)}


def callbacks_of(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name == CALLBACKS}


try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9

    class ReportedFit:
        """Estimator without support for callbacks."""

        @contextmanager
        def _reported(self, clock: Clock, most: int, X: Any, y: Any, sample_weight: Any) -> Iterator[Task]:
            yield Task(clock)

else:

    class ReportedFit(CallbackSupportMixin):  # type: ignore[no-redef]
        """Estimator that reports its fits to callbacks set by scikit-learn's ``set_callbacks``."""

        @contextmanager
        def _reported(self, clock: Clock, most: int, X: Any, y: Any, sample_weight: Any) -> Iterator[Task]:
            """Report a fit as the root task with at most ``most`` subtasks.

            A decorator of ``fit`` would add stack frames between a warning and the line that it refers to.
            """
            arguments: dict[str, Any] = {"estimator": self, "X": X, "y": y}
            arguments["metadata"] = None if sample_weight is None else {"sample_weight": sample_weight}
            try:
                context = self._init_callback_context(max_subtasks=most)
                context.call_on_fit_task_begin(**arguments)
                yield Task(clock, (), self, context) if CALLBACKS in vars(self) else Task(clock)
                # No attributes need reconstruction: the estimator is fitted.
                context.call_on_fit_task_end(**arguments, reconstruction_attributes={})
            finally:
                self._tear_down()

        @with_callbacks  # type: ignore[untyped-decorator, unused-ignore]
        def _tear_down(self) -> None:
            """Empty method: the decorator cleans up the callbacks after it."""


EVERY = 5.0
"""Minimum number of seconds between two lines of ``verbose=1``."""


class Steps:
    """Progress of a training run, whose steps end at the time limit. Without a task, there is no limit or output.

    ``total`` may be unknown. A line is printed every ``each`` steps, unless ``prints`` is False. ``unit`` is "step" or
    "epoch", and ``label`` names the training run within its stage. ``log_volume`` is the log factor from the network's
    units to those of y, over all outputs.
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
        task = Task() if task is None else task
        self.clock, self.name = task.clock, ", ".join(filter(None, [*task.path, label]))
        self.total, self.unit, self.each, self.log_volume = total, unit, each, log_volume
        # Bars of several processes would overwrite each other.
        has_bar = self.clock.has_bar and multiprocessing.parent_process() is None
        self.prints = prints and self.clock.verbose > 1
        self.is_shown = self.prints or has_bar
        self.is_timed = prints and self.clock.verbose == 1 and total is not None
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
        return self.clock.is_over()

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
        """Show the log density of held-out rows under normal noise, from the mean squared error of each net (K,)."""
        if self.is_shown:
            level = max(float(mean_square.mean()), 1e-300)
            density = -0.5 * n_outputs * (math.log(2 * math.pi * level) + 1) - self.log_volume
            self._show(f"held-out log density {density:.3f}")

    def score_log(self, log_likelihood: Tensor) -> None:
        """Show the mean log likelihood of held-out rows, given for each net (K,), in nats per row."""
        if self.is_shown:
            self._show(f"held-out log likelihood {float(log_likelihood.mean()):.3f}")

    def _tell_time(self) -> None:
        """Print the step and the remaining seconds, every few seconds."""
        now = time.perf_counter()
        if now - self._told < EVERY or self.total is None or self.n_done >= self.total:
            return
        self._told, left = now, (now - self._begun) / self.n_done * (self.total - self.n_done)
        part = f"{self.unit} {self.n_done} of {self.total}"
        self.clock.say(f"{self.name}: {part}, {about(min(left, self.clock.left))}")

    def _show(self, *results: str) -> None:
        """Print a line, or write the results next to the bar."""
        losses = [float(loss) for loss in self._losses]
        mean = [f"loss {sum(losses) / len(losses):.4g}"] if losses else []
        self._losses = []
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join([*mean, *results]))
        if self.prints:
            part = f"{self.unit} {self.n_done}" + ("" if self.total is None else f" of {self.total}")
            self.clock.say(f"{self.name}: {', '.join([part, *mean, *results])}")
