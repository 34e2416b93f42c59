"""What a config can name, and where: what jaxsolve has in public, solvers of diffrax, optimisers of optax."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from .. import data, dynamics, integrators, losses, nets, observe, theory, until
from .._checks import describe
from .._dynamics import AbstractDynamics
from ._refusals import unknown


# Arguments that no text can give.
UNSAYABLE = frozenset({"dtype", "fn", "law", "optimisers", "optimizers", "problem", "tableau", "target"})
# What may stand in a chain before an optimiser, and rates that change from step to step.
CHAINED = ("add_decayed_weights", "adaptive_grad_clip", "centralize", "clip", "clip_by_global_norm")
SCHEDULES = (
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "linear_schedule",
    "polynomial_schedule",
    "warmup_cosine_decay_schedule",
)
# Arguments that are arrays, as lists of lists.
ARRAYS = ("x", "y", "x_test", "y_test", "covariance", "direction")
ROOMS = (data, dynamics, integrators, losses, nets, observe, theory, until)


@dataclasses.dataclass(frozen=True)
class Kind:
    """What may stand in one place of a config."""

    noun: str  # what it is called in messages
    known: Mapping[str, Callable[..., Any]]  # what makes it, by name
    plain: Callable[[Any], Any] | None = None  # reads a value that is no table; None where it is the name of something
    arrays: bool = False  # whether a list stands for an array instead
    together: Callable[..., Any] | None = None  # makes one thing of the several in a list, where there may be several

    def find(self, name: Any) -> Callable[..., Any]:
        """What makes the thing of this name. Raises ValueError, with the nearest name, if there is none."""
        if isinstance(name, str) and name in self.known:
            return self.known[name]
        # To the name that a thing had in an earlier version its room still answers, with a DeprecationWarning.
        asked = [room for room in ROOMS if isinstance(name, str) and name not in vars(room)]
        answers = [getattr(room, name, None) for room in asked]
        for make in self.known.values():
            if any(make is answer for answer in answers):
                return make
        raise ValueError(unknown(name, self.known, self.noun))

    def of(self, value: Any) -> Any:
        """The thing that a value without a table stands for."""
        return self.find(value)() if self.plain is None else self.plain(value)


def parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments that a config can give, by name."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(make).parameters
    return {name: p for name, p in found.items() if p.kind in named and name not in UNSAYABLE}


@functools.cache
def kinds() -> dict[str, Kind]:
    """The kinds of things that a config holds, by the name of the place where they stand."""
    networks = Kind("network", _classes(nets, nets.AbstractNetwork))
    flows = Kind("dynamics", _classes(dynamics, AbstractDynamics))
    scalings = {name: rule.__func__ for name, rule in vars(nets.Scaling).items() if isinstance(rule, staticmethod)}
    optimisers = Kind("optimiser of optax", _public(optax, _takes_a_rate))
    solvers = _classes(diffrax, diffrax.AbstractSolver) | _classes(integrators, diffrax.AbstractSolver)
    return {
        "network": networks,
        "teacher": dataclasses.replace(networks, arrays=True),
        "scaling": Kind("scaling", {"Scaling": nets.Scaling, **scalings}),
        "init": Kind("initialisation", _classes(nets, nets.AbstractInit)),
        "normalisation": Kind("normalisation", _classes(nets, nets.AbstractNormalisation)),
        "activation": Kind("activation", _functions(nets, nets.Activation), plain=nets.find_activation),
        "loss": Kind("loss", _classes(losses, losses.AbstractLoss)),
        "data": Kind("data set", _functions(data, data.Dataset) | {"Dataset": data.Dataset}),
        "dynamics": Kind("dynamics", {**flows.known, **_classes(theory, AbstractDynamics)}),
        "flow": flows,
        "integrator": Kind("integrator", solvers),
        "solver": Kind("integrator", solvers),  # inside of another
        "optimizer": Kind(optimisers.noun, {**optimisers.known, **_of_optax(CHAINED)}, together=optax.chain),
        "learning_rate": Kind("schedule of optax", _of_optax(SCHEDULES), plain=lambda rate: rate),
        "transform": Kind("transform", _functions(data, data.AbstractTransform), together=lambda *several: several),
        "at": Kind("network", {"RunEnd": dynamics.RunEnd}),
        "factory": dataclasses.replace(optimisers, known={}, plain=optimisers.find),  # of the next version no more
        "until": Kind("condition", _functions(until, until.AbstractCondition)),
        "observe": Kind("observable", _functions(observe, observe.Observable)),
        "key": Kind("random key", {}, plain=random_key),
        **dict.fromkeys(ARRAYS, Kind("array", {}, plain=array)),
    }


def _of_optax(names: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    return {name: getattr(optax, name) for name in names}


def array(value: Any) -> Array:
    """The array of a list of numbers, or of lists."""
    return jnp.asarray(value)


def random_key(seed: Any) -> Any:
    """The random key of a seed, an integer or a traced one."""
    real = hasattr(seed, "dtype") and not jnp.issubdtype(seed.dtype, jnp.integer)
    if real or isinstance(seed, bool | float | str | tuple):
        raise TypeError(f"key must be an integer, the seed of jax.random.key, got {describe(seed)}")
    return jax.random.key(seed)


def _public(room: types.ModuleType, fits: Callable[[Any], bool]) -> dict[str, Callable[..., Any]]:
    """What a room has in public that fits a place."""
    known = {name: value for name, value in vars(room).items() if not name.startswith(("_", "Abstract", "find_"))}
    return {name: value for name, value in known.items() if fits(value)}


def _classes(room: types.ModuleType, base: type) -> dict[str, Callable[..., Any]]:
    """The classes of a room, all of whose arguments that must be given can be said."""
    given = lambda make: inspect.signature(make).parameters.values()
    needed = lambda make: {item.name for item in given(make) if item.default is item.empty}
    fits = lambda value: isinstance(value, type) and issubclass(value, base) and not needed(value) & UNSAYABLE
    return _public(room, fits)


def _functions(room: types.ModuleType, result: type) -> dict[str, Callable[..., Any]]:
    """The functions of a room that return a thing of this type."""
    is_function = lambda value: isinstance(value, types.FunctionType)
    return _public(room, lambda value: is_function(value) and inspect.signature(value).return_annotation is result)


def _takes_a_rate(value: Any) -> bool:
    """Whether it is a function that makes an optimiser from a learning rate."""
    is_function = isinstance(value, types.FunctionType)
    return is_function and next(iter(inspect.signature(value).parameters), "") == "learning_rate"
