"""The documentation's table of combinations: made from the registries, and true in every cell."""

from __future__ import annotations

import pathlib

import combinations
import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError

RNG = np.random.default_rng(61)
X = RNG.normal(size=(12, 2))
Y = np.abs(X[:, 0]).round(1)
LABELS = (X[:, 0] > 0).astype(int)
CELLS = [(table, cell) for table in combinations.TABLES for cell in table.cells]
IDS = [f"{table.rows}={cell[0]}-{table.columns}={cell[1]}" for table, cell in CELLS]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ClippedWarning")


class Net(nn.Module):
    def __init__(self, n_out=1):
        super().__init__()
        self.body, self.out = nn.Linear(2, 2), nn.Linear(2, n_out)

    def forward(self, x):
        return self.out(torch.tanh(self.body(x)))


def frozen(kind=NeuralNetRegressor, n_out=1):
    torch.manual_seed(0)
    return FrozenEstimator(kind(Net, module__n_out=n_out, train_split=None, verbose=0).initialize())


def answer(options: dict) -> np.ndarray:
    """Fit with these options, call the method among them, predict."""
    method, options = options.get("method"), {name: value for name, value in options.items() if name != "method"}
    if "subset_of_weights" in options:
        value = combinations.SUBSET_VALUES[options["subset_of_weights"]][0]
        options["subset_of_weights"] = value
    if "link" not in options:
        model, y = LaplaceRegressor(frozen(), random_state=0, **options), Y
    else:
        single = options.get("likelihood") == "bernoulli"
        net = frozen(NeuralNetBinaryClassifier) if single else frozen(NeuralNetClassifier, 2)
        model, y = LaplaceClassifier(net, random_state=0, **options), LABELS
    model.fit(X, y)
    if method is not None:
        getattr(model, method)(X[:3], y[:3])
    return model.predict_std(X, kind="epistemic")


def test_the_page_is_what_the_registries_declare():
    """``python tests/support/combinations.py > docs/combinations.md`` after every change of one of them."""
    path = pathlib.Path(combinations.__file__).parents[2] / "docs" / "combinations.md"
    assert path.read_text() == combinations.page()


@pytest.mark.parametrize(("table", "cell"), CELLS, ids=IDS)
def test_every_cell_is_true(table, cell):
    """What is marked works; what is not says what to use, and that is what the table says."""
    options = dict(zip((table.rows, table.columns), cell, strict=True))
    if table.cells[cell]:
        assert np.isfinite(answer(options)).all()
        return
    with pytest.raises(UnsupportedCombinationError, match="Use ") as refusal:
        answer(options)
    assert any(repr(name) in str(refusal.value) for name in table.instead(cell[1]))


def test_every_variant_of_an_axis_has_a_row_or_a_column():
    """A variant that is registered is in the page."""
    page = combinations.page()
    for table in combinations.TABLES:
        assert all(f"`{name}`" in page for cell in table.cells for name in cell)
    for registry in (combinations.STRUCTURES, combinations.CURVATURES, combinations.SUBSETS, combinations.LINKS):
        assert all(f"`{name}`" in page for name in registry)
