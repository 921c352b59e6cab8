"""Axes, colours and line styles shared by all displays. matplotlib is imported only here.

The colours are those of Okabe & Ito (2008), which readers with colour blindness can distinguish. Elements that differ
in colour also differ in line style, marker or hatching, so the plots remain readable in black and white.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

BLACK, GREY, ORANGE, GREEN = "#000000", "#767676", "#E69F00", "#009E73"
BLUE, VERMILLION = "#0072B2", "#D55E00"
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "linewidth": 2.0},
    {"color": VERMILLION, "linestyle": "--", "linewidth": 2.0},
    {"color": GREEN, "linestyle": "-.", "linewidth": 2.0},
    {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
)
"""Line styles for the curves of one plot, in order."""
REFERENCE: dict[str, Any] = {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.2}
"""Style of reference lines."""
PANEL = 4.6, 3.9
"""Default width and height of a panel in inches."""


def panels(display: str, ax: Any, n: int, *, panel: tuple[float, float] = PANEL) -> list[Any]:
    """Return the n Axes of a display, or the single given Axes. New Axes have the size ``panel`` in inches."""
    with _naming_the_package(display):
        from matplotlib.axes import Axes
    if ax is None:
        import matplotlib.pyplot as plt

        _, axes = plt.subplots(1, n, figsize=(n * panel[0], panel[1]), layout="constrained", squeeze=False)
        return list(axes[0])
    if isinstance(ax, Axes):
        return [ax]
    axes_list = list(np.ravel(np.asarray(ax, dtype=object)))
    if not axes_list or not all(isinstance(axes, Axes) for axes in axes_list):
        several = f" or a sequence of {n} Axes" if n > 1 else ""
        raise TypeError(f"ax={ax!r} is not supported; {display}.plot needs None, a matplotlib Axes{several}.")
    if len(axes_list) != n:
        raise ValueError(f"ax holds {len(axes_list)} Axes; {display}.plot draws {n} panels. Pass {n} Axes, or one.")
    return axes_list


@contextmanager
def _naming_the_package(display: str) -> Iterator[None]:
    """If matplotlib cannot be imported, raise an error that explains how to install it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{display}.plot needs matplotlib, which is not installed. Install it, for example with "
            "pip install 'sklearn-laplace[plot]'. The attributes of the display are available without it."
        ) from error


def mosaic(display: str, ax: Any, figure: Any, rooms: Sequence[Sequence[str]], size: tuple[float, float]) -> list[Any]:
    """Return the Axes of a display with several panels, in the order in which ``rooms`` first names them.

    ``rooms`` has the name of the panel at each place of the figure. If ``ax`` is None, ``figure`` is divided into
    panels; a new figure has ``size`` in inches.
    """
    with _naming_the_package(display):
        from matplotlib.figure import FigureBase
    if figure is not None and not isinstance(figure, FigureBase):
        raise TypeError(
            f"figure={figure!r} is not supported; {display}.plot needs None or a matplotlib Figure or SubFigure."
        )
    names = list(dict.fromkeys(name for row in rooms for name in row))
    if ax is not None:
        if figure is not None:
            raise ValueError(f"{display}.plot received both ax= and figure=; pass one of them.")
        return panels(display, ax, len(names))
    if figure is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=size, layout="constrained")
    axes = figure.subplot_mosaic([list(row) for row in rooms])
    return [axes[name] for name in names]


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """Return red, green and blue in [0, 1] of a colour mixed with white; ``share`` is the share of the colour."""
    red, green, blue = (1 - share * (1 - int(colour[k : k + 2], 16) / 255) for k in (1, 3, 5))
    return red, green, blue


def labelled(name: str | None, text: str) -> str:
    """Prefix a label with the name of the model, if there is one."""
    return text if name is None else f"{name}: {text}"
