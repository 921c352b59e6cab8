"""Network: the trained module as a function of its selected weights."""

from .layout import Layout
from .linearisation import Linearisation
from .network import Network
from .tracing import select, trace

__all__ = ["Layout", "Linearisation", "Network", "select", "trace"]
