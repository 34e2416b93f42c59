"""Ctrl-C and SIGTERM, put off until the running batch is on disk."""

import logging
import signal
import threading
import time
from typing import Any

import numpy as np


log = logging.getLogger("jaxsolve")

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
        if error == (None, None, None) and self._noted is not None:
            raise KeyboardInterrupt(f"stopped by {self._noted.name} after the last lane; the store is complete")

    def _note(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self._noted is None:
            self._noted, self._since = signal.Signals(number), now
        elif now - self._since > TOGETHER:
            raise KeyboardInterrupt("interrupted twice: the batch that was running is lost")

    def noted(self) -> bool:
        """Whether there was one; the log tells so, once."""
        if self._noted is not None and not self._told:
            self._told = True
            log.warning("%s: the running batch is finished and written first; again to stop at once", self._noted.name)
        return self._noted is not None

    def heed(self, missing: np.ndarray) -> None:
        """Raises Stopped if there was a signal; it says how many lanes are missing."""
        if self._noted is not None:
            raise Stopped(
                f"stopped by {self._noted.name}: {int(np.sum(~missing))} of {missing.size} lanes are in the store; "
                "call the sweep again with the same arguments to run the rest"
            )
