"""A diagnosis as HTML, with tables of its numbers and an embedded picture."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple, TYPE_CHECKING


if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .25rem .75rem; text-align: left; }
th { border-bottom: 2px solid #888; } td { border-bottom: 1px solid #ddd; vertical-align: top; }
img { max-width: 100%; }
"""


class Table(NamedTuple):
    """A table of text with column heads."""

    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def page(title: str, text: str, figure: "Figure", tables: Sequence[Table], notes: Sequence[str]) -> str:
    """A complete HTML page."""
    inside = body(title, text, figure, tables, notes)
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # no script runs, whatever a name holds
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><title>Diagnosis</title><style>{_STYLE}</style></head><body>{inside}</body></html>'
    )


def body(title: str, text: str, figure: "Figure", tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The HTML that a notebook shows."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    picture = base64.b64encode(buffer.getvalue()).decode()
    parts = [f"<h2>{escape(title.capitalize())}</h2><p>{escape(text)}</p>"]
    parts.append(f'<img alt="{escape(text)}" src="data:image/png;base64,{picture}">')
    parts += map(_html, tables)
    if notes:
        parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    return "".join(parts)


def _html(table: Table) -> str:
    line = lambda tag, cells: "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
    return "<table>" + line("th", table.heads) + "".join(line("td", row) for row in table.rows) + "</table>"
