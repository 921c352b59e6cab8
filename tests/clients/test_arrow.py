"""Dataframes of pandas whose columns are of Arrow, as ``read_parquet(dtype_backend="pyarrow")`` returns them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from quick import client

from sklearn_laplace import LaplaceRegressor

pa = client("pyarrow")
N = 60
QUICK = {"hidden_layer_sizes": (4,), "n_members": 1, "prior_precision": 1.0, "sigma_noise": 0.3, "random_state": 0}


def test_times_of_arrow_are_those_of_numpy():
    """With a time zone, with gaps, as days and as durations."""
    x = np.sin(np.arange(N))
    table = pd.DataFrame(
        {
            "x": x,
            "time": pd.date_range("2020", periods=N, freq="h", tz="Europe/Berlin"),
            "day": pd.date_range("2020", periods=N),
            "span": pd.to_timedelta(np.arange(N), unit="h"),
        }
    )
    for row, name in enumerate(["time", "day", "span"]):
        table.loc[row, name] = pd.NaT
    kinds = {"time": pa.timestamp("us", "Europe/Berlin"), "day": pa.date32(), "span": pa.duration("us")}
    # pandas 3.0 replaces NaT of times with a zone by 1970 in the table that is converted: convert a copy.
    of_arrow = table.copy().astype({name: pd.ArrowDtype(kind) for name, kind in kinds.items()})
    model, other = (LaplaceRegressor(**QUICK).fit(rows, x) for rows in (table, of_arrow))
    assert model.table_.rows == other.table_.rows
    np.testing.assert_array_equal(model.predict(table), other.predict(of_arrow))
    with pytest.raises(ValueError, match="without a time zone, and the training rows had times with a time zone"):
        other.predict(of_arrow.assign(time=of_arrow["time"].dt.tz_localize(None)))
