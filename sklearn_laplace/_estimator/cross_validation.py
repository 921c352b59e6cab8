r"""Selection of the prior precision by a score on held-out rows: folds, or a validation set.

The selected precision is :math:`\hat\delta = \arg\max_\delta \frac{1}{K} \sum_k s(M_{-k}(\delta), D_k)`. Here
:math:`M_{-k}(\delta)` is the model fitted under δ without the rows :math:`D_k`, and s a score, by default the mean log
predictive density. This file uses only the public methods of a model: ``clone``, ``set_params``, ``fit``,
``refit_laplace``, and those that predict.

If ``map_prior_precision`` is a number, δ has no effect on the training. Then K trainings score any number of
candidates, and one more training fits all rows. Otherwise each candidate is trained in each fold. With the default
ensemble such a candidate is a single net with constant noise and few training steps.
"""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import check_scoring, get_scorer, get_scorer_names
from sklearn.metrics._scorer import _BaseScorer
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_sample_weight, _num_samples

from .._approximation.prior_scores import PriorScores
from .._options.options import is_number
from .._runtime.progress import Task
from .._validation.inputs import shown
from .._validation.values import choice, lookup
from .._warn import warn_user
from ..errors import BoundWarning, NonFiniteError, UnsupportedCombinationError
from ..laplace.prior_groups import GROUPINGS
from .scorers import REPORTED, SCORERS, Scorer

GRID = np.logspace(-3, 3, 13)
"""Default candidates: two per decade around 1, the natural precision of the built-in net (other nets: the fan-in)."""
N_FOLDS = 5
"""Default number of folds."""
ONE_NET: dict[str, Any] = {"n_members": 1, "n_bins": None}
ONE_NOISE: dict[str, Any] = {"likelihood": "gaussian", "sigma_noise": "evidence"}
"""Parameters of the candidates of a default ensemble in the folds: a single net, and constant noise."""


@dataclass(frozen=True)
class GivenRows:
    """Arguments of ``fit`` that have one entry per row; ``sample_noise_variance`` are known noise variances."""

    X: Any
    y: Any
    sample_weight: Any = None
    sample_noise_variance: Any = None

    @classmethod
    def of(cls, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> GivenRows:
        """From validated arguments of ``fit``; a scalar weight is repeated for each row."""
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        X, y, variances = indexable(X, y, sample_noise_variance)
        return cls(X, y, weights, variances)

    def part(self, rows: np.ndarray) -> GivenRows:
        """The rows at these positions, in containers of the original types."""
        values = (getattr(self, field.name) for field in fields(self))
        return GivenRows(*(None if value is None else _safe_indexing(value, rows) for value in values))

    def fitted(self, model: Any) -> Any:
        """Fit the model on these rows and return it."""
        return model.fit(self.X, self.y, self.sample_weight, self.sample_noise_variance)


@dataclass(frozen=True)
class HeldOutRule(ABC):
    """Rule that selects the prior precision on held-out rows.

    ``grid`` (k,) has the candidates. ``scoring`` is the value of the user's option, for messages, and ``scorer`` the
    scorer that it stands for. ``cv`` is None, a number, a splitter or an iterable of (train, test), as in
    ``GridSearchCV``; ``random_state`` is that of the default folds. ``one_training`` is True if all candidates share
    one training.
    """

    grid: np.ndarray
    scoring: Any
    scorer: Scorer
    cv: Any
    X_val: Any
    y_val: Any
    n_jobs: int | None
    random_state: Any
    one_training: bool

    name: ClassVar[str]
    place: ClassVar[str]
    advice: ClassVar[str]

    @abstractmethod
    def chosen(self, model: Any, rows: GivenRows, task: Task) -> tuple[Any, PriorScores]:
        """Select the best candidate, and return the model fitted under it and all scores.

        ``model`` is an unfitted estimator without this rule; it is cloned. ``task`` gets two subtasks: the selection,
        and the fit of all rows.
        """

    def candidates(self, model: Any, rows: GivenRows, *, is_quick: bool = False) -> Iterator[Any]:
        """Yield the model fitted to the rows under each candidate; it is the same object if one training is enough.

        ``model`` is an unfitted estimator, which is cloned. If ``is_quick``, train with few steps, because the fits are
        only scored.
        """
        fitted = None
        for precision in self.grid.tolist():
            if fitted is not None and self.one_training:
                fitted.refit_laplace(prior_precision=precision)
            else:
                candidate = _candidate(model, precision)
                candidate._is_quick = is_quick
                fitted = rows.fitted(candidate)
            yield fitted

    def score(self, model: Any, rows: GivenRows) -> float:
        """Score of a fitted model on held-out rows.

        Raises ``ValueError`` for a score that is not a number, NaN, or infinite and positive.
        """
        weighted = rows.sample_weight is not None and _takes_weights(self.scorer)
        weights = {"sample_weight": rows.sample_weight} if weighted else {}
        try:
            value = self.scorer(model, rows.X, rows.y, **weights)
        except (TypeError, ValueError) as error:
            if self.scoring is None:
                raise
            raise type(error)(f"scoring={self.scoring!r} of prior_precision={self.name!r} failed: {error}") from error
        if value == -math.inf and is_classifier(model):
            self._check_labels(rows.y, model.classes_)
        if not isinstance(value, Real) or math.isnan(value) or value == math.inf:
            raise ValueError(
                f"scoring={self.scoring!r} gave {value!r} for prior_precision={model.prior_precision:g}; a score "
                "has to be one finite number, or -inf for the worst possible score. Check the held-out rows, or use "
                "another scoring."
            )
        return float(value)

    def _check_labels(self, y: Any, classes: np.ndarray) -> None:
        """Refuse held-out labels without a training row, whose log density is −inf for every candidate."""
        if unknown := sorted({*np.ravel(y).tolist()} - {*classes.tolist()}):
            raise ValueError(
                f"{self.place} holds the labels {unknown}, which are not among the classes of its training rows, "
                f"{shown(classes.tolist())}; their log density is -inf. {self.advice}, or use "
                "scoring='accuracy' or prior_precision='auto'."
            )

    def found(self, folds: Sequence[Sequence[float]]) -> PriorScores:
        """Check the scores of all folds and return them; ``folds`` has the scores of all candidates in each fold.

        Raises ``ValueError`` if no candidate has a finite mean score. Issues ``BoundWarning`` if the best candidate is
        at an end of the grid, or all candidates have the same score.
        """
        scores = PriorScores.of(self.grid, self.name, folds)
        if not np.isfinite(scores.mean).any():
            raise ValueError(
                f"prior_precision={self.name!r}: every candidate scores -inf. The held-out rows have targets that are "
                "impossible under each fit, such as a target of 0 with target_transform='log' or a negative count. "
                "Omit these rows, use another target_transform or likelihood, or use another scoring."
            )
        self._warn(scores)
        return scores

    def _warn(self, scores: PriorScores) -> None:
        best, mean = scores.best, scores.mean
        if len(mean) < 3:
            return
        if mean.max() - mean.min() <= 1e-12 * abs(mean.max()):
            message = (
                f"scoring={self.scoring!r} is the same for every candidate, and the first one was selected. If "
                "map_prior_precision is a number, all candidates predict the same mean: use scoring=None or another "
                "score of the predictive distribution."
            )
        elif best in (self.grid.min(), self.grid.max()):
            message = (
                f"the best candidate, {best:g}, is at the end of the grid, which goes from "
                f"{self.grid.min():g} to {self.grid.max():g}. Extend the grid"
                f"{', or use another map_prior_precision' if self.one_training else ''}."
            )
        else:
            return
        warn_user(f"prior_precision={self.name!r}: {message}", BoundWarning)


class CrossValidation(HeldOutRule):
    """Cross-validation: the candidate with the best mean score over the folds is fitted to all rows."""

    name = "cv"
    place = "the held-out part of y"
    advice = "Use stratified folds and at least 2 rows of each class"

    def chosen(self, model: Any, rows: GivenRows, task: Task) -> tuple[Any, PriorScores]:
        """Take K + 1 trainings, or k · K + 1 if each candidate is trained, for K folds and k candidates."""
        splits = self.splits(model, rows)
        with task.subtask("prior_precision", len(splits)) as choice:
            folds = [choice.subtask("fold") for _ in splits]
            scores_of_folds = Parallel(n_jobs=self.n_jobs)(
                delayed(self._fold)(model, rows.part(train), rows.part(test), number, fold)
                for number, ((train, test), fold) in enumerate(zip(splits, folds, strict=True))
            )
        scores = self.found(scores_of_folds)
        with task.subtask("fit"):
            return rows.fitted(_candidate(model, scores.best)), scores

    def splits(self, model: Any, rows: GivenRows) -> list[tuple[np.ndarray, np.ndarray]]:
        """Row positions (train, test) of each fold, drawn once; stratified by default if the model is a classifier."""
        try:
            splitter = check_cv(N_FOLDS if self.cv is None else self.cv, rows.y, classifier=is_classifier(model))
            if self.cv is None:
                seed = copy.deepcopy(
                    self.random_state
                )  # drawing folds must not advance the state, which seeds the fits
                splitter = type(splitter)(N_FOLDS, shuffle=True, random_state=seed)
            splits = [(train, test) for train, test in splitter.split(rows.X, rows.y)]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"cv={self.cv!r} of prior_precision={self.name!r} cannot split {_num_samples(rows.y)} rows: "
                f"{str(error).rstrip('.')}. Pass another number of folds, CrossValidated(cv=…), or use "
                "prior_precision='auto'."
            ) from error
        if not splits:
            raise ValueError(
                f"cv={self.cv!r} has no splits. A generator yields its splits only once: pass list(generator)."
            )
        return splits

    def _fold(self, model: Any, train: GivenRows, test: GivenRows, number: int, task: Task) -> list[float]:
        """Scores of all candidates in one fold."""
        try:
            with task:
                fold_model, is_quick = clone(model).set_params(n_jobs=1), not self.one_training and _is_automatic(model)
                fold_model = fold_model.set_params(**_cheaper(model)) if is_quick else fold_model
                return [self.score(fitted, test) for fitted in self.candidates(fold_model, train, is_quick=is_quick)]
        except NonFiniteError as error:  # the original error: its rows are then located in X, not in the fold
            raise error.__cause__ if isinstance(error.__cause__, NonFiniteError) else error from None
        except Exception as error:
            error.add_note(f"In fold {number} of prior_precision={self.name!r}.")
            raise


class ValidationSet(HeldOutRule):
    """Validation set: the candidate with the best score on other rows, which are not used for training."""

    name = "validation"
    place = "y_val"
    advice = "Drop these rows, or add rows with these labels to X and y"

    def chosen(self, model: Any, rows: GivenRows, task: Task) -> tuple[Any, PriorScores]:
        """Take one training, or one per candidate."""
        held_out, values, best = GivenRows(self.X_val, self.y_val), [], model
        with task.subtask("prior_precision"):
            for fitted in self.candidates(model, rows):
                with rows_of("X_val"):
                    values.append(self.score(fitted, held_out))
                best = fitted if values[-1] == max(values) and values.count(values[-1]) == 1 else best
        scores = self.found([values])
        return (best.refit_laplace(prior_precision=scores.best) if self.one_training else best), scores


RULES: dict[str, type[HeldOutRule]] = {"cv": CrossValidation, "validation": ValidationSet}


def rule_for(parameters: Mapping[str, Any], X_val: Any, y_val: Any) -> HeldOutRule | None:
    """Rule for the prior precision that an estimator's parameters request; None if it does not need held-out rows.

    ``parameters`` are valid internal options. Raises ``ValueError`` for a validation set without "validation", and for
    "validation" without a validation set. Raises ``UnsupportedCombinationError`` if several groups of weights have
    separate precisions.

    Examples
    --------
    >>> rule_for({"prior_precision": "validation"}, None, None)
    Traceback (most recent call last):
        ...
    ValueError: prior_precision='validation' needs a validation set: fit(X, y, X_val=..., y_val=...). Without a \
validation set, use prior_precision='cv'.
    """
    name = parameters["prior_precision"]
    rule = RULES.get(name) if isinstance(name, str) else None
    if (X_val is None) != (y_val is None):
        missing = "X_val" if X_val is None else "y_val"
        raise ValueError(f"X_val and y_val go together, but {missing} is missing. Pass both or neither.")
    if rule is not ValidationSet and X_val is not None:
        raise ValueError(
            f"X_val and y_val would be ignored with prior_precision={name!r}. Use "
            f"prior_precision={ValidationSet.name!r}, or omit them."
        )
    if rule is ValidationSet and X_val is None:
        raise ValueError(
            f"prior_precision={name!r} needs a validation set: fit(X, y, X_val=..., y_val=...). Without a validation "
            f"set, use prior_precision={CrossValidation.name!r}."
        )
    if rule is None:
        return None
    scalar = GROUPINGS["scalar"]
    if lookup("prior_structure", parameters["prior_structure"], GROUPINGS) is not scalar:
        raise UnsupportedCombinationError(
            f"prior_precision={name!r} selects one precision for all weights, but the prior structure "
            f"{parameters['prior_structure']!r} needs several. Use prior='scalar', or prior_precision='evidence', "
            "which selects several."
        )
    return rule(
        grid=grid_of(parameters["prior_precision_grid"]),
        scoring=parameters["scoring"],
        scorer=scorer_of(parameters["scoring"]),
        cv=parameters["cv"],
        X_val=X_val,
        y_val=y_val,
        n_jobs=parameters["n_jobs"],
        random_state=parameters["random_state"],
        one_training=is_number(parameters["map_prior_precision"]),
    )


def without_rule(estimator: Any) -> Any:
    """Unfitted estimator with ``prior_precision=1.0``, without a checkpoint, and otherwise with the same parameters.

    It is constructed without the rule before it is cloned, because a generator as ``cv`` cannot be copied.
    """
    rest = {**estimator.get_params(deep=False), "prior_precision": 1.0, "checkpoint": None}
    return clone(type(estimator)(**rest))


def settled(parameters: Mapping[str, Any], scores: PriorScores | None) -> dict[str, Any]:
    """Parameters with the selected precision in place of the rule that selected it.

    Examples
    --------
    >>> settled({"prior_precision": "cv"}, PriorScores.of([0.1, 1.0], "cv", [[1.0, 3.0]]))
    {'prior_precision': 1.0}
    """
    rule = parameters["prior_precision"]
    by_scores = scores is not None and isinstance(rule, str) and rule == scores.kind
    return {**parameters, "prior_precision": scores.best} if by_scores else dict(parameters)  # type: ignore[union-attr]


def check_without_rows(parameters: Mapping[str, Any], method: str) -> None:
    """Refuse rules that need held-out rows in methods that do not have them; the message names the ``method``.

    Examples
    --------
    >>> check_without_rows({"prior_precision": "cv"}, "refit_laplace")
    Traceback (most recent call last):
        ...
    ValueError: refit_laplace cannot use prior_precision='cv', which needs fits without some of the rows. Use fit, a \
number, or 'evidence'.
    """
    rule = parameters["prior_precision"]
    if isinstance(rule, str) and rule in RULES:
        raise ValueError(
            f"{method} cannot use prior_precision={rule!r}, which needs fits without some of the rows. Use fit, a "
            "number, or 'evidence'."
        )


def grid_of(grid: Any) -> np.ndarray:
    """Candidates of the prior precision, shape (k,); the default grid for None.

    Raises ``ValueError`` for anything but a sequence of finite numbers above zero.

    Examples
    --------
    >>> grid_of([1, 10]), grid_of(None).size
    (array([ 1., 10.]), 13)
    >>> grid_of(3.0)
    Traceback (most recent call last):
        ...
    ValueError: grid=3.0 has to be None or a sequence of finite numbers above zero.
    """
    if grid is None:
        return GRID
    try:
        values = choice("grid", grid, [], array=True).value
    except ValueError:
        values = None
    if values is None or values.ndim != 1:
        raise ValueError(f"grid={grid!r} has to be None or a sequence of finite numbers above zero.")
    return values


def scorer_of(scoring: Any) -> Scorer:
    """Scorer that a value of ``scoring`` stands for.

    Raises ``ValueError`` for an unknown name, a metric that must not be maximised, a metric of predictions, or several
    scorers.

    Examples
    --------
    >>> scorer_of(None) is log_density
    True
    >>> scorer_of(["r2"])
    Traceback (most recent call last):
        ...
    ValueError: scoring=['r2'] has to be None, the name of a scorer, or one callable (estimator, X, y).
    """
    if scoring is None:
        return log_density
    if isinstance(scoring, str):
        if scoring in REPORTED:
            raise ValueError(f"scoring={scoring!r} must not be maximised; use scoring={REPORTED[scoring]!r}.")
        names = {**dict.fromkeys(get_scorer_names()), **SCORERS}
        return lookup("scoring", scoring, names) or get_scorer(scoring)
    if callable(scoring):
        return check_scoring(scoring=scoring)
    raise ValueError(f"scoring={scoring!r} has to be None, the name of a scorer, or one callable (estimator, X, y).")


def log_density(model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Weighted mean of the log predictive density of the targets, in nats per row.

    Raises ``ValueError`` if no row has a positive weight.
    """
    values = model.log_predictive_density(X, y)
    weights = np.ones(len(values)) if sample_weight is None else sample_weight
    present = weights > 0  # otherwise a density of zero would give NaN
    if not present.any():
        raise ValueError("every held-out row has sample_weight zero; each fold needs a row with a positive weight.")
    return float(np.average(values[present], weights=weights[present]))


def _candidate(model: Any, precision: float) -> Any:
    """Clone of the model under a candidate precision; its fit issues no diagnostic warnings."""
    candidate = clone(model).set_params(prior_precision=precision)
    candidate._is_candidate = True
    return candidate


def _is_automatic(model: Any) -> bool:
    """True if the net is the built-in one and ``n_members`` has its default value."""
    return model.net is None and repr(model.n_members) == repr(_defaults(model)["n_members"])


def _cheaper(model: Any) -> dict[str, Any]:
    """Cheaper values of parameters at their defaults, for a candidate that is only scored."""
    options = {**ONE_NET, **(ONE_NOISE if is_regressor(model) else {})}
    present, defaults = model.get_params(deep=False), _defaults(model)
    return {name: value for name, value in options.items() if repr(present[name]) == repr(defaults[name])}


def _defaults(model: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(type(model)).parameters.items()}


def _takes_weights(scorer: Scorer) -> bool:
    """True if a scorer accepts ``sample_weight``; for a scikit-learn scorer, if its metric does."""
    function = scorer._score_func if isinstance(scorer, _BaseScorer) else scorer
    return "sample_weight" in inspect.signature(function).parameters


@contextmanager
def rows_of(name: str) -> Iterator[None]:
    """Add the name of the table to errors about rows."""
    try:
        yield
    except (NonFiniteError, ValueError) as error:
        raise type(error)(f"{error} These are rows of {name}.") from error
