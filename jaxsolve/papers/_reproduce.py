"""Computing figures of the papers, drawing them, and judging their claims."""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax

from .._checks import describe, require_flag, require_size
from ._catalogue import find, names
from ._claim import Claim, Verdict
from ._figure import AbstractFigure, Runs, Scale
from ._images import images_used, name_used
from ._page import ledger, page


MARK = "claims.json"  # a folder with this file, or an empty one, is for reproductions


class Reproduced(NamedTuple):
    """A figure that has been reproduced.

    Attributes:
        name: such as "xu_ziyin/table1".
        folder: holds figure.png, figure.pdf, claims.json and the stores.
        claims: the claims with their verdicts.
    """

    name: str
    folder: Path
    claims: tuple[Claim, ...]


def reproduce(
    *figures: str,
    scale: Scale = Scale.SMALL,
    folder: str | os.PathLike = "reproduction",
    progress: bool = True,
    processes: int = 1,
) -> tuple[Reproduced, ...]:
    """Computes figures of the papers, draws them, and judges their claims.

    Arguments:
        figures: names of figures, such as "xu_ziyin/table1"; without names, all of `js.papers.names()`.
        scale: how much is computed: minutes on two cores, an hour on one GPU, or the paper's own setting.
        folder: for the pictures, stores and claims, the page index.html and the ledger of all claims. Interrupted runs
            are resumed.
        progress: whether to show progress and the remaining time on stderr.
        processes: number of figures computed at once. Small ones are mostly compilation, which uses one core. As with
            `multiprocessing`, a script that asks for more than one begins with `if __name__ == "__main__":`.

    Returns:
        A `Reproduced` for each figure.

    Raises:
        ValueError: no figure has such a name, processes is below 1, or above 1 on an accelerator.
        TypeError: scale is not a `js.papers.Scale`, or processes is not an integer.
        FileExistsError: the folder holds something else.

    Example:
        >>> done = js.papers.reproduce("xu_ziyin/table1")  # doctest: +SKIP
        >>> done[0].claims[0].verdict.value  # doctest: +SKIP
        'reproduced'
    """
    if not isinstance(scale, Scale):
        raise TypeError(f"scale must be one of js.papers.Scale, such as Scale.SMALL, got {describe(scale)}")
    require_flag(progress, "progress")
    require_size(processes, "processes")
    if processes > 1 and jax.default_backend() != "cpu":
        raise ValueError(f"processes must be 1 on a {jax.default_backend()}, which they cannot share, got {processes}")
    chosen = dict(find(name) for name in figures or names())
    root = Path(folder).expanduser() / scale.value
    _require_ours(root)
    done: dict[str, Reproduced] = {}
    run = _one_by_one if processes == 1 else _at_once
    for one in run(chosen, root, scale, progress, processes):
        done[one.name] = one
        _write(root, scale)
    return tuple(done[name] for name in chosen)


def hours(*figures: str, scale: Scale) -> float:
    """The approximate hours that figures take on two cores."""
    return sum(figure.hours[scale] for _, figure in map(find, figures))


def _one_by_one(
    chosen: Mapping[str, AbstractFigure], root: Path, scale: Scale, progress: bool, _: int = 1
) -> Iterator[Reproduced]:
    for number, (name, figure) in enumerate(chosen.items()):
        if progress:
            left = hours(*list(chosen)[number:], scale=scale)
            _tell(f"[{number + 1}/{len(chosen)}] {name} ({_duration(left)} left on two cores)")
        yield _reproduced(name, figure, Runs(root / name, scale, progress))


def _at_once(
    chosen: Mapping[str, AbstractFigure], root: Path, scale: Scale, progress: bool, processes: int
) -> Iterator[Reproduced]:
    """In fresh processes, since JAX must not be forked. Figures that share a store run in sequence in one process."""
    groups: dict[str, list[str]] = {}
    for name, figure in chosen.items():
        groups.setdefault(f"{name.partition('/')[0]} {figure.shares}" if figure.shares else name, []).append(name)
    longest_first = sorted(groups.values(), key=lambda group: -hours(*group, scale=scale))
    left, count = hours(*chosen, scale=scale), 0
    settings = multiprocessing.get_context("spawn"), _begin_process, (jax.config.read("jax_enable_x64"),)
    with ProcessPoolExecutor(min(processes, len(groups)), *settings) as pool:
        try:
            waiting = {pool.submit(_group, group, root, scale): group for group in longest_first}
            for future in as_completed(waiting):
                yield from future.result()
                count, left = count + len(waiting[future]), left - hours(*waiting[future], scale=scale)
                if progress:
                    names, rest = ", ".join(waiting[future]), _duration(left / processes)
                    _tell(f"[{count}/{len(chosen)}] {names} ({rest} left on two cores)")
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_process(double: bool) -> None:
    """Sets the caller's precision in a fresh process."""
    jax.config.update("jax_enable_x64", double)


def _group(names: list[str], root: Path, scale: Scale) -> list[Reproduced]:
    return list(_one_by_one(dict(map(find, names)), root, scale, progress=False))


def _reproduced(name: str, figure: AbstractFigure, runs: Runs) -> Reproduced:
    from matplotlib.figure import Figure

    begin = time.perf_counter()
    runs.folder.mkdir(parents=True, exist_ok=True)
    data = figure.run(runs)
    picture = Figure(figsize=figure.size, layout="constrained")
    figure.draw(picture, data)
    for suffix in ("png", "pdf"):
        picture.savefig(runs.folder / f"figure.{suffix}", dpi=200)
    used = {one.value: name_used(one) for one in figure.images}
    claims = tuple(claim._replace(statement=_named(claim.statement, used)) for claim in figure.claims(data))
    facts = {
        "name": name,
        "title": _named(figure.title, used),
        "ours": figure.ours,
        "images": ", ".join(images_used(one, runs.scale) for one in figure.images),
        "scale": runs.scale.value,
        "seconds": round(time.perf_counter() - begin, 1),
        "claims": [claim.facts() for claim in claims],
    }
    (runs.folder / MARK).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return Reproduced(name, runs.folder, claims)


def _named(text: str, used: Mapping[str, str]) -> str:
    """The text with the names of the images used: digits may replace the paper's."""
    for paper, here in used.items():
        text = text.replace(paper, here)
    return text


def _write(root: Path, scale: Scale) -> None:
    """Writes the page and the ledger of all figures in the folder, including those of earlier calls."""
    files = [root / name / MARK for name in names()]
    known = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    (root / MARK).write_text(json.dumps({"scale": scale.value, "figures": known}, indent=1), encoding="utf-8")
    (root / "index.html").write_text(page(known, scale), encoding="utf-8")
    (root / "ledger.md").write_text(ledger(known, scale), encoding="utf-8")


def _require_ours(root: Path) -> None:
    """Raises FileExistsError if root is a file, or a folder with anything but reproductions."""
    inside = sorted(item.name for item in root.iterdir()) if root.is_dir() else []
    inside = [name for name in inside if not name.startswith(".")]  # such as .DS_Store
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
    """The number of claims with each verdict."""
    verdicts = [claim.verdict for one in done for claim in one.claims]
    return {verdict: verdicts.count(verdict) for verdict in Verdict}
