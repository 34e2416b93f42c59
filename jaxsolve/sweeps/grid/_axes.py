"""The axes of a sweep: what is traced, what is static, and the grid they span."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._checks import concrete, describe, require_line


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
        for name in values:
            require_line(name, "the name of an axis", "a string")
        self.arguments = tuple(_argument(name, value) for name, value in values.items())
        sizes = {argument.name: len(argument.values) for argument in self.arguments}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"axes that advance together need one length, got {sizes}")

    @property
    def dim(self) -> str:
        """The name of the dimension."""
        return "_".join(argument.name for argument in self.arguments)

    @property
    def traced(self) -> bool:
        """True if lanes along the axis share a compilation."""
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
        """The values as a coordinate: numbers or text."""
        if self.traced or all(isinstance(value, int | float) for value in self.values):
            return np.asarray(self.values)
        # NumPy's variable-length strings are the kind that Zarr v3 specifies.
        text = [value if isinstance(value, str) else label(value) for value in self.values]
        return np.asarray(text, dtype=np.dtypes.StringDType())


class Group(NamedTuple):
    """The lanes that share one compilation."""

    static: dict[str, Any]
    lanes: np.ndarray  # flat indices into the grid
    cells: dict[str, Array | np.ndarray]  # traced arguments, one row per lane
    name: str  # as in manifests: the number of its first lane
    way: int | None = None  # which dynamics its lanes use, if there are several to choose from; None until measured


def read_axes(axes: Any) -> tuple[Zip, ...]:
    """The axes given by a mapping of named values, or a sequence of mappings and `Zip`s: one `Zip` for each axis.

    Floats, arrays and ranges are traced; ints, strings, bools and callables in a list are static. Raises TypeError for
    anything else, ValueError if there are no axes, one is empty, or a name appears twice.
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
    dims = [axis.dim for axis in read if len(axis.arguments) > 1]  # a single axis is named like its argument
    twice = sorted({name for name in names + dims if (names + dims).count(name) > 1})
    if twice:
        raise ValueError(
            f"each axis needs a name of its own; {twice} appear more than once (a Zip is called by its axes, as 'a_b')"
        )
    return tuple(read)


def groups(axes: tuple[Zip, ...]) -> list[Group]:
    """The groups of lanes with equal static arguments, in C order of the grid."""
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


def _argument(name: str, values: Any) -> Argument:
    if isinstance(values, range):
        return _traced(name, np.arange(values.start, values.stop, values.step))
    if isinstance(values, np.ndarray | jax.Array):
        return _traced(name, values)
    if isinstance(values, Zip):
        raise TypeError(
            f"axis {name!r} is a Zip, which names its axes itself: give a list, such as [Zip(a=[...], b=[...]), "
            "{'seed': range(3)}]"
        )
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise TypeError(f"the values of axis {name!r} must be a list, a range or a 1-D array, got {describe(values)}")
    if len(values) == 0:
        raise ValueError(f"axis {name!r} has no values")
    # A bool is an int in Python, but bools on an axis are static.
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
    with np.errstate(over="ignore"):  # overflow is rejected below
        array = jnp.asarray(values)
    kept = np.asarray(array)
    switch = "or switch JAX to 64 bits with jax.config.update('jax_enable_x64', True)"
    # Floats may be rounded but must not overflow; integers must stay exact, since a narrower type wraps around.
    lost = ~np.isfinite(kept) if known.dtype.kind == "f" else kept != known
    if np.any(lost):
        first = known[lost][0]
        raise ValueError(f"axis {name!r} holds {first}, which {kept.dtype} cannot: give smaller values, {switch}")
    if len(np.unique(kept)) < len(np.unique(known)):
        raise ValueError(
            f"axis {name!r} has values that are equal in {kept.dtype}, so their lanes would be equal, too: "
            f"{known.tolist()}; give others, {switch}"
        )
    return Argument(name, array, traced=True)


def rows_at(columns: Mapping[str, Any], places: Any) -> dict[str, Any]:
    """The rows at some places, on the host."""
    return {name: np.asarray(values)[places] for name, values in columns.items()}


def label(value: Any) -> str:
    """A static value as text."""
    return str(getattr(value, "__name__", getattr(value, "name", value)))
