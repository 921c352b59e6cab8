"""``LaplaceClassifier``: a neural net for classes with moderated probabilities, as a scikit-learn classifier."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import Bunch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ._data.rows import PreparedData, canonical_rows
from ._data.target_scale import TargetScale
from ._ensemble.member import Member
from ._estimator.base import LaplaceEstimator
from ._options.class_weights import check_streaming_weights, class_weights
from ._options.likelihood import binary_only, class_outputs
from ._options.resolve import STD_KINDS, variance_of_kind
from ._validation import values as _values
from ._validation.targets import check_largest, check_same_kind, check_targets
from ._validation.values import flag, lookup
from .errors import UnsupportedCombinationError
from .laplace.latent import LatentGaussian
from .laplace.links._base import softmax_samples


class LaplaceClassifier(ClassifierMixin, LaplaceEstimator):
    """Neural-net classification with Laplace-approximated uncertainty.

    As :class:`LaplaceRegressor`, for classes: the Gaussian over the logits moderates the probabilities, which go
    towards uniform where the data say nothing.

    Parameters
    ----------
    net : None, torch module class or instance, skorch net, or FrozenEstimator, default=None
        As in :class:`LaplaceRegressor`; the module has one output a class, logits or (log-)probabilities, or for two
        classes one output, the logit of the second (``NeuralNetBinaryClassifier``).
    hidden_layer_sizes, activation, n_bins, categorical_features, max_epochs, lr, batch_size
        As in :class:`LaplaceRegressor`.
    augment, n_augmentations, map_prior_precision
        As in :class:`LaplaceRegressor`.
    device, dtype, memory_budget, subset_of_weights, subnetwork, n_subnetwork_weights
        As in :class:`LaplaceRegressor`.
    hessian_structure, bias, weight_sharing, rank, damping, curvature, n_fisher_samples
        As in :class:`LaplaceRegressor`.
    prior_precision, prior_structure, prior_mean, prior, temperature
        As in :class:`LaplaceRegressor`. Under ``prior_precision="loo"`` the density of a row is the probability of its
        class by ``link``, and each point of the search is a leave-one-out of its own.
    likelihood : {"auto", "categorical", "bernoulli"}, default="auto"
        Distribution of y given the outputs: one logit a class, or one logit for two classes. "auto": as many as the
        given net has; for the built-in net one a class.
    predictive : {"glm", "mc"}, default="glm"
        As in :class:`LaplaceRegressor`; under "mc" the probabilities are the average softmax of the weight samples, and
        a link other than the default or "mc" is refused.
    link : {"moderated", "probit", "plugin", "mc", "bridge", "bridge_norm", "quadrature"}, default="moderated"
        From the Gaussian over the logits to probabilities: moderated in closed form, by a constant for as many classes
        as are in play or by that of two; the MAP's own softmax; the average softmax of ``n_samples`` draws; the mean of
        the Dirichlet of the Laplace bridge, as it is (of two classes the MAP's own softmax) or with large variances
        normalised; the integral itself, on a grid up to five classes, by the draws beyond. "moderated" is the closest
        of the closed forms, the bridge has variances in closed form as well.
    n_samples : int, default=100
        Quasi-random draws behind ``link="mc"`` and ``predict_std``; weight samples of ``predictive="mc"``.
    cv, scoring, prior_precision_grid
        As in :class:`LaplaceRegressor`; folds by class, and the log probability of the true class.
    memory : None, str or joblib.Memory, default=None
        Where trainings are cached, as in scikit-learn's Pipeline: candidates of a search that differ in Laplace
        parameters alone (with a number for ``map_prior_precision`` also in prior and noise) share one. Needs an integer
        ``random_state``. The rows are part of the key, and with them what ``augment`` makes of them.
    class_weight : None, "balanced" or dict, default=None
        Multiplies the weight of each row by that of its class: given as ``{label: weight}`` (1 for labels that are not
        in it), or "balanced", n / (n_classes · n_c) with n_c the summed weight of the class's rows. It counts in
        likelihood, curvature and evidence, as any weight does.
    n_members, member_weights
        As in :class:`LaplaceRegressor`.
    n_jobs : int or None, default=None
        As in :class:`LaplaceRegressor`.
    random_state : int, RandomState or None, default=None
        Seeds the initial weights, the order of mini-batches and the draws.
    max_time : float or None, default=None
        As in :class:`LaplaceRegressor`.
    verbose : int, default=0
        As in :class:`LaplaceRegressor`; so are scikit-learn's callbacks (``set_callbacks``).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    net_, posterior_, laplace_, prior_precision_, prior_groups_, structure_, subset_, log_marginal_likelihood_value_
        As in :class:`LaplaceRegressor`; the outputs of ``net_`` are logits.
    prior_path_ : Bunch
        As in :class:`LaplaceRegressor`; ``loo_log_density`` is the sum of the logarithms of the classes' probabilities.
    n_outputs_ : int
        Logits: one a class, or one for two classes.
    n_effective_parameters_, feature_relevance_, gradient_norm_, mode_distance_, history_, n_iter_, n_features_in_, \
feature_names_in_
        As in :class:`LaplaceRegressor`.

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

    def __init__(
        self,
        net: Any = None,
        *,
        hidden_layer_sizes: tuple[int, ...] | str = "auto",
        activation: str = "auto",
        n_bins: int | str | tuple[int | None, ...] | None = "auto",
        categorical_features: Any = "from_dtype",
        max_epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        augment: Any = None,
        n_augmentations: int = 1,
        map_prior_precision: str | float = "same",
        device: str = "auto",
        dtype: str = "auto",
        memory_budget: Any = None,
        subset_of_weights: Any = "all",
        subnetwork: str = "variance",
        n_subnetwork_weights: float = 0.1,
        hessian_structure: str = "auto",
        bias: str = "folded",
        weight_sharing: str = "expand",
        rank: int = 100,
        damping: str = "exact",
        curvature: str = "ggn",
        n_fisher_samples: int = 1,
        likelihood: str = "auto",
        prior_precision: Any = "auto",
        prior_structure: str = "scalar",
        prior_mean: Any = 0.0,
        prior: Any = None,
        temperature: Any = 1.0,
        predictive: str = "glm",
        link: str = "moderated",
        n_samples: int = 100,
        class_weight: Any = None,
        cv: Any = None,
        scoring: Any = None,
        prior_precision_grid: Any = None,
        memory: Any = None,
        n_members: int | str = "auto",
        member_weights: str = "uniform",
        n_jobs: int | None = None,
        random_state: Any = None,
        max_time: float | None = None,
        verbose: int = 0,
    ) -> None:
        self.net = net
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_bins = n_bins
        self.categorical_features = categorical_features
        self.max_epochs = max_epochs
        self.lr = lr
        self.batch_size = batch_size
        self.augment = augment
        self.n_augmentations = n_augmentations
        self.map_prior_precision = map_prior_precision
        self.device = device
        self.dtype = dtype
        self.memory_budget = memory_budget
        self.subset_of_weights = subset_of_weights
        self.subnetwork = subnetwork
        self.n_subnetwork_weights = n_subnetwork_weights
        self.hessian_structure = hessian_structure
        self.bias = bias
        self.weight_sharing = weight_sharing
        self.rank = rank
        self.damping = damping
        self.curvature = curvature
        self.n_fisher_samples = n_fisher_samples
        self.likelihood = likelihood
        self.prior_precision = prior_precision
        self.prior_structure = prior_structure
        self.prior_mean = prior_mean
        self.prior = prior
        self.temperature = temperature
        self.predictive = predictive
        self.link = link
        self.n_samples = n_samples
        self.class_weight = class_weight
        self.cv = cv
        self.scoring = scoring
        self.prior_precision_grid = prior_precision_grid
        self.memory = memory
        self.n_members = n_members
        self.member_weights = member_weights
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.max_time = max_time
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = not binary_only(self.likelihood, self.net)
        return tags

    def partial_fit(  # type: ignore[override]  # scikit-learn's order of arguments for classifiers
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, sample_noise_variance: Any = None
    ) -> Self:
        """Take in more rows without training: their curvature is added, and the mean of the linearised net moves.

        As :meth:`LaplaceRegressor.partial_fit`, with one Newton step of the linearised net's likelihood.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels.
        classes : array-like of shape (n_classes,), optional
            All labels that will ever come; in the first call, which is a fit. Those of its y by default, and always
            where held-out rows choose the prior precision.
        sample_weight : array-like of shape (n_samples,), optional
        sample_noise_variance : None
            Of numeric targets alone.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For labels that are not among the classes, for ``class_weight="balanced"`` (the balance of all rows is not
            known), for data that do not fit those of the first call.
        MemoryBudgetError
            When the posterior of all rows would not fit in memory.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).partial_fit(X[:60], y[:60])
        >>> before = model.predict_std(X[60:]).mean()
        >>> bool(model.partial_fit(X[60:], y[60:]).predict_std(X[60:]).mean() < before)
        True
        """
        if not self.__sklearn_is_fitted__():
            check_streaming_weights(self.class_weight)
            y, classes = check_targets(y, numeric=False), check_targets(classes, numeric=False, name="classes")
            if classes is None or set(np.ravel(classes).tolist()) == set(np.ravel(y).tolist()):
                return self.fit(X, y, sample_weight, sample_noise_variance)
            with self._unchanged_on_failure(X):
                prepare = partial(self._prepare, X, y, sample_weight, sample_noise_variance, classes)
                return self._fit(prepare, X, y, sample_weight)
        classes = check_targets(classes, numeric=False, name="classes")
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes!r} differ from those of the first call, {self.classes_.tolist()}.")
        return super().partial_fit(X, y, sample_weight, sample_noise_variance)

    def _prepare(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, classes: Any = None
    ) -> PreparedData:
        given = X, _labels(y, warn=True), sample_weight, sample_noise_variance
        X, y, weights, _ = self._validate_rows(*given, y_numeric=False)
        check_classification_targets(seen := y[weights > 0])
        previous = self._previous()
        classes = previous.classes_ if classes is None and previous is not None else classes
        self.classes_ = np.unique(seen if classes is None else column_or_1d(classes))
        if len(self.classes_) < 2:
            raise ValueError(
                f"{'y' if classes is None else 'classes'} holds one class only, {self.classes_.tolist()[0]!r}; a "
                "classifier needs at least 2 classes to tell apart."
            )
        n_outputs = class_outputs(self.get_params(deep=False), X, len(self.classes_))
        index = self._indices(y, weights)
        data = self._encoded(*canonical_rows(X, index, weights), n_outputs).present()
        return data.beside(self._encoded(X, index, weights, n_outputs))

    def _prepare_more(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, *, scale: TargetScale
    ) -> PreparedData:
        check_streaming_weights(self.class_weight)
        given = X, _labels(y, warn=True), sample_weight, sample_noise_variance
        X, y, weights, _ = self._validate_rows(*given, y_numeric=False, reset=False)
        return self._encoded(X, self._indices(y, weights), weights, self.n_outputs_)

    def _indices(self, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Positions of the labels in ``classes_``; any of a row of weight zero."""
        check_same_kind(labels, self.classes_)
        if len(unknown := np.setdiff1d(labels[weights > 0], self.classes_)):
            raise ValueError(
                f"y holds the labels {unknown.tolist()}, which are not among the classes {self.classes_.tolist()}. "
                "Name all classes in the first call, also of a previous estimator: partial_fit(X, y, classes=...)."
            )
        return np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)

    def _encoded(self, X: np.ndarray, index: np.ndarray, weights: np.ndarray, n_outputs: int) -> PreparedData:
        per_class = class_weights(self.class_weight, self.classes_, index, weights)
        weights = weights * per_class[index]
        if not (weights > 0).any():
            raise ValueError(f"class_weight={self.class_weight!r} leaves no row with a positive weight.")
        check_largest(weights, "sample_weight times class_weight")
        scale = TargetScale(np.zeros(n_outputs), np.ones(n_outputs), np.ones(n_outputs))
        return PreparedData(X, index, weights, n_outputs, scale)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities by the link, or the average softmax of the weight samples of ``predictive="mc"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows sum to one; columns as in ``classes_``.

        Raises
        ------
        NonFiniteError
            When the net or its derivative is NaN or infinite in a row; as in every method that predicts.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.predict_proba([[0.0, 1.0], [1.0, -0.5], [0.5, 0.25]]).round(1).tolist()
        [[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]
        """
        with self._asked(X) as (x, options):

            def probabilities(member: Member) -> torch.Tensor:
                link, likelihood = member.link(options), member.fit.likelihood
                assert link is not None
                return torch.cat(
                    member.answers(x, options, lambda latent, _: link.mean(likelihood.class_logits(latent)))
                )

            return self._ensemble.mean_of(probabilities).cpu().numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of :meth:`predict_proba`, shape (n_samples, n_classes).

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.predict_log_proba(X[:3]).shape
        (3, 2)
        """
        return np.log(self.predict_proba(X).clip(min=np.finfo(float).tiny))

    def predict(self, X: Any) -> np.ndarray:
        """Most probable class under the moderated probabilities, shape (n_samples,).

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.predict([[0.0, 1.0], [1.0, -0.5]])
        array([0, 1])
        """
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_std(self, X: Any, *, kind: str = "epistemic", X_std: Any = None) -> np.ndarray:
        """Standard deviation of class membership.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        kind : {"epistemic", "total", "aleatoric"}
            "epistemic": of the class probability under the posterior. "total": of the class indicator, √(p (1 − p)).
            total² = epistemic² + aleatoric².
        X_std : None
            Of numeric targets alone.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)

        Raises
        ------
        UnsupportedCombinationError
            For X_std: the variance of a class indicator, p (1 − p), is that of the mean probability, which errors of
            the inputs do not change to first order.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> on_data, between = model.predict_std([[0.0, 1.0], [0.5, 0.25]])
        >>> bool((between > on_data).all())
        True
        """
        check_is_fitted(self)
        if X_std is not None:
            raise UnsupportedCombinationError(
                "X_std is for numeric targets: to first order, errors of the inputs do not change the mean probability "
                "p, and so not the variance p (1 − p) of a class. Average predict_proba over draws of the inputs."
            )
        lookup("kind", kind, dict.fromkeys(STD_KINDS))
        return variance_of_kind(self._components(X).moments, kind).clamp_min(0.0).sqrt().cpu().numpy()

    def loo_predict(self, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Class probabilities of each training row as of the model without it, in closed form: no refit.

        As :meth:`LaplaceRegressor.loo_predict`, by a Newton step for the logits and then the link.

        Parameters
        ----------
        return_std : bool
            Also return the standard deviation of each probability, as :meth:`predict_std` does.

        Returns
        -------
        probabilities : ndarray of shape (n, n_classes)
            One row for each row given to :meth:`fit`, in its order, then those of :meth:`partial_fit`.
        std : ndarray of the same shape

        Raises
        ------
        UnsupportedCombinationError
            After :meth:`forget`, with ``augment`` or ``prior``, for several temperatures.
        MemoryBudgetError
            When an exact curvature would not fit in memory.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> bool((model.loo_predict().argmax(1) == y).mean() > 0.8)
        True
        """
        check_is_fitted(self)
        flag("return_std", return_std)
        moments = self._loo_predictive()
        mean = moments.mean.cpu().numpy()
        return (mean, moments.epistemic_variance.clamp_min(0.0).sqrt().cpu().numpy()) if return_std else mean

    def predict_uncertainty(self, X: Any, *, measure: str = "variance") -> Bunch:
        r"""How uncertain the class of each row is, and from where: variances, or entropies in nats.

        With p the class probabilities of a function that the posterior draws and H(p) = −Σ p log p, the entropy of
        the average splits into the average entropy and the information that the class has about the function
        (Houlsby et al. 2011; "BALD" in active learning):

        .. math:: H(E[p]) = E[H(p)] + I(y; f).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        measure : {"variance", "entropy"}, default="variance"
            "variance": of the indicator of each class. "entropy": of the class, by averages over ``n_samples`` draws
            of the functions, whatever the link is; with ``link="mc"`` the total is that of ``predict_proba``.

        Returns
        -------
        Bunch with ``total``, ``aleatoric``, ``epistemic``
            total = aleatoric + epistemic. Variances of shape (n_samples, n_classes), ``predict_std`` squared; entropies
            of shape (n_samples,), from 0 to log n_classes.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> one, between = model.predict_uncertainty([[0.0, 1.0], [0.5, 0.25]], measure="entropy").aleatoric
        >>> bool(one < between)
        True
        """
        if lookup("measure", measure, {"variance": True, "entropy": False}):
            return super().predict_uncertainty(X)
        with self._asked(X) as (x, options):

            def averages(member: Member) -> torch.Tensor:
                likelihood, link = member.fit.likelihood, member.link(options)
                assert link is not None
                draws = link.draws

                def of_rows(latent: LatentGaussian, _: torch.Tensor) -> torch.Tensor:
                    p = softmax_samples(likelihood.class_logits(latent), draws)
                    return torch.cat([p.mean(0), _entropy(p).mean(0)[:, None]], 1)

                return torch.cat(member.answers(x, options, of_rows))

            found = self._ensemble.mean_of(averages)
        total, aleatoric = _entropy(found[:, :-1]).cpu().numpy(), found[:, -1].cpu().numpy()
        return Bunch(total=total, aleatoric=aleatoric, epistemic=np.maximum(total - aleatoric, 0.0))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of :meth:`predict`, between 0 and 1.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        float

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y).score(X, y) > 0.8
        True
        """
        return float(super().score(X, check_targets(y, numeric=False), sample_weight))

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Log probability of the true labels, nats.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels; one that was not seen in training has probability zero.

        Returns
        -------
        ndarray of shape (n_samples,)

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> likely, unlikely = model.log_predictive_density([[0.0, 1.0], [0.0, 1.0]], [0, 1])
        >>> bool(likely > -0.2 and unlikely < -2)
        True
        """
        p = self.predict_proba(X)
        labels = _labels(y)
        check_same_kind(labels, self.classes_)
        if len(labels) != len(p):
            raise ValueError(f"y has {len(labels)} labels for {len(p)} rows of X; expected one for each row.")
        index = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        known = self.classes_[index] == labels
        with np.errstate(divide="ignore"):
            return np.where(known, np.log(p[np.arange(len(p)), index]), -np.inf)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, *, kind: str = "total") -> np.ndarray:
        """Draw from the predictive, jointly over the rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
        n_samples : int
        random_state : int, RandomState or None
        kind : {"total", "epistemic"}
            "total": class labels. "epistemic": class probabilities of function draws.

        Returns
        -------
        ndarray of shape (n_rows, n_samples), labels; or (n_rows, n_classes, n_samples), probabilities

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from sklearn_laplace import LaplaceClassifier
        >>> X, y = make_moons(100, noise=0.2, random_state=0)
        >>> model = LaplaceClassifier(prior_precision=1.0, random_state=0).fit(X, y)
        >>> model.sample_y(X[:3], n_samples=5).shape
        (3, 5)
        """
        check_is_fitted(self)
        labels = lookup("kind", kind, {"total": True, "epistemic": False})
        count = _values.count("n_samples", n_samples)
        generator = _values.generator(random_state)
        with self._asked(X) as (x, options):
            draws = self._ensemble.draws(count, generator, lambda member, own: member.draws(x, options, own, generator))
            probabilities = self.laplace_.likelihood.logits(draws).softmax(1).cpu()
            if not labels:
                return probabilities.numpy()
            uniform = torch.rand(len(probabilities), 1, count, generator=generator, dtype=torch.float64)
            drawn = (probabilities.cumsum(1) < uniform).sum(1).clamp_max(len(self.classes_) - 1)
            return self.classes_[drawn.numpy()]


def _labels(y: Any, *, warn: bool = False) -> np.ndarray:
    """Labels as an array (n,)."""
    if y is None:
        raise ValueError("LaplaceClassifier requires y to be passed, but the target y is None.")
    labels: np.ndarray = column_or_1d(check_targets(y, numeric=False), warn=warn)
    return labels


def _entropy(p: torch.Tensor) -> torch.Tensor:
    """−Σ p log p over the last axis, nats."""
    return torch.special.entr(p).sum(-1)
