"""Bayesian optimisation of Branin's function: a Laplace net against the Gaussian process of scikit-optimize.

Both models are passed to ``skopt.Optimizer`` with no other settings. The optimiser selects one of three acquisition
functions and maximises it with the gradients of mean and standard deviation. The Laplace regressor is one net of 32
units with a constant noise level, chosen by the evidence. *to .5* is the number of evaluations until the best value is
within .5 of the optimum, .397887.

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
    """Branin's function, which has three equal minima."""
    a, b = x
    valley = b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6
    return float(valley**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10)


def run(base_estimator: object, seed: int, evaluations: int) -> tuple[np.ndarray, float]:
    """Best value after each evaluation, and the total seconds."""
    import skopt  # imported here, so that --help needs no package

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
    warnings.simplefilter("ignore")  # optimisers may ask for the same point twice, with a warning
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
    """Row of the table: best value, evaluations and seconds of each model."""
    return f"| {name} | " + " | ".join(f"{v:.0f}" if k % 3 else f"{v:.4f}" for k, v in enumerate(cells)) + " |"


if __name__ == "__main__":
    main()
