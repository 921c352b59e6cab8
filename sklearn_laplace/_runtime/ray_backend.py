"""joblib's backend "ray" with one transfer of each table per computation: :func:`register_ray`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import joblib

SHARED_ELEMENTS = 2**14
"""Minimum number of elements of an array or a table that goes through Ray's object store."""


def register_ray() -> None:
    """Register joblib's backend "ray", so that members, folds and searches run on a Ray cluster.

    ``ray.util.joblib.register_ray`` sends the table with each task under the current versions of joblib. With this
    function, each array or table of a computation is stored once in Ray's object store. The workers of a machine then
    read it from shared memory, without a copy.

    Raises
    ------
    ImportError
        If the package ray is not installed (``pip install "sklearn-laplace[ray]"``).

    Notes
    -----
    Connect to a cluster with ``ray.init(address="auto")`` before the computation; otherwise a local one is started.
    The results are those of a serial computation to the bit.

    Examples
    --------
    >>> from sklearn_laplace import register_ray
    >>> register_ray()  # doctest: +SKIP
    >>> with joblib.parallel_config("ray", n_jobs=4):  # doctest: +SKIP
    ...     scores = cross_val_score(model, X, y)
    """
    try:
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError as error:
        raise ImportError(
            "sklearn_laplace.register_ray needs the package ray, which is not installed. Install it with `pip install "
            '"sklearn-laplace[ray]"`.'
        ) from error
    joblib.register_parallel_backend("ray", _sharing(RayBackend))


def _sharing(base: type) -> type:
    """Class of the backend, which is defined when ray is needed."""
    import ray

    class SharingRayBackend(base):
        """Ray's backend, with large arguments in the object store."""

        def configure(self, *args: Any, **kwargs: Any) -> int:
            self.stored: dict[int, tuple[Any, Any]] = {}
            workers: int = super().configure(*args, **kwargs)
            return workers

        def submit(self, func: Any, callback: Callable[..., Any] | None = None) -> Any:
            func.items = [
                (call, [self._placed(arg) for arg in args], {name: self._placed(arg) for name, arg in named.items()})
                for call, args, named in func.items
            ]
            return super().submit(_FromStore(func, ray.get, ray.ObjectRef), callback)

        def terminate(self) -> None:
            self.stored = {}
            super().terminate()

        def _placed(self, value: Any) -> Any:
            """Reference to a large argument; other arguments unchanged."""
            shape = getattr(value, "shape", None)
            if not isinstance(shape, tuple) or math.prod(shape) < SHARED_ELEMENTS:
                return value
            if id(value) not in self.stored:  # the value is kept, so that its id is not used again
                self.stored[id(value)] = value, ray.put(value)
            return self.stored[id(value)][1]

    return SharingRayBackend


class _FromStore:
    """Batch of calls that fetches its stored arguments (references of class ``kind``) by ``get`` before it runs."""

    def __init__(self, batch: Any, get: Callable[[Any], Any], kind: type) -> None:
        self.batch, self.get, self.kind = batch, get, kind

    def __call__(self) -> Any:
        self.batch.items = [
            (call, [self._fetched(arg) for arg in args], {name: self._fetched(arg) for name, arg in named.items()})
            for call, args, named in self.batch.items
        ]
        return self.batch()

    def _fetched(self, value: Any) -> Any:
        return self.get(value) if isinstance(value, self.kind) else value
