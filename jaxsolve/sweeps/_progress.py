"""How far a sweep has come, on standard error."""

import abc
import sys
import time
from typing import Any


SECONDS = 10.0  # between two lines
SHARE = 0.05  # of the time so far, at least, lies between them


class AbstractProgress(abc.ABC):
    """Shows lanes done, their rate, the time left, and failures. It is entered before the first lane runs."""

    @abc.abstractmethod
    def __enter__(self) -> "AbstractProgress": ...

    @abc.abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @abc.abstractmethod
    def skip(self, lanes: int) -> None:
        """Counts lanes that had run before: they tell nothing of the rate."""

    @abc.abstractmethod
    def advance(self, lanes: int) -> None:
        """Counts lanes that have run."""

    @abc.abstractmethod
    def fail(self, lanes: int) -> None:
        """Counts those of them that failed."""


class Silent(AbstractProgress):
    """Shows nothing."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def skip(self, lanes: int) -> None:
        pass

    def advance(self, lanes: int) -> None:
        pass

    def fail(self, lanes: int) -> None:
        pass


class Lines(AbstractProgress):
    """Prints a line now and then, and one at the end: for files and logs.

    Arguments:
        total: lanes.
        stream: where to, as for `print`.
        seconds: between two lines.
    """

    def __init__(self, total: int, stream: Any, seconds: float = SECONDS):
        self._total = total
        self._stream = stream
        self._seconds = seconds
        self._skipped = self._done = self._failed = 0
        self._said = (-1, -1)  # lanes done and failed in the last line
        self._begin = self._last = time.monotonic()

    def __enter__(self) -> "Lines":
        self._begin = self._last = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        if self._said != (self._done, self._failed):
            self._print(time.monotonic())

    def skip(self, lanes: int) -> None:
        self._skipped += lanes

    def advance(self, lanes: int) -> None:
        self._done += lanes
        now = time.monotonic()
        if now - self._last >= max(self._seconds, SHARE * (now - self._begin)):
            self._print(now)

    def fail(self, lanes: int) -> None:
        self._failed += lanes

    def _print(self, now: float) -> None:
        self._last, self._said = now, (self._done, self._failed)
        passed, left = now - self._begin, self._total - self._skipped - self._done
        parts = [f"sweep: {self._skipped + self._done}/{self._total} runs in {duration(passed)}"]
        if self._done and passed > 0:
            parts.append(rate(self._done / passed))
            if left:
                parts.append(f"{duration(left * passed / self._done)} left")
        print(", ".join([*parts, f"{self._failed} failed"]), file=self._stream, flush=True)


class Bar(AbstractProgress):
    """A bar that moves, for terminals and notebooks.

    Arguments:
        total: lanes.
        console: of rich.
    """

    def __init__(self, total: int, console: Any):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        shown = TextColumn("runs, {task.fields[rate]}{task.fields[left]}{task.fields[failed]} failed,")
        self._bar = Progress(
            TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), shown, TimeElapsedColumn(), console=console
        )
        self._task = self._bar.add_task("", total=total, rate="", left="", failed=0)
        self._total = total
        self._skipped = self._done = self._failed = 0
        self._begin = time.monotonic()

    def __enter__(self) -> "Bar":
        self._begin = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def skip(self, lanes: int) -> None:
        self._skipped += lanes
        self._bar.update(self._task, completed=self._skipped + self._done)

    def advance(self, lanes: int) -> None:
        self._done += lanes
        passed, left = time.monotonic() - self._begin, self._total - self._skipped - self._done
        self._bar.update(
            self._task,
            completed=self._skipped + self._done,
            rate=f"{rate(self._done / max(passed, 1e-9))}, ",
            left=f"{duration(left * passed / self._done)} left, " if left else "",
        )

    def fail(self, lanes: int) -> None:
        self._failed += lanes
        self._bar.update(self._task, failed=self._failed)


def show_progress(total: int, *, shown: bool) -> AbstractProgress:
    """A bar where standard error is a terminal or a notebook, else lines; nothing if it is not to be shown."""
    if not shown:
        return Silent()
    from rich.console import Console

    console = Console(file=sys.stderr)
    return Bar(total, console) if console.is_terminal or console.is_jupyter else Lines(total, sys.stderr)


def rate(per_second: float) -> str:
    """Lanes per second, or per minute or hour if they are slow."""
    for factor, unit in ((1, "s"), (60, "min")):
        if per_second * factor >= 1:
            return f"{per_second * factor:.3g}/{unit}"
    return f"{per_second * 3600:.3g}/h"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
