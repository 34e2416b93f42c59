"""The problems and dynamics of a group's lanes, made from its cells, and the devices on which lanes run."""

import contextlib
import hashlib
import inspect
import os
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # pyright: ignore[reportPrivateImportUsage]
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from ..._checks import describe, see
from ..._core import AbstractChoice, AbstractDynamics, is_key, Problem, require_served
from ..._programs import depends_on_inputs, equations
from ...nets import Function
from ..grid._axes import Group, rows_at


Cells = dict[str, np.ndarray]
"""Traced arguments by name, one row per lane of a group."""
INDEX = "flat index"  # a column of cells if each lane has its own random key; with a space, no argument has this name
AXIS = "lanes"
COMPILED = 16  # compiled programs that are kept

# Every core runs its own lanes, so XLA must not split loops over an array into tasks for several cores.
_UNCUT: dict[str, str | bool] = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
_compiled: dict[Hashable, jax.stages.Compiled] = {}  # by program text, arguments and results, and devices


class Leaves(NamedTuple):
    """The arrays of a lane: those that depend on its cell, and those that all lanes share; each has None elsewhere."""

    own: Any
    shared: Any


Dynamics = AbstractDynamics | Callable[..., AbstractDynamics]
"""The dynamics of all lanes, or a function of axes that returns the dynamics of each."""


class Builder:
    """Makes the lanes of a group: their problems, and their dynamics if a function of axes makes them.

    Each function gets the axes that it has arguments for, and is traced once. Raises TypeError if one returns something
    else, needs the value of a traced axis, makes a key from floats, or makes a `nets.Function` that closes over an
    array made in problem_fn.

    Attributes:
        cell: one cell of the group, from `cells_of`.
        shape: the problem of a lane, in shapes.
        dynamics: the dynamics of all lanes, or of the first lane if a function makes them.
        chosen: the dynamics that runs if the problem chooses among several: the way of the group or, until that is
            measured, one of the same class.
        possible: indices of the ways that lanes may go, judging by their shapes; a single one if there is no choice.
        name: the name of the chosen dynamics, or of all possible ones.
        lanes: the number of lanes in the group.
    """

    def __init__(self, problem_fn: Callable[..., Problem], dynamics: Dynamics, group: Group):
        self.dynamics, self.lanes = dynamics_of(dynamics, group), len(group.lanes)
        self.cell = rows_at(cells_of(group, self.dynamics), 0)

        def build(cell: dict[str, Any]) -> tuple[Problem, Any, Any]:
            known = group.static | {name: value for name, value in cell.items() if name != INDEX}
            problem: Any = problem_fn(**_own(problem_fn, known))
            if not isinstance(problem, Problem):
                raise TypeError(f"problem_fn must return a jaxsolve.Problem, got {describe(problem)}")
            if isinstance(problem.net, Function) and _holds_tracer(problem.net.f, set()):
                raise TypeError(
                    "the function of a nets.Function closes over an array that problem_fn makes, but a sweep passes "
                    "on only the arrays of a problem. If no axis changes it, make it outside problem_fn; otherwise "
                    "hand it over in the parameters, where jax.lax.stop_gradient keeps it from training"
                )
            made = None if isinstance(dynamics, AbstractDynamics) else _make(dynamics, known)
            return problem, made, cell.get(INDEX)

        example = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in self.cell.items()}
        try:
            # A program tells which arrays depend on the cell: all lanes share the others.
            closed, shapes, self._static = eqx.filter_make_jaxpr(build)(example)
        except jax.errors.JAXTypeError as error:
            raise TypeError(
                "problem_fn (or a function given as dynamics) needs the concrete value of an axis that is traced, "
                f"one of {sorted(group.cells)}: it branches on it, uses it as a size, or calls int, float or NumPy. "
                "Make this axis static by giving a list of ints or strings (one compilation each), or use jnp.where; "
                "a key is jax.random.key(seed), without int"
            ) from error
        if _makes_keys_of_floats(closed):
            floats = sorted(name for name, values in group.cells.items() if values.dtype.kind == "f")
            raise TypeError(
                f"problem_fn makes a random key of floats, from the axes {floats}; a seed is an integer: give whole "
                "numbers, such as jnp.arange(10)"
            )
        self._run, self._structure = jaxpr_as_fun(closed), jax.tree.structure(shapes)
        self._depends = depends_on_inputs(closed)
        self.shape, *_ = eqx.combine(shapes, self._static)
        require_served(self.shape, self.dynamics)
        self._way, self.possible, ways = group.way, (0,), (self.dynamics,)
        if isinstance(self.dynamics, AbstractChoice):
            ways, self.possible = self.dynamics.ways(self.shape), self.dynamics.possible(self.shape)
            if self._way is None:
                self._way = int(self.dynamics.way(self.shape)) if len(self.possible) > 1 else self.possible[0]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
        self.chosen = ways[self._way or 0]
        known = self.possible if group.way is None else (group.way,)
        self.name = " or ".join(dict.fromkeys(ways[way].name for way in known))

    def leaves(self, cell: dict[str, Array]) -> Leaves:
        """The arrays of a cell's lane."""
        found = [jnp.asarray(leaf) for leaf in self._run(*jax.tree.leaves(cell))]
        return Leaves(*eqx.partition(found, self._depends))

    def lane(self, leaves: Leaves) -> tuple[Problem, Any]:
        """The problem and the dynamics of these arrays; a random key of the dynamics becomes the lane's own."""
        problem, given, index = self._given(leaves)
        moves = given.ways(problem)[self._way] if isinstance(given, AbstractChoice) else given  # pyright: ignore[reportArgumentType, reportCallIssue]
        if index is not None:  # the flat index in the whole grid gives each lane its own keys
            moves = jax.tree.map(lambda leaf: jax.random.fold_in(leaf, index) if is_key(leaf) else leaf, moves)
        return problem, moves

    def way(self, leaves: Leaves, ts: Array) -> Array:
        """The index of the dynamics that the lane of these arrays chooses for a run to the last of these times."""
        problem, given, _ = self._given(leaves)
        return jnp.asarray(given.way(problem, ts.astype(problem.dtype)))

    def _given(self, leaves: Leaves) -> tuple[Problem, Any, Any]:
        arrays = jax.tree.unflatten(self._structure, eqx.combine(leaves.own, leaves.shared))
        problem, made, index = eqx.combine(arrays, self._static)
        return problem, self.dynamics if made is None else made, index


def dynamics_of(dynamics: Dynamics, group: Group) -> AbstractDynamics:
    """The dynamics of a group's first lane, whose kind, name and observables are known before lanes are made."""
    if isinstance(dynamics, AbstractDynamics):
        return dynamics
    return _make(dynamics, group.static | rows_at(group.cells, 0))


def taken(function: Callable[..., Any], names: Collection[str]) -> list[str]:
    """The names among these that are arguments of a function; all of them if it has `**kwargs`."""
    found = inspect.signature(function).parameters
    any_name = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in found.values())
    return [name for name in names if any_name or name in found]


def require_arguments(
    function: Callable[..., Any], names: Collection[str], called: str, axes: Collection[str] | None = None
) -> None:
    """Raises TypeError if these names, a subset of those of all axes, are not the arguments of a function."""
    signature = inspect.signature(function)
    try:
        signature.bind_partial(**dict.fromkeys(names))  # first: a superfluous name explains more than a missing one
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        said = f"the axes {list(names)}" if axes is None else f"{list(names)} of the axes {list(axes)}"
        raise TypeError(
            f"{called} is called with {said}, but takes {signature}: {error}; name the axes as its arguments"
            + see("axes-and-arguments")
        ) from None


def _own(function: Callable[..., Any], cell: dict[str, Any]) -> dict[str, Any]:
    return {name: cell[name] for name in taken(function, cell)}


def _make(dynamics: Callable[..., Any], cell: dict[str, Any]) -> AbstractDynamics:
    own = _own(dynamics, cell)
    require_arguments(dynamics, own, "the function given as dynamics", cell)
    made = dynamics(**own)
    if not isinstance(made, AbstractDynamics):
        raise TypeError(f"a function given as dynamics must return one such as GradientFlow(), got {describe(made)}")
    return made


def _holds_tracer(value: Any, seen: set[int]) -> bool:
    """True if a function, or one that it closes over, closes over an array of the program being traced."""
    if isinstance(value, Tracer):
        return True
    # Functions may close over each other in a cycle.
    if id(value) in seen:
        return False
    seen.add(id(value))
    parts = [part for part in jax.tree.leaves(value) if part is not value]
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty closure cell
            parts.append(cell.cell_contents)
    return any(_holds_tracer(part, seen) for part in parts)


def _makes_keys_of_floats(program: ClosedJaxpr) -> bool:
    """True if a program makes a key from floats. JAX raises only when it lowers, with a message about a tracer."""
    seeds = (equation.invars[0] for equation in equations(program) if equation.primitive.name == "random_seed")
    return any(jnp.issubdtype(seed.aval.dtype, jnp.floating) for seed in seeds)


class Devices:
    """Devices of one kind in this process, which share the rows of batches equally."""

    def __init__(self, devices: Sequence[Any]):
        self.all = tuple(devices)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def on_cpu(self) -> bool:
        """True if the devices are CPUs."""
        return self.all[0].platform == "cpu"

    @property
    def streams(self) -> int:
        """The number of programs to run at once: one per core if all cores form one CPU device, otherwise one."""
        return cores() if self.on_cpu and len(self) == 1 else 1

    def lower(self, fn: Callable[..., Any], arguments: Sequence[Any]) -> jax.stages.Lowered:
        """Lowers a function of one device's rows for all devices, given the shapes of its arguments on one device."""
        if len(self) == 1:
            with jax.default_device(self.all[0]):
                return jax.jit(fn).lower(*arguments)
        mesh, rows = Mesh(np.array(self.all), (AXIS,)), PartitionSpec(AXIS)
        spread = jax.shard_map(fn, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
        placed = NamedSharding(mesh, rows)
        whole = lambda part: jax.ShapeDtypeStruct((len(self) * part.shape[0], *part.shape[1:]), part.dtype)
        return jax.jit(spread, in_shardings=placed, out_shardings=placed).lower(*jax.tree.map(whole, arguments))

    def compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Compiles what `lower` returned, once per process: another sweep of the same kind makes the same program."""
        text = lowered.as_text()
        same = hashlib.sha256(text.encode()).digest(), lowered.in_tree, lowered.out_tree, self.all
        found = _compiled.get(same)
        if found is None:
            found = lowered.compile(compiler_options=_UNCUT if self.on_cpu else None)
            if "jax.const = true" in text:  # jax_use_simplified_jaxpr_constants omits the values from the text
                return found
            _compiled[same] = found
            for old in list(_compiled)[:-COMPILED]:
                # Another thread may have dropped it already.
                _compiled.pop(old, None)
        return found


def read_devices(devices: Any) -> Devices:
    """The devices to run on; None means all local ones, or the one set as `jax.default_device`."""
    if devices is None:
        default = jax.config.jax_default_device
        return Devices([default] if isinstance(default, jax.Device) else jax.local_devices(backend=default))
    if not isinstance(devices, Sequence) or not all(isinstance(device, jax.Device) for device in devices):
        raise TypeError(f"devices must be a sequence such as jax.local_devices(), or None, got {describe(devices)}")
    if not devices:
        raise ValueError("devices is empty; give at least one, or None for all local ones")
    if len(set(devices)) != len(devices):
        raise ValueError(f"devices names one twice: {list(devices)}")
    if len({device.platform for device in devices}) > 1:
        raise ValueError(f"devices must be of one kind, got {list(devices)}")
    if any(device.process_index != jax.process_index() for device in devices):
        raise ValueError(f"devices must belong to this process, such as those of jax.local_devices(); got {devices}")
    return Devices(devices)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cells_of(group: Group, dynamics: Any) -> Cells:
    """The cells of a group: arguments by name, one row per lane, with flat indices if the dynamics holds a key."""
    cells = {name: np.asarray(values) for name, values in group.cells.items()}
    random = any(map(is_key, jax.tree.leaves(dynamics)))
    return cells | {INDEX: group.lanes.astype(np.uint32)} if random else cells
