"""Replicas of a module (copies that share its tensors but not its hooks), and forward passes recorded on replicas."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def replicate(module: nn.Module, replaced: Mapping[str, Tensor], shallow: bool) -> nn.Module:
    """Copy of a module with separate hooks. It shares all tensors except those in ``replaced``.

    ``replaced`` must hold a tied tensor under each of its names. A ``shallow`` copy duplicates only the tree of
    registered modules. A deep copy also copies all other attributes.
    """
    if shallow:
        return _shallow_replica(module, replaced, "", {})
    memo: dict[int, object] = {id(t): t for t in (*module.parameters(), *module.buffers())}
    memo |= {id(p): replaced[n] for n, p in module.named_parameters(remove_duplicate=False) if n in replaced}
    return copy.deepcopy(module, memo)


def replicas_follow(module: nn.Module, example: Tensor, shallow: bool) -> bool:
    """True if a replica with replaced weights computes the same outputs as the module itself with these weights."""
    generator = torch.Generator().manual_seed(0)
    first = dict(module.named_parameters())
    moved = {
        name: nn.Parameter(p + 0.1 * torch.randn(p.shape, generator=generator).to(p), requires_grad=False)
        for name, p in first.items()
    }
    names = {id(p): name for name, p in first.items()}
    replaced = {name: moved[names[id(p)]] for name, p in module.named_parameters(remove_duplicate=False)}
    before = {name: p.detach().clone() for name, p in first.items()}
    with torch.no_grad():
        original = module(example)
        try:
            for name, p in first.items():
                p.copy_(moved[name])
            expected = module(example)
        finally:
            for name, p in first.items():
                p.copy_(before[name])
        outputs = replicate(module, replaced, shallow)(example)
    if not isinstance(outputs, Tensor) or (bool(torch.isfinite(original).all()) and torch.equal(original, expected)):
        return False
    return torch.allclose(outputs, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


class Tape:
    """Record of one forward pass on a temporary replica of a module. The replica's hooks are not removed."""

    def __init__(self, replica: nn.Module, names: Sequence[str]) -> None:
        self.replica = replica
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.calls: dict[str, int] = {}
        self.order: list[str] = []
        self.keeps_graph = False
        for name in names:
            layer = self.replica.get_submodule(name)
            if any(True for _ in layer.parameters(recurse=False)):
                # Record when calls start: a parent with its own tensors ends after its children.
                layer.register_forward_pre_hook(lambda *_, name=name: self.order.append(name))
                layer.register_forward_hook(self._recorder(name))

    def run(self, x: Tensor) -> Tensor:
        """Return the output of one forward pass, and record inputs, outputs, number and order of the calls.

        The tape drops the replica, whose hooks refer to the tape: a cycle would keep tensors until garbage collection.
        """
        replica = self.replica
        del self.replica
        self.keeps_graph = x.requires_grad
        return replica(x)

    def _recorder(self, name: str) -> Callable[..., Tensor | None]:
        def record(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            self.calls[name] = self.calls.get(name, 0) + 1
            if not args or not isinstance(output, Tensor):
                return None
            head = output if output.requires_grad or not torch.is_grad_enabled() else output.requires_grad_()
            self.inputs[name], self.outputs[name] = args[0] if self.keeps_graph else args[0].detach(), head
            # Pass on a copy, so that an in-place activation cannot overwrite the recorded output.
            return head.clone() if torch.is_grad_enabled() else None

        return record


def _shallow_replica(
    module: nn.Module, replaced: Mapping[str, Tensor], prefix: str, seen: dict[int, nn.Module]
) -> nn.Module:
    if id(module) in seen:
        return seen[id(module)]
    replica = module.__new__(type(module))
    seen[id(module)] = replica
    attributes: dict[str, Any] = {
        "_parameters": {name: replaced.get(prefix + name, p) for name, p in module._parameters.items()},
        "_buffers": dict(module._buffers),
        "_modules": {
            name: None if child is None else _shallow_replica(child, replaced, f"{prefix}{name}.", seen)
            for name, child in module._modules.items()
        },
    }
    for hooks in ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
        attributes[hooks] = OrderedDict(getattr(module, hooks))
    for name, value in {**vars(module), **attributes}.items():
        object.__setattr__(replica, name, value)  # nn.Module.__setattr__ would register tensors again
    return replica
