"""Axes and colours that all displays share. matplotlib is imported here and nowhere else, when something is drawn.

The colours are those of Okabe & Ito (2008), which colour-blind readers can tell apart; what differs in colour differs
in its line, marker or hatching as well, so that a print in black and white says the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#767676"
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "linewidth": 2.0},
    {"color": VERMILLION, "linestyle": "--", "linewidth": 2.0},
    {"color": GREEN, "linestyle": "-.", "linewidth": 2.0},
    {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
)
"""Styles of lines that are to be told apart."""
REFERENCE: dict[str, Any] = {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.2}
"""Style of what the lines are compared with."""
PANEL = 4.6, 3.9
"""Width and height of a panel, inches."""


def panels(display: str, ax: Any, n: int, *, panel: tuple[float, float] = PANEL) -> list[Any]:
    """The axes to draw on.

    Parameters
    ----------
    display : str
        Whose they are, for the error.
    ax : None, Axes or sequence of n Axes
        None: a new figure with n panels. One Axes: the first panel alone is drawn, on it.
    n : int
    panel : (float, float)
        Width and height of a new panel, inches.

    Returns
    -------
    list of Axes
        n of them, or the one that was given.

    Raises
    ------
    ImportError
        Without matplotlib.
    TypeError, ValueError
        For anything else than Axes, and for another number of them.

    Examples
    --------
    >>> panels("CoverageDisplay", "left", 2)
    Traceback (most recent call last):
        ...
    TypeError: ax='left' is not supported; CoverageDisplay.plot needs None, a matplotlib Axes or a sequence of 2 of \
them.
    """
    try:
        from matplotlib.axes import Axes
    except ImportError as error:
        raise ImportError(
            f"{display}.plot needs matplotlib, which is not installed. Install it, for example by "
            "pip install 'sklearn-laplace[plot]'; the numbers are attributes of the display without it."
        ) from error
    if ax is None:
        import matplotlib.pyplot as plt

        _, axes = plt.subplots(1, n, figsize=(n * panel[0], panel[1]), layout="constrained", squeeze=False)
        return list(axes[0])
    if isinstance(ax, Axes):
        return [ax]
    given = list(np.ravel(np.asarray(ax, dtype=object)))
    if not given or not all(isinstance(one, Axes) for one in given):
        several = f" or a sequence of {n} of them" if n > 1 else ""
        raise TypeError(f"ax={ax!r} is not supported; {display}.plot needs None, a matplotlib Axes{several}.")
    if len(given) != n:
        raise ValueError(f"ax holds {len(given)} Axes; {display}.plot draws {n} panels. Give {n}, or one Axes.")
    return given


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """A colour mixed with white, as red, green and blue within [0, 1].

    Examples
    --------
    >>> tint("#000000", 0.25)
    (0.75, 0.75, 0.75)
    """
    red, green, blue = (1 - share * (1 - int(colour[k : k + 2], 16) / 255) for k in (1, 3, 5))
    return red, green, blue


def labelled(name: str | None, text: str) -> str:
    """A label with the name of the model in front of it, where there is one.

    Examples
    --------
    >>> labelled("net", "90 %"), labelled(None, "90 %")
    ('net: 90 %', '90 %')
    """
    return text if name is None else f"{name}: {text}"
