"""Configuration of Sphinx: ``sphinx-build -W -b html docs docs/_build/html``. ``.ci/docs`` checks the result.

Pages are plain Markdown that a code host can show. This file adds what only Sphinx can do:

- `PublicNames` turns public names in code style into links to the reference;
- `add_groups` renders the groups of parameters in the docstrings of the estimators as headings;
- `add_pictures` shows the stored figures of gallery scripts that are not executed.

The build needs no network.
"""

from __future__ import annotations

import inspect
import os
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
sys.path[:0] = [str(ROOT), str(DOCS)]  # DOCS: sphinx-gallery imports functions of this file by their names

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
exclude_patterns = ["_build", "_templates", "paper"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4

autodoc_typehints = "none"  # numpydoc's types say more
autosummary_generate = True
maximum_signature_line_length = 90
numpydoc_show_class_members = False  # the template and `is_not_ours` select the members of a page

toc_object_entries_show_parents = "hide"
html_theme = "pydata_sphinx_theme"
html_title = f"sklearn_laplace {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_sidebars = {"index": [], "**": ["sidebar-all.html"]}
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False, "navbar_center": ["sections.html"]}

EXAMPLES = ROOT / "examples"
EXECUTED = re.compile(r"/examples/(1_quickstart/plot_gallery|2_[a-z_]+/plot_[a-z0-9_]+)\.py$")
MODULES = sorted(path.stem for path in EXAMPLES.rglob("*.py") if "__main__" not in path.read_text(encoding="utf-8"))
"""Modules that the scripts import; they have no pages. The folder of benchmarks has none because it has no header."""
PICTURES = Path(tempfile.mkdtemp(prefix="gallery-"))
"""Folder in which executed scripts save their figures."""
STORED = {"first_hour": "images/first_hour.png", "quickstart": "images/gap.png"}
"""Stored figures of scripts that are not executed, besides those in ``papers/``."""
PARAMETERS = re.compile(r"(?<=^    )\*\*([a-z_, ]+)\*\*", re.MULTILINE)
"""Names of parameters at the beginning of a description."""
PREFIXES = "sklearn_laplace", "sklearn_laplace.options"
"""Modules whose names are links without their module."""
GROUP = re.compile(r"^( *)\*\*\[(\w+)\]\*\*\n *\.\.$", re.MULTILINE)
"""A group of parameters, as numpydoc writes the pseudo-parameter ``[Model]`` of a docstring."""


def options_of_script(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Command line of an executed script: the quick run, with a folder for its figures."""
    script = Path(script_vars["src_file"])
    quick = [] if script.stem == "plot_gallery" else ["--quick"]
    return [*quick, "--out", str(PICTURES / script.stem)]


def saved_pictures(block: tuple, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Collect the figures that a script has saved and closed; sphinx-gallery itself only collects open ones."""
    found = sorted((PICTURES / Path(block_vars["src_file"]).stem).glob("*.png"))
    shown = []
    for picture, path in zip(found, block_vars["image_path_iterator"], strict=False):
        Path(path).write_bytes(picture.read_bytes())
        shown.append(path)
    return figure_rst(shown, gallery_conf["src_dir"])


# Names instead of functions: a configuration that cannot be pickled makes Sphinx read every page again.
sphinx_gallery_conf = {
    "examples_dirs": str(EXAMPLES),
    "gallery_dirs": "auto_examples",
    "filename_pattern": EXECUTED.pattern,
    "ignore_pattern": rf"^({'|'.join(MODULES)})\.py$",
    "reset_argv": "conf.options_of_script",
    "image_scrapers": ["conf.saved_pictures"],
    "within_subsection_order": "FileNameSortKey",
    "plot_gallery": os.environ.get("GALLERY") != "0",
    "download_all_examples": False,
    "remove_config_comments": True,
    "write_computation_times": False,
    "show_memory": False,
    "abort_on_example_error": True,
}


def pictures_of(script: str) -> list[Path]:
    """Stored figures of a script, relative to the documentation."""
    if script in STORED:
        return [Path(STORED[script])]
    found = sorted(DOCS.glob(f"papers/{script}.png")) + sorted(DOCS.glob(f"papers/{script}_[a-z]*.png"))
    return [path.relative_to(DOCS) for path in found]


def add_pictures(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show the stored figures of a script that is not executed above its code."""
    folder, _, script = docname.rpartition("/")
    if folder.startswith("auto_examples/") and (found := pictures_of(script)):
        figures = "".join(f".. image:: /{path.as_posix()}\n   :alt: {path.stem}\n\n" for path in found)
        text, code, rest = source[0].partition(".. GENERATED FROM PYTHON SOURCE LINES")
        text, code, rest = (text + code + rest).partition(".. code-block:: Python")
        source[0] = text + figures + code + rest


def add_thumbnails(app: Sphinx) -> None:
    """Use the first stored figure of a script as its picture in the gallery."""
    for script in EXAMPLES.glob("*/*.py"):
        thumbnail = DOCS / "auto_examples" / script.parent.name / f"images/thumb/sphx_glr_{script.stem}_thumb.png"
        if (found := pictures_of(script.stem)) and thumbnail.exists():
            scale_image(str(DOCS / found[0]), str(thumbnail), 400, 280)


def replace_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace links that lead out of the documentation: the folder of examples is the gallery, others become text.

    Links to files stay; Sphinx offers these for download.
    """
    folder = app.env.doc2path(docname).parent

    def text_or_link(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target == EXAMPLES:
            return f"[{link[1]}]({'../' * docname.count('/')}auto_examples/index.rst)"
        leads_out = not target.is_relative_to(DOCS) and (target.is_dir() or target.suffix == ".md")
        return link[1] if leads_out else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)\)", text_or_link, source[0])


def add_groups(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Render the groups of an estimator's parameters as headings, with links to the page on parameters.

    It runs after numpydoc.
    """

    def linked(names: re.Match[str]) -> str:
        return ", ".join(f"`{one} <../parameters.html#{one.replace('_', '-')}>`__" for one in names[1].split(", "))

    text = "\n".join(lines)
    if GROUP.search(text):
        text = GROUP.sub(r"\1.. rubric:: \2\n\1   :class: parameter-group\n", text)
        parameters, heading, rest = text.partition(":Attributes:")
        parameters = PARAMETERS.sub(linked, parameters).replace('"Parameters in detail"', ":doc:`/parameters`")
        lines[:] = (parameters + heading + rest).split("\n")


class PublicNames(SphinxPostTransform):
    """Turn public names in code style into links: `LaplaceRegressor.predict_std`, `metrics.neg_nlpd`, `Kron`.

    A single lower-case word (`save`, `predictive`) may also be a parameter, so it becomes a link on the API page only.
    """

    default_priority = 5  # before references are resolved

    def run(self, **kwargs: Any) -> None:
        """Wrap each name in a reference, which Sphinx then resolves."""
        objects = self.env.domains["py"].objects  # type: ignore[attr-defined]
        for node in list(self.document.findall(nodes.literal)):
            name = node.astext().removesuffix("()").removeprefix("sklearn_laplace.")
            full = next((found for found in (f"{prefix}.{name}" for prefix in PREFIXES) if found in objects), None)
            if full is None or not self._is_name(name, node):
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
    """Skip members that scikit-learn and torch document, fields, which numpydoc lists, and internals of options."""
    found = inspect.unwrap(member.fget if isinstance(member, property) else member)
    module = getattr(found, "__module__", None) or ""
    ours = module.startswith("sklearn_laplace") and not module.startswith("sklearn_laplace._options")
    return True if not ours or name.endswith("_request") else None


def setup(app: Sphinx) -> None:
    """Connect the functions above to Sphinx."""
    app.connect("autodoc-skip-member", is_not_ours)
    app.add_post_transform(PublicNames)
    app.connect("source-read", add_pictures)
    app.connect("source-read", replace_links)
    app.connect("autodoc-process-docstring", add_groups, priority=900)  # numpydoc has 500
    app.connect("builder-inited", add_thumbnails, priority=900)  # after sphinx-gallery
