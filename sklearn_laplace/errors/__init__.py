"""The package's errors and warnings.

Every message states the value given, what is needed and what to do. Each class derives from the built-in exception
that scikit-learn users expect, for example ``ValueError`` for an invalid argument.
"""

from typing import Any


class UnsupportedCombinationError(ValueError):
    """Options that cannot be combined, for example a structure and a curvature.

    Use one of the values that the message lists.
    """


class NonFiniteError(FloatingPointError):
    """A weight, an activation, a gradient or a sum over rows is NaN or infinite.

    Look for extreme values in the rows that the message names; ``inputs`` holds these rows if they are known.

    Parameters
    ----------
    message : str
        Error message.
    inputs : Tensor of shape (k, …), optional
        Input rows that lead to the non-finite value, if they are known.
    """

    def __init__(self, message: str, inputs: Any = None) -> None:
        super().__init__(message)
        self.inputs = inputs


class NonFiniteLossError(NonFiniteError):
    """The training loss became NaN or infinite.

    Use a smaller learning rate, scale the inputs, or look for extreme values in X and y.
    """


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix is not positive definite in floating point, even with the largest allowed jitter.

    Use a larger prior precision.
    """


class MemoryBudgetError(MemoryError):
    """The computation would exceed ``memory_budget``, or ran out of memory.

    Use a larger budget, a cheaper structure, or the last layer only, as the message advises.
    """


class NotStorableError(ValueError):
    """The estimator cannot be stored in a file that is read without executing code.

    Define the classes of the net in an importable file.
    """


class StateError(ValueError):
    """A saved estimator is damaged, or refers to a class that this version cannot load.

    Save the estimator again with the version that wrote it, or follow the message.
    """


class JitterWarning(UserWarning):
    """A matrix could be factorised only after adding jitter, a small multiple of the identity.

    A larger prior precision avoids this warning.
    """


class ClippedWarning(UserWarning):
    """The curvature had negative eigenvalues, which were set to zero.

    Use ``curvature="ggn"``, or train to a better mode.
    """


class BoundWarning(UserWarning):
    """An optimised hyperparameter lies on a bound of its search interval.

    Look for targets that are constant, free of noise, or unrelated to the inputs, and for copies of rows. Otherwise set
    the hyperparameter yourself.
    """


class ModeWarning(UserWarning):
    """The trained weights are far from a mode of the posterior, and intervals are too narrow or cannot be checked.

    Train longer, or use a larger ``prior_precision`` or, if it was given, a larger ``sigma_noise``.
    """


class InterpolationWarning(UserWarning):
    """Intervals contain too few targets in a leave-one-out check, or too few rows determine the noise level.

    Use ``"auto"`` for ``prior_precision`` and ``sigma_noise``, and look for copies of rows.
    """


class WeakPriorWarning(UserWarning):
    """The prior is so weak that intervals are wider than those of a constant prediction.

    Use a larger ``prior_precision``, or ``"auto"``.
    """


class TiedScoresWarning(UserWarning):
    """The score of a search ignores error bars, although the candidates differ only in their error bars.

    Use ``scoring=sklearn_laplace.metrics.neg_nlpd``.
    """


class TableWarning(UserWarning):
    """A text column may not be read as intended, or a value of X or y is implausible.

    It is also issued for a column with mostly unknown categories, and for missing numbers in a column that was complete
    in training. Convert or omit the column as the message shows.
    """


class CutWarning(UserWarning):
    """Training was stopped early by ``max_time`` or Ctrl-C; the best state so far was kept.

    Allow more time.
    """


class UncachedWarning(UserWarning):
    """The cache requested with ``memory`` cannot be used.

    Define the classes of the net in an importable file, or use a writable folder.
    """


class ExperimentalWarning(UserWarning):
    """The feature in use may change in any release, without a deprecation.

    The warning is issued once per feature and process. Silence it with ``warnings.simplefilter("ignore",
    ExperimentalWarning)``.
    """
