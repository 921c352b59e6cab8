"""Registry of methods that select prior precision and noise at fixed weights. The file name is the key."""

from .evidence import maximise_evidence, warn_at_bounds
from .held_out import HeldOutErrors, HeldOutScores, held_out_scores, log_densities, prior_factors
from .loo import at_best_noise, has_path, loo_path, select_loo

SELECTIONS = {
    "evidence": maximise_evidence,
    "loo": select_loo,
    "held_out": held_out_scores,
}
__all__ = [
    "SELECTIONS",
    "HeldOutErrors",
    "HeldOutScores",
    "at_best_noise",
    "has_path",
    "held_out_scores",
    "log_densities",
    "loo_path",
    "maximise_evidence",
    "prior_factors",
    "select_loo",
    "warn_at_bounds",
]
