"""Damaged, incomplete and changing Parquet files end in one error with the name of the file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from quick import client

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._estimator import sources
from sklearn_laplace._table import source_of as recognise
from sklearn_laplace._table.source_of import source_of
from sklearn_laplace._training import batches as stream
from sklearn_laplace._training import recipe
from sklearn_laplace.errors import NonFiniteLossError, TableWarning

client("pyarrow")
N = 1200


def table(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    height, age = rng.uniform(1, 2, N), rng.uniform(0, 9, N)
    return pd.DataFrame({"height": height, "age": age, "price": height + rng.normal(size=N)})


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two files of six row groups each."""
    for place in range(2):
        table(place).to_parquet(tmp_path / f"{place}.parquet", row_group_size=200)
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-900])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def start_only(path: Path) -> None:
    path.write_bytes(b"PAR1")


def other_format(path: Path) -> None:
    path.write_text("height,age,price\n1,2,3\n")


def without_header(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(600) + content[604:])


def without_footer(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-300] + bytes(200) + content[-100:])


def without_input(path: Path) -> None:
    table(1).drop(columns="age").to_parquet(path)


def without_target(path: Path) -> None:
    table(1).drop(columns="price").to_parquet(path)


def with_a_wrong_checksum(path: Path) -> None:
    table(1).to_parquet(path, write_page_checksum=True)
    content = path.read_bytes()
    path.write_bytes(content[:3000] + bytes(200) + content[3200:])


DAMAGES = [
    (cut, "."),
    (empty, "0 bytes"),
    (start_only, "4 bytes"),
    (other_format, "."),
    (without_header, "."),
    (without_footer, "."),
    (without_input, "there is no column 'age'; its columns are height, price"),
    (without_target, "there is no column 'price'; its columns are height, age"),
    (with_a_wrong_checksum, "CRC checksum"),
]


@pytest.mark.parametrize("pattern", ["", "*.parquet"])
@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_damaged_file_is_named(folder, pattern, damage, reason):
    """The second file of two, found by the folder and by a pattern; the message has one line and says what to do."""
    damage(folder / "1.parquet")
    with pytest.raises(ValueError, match=rf"1\.parquet' cannot be read: .*{reason}.*write this one again") as caught:
        LaplaceRegressor().fit(os.path.join(folder, pattern), "price")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [cut, empty, start_only, other_format, without_footer])
def test_a_single_damaged_file_is_named(folder, damage):
    damage(folder / "0.parquet")
    with pytest.raises(ValueError, match=r"0\.parquet' cannot be read: "):
        LaplaceRegressor().fit(folder / "0.parquet", "price")


def test_columns_that_are_not_needed_may_be_missing(folder):
    """Only the columns of the fit are read for predictions."""
    model = LaplaceRegressor(n_members=1, prior_precision=1.0, sigma_noise=1.0, random_state=0)
    model.fit(folder / "0.parquet", "price")
    without_target(folder / "1.parquet")
    assert model.predict(folder).shape == (2 * N,)


def test_a_folder_without_files_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no files; expected a folder, a file or a pattern"):
        LaplaceRegressor().fit(tmp_path, "price")


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    table(7)[:300].to_parquet(path)


def written_again(path: Path) -> None:
    """The same length, other numbers, a later time."""
    table(8).to_parquet(path, row_group_size=200)
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 10**9))


@pytest.mark.parametrize("change", [removed, replaced, written_again, cut])
def test_a_file_that_changes_is_an_error(folder, change):
    """Its metadata are those of the first reading, so that other rows would be read without an error, or wrongly."""
    source = source_of(folder, "price")
    assert sum(len(block) for block in source.all_blocks()) == 2 * N
    change(folder / "1.parquet")
    with pytest.raises(OSError, match=r"1\.parquet' was changed or removed while its rows were being read"):
        list(source.all_blocks())


@pytest.fixture
def small_samples(monkeypatch):
    """Fits of 300 rows and more are streamed."""
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 300)
    monkeypatch.setattr(stream, "BUFFER_ROWS", 500)
    monkeypatch.setattr(recipe, "STEPS_AT_1000", (60, 40))


def test_a_file_that_goes_during_a_fit_ends_it(folder, small_samples, monkeypatch):
    """After the sample is drawn, by the thread that reads ahead. The model remains unfitted."""
    drawn = sources.sample_of

    def then_removed(*args):
        sample = drawn(*args)
        shutil.move(folder / "1.parquet", folder.parent / "elsewhere")
        return sample

    monkeypatch.setattr(sources, "sample_of", then_removed)
    model = LaplaceRegressor(random_state=0)
    with pytest.raises(OSError, match=r"1\.parquet' was changed or removed"):
        model.fit(folder, "price")
    assert not model.__sklearn_is_fitted__()


def test_a_huge_number_outside_the_sample_is_reported(folder, small_samples):
    """Overwritten bytes of a file without checksums are such numbers. The sample has about 300 of 2,400 rows."""
    rows = table(1)
    rows.loc[::300, "age"] = 1e300
    kept = source_of(folder, "price")
    chosen = sources.sample_of(kept, sources.Group(), 300).rows.X["age"].to_numpy()
    rows.loc[rows["age"].eq(1e300) & table(1)["age"].isin(chosen), "age"] = 1.0
    rows.to_parquet(folder / "1.parquet", row_group_size=200)
    model = LaplaceRegressor(random_state=0)
    with (
        pytest.warns(TableWarning, match=r"column 'age' of X holds a number of size 1e\+300, and others") as caught,
        pytest.raises(NonFiniteLossError, match=r"Look for numbers in X or y that are far larger"),
    ):
        model.fit(folder, "price")
    assert sum(warning.category is TableWarning for warning in caught) == 1  # of many blocks
