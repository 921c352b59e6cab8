"""Safe factorisations and solves: one jitter policy, one warning, one rule for clipping eigenvalues.

Every Cholesky and every eigendecomposition of a large matrix goes through here. All matrices are float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import ClippedWarning, JitterWarning, NotPositiveDefiniteError

JITTERS = (1e-12, 1e-10, 1e-8, 1e-6)
"""Multiples of the mean diagonal tried in turn when a Cholesky factorisation fails."""
SUBTRACTION_ROUNDING = 1e-6
"""Negative eigenvalues, relative to the largest diagonal entry, that float32 rows leave when they are subtracted."""
INDEFINITE = 1e-3
"""Negative eigenvalues, relative to the largest, that are no rounding of a sum of outer products."""
CLIP_ROUNDING = 1e-6
"""Negative eigenvalues, relative to the largest, that float32 rows make of zeros."""
STRIP = 64
"""Columns of the strips in which symmetric products and inverses of triangles are formed."""
WIDE_STRIP = 128
"""The same where they are not kept."""
TOLERANCE, MAX_ITERATIONS = 1e-13, 500
"""Conjugate gradients end at this residual relative to the first, in the preconditioner's norm."""


def cholesky(matrix: Tensor, floor: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor of a symmetric positive definite matrix.

    Parameters
    ----------
    matrix : Tensor of shape (p, p)
        Only the lower triangle is read.
    floor : Tensor of shape (p,), optional
        A positive diagonal that is in the matrix; the rest is positive semi-definite but for rounding. Where the
        largest jitter is too small, negative eigenvalues of the rest are set to zero.

    Returns
    -------
    Tensor of shape (p, p)
        L with ``L @ L.mT`` equal to the matrix, plus jitter where it was needed.

    Raises
    ------
    NotPositiveDefiniteError
        When the matrix holds a NaN or an infinity, or stays indefinite after the largest jitter.

    Examples
    --------
    >>> import torch
    >>> cholesky(torch.diag(torch.tensor([4.0, 9.0])))
    tensor([[2., 0.],
            [0., 3.]])
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
                warnings.warn(
                    f"a {tuple(matrix.shape)} precision was not positive definite in floating point; "
                    f"{jitter:g} times its mean diagonal was added. A larger prior_precision avoids this.",
                    JitterWarning,
                    stacklevel=2,
                )
                return factor
    raise NotPositiveDefiniteError(
        f"a {tuple(matrix.shape)} matrix is not positive definite, even with {JITTERS[-1]:g} times its mean "
        "diagonal added; use a larger prior_precision."
    )


def _above(matrix: Tensor, floor: Tensor) -> Tensor | None:
    """The matrix with the negative eigenvalues of all but the floor set to zero; None where they are no rounding."""
    values, vectors = torch.linalg.eigh(matrix - floor.diag())
    if not float(values[0]) >= -INDEFINITE * float(values[-1]):
        return None
    return (vectors * values.clamp_min(0.0)) @ vectors.mT + floor.diag()


def eigh(matrix: Tensor, *, semidefinite: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues (p,), not below zero, and eigenvectors (p, p) of a symmetric matrix.

    Parameters
    ----------
    matrix : Tensor of shape (p, p)
    semidefinite : bool
        Whether it is known to be positive semi-definite. A sum of outer products has no negative eigenvalue; what
        rounding makes of its zeros is clipped in silence. Otherwise what is clipped is counted, see :func:`clipped`.

    Raises
    ------
    NotPositiveDefiniteError
        When the matrix holds a NaN or an infinity.

    Examples
    --------
    >>> import torch
    >>> eigh(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))[0].round(decimals=5)
    tensor([0., 2.])
    """
    _require_finite(matrix)
    values, vectors = _of_diagonal(matrix) if _is_diagonal(matrix) else torch.linalg.eigh(matrix)
    return values.clamp_min(0.0) if semidefinite else clipped(values), vectors


def _is_diagonal(matrix: Tensor) -> bool:
    """Whether all elements off the diagonal are zero, as in the input factor of one-hot inputs."""
    return int(matrix.count_nonzero()) == int(matrix.diagonal().count_nonzero())


def _of_diagonal(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, rising, and eigenvectors of a diagonal matrix."""
    values, order = matrix.diagonal().sort(stable=True)
    return values, torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)[:, order]


def eigvalsh(matrix: Tensor) -> Tensor:
    """Eigenvalues (p,) alone, as :func:`eigh`.

    Examples
    --------
    >>> import torch
    >>> eigvalsh(torch.tensor([[1.0, 1.0], [1.0, 1.0]])).round(decimals=5)
    tensor([0., 2.])
    """
    _require_finite(matrix)
    return torch.linalg.eigvalsh(matrix).clamp_min(0.0)


def clipped(values: Tensor) -> Tensor:
    """Eigenvalues (p,) of a curvature, the negative ones set to zero.

    Warns
    -----
    ClippedWarning
        When there are any beyond what rounding in single precision makes of zeros.

    Examples
    --------
    >>> import torch
    >>> clipped(torch.tensor([-1e-9, 1.0], dtype=torch.float64))
    tensor([0., 1.], dtype=torch.float64)
    """
    size = float(values.abs().max()) if len(values) else 0.0
    negative = values < -CLIP_ROUNDING * size
    if bool(negative.any()):
        warnings.warn(
            f"{int(negative.sum())} of {len(values)} eigenvalues of the curvature are negative, down to "
            f"{float(values.min()):.2g} (the largest is {float(values.max()):.2g}), and were set to zero: the exact "
            "Hessian of the loss need not be positive. Use curvature='ggn', which is, or train to a better fit.",
            ClippedWarning,
            stacklevel=2,
        )
    return values.clamp_min(0.0)


def require_semidefinite(smallest: Tensor, size: Tensor) -> None:
    """Whether what is left of a curvature after a subtraction can be one.

    Parameters
    ----------
    smallest : Tensor, 0-d
        Its smallest eigenvalue.
    size : Tensor, 0-d
        The largest diagonal entry before, against which rounding is judged.

    Raises
    ------
    NotPositiveDefiniteError
        When the eigenvalue is further below zero than rounding explains.

    Examples
    --------
    >>> import torch
    >>> require_semidefinite(torch.tensor(-1e-12), torch.tensor(1.0))
    """
    if not float(smallest) >= -SUBTRACTION_ROUNDING * max(float(size), torch.finfo(torch.float64).tiny):
        raise NotPositiveDefiniteError(
            f"what is to be taken out of the curvature is not in it: an eigenvalue of {float(smallest):.2g} would be "
            "left. Only rows can be forgotten that have been fitted, with the weights they had."
        )


def _require_finite(matrix: Tensor) -> None:
    if not bool(torch.isfinite(matrix).all()):
        raise NotPositiveDefiniteError(
            f"a {tuple(matrix.shape)} matrix to factorise holds NaN or infinite values; "
            "look for them in the network's activations or in the inputs."
        )


def lower_gram(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right (p, p) where it is symmetric, float64: strips of its lower triangle; above it is nothing to be used.

    Examples
    --------
    >>> import torch
    >>> lower_gram(torch.ones(3, 2), torch.ones(3, 2)).tril().tolist()
    [[3.0, 0.0], [3.0, 3.0]]
    """
    size = left.shape[1]
    found = left.new_zeros(size, size)
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        torch.mm(left[:, start:].mT, right[:, start:stop], out=found[start:, start:stop])
    return found.double()


def gram(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right (p, p) where it is symmetric, float64: from :func:`lower_gram` where that is less work.

    Examples
    --------
    >>> import torch
    >>> gram(torch.ones(3, 2), torch.ones(3, 2)).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    found = lower_gram(left, right)
    return found if len(found) <= STRIP else mirror_lower(found)


def mirror_lower(matrix: Tensor) -> Tensor:
    """The symmetric matrix (p, p) whose lower triangle is given.

    Examples
    --------
    >>> import torch
    >>> mirror_lower(torch.tensor([[1.0, 9.0], [2.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    lower = matrix.tril()
    return lower + lower.tril(-1).mT


def inverse_root(factor: Tensor) -> Tensor:
    """R = L⁻ᵀ (p, p), so that R Rᵀ is the inverse of L Lᵀ. Costs p³/3: strips of it, below which there is nothing.

    Examples
    --------
    >>> import torch
    >>> inverse_root(torch.diag(torch.tensor([2.0, 4.0]))).diagonal()
    tensor([0.5000, 0.2500])
    """
    size = len(factor)
    identity, root = torch.eye(size, dtype=factor.dtype, device=factor.device), torch.zeros_like(factor)
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        below = torch.linalg.solve_triangular(factor[start:, start:], identity[start:, start:stop], upper=False)
        root[start:stop, start:] = below.mT
    return root


def trace_of_inverse(factor: Tensor) -> Tensor:
    """tr((L Lᵀ)⁻¹) = ‖L⁻¹‖² of a lower Cholesky factor L (p, p), 0-d: p³/3, in strips that are not kept.

    Examples
    --------
    >>> import torch
    >>> trace_of_inverse(torch.diag(torch.tensor([2.0, 4.0])))
    tensor(0.3125)
    """
    size, total = len(factor), factor.new_zeros(())
    identity = torch.eye(size, min(WIDE_STRIP, size), dtype=factor.dtype, device=factor.device)
    for start in range(0, size, WIDE_STRIP):
        columns = identity[: size - start, : size - start]
        total += torch.linalg.solve_triangular(factor[start:, start:], columns, upper=False).square().sum()
    return total


def downdated(covariance: Tensor, factor: Tensor, most: Tensor) -> Tensor:
    r"""A covariance without one of the sites that made it: :math:`q_- = q + q S (I - S^\top q S)^{-1} S^\top q`.

    It is :math:`(q^{-1} - S S^\top)^{-1}`, also where q is singular. The eigenvalues of :math:`S^\top q S`, the
    leverages, are below one; where rounding (or a q that does not hold all of S) puts one at or above it, the bound
    :math:`q_- \preceq` ``most`` takes its place, by which :math:`u^\top (I - S^\top q S)^{-1} u \le 1 + u^\top S^\top
    \mathrm{most}\, S u` for every u of length one.

    Parameters
    ----------
    covariance : Tensor of shape (…, C, C)
        q, with the site.
    factor : Tensor of shape (…, C, K)
        S; zeros take nothing out.
    most : Tensor of shape (…, C, C)
        What the covariance is without any site.

    Returns
    -------
    Tensor of shape (…, C, C)

    Examples
    --------
    >>> import torch
    >>> half, one, four = (torch.tensor([[value]]) for value in (0.5, 1.0, 4.0))
    >>> downdated(half, one, four), downdated(one, one, four)  # a leverage of one, and 1 + 4 in place of 1 / 0
    (tensor([[1.]]), tensor([[6.]]))
    """
    cross = covariance @ factor
    leverage, free = factor.mT @ cross, factor.mT @ most @ factor
    if factor.shape[-1] == 1:  # a batch of 1 × 1 eigenproblems takes longer than all the rest
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
    """Solve a symmetric positive definite system (Nocedal & Wright 2006, algorithm 5.3).

    Parameters
    ----------
    system : callable
        The matrix times a vector (P,).
    right : Tensor of shape (P,)
    precondition : callable
        About the inverse times a vector (P,).
    tolerance : float
        Residual at the end relative to the first, in the preconditioner's norm.

    Returns
    -------
    Tensor of shape (P,)

    Examples
    --------
    >>> import torch
    >>> matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> right = torch.tensor([4.0, 7.0], dtype=torch.float64)
    >>> conjugate_gradients(lambda v: matrix @ v, right, lambda v: v / matrix.diagonal()).round(decimals=6)
    tensor([1., 2.], dtype=torch.float64)
    """
    found, residual = torch.zeros_like(right), right
    solved = precondition(residual)
    direction, size = solved, float(residual @ solved)
    goal = tolerance**2 * size
    for _ in range(MAX_ITERATIONS):
        if not size > goal:
            break
        image = system(direction)
        step = size / float(direction @ image)
        found, residual = found + step * direction, residual - step * image
        solved = precondition(residual)
        size, before = float(residual @ solved), size
        direction = solved + (size / before) * direction
    return found
