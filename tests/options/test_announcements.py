"""Deprecated names work and warn for two releases, and experimental features warn once."""

from __future__ import annotations

import inspect

import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import sklearn_laplace
from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._estimator import sources
from sklearn_laplace._runtime.group import Group
from sklearn_laplace._validation import announcements
from sklearn_laplace._validation.announcements import DEPRECATIONS, deprecated, experimental, overdue, renamed
from sklearn_laplace._validation.arguments import explained
from sklearn_laplace.errors import ExperimentalWarning


@pytest.fixture(autouse=True)
def of_the_package(monkeypatch):
    """What the package itself has announced; names that a test deprecates are forgotten afterwards."""
    own = list(DEPRECATIONS)
    monkeypatch.setattr(announcements, "DEPRECATIONS", [])
    return own


def small_model():
    """Estimator whose parameter ``sigma`` has become ``noise``."""

    @renamed(since="0.2", sigma="noise")
    @explained
    class Model(BaseEstimator):
        def __init__(self, noise=1.0, depth=2):
            self.noise = noise
            self.depth = depth

        def fit(self, X, y=None):
            self.n_ = len(X)
            return self

        def score(self, X, y=None):
            return -self.noise

    return Model


def test_nothing_is_left_after_its_removal(of_the_package):
    """Whoever raises the version removes what is due: a deprecated name works in two minor releases."""
    announcements.DEPRECATIONS.extend(of_the_package)
    late = overdue(sklearn_laplace.__version__)
    assert not late, f"version {sklearn_laplace.__version__}: remove " + ", ".join(one.name for one in late)


@pytest.mark.parametrize(("version", "is_late"), [("0.8.3", False), ("0.9.0", False), ("0.10.0", True), ("1.0", True)])
def test_a_removal_is_due_in_the_third_release(version, is_late):
    """0.8 announces, 0.9 still works, 0.10 removes: numbers are compared, not text."""
    deprecated(since="0.8", use="predict(X)")(lambda X: X)
    assert bool(overdue(version)) == is_late


def test_a_deprecated_function_works_and_warns_the_user():
    """The warning is of the category that Python shows, and points to the user's line."""

    @deprecated(since="0.2", use="predict(X)")
    def predict_mean(X):
        """Mean."""
        return X + 1

    with pytest.warns(FutureWarning) as caught:
        assert predict_mean(1.0) == 2.0
    text = "predict_mean is deprecated since version 0.2 and will be removed in 0.4. Use predict(X)."
    assert [str(warning.message) for warning in caught] == [text]
    assert caught[0].filename == __file__
    assert predict_mean.__doc__ == "Mean." and list(inspect.signature(predict_mean).parameters) == ["X"]


def test_a_deprecated_attribute_works_and_warns():
    """Below ``@property``."""

    class Model:
        @property
        @deprecated(since="0.2", use="noise_")
        def sigma_(self):
            return 3.0

    with pytest.warns(FutureWarning, match=r"^sigma_ is deprecated .* Use noise_\.$"):
        assert Model().sigma_ == 3.0


def test_a_renamed_parameter_of_a_function_is_translated():
    """By its old name with a warning, by its new one without."""

    @renamed(since="0.2", alpha="level")
    def interval(X, level=0.9):
        return level

    message = r"^interval\(alpha=…\) is deprecated since version 0\.2 and will be removed in 0\.4\. Use level=…\.$"
    with pytest.warns(FutureWarning, match=message):
        assert interval(0.0, alpha=0.5) == 0.5
    assert interval(0.0, level=0.5) == 0.5
    with (
        pytest.warns(FutureWarning, match="alpha"),
        pytest.raises(TypeError, match=r"alpha=0\.5 was given with its new name level; omit alpha"),
    ):
        interval(0.0, alpha=0.5, level=0.6)


def test_a_renamed_parameter_of_an_estimator_is_translated():
    """In the constructor, ``set_params`` and searches, and as an attribute; cloning and printing know the new one."""
    Model = small_model()
    with pytest.warns(FutureWarning, match=r"^Model\(sigma=…\) is deprecated since version 0\.2 .* Use noise=…\.$"):
        model = Model(sigma=3.0)
    assert model.get_params() == {"noise": 3.0, "depth": 2} == clone(model).get_params()
    with pytest.warns(FutureWarning, match="Model"):
        assert model.sigma == 3.0
    with pytest.warns(FutureWarning, match="Model"):
        assert make_pipeline(model).set_params(model__sigma=4.0)[-1].noise == 4.0
    with pytest.warns(FutureWarning, match="Model"):
        search = GridSearchCV(Model(), {"sigma": [2.0, 1.0]}, cv=2).fit([[0.0]] * 4)
    assert search.best_estimator_.noise == 1.0
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'sigm' \(sigm=1\.0\)"):
        Model(sigm=1.0)


def test_options_of_a_renamed_parameter_are_translated():
    """``sigma__kind`` becomes ``noise__kind``."""
    Model = small_model()

    class Kind(BaseEstimator):
        def __init__(self, kind="a"):
            self.kind = kind

    with pytest.warns(FutureWarning, match="Model"):
        assert Model(Kind()).set_params(sigma__kind="b").noise.kind == "b"


def test_an_experimental_feature_warns_once(monkeypatch):
    """Once per feature in a process: a search would repeat it with each fit."""
    monkeypatch.setattr(announcements, "SEEN", set())
    message = r"^a fit on .* is experimental: .* in any release\. Silence this with warnings\.simplefilter\('ignore'"

    def fits():
        for place in ("the moon", "the moon", "Mars"):
            experimental(f"a fit on {place}")

    with pytest.warns(ExperimentalWarning, match=message) as caught:
        fits()
    assert [str(warning.message).split(" is")[0] for warning in caught] == ["a fit on the moon", "a fit on Mars"]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fit_of_several_ranks_is_experimental(rank, monkeypatch):
    """Rank 0 warns for all; the fit itself is tested with real ranks (tests/clients/test_scaling.py)."""
    monkeypatch.setattr(announcements, "SEEN", set())
    monkeypatch.setattr(Group, "current", classmethod(lambda cls: cls(rank, 2)))
    monkeypatch.setattr(sources, "sample_of", lambda *arguments: pytest.fail("the fit starts"))
    with pytest.raises(ExperimentalWarning if rank == 0 else pytest.fail.Exception):
        LaplaceRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
