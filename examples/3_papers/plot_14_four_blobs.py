r"""14 · Four classes in four blobs: probit against plugin
======================================================

The data are a blob of points in each quadrant; the net has three hidden units. The source (the multi-class example of
LaplaceRedux.jl) draws the probability of each class in the plane, for the plugin and for the Laplace approximation. The
predicted regions are the same, but off the data, Laplace is less confident. The logits of a row are Gaussian with mean
f and covariance C. The probit approximation for several classes (MacKay 1992; Lu et al. 2020) uses its diagonal,

.. math:: p(y = c \mid x) \approx \mathrm{softmax}_c\!\left(\frac{f_c(x)}{\sqrt{1 + \tfrac{\pi}{8} C_{cc}(x)}}\right).
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from scipy.spatial.distance import cdist
from torch import nn

from sklearn_laplace import LaplaceClassifier

CLAIMS = {
    "off the data, Laplace is less confident than the plugin by more than .05 on average": (
        lambda m: m["plugin, confidence off the data"] - m["Laplace, confidence off the data"] > 0.05
    ),
    "off the data, the largest probability of each class is lower with Laplace than with the plugin": (
        lambda m: m["classes whose largest probability off the data is lower"] == 4
    ),
    "the difference in confidence is larger off the data than on the data": (
        lambda m: (
            m["plugin, confidence off the data"] - m["Laplace, confidence off the data"]
            > m["plugin, confidence on the data"] - m["Laplace, confidence on the data"]
        )
    ),
}
CENTRE, SPREAD, N_HIDDEN = 3.0, 0.7, 3
HALF_WIDTH, AWAY = 10.0, 3.0  # half-width of the window; rows off the data are farther than this from every point


def blobs(n, seed):
    """Draw n points from four normal blobs, one per quadrant, with the quadrant as label."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 4
    centres = CENTRE * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    return centres[y] + SPREAD * rng.normal(size=(n, 2)), y


def main():
    run = Experiment("plot_14_four_blobs", __doc__, CLAIMS)
    n = 60 if run.quick else 200
    run.choose(
        f"{n} points, blobs of standard deviation {SPREAD} around (±{CENTRE:g}, ±{CENTRE:g})",
        f"three sigmoid units, one logit for each class; off the data: further than {AWAY:g} from every point, in the "
        f"window of ±{HALF_WIDTH:g}",
        "prior precision by evidence, also used for training, since the source optimises it; all weights, "
        "full Gauss–Newton matrix",
    )
    X, y = blobs(n, run.seed)
    net = nn.Sequential(nn.Linear(2, N_HIDDEN), nn.Sigmoid(), nn.Linear(N_HIDDEN, 4))
    model = LaplaceClassifier(
        net,
        standardize_X=False,
        hessian_structure="full",
        prior_precision="evidence",
        link="probit",
        random_state=run.seed,
    )
    model.fit(X, y)
    plugin = copy.deepcopy(model).refit_laplace(link="plugin")
    side = np.linspace(-HALF_WIDTH, HALF_WIDTH, 41 if run.quick else 121)
    grid = np.stack(np.meshgrid(side, side), axis=-1)
    points = grid.reshape(-1, 2)
    off = cdist(points, X).min(axis=1) > AWAY
    found = {"plugin": plugin.predict_proba(points), "Laplace (probit)": model.predict_proba(points)}
    on_data = {"plugin": plugin.predict_proba(X), "Laplace (probit)": model.predict_proba(X)}
    of_class = found["plugin"][off].argmax(axis=1)
    largest = {name: [p[off][of_class == c, c].max() for c in range(4)] for name, p in found.items()}
    rows = {
        name: [on_data[name].max(axis=1).mean(), p[off].max(axis=1).mean(), *largest[name]] for name, p in found.items()
    }
    columns = ["on the data", "off the data", *(f"largest, class {c}" for c in range(4))]
    run.table("Confidence: probability of the most probable class", columns, rows)
    others = np.sum(found["plugin"].argmax(axis=1) != found["Laplace (probit)"].argmax(axis=1))
    figure, axes = plt.subplots(2, 4, figsize=(10.5, 5.3), layout="constrained", sharex=True, sharey=True)
    for axis, (name, c) in zip(axes.flat, [(name, c) for name in found for c in range(4)], strict=True):
        plane = found[name][:, c].reshape(grid.shape[:2])
        drawn = axis.contourf(side, side, plane, levels=np.linspace(0, 1, 11), cmap="viridis")
        axis.scatter(*X.T, c=np.where(y == c, "w", "0.5"), edgecolors="k", linewidths=0.3, s=10)
        axis.set(title=f"{name}, class {c}", aspect="equal")
    for axis in axes[:, 0]:
        axis.set_ylabel("feature 2")
    for axis in axes[1]:
        axis.set_xlabel("feature 1")
    figure.colorbar(drawn, ax=axes, label="probability of the class (its points are white)", shrink=0.8)
    run.save(figure)
    run.judge(
        {
            "plugin, confidence on the data": rows["plugin"][0],
            "Laplace, confidence on the data": rows["Laplace (probit)"][0],
            "plugin, confidence off the data": rows["plugin"][1],
            "Laplace, confidence off the data": rows["Laplace (probit)"][1],
            "classes whose largest probability off the data is lower": sum(
                lower < upper for lower, upper in zip(largest["Laplace (probit)"], largest["plugin"], strict=True)
            ),
            "share of the window where the predicted class differs": others / len(points),
            "prior precision by evidence": model.prior_precision_,
            "accuracy on the training data": model.score(X, y),
        }
    )


if __name__ == "__main__":
    main()
