"""Training of a few steps, for tests that hold for any weights of a net."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from sklearn_laplace._ensemble import noise_model, train_members
from sklearn_laplace._table.limits import Budget, budget_for
from sklearn_laplace._training import cache, fit_map, own_epochs, recipe
from sklearn_laplace.laplace.mode import alternating

STEPS = 2
"""Number of Gauss–Newton steps, and of L-BFGS steps, of a net and of a noise model."""
EPOCH_STEPS = 20
"""Number of gradient steps of a module without a skorch net, and of a large net."""


def short_budget(n_rows: int) -> Budget:
    return replace(budget_for(n_rows), epoch_steps=EPOCH_STEPS)


SHORT: dict[tuple[ModuleType, str], Any] = {
    (fit_map, "_effort"): lambda *args, **options: fit_map.Effort(STEPS, STEPS),
    (fit_map, "budget_for"): short_budget,
    (own_epochs, "budget_for"): short_budget,
    (fit_map, "STARTS"): fit_map.STARTS[:1],
    (alternating, "REST_ROUNDS"): 1,
    (alternating, "REST_STEPS"): STEPS,
    (alternating, "SHORT_STEPS"): STEPS,
    (noise_model, "ACCURATE"): replace(noise_model.ACCURATE, steps=STEPS),
    (noise_model, "QUICK"): replace(noise_model.QUICK, steps=STEPS),
    (noise_model, "LEVELS"): noise_model.LEVELS[::14],
    (recipe, "STEPS_AT_1000"): (50, 45),
    (train_members, "TRIAL"): (((0.1, 0.0),), 400, 150),
    (train_members, "CLASS_TRIAL"): (((0.1, 0.0),), 400, 150),
    (cache, "MAP_NEUTRAL"): cache.MAP_NEUTRAL | {"random_state": 1},  # other keys than those of complete trainings
}
COMPLETE = {(module, name): getattr(module, name) for module, name in SHORT}


@contextmanager
def few_steps() -> Iterator[None]:
    """Each training ends after a few steps, and the trial of regularisations has one candidate."""
    with _set(SHORT):
        yield


@contextmanager
def all_steps() -> Iterator[None]:
    """Trainings are complete, inside of ``few_steps`` too."""
    with _set(COMPLETE):
        yield


def shorten(patch: pytest.MonkeyPatch, *steps: int) -> None:
    """Set the number of gradient steps of each repeat of a joint training, for 1,000 rows."""
    patch.setattr(recipe, "STEPS_AT_1000", steps)


def skip_choices(patch: pytest.MonkeyPatch) -> None:
    """Let the trial of regularisations have one candidate, and a joint ensemble no nets with exact steps."""
    for name in ("TRIAL", "CLASS_TRIAL"):
        patch.setattr(train_members, name, SHORT[train_members, name])
    patch.setattr(train_members, "affords_exact_net", lambda *args: False)


@contextmanager
def _set(values: Mapping[tuple[ModuleType, str], Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in values.items():
            patch.setattr(module, name, value)
        yield
