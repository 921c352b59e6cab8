"""``LaplaceClassifier``: scikit-learn classifier that trains neural nets and predicts class probabilities."""

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import column_or_1d

from .._ensemble.member import Member
from .._table.rows import PreparedData, TargetScale
from .._table.source import Group
from .._table.source_of import Sample, source_of
from .._table.statistics import copies_of
from .._validation import arguments as _values
from .._validation.arguments import Absent, explained, flag, lookup
from .._validation.rows import check_discrete, check_largest, check_same_kind, check_targets
from ..errors import UnsupportedCombinationError
from ..laplace.latent import LatentGaussian
from ..laplace.links._base import softmax_samples
from ..options.likelihood import binary_only, check_streaming_weights, class_outputs, class_weights
from ..options.resolve import STD_REQUESTS, Kind, Parts, one_or_all, variance_of_kind
from .base import LaplaceEstimator
from .fitted import require_fitted
from .labels import classes_of, labels_of, positions, tally, weighted_total
from .printing import overview
from .report import Report, classification_report
from .sources import Reading, by_block, check_options

OF_CLASSES = "Only LaplaceRegressor has it; for classes use predict_proba(X), predict_std(X) or predict_entropy(X)."
"""Advice in the error for methods that only a regressor has."""


@explained
class LaplaceClassifier(ClassifierMixin, LaplaceEstimator):
    """Classification by a neural network, with probabilities that account for the uncertainty of its weights.

    Works like :class:`LaplaceRegressor`. By default, the uncertainty of the logits moves the probabilities towards the
    uniform distribution, most of all far from the data.

    Parameters
    ----------
    [Model]
    net : None, torch module class or instance, skorch net, FrozenEstimator or list, default=None
        As in :class:`LaplaceRegressor`. The outputs are logits or (log-)probabilities, one per class, or one logit for
        two classes.
    hidden_layer_sizes, activation, categorical_features
        As in :class:`LaplaceRegressor`.
    likelihood : {"auto", "categorical", "bernoulli"}, default="auto"
        "categorical": one logit per class. "bernoulli": one logit for two classes. "auto": "bernoulli" for a net
        with a single output, otherwise "categorical".
    class_weight : None, "balanced" or dict, default=None
        Factor on the row weights of each class. "balanced": n / (n_classes · n_c), where n_c is the summed weight of
        the class, and n that of all rows.
    [Uncertainty]
    prior_precision, n_members
        As in :class:`LaplaceRegressor`.
    [Training]
    max_time, n_jobs, random_state, verbose
        As in :class:`LaplaceRegressor`.
    [Advanced]
    n_bins, standardize_X, max_epochs, lr, batch_size, map_prior_precision, memory, memory_budget
        As in :class:`LaplaceRegressor`.
    device, dtype, subset_of_weights, hessian_structure, curvature, prior, temperature
        As in :class:`LaplaceRegressor`.
    predictive : {"auto", "extrapolating", "glm", "mc"} or MonteCarlo, default="auto"
        As in :class:`LaplaceRegressor`. With "mc" the probabilities are averages over weight samples.
    link : {"moderated", "probit", "plugin", "mc", "bridge", "bridge_norm", "quadrature"} or Link, \
default="moderated"
        Map from Gaussian logits to probabilities. "plugin" is the softmax of the mean, "mc" averages over draws,
        "quadrature" integrates numerically; the others are closed forms.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    members_, member_weights_, net_, posterior_, laplace_, hyper_, prior_precision_, structure_, subset_
        As in :class:`LaplaceRegressor`; the outputs of ``net_`` are logits.
    log_marginal_likelihood_value_, n_effective_parameters_, feature_relevance_, prior_path_, gradient_norm_, \
mode_distance_, history_, n_iter_, n_features_in_, feature_names_in_, table_
        As in :class:`LaplaceRegressor`.
    n_outputs_ : int
        Number of logits.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from sklearn_laplace import LaplaceClassifier
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> model = LaplaceClassifier(random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.95
    True
    >>> far = model.predict_proba([[30.0, -30.0]]).max()
    >>> bool(far < LaplaceClassifier(link="plugin", random_state=0).fit(X, y).predict_proba([[30.0, -30.0]]).max())
    True
    """

    _kind = "classifier"
    classes_: np.ndarray
    _tally = staticmethod(tally)
    if not TYPE_CHECKING:
        predict_interval, predict_quantiles, predict_dist = Absent(OF_CLASSES), Absent(OF_CLASSES), Absent(OF_CLASSES)

    def __init__(
        self,
        net: Any = None,
        *,
        hidden_layer_sizes: tuple[int, ...] | str = "auto",
        activation: str = "auto",
        categorical_features: Any = "from_dtype",
        likelihood: str = "auto",
        class_weight: Any = None,
        prior_precision: Any = "auto",
        n_members: Any = "auto",
        max_time: float | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int | str = 0,
        n_bins: int | str | None = "auto",
        standardize_X: str | bool = "auto",
        max_epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        map_prior_precision: str | float = "same",
        memory: Any = None,
        memory_budget: Any = None,
        device: str = "auto",
        dtype: str = "auto",
        subset_of_weights: Any = "all",
        hessian_structure: Any = "auto",
        curvature: Any = "ggn",
        prior: Any = None,
        temperature: Any = 1.0,
        predictive: Any = "auto",
        link: Any = "moderated",
    ) -> None:
        self.net = net
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.categorical_features = categorical_features
        self.likelihood = likelihood
        self.class_weight = class_weight
        self.prior_precision = prior_precision
        self.n_members = n_members
        self.max_time = max_time
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.n_bins = n_bins
        self.standardize_X = standardize_X
        self.max_epochs = max_epochs
        self.lr = lr
        self.batch_size = batch_size
        self.map_prior_precision = map_prior_precision
        self.memory = memory
        self.memory_budget = memory_budget
        self.device = device
        self.dtype = dtype
        self.subset_of_weights = subset_of_weights
        self.hessian_structure = hessian_structure
        self.curvature = curvature
        self.prior = prior
        self.temperature = temperature
        self.predictive = predictive
        self.link = link

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = not binary_only(self.likelihood, self.net)
        return tags

    def partial_fit(  # type: ignore[override]  # scikit-learn's order of arguments for classifiers
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, sample_noise_variance: Any = None
    ) -> Self:
        """Update the posterior with further rows, without training.

        Works like :meth:`LaplaceRegressor.partial_fit`, with one Newton step on the likelihood of the linearised net.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Further rows.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), optional
            For the first call: all labels that can occur in any call. Default: the labels of y. Omit it if X is a
            path, Dataset or collection; the labels of all rows are read first.
        sample_weight : array-like of shape (n_samples,), optional
        sample_noise_variance : None
            Not used; only :class:`LaplaceRegressor` takes noise variances.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If labels are not among the classes, or if the data do not match those of the first call. Also for
            ``class_weight="balanced"``, because the balance of later rows is unknown.
        MemoryBudgetError
            If the posterior of all rows does not fit in memory.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).partial_fit(X[:60], y[:60])
        >>> before = model.predict_std(X[60:]).mean()
        >>> bool(model.partial_fit(X[60:], y[60:]).predict_std(X[60:]).mean() < before)
        True
        """
        if not self.__sklearn_is_fitted__():
            check_streaming_weights(self.class_weight)
            if source_of(X, y, sample_weight, Group.current()) is not None:
                check_options(classes=classes)  # the fit finds the labels of all rows
                return self.fit(X, y, sample_weight, sample_noise_variance)
            y, classes = check_targets(y, numeric=False), check_targets(classes, numeric=False, name="classes")
            if classes is None or set(np.ravel(classes).tolist()) == set(np.ravel(y).tolist()):
                return self.fit(X, y, sample_weight, sample_noise_variance)
            with self._unchanged_on_failure(X):
                prepare = partial(self._prepare, X, y, sample_weight, sample_noise_variance, classes)
                return self._fit(prepare, X, y, sample_weight)
        classes = check_targets(classes, numeric=False, name="classes")
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={classes!r} differ from those of the first call, {self.classes_.tolist()}. Omit classes, or "
                "fit again."
            )
        return super().partial_fit(X, y, sample_weight, sample_noise_variance)

    def _prepare(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        sample_noise_variance: Any,
        classes: Any = None,
        class_weight: dict[Any, float] | None = None,
    ) -> PreparedData:
        X, y, weights, _ = self._validate_rows(
            X, labels_of(y, warn=True), sample_weight, sample_noise_variance, y_numeric=False
        )
        check_discrete(labels := y[weights > 0])
        previous = self._previous()
        classes = previous.classes_ if classes is None and previous is not None else classes
        self.classes_ = np.unique(labels if classes is None else column_or_1d(classes))
        if len(self.classes_) < 2:
            raise ValueError(
                f"{'y' if classes is None else 'classes'} holds one class only, {self.classes_.tolist()[0]!r}; a "
                "classifier needs at least 2 classes, each in a row of positive weight. In cross-validation, use "
                "stratified folds and at least 2 rows of each class."
            )
        n_outputs = class_outputs(self.get_params(deep=False), X, len(self.classes_))
        index = positions(y, weights, self.classes_)
        rows, targets, counted = self._rows_of_training(X, index, weights)
        data = self._encoded(rows, targets, counted, n_outputs, class_weight)
        if self._weighs_relatively(self._options()):  # class weights keep the total, unless they count copies
            copies = copies_of(data.weights)
            unit = float((counted[data.weights > 0] if copies is None else copies).sum()) / data.total_weight
            self._weight_unit *= unit
            data = data if math.isclose(unit, 1.0) else data.weighted(unit)
        return data.present().with_unmerged_rows(self._encoded(X, index, weights, n_outputs, class_weight))

    def _prepare_more(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        sample_noise_variance: Any,
        *,
        scale: TargetScale,
        class_weight: dict[Any, float] | None = None,
    ) -> PreparedData:
        if class_weight is None:
            check_streaming_weights(self.class_weight)
        X, y, weights, _ = self._validate_rows(
            X, labels_of(y, warn=True), sample_weight, sample_noise_variance, y_numeric=False, reset=False
        )
        return self._encoded(X, positions(y, weights, self.classes_), weights, len(scale.mean), class_weight)

    def _prepare_sample(self, sample: Sample) -> PreparedData:
        rows = sample.rows
        return self._prepare(rows.X, rows.y, rows.sample_weight, None, *classes_of(sample, self.class_weight))

    def _reading(self, sample: Sample, scale: TargetScale) -> Reading:
        _, factors = classes_of(sample, self.class_weight)
        of_sample, of_all = (weighted_total(part, factors) for part in (tally(sample.rows), sample.labels))
        return Reading(partial(self._prepare_more, scale=scale, class_weight=factors), of_sample, of_all)

    def _encoded(
        self,
        X: np.ndarray,
        index: np.ndarray,
        weights: np.ndarray,
        n_outputs: int,
        class_weight: dict[Any, float] | None,
    ) -> PreparedData:
        class_weight = self.class_weight if class_weight is None else class_weight
        per_class = class_weights(class_weight, self.classes_, index, weights)
        weights = weights * per_class[index]
        if not (weights > 0).any():
            raise ValueError(
                f"class_weight={self.class_weight!r} leaves no row with a positive weight. Give at least one class of "
                "y a positive weight."
            )
        check_largest(weights, "sample_weight times class_weight")
        scale = TargetScale(np.zeros(n_outputs), np.ones(n_outputs), np.ones(n_outputs))
        return PreparedData(X, index, weights, n_outputs, scale)

    @by_block
    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities.

        They are computed by ``link`` or, with ``predictive="mc"``, as the average softmax over weight samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows sum to one; columns are in the order of ``classes_``.

        Raises
        ------
        NonFiniteError
            If an output of the net, or its derivative, is NaN or infinite. All methods that predict raise this error.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.predict_proba([[0.0, 1.0], [1.0, -0.5], [0.5, 0.25]]).round(1).tolist()
        [[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]
        """
        with self._asked(X) as (x, options):
            link_of = cache(lambda member: member.link(options))  # once for all chunks of rows

            def probabilities(member: Member, latent: LatentGaussian) -> torch.Tensor:
                link = link_of(member)
                assert link is not None
                return link.mean(member.fit.likelihood.class_logits(latent))

            return self._ensemble.averages(x, options, probabilities).cpu().numpy()

    @by_block
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of :meth:`predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.predict_log_proba(X[:3]).shape
        (3, 2)
        """
        return np.log(self.predict_proba(X).clip(min=np.finfo(float).tiny))

    @by_block
    def predict(self, X: Any) -> np.ndarray:
        """Class with the largest probability in :meth:`predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels from ``classes_``.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.predict([[0.0, 1.0], [1.0, -0.5]])
        array([0, 1])
        """
        require_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    @overload
    def predict_std(self, X: Any, *, kind: Kind = "epistemic", X_std: Any = None) -> np.ndarray: ...
    @overload
    def predict_std(self, X: Any, *, kind: Literal["all"], X_std: Any = None) -> Parts: ...
    @overload
    def predict_std(self, X: Any, *, kind: str = "epistemic", X_std: Any = None) -> Any: ...
    @by_block
    def predict_std(self, X: Any, *, kind: str = "epistemic", X_std: Any = None) -> Any:
        """Standard deviation of each class probability, or of each class indicator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        kind : {"epistemic", "total", "aleatoric", "all"}, default="epistemic"
            "epistemic": standard deviation of the class probability under the posterior. "total": √(p (1 − p)), the
            standard deviation of the class indicator. "aleatoric": from total² = epistemic² + aleatoric². "all": a
            Bunch of the three.
        X_std : None
            Not supported; only :class:`LaplaceRegressor` takes errors in X.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or Bunch of such arrays

        Raises
        ------
        UnsupportedCombinationError
            For ``X_std``. To first order, errors in X change neither the mean probability p nor the variance p (1 − p)
            of a class indicator.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> on_data, between = model.predict_std([[0.0, 1.0], [0.5, 0.25]])
        >>> bool((between > on_data).all())
        True
        """
        require_fitted(self)
        if X_std is not None:
            raise UnsupportedCombinationError(
                "X_std needs numeric targets: to first order, errors in X do not change the mean probability p, "
                "and so do not change the variance p (1 − p) of a class. Average predict_proba over draws of X instead."
            )
        kinds, moments = lookup("kind", kind, STD_REQUESTS), self._components(X).moments
        variances = {name: variance_of_kind(moments, name) for name in kinds}
        return one_or_all({name: values.clamp_min(0.0).sqrt().cpu().numpy() for name, values in variances.items()})

    @overload
    def loo_predict(self, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def loo_predict(self, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def loo_predict(self, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...
    def loo_predict(self, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Leave-one-out class probabilities of the training rows, in closed form and without a refit.

        Works like :meth:`LaplaceRegressor.loo_predict`, but takes a Newton step for the logits and then applies the
        link.

        Parameters
        ----------
        return_std : bool, default=False
            If True, return the standard deviation of each probability, as :meth:`predict_std` does.

        Returns
        -------
        probabilities : ndarray of shape (n, n_classes)
            Predictions for the rows of :meth:`fit`, in their order, then for those of :meth:`partial_fit`.
        std : ndarray of shape (n, n_classes)

        Raises
        ------
        UnsupportedCombinationError, MemoryBudgetError
            As in :meth:`LaplaceRegressor.loo_predict`.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> bool((model.loo_predict().argmax(1) == y).mean() > 0.8)
        True
        """
        require_fitted(self)
        flag("return_std", return_std)
        moments = self._loo_predictive()
        mean = moments.mean.cpu().numpy()
        return (mean, moments.epistemic_variance.clamp_min(0.0).sqrt().cpu().numpy()) if return_std else mean

    @overload
    def predict_entropy(self, X: Any, *, kind: Kind = "total") -> np.ndarray: ...
    @overload
    def predict_entropy(self, X: Any, *, kind: Literal["all"]) -> Parts: ...
    @overload
    def predict_entropy(self, X: Any, *, kind: str = "total") -> Any: ...
    @by_block
    def predict_entropy(self, X: Any, *, kind: str = "total") -> Any:
        r"""Entropy of the predicted class, and its epistemic and aleatoric parts, in nats.

        Let p be the class probabilities of a function f drawn from the posterior, and H(p) = −Σ p log p. The mutual
        information of class and function is known in active learning as "BALD" (Houlsby et al. 2011). The entropy of
        the mean probabilities is the mean entropy plus this information:

        .. math:: H(E[p]) = E[H(p)] + I(y; f).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        kind : {"total", "epistemic", "aleatoric", "all"}, default="total"
            "total": H(E[p]). "aleatoric": E[H(p)]. "epistemic": the mutual information I(y; f). "all": a Bunch of the
            three.

        Returns
        -------
        ndarray of shape (n_samples,), or Bunch of such arrays
            Between 0 and log n_classes.

        Notes
        -----
        For any ``link``, expectations are averages over draws of the logits.
        :class:`~sklearn_laplace.options.Link` sets the number of draws.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> on_data, between = model.predict_entropy([[0.0, 1.0], [0.5, 0.25]], kind="aleatoric")
        >>> bool(on_data < between)
        True
        """
        require_fitted(self)
        kinds = lookup("kind", kind, STD_REQUESTS)
        with self._asked(X) as (x, options):
            link_of = cache(lambda member: member.link(options))

            def row_averages(member: Member, latent: LatentGaussian) -> torch.Tensor:
                link = link_of(member)
                assert link is not None
                p = softmax_samples(member.fit.likelihood.class_logits(latent), link.draws)
                return torch.cat([p.mean(0), _entropy(p).mean(0)[:, None]], 1)

            means = self._ensemble.averages(x, options, row_averages)
        total, aleatoric = _entropy(means[:, :-1]).cpu().numpy(), means[:, -1].cpu().numpy()
        parts = {"total": total, "aleatoric": aleatoric, "epistemic": np.maximum(total - aleatoric, 0.0)}
        return one_or_all({name: parts[name] for name in kinds})

    def _epistemic(self, X: Any) -> np.ndarray:
        entropy: np.ndarray = self.predict_entropy(X, kind="epistemic")
        return entropy

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of :meth:`predict`, between 0 and 1.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        float

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y).score(X, y) > 0.8
        True
        """
        return float(super().score(X, check_targets(y, numeric=False), sample_weight))

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Log probability of the true labels, in nats.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            True labels. A label that is not in ``classes_`` has probability zero.

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        ValueError
            If the numbers of labels and rows differ, or if the labels and ``classes_`` have different types.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> likely, unlikely = model.log_predictive_density([[0.0, 1.0], [0.0, 1.0]], [0, 1])
        >>> bool(likely > -0.2 and unlikely < -2)
        True
        """
        p, labels = self._judged(X, y)
        index = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        known = self.classes_[index] == labels
        with np.errstate(divide="ignore"):
            return np.where(known, np.log(p[np.arange(len(p)), index]), -np.inf)

    def _judged(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the class probabilities of rows, and their validated labels."""
        p = self.predict_proba(X)
        labels = labels_of(y)
        check_same_kind(labels, self.classes_)
        if len(labels) != len(p):
            raise ValueError(f"y has {len(labels)} labels for {len(p)} rows of X; expected one for each row.")
        return p, labels

    def report(self, X: Any, y: Any) -> Report:
        """Report on predictions of held-out rows: scores, calibration and worst groups.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,)
            Their labels.

        Returns
        -------
        Report
            Printed as text. The log density is in nats per row. Each class frequency and group accuracy is followed by
            a range. For a calibrated model, all class frequencies are inside their ranges with probability .95; the
            same holds for all group accuracies. An arrow marks a value outside its range. A group has the rows between
            two quartiles of a numeric column, or those with a frequent category or a missing value.

        Raises
        ------
        ValueError
            If the numbers of labels and rows differ, or if the labels and ``classes_`` have different types.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(200, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X[:100], y[:100])
        >>> print(model.report(X[100:], y[100:]))  # doctest: +ELLIPSIS
        100 rows
        accuracy           0.8...
        ...
        class 0            0.5..., expected 0.4... to 0.6...
        ...
        """
        p, labels = self._judged(X, y)
        return self._with_outside(classification_report(p, self.classes_, X, labels), X)

    def plot(self, X: Any, y: Any, *, figure: Any = None, ax: Any = None, **options: Any) -> Any:
        """Draw entropies, reliability and relevance of the columns on held-out rows, in one figure.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,)
            Their labels.
        figure, ax, **options
            As in :meth:`LaplaceRegressor.plot`. If ``ax`` is a single Axes, only the entropies are drawn.

        Returns
        -------
        OverviewDisplay

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the numbers of labels and rows differ, or if the labels and ``classes_`` have different types.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> import matplotlib.pyplot as plt
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(200, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, n_members=1, random_state=0).fit(X[:100], y[:100])
        >>> display = model.plot(X[100:], y[100:])
        >>> len(display.axes_), display.calibration.error < 0.2
        (3, True)
        >>> plt.close(display.figure_)
        """
        require_fitted(self)
        check_same_kind(labels_of(y), self.classes_)
        return overview(self, X, y, figure=figure, ax=ax, **options)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, *, kind: str = "total") -> np.ndarray:
        """Draw samples from the predictive distribution, jointly over the rows.

        Parameters
        ----------
        X, n_samples, random_state
            As in :meth:`LaplaceRegressor.sample_y`.
        kind : {"total", "epistemic"}, default="total"
            "total": class labels. "epistemic": class probabilities of functions drawn from the posterior.

        Returns
        -------
        ndarray of shape (n_rows, n_samples) or (n_rows, n_classes, n_samples)
            Labels for "total", probabilities for "epistemic".

        Examples
        --------
        >>> from sklearn_laplace import LaplaceClassifier
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.sample_y(X[:3], n_samples=5).shape
        (3, 5)
        """
        require_fitted(self)
        labels = lookup("kind", kind, {"total": True, "epistemic": False})
        count = _values.count("n_samples", n_samples)
        generator = _values.generator(random_state)
        with self._asked(X) as (x, options):
            draws = self._ensemble.draws(count, generator, lambda member, n: member.draws(x, options, n, generator))
            probabilities = self.laplace_.likelihood.logits(draws).softmax(1).cpu()
            if not labels:
                return probabilities.numpy()
            uniform = torch.rand(len(probabilities), 1, count, generator=generator, dtype=torch.float64)
            drawn = (probabilities.cumsum(1) < uniform).sum(1).clamp_max(len(self.classes_) - 1)
            return self.classes_[drawn.numpy()]


def _entropy(p: torch.Tensor) -> torch.Tensor:
    """Entropy −Σ p log p over the last axis, in nats."""
    return torch.special.entr(p).sum(-1)
