"""The ledger of claims, as a page in Markdown: docs/reproduction.md."""

from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from ._catalogue import PAPERS
from ._claim import Verdict
from ._figure import Scale
from ._page import accepted, number


PREFACE = """# Figures of the papers, reproduced

{count} claims of the papers that jaxsolve builds on, each beside a measurement, at {scale} scale: {verdicts}.
This page is what these commands leave in `reproduction/{scale}/ledger.md`, with the pictures beside it:

```shell
jaxsolve data fetch mnist cifar10 # 200 MB; without them, figures of images are of scikit-learn's digits
jaxsolve reproduce all --scale {scale}
```

A claim is reproduced, or differs, where the whole interval of its measurement (95 %, over networks drawn anew) lies
within what is accepted as the same, or outside of it; else it is not decidable at this scale. Claims of one number
without an interval are of theory, or of one run. Settings said to be lost could not be read in the published text.
[Errata](errata.md) are about equations; this page is about figures.
"""


def ledger(figures: Sequence[dict[str, Any]], scale: Scale) -> str:
    """The page; its last part, on what is no figure, is others.md beside this file.

    Arguments:
        figures: the content of their claims.json, paper after paper.
        scale: of all of them.
    """
    verdicts = [claim["verdict"] for figure in figures for claim in figure["claims"]]
    counted = ", ".join(f"{verdicts.count(verdict.value)} {verdict.value}" for verdict in Verdict)
    preface = PREFACE.format(count=len(verdicts), scale=scale.value, verdicts=counted)
    sections = []
    for paper, found in groupby(figures, lambda figure: figure["name"].partition("/")[0]):
        sections.append(f"## {PAPERS[paper]}\n")
        sections += map(_section, found)
    others = resources.files("jaxsolve.papers").joinpath("others.md").read_text(encoding="utf-8")
    return "\n".join([preface, *sections, others])


def _section(figure: dict[str, Any]) -> str:
    images = f" Images: {figure['images']}." if figure["images"] else ""
    rows = [
        f"### {figure['name']}\n",
        f"{figure['title']}. Chosen here: {figure['ours']}{images}\n",
        "| claim | paper | accepted | here | verdict |",
        "|---|---|---|---|---|",
    ]
    for claim in figure["claims"]:
        said = _cell(claim["statement"]), _cell(claim["paper"]), accepted(claim), number(claim), claim["verdict"]
        rows.append(f"| {' | '.join(said)} |")
    return "\n".join([*rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
