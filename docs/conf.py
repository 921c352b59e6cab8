"""How Sphinx builds the documentation: ``sphinx-build -W -b html docs docs/_build/html``. ``.ci/docs`` looks at it.

The pages are plain markdown and say nothing of Sphinx where they need not. What a code host cannot show is added here:
a name of the package in code style becomes a link to its reference (`PublicNames`), and a script of the gallery whose
figures are in ``papers/`` shows them (`add_pictures`). Nothing is fetched from a network.
"""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx_gallery.scrapers import figure_rst
from sphinx_gallery.utils import scale_image

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]  # the second for the names below, which sphinx-gallery imports in workers

import sklearn_laplace  # noqa: E402

project = "sklearn_laplace"
version = release = sklearn_laplace.__version__
copyright = "the authors of sklearn_laplace"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4

autodoc_typehints = "none"  # numpydoc's types say more
autosummary_generate = True
maximum_signature_line_length = 90
numpydoc_show_class_members = False  # `is_not_ours` says which are on a page

html_theme = "pydata_sphinx_theme"
html_title = f"sklearn_laplace {release}"
html_show_sourcelink = False
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}

EXAMPLES = ROOT / "examples"
EXECUTED = re.compile(r"/examples/(1_quickstart/plot_gallery|2_[a-z_]+/plot_[a-z0-9_]+)\.py$")
MODULES = sorted(path.stem for path in EXAMPLES.rglob("*.py") if "__main__" not in path.read_text(encoding="utf-8"))
"""Imported by the scripts; no pages of their own. (The folder of benchmarks has none, as it has no header.)"""
PICTURES = Path(tempfile.mkdtemp(prefix="gallery-"))
"""Where the executed scripts save their figures."""


def options_of_script(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """The command line of an executed script: the quick run, its pictures in a folder of its own."""
    script = Path(script_vars["src_file"])
    quick = [] if script.stem == "plot_gallery" else ["--quick"]
    return [*quick, "--out", str(PICTURES / script.stem)]


def saved_pictures(block: tuple, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The figures that a script has written and closed, as sphinx-gallery takes those that are still open."""
    found = sorted((PICTURES / Path(block_vars["src_file"]).stem).glob("*.png"))
    shown = []
    for picture, path in zip(found, block_vars["image_path_iterator"], strict=False):
        Path(path).write_bytes(picture.read_bytes())
        shown.append(path)
    return figure_rst(shown, gallery_conf["src_dir"])


# Strings in place of the functions: what cannot be pickled would have every page read anew.
sphinx_gallery_conf = {
    "examples_dirs": str(EXAMPLES),
    "gallery_dirs": "auto_examples",
    "filename_pattern": EXECUTED.pattern,
    "ignore_pattern": rf"^({'|'.join(MODULES)})\.py$",
    "reset_argv": "conf.options_of_script",
    "image_scrapers": ["conf.saved_pictures"],
    "within_subsection_order": "FileNameSortKey",
    "plot_gallery": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "write_computation_times": False,
    "show_memory": False,
    "abort_on_example_error": True,
}


def pictures_of(script: str) -> list[Path]:
    """Figures of a script's full run, where they are kept."""
    return sorted(DOCS.glob(f"papers/{script}.png")) + sorted(DOCS.glob(f"papers/{script}_[a-z]*.png"))


def add_pictures(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the kept figures of a script that is not executed in front of its code."""
    folder, _, script = docname.rpartition("/")
    if folder.startswith("auto_examples/") and (found := pictures_of(script)):
        figures = "".join(f".. image:: /papers/{path.name}\n   :alt: {path.stem}\n\n" for path in found)
        text, code, rest = source[0].partition(".. GENERATED FROM PYTHON SOURCE LINES")
        text, code, rest = (text + code + rest).partition(".. code-block:: Python")
        source[0] = text + figures + code + rest


def add_thumbnails(app: Sphinx) -> None:
    """Make the first kept figure the script's picture in the gallery."""
    for script in EXAMPLES.glob("*/*.py"):
        thumbnail = DOCS / "auto_examples" / script.parent.name / f"images/thumb/sphx_glr_{script.stem}_thumb.png"
        if (found := pictures_of(script.stem)) and thumbnail.exists():
            scale_image(str(found[0]), str(thumbnail), 400, 280)


def drop_ways_out(app: Sphinx, docname: str, source: list[str]) -> None:
    """Leave the text of a link to a folder or to the README: what is not of these pages is a file to download."""

    def text_or_link(link: re.Match[str]) -> str:
        target = (app.env.doc2path(docname).parent / link[2]).resolve()
        away = not target.is_relative_to(DOCS) and (target.is_dir() or target.suffix == ".md")
        return link[1] if away else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)\)", text_or_link, source[0])


class PublicNames(SphinxPostTransform):
    """A public name in code style is a link: `LaplaceRegressor.predict_std`, `metrics.neg_nlpd`.

    A single lower-case word (`save`, `predictive`) may be a parameter as well: it is one on the page of names alone.
    """

    default_priority = 5  # before references are resolved

    def run(self, **kwargs: Any) -> None:
        """Put a reference around each, which Sphinx then resolves."""
        objects = self.env.domains["py"].objects  # type: ignore[attr-defined]
        for node in list(self.document.findall(nodes.literal)):
            name = node.astext().removesuffix("()").removeprefix("sklearn_laplace.")
            full = f"sklearn_laplace.{name}"
            if full not in objects or not self._is_name(name, node):
                continue
            reference = addnodes.pending_xref(
                "", refdomain="py", reftype="obj", reftarget=full, refexplicit=True, refdoc=self.env.docname
            )
            node.replace_self(reference)
            reference += node

    def _is_name(self, name: str, node: nodes.Node) -> bool:
        parent = node.parent
        while parent is not None:
            if isinstance(parent, nodes.reference | nodes.title | addnodes.pending_xref | addnodes.desc):
                return False
            parent = parent.parent
        return "." in name or not name.islower() or self.env.docname == "api"


def is_not_ours(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn and torch document: inherited methods, and fields, which numpydoc lists."""
    found = inspect.unwrap(member.fget if isinstance(member, property) else member)
    module = getattr(found, "__module__", None) or ""
    return True if not module.startswith("sklearn_laplace") or name.endswith("_request") else None


def setup(app: Sphinx) -> None:
    """Sphinx's hooks of what is above."""
    app.connect("autodoc-skip-member", is_not_ours)
    app.add_post_transform(PublicNames)
    app.connect("source-read", add_pictures)
    app.connect("source-read", drop_ways_out)
    app.connect("builder-inited", add_thumbnails, priority=900)  # the gallery has been made by then
