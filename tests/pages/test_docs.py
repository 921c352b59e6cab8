"""The pages print what they show, lead somewhere, and are all found from the first one.

`docs/clients.md` runs in `tests/clients/test_page.py`, beside the packages that it is about, the README in
`test_examples.py`. What Sphinx makes of the pages is looked at by `.ci/docs`.
"""

from __future__ import annotations

import re
from pathlib import Path

import api
import pytest
from pages import FENCED, assert_prints_what_it_shows, python_blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("guide/*.md")])
ALL = [*PAGES, ROOT / "README.md"]
TEXT = {page: page.read_text(encoding="utf-8") for page in ALL}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def prose_of(page):
    """A page without its blocks and its code spans."""
    return re.sub(r"`[^`\n]+`", "", FENCED.sub("", TEXT[page]))


def links_of(page):
    """Targets of links and pictures; not those of other hosts."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose_of(page))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors_of(page):
    """Headings as a code host makes anchors of them, and as Sphinx is told to."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", TEXT[page]), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tocs_of(page):
    """Entries of a page's toctrees, as paths from the folder of the documentation."""
    blocks = [code for language, code in FENCED.findall(TEXT[page]) if language == "{toctree}"]
    entries = [line for code in blocks for line in code.split("\n") if line and line[0] != ":"]
    return [(page.parent / entry).relative_to(DOCS).as_posix() for entry in entries]


EXECUTED = [page for page in PAGES if python_blocks(TEXT[page]) and page.name != "clients.md"]


@pytest.mark.parametrize("page", EXECUTED, ids=name_of)
def test_a_page_prints_what_it_shows(page):
    """From the first block to the last, as a reader who copies them."""
    assert_prints_what_it_shows("\n".join(python_blocks(TEXT[page])), page.name)


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_every_block_of_python_is_one_that_is_executed(page):
    """A block without a prompt would be passed over in silence."""
    assert all(">>>" in code for code in python_blocks(TEXT[page]))


def test_there_are_pages_with_code():
    """The parametrisation above passes on an empty folder as well."""
    guide = {page.stem for page in EXECUTED if page.parent.name == "guide"}
    assert guide >= {"regression", "classification", "choosing", "tuning", "pipelines", "conformal", "active"}
    assert guide >= {"large", "gpu", "persistence", "tables", "noise", "nets", "updates"}
    assert {"index", "installing", "tutorial", "parameters", "selection"} <= {page.stem for page in EXECUTED}


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_links_lead_to_files_and_headings_that_exist(page):
    """A link that a code host shows and Sphinx resolves: relative, with the anchor of a heading."""
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors_of(found), target


def test_every_page_is_found_from_the_first_one():
    """A page is in one table of contents, and each entry is a page; the gallery is made when the pages are."""
    listed = [entry for page in PAGES for entry in tocs_of(page)]
    written = {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES}
    assert sorted(listed) == sorted(written - {"index"} | {"auto_examples/index"})


def test_the_standard_deviation_is_two_clicks_away():
    """From the first page to the names, from there to the method: what most readers come for."""
    assert "api.md" in links_of(DOCS / "index.md") and "api" in tocs_of(DOCS / "index.md")
    for kind in api.ESTIMATORS:  # conf.py makes a link of each such name
        assert f"| `{kind.__name__}.predict_std` |" in TEXT[DOCS / "api.md"]


def test_the_reference_has_every_public_name():
    """Sphinx makes a page of each entry; methods are on the pages of their classes."""
    blocks = [code for language, code in FENCED.findall(TEXT[DOCS / "reference.md"]) if language == "{eval-rst}"]
    listed = [line.strip() for code in blocks for line in code.split("\n") if re.match(r"   \w", line)]
    assert len(listed) == len(set(listed))
    names = [one.name for section in api.sections().values() for one in section]
    methods = tuple(f"{kind.__name__}." for kind in api.ESTIMATORS)
    engine = [one.found for axis in api.engine().values() for one in axis]
    wanted = {name for name in names if not name.startswith(methods)}
    wanted |= {f"{one.__module__}.{one.__name__}".removeprefix("sklearn_laplace.") for one in engine}
    assert wanted <= set(listed)


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_a_page_names_no_path_of_a_machine(page):
    """It would be that of the machine that it was written on."""
    assert not re.search(r"(?<![\w.])/(?:work|tmp|home|root|Users|mnt|opt)/|[A-Z]:\\", TEXT[page])
