"""The examples run and print what they promise; the README's code prints what it shows.

An example takes ``--quick`` and ``--out DIR``, prints its tables as the quickstart does (columns apart by two
blanks or more, one row a method) and names each picture in a line ``saved PATH``. A new folder in ``examples`` is
picked up; what its tables have to hold goes into ``EXPECTED``.
"""

import doctest
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(ROOT.glob("examples/[1-3]_*/*.py"))

ANY = (-math.inf, math.inf)
COVERAGE, ACCURACY, CALIBRATION = (0.75, 1.0), (0.9, 1.0), (0.0, 0.15)
# script → table (how its title starts) → row → one (low, high) a column. Bounds say "sane", not "good": one quick split
# has about 130 rows, so that a coverage of .9 has a standard error of .03.
EXPECTED = {
    "quickstart": {
        "Diabetes": {
            "LaplaceRegressor()": [(45, 65), (-5.7, -5.2), COVERAGE],
            "its MAP, residual sigma": [(45, 65), (-5.9, -5.2), COVERAGE],
            "BayesianRidge()": [(45, 65), (-5.7, -5.2), COVERAGE],
        },
        "Curve with a gap": {
            # the noise is .25; an epistemic error bar that opens is at least twice as wide as on the data
            "LaplaceRegressor()": [COVERAGE, (0.2, 0.3), (0.0, 0.25), (0.0, 10.0), (2.0, math.inf)],
        },
        "Breast cancer": {
            "LaplaceClassifier()": [ACCURACY, (0.0, 0.25), CALIBRATION],
            'same fit, link="plugin"': [ACCURACY, (0.0, 0.25), CALIBRATION],
            "LogisticRegression()": [ACCURACY, (0.0, 0.25), CALIBRATION],
        },
        "Two moons": {
            "LaplaceClassifier()": [ACCURACY, (0.0, 0.25), CALIBRATION],
            'same fit, link="plugin"': [ACCURACY, (0.0, 0.25), CALIBRATION],
            "LogisticRegression()": [(0.8, 0.95), (0.0, 0.5), CALIBRATION],  # a line cannot follow the moons
        },
    },
}
PICTURES = {"quickstart": {"quickstart_gap.png", "quickstart_moons.png"}}


def tables(text):
    """Printed tables: title → row name → numbers."""
    found = {}
    for block in text.strip().split("\n\n"):
        title, *lines = block.splitlines()
        cells = [re.split(r"\s{2,}", line.strip()) for line in lines[1:]]
        if cells and all(len(row) > 1 for row in cells):
            found[title] = {name: [float(value) for value in values] for name, *values in cells}
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_runs_without_warnings_and_prints_sane_tables(script, tmp_path):
    """A first impression that fails, warns or shows nonsense is the last one."""
    run = subprocess.run(
        [sys.executable, "-W", "default", str(script), "--quick", "--out", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "warning" not in run.stderr.lower(), run.stderr
    pictures = {Path(line.removeprefix("saved ")) for line in run.stdout.splitlines() if line.startswith("saved ")}
    assert {path.name for path in pictures} >= PICTURES.get(script.stem, set())
    for path in pictures:
        check_picture(path)
    printed = tables(run.stdout)
    assert printed
    assert all(math.isfinite(value) for rows in printed.values() for row in rows.values() for value in row), printed
    for start, expected in EXPECTED.get(script.stem, {}).items():
        rows = next((rows for title, rows in printed.items() if title.startswith(start)), None)
        assert rows is not None, f"no table {start!r} in\n{run.stdout}"
        assert list(rows) == list(expected)
        for name, bounds in expected.items():
            inside = [low <= value <= high for value, (low, high) in zip(rows[name], bounds, strict=True)]
            assert all(inside), f"{start}, {name}: {rows[name]} is not within {bounds}"


def check_picture(path):
    """A PNG of a readable size that is not one flat colour."""
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", path
    assert 10_000 < path.stat().st_size < 1_000_000, path
    height, width = (image := matplotlib.image.imread(path)).shape[:2]
    assert 300 <= height <= 2000 and 500 <= width <= 3000, (path, height, width)
    assert image[..., :3].std() > 0.02, path


def test_there_is_a_quickstart():
    """The parametrisation above passes on an empty folder as well."""
    assert ROOT / "examples/1_quickstart/quickstart.py" in SCRIPTS


README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=range(len(PYTHON_BLOCKS)))
def test_readme_code_prints_what_it_shows(block):
    """The first code that a reader copies."""
    test = doctest.DocTestParser().get_doctest(block, {}, "README", "README.md", 0)
    assert test.examples
    report = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert failed == 0, "".join(report)


def test_readme_has_code_and_two_shell_blocks_and_its_pictures_exist():
    """The two commands are the whole set-up; a third block would be a step that they forgot."""
    assert PYTHON_BLOCKS
    assert len(re.findall(r"^```(?:bash|sh|console|shell)\n", README, flags=re.MULTILINE)) == 2
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert any(link.endswith(".png") for link in links)
    assert all((ROOT / link).exists() for link in links), links
