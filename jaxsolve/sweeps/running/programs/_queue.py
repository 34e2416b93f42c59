"""Which lanes run next."""

import threading

import numpy as np


WINDOW = 1024  # lanes among which the dearest is found: a bound on how many chunks of a store are open at once
GOLDEN = (5**0.5 - 1) / 2


class Waiting:
    """The lanes of a group that have yet to run, the dearest first as far as is known.

    The last ones to run should be short, since others wait for them. Their cost is learned from those that have
    finished: its logarithm is taken for a sum of functions of one argument each. The first ones are spread over the
    grid, so that there is something to learn from. Threads may share one.

    Arguments:
        cells: values by argument, one row per lane; none, if all lanes cost the same. Then they run in order.
        count: lanes.
    """

    def __init__(self, cells: dict[str, np.ndarray], count: int):
        self._ranks = [np.unique(values, return_inverse=True)[1].ravel() for values in cells.values()]
        self._costs = np.full(count, np.nan)
        self._sorted_at = 0  # how many costs were known
        self._left = np.arange(count)
        self._window = self._left[:0]
        self._lock = threading.Lock()
        self._fill_window()

    def __len__(self) -> int:
        return len(self._window) + len(self._left)

    def take(self, count: int) -> np.ndarray:
        """Up to so many lanes, which then wait no longer."""
        with self._lock:
            found = self._window[:count]
            self._window = self._window[count:]
            if not len(self._window):
                self._fill_window()
        return found

    def learn(self, lanes: np.ndarray, costs: np.ndarray) -> None:
        """Takes notice of what lanes have cost, in steps."""
        if not self._ranks:
            return
        with self._lock:
            self._costs[lanes] = costs
            known = int(np.sum(np.isfinite(self._costs)))
            if known and known >= 2 * self._sorted_at:
                self._sorted_at = known
                self._sort()

    def close(self) -> None:
        """Lets no lane wait any longer."""
        with self._lock:
            self._window, self._left = self._window[:0], self._left[:0]

    def _fill_window(self) -> None:
        self._window, self._left = self._left[:WINDOW], self._left[WINDOW:]
        if self._ranks:
            self._window = self._window[np.argsort(np.arange(len(self._window)) * GOLDEN % 1, kind="stable")]
            if self._sorted_at:
                self._sort()

    def _sort(self) -> None:
        known = np.isfinite(self._costs)
        logs = np.log1p(self._costs[known])
        cost = np.zeros(len(self._window))
        for ranks in self._ranks:
            seen, which = np.unique(ranks[known], return_inverse=True)
            effects = np.bincount(which, logs - logs.mean()) / np.bincount(which)
            cost += np.interp(ranks[self._window], seen, effects)
        self._window = self._window[np.argsort(-cost, kind="stable")]
