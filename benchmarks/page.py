"""`python -m benchmarks.page FILE.json [FILE.json ...]`: writes docs/performance.md, a column for each file.

With runs of `precision` alone it writes docs/precision.md instead: accuracies are no timings, and have a page and
files of their own.
"""

import argparse
import ast
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .__main__ import NAMES
from ._said import BUSY


ROOT = Path(__file__).resolve().parent.parent
PAGE, PRECISION = ROOT / "docs" / "performance.md", ROOT / "docs" / "precision.md"
TIMED = tuple(name for name in NAMES if name != "precision")
NOTHING = "–"  # noqa: RUF001
SHOWN_BY_POWER = 1e4  # larger numbers are written as powers of ten, as are those below its inverse

INTRODUCTION = """\
# Performance

For those who ask whether jaxsolve is as fast as hand-written code: after this page you know where it is faster and
where slower, on two EPYC cores and an H200. Each ratio is a median of paired runs in one process, without an
interval. Tables list the missed goals; all rows are in the folded tables and in `benchmarks/results`. Cases that are
slower than a hand-written loop come first.

```{eval-rst}
.. plot:: gallery/performance.py
   :include-source: false
   :alt: Twelve bars. Slower: minibatches, large and small networks, easy flows. Faster: stiff flows, kernels, formulas.
```
"""

FOLDED = """\
`uv run python -m benchmarks --json FILE.json` measures these numbers; `uv run python -m benchmarks.page FILE.json`
writes this page. A goal is a bound that the benchmark checks. [Performance notes](performance-notes.md) explain the
numbers, and what was tried without success. In the folded tables one column compares each number with the best
alternative, or with a reference (such as the matrix products alone, of which jaxsolve may need fewer, or a
tolerance): "1/3 of X" is a third of the number for X, "2 x X" is twice that number. It is empty for yes-or-no
results, and for some numbers of runs before 2026-11-27.
"""


OF_PRECISION = """\
# What float32 gives

For those who work in float32: after this page you know how many digits of each number are correct.

`uv run python -m benchmarks precision --json FILE.json` computes these numbers, and `uv run python -m benchmarks.page
FILE.json` writes this page. **no** marks an error larger than its goal.

"""


def precision_page(runs: dict[str, dict[str, Any]]) -> str:
    """The page of accuracies, in Markdown: of `python -m benchmarks precision --json`, by the name of each column."""
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / "precision.py").read_text("utf-8"))) or ""
    made = {column: run["benchmarks"]["precision"] for column, run in runs.items()}
    where = [
        f"{column}: {run['machine']['device']}, JAX {run['machine']['versions']['jax']}, {made[column]['date']}, "
        f"{'the quick part' if made[column]['quick'] else 'whole'}"
        for column, run in runs.items()
    ]
    return OF_PRECISION + "\n\n".join([text, "; ".join(where) + ".", _rows(made)])


def page(runs: dict[str, dict[str, Any]]) -> str:
    """The page, in Markdown.

    Arguments:
        runs: what `python -m benchmarks --json` has kept, by the name that heads its column.
    """
    machines = "\n".join([_table(["", *runs], _machines(runs)), _warnings(runs)])
    parts = [INTRODUCTION, FOLDED, _folded("Machines, versions, and what did not run", machines)]
    parts += [_benchmark(name, runs) for name in TIMED if any(name in run["benchmarks"] for run in runs.values())]
    return "\n".join(parts)


def _folded(title: str, content: str) -> str:
    """What a reader opens to see."""
    return f":::{{dropdown}} {title}\n\n{content}\n:::\n"


def _machines(runs: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Rows that say where and how each run was made."""
    machines = [run["machine"] for run in runs.values()]
    seconds = [sum(one["seconds"] for one in run["benchmarks"].values()) for run in runs.values()]
    rows = [
        ["device", *(f"{m['devices']} x {m['device']}" for m in machines)],
        ["processor", *(f"{m['processor']}, {m['cores']} cores, {m['memory'] / 1e9:.0f} GB" for m in machines)],
        ["date", *(_dates(run) for run in runs.values())],
        ["commit", *(_commits(run) for run in runs.values())],
        ["most memory held", *(_memory(run) for run in runs.values())],
        ["command", *(_command(run) for run in runs.values())],
        ["part", *(_part(run) for run in runs.values())],
        ["took", *(f"{took / 60:.0f} min" for took in seconds)],
        ["python", *(m["python"] for m in machines)],
    ]
    packages = dict.fromkeys(name for m in machines for name in m["versions"])
    return [*rows, *([name, *(m["versions"].get(name) or NOTHING for m in machines)] for name in packages)]


def _dates(run: dict[str, Any]) -> str:
    dates = [one["date"] for one in run["benchmarks"].values()]
    return " to ".join(sorted({min(dates), max(dates)}))


def _commits(run: dict[str, Any]) -> str:
    """That of most benchmarks, and others with what is of them; older ones do not say."""
    of: dict[str, list[str]] = {}
    for name, one in run["benchmarks"].items():
        commit, mark, rest = (one.get("commit") or "").partition("-")
        of.setdefault(f"{commit[:7] or 'not known'}{mark}{rest}", []).append(name)
    most, *others = sorted(of, key=lambda commit: -len(of[commit]))
    return ", ".join([most, *(f"{commit} ({' '.join(of[commit])})" for commit in others)])


def _memory(run: dict[str, Any]) -> str:
    """By one process, on the host and on the device if that is another."""
    done = run["benchmarks"].values()
    host, device = (
        max((one.get(kind) or 0.0 for one in done), default=0.0) for kind in ("peak_memory", "device_memory")
    )
    return f"{host / 1e9:.1f} GB on the host" + (f", {device / 1e9:.1f} GB on the device" if device else "")


def _command(run: dict[str, Any]) -> str:
    """Those that measure the same."""
    done, said = run["benchmarks"], []
    for option in ("", " --quick"):
        names = [name for name in TIMED if name in done and done[name]["quick"] == bool(option)]
        if names:
            named = "" if len(names) == len(TIMED) else f" {' '.join(names)}"
            said.append(f"`uv run python -m benchmarks{named}{option}`")
    return ", ".join(said)


def _part(run: dict[str, Any]) -> str:
    """How much of those benchmarks."""
    quick = [one["quick"] for one in run["benchmarks"].values()]
    return "all" if not any(quick) else "the quick part" if all(quick) else "as the commands say"


def _warnings(runs: dict[str, dict[str, Any]]) -> str:
    """What ran while others used the machine, what did not run to its end, and what did not run."""
    said = []
    for column, run in runs.items():
        done = run["benchmarks"]
        of = f" ({column})" if len(runs) > 1 else ""
        noisy = [f"{name} ({one['busy']:.0f} %)" for name, one in done.items() if one["busy"] > BUSY]
        for what, names in (
            (f"Noisy{of}, since others used more than {BUSY:g} % of the cores, so trust ratios more than times", noisy),
            (f"Not finished{of}", [name for name, one in done.items() if one["failed"]]),
            (f"Not run{of}", [name for name in TIMED if name not in done]),
        ):
            said += [f"- {what}: {', '.join(names) or 'none'}."]
    return "\n".join([*said, ""])


def _benchmark(name: str, runs: dict[str, dict[str, Any]]) -> str:
    """Its table, with a column for each run that has made it."""
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text("utf-8"))) or ""
    made = {column: run["benchmarks"][name] for column, run in runs.items() if name in run["benchmarks"]}
    judged = [row["met"] for one in made.values() for row in one["rows"] if row["met"] is not None]
    said = f"{sum(judged)} of {len(judged)} goals met" if judged else "No goals"
    missed = [
        [row["what"], column, f"{row['sense']} {_number(row['goal'])}", f"**{_number(row['measured'])}**", _beside(row)]
        for column, one in made.items()
        for row in one["rows"]
        if row["met"] is False
    ]
    parts = [f"## {name}", "", f"{' '.join(text.split(chr(10) * 2)[0].split())} {said}{':' if missed else '.'}", ""]
    if missed:
        parts.append(_table(["missed", "run", "goal", "measured", "beside the best peer, or a reference"], missed))
    return "\n".join([*parts, _folded(f"All rows of {name}", _rows(made))])


def _rows(made: dict[str, dict[str, Any]]) -> str:
    """The table of one benchmark, by the name of each column."""
    found = {column: {row["what"]: row for row in one["rows"]} for column, one in made.items()}
    rows = []
    for what in dict.fromkeys(what for column in found.values() for what in column):
        of = [column.get(what) for column in found.values()]
        first = next(row for row in of if row)
        goal = f"{first['sense']} {_number(first['goal'])}" if first["goal"] is not None else ""
        met = [{None: NOTHING, True: "yes", False: "**no**"}[row["met"] if row else None] for row in of]
        beside = [_beside(row) if row else "" for row in of]
        notes = [row["note"] if row else "" for row in of]
        numbers = [_number(row["measured"]) if row else NOTHING for row in of]
        rows.append([what, *numbers, goal, _joined(met) if goal else "", _joined(beside), _joined(notes)])
    head = ["what", *found, "goal", "met", "beside the best peer, or a reference", "this run"]
    return _table(head, rows)


def _beside(row: dict[str, Any]) -> str:
    """How far it is to the best peer, or to what no way could do without."""
    ratio, name = row["measured"], row["peer"] or row["limit"]
    found = {name: _share(ratio if row["limit"] or row["sense"] == "<=" else _inverse(ratio))} if name else {}
    others = row.get("beside", {}).items()  # older files have none
    found |= {other: _share(None if ratio is None or not value else ratio / value) for other, value in others}
    return "; ".join(f"{share} {name}" if share else f"{name}: {NOTHING}" for name, share in found.items())


def _inverse(ratio: float | None) -> float | None:
    return 1 / ratio if ratio else None


def _share(ratio: float | None) -> str:
    """Of another number."""
    if ratio is None:
        return ""
    return f"{_number(ratio)} x" if ratio > 0.9995 or ratio <= 0 else f"1/{_number(1 / ratio)} of"


def _joined(said: Sequence[str]) -> str:
    """Of all columns: once if they agree."""
    return said[0] if len(set(said)) == 1 else " / ".join(one or NOTHING for one in said)


def _number(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size and not 1 / SHOWN_BY_POWER <= size < SHOWN_BY_POWER:
        return f"{value:.1e}"
    return f"{value:.0f}" if size >= 100 or value == math.floor(value) else f"{value:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, without the columns in which nothing stands."""
    kept = [index for index, name in enumerate(head) if not name or any(row[index] for row in rows)]
    lines = [[row[index] for index in kept] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([*("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines), ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes docs/performance.md from what `python -m benchmarks --json FILE.json` has kept, a column for each file.

    Of files that hold `precision` alone it writes docs/precision.md.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=main.__doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE.json", help="of one machine each; its name heads it"
    )
    files = parser.parse_args(arguments).files
    runs = {file.stem: json.loads(file.read_text("utf-8")) for file in files}
    if all(set(run["benchmarks"]) == {"precision"} for run in runs.values()):
        PRECISION.write_text(precision_page(runs), encoding="utf-8")
    else:
        PAGE.write_text(page(runs), encoding="utf-8")


if __name__ == "__main__":
    main()
