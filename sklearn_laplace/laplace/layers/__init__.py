"""How a layer yields its part of the Jacobian: the registry. One file a variant, file name = key.

``FACTORED`` are tried in order on every module that owns parameters; what none of them takes is ``generic``.
"""

from ._base import FactoredLayer
from .affine import Affine
from .conv import Conv
from .embedding import Embedding
from .generic import Generic
from .linear import Linear

LAYERS: dict[str, type[FactoredLayer] | type[Generic]] = {
    "linear": Linear,
    "conv": Conv,
    "embedding": Embedding,
    "affine": Affine,
    "generic": Generic,
}
FACTORED: tuple[type[FactoredLayer], ...] = (Linear, Conv, Embedding, Affine)
__all__ = ["FACTORED", "LAYERS", "Affine", "Conv", "Embedding", "FactoredLayer", "Generic", "Linear"]
