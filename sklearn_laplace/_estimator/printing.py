"""How an estimator is printed: scikit-learn's own way, with the net that it holds in a line.

scikit-learn prints the parameters that are not at their defaults. A skorch net hands most of its own on by keywords, so
that all of them would count as changed, and a module prints its layers, one a line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils._pprint import _EstimatorPrettyPrinter
from torch import nn

LONGEST = 40
"""Letters of one value of a net's parameters."""


class Words:
    """Something that is printed as it is given.

    Parameters
    ----------
    words : str

    Examples
    --------
    >>> Words("a net")
    a net
    """

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


class ShownEstimator:
    """An estimator whose parameter ``net`` is printed in a line."""

    net: Any
    get_params: Callable[..., dict[str, Any]]

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        found: str = BaseEstimator.__repr__(self._with_short_net(), N_CHAR_MAX)
        return found

    def _with_short_net(self) -> Any:
        """Unfitted, of the same parameters but for the net; only to be printed."""
        twin = object.__new__(type(self))
        for name, value in self.get_params(deep=False).items():
            setattr(twin, name, value)
        twin.net = self.net if self.net is None or isinstance(self.net, Words) else Words(in_a_line(self.net))
        return twin


def in_a_line(value: Any) -> str:
    """A net, or a value of its parameters: classes by name, modules without their layers, estimators by what differs.

    Examples
    --------
    >>> from skorch import NeuralNetRegressor
    >>> in_a_line(NeuralNetRegressor(nn.Linear, lr=0.1, module__in_features=3, module__out_features=1))
    'NeuralNetRegressor(module=Linear, lr=0.1, module__in_features=3, module__out_features=1)'
    >>> in_a_line(nn.Sequential(nn.Linear(3, 1)))
    'Sequential(...)'
    """
    if inspect.isclass(value):
        return value.__name__
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}(...)"
    if isinstance(value, BaseEstimator):
        defaults = _defaults(type(value))
        given = {name: v for name, v in value.get_params(deep=False).items() if not name.startswith("_")}
        changed = {name: v for name, v in given.items() if name not in defaults or repr(v) != repr(defaults[name])}
        return f"{type(value).__name__}({', '.join(f'{name}={in_a_line(v)}' for name, v in changed.items())})"
    words = " ".join(repr(value).split())
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."


def _defaults(kind: type) -> dict[str, Any]:
    """Defaults of everything that a class and those that it is made of take."""
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        if "__init__" in vars(one) and one is not object:
            parameters = inspect.signature(vars(one)["__init__"]).parameters.values()
            found |= {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return found


def _print(printer: Any, estimator: ShownEstimator, *place: Any) -> None:
    printer._pprint_estimator(estimator._with_short_net(), *place)


# Within a pipeline it is not asked for its __repr__, but looked up by it.
_EstimatorPrettyPrinter._dispatch[ShownEstimator.__repr__] = _print
