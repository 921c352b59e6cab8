"""How many of the weights have to be random
===========================================

``subset_of_weights`` selects the weights that are random: all weights, those of the last layer, or a subnetwork. A
``Subnetwork`` is a share of the weights. Its weights have the largest marginal ``variance`` in a diagonal posterior
(Daxberger et al. 2021) or the largest ``magnitude``, or are drawn at ``random``. The other weights stay at their
trained values. The curvature of the P random weights is a ``full`` P × P matrix. The prior precision is chosen again
for each subset, by the default rule.

How to read the tables: times are fractions of the training time of one net.

- *fit* is the time to compute the posterior of the trained net, which is read from the cache of ``memory=``.
- *predict* is the prediction time for the held-out rows.
- *kB held* is the size of all tensors in curvature and posterior.
- *gain* is the mean log-likelihood of a held-out row, minus that of the same net without a posterior ("MAP alone"). The
  error is that of this paired difference.

The fit of "MAP alone" is the training itself, which the other fits do not include. The picture shows times, bytes and
gain against the number of random weights.

Output of ``python examples/2_choices/plot_subset.py`` on five splits of diabetes and breast cancer. "all" takes .24 and
.30 of the training time, and 8.7 and 10.5 MB. "last_layer" takes .05 and .06 of it, and .06 and .04 MB. The gains of
"all" are .008 and .015 nats per row. The gains of all choices are within .003 and .008 of each other, with standard
errors of about .006 and .02.
"""

import choice
import matplotlib.pyplot as plt

from sklearn_laplace.options import Subnetwork

RULES = "variance", "magnitude", "random"
SHARES = 0.02, 0.1, 0.3
LABELS = {
    "fit": "fit, share of a training",
    "kB held": "held, kB",
    "gain": "gain, nats a row",
}


def subsets():
    """Return the parameters of each subset, by name."""
    choices = {"all": {}, "last_layer": {"subset_of_weights": "last_layer"}}
    for rule in RULES:
        for share in SHARES:
            chosen = {"subset_of_weights": Subnetwork(rule, share)}
            choices[f"{rule}, {share:.0%}"] = chosen
    return {name: {"hessian_structure": "full", **parameters} for name, parameters in choices.items()}


def draw(printed, columns):
    """Return a figure of each column against the number of random weights, with a row of panels per table."""
    figure, axes = plt.subplots(
        *(len(printed), len(LABELS)), figsize=(12.5, 1.2 + 3.2 * len(printed)), layout="constrained", squeeze=False
    )
    for line, (title, rows) in zip(axes, printed.items(), strict=True):
        for axis, (column, label) in zip(line, LABELS.items(), strict=True):
            place = columns.index(column)
            curves = {rule: [name for name in rows if name.startswith(rule)] for rule in RULES}
            curves |= {name: [name] for name in ("last_layer", "all")}
            for k, (curve, names) in enumerate(curves.items()):
                # shifted a little, because all rules have the same numbers of weights
                apart = 1.07 ** (k - 1) if curve in RULES else 1.0
                sizes = [rows[name][columns.index("weights")] * apart for name in names]
                errors = [rows[name][-1] for name in names] if column == "gain" else None
                style = {"color": choice.COLORS[k] if k < 4 else "#000000", "marker": "os^D*"[k], "label": curve}
                axis.errorbar(sizes, [rows[name][place] for name in names], errors, capsize=3, lw=1.2, ms=6, **style)
            axis.set_xscale("log")
            choice.logarithmic(axis.xaxis)
            axis.set_xlabel("random weights")
            axis.set_ylabel(label)
            if column == "gain":
                axis.axhline(0.0, color="#999999", lw=1)
            else:
                axis.set_yscale("log")
                choice.logarithmic(axis.yaxis)
        line[0].set_title(title, loc="left", fontweight="bold", fontsize=11)
    axes[0, 0].legend(fontsize=9)
    figure.suptitle("Random weights, the same trained net; gain on MAP alone with standard errors")
    return figure


def main():
    run = choice.Run("plot_subset", __doc__)
    columns = {"weights": ".0f", **choice.COLUMNS}
    printed = {}
    for table in run.tables(choice.DIABETES, choice.CANCER):
        results = choice.posteriors(table, subsets(), run.n_splits)
        title = f"{table.name}, {table.n_train} rows"
        reference = results[choice.MAP].likelihood
        printed[title] = {name: [m.weights[0], *m.row(table, reference)] for name, m in results.items()}
        run.table(f"{title}, splits: {run.n_splits}", columns, printed[title])
    run.save(draw(printed, list(columns)))


if __name__ == "__main__":
    main()
