"""The repr of an estimator: alone, in a pipeline, and as HTML."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nets import Hidden, regressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

SKORCH = "NeuralNetRegressor(module=Hidden, optimizer=Adam, lr=0.05, max_epochs=20, train_split=None, verbose=0"
NETS = [
    (None, None),
    (Hidden, "net=Hidden,"),
    (nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), "net=Sequential(...),"),
    (regressor(), f"net={SKORCH}),"),
    (regressor(module__hidden=3), f"net={SKORCH}, module__hidden=3),"),
    (FrozenEstimator(regressor()), f"net=FrozenEstimator(estimator={SKORCH})),"),
    (regressor(Hidden(2)), f"net={SKORCH.replace('Hidden', 'Hidden(...)')}),"),
]


@pytest.mark.parametrize(
    ("net", "shown"), NETS, ids=["none", "class", "module", "skorch", "nested", "frozen", "instance"]
)
def test_a_net_is_a_line(net, shown):
    """Only parameters that differ from their defaults, of the estimator and of its net."""
    words = repr(LaplaceRegressor(net=net, n_members=1, random_state=0))
    assert words.startswith("LaplaceRegressor(")
    assert "n_members=1" in words and "random_state=0" in words and "hidden_layer_sizes" not in words
    if shown is None:
        assert words == "LaplaceRegressor(n_members=1, random_state=0)"
    else:
        assert shown in re.sub(r"\s+", " ", words)
        assert len(words.splitlines()) <= 3


def test_what_is_printed_is_what_was_given():
    """Long values are cut, and the estimator is unchanged."""
    net = regressor(module__hidden=np.arange(100).tolist())
    model = LaplaceClassifier(net=net, link="mc")
    assert re.search(r"module__hidden=\[0, 1, 2, 3, .{20,25}\.\.\.\)", repr(model))
    assert model.net is net
    assert "link='mc'" in str(model)


def test_in_a_pipeline_it_is_broken_into_lines_as_any_estimator():
    """In a pipeline, scikit-learn chooses the printer by the estimator's ``__repr__``."""
    words = repr(make_pipeline(StandardScaler(), LaplaceRegressor(net=regressor(), n_members=1, random_state=0)))
    lines = [line.strip() for line in words.splitlines()]
    assert "LaplaceRegressor(n_members=1," in lines
    assert f"net={SKORCH})," in lines


def test_html_has_the_net_as_an_estimator_of_its_own():
    """A nested block, as for any nested estimator, with the short repr as its text."""
    html = LaplaceRegressor(net=regressor(), n_members=1)._repr_html_()
    assert "net: NeuralNetRegressor" in html
    assert SKORCH in re.sub(r"\s+", " ", html)
    assert "_params_to_validate=set()" not in html
