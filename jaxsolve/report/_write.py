"""The page of a report."""

import base64
import hashlib
import os
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from .._checks import require_path
from .._extras import needs
from ._content import content
from ._numbers import embed
from ._source import read_source
from ._tables import failures, manifest, summary


# In this order: each uses names that earlier ones define.
SCRIPTS = ("base", "controls", "figures", "axes", "theory", "map", "curves", "collapse", "start")


def write(data: Any, path: str | os.PathLike, *, theory: Any = None) -> Path:
    """Writes a sweep as one HTML page that needs no network: phase maps, trajectories, collapse plots, failures.

    Open it in any browser. Any two axes of the grid span the map; menus fix the others, or the map shows the median
    over them. Regimes are those of `js.observe.classify`, and need losses and kernel changes observed from t = 0 on.
    Numbers are rounded to float32. docs/report.md shows a page and says how to read it.

    Arguments:
        data: a dataset that `js.sweep` returned, or the path of its store, which may be only partly filled.
        path: where to write the page, such as "report.html"; an existing file is replaced.

    Other Arguments:
        theory: a sweep (or its store) by `js.theory.TwoLayerLine` over some or all of the same axes, possibly on a
            finer grid, from which theory's boundaries between regimes are drawn. The theory holds for two-layer linear
            networks on a line; lanes that it rejects draw nothing. None draws them only if data itself is such a sweep.

    Returns:
        The path of the page.

    Raises:
        TypeError: data, path or theory have the wrong type.
        FileNotFoundError: the store, or the folder for the page, does not exist.
        ValueError: data is not a sweep, none of its lanes has run, it has too many lanes for a page, or theory is not
            a sweep by the closed form.
        ModuleNotFoundError: plotly is not installed (the extra `plot`).

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> line = js.data.line(8, 2, key=jax.random.key(0))
        >>> def problem(gamma):
        ...     net = js.nets.TwoLayerLinear(
        ...         in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(gamma), key=jax.random.key(0)
        ...     )
        ...     return js.Problem(net, *line.train, centered=True)
        >>> run = js.sweep(problem, {"gamma": [0.1, 1.0]}, js.theory.TwoLayerLine(), [0.0, 1.0], progress=False)
        >>> with TemporaryDirectory() as folder:
        ...     js.report.write(run, f"{folder}/report.html").name
        'report.html'
    """
    require_path(path, "path", "that of the page, such as 'report.html'")
    plotly = _plotly()
    source = read_source(data, "data")
    drawn, notes = content(source, None if theory is None else read_source(theory, "theory"))
    script = _script()
    # Only these two scripts may run, whatever else gets into the page.
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in (plotly, script))
    page = Template(_file("page.html")).substitute(
        hashes=hashes,
        title=escape(f"{source.name}: report"),
        style=_file("page.css"),
        summary=summary(source, notes),
        failures=failures(source),
        manifest=manifest(source),
        data=embed(drawn),
        plotly=plotly,
        script=script,
    )
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder '{target.parent}' to write the report to; make it first")
    # Lone surrogates, which JSON can hold but UTF-8 cannot, become question marks.
    target.write_text(page, encoding="utf-8", errors="replace", newline="\n")
    return target


def _script() -> str:
    """The JavaScript of the page, in a scope of its own."""
    return "\n".join(['"use strict";', "(() => {", *(_file(f"{name}.js") for name in SCRIPTS), "})();"])


def _file(name: str) -> str:
    return resources.files("jaxsolve.report").joinpath("page", name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _plotly() -> str:
    """The JavaScript of plotly, from its package."""
    with needs("plot", "a report"):
        from plotly.offline import get_plotlyjs
    return get_plotlyjs()
