"""Model class for TabArena, whose harness fits, bags, times and scores any AutoGluon model.

:class:`LaplaceModel` implements AutoGluon's ``AbstractModel``, the interface that TabArena runs: ``_fit`` with a time
limit, and predictions for regression and for two or more classes. A share of the time left after preprocessing is
passed on as ``max_time``; the rest is for the passes after training. Validation rows of a bag are not used, because the
fit holds out its own rows. ``gen_laplace`` generates the default configuration, and random configurations from
``SEARCH_SPACE``.

``python examples/boards/tab_arena.py --data DIR --out OUT`` runs the harness on local tables: DIR holds the folder
``uci_regression``. For each table and test part, it prints the harness's metric (RMSE) and seconds for this model.
``--against CatBoost,LightGBM`` adds models of TabArena. The script requires ``pip install tabarena``. ``--quick`` uses
one small table and two bagging folds.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from autogluon.common import space
from autogluon.core.constants import REGRESSION
from autogluon.core.models import AbstractModel

TRAINING_SHARE, SHORTEST = 0.8, 1.0
"""Share of the remaining time for training, and minimum time limit in seconds."""
SEARCH_SPACE = {
    "activation": space.Categorical("auto", "tanh", "relu", "silu", "gelu"),
    "n_bins": space.Categorical("auto", None, 8, 32),
    "hidden_layer_sizes": space.Categorical("auto", (32, 32), (64, 64), (128, 128)),
    "lr": space.Categorical(None, 0.01, 0.02, 0.05),
}
"""Options of the estimators; the first value of each is the default."""


class LaplaceModel(AbstractModel):
    """AutoGluon model around LaplaceRegressor or LaplaceClassifier, depending on the problem type.

    The hyperparameters are the parameters of the estimator.
    """

    ag_key = "LAPLACE"
    ag_name = "Laplace"
    seed_name = "random_state"

    def _fit(
        self, X: pd.DataFrame, y: pd.Series, time_limit: float | None = None, num_cpus: int = 1, **kwargs: Any
    ) -> None:
        import torch

        from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

        start = time.monotonic()
        torch.set_num_threads(max(int(num_cpus), 1))
        parameters = dict(self._get_model_params())
        X = self.preprocess(X, y=y, is_train=True)
        if time_limit is not None:
            parameters["max_time"] = max(TRAINING_SHARE * (time_limit - (time.monotonic() - start)), SHORTEST)
        kind = LaplaceRegressor if self.problem_type == REGRESSION else LaplaceClassifier
        self.model = kind(**parameters).fit(X, y, sample_weight=kwargs.get("sample_weight"))

    @classmethod
    def supported_problem_types(cls) -> list[str]:
        return ["binary", "multiclass", "regression"]

    def _get_default_resources(self) -> tuple[int, int]:
        return 1, 0

    @classmethod
    def _estimate_memory_usage_static(cls, *, X: pd.DataFrame, **kwargs: Any) -> int:
        """Return the estimated bytes: a copy of the rows for each of eight members, and 300 MB."""
        return int(8 * 8 * X.shape[0] * X.shape[1] + 3e8)

    def _more_tags(self) -> dict[str, bool]:
        return {"can_refit_full": True}


def gen_laplace() -> Any:
    """Return TabArena's generator of configurations for this model."""
    from tabarena.utils.config_utils import ConfigGenerator

    return ConfigGenerator(model_cls=LaplaceModel, manual_configs=[{}], search_space=SEARCH_SPACE)


# ---------------------------------------------------------------------- tables of this machine in the harness


def local_task(path: Path, splits: int, folder: Path) -> Any:
    """Return a task of the harness for a table, with the splits given by the masks in its file."""
    from tabarena.benchmark.task.user_task import UserTask

    with np.load(path) as table:
        frame = pd.DataFrame(table["X"].astype(float)).add_prefix("x")
        frame["target"], masks = table["y"].astype(float).ravel(), table["test_masks"][:splits].astype(bool)
    parts = {0: {k: (np.flatnonzero(~mask).tolist(), np.flatnonzero(mask).tolist()) for k, mask in enumerate(masks)}}
    task = UserTask(task_name=path.stem, task_cache_path=folder)
    task.save_task(
        task.create_task(
            target_feature="target", problem_type="regression", dataset=frame, splits=parts, eval_metric="rmse",
            dataset_name=path.stem,
        )
    )  # fmt: skip
    return task


def main() -> None:
    """Run the harness; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of uci_regression")
    parser.add_argument("--out", type=Path, default=Path("tab_arena"))
    parser.add_argument("--only", default="yacht,boston,concrete", help="names of tables")
    parser.add_argument("--against", default="", help="models of TabArena, separated by commas")
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--folds", type=int, default=8, help="members of a bag; 8 in TabArena")
    parser.add_argument("--time-limit", type=float, default=3600.0, help="seconds for a bag")
    parser.add_argument("--quick", action="store_true", help="one small table, two members of a bag")
    options = parser.parse_args()
    if options.quick:
        options.only, options.folds, options.splits = "yacht", 2, 1

    import tab_arena  # import the class by its module's name, so that its pickles can be loaded
    from tabarena.benchmark.experiment import AGModelBagExperiment, ExperimentBatchRunner
    from tabarena.benchmark.task.metadata.collection import TaskMetadataCollection
    from tabarena.models.utils import get_configs_generator_from_name

    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    tasks = [local_task(options.data / "uci_regression" / f"{name}.npz", options.splits, out / "tasks")
             for name in options.only.split(",")]  # fmt: skip
    models = [tab_arena.LaplaceModel]
    models += [get_configs_generator_from_name(name).model_cls for name in filter(None, options.against.split(","))]
    experiments = [
        AGModelBagExperiment(
            name=f"{model.ag_name}_c1_BAG_L1", model_cls=model, model_hyperparameters={}, num_bag_folds=options.folds,
            time_limit=options.time_limit,
        )
        for model in models
    ]  # fmt: skip
    runner = ExperimentBatchRunner(
        expname=str(out), task_metadata=TaskMetadataCollection.from_user_tasks(tasks), user_tasks=tasks, debug_mode=True
    )
    os.chdir(out)  # the harness writes its models to the current folder
    print("table, split, model, metric, error, seconds of the fit, seconds of the prediction")
    for result in runner.run_all(methods=experiments):
        about = result["task_metadata"]
        print(about["name"], about["fold"], result["framework"], result["metric"], f"{result['metric_error']:.4f}",
              f"{result['time_train_s']:.1f}", f"{result['time_infer_s']:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
