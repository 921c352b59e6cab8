"""How hyperparameters are chosen: the registry. One file a variant, file name = key.

``alternating`` is what the training uses where the evidence chooses: weights and hyperparameters in turn.
"""

from .alternating import alternate
from .evidence import maximise_evidence, warn_at_bounds
from .residual import residual_dispersion

SELECTIONS = {"evidence": maximise_evidence, "residual": residual_dispersion, "alternating": alternate}

__all__ = ["SELECTIONS", "alternate", "maximise_evidence", "residual_dispersion", "warn_at_bounds"]
