"""The progress of a march, written to stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._extras import needs
from ._dynamics import AbstractSavingState, AbstractState


SILENT = 10.0  # seconds until a march reports its progress unasked


@contextlib.contextmanager
def shown(progress: bool | None, name: str, total: int) -> Iterator[Callable[[Any], None]]:
    """Yields a function that takes the state of a march and writes its progress to stderr.

    Arguments:
        progress: True shows a bar; None writes a line after `SILENT` seconds and each doubling; False nothing.
        name: the name of the dynamics.
        total: the number of requested times.
    """
    if progress:
        with _bar(name, total) as show:
            yield show
    else:
        yield _lines(name, total) if progress is None else lambda state: None


def _saved(state: AbstractState) -> int | None:
    """The number of times reached; None for a user's march, of which only the steps are known."""
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


def late(name: str) -> Callable[[Callable[[float], str]], None]:
    """Returns a function that writes a line to stderr after `SILENT` seconds and each time this doubles.

    Its argument makes the text from the elapsed seconds, and is called only when a line is due.
    """
    begin = time.monotonic()
    due = SILENT

    def write(text: Callable[[float], str]) -> None:
        nonlocal due
        if (seconds := time.monotonic() - begin) >= due:
            due = 2 * seconds
            sys.stderr.write(f"{name}: {text(seconds)}\n")

    return write


def _lines(name: str, total: int) -> Callable[[Any], None]:
    write = late(name)

    def text(state: Any, seconds: float) -> str:
        saved = _saved(state)
        at = "" if saved is None else f", at {saved} of {total} times"
        return f"{np.asarray(state.steps)} steps in {seconds:.0f} s{at}"

    return lambda state: None if state.done else write(lambda seconds: text(state, seconds))
