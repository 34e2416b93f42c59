"""What a rich limit may use of the memory, asked before anything is allocated."""

import math

from .._memory import free_memory
from .._problem import Problem


def allowed() -> float:
    """Bytes that a limit may use."""
    free = free_memory()
    return math.inf if free is None else free / 2


def require_memory(needed: int, advice: str) -> None:
    """Raises MemoryError."""
    if needed > allowed():
        raise MemoryError(
            f"this rich limit needs {needed / 1e9:.3g} GB, and {allowed() / 1e9:.3g} GB may be used; {advice}"
        )


def require_memory_of_kernels(problem: Problem, times: int) -> None:
    """Raises MemoryError where the kernels that a march keeps do not fit: the NTK and two per hidden layer."""
    n, c = problem.y.shape
    hidden = len(problem.net.weights) - 1
    each = problem.x.dtype.itemsize * ((1 + hidden) * (n * c) ** 2 + hidden * n**2)
    most = int(min(allowed() / each, times))
    advice = f"its kernels at {times} times do not fit: ask for {most} times" if most else "give fewer training samples"
    require_memory(times * each, advice)
