r"""16 · A mixture weighted by evidence, and active learning
==========================================================

This script tests two suggestions from the last section of Ritter, Botev & Barber (2018), who do not test them. First:
"The model evidence could further be used to perform Bayesian model averaging on ensembles of neural networks". Four
nets from different initial weights, each with its own Laplace approximation, form a mixture,

.. math:: p(y \mid x) = \sum_k w_k\, p_k(y \mid x), \qquad
    w_k \propto e^{\log p(D \mid k)} \quad\text{or}\quad w = \arg\max \sum_n \log \sum_k w_k\, p_k(y_n \mid D_{-n}),

with weights by evidence or by stacking on leave-one-out densities (Yao et al. 2018). The mixture is compared with one
net on held-out rows. Second: "A challenging application would be active learning". After 20 random labels, the next
labels are requested where the epistemic standard deviation is largest. Within a batch, rows already chosen are added
with their prediction as the label (``partial_fit``), so that the next rows lie elsewhere. Random choices from the same
pool are the baseline.
"""

import copy
import tempfile
import warnings

import matplotlib.pyplot as plt
import numpy as np
from experiment import Experiment
from scipy.stats import spearmanr
from sklearn.datasets import load_diabetes, make_friedman1

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.errors import BoundWarning, InterpolationWarning, ModeWarning, WeakPriorWarning
from sklearn_laplace.options import Members

TASKS = ("Friedman", "diabetes")
WEIGHTINGS = ("evidence", "loo")
SCORES = "RMSE", "log-likelihood"
RANKS, FOUND, EDGE = (
    "rank correlation of epistemic std and error",
    "noise std found",
    "distance of chosen rows from 0.5",
)
CURVES = *SCORES, RANKS, FOUND, EDGE
START, BATCH = 20, 4
APART = "log evidence between nets, largest minus smallest, nats"
CORRELATION = "correlation of evidence and held-out log-likelihood between nets"
DISAGREEMENT = "std between nets over that of the noise"
OF_SMALL_DATA = BoundWarning, InterpolationWarning, ModeWarning, WeakPriorWarning
"""Warnings about small data, which are expected here."""


def clearly(gain):
    """Return the condition that the mean of paired differences exceeds zero by more than two standard errors."""
    return lambda m: m[f"{gain}, mean"] > 2 * m[f"{gain}, standard error"]


CLAIMS = {
    f"{task}: the mixture weighted by {weighting} has a higher log-likelihood than one net": (
        clearly(f"{task}, {weighting}: gain")
    )
    for task in TASKS
    for weighting in WEIGHTINGS
} | {
    f"active learning has {better} than random choices, on average over the curve": clearly(f"active, {score}: gain")
    for score, better in zip(SCORES, ("a smaller log RMSE", "a larger log-likelihood"), strict=True)
}


def net(quick, n_members=1, **options):
    """Return an unfitted estimator with prior and noise chosen by the evidence, as the source suggests."""
    return LaplaceRegressor(
        hidden_layer_sizes=(3 if quick else 20,),
        likelihood="gaussian",
        prior_precision=1.0 if quick else "evidence",  # takes a third of the time
        sigma_noise="evidence",
        n_members=n_members,
        **options,
    )


def parts(task, seed, quick):
    """Return training and test rows."""
    if task == "Friedman":
        n = 40 if quick else 100
        X, y = make_friedman1(n + 1000, n_features=10, noise=1.0, random_state=seed)
        return X[:n], y[:n], X[n:], y[n:]
    X, y = load_diabetes(return_X_y=True)
    order, n = np.random.default_rng(seed).permutation(len(y)), 40 if quick else 200
    return X[order[:n]], y[order[:n]], X[order[n:]], y[order[n:]]


def mixtures(task, seed, quick):
    """Return the mean log density of new rows under single nets and mixtures, and facts about the members."""
    X, y, X_new, y_new = parts(task, seed, quick)
    found, effective = {}, {}
    with tempfile.TemporaryDirectory() as folder:  # the weightings share the trained nets
        for weighting in ("uniform", *WEIGHTINGS):
            options = {"memory": folder, "random_state": seed}
            model = net(quick, Members(2 if quick else 4, weighting), **options).fit(X, y)
            found[f"mixture, {weighting}"] = model.log_predictive_density(X_new, y_new).mean()
            effective[weighting] = 1 / np.sum(model.member_weights_**2)
    alone = np.array([member.log_predictive_density(X_new, y_new).mean() for member in model.members_])
    evidences = np.array([member.log_marginal_likelihood_value_ for member in model.members_])
    found |= {"one net": alone[0], "best by evidence": alone[np.argmax(evidences)], "nets, mean": alone.mean()}
    spread = np.std([member.predict(X_new) for member in model.members_], axis=0)
    members = {
        "alone": alone - alone.mean(),
        "evidences": evidences - evidences.mean(),
        "disagreement": np.mean(spread) / model.sigma_noise_,
    }
    return found, effective | members


def acquired(model, pool, n):
    """Return positions in the pool of the next n rows to label, each with the largest std given the rows before it."""
    known = {"prior_precision": model.prior_precision_, "sigma_noise": model.sigma_noise_}
    model = copy.deepcopy(model).refit_laplace(**known)  # not selected again after each row
    chosen = []
    for _ in range(n):
        spread = model.predict_std(pool, kind="epistemic")
        spread[chosen] = -1.0
        chosen.append(int(np.argmax(spread)))
        row = pool[chosen[-1:]]
        model.partial_fit(row, model.predict(row))
    return chosen


def curves(seed, n_rounds, quick):
    """Return values of ``CURVES`` on new rows after each round (n_rounds + 1, 5), for active and random choices."""
    X, y = make_friedman1(1500, n_features=5, noise=1.0, random_state=seed)
    pool, X_new, y_new = X[: 100 if quick else 500], X[500:], y[500:]
    rng = np.random.default_rng(seed)
    first = rng.permutation(len(pool))[:START].tolist()

    def scored(model):
        error = np.abs(model.predict(X_new) - y_new)
        spread = model.predict_std(X_new, kind="epistemic")
        ranks = spearmanr(spread, error).statistic if np.ptp(spread) > 0 else 0.0  # constant without signal
        edge = np.abs(pool[labelled[START:]] - 0.5).mean() if len(labelled) > START else np.nan
        log_likelihood = model.log_predictive_density(X_new, y_new).mean()
        return np.sqrt(np.mean(error**2)), log_likelihood, ranks, model.sigma_noise_, edge

    results, at_first = {}, net(quick, random_state=seed).fit(pool[first], y[first])
    for strategy in ("active", "random"):
        labelled, model = list(first), at_first
        scores = [scored(model)]
        for _ in range(n_rounds):
            rest = np.setdiff1d(np.arange(len(pool)), labelled)
            places = acquired(model, pool[rest], BATCH) if strategy == "active" else rng.permutation(len(rest))[:BATCH]
            labelled += rest[places].tolist()
            model = net(quick, random_state=seed).fit(pool[labelled], y[labelled])
            scores.append(scored(model))
        results[strategy] = np.array(scores)
    return results


def mean_and_error(values):
    """Return the mean of independent values, and its standard error."""
    return np.mean(values), np.std(values, ddof=1) / len(values) ** 0.5


def draw(gains, labels, scores):
    """Draw the paired gains of the mixtures, and both learning curves."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", width_ratios=[1.3, 1, 1])
    for place, values in enumerate(gains.values()):
        axes[0].plot(values, np.full(len(values), place), "o", ms=4, color=f"C{place % 3}", alpha=0.6)
        mean, error = mean_and_error(values)
        axes[0].errorbar(mean, place, xerr=2 * error, fmt="k|", ms=14, capsize=3)
    axes[0].axvline(0, color="0.5", lw=0.8)
    axes[0].set_yticks(range(len(gains)), gains)
    axes[0].invert_yaxis()
    axes[0].set(xlabel="gain over one net (nats per row)", title="Mixtures of four: splits; mean ± 2 errors")
    for axis, place, name in zip(axes[1:], (0, 1), ("test RMSE", "test log-likelihood (nats per row)"), strict=True):
        for strategy, values in scores.items():
            mean, error = values[..., place].mean(0), values[..., place].std(0, ddof=1) / len(values) ** 0.5
            axis.plot(labels, mean, label="largest epistemic std" if strategy == "active" else strategy)
            axis.fill_between(labels, mean - error, mean + error, alpha=0.2, lw=0)
        axis.set(xlabel="labels", ylabel=name, title="Active learning, mean ± error")
        axis.legend()
    return figure


def main():
    run = Experiment("plot_16_mixture_and_active_learning", __doc__, CLAIMS)
    n_splits, n_seeds, n_rounds = (2, 2, 1) if run.quick else (8, 6, 10)
    run.choose(
        "built-in net, one hidden layer of 20 tanh units; prior and noise of each net by its own evidence",
        "mixtures: 4 nets; Friedman no. 1 (10 columns, noise 1), 100 rows, tested on 1,000; diabetes, 200 rows, tested"
        " on the other 242; 8 data sets or splits, differences paired",
        "active learning: Friedman no. 1 (its 5 columns, noise 1), a pool of 500 rows, 1,000 for testing; 20 random"
        " labels, then 10 batches of 4; 6 seeds, both ways from the same first labels",
        "clearly: a mean paired difference of more than two standard errors over splits or seeds",
    )
    with warnings.catch_warnings():
        for category in OF_SMALL_DATA:
            warnings.simplefilter("ignore", category)
        measured, gains = {}, {}
        for task in TASKS:
            every = [mixtures(task, run.seed + split, run.quick) for split in range(n_splits)]
            levels = {name: np.array([found[name] for found, _ in every]) for name in every[0][0]}
            run.table(
                f"{task}: held-out log-likelihood, nats per row, mean over {n_splits}",
                ["log-likelihood", "gain over one net", "its error"],
                {name: [values.mean(), *mean_and_error(values - levels["one net"])] for name, values in levels.items()},
            )
            for weighting in ("uniform", *WEIGHTINGS):
                gain = levels[f"mixture, {weighting}"] - levels["one net"]
                gains[f"{task}, {weighting}"] = gain
                mean, error = mean_and_error(gain)
                measured[f"{task}, {weighting}: gain, mean"] = mean
                measured[f"{task}, {weighting}: gain, standard error"] = error
                measured[f"{task}, {weighting}: effective members"] = np.mean([e[weighting] for _, e in every])
                measured[f"{task}, {weighting}: splits with a gain"] = np.sum(gain > 0)
            over_best = levels["mixture, evidence"] - levels["best by evidence"]
            measured[f"{task}, evidence: gain over the net of largest evidence"] = over_best.mean()
            alone, evidences = (np.stack([e[name] for _, e in every]) for name in ("alone", "evidences"))
            measured[f"{task}: {APART}"] = np.ptp(evidences, 1).mean()
            measured[f"{task}: held-out log-likelihood between nets, the same, per row"] = np.ptp(alone, 1).mean()
            measured[f"{task}: {CORRELATION}"] = np.sum(alone * evidences) / (
                np.linalg.norm(alone) * np.linalg.norm(evidences)
            )
            measured[f"{task}: {DISAGREEMENT}"] = np.mean([e["disagreement"] for _, e in every])

        runs = [curves(run.seed + seed, n_rounds, run.quick) for seed in range(n_seeds)]
    scores = {strategy: np.stack([one[strategy] for one in runs]) for strategy in runs[0]}
    labels = START + BATCH * np.arange(n_rounds + 1)
    run.table(
        f"Active learning, mean over {n_seeds} seeds",
        ["RMSE, active", "RMSE, random", "log-lik., active", "log-lik., random"],
        {
            f"{n} labels": [scores[strategy][:, place, score].mean() for score in (0, 1) for strategy in scores]
            for place, n in enumerate(labels)
        },
    )
    for place, name in enumerate(CURVES[2:], start=2):
        for strategy, values in scores.items():
            measured[f"{strategy}: {name}"] = values[:, -1, place].mean()
    differences = {
        "RMSE": np.log(scores["random"][..., 0] / scores["active"][..., 0]),
        "log-likelihood": scores["active"][..., 1] - scores["random"][..., 1],
    }
    for score, values in differences.items():
        for when, some in (("gain", values[:, 1:].mean(1)), ("gain at the end", values[:, -1])):
            mean, error = mean_and_error(some)
            measured[f"active, {score}: {when}, mean"] = mean
            measured[f"active, {score}: {when}, standard error"] = error
    run.save(draw(gains, labels, scores))
    run.judge(measured, why(measured))


def why(m):
    """Return an explanation of failed claims by measured numbers."""

    def gain(kind):
        return f"{m[f'{kind}: gain, mean']:.3f} ± {m[f'{kind}: gain, standard error']:.3f}"

    apart, correlation = (m[f"Friedman: {name}"] for name in (APART, CORRELATION))
    return (
        f"Friedman: the log evidences of the four nets differ by up to {apart:.1f} nats, so the effective number of"
        f" nets is {m['Friedman, evidence: effective members']:.1f}. The correlation of evidence and held-out"
        f" log-likelihood is {correlation:.2f}. The same nets gain {gain('Friedman, uniform')} nats per row with equal"
        f" weights, and {gain('Friedman, loo')} with stacking ({m['Friedman, loo: splits with a gain']:.0f} of 8 splits"
        " gain). Diabetes: the nets predict nearly the same (std between nets"
        f" {m[f'diabetes: {DISAGREEMENT}']:.3f} noise std), so there is nothing to average. Active learning: the"
        " largest std is at the edges of the cube, where few test rows lie. The std is a poor indicator of the net's"
        f" errors (rank correlation {m['active: ' + RANKS]:.2f}, with random rows {m['random: ' + RANKS]:.2f})."
        " Structure that the net does not find is attributed to noise. The noise std is"
        f" {m['active: ' + FOUND]:.1f}, against {m['random: ' + FOUND]:.1f} with random rows. Its true value is 1."
    )


if __name__ == "__main__":
    main()
