"""From the cells of a group to their problems, and to what their lanes do."""

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Float

from ..._checks import describe
from ..._dynamics import AbstractDynamics, is_stochastic, of_lane, resolve
from ..._problem import Problem
from ...nets import Function
from ...observe import Observable
from ..grid._axes import Group
from ._devices import Devices


Cells = dict[str, np.ndarray]
"""Traced arguments by name, one row per lane of a group."""
INDEX = "flat index"  # in the cells of lanes that have a random key each; no argument of a function has such a name


class Leaves(NamedTuple):
    """The arrays of a lane, in lists: those that depend on the cell, and those that all lanes share, as the data."""

    own: Any
    shared: Any


Dynamics = AbstractDynamics | Callable[..., AbstractDynamics]
"""How lanes move: all alike, or as a function of axes says."""


class Builder:
    """Makes the lanes of a group: their problems, and their dynamics where a function of axes makes them.

    Each function gets the axes that it has arguments for, and is traced once.

    Attributes:
        shape: the problem of a lane, in shapes.
        dynamics: the one that all lanes have, or that of the first lane.
        chosen: the same, where the problem chooses the one that it has chosen.

    Raises:
        TypeError: problem_fn returns something else than a Problem, dynamics something else than a dynamics, one of
            them needs the value of a traced axis, or a `nets.Function` closes over an array made in problem_fn.
    """

    def __init__(self, problem_fn: Callable[..., Problem], dynamics: Dynamics, group: Group):
        self.dynamics = dynamics_of(dynamics, group)
        parts: list[Any] = []  # the structure and the leaves that are not arrays, filled while tracing

        def build(cell: dict[str, Array]) -> list[Array]:
            known = group.static | cell
            problem: Any = problem_fn(**_own(problem_fn, known))
            if not isinstance(problem, Problem):
                raise TypeError(f"problem_fn must return a jaxsolve.Problem, got {describe(problem)}")
            if isinstance(problem.net, Function) and _holds_tracer(problem.net.f, set()):
                raise TypeError(
                    "the function of a nets.Function closes over an array that problem_fn makes, but a sweep carries "
                    "on only the arrays of a problem. If no axis changes it, make it outside of problem_fn; otherwise "
                    "hand it over in the parameters, where jax.lax.stop_gradient keeps it from training"
                )
            made = None if isinstance(dynamics, AbstractDynamics) else resolve(_make(dynamics, known), problem)
            arrays, static = eqx.partition((problem, made), eqx.is_array)
            parts[:] = [jax.tree.structure(arrays), static]
            return jax.tree.leaves(arrays)

        example = {name: jax.ShapeDtypeStruct(values.shape[1:], values.dtype) for name, values in group.cells.items()}
        try:
            closed = jax.make_jaxpr(build)(example)
        except jax.errors.JAXTypeError as error:
            raise TypeError(
                "problem_fn (or a function given as dynamics) needs to know the value of an axis that is traced, one "
                f"of {sorted(example)}: it branches on it, makes a size of it, or calls int, float or NumPy. Make this "
                "axis static by giving a list of ints or strings (one compilation each), or use jnp.where; a key is "
                "jax.random.key(seed), without int"
            ) from error
        if _makes_keys_of_floats(closed.jaxpr):
            floats = sorted(name for name, values in group.cells.items() if values.dtype.kind == "f")
            raise TypeError(
                f"problem_fn makes a random key of floats, of an axis of {floats}; a seed is an integer: give whole "
                "numbers, such as jnp.arange(10)"
            )
        self._run = jaxpr_as_fun(closed)
        self._structure, self._static = parts
        self._depends = _depends_on_input(closed.jaxpr)
        self.shape, _ = self._combine([jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.out_avals])
        self.chosen = resolve(self.dynamics, self.shape)

    def leaves(self, cell: dict[str, Array]) -> Leaves:
        """The arrays of a cell's lane."""
        found = Leaves([], [])
        for leaf, depends in zip(self._run(*jax.tree.leaves(cell)), self._depends, strict=True):
            (found.own if depends else found.shared).append(jnp.asarray(leaf))
        return found

    def lane(self, leaves: Leaves) -> tuple[Problem, Any]:
        """The problem and the dynamics of these arrays."""
        own, shared = iter(leaves.own), iter(leaves.shared)
        problem, made = self._combine([next(own if depends else shared) for depends in self._depends])
        return problem, self.chosen if made is None else made

    def _combine(self, leaves: list[Any]) -> tuple[Problem, Any]:
        return eqx.combine(jax.tree.unflatten(self._structure, leaves), self._static)


def dynamics_of(dynamics: Dynamics, group: Group) -> AbstractDynamics:
    """The dynamics of a group's first lane, for what is known before lanes are: its kind, its name, what it shows.

    Raises:
        TypeError: a function returns something else, or takes other arguments than axes.
    """
    if isinstance(dynamics, AbstractDynamics):
        return dynamics
    first = {name: np.asarray(values)[0] for name, values in group.cells.items()}
    return _make(dynamics, group.static | first)


def taken(function: Callable[..., Any], names: Collection[str]) -> list[str]:
    """Which of these names are arguments of a function: all, if its arguments are not known or are any."""
    found = _parameters(function)
    any_name = found is None or any(item.kind is inspect.Parameter.VAR_KEYWORD for item in found.values())
    return [name for name in names if any_name or name in (found or ())]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # of some functions made in C nothing is known
        return None


def _own(function: Callable[..., Any], cell: dict[str, Any]) -> dict[str, Any]:
    return {name: cell[name] for name in taken(function, cell)}


def _make(dynamics: Callable[..., Any], cell: dict[str, Any]) -> AbstractDynamics:
    own = _own(dynamics, cell)
    several, given = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL), _parameters(dynamics) or {}
    needed = [name for name, p in given.items() if p.default is inspect.Parameter.empty and p.kind not in several]
    missing = [name for name in needed if name not in own]
    if missing:
        raise TypeError(
            f"the function given as dynamics needs {missing}, but the axes are {list(cell)}: name them alike"
        )
    made = dynamics(**own)
    if not isinstance(made, AbstractDynamics):
        raise TypeError(f"a function given as dynamics must return one such as GradientFlow(), got {describe(made)}")
    return made


def _holds_tracer(value: Any, seen: set[int]) -> bool:
    """Whether an array of the program being traced is closed over by a function, or by one that it closes over."""
    if isinstance(value, Tracer):
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    parts = [part for part in jax.tree.leaves(value) if part is not value]
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it is still empty
            parts.append(cell.cell_contents)
    return any(_holds_tracer(part, seen) for part in parts)


def _makes_keys_of_floats(jaxpr: Any) -> bool:
    """JAX itself finds this when it lowers a program, and says it of a tracer."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "random_seed" and jnp.issubdtype(equation.invars[0].aval.dtype, jnp.floating):
            return True
        inner = [getattr(value, "jaxpr", None) for value in equation.params.values()]
        if any(found is not None and _makes_keys_of_floats(found) for found in inner):
            return True
    return False


def _depends_on_input(jaxpr: Any) -> list[bool]:
    """Which outputs depend on an input."""
    dependent = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(variable in dependent for variable in equation.invars if not hasattr(variable, "val")):
            dependent.update(equation.outvars)
    return [not hasattr(variable, "val") and variable in dependent for variable in jaxpr.outvars]


class Setup(NamedTuple):
    """What the lanes of a group do, and where."""

    builder: Builder
    observables: tuple[Observable, ...]
    ts: Float[Array, " times"]
    devices: Devices
    size: int  # lanes of a batch, on all devices
    cell: dict[str, Any]  # any one of the group, from `cells_of`

    def of_size(self, lanes: int) -> "Setup":
        """The same for batches of so many lanes, or a few more: as many on each device."""
        return self._replace(size=len(self.devices) * -(-lanes // len(self.devices)))

    @property
    def rows(self) -> int:
        """Lanes of a batch on one device."""
        return self.size // len(self.devices)

    def shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of so many cells."""
        return {name: jax.ShapeDtypeStruct((rows, *v.shape), v.dtype) for name, v in self.cell.items()}

    def leaves(self, cell: dict[str, Array]) -> Leaves:
        """The arrays that a lane is made of."""
        leaves = self.builder.leaves({name: value for name, value in cell.items() if name != INDEX})
        return Leaves([*leaves.own, cell[INDEX]], leaves.shared) if INDEX in cell else leaves

    def lane(self, leaves: Leaves) -> tuple[Problem, Any]:
        """The problem and the dynamics of a lane of these arrays."""
        if INDEX not in self.cell:
            return self.builder.lane(leaves)
        *own, index = leaves.own
        problem, dynamics = self.builder.lane(Leaves(own, leaves.shared))
        return problem, of_lane(dynamics, index)


def cells_of(group: Group, dynamics: Any) -> Cells:
    """What makes the lanes of a group: arguments by name, one row per lane; with flat indices if there is a key."""
    cells = {name: np.asarray(values) for name, values in group.cells.items()}
    return cells | {INDEX: group.lanes.astype(np.uint32)} if is_stochastic(dynamics) else cells
