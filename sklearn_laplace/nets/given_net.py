"""Inspect and check the user's net: its sizes, criterion and device."""

import copy
import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet
from skorch.dataset import ValidSplit
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..laplace.fit import TrainingRows
from ..laplace.likelihoods import Bernoulli, Categorical, Gaussian, NegativeBinomial, Poisson
from ..laplace.likelihoods._base import Likelihood
from ..laplace.network.tracing import copy_of
from ..laplace.torch_state import present_device

_global_generator = threading.RLock()
INPUT_SIZES = ("in_features", "input_dim", "n_features_in", "n_in")
CRITERIA: dict[type[Likelihood], tuple[type[nn.Module], ...]] = {
    Gaussian: (nn.MSELoss,),
    Categorical: (nn.NLLLoss, nn.CrossEntropyLoss),
    Bernoulli: (nn.BCEWithLogitsLoss, nn.NLLLoss, nn.CrossEntropyLoss),
    Poisson: (nn.PoissonNLLLoss, nn.MSELoss),
    NegativeBinomial: (nn.PoissonNLLLoss, nn.MSELoss),
}
"""Criteria accepted for each likelihood: those that match it, and the defaults of skorch's classes."""
OUTPUT_SIZES = ("out_features", "output_dim", "n_outputs", "n_out")
"""Arguments of modules that set the number of outputs; ``INPUT_SIZES`` are those for inputs."""


def _check_criterion(net: NeuralNet, likelihood: Likelihood) -> None:
    """Check that the criterion of the user's net agrees with the likelihood; a Poisson loss has to take log rates."""
    known = CRITERIA[type(likelihood)]
    criterion = net.criterion
    if not names_criterion(net, known):
        name = criterion.__name__ if inspect.isclass(criterion) else type(criterion).__name__
        raise ValueError(
            f"the net's criterion {name} belongs to another likelihood than that of the estimator "
            f"({likelihood.key()}); a Laplace approximation needs the loss of its likelihood. Use "
            f"{' or '.join(c.__name__ for c in known)}, or omit the criterion."
        )
    if names_criterion(net, (nn.PoissonNLLLoss,)):
        options = net.get_params_for("criterion") if inspect.isclass(criterion) else vars(criterion)
        if not options.get("log_input", True):
            raise ValueError(
                "the net's criterion takes rates (log_input=False); the estimator's Poisson likelihood takes log "
                "rates. Let the net return log rates, and omit log_input."
            )

    _check_criterion_options(net)


def _check_criterion_options(net: NeuralNet) -> None:
    """Check that no option of the criterion is set that the likelihood lacks, such as class weights."""
    criterion = net.criterion
    is_class = inspect.isclass(criterion)
    of_instance = {name: getattr(criterion, name, None) for name in ADVICE}  # its weights are buffers
    given = net.get_params_for("criterion") if is_class else of_instance
    prefix = "criterion__" if is_class else f"{type(criterion).__name__}'s "
    for name, value in given.items():
        if name in ADVICE and not _is_neutral(value, NEUTRAL.get(name)):
            raise ValueError(
                f"{prefix}{name} cannot be used: the estimator trains with the negative log likelihood of its "
                f"likelihood, which has no such option. {ADVICE[name]}."
            )


ADVICE = {
    "weight": "Use class_weight= of the estimator, or sample_weight in fit",
    "pos_weight": "Use class_weight= of the estimator, or sample_weight in fit",
    "label_smoothing": "Omit it; a prior precision or early stopping regularises the net",
    "ignore_index": "Omit these rows, or give them a sample_weight of 0",
    "reduction": "Omit it; the loss is the mean over the rows",
    "size_average": "Omit it; the loss is the mean over the rows",
    "reduce": "Omit it; the loss is the mean over the rows",
}
"""Options of criteria that a likelihood does not have, and what to use instead."""
NEUTRAL: dict[str, object] = {"label_smoothing": 0.0, "ignore_index": -100, "reduction": "mean"}
"""Values of these options that have no effect, in addition to None."""


def _is_neutral(value: object, neutral: object) -> bool:
    return value is None or (not isinstance(value, Tensor) and value == neutral)


def check_iterator(net: NeuralNet) -> None:
    """Refuse samplers, which would change the weights of the rows, and ``collate_fn``, which can change batches."""
    refused = {"sampler", "batch_sampler", "collate_fn"}
    given = net.get_params_for("iterator_train") if net.iterator_train is DataLoader else {}
    for name in sorted(refused & {name for name, value in given.items() if value is not None}):
        raise ValueError(
            f"iterator_train__{name} cannot be used: the posterior counts each row by its weight, however often it is "
            "drawn in training. Use sample_weight in fit or class_weight= for weights, or iterator_train__shuffle=True "
            "for a random order."
        )


def check_monitors(net: NeuralNet) -> None:
    """Check that there are validation rows if a callback watches the validation loss."""
    callbacks = net.callbacks if isinstance(net.callbacks, list | tuple) else []
    for item in callbacks:
        callback = item[1] if isinstance(item, tuple) else item
        monitor = getattr(callback, "monitor", None)
        if not net.train_split and isinstance(monitor, str) and monitor.startswith("valid_"):
            raise ValueError(
                f"{type(callback).__name__} watches {monitor!r}, and the net has no validation rows "
                f"(train_split={net.train_split!r}). Use train_split=ValidSplit(5), or monitor='train_loss'."
            )


def names_criterion(net: Any, known: tuple[type[nn.Module], ...]) -> bool:
    """True for a skorch net whose criterion, a class or an instance, is one of the ``known`` classes."""
    if not isinstance(net, NeuralNet):
        return False
    criterion = net.criterion
    return issubclass(criterion, known) if inspect.isclass(criterion) else isinstance(criterion, known)


def both_probabilities(logit: Tensor) -> Tensor:
    """Class probabilities (1 − p, p), shape (n, 2), from a logit of shape (n,) or (n, 1)."""
    p = logit.reshape(-1).sigmoid()
    return torch.stack([1 - p, p], 1)


def has_one_output(net: Any, inputs: np.ndarray, n_classes: int) -> bool:
    """True if the user's net has one output (a logit) per row, tried on the CPU with two rows of ``inputs`` (n, d)."""
    if is_list(net):
        return all(has_one_output(element, inputs, n_classes) for element in net)
    if isinstance(net, FrozenEstimator):
        module = copy.deepcopy(net.estimator.module_)
    else:
        trial = clone(net) if isinstance(net, NeuralNet) else NeuralNet(copy_of(net), nn.MSELoss)
        try:
            with isolated_seed(0, torch.device("cpu")):
                trial.set_params(device="cpu", **_sizes(trial, inputs.shape[1], n_classes))
                module = trial.initialize().module_
        except Exception:  # any error of the user's module is raised again when it is built for training
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
    """Return skorch parameters that set the numbers of inputs and outputs of a module class, unless set by the user."""
    if not inspect.isclass(net.module):
        return {}
    arguments = inspect.signature(net.module).parameters
    user_set = net.get_params_for("module")
    parameters = {}
    for names, size in ((INPUT_SIZES, n_features), (OUTPUT_SIZES, n_outputs)):
        parameters.update({f"module__{name}": size for name in names if name in arguments and name not in user_set})
    return parameters


@contextmanager
def isolated_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator inside the block and restore it afterwards; blocks in other threads wait."""
    with _global_generator, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def is_list(net: Any) -> bool:
    """True for several trained nets in a list or tuple."""
    return isinstance(net, list | tuple)


def is_frozen(net: Any) -> bool:
    """True for a net that keeps its weights: a frozen net, or a list of nets, which all have to be frozen."""
    return isinstance(net, FrozenEstimator) or is_list(net)


def has_own_epochs(net: Any) -> bool:
    """True for a skorch net, which sets its own number of epochs and gets the rows in the user's order."""
    return isinstance(net, NeuralNet)


def check_split(net: Any, weights: np.ndarray) -> None:
    """Refuse rows of weight zero if ``train_split`` names rows by position, since dropping rows shifts positions."""
    split = net.train_split if isinstance(net, NeuralNet) else None
    by_position = split is not None and not (isinstance(split, ValidSplit) and isinstance(split.cv, int | float))
    if by_position and bool((weights == 0).any()):
        raise ValueError(
            f"{int((weights == 0).sum())} rows have weight zero and are not part of the fit, so the positions in "
            "the net's train_split would refer to other rows. Omit these rows from X, y and the split."
        )


def check_net(net: Any) -> None:
    """Check that the net is trainable, or fitted and frozen, or a list of different fitted and frozen nets."""
    if is_list(net):
        _check_list(net)
    elif isinstance(net, FrozenEstimator):
        if not isinstance(net.estimator, NeuralNet):
            raise TypeError(
                f"net=FrozenEstimator({type(net.estimator).__name__}(…)) is not supported; freeze a fitted skorch net."
            )
        if not net.estimator.initialized_ or not isinstance(getattr(net.estimator, "module_", None), nn.Module):
            raise NotFittedError(
                "the net inside FrozenEstimator has not been fitted; fit it first, or pass it without FrozenEstimator "
                "to train it."
            )
    elif not (
        net is None or isinstance(net, NeuralNet | nn.Module) or (inspect.isclass(net) and issubclass(net, nn.Module))
    ):
        raise TypeError(
            f"net={net!r} is not supported; pass None for the built-in net, a torch module (class or instance), a "
            "skorch net such as NeuralNetRegressor(module), or FrozenEstimator(fitted skorch net), also in a list."
        )


def _check_list(nets: Sequence[Any]) -> None:
    if not nets:
        raise ValueError("net=[] holds no net; pass at least one FrozenEstimator(fitted skorch net), or None.")
    for place, net in enumerate(nets):
        if not isinstance(net, FrozenEstimator):
            raise TypeError(
                f"net[{place}] is a {net.__name__ if inspect.isclass(net) else type(net).__name__}; a list holds "
                "trained nets only. Pass each as FrozenEstimator(fitted skorch net), or fit with n_members= instead."
            )
        check_net(net)
    states = [{k: v.cpu() for k, v in net.estimator.module_.state_dict().items()} for net in nets]
    for (first, before), (second, after) in combinations(enumerate(states), 2):
        if before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before):
            raise ValueError(
                f"net[{first}] and net[{second}] have equal weights, so this net would count twice. Pass each net once."
            )


def check_module(module: nn.Module, example: Tensor, rows: TrainingRows) -> None:
    """Check by one forward pass that the module accepts the inputs and has one output per class or target."""
    name = type(module).__name__
    with torch.no_grad():
        try:
            outputs = module(example[:2])
        except (RuntimeError, IndexError) as error:
            _check_cast(module, example)
            raise ValueError(
                f"the net's module {name} does not accept inputs of shape (n, {example.shape[1]}) and dtype "
                f"{example.dtype}: {error}. Its number of inputs has to equal the number of columns of X."
            ) from error
    if isinstance(outputs, Tensor):
        _check_repeatable(module, example[:2], outputs)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    width, n_outputs = _width(outputs), rows.n_outputs
    if width != n_outputs:
        classes = rows.targets.ndim == 1
        single = "one logit for two classes" if classes else "one column for each target"
        expected = "one column for each class" if classes and n_outputs > 1 else single
        other = ", or use likelihood='bernoulli'" if classes and (width, n_outputs) == (1, 2) else ""
        raise ValueError(
            f"the net's module {name} returned {shape} for {len(example[:2])} rows; expected "
            f"{(len(example[:2]), n_outputs)}: {expected}. Set its number of outputs to {n_outputs}{other}."
        )


def _width(outputs: Any) -> int | None:
    """Number of outputs for each row; None if a module's output is neither a vector nor a matrix."""
    if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2):
        return None
    return 1 if outputs.ndim == 1 else outputs.shape[1]


def _check_cast(module: nn.Module, example: Tensor) -> None:
    """Raise ValueError if a module fails in float64 because it casts its input to float32."""
    if example.dtype != torch.float64:
        return
    try:
        copy.deepcopy(module).float()(example[:2].float())
    except Exception:
        return
    raise ValueError(
        f"the net's module {type(module).__name__} accepts float32 alone: it casts its input, for example by "
        "x.float(). Remove the cast, or use dtype='float32'."
    )


def _check_repeatable(module: nn.Module, example: Tensor, outputs: Tensor) -> None:
    """Raise ValueError if the outputs differ between two forward passes in evaluation mode."""
    again = module(example)
    if isinstance(again, Tensor) and not torch.equal(again.nan_to_num(), outputs.nan_to_num()):
        raise ValueError(
            f"the net's module {type(module).__name__} draws random numbers in evaluation mode: two forward passes of "
            "the same rows differ. Draw them only if self.training is True, as torch.nn.Dropout does."
        )


def returns_probabilities(module: nn.Module, inputs: Tensor) -> bool:
    """True if the module's outputs are class probabilities: non-negative, with row sums of 1."""
    with torch.no_grad():
        outputs = module(inputs)
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    close = (outputs.sum(1) - 1).abs().max() < 1e-4
    return bool(close) and bool((outputs >= 0).all())


def has_own_iterator(net: Any) -> bool:
    """True for a skorch net with its own training iterator, which may transform rows."""
    return isinstance(net, NeuralNet) and net.iterator_train is not DataLoader


def device_of(net: Any) -> str | None:
    """Device of a skorch net, frozen or not, or the common device of a list of nets; None if not set."""
    if is_list(net):
        devices = {device_of(element) for element in net} - {None}
        if len(devices) > 1:
            raise ValueError(
                f"the nets of net=[…] are on the devices {sorted(map(str, devices))}; an ensemble needs one. Set "
                "device=."
            )
        return devices.pop() if devices else None
    net = net.estimator if isinstance(net, FrozenEstimator) else net
    return str(net.device) if isinstance(net, NeuralNet) and net.device is not None else None


def copied(net: NeuralNet) -> NeuralNet:
    """Deep-copy a net without skorch's pickling, which some versions of torch refuse."""
    kind: Any = type(net)
    duplicate: NeuralNet = kind.__new__(kind)
    history = net.history if net.initialized_ else None
    memo = {} if history is None else {id(history): history[:]}  # its entries are not changed, and can be many
    for name, value in copy.deepcopy(dict(vars(net)), memo).items():
        object.__setattr__(duplicate, name, value)
    return move_to_present_device(duplicate)


def move_to_present_device(net: NeuralNet) -> NeuralNet:
    """Return the net, with an absent device replaced by the CPU, where its tensors already are."""
    if net.device is not None:
        object.__setattr__(net, "device", str(present_device(str(net.device))))
    return net


def _name(net: NeuralNet) -> str:
    return net.module.__name__ if inspect.isclass(net.module) else type(net.module).__name__
