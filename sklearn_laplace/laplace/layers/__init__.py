"""Registry of layers, which yield their parts of the Jacobian. One file per kind of layer; the file name is the key.

A layer that is called once and shares no tensors uses the first class in ``FACTORED`` that handles it. All other
tensors use ``generic``.
"""

from ._base import FactoredLayer
from .affine import Affine
from .conv import Conv
from .embedding import Embedding
from .generic import Generic
from .linear import Linear, StandardisedLinear

LAYERS: dict[str, type[FactoredLayer] | type[Generic]] = {
    "linear": Linear,
    "conv": Conv,
    "embedding": Embedding,
    "affine": Affine,
    "generic": Generic,
}
FACTORED: tuple[type[FactoredLayer], ...] = (Linear, Conv, Embedding, Affine)
__all__ = [
    "FACTORED",
    "LAYERS",
    "Affine",
    "Conv",
    "Embedding",
    "FactoredLayer",
    "Generic",
    "Linear",
    "StandardisedLinear",
]
