"""Checks of the built sdist and wheel: ``python tests/support/built.py DIST FROM_TREE [--tag TAG]``.

DIST holds the sdist and the wheel that was built from it. FROM_TREE holds the wheel built from the tree.
"""

from __future__ import annotations

import argparse
import re
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

MOST_KB = 800
"""Far above the code's own size, far below that of a table or a picture that slipped in."""


def only(folder: Path, pattern: str) -> Path:
    """The one file of that name."""
    [path] = folder.glob(pattern)
    return path


def contents(wheel: Path) -> dict[str, bytes]:
    """Files of a wheel."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_of(files: dict[str, bytes]) -> Message:
    """Fields of the package, with the long description as payload."""
    [name] = [name for name in files if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(files[name])


def check(dist: Path, tree: Path, tag: str) -> str:
    """Assert that the files may be published; return what was measured."""
    wheel = only(dist, "*.whl")
    files = contents(wheel)
    assert files == contents(only(tree, "*.whl")), "The wheel of the sdist differs from that of the tree."
    kb = wheel.stat().st_size / 1000
    assert kb < MOST_KB, f"The wheel has {kb:.0f} kB, more than {MOST_KB}. Leave data and pictures out of it."
    assert {name.split("/")[0].partition("-")[0] for name in files} == {"sklearn_laplace"}
    assert "sklearn_laplace/py.typed" in files
    metadata = metadata_of(files)
    assert metadata["License-Expression"] == "BSD-3-Clause" and metadata["License-File"] == "LICENSE"
    page = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", page)
    relative = [link for link in links if not link.startswith("https://")]
    assert links and not relative, f"Links of the package's page that lead nowhere: {relative}"
    version = metadata["Version"]
    assert tag in ("", f"v{version}"), f"The tag {tag} is not v{version}. Tag the commit that has that version."
    sdist = only(dist, "*.tar.gz").stat().st_size / 1000
    return f"version {version}: wheel {kb:.0f} kB in {len(files)} files, sdist {sdist:.0f} kB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--tag", default="")
    args = parser.parse_args()
    print(check(args.dist, args.tree, args.tag))
