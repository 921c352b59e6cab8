"""Bayesian optimisation of Branin's function by scikit-optimize: our net against its own Gaussian process.

Both are given to ``skopt.Optimizer`` and nothing else is; the optimiser takes the best of three acquisition functions
and climbs it by the gradients of mean and standard deviation. Ours is one net of 32 units whose noise does not vary,
chosen by the evidence. *to .5*: evaluations until the best value is within .5 of the optimum, .397887.

``pip install scikit-optimize`` and ``python examples/benchmarks/branin.py`` print the table.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterable

import numpy as np

from sklearn_laplace import LaplaceRegressor

PLACE = [(-5.0, 10.0), (0.0, 15.0)]
OPTIMUM, NEAR = 0.397887, 0.5
NET = {
    "hidden_layer_sizes": (32,),
    "n_members": 1,
    "prior_precision": "evidence",
    "sigma_noise": "evidence",
    "likelihood": "gaussian",
}


def branin(x: list[float]) -> float:
    """Three equal minima."""
    a, b = x
    valley = b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6
    return float(valley**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10)


def run(base_estimator: object, seed: int, evaluations: int) -> tuple[np.ndarray, float]:
    """Best value after each evaluation, and the seconds that all took."""
    import skopt  # what --help says needs nothing

    optimiser = skopt.Optimizer(PLACE, base_estimator=base_estimator, random_state=seed)
    values, start = [], time.perf_counter()
    for _ in range(evaluations):
        x = optimiser.ask()
        values.append(branin(x))
        optimiser.tell(x, values[-1])
    return np.minimum.accumulate(values), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="two seeds of 15 evaluations")
    options = parser.parse_args()
    seeds, evaluations = (2, 15) if options.quick else (options.seeds, options.evaluations)
    warnings.simplefilter("ignore")  # optimisers ask for the same point twice, and say so
    print("| seed | best, net | to .5 | s | best, Gaussian process | to .5 | s |\n|---|---|---|---|---|---|---|")
    found = []
    for seed in range(seeds):
        cells: list[float] = []
        for base_estimator in (LaplaceRegressor(**NET, random_state=seed), "GP"):
            best, seconds = run(base_estimator, seed, evaluations)
            near = best < OPTIMUM + NEAR
            cells += [best[-1], 1 + near.argmax() if near.any() else np.inf, seconds]
        found.append(cells)
        print(line(str(seed), cells), flush=True)
    print(line("median", np.median(found, axis=0)))


def line(name: str, cells: Iterable[float]) -> str:
    """A row of the table: a value, evaluations and seconds of each model."""
    return f"| {name} | " + " | ".join(f"{v:.0f}" if k % 3 else f"{v:.4f}" for k, v in enumerate(cells)) + " |"


if __name__ == "__main__":
    main()
