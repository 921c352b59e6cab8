"""Default fits of many rows: ensemble members trained in one batch, each without its held-out fold."""

from __future__ import annotations

import functools
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from sklearn_laplace import LaplaceRegressor, load, save
from sklearn_laplace._ensemble import joint_members
from sklearn_laplace._ensemble import train_members as train
from sklearn_laplace._training import batched, recipe
from sklearn_laplace._training.batched import train_stacked
from sklearn_laplace._training.batches import Encoded, RowNoise
from sklearn_laplace._training.recipe import Schedule, for_noise, held_out_rows, recipes_for
from sklearn_laplace._training.stacked import Adam, Dropout, NegativeLog, Squares, Stacked
from sklearn_laplace.errors import MemoryBudgetError
from sklearn_laplace.laplace.fit import TrainingRows
from sklearn_laplace.laplace.likelihoods import Categorical
from sklearn_laplace.nets import ACTIVATIONS, TableMLP
from sklearn_laplace.options import MonteCarlo

N_ROWS = 500
FEW_ROWS = 200


def friedman(n_rows: int, seed: int = 0, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's first function; the last of the six columns is irrelevant."""
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n_rows, 6))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return X, mean + noise * random.normal(size=n_rows)


def wavy(n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, targets and noise levels: a sine wave whose noise level grows tenfold with the second column."""
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n_rows, 2))
    std = 0.05 * 10 ** X[:, 1]
    return X, np.sin(6 * X[:, 0]) + std * random.normal(size=n_rows), std


@pytest.fixture(scope="module", autouse=True)
def nothing_beside():
    """Without members trained by second-order steps; ``tests/ensemble/test_exact_members.py`` covers those."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOST_STEP", "MOST_ADDED"):
            patch.setattr(f"sklearn_laplace._ensemble.joint_members.{name}", 0.0)
        yield


@pytest.fixture(scope="module")
def fitted() -> LaplaceRegressor:
    return LaplaceRegressor(random_state=0).fit(*friedman(N_ROWS))


def few_steps(
    model: LaplaceRegressor, X: np.ndarray, y: np.ndarray, n_steps: tuple[int, int] = (160, 150)
) -> LaplaceRegressor:
    """Fit by about a third of the default steps, or fewer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "STEPS_AT_1000", n_steps)
        return model.fit(X, y)


def nets(n: int, n_outputs: int = 1, **options: object) -> list[TableMLP]:
    given = {"input_edges": [[0.0, 0.4, 1.0]], "input_quartiles": ([0.5], [0.5]), "activation": "silu", **options}
    arguments = [0, 3], [True, False], n_outputs, (5, 4)
    return [TableMLP(*arguments, seed=seed, **given).double() for seed in range(n)]


def coded(n: int, seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    X = np.column_stack([random.uniform(size=n), random.integers(0, 3, size=n)])
    X[::7, 0] = np.nan
    return torch.from_numpy(X)


def test_every_row_is_unseen_by_one_member_of_each_repeat():
    X, y = friedman(103)
    masks = held_out_rows(X, y[:, None], 2, 4)
    assert masks.shape == (8, 103)
    for repeat in (masks[:4], masks[4:]):
        assert (repeat.sum(0) == 1).all()
        assert set(repeat.sum(1)) == {25, 26}


def test_folds_belong_to_rows_and_not_to_places():
    X, y = friedman(200)
    X[100:150], y[100:150] = X[:50], y[:50]
    masks, order = held_out_rows(X, y[:, None], 2, 4), np.random.default_rng(1).permutation(200)
    np.testing.assert_array_equal(held_out_rows(X[order], y[order, None], 2, 4), masks[:, order])
    np.testing.assert_array_equal(masks[:, 100:150], masks[:, :50])


def test_classes_are_dealt_out_evenly():
    X = np.random.default_rng(0).normal(size=(80, 2))
    classes = np.repeat([0, 1], [72, 8])
    masks = held_out_rows(X, classes, 2, 4)
    assert (masks[:, classes == 1].sum(1) == 2).all()


def test_stacked_nets_say_what_each_of_them_says():
    modules, x = nets(3), coded(20)
    stacked = Stacked(modules, torch.float64)
    outputs = stacked(*Encoded.of(modules[0], x, torch.float64).taken(torch.arange(20)))
    torch.testing.assert_close(outputs, torch.stack([module(x) for module in modules]))


@pytest.mark.parametrize("rates", [[0.0], [0.3], [0.5, 0.5, 0.0, 0.2]])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_gradients_are_those_of_automatic_differentiation(activation, rates):
    """Nets with categories and missing values, from random weights, scales and biases."""
    modules = nets(4, activation=activation, output_shift=[0.5])
    stacked, n, random = Stacked(modules, torch.float64), 20, torch.Generator().manual_seed(0)
    for tensor in stacked.tensors:
        tensor.copy_(torch.randn(tensor.shape, generator=random, dtype=torch.float64)).requires_grad_()
    targets, factors = torch.rand(2, n, 1, generator=random, dtype=torch.float64)
    encoded = Encoded.of(modules[0], coded(n), torch.float64).taken(torch.arange(n))
    masks = Dropout(rates, stacked, n, seed=0).masks(3, n)
    outputs, _ = stacked._forward(*encoded, masks)
    expected = 0.5 * factors * (outputs - targets).square()
    found, gradients = stacked.gradients(*encoded, targets, factors, Squares(), masks)
    torch.testing.assert_close(Squares().terms(found, targets, factors), expected.detach())
    torch.testing.assert_close(gradients, list(torch.autograd.grad(expected.sum(), stacked.tensors)))


@pytest.mark.parametrize("levels", [[3, 0, 7, 0, 2], [4, 1, 9]], ids=["with numbers", "categories alone"])
@pytest.mark.parametrize("sizes", [(5, 4), ()], ids=["hidden layers", "linear"])
def test_embeddings_of_several_categories_share_one_table(levels, sizes):
    """Outputs, gradients and trained weights are those of the nets one by one; unknown levels have a code of their own.

    Some levels have no rows, and their gradient is zero.
    """
    modules = [TableMLP(levels, [False] * len(levels), 2, sizes, seed=seed).double() for seed in range(3)]
    stacked, n, random = Stacked(modules, torch.float64), 25, torch.Generator().manual_seed(0)
    codes = [torch.randint(count, (n,), generator=random) + (count > 4) if count else None for count in levels]
    x = torch.stack([torch.rand(n) if column is None else column for column in codes], 1).double()
    targets, factors = torch.rand(2, n, 2, generator=random, dtype=torch.float64)
    for tensor in stacked.tensors:
        tensor.copy_(torch.randn(tensor.shape, generator=random, dtype=torch.float64))
    encoded = Encoded.of(modules[0], x, torch.float64).taken(torch.arange(n))
    outputs, gradients = stacked.gradients(*encoded, targets, factors, Squares())
    for module, state, output in zip(modules, stacked.written(), outputs, strict=True):
        module.load_state_dict(state)
        torch.testing.assert_close(module(x), output)
    for tensor in stacked.tensors:
        tensor.requires_grad_()
    expected = 0.5 * factors * (stacked._forward(*encoded, [None] * len(sizes))[0] - targets).square()
    torch.testing.assert_close(gradients, list(torch.autograd.grad(expected.sum(), stacked.tensors)))
    # torch's fused kernel pairs the entries of weights and gradients by their place in memory.
    for gradient, tensor in zip(gradients, stacked.tensors, strict=True):
        assert gradient.stride() == tensor.stride() or 1 in tensor.shape
    categories = [(column, count) for column, count in zip(codes, levels, strict=True) if count]
    unseen = sum(int((column.bincount(minlength=count + 1) == 0).sum()) for column, count in categories)
    assert int((gradients[len(stacked.scales) + stacked.n_numeric] == 0).all(0).all(0).sum()) == unseen > 0


def test_dropout_multiplies_the_outputs_of_activations():
    """Against the nets one by one, with a hook after each activation."""
    modules, x = nets(3), coded(20)
    stacked = Stacked(modules, torch.float64)
    masks = Dropout([0.5, 0.5, 0.0], stacked, 20, seed=0).masks(0, 20)
    outputs, _ = stacked._forward(*Encoded.of(modules[0], x, torch.float64).taken(torch.arange(20)), masks)
    for k, module in enumerate(modules):
        layers = [layer for layer in module.behind if isinstance(layer, torch.nn.SiLU)]
        assert len(layers) == 2
        for layer, mask in zip(layers, masks, strict=True):
            layer.register_forward_hook(lambda layer, inputs, output, mask=mask[k]: output * mask)
        torch.testing.assert_close(module(x), outputs[k])
    assert not torch.allclose(stacked(*Encoded.of(modules[0], x, torch.float64).taken(torch.arange(20))), outputs)


def test_masks_keep_the_mean_and_depend_on_the_step_and_the_layer():
    stacked, rate = Stacked(nets(2)), 0.2
    dropout = Dropout([rate], stacked, 1000, seed=0)
    first, second = dropout.masks(0, 1000)
    assert [first.shape, second.shape] == [(1000, 5), (1000, 4)]
    np.testing.assert_allclose(first.unique(), [0, 1 / (1 - rate)], rtol=1e-6)
    assert float(first.mean()) == pytest.approx(1, abs=5 * math.sqrt(rate / (1 - rate) / first.numel()))
    assert not torch.equal(first[:, :4], second)
    assert torch.equal(dropout.masks(0, 1000)[0], first)
    assert torch.equal(Dropout([rate], stacked, 1000, seed=0).masks(0, 1000)[0], first)
    assert not torch.equal(dropout.masks(1, 1000)[0], first)
    assert not torch.equal(Dropout([rate], stacked, 1000, seed=1).masks(0, 1000)[0], first)
    assert Dropout([0.0], stacked, 1000, seed=0).masks(0, 1000) == [None, None]


def test_gradients_of_classes_are_those_of_automatic_differentiation():
    """The loss of each row is the negative log likelihood, times the factor of the net."""
    modules = nets(2, 3)
    stacked, n, random = Stacked(modules, torch.float64), 20, torch.Generator().manual_seed(0)
    for tensor in stacked.tensors:
        tensor.copy_(torch.randn(tensor.shape, generator=random, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(3, (n,), generator=random)
    factors = torch.rand(2, n, 1, generator=random, dtype=torch.float64)
    encoded, loss = Encoded.of(modules[0], coded(n), torch.float64).taken(torch.arange(n)), NegativeLog(Categorical())
    outputs, _ = stacked._forward(*encoded, [None, None])
    each = torch.stack([torch.nn.functional.cross_entropy(of_net, targets, reduction="none") for of_net in outputs])
    expected = factors[..., 0] * each
    found, gradients = stacked.gradients(*encoded, targets, factors, loss)
    torch.testing.assert_close(loss.terms(found, targets, factors)[..., 0], expected.detach())
    torch.testing.assert_close(loss.errors(outputs.detach(), targets), each.detach())
    torch.testing.assert_close(gradients, list(torch.autograd.grad(expected.sum(), stacked.tensors)))


def test_column_scales_become_constants_of_the_encoding():
    modules, x = nets(2), coded(20)
    stacked = Stacked(modules, torch.float64)
    random = torch.Generator().manual_seed(0)
    for scale in stacked.scales:
        scale.copy_(torch.randn(scale.shape, generator=random, dtype=torch.float64))
    outputs = stacked(*Encoded.of(modules[0], x, torch.float64).taken(torch.arange(20)))
    for module, state, output in zip(modules, stacked.written(), outputs, strict=True):
        module.load_state_dict(state)
        torch.testing.assert_close(module(x), output)
        assert bool((module.standardise.scale > 0).all())


def row_noise(values: torch.Tensor) -> RowNoise:
    """Noise variances of the rows of a training in memory."""
    return RowNoise(values, lambda inputs: pytest.fail("no other rows"))


@pytest.mark.parametrize("noise", [None, "varies"])
def test_a_member_learns_nothing_from_rows_that_it_does_not_see(noise):
    x, n = coded(40), 40
    y = torch.randn(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = torch.ones(2, n)
    seen[0, :10] = 0
    variances = None if noise is None else row_noise(torch.linspace(0.1, 2, n, dtype=torch.float64)[:, None])

    def trained(targets: torch.Tensor) -> torch.Tensor:
        stacked = Stacked(nets(2), torch.float64)
        rows = TrainingRows(x, targets, torch.ones(n, dtype=torch.float64))
        schedule = Schedule(30, batch_size=16)
        return train_stacked(
            stacked, Squares(), rows, seen, schedule, seed=0, prior=[0.0, 0.5], noise_of=lambda outputs: variances
        )[0]

    other = y.clone()
    other[:10] += 5
    before, after = trained(y), trained(other)
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    assert not torch.allclose(after[1], before[1])


@pytest.mark.parametrize(("noise", "cycles"), [(0.0, True), (2.0, False)])
def test_targets_without_noise_get_further_cycles(monkeypatch, noise, cycles):
    x, n = coded(200), 200
    x = torch.where(x.isnan(), 0.5, x)
    generator = torch.Generator().manual_seed(0)
    y = 3 * x[:, :1] - x[:, 1:] + noise * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    seen, steps = torch.ones(2, n), []
    seen[0, ::2], seen[1, 1::2] = 0, 0
    rate = Schedule.rate_of_cycle
    monkeypatch.setattr(Schedule, "rate_of_cycle", lambda self, step: steps.append(step) or rate(self, step))
    rows = TrainingRows(x, y, torch.ones(n, dtype=torch.float64))
    schedule = Schedule(100, batch_size=50)
    outputs, _ = train_stacked(
        Stacked(nets(2)), Squares(), rows, seen, schedule, seed=0, prior=[0.0, 0.0], noise_of=lambda outputs: None
    )
    assert bool(steps) == cycles
    assert outputs.shape == (2, n, 1)


def test_rows_are_weighed_by_a_power_of_their_noise():
    """The last cycle weights squared errors by (v̄/v)ᵖ, with v the noise variance and v̄ its mean."""
    X = coded(40)
    rows = TrainingRows(X, X[:, :1].nan_to_num(), torch.ones(40))
    seen = torch.ones(2, 40)
    seen[0, :20], seen[1, 20:] = 0, 0
    noise = torch.linspace(0.5, 2.0, 40)[:, None]
    weighted: dict[float, torch.Tensor] = {}
    for power in (1.0, 0.5):
        trainings: list[batched.Training] = []
        start = batched.Training.__init__
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                batched.Training,
                "__init__",
                lambda self, *args, start=start, t=trainings, **kw: t.append(self) or start(self, *args, **kw),
            )
            schedule = Schedule(30, noise_power=power, most_further=0)
            train_stacked(
                Stacked(nets(2)),
                Squares(),
                rows,
                seen,
                schedule,
                seed=0,
                prior=[0.0, 0.0],
                noise_of=lambda outputs: row_noise(noise),
            )
        weighted[power] = trainings[0].precision
    torch.testing.assert_close(weighted[1.0], noise.mean() / noise)
    torch.testing.assert_close(weighted[0.5], (noise.mean() / noise).sqrt())


def test_recipes_change_smoothly_with_the_rows():
    """Settings follow powers of the number of rows: more steps per row for few, more equal weights for many."""
    at = {n: recipes_for(n, 10) for n in (1000, 3000, 5000, 5001, 10_000, 40_000, 10**6)}
    assert [recipe.schedule.n_steps for recipe in at[1000]] == [500, 450]
    n_bins = [[recipe.n_bins for recipe in at[n]] for n in (1000, 3000, 5000, 10_000)]
    assert n_bins == [[8, 24], [8, 24], [8, 40], [8, 51]]
    assert [recipe.schedule.n_steps for recipe in at[10_000]] == [1581, 1791]
    assert [at[n][1].activation for n in (5000, 5001)] == ["gelu", "silu"]
    assert {recipes[0].activation for recipes in at.values()} == {"silu"}
    powers = [at[n][0].schedule.noise_power for n in (1000, 10_000, 40_000, 10**6)]
    assert powers[:2] == [1.0, 1.0] and powers[2] == pytest.approx(4**-0.3) and powers[3] < 0.3


@pytest.mark.parametrize(
    ("error", "n", "units"), [(0.09, 3000, 64), (0.1, 3000, 32), (0.5, 2000, 64), (0.5, 2500, 32), (0.5, 10**6, 64)]
)
def test_noisy_targets_have_narrow_nets(error, n, units):
    """Half the units from an error of a tenth of the variance on, for more than 2,000 rows."""
    recipes = recipes_for(n, 10)
    narrow = for_noise(recipes, error, n)
    assert [recipe.hidden_layer_sizes for recipe in narrow] == [(units, units)] * 2
    assert [recipe.schedule for recipe in narrow] == [recipe.schedule for recipe in recipes]


@pytest.mark.parametrize(("error", "layers", "units"), [(0.05, "auto", 64), (0.2, "auto", 32), (0.2, (24,), 24)])
def test_the_error_of_the_trial_decides_the_width(error, layers, units, monkeypatch):
    """Layers that were given stay as they are."""
    few = [replace(recipe, schedule=Schedule(3, most_further=0)) for recipe in recipes_for(3000, 2)]
    monkeypatch.setattr(train, "recipes_for", lambda n, columns: few)
    monkeypatch.setattr(train, "regularisation", lambda *arguments: ((0.1, 0.0), error, ()))
    X = np.random.default_rng(0).normal(size=(2100, 2))
    model = LaplaceRegressor(hidden_layer_sizes=layers, likelihood="gaussian", random_state=0).fit(X, X[:, 0])
    for member in model.members_:
        last = [module for module in member.net_.module_.modules() if isinstance(module, torch.nn.Linear)][-1]
        assert last.in_features == units


def test_the_prior_of_each_net_draws_its_weights_to_zero():
    x, n = coded(100), 100
    x = torch.where(x.isnan(), 0.5, x)
    y = x[:, :1] + torch.randn(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, seen = TrainingRows(x, y, torch.ones(n, dtype=torch.float64)), torch.ones(3, n)
    seen[:, ::4] = 0
    stacked = Stacked([nets(1)[0] for _ in range(3)], torch.float64)
    schedule = Schedule(400, batch_size=50)
    train_stacked(
        stacked, Squares(), rows, seen, schedule, seed=0, prior=[0.0, 1.0, 30.0], noise_of=lambda outputs: None
    )
    sizes = sum(weight.square().flatten(1).sum(1) for weight in stacked.weights)
    assert sizes[0] > 2 * sizes[1] > 8 * sizes[2]


@pytest.mark.parametrize(
    ("scores", "best"), [((5, 4, 3, 2), 3), ((5, 4, 3, 9), 2), ((5, 3, 4), 1), ((5, 9, 4, 9), 2), ((1, 2, 3), 0)]
)
def test_the_weights_after_the_best_cycle_are_kept_and_the_last_follows_only_the_best(scores, best):
    """The last cycle is omitted if the score was smaller after an earlier cycle than after the one before."""
    X, n = coded(40), 40
    rows = TrainingRows(X, torch.arange(n) % 3, torch.ones(n, dtype=torch.float64), n_logits=3)
    left, seen = list(scores), []

    def score(outputs: torch.Tensor) -> float:
        seen.append(outputs.clone())
        return left.pop(0)

    stacked, loss, schedule = (
        Stacked(nets(2, 3), torch.float64),
        NegativeLog(Categorical()),
        Schedule(30, batch_size=20),
    )
    outputs, _ = train_stacked(
        stacked,
        loss,
        rows,
        torch.ones(2, n),
        schedule,
        seed=0,
        prior=[0.0, 0.0],
        noise_of=lambda outputs: None,
        score=score,
    )
    assert left == [] and len({float(each.sum()) for each in seen}) == len(scores)
    torch.testing.assert_close(outputs, seen[best])
    encoded = Encoded.of(stacked.modules[0], X, torch.float64).taken(torch.arange(n))
    torch.testing.assert_close(stacked(*encoded), seen[best])


@pytest.mark.parametrize("noise", [None, "varies"])
def test_repeats_are_weighed_by_stacking(noise):
    generator = torch.Generator().manual_seed(0)
    y, *errors = torch.randn(3, 50, 2, generator=generator, dtype=torch.float64)
    variances = None if noise is None else torch.rand(50, 2, generator=generator, dtype=torch.float64) + 0.1
    outputs = [y + errors[0], y + 0.8 * errors[1]]
    rows = TrainingRows(torch.zeros(50, 1), y, torch.rand(50, generator=generator, dtype=torch.float64))

    std = torch.ones(50, 2) if variances is None else variances.sqrt()

    def density(share: float) -> float:
        def loss(log_scale: float) -> float:
            scale = math.exp(log_scale) * std
            apart = [torch.distributions.Normal(output, scale).log_prob(y).sum(1) for output in outputs]
            mixed = torch.logaddexp(apart[0] + math.log(1 - share), apart[1] + math.log(share))
            return -float(rows.weights @ mixed)

        return -float(minimize_scalar(loss, bounds=(-2, 2), method="bounded").fun)

    shares = joint_members.shares_of(rows, outputs, variances)
    grid = np.linspace(0.01, 0.99, 99)
    assert sum(shares) == pytest.approx(1)
    assert shares[1] == pytest.approx(grid[np.argmax([density(share) for share in grid])], abs=0.02)


def test_a_repeat_that_errs_much_more_is_left_out():
    y = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = TrainingRows(torch.zeros(50, 1), y, torch.ones(50))
    noise = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    assert joint_members.shares_of(rows, [y + noise, y + noise.flip(0) * 2], None) == [1.0, 0.0]
    assert joint_members.shares_of(rows, [y + 2 * noise.flip(0), y + noise], None) == [0.0, 1.0]
    assert np.isnan(joint_members.shares_of(rows, [y * np.inf, y * np.inf], None)).all()  # refused by the caller


def test_a_few_rows_without_an_error_leave_out_no_repeat():
    y, noise = torch.randn(2, 50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, exact = TrainingRows(torch.zeros(50, 1), y, torch.ones(50)), noise.clone()
    exact[:2] = 0.0
    assert min(joint_members.shares_of(rows, [y + noise.flip(0), y + exact], None)) > 0


def test_regularisation_is_tried_where_rows_are_noisy(fitted, monkeypatch):
    """Friedman's function is smooth: without prior and dropout the error on new rows is larger."""
    X, y = friedman(1000, seed=1)
    monkeypatch.setattr(train, "TRIAL", (((0.0, 0.0),), *train.TRIAL[1:]))
    without = clone(fitted).fit(*friedman(N_ROWS))
    assert np.mean((fitted.predict(X) - y) ** 2) < np.mean((without.predict(X) - y) ** 2)


@pytest.mark.parametrize(("noise", "expected"), [(0.0, 0.0), (4.0, 0.15)])
def test_dropout_is_chosen_where_rows_are_noisy(noise, expected, monkeypatch):
    """It averages over noise, and blurs a function without noise, under one prior precision."""

    class Chosen(Exception):
        pass

    def stop(request, options, rows, recipe, *others):
        raise Chosen(recipe.dropout)

    monkeypatch.setattr(train, "trained_repeat", stop)
    candidates = [(0.1, 0.0), (0.1, 0.15)]
    candidates.sort(key=lambda candidate: candidate[1] == expected)  # of equal errors the first would be taken
    monkeypatch.setattr(train, "TRIAL", (candidates, *train.TRIAL[1:]))
    with pytest.raises(Chosen) as chosen:
        LaplaceRegressor(random_state=0).fit(*friedman(FEW_ROWS, noise=noise))
    assert chosen.value.args == (expected,)


def test_members_train_with_the_dropout_of_the_trial(monkeypatch):
    """Each step of the trial and of both repeats has other masks; the linear repeat has none."""
    calls, masks, rate = [], Dropout.masks, 0.3
    monkeypatch.setattr(Dropout, "masks", lambda self, step, n: calls.append((self, step)) or masks(self, step, n))
    monkeypatch.setattr(train, "TRIAL", (((0.1, rate),), *train.TRIAL[1:]))
    few_steps(LaplaceRegressor(random_state=0), *friedman(FEW_ROWS), (50, 45))
    trainings = list(dict.fromkeys(dropout for dropout, _ in calls))
    assert [len(training.widths) for training in trainings] == [2, 2, 2, 0]
    assert [len(training.runs) for training in trainings] == [1, 1, 1, 0]
    for training in trainings:
        steps = [step for dropout, step in calls if dropout is training]
        assert steps[: max(steps) + 1] == list(range(max(steps) + 1))  # a further cycle begins at zero
        for values, _ in training.runs:
            assert float((values == 0).double().mean()) == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize(("n_rows", "n_folds"), [(10, 8), (FEW_ROWS, 8), (1001, 4)])
@pytest.mark.usefixtures("short_training")
def test_a_default_fit_has_a_member_for_each_fold_of_some_repeats(n_rows, n_folds):
    members = LaplaceRegressor(random_state=0).fit(*friedman(n_rows))._ensemble.members
    held_out = [len(member.unseen) for member in members]
    assert len(members) % n_folds == 0
    for first in range(0, len(members), n_folds):
        assert sum(held_out[first : first + n_folds]) == n_rows


def test_a_default_fit_of_fewer_rows_has_no_folds():
    assert all(member.unseen is None for member in LaplaceRegressor().fit(*friedman(9))._ensemble.members)


def test_it_predicts_as_well_as_a_boosted_forest(fitted):
    X, y = friedman(2000, seed=1)
    with threadpool_limits(1):
        forest = HistGradientBoostingRegressor(random_state=0).fit(*friedman(N_ROWS))
    assert np.mean((fitted.predict(X) - y) ** 2) < np.mean((forest.predict(X) - y) ** 2)


def test_its_error_bars_cover_new_rows(fitted):
    X, y = friedman(2000, seed=1)
    mean, std = fitted.predict(X, return_std=True)
    z = (y - mean) / std
    assert 0.9 < np.std(z) < 1.1
    assert 0.86 < np.mean(np.abs(z) < 1.645) < 0.94


def test_error_bars_grow_away_from_the_rows(fitted):
    X, _ = friedman(50, seed=1)
    assert fitted.predict_std(X + 4).min() > 1.5 * np.median(fitted.predict_std(X))


def test_noise_that_varies_is_found():
    model = few_steps(LaplaceRegressor(random_state=0), *wavy(N_ROWS)[:2])
    X, _, std = wavy(500, seed=1)
    ratio = model.predict_std(X) / std
    assert 0.7 < np.median(ratio) < 1.3
    assert np.quantile(np.abs(np.log(ratio)), 0.9) < 0.5


@pytest.mark.usefixtures("short_training")
def test_the_same_seed_gives_the_same_model_whatever_the_order_of_the_rows():
    X, y = friedman(FEW_ROWS)
    order = np.random.default_rng(3).permutation(FEW_ROWS)
    first = LaplaceRegressor(random_state=0).fit(X, y)
    again = LaplaceRegressor(random_state=0).fit(X[order], y[order])
    np.testing.assert_array_equal(again.predict(X), first.predict(X))


@pytest.mark.usefixtures("short_training")
def test_weights_are_repetitions():
    X, y = friedman(FEW_ROWS)
    weights = np.random.default_rng(0).integers(1, 3, size=FEW_ROWS)
    weighted = LaplaceRegressor(random_state=0).fit(X, y, sample_weight=weights)
    repeated = LaplaceRegressor(random_state=0).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.predict_std(X[:50]), repeated.predict_std(X[:50]), rtol=1e-6)


def test_choosing_again_changes_nothing(fitted):
    before = fitted.predict_std(friedman(20)[0])
    again = pickle.loads(pickle.dumps(fitted)).refit_laplace()
    np.testing.assert_allclose(again.predict_std(friedman(20)[0]), before, rtol=1e-9)


def test_a_file_gives_it_back_to_the_bit(fitted, tmp_path):
    save(fitted, tmp_path / "model.laplace")
    X = friedman(20, seed=2)[0]
    again = load(tmp_path / "model.laplace")
    np.testing.assert_array_equal(again.predict_std(X), fitted.predict_std(X))


def test_each_member_forgets_only_rows_that_it_has_seen(fitted):
    X, y = friedman(N_ROWS)
    model = pickle.loads(pickle.dumps(fitted)).forget(X[:40], y[:40])
    before, after = ([member.laplace_.total_weight for member in each.members_] for each in (fitted, model))
    forgotten = np.subtract(before, after)
    assert forgotten.reshape(-1, 8).sum(1) == pytest.approx(7 * 40)
    assert (forgotten < 40).all()


def test_a_single_row_is_forgotten_under_varying_noise():
    """One member of each repeat has held it out, and stays as it is."""
    X, y, _ = wavy(FEW_ROWS)
    model = few_steps(LaplaceRegressor(random_state=0), X, y, (50, 45))
    assert model.noise_model_ is not None
    before = [member.laplace_.total_weight for member in model.members_]
    after = [member.laplace_.total_weight for member in model.forget(X[:1], y[:1]).members_]
    forgotten = np.subtract(before, after).reshape(-1, 8)
    np.testing.assert_allclose(np.sort(forgotten, 1), np.tile([0, 1, 1, 1, 1, 1, 1, 1], (len(forgotten), 1)), atol=1e-9)


def test_a_row_that_is_seen_again_is_seen_by_all(fitted):
    X, y = friedman(N_ROWS)
    model = pickle.loads(pickle.dumps(fitted)).partial_fit(X[:1], y[:1])
    before = [member.laplace_.total_weight for member in model.members_]
    after = [member.laplace_.total_weight for member in model.forget(X[:1], y[:1]).members_]
    np.testing.assert_allclose(np.subtract(before, after), 1.0)


@pytest.mark.usefixtures("short_training")
def test_a_training_is_taken_from_the_cache(tmp_path, monkeypatch):
    X, y = friedman(FEW_ROWS)
    plain = LaplaceRegressor(random_state=0).fit(X, y)
    model = clone(plain).set_params(memory=str(tmp_path)).fit(X, y)
    monkeypatch.setattr("sklearn_laplace._ensemble.train_members.train_stacked", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.4 warns when it unpickles tensors
        again = clone(model).set_params(hessian_structure="diag").fit(X, y)
    np.testing.assert_array_equal(again.predict(X), plain.predict(X))


def test_rows_that_came_and_went_leave_no_trace(fitted):
    model, (X, y) = pickle.loads(pickle.dumps(fitted)), friedman(30, seed=5)
    before = model.predict_std(X)
    assert (model.partial_fit(X, y).predict_std(X) < before).all()
    np.testing.assert_allclose(model.forget(X, y).predict_std(X), before, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"hessian_structure": "diag"},
        {"hessian_structure": "ekfac"},
        {"subset_of_weights": "last_layer"},
        {"likelihood": "gaussian"},
        {"hidden_layer_sizes": (20,), "activation": "tanh", "n_bins": None},
        {"predictive": MonteCarlo(20)},
    ],
    ids=str,
)
def test_options_of_the_posterior_are_kept(options):
    X, y = friedman(300)
    model = few_steps(LaplaceRegressor(random_state=0, lr=0.01, **options), X, y, (100, 90))
    assert len(model.members_) in (8, 16, 24)
    assert model.score(*friedman(500, seed=1)) > 0.75
    assert np.isfinite(model.predict_std(X[:20])).all()


def hard(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = friedman(FEW_ROWS)
    if name == "constant columns":
        X = np.column_stack([X, np.full(FEW_ROWS, 3.0), 7 + 1e-15 * X[:, 0], X[:, 0]])
    elif name == "two values":
        y = (y > np.median(y)).astype(float)
    elif name == "constant target":
        y = np.full(FEW_ROWS, 2.5)
    elif name == "no noise":
        y = 3 * X[:, 0] - X[:, 1]
    elif name == "outliers":
        X[::100] *= 1e6
        y[::50] *= 1e4
    elif name == "scales":
        X, y = X * 1e-200, y * 1e200
    elif name == "two targets":
        y = np.column_stack([y, -y])
    elif name == "many columns":
        X = np.random.default_rng(0).normal(size=(FEW_ROWS, 300))
    return X, y


@functools.cache
def fitted_to_hard(name: str) -> tuple[LaplaceRegressor, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LaplaceRegressor(random_state=0)
        return model.fit(*hard(name)) if name == "no noise" else few_steps(model, *hard(name), (50, 45)), caught


@pytest.mark.parametrize(
    "name",
    [
        "constant columns",
        "two values",
        "constant target",
        "no noise",
        "outliers",
        "scales",
        "two targets",
        "many columns",
    ],
)
def test_legal_data_is_fitted(name):
    model, caught = fitted_to_hard(name)
    mean, std = model.predict(hard(name)[0][:50], return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()
    assert len(caught) <= 1, [str(warning.message) for warning in caught]


def test_a_posterior_beyond_memory_is_refused_before_the_training(monkeypatch):
    monkeypatch.setattr("sklearn_laplace._ensemble.train_members.train_stacked", None)
    model = LaplaceRegressor(hessian_structure="full", memory_budget="20MB", random_state=0)
    with pytest.raises(MemoryBudgetError, match="memory_budget"):
        model.fit(*friedman(N_ROWS))


def test_quantiles_of_some_rows_do_for_all(fitted, monkeypatch):
    """Bin edges come from a random subset of the rows if there are very many."""
    monkeypatch.setattr("sklearn_laplace._training.built_in.STATISTICS_ROWS", 200)
    model = few_steps(clone(fitted), *friedman(N_ROWS))
    edges, others = (np.array(each.net_.module_.standardise.edges) for each in (fitted, model))
    assert edges.shape == others.shape and not np.array_equal(edges, others)
    assert np.abs(edges - others).max() < 0.15
    assert model.score(*friedman(500, seed=1)) > fitted.score(*friedman(500, seed=1)) - 0.02


def test_targets_without_noise_are_met():
    (X, y), (model, _) = hard("no noise"), fitted_to_hard("no noise")
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 0.02 * np.std(y)


def test_steps_are_those_of_torchs_adamw():
    """At parts of the maximum rates and decays."""
    schedule = Schedule(10, lr=0.02, weight_decay=0.3, bias_rate=0.5)
    stacked, random = Stacked([nets(1)[0] for _ in range(2)], torch.float64), torch.Generator().manual_seed(0)
    biases = [bias for bias in stacked.biases if bias is not None]
    tensors = [*stacked.scales, *stacked.weights, *biases]
    expected = [tensor.clone() for tensor in tensors]
    groups, n_scales, n_weights = [], len(stacked.scales), len(stacked.weights)
    for place, tensor in enumerate(expected):
        is_weight = n_scales <= place < n_scales + n_weights
        rate = schedule.scale_rate if place < n_scales else 1.0 if is_weight else schedule.bias_rate
        decay = 0.5 * schedule.weight_decay if is_weight else 0.0
        groups.append({"params": [tensor], "lr": 0.25 * rate * schedule.lr, "weight_decay": decay})
    truth = torch.optim.AdamW(groups, betas=schedule.betas, eps=schedule.epsilon)
    optimisers = Adam.of(stacked, schedule)
    for _ in range(3):
        gradients = [torch.empty_like(tensor).normal_(generator=random) for tensor in tensors]
        for optimiser in optimisers:
            optimiser.step(gradients, 0.25, 0.5)
        for group, gradient in zip(truth.param_groups, gradients, strict=True):
            group["params"][0].grad = gradient
        truth.step()
    for tensor, wanted in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-10, atol=1e-12)
