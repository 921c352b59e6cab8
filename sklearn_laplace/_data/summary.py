"""Properties of the rows on which options and nets of a fit depend."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .target_scale import TargetScale


@dataclass(frozen=True)
class TargetSummary:
    """Scale and total weight of the targets, which determine options of a fit.

    Parameters
    ----------
    single_logit : bool
        True for two classes with one output.
    mean_variance : float
        Variance of the targets in the network's units, averaged over the outputs.
    average_noise : tuple of float
        Average known noise variance of each target, in units of φ; empty without known noise.
    total_weight : float
        Sum N_w of the row weights.
    scale : TargetScale
        Map from the units of y to those of the net.
    """

    single_logit: bool
    mean_variance: float
    average_noise: tuple[float, ...]
    total_weight: float
    scale: TargetScale


@dataclass(frozen=True)
class TableShape:
    """Numbers of rows, columns and outputs, which determine the nets of a fit.

    Parameters
    ----------
    n_rows, n_outputs : int
        Number of different rows, and number of outputs of the net.
    levels : tuple of int
        Number of levels of each column; 0 for numbers.
    n_added : int
        Number of other inputs of the net: missing-value indicators, and waves of the cycles of dates.
    has_pieces : bool
        True if a numeric column has more than two values; with two values, its only piece equals the number.
    has_copies : bool
        True if data augmentation has replaced the rows by copies.
    least_total : float
        Smallest weighted sum of a target over the rows. For counts it is a number of events.
    """

    n_rows: int
    n_outputs: int
    levels: tuple[int, ...]
    n_added: int
    has_pieces: bool
    has_copies: bool
    least_total: float = math.inf
