"""The pages of a reproduction: every picture beside its claims, and the ledger of claims, docs/reproduction.md."""

from collections.abc import Sequence
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any

from ._catalogue import PAPERS
from ._claim import Verdict
from ._figure import Scale


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.3rem 0.6rem; border-bottom: 1px solid #d9d9d9; vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.reproduced { color: #00664a; } .corrected { color: #0b5394; }
.differs { color: #a03d00; font-weight: bold; } .open { color: #595959; }
"""
CLASSES = {
    Verdict.REPRODUCED: "reproduced",
    Verdict.CORRECTED: "corrected",
    Verdict.DIFFERS: "differs",
    Verdict.UNDECIDED: "open",
}
# One figure per paper.
PICTURES = (
    "xu_ziyin/table1",
    "kunin/fig1",
    "atanasov/fig3",
    "geiger/table1",
    "goldt/committee",
    "bordelon/twolayer",
    "rhee/fig1",
    "scaling/bottlenecks",
    "schedules/phases",
    "zhang/saddles",
)
PREFACE = """# Figures of the papers, reproduced

{count} claims of the papers that jaxsolve builds on, each with a measurement, at {scale} scale: {verdicts}.
This page is what these commands leave in `reproduction/{scale}/ledger.md`, with the pictures beside it:

```shell
jaxsolve data fetch mnist cifar10 # 200 MB; without them, figures of images are of scikit-learn's digits
jaxsolve reproduce all --scale {scale}
```

`jaxsolve reproduce list` names the figures, and how long each takes.

A claim is reproduced, or differs, where the whole interval of its measurement (95 %, over tasks, data and networks
drawn anew) lies within the accepted range, or outside it; otherwise it is not decidable at this scale. It is
corrected where the printed value is refuted and that of an erratum holds. Claims with a single number and no interval
are theoretical, or from a single run. Each figure of images says which it used: the official files have 70000 (MNIST)
and 60000 (CIFAR-10), and other sets give other draws. Settings said to be lost could not be read in the published text.
[Errata](errata.md) are about equations; this page is about figures.
"""


def page(figures: Sequence[dict[str, Any]], scale: Scale) -> str:
    """The HTML page, which needs only the pictures beside it.

    Arguments:
        figures: the contents of their claims.json.
        scale: the scale of all figures.
    """
    count, verdicts = _counted(figures)
    head = f"<h1>Figures of the papers, reproduced</h1><p>Scale: {scale.value}. {count} claims: {verdicts}.</p>"
    body = "".join(_section(figure) for figure in figures)
    title = "<title>jaxsolve: figures of the papers</title>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{title}<style>{STYLE}</style></head>'
        f"<body>{head}{body}</body></html>\n"
    )


def _section(figure: dict[str, Any]) -> str:
    name, title = escape(figure["name"]), escape(figure["title"])
    picture = f'<figure><a href="{name}/figure.pdf"><img src="{name}/figure.png" alt="{title}"></a></figure>'
    rows = "".join(_row(claim) for claim in figure["claims"])
    columns = "".join(f'<th scope="col">{text}</th>' for text in ("claim", "paper", "accepted", "here", "verdict"))
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"
    images = f" Images: {escape(figure['images'])}." if figure["images"] else ""
    settings = f"<p>Chosen here: {escape(figure['ours'])}{images} It took {figure['seconds']:.0f} s.</p>"
    return f'<section id="{name}"><h2>{name}</h2><p>{title}.</p>{picture}{settings}{table}</section>'


def _row(claim: dict[str, Any]) -> str:
    verdict = Verdict(claim["verdict"])
    cells = "".join(f"<td>{escape(text)}</td>" for text in (claim["statement"], claim["paper"], accepted(claim)))
    return f'<tr>{cells}<td class="number">{number(claim)}</td><td class="{CLASSES[verdict]}">{verdict.value}</td></tr>'


def ledger(figures: Sequence[dict[str, Any]], scale: Scale) -> str:
    """The ledger in Markdown; its last part, on results outside figures, is others.md beside this file.

    Arguments:
        figures: the contents of their claims.json, paper by paper.
        scale: the scale of all figures.
    """
    count, verdicts = _counted(figures)
    sections = [PREFACE.format(count=count, scale=scale.value, verdicts=verdicts), *_summary(figures)]
    for paper, found in groupby(figures, lambda figure: figure["name"].partition("/")[0]):
        sections.append(f"## {PAPERS[paper]}\n")
        sections += map(_subsection, found)
    others = resources.files("jaxsolve.papers").joinpath("others.md").read_text(encoding="utf-8")
    return "\n".join([*sections, others])


def _summary(figures: Sequence[dict[str, Any]]) -> list[str]:
    """One screen: verdicts by paper, the claims that are corrected or differ, and one picture per paper."""
    kinds = [verdict.value for verdict in Verdict]
    rows = [f"| paper | claims | {' | '.join(kinds)} |", "|---" * (len(kinds) + 2) + "|"]
    found = {verdict: [] for verdict in (Verdict.CORRECTED, Verdict.DIFFERS)}
    pictures = []
    for paper, some in groupby(figures, lambda figure: figure["name"].partition("/")[0]):
        of_paper = list(some)
        verdicts = [claim["verdict"] for figure in of_paper for claim in figure["claims"]]
        counts = " | ".join(str(verdicts.count(kind)) for kind in kinds)
        rows.append(f"| {PAPERS[paper].rpartition(', ')[0]} | {len(verdicts)} | {counts} |")
        for figure in of_paper:
            for claim in figure["claims"]:
                if (verdict := Verdict(claim["verdict"])) in found:
                    said = f"paper {_cell(claim['paper'])}, here {number(claim)}"
                    found[verdict].append(f"- {figure['name']}: {_cell(claim['statement'])} ({said})")
            if figure["name"] in PICTURES:
                pictures.append(f"![{figure['name']}: {figure['title']}]({figure['name']}/figure.png)\n")
    wrong, other = found.values()
    listed = [["Corrected, where a paper is wrong:\n", *wrong, ""]] * bool(wrong)
    listed += [["Different from the papers at this scale:\n", *other, ""]] * bool(other)
    return ["## In short\n", *rows, "", *sum(listed, []), *pictures]


def _subsection(figure: dict[str, Any]) -> str:
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


def _counted(figures: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """The number of claims, and how many have each verdict, in words."""
    verdicts = [claim["verdict"] for figure in figures for claim in figure["claims"]]
    counted = ", ".join(f"{verdicts.count(verdict.value)} {verdict.value}" for verdict in Verdict)
    return len(verdicts), counted


def accepted(claim: dict[str, Any]) -> str:
    """The values that agree with the paper, in words."""
    said, corrected = _interval(*claim["accepted"]), claim.get("corrected")  # which older folders lack
    return f"{said}; corrected {_interval(*corrected)}" if corrected else said


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"> {low:g}" if high is None else f"< {high:g}"
    return f"{low:g} to {high:g}" if low < high else f"{low:g}"


def number(claim: dict[str, Any]) -> str:
    """The number that was measured, with its uncertainty, in words."""
    if claim["ours"] is None:
        return "no number"
    if claim["uncertainty"] is None:
        return f"{claim['ours']:.3g}, of one run"
    return f"{claim['ours']:.3g}" + (f" &plusmn; {claim['uncertainty']:.1g}" if claim["uncertainty"] else "")
