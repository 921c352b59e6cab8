"""The tables of ``examples/benchmarks/speed.py`` on any device."""

from __future__ import annotations

import csv
import sys

import pytest
import speed
import torch


def test_a_table_has_the_name_of_its_device(tmp_path, monkeypatch, capsys):
    """``--quick`` with the seconds of a default regression, without the measurement of the machine's limits."""
    monkeypatch.setattr(speed, "limits", lambda device: (speed.title(device), 1.0))
    monkeypatch.setattr(speed, "import_time", lambda: "")
    arguments = ["speed.py", "--quick", "--device", "cpu", "--tables", "members", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    speed.main()
    with (tmp_path / "members.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["device"] == f"CPU, {torch.get_num_threads()} threads"
    assert row["rows"] == "150"
    assert 0 < float(row["fit, s"]) < 600
    assert "| 150 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "--device cuda: torch .* finds no CUDA device. Use --device cpu."),
        (["--tables", "passes,speed"], None),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, monkeypatch, capsys):
    """Before any measurement."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(speed, "limits", lambda device: ("", 1.0))
    monkeypatch.setattr(sys, "argv", ["speed.py", *arguments])
    with pytest.raises(SystemExit, match=message):
        speed.main()
    if not message:
        assert "has no tables ['speed']; expected some of passes, covariances" in capsys.readouterr().err
