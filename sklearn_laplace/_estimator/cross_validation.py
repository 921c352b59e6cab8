r"""The prior precision by its score on rows that are held out: in folds, or in a validation set.

:math:`\hat\delta = \arg\max_\delta \frac{1}{K} \sum_k s(M_{-k}(\delta), D_k)` with :math:`M_{-k}(\delta)` the model
fitted without the rows :math:`D_k` under δ, and s a score, by default the mean log predictive density. A model is seen
through ``clone``, ``set_params``, ``fit``, ``refit_laplace`` and what it predicts; what a fit is stands elsewhere.

Where a fixed precision trains the net, δ changes after the training alone: K trainings score any number of candidates,
and one more is the model of all rows. Otherwise each candidate is trained in each fold: of a default mixture one net,
under one noise, by as few steps as cross-fitted nets take. Its scores rank the candidates as those of the mixture do.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sklearn.utils.validation import _check_sample_weight

from .._approximation.prior_scores import PriorScores
from .._options.options import is_number
from .._runtime.progress import Task
from .._validation.values import choice, lookup
from ..errors import BoundWarning, NonFiniteError, UnsupportedCombinationError
from ..laplace.prior_groups import GROUPINGS

GRID = np.logspace(-3, 3, 13)
"""Two candidates a decade around 1, the natural precision of the built-in net; a given net's is about its fan-in."""
N_FOLDS = 5
ONE_NET: dict[str, Any] = {"n_members": 1, "n_bins": None}
ONE_NOISE: dict[str, Any] = {"likelihood": "gaussian", "sigma_noise": "evidence"}
"""What a default mixture's candidates are in the folds: one net of one kind under one noise, trained by a few steps."""
Scorer = Callable[..., Any]
"""From (model, X, y), or (model, X, y, sample_weight), to a number; higher is better."""


@dataclass(frozen=True)
class GivenRows:
    """What ``fit`` was given, row by row.

    Parameters
    ----------
    X, y : array-like of n rows
    sample_weight : ndarray of shape (n,), optional
    sample_noise_variance : array-like of n rows, optional
    """

    X: Any
    y: Any
    sample_weight: Any = None
    sample_noise_variance: Any = None

    @classmethod
    def of(cls, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> GivenRows:
        """From validated arguments of ``fit``; one weight for all rows is one for each."""
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        X, y, variances = indexable(X, y, sample_noise_variance)
        return cls(X, y, weights, variances)

    def part(self, rows: np.ndarray) -> GivenRows:
        """The rows with these numbers, in the containers that they came in."""
        values = (getattr(self, field.name) for field in fields(self))
        return GivenRows(*(None if value is None else _safe_indexing(value, rows) for value in values))

    def fitted(self, model: Any) -> Any:
        """The model after a fit on these rows."""
        return model.fit(self.X, self.y, self.sample_weight, self.sample_noise_variance)


@dataclass(frozen=True)
class HeldOutRule(ABC):
    """A rule that chooses on rows which a fit does not see.

    Parameters
    ----------
    grid : ndarray of shape (k,)
        Candidates for the prior precision.
    scoring : None, str or callable
        As it was given.
    scorer : callable
        What it stands for.
    cv : None, int, splitter or iterable of (train, test)
    X_val, y_val : array-like
        A validation set.
    n_jobs : int or None
        Workers over the folds.
    random_state : int, RandomState or None
    one_training : bool
        Whether the training is the same for every candidate.
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

    @abstractmethod
    def chosen(self, model: Any, rows: GivenRows, task: Task) -> tuple[Any, PriorScores]:
        """The model fitted under the best candidate, and all scores.

        Parameters
        ----------
        model : estimator
            Without this rule; it is cloned.
        rows : GivenRows
        task : Task
            With two parts: the choice, and the fit of all rows.
        """

    def candidates(self, model: Any, rows: GivenRows, *, is_quick: bool = False) -> Iterator[Any]:
        """The model fitted to the rows under each candidate, quickly where it is only scored.

        One object, where one training is enough.
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
        """What a fitted model scores on rows that it has not seen.

        Raises
        ------
        ValueError
            For a score that is no number.
        """
        weighted = rows.sample_weight is not None and _takes_weights(self.scorer)
        weights = {"sample_weight": rows.sample_weight} if weighted else {}
        value = self.scorer(model, rows.X, rows.y, **weights)
        if not isinstance(value, Real) or math.isnan(value) or value == math.inf:
            raise ValueError(
                f"scoring={self.scoring!r} gave {value!r} for prior_precision={model.prior_precision:g}; a score "
                "has to be one finite number, or -inf for what is worse than all else. Look at the held-out rows, or "
                "use another scoring."
            )
        return float(value)

    def found(self, folds: Sequence[Sequence[float]]) -> PriorScores:
        """The scores of all folds, checked.

        Raises
        ------
        ValueError
            When no candidate has a finite score.

        Warns
        -----
        BoundWarning
        """
        scores = PriorScores.of(self.grid, self.name, folds)
        if not np.isfinite(scores.mean).any():
            raise ValueError(
                f"prior_precision={self.name!r}: every candidate scores -inf. Held-out rows hold what the rows of the "
                "training rule out, such as a class that is not among them. Give each class to every training "
                "(folds by class, fewer folds), or use another scoring."
            )
        self._warn(scores)
        return scores

    def _warn(self, scores: PriorScores) -> None:
        best, mean = scores.best, scores.mean
        if len(mean) < 3:
            return
        if mean.max() - mean.min() <= 1e-12 * abs(mean.max()):
            said = (
                f"scoring={self.scoring!r} is the same for every candidate, of which the first is taken. Where one "
                "training serves them all the mean does not move: use scoring=None or a score of the distribution."
            )
        elif best in (self.grid.min(), self.grid.max()):
            said = (
                f"the best candidate, {best:g}, is at the end of the grid, which goes from "
                f"{self.grid.min():g} to {self.grid.max():g}. Give a grid that goes further"
                f"{', or another map_prior_precision' if self.one_training else ''}."
            )
        else:
            return
        warnings.warn(f"prior_precision={self.name!r}: {said}", BoundWarning, stacklevel=5)


class CrossValidation(HeldOutRule):
    """Each part of the rows is held out once; the best on average is fitted to all rows."""

    name = "cv"

    def chosen(self, model: Any, rows: GivenRows, task: Task) -> tuple[Any, PriorScores]:
        """K trainings and one, or k · K and one where each candidate needs its own."""
        splits = self.splits(model, rows)
        with task.subtask("prior_precision", len(splits)) as choice:
            folds = [choice.subtask("fold") for _ in splits]
            found = Parallel(n_jobs=self.n_jobs)(
                delayed(self._fold)(model, rows.part(train), rows.part(test), number, fold)
                for number, ((train, test), fold) in enumerate(zip(splits, folds, strict=True))
            )
        scores = self.found(found)
        with task.subtask("fit"):
            return rows.fitted(_candidate(model, scores.best)), scores

    def splits(self, model: Any, rows: GivenRows) -> list[tuple[np.ndarray, np.ndarray]]:
        """Row numbers (train, test) of each fold, drawn once; the model says whether they are split by class."""
        if self.cv is None:
            seed = copy.deepcopy(self.random_state)  # the fits begin where it is now
            splitter = type(check_cv(N_FOLDS, rows.y, classifier=is_classifier(model)))
            found = list(splitter(N_FOLDS, shuffle=True, random_state=seed).split(rows.X, rows.y))
        else:
            found = list(check_cv(self.cv, rows.y, classifier=is_classifier(model)).split(rows.X, rows.y))
        if not found:
            raise ValueError(f"cv={self.cv!r} has no splits; a generator gives its splits once: use list(...) of it.")
        return found

    def _fold(self, model: Any, train: GivenRows, test: GivenRows, number: int, task: Task) -> list[float]:
        """The score of every candidate."""
        try:
            with task:
                alone, is_quick = clone(model).set_params(n_jobs=1), not self.one_training and _is_automatic(model)
                alone = alone.set_params(**_cheaper(model)) if is_quick else alone
                return [self.score(fitted, test) for fitted in self.candidates(alone, train, is_quick=is_quick)]
        except NonFiniteError as error:  # before it was said where in the fold its rows are: they are sought in all
            raise error.__cause__ if isinstance(error.__cause__, NonFiniteError) else error from None
        except Exception as error:
            error.add_note(f"In fold {number} of prior_precision={self.name!r}.")
            raise


class ValidationSet(HeldOutRule):
    """A set of other rows scores the candidates; they take no part in the fit that is kept."""

    name = "validation"

    def chosen(self, model: Any, rows: GivenRows, task: Task) -> tuple[Any, PriorScores]:
        """One training, or one for each candidate."""
        held_out, found, best = GivenRows(self.X_val, self.y_val), [], model
        with task.subtask("prior_precision"):
            for fitted in self.candidates(model, rows):
                with _rows_of("X_val"):
                    found.append(self.score(fitted, held_out))
                best = fitted if found[-1] == max(found) and found.count(found[-1]) == 1 else best
        scores = self.found([found])
        return (best.refit_laplace(prior_precision=scores.best) if self.one_training else best), scores


RULES: dict[str, type[HeldOutRule]] = {"cv": CrossValidation, "validation": ValidationSet}


def rule_for(parameters: Mapping[str, Any], X_val: Any, y_val: Any) -> HeldOutRule | None:
    """The rule that an estimator's parameters ask for; None where its prior precision is chosen without held-out rows.

    Parameters
    ----------
    parameters : mapping
        All parameters of an estimator, which are valid.
    X_val, y_val : array-like or None
        A validation set, given to ``fit``.

    Raises
    ------
    ValueError
        For a validation set without a rule that uses it, and for a rule without what it needs.
    UnsupportedCombinationError
        When several groups of weights have a precision each.

    Examples
    --------
    >>> rule_for({"prior_precision": "validation"}, None, None)
    Traceback (most recent call last):
        ...
    ValueError: prior_precision='validation' needs a validation set: fit(X, y, X_val=..., y_val=...). Without one use \
prior_precision='cv'.
    """
    asked = parameters["prior_precision"]
    rule = RULES.get(asked) if isinstance(asked, str) else None
    if (X_val is None) != (y_val is None):
        raise ValueError("X_val and y_val go together; one of them was given without the other.")
    if rule is not ValidationSet and X_val is not None:
        raise ValueError(
            f"X_val and y_val would be ignored with prior_precision={asked!r}; they go with "
            f"prior_precision={ValidationSet.name!r}."
        )
    if rule is ValidationSet and X_val is None:
        raise ValueError(
            f"prior_precision={asked!r} needs a validation set: fit(X, y, X_val=..., y_val=...). Without one use "
            f"prior_precision={CrossValidation.name!r}."
        )
    if rule is None:
        return None
    alone = GROUPINGS["scalar"]
    if lookup("prior_structure", parameters["prior_structure"], GROUPINGS) is not alone:
        raise UnsupportedCombinationError(
            f"prior_precision={asked!r} chooses one precision for all weights, and the prior structure "
            f"{parameters['prior_structure']!r} asks for several. Use prior='scalar', or prior_precision='evidence', "
            "which chooses several."
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
    """An unfitted estimator with the same parameters but the rule's own; made, not cloned: a generator has no copy."""
    rest = {**estimator.get_params(deep=False), "prior_precision": 1.0}
    return clone(type(estimator)(**rest))


def settled(parameters: Mapping[str, Any], scores: PriorScores | None) -> dict[str, Any]:
    """The parameters with the precision that was chosen in place of the rule that chose it.

    Examples
    --------
    >>> settled({"prior_precision": "cv"}, PriorScores.of([0.1, 1.0], "cv", [[1.0, 3.0]]))
    {'prior_precision': 1.0}
    """
    asked = parameters["prior_precision"]
    by_scores = scores is not None and isinstance(asked, str) and asked == scores.kind
    return {**parameters, "prior_precision": scores.best} if by_scores else dict(parameters)  # type: ignore[union-attr]


def check_without_rows(parameters: Mapping[str, Any], method: str) -> None:
    """A rule that needs held-out rows cannot choose where there are none.

    Examples
    --------
    >>> check_without_rows({"prior_precision": "cv"}, "refit_laplace")
    Traceback (most recent call last):
        ...
    ValueError: refit_laplace cannot choose prior_precision='cv', which needs fits without some of the rows. Call fit, \
or give a number or 'evidence'.
    """
    asked = parameters["prior_precision"]
    if isinstance(asked, str) and asked in RULES:
        raise ValueError(
            f"{method} cannot choose prior_precision={asked!r}, which needs fits without some of the rows. Call fit, "
            "or give a number or 'evidence'."
        )


def grid_of(given: Any) -> np.ndarray:
    """Candidates, shape (k,).

    Raises
    ------
    ValueError

    Examples
    --------
    >>> grid_of([1, 10]), grid_of(None).size
    (array([ 1., 10.]), 13)
    >>> grid_of(3.0)
    Traceback (most recent call last):
        ...
    ValueError: grid=3.0 has to be None or a sequence of finite numbers above zero.
    """
    if given is None:
        return GRID
    try:
        values = choice("grid", given, [], array=True).value
    except ValueError:
        values = None
    if values is None or values.ndim != 1:
        raise ValueError(f"grid={given!r} has to be None or a sequence of finite numbers above zero.")
    return values


def scorer_of(scoring: Any) -> Scorer:
    """What a value of ``scoring`` stands for.

    Raises
    ------
    ValueError
        For an unknown name, a metric of predictions, several scorers.

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
        lookup("scoring", scoring, dict.fromkeys(get_scorer_names()))
        return get_scorer(scoring)
    if callable(scoring):
        return check_scoring(scoring=scoring)
    raise ValueError(f"scoring={scoring!r} has to be None, the name of a scorer, or one callable (estimator, X, y).")


def log_density(model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Mean log predictive density of the targets, nats a row, each row by its weight.

    Parameters
    ----------
    model : fitted estimator
    X, y : array-like of n rows
    sample_weight : ndarray of shape (n,), optional

    Raises
    ------
    ValueError
        When no row has a positive weight.
    """
    values = model.log_predictive_density(X, y)
    weights = np.ones(len(values)) if sample_weight is None else sample_weight
    present = weights > 0  # a row of weight zero is absent, whatever its density
    if not present.any():
        raise ValueError("every held-out row has sample_weight zero; each fold needs a row with a positive weight.")
    return float(np.average(values[present], weights=weights[present]))


def _candidate(model: Any, precision: float) -> Any:
    """The model under a precision that is on trial: what its fit has to say against itself is of no use to anyone."""
    candidate = clone(model).set_params(prior_precision=precision)
    candidate._is_candidate = True
    return candidate


def _is_automatic(model: Any) -> bool:
    """Whether the number of members is left at its default, and the net is the built-in one."""
    return model.net is None and repr(model.n_members) == repr(_defaults(model)["n_members"])


def _cheaper(model: Any) -> dict[str, Any]:
    """Parameters of a candidate that is only scored, for those at their defaults."""
    options = {**ONE_NET, **(ONE_NOISE if is_regressor(model) else {})}
    given, defaults = model.get_params(deep=False), _defaults(model)
    return {name: value for name, value in options.items() if repr(given[name]) == repr(defaults[name])}


def _defaults(model: Any) -> dict[str, Any]:
    return {name: known.default for name, known in inspect.signature(type(model)).parameters.items()}


def _takes_weights(scorer: Scorer) -> bool:
    """Whether a scorer takes ``sample_weight``; one of scikit-learn's does where its metric does."""
    function = scorer._score_func if isinstance(scorer, _BaseScorer) else scorer
    return "sample_weight" in inspect.signature(function).parameters


@contextmanager
def _rows_of(name: str) -> Iterator[None]:
    """An error that numbers rows says that they are those of another table than X."""
    try:
        yield
    except NonFiniteError as error:
        raise type(error)(f"{error} These are rows of {name}.") from error
