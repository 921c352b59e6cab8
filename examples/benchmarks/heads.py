"""Noise that varies with the inputs: four ways to model it, including the default of the regressor.

- one noise: ``LaplaceRegressor(likelihood="gaussian")``.
- default: a second net for the log variance, trained on held-out errors.
- mean and log variance: one net with two heads, trained to the mode of its posterior (Nix & Weigend 1994). The evidence
  chooses the prior precision during training. The Laplace approximation covers both heads, and predictions integrate
  over both.
- natural parameters: the same with the heads μ/σ² and log 1/σ². Immer et al. (2023) report that natural parameters
  train better with first-order optimisers. Here, Gauss–Newton steps with the Fisher information are used.

The table has the log-likelihood per row in nats, the RMSE in the units of y, and the log evidence per row if the model
has one. The scored rows are a ninth of the training parts of the UCI tables. Run
``python examples/benchmarks/heads.py --data DIR --splits 3``; ``uci_sets.py`` describes DIR.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import uci_sets
from torch import Tensor

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.distributions import NormalMixture
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.evidence import log_evidence
from sklearn_laplace.laplace.latent import LatentGaussian, Predictive
from sklearn_laplace.laplace.likelihoods._base import Likelihood, Link
from sklearn_laplace.laplace.mode import DataLoss, Problem, alternate, refine
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.predictives import GLM
from sklearn_laplace.laplace.structures import Full
from sklearn_laplace.nets import MLP

COLUMNS = "table", "noise", "log-likelihood", "± s.e.", "RMSE", "evidence a row"
STEPS, LAST_STEPS, NODES = 60, 50, 15
LEAST, LARGEST = math.log(1e-8), math.log(1e4)


class MeanAndLogVariance(Likelihood):
    """Outputs (μ, s), σ² = e^s; Λ = diag(e^−s, ½)."""

    has_dispersion: ClassVar[bool] = False

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, s = self.mean_and_log_variance(outputs)
        return 0.5 * ((targets - mean).square() * (-s).exp() + s).sum(-1)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, s = self.mean_and_log_variance(outputs)
        scaled = (mean - targets) * (-s).exp()
        return torch.cat([scaled, 0.5 * (1 - scaled * (mean - targets))], 1)

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        _, s = self.mean_and_log_variance(outputs)
        return torch.diag_embed(torch.cat([(-0.5 * s).exp(), torch.full_like(s, math.sqrt(0.5))], 1))

    @staticmethod
    def mean_and_log_variance(outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, s = outputs.chunk(2, 1)
        return mean, s.clamp(LEAST, LARGEST)

    def log_normaliser(self, dispersion: float, n_outputs: int) -> float:
        return 0.25 * n_outputs * math.log(2 * math.pi)

    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None) -> Predictive:
        raise NotImplementedError


class Natural(MeanAndLogVariance):
    """Outputs (η, t), μ = η e^−t, σ² = e^−t; Λ the covariance of the sufficient statistics."""

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, s = self.mean_and_log_variance(outputs)
        return torch.cat([mean - targets, 0.5 * ((-s).exp() * (targets.square() - mean.square()) - 1)], 1)

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        mean, s = self.mean_and_log_variance(outputs)
        first = torch.cat([(0.5 * s).exp(), torch.zeros_like(s)], 1)
        second = torch.cat([-mean * (-0.5 * s).exp(), torch.full_like(s, math.sqrt(0.5))], 1)
        return torch.stack([first, second], 1)

    @staticmethod
    def mean_and_log_variance(outputs: Tensor) -> tuple[Tensor, Tensor]:
        eta, t = outputs.chunk(2, 1)
        t = t.clamp(-LARGEST, -LEAST)
        return eta * (-t).exp(), -t


def two_heads(likelihood: MeanAndLogVariance) -> Callable[..., tuple[float, float, float]]:
    def judged(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, y_new: np.ndarray, seed: int) -> tuple[float, ...]:
        mean, scale = y.mean(), y.std()
        x, target = torch.from_numpy(X), torch.from_numpy((y - mean) / scale)[:, None]
        spread = np.where(X.std(0) == 0, 1.0, X.std(0))
        net = MLP(X.shape[1], 2, input_mean=X.mean(0).tolist(), input_scale=spread.tolist(), seed=seed).double()
        with torch.no_grad():
            net[-1].weight[1] = 0.0  # initially constant noise
        network, rows = trace(net, x), [(x, target, torch.ones(len(x)).double())]
        prior = network.scalar_prior()
        problem = Problem(
            lambda network: fit_laplace(network, likelihood, GGN(), Full, prior, rows),
            lambda network: DataLoss(network, likelihood, rows),
        )
        start = problem.linearise(network), Hyper(torch.ones(1).double())
        found = alternate(problem, *start, free_prior=True, update_dispersion=lambda _, hyper: hyper, max_steps=STEPS)
        found = refine(problem, found.fit, found.hyper, LAST_STEPS, found.damping)
        posterior = found.fit.posterior(found.hyper)
        latent = GLM().latent(found.fit.network, posterior, torch.from_numpy(X_new))
        mixture = integrated(likelihood, latent, mean, scale)
        error = float(np.sqrt(np.mean((mixture.mean() - y_new) ** 2)))
        evidence = log_evidence(found.fit, found.hyper, posterior) / len(y) - math.log(scale)
        return float(mixture.logpdf(y_new).mean()), error, evidence

    return judged


def integrated(likelihood: MeanAndLogVariance, latent: LatentGaussian, mean: float, scale: float) -> NormalMixture:
    """Predictive distribution, with the second head integrated by quadrature; given this head, y is normal."""
    roots, weights = np.polynomial.hermite_e.hermegauss(NODES)
    first, cross = latent.covariance[:, 0, 0], latent.covariance[:, 0, 1]
    second = latent.covariance[:, 1, 1].clamp_min(1e-300)
    away = second.sqrt()[:, None] * torch.from_numpy(roots)
    heads = torch.stack([latent.mean[:, :1] + (cross / second)[:, None] * away, latent.mean[:, 1:] + away], -1)
    means, logs = likelihood.mean_and_log_variance(heads.reshape(-1, 2))
    rest = (first - cross.square() / second).clamp_min(0.0)[:, None]
    means, logs = means.reshape(away.shape), logs.reshape(away.shape)
    epistemic = rest * (2 * logs).exp() if isinstance(likelihood, Natural) else rest
    stds = (epistemic + logs.exp()).sqrt()
    return NormalMixture(mean + scale * means.numpy(), scale * stds.numpy(), weights / weights.sum())


def estimator(**options: str) -> Callable[..., tuple[float, float, float]]:
    def judged(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, y_new: np.ndarray, seed: int) -> tuple[float, ...]:
        model = LaplaceRegressor(random_state=seed, **options).fit(X, y)
        error = float(np.sqrt(np.mean((model.predict(X_new) - y_new) ** 2)))
        evidence = model.log_marginal_likelihood_value_ / len(y)
        return float(model.log_predictive_density(X_new, y_new).mean()), error, evidence

    return judged


WAYS = {
    "one noise": estimator(likelihood="gaussian"),
    "default": estimator(),
    "mean and log variance": two_heads(MeanAndLogVariance()),
    "natural parameters": two_heads(Natural()),
}


def main() -> None:
    options = uci_sets.parser(__doc__, splits=3).parse_args()
    splits, tables = uci_sets.asked(options)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(uci_sets.header(f"{splits} splits, {uci_sets.part_judged(options.test)}", COLUMNS), flush=True)
    for name in tables:
        for way, judged in WAYS.items():
            path = Path(options.data) / f"{name}.npz"
            found = np.array([judged(*uci_sets.parts(path, k, options.test), k) for k in range(splits)])
            error = found[:, 0].std(ddof=1) / splits**0.5 if splits > 1 else np.nan
            density, rmse, evidence = found.mean(0)
            print(uci_sets.line([name, way, density, error, rmse, evidence]), flush=True)


if __name__ == "__main__":
    main()
