r"""Numerics of the engine: factorisations and solves with one policy for jitter, clipping and warnings; accurate sums.

Structures factorise curvatures and precisions with these functions, in float64.

:func:`sum_of_rows` sums float32 values to more than float32 accuracy, also on GPUs that are slow at float64. On such
GPUs, each of the n values is split as in Rump, Ogita & Oishi (2008), algorithm 3.2. With :math:`\sigma = 2^{\lceil
\log_2 (n + 2) \rceil} 2^e` and :math:`\max |x| < 2^e`,

.. math:: q_i = (\sigma + x_i) - \sigma, \qquad r_i = x_i - q_i .

Both are exact in float32, and so is the sum of the q in any order. The remainders r are at most :math:`2^{-24} \sigma`,
and are split in turn.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import ClippedWarning, JitterWarning, NotPositiveDefiniteError
from ..errors.warn import warn_user
from .torch_state import is_slow_at_float64

JITTERS = (1e-12, 1e-10, 1e-8, 1e-6)
"""Jitter values, relative to the mean of the diagonal, tried in turn when a Cholesky factorisation fails."""
SUBTRACTION_ROUNDING = 1e-6
"""Tolerance for negative eigenvalues after a subtraction, relative to the largest diagonal entry. Subtracting float32
rows leaves rounding errors of this size."""
INDEFINITE = 1e-3
"""Negative eigenvalues beyond this size, relative to the largest, are not rounding errors of a sum of products."""
CLIP_ROUNDING = 1e-6
"""Negative eigenvalues up to this size, relative to the largest magnitude, count as float32 rounding errors."""
STRIP = 64
"""Columns per strip in blocked symmetric products and triangular inverses."""
WIDE_STRIP = 128
"""Columns per strip when each strip is discarded after use."""
TOLERANCE, MAX_ITERATIONS = 1e-13, 500
"""Conjugate gradients stop at this relative residual, in the preconditioner's norm, or this number of iterations."""


def cholesky(matrix: Tensor, floor: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor L (p, p) of a symmetric positive definite matrix, read from its lower triangle.

    Jitter is added if needed, with a JitterWarning. ``floor`` (p,) is a positive diagonal included in the matrix. If no
    jitter suffices, small negative eigenvalues of the matrix minus ``floor`` are set to zero, and jitter is added
    again. If this fails as well, a NotPositiveDefiniteError is raised.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) == 0 and bool(torch.isfinite(factor.diagonal()).all()):
        return factor
    _require_finite(matrix)
    size = matrix.diagonal().abs().mean().clamp_min(torch.finfo(matrix.dtype).tiny)
    for repaired in (lambda: matrix, lambda: None if floor is None else _above(matrix, floor)):
        if (start := repaired()) is None:
            break
        for jitter in JITTERS:
            shifted = start.clone()
            shifted.diagonal().add_(jitter * size)
            factor, info = torch.linalg.cholesky_ex(shifted)
            if int(info) == 0:
                warn_user(
                    f"a precision matrix of shape {tuple(matrix.shape)} is not positive definite in floating point; "
                    f"{jitter:g} times its mean diagonal was added to the diagonal. Use a larger prior_precision.",
                    JitterWarning,
                )
                return factor
    raise NotPositiveDefiniteError(
        f"a matrix of shape {tuple(matrix.shape)} is not positive definite, even with {JITTERS[-1]:g} times "
        "its mean diagonal added to the diagonal; use a larger prior_precision."
    )


def _above(matrix: Tensor, floor: Tensor) -> Tensor | None:
    """Matrix with the negative eigenvalues of matrix − diag(floor) set to zero; None if they exceed rounding errors."""
    values, vectors = torch.linalg.eigh(matrix - floor.diag())
    if not float(values[0]) >= -INDEFINITE * float(values[-1]):
        return None
    return (vectors * values.clamp_min(0.0)) @ vectors.mT + floor.diag()


def eigh(matrix: Tensor, *, semidefinite: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues (p,), clipped at zero, and eigenvectors (p, p). Unless ``semidefinite``, :func:`clipped` may warn."""
    _require_finite(matrix)
    values, vectors = _of_diagonal(matrix) if _is_diagonal(matrix) else torch.linalg.eigh(matrix)
    return values.clamp_min(0.0) if semidefinite else clipped(values), vectors


def _is_diagonal(matrix: Tensor) -> bool:
    """True if all off-diagonal elements are zero, as in the input factor of one-hot inputs."""
    return int(matrix.count_nonzero()) == int(matrix.diagonal().count_nonzero())


def _of_diagonal(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, in ascending order, and eigenvectors of a diagonal matrix."""
    values, order = matrix.diagonal().sort(stable=True)
    return values, torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)[:, order]


def eigvalsh(matrix: Tensor) -> Tensor:
    """Eigenvalues (p,) of a positive semi-definite matrix, clipped at zero as in :func:`eigh`."""
    _require_finite(matrix)
    return torch.linalg.eigvalsh(matrix).clamp_min(0.0)


def clipped(values: Tensor) -> Tensor:
    """Eigenvalues (p,) of a curvature, with negative ones set to zero.

    Issues a ClippedWarning if any negative eigenvalue exceeds rounding errors.
    """
    size = float(values.abs().max()) if len(values) else 0.0
    negative = values < -CLIP_ROUNDING * size
    if bool(negative.any()):
        warn_user(
            f"{int(negative.sum())} of {len(values)} eigenvalues of the curvature are negative, down to "
            f"{float(values.min()):.2g} (the largest is {float(values.max()):.2g}), and were set to zero: the exact "
            "Hessian of the loss may be indefinite. Use curvature='ggn', which never is, or train to a better fit.",
            ClippedWarning,
        )
    return values.clamp_min(0.0)


def require_semidefinite(smallest: Tensor, size: Tensor) -> None:
    """Raise NotPositiveDefiniteError for a negative smallest eigenvalue, with a tolerance relative to ``size``."""
    if not float(smallest) >= -SUBTRACTION_ROUNDING * max(float(size), torch.finfo(torch.float64).tiny):
        raise NotPositiveDefiniteError(
            f"cannot remove these rows: the remaining curvature would have an eigenvalue of {float(smallest):.2g}. "
            "Remove only rows that were fitted, with the weights they were fitted with."
        )


def _require_finite(matrix: Tensor) -> None:
    if not bool(torch.isfinite(matrix).all()):
        raise NotPositiveDefiniteError(
            f"cannot factorise a matrix of shape {tuple(matrix.shape)} that contains NaN or infinite values; "
            "check the inputs and the network's activations."
        )


def lower_gram(left: Tensor, right: Tensor) -> Tensor:
    """Lower triangle of a symmetric product leftᵀ right (p, p), float64, in strips; undefined above the diagonal."""
    size = left.shape[1]
    product = left.new_zeros(size, size)
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        torch.mm(left[:, start:].mT, right[:, start:stop], out=product[start:, start:stop])
    return product.double()


def gram(left: Tensor, right: Tensor) -> Tensor:
    """Symmetric product leftᵀ right (p, p), float64, from its lower triangle (:func:`lower_gram`)."""
    product = lower_gram(left, right)
    return product if len(product) <= STRIP else mirror_lower(product)


def mirror_lower(matrix: Tensor) -> Tensor:
    """Symmetric matrix (p, p) with the lower triangle of ``matrix``."""
    lower = matrix.tril()
    return lower + lower.tril(-1).mT


def inverse_root(factor: Tensor) -> Tensor:
    """Inverse root L⁻ᵀ (p, p) of a lower Cholesky factor L. Costs p³/3, in strips that skip the zero triangle."""
    size = len(factor)
    identity, root = torch.eye(size, dtype=factor.dtype, device=factor.device), torch.zeros_like(factor)
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        below = torch.linalg.solve_triangular(factor[start:, start:], identity[start:, start:stop], upper=False)
        root[start:stop, start:] = below.mT
    return root


def trace_of_inverse(factor: Tensor) -> Tensor:
    """Trace of the inverse, tr((L Lᵀ)⁻¹) = ‖L⁻¹‖², of a lower Cholesky factor L (p, p), 0-d. Costs p³/3."""
    size, total = len(factor), factor.new_zeros(())
    identity = torch.eye(size, min(WIDE_STRIP, size), dtype=factor.dtype, device=factor.device)
    for start in range(0, size, WIDE_STRIP):
        columns = identity[: size - start, : size - start]
        total += torch.linalg.solve_triangular(factor[start:, start:], columns, upper=False).square().sum()
    return total


def downdated(covariance: Tensor, factor: Tensor, most: Tensor) -> Tensor:
    r"""Covariance after removing one row's precision: :math:`q_- = q + q S (I - S^\top q S)^{-1} S^\top q`.

    It equals :math:`(q^{-1} - S S^\top)^{-1}`, and is defined for a singular ``covariance`` q (…, C, C) too. The
    leverages are the eigenvalues of :math:`S^\top q S` for ``factor`` S (…, C, K). For leverages near 1, the bound
    :math:`q_- \preceq` ``most`` (the prior covariance) limits their effect: :math:`u^\top (I - S^\top q S)^{-1} u \le
    1 + u^\top S^\top \mathrm{most}\, S u` for every unit vector u.
    """
    cross = covariance @ factor
    leverage, free = factor.mT @ cross, factor.mT @ most @ factor
    if factor.shape[-1] == 1:  # a batch of 1 × 1 eigenproblems would dominate the run time
        values, bound = leverage[..., 0], 1 + free[..., 0]
    else:
        values, vectors = torch.linalg.eigh(leverage)
        bound = 1 + ((free @ vectors) * vectors).sum(-2)
        cross = cross @ vectors
    gain = torch.where(values < 1, 1 / (1 - values), torch.inf).minimum(bound)
    return covariance + (cross * gain[..., None, :]) @ cross.mT


def conjugate_gradients(
    system: Callable[[Tensor], Tensor],
    right: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Solution (P,) of a positive definite system up to a relative residual (Nocedal & Wright 2006, alg. 5.3)."""
    solution, residual = torch.zeros_like(right), right
    solved = precondition(residual)
    direction, size = solved, float(residual @ solved)
    goal = tolerance**2 * size
    for _ in range(MAX_ITERATIONS):
        if not size > goal:
            break
        image = system(direction)
        step = size / float(direction @ image)
        solution, residual = solution + step * direction, residual - step * image
        solved = precondition(residual)
        size, before = float(residual @ solved), size
        direction = solved + (size / before) * direction
    return solution


LEVELS = 3
"""Number of splits in :func:`compensated`."""


def sum_of_rows(values: Tensor) -> Tensor:
    """Sum of values (n,), 0-d, float64. GPUs that are slow at float64 use :func:`compensated` for float32 values."""
    if values.dtype == torch.float32 and is_slow_at_float64(values.device):
        return compensated(values)
    return values.double().sum()


def compensated(values: Tensor) -> Tensor:
    r"""Sum of at most 10⁵ float32 values (n,) by float32 operations; the error is below :math:`2^{-40} n \max |x|`."""
    if not len(values):
        return values.double().sum()
    growth = 2.0 ** math.ceil(math.log2(len(values) + 2))
    largest = values.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    unit, rest, sums = growth * (largest / largest.frexp().mantissa), values, []
    for _ in range(LEVELS):
        split = (unit + rest) - unit
        sums.append(split.sum())
        unit, rest = unit * (growth * 2.0**-24), rest - split  # |rest| is at most 2⁻²⁴ unit
    return torch.stack([*sums, rest.sum()]).double().sum()


def pulled_back(
    outputs: Tensor, inputs: Sequence[Tensor], cotangent: Tensor, *, keeps: bool = False, differentiable: bool = False
) -> tuple[Tensor, ...]:
    """Gradients of Σ outputs · cotangent with respect to ``inputs``; zero for unused inputs.

    Passing a cotangent to ``torch.autograd.grad`` makes torch import sympy, which takes a second. Therefore the outputs
    are multiplied by the cotangent, unless it requires a gradient.
    """
    given = None
    if cotangent.requires_grad:
        given = cotangent
    else:
        with torch.enable_grad():
            outputs = (outputs * cotangent).sum()
    return torch.autograd.grad(
        outputs, inputs, given, retain_graph=keeps, create_graph=differentiable, materialize_grads=True
    )
