"""Displays of predictive uncertainty, following scikit-learn's display API.

Class methods such as ``from_estimator`` compute the numbers of a display, store them as attributes and draw them.
``plot`` draws a display, and can be called again with other axes. All these methods return the display. Estimators may
be wrapped in pipelines and searches. matplotlib is imported only when a display is drawn.
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
