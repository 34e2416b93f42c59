"""The display of a running sweep, on standard error, and signals that stop it once the running batch is on disk."""

import datetime
import importlib.util
import logging
import signal
import sys
import threading
import time
from typing import Any

import numpy as np


log = logging.getLogger("jaxsolve")

SECONDS = 10.0  # between two lines
SHARE = 0.05  # of the time so far, at least, lies between them: the log of a long sweep stays short
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TOGETHER = 1.0  # seconds within which signals are one: `timeout` sends its own to the process and to its group


class Stopped(KeyboardInterrupt):
    """A sweep has stopped in good order: its store is to keep every lane that ran."""


class Signals:
    """While it is entered, the first Ctrl-C or SIGTERM is only noted; one more than a second later interrupts.

    Signals reach the main thread only: elsewhere, and where a signal is ignored or handled outside of Python, nothing
    changes; nor where it is not active.
    """

    def __init__(self, *, active: bool):
        self._active = active
        self._before: dict[signal.Signals, Any] = {}
        self._told = False
        self._noted: signal.Signals | None = None

    def __enter__(self) -> "Signals":
        if self._active and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        # The signal was held back, and not dropped: it interrupts once everything is in the store.
        if error == (None, None, None) and self._noted is not None:
            raise KeyboardInterrupt(f"stopped by {self._noted.name} after the last lane; the store is complete")

    def _note(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self._noted is None:
            self._noted, self._since = signal.Signals(number), now
        elif now - self._since > TOGETHER:
            raise KeyboardInterrupt("interrupted twice: the batch that was running is lost")

    def noted(self) -> bool:
        """True if there was a signal; the log tells so, once."""
        if self._noted is not None and not self._told:
            self._told = True
            log.warning("%s: the running batch is finished and written first; again to stop at once", self._noted.name)
        return self._noted is not None

    def check(self, missing: np.ndarray) -> None:
        """Raises Stopped if there was a signal; it says how many lanes are missing."""
        if self._noted is not None:
            raise Stopped(
                f"stopped by {self._noted.name}: {int(np.sum(~missing))} of {missing.size} lanes are in the store; "
                "call the sweep again with the same arguments to run the rest"
            )


class Progress:
    """Shows lanes done, their rate, the time left, and failures: by rich's bar, or a line now and then in a log.

    Lanes that are not missing at the start tell nothing of the rate, and the first batch, which compiles, nothing of
    the time left.
    """

    def __init__(self, missing: np.ndarray, *, shown: bool):
        self._shown = shown
        self._total, self._before = missing.size, missing.size - int(missing.sum())
        self._done = self._failed = 0
        self._first: tuple[float, int] | None = None  # when the first batch had run, and its lanes
        self._bar: Any = None
        self._said: tuple[int, int] | None = None  # lanes done and failed in the last line

    def __enter__(self) -> "Progress":
        self._begin = self._last = time.monotonic()
        if self._shown and importlib.util.find_spec("rich") is not None:  # lines serve where it is not installed
            import rich.console
            import rich.progress as parts

            console = rich.console.Console(file=sys.stderr)
            if console.is_terminal or console.is_jupyter:  # rich has no bars for files and logs
                text = parts.TextColumn("{task.description}")
                columns = parts.TextColumn("sweep"), parts.BarColumn(), text, parts.TimeElapsedColumn()
                self._bar = parts.Progress(*columns, console=console)
                self._task = self._bar.add_task("", total=self._total)
                self._bar.start()
                self.add(0, 0)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown and self._said != (self._done, self._failed):
            self._print()

    def add(self, lanes: int, failed: int) -> None:
        """Counts lanes that have run, and those of them that failed."""
        self._done += lanes
        self._failed += failed
        if self._first is None and lanes:
            self._first = time.monotonic(), lanes
        if self._bar is not None:
            self._bar.update(self._task, completed=self._before + self._done, description=f"{self._text()},")
        elif self._shown and (now := time.monotonic()) - self._last >= max(SECONDS, SHARE * (now - self._begin)):
            self._print()

    def _print(self) -> None:
        self._last, self._said = time.monotonic(), (self._done, self._failed)
        print(f"sweep: {self._text()}", file=sys.stderr, flush=True)  # noqa: T201

    def _text(self) -> str:
        passed, left = time.monotonic() - self._begin, self._total - self._before - self._done
        text = f"{self._before + self._done}/{self._total} runs in {_duration(passed)}, "
        if self._first is not None:
            since, compiled = self._first
            text += f"{self._done / max(passed, 1e-9):.3g}/s, "
            if left and self._done > compiled:  # by what came after the batch that compiled
                text += f"{_duration(left * (time.monotonic() - since) / (self._done - compiled))} left, "
        return f"{text}{self._failed} failed"


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
