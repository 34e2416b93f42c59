"""The page of a report."""

import base64
import hashlib
import os
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from .._checks import describe
from ._content import content
from ._numbers import embed
from ._source import read_source
from ._tables import failures, manifest, summary


# Each uses what those before it say.
SCRIPTS = ("base", "controls", "figures", "axes", "theory", "map", "curves", "collapse", "start")


def write(data: Any, path: str | os.PathLike, *, theory: Any = None) -> Path:
    """Writes a sweep as one HTML page that needs no network: phase maps, trajectories, collapse plots, failures.

    Open it in any browser. Any two axes of the grid span the map, menus or medians take care of the others; regimes are
    those of `observe.classify`, from the losses and kernel changes where they were observed from t = 0 on. Numbers are
    rounded to float32.

    Arguments:
        data: what `sweep` returned, or the path of its store, which may be only partly filled.
        path: of the page, such as "report.html"; replaced if it exists.
        theory: the same kind of sweep (or store) by `theory.TwoLayerLine()`, over some or all of the axes, on a finer
            grid if you like; it draws theory's boundaries between regimes. It holds for two-layer linear networks on a
            line, and lanes that it refuses draw nothing. None draws them only if data itself is such a sweep.

    Returns:
        The path of the page.

    Raises:
        TypeError: data, path or theory are of another kind.
        FileNotFoundError: there is no such store, or no such folder for the page.
        ValueError: data is no sweep, none of its lanes has run, they are too many for a page, or theory is none.
        ModuleNotFoundError: plotly is not installed; `pip install "jaxsolve[report]"` does.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be that of the page, such as 'report.html', got {describe(path)}")
    plotly = _plotly()
    source = read_source(data, "data")
    drawn, notes = content(source, None if theory is None else read_source(theory, "theory"))
    script = _script()
    # Only these two scripts may run, whatever else finds its way into the page.
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
    target.write_text(page, encoding="utf-8", newline="\n")
    return target


def _script() -> str:
    """The JavaScript of the page, whose names are seen by nothing else."""
    return "\n".join(['"use strict";', "(() => {", *(_file(f"{name}.js") for name in SCRIPTS), "})();"])


def _file(name: str) -> str:
    return resources.files("jaxsolve.report").joinpath("page", name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _plotly() -> str:
    """The JavaScript of plotly, from its package."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'a report needs plotly, which is not installed: pip install "jaxsolve[report]"', name="plotly"
        ) from error
    return get_plotlyjs()
