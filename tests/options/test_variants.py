"""Option objects: equivalent to the former parameters, and cloned, printed, searched, refitted and validated."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from former import FORMER, FORMER_OF_CLASSIFIERS, current
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, options
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.metrics import neg_nlpd
from sklearn_laplace.options import (
    EKFAC,
    BlockDiagonal,
    GaussianPrior,
    Kron,
    Link,
    LowRank,
    LowRankDiag,
    MCFisher,
    Members,
    MonteCarlo,
    Subnetwork,
)
from sklearn_laplace.options.variants import DEFAULTS, VARIANTS, expanded

RNG = np.random.default_rng(11)
X, X_NEW = RNG.normal(size=(40, 2)), 2 * RNG.normal(size=(6, 2))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=40)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (4,), "map_prior_precision": 1.0, "n_members": 1, "random_state": 0}
GIVEN = {**SMALL, "prior_precision": 1.0, "sigma_noise": 0.3, "likelihood": "gaussian"}
ESTIMATORS = (LaplaceRegressor, LaplaceClassifier)
CHANGELOG = Path(__file__).parents[2] / "docs" / "changelog.md"


VALUES = {
    BlockDiagonal: BlockDiagonal("separate"),
    Kron: Kron("ritter", "separate", "reduce"),
    EKFAC: EKFAC("separate", "reduce"),
    LowRankDiag: LowRankDiag(7, "separate", "reduce"),
    LowRank: LowRank(7),
    MCFisher: MCFisher(5),
    Subnetwork: Subnetwork("magnitude", 50),
    MonteCarlo: MonteCarlo(1000),
    Link: Link("mc", 1000),
    Members: Members(5, "loo"),
    GaussianPrior: GaussianPrior("layer", 0.5),
}
"""Each variant with non-default values for all options, except for the previous posterior."""
variants = pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)


def estimator_with(value, parameter=None):
    """An estimator with the value in a given parameter, by default in the first one that accepts it."""
    parameter = parameter or value.parameters[0]
    kind = LaplaceClassifier if parameter == "link" else LaplaceRegressor
    return kind(**{parameter: value})


def flat(model):
    return expanded(model.get_params(deep=False))


# ---------------------------------------------------------------------- former options


@pytest.mark.parametrize("name", sorted(DEFAULTS))
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_former_options_are_no_parameters(kind, name):
    """The constructor raises TypeError with the former name."""
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        kind(**{name: DEFAULTS[name]})


@pytest.mark.parametrize("former", FORMER, ids=str)
def test_every_former_option_is_reachable(former):
    """The present parameters give the same internal options; all others keep their defaults."""
    internal = flat(LaplaceRegressor(**current(**former)))
    for name, value in former.items():
        assert internal[name] == value
    others = {**DEFAULTS, **LaplaceRegressor().get_params(deep=False)}
    assert {name: internal[name] for name in others if name not in former} == {
        name: value for name, value in others.items() if name not in former
    }


@pytest.mark.parametrize("former", FORMER_OF_CLASSIFIERS, ids=str)
def test_every_former_option_of_a_classifier_is_reachable(former):
    """The number of samples of the link and of the weights."""
    internal = flat(LaplaceClassifier(**current(**former)))
    for name, value in former.items():
        assert internal[name] == value


def test_the_table_of_former_options_is_complete():
    """Every internal option has a row with a non-default value, and is in the changelog."""
    changed = {name for former in FORMER for name, value in former.items() if DEFAULTS.get(name, value) != value}
    assert changed == set(DEFAULTS)
    text = CHANGELOG.read_text(encoding="utf-8").split("### Layout")[0]
    assert [name for name in DEFAULTS if f"{name}=" not in text and f"`{name}`" not in text] == []


# ---------------------------------------------------------------------- as scikit-learn's parameters


def test_every_variant_is_public_and_tested():
    """The package, the module and this file list the same variants."""
    assert set(VARIANTS) == set(VALUES) == {getattr(options, name) for name in options.__all__}
    for kind, value in VALUES.items():
        defaults = {name: known.default for name, known in inspect.signature(kind).parameters.items()}
        same = [name for name, one in value.get_params(deep=False).items() if one == defaults[name]]
        assert same == (["previous"] if kind is GaussianPrior else [])


@variants
def test_a_variant_has_an_internal_option_for_each_of_its_own(kind):
    """Every constructor argument is translated."""
    assert set(kind.internal) == set(inspect.signature(kind).parameters)
    assert set(kind.internal.values()) <= {*DEFAULTS, *kind.parameters}


@variants
def test_a_variant_is_cloned_and_pickled(kind):
    """A new object with equal options, alone and within an estimator."""
    value = VALUES[kind]
    model = estimator_with(value)
    for other in (clone(value), pickle.loads(pickle.dumps(value)), getattr(clone(model), value.parameters[0])):
        assert other is not value and type(other) is kind
        assert other.get_params() == value.get_params()
    assert flat(clone(model)) == flat(model)


@variants
def test_a_variant_is_printed_as_it_is_written(kind):
    """The repr omits default options, alone and within an estimator."""
    value = VALUES[kind]
    assert repr(value) in re.sub(r",\s+", ", ", repr(estimator_with(value)))
    again = eval(repr(value), vars(options).copy())
    assert again.get_params() == value.get_params()
    assert repr(kind()) == f"{kind.__name__}()"


@variants
def test_options_of_a_variant_are_nested_parameters(kind):
    """get_params reads them and set_params sets them, as in the constructor."""
    value = VALUES[kind]
    parameter, values = value.parameters[0], value.get_params(deep=False)
    model = estimator_with(value)
    assert {name: model.get_params()[f"{parameter}__{name}"] for name in values} == values
    other = estimator_with(kind()).set_params(**{f"{parameter}__{name}": option for name, option in values.items()})
    assert flat(other) == flat(model)
    with pytest.raises(ValueError, match=f"Invalid parameter 'nothing' for estimator {kind.__name__}"):
        model.set_params(**{f"{parameter}__nothing": 1})


@variants
def test_a_string_stands_for_the_variant_at_its_defaults(kind):
    """The string and the object give the same internal options."""
    plain = {Link: "moderated", Members: "auto", GaussianPrior: None}
    parameter = kind.parameters[0]
    assert flat(estimator_with(kind())) == flat(estimator_with(plain.get(kind, kind.value), parameter))


@variants
def test_an_object_in_the_wrong_parameter_is_refused(kind):
    """The error names the right parameter, before any training."""
    value = VALUES[kind]
    wrong = "temperature" if value.parameters[0] == "curvature" else "curvature"
    message = f"{wrong}={value!r} is not supported; {value!r} is a value of {value.parameters[0]}."
    for estimator, y in ((LaplaceRegressor, Y), (LaplaceClassifier, LABELS)):
        with pytest.raises(ValueError, match=re.escape(message)):
            estimator(**{wrong: value}).fit(X, y)


@variants
def test_a_class_in_place_of_an_object_is_refused(kind):
    """``hessian_structure=Kron`` without parentheses is an error."""
    estimator, y = (LaplaceClassifier, LABELS) if kind is Link else (LaplaceRegressor, Y)
    with pytest.raises((ValueError, TypeError), match=kind.__name__):
        estimator(**{kind.parameters[0]: kind}).fit(X, y)


# ---------------------------------------------------------------------- searches


def test_a_search_over_a_nested_option_changes_the_fit():
    """Scores equal those of explicit fits and differ; the caller's object is unchanged."""
    original = Kron()
    model = LaplaceRegressor(**GIVEN, hessian_structure=original)
    grid = {"hessian_structure__damping": ["exact", "ritter"]}
    search = GridSearchCV(model, grid, cv=2, scoring=neg_nlpd).fit(X, Y)
    scores = search.cv_results_["mean_test_score"]
    by_hand = [
        GridSearchCV(model, {"hessian_structure": [Kron(damping)]}, cv=2, scoring=neg_nlpd).fit(X, Y).best_score_
        for damping in ("exact", "ritter")
    ]
    np.testing.assert_array_equal(scores, by_hand)
    assert scores[0] != scores[1]
    chosen = search.best_estimator_.hessian_structure
    assert isinstance(chosen, Kron) and chosen.damping == search.best_params_["hessian_structure__damping"]
    assert chosen.damping == ("exact", "ritter")[int(np.argmax(scores))]
    assert original.damping == "exact"


# ---------------------------------------------------------------------- refits


def test_a_refit_takes_another_damping():
    """As an object or as a nested parameter: the predictions equal those of a new fit."""
    new = LaplaceRegressor(**GIVEN, hessian_structure=Kron(damping="ritter")).fit(X, Y)
    for change in ({"hessian_structure": Kron(damping="ritter")}, {"hessian_structure__damping": "ritter"}):
        model = LaplaceRegressor(**GIVEN, hessian_structure=Kron()).fit(X, Y)
        before = model.predict_std(X_NEW)
        model.refit_laplace(**change)
        np.testing.assert_array_equal(model.predict_std(X_NEW), new.predict_std(X_NEW))
        assert (model.predict_std(X_NEW) < before).all()
        assert repr(model) == repr(new)


@pytest.mark.parametrize(
    "change",
    [
        {"hessian_structure": Kron(weight_sharing="reduce")},
        {"hessian_structure": Kron(bias="separate")},
        {"hessian_structure": EKFAC()},
        {"hessian_structure": "diag"},
        {"hessian_structure__weight_sharing": "reduce"},
        {"hessian_structure__damping": "ritter", "hessian_structure__bias": "separate"},
        {"n_members": Members(2, weights="loo")},
        {"prior": GaussianPrior(mean=1.0)},
        {"prior": 1.0},
        {"curvature": MCFisher()},
        {"subset_of_weights": Subnetwork()},
    ],
    ids=lambda change: "-".join(f"{name}={type(value).__name__}" for name, value in change.items()),
)
def test_a_refit_refuses_what_the_fit_depends_on(change):
    """The error names the option; parameters, the caller's object and predictions are unchanged."""
    original = Kron()
    model = LaplaceRegressor(**GIVEN, hessian_structure=original).fit(X, Y)
    before, shown = model.predict_std(X_NEW), repr(model)
    with pytest.raises(ValueError, match=rf"{list(change)[-1]}=.* changes the training or the curvature"):
        model.refit_laplace(**change)
    np.testing.assert_array_equal(model.predict_std(X_NEW), before)
    assert repr(model) == shown and original.get_params() == Kron().get_params()
    assert model.hessian_structure is original


@pytest.mark.parametrize(
    ("parameter", "original", "option", "value"),
    [
        ("hessian_structure", Kron(), "damping", "ritter"),
        ("predictive", MonteCarlo(), "n_samples", 20),
        ("prior", GaussianPrior(), "structure", "layer"),
        ("n_members", Members(1), "weights", "evidence"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refit_does_not_change_the_object_of_the_caller(parameter, original, option, value):
    """Another estimator may share the object; fit does not change it either."""
    before = original.get_params()
    model = LaplaceRegressor(**{**GIVEN, parameter: original}).fit(X, Y)
    other = LaplaceRegressor(**{**GIVEN, parameter: original}).fit(X, Y)
    std = other.predict_std(X_NEW)
    assert original.get_params() == before
    model.refit_laplace(**{f"{parameter}__{option}": value})
    assert original.get_params() == before and getattr(getattr(model, parameter), option) == value
    np.testing.assert_array_equal(other.predict_std(X_NEW), std)


def test_a_classifiers_refit_takes_another_link_with_its_draws():
    """Without a training, but as in a new fit; the caller's object is unchanged."""
    original = Link("mc", n_samples=16)
    model = LaplaceClassifier(**SMALL, prior_precision=1.0, link=original).fit(X, LABELS)
    model.refit_laplace(link__n_samples=64)
    new = LaplaceClassifier(**SMALL, prior_precision=1.0, link=Link("mc", n_samples=64)).fit(X, LABELS)
    np.testing.assert_array_equal(model.predict_proba(X_NEW), new.predict_proba(X_NEW))
    assert original.n_samples == 16


# ---------------------------------------------------------------------- what goes together


def test_weight_samples_and_draws_of_the_link_have_one_number():
    """Different numbers of samples are an error; a number in one of them holds for both."""
    message = r"predictive and link have different n_samples, \[20, 30\]; give both the same number"
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(predictive=MonteCarlo(20), link=Link("mc", 30)).fit(X, LABELS)
    with pytest.raises(ValueError, match=r"different n_samples, \[30, 100\]"):  # "mc" is MonteCarlo(100)
        LaplaceClassifier(predictive="mc", link=Link("mc", 30)).fit(X, LABELS)
    model = LaplaceClassifier(**SMALL, predictive=MonteCarlo(20), link=Link("mc", 20)).fit(X, LABELS)
    same = LaplaceClassifier(**SMALL, predictive=MonteCarlo(20), link="mc").fit(X, LABELS)
    np.testing.assert_array_equal(model.predict_proba(X_NEW), same.predict_proba(X_NEW))
    with pytest.raises(ValueError, match="different n_samples"):
        model.refit_laplace(link__n_samples=30)
    assert model.link.n_samples == 20


def test_a_link_with_draws_is_refused_with_weight_samples_as_its_name_is():
    """Links of the linearised net do not apply to an average over weight samples."""
    with pytest.raises(UnsupportedCombinationError, match="link='bridge' cannot be used with predictive='mc'"):
        LaplaceClassifier(predictive=MonteCarlo(20), link=Link("bridge", 20)).fit(X, LABELS)
    with pytest.raises(TypeError, match="unexpected keyword argument 'link'"):
        LaplaceRegressor(link=Link("mc"))


def test_members_with_weights_have_to_be_able_to_differ():
    """Equal members are an error, as for a plain number."""
    frozen = FrozenEstimator(LaplaceRegressor(**GIVEN).fit(X, Y))
    with pytest.raises(UnsupportedCombinationError, match="n_members=2 nets would all be the same"):
        LaplaceRegressor(**{**GIVEN, "n_members": Members(2, weights="evidence"), "prior": frozen}).fit(X, Y)
    for weights in ("uniform", "evidence", "loo"):
        model = LaplaceRegressor(**{**GIVEN, "n_members": Members(1, weights=weights)}).fit(X, Y)
        np.testing.assert_array_equal(model.member_weights_, [1.0])


def test_a_mean_goes_with_a_previous_posterior_from_fit_to_fit():
    """The previous fit's prior, and with it the mean, counts once."""
    first = LaplaceRegressor(**GIVEN, prior=0.7).fit(X[:20], Y[:20])
    second = LaplaceRegressor(**GIVEN, prior=FrozenEstimator(first)).fit(X[20:], Y[20:])
    assert (first.laplace_.prior.mean == 0.7).all() and (second.laplace_.prior.mean == 0.7).all()


@pytest.mark.parametrize("previous", ["ard", 1.0, {"layers.0.weight": 1.0}])
def test_a_previous_posterior_is_neither_a_structure_nor_a_mean(previous):
    """``previous`` takes a frozen estimator only."""
    with pytest.raises(TypeError, match="FrozenEstimator"):
        LaplaceRegressor(**GIVEN, prior=GaussianPrior("layer", previous=previous)).fit(X, Y)


@pytest.mark.parametrize("prior", [FrozenEstimator(Ridge()), GaussianPrior(previous=FrozenEstimator(Ridge()))])
def test_a_previous_posterior_is_a_fitted_estimator_of_the_same_kind(prior):
    """The error lists the values of ``prior``."""
    with pytest.raises(TypeError, match="is not supported; give None, a structure such as 'layer', a mean, GaussianP"):
        LaplaceRegressor(prior=prior).fit(X, Y)


# ---------------------------------------------------------------------- the signatures


def documented(kind) -> list[str]:
    """Names in the parameter section of a class docstring, without the group headings."""
    text = inspect.getdoc(kind).split("Parameters\n----------\n")[1].split("\n\nAttributes\n")[0]
    heads = [line for line in text.splitlines() if re.match(r"\w", line)]
    return [name for head in heads for name in head.split(" : ")[0].split(", ")]


@pytest.mark.parametrize(("kind", "count"), [(LaplaceRegressor, 30), (LaplaceClassifier, 29)])
def test_an_estimator_has_few_parameters_and_a_short_docstring(kind, count):
    """At most 30 parameters and 900 words."""
    assert len(inspect.signature(kind).parameters) == count <= 30
    assert len(inspect.getdoc(kind).split()) <= 900


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_parameter_is_documented_in_its_order(kind):
    """In four groups; most users only need the first ones."""
    assert documented(kind) == list(inspect.signature(kind).parameters)
    groups = re.findall(r"^\[(\w+)\]$", inspect.getdoc(kind), flags=re.MULTILINE)
    assert groups == ["Model", "Uncertainty", "Training", "Advanced"]


@variants
def test_every_option_of_a_variant_is_documented(kind):
    """In the order of the signature."""
    text = inspect.getdoc(kind).split("Parameters\n----------\n")[1].split("\n\nExamples\n")[0]
    heads = [line for line in text.splitlines() if re.match(r"\w", line)]
    names = [name for head in heads for name in head.split(" : ")[0].split(", ")]
    assert names == list(inspect.signature(kind).parameters)
