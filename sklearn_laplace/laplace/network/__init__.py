"""Network: the trained module as a function of its selected weights."""

from .layout import Layout
from .network import Linearisation, Network
from .tracing import select, trace

__all__ = ["Layout", "Linearisation", "Network", "select", "trace"]
