"""Proper scoring rules for predictive distributions, interval coverage, and calibration of class probabilities."""

from .calibration import expected_calibration_error
from .scores import (
    CALIBRATION_LEVELS,
    calibration_gap,
    coverage,
    log_density_scorer,
    mean_width,
    neg_crps,
    neg_interval_score,
    neg_nlpd,
    sharpness,
)

__all__ = [
    "CALIBRATION_LEVELS",
    "calibration_gap",
    "coverage",
    "expected_calibration_error",
    "log_density_scorer",
    "mean_width",
    "neg_crps",
    "neg_interval_score",
    "neg_nlpd",
    "sharpness",
]
