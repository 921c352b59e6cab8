r"""Leave-one-out in closed form against refits of the net itself: five UCI tables, 20 rows each.

The training part of split 0 is fitted by the evidence. Under the chosen prior precision δ and noise variance φ, the
weights are moved to an exact mode θ* of

.. math:: L(\theta) = \tfrac1{2\varphi} \sum_n w_n (y_n - f(x_n, \theta))^2 + \tfrac{\delta}{2} \lVert\theta\rVert^2 .

Newton's method with the exact Hessian in a trust region runs to a decrement of 1e-6 posterior standard deviations. Then
20 random rows are left out one at a time; copies of a row stay. The same method trains the net from θ* to the mode
without the row. Let :math:`\Delta_n = f_{-n}(x_n) - f(x_n)`, for the closed form and for the refit. The table has three
errors of the closed form, as medians over the rows. The first two are errors of Δ, relative to the refit's Δ and to the
refit's left-out residual :math:`y_n - f_{-n}(x_n)`. The third is the relative error of the left-out prediction. The
table also has the correlation of the two Δ. The closed forms are:

- *full*: the formula of the library, with the Gauss–Newton matrix at θ*. An estimator gives this mean in any structure.
- *kron* and *diag*: the same formula with the structure's own leverage q.
- *exact Hessian*: the inverse of the Hessian at θ* instead of the Gauss–Newton matrix, which omits the second
  derivatives of the net. The second derivatives of the row itself are included. If the leverage of the row is then one
  or more, *full* is used. *Clipped* is the formula of the library with ``Hessian()`` for the mean: negative eigenvalues
  are set to zero before the prior is added.
- *loo_predict()*: the method of the estimator, from the fit itself and not from θ*. For Δ, the predictions of the fit
  are subtracted.

A first table describes the distance of θ* from the fit. It has the steps of Newton's method, the directions of negative
curvature at the fit, and the root mean square change of the outputs in units of the noise. *Other basin* counts refits
that do not return to θ* when the net is trained again with the row; the medians include them. Network outputs,
gradients and Hessians are implemented here for one hidden layer of tanh units, so that the refits do not use the code
under test.

``python examples/benchmarks/leave_one_out.py --data DIR`` prints markdown tables; ``uci_sets.py`` describes DIR. The
test parts are not used. Further options: ``--only``; ``--quick`` uses 5 rows of two tables.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import uci_sets
from torch import Tensor

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN, Hessian
from sklearn_laplace.laplace.curvatures._base import CurvatureRule
from sklearn_laplace.laplace.leave_one_out import leave_one_out
from sklearn_laplace.laplace.structures import Diag, Full, Kron
from sklearn_laplace.laplace.structures._base import Curvature

ROWS, SEED = 20, 0
DECREMENT, MAX_STEPS = 1e-6, 3000
RADIUS = 1.0
"""Initial radius of the trust region, in weights; small, so that refits stay in their basin if possible."""
SAME = 1e-4
"""Largest distance of two equal modes, in posterior standard deviations of the weights."""
MODES = "table", "rows", "weights", "steps to θ*", "negative directions", "outputs moved, σ", "refits", "other basin"
COLUMNS = "table", "closed form", "error / Δ", "error / residual", "correlation", "error / prediction"


@dataclass(frozen=True)
class Objective:
    """Objective L of a net with one hidden layer of tanh units, and its first two derivatives.

    Weights θ are [W | b] row by row, then [v | c]; outputs f = s Σ_j v_j tanh(w_j a + b_j) + c.
    """

    features: Tensor
    """Inputs a with an added column of ones, (n, d + 1)."""
    targets: Tensor
    weights: Tensor
    scale: float
    precision: float
    dispersion: float

    def hidden(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        width = self.features.shape[1]
        units = (len(theta) - 1) // (width + 1)
        return torch.tanh(self.features @ theta[: units * width].view(units, width).mT), theta[units * width :]

    def outputs(self, theta: Tensor) -> Tensor:
        h, last = self.hidden(theta)
        return self.scale * h @ last[:-1] + last[-1]

    def value(self, theta: Tensor) -> float:
        squares = self.weights @ (self.targets - self.outputs(theta)) ** 2
        return float(squares / self.dispersion + self.precision * theta @ theta) / 2

    def jacobian(self, theta: Tensor) -> Tensor:
        h, last = self.hidden(theta)
        inner = (self.scale * last[:-1] * (1 - h**2))[..., None] * self.features[:, None]
        return torch.cat([inner.flatten(1), self.scale * h, torch.ones_like(h[:, :1])], 1)

    def pull(self, theta: Tensor) -> Tensor:
        """Derivative of the loss with respect to the outputs."""
        return self.weights * (self.outputs(theta) - self.targets) / self.dispersion

    def gradient(self, theta: Tensor) -> Tensor:
        return self.jacobian(theta).mT @ self.pull(theta) + self.precision * theta

    def hessian(self, theta: Tensor) -> Tensor:
        """Hessian Jᵀ diag(w/φ) J + Σ_n pull_n ∂²f_n/∂θ² + δ I, with J = ∂f/∂θ and the row weights w."""
        J, (h, last) = self.jacobian(theta), self.hidden(theta)
        width = self.features.shape[1]
        units, pull = h.shape[1], self.pull(theta)[:, None]
        total = (J.mT * (self.weights / self.dispersion)) @ J + self.precision * torch.eye(len(theta)).to(J)
        slope = 1 - h**2
        bent = torch.einsum("nj,na,nb->jab", pull * self.scale * last[:-1] * -2 * h * slope, *[self.features] * 2)
        mixed = torch.einsum("nj,na->ja", pull * self.scale * slope, self.features)
        for j in range(units):
            unit, out = slice(j * width, (j + 1) * width), units * width + j
            total[unit, unit] += bent[j]
            total[unit, out] += mixed[j]
            total[out, unit] += mixed[j]
        return total


def mode(objective: Objective, theta: Tensor) -> tuple[Tensor, int]:
    """Mode reached by Newton's method from given weights, and the number of steps (Nocedal & Wright 2006, alg. 4.1)."""
    radius, value = RADIUS, objective.value(theta)
    for step in range(MAX_STEPS):
        gradient = objective.gradient(theta)
        values, vectors = torch.linalg.eigh(objective.hessian(theta))
        along = vectors.mT @ gradient
        decrement = float((along**2 / values.clamp_min(objective.precision * 1e-6)).sum().sqrt())
        if decrement <= DECREMENT and values[0] > 0:
            return theta, step
        move = _within(values, along, radius)
        promised = -float(along @ move + 0.5 * values @ move**2)
        trial = theta + vectors @ move
        reached = objective.value(trial)
        rounding = 1e-12 * (abs(value) + 1)
        gain = (value - reached + rounding) / (promised + rounding)
        if gain < 0.25:
            radius = float(move.norm()) / 4
        elif gain > 0.75 and float(move.norm()) > 0.9 * radius:
            radius *= 2
        if gain > 1e-4:
            theta, value = trial, reached
    raise RuntimeError(f"no mode within {MAX_STEPS} steps: decrement {decrement:.1e}, curvature {values[0]:.1e}.")


def _within(values: Tensor, along: Tensor, radius: float) -> Tensor:
    """Minimiser of the quadratic model within a radius, in the eigenbasis: −(H + μI)⁻¹ g, μ by bisection.

    If the gradient has almost no component along the most negative curvature, the rest of the radius goes there.
    """
    lowest = float(values[0])
    low = high = max(0.0, -lowest * (1 + 1e-9))
    if lowest > 0 and float((along / values).norm()) <= radius:
        return -along / values
    high += float(along.norm()) / radius + 1e-12
    for _ in range(100):
        shift = (low + high) / 2
        low, high = (shift, high) if float((along / (values + shift)).norm()) > radius else (low, shift)
    move = -along / (values + high)
    if lowest <= 0 and float(move.norm()) < 0.9 * radius:
        rest = (radius**2 - float(move[1:].square().sum())) ** 0.5
        move = torch.cat([torch.tensor([-rest if along[0] > 0 else rest]).to(move), move[1:]])
    return move


def by_hessian(objective: Objective, theta: Tensor, H: Tensor) -> Tensor:
    """Change of each row's output (n,) when it is left out, by the exact Hessian; NaN for leverages of one or more."""
    J = objective.jacobian(theta)
    q = (J * torch.linalg.solve(H, J.mT).mT).sum(1)
    leverage = objective.weights * q / objective.dispersion
    return torch.where(leverage < 1, q * objective.pull(theta) / (1 - leverage), torch.nan)


def without(objective: Objective, n: int) -> Objective:
    return replace(objective, weights=objective.weights.index_fill(0, torch.tensor([n]), 0.0))


def compared(path: Path, n_rows: int) -> tuple[list[float | str], list[list[float | str]]]:
    """Table rows: one for the mode, and one for each closed form."""
    X, y, _, _ = uci_sets.parts(path, 0, test=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", random_state=0).fit(X, y)
    fit, spread = model.laplace_, y.std()
    x, targets = torch.tensor(X), torch.tensor((y - y.mean()) / spread)
    standardise, narrow, _, _, scale, _ = fit.network.module
    features = torch.cat([narrow(standardise(x)), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    weights = torch.ones(len(x), dtype=torch.float64)
    given = scale.factor, model.prior_precision_, (model.sigma_noise_ / spread) ** 2
    objective = Objective(features, targets, weights, *given)
    start = fit.network.theta
    torch.testing.assert_close(objective.outputs(start), fit.network(x)[:, 0], rtol=1e-9, atol=1e-9)

    theta, steps = mode(objective, start)
    H, f = objective.hessian(theta), objective.outputs(theta)
    rows = np.random.default_rng(SEED).choice(len(x), n_rows, replace=False).tolist()
    refits, other = [], 0
    for n in rows:
        found, _ = mode(without(objective, n), theta)
        refits.append(float(objective.outputs(found)[n] - f[n]))
        way = mode(objective, found)[0] - theta
        other += float(way @ H @ way) ** 0.5 > SAME

    hyper = Hyper(torch.tensor([given[1]], dtype=torch.float64), given[2])
    network, batches = fit.network.with_parameters(theta), [(x, targets[:, None], weights)]

    def closed(structure: type[Curvature], rule: CurvatureRule) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of negative eigenvalues
            one = fit_laplace(network, fit.likelihood, rule, structure, fit.prior, batches)
            return leave_one_out(one, one, batches, hyper).mean[:, 0] - f

    left_out = (targets - f)[rows].numpy() - np.array(refits)
    full, exact = closed(Full, GGN()), by_hessian(objective, theta, H)
    forms = {
        "full": full,
        "kron": closed(Kron, GGN()),
        "diag": closed(Diag, GGN()),
        "exact Hessian": torch.where(exact.isnan(), full, exact),
        "exact Hessian, clipped": closed(Full, Hessian()),
        "loo_predict()": torch.from_numpy((model.loo_predict() - model.predict(X)) / spread),
    }
    moved = float((f - objective.outputs(start)).square().mean().sqrt() / given[2] ** 0.5)
    negative = int((torch.linalg.eigvalsh(objective.hessian(start)) < 0).sum())
    counts = [str(count) for count in (len(x), len(theta), steps, negative)]
    there = {name: (f + found)[rows].numpy() for name, found in forms.items()}
    there["loo_predict()"] = (model.loo_predict()[rows] - y.mean()) / spread
    truth, offset = (f[rows].numpy() + refits), y.mean() / spread
    judged = [
        [
            path.stem,
            name,
            *_judged(found[rows].numpy(), np.array(refits), left_out),
            float(np.median(np.abs(there[name] - truth) / np.abs(truth + offset))),
        ]
        for name, found in forms.items()
    ]
    return [path.stem, *counts, f"{moved:.2f}", str(len(rows)), str(other)], judged


def _judged(found: np.ndarray, truth: np.ndarray, left_out: np.ndarray) -> list[float]:
    error = np.abs(found - truth)
    relative = np.median(error / np.abs(truth)), np.median(error / np.abs(left_out))
    return [float(value) for value in (*relative, np.corrcoef(found, truth)[0, 1])]


def main() -> None:
    parser = uci_sets.parser(__doc__)
    options = parser.parse_args()
    _, tables = uci_sets.asked(options)
    torch.set_num_threads(1)
    results = [compared(options.data / f"{name}.npz", 5 if options.quick else ROWS) for name in tables]
    print(uci_sets.header("Modes", MODES), *(uci_sets.line(row) for row, _ in results), sep="\n")
    print(uci_sets.header("Closed forms against refits", COLUMNS))
    print(*(uci_sets.line(row) for _, rows in results for row in rows), sep="\n")


if __name__ == "__main__":
    main()
