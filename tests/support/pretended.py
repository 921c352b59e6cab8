"""A device with its own memory, simulated on the CPU, to find what a GPU would reject or wait for.

Tensors on the device ``pretended`` wrap tensors on the CPU. An operation on tensors of both devices is an error, as on
a GPU. Reads of values by the host and copies between the devices are counted, because both wait for a GPU. A backend
can be registered only once per process, so this module is a separate program: ``python tests/support/pretended.py``.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
from shortened import few_steps
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._training.batched import Training
from sklearn_laplace._training.progress import Steps
from sklearn_laplace._training.recipe import Schedule
from sklearn_laplace._training.stacked import Squares, Stacked
from sklearn_laplace.laplace.fit import TrainingRows
from sklearn_laplace.nets import TableMLP
from sklearn_laplace.options import resolve

COUNTS: Counter[str] = Counter()
"""Number of reads, and of copies between the devices."""
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal"}
COPIES = {"aten::_to_copy", "aten::copy_"}
INDEXED = {"aten::index", "aten::index_put_"}
"""Operations that accept indices on the CPU, and copy them."""


class Pretended(torch.Tensor):
    """Tensor on the pretended device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Pretended:
        shape, stride = held.size(), held.stride()
        made: Pretended = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=stride, storage_offset=held.storage_offset(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        COUNTS["reads"] += 1
        return self.held.tolist()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a tensor on the pretended device has no numpy array; copy it to the CPU first")


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU, check its devices, and count reads and copies."""
    name = func._schema.name
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    ours = [leaf for leaf in tensors if isinstance(leaf, Pretended)]
    others = [leaf for leaf in tensors if not isinstance(leaf, Pretended) and leaf.ndim]
    target = kwargs.get("device")
    on_device = bool(ours) if target is None else torch.device(target).type == DEVICE.type
    if name in COPIES:
        begins, ends = (args[1], isinstance(args[0], Pretended)) if name == "aten::copy_" else (args[0], on_device)
        COUNTS["copies"] += isinstance(begins, Pretended) != ends
    elif ours and others:
        if name not in INDEXED:
            raise RuntimeError(f"{name} has tensors on two devices, of shapes {[leaf.shape for leaf in others]}")
        COUNTS["copies"] += 1
    COUNTS["reads"] += bool(ours) and name in READS
    if torch.Tag.inplace_view in func.tags and ours:  # changes the shape of the wrapper as well
        with no_dispatch():
            func(*args, **kwargs)
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs))
    if not on_device:
        return result
    known = {id(leaf.held): leaf for leaf in ours}
    return tree_map(lambda leaf: known[id(leaf)] if id(leaf) in known else wrapped(leaf), result)


def unwrapped(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, Pretended) else leaf


def wrapped(leaf: Any) -> Any:
    return Pretended(leaf) if isinstance(leaf, torch.Tensor) else leaf


class OnDevice(TorchDispatchMode):
    """Mode in which tensors can be created on the pretended device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def counted(function: Any) -> dict[str, int]:
    """Reads and copies of a function."""
    COUNTS.clear()
    function()
    return {"reads": COUNTS["reads"], "copies": COUNTS["copies"]}


def training() -> dict[str, dict[str, int]]:
    """Reads and copies of a joint training of two nets by few and by many steps, with categories and flags."""
    n = 40
    generator = torch.Generator().manual_seed(0)
    inputs = torch.cat([torch.randn(n, 2, generator=generator), torch.randint(3, (n, 1), generator=generator)], 1)
    rows = TrainingRows(inputs.double().to(DEVICE), inputs[:, :1].to(DEVICE), torch.ones(n).to(DEVICE))
    edges = [[-1.0, 0.0, 1.0], [-1.0, 1.0]]
    arguments: dict[str, Any] = {"hidden_layer_sizes": (5, 4), "input_edges": edges}
    nets = [TableMLP([0, 0, 3], [False, True, False], 1, **arguments, seed=k).to(DEVICE) for k in (0, 1)]
    schedule = Schedule(100, batch_size=16)
    seen, stacked = torch.ones(2, n).to(DEVICE), Stacked(nets)
    run_ = Training(stacked, Squares(), rows, seen, schedule, 0, [1.0, 1.0], dropout=[0.0, 0.15])
    steps = {"few": 5, "many": 30}
    return {
        name: counted(lambda count=count: run_.run(schedule.rate, schedule.decay, range(count), Steps()))
        for name, count in steps.items()
    }


def fit() -> dict[str, Any]:
    """Fit and predictions on the pretended device against those on the CPU, with categories and missing values."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(80, 2)), rng.integers(0, 3, 80)])
    y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=80)
    X[::9, 1] = np.nan
    options: dict[str, Any] = {"n_members": 1, "max_epochs": 3, "hidden_layer_sizes": (6,), "n_jobs": 1}
    options |= {"categorical_features": [2], "random_state": 0, "memory_budget": "40MB"}
    before = resolve._device
    with few_steps():
        expected = LaplaceRegressor(**options).fit(X, y).predict(X, return_std=True)
    with OnDevice(), few_steps():
        resolve._device = lambda name, net: DEVICE
        model = LaplaceRegressor(**options).fit(X, y)
        resolve._device = before
        actual = model.predict(X, return_std=True)
        few, many = (counted(lambda n=n: model.predict(np.tile(X, (n, 1)), return_std=True)) for n in (1, 400))
    devices = sorted({str(weight.device) for weight in model.net_.module_.parameters()})
    difference = max(float(np.abs(a - b).max()) for a, b in zip(actual, expected, strict=True))
    return {"devices": devices, "difference": difference, "few": few, "many": many}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    backend_registration._setup_privateuseone_for_python_backend("pretended")
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)
    DEVICE = torch.device("pretended:0")
    with OnDevice():
        results = {"training": training()}
        try:
            torch.ones(3, device=DEVICE) + torch.ones(3)
        except RuntimeError as error:
            results["mixed"] = str(error)
    print(json.dumps({**results, "fit": fit()}))
