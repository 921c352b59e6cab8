"""What was built leads somewhere: ``python docs/check_links.py docs/_build/html``.

Every link of every page to another one, and every anchor in it, has to exist; and every public name of the page of
names has to be a link to its reference.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Targets and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect them."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        self.targets += [values[key] for key in ("href", "src") if key in values]


def written(folder: Path) -> list[Path]:
    """The pages; not the theme's own pieces."""
    return [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]


def broken(folder: Path) -> list[str]:
    """Links that lead nowhere, as "page: target"."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in written(folder.resolve())}
    found = []
    for path, page in pages.items():
        for target in set(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            leads = other.is_file() and (
                not parts.fragment or other not in pages or unquote(parts.fragment) in pages[other].anchors
            )
            if not leads:
                found.append(f"{path.relative_to(folder.resolve())}: {target}")
    return found


def without_reference(folder: Path) -> list[str]:
    """Names of the page of names that are no links, and the first page's missing link to it."""
    text = Path(__file__).with_name("api.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `([\w.]+)` \|", text, flags=re.MULTILINE)
    reached = {target.partition("#")[2] for target in Page((folder / "api.html").read_text("utf-8")).targets}
    missing = [name for name in names if f"sklearn_laplace.{name}" not in reached]
    first = Page((folder / "index.html").read_text("utf-8")).targets
    return missing + ([] if "api.html" in first else ["index.html has no link to api.html"])


if __name__ == "__main__":
    built = Path(sys.argv[1])
    if problems := broken(built) + without_reference(built):
        raise SystemExit("\n".join(problems))
    print(f"{len(written(built))} pages, no broken links, every public name has its reference")
