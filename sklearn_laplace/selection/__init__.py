"""How hyperparameters are chosen: the registry. One file a variant, file name = key."""

from .evidence import maximise_evidence

SELECTIONS = {"evidence": maximise_evidence}

__all__ = ["SELECTIONS", "maximise_evidence"]
