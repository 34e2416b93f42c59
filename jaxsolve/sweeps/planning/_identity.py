"""The identity of a plan, as JSON: its settings, and digests of the programs that its lanes trace to.

Helper functions, modules, captured arrays, files and settings all end up in a program, so they need no digests.
"""

import dataclasses
import hashlib
import inspect
import math
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Array, Float

from ..._checks import concrete
from ..._core import AbstractDynamics, AbstractRandomAccess
from ..._solve import observe_march, observe_random_access
from ..grid._axes import Group
from ..running._builder import Builder
from ..running._runner import lane_of
from ._plan import Plan


# Libraries that help to trace or run a program.
LIBRARIES = ("jaxsolve", "jax", "jaxlib", "equinox", "diffrax", "lineax", "optimistix", "optax", "numpy")
LISTED = 10_000  # arrays up to this size are written out, and need agree only to rounding; larger ones get a digest
DIGITS = 16  # of a digest: enough to distinguish versions of a program
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Everything that decides the results of a sweep, as JSON. Traces one lane of every group; compiles nothing."""
    return plan_settings(plan) | {"programs": [_programs(plan, group) for group in plan.groups]}


def plan_settings(plan: Plan) -> dict[str, Any]:
    """The same facts without the programs."""
    config: Any = jax.config
    values = lambda item: {"traced": np.asarray(item.values)} if item.traced else {"static": list(item.values)}
    return {
        "dims": [axis.dim for axis in plan.axes],
        "axes": {axis.dim: {item.name: describe_value(values(item)) for item in axis.arguments} for axis in plan.axes},
        "dynamics": {"name": plan.name, "settings": describe_value(plan.dynamics)},
        "ts": describe_value(plan.ts),
        "observe": {item.name: describe_value(item) for item in plan.observables},
        # Settings of JAX that decide random numbers or the rounding of products.
        "precision": {
            "x64": config.jax_enable_x64,
            "matmul": str(config.jax_default_matmul_precision),
            "prng": str(config.jax_default_prng_impl),
            "threefry_partitionable": config.jax_threefry_partitionable,
        },
        "problem_fn": describe_value(plan.problem_fn),
        "versions": {name: metadata.version(name) for name in LIBRARIES},
    }


def _programs(plan: Plan, group: Group) -> dict[str, Any]:
    """Digests of what a lane of a group computes: its problem alone, and its whole run."""
    builder = Builder(plan.problem_fn, plan.dynamics, group)
    # A builder traces a function that makes the dynamics together with problem_fn; the problem alone leaves it out.
    fixed = isinstance(plan.dynamics, AbstractDynamics)
    alone = builder if fixed else Builder(plan.problem_fn, builder.dynamics, group)

    def problem(cell: dict[str, Array]) -> Any:
        made, _ = alone.lane(alone.leaves(cell))
        return made.outputs(made.params), made.objective(made.params)

    # One step stands for all. Times are an input, since another machine may round them differently.
    def run(cell: dict[str, Array], ts: Float[Array, " times"]) -> Any:
        made, dynamics = builder.lane(builder.leaves(cell))
        if isinstance(dynamics, AbstractRandomAccess):
            return observe_random_access(made, dynamics, plan.observables, ts.astype(made.dtype))
        state = dynamics.advance(made, dynamics.init(made, ts), jnp.ones((), int))
        done = dynamics.finish(made, state)
        return lane_of(done, observe_march(made, plan.observables, done))

    shape = lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype)
    cell = {name: shape(value) for name, value in builder.cell.items()}
    return {
        "static": describe_value(group.static),
        "problem": digest(program_text(jax.make_jaxpr(problem)(cell))),
        "run": digest(program_text(jax.make_jaxpr(run)(cell, shape(plan.ts)))),
    }


def program_text(program: ClosedJaxpr | Jaxpr) -> str:
    """A traced program as text that is the same in every process.

    `str(program)` will not do: it omits constants, and prints a part once or twice depending on JAX's cache.
    """
    numbers: dict[Any, int] = {}

    def operand(atom: Any) -> str:
        return _value(atom.val) if hasattr(atom, "val") else f"v{numbers.setdefault(atom, len(numbers))}:{atom.aval}"

    # An open program, such as JAX 0.8 nests in others, has inputs in place of constants.
    jaxpr, constants = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
    known = zip(jaxpr.constvars, constants, strict=isinstance(program, ClosedJaxpr))
    lines = [f"{operand(variable)} = {_value(value)}" for variable, value in known]
    lines.append(f"inputs {[*map(operand, jaxpr.invars)]}")
    for equation in jaxpr.eqns:
        # Renaming a function changes no result.
        params = {key: _value(value) for key, value in sorted(equation.params.items()) if key != "name"}
        found, given = [*map(operand, equation.outvars)], [*map(operand, equation.invars)]
        lines.append(f"{found} = {equation.primitive} {params} {given}")
    return "\n".join([*lines, f"outputs {[*map(operand, jaxpr.outvars)]}"])


def _value(value: Any) -> str:
    """A constant or a parameter of an equation as text; arrays and nested programs become digests."""
    if hasattr(value, "eqns"):
        return digest(program_text(value))
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"{jax.random.key_impl(value)} {_value(jax.random.key_data(value))}"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = concrete(value)
        if array is None:  # an input of an enclosing program
            return f"{value.dtype}{value.shape}"
        return f"{array.dtype}{array.shape} {digest(array.tobytes())}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    # Addresses of objects differ between processes.
    return ADDRESS.sub("", repr(value))


def digest(content: str | bytes) -> str:
    """The digest of a text or of bytes."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:DIGITS]


def describe_value(value: Any) -> Any:
    """Settings as JSON: numbers, text, containers and the fields of dataclasses; anything else becomes its name.

    The programs show what a function does.
    """
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": jax.random.key_data(value).tolist(), "impl": str(jax.random.key_impl(value))}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = concrete(value)
        if array is None:
            return "<traced>"
        facts = {"dtype": str(array.dtype), "shape": list(array.shape), "sha256": digest(array.tobytes())}
        return describe_value(array.tolist()) if array.size <= LISTED else facts
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has neither NaN nor infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): describe_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [describe_value(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind, names = type(value), [field.name for field in dataclasses.fields(value)]
        # Arguments that no field holds as given, but a property does, such as the rate of an optimizer.
        given = inspect.signature(kind.__init__).parameters  # an instance may have the signature of what it wraps
        names += [name for name in given if isinstance(getattr(kind, name, 0), property)]
        fields = {name: describe_value(getattr(value, name, None)) for name in names}
        return {"type": kind.__qualname__, **fields}
    return getattr(value, "__qualname__", type(value).__qualname__)
