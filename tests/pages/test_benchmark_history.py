"""The history of ratios and the run of all benchmarks: what they measure, write, judge and return."""

from __future__ import annotations

import csv
import importlib
import re

import benchmark_tables
import history
import pytest

import sklearn_laplace

everything = importlib.import_module("all")


class Clock:
    """Processor time that only passes when a computation lets it."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def takes(self, name, *seconds):
        """Computation that takes these seconds in turn, and the last of them from then on."""
        left = list(seconds)

        def work():
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return work


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(history.time, "process_time", lambda: clock.now)
    return clock


def test_a_ratio_is_of_medians_of_interleaved_runs(clock):
    """The warm-up of 100 s and a run of 50 s among three do not count."""
    case = history.Case(clock.takes("ours", 100, 6, 50, 6), clock.takes("plain", 9, 2), n_runs=3)
    assert case.ratio() == 3.0
    assert clock.calls == ["ours", "plain"] * 4


def test_a_quick_ratio_takes_one_run(clock):
    assert (
        history.Case(clock.takes("ours", 8, 1), clock.takes("plain", 2), n_runs=5, n_calls=1).ratio(quick=True) == 4.0
    )
    assert clock.calls == ["ours", "plain"]


def planted(monkeypatch, clock, seconds):
    """A history of two cases, of which the first takes so many seconds; its threshold is 4."""
    found = {"slow": history.Case(clock.takes("ours", seconds), clock.takes("plain", 1), 1)}
    found["fast"] = history.Case(clock.takes("ours", 1), clock.takes("plain", 2), 1)
    monkeypatch.setattr(history, "THRESHOLDS", {"slow": 4.0, "fast": 4.0})
    monkeypatch.setattr(history, "cases", lambda folder: found)


def test_a_run_adds_a_line_and_fails_above_a_threshold(clock, monkeypatch, tmp_path, capsys):
    """The line is written in both cases: a history without its bad days is none."""
    path = tmp_path / "history.csv"
    planted(monkeypatch, clock, 3)
    assert history.main(["--out", str(path)]) == 0
    planted(monkeypatch, clock, 5)
    assert history.main(["--out", str(path)]) == 1
    assert "slow: 5 times plain torch, and at most 4 are allowed" in capsys.readouterr().out
    with path.open(newline="", encoding="utf-8") as file:
        head, first, second = csv.reader(file)
    assert head == ["version", "date", "torch", "slow", "fast"]
    assert first[0] == sklearn_laplace.__version__ and re.fullmatch(r"\d{4}-\d\d-\d\d", first[1])
    assert (first[3:], second[3:]) == (["3", "0.5"], ["5", "0.5"])


def test_a_quick_run_appends_and_judges_nothing(clock, monkeypatch, tmp_path):
    planted(monkeypatch, clock, 5)
    assert history.main(["--quick", "--out", str(tmp_path / "history.csv")]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_history_of_other_cases_is_not_continued(tmp_path):
    """Columns would be mixed up."""
    path = tmp_path / "history.csv"
    path.write_text("version,date,torch,other\n", encoding="utf-8")
    with pytest.raises(
        SystemExit, match=r"has the columns \['version', 'date', 'torch', 'other'\]; this script writes"
    ):
        history.append(path, dict.fromkeys(history.THRESHOLDS, 1.0))


def test_the_stored_history_has_ten_cases_below_their_thresholds():
    """Its last line is that of the present cases."""
    path = benchmark_tables.PAGE.parent / "benchmarks/history.csv"
    with path.open(newline="", encoding="utf-8") as file:
        *_, last = csv.DictReader(file)
    ratios = {name: float(last[name]) for name in history.THRESHOLDS}
    assert len(ratios) == 10 and history.judged(ratios) == []
    assert list(last) == [*history.HEAD, *history.THRESHOLDS]


# ---------------------------------------------------------------------- all scripts in one command

FINE = '''"""Prints its options.

More of it.
"""

import sys

if __name__ == "__main__":  # takes "--out"
    print(sys.argv[1:])
'''
FAILS = '"""Fails."""\n\nif __name__ == "__main__":\n    print("begun")\n    raise ValueError("planted")\n'
NEEDS = '"""Needs tables."""\n\nimport uci_sets\n\nif __name__ == "__main__":\n    uci_sets.parser(__doc__)\n'


@pytest.fixture
def folder(tmp_path):
    """Three scripts and a module."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name, text in (("fine", FINE), ("fails", FAILS), ("needs", NEEDS), ("helper_only", '"""No script."""\n')):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_all_scripts_run_and_the_page_says_which_failed(folder, tmp_path, capsys):
    """The status is that of the whole; a script without its tables is left out, which is no failure."""
    out = tmp_path / "out"
    assert everything.main(["--quick", "--out", str(out)], folder) == 1
    printed = capsys.readouterr().out
    assert "failed: fails\n" in printed and "left out, because they need --data DIR: needs\n" in printed
    page = (out / "page.md").read_text(encoding="utf-8")
    assert re.search(r"^\| fails \| failed \| \d+ \| Fails\. \|$", page, flags=re.MULTILINE)
    assert re.search(r"^\| fine \| fine \| \d+ \| Prints its options\. \|$", page, flags=re.MULTILINE)
    assert "| needs | left out | 0 | Needs tables. |" in page and "helper_only" not in page
    assert "begun" in page and "ValueError: planted" in page
    assert f"['--quick', '--out', {str(out / 'fine')!r}]" in page
    assert everything.main(["--quick", "--out", str(out), "--only", "fine"], folder) == 0


def test_an_unknown_script_is_refused(folder, tmp_path):
    """The message has the names."""
    with pytest.raises(SystemExit, match=r"--only names \['fin'\]; the scripts are fails, fine, needs\."):
        everything.main(["--quick", "--out", str(tmp_path), "--only", "fin"], folder)


def test_scripts_of_tables_get_their_folder(folder, tmp_path):
    """Those of the UCI splits get the inner folder; a run in full has no ``--quick``."""
    (script,) = everything.scripts(folder, ["needs"])
    assert script.arguments(False, tmp_path, tmp_path) == ["--data", str(tmp_path / "uci_regression")]
    names = {script.path.stem for script in everything.scripts(everything.FOLDER, [])}
    needing = {script.path.stem for script in everything.scripts(everything.FOLDER, []) if script.needs_data}
    assert {"quality", "class_peers", "heads"} <= needing and not needing & {"many_rows", "ablations", "far"}
    assert {"speed", "price", "history"} <= names and "all" not in names
