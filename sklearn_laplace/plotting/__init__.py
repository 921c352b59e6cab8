"""Pictures of uncertainty in scikit-learn's display conventions; matplotlib is imported when something is drawn.

Each display computes its numbers in ``from_estimator`` or ``from_predictions``, holds them as attributes, and draws
them in ``plot``, again on other axes if asked. Estimators may be inside pipelines and searches.
"""

from .coverage import CoverageDisplay
from .entropy import EntropyDisplay
from .feature_relevance import FeatureRelevanceDisplay
from .prediction_interval import PredictionIntervalDisplay
from .prior_path import PriorPathDisplay
from .reliability import ReliabilityDisplay
from .uncertainty import UncertaintyDisplay

__all__ = [
    "CoverageDisplay",
    "EntropyDisplay",
    "FeatureRelevanceDisplay",
    "PredictionIntervalDisplay",
    "PriorPathDisplay",
    "ReliabilityDisplay",
    "UncertaintyDisplay",
]
