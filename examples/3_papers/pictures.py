"""Pictures of digits and of other classes, and the nets of Ritter et al. (2018, section 5.2) for these pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import Tensor, nn

FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmr10", "cmss10", "cmtt10", "cmmi10"),
)
"""Fonts of matplotlib that contain the letters."""


# ---------------------------------------------------------------------- data


@dataclass(frozen=True)
class Pictures:
    """Training, validation (for N and τ) and test rows, and rows of other classes; intensities in [0, 1].

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
    """Load pictures in a random order given by the seed; the first rows are the training rows.

    Parameters
    ----------
    source : str or None
        Folder with MNIST and Fashion-MNIST, or "openml". None: scikit-learn's digits, and letters.
    seed : int
    sizes : sequence of int
        Number of training, validation and test rows, and the maximum number of rows of other classes.
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
    """Return letters A to J in matplotlib's fonts, as pictures in [0, 1] of shape (m, 8, 8), like a small notMNIST.

    Each glyph fills a bitmap of 32 × 32, which is averaged over blocks of 4 × 4 pixels, as for the digits.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    bitmaps = []
    for letter in "ABCDEFGHIJ":
        for name in FONTS:
            canvas = Image.new("L", (200, 200))
            ImageDraw.Draw(canvas).text((50, 30), letter, fill=255, font=ImageFont.truetype(folder / f"{name}.ttf", 90))
            glyph = canvas.crop(canvas.getbbox())
            height, width = 32, max(1, min(32, round(32 * glyph.width / glyph.height)))
            bitmap = Image.new("L", (32, 32))
            bitmap.paste(glyph.resize((width, height)), ((32 - width) // 2, 0))
            bitmaps.append((np.asarray(bitmap) > 127).reshape(8, 4, 8, 4).mean((1, 3)))
    return np.stack(bitmaps)


def binarised(X: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Draw each pixel as 0 or 1, with its intensity as the probability of 1."""
    return (random_state.uniform(size=X.shape) < X).astype(np.float64)


def copied(
    draw: Callable[[np.ndarray, np.random.RandomState], np.ndarray], X: np.ndarray, y: np.ndarray, k: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return k random copies of each row instead of the row, with targets and weights 1/k."""
    random_state = np.random.RandomState(seed)
    X_more = np.concatenate([draw(X, random_state) for _ in range(k)])
    return X_more, np.tile(y, k), np.full(len(X_more), 1 / k)


# ---------------------------------------------------------------------- net and training


class Binarise(nn.Module):
    """Random binarisation during training, and identity in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        """Binarise pixels (n, d) in [0, 1]."""
        return torch.bernoulli(x) if self.training else x


def relu_net(n_pixels: int, width: int) -> nn.Sequential:
    """Return a net with two hidden layers, and dropout with probability .5 after each."""
    return nn.Sequential(
        Binarise(),
        *(nn.Linear(n_pixels, width), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(width, 10),
    )


def plain_net(n_pixels: int, width: int) -> nn.Sequential:
    """Return a net with two hidden layers, without dropout and binarisation."""
    return nn.Sequential(*(layer for layer in relu_net(n_pixels, width) if isinstance(layer, nn.Linear | nn.ReLU)))


def trained(module: nn.Module, X: np.ndarray, y: np.ndarray, epochs: int, decay: float = 1e-3, **options: object):
    """Return a skorch net trained by SGD with the source's rate 10⁻² and momentum .9; call ``seeded`` first.

    Parameters
    ----------
    module : nn.Module
    X, y : ndarray of shape (n, d) and (n,)
    epochs : int
    decay : float
        Factor of ½‖θ‖², added to the mean loss.
    **options
        Further parameters of the skorch net.
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
    """Return a new module; the seed determines its initial weights and the subsequent training."""
    torch.manual_seed(seed)
    return module_of(*arguments)
