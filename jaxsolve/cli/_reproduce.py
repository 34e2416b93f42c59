"""`jaxsolve reproduce`: figures of the papers."""

from pathlib import Path
from typing import Annotated, Literal, TYPE_CHECKING

import cyclopts
from rich import box
from rich.console import Console
from rich.table import Table

from ._guard import choose_precision, look_here_last
from ._say import say


if TYPE_CHECKING:
    from ..papers import Scale

LONG = 0.75  # hours on two cores, above which --yes is required


def reproduce(
    *figures: str,
    scale: Literal["small", "medium", "paper"] = "small",
    folder: Annotated[Path, cyclopts.Parameter(name=["--folder", "-o"])] = Path("reproduction"),
    processes: int | None = None,
    yes: bool = False,
    quiet: bool = False,
) -> None:
    """Compute figures of the papers, draw them, and judge their claims.

    Parameters
    ----------
    figures
        Names of figures, such as xu_ziyin/table1; `all`; or `list`, which shows them and
        which are done in the folder.
    scale
        small: minutes on two cores; medium: an hour on one GPU; paper: the paper's own setting.
    folder
        Where pictures, stores, claims and the page index.html go. Interrupted figures are continued.
    processes
        How many figures to compute at once; by default 2 on a CPU, 1 on an accelerator.
    yes
        Also start figures that take long.
    quiet
        Show no progress.
    """
    import jax

    choose_precision(double=True)
    from .. import papers
    from ..papers import Scale
    from ..papers._internal import hours, tally

    if figures == ("list",):
        Console().print(_listed(Scale(scale), folder))
        return
    if not figures:
        raise ValueError("name figures, such as xu_ziyin/table1, or all; `jaxsolve reproduce list` shows them")
    chosen = papers.names() if figures == ("all",) else list(figures)
    at_once = processes or (2 if jax.default_backend() == "cpu" and len(chosen) > 1 else 1)
    takes = hours(*chosen, scale=Scale(scale)) / at_once
    if takes > LONG and jax.default_backend() == "cpu" and not yes:
        raise ValueError(f"on two cores this takes about {takes:.3g} hours; give --yes to begin all the same")
    if Path(papers.__file__).resolve().parents[2] == Path.cwd().resolve():  # a clone: child processes import it, too
        look_here_last()
    done = papers.reproduce(*chosen, scale=Scale(scale), folder=folder, progress=not quiet, processes=at_once)
    for one in done:
        for claim in one.claims:
            if claim.verdict is not papers.Verdict.REPRODUCED:
                say(
                    f"{one.name}: {claim.verdict.value}: {claim.statement} Paper: {claim.paper}, here: {claim.ours:.3g}"
                )
    counted = ", ".join(f"{count} {verdict.value}" for verdict, count in tally(done).items())
    say(f"{counted}; see {folder / scale / 'index.html'}")


def _listed(scale: "Scale", folder: Path) -> Table:
    from .. import papers
    from ..papers._internal import MARK

    table = Table("figure", "what it shows", "minutes", "done", box=box.SIMPLE)
    for name, figure in papers.figures().items():
        done = (folder / scale.value / name / MARK).is_file()
        table.add_row(name, figure.title, f"{60 * figure.hours[scale]:.0f}", "yes" if done else "")
    return table
