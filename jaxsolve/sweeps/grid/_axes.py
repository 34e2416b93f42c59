"""The axes of a sweep: what is traced, what is static, the grid they span, and the blocks that it is cut into.

And widths that share one compilation: arrays of one size for all of them.
"""

import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._checks import concrete, describe
from ..._problem import Problem
from ...nets import Padded


MAX_CHUNK_BYTES = 2**28  # a chunk is held in memory, and compressed, as a whole


class Zip:
    """Axes that advance together, as one dimension of a sweep: `js.Zip(sigma=[...], eta=[...])`.

    Raises:
        ValueError: the values are empty or differ in length.

    Example:
        >>> build = lambda seed, sigma, eta: ...  # returns a js.Problem
        >>> axes = [js.Zip(sigma=[0.1, 1.0], eta=[10.0, 1.0]), {"seed": range(3)}]  # 2 x 3 lanes
    """

    def __init__(self, /, **values: Any):
        if not values:
            raise ValueError("Zip needs at least one named axis")
        self.arguments = tuple(_argument(name, value) for name, value in values.items())
        sizes = {argument.name: len(argument.values) for argument in self.arguments}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"axes that advance together need one length, got {sizes}")

    @property
    def dim(self) -> str:
        """What the dimension is called."""
        return "_".join(argument.name for argument in self.arguments)

    @property
    def traced(self) -> bool:
        """Whether lanes along it share a compilation."""
        return all(argument.traced for argument in self.arguments)

    def __len__(self) -> int:
        return len(self.arguments[0].values)


@dataclasses.dataclass(frozen=True)
class Argument:
    """The values of one argument of the problem function."""

    name: str
    values: Sequence[Any] | Array  # an array if traced
    traced: bool

    @property
    def labels(self) -> np.ndarray:
        """The values as a coordinate: numbers, or text."""
        if self.traced or all(isinstance(value, int | float) for value in self.values):
            return np.asarray(self.values)
        # NumPy's strings of variable length: the kind that Zarr v3 has a specification for.
        text = [value if isinstance(value, str) else label(value) for value in self.values]
        return np.asarray(text, dtype=np.dtypes.StringDType())


class Group(NamedTuple):
    """The lanes that share one compilation."""

    static: dict[str, Any]
    lanes: np.ndarray  # flat indices into the grid
    cells: dict[str, Array | np.ndarray]  # traced arguments, one row per lane
    name: str  # in manifests: the number of its first lane


def read_axes(axes: Any) -> tuple[Zip, ...]:
    """Reads a mapping of named values, or a sequence of mappings and `Zip`s: a `Zip`, of one or more, for each axis.

    Floats, arrays and ranges are traced; ints, strings, bools and callables in a list are static. Raises TypeError for
    what is of another kind, ValueError if there are no axes, one is empty, or a name appears twice.
    """
    parts = axes if isinstance(axes, Sequence) and not isinstance(axes, str) else [axes]
    read: list[Zip] = []
    for part in parts:
        if isinstance(part, Zip):
            read.append(part)
        elif isinstance(part, Mapping):
            read += [Zip(**{name: values}) for name, values in part.items()]
        else:
            raise TypeError(
                f"axes must be a dict of named values, or a list of dicts and Zip(...), got {describe(part)}"
            )
    names = [argument.name for axis in read for argument in axis.arguments]
    if not names:
        raise ValueError("a sweep needs at least one axis")
    dims = [axis.dim for axis in read if len(axis.arguments) > 1]  # of an axis alone it is the argument's name
    twice = sorted({name for name in names + dims if (names + dims).count(name) > 1})
    if twice:
        raise ValueError(
            f"each axis needs a name of its own; {twice} appear more than once (a Zip is called by its axes, as 'a_b')"
        )
    return tuple(read)


def groups(axes: tuple[Zip, ...]) -> list[Group]:
    """Splits the grid, in C order, into groups of equal static arguments."""
    shape, found = tuple(len(axis) for axis in axes), []
    grid = np.arange(math.prod(shape)).reshape(shape)
    for choice in itertools.product(*([slice(None)] if axis.traced else range(len(axis)) for axis in axes)):
        lanes, static, cells = grid[choice].ravel(), {}, {}
        for axis, chosen in zip(axes, np.unravel_index(lanes, shape), strict=True):
            for argument in axis.arguments:
                if argument.traced:
                    cells[argument.name] = jnp.asarray(argument.values)[chosen]
                else:
                    static[argument.name] = argument.values[chosen[0]]
        found.append(Group(static, lanes, cells, str(int(lanes[0]))))
    return found


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The grid of a sweep, cut into blocks of lanes: one chunk of every variable each.

    The last blocks may be cut off by the grid.
    """

    grid: tuple[int, ...]  # lanes along each axis
    block: tuple[int, ...]  # the same of a block

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """Blocks along each axis."""
        return tuple(math.ceil(n / b) for n, b in zip(self.grid, self.block, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def of(self, lanes: np.ndarray) -> np.ndarray:
        """The number of the block that holds each lane."""
        places = np.stack(np.unravel_index(lanes, self.grid)) // np.reshape(self.block, (-1, 1))
        return np.asarray(np.ravel_multi_index(tuple(places), self.counts))

    def place(self, number: int) -> tuple[int, ...]:
        """Where a block stands among the blocks, along each axis."""
        return tuple(int(i) for i in np.unravel_index(number, self.counts))

    def region(self, number: int) -> tuple[slice, ...]:
        """What a block covers of the grid."""
        return tuple(
            slice(i * b, min((i + 1) * b, n)) for i, b, n in zip(self.place(number), self.block, self.grid, strict=True)
        )

    def lanes(self, number: int) -> np.ndarray:
        """The flat indices of a block's lanes, in the order of its rows, which is rising."""
        ranges = [np.arange(part.start, part.stop) for part in self.region(number)]
        return np.ravel_multi_index(np.meshgrid(*ranges, indexing="ij"), self.grid).ravel()

    def parts(self, lanes: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Cuts lanes into parts that share no block: whole blocks, as many as have no more than `size` lanes."""
        numbers = self.of(lanes)
        order, begin, last = np.argsort(numbers, kind="stable"), 0, 0
        for end in (*(np.flatnonzero(np.diff(numbers[order])) + 1), len(lanes)):
            if end - begin > size and last > begin:
                yield lanes[order[begin:last]]
                begin = last
            last = end
        if last > begin:
            yield lanes[order[begin:last]]


def cut(axes: tuple[Zip, ...], batch_size: int, lane_bytes: int) -> Blocks:
    """Cuts a grid into blocks of at most `batch_size` lanes of equal static arguments.

    The last traced axes stay whole as far as they fit, by the bytes of a lane's largest variable too; the first that
    does not is cut into equal parts. So a block's lanes follow each other in the order in which lanes run.
    """
    room = max(1, min(batch_size, MAX_CHUNK_BYTES // max(lane_bytes, 1)))
    block = []
    for axis in reversed(axes):
        parts = math.ceil(len(axis) / room) if axis.traced else len(axis)
        block.append(math.ceil(len(axis) / parts))
        if axis.traced:
            room = max(room // len(axis), 1) if parts == 1 else 1
    return Blocks(tuple(len(axis) for axis in axes), tuple(reversed(block)))


def _argument(name: str, values: Any) -> Argument:
    if isinstance(values, range):
        return _traced(name, np.arange(values.start, values.stop, values.step))
    if isinstance(values, np.ndarray | jax.Array):
        return _traced(name, values)
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise TypeError(f"the values of axis {name!r} must be a list, a range or a 1-D array, got {describe(values)}")
    if len(values) == 0:
        raise ValueError(f"axis {name!r} has no values")
    numbers = all(isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in values)
    if numbers and any(isinstance(v, float | np.floating) for v in values):
        return _traced(name, np.asarray([float(v) for v in values]))
    for value in values:
        if not (isinstance(value, str | int | np.integer) or value is None or callable(value)):
            raise TypeError(
                f"a value of axis {name!r} is {describe(value)}; "
                "accepted are numbers alone, or ints, strings and callables"
            )
    return Argument(name, tuple(int(v) if isinstance(v, np.integer) else v for v in values), traced=False)


def _traced(name: str, values: Any) -> Argument:
    if values.ndim != 1 or values.shape[0] == 0:
        raise ValueError(f"axis {name!r} must be a non-empty 1-D array, got shape {values.shape}")
    known = concrete(values)
    if known is None:
        return Argument(name, values, traced=True)
    if known.dtype.kind not in "fiub":
        raise TypeError(f"axis {name!r} must hold real numbers, got {describe(values)}")
    if not np.all(np.isfinite(known)):
        raise ValueError(f"axis {name!r} holds NaN or infinite values: {known.tolist()}")
    with np.errstate(over="ignore"):  # it is refused below
        array = jnp.asarray(values)
    kept = np.asarray(array)
    switch = "or switch JAX to 64 bits by jax.config.update('jax_enable_x64', True)"
    lost = ~np.isfinite(kept) if known.dtype.kind == "f" else kept != known
    if np.any(lost):
        first = known[lost][0]
        raise ValueError(f"axis {name!r} holds {first}, which {kept.dtype} cannot: give smaller values, {switch}")
    if len(np.unique(kept)) < len(np.unique(known)):
        raise ValueError(
            f"axis {name!r} has values that are equal in {kept.dtype}, so their lanes would be: {known.tolist()}; give "
            f"others, {switch}"
        )
    return Argument(name, array, traced=True)


def rows_at(columns: Mapping[str, Any], places: Any) -> dict[str, Any]:
    """Some rows, on the host."""
    return {name: np.asarray(values)[places] for name, values in columns.items()}


def label(value: Any) -> str:
    """A static value as text."""
    return str(getattr(value, "__name__", getattr(value, "name", value)))


@dataclasses.dataclass(frozen=True)
class PaddedProblem:
    """A function of problems that is given some of its arguments as `nets.Padded`."""

    problem_fn: Callable[..., Problem]
    sizes: Mapping[str, int]  # of the arrays, by argument

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.problem_fn)

    def __call__(self, /, **cell: Any) -> Problem:
        widths = {name: Padded(cell[name], size) for name, size in self.sizes.items()}
        return self.problem_fn(**(cell | widths))


def padded(
    problem_fn: Callable[..., Problem],
    axes: Mapping[str, Any] | Zip | Sequence[Mapping[str, Any] | Zip],
    *names: str,
) -> tuple[PaddedProblem, list[Zip]]:
    """Lets all widths along axes share one compilation: `sweep(*padded(problem, axes, "width"), dynamics, ts)`.

    Each of these axes becomes a traced one, and the function gets its values as `nets.Padded`, in arrays of the size of
    the largest. It can give them to `MLP`, `TwoLayerLinear` and `DeepLinear` in the place of integers, and calculate
    with them. Every lane then costs what the widest does.

    Arguments:
        problem_fn, axes: as for `sweep`.
        names: of axes that hold widths.

    Returns:
        The function and the axes, for `sweep` and `plan`. Coordinates of the dataset are the plain widths.

    Raises:
        TypeError: problem_fn is not a function, or the values of such an axis are not integers.
        ValueError: there is no such axis, or a width is less than 1.

    Example:
        >>> def problem(width, seed):
        ...     scaling = js.nets.Scaling.ntk()
        ...     net = js.nets.MLP(2, width, 1, 1, "tanh", scaling=scaling, key=jax.random.key(seed))
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
