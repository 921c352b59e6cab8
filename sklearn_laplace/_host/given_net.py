"""Read a net that the user passes: its sizes, criterion and device."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet
from torch import Tensor, nn

from .._runtime.devices import present_device
from ..laplace.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from ..laplace.likelihoods._base import Likelihood
from .loss import MAPLoss
from .rows import TrainingRows

_global_generator = threading.RLock()
INPUT_SIZES = ("in_features", "input_dim", "n_features_in", "n_in")
CRITERIA: dict[type[Likelihood], tuple[type[nn.Module], ...]] = {
    Gaussian: (nn.MSELoss,),
    Categorical: (nn.NLLLoss, nn.CrossEntropyLoss),
    Bernoulli: (nn.BCEWithLogitsLoss, nn.NLLLoss, nn.CrossEntropyLoss),
    Poisson: (nn.PoissonNLLLoss, nn.MSELoss),
}
"""Criteria that mean a likelihood, or mean nothing: those that skorch's classes have by default stand for no choice."""
OUTPUT_SIZES = ("out_features", "output_dim", "n_outputs", "n_out")
"""Names under which a module may take the sizes of the data."""


def _check_criterion(net: NeuralNet, likelihood: Likelihood) -> None:
    """A template's criterion is replaced by our likelihood; one that means another likelihood is an error.

    Raises
    ------
    ValueError
    """
    known = CRITERIA[type(likelihood)]
    criterion = net.criterion
    if not (names_criterion(net, known) or names_criterion(net, (MAPLoss,))):
        name = criterion.__name__ if inspect.isclass(criterion) else type(criterion).__name__
        raise ValueError(
            f"the net's criterion {name} belongs to another likelihood than ours "
            f"({type(likelihood).__name__.lower()}), and a Laplace approximation needs the loss to be that of "
            f"its likelihood. Use {' or '.join(c.__name__ for c in known)}, or leave the criterion out."
        )
    if names_criterion(net, (nn.PoissonNLLLoss,)):
        options = net.get_params_for("criterion") if inspect.isclass(criterion) else vars(criterion)
        if not options.get("log_input", True):
            raise ValueError(
                "the net's criterion takes rates (log_input=False); ours takes their logarithms, which may have either "
                "sign. Let the net return log rates, and leave log_input out."
            )


def names_criterion(net: Any, known: tuple[type[nn.Module], ...]) -> bool:
    """Whether the criterion of a skorch net is one of these, as class or instance; no other net has one."""
    if not isinstance(net, NeuralNet):
        return False
    criterion = net.criterion
    return issubclass(criterion, known) if inspect.isclass(criterion) else isinstance(criterion, known)


def both_probabilities(logit: Tensor) -> Tensor:
    """(1 − p, p) from a logit of shape (n,) or (n, 1)."""
    p = logit.reshape(-1).sigmoid()
    return torch.stack([1 - p, p], 1)


def has_one_output(net: Any, inputs: np.ndarray, n_classes: int) -> bool:
    """Whether a given net has one output, which two classes can share; what cannot be built is found out elsewhere.

    Parameters
    ----------
    net : skorch net, module class or instance, or a frozen fitted net
    inputs : ndarray of shape (n, d)
        Rows to try, in a forward pass on the CPU.
    n_classes : int
        What it is told where it takes the number of outputs.
    """
    if isinstance(net, FrozenEstimator):
        module = copy.deepcopy(net.estimator.module_)
    else:
        trial = clone(net) if isinstance(net, NeuralNet) else NeuralNet(copy.deepcopy(net), nn.MSELoss)
        try:
            with isolated_seed(0, torch.device("cpu")):
                trial.set_params(device="cpu", **_sizes(trial, inputs.shape[1], n_classes))
                module = trial.initialize().module_
        except Exception:  # whatever the user's module raises is raised again where it is built for training
            return False
    module = module.cpu().eval()
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    try:
        with torch.no_grad():
            outputs = module(torch.tensor(inputs[:2], dtype=dtype))
    except Exception:
        return False
    return isinstance(outputs, Tensor) and outputs.ndim <= 2 and outputs.numel() == len(inputs[:2])


def _sizes(net: NeuralNet, n_features: int, n_outputs: int) -> dict[str, int]:
    """Sizes of the data under the names that the template's module takes and its user left open."""
    if not inspect.isclass(net.module):
        return {}
    taken = inspect.signature(net.module).parameters
    given = net.get_params_for("module")
    found = {}
    for names, size in ((INPUT_SIZES, n_features), (OUTPUT_SIZES, n_outputs)):
        found.update({f"module__{name}": size for name in names if name in taken and name not in given})
    return found


@contextmanager
def isolated_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator inside the block, and put it back afterwards; one thread at a time."""
    with _global_generator, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def check_net(net: Any) -> None:
    """A net that can be trained, or a frozen one that is."""
    if isinstance(net, FrozenEstimator):
        if not isinstance(net.estimator, NeuralNet):
            raise TypeError(
                f"net=FrozenEstimator({type(net.estimator).__name__}(…)) is not supported; freeze a fitted skorch net."
            )
        if not net.estimator.initialized_ or not isinstance(getattr(net.estimator, "module_", None), nn.Module):
            raise NotFittedError(
                "the net inside FrozenEstimator has not been fitted; fit it first, or give it without FrozenEstimator "
                "to have it trained."
            )
    elif not (
        net is None or isinstance(net, NeuralNet | nn.Module) or (inspect.isclass(net) and issubclass(net, nn.Module))
    ):
        raise TypeError(
            f"net={net!r} is not supported; give None for the built-in net, a torch module (class or instance), a "
            "skorch net such as NeuralNetRegressor(module), or FrozenEstimator(fitted skorch net)."
        )


def check_module(module: nn.Module, rows: TrainingRows, n_outputs: int) -> None:
    """One forward pass: does the module accept the inputs, and has it one output a class or target?

    Raises
    ------
    ValueError
    """
    name = type(module).__name__
    with torch.no_grad():
        try:
            outputs = module(rows.inputs[:2])
        except (RuntimeError, IndexError) as error:
            raise ValueError(
                f"the net's module {name} does not accept inputs of shape (n, {rows.inputs.shape[1]}) and dtype "
                f"{rows.inputs.dtype}: {error}. Its number of inputs has to equal the number of columns of X."
            ) from error
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    width = 1 if isinstance(outputs, Tensor) and outputs.ndim == 1 else None
    width = outputs.shape[1] if isinstance(outputs, Tensor) and outputs.ndim == 2 else width
    if width != n_outputs:
        classes = rows.targets.ndim == 1
        one = "one logit for two classes" if classes else "one column for each target"
        wanted = "one column for each class" if classes and n_outputs > 1 else one
        other = ", or use likelihood='bernoulli'" if classes and (width, n_outputs) == (1, 2) else ""
        raise ValueError(
            f"the net's module {name} returned {shape} for {len(rows.inputs[:2])} rows; expected "
            f"{(len(rows.inputs[:2]), n_outputs)}: {wanted}. Set its number of outputs to {n_outputs}{other}."
        )


def returns_probabilities(module: nn.Module, inputs: Tensor) -> bool:
    """Whether the module's outputs are class probabilities: not negative, and one in sum."""
    with torch.no_grad():
        outputs = module(inputs)
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    close = (outputs.sum(1) - 1).abs().max() < 1e-4
    return bool(close) and bool((outputs >= 0).all())


def modules_of(net: Any) -> list[Any]:
    """The module of a skorch net, template or trained, also of a frozen one; nothing for anything else."""
    net = net.estimator if isinstance(net, FrozenEstimator) else net
    if not isinstance(net, NeuralNet):
        return []
    return [net.module, net.module_] if net.initialized_ else [net.module]


def device_of(net: Any) -> str | None:
    """The device that a skorch net asks for, also a frozen one; None for anything else."""
    net = net.estimator if isinstance(net, FrozenEstimator) else net
    return str(net.device) if isinstance(net, NeuralNet) and net.device is not None else None


def copied(net: NeuralNet) -> NeuralNet:
    """A deep copy that does not pass through skorch's own pickling, which some versions of torch refuse."""
    kind: Any = type(net)
    found: NeuralNet = kind.__new__(kind)
    for name, value in copy.deepcopy(dict(vars(net))).items():
        object.__setattr__(found, name, value)
    return move_to_present_device(found)


def move_to_present_device(net: NeuralNet) -> NeuralNet:
    """Make a net without its device one of the CPU; its tensors are there already."""
    if net.device is not None:
        object.__setattr__(net, "device", str(present_device(str(net.device))))
    return net


def _name(net: NeuralNet) -> str:
    return net.module.__name__ if inspect.isclass(net.module) else type(net.module).__name__
