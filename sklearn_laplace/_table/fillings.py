r"""Training values that stand for missing numbers and unknown levels of new rows.

Each column has K = 16 values. Gaps in several columns of a row are filled jointly, by K combinations of values. Let
:math:`\alpha` be a generator of GF(16), p the place of a column, and s = (0, 5, 6, 2). Combination i then has value
number :math:`(b_1 b_2 b_3 b_4)_2` of this column, where :math:`b_j = \langle \alpha^{p + s_j}, i \rangle` over GF(2).
For any two of 15 columns, each half of one column's values occurs equally often with each half of the other's. For any
two of five consecutive columns, the same holds for quarters. This is a Latin hypercube on an orthogonal array (Tang
1993), with correlations of at most .09 for five columns and .38 for 15.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

POWERS = 1, 2, 4, 8, 3, 6, 12, 11, 5, 10, 7, 14, 15, 13, 9
"""Powers of a generator of GF(16), as bits."""
STEPS = 0, 5, 6, 2
"""Exponents of a basis of GF(16); the first two are a basis of GF(4)."""


@dataclass(frozen=True, eq=False)
class Fillings:
    """Values of each column that fill gaps of rows: missing numbers and unknown levels."""

    values: Tensor  # (K, d), training values; NaN in columns without gaps
    unknown: Tensor  # (d,), code of unknown levels; NaN for numeric columns

    def __len__(self) -> int:
        return len(self.values)

    def gaps(self, x: Tensor) -> Tensor:
        """Mask (n, d) of the gaps of rows (n, d)."""
        return (x.isnan() | (x == self.unknown.to(x))) & ~self.values[0].isnan().to(x.device)

    def centre(self, x: Tensor) -> Tensor:
        """Rows (n, d) in which the mean of its column's values replaces each missing number."""
        return x.where(~(self.gaps(x) & x.isnan()), self.values.mean(0).to(x))


def order(place: int) -> np.ndarray:
    """Order (16,), int64, of the values of the column at ``place``; random from the 16th column on.

    >>> order(0)
    array([ 0,  8,  4, 12,  7, 15,  3, 11,  2, 10,  6, 14,  5, 13,  1,  9])
    """
    if place >= len(POWERS):
        return np.random.default_rng(place).permutation(len(POWERS) + 1)
    rows = [POWERS[(place + step) % len(POWERS)] for step in STEPS]
    return np.array([int("".join(str((row & i).bit_count() % 2) for row in rows), 2) for i in range(len(POWERS) + 1)])
