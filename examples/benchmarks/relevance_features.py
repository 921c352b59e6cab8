r"""A member in closed form in place of the net with exact steps: random features of columns weighted by relevance.

``python examples/benchmarks/relevance_features.py --data DIR`` compares three fits on rows held out of the training
parts: the default, its members alone, and these members with a net of one hidden layer whose weights are random,

.. math:: f(x) = c + \frac{1}{\sqrt R} \sum_r w_r\, a\Big(\frac{s}{\sqrt D} \sum_k m_k v_{rk} z_k + s b_r\Big),
          \qquad v_{rk}, b_r \sim N(0, 1), \quad w_r, c \sim N(0, 1/\delta),

with standardised columns z and the SiLU activation a. The posterior of w and c is exact, and evidence and leave-one-out
have closed forms. The relevance :math:`m_k` is the root mean square of :math:`\partial f/\partial z_k` over the rows
for the f of the round before, as in recursive feature machines (Radhakrishnan et al. 2024). The round of largest
evidence is kept. With few rows, its errors of left-out rows are too small, because these rows have taken part in the
relevance. So the weight of the member is at most ``MOST_SHARE``.

This is a trial, see docs/decisions.md: it replaces private functions of the package. ``uci_sets.py`` and
``quality_sets.py`` describe DIR.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import quality_sets
import torch
import uci_sets
from torch import Tensor

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._approximation.choose import SelectionState
from sklearn_laplace._ensemble import fit as package
from sklearn_laplace._ensemble.ensemble import mixture_of_kinds
from sklearn_laplace._ensemble.parts import LEAST_EXACT
from sklearn_laplace._ensemble.weights import of_kinds
from sklearn_laplace._host.epochs import finish
from sklearn_laplace._host.net import build_net, initialise
from sklearn_laplace._host.rows import Sizes
from sklearn_laplace._training.built_in import built_in_net
from sklearn_laplace._training.plan import MapResult
from sklearn_laplace.laplace import fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.fit import Hyper, LaplaceFit
from sklearn_laplace.laplace.leave_one_out import leave_one_out
from sklearn_laplace.laplace.likelihoods._base import without_noise
from sklearn_laplace.laplace.mode.problem import Mode
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.selection import HeldOutErrors
from sklearn_laplace.laplace.structures import Full, Functional
from sklearn_laplace.laplace.subsets import LastLayer

CASES = (
    *(("boston", 60), ("concrete", 90), ("yacht", 60), ("california_housing", 90), ("diamonds", 70)),
    *(("bike_sharing_hourly", 80), ("boston", 0), ("concrete", 0), ("california_housing", 300)),
    *(("bike_sharing_hourly", 300), ("diamonds", 600)),
)
"""Table and number of rows, 0 for all of a training part."""
N_FEATURES, STEEPNESS, ROUNDS, LEAST_RELEVANCE, MOST_SHARE = 256, 2.0, 5, 0.01, 0.5
RIDGES = torch.logspace(-7, 5, 73, dtype=torch.float64)
GAIN = 1.0
"""Gain of the log evidence, in nats, for which a later round is kept."""
MOST_SCORED = 1500


def parts(folder: Path, name: str, n_rows: int, split: int) -> tuple[Any, ...]:
    path = folder / "uci_regression" / f"{name}.npz"
    if path.exists():
        X, y, X_new, y_new = uci_sets.parts(path, split, test=False)
        X, X_new = pd.DataFrame(X).rename(columns=str), pd.DataFrame(X_new).rename(columns=str)
    else:
        X, y, X_new, y_new = quality_sets.table_parts(folder / "tables" / f"{name}.csv.gz", split, False, None)
    kept = np.random.default_rng(split).permutation(len(y))[: n_rows or len(y)]
    return X.iloc[kept].reset_index(drop=True), y[kept], X_new[:MOST_SCORED], y_new[:MOST_SCORED]


def of_largest_evidence(fit: LaplaceFit, y: Tensor, noise: Tensor, weights: Tensor) -> tuple[float, Hyper]:
    """Log evidence of a linear model whose weights are zero, up to a constant, and its hyperparameters."""
    basis, freedom = fit.curvature.eigenbasis(), fit.total_weight * fit.n_outputs
    assert basis is not None
    ridge, total = RIDGES[:, None], weights @ (y.square() / noise).sum(1)
    squares = total - (basis.vector(fit.gradient).square() / (basis.values + ridge)).sum(1)
    level = (squares / freedom).clamp(*fit.likelihood.dispersion_bounds)
    evidence = -0.5 * (freedom * level.log() + squares / level + (1 + basis.values / ridge).log().sum(1))
    best = int(evidence.argmax())
    return float(evidence[best]), Hyper(ridge[best] / level[best], float(level[best]))


def fitted_features(request: Any) -> tuple[MapResult, SelectionState, HeldOutErrors]:
    """Fit of the member, for columns of numbers."""
    options, data = request.options_for_rows(), request.data
    rows, likelihood = data.training_rows(options.dtype, options.device, built_in=True), options.likelihood
    shape = {"hidden_layer_sizes": (N_FEATURES,), "activation": "silu", "n_bins": None}
    kind, arguments = built_in_net({**request.parameters, **shape}, data, likelihood, request.seeds[0])
    training: dict[str, Any] = {"max_epochs": None, "lr": None, "batch_size": None, "seed": 0, "verbose": 0}
    net = build_net(kind, arguments, likelihood, Sizes.of(rows), **training)
    initialise(net, rows.inputs[:2], rows.weights.dtype, Sizes.of(rows))
    module, generator = net.module_, torch.Generator().manual_seed(request.seeds[0])
    layers = [layer for layer in (module.first, *module.embeddings) if layer is not None]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        draws = [STEEPNESS * torch.randn(layer.weight.shape, generator=generator).double() for layer in layers]
        layers[0].bias.copy_(STEEPNESS * torch.randn(N_FEATURES, generator=generator).double())
        codes = getattr(module, "codes", ())
        columns = rows.inputs.index_select(1, module.categorical).unbind(1)
        inputs = [module.numbers(rows.inputs) * module.factor] if module.first is not None else []
        inputs += [code(column, rows.weights) for code, column in zip(codes, columns, strict=True)]
    n_inputs = sum(draw.shape[1] for draw in draws)
    least = min(max(LEAST_RELEVANCE, n_inputs / float(rows.weights.sum())), 1.0)
    (y, noise), chunks = without_noise(rows.observed.double(), rows.n_outputs), rows.chunks(512)
    relevance, best = [torch.ones(draw.shape[1], dtype=torch.float64) for draw in draws], None
    for _ in range(ROUNDS):
        with torch.no_grad():
            for layer, draw, factor in zip(layers, draws, relevance, strict=True):
                layer.weight.copy_(draw * factor)
        network = LastLayer().of(trace(module, rows.inputs), rows.inputs)
        structure = Functional if len(y) < network.n_parameters else Full
        fit = fit_laplace(network, likelihood, GGN(), structure, network.scalar_prior(), chunks)
        evidence, hyper = of_largest_evidence(fit, y, noise, rows.weights.double())
        mode = fit.theta - fit.posterior(hyper).solve(fit.objective_gradient(hyper))
        fit = fit_laplace(network.with_parameters(mode), likelihood, GGN(), structure, fit.prior, chunks)
        if best is None or evidence > best[0] + GAIN:
            best = evidence, fit, hyper
        with torch.no_grad():
            hidden = layers[0].bias + sum(x @ layer.weight.mT for x, layer in zip(inputs, layers, strict=True))
            weight = next(tensor for tensor in network.tensors(mode).values() if tensor.ndim == 2)[0]
            slope = torch.ops.aten.silu_backward(weight.expand_as(hidden).contiguous(), hidden)
            squares = [rows.weights @ (slope @ layer.weight).square() for layer in layers]
        if not float(mean := torch.cat(squares).mean()) > 0:
            break
        relevance = [(square / mean * (1 - least) + least).sqrt() for square in squares]
    assert best is not None
    _, fit, hyper = best
    latent = leave_one_out(fit, fit, chunks, hyper)
    errors = HeldOutErrors(y - latent.mean, latent.variance, noise, rows.weights.double())
    origin = SelectionState(hyper, fit.prior.names, fit.network.parameter_names, options.as_trained)
    return MapResult(finish(net, fit.network), Mode(fit, hyper, 0), [], 0, True, rows.inputs.dtype), origin, errors


def with_features(part: Any, request: Any, n_stages: int, task: Any) -> Any:
    """In place of ``_with_exact_net``."""
    model = part.members[0].noise_model
    request = request if model is None else request.under_noise(model)
    trained, origin, errors = fitted_features(request)
    member = package._member(request, trained, trained.mode.fit, trained.mode.hyper, origin, model)
    of_rows = part.densities.of_net(errors, member.hyper.dispersion, part.rows)
    shares, factor = of_kinds([of_rows, part.densities], request.data.weights[part.rows])
    share = min(max(float(shares[0]), LEAST_EXACT), MOST_SHARE)
    weights = np.concatenate([[share], (1 - share) * part.weights])
    return mixture_of_kinds(request, [[member], part.members], weights, factor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the first table only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    usual, affords, rows = package._with_exact_net, package.affords_exact_net, []
    for name, n_rows in CASES[:1] if arguments.quick else CASES:
        for split in range(arguments.splits):
            X, y, X_new, y_new = parts(arguments.data, name, n_rows, split)
            for fit in ("default", "members alone", "features"):
                package._with_exact_net = with_features if fit == "features" else usual
                package.affords_exact_net = affords if fit != "members alone" else (lambda *of_fit: False)
                begun = time.process_time()
                model = LaplaceRegressor(random_state=split).fit(X, y)
                seconds, error = time.process_time() - begun, np.sqrt(np.mean((model.predict(X_new) - y_new) ** 2))
                density = model.predict_dist(X_new).logpdf(y_new).mean()
                share = float(model.member_weights_[0]) if fit != "members alone" else 0.0
                rows.append((name, len(y), fit, density, error, seconds, share))
            print(*(f"{x:.3f}" if isinstance(x, float) else x for row in rows[-3:] for x in row), flush=True)
    columns = ["table", "rows", "fit", "log-likelihood", "RMSE", "processor s", "weight"]
    scores = pd.DataFrame(rows, columns=columns).groupby(["table", "rows", "fit"], sort=False).mean().unstack("fit")
    for column in ("log-likelihood", "RMSE"):
        default = scores[column, "default"]
        for fit in ("members alone", "features"):
            change = scores[column, fit] - default if column != "RMSE" else scores[column, fit] / default
            scores[f"change of {column}", fit] = change
    print(scores.round(3).to_string())
    print(scores.mean().round(3).to_string())


if __name__ == "__main__":
    main()
