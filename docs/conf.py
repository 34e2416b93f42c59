"""The site: `uv run --group docs sphinx-build -nW -b html docs site`; CONTRIBUTING.md says what that checks."""

import operator
import re
import sys
from pathlib import Path

from docutils import nodes
from math_core import LatexToMathML
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import jaxsolve


project, author, version = "jaxsolve", "The jaxsolve developers", jaxsolve.__version__
copyright = author
sys.path.insert(0, str(Path(__file__).parent))  # `beside` and `moving`
extensions = [
    "beside",
    "moving",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_llms_txt",
    "matplotlib.sphinxext.plot_directive",
    "myst_nb",
    "sphinx.ext.autosummary",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "furo"
html_title = f"jaxsolve {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False  # the sources are copied for llms.txt alone
templates_path = ["_templates"]
exclude_patterns = ["_templates", "_static", "gallery/*.py"]
copybutton_exclude = ".linenos, .gp, .go"
llms_txt_summary = (
    "A JAX library that simulates how neural networks learn, and solves it exactly where a solution is known."
)
llms_txt_exclude = ["generated/*", "notebooks/*", "performance", "precision", "reproduction"]  # tables of numbers
llms_txt_full_file = False

# Pages
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with what they print; a test executes them
plot_include_source = True
plot_html_show_formats = plot_html_show_source_link = False
plot_formats = [("png", 144)]

# The reference: a page per room, with what its `__init__` exports.
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
autodoc_default_options = {"members": True, "imported-members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar, napoleon_attr_annotations = True, False
napoleon_custom_sections = [("Other Arguments", "params_style"), ("Warns", "params_style")]
nitpick_ignore_regex = [("py:.*", ".*")]  # types of signatures; tests/test_references.py looks at names in text


def plain(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with `code`: reStructuredText's marks of emphasis and links are symbols here."""
    parts = re.split(
        r"(^ *>>> .*(?:\n.*\S.*)*)", "\n".join(lines), flags=re.MULTILINE
    )  # every second one is an example
    parts[::2] = map(_escaped, parts[::2])
    lines[:] = "".join(parts).split("\n")


def _escaped(text: str) -> str:
    pieces = re.split(r"(`[^`]*`|\$+[^$]+\$+)", text)  # every second one is code or an equation
    pieces[::2] = [re.sub(r"[*|]|(?<=\w)_\b", r"\\\g<0>", words) for words in pieces[::2]]
    marks = {"`": "``%s``", "$": ":math:`%s`"}
    pieces[1::2] = [marks[piece[0]] % " ".join(piece.strip("`$").split()) for piece in pieces[1::2]]
    return "".join(pieces)


def short(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Arrays by the name that people write."""
    return tuple(text and text.replace("jaxlib._jax.Array", "Array") for text in (signature, result))


def once(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """What `jaxsolve` itself exports stands on its page alone."""
    elsewhere = app.env.current_document.docname != "generated/jaxsolve"
    return True if elsewhere and getattr(jaxsolve, name.rpartition(".")[2], None) is obj else None


# Where the libraries describe what these pages name. Their inventories could not be read without a network.
ELSEWHERE = {
    "jax.": "https://docs.jax.dev/en/latest/_autosummary/{}.html",
    "eqx.nn": "https://docs.kidger.site/equinox/",
    "diffrax.": "https://docs.kidger.site/diffrax/",
    "optax.": "https://optax.readthedocs.io/en/latest/",
    "xarray.": "https://docs.xarray.dev/en/stable/generated/{}.html",
}
NAMED_APART = ("jax.config.update", "jax.distributed", "jax.sharding", "jax.pmap")  # pages of other names


def link(app: Sphinx, doctree: nodes.document) -> None:
    """Code that names something of the library, such as `js.solve`, or of those below it, leads to its description.

    In the table of docs/api.md a name goes on where the one before it in its row stands: `theory.phase`, `table_1`.
    """
    document = app.env.current_document.docname
    for code in list(doctree.findall(nodes.literal)):
        text = code.astext()
        if isinstance(code.parent, nodes.reference):
            continue
        found = re.fullmatch(r"js((?:\.\w+)+)(?:\(.*\))?", text)
        name = found[1].lstrip(".") if found else _of_the_table(code, text) if document == "api" else None
        if name is not None:
            here = dict(refdomain="py", reftype="obj", refexplicit=True, refdoc=document)
            code.replace_self(addnodes.pending_xref("", code.deepcopy(), reftarget=f"jaxsolve.{name}", **here))
            continue
        other = re.fullmatch(r"((?:jax|eqx|diffrax|optax|xarray)(?:\.\w+)+)(?:\(.*\))?", text)
        base = other and next((ELSEWHERE[start] for start in ELSEWHERE if other[1].startswith(start)), None)
        if base and not other[1].startswith(NAMED_APART):
            code.replace_self(nodes.reference("", "", code.deepcopy(), refuri=base.format(other[1])))


def _of_the_table(code: nodes.literal, text: str) -> str | None:
    """The full name of one that stands in a row of the table, after that of its room."""
    row = code.parent
    while row is not None and not isinstance(row, nodes.row):
        row = row.parent
    if row is None or not re.fullmatch(r"[\w.]+", text):
        return None
    room = ""
    for other in row.findall(nodes.literal):
        first, dot, _ = other.astext().partition(".")
        if dot and hasattr(jaxsolve, first):
            room = first
        if other is code:
            break
    return next((name for name in (text, f"{room}.{text}") if _exists(name)), None)


def _exists(name: str) -> bool:
    try:
        operator.attrgetter(name)(jaxsolve)
    except AttributeError:
        return False
    return True


def visit_math(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """An equation as MathML."""
    block = isinstance(node, nodes.math_block)
    self.body.append(LatexToMathML().convert_with_local_state(node.astext(), displaystyle=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(visit_math, None), block_renderers=(visit_math, None))
    app.connect("autodoc-skip-member", once)
    app.connect("autodoc-process-signature", short)
    app.connect("doctree-read", link)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon


html_math_renderer = "mathml"
