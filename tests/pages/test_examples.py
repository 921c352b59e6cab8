"""The examples run and print plausible tables; the README's code prints the output that it shows.

An example has the options ``--quick`` and ``--out DIR``. Its tables have a row per method, with columns separated by at
least two spaces, and a line ``saved PATH`` names each picture. ``EXPECTED`` has bounds for the tables.
"""

import importlib
import math
import re
import runpy
import sys
from pathlib import Path

import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest
import threadpoolctl
import torch
from pages import assert_prints_what_it_shows, python_blocks

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("examples/[1-3]_*/*.py"))
FIRST_HOUR = ROOT / "examples/1_quickstart/first_hour.py"
"""Prints text instead of tables, and has a test of its own."""
SCRIPTS = [path for path in FILES if "__main__" in path.read_text(encoding="utf-8") and path != FIRST_HOUR]

ANY = (-math.inf, math.inf)
CALIBRATION, POSITIVE = (0.0, 0.15), (0.0, math.inf)
NARROW = (0.83, 0.97)  # coverage of .9 on 2,000 rows
COST, NATS, GAIN = (
    (0.0, 50.0),
    (-5.9, -5.3),
    (-0.5, 0.5),
)  # of 2_choices: time, log-likelihood, difference
# script → start of the table's title → row → (low, high) per column. The bounds are wide: a quick fit has few rows.
EXPECTED = {
    "quickstart": {
        # the noise is 1, so the best RMSE is 1 and the best log-likelihood -1.42
        "Friedman's function": {
            "LaplaceRegressor()": [(-1.8, -1.4), (1.0, 1.5), NARROW, POSITIVE],
            "HistGradientBoosting": [(-2.2, -1.8), (1.5, 2.1), NARROW, POSITIVE],
            "BayesianRidge()": [(-2.6, -2.2), (2.3, 3.0), NARROW, POSITIVE],
        },
        "Classes with text columns": {
            "LaplaceClassifier()": [(0.35, 0.55), (0.75, 0.9), CALIBRATION, POSITIVE],
            "HistGradientBoosting": [(0.4, 0.7), (0.7, 0.9), CALIBRATION, POSITIVE],
            "LogisticRegression()": [(0.45, 0.65), (0.65, 0.85), CALIBRATION, POSITIVE],
        },
        "Curve with a gap": {
            # the noise is .25; in the gap the epistemic std is at least twice that on the data
            "LaplaceRegressor()": [NARROW, (0.2, 0.3), (0.0, 0.25), (0.0, 10.0), (2.0, math.inf), POSITIVE],
        },
        "Two moons": {
            # sure on the data, close to even odds far away
            "LaplaceClassifier()": [(0.0, 0.2), (0.85, 1.0), (0.6, 0.9), (0.5, 0.6), POSITIVE],
            'same fit, link="plugin"': [(0.0, 0.2), (0.85, 1.0), (0.75, 1.0), (0.65, 1.0), POSITIVE],
        },
        "A skorch net in a grid search": {
            f"prior_precision={value!r}": [(-4.0, -1.4)] for value in (1.0, 10.0, 100.0, "auto")
        },
    },
    "plot_gallery": {
        "Figures of the displays": {
            "share inside .95 intervals": [(0.85, 1.0)],
            "mean gap of the coverage": [(0.0, 0.1)],
            "expected calibration error": [CALIBRATION],
            "error rate on the moons": [(0.05, 0.25)],  # the noisy moons overlap
            "mean of the retention curve": [(0.0, 0.1)],  # below the error rate: confident predictions are correct
            "AUROC, unseen digits": [(0.8, 1.0)],
            "prior precision of the fit": [(1e-4, 1e4)],
            "largest relevance": [(0.1, 1.0)],  # one tenth for ten equally relevant columns
        },
    },
    "plot_structure": {
        # times relative to a training, kB (the largest matrix has 61² entries), nats; MAP alone stores no posterior
        "diabetes": {
            "MAP alone": [(1.0, 1.0), COST, (0.0, 0.0), NATS, (0.0, 0.0), (0.0, 0.0)],
            **{
                name: [COST, COST, (0.5, 200.0), NATS, GAIN, (0.0, 0.0)]
                for name in (
                    "full",
                    "functional",
                    "block_diagonal",
                    "ekfac",
                    "kron",
                    "low_rank_diag",
                    "low_rank",
                    "diag",
                )
            },
        },
    },
    "plot_subset": {
        "diabetes": {
            "MAP alone": [(0, 0), (1.0, 1.0), COST, (0.0, 0.0), NATS, (0.0, 0.0), (0.0, 0.0)],
            "all": [(61, 61), COST, COST, (50.0, 200.0), NATS, GAIN, (0.0, 0.0)],
            "last_layer": [(6, 6), COST, COST, (0.1, 5.0), NATS, GAIN, (0.0, 0.0)],
            **{
                f"{rule}, {share}": [(n, n), COST, COST, (0.0, 20.0), NATS, GAIN, (0.0, 0.0)]
                for rule in ("variance", "magnitude", "random")
                for share, n in (("2%", 1), ("10%", 6), ("30%", 18))
            },
        },
    },
    "plot_predictive": {
        "diabetes": {
            "glm": [COST, (0.001, 10.0), (0.0, 0.0), NATS, GAIN, (0.0, 0.0)],
            # few samples of the net itself, whose variance differs from that of the linearised net
            **{
                f"predictive mc, {n}": [COST, (0.001, 10.0), (0.0, 2.0), NATS, GAIN, (0.0, 0.0)]
                for n in (10, 100, 1000)
            },
        },
        "breast cancer": {
            "glm, quadrature": [COST, (0.01, 50.0), (0.0, 0.0), (-0.4, 0.0), GAIN, (0.0, 0.0)],
            "glm, mc": [COST, (0.01, 50.0), (0.0, 0.01), (-0.4, 0.0), GAIN, (0.0, 0.0)],
            "glm, moderated": [COST, (0.01, 50.0), (0.0, 0.02), (-0.4, 0.0), GAIN, (0.0, 0.0)],
            "glm, probit": [COST, (0.01, 50.0), (0.0, 0.02), (-0.4, 0.0), GAIN, (0.0, 0.0)],
            "glm, bridge": [COST, (0.01, 50.0), (0.0, 0.2), (-0.4, 0.0), GAIN, (0.0, 0.0)],
            "glm, bridge_norm": [COST, (0.01, 50.0), (0.0, 0.2), (-0.4, 0.0), GAIN, (0.0, 0.0)],
            "glm, plugin": [COST, (0.01, 50.0), (0.0, 0.2), (-0.4, 0.0), (0.0, 0.0), (0.0, 0.0)],
            **{
                f"predictive mc, {n}": [COST, (0.01, 50.0), (0.0, 0.2), (-0.4, 0.0), GAIN, (0.0, 0.0)]
                for n in (10, 100, 1000)
            },
        },
    },
    "plot_selection": {
        # selected precision, times relative to a training, kB, nats; gain relative to the first row
        "breast cancer": {
            "evidence": [(1e-4, 1e4), COST, COST, (1.0, 1e4), (-1.0, 0.0), (0.0, 0.0), (0.0, 0.0)],
            "number, 1": [(1.0, 1.0), COST, COST, (1.0, 1e4), (-1.0, 0.0), GAIN, (0.0, 0.0)],
            **{
                name: [(1e-4, 1e4), COST, COST, (1.0, 1e5), (-1.0, 0.0), GAIN, (0.0, 0.0)]
                for name in ("loo", "auto, one net", "auto")
            },
        },
    },
}
# script → start of the table's title, column, row, other row: the first number is the larger one
LARGER = {
    "quickstart": [
        ("Friedman's function", 0, "LaplaceRegressor()", "HistGradientBoosting"),
        ("Friedman's function", 0, "HistGradientBoosting", "BayesianRidge()"),
        ("Classes with text columns", 0, "HistGradientBoosting", "LaplaceClassifier()"),
        ("Classes with text columns", 0, "LogisticRegression()", "LaplaceClassifier()"),
        ("Two moons", 2, 'same fit, link="plugin"', "LaplaceClassifier()"),
        ("Two moons", 3, 'same fit, link="plugin"', "LaplaceClassifier()"),
    ],
}
DISPLAYS = [
    "coverage",
    "entropy",
    "feature_relevance",
    "overview",
    "prediction_interval",
    "prior_path",
    "reliability",
    "uncertainty",
]
PICTURES = {
    "quickstart": {"quickstart_gap.png", "quickstart_moons.png"},
    "plot_gallery": {f"gallery_{display}.png" for display in DISPLAYS},
}


def tables(text):
    """Printed tables: title → row name → numbers."""
    parsed = {}
    for block in re.split(r"\n{2,}", text.strip()):
        title, *lines = block.splitlines()
        cells = [re.split(r"\s{2,}", line.strip()) for line in lines[1:]]
        if cells and all(len(row) > 1 for row in cells):
            parsed[title] = {name: [float(value) for value in values] for name, *values in cells}
    return parsed


@pytest.fixture
def run(monkeypatch, capsys):
    """Function that runs a script with options in this process, which has already imported torch.

    It returns the printed text; warnings are errors.
    """

    def script(path, *options):
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, options)])
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            plt.close("all")
        return capsys.readouterr().out

    return script


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_runs_without_warnings_and_prints_sane_tables(script, run, tmp_path, monkeypatch):
    """Each example runs with ``--quick``; its pictures are valid and its tables within bounds."""
    monkeypatch.chdir(tmp_path)
    text = run(script, "--quick", "--out", tmp_path)
    pictures = {Path(line.removeprefix("saved ")) for line in text.splitlines() if line.startswith("saved ")}
    assert {path.name for path in pictures} >= PICTURES.get(script.stem, set())
    for path in pictures:
        check_picture(path)
    printed = tables(text)
    assert printed
    assert all(math.isfinite(value) for rows in printed.values() for row in rows.values() for value in row), printed
    for start, expected in EXPECTED.get(script.stem, {}).items():
        rows = next((rows for title, rows in printed.items() if title.startswith(start)), None)
        assert rows is not None, f"no table {start!r} in\n{text}"
        assert list(rows) == list(expected)
        for name, bounds in expected.items():
            inside = [low <= value <= high for value, (low, high) in zip(rows[name], bounds, strict=True)]
            assert all(inside), f"{start}, {name}: {rows[name]} is not within {bounds}"
    for start, column, larger, smaller in LARGER.get(script.stem, []):
        (rows,) = [rows for title, rows in printed.items() if title.startswith(start)]
        assert rows[larger][column] > rows[smaller][column], f"{start}, column {column}: {larger}, {smaller}\n{text}"


def check_picture(path):
    """Assert that the file is a PNG of a plausible size with some contrast."""
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", path
    assert 10_000 < path.stat().st_size < 1_000_000, path
    height, width = (image := matplotlib.image.imread(path)).shape[:2]
    assert 300 <= height <= 2000 and 500 <= width <= 3000, (path, height, width)
    assert image[..., :3].std() > 0.02, path


def test_the_first_hour_goes_from_dirty_files_to_intervals(run, tmp_path, monkeypatch, capsys):
    """Warnings about the dirt with their cures, which work; report, pictures, saved model, scores; both tables."""
    monkeypatch.syspath_prepend(str(FIRST_HOUR.parent))
    stand_ins = importlib.import_module("stand_ins")
    stand_ins.bike(130, seed=1).to_csv(tmp_path / "bike_sharing_hourly.csv", index=False)
    stand_ins.diamonds(130, seed=1).to_csv(tmp_path / "diamonds.csv.gz", index=False)
    text = run(FIRST_HOUR, "--quick", "--out", tmp_path / "out", "--data", tmp_path)
    steps = dict(part.split("\n", 1) for part in re.split(r"^--- ", text, flags=re.MULTILINE)[1:9])
    dirty, clean = (next(steps[name] for name in steps if name.startswith(start)) for start in ("fit", "apply"))
    assert dirty.count("TableWarning: ") == 2
    assert "X['dteday'] = pandas.to_datetime(X['dteday'])" in dirty and "na_values=['?']" in dirty
    assert "Warning" not in clean and "member, posterior (" in clean
    assert re.search(r"^dteday +date(, day of \w+)* +2011-", text, re.MULTILINE)
    assert re.search(r"^hum +number +\S", text, re.MULTILINE)
    assert text.count("90% intervals  ") == 2 and "equal predictions: True" in text
    assert "target_transform=None: log density" in text
    assert re.search(r"target_transform='log': log density.*\n.*, 0 of 33 below zero", text)
    assert len(re.findall(r"^[01] +-\d", text, re.MULTILINE)) == 2  # a line of scores for each fold
    for name in ("bike", "diamonds"):
        assert f"saved {tmp_path}/out/first_hour_{name}.png" in text
        check_picture(tmp_path / f"out/first_hour_{name}.png")
    assert (tmp_path / "out/first_hour_bike.safetensors").exists()


def test_eight_lines_lead_from_a_csv_file_to_a_loaded_model():
    """Imports included; ``test_docs.py`` runs the page."""
    page = (ROOT / "docs/first_hour.md").read_text(encoding="utf-8")
    [block] = [code for code in python_blocks(page) if "read_csv(folder" in code]
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) <= 8 and all(line.startswith(">>> ") for line in lines)
    assert [word for word in ("read_csv", "fit(", "predict_interval(", "save(", "load(") if word not in block] == []


@pytest.mark.parametrize("name", ["bike", "diamonds"])
def test_the_made_up_tables_are_like_the_public_ones(name, monkeypatch):
    """Columns, ranges and skewness of the originals, which are not distributed with the package."""
    monkeypatch.syspath_prepend(str(FIRST_HOUR.parent))
    table = vars(importlib.import_module("stand_ins"))[name](2000)
    if name == "bike":
        assert (table["casual"] + table["registered"] == table["cnt"]).all() and table["cnt"].min() >= 1
        assert 150 < table["cnt"].mean() < 230 and 600 < table["dteday"].nunique() < 731
    else:
        assert 2000 < table["price"].median() < 2900 < 3300 < table["price"].mean() < 4600
    assert len(table.columns) == {"bike": 17, "diamonds": 10}[name] and table.notna().all(axis=None)


QUICKSTART = ROOT / "examples/1_quickstart/quickstart.py"


def test_there_is_a_quickstart():
    """The parametrisation above would also pass on an empty folder."""
    assert QUICKSTART in SCRIPTS


@pytest.mark.parametrize(
    ("gain", "words"),
    [([0.9, 1.1], "better than b by +1.000"), ([-0.9, -1.1], "worse than b by -1.000"), ([-1, 1], "level with b by")],
)
def test_the_quickstart_calls_small_differences_level(gain, words, monkeypatch, capsys):
    """Two standard errors decide: .141, .141 and 1.41."""
    monkeypatch.syspath_prepend(str(QUICKSTART.parent))
    importlib.import_module("quickstart").print_gains({"a": np.array(gain), "b": np.zeros(2)})
    assert f"a is {words}" in capsys.readouterr().out


BENCHMARKS = ROOT / "examples/benchmarks"
MEASURING = sorted(path for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", MEASURING, ids=lambda path: path.stem)
def test_a_benchmark_says_what_it_measures(script, run, capsys):
    """Benchmarks need large data and hours; here they only print their help."""
    with pytest.raises(SystemExit) as end:
        run(script, "--help")
    printed = capsys.readouterr().out
    assert end.value.code == 0
    assert "--quick" in printed
    assert f"python examples/benchmarks/{script.name}" in printed


def test_fits_of_more_and_more_rows_are_written_and_drawn(run, tmp_path):
    with threadpoolctl.threadpool_limits(1):  # threads of boosting would compete with other test processes
        run(BENCHMARKS / "many_rows.py", "--quick", "--models", "HistGradientBoosting", "--out", str(tmp_path))
    lines = (tmp_path / "sizes.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[3] for line in lines] == ["rows", "300", "1500"]
    assert float(lines[2].split(",")[5]) > float(lines[1].split(",")[5])
    assert (tmp_path / "sizes.png").stat().st_size > 1000


def benchmark(name, monkeypatch):
    """Module of a benchmark; its folder is on the path."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


@pytest.mark.parametrize("test", [True, False])
def test_parts_of_a_split_are_disjoint_and_only_the_test_part_is_kept_apart(test, tmp_path, monkeypatch):
    """Every row is in exactly one part, and inner splits never contain test rows."""
    rng = np.random.default_rng(0)
    outside = np.stack([rng.permutation(100) < 10 for _ in range(2)])
    np.savez(tmp_path / "rows.npz", X=np.arange(100.0)[:, None], y=np.arange(100.0) + 1000, test_masks=outside)
    parts = benchmark("uci_sets", monkeypatch).parts
    splits = [parts(tmp_path / "rows.npz", split, test) for split in range(2)]
    for mask, (X, y, X_new, y_new) in zip(outside, splits, strict=True):
        assert (X[:, 0] + 1000 == y).all() and (X_new[:, 0] + 1000 == y_new).all()
        both = np.concatenate([X, X_new])[:, 0]
        expected = np.flatnonzero(mask) if test else np.setdiff1d(np.flatnonzero(~mask), X[:, 0])
        assert sorted(both) == (list(range(100)) if test else np.flatnonzero(~mask).tolist())
        assert len(X_new) == 10 and sorted(X_new[:, 0]) == expected.tolist()
    again = parts(tmp_path / "rows.npz", 0, test)
    assert all((first == second).all() for first, second in zip(splits[0], again, strict=True))
    assert not np.array_equal(splits[0][2], splits[1][2])


def test_refits_of_a_benchmark_use_the_derivatives_of_their_objective(monkeypatch):
    """The analytic derivatives agree with autodiff, and the refits end at a mode."""
    module = benchmark("leave_one_out", monkeypatch)
    generator = torch.Generator().manual_seed(0)
    features, targets, theta = (torch.randn(*n, generator=generator).double() for n in ((12, 3), (12,), (4 * 4 + 1,)))
    weights = torch.rand(12, generator=generator).double()
    objective = module.Objective(features, targets, weights, 0.5, 0.7, 0.1)

    def value(point):
        squares = weights @ (targets - objective.outputs(point)) ** 2
        return (squares / 0.1 + 0.7 * point @ point) / 2

    assert objective.value(theta) == pytest.approx(float(value(theta)), rel=1e-12)
    torch.testing.assert_close(objective.gradient(theta), torch.func.grad(value)(theta), rtol=1e-9, atol=1e-9)
    expected = torch.autograd.functional.hessian(value, theta)
    torch.testing.assert_close(objective.hessian(theta), expected, rtol=1e-9, atol=1e-9)
    end, steps = module.mode(objective, theta)
    assert 0 < steps < 200
    assert float(objective.gradient(end).norm()) < 1e-5
    assert float(torch.linalg.eigvalsh(objective.hessian(end))[0]) > 0
    assert objective.value(end) < objective.value(theta)


def test_gap_and_class_parts_keep_the_test_rows_apart(tmp_path, monkeypatch):
    """Inner splits use training rows only, and a gap is the middle third of a column."""
    sets = benchmark("uci_sets", monkeypatch)
    rng = np.random.default_rng(0)
    X = np.stack([np.arange(90.0), rng.permutation(90), rng.permutation(90)], axis=1)
    middle = np.stack([(column.argsort().argsort() // 30) == 1 for column in X.T])
    np.savez(tmp_path / "gap.npz", X=X, y=X[:, 0] + 1000, gap_test_masks=middle)
    assert sets.n_gap_splits(tmp_path / "gap.npz") == 3
    for column in range(3):
        fit, _, judged, _ = sets.gap_parts(tmp_path / "gap.npz", column, test=True)
        assert sorted(judged[:, column]) == list(range(30, 60)) and len(fit) == 60
        inner_fit, y, inner, y_inner = sets.gap_parts(tmp_path / "gap.npz", column, test=False)
        assert sorted(np.concatenate([inner_fit, inner])[:, 0]) == sorted(fit[:, 0])
        assert (inner_fit[:, 0] + 1000 == y).all() and (inner[:, 0] + 1000 == y_inner).all()
        other = (column + 1) % 3
        assert len(inner) == 20
        assert not ((inner_fit[:, other] > inner[:, other].min()) & (inner_fit[:, other] < inner[:, other].max())).any()
    labels = rng.permutation(200) < 80
    np.savez(tmp_path / "classes.npz", X=np.arange(200.0)[:, None], y=labels.astype(int))
    for split in range(2):
        kinds = {test: sets.class_parts(tmp_path / "classes.npz", split, test) for test in (True, False)}
        (fit, y, test, y_test), (same, _, validation, _) = kinds[True], kinds[False]
        assert np.array_equal(fit, same) and (len(fit), len(test), len(validation)) == (140, 30, 30)
        assert sorted(np.concatenate([fit, test, validation])[:, 0]) == list(range(200))
        assert y.mean() == y_test.mean() == 0.4


def test_nets_that_train_together_are_those_that_train_alone(monkeypatch):
    """Ensemble members of the peers and candidates for their weight decay are trained as a single batch."""
    peers = benchmark("quality_peers", monkeypatch)
    monkeypatch.setattr(peers, "ADAM_STEPS", 20)
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(30, 4, generator=generator), torch.randn(30, 1, generator=generator)
    for y in (target, (target[:, 0] > 0).long() + (target[:, 0] > 1).long()):
        first, second = peers.trained_nets(x, y, (6, 5), [1e-2, 1e-2], seed=3)
        (alone,) = peers.trained_nets(x, y, (6, 5), [1e-2], seed=3)
        torch.manual_seed(3)
        plain = peers._net([4, 6, 5, 1 if y.is_floating_point() else 3])
        loss_of = torch.nn.functional.mse_loss if y.is_floating_point() else torch.nn.functional.cross_entropy
        optimizer = torch.optim.Adam(plain.parameters(), lr=peers.RATE, weight_decay=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            loss_of(plain(x), y).backward()
            optimizer.step()
        for net in (first, alone):  # float32, twenty steps
            torch.testing.assert_close(net(x), plain(x), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(first(x), second(x), atol=1e-2)


def test_paired_differences_have_the_corrected_error_and_the_right_sign(monkeypatch):
    """Corrected variance (1/J + n_test / n_train) s² of Nadeau & Bengio (2003); a smaller loss is a positive gain."""
    report = benchmark("quality_report", monkeypatch)
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 10))
    mean, error = report.paired(first, second, 1 / 9)
    assert mean == pytest.approx(np.mean(first - second))
    assert error == pytest.approx(np.std(first - second, ddof=1) * math.sqrt(1 / 10 + 1 / 9))
    rows = [
        {"set": "a", "split": split, "model": model, "rows": 90.0, "judged": 10.0, "loss": value, "missing": math.nan}
        for model, values in {"ours": first, "theirs": second}.items()
        for split, value in enumerate(values)
    ]
    gained, gain_error, each = report.gain(rows, "a", "ours", "theirs", "loss", -1)
    assert (gained, gain_error) == pytest.approx((-mean, error))
    assert each == pytest.approx(second - first)
    assert math.isnan(report.gain(rows[:10], "a", "ours", "theirs", "loss", -1)[0])


def test_what_the_quality_benchmark_has_measured_is_not_measured_again(tmp_path, monkeypatch, capsys):
    """A second call reads the results from the CSV file and prints the same tables."""
    module = benchmark("quality", monkeypatch)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    outside = rng.permuted(np.tile(np.arange(90) < 9, (2, 1)), axis=1)
    (tmp_path / "uci_regression").mkdir()
    np.savez(tmp_path / "uci_regression/yacht.npz", X=X, y=np.sin(X[:, 0]) + 0.1 * X[:, 1], test_masks=outside)
    command = ["quality.py", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--quick", "--part", "regression"]
    monkeypatch.setattr("sys.argv", command)
    module.main()
    lines = capsys.readouterr().out.splitlines()
    measured = [line for line in lines if line.startswith("yacht 0 ")]
    assert [line.split(":")[0] for line in measured] == ["yacht 0 default", "yacht 0 BayesianRidge"]
    check_picture(tmp_path / "out/regression_inner.png")
    before = (tmp_path / "out/regression_inner.csv").read_bytes()
    monkeypatch.setattr(module, "LaplaceRegressor", None)
    module.main()
    again = capsys.readouterr().out.splitlines()
    assert again == [line for line in lines if line not in measured]
    assert (tmp_path / "out/regression_inner.csv").read_bytes() == before


def test_calibration_error_is_the_share_that_confidence_is_off(monkeypatch):
    """Bins of width .1: confidence .75 with accuracy .5 is an error of .25."""
    error = benchmark("quality", monkeypatch).calibration_error
    assert error(np.full(4, 0.75), np.array([True, False, True, False])) == pytest.approx(0.25)
    assert error(np.array([1.0, 1.0, 0.55, 0.55]), np.array([True, True, True, False])) == pytest.approx(0.025)


README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = python_blocks(README)


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=range(len(PYTHON_BLOCKS)))
def test_readme_code_prints_what_it_shows(block, tmp_path, monkeypatch):
    """The code runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    assert_prints_what_it_shows(block, "README.md")


def test_readme_has_code_and_two_shell_blocks_and_its_pictures_exist():
    """The two shell blocks are the complete installation."""
    assert PYTHON_BLOCKS
    assert len(re.findall(r"^```(?:bash|sh|console|shell)\n", README, flags=re.MULTILINE)) == 2
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert any(link.endswith(".png") for link in links)
    assert all((ROOT / link).exists() for link in links), links
