r"""02 · The identity Hessian: two errors that cancel
=================================================

The source of experiment 1 writes the Gauss–Newton matrix as

.. math:: \tilde H = \sum_n J_n^\top H_n J_n + \lambda I, \qquad
    H_n = -\frac{\partial^2 \log p(y_n | f)}{\partial f^2} = \frac{1}{\sigma^2} ,

and computes the middle factor from its criterion, the *mean* squared error, whose second derivative is :math:`2 / N`.
With this factor, the bands are useless. So a line of the code replaces the factor by the identity. The author remarks
that the results are much better, for an unknown reason. The text notes that these bands "in some sense" look better
than those of an existing library. Two errors produce them:

1. **The loss is not the likelihood.** :math:`\tfrac1N \sum_n (y_n - f_n)^2` is the negative log-likelihood of N rows
   only if :math:`\sigma^2 = N / 2`. For N = 150 this is a noise std of 8.7, but that of the data is .3. :math:`H_n = 1`
   corresponds to a noise std of 1.
2. **The covariance is used as its own root.** The weights are drawn as :math:`\theta^* + \Sigma \varepsilon`, so their
   covariance is :math:`\Sigma^2`. The correct draws :math:`\theta^* + \Sigma^{1/2} \varepsilon` have the covariance
   :math:`\Sigma = \tilde H^{-1}`.

In the direction of an eigenvector with curvature h, the correct standard deviation is
:math:`(h / \sigma^2 + \lambda)^{-1/2}`; with both errors it is :math:`(h + \lambda)^{-1}`. For :math:`\lambda = 1`,
both agree where the data carry no information, and again at :math:`h \approx 1 / \sigma^2`. This agreement is a
coincidence. The second half of this script changes prior precision and noise, and the agreement ends.

This library computes all combinations. A constant Hessian c corresponds to the noise :math:`\sigma = c^{-1/2}`, so each
combination is one call of ``refit_laplace``. The source does not specify λ, the number of epochs or the batch size.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from experiment import Experiment
from sine import (
    EPOCHS,
    EPOCHS_CHOICE,
    NOISE,
    QUICK_EPOCHS,
    X_TEST,
    adam_nets,
    draw_band,
    draw_data,
    inside_and_outside,
    sine_data,
)

from sklearn_laplace import LaplaceRegressor

CLAIMS = {
    "correct (likelihood's Hessian, drawn with the root): the std on the data is .06 to .08": (
        lambda m: 0.06 <= m["1/noise², root, inside"] <= 0.08
    ),
    "as coded (Hessian of the mean loss, drawn with the root): the std on the data is 1.1 to 1.3": (
        lambda m: 1.1 <= m["mean loss, root, inside"] <= 1.3
    ),
    "both errors (identity, drawn with the covariance): the std on the data is .05 to .08": (
        lambda m: 0.05 <= m["identity, covariance, inside"] <= 0.08
    ),
}
FEWER_EPOCHS = 125, 250, 500, 1000, 2000
DRAWS = "root", "covariance"
N_SAMPLES = 100


def frozen_fits(seed, epochs, noise=NOISE):
    """Return Laplace fits of experiment 1's net after each of the given numbers of epochs."""
    X, y = sine_data(seed, noise=noise)
    options = {"hessian_structure": "full", "likelihood": "gaussian", "random_state": seed}
    options |= {"prior_precision": 1.0, "sigma_noise": noise}
    return [LaplaceRegressor(net, **options).fit(X, y) for net in adam_nets(X, y, seed=seed, epochs=epochs)]


def hessians(n=150, noise=NOISE):
    """Return the noise standard deviation that corresponds to each middle factor, by name."""
    return {"1/noise²": noise, "mean loss": np.sqrt(n / 2), "identity": 1.0}


def spreads(model, X=X_TEST):
    """Return the std of the linearised outputs for weights drawn with the root of the covariance Σ, and with Σ itself.

    Both have closed forms: diag(J Σ Jᵀ)^½ with the root, which is ``predict_std``, and diag(J Σ² Jᵀ)^½ with Σ.
    """
    _, jacobian = model.laplace_.network.jacobian(torch.from_numpy(X))
    projected = torch.stack([model.posterior_.solve(row) for row in jacobian.rows()[:, 0].double()])  # Σ Jᵀ, row by row
    return {"root": model.predict_std(X, kind="epistemic"), "covariance": projected.norm(dim=1).numpy()}


def sampled(model, X=X_TEST):
    """Return sampled versions of both stds, with the 100 draws of the source's ``linear_sampling``."""
    _, jacobian = model.laplace_.network.jacobian(torch.from_numpy(X))
    dense = jacobian.rows()[:, 0].double()
    generator = torch.Generator().manual_seed(0)
    right = model.posterior_.sample(N_SAMPLES, generator)
    noise = torch.randn(N_SAMPLES, dense.shape[1], generator=generator, dtype=torch.float64)
    wrong = torch.stack([model.posterior_.solve(epsilon) for epsilon in noise])
    return {how: (draws @ dense.mT).std(0).numpy() for how, draws in zip(DRAWS, (right, wrong), strict=True)}


def combinations(run, fits):
    """Return median stds inside and outside for each Hessian and way to draw; also print sampled ones."""
    rows = {}
    for name, noise in hessians().items():
        for how in DRAWS:
            values = []
            for model in fits:
                model.refit_laplace(prior_precision=1.0, sigma_noise=noise)
                exact, drawn = inside_and_outside(spreads(model)[how]), inside_and_outside(sampled(model)[how])
                values.append((noise, *exact, *drawn))
            rows[f"{name}, {how}"] = np.median(values, axis=0)
    columns = ["noise it means", "inside", "outside", f"inside, {N_SAMPLES} draws", f"outside, {N_SAMPLES} draws"]
    run.table("Epistemic std by Hessian and way to draw, prior precision 1, median net", columns, rows, digits=4)
    return {f"{name}, {where}": row[k] for name, row in rows.items() for k, where in ((1, "inside"), (2, "outside"))}


def elsewhere(run, fits, n_seeds, epochs):
    """Return the ratio of the std under both errors to the correct std, for other prior precisions and noise levels."""
    rows = {}

    def add(name, models, precision, noise):
        values = []
        for model in models:
            right = spreads(model.refit_laplace(prior_precision=precision, sigma_noise=noise))["root"]
            wrong = spreads(model.refit_laplace(prior_precision=precision, sigma_noise=1.0))["covariance"]
            inside, outside = zip(inside_and_outside(right), inside_and_outside(wrong), strict=True)
            values.append((*inside, inside[1] / inside[0], *outside, outside[1] / outside[0]))
        rows[name] = np.median(values, axis=0)

    for precision in (0.01, 0.1, 1.0, 10.0, 100.0):
        add(f"prior precision {precision:g}, noise {NOISE}", fits, precision, NOISE)
    for noise in (0.03, 1.0):
        models = [frozen_fits(run.seed + k, [epochs], noise)[0] for k in range(n_seeds)]
        add(f"prior precision 1, noise {noise}", models, 1.0, noise)
    columns = ["inside: correct", "both errors", "ratio", "outside: correct", "both errors", "ratio"]
    print("correct and both errors, as the median of each and of their ratio")
    run.table("The coincidence ends elsewhere, median net", columns, rows)
    return {f"both errors / correct, inside, {name}": row[2] for name, row in rows.items()}


def less_trained(run, fits):
    """Return measured numbers, table rows, and the epochs for which all claims hold; ``fits`` maps epochs to models.

    Over the training rows, the mean epistemic variance is exactly σ² γ / N, with γ effective parameters.
    """
    judged = (("1/noise²", "root"), ("mean loss", "root"), ("identity", "covariance"))
    rows, within = {}, []
    for epochs, models in fits.items():
        values = []
        for model in models:
            stds, effective = [], []
            for name, how in judged:
                model.refit_laplace(prior_precision=1.0, sigma_noise=hessians()[name])
                stds.append(inside_and_outside(spreads(model)[how])[0])
                effective.append(model.n_effective_parameters_)
            values.append((*stds, stds[2] / stds[0], *effective[:2]))
        rows[f"{epochs} epochs"] = row = np.median(values, axis=0)
        numbers = {f"{name}, {how}, inside": value for (name, how), value in zip(judged, row, strict=False)}
        within += [epochs] if all(predicate(numbers) for predicate in CLAIMS.values()) else []
    columns = ["correct", "as coded", "both errors", "both / correct", "effective, correct", "effective, as coded"]
    print("the same three, where the training stops earlier")
    run.table("Inside, and effective parameters, by epochs of training, median net", columns, rows)
    measured = {f"both errors / correct, inside, {name}": row[3] for name, row in rows.items()}
    measured |= {f"effective parameters, correct, {name}": row[4] for name, row in rows.items()}
    return measured, rows, within


def draw(run, model):
    """Draw a panel for each combination, for the first seed."""
    X, y = sine_data(run.seed)
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained", sharex=True, sharey=True)
    mean = model.predict(X_TEST)
    for column, (name, noise) in enumerate(hessians().items()):
        model.refit_laplace(prior_precision=1.0, sigma_noise=noise)
        for row, (how, std) in enumerate(spreads(model).items()):
            axis = axes[row, column]
            draw_band(axis, mean, std)
            draw_data(axis, X, y)
            inside = inside_and_outside(std)[0]
            verdict = {(0, 0): "correct: ", (0, 1): "as coded: ", (1, 2): "both errors: "}.get((row, column), "")
            axis.set(title=f"H: {name}, drawn with the {how}\n{verdict}std inside {inside:.3f}", ylim=(-5, 5))
            axis.title.set_size(9)
    for axis in axes[-1]:
        axis.set_xlabel("x")
    for axis in axes[:, 0]:
        axis.set_ylabel("y")
    axes[0, 0].legend(fontsize=7, loc="lower center")
    run.save(figure)


def reason(rows, within):
    """Return why the ranges are missed: the unspecified number of epochs determines γ."""
    first, last = (list(rows.values())[k] for k in (0, -1))
    ratios = [row[3] for row in rows.values()]
    where = (
        f"all hold after {' and '.join(map(str, within))} epochs" if within else "never all hold after the same epochs"
    )
    return (
        f"the ranges {where}, but the source does not state its number of epochs. On the training rows, the mean "
        "variance is the noise variance times γ / N, with γ effective parameters. So .06 to .08 correspond to γ = "
        f"{0.06**2 / NOISE**2 * 150:.0f} to {0.08**2 / NOISE**2 * 150:.0f}. γ grows from {first[4]:.1f} after the "
        f"fewest epochs to {last[4]:.1f} after the most (as coded: {first[5]:.1f} to {last[5]:.1f}). The two errors "
        "cancel after every tested number of epochs: the median ratio of their std to the correct one is between "
        f"{min(ratios):.2f} and {max(ratios):.2f}."
    )


def main():
    run = Experiment("plot_02_identity_hessian", __doc__, CLAIMS)
    run.choose(
        EPOCHS_CHOICE,
        "prior precision 1; all rows in one batch, so that the mean loss has the Hessian 2/150",
        "judged: closed forms, the median net of the seeds; the source's 100 draws are shown as well",
        '"as coded" is judged with the right draws, so that it has one error only; the version with the covariance is '
        "printed",
    )
    n_seeds, epochs = (1, [QUICK_EPOCHS // 2, QUICK_EPOCHS]) if run.quick else (10, [*FEWER_EPOCHS, EPOCHS])
    fits = list(zip(*(frozen_fits(run.seed + k, epochs) for k in range(n_seeds)), strict=True))
    measured = combinations(run, fits[-1])
    measured |= elsewhere(run, fits[-1], 1 if run.quick else 5, epochs[-1])
    trained, rows, within = less_trained(run, dict(zip(epochs, fits, strict=True)))
    draw(run, fits[-1][0])
    run.judge(measured | trained, why=reason(rows, within))


if __name__ == "__main__":
    main()
