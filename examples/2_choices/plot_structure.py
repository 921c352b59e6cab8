r"""What the structure of the curvature costs, and what it is worth
=================================================================

The posterior over P weights is a normal distribution with the precision :math:`H + \delta I`. ``hessian_structure``
determines how the curvature H of N rows with K outputs is stored:

- exactly: ``full``, a P × P matrix, or ``functional``, which stores an NK × NK matrix for the same posterior;
- ``block_diagonal``: a dense block for each layer;
- ``kron``: Kronecker factors for each layer; ``ekfac`` adds second moments in their eigenbasis, and ``low_rank_diag``
  adds the exact diagonal;
- ``low_rank``: the leading eigenpairs;
- ``diag``: the diagonal.

Each structure is applied to the same trained net. The prior precision is chosen again for each structure, by the
default rule.

How to read the tables: times are fractions of the training time of one net.

- *fit* is the time to compute the posterior of the trained net, which is read from the cache of ``memory=``.
- *predict* is the prediction time for the held-out rows.
- *kB held* is the size of all tensors in curvature and posterior.
- *gain* is the mean log-likelihood of a held-out row, minus that of the same net without a posterior, with the standard
  error of this paired difference. "MAP alone" has no posterior and uses the net's own probabilities. For regression, it
  uses the net's mean with the standard deviation of the training residuals.

The fit of "MAP alone" is the training itself, which the other fits do not include.

Output of ``python examples/2_choices/plot_structure.py`` on five splits. On diabetes and breast cancer, the exact
posterior in its dual form ("functional") takes .06 and .09 of the training time. Training has already computed that
curvature. "diag" takes .05 and .04. All gains are within .001 and .003 of each other, with standard errors of .006 and
.02. On ten digits, "full" takes 7.6 times the training time and 55 MB, and "kron" takes .17 of it and .1 MB. There, all
structures are about .008 nats per row worse than MAP alone.
"""

import choice

STRUCTURES = "full", "functional", "block_diagonal", "ekfac", "kron", "low_rank_diag", "low_rank", "diag"
LABELS = {
    "fit": "fit, share of a training",
    "predict": "predict, share of a training",
    "kB held": "held, kB",
    "gain": "gain in log-likelihood, nats a row",
}


def main():
    run = choice.Run("plot_structure", __doc__)
    structures = {name: {"hessian_structure": name} for name in STRUCTURES}
    printed = {}
    for table in run.tables(choice.DIABETES, choice.CANCER, choice.DIGITS):
        results = choice.posteriors(table, structures, run.n_splits)
        title = f"{table.name}, {table.n_train} rows, {results['full'].weights[0]:.0f} weights"
        printed[title] = {name: found.row(table, results[choice.MAP].likelihood) for name, found in results.items()}
        run.table(f"{title}, splits: {run.n_splits}", choice.COLUMNS, printed[title])
    run.save(choice.dots(printed, list(choice.COLUMNS), LABELS, "Structures of the curvature, the same trained net"))


if __name__ == "__main__":
    main()
