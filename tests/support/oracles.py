r"""Dense, slow, plainly correct truth for the tests: autodiff, closed forms, quadrature, float64.

Every function here is a definition written out: Jacobians one row at a time, matrices dense, sums
as loops. Nothing is fast and nothing is shared with the package, which must never be imported here:
an oracle that borrows the code under test proves nothing.

Symbols
-------
n rows with weights w_n (``None`` means 1 each), C outputs f = f_theta(x), P selected parameters,
J_n = df(x_n)/dtheta (C x P), Lambda_n = second derivative of -log p(y_n | f) in f at unit
dispersion, delta prior precision (a scalar, or a vector with one entry per parameter),
noise_variance the dispersion of the gaussian likelihood (ignored by the categorical one), scale =
1 / noise_variance (1 for categorical), H = sum_n w_n J_n^T Lambda_n J_n, P = scale H + diag(delta).

Conventions
-----------
* ``kind`` is "gaussian" (y is (n, C), float), "categorical" (y is (n,), integer class labels), "bernoulli" (one
  output, the logit of class 1; y is (n,), 0 or 1) or "poisson" (log rates; y is (n, C), counts as floats).
* ``names`` lists parameter names of the module; theta is each of them flattened row-major,
  concatenated in that order. Parameters not named stay at the module's values.
* Modules are copied, cast to float64 and put in eval mode; the one given is never touched.
* A joint covariance over rows is ordered (row, output), row-major.
"""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from torch import Tensor, nn
from torch.func import functional_call

Function = Callable[[Tensor], Tensor]

# --------------------------------------------------------------------------------------------------
# The network as a function of its selected parameters
# --------------------------------------------------------------------------------------------------


def all_names(module: nn.Module) -> tuple[str, ...]:
    """Names of all parameters, in the module's own order."""
    return tuple(name for name, _ in module.named_parameters())


def flatten(module: nn.Module, names: Sequence[str]) -> Tensor:
    """Selected parameters as one vector.

    Parameters
    ----------
    module : nn.Module
    names : sequence of str
        Parameter names; the order given is the order of the result.

    Returns
    -------
    Tensor of shape (P,), float64, detached and owning its memory
    """
    return torch.cat([module.get_parameter(name).detach().double().flatten() for name in names])


def with_parameters(module: nn.Module, names: Sequence[str], theta: Tensor) -> nn.Module:
    """Copy of ``module`` (float64, eval mode) whose parameters ``names`` hold ``theta`` (P,)."""
    clone = _float64_copy(module)
    with torch.no_grad():
        for name, value in _unflatten(clone, names, theta).items():
            clone.get_parameter(name).copy_(value)
    return clone


def network_function(module: nn.Module, names: Sequence[str]) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as a differentiable map (theta (P,), x (n, ...)) -> f (n, C)."""
    clone = _float64_copy(module)

    def f(theta: Tensor, x: Tensor) -> Tensor:
        raw: Tensor = functional_call(clone, _unflatten(clone, names, theta), (_double(x),))
        return raw.reshape(len(x), -1)

    return f


def outputs(module: nn.Module, x: Tensor) -> Tensor:
    """Network outputs (n, C) in eval mode, each row passed alone as a batch of one."""
    clone = _float64_copy(module)
    with torch.no_grad():
        return torch.cat([clone(_double(x[i : i + 1])).reshape(1, -1) for i in range(len(x))])


def jacobian(module: nn.Module, names: Sequence[str], x: Tensor) -> Tensor:
    r"""Derivative of every output in every selected parameter, :math:`J_{ncp}`.

    Parameters
    ----------
    module : nn.Module
    names : sequence of str
    x : Tensor of shape (n, ...)
        Each row is passed alone as a batch of one, in eval mode.

    Returns
    -------
    Tensor of shape (n, C, P)
    """
    f, theta = network_function(module, names), flatten(module, names)
    rows = []
    for i in range(len(x)):
        row = x[i : i + 1]
        rows.append(torch.autograd.functional.jacobian(lambda t, row=row: f(t, row)[0], theta))
    return torch.stack(rows)


# --------------------------------------------------------------------------------------------------
# Likelihoods
# --------------------------------------------------------------------------------------------------


def log_likelihood(kind: str, f: Tensor, y: Tensor, noise_variance: float | Tensor = 1.0) -> Tensor:
    r"""Log density, log p(y_n | f_n) in nats, with every constant, unweighted.

    gaussian: :math:`-\tfrac12\sum_c[(y_c-f_c)^2/\sigma^2 + \log 2\pi\sigma^2]`;
    categorical: :math:`f_y - \log\sum_c e^{f_c}`; bernoulli: :math:`y f - \log(1 + e^f)`; poisson:
    :math:`\sum_c[y_c f_c - e^{f_c} - \log y_c!]`.

    Parameters
    ----------
    kind : {"gaussian", "categorical", "bernoulli", "poisson"}
    f : Tensor of shape (n, C)
    y : Tensor of shape (n, C), or (n,) of integers
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only, in squared units of y.

    Returns
    -------
    Tensor of shape (n,), float64
    """
    f = f.double()
    if kind == "gaussian":
        if y.shape != f.shape:  # broadcasting (n,) against (n, 1) would silently give (n, n)
            raise ValueError(f"y has shape {tuple(y.shape)}, f has {tuple(f.shape)}")
        variance = _vector(noise_variance)
        terms = (_double(y) - f) ** 2 / variance + torch.log(2 * math.pi * variance)
        return -0.5 * terms.sum(-1)
    if kind == "categorical":
        if y.shape != f.shape[:1]:
            raise ValueError(f"y has shape {tuple(y.shape)}, expected {tuple(f.shape[:1])}")
        return f.gather(1, y.long()[:, None])[:, 0] - torch.logsumexp(f, 1)
    if kind == "bernoulli":
        if y.shape != f.shape[:1] or f.shape[1] != 1:
            raise ValueError(f"y has shape {tuple(y.shape)}, f has {tuple(f.shape)}; expected (n,) and (n, 1)")
        return y * f[:, 0] - torch.logaddexp(torch.zeros_like(f[:, 0]), f[:, 0])
    if kind == "poisson":
        if y.shape != f.shape:
            raise ValueError(f"y has shape {tuple(y.shape)}, f has {tuple(f.shape)}")
        return (_double(y) * f - torch.exp(f) - torch.lgamma(_double(y) + 1)).sum(-1)
    raise ValueError(f"unknown kind {kind!r}")


def output_gradient(kind: str, f: Tensor, y: Tensor, noise_variance: float | Tensor = 1.0) -> Tensor:
    """Gradient of -log p(y | f) in f, by autodiff, at this noise variance (gaussian; broadcasts to (n, C)); (n, C)."""
    rows = _row_nlls(kind, f, y, noise_variance)
    return torch.stack([torch.autograd.functional.jacobian(nll, f[i].detach().double()) for i, nll in enumerate(rows)])


def output_hessian(kind: str, f: Tensor, y: Tensor | None = None, noise_variance: float | Tensor = 1.0) -> Tensor:
    """Hessian of -log p(y | f) in f, by double autodiff.

    Parameters
    ----------
    kind : {"gaussian", "categorical"}
    f : Tensor of shape (n, C)
    y : Tensor, optional
        No kind's Hessian depends on y; an arbitrary one is used when absent.
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only.

    Returns
    -------
    Tensor of shape (n, C, C)
    """
    if y is None:
        y = torch.zeros_like(f) if kind in ("gaussian", "poisson") else torch.zeros(len(f), dtype=torch.long)
    rows = _row_nlls(kind, f, y, noise_variance)
    return torch.stack([torch.autograd.functional.hessian(nll, f[i].detach().double()) for i, nll in enumerate(rows)])


# --------------------------------------------------------------------------------------------------
# Curvature
# --------------------------------------------------------------------------------------------------


def ggn(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    r"""Generalised Gauss-Newton matrix, :math:`\sum_n w_n J_n^\top\Lambda_nJ_n`, at this noise variance (gaussian).

    Returns
    -------
    Tensor of shape (P, P)
    """
    w = _weights(weights, len(x))
    J = jacobian(module, names, x)
    Lambda = output_hessian(kind, outputs(module, x), y, noise_variance)
    H = torch.zeros(J.shape[2], J.shape[2], dtype=torch.float64)
    for n in range(len(x)):
        H = H + w[n] * J[n].T @ Lambda[n] @ J[n]
    return H


def empirical_fisher(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    r"""Sum of outer products of the rows' own gradients, :math:`\sum_n w_n g_ng_n^\top`, by autodiff.

    .. math:: g_n = -\nabla_\theta \log p(y_n \mid f_\theta(x_n))

    Parameters
    ----------
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only; g is that of the density at this variance.

    Returns
    -------
    Tensor of shape (P, P)
    """
    w, (nll, theta) = _weights(weights, len(x)), _row_losses(kind, module, names, x, y, noise_variance)
    total = torch.zeros(len(theta), len(theta), dtype=torch.float64)
    for n in range(len(x)):
        g = torch.autograd.functional.jacobian(nll[n], theta)
        total = total + w[n] * torch.outer(g, g)
    return total


def hessian(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    r"""Hessian of the summed loss, :math:`-\sum_n w_n \nabla^2_\theta \log p(y_n \mid f_\theta(x_n))`; any sign.

    Returns
    -------
    Tensor of shape (P, P)
    """
    w, (nll, theta) = _weights(weights, len(x)), _row_losses(kind, module, names, x, y, noise_variance)
    return sum(
        (w[n] * torch.autograd.functional.hessian(nll[n], theta) for n in range(len(x))),
        torch.zeros(len(theta), len(theta), dtype=torch.float64),
    )


def nearest_semidefinite(matrix: Tensor) -> Tensor:
    """The symmetric matrix with its negative eigenvalues at zero; (P, P)."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0.0)) @ vectors.T


def diagonal(matrix: Tensor) -> Tensor:
    """Copy of a (P, P) matrix with everything off its diagonal set to zero; still (P, P)."""
    return torch.diag(torch.diagonal(matrix))


def block_diagonal(matrix: Tensor, sizes: Sequence[int]) -> Tensor:
    """Copy of a (P, P) matrix with only its diagonal blocks of the given sizes kept; (P, P)."""
    if sum(sizes) != len(matrix):
        raise ValueError(f"sizes sum to {sum(sizes)}, the matrix has {len(matrix)} rows")
    kept = torch.zeros_like(matrix)
    start = 0
    for size in sizes:
        block = slice(start, start + size)
        kept[block, block] = matrix[block, block]
        start += size
    return kept


def kron_factors(
    kind: str,
    layer_name: str,
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    fold_bias: bool = True,
    noise_variance: float | Tensor = 1.0,
    reduce: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Kronecker factors of one linear layer's curvature block, :math:`H_l \approx B \otimes A`.

    .. math:: A = \tfrac1{N_w}\sum_n w_n a_n a_n^\top,\quad
              B = \sum_n w_n G_n^\top \Lambda_n G_n,\quad N_w = \sum_n w_n

    with a_n the layer's input (a 1 appended when the bias is folded) and G_n = df/dz the derivative
    of the outputs in the layer's output z, from autodiff in a perturbation added to z by a hook. At
    L positions of a row, B sums over them as well and A averages over them ("expand"), or a_n is the
    mean over them and G_n the sum ("reduce").

    Parameters
    ----------
    kind : {"gaussian", "categorical"}
    layer_name : str
        Name of an ``nn.Linear`` in ``module``, called once per forward on inputs (n, ..., in);
        ``""`` if the module is that layer.
    module : nn.Module
    x, y : Tensors with n rows
    weights : Tensor of shape (n,), optional
    fold_bias : bool
        Append a 1 to the inputs. A layer without bias is never augmented.
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only.
    reduce : bool
        Positions are taken together before they are multiplied.

    Returns
    -------
    A : Tensor of shape (in + 1, in + 1), or (in, in) when nothing is folded
    B : Tensor of shape (out, out)

    Notes
    -----
    Martens & Grosse (2015); Botev et al. (2017); positions: Eschenhagen et al. (2023). Exact for a
    single row with one position.
    """
    w = _weights(weights, len(x))
    clone = _float64_copy(module)
    layer = _linear(clone, layer_name)
    Lambda = output_hessian(kind, outputs(module, x), y, noise_variance)
    A: Tensor | float = 0.0
    B: Tensor | float = 0.0
    for n in range(len(x)):
        inputs, jacobians = _layer_input_and_output_jacobian(clone, layer, x[n : n + 1])
        if reduce:
            inputs, jacobians = inputs.mean(0, keepdim=True), jacobians.sum(1, keepdim=True)
        for position in range(len(inputs)):
            a, G = inputs[position], jacobians[:, position]
            if fold_bias and layer.bias is not None:
                a = torch.cat([a, a.new_ones(1)])
            A = A + w[n] * torch.outer(a, a) / (w.sum() * len(inputs))
            B = B + w[n] * G.T @ Lambda[n] @ G
    return torch.as_tensor(A), torch.as_tensor(B)


def kron_precision(A: Tensor, B: Tensor, delta: float | Tensor, scale: float = 1.0) -> Tensor:
    r"""One layer's posterior precision, :math:`scale\,(B \otimes A) + diag(\delta)`.

    Index order: the layer's matrix [W | b] of shape (out, in + 1), row-major (without the last
    column when the bias is not folded). See `layer_matrix_permutation` for the parameter order.

    Parameters
    ----------
    A : Tensor of shape (in + 1, in + 1)
    B : Tensor of shape (out, out)
    delta : float, or Tensor of shape (out * (in + 1),) in the matrix's order
    scale : float

    Returns
    -------
    Tensor of shape (out * (in + 1), out * (in + 1))
    """
    return posterior_precision(torch.kron(B, A), delta, scale)


def layer_matrix_permutation(module: nn.Module, layer_name: str) -> Tensor:
    """Index map from the order of [W | b] row-major to that of [weight.flatten(), bias].

    ``v[permutation]`` and ``M[permutation][:, permutation]`` turn a vector or matrix in the
    matrix's order (that of `kron_precision` with a folded bias) into the parameters' order.

    Returns
    -------
    Tensor of shape (out * (in + 1),), int64; out * in entries for a layer without bias
    """
    layer = _linear(module, layer_name)
    columns = layer.in_features + (layer.bias is not None)
    weight_positions = [o * columns + i for o in range(layer.out_features) for i in range(layer.in_features)]
    bias_positions = [o * columns + layer.in_features for o in range(layer.out_features) if layer.bias is not None]
    return torch.tensor(weight_positions + bias_positions)


# --------------------------------------------------------------------------------------------------
# Posterior, evidence, predictive covariance
# --------------------------------------------------------------------------------------------------


def posterior_precision(H: Tensor, delta: float | Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Dense posterior precision ``scale * H + diag(delta)``, (P, P); delta scalar or (P,)."""
    return scale * H + torch.diag(_vector(delta).expand(len(H)))


def log_evidence(
    log_lik_sum: float | Tensor,
    H: Tensor,
    delta: float | Tensor,
    scale: float | Tensor,
    theta: Tensor,
    prior_mean: float | Tensor = 0.0,
) -> Tensor:
    r"""Laplace approximation of the log marginal likelihood, in nats.

    .. math:: \log p(D\mid\theta) - \tfrac12[\log|P| - \log|P_0|
              + (\theta-\mu_0)^\top P_0(\theta-\mu_0)]

    Parameters
    ----------
    log_lik_sum : float
        Sum of w_n log p(y_n | theta), constants included, at the noise variance behind ``scale``.
    H : Tensor of shape (P, P)
        Curvature at unit dispersion.
    delta : float or Tensor of shape (P,)
    scale : float
        Factor on H: 1 / noise_variance for gaussian.
    theta : Tensor of shape (P,)
    prior_mean : float or Tensor of shape (P,)

    Returns
    -------
    Tensor, scalar
    """
    P0 = torch.diag(_vector(delta).expand(len(H)))
    sign, logdet = torch.linalg.slogdet(posterior_precision(H, delta, scale))
    sign0, logdet0 = torch.linalg.slogdet(P0)
    if sign <= 0 or sign0 <= 0:
        raise ValueError("a precision matrix is not positive definite")
    away = theta - _vector(prior_mean)
    return log_lik_sum - 0.5 * (logdet - logdet0 + away @ P0 @ away)


def glm_covariance(J: Tensor, precision: Tensor) -> Tensor:
    r"""Covariance of each row's linearised outputs, :math:`J_n P^{-1} J_n^\top`; no noise.

    Parameters
    ----------
    J : Tensor of shape (n, C, P)
    precision : Tensor of shape (P, P)

    Returns
    -------
    Tensor of shape (n, C, C)
    """
    covariance = torch.linalg.inv(precision)
    return torch.stack([J_row @ covariance @ J_row.T for J_row in J])


def glm_joint_covariance(J: Tensor, precision: Tensor) -> Tensor:
    """Covariance of all rows' linearised outputs together, (n*C, n*C), ordered (row, output)."""
    stacked = J.reshape(-1, J.shape[2])
    return stacked @ torch.linalg.inv(precision) @ stacked.T


# --------------------------------------------------------------------------------------------------
# Linear models, where the Laplace approximation is known in closed form
# --------------------------------------------------------------------------------------------------


class LinearPosterior(NamedTuple):
    """Posterior of Bayesian linear regression with C independent outputs and p features.

    Attributes
    ----------
    mean : Tensor of shape (p, C)
    covariance : Tensor of shape (p, p)
        Of one output's weights; the same for every output.
    log_evidence : Tensor, scalar
        From the Laplace formula, exact here; real weights are powers of the likelihood.
    log_density : float or None
        The same number as the log density of Y under N(0, diag(noise_variance) + A diag(1/delta) A^T),
        rows repeated as often as they weigh; None unless every weight is an integer.
    """

    mean: Tensor
    covariance: Tensor
    log_evidence: Tensor
    log_density: float | None

    def predict(self, A_new: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (m, C) and epistemic joint covariance (m, m), shared by the outputs, at A_new."""
        return A_new @ self.mean, A_new @ self.covariance @ A_new.T


def bayesian_linear_regression(
    A: Tensor,
    Y: Tensor,
    weights: Tensor | None,
    delta: float | Tensor,
    noise_variance: float | Tensor,
    prior_mean: float | Tensor = 0.0,
) -> LinearPosterior:
    r"""Exact posterior of :math:`Y = A W + \epsilon`, :math:`W_{jc}\sim N(\mu_{jc}, 1/\delta_j)`.

    Parameters
    ----------
    A : Tensor of shape (n, p)
        Features; append a column of ones for a bias.
    Y : Tensor of shape (n, C)
    weights : Tensor of shape (n,) or None
    delta : float or Tensor of shape (p,)
    noise_variance : float or Tensor of shape (n,)
        Of each row: generalised least squares.
    prior_mean : float or Tensor of shape (p, C)

    Notes
    -----
    Bishop (2006), eqs. 3.50-3.51 with row weights.
    """
    w, A, Y = _weights(weights, len(A)), A.double(), Y.double()
    variance = _vector(noise_variance).expand(len(A))
    H = A.T @ torch.diag(w / variance) @ A
    covariance = torch.linalg.inv(posterior_precision(H, delta))
    centre = _vector(prior_mean).expand(A.shape[1], Y.shape[1])
    P0 = torch.diag(_vector(delta).expand(len(H)))
    mean = covariance @ (A.T @ torch.diag(w / variance) @ Y + P0 @ centre)
    evidence = torch.zeros((), dtype=torch.float64)
    for c in range(Y.shape[1]):
        fitted, target = (A @ mean[:, c])[:, None], Y[:, c : c + 1]
        log_lik = (w * log_likelihood("gaussian", fitted, target, variance[:, None])).sum()
        evidence = evidence + log_evidence(log_lik, H, delta, 1.0, mean[:, c], centre[:, c])
    density = None
    if bool((w == w.round()).all()):
        density = _repeated_rows_log_density(A, Y - A @ centre, w, delta, variance)
    return LinearPosterior(mean, covariance, evidence, density)


def bayesian_logistic_hessian(A: Tensor, p: Tensor, delta: float | Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Precision of binary logistic regression, :math:`A^\top S A + diag(\delta)`.

    Parameters
    ----------
    A : Tensor of shape (n, d)
    p : Tensor of shape (n,)
        Probability of the positive class; S = diag(w p (1 - p)).
    delta : float or Tensor of shape (d,)
    weights : Tensor of shape (n,), optional

    Returns
    -------
    Tensor of shape (d, d)
    """
    S = torch.diag(_weights(weights, len(A)) * p * (1 - p))
    return A.T @ S @ A + torch.diag(_vector(delta).expand(A.shape[1]))


def logistic_map(
    A: Tensor,
    y: Tensor,
    delta: float | Tensor,
    weights: Tensor | None = None,
    n_classes: int | None = None,
) -> Tensor:
    r"""MAP of multi-class softmax regression, logits :math:`A W^\top`, by dense Newton steps.

    Parameters
    ----------
    A : Tensor of shape (n, p)
    y : Tensor of shape (n,), integers
    delta : float or Tensor broadcasting to (C, p)
    weights : Tensor of shape (n,), optional
    n_classes : int, optional
        max(y) + 1 when absent.

    Returns
    -------
    Tensor of shape (C, p)
        Laid out like the weight of ``nn.Linear(p, C, bias=False)``. Gradient norm at most 1e-12
        times the sum of the norms of the gradient's terms.
    """
    w, A = _weights(weights, len(A)), A.double()
    C, p = int(y.max()) + 1 if n_classes is None else n_classes, A.shape[1]
    precision = _vector(delta).expand(C, p).flatten()

    def residuals(theta: Tensor) -> Tensor:
        return torch.softmax(A @ theta.reshape(C, p).T, 1) - nn.functional.one_hot(y.long(), C)

    def objective(theta: Tensor) -> Tensor:
        nll = -log_likelihood("categorical", A @ theta.reshape(C, p).T, y)
        return (w * nll).sum() + 0.5 * theta @ (precision * theta)

    def terms(theta: Tensor) -> Tensor:
        r = residuals(theta)
        rows = [w[n] * torch.outer(r[n], A[n]).flatten() for n in range(len(A))]
        return torch.stack([*rows, precision * theta])

    def hessian(theta: Tensor) -> Tensor:
        probabilities = torch.softmax(A @ theta.reshape(C, p).T, 1)
        total = torch.diag(precision)
        for n in range(len(A)):
            q = probabilities[n]
            Lambda = torch.diag(q) - torch.outer(q, q)
            total = total + w[n] * torch.kron(Lambda, torch.outer(A[n], A[n]))
        return total

    start = torch.zeros(C * p, dtype=torch.float64)
    return _minimise(objective, terms, [hessian], start).reshape(C, p)


# --------------------------------------------------------------------------------------------------
# MAP of a network
# --------------------------------------------------------------------------------------------------


def map_objective(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None,
    delta: float | Tensor,
    noise_variance: float | Tensor = 1.0,
    prior_mean: float | Tensor = 0.0,
) -> Tensor:
    r"""Training loss in sum form, the prior's normaliser left out; differentiable in theta.

    .. math:: -\sum_n w_n\log p(y_n\mid f_n) + \tfrac12(\theta-\mu_0)^\top diag(\delta)\,(\theta-\mu_0)

    Parameters
    ----------
    kind : {"gaussian", "categorical"}
    module : nn.Module
        Supplies the function and the parameters that are not in ``names``.
    names : sequence of str
    theta : Tensor of shape (P,)
    x, y : Tensors with n rows
    weights : Tensor of shape (n,) or None
    delta : float or Tensor of shape (P,)
    noise_variance : float
    prior_mean : float or Tensor of shape (P,)

    Returns
    -------
    Tensor, scalar
    """
    f = network_function(module, names)(theta, x)
    data = -(_weights(weights, len(x)) * log_likelihood(kind, f, y, noise_variance)).sum()
    return data + 0.5 * (_vector(delta) * (theta - _vector(prior_mean)) ** 2).sum()


def map_gradient(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None,
    delta: float | Tensor,
    noise_variance: float | Tensor = 1.0,
    prior_mean: float | Tensor = 0.0,
) -> Tensor:
    """Gradient of `map_objective` in theta by autodiff; (P,)."""
    return torch.autograd.functional.jacobian(
        lambda t: map_objective(kind, module, names, t, x, y, weights, delta, noise_variance, prior_mean),
        theta.detach(),
    )


def gauss_newton_map(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None,
    delta: float | Tensor,
    noise_variance: float = 1.0,
) -> Tensor:
    r"""A local minimum of `map_objective`, searched from the module's own parameters.

    Newton steps where the exact Hessian is positive definite; elsewhere the better of a
    Gauss-Newton step (:math:`P = scale\,H + diag(\delta)`) and a Newton step with the Hessian's
    eigenvalues made positive; all with backtracking. For small smooth nets: each step costs P
    backward passes over the data (1 to 3 s in all at 40 rows and P = 40). A minimum at a kink of
    ReLU has no zero gradient and raises.

    Returns
    -------
    Tensor of shape (P,)
        Gradient norm at most 1e-12 times the sum of the norms of the gradient's terms (one for
        each row and one for the prior), exact Hessian positive definite. The module is unchanged.

    Raises
    ------
    RuntimeError
        If no such point is reached.
    """
    w = _weights(weights, len(x))
    scale = 1 / noise_variance if kind == "gaussian" else 1.0

    def objective(theta: Tensor) -> Tensor:
        return map_objective(kind, module, names, theta, x, y, w, delta, noise_variance)

    def terms(theta: Tensor) -> Tensor:
        at = with_parameters(module, names, theta)
        J, r = jacobian(at, names, x), output_gradient(kind, outputs(at, x), y)
        rows = [scale * w[n] * J[n].T @ r[n] for n in range(len(x))]
        return torch.stack([*rows, _vector(delta) * theta])

    def hessian(theta: Tensor) -> Tensor:
        return torch.autograd.functional.hessian(objective, theta)

    def gauss_newton(theta: Tensor) -> Tensor:
        at = with_parameters(module, names, theta)
        return posterior_precision(ggn(kind, at, names, x, y, w), delta, scale)

    return _minimise(objective, terms, [hessian, gauss_newton], flatten(module, names))


# --------------------------------------------------------------------------------------------------
# The linearised network, refitted
# --------------------------------------------------------------------------------------------------


def linearised_map(
    kind: str,
    f: Tensor,
    J: Tensor,
    y: Tensor,
    weights: Tensor,
    theta: Tensor,
    delta: float | Tensor,
    noise_variance: float = 1.0,
) -> tuple[Tensor, Tensor]:
    r"""Mode and Hessian of :math:`-\sum_n w_n \log p(y_n | f_n + J_n(t - \theta)) + \tfrac12 t^\top diag(\delta) t`.

    Damped Newton steps with dense matrices and derivatives by autodiff, until the gradient is zero to rounding.

    Parameters
    ----------
    kind : str
    f : Tensor of shape (n, C)
        Outputs at theta.
    J : Tensor of shape (n, C, P)
    y, weights : Tensors with n rows
    theta : Tensor of shape (P,)
    delta : float or Tensor of shape (P,)
    noise_variance : float

    Returns
    -------
    mode : Tensor of shape (P,)
    precision : Tensor of shape (P, P)
    """
    D = torch.diag(_vector(delta).expand(len(theta)))

    def objective(t: Tensor) -> Tensor:
        return 0.5 * t @ D @ t - weights @ log_likelihood(kind, f + J @ (t - theta), y, noise_variance)

    def derivatives(t: Tensor) -> tuple[Tensor, Tensor]:
        outputs = (f + J @ (t - theta)).requires_grad_()
        total = -(weights * log_likelihood(kind, outputs, y, noise_variance)).sum()
        (pull,) = torch.autograd.grad(total, outputs, create_graph=True)
        bends = [torch.autograd.grad(pull[:, c].sum(), outputs, retain_graph=True)[0] for c in range(f.shape[1])]
        bend, pull = torch.stack(bends, 1), pull.detach()
        return torch.einsum("nc,ncp->p", pull, J) + D @ t, torch.einsum("ncp,ncd,ndq->pq", J, bend, J) + D

    t, reached = theta.clone(), math.inf
    for _ in range(200):
        gradient, precision = derivatives(t)
        step = -torch.linalg.solve(precision, gradient)
        decrement = float(-(gradient @ step))
        if decrement <= 1e-24 or (decrement < 1e-12 and decrement > 0.5 * reached):
            return t, precision
        reached, size = decrement, 1.0
        while float(objective(t + size * step)) > float(objective(t)) + 1e-13 * abs(float(objective(t))):
            size /= 2
        t = t + size * step
    raise RuntimeError("no mode found")


def leave_one_out_refits(
    kind: str,
    f: Tensor,
    J: Tensor,
    y: Tensor,
    weights: Tensor,
    theta: Tensor,
    delta: float | Tensor,
    noise_variance: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Mean (n, C) and covariance (n, C, C) of each row's outputs, by n refits of the linearised network without it."""
    means, covariances = [], []
    for n in range(len(f)):
        without = weights.clone()
        without[n] = 0.0
        t, precision = linearised_map(kind, f, J, y, without, theta, delta, noise_variance)
        means.append(f[n] + J[n] @ (t - theta))
        covariances.append(J[n] @ torch.linalg.solve(precision, J[n].T))
    return torch.stack(means), torch.stack(covariances)


# --------------------------------------------------------------------------------------------------
# Links: expectation of the softmax under a normal
# --------------------------------------------------------------------------------------------------


def softmax_normal_expectation(mean: Tensor, cov: Tensor, n_nodes: int = 64) -> Tensor:
    r"""E[softmax(f)], f ~ N(mean, cov), by tensor Gauss-Hermite quadrature; C at most 3.

    With :math:`cov = R R^\top` the integral is
    :math:`\pi^{-C/2}\sum_k w_k\,softmax(mean + \sqrt2 R z_k)`.

    Parameters
    ----------
    mean : Tensor of shape (C,)
    cov : Tensor of shape (C, C)
        May be rank-deficient.
    n_nodes : int
        Per dimension. The error falls with the nodes and grows with the variance: compare two
        numbers of nodes before trusting a digit.

    Returns
    -------
    Tensor of shape (C,)
    """
    C = len(mean)
    if C > 3:
        raise ValueError(f"{n_nodes}**{C} nodes; use softmax_normal_expectation_mc for C > 3")
    nodes, node_weights = np.polynomial.hermite.hermgauss(n_nodes)
    z = torch.cartesian_prod(*[torch.from_numpy(nodes)] * C).reshape(-1, C)
    w = torch.cartesian_prod(*[torch.from_numpy(node_weights)] * C).reshape(-1, C).prod(1)
    f = mean + math.sqrt(2) * z @ _root(cov).T
    return (w[:, None] * torch.softmax(f, 1)).sum(0) / math.pi ** (C / 2)


def softmax_normal_expectation_mc(mean: Tensor, cov: Tensor, n_pairs: int = 1_000_000, seed: int = 0) -> Tensor:
    """E[softmax(f)], f ~ N(mean, cov), by seeded Monte Carlo with antithetic pairs; any C.

    Standard error at most ``0.5 / sqrt(n_pairs)`` per class, usually far less.

    Returns
    -------
    Tensor of shape (C,)
    """
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n_pairs, len(mean), dtype=torch.float64, generator=generator)
    shift = z @ _root(cov).T
    return 0.5 * (torch.softmax(mean + shift, 1) + torch.softmax(mean - shift, 1)).mean(0)


def poisson_lognormal(mean: float, variance: float, k: int) -> tuple[float, float]:
    """Log probability of k and probability of at most k, for a Poisson count whose log rate is N(mean, variance).

    Both integrals on a grid of a few hundred thousand points: around the peak of the integrand for the first, over
    twelve standard deviations for the second.
    """

    def exponent(g: np.ndarray) -> np.ndarray:
        return k * g - np.exp(np.minimum(g, 700.0)) - (g - mean) ** 2 / (2 * variance)

    coarse = np.linspace(mean - 40 * math.sqrt(variance) - 60, mean + 40 * math.sqrt(variance) + 60, 2_000_001)
    peak = coarse[exponent(coarse).argmax()]
    width = 1 / math.sqrt(math.exp(peak) + 1 / variance)
    g = np.linspace(peak - 60 * width - 40 * (variance > 5), peak + 60 * width, 400_001)
    values = exponent(g)
    integral = values.max() + np.log(scipy.integrate.trapezoid(np.exp(values - values.max()), g))
    constants = scipy.special.gammaln(k + 1) + 0.5 * math.log(2 * math.pi * variance)
    z = np.linspace(-12, 12, 400_001)
    weight = scipy.stats.norm.pdf(z)
    below = scipy.stats.poisson.cdf(k, np.exp(np.minimum(mean + math.sqrt(variance) * z, 700.0)))
    return float(integral - constants), float((below * weight).sum() / weight.sum())


def moderation(q: float) -> float:
    r"""The constant k_q of the link "moderated" for q ≥ 2 classes in play, which need not be a whole number.

    .. math:: k_q = \frac{1}{2 e_q^2} \Big(\frac{q - 1}{q}\Big)^2, \qquad e_q = \int z\, q\, \phi(z) \Phi(z)^{q-1} dz

    the latter being the expected largest of q standard normals.
    """
    largest = scipy.integrate.quad(
        lambda z: z * q * scipy.stats.norm.pdf(z) * np.exp((q - 1) * scipy.stats.norm.logcdf(z)), -12, 12, limit=400
    )[0]
    return ((q - 1) / q) ** 2 / (2 * largest**2)


def moderated_softmax(mean: Tensor, cov: Tensor) -> Tensor:
    """The pairs of :func:`pairwise_probit` with the constant of as many classes as its answer is spread over."""
    first = pairwise_probit(mean, cov)
    return pairwise_probit(mean, cov, moderation(max(2.0, float(first.sqrt().sum()) ** 2)))


def pairwise_probit(mean: Tensor, cov: Tensor, constant: float = math.pi / 8) -> Tensor:
    r"""Probit approximation of E[softmax(f)] on pairwise differences, one row.

    .. math:: p_c \propto 1 / \sum_j \exp\left(-\frac{f_c - f_j}
              {\sqrt{1 + k Var(f_c - f_j)}}\right)

    Parameters
    ----------
    mean : Tensor of shape (C,)
    cov : Tensor of shape (C, C)
    constant : float, default=π/8
        k.

    Returns
    -------
    Tensor of shape (C,)
    """
    C = len(mean)
    unnormalised = torch.zeros(C, dtype=torch.float64)
    for c in range(C):
        total = 0.0
        for j in range(C):
            difference = float(mean[c] - mean[j])
            variance = float(cov[c, c] + cov[j, j] - 2 * cov[c, j])
            total += math.exp(-difference / math.sqrt(1 + constant * variance))
        unnormalised[c] = 1 / total
    return unnormalised / unnormalised.sum()


def mixture_moments(
    kind: str, mean: Tensor, variance: Tensor, noise_variance: float = 1.0, n_nodes: int = 100
) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of a numeric target whose output is normal, by Gauss-Hermite quadrature of the law of total variance.

    Parameters
    ----------
    kind : {"gaussian", "poisson"}
    mean, variance : Tensors of one shape
        Of the output.
    noise_variance : float
        Gaussian only.

    Returns
    -------
    mean, epistemic, aleatoric : Tensors of that shape
        E[E[y|f]], Var[E[y|f]], E[Var[y|f]].
    """
    nodes, node_weights = (torch.from_numpy(v) for v in np.polynomial.hermite.hermgauss(n_nodes))
    f = mean[..., None] + (2 * variance).sqrt()[..., None] * nodes
    weight = node_weights / math.sqrt(math.pi)
    given, spread = (f.exp(), f.exp()) if kind == "poisson" else (f, torch.full_like(f, noise_variance))
    expected = (given * weight).sum(-1)
    return expected, ((given - expected[..., None]) ** 2 * weight).sum(-1), (spread * weight).sum(-1)


# --------------------------------------------------------------------------------------------------
# Regression scores
# --------------------------------------------------------------------------------------------------


def gaussian_total_std(covariance: Tensor, noise_variance: float | Tensor) -> Tensor:
    """Predictive standard deviation, sqrt(epistemic variance + noise variance).

    Parameters
    ----------
    covariance : Tensor of shape (n, C, C)
        Epistemic, as from `glm_covariance`.
    noise_variance : float or Tensor of shape (C,)

    Returns
    -------
    Tensor of shape (n, C)
    """
    return torch.sqrt(torch.diagonal(covariance, dim1=1, dim2=2) + _vector(noise_variance))


def crps_gaussian(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    r"""Continuous ranked probability score of N(mean, std^2) at y, elementwise, units of y.

    :math:`std\,[z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]` with z = (y - mean) / std; lower is
    better (Gneiting & Raftery 2007, eq. 21, sign changed).
    """
    z = (y - mean) / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    two_sided = torch.erf(z / math.sqrt(2))  # 2 Phi(z) - 1
    return std * (z * two_sided + 2 * density - 1 / math.sqrt(math.pi))


def coverage(y: Tensor, lower: Tensor, upper: Tensor) -> float:
    """Fraction of all entries of y inside the closed interval [lower, upper]."""
    return float(((lower <= y) & (y <= upper)).double().mean())


# --------------------------------------------------------------------------------------------------
# Derivatives and optima of any scalar function
# --------------------------------------------------------------------------------------------------


def evidence_gradient_by_differences(
    fn: Callable[[Tensor], float | Tensor], log_params: Tensor, eps: float = 1e-5
) -> Tensor:
    """Central differences of a scalar function, (fn(v + eps e_k) - fn(v - eps e_k)) / (2 eps).

    Parameters
    ----------
    fn : callable, (k,) -> scalar
    log_params : Tensor of shape (k,)
    eps : float
        Truncation grows with eps**2, rounding with |fn| * 1e-16 / eps.

    Returns
    -------
    Tensor of shape (k,)
    """
    steps = eps * torch.eye(len(log_params), dtype=torch.float64)
    slopes = [(float(fn(log_params + s)) - float(fn(log_params - s))) / (2 * eps) for s in steps]
    return torch.tensor(slopes, dtype=torch.float64)


def numerical_optimum(fn: Callable[[Tensor], float | Tensor], x0: Sequence[float] | Tensor) -> tuple[Tensor, float]:
    """Maximise a smooth scalar function of a few variables without derivatives.

    Nelder-Mead, restarted at its own answer until that no longer helps.

    Parameters
    ----------
    fn : callable, (k,) -> scalar
    x0 : sequence of k floats

    Returns
    -------
    argument : Tensor of shape (k,)
        Good to about 1e-7, the square root of rounding; the value's own accuracy is full.
    value : float

    Raises
    ------
    RuntimeError
        If twenty restarts still improve the value.
    """
    x, best = np.asarray(x0, dtype=np.float64), -math.inf
    options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000}
    for _ in range(20):
        result = scipy.optimize.minimize(
            lambda v: -float(fn(torch.tensor(v, dtype=torch.float64))),
            x,
            method="Nelder-Mead",
            options=options,
        )
        improved = -float(result.fun) > best + 1e-12 * max(1.0, abs(float(result.fun)))
        x, best = result.x, max(best, -float(result.fun))
        if not improved:
            return torch.tensor(x, dtype=torch.float64), best
    raise RuntimeError("no maximum found: is the function bounded above?")


# --------------------------------------------------------------------------------------------------
# Seeded problems; the global random state is neither read nor changed
# --------------------------------------------------------------------------------------------------


def random_mlp(
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.Tanh,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """Linear layers of the given sizes, activation in between; names "0.weight", "0.bias" and on.

    Parameters
    ----------
    sizes : sequence of int
        Inputs, hidden widths, outputs; two entries give one linear layer.
    activation : module class without arguments
    seed : int
    dtype : torch.dtype
        Values are drawn in float64 and then cast, so that dtypes agree up to rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        # skip_init: the ordinary constructor would draw from the global random state
        linear = nn.utils.skip_init(nn.Linear, fan_in, fan_out, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(_normal((fan_out, fan_in), generator) / math.sqrt(fan_in))
            linear.bias.copy_(0.5 * _normal((fan_out,), generator))
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])


def random_regression(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal inputs (n, d); targets (n, C) = smooth + linear + noise of std 0.3."""
    generator = torch.Generator().manual_seed(seed)
    X = _normal((n, d), generator)
    bent, straight = _normal((d, C), generator), _normal((d, C), generator)
    noise = 0.3 * _normal((n, C), generator)
    return X, torch.sin(X @ bent) + 0.5 * X @ straight / math.sqrt(d) + noise


def random_classification(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal inputs (n, d); overlapping labels (n,), int64, each of 0..C-1 present."""
    if n < C:
        raise ValueError(f"{n} rows cannot hold {C} classes")
    generator = torch.Generator().manual_seed(seed)
    X = _normal((n, d), generator)
    logits = 2 * X @ _normal((d, C), generator) / math.sqrt(d)
    y = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
    y[:C] = torch.arange(C)
    return X, y


def random_binary(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """As `random_classification` with two classes, for a net with one logit; C has to be 1."""
    if C != 1:
        raise ValueError(f"{C} logits for two classes; expected 1")
    return random_classification(n, d, 2, seed) if n > 1 else (_normal((1, d), _seeded(seed)), torch.ones(1).long())


def random_counts(n: int, d: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal inputs (n, d); counts (n, C), float64, of rates between about 0.2 and 10."""
    generator = _seeded(seed)
    X = _normal((n, d), generator)
    return X, torch.poisson(torch.exp(0.5 + torch.sin(X @ _normal((d, C), generator))), generator=generator)


def random_weights(n: int, seed: int = 0, integer: bool = False) -> Tensor:
    """Row weights (n,), float64, a quarter or so exactly zero; integers from 0 to 3 on request.

    From two rows on there is at least one zero and one positive weight.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 4, (n,), generator=generator).double()
    fractions = 0.5 + torch.rand(n, dtype=torch.float64, generator=generator)
    w = counts if integer else counts * fractions
    w[0] = 1.0 if integer else fractions[0]
    if n > 1:
        w[1] = 0.0
    return w


# --------------------------------------------------------------------------------------------------
# Private helpers
# --------------------------------------------------------------------------------------------------


def _double(x: Tensor) -> Tensor:
    """float64 for floating tensors; integer inputs (embeddings, labels) as they are."""
    return x.double() if x.is_floating_point() else x


def _vector(value: float | Tensor) -> Tensor:
    """Scalar or tensor as a float64 tensor."""
    return torch.as_tensor(value, dtype=torch.float64)


def _weights(weights: Tensor | None, n: int) -> Tensor:
    """Row weights (n,), ones when absent."""
    if weights is None:
        return torch.ones(n, dtype=torch.float64)
    if weights.shape != (n,):
        raise ValueError(f"weights have shape {tuple(weights.shape)}, expected ({n},)")
    return weights.double()


def _float64_copy(module: nn.Module) -> nn.Module:
    """Independent copy in float64 and eval mode, its own parameters constants to autodiff."""
    return copy.deepcopy(module).double().eval().requires_grad_(False)


def _unflatten(module: nn.Module, names: Sequence[str], theta: Tensor) -> dict[str, Tensor]:
    """Cut theta (P,) into the named parameters' shapes; differentiable."""
    parts, start = {}, 0
    for name in names:
        parameter = module.get_parameter(name)
        parts[name] = theta[start : start + parameter.numel()].reshape(parameter.shape)
        start += parameter.numel()
    if start != len(theta):
        raise ValueError(f"theta has {len(theta)} entries, {tuple(names)} hold {start}")
    return parts


def _row_losses(
    kind: str, module: nn.Module, names: Sequence[str], x: Tensor, y: Tensor, noise_variance: float | Tensor
) -> tuple[list[Function], Tensor]:
    """-log p(y_n | f_theta(x_n)) of each row alone as a function of theta, and the module's own theta."""
    f = network_function(module, names)
    variance = _rows_of(noise_variance, len(x))

    def loss(n: int) -> Function:
        row = slice(n, n + 1)
        return lambda theta: -log_likelihood(kind, f(theta, x[row]), y[row], variance[row])[0]

    return [loss(n) for n in range(len(x))], flatten(module, names)


def _row_nlls(kind: str, f: Tensor, y: Tensor, noise_variance: float | Tensor) -> list[Function]:
    """-log p(y | f) of each row as a function of its f (C,)."""
    variance = _rows_of(noise_variance, len(f))

    def nll(n: int) -> Function:
        row = slice(n, n + 1)
        return lambda outputs: -log_likelihood(kind, outputs[None], y[row], variance[row])[0]

    return [nll(n) for n in range(len(f))]


def _rows_of(noise_variance: float | Tensor, n: int) -> Tensor:
    """A number or a Tensor (n or 1, C or 1) with n rows."""
    variance = _vector(noise_variance)
    return variance.expand(n, 1) if variance.ndim == 0 else variance.expand(n, -1)


def _linear(module: nn.Module, layer_name: str) -> nn.Linear:
    """The named linear layer."""
    layer = module.get_submodule(layer_name)
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"{layer_name!r} is a {type(layer).__name__}, not a Linear")
    return layer


def _layer_input_and_output_jacobian(module: nn.Module, layer: nn.Linear, row: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (L, in) of one layer and derivative (C, L, out) of the outputs in the layer's output."""
    inputs: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _, args, output: inputs.append(args[0].detach()))
    module(_double(row))
    handle.remove()
    if len(inputs) != 1 or inputs[0].shape[0] != 1 or inputs[0].shape[-1] != layer.in_features:
        raise ValueError("the layer must be called once per forward, on inputs of shape (n, ..., in)")

    def f(perturbation: Tensor) -> Tensor:
        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output + perturbation

        handle = layer.register_forward_hook(hook)
        try:
            result: Tensor = module(_double(row))
        finally:
            handle.remove()
        return result.reshape(-1)

    shape = (*inputs[0].shape[:-1], layer.out_features)
    G = torch.autograd.functional.jacobian(f, torch.zeros(shape, dtype=torch.float64))
    return inputs[0].reshape(-1, layer.in_features), G.reshape(len(G), -1, layer.out_features)


def _repeated_rows_log_density(A: Tensor, Y: Tensor, w: Tensor, delta: float | Tensor, variance: Tensor) -> float:
    """Log N(Y; 0, diag(variance) + A diag(1/delta) A^T), outputs independent, row n w_n times."""
    A, Y, variance = (torch.repeat_interleave(t, w.long(), dim=0) for t in (A, Y, variance))
    prior_covariance = torch.diag(1 / _vector(delta).expand(A.shape[1]))
    covariance = A @ prior_covariance @ A.T + torch.diag(variance)
    normal = scipy.stats.multivariate_normal(np.zeros(len(A)), covariance.numpy())
    return float(sum(normal.logpdf(Y[:, c].numpy()) for c in range(Y.shape[1])))


def _root(cov: Tensor) -> Tensor:
    """R with R R^T = cov, for a positive semi-definite cov of any rank."""
    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.clamp(min=0).sqrt()


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal draws in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _is_positive_definite(matrix: Tensor) -> bool:
    return int(torch.linalg.cholesky_ex(matrix).info) == 0


def _minimise(objective: Function, terms: Function, curvatures: Sequence[Function], theta: Tensor) -> Tensor:
    """Newton's method with backtracking to a gradient of relative norm 1e-12, then one step more.

    ``terms(theta)`` (m, P) sums to the gradient; "relative" is to the sum of the terms' norms, the
    size of what cancels. ``curvatures`` begins with the exact Hessian: a Newton step where it is
    positive definite; elsewhere the best of the steps from every curvature, eigenvalues made
    positive (for the Hessian that leaves saddles instead of approaching them).
    """
    for _ in range(150):
        rows = terms(theta)
        gradient = rows.sum(0)
        hessian = curvatures[0](theta)
        if _is_positive_definite(hessian):
            steps = [-torch.linalg.solve(hessian, gradient)]
            if gradient.norm() <= 1e-12 * rows.norm(dim=1).sum():
                better = terms(theta + steps[0]).sum(0).norm() < gradient.norm()
                return theta + steps[0] if better else theta
        else:
            matrices = [hessian, *(curvature(theta) for curvature in curvatures[1:])]
            steps = [-_solve_absolute(matrix, gradient) for matrix in matrices]
        candidates = [_backtrack(objective, terms, theta, gradient, step) for step in steps]
        previous, theta = theta, min(candidates, key=lambda v: float(objective(v)))
        if torch.equal(previous, theta):
            break
    raise RuntimeError(f"not converged: gradient norm {float(gradient.norm()):.1e}")


def _solve_absolute(matrix: Tensor, vector: Tensor) -> Tensor:
    """|M|^-1 v for a symmetric M, its eigenvalues replaced by their size, at least 1e-6 the top."""
    values, vectors = torch.linalg.eigh(matrix)
    size = values.abs().clamp(min=1e-6 * float(values.abs().max()))
    return vectors @ ((vectors.T @ vector) / size)


def _backtrack(objective: Function, terms: Function, theta: Tensor, gradient: Tensor, step: Tensor) -> Tensor:
    """theta + t step for the largest t of 1, 1/2, 1/4, ... with sufficient decrease (Armijo).

    Close to the minimum the objective's change drowns in rounding: there a smaller gradient counts.
    theta itself if no t will do.
    """
    value, slope = float(objective(theta)), float(gradient @ step)
    size = 1.0
    while size > 1e-8:
        candidate = theta + size * step
        change = float(objective(candidate)) - value
        if change <= 1e-4 * size * slope < 0:
            return candidate
        drowned = abs(change) <= 1e-11 * max(1.0, abs(value))
        if drowned and terms(candidate).sum(0).norm() < gradient.norm():
            return candidate
        size /= 2
    return theta


def entropy_parts(means: Tensor, covariances: Tensor, weights: Tensor) -> tuple[float, float]:
    r"""Entropy of the average and average entropy of softmax(f), f a mixture of K Gaussians over C ≤ 3 logits; nats.

    By the trapezoid rule on ±9 standard deviations along the principal directions of the centred covariances.

    Parameters
    ----------
    means : Tensor of shape (K, C)
    covariances : Tensor of shape (K, C, C)
    weights : Tensor of shape (K,)
    """
    C = means.shape[1]
    z = torch.linspace(-9, 9, 721, dtype=torch.float64)
    grid = torch.cartesian_prod(*[z] * (C - 1)).reshape(-1, C - 1)
    density = (-grid.square().sum(1) / 2).softmax(0)
    centre = torch.eye(C, dtype=torch.float64) - 1 / C
    average, entropy = torch.zeros(C, dtype=torch.float64), 0.0
    for mean, covariance, weight in zip(means, covariances, weights, strict=True):
        values, vectors = torch.linalg.eigh(centre @ covariance @ centre)
        root = vectors[:, 1:] * values[1:].clamp_min(0).sqrt()
        p = (mean + grid @ root.mT).softmax(1)
        average = average + weight * (density @ p)
        entropy += float(weight * (density @ -(p * p.log()).sum(1)))
    return float(-(average * average.log()).sum()), entropy


def pieces(values: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """A column's numbers (n,) as shares of its pieces (n, K), the ends of which go on, by the cases of the definition.

    Gorishniy, Rubachev & Babenko (2022), eq. 1; they go on beyond the ends of the training in the first and last piece.
    """
    found = np.empty((len(values), len(edges) - 1))
    for n, x in enumerate(values):
        for k, (low, high) in enumerate(itertools.pairwise(edges)):
            share = (x - low) / (high - low)
            if x < low and k > 0:
                share = 0.0
            elif x >= high and k < len(edges) - 2:
                share = 1.0
            found[n, k] = share
    return found


def log_density_of_error(
    error: float, variance: float, noise: float, log_variance: float, factor: float, spread: float
) -> float:
    """Log density of an error whose log noise is normal, but for ½ log 2π, by adaptive quadrature over it."""
    deviation = math.sqrt(log_variance + spread**2)

    def integrand(z: float) -> float:
        total = factor * (variance + noise * math.exp(z * deviation - spread**2 / 2))
        return math.exp(-0.5 * (z**2 + error**2 / total)) / math.sqrt(2 * math.pi * total)

    value, _ = scipy.integrate.quad(integrand, -12, 12, epsabs=1e-14, epsrel=1e-12, limit=500)
    return math.log(value)
