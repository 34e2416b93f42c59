"""The page of errata: docs/errata.md."""

import math
from collections.abc import Sequence
from itertools import groupby

from ._erratum import Checked, Row


PREFACE = """# Errata

For those who use an equation of these papers: check here first whether it is printed correctly.

Errors found in the papers that jaxsolve builds on, and the equations it uses in their place.

Every number on this page is computed, and recomputed in about a minute by

```shell
jaxsolve errata --write docs/errata.md
```

A printed equation and its correction are both compared with integration of the weights of a network (gradient flow,
relative tolerance 1e-10) or with a direct computation.
Errors are relative to the largest true value, unless an item says otherwise; below 1e-6 they are those of the
integration. Where jaxsolve uses an equation beyond the case for which it was printed, the item says so.
"""

CLOSING = """## Not recomputed

Two slips in captions of Kunin et al.: appendix D.3 is headed as being on figure 5 and describes figure 6; the caption
of figure 11 calls $\\alpha < 1$ smoother, where the convention of the paper and its figure 6(b) have $\\alpha > 1$.
"""


def show_error(error: float) -> str:
    """An error with two digits; below the accuracy of the integration, only the bound."""
    if math.isinf(error):
        return "no number"
    if 0 < error < 1e-6:
        return "< 1e-6"
    return f"{error:.2g}"


def document(results: Sequence[Checked]) -> str:
    """The page, in Markdown, a section per paper.

    Arguments:
        results: what `js.papers.errata()` returns, or some of it.
    """
    sections = [_section(paper, list(found)) for paper, found in groupby(results, lambda one: one.erratum.paper)]
    return "\n".join([PREFACE, *sections, CLOSING])


def _section(paper: str, results: list[Checked]) -> str:
    head = [
        f"## {paper}",
        "",
        "| where | printed | corrected | error of printed | error of corrected |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_table_row, results), "", *map(_paragraph, results)])


def _table_row(result: Checked) -> str:
    erratum = result.erratum
    cells = [
        erratum.equation,
        erratum.printed,
        erratum.corrected,
        show_error(result.printed_error),
        show_error(result.corrected_error),
    ]
    return "| " + " | ".join(cells) + " |"


def _paragraph(result: Checked) -> str:
    erratum, row = result.erratum, _most_telling(result.table)
    numbers = f"measured {_number(row.truth)}, printed {_number(row.printed)}, corrected {_number(row.corrected)}"
    lines = [
        f"**{erratum.equation[0].upper()}{erratum.equation[1:]}.** {erratum.why}",
        f"Compared: {erratum.quantity}.",
        f"For example, {row.label}: {numbers}.",
    ]
    return "\n".join([*lines, ""])


def _most_telling(table: Sequence[Row]) -> Row:
    """The first row in which the printed equation is furthest from the truth, up to rounding."""
    distance = lambda row: math.inf if math.isnan(row.printed) else float(f"{abs(row.printed - row.truth):.6g}")
    return max(table, key=distance)


def _number(value: float) -> str:
    if math.isnan(value):
        return "nothing"
    return f"{value:.3g}" if abs(value) >= 1e-9 else "0"
