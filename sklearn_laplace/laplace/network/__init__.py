"""Network: the trained module as a function of its selected weights."""

from .network import Network
from .tracing import select, trace

__all__ = ["Network", "select", "trace"]
