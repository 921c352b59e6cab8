"""How hyperparameters are chosen: the registry. One file a variant, file name = key.

``alternating`` is what the training uses where the evidence chooses: weights and hyperparameters in turn.
"""

from .alternating import alternate
from .evidence import maximise_evidence, warn_at_bounds
from .held_out import HeldOut, HeldOutScores, held_out_scores
from .loo import LooPath, at_best_noise, has_path, loo_path, select_loo
from .residual import residual_dispersion

SELECTIONS = {
    "evidence": maximise_evidence,
    "residual": residual_dispersion,
    "alternating": alternate,
    "loo": select_loo,
    "held_out": held_out_scores,
}

__all__ = [
    "SELECTIONS",
    "HeldOut",
    "HeldOutScores",
    "LooPath",
    "alternate",
    "at_best_noise",
    "has_path",
    "held_out_scores",
    "loo_path",
    "maximise_evidence",
    "residual_dispersion",
    "select_loo",
    "warn_at_bounds",
]
