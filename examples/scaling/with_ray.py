"""Fit on the workers of Ray Train.

python examples/scaling/with_ray.py --workers 2 --rows 1000000
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from rows import arguments, estimator, shown, written


def fit(config: dict[str, Any]) -> None:
    """Fit on each worker, in the process group created by Ray; the first worker saves the model."""
    from ray.train import get_context

    model = estimator(config["args"]).fit(config["folder"], "y")
    shown(model, rank=get_context().get_world_rank())
    if get_context().get_world_rank() == 0:
        joblib.dump(model, config["model"])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="number of workers (default: 2)")
    parser.add_argument("--model", type=Path, default=Path("model.joblib"), help="file of the model")
    args = parser.parse_args()
    config = {
        "args": args,
        "folder": str(written(args.folder, args.rows, classes=args.classes).resolve()),
        "model": str(args.model.resolve()),
    }
    TorchTrainer(fit, train_loop_config=config, scaling_config=ScalingConfig(num_workers=args.workers)).fit()


if __name__ == "__main__":
    main()
