r"""Calibration report of a regressor with a predictive distribution: seven checks, sharpness and CRPS.

On held-out rows, treated as independent, each check tests one consequence of calibration at significance level .05:

* location: the mean of the normal scores :math:`\Phi^{-1}(u_n)` is 0, where :math:`u_n = F_n(y_n)` for the predictive
  distribution function :math:`F_n` (``metrics/spread.py``);
* variance: the mean squared normal score is 1 (``metrics/spread.py``);
* PIT: the probability integral transform :math:`u_n` is uniform (``metrics/ecdf_bands.py``);
* coverage: :math:`|2 u_n - 1|` is uniform, so every central interval has its nominal coverage;
* variance by size: squared errors agree with predicted variances, in bins of the predicted standard deviation;
* coverage by width, and coverage by group: 90 % intervals cover 90 % of the targets in every group
  (``metrics/worst_groups.py``).

The p-values are adjusted for multiple testing by Holm's method (1979), which is valid for dependent tests.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import _num_samples

from .._estimator.printing import calibration
from .._estimator.report import GROUP_LEVEL, LEVELS, PLAUSIBLE, Frequency
from .._validation.arguments import explained, random_numbers
from .crps_decomposition import CrpsDecomposition
from .ecdf_bands import EcdfBand
from .judged_rows import JudgedRows
from .scores import CALIBRATION_LEVELS, _distribution
from .spread import Spread, VarianceBins
from .worst_groups import GroupCoverage, leaves, strata

PIT_POINTS = np.arange(1, 100) / 100
"""Points at which the PIT is compared with the uniform distribution."""


@dataclass(frozen=True)
class Sharpness:
    """Mean predicted standard deviation, mean interval width by level, and standard deviation of the targets."""

    mean_std: float
    std_of_targets: float
    widths: dict[float, float]

    @classmethod
    def of(cls, rows: JudgedRows) -> Self:
        """Sharpness of the predictive distributions of rows."""

        def mean(values: np.ndarray) -> float:
            return float(np.average(values, weights=rows.weights))

        widths = {level: mean(rows.widths(level)) for level in LEVELS}
        return cls(mean(rows.std), mean((rows.y - mean(rows.y)) ** 2) ** 0.5, widths)


@explained
@dataclass(frozen=True)
class CalibrationReport:
    """Checks of predictive distributions on held-out rows. The report prints as text, and :meth:`plot` draws it.

    Use :meth:`from_estimator` or :meth:`from_distribution` to create it. The guide "How to check the calibration of a
    model" explains each part.

    Parameters
    ----------
    n_rows : int
        Number of rows with a positive weight.
    spread : Spread
        Mean of the normal scores (normal quantiles of the PIT), and ratio of true to predicted variance with interval.
    pit : EcdfBand
        Distribution function of the PIT (probability integral transform F(y)) with its simultaneous band.
    pit_values : ndarray of shape (n_rows,)
        PIT of each row.
    coverage : tuple of Frequency
        Coverage of central intervals at the levels .05, .1, …, .95. Each band holds for one level only.
    coverage_band : EcdfBand
        The same coverage, with a band that holds for all levels together.
    variances : VarianceBins
        Comparison of squared errors with predicted variances, in bins.
    widths : GroupCoverage
        Coverage of the 90 % intervals by their width.
    groups : GroupCoverage or None
        Coverage of the 90 % intervals in the leaves of a tree. Half of the rows grow the tree, and the other half are
        evaluated. None without a table X, or for fewer than 160 rows.
    crps : CrpsDecomposition
        CRPS, and its parts miscalibration, discrimination and uncertainty.
    sharpness : Sharpness
        Mean predicted standard deviation and interval widths.

    Examples
    --------
    >>> from scipy.stats import norm
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(1000, 2))
    >>> y = X[:, 0] + np.where(X[:, 1] > 0.8, 2.0, 1.0) * rng.normal(size=1000)
    >>> report = CalibrationReport.from_distribution(norm(X[:, 0], 1.2), y, X)
    >>> report.groups.worst.name, report.groups.is_off
    ('0.7998 < column 1 ≤ 0.889', True)
    """

    n_rows: int
    spread: Spread
    pit: EcdfBand
    pit_values: np.ndarray
    coverage: tuple[Frequency, ...]
    coverage_band: EcdfBand
    variances: VarianceBins
    widths: GroupCoverage
    groups: GroupCoverage | None
    crps: CrpsDecomposition
    sharpness: Sharpness

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        output: int | None = None,
        random_state: Any = 0,
    ) -> Self:
        """Report on a fitted regressor.

        Parameters
        ----------
        estimator : fitted regressor
            A Laplace regressor, a regressor with ``predict(X, return_std=True)``, ``pred_dist`` (NGBoost) or
            ``predict_dist``, or CatBoost with ``loss_function="RMSEWithUncertainty"``. It may be inside pipelines and
            searches.
        X : array-like of shape (n_samples, n_features)
            At least 20 held-out rows. Column names of a dataframe appear in the names of groups.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets of these rows.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows. Bands and tests then use Kish's effective sample size, and are approximate.
        output : int, optional
            Position of the target to report on; required if there are several.
        random_state : int, RandomState or None, default=0
            Seed for the split of the rows into halves, the simulated miscalibration and the PIT of counts.

        Returns
        -------
        CalibrationReport

        Raises
        ------
        TypeError, NotFittedError
            If the estimator is a classifier, predicts points only, or is not fitted.
        ValueError
            If the shapes do not match, there are too few rows, or a standard deviation is not positive and finite. Also
            if the targets of a count model are not integers.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import BayesianRidge
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> report = CalibrationReport.from_estimator(BayesianRidge().fit(X[:200], y[:200]), X[200:], y[200:])
        >>> print(report.spread)
        variance ratio 1.05, 95% interval 0.89 to 1.27
        """
        distribution = _distribution(cls.__name__, estimator, X)
        options = {"sample_weight": sample_weight, "output": output, "random_state": random_state}
        return cls.from_distribution(distribution, y, X, **options)

    @classmethod
    def from_distribution(
        cls,
        distribution: Any,
        y: Any,
        X: Any = None,
        *,
        sample_weight: Any = None,
        output: int | None = None,
        random_state: Any = 0,
    ) -> Self:
        """Report on predictive distributions.

        Parameters
        ----------
        distribution : frozen distribution with ``mean``, ``std``, ``cdf`` and ``ppf``
            Predictive distribution of each target, such as the result of ``predict_dist`` or ``scipy.stats.norm(…)``.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        X : array-like of shape (n_samples, n_features), optional
            Columns that define groups of rows.
        sample_weight, output, random_state
            As in :meth:`from_estimator`.

        Returns
        -------
        CalibrationReport

        Raises
        ------
        TypeError, ValueError
            If the distribution lacks a method, or for a reason listed in :meth:`from_estimator`.
        """
        random = random_numbers(random_state)
        rows = JudgedRows.of(distribution, y, output, sample_weight, random)
        if X is not None and _num_samples(X) != len(rows.kept):
            raise ValueError(f"X has {_num_samples(X)} rows for {len(rows.kept)} targets; expected one row per target.")
        w, reached = rows.weights, np.abs(2 * rows.pit - 1)
        inside = reached <= GROUP_LEVEL
        groups = None if X is None else leaves(X, rows.kept, rows.pit, w, random)
        return cls(
            n_rows=len(rows.y),
            spread=Spread.of(rows.scores, w),
            pit=EcdfBand.of(rows.pit, PIT_POINTS, w),
            pit_values=rows.pit,
            coverage=tuple(
                Frequency.of(f"{level:.0%} intervals", reached <= level, level, weights=w)
                for level in CALIBRATION_LEVELS.tolist()
            ),
            coverage_band=EcdfBand.of(reached, CALIBRATION_LEVELS, w),
            variances=VarianceBins.of(rows.y - rows.mean, rows.std, rows.variance_of_square, w),
            widths=GroupCoverage.of(strata(rows.widths(GROUP_LEVEL), w), inside, GROUP_LEVEL, w),
            groups=None if groups is None else GroupCoverage.of(groups, inside, GROUP_LEVEL, w),
            crps=CrpsDecomposition.of(rows.quantiles, rows.y, w, rows.draws),
            sharpness=Sharpness.of(rows),
        )

    @property
    def checks(self) -> dict[str, float]:
        """P-value of each check. A check fails if its p-value is below .05."""
        found = {
            "location": self.spread.mean_pvalue,
            "variance": self.spread.pvalue,
            "PIT": self.pit.pvalue,
            "coverage": self.coverage_band.pvalue,
            "variance by size": self.variances.pvalue,
            "coverage by width": self.widths.pvalue,
        }
        return found if self.groups is None else found | {"coverage by group": self.groups.pvalue}

    @property
    def adjusted(self) -> dict[str, float]:
        """P-values of the checks, adjusted for multiple testing by Holm's method; at most 1."""
        ordered = sorted(self.checks.items(), key=lambda item: item[1])
        scaled = [(len(ordered) - k) * pvalue for k, (_, pvalue) in enumerate(ordered)]
        return dict(zip((name for name, _ in ordered), np.maximum.accumulate(scaled).clip(0, 1).tolist(), strict=True))

    @property
    def is_off(self) -> bool:
        """True if a check fails after the adjustment, which happens for at most 1 in 20 calibrated models."""
        return min(self.adjusted.values()) < 1 - PLAUSIBLE

    def plot(self, ax: Any = None, *, figure: Any = None) -> Any:
        """Draw the report as a :class:`~sklearn_laplace.plotting.CalibrationReportDisplay`.

        Parameters
        ----------
        ax, figure
            As in ``CalibrationReportDisplay.plot``, which raises the same errors.

        Returns
        -------
        CalibrationReportDisplay
        """
        return calibration(self, ax=ax, figure=figure)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


def _lines(report: CalibrationReport) -> list[str]:
    spread, crps, sharp = report.spread, report.crps, report.sharpness
    lines = [f"Calibration on {report.n_rows:,} rows; <-- marks a failed check"]
    lines += [_check(report, "location", f"mean normal score {spread.mean:+.3f}")]
    lines += [_check(report, "variance", str(spread).removesuffix("  <--"))]
    lines += [f"{'':<19}a ratio of {spread.detectable:.2f} is found with probability .8"]
    lines += [_check(report, "PIT", f"largest deviation from uniform {_deviation(report.pit):.3f}")]
    lines += [_check(report, "coverage", f"largest deviation from nominal {_deviation(report.coverage_band):.3f}")]
    shown = [entry for entry in report.coverage if round(entry.expected, 2) in LEVELS]
    lines += [f"  {entry.name:<17}{str(entry).removesuffix('  <--')}" for entry in shown]
    lines += [_check(report, "variance by size", f"ENCE {report.variances.ence:.3f} in {len(report.variances.n)} bins")]
    for name, judged in (("coverage by width", report.widths), ("coverage by group", report.groups)):
        if judged is not None:
            worst, text = judged.worst, str(judged.worst).removesuffix("  <--")
            lines += [_check(report, name, f"{GROUP_LEVEL:.0%} intervals, worst of {len(judged.groups)} groups")]
            lines += [f"  {worst.name} ({worst.n:,} rows): {text}"]
    lines += [f"{'CRPS':<19}{crps.score:.4g} = {crps.miscalibration:.3g} miscalibration"]
    lines[-1] += f" - {crps.discrimination:.4g} discrimination + {crps.uncertainty:.4g} uncertainty"
    if np.isfinite(crps.expected):
        lines += [
            f"{'':<19}by chance, miscalibration is {crps.expected:.3g}, in 1 of 20 cases above {crps.plausible:.3g}"
        ]
    width = f"{GROUP_LEVEL:.0%} intervals {sharp.widths[GROUP_LEVEL]:.4g} wide"
    lines += [f"{'sharpness':<19}mean std {sharp.mean_std:.4g}, targets {sharp.std_of_targets:.4g}; {width}"]
    return lines + _summary(report) + [f"- {line}" for line in advice(report)]


def _summary(report: CalibrationReport) -> list[str]:
    n_failed = sum(pvalue < 1 - PLAUSIBLE for pvalue in report.checks.values())
    least = min(report.adjusted.values())
    lines = [f"{n_failed} of {len(report.checks)} checks fail; smallest p adjusted for their number: {least:.2g}"]
    if n_failed and not report.is_off:
        lines += ["none is below .05 after the adjustment: a failed check can be chance, which more rows will show"]
    return lines


def _check(report: CalibrationReport, name: str, text: str) -> str:
    pvalue = report.checks[name]
    return f"{name:<19}{text}, p = {pvalue:.2g}" + ("  <--" if pvalue < 1 - PLAUSIBLE else "")


def _deviation(band: EcdfBand) -> float:
    return float(np.abs(band.observed - band.points).max())


def advice(report: CalibrationReport) -> list[str]:
    """Lines that explain the failed checks and suggest what to try."""
    found = _advice_on_spread(report.spread)
    parts = [report.widths, *([] if report.groups is None else [report.groups])]
    if any(part.is_off and part.equality_pvalue < 1 - PLAUSIBLE for part in parts):
        found += [
            "error bars are wrong for some rows: model noise that varies (likelihood='heteroscedastic'), or add "
            "columns that tell these rows apart."
        ]
    if not found and (report.pit.is_off or report.coverage_band.is_off):
        found += ["the shape of the distributions is wrong: try target_transform, or another likelihood."]
    return found


def _advice_on_spread(spread: Spread) -> list[str]:
    found = []
    if spread.mean_is_off:
        side = "low" if spread.mean > 0 else "high"
        found += [
            f"predictions are too {side} by {abs(spread.mean):.2f} standard deviations on average: look for drift."
        ]
    if spread.is_off and spread.ratio == 0:
        found += ["error bars are too wide: all targets are predicted exactly."]
    elif spread.is_off:
        factor, side = (spread.ratio**0.5, "narrow") if spread.ratio > 1 else (spread.ratio**-0.5, "wide")
        found += [
            f"error bars are too {side} by a factor of {factor:.2f}: recalibrate with SigmaScaling on further rows."
        ]
    return found
