"""``LaplaceRegressor``: scikit-learn regressor that trains neural nets and predicts standard deviations."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import numpy as np
import torch
from scipy.stats import norm
from sklearn.base import MultiOutputMixin, RegressorMixin

from .._ensemble.member import Member
from .._table.rows import (
    PreparedData,
    TargetScale,
    check_noisy_rows,
    log_slope,
    noise_per_target,
    row_reliability,
    transformed,
    unit_noise,
)
from .._table.statistics import far_target, spread
from .._validation import arguments as _values
from .._validation.arguments import Absent, explained, fractions, lookup
from .._validation.rows import check_outputs, check_targets, targets_like
from ..distributions.evaluation import central_intervals, nested, quantiles_of, without_level_axis
from ..distributions.interface import PredictiveDistribution
from ..distributions.mixtures import NormalMixture
from ..distributions.transformed import TransformedMixture
from ..distributions.transforms import LogTransform
from ..errors import TableWarning, UnsupportedCombinationError
from ..errors.warn import warn_user
from ..laplace.latent import Components
from ..nets.given_net import is_frozen
from ..options.likelihood import check_support, for_counts
from ..options.resolve import STD_REQUESTS, Kind, Parts, one_or_all
from ..options.training import print_hint
from .base import LaplaceEstimator
from .fitted import require_fitted
from .predictive import NumericPredictive, check_request
from .printing import overview
from .report import Report, output_position, regression_report
from .sources import by_block

OF_NUMBERS = "Only LaplaceClassifier has it; for numbers use predict_dist(X), predict_interval(X) or predict_std(X)."
"""Advice in the error for methods that only a classifier has."""


@explained
class LaplaceRegressor(MultiOutputMixin, RegressorMixin, NumericPredictive, LaplaceEstimator):
    """Regression by a neural network, with a standard deviation for every prediction.

    ``fit`` trains an ensemble of nets and approximates the posterior over each net's weights by a Gaussian (the Laplace
    approximation; MacKay 1992, Ritter et al. 2018). Regularisation and noise level are chosen from the data. The page
    "Parameters in detail" describes each parameter.

    Parameters
    ----------
    [Model]
    net : None, torch module class or instance, skorch net, FrozenEstimator or list, default=None
        None: the built-in net for tables. A module or skorch net is trained; a fitted skorch net in a
        ``FrozenEstimator`` keeps its weights. A list of ``FrozenEstimator`` is an ensemble.
    hidden_layer_sizes : "auto" or tuple of int, default="auto"
        Units of each hidden layer of the built-in net.
    activation : {"auto", "tanh", "relu", "gelu", "silu", "softplus"}, default="auto"
        Activation of the built-in net.
    categorical_features : "from_dtype", None, list of str or int, or mask, default="from_dtype"
        Columns to encode as categories. "from_dtype": columns of strings or categorical data types.
    likelihood : {"auto", "gaussian", "heteroscedastic", "poisson", "negative_binomial"}, default="auto"
        Distribution of y. "auto": Gaussian, with noise that varies with X if the data support it. "poisson" and
        "negative_binomial" are for counts.
    [Uncertainty]
    prior_precision : {"auto", "evidence", "loo"}, float or array-like, default="auto"
        Precision of the Gaussian prior, the strength of regularisation. "auto": selected on held-out rows where
        possible, else by the marginal likelihood ("evidence").
    sigma_noise : {"auto", "evidence", "loo", "residual"}, float or array-like of shape (n_outputs,), default="auto"
        Standard deviation of the noise, in units of (transformed) y.
    n_members : "auto", int or Members, default="auto"
        Number of ensemble members. "auto": several in default fits with ten or more rows.
    [Training]
    max_time : float or None, default=None
        Seconds after which training ends with the best state so far.
    n_jobs : int or None, default=None
        Number of parallel workers.
    random_state : int, RandomState or None, default=None
        Seed.
    verbose : int or "bar", default=0
        0: silent. 1: a line per stage. 2: epochs too. "bar": progress bars.
    [Advanced]
    n_bins : "auto", None or int, default="auto"
        Bins per numeric column (piecewise linear encoding). None: no encoding.
    standardize_X : "auto" or bool, default="auto"
        If True, standardise X for your own net. "auto": where needed and possible.
    standardize_y : bool, default=True
        If True, train on standardised targets.
    target_transform : {"log"} or None, default=None
        Transformation of y. "log" keeps intervals of positive targets above zero.
    max_epochs, lr, batch_size : int, float and int, or None, default=None
        Gradient training: epochs, learning rate, rows per step.
    map_prior_precision : "same" or float, default="same"
        Prior precision during training. "same": that of the posterior.
    memory : None, str or joblib.Memory, default=None
        Cache of trained nets, from which a killed fit resumes; needs an integer ``random_state``.
    memory_budget : None, int or str, default=None
        Memory limit for posterior and rows: bytes, or a string such as "2GB". None: the available memory.
    device : {"auto", "cpu", "cuda"}, default="auto"
        "auto": a skorch net's device; otherwise a GPU for large fits of the built-in net, else the CPU.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Floating-point type of the net. "auto": float64 up to 10,000 rows.
    subset_of_weights : {"all", "last_layer", "subnetwork"}, list, dict or Subnetwork, default="all"
        Weights with a posterior. A list names tensors or modules; a dict gives masks.
    hessian_structure : str, Kron, EKFAC, BlockDiagonal, LowRank or LowRankDiag, default="auto"
        Approximation of the curvature: "full", "functional", "block_diagonal", "kron", "ekfac", "low_rank_diag",
        "low_rank" or "diag". "auto": exact if affordable, else "kron" or "diag".
    curvature : {"ggn", "empirical_fisher", "mc_fisher", "hessian"} or MCFisher, default="ggn"
        Curvature of the loss: generalised Gauss–Newton, Fisher or Hessian matrix.
    prior : None, str, float, dict, FrozenEstimator or GaussianPrior, default=None
        Groups of weights with a common precision ("scalar", "layer", "tensor", "ard", "parameter"); the prior mean; or
        ``FrozenEstimator(fitted)``, whose posterior becomes the prior.
    temperature : float or dict, default=1.0
        Divisor of the curvature; below 1, the posterior is narrower. A dict: one value per layer or tensor.
    predictive : {"auto", "extrapolating", "glm", "mc"} or MonteCarlo, default="auto"
        "extrapolating": the linearised net, with variance that grows outside the training range. "glm": without this
        growth. "auto": "extrapolating" for built-in nets with hidden layers, except for counts and log targets. "mc":
        weight samples.

    Attributes
    ----------
    members_ : list of LaplaceRegressor
        Ensemble members; most attributes below belong to the first.
    member_weights_ : ndarray of shape (n_members,)
    net_ : skorch net
    posterior_, laplace_, hyper_
        Posterior over the weights, curvature at the mode, hyperparameters.
    prior_precision_ : float or ndarray of shape (n_groups,)
        Prior precision; ``prior_groups_`` names the groups.
    sigma_noise_ : float or ndarray of shape (n_outputs,)
        Noise standard deviation of an average row, in units of (transformed) y.
    overdispersion_ : float or ndarray
    noise_model_ : NoiseModel, TargetNoise or None
    structure_ : str
    subset_ : dict of str to ndarray of bool
    log_marginal_likelihood_value_ : float
        Log evidence of y, in nats.
    n_effective_parameters_ : float
        MacKay's γ.
    feature_relevance_ : ndarray of shape (n_features,)
        Relevance of each column, with ``prior="ard"``.
    prior_path_ : Bunch
        Scores under other prior precisions.
    gradient_norm_, mode_distance_ : float
        Gradient norm in nats per row; distance of the weights from the mode in posterior standard deviations.
    history_ : list of dict
    n_iter_, n_outputs_, n_features_in_ : int
    feature_names_in_ : ndarray of str
    table_ : TableReport
    target_transform_ : str or None

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_laplace import LaplaceRegressor
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)
    >>> model = LaplaceRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict([[3.0], [30.0]], return_std=True)
    >>> bool(std[1] > 3 * std[0])
    True
    >>> round(model.sigma_noise_, 1)
    0.1
    """

    _kind = "regressor"
    if not TYPE_CHECKING:
        predict_proba, predict_entropy = Absent(OF_NUMBERS), Absent(OF_NUMBERS)
    __metadata_request__predict: ClassVar[dict[str, bool]] = dict.fromkeys(
        ("return_std", "return_cov", "return_mean_grad", "return_std_grad", "X_std"), True
    )

    def __init__(
        self,
        net: Any = None,
        *,
        hidden_layer_sizes: tuple[int, ...] | str = "auto",
        activation: str = "auto",
        categorical_features: Any = "from_dtype",
        likelihood: str = "auto",
        prior_precision: Any = "auto",
        sigma_noise: Any = "auto",
        n_members: Any = "auto",
        max_time: float | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int | str = 0,
        n_bins: int | str | None = "auto",
        standardize_X: str | bool = "auto",
        standardize_y: bool = True,
        target_transform: str | None = None,
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
    ) -> None:
        self.net = net
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.categorical_features = categorical_features
        self.likelihood = likelihood
        self.prior_precision = prior_precision
        self.sigma_noise = sigma_noise
        self.n_members = n_members
        self.max_time = max_time
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.n_bins = n_bins
        self.standardize_X = standardize_X
        self.standardize_y = standardize_y
        self.target_transform = target_transform
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = for_counts(self.likelihood)
        return tags

    def _prepare(self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> PreparedData:
        options = self._options()
        likelihood, sigma = options.likelihood, options.sigma_noise.value
        X, y, weights, variances = self._validate_rows(X, y, sample_weight, sample_noise_variance, y_numeric=True)
        if variances is not None and options.varying_noise:
            raise UnsupportedCombinationError(
                f"likelihood={self.likelihood!r} learns the noise variance of each row, which sample_noise_variance "
                "gives already. Use likelihood='gaussian', or omit sample_noise_variance."
            )
        if variances is not None and self.target_transform is not None:
            raise UnsupportedCombinationError(
                f"target_transform={self.target_transform!r} cannot be used with sample_noise_variance, whose "
                "variances are those of y itself. Use target_transform=None, or sample_weight."
            )
        self._single_output = y.ndim == 1
        targets = y.astype(np.float64).reshape(len(y), -1)
        if concern := far_target(targets, weights):
            warn_user(concern, TableWarning)
        n_outputs, noisy_rows = targets.shape[1], variances is not None
        all_rows, all_targets, all_weights, all_variances = X, targets, weights, variances
        if variances is not None:
            targets = np.column_stack([targets, variances])
        X, targets, weights = self._rows_of_training(X, targets, weights)
        if variances is not None:
            targets, variances = np.split(targets, 2, axis=1)
        check_support(likelihood, targets)
        previous = self._previous()
        if previous is not None:  # its curvature is in the units of the previous fit
            check_outputs(n_outputs, previous.n_outputs_)
            check_noisy_rows(noisy_rows, previous._scale.noisy_rows)
            targets = previous._scale.transformed(targets)
            return self._scaled(X, targets, weights, variances, previous._scale)  # no rows for leave-one-out
        mean, scale = np.zeros(n_outputs), np.ones(n_outputs)
        if self.verbose:
            print_hint(self.likelihood, self.target_transform, targets)
        transforms: tuple[LogTransform, ...] = ()
        slope, deviation = 0.0, None
        if self.target_transform is not None:
            transforms = tuple(LogTransform.fitted(column) for column in targets.T)
            slope = log_slope(transforms, targets, weights)
            # A row of weight zero may have a target that is not positive.
            all_targets = transformed(transforms, np.where(all_weights[:, None] > 0, all_targets, targets[:1]))
            targets = transformed(transforms, targets)
        if self.standardize_y and likelihood.additive_noise and not is_frozen(self.net):
            mean, scale, constant = spread(targets, row_reliability(weights, variances))
            # The scale of a constant target is its absolute value.
            scale = np.where(constant, np.where(mean == 0, 1.0, np.abs(mean)), scale)
            targets, all_targets = (np.where(constant, mean, values) for values in (targets, all_targets))
        elif likelihood.additive_noise:
            _, deviation, constant = spread(targets, row_reliability(weights, variances))
            deviation = np.where(constant, 1.0, deviation)
        sigma = None if sigma is None else noise_per_target(sigma, n_outputs)
        target_scale = TargetScale(
            mean, scale, unit_noise(sigma, variances, scale, weights), noisy_rows, transforms, deviation, slope
        )
        return self._scaled(X, targets, weights, variances, target_scale).with_unmerged_rows(
            self._scaled(all_rows, all_targets, all_weights, all_variances, target_scale)
        )

    def _prepare_more(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, *, scale: TargetScale
    ) -> PreparedData:
        X, y, weights, variances = self._validate_rows(
            X, y, sample_weight, sample_noise_variance, y_numeric=True, reset=False
        )
        targets = y.astype(np.float64).reshape(len(y), -1)
        check_outputs(targets.shape[1], len(scale.mean))
        check_support(self._options().likelihood, targets[weights > 0])
        check_noisy_rows(variances is not None, scale.noisy_rows)
        return self._scaled(X, scale.transformed(targets), weights, variances, scale)

    @staticmethod
    def _scaled(
        X: np.ndarray, y: np.ndarray, weights: np.ndarray, variances: np.ndarray | None, scale: TargetScale
    ) -> PreparedData:
        """Return prepared rows, with targets and noise variances in the network's units."""
        return PreparedData(X, scale.apply(y), weights, y.shape[1], scale, scale.noise(variances, len(y)))

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True], *, X_std: Any = None) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(self, X: Any, *, return_cov: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(
        self, X: Any, return_std: bool = False, *, return_mean_grad: Literal[True], return_std_grad: bool = False
    ) -> tuple[np.ndarray, ...]: ...
    @overload
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_mean_grad: bool = False,
        return_std_grad: bool = False,
        X_std: Any = None,
    ) -> np.ndarray | tuple[np.ndarray, ...]: ...
    @by_block
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_mean_grad: bool = False,
        return_std_grad: bool = False,
        X_std: Any = None,
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Predict the mean and, optionally, the standard deviation, joint covariance or gradients with respect to X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool, default=False
            If True, return the standard deviation, noise included. For its two parts, see :meth:`predict_std`.
        return_cov : bool, default=False
            If True, return the joint covariance over the rows, with the noise on its diagonal.
        return_mean_grad : bool, default=False
            If True, return the gradient of the mean with respect to X, in the original units of X and y.
        return_std_grad : bool, default=False
            If True, return the gradient of the standard deviation. Needs ``return_std`` and ``return_mean_grad``.
        X_std : float or array-like of shape (n_features,) or (n_samples, n_features), optional
            Standard deviations of the errors in X, see :meth:`predict_std`.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In units of y.
        std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In units of y.
        cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            In squared units of y.
        mean_grad, std_grad : ndarray of shape (n_samples, n_features) or (n_samples, n_features, n_outputs)
            In units of y per unit of X. For a single row the first axis is omitted, as in scikit-optimize's Gaussian
            process: (n_features,) or (n_features, n_outputs). At a kink (relu), gradients are one-sided. Where the
            standard deviation is zero, its gradient is set to zero.

        Raises
        ------
        RuntimeError
            If both ``return_std`` and ``return_cov`` are True.
        ValueError
            For ``return_std_grad`` without ``return_std`` or ``return_mean_grad``. For ``X_std`` without
            ``return_std`` or with ``return_std_grad``, and for gradients with ``return_cov``. For gradients or
            ``X_std`` with categorical columns or missing values. With ``target_transform``, for all but ``return_std``.
        NonFiniteError
            If an output of the net, or a derivative needed for a standard deviation, is NaN or infinite. All methods
            that predict raise this error.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.predict([[3.0], [30.0]], return_std=True)
        >>> bool(std[1] > 5 * std[0])  # wide far from the training data
        True
        >>> mean, slope = model.predict([[np.pi]], return_mean_grad=True)
        >>> bool(-1.5 < slope[0] < -0.5)  # the sine has slope −1 there
        True
        """
        flags = {"std": return_std, "cov": return_cov, "mean_grad": return_mean_grad, "std_grad": return_std_grad}
        check_request(**flags, X_std=X_std)
        require_fitted(self)
        others = {f"return_{name}": value for name, value in flags.items() if name != "std"}
        self._check_transformed(**others, X_std=X_std)
        if return_mean_grad or X_std is not None:
            moments, *slopes = self._sloped(X, X_std, of_std=return_std_grad)
            results = [self._in_units(moments.mean)]
            results += [self._std(moments, "total")] if return_std else []
            gradients = [self._per_column(slope) for slope in slopes if slope is not None and return_mean_grad]
            return *results, *(gradient[0] if len(gradient) == 1 else gradient for gradient in gradients)
        if return_std or self._scale.transforms:
            mean, (std,) = self._mean_and_stds(self._moments(X), ("total",))
            return (mean, std) if return_std else mean
        mean = self._in_units(self._means(X))
        return (mean, self._covariance(X)) if return_cov else mean

    @overload
    def predict_std(self, X: Any, *, kind: Kind = "total", X_std: Any = None) -> np.ndarray: ...
    @overload
    def predict_std(self, X: Any, *, kind: Literal["all"], X_std: Any = None) -> Parts: ...
    @overload
    def predict_std(self, X: Any, *, kind: str = "total", X_std: Any = None) -> Any: ...
    @by_block
    def predict_std(self, X: Any, *, kind: str = "total", X_std: Any = None) -> Any:
        """Standard deviation of the prediction, in units of y.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        kind : {"total", "epistemic", "aleatoric", "all"}, default="total"
            "epistemic": uncertainty of the mean, which more data reduce. "aleatoric": noise at X. "total": both, with
            total² = epistemic² + aleatoric². "all": a Bunch of the three.
        X_std : float or array-like of shape (n_features,) or (n_samples, n_features), optional
            Standard deviations of independent errors in X, in units of X. They add Σ (∂μ/∂x)² X_std² to the total and
            aleatoric variances. The formula is accurate if the mean is nearly linear over the size of the errors.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs), or Bunch of such arrays

        Raises
        ------
        ValueError
            For an unknown kind. For an ``X_std`` that is negative, not finite, of another shape, or with other column
            names. For ``X_std`` with categorical columns, missing values or ``target_transform``.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> kinds = "total", "epistemic", "aleatoric"
        >>> total, epistemic, aleatoric = (model.predict_std([[3.0]], kind=kind) for kind in kinds)
        >>> bool(np.allclose(total**2, epistemic**2 + aleatoric**2))
        True
        >>> bool(model.predict_std([[3.0]], X_std=0.2) > total)
        True
        """
        require_fitted(self)
        kinds = lookup("kind", kind, STD_REQUESTS)
        self._check_transformed(X_std=X_std)
        parts = self._moments(X) if X_std is None else Components.of(self._sloped(X, X_std)[0])
        return one_or_all(dict(zip(kinds, self._mean_and_stds(parts, kinds)[1], strict=True)))

    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """Predictive distribution of each row, noise included; rows are treated as independent.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        distribution : object
            Methods are ``mean()``, ``std()``, ``ppf(q)``, ``cdf(y)``, ``logpdf(y)`` and ``rvs()``. Their arrays have
            the shape of :meth:`predict`. The class depends on the fit, see Notes.

        Notes
        -----
        A single net with constant noise gives a frozen ``scipy.stats.norm``. An ensemble gives a
        :class:`~sklearn_laplace.distributions.NormalMixture`, and so does noise that varies with X, because its level
        is uncertain. ``target_transform`` gives a :class:`~sklearn_laplace.distributions.TransformedMixture`.

        A single net for counts gives a :class:`~sklearn_laplace.distributions.PoissonLogNormal` or
        :class:`~sklearn_laplace.distributions.NegativeBinomialLogNormal`; an ensemble gives a
        :class:`~sklearn_laplace.distributions.CountMixture`. :meth:`sample_y` draws jointly over the rows.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> distribution = model.predict_dist([[3.0], [30.0]])
        >>> distribution.mean().shape, distribution.interval(0.9)[0].shape, distribution.logpdf([0.1, 0.0]).shape
        ((2,), (2,), (2,))
        """
        require_fitted(self)
        if not self.laplace_.likelihood.additive_noise:
            return self._counts(X)
        parts, transforms = self._components(X), self._scale.transforms
        if len(parts.weights) == 1 and not transforms:
            return norm(self._in_units(parts.moments.mean), self._std(parts.moments, "total"))
        variance = (parts.epistemic_variance + parts.aleatoric_variance).clamp_min(0.0)
        means, stds = self._in_units(parts.mean), self._in_units(variance.sqrt(), shift=False)
        mixture = NormalMixture(means, stds, parts.weights.cpu().numpy())
        return TransformedMixture(mixture, transforms) if transforms else mixture

    @by_block
    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of :meth:`predict_dist`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        quantiles : float or sequence of float, default=(0.05, 0.5, 0.95)
            Levels strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_quantiles, n_outputs)
            In units of y.

        Raises
        ------
        ValueError
            If a level is not strictly between 0 and 1.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> low, high = model.predict_quantiles([[3.0], [30.0]], (0.05, 0.95)).T
        >>> bool((high - low)[1] > 5 * (high - low)[0])  # wide far from the training data
        True
        """
        return quantiles_of(self.predict_dist(X), fractions("quantiles", quantiles))

    @by_block
    def predict_interval(self, X: Any, confidence_level: Any = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central prediction intervals: quantiles of :meth:`predict_dist`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        confidence_level : float or sequence of float, default=0.9
            Probability that a new target falls inside, strictly between 0 and 1.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            As :meth:`predict` returns it.
        interval : ndarray of shape (n_samples, 2) or (n_samples, n_outputs, 2)
            Lower and upper ends in units of y. A sequence of levels adds a last axis of length n_levels; the intervals
            are then nested.

        Raises
        ------
        ValueError
            For a level outside (0, 1).

        Notes
        -----
        Intervals have the stated coverage if the predictive distribution is correct. With several targets, the coverage
        holds for each target separately. Conformal packages, such as MAPIE and crepes, calibrate intervals on held-out
        rows (see the guide "How to get intervals with guaranteed coverage").

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, interval = model.predict_interval([[3.0], [30.0]], confidence_level=0.9)
        >>> mean.shape, interval.shape
        ((2,), (2, 2))
        >>> model.predict_interval([[3.0], [30.0]], confidence_level=[0.5, 0.9, 0.95])[1].shape
        (2, 2, 3)
        """
        levels = fractions("confidence_level", confidence_level)
        distribution = self.predict_dist(X)
        intervals = nested(central_intervals(distribution, levels), levels)
        return distribution.mean(), without_level_axis(intervals, confidence_level)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R² of the predicted means, at most 1.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        float
            R², averaged over the targets.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, y).score(X, y) > 0.9
        True
        """
        return float(super().score(X, check_targets(y, numeric=True), sample_weight))

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Log density of targets under :meth:`predict_dist`, in nats, summed over the outputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)

        Returns
        -------
        ndarray of shape (n_samples,)
            Log density per unit of y; for counts, log probability.

        Raises
        ------
        ValueError
            If y does not have the shape of the prediction.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.log_predictive_density([[3.0], [3.0]], [0.1, 1.0]).round()
        array([  1., -31.])
        """
        distribution = self.predict_dist(X)
        density = distribution.logpdf(targets_like(y, distribution.mean()))
        return density if density.ndim == 1 else density.sum(1)

    def report(self, X: Any, y: Any, *, output: int | None = None) -> Report:
        """Report on predictions of held-out rows: scores, calibration and worst groups.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        output : int, optional
            Position of the target to report on, if there are several.

        Returns
        -------
        Report
            Printed as text. RMSE and CRPS are in the units of y, and the log density is in nats per row. The range next
            to each coverage contains the coverage of a calibrated model with probability .95; an arrow marks a coverage
            outside its range. A group has the rows between two quartiles of a numeric column, or those with a frequent
            category or a missing value. The probability .95 holds jointly for the ranges of all groups.

        Raises
        ------
        ValueError
            If y does not have the shape of the prediction, or counts are not integers. If there are several targets and
            ``output`` is None.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 6, (300, 1))
        >>> y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=300)
        >>> model = LaplaceRegressor(hidden_layer_sizes=(10,), n_members=1, random_state=0).fit(X[:100], y[:100])
        >>> report = model.report(X[100:], y[100:])
        >>> print(report)  # doctest: +ELLIPSIS
        200 rows
        RMSE           0.1...
        R2             0.9...
        ...
        90% intervals  0.9..., expected 0.855 to 0.940
        ...
        """
        distribution = self.predict_dist(X)
        targets = targets_like(y, distribution.mean())
        position = output_position(output, targets.size // len(targets))
        report = regression_report(distribution, X, targets, position, is_count=for_counts(self.likelihood))
        return self._with_outside(report, X)

    def plot(
        self,
        X: Any,
        y: Any,
        *,
        output: int | None = None,
        feature: int | str | None = None,
        figure: Any = None,
        ax: Any = None,
        **options: Any,
    ) -> Any:
        """Draw prediction intervals, calibration and relevance of the columns on held-out rows, in one figure.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        output : int, optional
            Position of the target to draw, if there are several.
        feature : int or str, optional
            Column for the horizontal axis of the intervals. Default: the only column, or the rank of the predicted
            mean.
        figure : matplotlib Figure or SubFigure, optional
            Figure to draw in. Default: a new one.
        ax : None, matplotlib Axes or sequence of Axes
            Axes to draw on: one for each panel, or a single one for only the intervals.
        **options
            Further parameters of :meth:`~sklearn_laplace.plotting.OverviewDisplay.from_estimator`.

        Returns
        -------
        OverviewDisplay
            Its attributes are ``figure_``, ``axes_`` and the panels, which hold the numbers that are drawn.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If y does not have the shape of the prediction, or if there are several targets and ``output`` is None.

        Examples
        --------
        >>> from sklearn_laplace import LaplaceRegressor
        >>> import matplotlib.pyplot as plt
        >>> from sklearn.datasets import make_regression
        >>> X, y = make_regression(90, 3, noise=5.0, random_state=0)
        >>> options = {"hidden_layer_sizes": (), "n_members": 1, "random_state": 0}
        >>> display = LaplaceRegressor(**options).fit(X[:60], y[:60]).plot(X[60:], y[60:])
        >>> len(display.axes_), display.relevance.order
        (3, array([...]))
        >>> plt.close(display.figure_)
        """
        return overview(self, X, y, output=output, feature=feature, figure=figure, ax=ax, **options)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, *, kind: str = "total") -> np.ndarray:
        """Draw samples from the predictive distribution, jointly over the rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState or None, default=0
            Seed of the draws.
        kind : {"total", "epistemic"}, default="total"
            "total": new targets, noise included, with the covariance that ``predict(X, return_cov=True)`` returns.
            "epistemic": noise-free outputs of the linearised net or, with ``predictive="mc"``, of the net itself. For
            counts, these outputs are rates. Not available with ``target_transform``.

        Returns
        -------
        ndarray of shape (n_rows, n_samples) or (n_rows, n_outputs, n_samples)
            In units of y.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.sample_y([[3.0], [30.0]], n_samples=5).shape
        (2, 5)
        """
        require_fitted(self)
        noisy = lookup("kind", kind, {"total": True, "epistemic": False})
        self._check_transformed(**{f"kind={kind!r}": not noisy})
        count = _values.count("n_samples", n_samples)
        generator = _values.generator(random_state)
        with self._asked(X) as (x, options):

            def draw(member: Member, n_draws: int) -> torch.Tensor:
                return member.target_draws(x, options, n_draws, generator, noisy=noisy)

            return self._original(self._in_units(self._ensemble.draws(count, generator, draw)))
