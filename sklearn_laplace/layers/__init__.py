"""How a layer yields its part of the Jacobian: the registry. One file a variant, file name = key.

``FACTORED`` are tried in order on every module that owns parameters; what none of them takes is ``generic``.
"""

from .generic import Generic
from .linear import Linear

LAYERS = {"linear": Linear, "generic": Generic}
FACTORED = (Linear,)

__all__ = ["FACTORED", "LAYERS", "Generic", "Linear"]
