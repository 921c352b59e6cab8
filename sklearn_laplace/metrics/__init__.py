"""Proper scoring rules for predictive distributions, interval coverage, and reports of calibration."""

from .._estimator.scorers import REPORTED, SCORERS
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

SCORERS.update(log_density=log_density_scorer, neg_nlpd=neg_nlpd)
SCORERS.update(crps=neg_crps, neg_crps=neg_crps)
SCORERS.update(interval_score=neg_interval_score, neg_interval_score=neg_interval_score)
REPORTED.update(coverage="interval_score", mean_width="interval_score", sharpness="crps", calibration_gap="log_density")
