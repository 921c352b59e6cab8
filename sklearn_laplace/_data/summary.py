"""Properties of the rows on which options and nets of a fit depend."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .target_scale import TargetScale


@dataclass(frozen=True)
class TargetSummary:
    """Scale and total weight of the targets, which determine options of a fit."""

    single_logit: bool  # two classes with one output
    mean_variance: float  # in the network's units, averaged over the outputs
    average_noise: tuple[float, ...]  # known noise variance of each target, in units of φ; empty if unknown
    total_weight: float  # sum N_w of the row weights
    scale: TargetScale  # from the units of y to those of the net


@dataclass(frozen=True)
class TableShape:
    """Numbers of rows, columns and outputs, which determine the nets of a fit."""

    n_rows: int  # different rows
    n_outputs: int
    levels: tuple[int, ...]  # of each column; 0 for numbers
    n_added: int  # missing-value indicators, and waves of the cycles of dates
    has_pieces: bool  # a numeric column has more than two values; with two, its only piece equals the number
    least_total: float = math.inf  # smallest weighted sum of a target: for counts, of events
