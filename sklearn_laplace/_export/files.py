"""Save estimators to files that execute no code when they are read: :func:`save` and :func:`load`.

A safetensors file (``_export/container.py``) holds a tree that describes the estimator (``_storage/describe.py``), and
arrays in C order. Data types that safetensors lacks are stored as bytes. Names in the tree are looked up in the closed
list of ``_storage/registry.py`` and in ``trusted``. Checksums detect damage; an HMAC also detects tampering.
"""

import hmac
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Iterable, Mapping
from inspect import isclass, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from .._estimator.base import LaplaceEstimator
from .._estimator.classifier import LaplaceClassifier
from .._estimator.regressor import LaplaceRegressor
from .._files import write_whole
from .._storage.describe import Describer, name_of
from .._storage.registry import known
from .._storage.restore import OF_TREE, Reader, parsed, reading
from .._storage.stored import STATE_FORMAT, check_format
from .._table.reading import first_of
from .._validation.arguments import explained, file_path
from ..errors import StateError
from ..laplace.torch_state import ordinary_tensors
from .container import AGAIN, are_sizes, bytes_of, read_container

FORMAT, VERSION, TREE = "sklearn_laplace", str(STATE_FORMAT), "tree"
NATIVE = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
"""Data types of safetensors; all others are stored as bytes."""
WRITTEN = (LaplaceRegressor, LaplaceClassifier)
PIPELINE = """save was given a Pipeline; it writes a LaplaceRegressor or a LaplaceClassifier alone. Write the \
other steps with skops, and put both together:
    skops.io.dump(pipeline[:-1], "steps.skops")
    sklearn_laplace.save(pipeline[-1], "net.safetensors")
    steps = skops.io.load("steps.skops", trusted=["numpy.dtype"])
    pipeline = make_pipeline(steps, sklearn_laplace.load("net.safetensors"))"""
"""Advice for a pipeline whose last step can be saved."""
LEAST_KEY = 16
"""Minimum number of bytes of a key for the HMAC."""
MAC = "hmac-sha256"
DTYPE = re.compile(r"[<>|=]?[biufcmMSU][1-9]\d{0,8}(\[\d{0,9}[a-zA-Z]{1,2}\])?")
"""Pattern for the names of data types without Python objects."""


@explained
def save(estimator: Any, path: str | os.PathLike[str], *, key: bytes | None = None) -> None:
    """Write an estimator to a file that can be read without executing code.

    Parameters
    ----------
    estimator : LaplaceRegressor or LaplaceClassifier
        Fitted or not. The training rows that it keeps are written as well (see ``forget``).
    path : str or path
        An existing file is replaced after the new one is complete. The format is safetensors.
    key : bytes, optional
        Secret of at least 16 bytes, such as ``secrets.token_bytes(32)``. The file then holds an HMAC-SHA256 of its
        content, which :func:`load` verifies with the same key. The content is not encrypted.

    Raises
    ------
    NotStorableError
        If the estimator holds a lambda, local class, method, partial, hook, or an object that defines its own
        pickling. The message names the attribute. See :doc:`/guide/persistence`.
    TypeError
        If the estimator is not a LaplaceRegressor or a LaplaceClassifier. For a pipeline, the message shows what to do.
    ValueError, FileNotFoundError
        If ``key`` is invalid, ``path`` has the suffix of another file format, or its folder does not exist.
    ImportError
        If the package safetensors is not installed (``pip install "sklearn-laplace[save]"``).

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import make_regression
    >>> from sklearn_laplace import LaplaceRegressor, load, save
    >>> X, y = make_regression(30, 2, noise=1.0, random_state=0)
    >>> model = LaplaceRegressor(hidden_layer_sizes=(5,), n_members=1, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/model.safetensors")
    ...     found = load(f"{folder}/model.safetensors")
    >>> bool((found.predict_std(X) == model.predict_std(X)).all())
    True
    """
    if isinstance(estimator, Pipeline) and isinstance(estimator.steps[-1][1], WRITTEN):
        raise TypeError(PIPELINE)
    if not isinstance(estimator, WRITTEN):
        raise TypeError(
            f"save was given a {type(estimator).__name__}; expected a LaplaceRegressor or a LaplaceClassifier. Of a "
            "search, save the best_estimator_."
        )
    target = file_path(path, ".safetensors")
    safetensors = _safetensors()
    secret = _secret(key)
    describer = Describer({thing: tag for tag, thing in _known().items()})
    described = describer.tree(estimator)
    headers = [[values.dtype.str, list(values.shape), zlib.crc32(bytes_of(values))] for values in describer.arrays]
    tree = described | {"arrays": headers, "own": [name_of(thing) for thing in describer.own]}
    text = json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()
    arrays = {str(place): _storable(values) for place, values in enumerate(describer.arrays)}
    arrays[TREE] = np.frombuffer(text, dtype=np.uint8)
    metadata = {"format": FORMAT, "version": VERSION, "checksum": str(zlib.crc32(text))}
    if secret is not None:
        metadata[MAC] = _mac(secret, arrays)
    write_whole(target, safetensors.numpy.save(arrays, metadata))


@ordinary_tensors()
@explained
def load(
    path: str | os.PathLike[str], trusted: Iterable[Any] | Mapping[str, Any] = (), *, key: bytes | None = None
) -> Any:
    """Read an estimator from a file written by :func:`save`; the file cannot import or execute anything.

    Parameters
    ----------
    path : str or path
    trusted : iterable of classes and functions, or mapping of their full names to them
        Your own classes and functions in the estimator, such as the class of its module.
        For a class that moved to another Python module, use a mapping: ``{"old_module.Net": Net}``.
    key : bytes, optional
        Key of the HMAC. Files without an HMAC of this key are refused. Without ``key``, tampering is not detected.

    Returns
    -------
    LaplaceRegressor or LaplaceClassifier
        Bit-identical to the saved estimator, but on the CPU if its device is not available. ``memory`` is not restored
        nor, for a skorch net, are ``compile``, ``torch_load_kwargs``, optimiser, and options of callbacks and workers.

    Raises
    ------
    StateError
        If the file is damaged, fails the check of its HMAC, has another format or version, or names a class that is
        neither known nor trusted. ``StateError`` is a ValueError.
    ValueError, FileNotFoundError
        If ``key`` is invalid, ``trusted`` has other items than classes and functions, or the file does not exist.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from sklearn_laplace import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.safetensors")
    ...     _ = path.write_bytes(b"something else")
    ...     load(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.StateError: ...model.safetensors cannot be read as a file of safetensors...
    """
    tree, arrays = _read(file_path(path), _secret(key))
    things = _by_name(trusted)
    trusted_objects = [_trusted(name, things, str(path)) for name in tree["own"]]
    with reading(str(path)):
        model = Reader(tree, arrays, trusted_objects, _known()).value()
        if not isinstance(model, LaplaceEstimator):
            raise StateError(f"{path} holds a {type(model).__name__}, and an estimator is needed.")
    return model


def _safetensors() -> ModuleType:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "sklearn_laplace.save needs the package safetensors, which is not installed. Install it by "
            '`pip install "sklearn-laplace[save]"`, or use pickle, joblib or skops.',
            name="safetensors",
        ) from error
    return safetensors


def _known() -> dict[str, Any]:
    return {**known(), "LaplaceRegressor": LaplaceRegressor, "LaplaceClassifier": LaplaceClassifier}


def _by_name(trusted: Iterable[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(trusted, Mapping):
        return dict(trusted)
    things = list(trusted) if isinstance(trusted, Iterable) and not isinstance(trusted, str) else [trusted]
    for thing in things:
        if not (isclass(thing) or isfunction(thing)):
            raise ValueError(
                f"trusted holds {thing!r}; expected classes and functions, such as trusted=[MyModule]: names are not "
                "imported."
            )
    return {name_of(thing): thing for thing in things}


def _trusted(name: Any, things: Mapping[str, Any], path: str) -> Any:
    if not isinstance(name, str) or name not in things:
        short = str(name).rpartition(".")[2]
        listed = f"trusted has {sorted(things)}" if things else "trusted is empty"
        raise StateError(
            f"{path} needs {name}, which is not a class of sklearn_laplace; {listed}. If you trust its code, import "
            f"and pass it: load(path, trusted=[{short}]), or trusted={{{name!r}: …}} if it has moved."
        )
    return things[name]


def _is_native(dtype: np.dtype[Any]) -> bool:
    return dtype.str[1:] in NATIVE and dtype.isnative


def _storable(values: np.ndarray) -> np.ndarray:
    """The array, or its bytes if safetensors lacks its data type."""
    return values if _is_native(values.dtype) else np.frombuffer(values.tobytes(), dtype=np.uint8)


def _secret(key: Any) -> bytes | None:
    if key is None or (isinstance(key, bytes) and len(key) >= LEAST_KEY):
        return key
    actual = f"{len(key)} bytes" if isinstance(key, bytes) else f"a {type(key).__name__}"
    raise ValueError(f"key is {actual}; expected None or at least {LEAST_KEY} bytes, such as secrets.token_bytes(32).")


def _mac(key: bytes, arrays: Mapping[str, np.ndarray]) -> str:
    """HMAC-SHA256 over the names, types, shapes and bytes of all arrays, including the tree."""
    mac = hmac.new(key, f"{FORMAT} {VERSION}".encode(), "sha256")
    for name in sorted(arrays):
        mac.update(f"\n{name} {arrays[name].dtype.str} {arrays[name].shape} ".encode())
        mac.update(bytes_of(arrays[name]))
    return mac.hexdigest()


def _read(path: Path, key: bytes | None) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The tree and the arrays of a file. The file is read once, so the verified bytes are the ones used."""
    if path.exists() and not path.is_file():
        raise StateError(f"{path} is not a regular file. Pass the path of a file written by sklearn_laplace.save.")
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist. Pass the path of a file written by sklearn_laplace.save; the current folder is "
            f"{Path.cwd()}."
        )
    arrays, metadata = read_container(path)
    if key is not None:
        _check_mac(path, arrays, metadata.get(MAC), key)
    tree = _tree(path, arrays.pop(TREE, None), metadata)
    with reading(str(path)):
        return tree, _arrays(path, arrays, tree["arrays"])


def _check_mac(path: Path, arrays: Mapping[str, np.ndarray], stored: Any, key: bytes) -> None:
    """Verify the HMAC before the tree is parsed."""
    if stored is None:
        raise StateError(f"{path} was saved without a key, and load was given one. Save it with this key, or omit key.")
    if not hmac.compare_digest(str(stored).encode(), _mac(key, arrays).encode()):
        raise StateError(
            f"{path} was changed after it was saved, or saved with another key. Copy it again from its source, or pass "
            "the right key."
        )


def _tree(path: Path, content: np.ndarray | None, metadata: Mapping[str, Any]) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise StateError(
            f"{path} was not written by sklearn_laplace.save: its metadata have format={metadata.get('format')!r:.80}, "
            f"expected {FORMAT!r}. {AGAIN}"
        )
    check_format(str(path), metadata.get("version"))
    if content is None:
        raise StateError(f"{path} has no array {TREE!r}, which describes the others. Copy it again. {AGAIN}")
    with reading(str(path)):
        if str(zlib.crc32(bytes_of(content))) != metadata.get("checksum"):
            raise StateError(f"the tree of {path} was changed: its checksum differs. Copy the file again.")
        tree = parsed(content.tobytes(), OF_TREE | {"arrays", "own"})
        if not isinstance(tree["own"], list):
            raise StateError("its tree does not list the user's own classes.")
    return tree


def _arrays(path: Path, arrays: Mapping[str, np.ndarray], needed: Any) -> list[np.ndarray]:
    """The arrays in their own data types, compared with the list in the tree."""
    if not isinstance(needed, list) or not all(isinstance(header, list) and len(header) == 3 for header in needed):
        raise StateError(f"the tree of {path} does not list data type, shape and checksum of its arrays.")
    names = {str(place) for place in range(len(needed))}
    if names != set(arrays):
        missing, extra = sorted(names - set(arrays)), sorted(set(arrays) - names)
        raise StateError(
            f"{path} has {len(arrays)} arrays and its tree lists {len(needed)}: missing are "
            f"{first_of(missing) or 'none'}, not listed {first_of(extra) or 'none'}. Copy it again."
        )
    return [_array(f"array {place} of {path}", arrays[str(place)], *header) for place, header in enumerate(needed)]


def _array(name: str, stored: np.ndarray, dtype_name: Any, sizes: Any, checksum: Any) -> np.ndarray:
    """The array that was saved. Text with invalid character codes is refused here, because numpy would fail later."""
    if not isinstance(dtype_name, str) or not DTYPE.fullmatch(dtype_name):
        raise StateError(f"{name} names the data type {dtype_name!r:.80}, which is not a type of numbers or text.")
    if not are_sizes(sizes):
        raise StateError(f"{name} has an impossible shape.")
    dtype, shape = np.dtype(dtype_name), tuple(sizes)
    native = _is_native(dtype)
    expected = (dtype, shape) if native else (np.dtype(np.uint8), (math.prod(shape) * dtype.itemsize,))
    if (stored.dtype, stored.shape) != expected:
        raise StateError(
            f"{name} has the data type {stored.dtype} and the shape {stored.shape}, and its tree needs {expected[0]} "
            f"and {expected[1]}. Copy it again."
        )
    if zlib.crc32(bytes_of(stored)) != checksum:
        raise StateError(f"{name} was changed: its checksum differs. Copy the file again.")
    if dtype.kind == "U" and (stored.view(f"{dtype.str[0]}u4") > sys.maxunicode).any():
        raise StateError(f"{name} holds text with invalid character codes.")
    return stored if native else stored.view(dtype).reshape(shape)
