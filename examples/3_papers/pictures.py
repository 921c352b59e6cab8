r"""What the experiments on pictures share (Ritter et al. 2018, section 5.2 to 5.4): data, net, training and methods.

A method of predicting is an average over nets of one architecture, :math:`p(y \mid x) = \frac1S \sum_s
\mathrm{softmax}(f_s(x))_y`: one net, nets with units dropped, or weights drawn from a Laplace approximation. A unit
that is dropped is a column of zeros in the next layer's weights, so that all three are sets of weights, fixed once for
all rows and for an attack's gradient.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from PIL import Image, ImageDraw, ImageFont
from scipy.special import xlogy
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNetClassifier
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sklearn_laplace import LaplaceClassifier

Members = dict[str, Tensor]
"""The tensors of a module by name, each with a first axis of S sets of weights."""
SHOWN = {
    "deterministic": "0.3",
    "MC dropout": "tab:orange",
    "diagonal Laplace": "tab:green",
    "Kronecker Laplace": "tab:blue",
}
"""The methods and their colours."""
UNTUNED = ", untuned"
"""What is said of a Laplace approximation with the N and τ of the training itself."""
STRUCTURES = {"diagonal Laplace": "diag", "Kronecker Laplace": "kron"}
LOOSE = ", loose"
"""What is said of one with N = n and the smallest τ that costs no more than a point of accuracy on validation rows."""
CONFIDENT = "without dropout: "
"""What is put before the ways to predict with a net that is too confident; see experiment 5."""
LOOSE_PRECISIONS = tuple(10.0 ** np.arange(-4, 5.1, 0.5))
PRIOR_PRECISIONS = tuple(10.0 ** np.arange(-2, 5))
PRETENDED = (1.0, 10.0, 100.0, 1000.0)
"""Candidates for τ, and for N as multiples of the number of rows."""
FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmr10", "cmss10", "cmtt10", "cmmi10"),
)
"""Fonts that come with matplotlib and have the letters."""
ROWS_AT_ONCE = 500


# ---------------------------------------------------------------------- data


@dataclass(frozen=True)
class Pictures:
    """Rows to train on, to choose N and τ by, to judge by, and of something else; intensities in [0, 1].

    Parameters
    ----------
    train, validation, test : tuple of ndarray (n, d), float32, and ndarray (n,)
    outside : ndarray of shape (m, d), float32
    """

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    outside: np.ndarray


def load(source: str | None, seed: int, sizes: Sequence[int]) -> Pictures:
    """Pictures in a seeded order, the first rows to train on.

    Parameters
    ----------
    source : str or None
        Folder with MNIST and Fashion-MNIST, or "openml"; None: scikit-learn's digits, and letters.
    seed : int
    sizes : sequence of int
        Rows to train on, to validate, to test and, at most, from elsewhere.
    """
    if source is None:
        (X, y), outside = load_digits(return_X_y=True), letters()
        X = X / 16
    else:
        sys.path.append(str(Path(__file__).parents[1]))
        from open_data import clothes, digits

        X, y = digits(source)
        outside = clothes(source)
    rng = np.random.default_rng(seed)
    parts = np.split(rng.permutation(len(X)), np.cumsum(sizes[:3]))[:3]
    rows, outside = (given.reshape(len(given), -1).astype(np.float32) for given in (X, outside))
    others = rng.permutation(len(outside))[: sizes[3]]
    return Pictures(*((rows[part], y[part]) for part in parts), outside=outside[others])


def letters() -> np.ndarray:
    """A to J in matplotlib's fonts, as 8 × 8 pictures in [0, 1]: the notMNIST of the small digits.

    As those were made: a bitmap of 32 × 32 that the glyph fills, and the share of its pixels in blocks of 4 × 4.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    found = []
    for letter in "ABCDEFGHIJ":
        for name in FONTS:
            canvas = Image.new("L", (200, 200))
            ImageDraw.Draw(canvas).text((50, 30), letter, fill=255, font=ImageFont.truetype(folder / f"{name}.ttf", 90))
            glyph = canvas.crop(canvas.getbbox())
            height, width = 32, max(1, min(32, round(32 * glyph.width / glyph.height)))
            bitmap = Image.new("L", (32, 32))
            bitmap.paste(glyph.resize((width, height)), ((32 - width) // 2, 0))
            found.append((np.asarray(bitmap) > 127).reshape(8, 4, 8, 4).mean((1, 3)))
    return np.stack(found)


def binarised(X: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Each pixel black or white, with its intensity as probability; what ``augment`` takes."""
    return (random_state.uniform(size=X.shape) < X).astype(np.float64)


# ---------------------------------------------------------------------- net and training


class Binarise(nn.Module):
    """Random binarisation while training, nothing afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        """Pixels (n, d) in [0, 1]."""
        return torch.bernoulli(x) if self.training else x


def relu_net(n_pixels: int, width: int) -> nn.Sequential:
    """Two hidden layers, dropout of a half after each."""
    return nn.Sequential(
        Binarise(),
        *(nn.Linear(n_pixels, width), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(width, 10),
    )


def plain_net(n_pixels: int, width: int) -> nn.Sequential:
    """The same without dropout and binarisation."""
    return nn.Sequential(*(layer for layer in relu_net(n_pixels, width) if isinstance(layer, nn.Linear | nn.ReLU)))


def trained(module: nn.Module, X: np.ndarray, y: np.ndarray, epochs: int, decay: float = 1e-3, **options: object):
    """The module as a skorch net, trained by SGD with the source's rate 10⁻² and momentum .9; call ``seeded`` before.

    Parameters
    ----------
    module : nn.Module
    X, y : ndarray of shape (n, d) and (n,)
    epochs : int
    decay : float
        Factor of ½‖θ‖² beside the mean loss.
    **options
        Of skorch that are to be others.
    """
    settings = {"lr": 1e-2, "optimizer__momentum": 0.9, "optimizer__weight_decay": decay, "batch_size": 50}
    net = NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        max_epochs=epochs,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
        **{**settings, **options},
    )
    net.fit(X, y)
    net.module_.eval()
    return net


def seeded(module_of, seed: int, *arguments: int) -> nn.Module:
    """A module whose initial weights, and the training that follows, are those of the seed."""
    torch.manual_seed(seed)
    return module_of(*arguments)


# ---------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Ensemble:
    """Nets that are averaged.

    Parameters
    ----------
    module : nn.Module
        In eval mode.
    members : dict of str to Tensor of shape (S, …)
    """

    module: nn.Module
    members: Members

    def log_probabilities(self, x: Tensor) -> Tensor:
        """log p(y | x) of shape (n, C), differentiable in x (n, d)."""
        logits = vmap(lambda tensors: functional_call(self.module, tensors, (x,)))(self.members)
        return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Averaged probabilities of shape (n, C), a few hundred rows at a time."""
        with torch.no_grad():
            parts = [self.log_probabilities(x) for x in torch.as_tensor(X).split(ROWS_AT_ONCE)]
        return torch.cat(parts).double().exp().numpy()


def deterministic(module: nn.Module) -> Ensemble:
    """The net itself."""
    return Ensemble(module, {name: tensor.detach()[None] for name, tensor in module.named_parameters()})


def mc_dropout(module: nn.Sequential, n_samples: int, seed: int) -> Ensemble:
    """Nets with units dropped: where a layer is dropped, the next one's inputs are zero or 1/(1 − p) times as large."""
    generator = torch.Generator().manual_seed(seed)
    members = {name: t.detach().expand(n_samples, *t.shape) for name, t in module.named_parameters()}
    for position, layer in enumerate(module):
        if isinstance(layer, nn.Dropout):
            name = f"{position + 1}.weight"
            kept = torch.rand(n_samples, 1, members[name].shape[-1], generator=generator) >= layer.p
            members[name] = members[name] * kept / (1 - layer.p)
    return Ensemble(module, members)


def weight_samples(model: LaplaceClassifier, n_samples: int, seed: int) -> Ensemble:
    """Nets with weights from the posterior."""
    network = model.laplace_.network
    deviations = model.posterior_.sample(n_samples, torch.Generator().manual_seed(seed))
    return Ensemble(network.module, dict(network.tensors((network.theta + deviations).float())))


def laplace(net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray, structure: str, seed: int, **options: object):
    """The Laplace approximation of a trained net; the Kronecker-factored one with eq. 9's damping.

    Parameters
    ----------
    net : NeuralNetClassifier
        Fitted.
    X, y : ndarray of shape (n, d) and (n,)
    structure : str
        ``hessian_structure``.
    seed : int
    **options
        Of ``LaplaceClassifier``.
    """
    damping = {"damping": "ritter"} if structure == "kron" else {}
    model = LaplaceClassifier(
        FrozenEstimator(net),
        hessian_structure=structure,
        predictive="mc",
        prior_precision=1.0,
        n_members=1,
        random_state=seed,
        **damping,
        **options,
    )
    with warnings.catch_warnings():  # dropout's optimum is not the mode of the loss without it: said of every fit
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(X, y)


@dataclass(frozen=True)
class Choice:
    """What the validation rows say about N and τ.

    Parameters
    ----------
    pretended, prior_precision : float
        N, as a multiple of the number of rows, and τ.
    loss : float
        Mean of −log p(y | x) under them.
    losses : dict from (float, float) to float
        That of all candidates.
    """

    pretended: float
    prior_precision: float
    loss: float
    losses: dict[tuple[float, float], float] = field(repr=False)


def choose_scale(
    model: LaplaceClassifier,
    X: np.ndarray,
    y: np.ndarray,
    n_samples: int,
    pretended: Sequence[float] = PRETENDED,
    precisions: Sequence[float] = PRIOR_PRECISIONS,
) -> Choice:
    """N and τ of the smallest cross-entropy on rows that neither net nor curvature has seen; the model is left at them.

    Parameters
    ----------
    model : LaplaceClassifier
        Fitted.
    X, y : ndarray of shape (n, d) and (n,)
    n_samples : int
        Weight samples of each candidate, from the same random numbers.
    pretended, precisions : sequence of float
        Candidates.
    """
    losses = {}
    for n in pretended:
        for tau in precisions:
            refit(model, n, tau)
            p = weight_samples(model, n_samples, 0).predict_proba(X)
            losses[n, tau] = float(cross_entropy(p, y))
    n, tau = min(losses, key=losses.__getitem__)
    refit(model, n, tau)
    return Choice(n, tau, losses[n, tau], losses)


def loosest(
    model: LaplaceClassifier,
    net: NeuralNetClassifier,
    X: np.ndarray,
    y: np.ndarray,
    n_samples: int,
    precisions: Sequence[float] = LOOSE_PRECISIONS,
) -> float:
    """The smallest τ at N = n that loses at most a point of accuracy against the net itself; the model is left at it.

    Parameters
    ----------
    model : LaplaceClassifier
        Fitted.
    net : NeuralNetClassifier
        What it is the approximation of.
    X, y : ndarray of shape (n, d) and (n,)
        Validation rows.
    n_samples : int
    precisions : sequence of float
        Candidates in ascending order; the last one where none will do.
    """
    needed = accuracy(deterministic(net.module_).predict_proba(X), y) - 0.01
    for tau in precisions:
        refit(model, 1.0, tau)
        if accuracy(weight_samples(model, n_samples, 0).predict_proba(X), y) >= needed:
            break
    return tau


@dataclass(frozen=True)
class Ways:
    """A net that is trained on digits, and the ways to predict with it.

    Parameters
    ----------
    data : Pictures
    net : NeuralNetClassifier
    methods : dict from str to Ensemble
    scales : dict from str to (float, float)
        N / n and τ of the Laplace approximations.
    """

    data: Pictures
    net: NeuralNetClassifier
    methods: dict[str, Ensemble]
    scales: dict[str, tuple[float, float]]


def ways(source: str | None, seed: int, quick: bool, confident: bool = False) -> Ways:
    """A net of experiment 5 on its data, and all ways to predict with it.

    Parameters
    ----------
    source : str or None
    seed : int
    quick : bool
    confident : bool
        The net without dropout and binarisation and with hardly any decay, in place of the source's.
    """
    sizes, width, epochs, copies, samples, to_choose = (1000, 297, 500, 1), 128, 100, 30, 100, 30
    if source is not None:
        sizes, width, epochs, copies, samples, to_choose = (7000, 1000, 1000, 1), 1024, 12, 1, 100, 10
    if quick:
        sizes, width, epochs, copies, samples, to_choose = (200, 60, 60, 1), 32, 20, 2, 10, 5
    candidates = ((1.0, 100.0), (1.0, 1e3)) if quick else (PRETENDED, PRIOR_PRECISIONS)
    data = load(source, seed, sizes)
    kind, decay = (plain_net, 1e-5) if confident else (relu_net, 1e-3)
    net = trained(seeded(kind, seed, data.train[0].shape[1], width), *data.train, epochs, decay)
    seen = {} if confident else {"augment": binarised, "n_augmentations": copies}
    found, scales = {"deterministic": deterministic(net.module_)}, {}
    if not confident:
        found["MC dropout"] = mc_dropout(net.module_, samples, seed)
    for name, structure in STRUCTURES.items():
        model = laplace(net, *data.train, structure, seed, dtype="float32", **seen)
        choice = choose_scale(model, *data.validation, to_choose, *candidates)
        found[name] = weight_samples(model, samples, seed)
        scales[name] = choice.pretended, choice.prior_precision
        if not confident:
            loose = LOOSE_PRECISIONS[::6] if quick else LOOSE_PRECISIONS
            scales[name + LOOSE] = 1.0, loosest(model, net, *data.validation, to_choose, loose)
            found[name + LOOSE] = weight_samples(model, samples, seed)
    start = CONFIDENT if confident else ""
    found, scales = ({start + name: value for name, value in given.items()} for given in (found, scales))
    return Ways(data, net, found, scales)


CHOICES = (
    "data, net and training of experiment 5: 1,000 of scikit-learn's 8 × 8 digits (of MNIST 7,000), 2 × 128 hidden "
    "units (2 × 1024), 100 epochs (12), random binarisation, dropout of a half",
    "100 weight samples or dropout masks, the same ones for the gradient and for what is measured",
    "and as in experiment 5, nets without dropout and binarisation and with hardly any decay, which are more confident",
    "beside the source's N and τ, by cross-entropy on validation rows: 'loose', N = n and the smallest τ that costs at "
    "most a point of accuracy there",
)
"""What the attacks share."""


def style(name: str) -> dict[str, str]:
    """Colour and line of a method."""
    line = ":" if name.startswith(CONFIDENT) else "--" if name.endswith(LOOSE) else "-"
    return {"color": SHOWN[name.removeprefix(CONFIDENT).removesuffix(LOOSE)], "linestyle": line}


def refit(model: LaplaceClassifier, pretended: float, prior_precision: float) -> LaplaceClassifier:
    """Other N and τ: N rows in place of n are a temperature of n/N."""
    with warnings.catch_warnings():  # a prior that is chosen by validation may be weak or strong
        warnings.simplefilter("ignore", UserWarning)
        return model.refit_laplace(prior_precision=prior_precision, temperature=1 / pretended)


# ---------------------------------------------------------------------- attacks


def untargeted(
    method: Ensemble, X: np.ndarray, y: np.ndarray, spread: np.ndarray, steps: Sequence[float]
) -> np.ndarray:
    """Mean entropy and accuracy, (len(steps), 2), after one step against the class that the method predicts.

    Parameters
    ----------
    method : Ensemble
    X, y : ndarray of shape (n, d) and (n,)
    spread : ndarray of shape (d,)
        Range of each pixel in the data.
    steps : sequence of float
        η, as shares of it.
    """
    x = torch.tensor(X, requires_grad=True)
    (gradient,) = torch.autograd.grad(method.log_probabilities(x).max(1).values.sum(), x)
    found = []
    for step in steps:
        p = method.predict_proba(X - np.float32(step) * spread * gradient.sign().numpy())
        found.append((entropy(p).mean(), accuracy(p, y)))
    return np.array(found)


def targeted(method: Ensemble, X: np.ndarray, y: np.ndarray, step: float, n_steps: int) -> np.ndarray:
    """Mean entropy, accuracy on the true class and share taken for class 0, (n_steps + 1, 3), on the way to class 0.

    Parameters
    ----------
    method : Ensemble
    X, y : ndarray of shape (n, d) and (n,)
        Rows that the method takes for a 0 are left out.
    step : float
        η.
    n_steps : int
    """
    kept = method.predict_proba(X).argmax(1) != 0
    x, y = torch.tensor(X[kept]), y[kept]
    found = []
    for _ in range(n_steps + 1):
        x.requires_grad_()
        log_p = method.log_probabilities(x)
        (gradient,) = torch.autograd.grad(log_p[:, 0].sum(), x)
        p = log_p.detach().double().exp().numpy()
        found.append((entropy(p).mean(), accuracy(p, y), accuracy(p, np.zeros_like(y))))
        x = x.detach() + step * gradient.sign()
    return np.array(found)


def steps_to(share: float, curve: np.ndarray) -> int:
    """The first step of a targeted attack after which more than this share is fooled; one more than all, if never."""
    reached = np.flatnonzero(curve[:, 2] > share)
    return int(reached[0]) if len(reached) else len(curve)


def pixel_ranges(data: Pictures) -> np.ndarray:
    """Largest less smallest value of each pixel in the digits, (d,)."""
    return np.ptp(np.concatenate([data.train[0], data.validation[0], data.test[0]]), axis=0)


# ---------------------------------------------------------------------- measures and pictures


def cross_entropy(p: np.ndarray, y: np.ndarray) -> float:
    """Mean of −log p(y | x)."""
    return float(-np.log(p[np.arange(len(y)), y].clip(min=1e-30)).mean())


def entropy(p: np.ndarray) -> np.ndarray:
    """Of each row of probabilities (n, C), in nats, at most log C."""
    return -xlogy(p, p).sum(1)


def accuracy(p: np.ndarray, y: np.ndarray) -> float:
    """Share of rows whose class is the most probable one."""
    return float((p.argmax(1) == y).mean())


def sharpening(net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """The factor of the logits that has the smallest cross-entropy; above one the net is not confident enough."""
    with torch.no_grad():
        logits = net.module_(torch.as_tensor(X)).double()
    factors = np.geomspace(0.2, 5.0, 101)
    return float(min(factors, key=lambda factor: cross_entropy((factor * logits).softmax(1).numpy(), y)))


def draw_inverse_ecdf(axis: Axes, entropies: dict[str, np.ndarray], title: str, n_classes: int = 10) -> None:
    """For each entropy the share of rows that have more, one curve a method; dashed with N and τ of the training."""
    for name, values in entropies.items():
        ordered = np.concatenate([[0.0], np.sort(values), [math.log(n_classes)]])
        above = np.concatenate([[1.0], 1 - np.arange(1, len(values) + 1) / len(values), [0.0]])
        style = "--" if name.endswith(UNTUNED) else "-"
        axis.step(ordered, above, style, where="post", color=SHOWN.get(name.removesuffix(UNTUNED)), label=name)
    axis.set(title=title, xlabel="predictive entropy [nats]", xlim=(0, math.log(n_classes)), ylim=(0, 1))
    axis.grid(alpha=0.3)
