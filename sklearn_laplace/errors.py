"""The package's errors and warnings.

Every message states the value given, what is needed and what to do. Each class derives from the built-in exception
that scikit-learn users expect, for example ``ValueError`` for an invalid argument.
"""

from __future__ import annotations

from typing import Any


class UnsupportedCombinationError(ValueError):
    """Options that cannot be combined, for example a structure and a curvature.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> LaplaceRegressor(curvature="hessian", hessian_structure="kron").fit(X, y)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.UnsupportedCombinationError: …
    """


class NonFiniteError(FloatingPointError):
    """A weight, an activation, a gradient or a sum over rows is NaN or infinite.

    Parameters
    ----------
    message : str
        Error message.
    inputs : Tensor of shape (k, …), optional
        Input rows that lead to the non-finite value, if they are known.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0)
    >>> model.fit(X, y).predict([[1e300]], return_std=True)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.NonFiniteError: …
    """

    def __init__(self, message: str, inputs: Any = None) -> None:
        super().__init__(message)
        self.inputs = inputs


class NonFiniteLossError(NonFiniteError):
    """The training loss became NaN or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> from skorch import NeuralNetRegressor
    >>> from torch import nn
    >>> net = NeuralNetRegressor(nn.Linear, module__out_features=1, max_epochs=30, lr=1e30, train_split=None, verbose=0)
    >>> LaplaceRegressor(net, prior_precision=1.0, sigma_noise=0.1).fit(X, y)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.NonFiniteLossError: …
    """


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix is not positive definite in floating point, even with the largest jitter allowed.

    Examples
    --------
    >>> import torch
    >>> from sklearn_laplace.laplace.linalg import cholesky
    >>> cholesky(-torch.eye(2))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.NotPositiveDefiniteError: …
    """


class MemoryBudgetError(MemoryError):
    """The computation would exceed ``memory_budget``, or ran out of memory.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> LaplaceRegressor(hessian_structure="full", memory_budget="1kB").fit(X, y)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.MemoryBudgetError: …
    """


class NotStorableError(ValueError):
    """The estimator cannot be stored in a file that is read without executing code.

    Examples
    --------
    >>> import torch
    >>> from sklearn_laplace import LaplaceRegressor, save
    >>> def made():
    ...     class Local(torch.nn.Linear):
    ...         def __init__(self):
    ...             super().__init__(1, 1)
    ...     return Local
    >>> model = LaplaceRegressor(made(), prior_precision=1.0, sigma_noise=0.1).fit([[0.0], [1.0]], [0.0, 1.0])
    >>> save(model, "model.safetensors")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.NotStorableError: …
    """


class StateError(ValueError):
    """A saved estimator is damaged, or refers to a class that this version cannot load.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from sklearn_laplace import load
    >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     path = pathlib.Path(folder, "model.safetensors")
    ...     _ = path.write_bytes(b"something else")
    ...     load(path)
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.StateError: …
    """


class JitterWarning(UserWarning):
    """A matrix could be factorised only after adding jitter, a small multiple of the identity.

    Examples
    --------
    >>> import warnings
    >>> import torch
    >>> from sklearn_laplace.laplace.linalg import cholesky
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", JitterWarning)
    ...     _ = cholesky(torch.ones(2, 2, dtype=torch.float64))
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.JitterWarning: …
    """


class ClippedWarning(UserWarning):
    """The curvature had negative eigenvalues, which were set to zero.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", ClippedWarning)
    ...     LaplaceRegressor(curvature="hessian", prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, y)
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.ClippedWarning: …
    """


class BoundWarning(UserWarning):
    """An optimised hyperparameter lies on a bound of its search interval.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", BoundWarning)
    ...     LaplaceRegressor(n_members=1, prior_precision="evidence", sigma_noise="evidence").fit(X, 1 + 0 * y)
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.BoundWarning: …
    """


class ModeWarning(UserWarning):
    """The trained weights are far from a mode of the posterior, and intervals are too narrow or cannot be checked.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", ModeWarning)
    ...     LaplaceRegressor(hidden_layer_sizes=(5,), prior_precision=1.0, sigma_noise=1e-5, random_state=0).fit(X, y)
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.ModeWarning: …
    """


class InterpolationWarning(UserWarning):
    """Intervals are too narrow: they contain too few left-out targets, or there is only one row.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = LaplaceRegressor(n_members=1, prior_precision=1.0, sigma_noise=0.1, random_state=0)
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", InterpolationWarning)
    ...     model.fit(X, np.random.default_rng(0).normal(size=20))
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.InterpolationWarning: …
    """


class WeakPriorWarning(UserWarning):
    """The prior is so weak that intervals are wider than those of a constant prediction.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", WeakPriorWarning)
    ...     LaplaceRegressor(prior_precision=1e-4, sigma_noise=0.1, random_state=0).fit(X, y)
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.WeakPriorWarning: …
    """


class TiedScoresWarning(UserWarning):
    """A search compares candidates that differ in their error bars by a score that does not depend on them.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> import torch
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skorch import NeuralNetRegressor
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> net = NeuralNetRegressor(torch.nn.Linear, module__in_features=1, module__out_features=1, verbose=0)
    >>> model = LaplaceRegressor(net, map_prior_precision=1.0, random_state=0)
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", TiedScoresWarning)
    ...     GridSearchCV(model, {"prior_precision": [0.1, 1.0]}, cv=2, error_score="raise").fit(X, X[:, 0])
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.TiedScoresWarning: …
    """


class TableWarning(UserWarning):
    """A column of text may be read differently from what was meant, or a value of X or y is hardly true.

    It is also issued if most values of a column are unknown categories, or if numbers are missing in a column without
    gaps in training.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.array([["1.5", 0.0], ["?", 1.0], ["2.5", 2.0]], dtype=object)
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", TableWarning)
    ...     LaplaceRegressor(random_state=0).fit(X, [0.0, 1.0, 2.0])
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.TableWarning: …
    """


class CutWarning(UserWarning):
    """Training was stopped early by ``max_time`` or Ctrl-C; the best state so far was kept.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> with warnings.catch_warnings():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", CutWarning)
    ...     _ = LaplaceRegressor(max_time=1e-3, random_state=0).fit(X, np.sin(X[:, 0]))
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.CutWarning: …
    """


class UncachedWarning(UserWarning):
    """The cache requested with ``memory`` cannot be used.

    Examples
    --------
    >>> import tempfile, warnings
    >>> import torch
    >>> from sklearn_laplace import LaplaceRegressor
    >>> def made():
    ...     class Local(torch.nn.Linear):
    ...         def __init__(self):
    ...             super().__init__(1, 1)
    ...     return Local
    >>> with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     warnings.simplefilter("error", UncachedWarning)
    ...     LaplaceRegressor(made(), memory=folder, prior_precision=1.0, random_state=0).fit([[0.0], [1.0]], [0.0, 1.0])
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.UncachedWarning: …
    """


class ExperimentalWarning(UserWarning):
    """The feature in use may change in any release, without a deprecation. It is issued once in a process.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ExperimentalWarning)
    ...     # here a fit on the workers of a dask cluster
    """
