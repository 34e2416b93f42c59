"""The progress display of a sweep, on standard error, and signals that stop it once the running batch is on disk."""

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

SECONDS = 10.0  # minimum interval between lines
SHARE = 0.05  # minimum interval between lines, relative to the time so far: keeps the log of a long sweep short
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TOGETHER = 1.0  # seconds within which signals count as one: `timeout` signals both the process and its group


class Stopped(KeyboardInterrupt):
    """A sweep was stopped cleanly: its store must keep every lane that has run."""


class Signals:
    """A context that defers the first Ctrl-C or SIGTERM; another one, more than a second later, interrupts.

    Only the main thread receives signals. Nothing changes in other threads, for signals that are ignored or handled
    outside of Python, or if `active` is false.
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
        # The signal was deferred, not dropped: it interrupts now that everything is in the store.
        if error == (None, None, None) and self._noted is not None:
            raise KeyboardInterrupt(f"stopped by {self._noted.name} after the last lane; the store is complete")

    def _note(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self._noted is None:
            self._noted, self._since = signal.Signals(number), now
        elif now - self._since > TOGETHER:
            raise KeyboardInterrupt("interrupted twice: the batch that was running is lost")

    def noted(self) -> bool:
        """True if there was a signal, which is logged once."""
        if self._noted is not None and not self._told:
            self._told = True
            log.warning("%s: the running batch is finished and written first; again to stop at once", self._noted.name)
        return self._noted is not None

    def check(self, missing: np.ndarray) -> None:
        """Raises Stopped if there was a signal; the message says how many lanes are in the store."""
        if self._noted is not None:
            raise Stopped(
                f"stopped by {self._noted.name}: {int(np.sum(~missing))} of {missing.size} lanes are in the store; "
                "call the sweep again with the same arguments to run the rest"
            )


class Progress:
    """The display of lanes done, their rate, the time left and failures: rich's bar, or a line now and then.

    Lanes that were in the store at the start do not count for the rate, and the first batch, which includes
    compilation, does not count for the time left.
    """

    def __init__(self, missing: np.ndarray, *, shown: bool):
        self._shown = shown
        self._total, self._before = missing.size, missing.size - int(missing.sum())
        self._done = self._failed = 0
        self._first: tuple[float, int] | None = None  # the time after the first batch, and its number of lanes
        self._bar: Any = None
        self._said: tuple[int, int] | None = None  # lanes done and failed, as last printed

    def __enter__(self) -> "Progress":
        self._begin = self._last = time.monotonic()
        if self._shown and importlib.util.find_spec("rich") is not None:  # without it, lines are printed
            import rich.console
            import rich.progress as parts

            console = rich.console.Console(file=sys.stderr)
            if console.is_terminal or console.is_jupyter:  # rich draws no bars in files and logs
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
        """Counts lanes that have run, and how many of them failed."""
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
            if left and self._done > compiled:  # from the rate after the first batch, which included compilation
                text += f"{_duration(left * (time.monotonic() - since) / (self._done - compiled))} left, "
        return f"{text}{self._failed} failed"


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
