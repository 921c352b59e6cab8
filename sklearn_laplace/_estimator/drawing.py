"""Drawing of a fitted estimator.

The displays use the estimators, and therefore stand after them in the order of the packages. They are loaded when a
figure is drawn, as is matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PACKAGE = __name__.partition(".")[0]


def overview(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    return import_module(f"{PACKAGE}.plotting").OverviewDisplay.from_estimator(estimator, X, y, **options)


def calibration(report: Any, **options: Any) -> Any:
    return import_module(f"{PACKAGE}.plotting").CalibrationReportDisplay(report).plot(**options)
