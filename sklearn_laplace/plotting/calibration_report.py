"""Figure of a calibration report: PIT, coverage, variances, groups, widths and parts of the CRPS."""

from textwrap import fill
from typing import Any, Self

import numpy as np

from .._estimator.report import Frequency
from .._validation.arguments import explained
from ..metrics.calibration_report import CalibrationReport
from ..metrics.ecdf_bands import EcdfBand
from ._canvas import BLUE, GREEN, GREY, REFERENCE, VERMILLION, mosaic, tint

ROOMS = [["pit", "coverage", "variances"], ["groups", "widths", "crps"]]
SIZE = 15.0, 8.5
"""Size of a new figure in inches."""
WRAPPED = 32
"""Maximum number of characters in a line of a group's name."""
NO_GROUPS = "no groups: they need a table X\nand at least 160 rows"


@explained
class CalibrationReportDisplay:
    """Six panels of a :class:`~sklearn_laplace.metrics.CalibrationReport`.

    1. Distribution function of the PIT (probability integral transform), minus that of a calibrated model, with a
       simultaneous band.
    2. Coverage of central intervals minus their level, with a band for each level and a simultaneous band.
    3. Root mean squared error against predicted standard deviation, in bins.
    4. Coverage of the 90 % intervals in groups of rows.
    5. Coverage of the 90 % intervals by their width.
    6. CRPS as uncertainty − discrimination + miscalibration.

    The title of a panel is red if its check fails.

    Parameters
    ----------
    report : CalibrationReport

    Attributes
    ----------
    report : CalibrationReport
    axes_, figure_
        Axes of the drawn panels, and their figure; set by :meth:`plot`.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = BayesianRidge().fit(X[:200], y[:200])
    >>> display = CalibrationReportDisplay.from_estimator(model, X[200:], y[200:])
    >>> len(display.axes_)
    6
    >>> plt.close(display.figure_)
    """

    def __init__(self, report: CalibrationReport) -> None:
        if not isinstance(report, CalibrationReport):
            raise TypeError(
                f"report is of type {type(report).__name__}; expected a CalibrationReport. Use from_estimator for a "
                "fitted regressor."
            )
        self.report = report

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, ax: Any = None, figure: Any = None, **options: Any
    ) -> Self:
        """Compute the report of a fitted regressor and draw it.

        Parameters
        ----------
        estimator, X, y, **options
            As in :meth:`CalibrationReport.from_estimator <sklearn_laplace.metrics.CalibrationReport.from_estimator>`.
        ax, figure
            As in :meth:`plot`.
        """
        return cls(CalibrationReport.from_estimator(estimator, X, y, **options)).plot(ax, figure=figure)

    def plot(self, ax: Any = None, *, figure: Any = None) -> Self:
        """Draw the report.

        Parameters
        ----------
        ax : None, Axes or sequence of six Axes
            Axes to draw on; None creates a figure. A single Axes shows the first panel only.
        figure : Figure or SubFigure, optional
            Figure to draw in; by default a new one.

        Raises
        ------
        ImportError, TypeError, ValueError
            If matplotlib is not installed, ``ax`` or ``figure`` has the wrong type or length, or both are given.
        """
        self.axes_ = mosaic(type(self).__name__, ax, figure, ROOMS, SIZE)
        self.figure_ = self.axes_[0].figure
        panels = (self._pit, self._coverage, self._variances, self._groups, self._widths, self._crps)
        for draw, axes in zip(panels, self.axes_, strict=False):
            draw(axes)
        return self

    def _pit(self, ax: Any) -> None:
        band = self.report.pit
        _band(ax, band, "calibrated model, 95 % for the whole curve", 0.14)
        ax.plot(band.points, band.observed - band.points, color=BLUE, lw=2, label="PIT of the rows")
        ax.set(xlabel="level z", ylabel="share of PIT ≤ z, minus z", xlim=(0, 1))
        _finish(ax, f"PIT, p = {band.pvalue:.2g}", is_off=band.is_off, room=0.3)

    def _coverage(self, ax: Any) -> None:
        band, entries = self.report.coverage_band, self.report.coverage
        _band(ax, band, "calibrated model, 95 % for all levels", 0.14)
        ends = [np.array([entry.low for entry in entries]), np.array([entry.high for entry in entries])]
        ax.fill_between(
            band.points,
            *(end - band.points for end in ends),
            color=tint("#000000", 0.3),
            lw=0,
            label="95 % for each level",
        )
        ax.plot(band.points, band.observed - band.points, color=BLUE, lw=2, marker="o", ms=4, label="central intervals")
        ax.set(xlabel="level of the interval", ylabel="share of targets inside, minus level", xlim=(0, 1))
        _finish(ax, f"coverage, p = {band.pvalue:.2g}", is_off=band.is_off, room=0.4)

    def _variances(self, ax: Any) -> None:
        bins, spread = self.report.variances, self.report.spread
        ends = np.array([bins.predicted.min(), bins.predicted.max()])
        ax.plot(ends, ends, **REFERENCE)
        look = {"color": tint("#000000", 0.3), "lw": 7, "label": "calibrated model, 95 % for all bins"}
        ax.vlines(bins.predicted, bins.low, bins.high, **look)
        ax.plot(bins.predicted, bins.observed, color=BLUE, ls="none", marker="o", label="rows with similar predictions")
        ax.set(xlabel="predicted standard deviation", ylabel="root mean squared error")
        if is_wide := ends[1] > 5 * ends[0]:
            ax.set(xscale="log", yscale="log")
        text = f"variance ratio {spread.ratio:.2f} ({spread.low:.2f} to {spread.high:.2f})"
        _finish(ax, text, is_off=spread.is_off or bins.is_off, room=0.0 if is_wide else 0.2)

    def _groups(self, ax: Any) -> None:
        if self.report.groups is None:
            ax.text(0.5, 0.5, NO_GROUPS, ha="center", va="center", transform=ax.transAxes)
            ax.set(xticks=[], yticks=[])
            return
        judged = self.report.groups
        _coverages(ax, sorted(judged.groups, key=lambda entry: -entry.observed))
        _finish(ax, f"coverage by group, p = {judged.pvalue:.2g}", is_off=judged.is_off, room=0.25)

    def _widths(self, ax: Any) -> None:
        judged = self.report.widths
        _coverages(ax, list(judged.groups))
        _finish(ax, f"coverage by width, p = {judged.pvalue:.2g}", is_off=judged.is_off, room=0.25)

    def _crps(self, ax: Any) -> None:
        parts = self.report.crps
        resolved = parts.uncertainty - parts.discrimination
        names = ["uncertainty", "− discrimination", "+ miscalibration", "= CRPS"]
        starts = [0.0, resolved, resolved, 0.0]
        lengths = [parts.uncertainty, parts.discrimination, parts.miscalibration, parts.score]
        bars = ax.barh(names, lengths, left=starts, color=[tint(GREY, 0.6), GREEN, VERMILLION, BLUE])
        texts = [f"{length:.3g}" for length in lengths]
        if np.isfinite(parts.expected):
            texts[2] += f" (by chance {parts.expected:.3g})"
        ax.bar_label(bars, texts, padding=4, fontsize="small")
        ax.invert_yaxis()
        ax.set(xlabel="units of y", xlim=(0, 1.4 * max(parts.uncertainty, parts.score)))
        _finish(ax, "parts of the CRPS", is_off=parts.is_off)


def _band(ax: Any, band: EcdfBand, label: str, share: float) -> None:
    low, high = band.low - band.points, band.high - band.points
    ax.fill_between(band.points, low, high, color=tint("#000000", share), lw=0, label=label)
    ax.axhline(0, **REFERENCE)


def _coverages(ax: Any, entries: list[Frequency]) -> None:
    """Draw the coverage of groups as points, and their bands as bars."""
    places = np.arange(len(entries))
    look = {"color": tint("#000000", 0.3), "lw": 9, "label": "calibrated model, 95 % for all groups"}
    ax.hlines(places, [entry.low for entry in entries], [entry.high for entry in entries], **look)
    ax.axvline(entries[0].expected, **REFERENCE)
    for is_off, colour, marker, label in ((False, BLUE, "o", "inside"), (True, VERMILLION, "X", "outside")):
        chosen = [
            (entry.observed, place) for entry, place in zip(entries, places, strict=True) if entry.is_off is is_off
        ]
        if chosen:
            ax.plot(*zip(*chosen, strict=True), color=colour, marker=marker, ms=8, ls="none", label=label)
    ax.set_yticks(
        places,
        [fill(f"{entry.name} ({entry.n:,}\N{NO-BREAK SPACE}rows)", WRAPPED) for entry in entries],
        fontsize="small",
    )
    ax.set(xlabel=f"coverage of the {entries[0].expected:.0%} intervals", ylim=(-0.6, len(entries) - 0.4))


def _finish(ax: Any, title: str, *, is_off: bool, room: float = 0.0) -> None:
    """Set the title, and a legend above the curves that takes a share ``room`` of the height."""
    ax.set_title(title, color=VERMILLION if is_off else "black", fontsize="medium")
    low, high = ax.get_ylim()
    if room:
        ax.set_ylim(low, high + room / (1 - room) * (high - low))
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small", loc="upper left", framealpha=0.7)
