"""The memory that a rich limit may use, checked before anything is allocated."""

import math
from collections.abc import Callable

from ..._core import Problem
from ..._numerics import free_memory, readable


def few_directions(signals: int, least: float, *, ample: bool) -> int:
    """The number of directions of the signals of a linear network: mostly one each per digit; `ample`, over twice that.

    Arguments:
        signals: of inputs and outputs.
        least: the smallest part of a signal, as a share of its size, that makes a direction of its own.
        ample: whether it is to be enough for every training that is smooth.
    """
    few = (2 + signals) * -math.log10(least)
    return math.ceil(2.5 * few if ample else few)


def room_of_samples(samples: int, block: int) -> int:
    """The number of directions that are kept, of a block of signals in so many samples."""
    return min(samples // 2, 128 + 9 * block + 1)


def bytes_of_directions(hidden: int, samples: int, room: int, item: int) -> int:
    """The bytes that all directions take, before and after a step."""
    # Per matrix four arrays of a row per direction (features, gradients and the Gaussians of both), and `moved`.
    return 2 * item * hidden * (4 * room * samples + room**2)


def require_memory_of_samples(
    budget: int | None, samples: int, least: int, size: Callable[[int], int], otherwise: str
) -> None:
    """Raises MemoryError where so many samples do not fit.

    Arguments:
        budget: bytes; None takes half of what is free.
        samples: a power of two.
        least: how many there must be.
        size: bytes of some.
        otherwise: what helps where the least do not fit.
    """
    # Smaller powers of two, the largest first, which is what the message asks for.
    fits = [one for one in (samples >> n for n in range(1, 60)) if one >= least and size(one) <= _allowed(budget)]
    require_memory(budget, size(samples), f"give samples={fits[0]}" if fits else otherwise)


def require_memory_of_kernels(budget: int | None, problem: Problem, times: int) -> None:
    """Raises MemoryError where the kernels that a march keeps do not fit: the NTK and two per hidden layer."""
    n, c = problem.y.shape
    hidden = len(problem.net.weights) - 1
    # Between all outputs the NTK and a kernel of gradients per hidden layer; between samples one of features.
    each = problem.dtype.itemsize * ((1 + hidden) * (n * c) ** 2 + hidden * n**2)
    most = int(min(_allowed(budget) / each, times))
    advice = f"its kernels at {times} times do not fit: ask for {most} times" if most else "give fewer training samples"
    require_memory(budget, times * each, advice)


def require_memory(budget: int | None, needed: int, advice: str) -> None:
    """Raises MemoryError where so many bytes may not be used."""
    allowed = _allowed(budget)
    if needed > allowed:
        raise MemoryError(
            f"this rich limit needs {readable(needed)}, and {readable(int(allowed))} may be used; {advice}, "
            "or allow more with memory="
        )


def _allowed(budget: int | None) -> int | float:
    if budget is not None:
        return budget
    free = free_memory()
    return math.inf if free is None else free / 2
