"""The progress of a march, for those who wait."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._extras import needs
from ._dynamics import AbstractSavingState, AbstractState


SILENT = 10.0  # seconds until a march says where it is without being asked


@contextlib.contextmanager
def shown(progress: bool | None, name: str, total: int) -> Iterator[Callable[[Any], None]]:
    """Yields a function to call with the state of a march now and then; it writes to stderr.

    Arguments:
        progress: True shows a bar; None a line after `SILENT` seconds, then after twice as many; False nothing.
        name: of the dynamics.
        total: how many times are asked for.
    """
    if progress:
        with _bar(name, total) as show:
            yield show
    else:
        yield _lines(name, total) if progress is None else lambda state: None


def _saved(state: AbstractState) -> int | None:
    """The number of times that are reached; None of a user's own march, of which only the steps are known."""
    saves = state.saves if isinstance(state, AbstractSavingState) else None
    return None if saves is None else int(saves.slot)


@contextlib.contextmanager
def _bar(name: str, total: int) -> Iterator[Callable[[Any], None]]:
    with needs("cli", "a progress bar"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("times"), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("", total=total)
        yield lambda state: bar.update(task, completed=total if state.done else _saved(state) or 0)


def _lines(name: str, total: int) -> Callable[[Any], None]:
    begin = time.monotonic()
    due = SILENT

    def show(state: Any) -> None:
        nonlocal due
        if (seconds := time.monotonic() - begin) < due or state.done:
            return
        due = 2 * seconds
        saved = _saved(state)
        at = "" if saved is None else f", at {saved} of {total} times"
        sys.stderr.write(f"{name}: {np.asarray(state.steps)} steps in {seconds:.0f} s{at}\n")

    return show
