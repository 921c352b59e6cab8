r"""11 · A small net against its Laplace approximation, zoomed out
==============================================================

The data are two classes in the quadrants of the plane (XOR), which no line separates. The net has 32 sigmoid units. The
source (the blog of BayesLaplace.jl, figures 2 and 3) draws the probabilities near the data and far away from them. The
plugin "classifies with full confidence in regions completely scarce of any data"; with the Laplace approximation, the
confidence decreases there. In the linearised net, the logit of a row is Gaussian, and its variance moderates the
probability,

.. math:: p(y = 1 \mid x) \approx \sigma\!\left(\frac{f(x)}{\sqrt{1 + \tfrac{\pi}{8} J(x) P^{-1} J(x)^\top}}\right).
"""

import copy
import warnings

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from torch import nn

from sklearn_laplace import LaplaceClassifier

CLAIMS = {
    "plugin: the median confidence on the border of the window is above .99": (
        lambda m: m["plugin, median confidence on the border"] > 0.99
    ),
    "Laplace: the median confidence on the border is below .9": (
        lambda m: m["Laplace, median confidence on the border"] < 0.9
    ),
    "Laplace: the mean confidence is lower on the border than on the data": (
        lambda m: m["Laplace, mean confidence on the border"] < m["Laplace, mean confidence on the data"]
    ),
    "Laplace and plugin predict the same class everywhere": lambda m: m["points of another class"] == 0,
}
LAMBDA, N_HIDDEN = 0.01, 32
NEAR, FAR = 8.0, 50.0  # half-widths of the two windows


def quadrants(n, seed):
    """Draw n points uniformly in four squares from .5 to 5; label 1 where the coordinates have the same sign."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.5, 5.0, (n, 2)) * rng.choice([-1.0, 1.0], (n, 2))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


def two_clouds(n, seed):
    """Draw n points in two linearly separable squares, as ``toy_data_linear`` of the blog's code does."""
    X, _ = quadrants(n, seed)
    X = np.where(np.arange(n)[:, None] % 2, 1, -1) * np.abs(X)
    return X, (X[:, 0] > 0).astype(int)


def fitted(X, y, activation, trained, prior_precision, seed):
    """Train the source's net under one prior precision, and approximate its posterior under another one."""
    net = nn.Sequential(nn.Linear(2, N_HIDDEN), activation(), nn.Linear(N_HIDDEN, 1))
    return LaplaceClassifier(
        net,
        standardize_X=False,
        likelihood="bernoulli",
        hessian_structure="full",
        map_prior_precision=trained,
        prior_precision=prior_precision,
        random_state=seed,
    ).fit(X, y)


def square(half_width, n):
    """Return a grid of n × n points, and the border of the window with n points per side."""
    side = np.linspace(-half_width, half_width, n)
    grid = np.stack(np.meshgrid(side, side), axis=-1)
    return side, grid, np.concatenate([grid[0], grid[-1], grid[:, 0], grid[:, -1]])


def main():
    run = Experiment("plot_11_mlp_zoomed_out", __doc__, CLAIMS)
    n = 100 if run.quick else 300
    trained = n * LAMBDA**2
    run.choose(
        f"{n} points in the four quadrants; the text of the blog has data that no line separates, its code draws "
        "others",
        f"the blog adds ½ λ² ‖θ‖² to the loss of each row, λ = {LAMBDA}: a prior precision of n λ² = {trained:g} in "
        f"training; and gives λ = {LAMBDA} to the Laplace fit, which the claims use; the table has both and the "
        "evidence",
        "the mode by Gauss–Newton steps, not 200 epochs of Adam; all weights, full Gauss–Newton matrix",
        f"far: the border of the window of ±{FAR:g}",
    )
    X, y = quadrants(n, run.seed)
    clouds = two_clouds(n, run.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fitted(X, y, nn.Sigmoid, trained, LAMBDA, run.seed)
        plugin = copy.deepcopy(model).refit_laplace(link="plugin")
        models = {"plugin": plugin, f"Laplace, prior precision {LAMBDA:g}": model}
        for name, value in (("as in training", trained), ("by evidence", "evidence")):
            models[f"Laplace, {name}"] = copy.deepcopy(model).refit_laplace(prior_precision=value)
        # variants that change the plugin far from the data: units without saturation, linearly separable data
        others = {
            "ReLU units": (X, y, fitted(X, y, nn.ReLU, trained, LAMBDA, run.seed)),
            "two clouds": (
                *(clouds := two_clouds(n, run.seed)),
                fitted(*clouds, nn.Sigmoid, trained, LAMBDA, run.seed),
            ),
        }
    for text in sorted({f"{each.category.__name__}: {each.message}" for each in caught}):
        print(f"the library says: {text}")
    windows = {half: square(half, 31 if run.quick else 121) for half in (NEAR, FAR)}
    variants = {name: (X, y, each) for name, each in models.items()}
    for name, (points, labels, each) in others.items():
        variants[f"{name}, plugin"] = points, labels, copy.deepcopy(each).refit_laplace(link="plugin")
        variants[f"{name}, Laplace"] = points, labels, each
    rows = {}
    for name, (points, labels, each) in variants.items():
        near, far = (each.predict_proba(at).max(axis=1) for at in (points, windows[FAR][2]))
        rows[name] = [near.mean(), far.mean(), np.median(far), each.score(points, labels), each.prior_precision_]
    columns = ["mean on data", "mean far", "median far", "accuracy", "prior precision"]
    run.table("Confidence: probability of the more probable class", columns, rows)
    planes = {
        (half, name): each.predict_proba(grid.reshape(-1, 2))[:, 1].reshape(grid.shape[:2])
        for half, (_, grid, _) in windows.items()
        for name, each in (("plugin", plugin), ("Laplace", model))
    }
    different = sum(np.sum((planes[h, "plugin"] > 0.5) != (planes[h, "Laplace"] > 0.5)) for h in windows)
    figure, axes = plt.subplots(2, 2, figsize=(6.4, 5.6), layout="constrained")
    for axis, ((half, name), plane) in zip(axes.flat, planes.items(), strict=True):
        side = windows[half][0]
        drawn = axis.contourf(side, side, plane, levels=np.linspace(0, 1, 11), cmap="RdBu_r")
        axis.contour(side, side, plane, levels=[0.5], colors="k", linewidths=0.8)
        axis.scatter(*X.T, c=y, cmap="RdBu_r", edgecolors="w", linewidths=0.3, s=16 if half == NEAR else 4)
        axis.set(title=f"{name}, window ±{half:g}", xlabel="feature 1", ylabel="feature 2", aspect="equal")
    figure.colorbar(drawn, ax=axes, label="probability of class 1; line at .5", shrink=0.8)
    run.save(figure)
    first, second = list(rows.values())[:2]
    run.judge(
        {
            "plugin, median confidence on the border": first[2],
            "Laplace, median confidence on the border": second[2],
            "plugin, mean confidence on the border": first[1],
            "Laplace, mean confidence on the border": second[1],
            "plugin, mean confidence on the data": first[0],
            "Laplace, mean confidence on the data": second[0],
            "Laplace by evidence, median confidence on the border": rows["Laplace, by evidence"][2],
            "points of another class": different,
            "accuracy on the training data": second[3],
            "ReLU units: plugin, median confidence on the border": rows["ReLU units, plugin"][2],
            "ReLU units: Laplace, median confidence on the border": rows["ReLU units, Laplace"][2],
            "two clouds: plugin, median confidence on the border": rows["two clouds, plugin"][2],
            "two clouds: Laplace, median confidence on the border": rows["two clouds, Laplace"][2],
        },
        why=(
            "sigmoid units saturate, so the logit of the net is bounded. Far away, the units cancel in most "
            "directions (the stripes of the lower left picture). The median confidence of the plugin on the border is "
            f"{first[2]:.2f}. With ReLU units, whose logit grows with the distance, it is "
            f"{rows['ReLU units, plugin'][2]:.3f}. It is {rows['two clouds, plugin'][2]:.3f} with sigmoid units on two "
            "linearly separable clouds, which the blog's code draws for its figures. With Laplace, it is moderate in "
            f"all three cases: {second[2]:.2f}, {rows['ReLU units, Laplace'][2]:.2f}, "
            f"{rows['two clouds, Laplace'][2]:.2f}"
        ),
    )


if __name__ == "__main__":
    main()
