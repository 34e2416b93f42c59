"""Widths that share one compilation, with arrays of one size for all of them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._checks import describe
from ..._core import Problem
from ...nets import Padded
from ._axes import Argument, read_axes, Zip


@dataclasses.dataclass(frozen=True)
class PaddedProblem:
    """A problem function that receives some of its arguments as `nets.Padded`."""

    problem_fn: Callable[..., Problem]
    sizes: Mapping[str, int]  # sizes of the arrays, by argument

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.problem_fn)

    # The slash allows an axis with the name `self`.
    def __call__(self, /, **cell: Any) -> Problem:
        widths = {name: Padded(cell[name], size) for name, size in self.sizes.items()}
        return self.problem_fn(**(cell | widths))


def padded(
    problem_fn: Callable[..., Problem],
    axes: Mapping[str, Any] | Zip | Sequence[Mapping[str, Any] | Zip],
    *names: str,
) -> tuple[PaddedProblem, list[Zip]]:
    """Lets all widths along axes share one compilation: `sweep(*padded(problem, axes, "width"), dynamics, ts)`.

    These axes become traced, and the function gets their values as `nets.Padded`, with arrays of the largest size. It
    can pass them to `MLP`, `TwoLayerLinear` and `DeepLinear` in place of integers, and calculate with them. Every lane
    then costs as much as the widest.

    Arguments:
        problem_fn, axes: as for `sweep`.
        names: the names of the axes that hold widths.

    Returns:
        The function and the axes, for `sweep` and `plan`. Coordinates of the dataset are the plain widths.

    Raises:
        TypeError: problem_fn is not a function, or the values of such an axis are not integers.
        ValueError: there is no such axis, or a width is less than 1.

    Example:
        >>> def problem(width, seed):
        ...     scaling = js.nets.Scaling.ntk()
        ...     net = js.nets.MLP(
        ...         in_size=2, out_size=1, width_size=width, depth=1, activation="tanh",
        ...         scaling=scaling, key=jax.random.key(seed)
        ...     )
        ...     return js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> axes = {"width": [4, 8, 16], "seed": range(2)}
        >>> js.plan(*js.sweeps.padded(problem, axes, "width"), js.GradientFlow(), [0.0, 1.0])
        Plan(6 lanes, 1 compilation: width 3 x seed 2)
    """
    if not callable(problem_fn):
        raise TypeError(f"problem_fn must return the problem of a cell, got {describe(problem_fn)}")
    sizes: dict[str, int] = {}
    found: list[Zip] = []
    for axis in read_axes(axes):
        values = {item.name: _widths(item) if item.name in names else item.values for item in axis.arguments}
        sizes |= {name: int(np.max(array)) for name, array in values.items() if name in names}
        found.append(Zip(**values))
    missing = [name for name in names if name not in sizes]
    if missing or not names:
        raise ValueError(
            "padded needs the names of the axes that hold widths, as in padded(problem_fn, axes, 'width'); "
            + (f"no axis is called {missing[0]!r}" if missing else "got none")
        )
    return PaddedProblem(problem_fn, sizes), found


def _widths(item: Argument) -> np.ndarray:
    array = np.asarray(item.values)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"widths of axis {item.name!r} must be a list of integers to be padded, got {describe(array)}")
    if array.min() < 1:
        raise ValueError(f"widths of axis {item.name!r} must be >= 1, got {array.tolist()}")
    return array
