"""Fit on all processes that torchrun starts, or on one process without torchrun.

torchrun --nproc-per-node 2 examples/scaling/with_torchrun.py --rows 1000000

Every rank passes the same folder and ends with the same model. The ranks divide the row groups of the folder among
themselves. With ``--max-restarts 3 … --memory cache``, torchrun restarts all ranks if one dies, and the fit continues.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from rows import arguments, estimator, shown, written


def main() -> None:
    args = arguments(__doc__).parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    rank = dist.get_rank() if dist.is_initialized() else 0
    if rank == 0:
        written(args.folder, args.rows, classes=args.classes)
    if dist.is_initialized():
        dist.barrier()
    folder = args.folder / "classes" if args.classes else args.folder
    shown(estimator(args).fit(folder, "y"), rank=rank)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
