"""Mutation tests: each mutation breaks a formula in a copy of the package, and some test must fail.

``python tests/support/mutate.py`` prints a line per mutation and exits with status 1 if any mutation survives.
``python tests/support/mutate.py 20`` skips the first 20 mutations.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutation:
    what: str
    file: str
    right: str
    wrong: str
    tests: str


MUTATIONS = (
    Mutation(
        "Gaussian normaliser without its half",
        "laplace/likelihoods/gaussian.py",
        "0.5 * n_outputs * math.log",
        "n_outputs * math.log",
        "contracts exactness",
    ),
    Mutation(
        "softmax factor with the wrong tail",
        "laplace/likelihoods/categorical.py",
        "log_p[:, :-1] + tail - head",
        "log_p[:, :-1] + head - tail",
        "contracts",
    ),
    Mutation(
        "curvature not divided by the noise",
        "laplace/fit.py",
        "temperature * self.dispersion**dispersion_power",
        "temperature",
        "exactness evidence",
    ),
    Mutation(
        "evidence without the prior's determinant",
        "laplace/evidence.py",
        "logdet - fit.prior.logdet(delta) +",
        "logdet +",
        "evidence",
    ),
    Mutation(
        "sampler with the factor in place of its inverse",
        "laplace/linalg.py",
        "root[start:stop, start:] = below.mT",
        "root[start:, start:stop] = below",
        "contracts",
    ),
    Mutation(
        "Kronecker input factor not averaged",
        "laplace/structures/kron.py",
        "self.input_sum / total_weight.clamp_min(torch.finfo(torch.float64).tiny)",
        "self.input_sum",
        "structures",
    ),
    Mutation(
        "a separate bias of one position alone",
        "laplace/jacobian/jacobian.py",
        "DenseFactor(factor.cotangents.sum(2))",
        "DenseFactor(factor.cotangents[:, :, 0])",
        "structure_options",
    ),
    Mutation(
        "reduced inputs summed in place of averaged",
        "laplace/jacobian/jacobian.py",
        "self.inputs.mean(1), self.cotangents.sum(2)",
        "self.inputs.sum(1), self.cotangents.sum(2)",
        "structure_options",
    ),
    Mutation(
        "damping with the rows in both factors",
        "laplace/structures/kron.py",
        "(scale / rows) ** 0.5 * outputs",
        "(scale * rows) ** 0.5 * outputs",
        "structure_options",
    ),
    Mutation(
        "the evidence of damped precisions",
        "_ensemble/member.py",
        "evidence = log_evidence(fit, hyper, posterior)",
        "evidence = log_evidence(fit, hyper, shaped)",
        "structure_options",
    ),
    Mutation(
        "the training's expanded factors kept for reduced ones",
        "_ensemble/approximate.py",
        " and curvature.options == self.settings",
        "",
        "structure_options",
    ),
    Mutation(
        "low-rank sampler with the covariance for its root",
        "laplace/structures/low_rank_diag.py",
        "shrink = 1 / (root * (1 + root))",
        "shrink = 1 / root.square()",
        "low_rank_diag",
    ),
    Mutation(
        "diagonal of inf below zero",
        "laplace/structures/low_rank_diag.py",
        "(diagonal - explained.flatten()).clamp_min(0.0)",
        "diagonal - explained.flatten()",
        "low_rank_diag",
    ),
    Mutation(
        "diagonal of inf counted in both passes",
        "laplace/structures/low_rank_diag.py",
        "None if following is None else self._with(following, torch.zeros_like(self.diagonal.diagonal))",
        "None if following is None else self._with(following, self.diagonal.diagonal)",
        "low_rank_diag",
    ),
    Mutation(
        "weights squared in the curvature",
        "laplace/curvatures/ggn.py",
        "weights.sqrt()",
        "weights",
        "contracts",
    ),
    Mutation(
        "empirical Fisher divided by the variance once",
        "laplace/curvatures/empirical_fisher.py",
        "dispersion_power: ClassVar[int] = 2",
        "dispersion_power: ClassVar[int] = 1",
        "curvatures",
    ),
    Mutation(
        "sampled Fisher not averaged over its draws",
        "laplace/curvatures/mc_fisher.py",
        "(weights / self.n_samples).sqrt()",
        "weights.sqrt()",
        "contracts curvatures",
    ),
    Mutation(
        "grouped precisions with the indefinite matrix",
        "laplace/structures/full.py",
        "(vectors * values) @ vectors.mT",
        "mirror_lower(self.lower)",
        "curvatures",
    ),
    Mutation(
        "the logit's classes in the other order",
        "laplace/likelihoods/bernoulli.py",
        "[-0.5 * outputs, 0.5 * outputs]",
        "[0.5 * outputs, -0.5 * outputs]",
        "contracts binary",
    ),
    Mutation(
        "log y! left out of the counts' density",
        "laplace/likelihoods/poisson.py",
        " + torch.lgamma(targets + 1)",
        "",
        "contracts",
    ),
    Mutation(
        "the log rate's variance in place of the rate's",
        "laplace/likelihoods/poisson.py",
        "latent.variance.expm1() * mean.square()",
        "latent.variance",
        "contracts counts",
    ),
    Mutation(
        "the training's pass kept for another curvature",
        "_ensemble/approximate.py",
        "laid_out.is_whole and fit.rule == options.rule",
        "laid_out.is_whole",
        "curvatures",
    ),
    Mutation(
        "errors of a given net in place of left-out ones",
        "_ensemble/fixed_weights.py",
        "return of_net if larger[0] > larger[1] else left_out",
        "return of_net",
        "own_training",
    ),
    Mutation(
        "noise of a given net without a bound",
        "_ensemble/fixed_weights.py",
        "LOG_NOISES = np.linspace(-1, 1, 81)",
        "LOG_NOISES = np.linspace(-3, 3, 81)",
        "validation_scores",
    ),
    Mutation(
        "held-out rows of a given net in its posterior",
        "_ensemble/fixed_weights.py",
        "rows if not len(validation) else rows.taken",
        "rows if len(validation) else rows.taken",
        "own_training",
    ),
    Mutation(
        "penalty in the validation loss of a given net",
        "nets/skorch_net.py",
        "if not (self.training and self.penalised):",
        "if not self.penalised:",
        "own_training",
    ),
    Mutation(
        "probit without its constant",
        "laplace/links/probit.py",
        "math.pi / 8",
        "math.pi / 4",
        "contracts",
    ),
    Mutation(
        "as many classes as are in play, by another order",
        "laplace/links/moderated.py",
        "2 * (log_probabilities / 2).logsumexp(-1)",
        "-(log_probabilities * 2).logsumexp(-1)",
        "links",
    ),
    Mutation(
        "bridge without its constant",
        "laplace/links/bridge.py",
        "1 - 2 / n_classes",
        "1 - 1 / n_classes",
        "links",
    ),
    Mutation(
        "weight samples around a mean that moved the other way",
        "laplace/predictives/mc.py",
        "else deviations + shift",
        "else deviations - shift",
        "predictives",
    ),
    Mutation(
        "weights outside a mask at zero",
        "laplace/network/network.py",
        "filled = values.to(part)",
        "filled = (0 * values).to(part)",
        "subsets",
    ),
    Mutation(
        "noise left out of the predictive",
        "laplace/likelihoods/gaussian.py",
        "noise.expand_as(variance)",
        "torch.zeros_like(variance)",
        "contracts methods",
    ),
    Mutation(
        "the curvature's factor not the root of the precision",
        "laplace/likelihoods/gaussian.py",
        "torch.diag_embed(v.rsqrt())",
        "torch.diag_embed(v.reciprocal())",
        "contracts",
    ),
    Mutation(
        "residuals not divided by their known variance",
        "laplace/likelihoods/gaussian.py",
        "return (outputs - y) / v",
        "return outputs - y",
        "contracts",
    ),
    Mutation(
        "known noise without its normaliser",
        "laplace/likelihoods/gaussian.py",
        "0.5 * v.log().sum(-1)",
        "0 * v.log().sum(-1)",
        "contracts",
    ),
    Mutation(
        "sampled targets with the noise of an average row",
        "laplace/likelihoods/gaussian.py",
        "outputs + v.sqrt() * noise",
        "outputs + noise",
        "contracts",
    ),
    Mutation(
        "the normaliser of known noise not in the fit",
        "laplace/fit.py",
        "self.total_weight * normaliser - self.log_noise",
        "self.total_weight * normaliser",
        "known_noise",
    ),
    Mutation(
        "the normaliser of forgotten rows kept",
        "laplace/updates.py",
        "fit.log_noise - rows.log_noise",
        "fit.log_noise",
        "known_noise",
    ),
    Mutation(
        "noise ratios of the targets upside down",
        "_table/rows.py",
        "(self.unit_noise / self.scale) ** 2",
        "(self.scale / self.unit_noise) ** 2",
        "known_noise",
    ),
    Mutation(
        "the noise of an average row without the weights",
        "_table/rows.py",
        "np.average(self.noise, axis=0, weights=self.weights)",
        "np.average(self.noise, axis=0)",
        "known_noise",
    ),
    Mutation(
        "the scale of the targets as if all rows were equally noisy",
        "_table/rows.py",
        "weights[:, None] / (1 + variances / median)",
        "weights[:, None] + 0 * median",
        "known_noise",
    ),
    Mutation(
        "log density not in the units of y",
        "_ensemble/member.py",
        "evidence - fit.total_weight * scale.log_volume",
        "evidence + 0 * scale.log_volume",
        "invariance methods",
    ),
    Mutation(
        "rows added with the sign of their pull reversed",
        "laplace/updates.py",
        "-gradient / hyper.dispersion, together",
        "gradient / hyper.dispersion, together",
        "updates",
    ),
    Mutation(
        "forgotten rows' loss kept",
        "laplace/updates.py",
        "nll=fit.nll - removed_nll,",
        "nll=fit.nll,",
        "updates",
    ),
    Mutation(
        "MacKay's noise without the effective parameters",
        "laplace/evidence.py",
        "max(fit.total_weight * fit.n_outputs - fit.dispersion_power * gamma, 0.5)",
        "max(fit.total_weight * fit.n_outputs, 0.5)",
        "evidence mode",
    ),
    Mutation(
        "CRPS without its constant",
        "distributions/evaluation.py",
        "np.sqrt(np.pi)",
        "np.sqrt(2 * np.pi)",
        "metrics",
    ),
    Mutation(
        "saved arrays in another order of axes",
        "_storage/describe.py",
        'copy(order="K")',
        'copy(order="C")',
        "persistence",
    ),
    Mutation(
        "the weights with the smallest scores",
        "laplace/subsets/subnetwork.py",
        "flat.sort(descending=True, stable=True)",
        "flat.sort(stable=True)",
        "subnetwork",
    ),
    Mutation(
        "scores of the posterior's prior in place of the training's",
        "_ensemble/choose.py",
        "return fit.posterior(hyper).marginal_variance()",
        "return fit.posterior(replace(hyper, prior_precision=hyper.prior_precision.mean().expand_as("
        "hyper.prior_precision))).marginal_variance()",
        "subnetwork",
    ),
    Mutation(
        "a last layer beside others",
        "laplace/subsets/last_layer.py",
        "network.passing_by(last, example[:1])",
        "()",
        "last_layer",
    ),
    Mutation(
        "a curvature that is not looked at",
        "laplace/fit.py",
        "nll + total_gradient.sum() + curvature.total()",
        "nll + total_gradient.sum()",
        "nonfinite",
    ),
    Mutation(
        "the layer before the one whose derivative is infinite",
        "laplace/nonfinite.py",
        "look(titles[-1], gradient)",
        "look(titles[0], gradient)",
        "nonfinite",
    ),
    Mutation(
        "chunks as if nothing else were held",
        "_table/limits.py",
        "max(self.size - used_bytes, 0)",
        "self.size",
        "memory",
    ),
    Mutation(
        "the prior's mean left out of its penalty",
        "laplace/prior.py",
        "theta if self.mean is None else theta - self.mean",
        "theta",
        "priors",
    ),
    Mutation(
        "the prior's mean left out of the epochs' criterion",
        "nets/skorch_net.py",
        "theta if self.mean is None else theta - self.mean",
        "theta",
        "priors",
    ),
    Mutation(
        "a precision for each weight taken for one a column in the dual form",
        "laplace/structures/functional.py",
        "matrix[0] if bool((matrix == matrix[0]).all()) else matrix",
        "matrix[0]",
        "contracts priors",
    ),
    Mutation(
        "input columns of the first layer counted as rows",
        "laplace/prior_groups.py",
        "torch.arange(shape[1]).expand(shape)",
        "torch.arange(shape[1]).repeat_interleave(shape[0]).view(shape)",
        "priors",
    ),
    Mutation(
        "a diagonal that is too small for the evidence's",
        "laplace/evidence.py",
        "- first.square() / counts)",
        "- first)",
        "priors",
    ),
    Mutation(
        "layers' temperatures without their determinant",
        "laplace/tempering.py",
        "self.inner.logdet_precision() - self.temperatures.log().sum()",
        "self.inner.logdet_precision()",
        "tempering",
    ),
    Mutation(
        "layers' temperatures upside down",
        "laplace/fit.py",
        "posterior(values[self.prior.groups] * hyper.temperature, scale)",
        "posterior(values[self.prior.groups] / hyper.temperature, scale)",
        "tempering",
    ),
    Mutation(
        "old rows without their slope",
        "laplace/fit.py",
        "self.nll + float(self.gradient @ move + 0.5 * move @ product)",
        "self.nll + float(0.5 * move @ product)",
        "previous",
    ),
    Mutation(
        "old rows' curvature not carried on",
        "laplace/fit.py",
        "curvature=self.curvature.merge(other.curvature)",
        "curvature=self.curvature",
        "previous",
    ),
    Mutation(
        "old rows left out of the epochs' criterion",
        "nets/skorch_net.py",
        "loss if self.past_loss is None else",
        "loss if True else",
        "previous",
    ),
    Mutation(
        "a left-out row that keeps its weight",
        "laplace/leave_one_out/left_out.py",
        "pull = rows.weights[:, None] * fit.likelihood",
        "pull = fit.likelihood",
        "leave_one_out",
    ),
    Mutation(
        "left-out means that know the temperature",
        "laplace/leave_one_out/left_out.py",
        "posterior = settled.posterior(replace(hyper, temperature=1.0))",
        "posterior = settled.posterior(hyper)",
        "leave_one_out",
    ),
    Mutation(
        "the curvature of other outputs than the mode's",
        "laplace/leave_one_out/linearised.py",
        "        shift=shift,\n",
        "        shift=None,\n",
        "leave_one_out",
    ),
    Mutation(
        "leverages added in place of taken out",
        "laplace/linalg.py",
        "1 / (1 - values)",
        "1 / (1 + values)",
        "leave_one_out",
    ),
    Mutation(
        "no bound where a leverage is one",
        "laplace/linalg.py",
        ".minimum(bound)",
        "",
        "leave_one_out",
    ),
    Mutation(
        "a diagonal that keeps the row's share",
        "laplace/structures/diag.py",
        "(precision - (factor.mT @ rows).square().sum(1))",
        "(precision + 0 * (factor.mT @ rows).square().sum(1))",
        "leave_one_out",
    ),
    Mutation(
        "the path's modes on the other side of the gradient",
        "laplace/selection/loo.py",
        "basis.vector(m) - basis.vector(fit.gradient)",
        "basis.vector(m) + basis.vector(fit.gradient)",
        "leave_one_out",
    ),
    Mutation(
        "the best noise of one output for all",
        "laplace/selection/loo.py",
        "(squares / (fit.total_weight * fit.n_outputs)).clamp",
        "(squares / fit.total_weight).clamp",
        "leave_one_out",
    ),
    Mutation(
        "noise left to a weak prior",
        "laplace/selection/held_out.py",
        "WEAKEST = 0.3",
        "WEAKEST = 0.0",
        "held_out",
    ),
    Mutation(
        "held-out density without its determinant",
        "laplace/selection/held_out.py",
        "constants[place] -= 0.5 * (rows.weights @ logdet)",
        "constants[place] -= 0.0 * (rows.weights @ logdet)",
        "held_out",
    ),
    Mutation(
        "members without the dropout of the trial",
        "_ensemble/train_members.py",
        "dropout=[recipe.dropout] * n",
        "dropout=[0.0] * n",
        "members",
    ),
    Mutation(
        "adam steps that ignore the rate of their tensors",
        "_training/stacked.py",
        "lr=rate * self.rate",
        "lr=rate",
        "members",
    ),
    Mutation(
        "decay that does not follow its schedule",
        "_training/stacked.py",
        "weight_decay=decay * self.decay",
        "weight_decay=self.decay",
        "members",
    ),
    Mutation(
        "gradient of a layer without its activations",
        "_training/stacked.py",
        "of_weights.insert(0, torch.bmm(slope.mT, kept))",
        "of_weights.insert(0, torch.bmm(slope.mT, kept).abs())",
        "members",
    ),
    Mutation(
        "stacked covariance with the precisions in place of their inverse",
        "_ensemble/ensemble.py",
        "per_output = rotated.square_() @ self.variances",
        "per_output = rotated.square_() @ (1 / self.variances)",
        "stacked",
    ),
    Mutation(
        "stacked covariance of several outputs without one basis",
        "_ensemble/ensemble.py",
        "return ((turned * per_output[:, :, None]) @ turned.mT).double()",
        "return (turned @ turned.mT).double()",
        "stacked",
    ),
    Mutation(
        "stacking that forgets the weights of rows",
        "_ensemble/joint_members.py",
        "parts = softmax(joint, axis=0) * shares",
        "parts = softmax(joint, axis=0) / len(shares)",
        "encodings",
    ),
    Mutation(
        "sample of a stream that depends on its parts",
        "_table/source_of.py",
        "start += len(block)",
        "start += 0",
        "sources",
    ),
    Mutation(
        "weight of a stream that counts rows",
        "_table/source_of.py",
        "else np.sum(block.sample_weight)",
        "else len(block)",
        "sources streamed_fits",
    ),
    Mutation(
        "calibration without the determinant of the noise",
        "_ensemble/calibration.py",
        "-0.5 * (total.log() + self.errors.square() / total)",
        "-0.5 * (self.errors.square() / total)",
        "calibration",
    ),
    Mutation(
        "extrapolation of the factor that ignores the members",
        "_ensemble/calibration.py",
        "alone + min(reach, MOST_REACH) *",
        "alone + 1.0 *",
        "calibration",
    ),
    Mutation(
        "levels of targets without the variances of predictions",
        "_ensemble/target_noise.py",
        "(squares / (variance + dispersion))",
        "(squares / dispersion)",
        "target_noise",
    ),
    Mutation(
        "levels of targets with all of the variances",
        "_ensemble/target_noise.py",
        "variance * np.exp(np.minimum(0.5 * log_rough, 0.0))",
        "variance * 1.0",
        "target_noise",
    ),
    Mutation(
        "levels of targets without a penalty",
        "_ensemble/target_noise.py",
        "0.5 * (n_outputs - 1) * math.log(total)",
        "0.0",
        "target_noise",
    ),
    Mutation(
        "noise of all targets at the first one's level in predictions",
        "_ensemble/target_noise.py",
        "device=inputs.device).expand(len(inputs), -1)",
        "device=inputs.device)[:1].expand(len(inputs), len(self.levels))",
        "target_noise",
    ),
    Mutation(
        "noise net that does not start from the levels",
        "_training/built_in.py",
        'arguments["output_shift"] = np.log(levels).tolist()',
        'arguments["output_shift"] = np.zeros(len(levels)).tolist()',
        "target_noise",
    ),
    Mutation(
        "narrow nets for noise-free targets",
        "_training/recipe.py",
        "if error < NOISY or",
        "if error > NOISY or",
        "members",
    ),
    Mutation(
        "a narrow search of the prior precision",
        "laplace/selection/held_out.py",
        "DECADES_WITHOUT_NOISE = 3, 6",
        "DECADES_WITHOUT_NOISE = 3, 1",
        "joint_classes",
    ),
    Mutation(
        "an exact net that may lose all weight",
        "_ensemble/joint_members.py",
        "if shares[0] < least:",
        "if shares[0] < 0:",
        "linear exact_members",
    ),
    Mutation(
        "counts of hardly any event that train together",
        "_ensemble/conditions.py",
        "LEAST_EVENTS = 30",
        "LEAST_EVENTS = 0",
        "joint_classes",
    ),
    Mutation(
        "varying noise with a mean that is not its own",
        "_ensemble/noise_model.py",
        "log_ratio.mean[..., None] - self.spread**2 / 2 +",
        "log_ratio.mean[..., None] +",
        "noise_model calibration",
    ),
    Mutation(
        "spread of the noise that is left out",
        "_ensemble/noise_model.py",
        "(shrunk(log_ratio.variance) + self.spread**2).sqrt()",
        "shrunk(log_ratio.variance).sqrt()",
        "noise_model calibration",
    ),
    Mutation(
        "variance of a mixture without the means",
        "distributions/mixtures.py",
        "(self._shares * (self.stds**2 + deviations**2)).sum(-1)",
        "(self._shares * self.stds**2).sum(-1)",
        "ensembles",
    ),
    Mutation(
        "density of a mixture without its scales",
        "distributions/mixtures.py",
        "logsumexp(-0.5 * z**2 - np.log(self.stds), axis=-1",
        "logsumexp(-0.5 * z**2, axis=-1",
        "ensembles",
    ),
    Mutation(
        "mean absolute difference of a normal without its density",
        "distributions/mixtures.py",
        "mean * (2 * ndtr(z) - 1) + 2 * std *",
        "mean * (2 * ndtr(z) - 1) + std *",
        "ensembles",
    ),
    Mutation(
        "variance of Poisson counts without the noise of the rate",
        "distributions/poisson_log_normal.py",
        "self.mean() + np.expm1(variance) * self.mean() ** 2",
        "self.mean()",
        "counts overdispersion",
    ),
    Mutation(
        "overdispersion that is its inverse",
        "distributions/negative_binomial_log_normal.py",
        "np.exp(variance) / size",
        "np.exp(variance) * size",
        "overdispersion",
    ),
    Mutation(
        "density under a transformation without its slope",
        "distributions/transforms.py",
        "-np.log(np.where(y > 0, np.clip(y, np.finfo(float).tiny, self.high), 1.0))",
        "np.zeros(np.shape(y))",
        "target_transform",
    ),
    Mutation(
        "variance between nodes of a transformation left out",
        "distributions/transformed.py",
        "between = (weights * (centres - mean[..., None]) ** 2).sum(-1)",
        "between = 0 * mean",
        "target_transform",
    ),
    Mutation(
        "probability of an ECDF from one tail",
        "metrics/ecdf_bands.py",
        "2 * np.minimum(binom.cdf(counts, n, points), binom.sf(counts - 1, n, points))",
        "np.minimum(binom.cdf(counts, n, points), binom.sf(counts - 1, n, points))",
        "calibration_report",
    ),
    Mutation(
        "groups judged as if there were one",
        "metrics/worst_groups.py",
        "min(1.0, len(entries) * least)",
        "min(1.0, least)",
        "calibration_report",
    ),
    Mutation(
        "interval of a variance ratio without the kurtosis",
        "metrics/spread.py",
        "df = 2 * n / (kurtosis - 1) if",
        "df = float(n) if",
        "calibration_report",
    ),
    Mutation(
        "variance of squared errors that is their square",
        "metrics/judged_rows.py",
        "SHARES @ squares**2 - (SHARES @ squares) ** 2",
        "SHARES @ squares**2",
        "calibration_report",
    ),
    Mutation(
        "CRPS from quantiles without its factor",
        "metrics/crps_decomposition.py",
        "2 * SHARES @ losses",
        "SHARES @ losses",
        "calibration_report",
    ),
    Mutation(
        "Brier score as a root",
        "metrics/cross_validation.py",
        "float(np.mean(((p - true) ** 2).sum(1)))",
        "float(np.mean(np.abs(p - true).sum(1)))",
        "cross_validated_scores",
    ),
    Mutation(
        "negative binomial constants with a lost term",
        "laplace/likelihoods/negative_binomial.py",
        "torch.lgamma(size) + torch.lgamma(y + 1) - torch.lgamma(y + size)",
        "torch.lgamma(size) - torch.lgamma(y + size)",
        "contracts overdispersion",
    ),
    Mutation(
        "zone of the last date in place of all dates",
        "_table/text.py",
        "if zoned not in (None, has_zone):",
        "if False:",
        "dirt",
    ),
    Mutation(
        "categories of numbers read by their values",
        "_table/reading.py",
        'in "biufc" and not _is_category(kind)',
        'in "biufc"',
        "tables",
    ),
    Mutation(
        "sigma scaling over rows of weight zero",
        "recalibration.py",
        "counted = weights > 0",
        "counted = weights >= 0",
        "recalibration",
    ),
)


def survives(mutation: Mutation, folder: pathlib.Path) -> bool:
    """True if the listed tests pass with the mutation."""
    for name in ("sklearn_laplace", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    path = folder / "sklearn_laplace" / mutation.file
    text = path.read_text(encoding="utf-8")
    assert mutation.right in text, f"{mutation.file} no longer holds {mutation.right!r}"
    path.write_text(text.replace(mutation.right, mutation.wrong), encoding="utf-8")
    tests = [str(next(folder.glob(f"tests/*/test_{name}.py"))) for name in mutation.tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        raise RuntimeError(f"{mutation.what}: the tests could not run\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.returncode == 0


def main() -> int:
    chosen, alive = MUTATIONS[int(sys.argv[1]) if len(sys.argv) > 1 else 0 :], 0
    for mutation in chosen:
        with tempfile.TemporaryDirectory() as folder:
            survived = survives(mutation, pathlib.Path(folder))
        alive += survived
        print(f"{'SURVIVES' if survived else 'caught':8}  {mutation.what} ({mutation.file})", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} caught")
    return min(alive, 1)


if __name__ == "__main__":
    sys.exit(main())
