"""Displays of predictive uncertainty, following scikit-learn's display API.

Each display computes its numbers in ``from_estimator`` or ``from_predictions`` and stores them as attributes. ``plot``
draws them, and can be called again with other axes. All three return the display. Estimators may be wrapped in
pipelines and searches. matplotlib is imported only when a display is drawn.
"""

from .calibration_report import CalibrationReportDisplay
from .coverage import CoverageDisplay
from .entropy import EntropyDisplay
from .feature_relevance import FeatureRelevanceDisplay
from .overview import OverviewDisplay
from .prediction_interval import PredictionIntervalDisplay
from .prior_path import PriorPathDisplay
from .reliability import ReliabilityDisplay
from .uncertainty import UncertaintyDisplay

__all__ = [
    "CalibrationReportDisplay",
    "CoverageDisplay",
    "EntropyDisplay",
    "FeatureRelevanceDisplay",
    "OverviewDisplay",
    "PredictionIntervalDisplay",
    "PriorPathDisplay",
    "ReliabilityDisplay",
    "UncertaintyDisplay",
]
