"""A fit as a tree of tasks, of which scikit-learn's callbacks are told where it has them (``sklearn.callback``, 1.9).

.. code-block:: text

    fit
    ├── member                                    each net of a mixture
    │   ├── training
    │   │   ├── epochs → epoch, …                 where the net trains by epochs
    │   │   ├── mode                              Gauss–Newton and L-BFGS steps to the mode
    │   │   └── nets beside it → net, …           those that do not see a third of the rows each
    │   └── posterior                             both once more where the training is repeated under varying noise
    └── …

With ``prior_precision="cv"`` or ``"validation"`` there are two tasks below the fit instead, ``prior_precision`` with a
``fold`` or a ``candidate`` each, and ``fit``. A task that fails has a beginning and no end, as in scikit-learn. What a
callback returns is not looked at.

The tasks of a fit share a :class:`Clock`. It says when training has to end, by ``max_time`` or Ctrl-C, and whether each
task prints a line.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import CutWarning

CALLBACKS = "_skl_callbacks"
"""Where scikit-learn keeps what ``set_callbacks`` was given."""
OF_A_FIT = ("_callback_fit_ctx", "_skl_callbacks_to_teardown", "_parent_callback_ctx")
"""What else it keeps on an estimator, while it is fitted."""
UNSAID = ("epoch", "net", "fold", "candidate")
"""Tasks that are too small for a line of their own."""
INTERRUPTED = "\nThe training ends and keeps what it has so far. Press Ctrl-C again to stop at once.\n"


@dataclass
class Clock:
    """When a training has to end.

    Parameters
    ----------
    max_time : float or None
        Seconds from now.
    verbose : int
        From 1 on, each stage prints a line.

    Attributes
    ----------
    was_cut : bool
        Whether a training has ended early.
    """

    max_time: float | None = None
    verbose: int = 0
    was_cut: bool = False
    is_interrupted: bool = False
    begun: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.begun

    @property
    def left(self) -> float:
        """Seconds until the training has to end."""
        return math.inf if self.max_time is None else self.max_time - self.elapsed

    def is_over(self) -> bool:
        """Whether the training has to end now, which is remembered.

        Examples
        --------
        >>> Clock().is_over(), Clock(max_time=0.0).is_over()
        (False, True)
        """
        return self.lacks(0.0)

    def lacks(self, seconds: float) -> bool:
        """Whether no more than this many seconds are left; if so, the training counts as cut.

        Examples
        --------
        >>> Clock().lacks(1e6), Clock(max_time=5.0).lacks(1e6)
        (False, True)
        """
        if self.is_interrupted or self.left <= seconds:
            self.was_cut = True
            return True
        return False

    def say_if_cut(self, stacklevel: int) -> None:
        """Warn where a training has ended early."""
        if self.was_cut:
            cause = "Ctrl-C" if self.is_interrupted else f"max_time={self.max_time!r}"
            warnings.warn(
                f"the training ended early, after {self.elapsed:.3g} seconds, by {cause}: the model is the best one so "
                "far. Give it more time for better means and narrower intervals.",
                CutWarning,
                stacklevel=stacklevel,
            )

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the first Ctrl-C end the training, and the second one raise; not where somebody else handles it."""
        ours = threading.current_thread() is threading.main_thread()
        if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
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
    """A part of a fit. As a context manager it is the time that the part takes.

    Parameters
    ----------
    clock : Clock
        Of the whole fit.
    path : tuple of str
        Names of this part and of those that it is in.
    estimator : estimator or None
        The one that is fitted, where callbacks hear of it.
    context : sklearn.callback.CallbackContext or None

    Examples
    --------
    >>> with Task().subtask("training", 2) as task, task.subtask("mode"):
    ...     pass
    """

    clock: Clock = field(default_factory=Clock)
    path: tuple[str, ...] = ()
    estimator: Any = None
    context: Any = None

    def subtask(self, name: str, most: int | None = 0) -> Task:
        """A part of this one, which begins with ``with``.

        Parameters
        ----------
        name : str
        most : int or None
            Subtasks that it may have itself; fewer is fine. None: not known.
        """
        context = self.context
        if context is not None:
            context = context.subcontext(task_name=name, max_subtasks=most)
        return Task(self.clock, (*self.path, name), self.estimator, context)

    def __enter__(self) -> Self:
        self._begun = time.perf_counter()
        if self.context is not None:
            self.context.call_on_fit_task_begin(estimator=self.estimator)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            return
        if self.clock.verbose > 0 and self.path and self.path[-1] not in UNSAID:
            print(f"{', '.join(self.path)}: {time.perf_counter() - self._begun:.2f} s")
        if self.context is not None:
            self.context.call_on_fit_task_end(estimator=self.estimator)


def without_callbacks(state: Mapping[str, Any]) -> dict[str, Any]:
    """An estimator's attributes without those of callbacks.

    Examples
    --------
    >>> without_callbacks({"net": None, "_skl_callbacks": []})
    {'net': None}
    """
    return {name: value for name, value in state.items() if name not in (CALLBACKS, *OF_A_FIT)}


def callbacks_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an estimator's attributes that the user has set by ``set_callbacks``.

    Examples
    --------
    >>> callbacks_of({"net": None, "_skl_callbacks": []})
    {'_skl_callbacks': []}
    """
    return {name: value for name, value in state.items() if name == CALLBACKS}


try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9

    class ReportedFit:
        """An estimator whose fits nobody hears of."""

        @contextmanager
        def _reported(self, clock: Clock, most: int, X: Any, y: Any, sample_weight: Any) -> Iterator[Task]:
            yield Task(clock)

else:

    class ReportedFit(CallbackSupportMixin):  # type: ignore[no-redef]
        """An estimator that tells callbacks of its fits: ``set_callbacks`` is scikit-learn's."""

        @contextmanager
        def _reported(self, clock: Clock, most: int, X: Any, y: Any, sample_weight: Any) -> Iterator[Task]:
            """The time that a fit takes, as the task that it is, with at most so many parts.

            Not a decorator of ``fit``: its frames would stand between a warning and the line that it is said of.
            """
            given: dict[str, Any] = {"estimator": self, "X": X, "y": y}
            given["metadata"] = None if sample_weight is None else {"sample_weight": sample_weight}
            try:
                context = self._init_callback_context(max_subtasks=most)
                context.call_on_fit_task_begin(**given)
                yield Task(clock, (), self, context) if CALLBACKS in vars(self) else Task(clock)
                context.call_on_fit_task_end(**given, reconstruction_attributes={})  # nothing is missing: it is fitted
            finally:
                self._tear_down()

        @with_callbacks  # type: ignore[untyped-decorator, unused-ignore]
        def _tear_down(self) -> None:
            """What the decorator does after a method is all that there is to do."""
