"""Contract of every curvature rule."""

from __future__ import annotations

import itertools

import oracles

from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS

from .dense import DENSE_RULES, FISHER_SEED, N_DRAWS, dense_contribution
from .examples import ALL_KINDS, close, example, to_oracle


def check_curvature(key: str) -> None:
    """The contribution of a batch, as rows or as a matrix, equals the dense matrix of the rule; weights count once."""
    rule = CURVATURES[key]().sampling(N_DRAWS, FISHER_SEED)
    assert rule == CURVATURES[key]().sampling(N_DRAWS, FISHER_SEED), f"{key}: two equal rules"
    assert rule.provides <= {"rows", "layers", "matrix"} and rule.dispersion_power in (1, 2)
    for kind, seed, noisy in itertools.product(ALL_KINDS, (0, 1), (False, True)):
        if noisy and not LIKELIHOODS[kind].takes_known_noise:
            continue
        problem = example(kind, seed, noisy=noisy)
        line, observed = problem.network.linearise(problem.x), problem.observed
        batch = rule.batch(line, problem.likelihood, observed, problem.weights)
        ours, rows = dense_contribution(batch)
        n_columns = rule.n_columns(problem.likelihood, batch.outputs.shape[1])
        assert rows.shape[1] == (n_columns if batch.matrix is None else 0)
        names = problem.network.parameter_names
        data = problem.x, problem.y, problem.weights, problem.noise_variance
        dense = DENSE_RULES[key](kind, problem.module, names, *data)
        close(to_oracle(problem.network, ours), dense, 1e-10, f"{key}, {kind}: the batch's contribution")
        halves = (slice(None, 4), slice(4, None))
        parts = [
            rule.batch(problem.network.linearise(problem.x[s]), problem.likelihood, observed[s], problem.weights[s])
            for s in reversed(halves)
        ]
        close(sum(dense_contribution(part)[0] for part in parts), ours, 1e-12, f"{key}, {kind}: in two batches")
        assert float(rows[problem.weights == 0].abs().sum()) == 0, f"{key}, {kind}: a row of weight zero"
        close(batch.outputs, oracles.outputs(problem.module, problem.x), 1e-12, f"{key}, {kind}: outputs")
