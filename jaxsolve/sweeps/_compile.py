"""Compiling the programs of a sweep ahead of running them."""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ._execute import Program
from ._runner import AbstractRunner


AHEAD = 2  # programs compiled at once, while an earlier one runs


def compiled_ahead(
    programs: Iterable[Program], check: Callable[[Program], None]
) -> Iterator[tuple[Program, AbstractRunner]]:
    """Yields every program with its executable, in order, while the next ones are being compiled.

    Programs are traced in the caller's thread, whose JAX settings they follow; only XLA works in others.
    """
    waiting: collections.deque[tuple[Program, Future[Any]]] = collections.deque()
    with ThreadPoolExecutor(AHEAD) as pool:
        for program in programs:
            check(program)
            waiting.append((program, pool.submit(program.lowered.compile)))
            if len(waiting) > AHEAD:
                yield _next(waiting)
        while waiting:
            yield _next(waiting)


def _next(waiting: collections.deque[tuple[Program, Future[Any]]]) -> tuple[Program, AbstractRunner]:
    program, future = waiting.popleft()
    return program, future.result()
