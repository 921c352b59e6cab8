"""Fit a dask dataframe on the workers of a local cluster, one process each, and predict lazily.

python examples/scaling/with_dask.py --workers 2 --rows 1000000

``fit`` finds the client that is in use. Give the address of another cluster to ``Client`` in place of the local one.
"""

from __future__ import annotations

import dask.dataframe as dd
from distributed import Client, LocalCluster
from rows import arguments, regressor, shown, written


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes (default: 2)")
    args = parser.parse_args()
    folder = written(args.folder, args.rows)
    with LocalCluster(n_workers=args.workers, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        table = dd.read_parquet(folder, split_row_groups=True)
        model = regressor(args).fit(table, "y")
        mean = model.predict(table)  # lazy, and computed on the workers
        shown(model, workers=args.workers, mean=float(mean.mean().compute()))


if __name__ == "__main__":
    main()
