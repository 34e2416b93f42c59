"""Computing figures of the papers, drawing them, and judging their claims."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .._checks import describe, require_flag
from ._catalogue import find, names
from ._claim import Claim, Verdict
from ._figure import AbstractFigure, Runs, Scale
from ._images import images_used
from ._ledger import ledger
from ._page import page


MARK = "claims.json"  # a folder that has one, or nothing, is for reproductions


class Reproduced(NamedTuple):
    """A figure that has been reproduced.

    Attributes:
        name: such as "xu_ziyin/table1".
        folder: with figure.png, figure.pdf, claims.json and the stores.
        claims: with their verdicts.

    Example:
        >>> (done,) = js.papers.reproduce("xu_ziyin/table1")  # doctest: +SKIP
        >>> print(done.folder, len(done.claims))  # doctest: +SKIP
        reproduction/small/xu_ziyin/table1 20
    """

    name: str
    folder: Path
    claims: tuple[Claim, ...]


def reproduce(
    *figures: str,
    scale: Scale = Scale.SMALL,
    folder: str | os.PathLike = "reproduction",
    progress: bool = True,
) -> tuple[Reproduced, ...]:
    """Computes figures of the papers, draws them, and judges their claims.

    Arguments:
        figures: their names, such as "xu_ziyin/table1"; none takes all of `js.papers.names()`.
        scale: how much is computed: minutes on two cores, an hour on one GPU, or the paper's own setting.
        folder: for the pictures, stores and claims, the page index.html and the ledger of all claims. What was
            interrupted is carried on.
        progress: whether to show what is done, and how long the rest takes, on standard error.

    Returns:
        A `Reproduced` for each figure.

    Raises:
        ValueError: no figure has such a name.
        TypeError: scale is no `js.papers.Scale`.
        FileExistsError: the folder holds something else.

    Example:
        >>> done = js.papers.reproduce("xu_ziyin/table1")  # doctest: +SKIP
        >>> done[0].claims[0].verdict.value  # doctest: +SKIP
        'reproduced'
    """
    if not isinstance(scale, Scale):
        raise TypeError(f"scale must be one of js.papers.Scale, such as Scale.SMALL, got {describe(scale)}")
    require_flag(progress, "progress")
    chosen = dict(find(name) for name in figures or names())
    root = Path(folder).expanduser() / scale.value
    _require_ours(root)
    left, done = sum(figure.hours[scale] for figure in chosen.values()), []
    for number, (name, figure) in enumerate(chosen.items(), 1):
        if progress:
            _tell(f"[{number}/{len(chosen)}] {name} ({_duration(left)} left on two cores)")
        done.append(_reproduced(name, figure, Runs(root / name, scale, progress)))
        _write(root, scale)
        left -= figure.hours[scale]
    return tuple(done)


def hours(*figures: str, scale: Scale) -> float:
    """About how many hours figures take on two cores.

    Example:
        >>> js.papers.hours("xu_ziyin/table1", scale=js.papers.Scale.SMALL) < 0.1
        True
    """
    return sum(figure.hours[scale] for _, figure in map(find, figures))


def _reproduced(name: str, figure: AbstractFigure, runs: Runs) -> Reproduced:
    begin = time.perf_counter()
    runs.folder.mkdir(parents=True, exist_ok=True)
    data = figure.run(runs)
    picture = figure.draw(data)
    for suffix in ("png", "pdf"):
        picture.savefig(runs.folder / f"figure.{suffix}", dpi=200)
    claims = tuple(figure.claims(data))
    facts = {
        "name": name,
        "title": figure.title,
        "ours": figure.ours,
        "images": figure.images and images_used(figure.images, runs.scale),
        "scale": runs.scale.value,
        "seconds": round(time.perf_counter() - begin, 1),
        "claims": [claim.facts() for claim in claims],
    }
    (runs.folder / MARK).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return Reproduced(name, runs.folder, claims)


def _write(root: Path, scale: Scale) -> None:
    """The page and the ledger of all that lies in the folder, also from earlier calls."""
    files = [root / name / MARK for name in names()]
    known = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    (root / MARK).write_text(json.dumps({"scale": scale.value, "figures": known}, indent=1), encoding="utf-8")
    (root / "index.html").write_text(page(known, scale), encoding="utf-8")
    (root / "ledger.md").write_text(ledger(known, scale), encoding="utf-8")


def _require_ours(root: Path) -> None:
    """Raises FileExistsError for a file, or a folder that no reproduction made."""
    inside = sorted(item.name for item in root.iterdir()) if root.is_dir() else []
    papers = {name.partition("/")[0] for name in names()}
    strange = [name for name in inside if name not in (*papers, MARK, "index.html", "ledger.md")]
    if (root.exists() and not root.is_dir()) or strange:
        what = f"holds {strange[0]!r}" if strange else "is a file"
        raise FileExistsError(f"{root} {what}, which no reproduction made: choose another folder")


def _duration(hours: float) -> str:
    minutes = 60 * hours
    return f"about {minutes:.0f} min" if minutes >= 1.5 else "a minute" if minutes > 0.5 else "less than a minute"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def tally(done: Sequence[Reproduced]) -> dict[Verdict, int]:
    """How many claims came out how.

    Example:
        >>> js.papers.tally([])[js.papers.Verdict.DIFFERS]
        0
    """
    verdicts = [claim.verdict for one in done for claim in one.claims]
    return {verdict: verdicts.count(verdict) for verdict in Verdict}
