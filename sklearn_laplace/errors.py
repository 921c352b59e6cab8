"""The package's errors and warnings.

Every error says what was given, what is needed and what to do. Each class also derives from the built-in
class that scikit-learn users expect (``ValueError`` for a wrong argument, and so on).
"""

from __future__ import annotations

from typing import Any


class UnsupportedCombinationError(ValueError):
    """Two options that exclude each other, for example a structure and a curvature."""


class NonFiniteError(FloatingPointError):
    """A weight, an activation, a gradient or a sum over rows is NaN or infinite.

    Parameters
    ----------
    message : str
    inputs : Tensor of shape (k, …), optional
        The rows in which it is.
    """

    def __init__(self, message: str, inputs: Any = None) -> None:
        super().__init__(message)
        self.inputs = inputs


class NonFiniteLossError(NonFiniteError):
    """The training loss became NaN or infinite."""


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix stayed indefinite in floating point after the largest jitter allowed."""


class MemoryBudgetError(MemoryError):
    """A structure that would not fit in memory, refused before its allocation."""


class NotStorableError(ValueError):
    """Something that an estimator holds cannot be written without executing code when it is read."""


class StateError(ValueError):
    """A saved estimator is damaged, or names something that is not known here."""


class JitterWarning(UserWarning):
    """A factorisation succeeded only after a small multiple of the identity was added."""


class ClippedWarning(UserWarning):
    """A curvature had negative eigenvalues, which were set to zero."""


class BoundWarning(UserWarning):
    """An optimised hyperparameter sits on a bound of its search interval."""


class ModeWarning(UserWarning):
    """The trained weights are not close to a mode of the posterior."""


class PinnedWarning(UserWarning):
    """A given prior leaves the data next to no say: constant predictions, or error bars of the prior alone."""


class InterpolationWarning(UserWarning):
    """The net goes through all targets, so that the noise chosen from what is left over cannot be trusted."""


class WeakPriorWarning(UserWarning):
    """The prior is so weak that predictions away from the rows are far wider than the spread of the targets."""


class IncompleteWarning(UserWarning):
    """Shares of the columns in a variance do not add up to it."""


class HeldOutRowsWarning(UserWarning):
    """The given net's own validation split keeps rows out of the training."""


class UncachedWarning(UserWarning):
    """A cache was asked for and cannot be used."""
