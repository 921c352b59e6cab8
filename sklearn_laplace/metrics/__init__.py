"""Proper scoring rules, interval coverage and calibration reports for predictive distributions."""

from .calibration import expected_calibration_error
from .calibration_report import CalibrationReport
from .cross_validation import cross_validate_distribution
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
    "CalibrationReport",
    "calibration_gap",
    "coverage",
    "cross_validate_distribution",
    "expected_calibration_error",
    "log_density_scorer",
    "mean_width",
    "neg_crps",
    "neg_interval_score",
    "neg_nlpd",
    "sharpness",
]
