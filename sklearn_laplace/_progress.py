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
callback returns is not looked at: a fit does not stop half way.

Without callbacks all of this is :data:`SILENT`, which does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

CALLBACKS = "_skl_callbacks"
"""Where scikit-learn keeps what ``set_callbacks`` was given."""
OF_A_FIT = ("_callback_fit_ctx", "_skl_callbacks_to_teardown", "_parent_callback_ctx")
"""What else it keeps on an estimator, while it is fitted."""


class Task:
    """A part of a fit that nobody hears of. As a context manager it is the time that the part takes.

    Examples
    --------
    >>> with SILENT.subtask("training", 2) as task, task.subtask("mode"):
    ...     pass
    """

    def subtask(self, name: str, most: int | None = 0) -> Task:
        """A part of this one, which begins with ``with``.

        Parameters
        ----------
        name : str
        most : int or None
            Subtasks that it may have itself; fewer is fine. None: not known.
        """
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None


SILENT = Task()


@dataclass(frozen=True)
class ReportedTask(Task):
    """A part of a fit that callbacks hear of.

    Parameters
    ----------
    estimator : estimator
        The one that is fitted.
    context : sklearn.callback.CallbackContext
    """

    estimator: Any
    context: Any

    def subtask(self, name: str, most: int | None = 0) -> Task:
        """See the base."""
        return ReportedTask(self.estimator, self.context.subcontext(task_name=name, max_subtasks=most))

    def __enter__(self) -> Self:
        self.context.call_on_fit_task_begin(estimator=self.estimator)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
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
        def _reported(self, most: int, X: Any, y: Any, sample_weight: Any) -> Iterator[Task]:
            yield SILENT

else:

    class ReportedFit(CallbackSupportMixin):  # type: ignore[no-redef]
        """An estimator that tells callbacks of its fits: ``set_callbacks`` is scikit-learn's."""

        @contextmanager
        def _reported(self, most: int, X: Any, y: Any, sample_weight: Any) -> Iterator[Task]:
            """The time that a fit takes, as the task that it is, with at most so many parts.

            Not a decorator of ``fit``: its frames would stand between a warning and the line that it is said of.
            """
            given: dict[str, Any] = {"estimator": self, "X": X, "y": y}
            given["metadata"] = None if sample_weight is None else {"sample_weight": sample_weight}
            try:
                context = self._init_callback_context(max_subtasks=most)
                context.call_on_fit_task_begin(**given)
                yield ReportedTask(self, context) if CALLBACKS in vars(self) else SILENT
                context.call_on_fit_task_end(**given, reconstruction_attributes={})  # nothing is missing: it is fitted
            finally:
                self._tear_down()

        @with_callbacks  # type: ignore[untyped-decorator, unused-ignore]
        def _tear_down(self) -> None:
            """What the decorator does after a method is all that there is to do."""
