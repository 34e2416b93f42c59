"""`jaxsolve data`: files of image collections."""

import logging
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ._say import say


data = cyclopts.App(
    name="data",
    help="Download image collections.",
    help_epilogue="Example: `jaxsolve data fetch mnist cifar10`",
)


@data.command
def fetch(
    *collections: Literal["mnist", "fashion_mnist", "cifar10"],
    folder: Annotated[Path | None, cyclopts.Parameter(name=["--folder", "-o"])] = None,
    quiet: bool = False,
) -> None:
    """Download collections from their publishers, and check the files. Existing files are not downloaded again.

    Parameters
    ----------
    collections
        mnist, fashion_mnist (30 MB each), or cifar10 (170 MB).
    folder
        Each collection gets a folder of its own in this one. Default: the folder that js.data reads, named by the
        environment variable JAXSOLVE_DATA, or jaxsolve in the user's cache folder.
    quiet
        Show no progress.
    """
    from ..data import fetch, Images

    logging.getLogger("pooch").setLevel(logging.WARNING)  # the progress bars replace its messages
    if not collections:
        raise ValueError("name collections: mnist, fashion_mnist, cifar10")
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, disable=quiet) as bars:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        places = [fetch(Images[name.upper()], folder, progress=show) for name in collections]
    for place in places:
        say(str(place))
