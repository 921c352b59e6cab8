r"""Dense, slow, simple reference results for the tests: autodiff, closed forms and quadrature in float64.

Every function implements a definition literally: Jacobians row by row, dense matrices, sums as loops.
Never import the package here: a reference must not share code with what it checks.

Symbols
-------
n rows with weights w_n (``None`` means 1 each), C outputs f = f_theta(x), P selected parameters,
J_n = df(x_n)/dtheta (C x P), Lambda_n = second derivative of -log p(y_n | f) in f at unit
dispersion, delta prior precision (a scalar, or a vector with one entry per parameter),
noise_variance the dispersion of the gaussian likelihood (ignored by the categorical one), scale =
1 / noise_variance (1 for categorical), H = sum_n w_n J_n^T Lambda_n J_n, posterior precision P = scale H +
diag(delta).

Conventions
-----------
* ``kind`` is "gaussian" (y is (n, C), float), "categorical" (y is (n,), integer class labels), "bernoulli" (one
  output, the logit of class 1; y is (n,), 0 or 1), "poisson" (log rates; y is (n, C), counts as floats) or
  "negative_binomial" (as "poisson", with log means).
* ``names`` lists parameter names of the module; theta concatenates them in that order,
  each flattened row-major. Parameters not named keep the module's values.
* Modules are copied, cast to float64 and put in eval mode; the arguments are never changed.
* A joint covariance over rows is ordered (row, output), row-major.
"""

from .autodiff import expected_targets, log_likelihood, output_gradient, output_hessian
from .curvature import (
    block_diagonal,
    diagonal,
    empirical_fisher,
    ggn,
    hessian,
    kron_factors,
    kron_precision,
    layer_matrix_permutation,
    nearest_semidefinite,
    posterior_precision,
)
from .evidence import evidence_gradient_by_differences, log_evidence, numerical_optimum, target_levels
from .functions import Function, all_names, flatten, jacobian, network_function, outputs, with_parameters
from .leave_one_out import leave_one_out_refits
from .posteriors import (
    LinearPosterior,
    bayesian_linear_regression,
    bayesian_logistic_hessian,
    gauss_newton_map,
    glm_covariance,
    glm_joint_covariance,
    linearised_map,
    logistic_map,
    map_gradient,
    map_objective,
)
from .quadrature import (
    coverage,
    crps_by_integration,
    crps_gaussian,
    entropy_parts,
    gaussian_total_std,
    log_density_of_error,
    mixture_moments,
    moderated_softmax,
    moderation,
    moments_of_inverse,
    negative_binomial_lognormal,
    pairwise_probit,
    pieces,
    poisson_lognormal,
    softmax_normal_expectation,
    softmax_normal_expectation_mc,
)
from .random_data import (
    random_binary,
    random_classification,
    random_counts,
    random_mlp,
    random_regression,
    random_weights,
)

__all__ = [
    "Function",
    "LinearPosterior",
    "all_names",
    "bayesian_linear_regression",
    "bayesian_logistic_hessian",
    "block_diagonal",
    "coverage",
    "crps_by_integration",
    "crps_gaussian",
    "diagonal",
    "empirical_fisher",
    "entropy_parts",
    "evidence_gradient_by_differences",
    "expected_targets",
    "flatten",
    "gauss_newton_map",
    "gaussian_total_std",
    "ggn",
    "glm_covariance",
    "glm_joint_covariance",
    "hessian",
    "jacobian",
    "kron_factors",
    "kron_precision",
    "layer_matrix_permutation",
    "leave_one_out_refits",
    "linearised_map",
    "log_density_of_error",
    "log_evidence",
    "log_likelihood",
    "logistic_map",
    "map_gradient",
    "map_objective",
    "mixture_moments",
    "moderated_softmax",
    "moderation",
    "moments_of_inverse",
    "nearest_semidefinite",
    "negative_binomial_lognormal",
    "network_function",
    "numerical_optimum",
    "output_gradient",
    "output_hessian",
    "outputs",
    "pairwise_probit",
    "pieces",
    "poisson_lognormal",
    "posterior_precision",
    "random_binary",
    "random_classification",
    "random_counts",
    "random_mlp",
    "random_regression",
    "random_weights",
    "softmax_normal_expectation",
    "softmax_normal_expectation_mc",
    "target_levels",
    "with_parameters",
]
