"""A diagnosis as HTML: a table of its numbers, and its picture inside."""

import base64
import io
from html import escape
from typing import TYPE_CHECKING

from ._diagnosis import shown


if TYPE_CHECKING:
    from ._diagnosis import Diagnosis

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .25rem .75rem; text-align: left; }
th { border-bottom: 2px solid #888; } td { border-bottom: 1px solid #ddd; vertical-align: top; }
img { max-width: 100%; }
"""


def page(diagnosis: "Diagnosis") -> str:
    """A whole page."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # whatever a name may hold, no script runs
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><title>Diagnosis</title><style>{_STYLE}</style></head><body>{body(diagnosis)}</body></html>'
    )


def body(diagnosis: "Diagnosis") -> str:
    """What a notebook shows."""
    near = " (near the boundary)" if diagnosis.near_boundary else ""
    parts = [f"<h2>{escape(diagnosis.regime.label.capitalize() + near)}</h2><p>{escape(diagnosis.text)}</p>"]
    parts.append(f'<img alt="{escape(diagnosis.text)}" src="data:image/png;base64,{_picture(diagnosis)}">')
    rows = []
    for name, found in diagnosis.findings.items():
        limit = ("", "") if found.limit is None else (f"{found.limit.value:g}", found.limit.source)
        rows.append((name.replace("_", " "), shown(found.value), limit[0], found.words, limit[1]))
    parts.append(_table(("number", "value", "limit", "what it says", "where the limit comes from"), rows))
    columns = list(diagnosis.by_group)
    rows = [
        (name, *(shown(float(diagnosis.by_group[column][index])) for column in columns))
        for index, name in enumerate(diagnosis.groups)
    ]
    parts.append(_table(("parameters", *(column.replace("_", " ") for column in columns)), rows))
    if diagnosis.notes:
        parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in diagnosis.notes) + "</ul>")
    return "".join(parts)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    line = lambda tag, cells: "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
    return "<table>" + line("th", heads) + "".join(line("td", row) for row in rows) + "</table>"


def _picture(diagnosis: "Diagnosis") -> str:
    buffer = io.BytesIO()
    figure = diagnosis.plot()
    figure.savefig(buffer, format="png", dpi=150)
    return base64.b64encode(buffer.getvalue()).decode()
