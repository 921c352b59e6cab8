"""A fitted estimator's state as numpy arrays and plain containers: what is pickled in place of tensors.

Why not tensors: they pickle as bytes that remember their device, so that a model of a GPU does not open without one,
and that joblib can neither compress nor map into memory. Here every tensor becomes an array, every module a copy of
itself with gaps where its tensors were; what is shared stays shared, and what can be computed again (cached properties)
stays behind. Arrays that come back memory-mapped are used where they are, without a copy; all others answer to the bit.

The state begins with the names of the classes that it needs. They are looked up before anything else is opened, so that
a model that is opened where its net's class is not known says which class that is.
"""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import isclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PACKAGE = __name__.partition(".")[0]
ALWAYS_THERE = {PACKAGE, "torch", "skorch", "builtins", "__main__"}
"""Packages whose classes are not looked up: a class of ``__main__`` may travel with the pickle."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as an array, with what an array does not say.

    Parameters
    ----------
    array : ndarray
    dtype : torch.dtype
    device : str
    requires_grad : bool or None
        None for a tensor that is not a module's parameter.
    """

    array: np.ndarray
    dtype: torch.dtype
    device: str
    requires_grad: bool | None

    @classmethod
    def of(cls, tensor: Tensor) -> StoredTensor:
        """A copy in the memory of the host, in the same order of axes: another order rounds in another way."""
        values = tensor.detach().cpu()
        if values.dtype == torch.bfloat16:  # numpy has none
            values = values.float()
        grad = tensor.requires_grad if isinstance(tensor, nn.Parameter) else None
        return cls(values.numpy().copy(order="K"), tensor.dtype, str(tensor.device), grad)

    def tensor(self) -> Tensor:
        """On its own device where there is one, else on the CPU.

        In torch's own memory, whose alignment decides how sums round; memory-mapped arrays are used where they are.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            found = torch.from_numpy(self.array)
        if not isinstance(self.array, np.memmap):
            found = found.clone()
        found = found.to(present_device(self.device), self.dtype)
        return found if self.requires_grad is None else nn.Parameter(found, requires_grad=self.requires_grad)


@dataclass(frozen=True)
class StoredModule:
    """A module whose tensors are the given objects.

    Parameters
    ----------
    skeleton : nn.Module
        With a :class:`StoredTensor` wherever it held a parameter or a buffer.
    tensors : tuple of StoredTensor
        The same objects once more, so that they can be found.
    """

    skeleton: nn.Module
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True)
class StoredObject:
    """One of the package's own data classes, as its class and fields."""

    kind: type
    values: dict[str, Any]


@dataclass(frozen=True)
class StoredDevice:
    """A device by its name."""

    name: str


@dataclass(frozen=True)
class Requirements:
    """Classes that have to be importable where the state is opened; looked up while it is opened.

    Parameters
    ----------
    owner : str
        Whose state it is, for the message.
    classes : tuple of (str, str)
        Module and qualified name of each.
    """

    owner: str
    classes: tuple[tuple[str, str], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _look_up, (self.owner, self.classes)


def _look_up(owner: str, classes: Sequence[tuple[str, str]]) -> Requirements:
    """The requirements, if they are met.

    Raises
    ------
    ImportError
    """
    for module, name in classes:
        try:
            attrgetter(name)(importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"this {owner} was saved with a net that needs the class {module}.{name}, which cannot be imported "
                f"here ({error}). Put the file that defines it on the path, under the same name, and open it again.",
                name=module,
            ) from error
    return Requirements(owner, tuple(classes))


def requirements(owner: str, nets: Iterable[Any]) -> Requirements:
    """The classes behind nets that are not the package's own, torch's or skorch's.

    Parameters
    ----------
    owner : str
    nets : iterable of modules, module classes or anything else
    """
    found = set()
    for net in nets:
        modules = net.modules() if isinstance(net, nn.Module) else [net] if isclass(net) else [type(net)]
        found |= {module if isclass(module) else type(module) for module in modules}
    away = ALWAYS_THERE | _travelling()
    names = {(kind.__module__, kind.__qualname__) for kind in found if kind.__module__.partition(".")[0] not in away}
    return Requirements(owner, tuple(sorted(pair for pair in names if "<locals>" not in pair[1])))


def _travelling() -> set[str]:
    """Packages that cloudpickle was told to send along."""
    picklers = (sys.modules.get(name) for name in ("cloudpickle", "joblib.externals.cloudpickle"))
    return {name.partition(".")[0] for p in picklers if p for name in p.list_registry_pickle_by_value()}


def present_device(name: str) -> torch.device:
    """The device of this name, or the CPU where there is no such device."""
    device = torch.device(name)
    return device if device.type == "cpu" or torch.cuda.is_available() else torch.device("cpu")


def pack(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A structure of tensors as one of arrays.

    Parameters
    ----------
    value : anything
        Containers, modules and the package's data classes are looked into; everything else is kept.
    memo : dict, optional
        What has been packed already, by identity.

    Examples
    --------
    >>> import torch
    >>> stored = pack({"a": (torch.ones(2), "b")})
    >>> type(stored["a"][0].array).__name__, stored["a"][1]
    ('ndarray', 'b')
    >>> unpack(stored)
    {'a': (tensor([1., 1.]), 'b')}
    """
    memo = {} if memo is None else memo
    if id(value) not in memo:
        memo[id(value)] = (_pack(value, memo), value)  # the value too, or its identity could be given away
    return memo[id(value)][0]


def _pack(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return StoredTensor.of(value)
    if isinstance(value, torch.device):
        return StoredDevice(str(value))
    if isinstance(value, nn.Module):
        own = {id(t): pack(t, memo) for t in (*value.parameters(), *value.buffers())}
        return StoredModule(copy.deepcopy(value, dict(own)), tuple(own.values()))
    if is_dataclass(value) and not isclass(value) and type(value).__module__.partition(".")[0] == PACKAGE:
        values = {field.name: pack(getattr(value, field.name), memo) for field in fields(value)}
        return StoredObject(type(value), values)
    if type(value) in (tuple, list):
        return type(value)(pack(item, memo) for item in value)
    if type(value) is dict:
        return {key: pack(item, memo) for key, item in value.items()}
    return value


def unpack(stored: Any, memo: dict[int, Any] | None = None) -> Any:
    """The structure that was packed; tensors on the CPU where their device is missing.

    Parameters
    ----------
    stored : anything
        From :func:`pack`.
    memo : dict, optional
        What has been unpacked already, by identity.
    """
    memo = {} if memo is None else memo
    if id(stored) not in memo:
        memo[id(stored)] = (_unpack(stored, memo), stored)
    return memo[id(stored)][0]


def _unpack(stored: Any, memo: dict[int, Any]) -> Any:
    if isinstance(stored, StoredTensor):
        return stored.tensor()
    if isinstance(stored, StoredDevice):
        return present_device(stored.name)
    if isinstance(stored, StoredModule):
        return copy.deepcopy(stored.skeleton, {id(gap): unpack(gap, memo) for gap in stored.tensors})
    if isinstance(stored, StoredObject):
        return stored.kind(**{name: unpack(value, memo) for name, value in stored.values.items()})
    if type(stored) in (tuple, list):
        return type(stored)(unpack(item, memo) for item in stored)
    if type(stored) is dict:
        return {key: unpack(item, memo) for key, item in stored.items()}
    return stored
