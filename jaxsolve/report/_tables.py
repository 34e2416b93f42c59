"""The tables of a report, as HTML in which every name is escaped."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from .._results import FIRST_FAILURE, RESULT_NAMES, RESULTS
from ._grid import coordinates
from ._source import Source


MAX_ROWS = 200  # in the table of failed lanes
PRIVATE = ("host", "pid")  # facts of a run that a page leaves out, since it may be sent to others


def summary(source: Source, notes: Sequence[str]) -> str:
    """HTML with a description of the sweep, and the notes for the reader."""
    grid = " × ".join(f"{name} {size}" for name, size in zip(source.dims, source.shape, strict=True))
    dynamics = source.dataset.attrs.get("dynamics", "unknown dynamics")
    line = f"{source.result.size} lanes ({grid}), {source.dataset['t'].size} times, {dynamics}"
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<p>{escape(line)}</p>" + (f'<ul class="notes" id="notes">{items}</ul>' if notes else "")


def failures(source: Source) -> str:
    """HTML with the number of lanes that ended with each result, and the coordinates of those that failed."""
    result = source.result
    counts = [(name, int(np.sum(result == code))) for code, name in enumerate(RESULT_NAMES)]
    counts = [("has not run", int(np.sum(result < 0))), *counts]
    parts = [_table(("result", "lanes"), [(name.replace("_", " "), count) for name, count in counts if count])]
    failed = np.flatnonzero(result >= FIRST_FAILURE)
    if not len(failed):
        return "".join([*parts, "<p>No lane has failed.</p>"])
    for code in np.unique(result[failed]):
        name = RESULT_NAMES[code]
        advice = str(RESULTS[getattr(RESULTS, name)])
        parts.append(f"<p><strong>{escape(name.replace('_', ' '))}</strong>: {escape(advice)}</p>")
    parts.append(f'<div id="failures">{_lanes(source, failed)}</div>')
    if len(failed) > MAX_ROWS:
        parts.append(f"<p>The first {MAX_ROWS} of {len(failed)} failed lanes.</p>")
    return "".join(parts)


def _lanes(source: Source, lanes: np.ndarray) -> str:
    along = coordinates(source)
    extra = [name for name in ("t_end", "steps") if name in source.dataset]
    numbers = [source.lane_array(name) for name in extra]
    rows = []
    for lane in lanes[:MAX_ROWS]:
        place = np.unravel_index(lane, source.shape)
        cells = [item["labels"][place[item["dim"]]] for item in along]
        name = RESULT_NAMES[source.result[lane]].replace("_", " ")
        rows.append([*cells, name, *(f"{values[lane]:.4g}" for values in numbers)])
    return _table([*(item["name"] for item in along), "result", *(name.replace("_", " ") for name in extra)], rows)


def manifest(source: Source) -> str:
    """HTML with units, how to cite, and the conditions in which the sweep ran."""
    units = [
        (str(name), item.attrs["units"], item.attrs.get("long_name", ""))
        for name, item in source.dataset.variables.items()
        if "units" in item.attrs
    ]
    attrs = {str(key): str(value) for key, value in source.dataset.attrs.items() if key not in ("citation", "manifest")}
    parts = [
        "<h3>Units</h3>",
        _table(("variable", "unit", ""), units),
        "<p>Time is gradient-flow time: every weight moves at its rate times minus the gradient of the loss.</p>",
        "<h3>How to cite</h3>",
        f'<p id="citation">{escape(source.citation)}</p>',
        "<h3>Made by</h3>",
        _table(("", ""), attrs.items()),
    ]
    if source.manifest:
        text = escape(json.dumps(_public(source.manifest), indent=1))
        parts.append(f'<details id="manifest"><summary>The whole manifest</summary><pre>{text}</pre></details>')
    return "".join(parts)


def _public(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without host names, process ids, and the settings of the problem function."""
    shown = dict(manifest)
    if isinstance(runs := shown.get("runs"), list):
        shown["runs"] = [_public_run(run) for run in runs if isinstance(run, dict)]
    if isinstance(plan := shown.get("plan"), dict) and "problem_fn" in plan:
        shown["plan"] = plan | {"problem_fn": _public_function(plan["problem_fn"])}
    return shown


def _public_function(told: Any) -> Any:
    """The table of a config, or only the name of any other problem function: its settings may hold passwords."""
    if isinstance(told, dict) and told.get("type") != "ConfiguredProblem":
        told = told.get("function", told.get("type"))  # stores of format 2 have "function"
        return told if isinstance(told, str) else "(function)"
    return told


def _public_run(run: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in run.items() if key not in PRIVATE}
    if isinstance(workers := shown.pop("workers", None), dict):  # numbers of lanes by "host, device"
        devices = [str(where).partition(", ")[2] or "unknown" for where in workers]
        shown["workers"] = {name: devices.count(name) for name in dict.fromkeys(devices)}
    return shown


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    top = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in head) if any(head) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'
