"""Fit a dask dataframe on the workers of a local cluster, one process each, and predict lazily.

python examples/scaling/with_dask.py --workers 2 --rows 1000000

``fit`` finds the active client. To use another cluster, pass its address to ``Client`` instead of the local cluster.
"""

from __future__ import annotations

import dask.dataframe as dd
from distributed import Client, LocalCluster
from rows import arguments, estimator, shown, written


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes (default: 2)")
    args = parser.parse_args()
    folder = written(args.folder, args.rows, classes=args.classes)
    with LocalCluster(n_workers=args.workers, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        table = dd.read_parquet(folder, split_row_groups=True)
        model = estimator(args).fit(table, "y")
        # The predictions are lazy, and computed on the workers.
        mean = model.predict_proba(table)[:, 0] if args.classes else model.predict(table)
        shown(model, workers=args.workers, mean=float(mean.mean().compute()))


if __name__ == "__main__":
    main()
