"""The paper claims only what the benchmarks have measured, and cites what it lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmark_tables import measured, numbers_of

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "docs/paper"
_, HEAD, TEXT = (PAPER / "paper.md").read_text(encoding="utf-8").split("---\n", 2)
SECTIONS = dict(zip(*[iter(re.split(r"^# (.+)\n", TEXT, flags=re.MULTILINE)[1:])] * 2, strict=True))
CLAIMS = [item for item in re.split(r"\n- |\n\n", SECTIONS["Measured results"]) if "csv" in item]


def files_of(text):
    return [ROOT / name for name in re.findall(r"docs/benchmarks/\w+\.csv", text)]


def unmeasured(text):
    """Numbers of a text that its CSV files do not have."""
    return sorted(set(numbers_of(text)) - measured(files_of(text)))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: re.search(r"\*\*(.+?)\*\*", claim)[1])
def test_each_number_is_in_the_file_that_the_claim_names(claim):
    """Equal to the last digit; the command is named too, and its script exists."""
    assert numbers_of(claim) and unmeasured(claim) == []
    (script,) = re.findall(r"`python (examples/benchmarks/\w+\.py)", claim)
    assert (ROOT / script).exists()


def test_the_numbers_of_the_limits_are_measured_too():
    assert len(numbers_of(SECTIONS["Limits"])) > 4 and unmeasured(SECTIONS["Limits"]) == []


def test_other_sections_have_no_numbers():
    """A number without a file would be a claim that nobody can check."""
    others = [text for name, text in SECTIONS.items() if name not in ("Measured results", "Limits")]
    assert [numbers_of(text) for text in others] == [[]] * len(others)


def test_a_planted_number_is_found():
    """One digit, a number without a file, and a changed sign."""
    claim = CLAIMS[0]
    assert unmeasured(claim.replace("1.020", "1.021")) == ["1.021"]
    assert unmeasured(claim.replace("yacht", "yacht 7.5 and")) == ["7.5"]
    assert unmeasured(claim.replace("−2.204", "2.204")) == ["2.204"]


def test_citations_and_references_are_the_same():
    cited = set(re.findall(r"@([a-z]+\d{4}[a-z]?)", TEXT))
    listed = re.findall(r"^@\w+\{(\w+),", (PAPER / "paper.bib").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(cited) and len(cited) > 15


def test_every_reference_can_be_found():
    """By DOI or address, with author, title and year."""
    entries = re.split(r"^@", (PAPER / "paper.bib").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for entry in entries:
        fields = set(re.findall(r"^  (\w+) = \{", entry, flags=re.MULTILINE))
        assert {"author", "title", "year"} <= fields and fields & {"doi", "url"}, entry


def test_the_paper_has_the_sections_and_the_length_of_the_journal():
    """JOSS: a summary, a statement of need, the state of the field, references; 250 to 1,000 words."""
    assert {"Summary", "Statement of need", "State of the field", "Limits", "References"} <= SECTIONS.keys()
    assert 250 <= len(TEXT.split()) <= 1000
    assert "bibliography: paper.bib" in HEAD
