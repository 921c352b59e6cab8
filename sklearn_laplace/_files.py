"""Estimators in files that execute nothing: :func:`save` and :func:`load`.

One file in the format of safetensors: its arrays are those of the estimator's description (``_persistence.py``), and
one more, "tree", whose bytes are the tree of names and numbers around them (metadata have a limit of length). One file,
since a tree without its arrays is worth nothing, and two get separated; safetensors, since its reader checks sizes and
offsets before it hands out anything, and does nothing else. Arrays are stored in C order, and those of data types that
the format has not (text, times, complex numbers) as bytes; what the tree says of their shapes and types is compared
with what the file has.

Names in the tree are looked up among the closed list of ``_state.py`` and what the reader is handed, and nowhere else.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import isclass, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ._autograd import ordinary_tensors
from ._persistence import Describer, Skeleton, name_of
from ._restoring import Reader, reading
from ._state import BARE, StoredEstimator, known
from ._values import file_path
from .classifier import LaplaceClassifier
from .errors import NotStorableError, StateError
from .regressor import LaplaceRegressor

FORMAT, VERSION, TREE = "sklearn_laplace", "1", "tree"
NATIVE = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
"""Data types that are stored as they are; all others as bytes."""
AGAIN = "Write it again with sklearn_laplace.save, or fit again."


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write an estimator into a file that can be read without executing anything.

    Parameters
    ----------
    estimator : LaplaceRegressor or LaplaceClassifier
        Fitted or not. What it has kept of its training rows is written, too (see ``forget``).
    path : str or path
        Replaced where it exists, and only once the new file is complete. The format is that of safetensors.

    Raises
    ------
    NotStorableError
        For what no file can hold by its name: lambdas, functions and classes inside of functions, objects and modules
        with a way of pickling of their own. The message says where it was found.
    TypeError
        For anything but one of the package's estimators.
    ImportError
        Without the package safetensors (``pip install sklearn-laplace[save]``).

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
    if not isinstance(estimator, StoredEstimator):
        raise TypeError(
            f"save was given a {type(estimator).__name__}; it writes a LaplaceRegressor or a LaplaceClassifier. Of a "
            "pipeline, save the last step, and keep the others in a format of their own."
        )
    safetensors = _safetensors()
    describer = Describer(_known(), BARE, _parts)
    root = describer(estimator, "")
    tree = {
        "nodes": describer.nodes,
        "root": root,
        "arrays": [[values.dtype.str, list(values.shape), _checksum(values)] for values in describer.arrays],
        "foreign": [_foreign_name(thing, where) for thing, where in describer.foreign],
    }
    text = json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()
    arrays = {str(place): _storable(values) for place, values in enumerate(describer.arrays)}
    arrays[TREE] = np.frombuffer(text, dtype=np.uint8)
    metadata = {"format": FORMAT, "version": VERSION, "checksum": str(_checksum(arrays[TREE]))}
    write_whole(file_path(path), safetensors.numpy.save(arrays, metadata))


@ordinary_tensors()
def load(path: str | os.PathLike[str], trusted: Iterable[Any] | Mapping[str, Any] = ()) -> Any:
    """Read an estimator that :func:`save` has written; nothing that the file names is imported or executed.

    Parameters
    ----------
    path : str or path
    trusted : iterable of classes and functions, or mapping of their full names to them
        Those of one's own that the estimator holds: the class of its module, of its skorch net, of its callbacks, a
        function for ``augment``. A mapping serves where one has moved, ``{"old_module.Net": Net}``.

    Returns
    -------
    LaplaceRegressor or LaplaceClassifier
        Equal to the one that was saved, to the bit; on the CPU where its device is missing.

    Raises
    ------
    StateError
        A ValueError, for a file that is none of safetensors, is cut off, was not written by :func:`save`, or by another
        version, names something that is neither known nor trusted, or whose arrays are not those that its tree needs.
    ImportError
        Without the package safetensors (``pip install sklearn-laplace[save]``).

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
    stored = _read(file_path(path), _safetensors())
    handed = _by_name(trusted)
    tree = stored.tree
    with reading(str(path)):
        foreign = [_trusted(name, handed, str(path)) for name in tree["foreign"]]
        found = Reader(tree["nodes"], stored.arrays, foreign, _known(), _whole)(tree["root"])
    if not isinstance(found, StoredEstimator):
        raise StateError(f"{path} holds a {type(found).__name__}, and an estimator is needed. {AGAIN}")
    return found


@dataclass(frozen=True)
class StoredFile:
    """What a file holds, once its arrays are those that its tree needs."""

    tree: dict[str, Any]
    arrays: list[np.ndarray]


def _safetensors() -> ModuleType:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "sklearn_laplace.save and load need the package safetensors, which is not installed. Install it by "
            "`pip install sklearn-laplace[save]`, or use pickle, joblib or skops.",
            name="safetensors",
        ) from error
    return safetensors


def _known() -> Mapping[str, Any]:
    return {**known(), **{name_of(kind): kind for kind in (LaplaceRegressor, LaplaceClassifier)}}


def _parts(value: Any) -> Any:
    """Parameters and fitted attributes of an estimator, of its previous ones and of its other members."""
    if not isinstance(value, StoredEstimator):
        return None
    parameters, fitted = value._split()
    return {"parameters": parameters, "fitted": fitted}


def _whole(kind: type, parts: Any) -> Any:
    if not issubclass(kind, StoredEstimator):
        raise StateError(f"the state names {kind.__name__} where an estimator is needed. {AGAIN}")
    unknown = sorted(set(parts["parameters"]) ^ set(kind._get_param_names()))
    if unknown:
        raise StateError(
            f"the {kind.__name__} in the file and that of this version of sklearn_laplace differ in the parameters "
            f"{unknown}. Read it with the version that wrote it, or fit again."
        )
    return kind._joined(parts["parameters"], parts["fitted"])


# ---------------------------------------------------------------------- names


def _foreign_name(thing: Any, where: str) -> str:
    """The full name of a class or a function that is handed in when the file is read.

    Raises
    ------
    NotStorableError
    """
    thing = thing.module if isinstance(thing, Skeleton) else thing
    is_name = isclass(thing) or isfunction(thing)
    if not is_name or "<" in thing.__qualname__:
        what = name_of(thing) if is_name else f"an object of the class {name_of(type(thing))}"
        raise NotStorableError(
            f"{what}, found in {where}, cannot be saved: a file without pickle holds arrays, numbers, text, torch "
            "modules and plain objects of named classes, and names of functions. Define it at the top of a file, leave "
            "it out (a skorch net: net.trim_for_prediction()), or use pickle."
        )
    return name_of(thing)


def _by_name(trusted: Iterable[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(trusted, Mapping):
        return dict(trusted)
    things = list(trusted) if isinstance(trusted, Iterable) and not isinstance(trusted, str) else [trusted]
    for thing in things:
        if not (isclass(thing) or isfunction(thing)):
            raise ValueError(
                f"trusted holds {thing!r}; give the classes and functions themselves, such as trusted=[MyModule]: "
                "names are not imported."
            )
    return {name_of(thing): thing for thing in things}


def _trusted(name: Any, handed: Mapping[str, Any], path: str) -> Any:
    if name not in handed:
        short = str(name).rpartition(".")[2]
        given = f"those handed in are {sorted(handed)}" if handed else "none were handed in"
        raise StateError(
            f"{path} needs {name}, which is none of the classes that sklearn_laplace knows; {given}. If you trust its "
            f"code, import it and hand it in: load(path, trusted=[{short}]), or trusted={{{name!r}: …}} where it has "
            "moved."
        )
    return handed[name]


# ---------------------------------------------------------------------- files


def _checksum(values: np.ndarray) -> int:
    """Of an array in C order: what says that a file is damaged, and nothing about who has written it."""
    return zlib.crc32(values.tobytes())


def _is_native(dtype: np.dtype[Any]) -> bool:
    return dtype.str[1:] in NATIVE and dtype.isnative


def _storable(values: np.ndarray) -> np.ndarray:
    """An array of a data type that safetensors has, of the same bytes."""
    return values if _is_native(values.dtype) else np.frombuffer(values.tobytes(), dtype=np.uint8)


def _array(found: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """The array that was stored."""
    return found if _is_native(dtype) else np.frombuffer(found.tobytes(), dtype=dtype).reshape(shape).copy()


def write_whole(path: Path, content: bytes) -> None:
    """Beside the path first, and then in its place: a file that is there stays until the new one is complete."""
    path = path.resolve()
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            beside.chmod(path.stat().st_mode)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _read(path: Path, safetensors: ModuleType) -> StoredFile:
    """The tree and the arrays of a file.

    Raises
    ------
    StateError
    """
    size = path.stat().st_size
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tree = _tree(path, file)
            return StoredFile(tree, _arrays(path, file, tree["arrays"]))
    except safetensors.SafetensorError as error:
        raise StateError(
            f"{path} cannot be read as a file of safetensors ({error}; {size} bytes): it is of another format, or it "
            f"has been cut off. Copy it again. {AGAIN}"
        ) from error


def _tree(path: Path, file: Any) -> dict[str, Any]:
    metadata = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise StateError(
            f"{path} was not written by sklearn_laplace.save: its metadata say format={metadata.get('format')!r}, "
            f"needed {FORMAT!r}. {AGAIN}"
        )
    if metadata.get("version") != VERSION:
        raise StateError(
            f"{path} is of version {metadata.get('version')!r} of the format, this version of sklearn_laplace reads "
            f"{VERSION!r}. Read it with the version that wrote it, or fit again."
        )
    if TREE not in file.keys():  # noqa: SIM118  not a mapping
        raise StateError(f"{path} has no array {TREE!r}, which says what the others are. Copy it again. {AGAIN}")
    with reading(str(path)):
        text = file.get_tensor(TREE)
        if str(_checksum(text)) != metadata.get("checksum"):
            raise StateError(f"the tree of {path} is not what was written: its checksum differs. Copy it again.")
        tree: dict[str, Any] = json.loads(text.tobytes())
        if missing := {"nodes", "root", "arrays", "foreign"} - set(tree):
            raise StateError(f"its tree lacks {sorted(missing)}. {AGAIN}")
    return tree


def _arrays(path: Path, file: Any, needed: list[Any]) -> list[np.ndarray]:
    names, found = {str(place) for place in range(len(needed))}, set(file.keys()) - {TREE}
    if names != found:
        raise StateError(
            f"{path} holds {len(found)} arrays beside its tree, which needs {len(needed)}: missing are "
            f"{_few(names - found)}, not needed {_few(found - names)}. Copy it again. {AGAIN}"
        )
    arrays = []
    for place, (dtype_name, sizes, checksum) in enumerate(needed):
        stored, dtype, shape = file.get_tensor(str(place)), _dtype(path, dtype_name), tuple(sizes)
        n_bytes = math.prod(shape) * dtype.itemsize
        expected = (dtype, shape) if _is_native(dtype) else (np.dtype(np.uint8), (n_bytes,))
        if (stored.dtype, stored.shape) != expected:
            raise StateError(
                f"array {place} of {path} has the data type {stored.dtype} and the shape {stored.shape}, and its tree "
                f"needs {expected[0]} and {expected[1]}. Copy it again. {AGAIN}"
            )
        if _checksum(stored) != checksum:
            raise StateError(f"array {place} of {path} is not what was written: its checksum differs. Copy it again.")
        arrays.append(_array(stored, dtype, shape))
    return arrays


def _dtype(path: Path, name: Any) -> np.dtype[Any]:
    with reading(str(path)):
        found = np.dtype(name)
        if found.hasobject or found.names:
            raise StateError(f"it names the data type {name!r}, which holds more than numbers and text. {AGAIN}")
    return found


def _few(names: Iterable[str], most: int = 5) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (", …" if len(ordered) > most else "") if ordered else "none"
