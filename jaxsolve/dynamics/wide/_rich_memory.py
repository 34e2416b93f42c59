"""The memory limit of a rich limit, checked before anything is allocated."""

import math
from collections.abc import Callable

from ..._core import Problem
from ..._numerics import free_memory, readable


def few_directions(signals: int, least: float, *, ample: bool) -> int:
    """The number of directions of a linear network's signals: about one per signal and digit, or 2.5 if `ample`.

    Arguments:
        signals: number of inputs and outputs.
        least: the smallest part of a signal, relative to its size, that gets its own direction.
        ample: whether the number must suffice for any smooth training.
    """
    few = (2 + signals) * -math.log10(least)
    return math.ceil(2.5 * few if ample else few)


def room_of_samples(samples: int, block: int) -> int:
    """The number of directions kept for a block of signals, given the number of samples."""
    return min(samples // 2, 128 + 9 * block + 1)


def bytes_of_directions(hidden: int, samples: int, room: int, item: int) -> int:
    """The bytes of all directions, before and after a step."""
    # Per matrix: four arrays with a row per direction (features, gradients and the Gaussians of both), and `moved`.
    return 2 * item * hidden * (4 * room * samples + room**2)


def require_memory_of_samples(
    budget: int | None, samples: int, least: int, size: Callable[[int], int], otherwise: str
) -> None:
    """Raises MemoryError if the samples do not fit.

    Arguments:
        budget: bytes; None takes half of the free memory.
        samples: number of samples, a power of two.
        least: smallest allowed number of samples.
        size: bytes as a function of the number of samples.
        otherwise: advice if even the least do not fit.
    """
    # Smaller powers of two, the largest first, which the message suggests.
    fits = [one for one in (samples >> n for n in range(1, 60)) if one >= least and size(one) <= _allowed(budget)]
    require_memory(budget, size(samples), f"give samples={fits[0]}" if fits else otherwise)


def require_memory_of_kernels(budget: int | None, problem: Problem, times: int) -> None:
    """Raises MemoryError if the kernels kept by a march do not fit: the NTK and two per hidden layer."""
    n, c = problem.y.shape
    hidden = len(problem.net.weights) - 1
    # The NTK and the gradient kernels of hidden layers are between all outputs, feature kernels between samples.
    each = problem.dtype.itemsize * ((1 + hidden) * (n * c) ** 2 + hidden * n**2)
    most = int(min(_allowed(budget) / each, times))
    advice = f"its kernels at {times} times do not fit: ask for {most} times" if most else "give fewer training samples"
    require_memory(budget, times * each, advice)


def require_memory(budget: int | None, needed: int, advice: str) -> None:
    """Raises MemoryError if this many bytes exceed the limit."""
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
