"""``LaplaceRegressor``: a neural net for numeric targets with error bars, as a scikit-learn regressor."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from scipy.stats import norm
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_array, check_is_fitted

from ._data.known_noise import check_noisy_rows, noise_per_target, reliability, unit_noise
from ._data.rows import PreparedData, canonical_rows
from ._data.statistics import spread
from ._data.target_scale import TargetScale
from ._ensemble.input_gradients import check_request
from ._ensemble.member import Member
from ._estimator.base import LaplaceEstimator
from ._options.likelihood import check_support, for_counts
from ._options.prior import check_left_out
from ._options.resolve import INTERVAL_METHODS, STD_KINDS, variance_of_kind
from ._validation import values as _values
from ._validation.targets import check_outputs, check_targets
from ._validation.values import flag, fractions, lookup
from .distributions.mixtures import CountMixture, NormalMixture
from .distributions.poisson_log_normal import PoissonLogNormal
from .errors import UnsupportedCombinationError
from .laplace.latent import LatentGaussian, Predictive


class LaplaceRegressor(MultiOutputMixin, RegressorMixin, LaplaceEstimator):
    """Neural-net regression with Laplace-approximated uncertainty.

    Trains the net to the mode of its posterior and approximates the posterior around it by a Gaussian (MacKay 1992;
    Ritter et al. 2018). While the net trains, prior precision and noise choose themselves by the evidence; those of the
    posterior are then chosen by what three nets, trained without a third of the rows each, say of them ("auto").
    A fit keeps its rows, as nearest neighbours and Gaussian processes keep theirs, for what leaves them out one by one
    (:meth:`loo_predict`, ``method="jackknife+"``, "loo"); :meth:`forget` drops all of them.

    Parameters
    ----------
    net : None, torch module class or instance, skorch net, or FrozenEstimator, default=None
        None: the built-in net for tables, :class:`~sklearn_laplace.nets.MLP`. A module is trained as the built-in net
        is; an instance is copied and starts from its weights. A skorch net such as ``NeuralNetRegressor(Module, ...)``
        is a template: it is cloned, trained with its own optimiser for its own ``max_epochs`` under our loss, then
        brought to the mode. The sizes of the data are filled in where the module takes them. A
        ``FrozenEstimator(fitted skorch net)`` is kept as it is: nothing is retrained, the prior precision and the
        noise are chosen at its weights, and y is not standardised.
    hidden_layer_sizes : "auto" or tuple of int, default="auto"
        Hidden layers of the built-in net. "auto": two layers of 48 to 128 units, more for more rows, in a fit that
        trains its members together (see ``n_members``); (50,) in any other fit.
    activation : {"auto", "tanh", "relu", "gelu", "silu", "softplus"}, default="auto"
        Activation of the built-in net. "auto": "silu" where the members train together ("gelu" for half of
        them up to 5,000 rows), else "tanh".
    n_bins : "auto", None, int, or tuple of int and None, default="auto"
        Pieces of each column of numbers in the built-in net, between quantiles of the training's rows (piecewise linear
        encoding; Gorishniy et al. 2022): functions that bend or jump within a column come easily, as they do to trees.
        None: the number itself. Where the members train together (``n_members``), the pieces are inputs beside the
        number; "auto" is 8 of them, and up to 64 in half of the members where there are many rows. In all other fits
        they are inputs in its place. A tuple, (None, 8) say: nets of each kind in one mixture, ``n_members`` of each, a
        kind weighed by stacking (Yao et al. 2018): by what its nets say of rows that they have not seen. One with less
        than a tenth of the weight has a single member where it is the first, and none elsewhere; and it is the first
        alone where there are no such nets ("auto" of ``n_members``), a previous posterior is the prior, or, of classes
        and counts, the others are not worth ten nats of these rows together. "auto" is (None, 8) there beyond 300 rows,
        where the training of such nets goes over all rows in each step and a column of numbers has more than two
        values. It is None elsewhere, and where nothing is left open: for a number of ``n_members``, and for weights
        that are called by name. Beside members that train together there is one kind of nets with exact steps: pieces
        where they err much less than numbers.
    categorical_features : "from_dtype", None, list of str or int, or mask, default="from_dtype"
        Which columns the built-in net takes as categories. "from_dtype": those of strings, and those whose data type
        is categorical in pandas or polars. None: no column. Otherwise those with these names or positions, or where the
        mask is True; all others have to hold numbers. Booleans are the numbers 0 and 1, times numbers of days. A level
        that the training has not seen widens the prediction by as much as the levels of its column differ, as does a
        missing one where the training has none; otherwise missing is a level. The 1,000 most frequent levels of a
        column have embeddings of their own, rarer ones share one. In columns of numbers NaN is a missing value, for
        which there is an input of its own; it is refused where no row of the training had one.
    max_epochs : int, optional
        Epochs of gradient training before the Gauss–Newton steps. None: what the net says; none at all for the
        built-in net while Gauss–Newton is affordable, and for the nets beside it.
    lr : float, optional
        Learning rate of these epochs. None: what the net says.
    batch_size : int, optional
        Rows a step of these epochs. None: what the net says.
    standardize_y : bool, default=True
        Whether the net sees targets of mean 0 and variance 1. Everything returned is in the units of y either way.
    augment : callable, optional
        ``augment(X, random_state)`` makes other rows of the raw columns X that the answer is the same for (shifts,
        noise, reflections): same shape, drawn from the ``RandomState`` that it is given, which follows from ours and
        from X. Training, curvature and evidence see ``n_augmentations`` such copies of each row, each with its share of
        the row's weight, in place of the row; the weights of a frozen net stay.
    n_augmentations : int, default=1
        Copies of each row; all costs grow with them.
    map_prior_precision : "same" or float, default="same"
        "same": the net trains under the posterior's own prior precision and noise. A float: it trains once under that
        precision and a noise as large as the spread of the targets, and everything else is chosen afterwards.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where torch computes; "auto" is the device of a given skorch net, else the CPU.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Of the network; "auto" is float64 up to 10,000 rows. Sums and the posterior are float64 always.
    memory_budget : None, int or str, default=None
        Bytes, or a string such as "500MB" or "2GB", that the posterior's structure and the rows in work may take
        together; None: all that the process may have (machine, container, ``ulimit -v``). Structures that take more are
        refused, "auto" chooses another one, and rows go through in smaller chunks. Data, net, its own epochs and
        temporaries of 32 MB come on top.
    subset_of_weights : {"all", "last_layer", "subnetwork"}, list of str or dict, default="all"
        Which weights are random; the others stay at the mode. "subnetwork": those that ``subnetwork`` chooses once the
        net is trained. A list names parameter tensors of the net, or modules for all tensors in them: "block2" stands
        for "block2.0.weight", "block2.0.bias" and so on. A dict gives each tensor's mask, True where it is random, such
        as ``subset_`` of another fit, or :func:`~sklearn_laplace.laplace.subsets.largest` makes of any scores.
    subnetwork : {"variance", "magnitude", "random"}, default="variance"
        Which weights of a subnetwork are taken: those with the largest marginal variance in a diagonal posterior over
        all weights, under the prior and the noise that the net was trained with (Daxberger et al. 2021); the largest;
        any, by ``random_state``.
    n_subnetwork_weights : int or float, default=0.1
        How many; a float is a share of all weights, 1.0 all of them.
    hessian_structure : str, default="auto"
        How the curvature is stored: all of it, in two forms ("full", "functional"); one dense block a layer
        ("block_diagonal"); Kronecker factors, with or without second moments of their own ("ekfac", "kron"); the
        leading of these moments with the exact diagonal ("low_rank_diag"); the leading eigenpairs of all weights
        ("low_rank"); the diagonal ("diag"). "auto": exact ("full", or its dual form "functional" where that is cheaper)
        while pass and eigendecomposition cost at most 2·10¹¹ multiply-adds and 1 GiB (5·10⁹ and 256 MiB up to 300 rows,
        so that a fit takes about a second), else "kron". ``structure_`` names the one in use. Of the four options that
        follow, one that is not at its default needs a structure by name that takes it.
    bias : {"folded", "separate"}, default="folded"
        For "kron", "ekfac", "low_rank_diag" and "block_diagonal": whether a layer's bias is a column of its weight, or
        has a dense block of its own (exact in itself, and the convention of other libraries).
    weight_sharing : {"expand", "reduce"}, default="expand"
        For "kron", "ekfac" and "low_rank_diag", where a layer sees several positions of each row (convolutions,
        sequences): whether its Kronecker factors take positions for rows, or sum cotangents and average inputs over
        them first. The latter is cheaper, and right for nets that average over positions at their end.
    rank : int, default=100
        For "low_rank" and "low_rank_diag": eigenpairs kept, of all weights or of each layer.
    damping : {"exact", "ritter"}, default="exact"
        For "kron": how the prior enters the posterior's precision. "exact": added to it. "ritter": √δ added to each
        Kronecker factor (Ritter et al. 2018, eq. 9), which narrows predictions and samples; the evidence stays that of
        "exact". One precision for each layer; with ``bias="separate"`` for weight and bias each.
    curvature : {"ggn", "empirical_fisher", "mc_fisher", "hessian"}, default="ggn"
        What one row contributes to the posterior (the training always uses "ggn"): the generalised Gauss–Newton matrix;
        the outer product of its own gradient; that of gradients towards targets drawn from the model; the exact second
        derivative, for "full", "block_diagonal" and "diag", whose negative eigenvalues count as zero.
    n_fisher_samples : int, default=1
        Targets drawn for each row by ``curvature="mc_fisher"``. The draws follow from ``random_state`` and from the row
        itself, so that they do not depend on the other rows.
    likelihood : {"auto", "gaussian", "heteroscedastic", "poisson"}, default="auto"
        Distribution of y given the outputs. "gaussian": normal, with the same noise everywhere. "heteroscedastic":
        normal, with a noise that varies with X: a second net for its log variance, with a Laplace approximation of its
        own, learns it from the errors of nets that have not seen the rows (those of ``prior_precision="auto"``; where
        there are none, of closed-form leave-one-out), and the mean trains on under it
        (``_approximation/noise_model.py``). "auto": that, where ``sigma_noise`` is "auto" and such nets are there, or
        hidden layers and 20 rows for each effective parameter, whose errors are those of the fit then, and its evidence
        is 5 nats above the density under the same noise everywhere; else "gaussian", as for many targets (about 60,
        beyond 300 rows 120). "poisson": counts, 0 and above, whose log rate is the net's output; the net sees y as it
        is, predictions are mean rates, and their spread follows from rate and posterior.
    prior_precision : {"auto", "evidence", "loo", "cv", "validation"}, float or array-like, default="auto"
        Precision δ of the Gaussian prior over the weights of the standardised net: chosen by a rule, or fixed for all
        weights, or fixed for each group of ``prior_structure`` (each parameter tensor under "scalar"). "evidence": that
        of largest log marginal likelihood, with the weights following. "auto": the net trains as under "evidence"; the
        posterior's δ is that times the factor, up to 10³ either way, under which three more nets, each trained from a
        start of its own without a third of the rows, give these the largest log density (of factors within 1 nat of it,
        the one closest to 1); for classes and counts all nets train on under a prior that is weaker by a factor of .3
        as long as that is worth 5 nats to these rows, three times at most, and a factor below 1 counts by its root;
        where the noise is chosen so too, both go a part of the way, a factor of 1.05 in σ at most. The evidence sees
        one mode, and is too sure where another net would have found other features in the same rows. That is done for
        the built-in net with hidden layers and 40 different rows at least, while its training takes Gauss–Newton steps
        (those of classes and counts may be in Kronecker form, up to 10,000 rows) and ``memory_budget`` has room for
        five curvatures, not with ``max_epochs``, ``augment``, ``prior``, a ``prior_mean`` by names or a number for
        ``map_prior_precision``; elsewhere "auto" is "evidence", also after ``partial_fit``. What a fit takes is in
        ``docs/benchmarks.md``. "loo": that of largest leave-one-out log density of the linearised net (see
        :meth:`loo_predict`), which does not ask the prior to be right. The net trains as under "evidence", and its
        weights stay: δ shapes the spread. For one precision and an exact posterior that costs three passes over the
        rows; in other structures, for several precisions and for counts each of some twenty points a precision is a
        leave-one-out of its own, and the exact curvature of all random weights has to fit in memory, as do up to 256 MB
        of Jacobians. Refused with ``augment`` and ``prior``. "cv" and "validation" choose one δ of
        ``prior_precision_grid`` by its mean score over the folds of ``cv``, or on the validation set that ``fit`` gets;
        noise and all else are chosen for each candidate as ever. "cv" is what ``GridSearchCV`` over δ gives: with a
        number for ``map_prior_precision`` by K + 1 trainings for K folds, whatever the grid ("validation": by one);
        with "same" each candidate trains in each fold. Where ``n_members`` is "auto", a candidate is one net in a fold,
        with a few steps, "evidence" for "auto" noise and one noise for all rows; a number gives the same as the search.
    prior_structure : {"scalar", "layer", "tensor", "ard", "parameter"}, default="scalar"
        Which weights share a precision: all of them; weights and bias of a layer; a parameter tensor; the weights of an
        input column in the first layer, and each tensor elsewhere (automatic relevance determination); none. "kron"
        holds all but "parameter", "ekfac" the first two.
    prior_mean : float or dict, default=0.0
        Mean of the prior over the weights: one number, or arrays by names of parameter tensors, zero where none is
        given, such as a ``state_dict()``, whose buffers are left aside. With ``net=module`` and its own state the net
        starts from what it was trained to before, and the prior holds it there (L2-SP). The built-in net starts at the
        arrays that are given.
    prior : None or FrozenEstimator, default=None
        ``FrozenEstimator(fitted)``, a fitted estimator of the same kind, net and structure: its posterior is the prior
        of these rows (Ritter et al. 2018b). The training starts at its weights, its rows count by their quadratic model
        there, and the prior itself once: for a linear net this is one fit on all rows. The scales of X and y are those
        of its rows; prior precision and noise are chosen again where they are not given. See also :meth:`partial_fit`,
        which does not train.
    sigma_noise : {"auto", "evidence", "loo", "residual"}, float or array-like of shape (n_outputs,), default="auto"
        Standard deviation of the noise in the units of y: chosen by nets that have not seen the rows, as
        ``prior_precision="auto"`` (with it, or for the prior precision that is given), and by the evidence where there
        are none, with ``prior_precision="loo"`` and where the given one is a hundred times the training's or a
        hundredth; by the evidence; by the leave-one-out log density, as ``prior_precision`` (where one of the two goes
        by it and the other by the evidence, they are chosen in turn), from the training residuals, or given, for all
        targets or for each. With ``sample_noise_variance`` v, row n has
        the noise variance σ²·v: 1.0 means that v is known as it stands, a rule chooses the factor by which all of v is
        off. Counts have none.
    temperature : float or dict, default=1.0
        Divides the curvature; below 1 the posterior is narrower. A dict gives layers or parameter tensors by name a
        temperature of their own, 1 to the others. What is chosen by a rule is chosen at 1.
    predictive : {"glm", "mc"}, default="glm"
        "glm": the linearised network, in closed form. "mc": the network itself under ``n_samples`` weight samples, the
        same for all rows; mean and covariance are theirs. Under a prior that was not chosen by evidence samples can be
        far off where the linearised network is not.
    n_samples : int, default=100
        Weight samples of ``predictive="mc"``.
    return_std_kind : {"total", "epistemic", "aleatoric"}, default="total"
        What ``predict(X, return_std=True)`` returns.
    cv : None, int, splitter or iterable, default=None
        Folds of ``prior_precision="cv"``. None: 5, of rows in an order that follows from ``random_state`` (classifier:
        the same share of each class in all). Otherwise as in ``GridSearchCV``: a number is that of contiguous
        (classifier: stratified) folds; a splitter that needs groups has to come as a list of its (train, test) pairs.
        A row counts as one in a split, whatever its weight.
    scoring : None, str or callable, default=None
        What "cv" and "validation" maximise on held-out rows. None: the mean log predictive density; or a scorer's name,
        or a callable ``(estimator, X, y)``, such as those of :mod:`sklearn_laplace.metrics`. Where it takes
        ``sample_weight``, it is given the weights of the held-out rows.
    prior_precision_grid : None or sequence of float, default=None
        Candidates of "cv" and "validation". None: 13 from 0.001 to 1000, two a decade. A ``BoundWarning`` says when the
        best is the first or the last of three or more.
    memory : None, str or joblib.Memory, default=None
        Where trainings are cached, as in scikit-learn's Pipeline: candidates of a search that differ in Laplace
        parameters alone (with a number for ``map_prior_precision`` also in prior and noise) share one. Needs an integer
        ``random_state``. The rows are part of the key, and with them what ``augment`` makes of them.
    n_members : "auto" or int, default="auto"
        Nets of a mixture of Laplace approximations (Eschenhagen et al. 2021), each from initial weights of its own.
        All methods answer for the mixture: means, variances and covariances are its moments, quantiles and densities
        its own. "auto" is eight for 100 rows or more, if prior precision and noise are left open too. These nets train
        together, each without one of four folds (``_ensemble/``). Every row is held out by two of them, and the errors
        there determine prior precision and noise, how the noise varies, and its tails. Four of the eight suit smooth
        functions and four suit functions with much detail. Held-out rows weight the two halves, and may drop one. Where
        exact Gauss–Newton steps cost little, four nets of all rows take such steps and come first. Held-out rows weight
        them too, with .15 at least. Targets almost without noise have these alone. For fewer rows "auto" is four, where
        prior precision or noise are chosen by three nets that were trained without a third of the rows each. These
        train on with all rows, and are members in addition to the first. Such nets are there for "auto" of prior
        precision or noise, the built-in net, and 40 rows or more. They and the first one learn how the noise varies,
        and the prior precision of the training, once for all members. In any other fit "auto" is one. Where the data
        leave one basin, members may end as the same net. ``n_jobs`` of them train at a time. Several are refused for a
        net that comes with its weights.
    member_weights : {"uniform", "loo", "evidence"}, default="uniform"
        Weights of the members: the same, of one kind (``n_bins``) or half (``n_members``); those under which the
        mixture gives the training rows the largest density, each row as of the members without it (stacking, Yao et al.
        2018); in proportion to their evidence.
    n_jobs : int or None, default=None
        Workers over chunks of rows, in the posterior's pass and in predictions, one thread of torch each, and over the
        folds of ``prior_precision="cv"``; None: one, or what ``joblib.parallel_config`` says. "ekfac", "low_rank_diag"
        and "low_rank" take their pass alone.
    random_state : int, RandomState or None, default=None
        Seeds the initial weights, the order of mini-batches and the weight samples. torch's global generator is left as
        it was. All trainings of "cv" and "validation" start from one integer, or from copies of one RandomState, which
        stays as it was; from None each starts on its own.
    max_time : float or None, default=None
        Seconds after which training ends with the best state so far, and a :class:`~sklearn_laplace.errors.CutWarning`.
        Schedules of many rows are laid out from measured steps so that they end in time. The posterior and the noise
        model follow. With ``prior_precision="cv"`` or ``"validation"`` the limit holds for each training. The first
        Ctrl-C does the same, unless trainings are cached (``memory``); the second one stops at once.
    verbose : int, default=0
        0 prints nothing. 1 prints a line for each stage with its seconds, and one where outputs are taken for
        probabilities. 2 prints skorch's table too, a line an epoch with its loss and seconds, for a net that trains by
        epochs (a template, ``max_epochs``, or a net too large for Gauss–Newton steps). Progress of all stages is shown
        by scikit-learn's callbacks (from 1.9 on), quiet unless they are set:
        ``LaplaceRegressor().set_callbacks(sklearn.callback.ProgressBar())``, or set on a pipeline or search around it.
        What a callback returns does not stop a fit.

    Attributes
    ----------
    net_ : skorch net
        Trained, in evaluation mode; its outputs are standardised targets.
    posterior_ : Posterior
        Of the weights.
    laplace_ : LaplaceFit
        Curvature and loss at the mode; ``laplace_.network`` is the linearised network.
    prior_precision_ : float or ndarray of shape (n_groups,)
        Prior precision in use; ``prior_groups_`` names its groups.
    sigma_noise_ : float or ndarray of shape (n_outputs,)
        Noise standard deviation in the units of y; absent for counts. With ``sample_noise_variance`` v that of an
        average row: its square is σ² times the weighted mean of the v that were fitted.
    structure_ : str
        Structure in use.
    subset_ : dict of str to ndarray of bool
        Which weights are random, a mask for each tensor that has some.
    log_marginal_likelihood_value_ : float
        Log evidence of y in its own units, nats.
    feature_relevance_ : ndarray of shape (n_features,)
        With ``prior_structure="ard"`` alone: which columns matter, summing to one.
    prior_path_ : Bunch
        Scores under other prior precisions at the same weights, made when they are asked for: ``prior_precision`` (k,),
        25 factors from 10⁻⁴ to 10⁴ times the fitted one (with several (k, n_groups), all by one factor), and, each (k,)
        and NaN where it is not available, ``log_marginal_likelihood`` and ``loo_log_density`` (the weighted sum over
        the rows), nats, of y in its own units, ``cv_score`` and ``validation_score``. Where the noise is chosen by a
        rule that is not "residual", each of the two densities is that of its own best noise at each point. Without
        leave-one-out where its points would take more than 2·10¹¹ multiply-adds, or more than the memory.
    members_ : list of LaplaceRegressor
        The members of a mixture, each fitted and with ``n_members=1``; ``net_`` and all that is not a prediction are
        those of the first.
    member_weights_ : ndarray of shape (n_members,)
    noise_model_ : NoiseModel or None
        How the noise varies with X; None where it does not. Its ``gain`` is the evidence for it, nats.
    n_effective_parameters_ : float
        Parameters that the data determine (MacKay's γ).
    gradient_norm_ : float
        Norm of the gradient of the MAP objective at the mode, nats per row.
    mode_distance_ : float
        Newton decrement: posterior standard deviations between the weights and the mode.
    history_ : list of dict
        skorch's record of the epochs.
    n_iter_ : int
        Epochs and steps together: Gauss–Newton's, and L-BFGS's, four as one while prior and noise move.
    n_outputs_, n_features_in_, feature_names_in_
        As in scikit-learn.

    References
    ----------
    D. MacKay (1992), Bayesian interpolation; A practical Bayesian framework for backpropagation networks.
    H. Ritter, A. Botev, D. Barber (2018), A scalable Laplace approximation for neural networks.
    A. Immer et al. (2021), Improving predictions of Bayesian neural nets via local linearization.
    E. Daxberger et al. (2021), Bayesian deep learning via subnetwork inference.

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
    __metadata_request__predict: ClassVar[dict[str, bool]] = dict.fromkeys(
        ("return_std", "return_cov", "return_mean_grad", "return_std_grad", "X_std"), True
    )

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
        standardize_y: bool = True,
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
        sigma_noise: Any = "auto",
        temperature: Any = 1.0,
        predictive: str = "glm",
        n_samples: int = 100,
        return_std_kind: str = "total",
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
        self.standardize_y = standardize_y
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
        self.sigma_noise = sigma_noise
        self.temperature = temperature
        self.predictive = predictive
        self.n_samples = n_samples
        self.return_std_kind = return_std_kind
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
        tags.target_tags.positive_only = for_counts(self.likelihood)
        return tags

    def _prepare(self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any) -> PreparedData:
        options = self._options()
        likelihood, sigma = options.likelihood, options.sigma_noise.value
        X, y, weights, variances = self._validate_rows(X, y, sample_weight, sample_noise_variance, y_numeric=True)
        if variances is not None and options.varying_noise:
            raise UnsupportedCombinationError(
                f"likelihood={self.likelihood!r} learns the noise of each row, and sample_noise_variance gives it; use "
                "likelihood='gaussian' with it, or leave it away."
            )
        self._single_output = y.ndim == 1
        targets = y.astype(np.float64).reshape(len(y), -1)
        n_outputs, noisy_rows = targets.shape[1], variances is not None
        given = X, targets, weights, variances
        if variances is not None:
            targets = np.column_stack([targets, variances])
        X, targets, weights = canonical_rows(X, targets, weights)
        if variances is not None:
            targets, variances = np.split(targets, 2, axis=1)
        check_support(likelihood, targets)
        previous = self._previous()
        if previous is not None:  # its rows are known in its own units alone
            check_outputs(n_outputs, previous.n_outputs_)
            check_noisy_rows(noisy_rows, previous._scale.noisy_rows)
            return self._scaled(X, targets, weights, variances, previous._scale)  # and no leave-one-out
        mean, scale = np.zeros(n_outputs), np.ones(n_outputs)
        if self.standardize_y and likelihood.additive_noise and not isinstance(self.net, FrozenEstimator):
            mean, scale, constant = spread(targets, reliability(weights, variances))
            # A constant target still has units: its own size.
            scale = np.where(constant, np.where(mean == 0, 1.0, np.abs(mean)), scale)
            targets, all_targets = (np.where(constant, mean, own) for own in (targets, given[1]))
            given = given[0], all_targets, *given[2:]
        sigma = None if sigma is None else noise_per_target(sigma, n_outputs)
        target_scale = TargetScale(mean, scale, unit_noise(sigma, variances, scale, weights), noisy_rows)
        return self._scaled(X, targets, weights, variances, target_scale).beside(self._scaled(*given, target_scale))

    def _prepare_more(
        self, X: Any, y: Any, sample_weight: Any, sample_noise_variance: Any, *, scale: TargetScale
    ) -> PreparedData:
        given = X, y, sample_weight, sample_noise_variance
        X, y, weights, variances = self._validate_rows(*given, y_numeric=True, reset=False)
        targets = y.astype(np.float64).reshape(len(y), -1)
        check_outputs(targets.shape[1], self.n_outputs_)
        check_support(self.laplace_.likelihood, targets[weights > 0])
        check_noisy_rows(variances is not None, scale.noisy_rows)
        return self._scaled(X, targets, weights, variances, scale)

    @staticmethod
    def _scaled(
        X: np.ndarray, y: np.ndarray, weights: np.ndarray, variances: np.ndarray | None, scale: TargetScale
    ) -> PreparedData:
        """The rows in the network's units."""
        return PreparedData(X, scale.apply(y), weights, y.shape[1], scale, scale.noise(variances, len(y)))

    @property
    def sigma_noise_(self) -> float | np.ndarray:
        """Noise standard deviation in the units of y, one for each output: that of an average row and of a new one.

        Of a mixture the root of the mean variance of its members.

        Raises
        ------
        AttributeError
            For counts, whose spread follows from their mean.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.sigma_noise_
        0.1
        """
        check_is_fitted(self)
        if not self.laplace_.likelihood.has_dispersion:
            raise AttributeError(f"likelihood={self.likelihood!r} has no noise of its own, and so no sigma_noise_.")
        sigma = np.sqrt(self._ensemble.mean_of(lambda member: member.noise_variance).numpy()) * self._scale.scale
        return float(sigma[0]) if self._single_output else sigma

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_mean_grad: bool = False,
        return_std_grad: bool = False,
        X_std: Any = None,
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Predicted mean, and on request its standard deviation or joint covariance, and gradients in the inputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool
            Also return the standard deviation of ``return_std_kind`` ("total": noise included).
        return_cov : bool
            Also return the joint covariance over the rows (noise included on the diagonal).
        return_mean_grad : bool
            Also return the derivative of the mean in X, through the standardisation of both.
        return_std_grad : bool
            Also return that of the standard deviation, with the other two.
        X_std : float or array-like of shape (n_features,) or (n_samples, n_features), optional
            Standard deviations of the inputs themselves, see :meth:`predict_std`.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        std : ndarray of the same shape
            In the units of y.
        cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            In squared units of y.
        mean_grad, std_grad : ndarray of shape (n_samples, n_features) or (n_samples, n_features, n_outputs)
            In units of y per unit of X. Of a single row without the first axis, as scikit-optimize's Gaussian process
            has them: (n_features,) or (n_features, n_outputs). At kinks (relu), that of one side; where the standard
            deviation is zero, zero.

        Raises
        ------
        RuntimeError
            When both ``return_std`` and ``return_cov`` are set.
        ValueError
            When ``return_std_grad`` is set without ``return_std`` and ``return_mean_grad``, or ``X_std`` is given
            without ``return_std`` or with ``return_std_grad``; for gradients in columns of categories or at missing
            values.
        NonFiniteError
            When the net, or its derivative where a spread is asked for, is NaN or infinite in a row; as in every
            method that predicts.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.predict([[3.0], [30.0]], return_std=True)
        >>> bool(std[1] > 5 * std[0])  # far away it is wide
        True
        >>> mean, slope = model.predict([[np.pi]], return_mean_grad=True)
        >>> bool(-1.5 < slope[0] < -0.5)  # that of the sine is −1
        True
        """
        flags = {"std": return_std, "cov": return_cov, "mean_grad": return_mean_grad, "std_grad": return_std_grad}
        check_request(**flags, X_std=X_std)
        check_is_fitted(self)
        if return_mean_grad or X_std is not None:
            moments, *slopes = self._sloped(X, X_std, self.return_std_kind if return_std_grad else None)
            found = [self._in_units(moments.mean)]
            found += [self._std(moments, self.return_std_kind)] if return_std else []
            asked = [self._per_column(slope) for slope in slopes if slope is not None and return_mean_grad]
            return *found, *(slope[0] if len(slope) == 1 else slope for slope in asked)
        if return_std:
            moments = self._components(X).moments
            return self._in_units(moments.mean), self._std(moments, self.return_std_kind)
        # The mean of f plus noise is that of f, for which forward passes are enough.
        is_additive = self.laplace_.likelihood.additive_noise
        mean = self._in_units(self._outputs(X) if is_additive else self._components(X).moments.mean)
        return (mean, self._covariance(X)) if return_cov else mean

    def predict_std(self, X: Any, *, kind: str = "total", X_std: Any = None) -> np.ndarray:
        """Standard deviation of the prediction, in the units of y.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        kind : {"total", "epistemic", "aleatoric"}
            total² = epistemic² (what more data would reduce) + aleatoric² (the noise, at X where it varies,
            else that of an average row).
        X_std : float or array-like of shape (n_features,) or (n_samples, n_features), optional
            Standard deviations of the inputs, which are then known up to independent errors, in the units of X; not
            negative. They add Σ (∂μ/∂x)² X_std² to the total and to the aleatoric variance: more data of this kind
            would not reduce it. First order, for errors within which the mean is close to a straight line.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)

        Raises
        ------
        ValueError
            For an unknown kind; for X_std that is negative, not finite or of another shape, or with columns of
            categories or missing values.

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
        check_is_fitted(self)
        lookup("kind", kind, dict.fromkeys(STD_KINDS))
        return self._std(self._components(X).moments if X_std is None else self._sloped(X, X_std)[0], kind)

    def predict_dist(self, X: Any) -> Any:
        """Predictive distribution of each row, independent of the others, noise included.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        frozen ``scipy.stats.norm``; :class:`~sklearn_laplace.distributions.NormalMixture` where the noise varies, since
        its level at X is not known for certain, and for several members; for counts
        :class:`~sklearn_laplace.distributions.PoissonLogNormal` or :class:`~sklearn_laplace.distributions.CountMixture`
            With ``mean()``, ``std()``, ``ppf(q)``, ``cdf(y)``, ``logpdf(y)``, ``rvs()``; arrays of the shape of
            :meth:`predict`. For draws that are joint over the rows see :meth:`sample_y`.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> found = model.predict_dist([[3.0], [30.0]])
        >>> found.mean().shape, found.interval(0.9)[0].shape, found.logpdf([0.1, 0.0]).shape
        ((2,), (2,), (2,))
        """
        check_is_fitted(self)
        if not self.laplace_.likelihood.additive_noise:
            rates = self._log_rates(X)
            return rates[0] if len(rates) == 1 else CountMixture(rates, self.member_weights_)
        parts = self._components(X)
        if len(parts.weights) == 1:
            return norm(self._in_units(parts.moments.mean), self._std(parts.moments, "total"))
        variance = (parts.epistemic_variance + parts.aleatoric_variance).clamp_min(0.0)
        means, stds = self._in_units(parts.mean), self._in_units(variance.sqrt(), shift=False)
        return NormalMixture(means, stds, parts.weights.cpu().numpy())

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of :meth:`predict_dist`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        quantiles : float or sequence of float
            Strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_quantiles, n_outputs)
            In the units of y.

        Raises
        ------
        ValueError
            For a quantile outside (0, 1).

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> low, high = model.predict_quantiles([[3.0], [30.0]], (0.05, 0.95)).T
        >>> bool((high - low)[1] > 5 * (high - low)[0])  # far away it is wide
        True
        """
        levels = fractions("quantiles", quantiles)
        distribution = self.predict_dist(X)
        return np.stack([distribution.ppf(level) for level in levels], axis=1)

    def predict_interval(
        self, X: Any, confidence_level: Any = 0.9, *, method: str = "normal"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Central prediction intervals.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        confidence_level : float or sequence of float
            Probability that a new target falls inside, strictly between 0 and 1.
        method : {"normal", "jackknife+"}
            "normal": from the quantiles of :meth:`predict_dist`. "jackknife+" (Barber et al. 2021): from the residuals
            of the training rows, each under a net without that row, and what all these nets say of X; with
            ``likelihood="gaussian"`` alone. It does not rest on the noise being right, or normal, and covers close to
            ``confidence_level``; its guarantee is an approximate one. After a fit by "auto" the nets are its three,
            each without a third of the rows (CV+ in that paper); residuals count over standard deviations, so that
            intervals are wider where the net knows less, and are shortened for a net that has seen all rows: three
            tenths of the way to those of closed-form leave-one-out, in logarithms (``_approximation/held_out.py``).
            They stay as they are whatever prior and noise are set afterwards. Otherwise, and after :meth:`partial_fit`,
            the nets are the linearised one without one row each, in closed form (Tailor et al. 2025): where the net has
            found its features in all rows the intervals are too short (.84 to .89 for .90 was measured on five tables).
            That needs the training rows, which a fit keeps, and an exact curvature, as :meth:`loo_predict`. A row of
            weight w counts as w of them. With too few rows for a level an end is infinite. Rows with noise variances of
            their own are refused. Of a mixture the ends are weighted means over its kinds of nets.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        interval : ndarray of shape (n_samples, 2, n_levels) or (n_samples, 2, n_levels, n_outputs)
            Lower and upper ends in the units of y, as in MAPIE.

        Raises
        ------
        ValueError
            For a level outside (0, 1) or an unknown method.
        UnsupportedCombinationError, MemoryBudgetError
            For "jackknife+" where the rows are not there, do not suit it, or are too many.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, ends = model.predict_interval([[3.0], [30.0]], confidence_level=[0.5, 0.9])
        >>> mean.shape, ends.shape
        ((2,), (2, 2, 2))
        """
        levels = fractions("confidence_level", confidence_level)
        if lookup("method", method, INTERVAL_METHODS):
            check_is_fitted(self)
            return self._in_units(self._outputs(X)), self._jackknife(X, levels)
        distribution = self.predict_dist(X)
        ends = [np.stack([distribution.ppf(q) for q in (1 - levels) / 2], axis=1)]
        ends.append(np.stack([distribution.ppf(q) for q in (1 + levels) / 2], axis=1))
        return distribution.mean(), np.stack(ends, axis=1)

    def loo_predict(self, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """What the model would predict of each training row had it not seen it, in closed form: no refit.

        Of the linearised net at its mode under the present prior and noise. The mean is that of a refit without the row
        (all its weight; equal rows are left out one at a time), exactly so for a Gaussian likelihood, else by a Newton
        step; it needs an exact curvature of the random weights: the fit's own where ``structure_`` is "full" or
        "functional" and ``curvature="ggn"``, else one more pass over the rows. The spread is that of the fit's
        structure without the row (with ``damping="exact"``). The weights that are not random stay what they are.

        Parameters
        ----------
        return_std : bool
            Also return the standard deviation of ``return_std_kind``, as :meth:`predict` does.

        Returns
        -------
        mean : ndarray of shape (n,) or (n, n_outputs)
            One for each row given to :meth:`fit`, in its order, then those of :meth:`partial_fit`; a row of weight zero
            has the plain prediction.
        std : ndarray of the same shape
            In the units of y.

        Raises
        ------
        UnsupportedCombinationError
            After :meth:`forget`, with ``augment`` or ``prior``, for several temperatures.
        MemoryBudgetError
            When an exact curvature would not fit in memory.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.loo_predict(return_std=True)
        >>> mean.shape, bool((std > model.sigma_noise_).all())
        ((40,), True)
        """
        check_is_fitted(self)
        flag("return_std", return_std)
        moments = self._loo_predictive()
        mean = self._in_units(moments.mean)
        return (mean, self._std(moments, self.return_std_kind)) if return_std else mean

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
            Of several targets the average.

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
        """Log density of targets under :meth:`predict_dist`, nats, summed over the outputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            In its own units.

        Returns
        -------
        ndarray of shape (n_samples,)

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
        targets = check_array(check_targets(y, numeric=True), ensure_2d=False, dtype=np.float64, input_name="y")
        shape = distribution.mean().shape
        if targets.size != np.prod(shape):
            raise ValueError(f"y has shape {targets.shape}; expected {shape}, one target for each prediction.")
        density = distribution.logpdf(targets.reshape(shape))
        return density if density.ndim == 1 else density.sum(1)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, *, kind: str = "total") -> np.ndarray:
        """Draw from the predictive, jointly over the rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
        n_samples : int
        random_state : int, RandomState or None
        kind : {"total", "epistemic"}
            "total": new targets, noise included, with the covariance of ``return_cov``. "epistemic": functions, those
            of the linearised network or, under ``predictive="mc"``, of the network itself; of counts their rates.

        Returns
        -------
        ndarray of shape (n_rows, n_samples) or (n_rows, n_outputs, n_samples)

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_laplace import LaplaceRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.sample_y([[3.0], [30.0]], n_samples=5).shape
        (2, 5)
        """
        check_is_fitted(self)
        noisy = lookup("kind", kind, {"total": True, "epistemic": False})
        count = _values.count("n_samples", n_samples)
        generator = _values.generator(random_state)
        with self._asked(X) as (x, options):

            def drawn(member: Member, own: int) -> torch.Tensor:
                return member.target_draws(x, options, own, generator, noisy=noisy)

            return self._in_units(self._ensemble.draws(count, generator, drawn))

    def _jackknife(self, X: Any, levels: np.ndarray) -> np.ndarray:
        """Ends of the jackknife+ intervals, in the units of y."""
        asked = next(name for name, left_out in INTERVAL_METHODS.items() if left_out)
        if self._scale.noisy_rows or not self.laplace_.likelihood.has_dispersion:
            differ = (
                "sample_noise_variance says that they differ" if self._scale.noisy_rows else "those of counts differ"
            )
            raise UnsupportedCombinationError(
                f"method={asked!r} takes the residual of every row as one that any new row could have, and {differ}. "
                "Use method='normal'."
            )
        check_left_out(f"method={asked!r}", self.augment, self.prior)
        with self._asked(X) as (x, options):
            wanted = torch.from_numpy(levels).to(self.laplace_.theta)
            found = self._ensemble.intervals(x, wanted, options, f"method={asked!r}")
        ends: np.ndarray = found.cpu().numpy() * self._scale.scale + self._scale.mean
        return ends[..., 0] if self._single_output else ends

    def _outputs(self, X: Any) -> torch.Tensor:
        with self._asked(X) as (x, options):
            return self._ensemble.outputs(x, options)

    def _log_rates(self, X: Any) -> tuple[PoissonLogNormal, ...]:
        """Distributions of the counts under each member."""

        def moments(latent: LatentGaussian, _: torch.Tensor) -> torch.Tensor:
            return torch.stack([latent.mean, latent.variance])

        with self._asked(X) as (x, options):
            found = [torch.cat(member.answers(x, options, moments), 1) for member in self._ensemble.members]
        return tuple(PoissonLogNormal(self._in_units(mean), self._in_units(variance)) for mean, variance in found)

    def _in_units(self, outputs: torch.Tensor, *, shift: bool = True) -> np.ndarray:
        """Outputs (n, C) or (n, C, …) in those of y; without the shift, distances between them."""
        shape = -1, *[1] * (outputs.ndim - 2)
        values = outputs.cpu().numpy() * self._scale.scale.reshape(shape)
        values = values + self._scale.mean.reshape(shape) if shift else values
        return values[:, 0] if self._single_output else values

    def _std(self, moments: Predictive, kind: str) -> np.ndarray:
        variance = variance_of_kind(moments, kind)
        std = np.sqrt(variance.clamp_min(0.0).cpu().numpy()) * self._scale.scale
        return std[:, 0] if self._single_output else std

    def _covariance(self, X: Any) -> np.ndarray:
        """Joint covariance over rows, one matrix an output."""
        with self._asked(X) as (x, options):
            covariance = self._ensemble.covariance(x, options).cpu().numpy() * self._scale.power(2)
        return covariance[..., 0] if self._single_output else covariance
