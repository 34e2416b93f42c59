"""Observables: what `js.solve` records along a run."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import describe, require_line, see
from .._core import AbstractDynamics, Problem, Quantity, View


class Observable(eqx.Module):
    """A pure function of a `View`, with a name and the dimensions and unit of its result.

    Arguments:
        name: key in the trajectory.
        fn: `fn(view)` returns an array with one axis per entry of `dims`.
        needs: what the dynamics must provide.
        dims: names of the axes.
        unit: the unit in words; "1" for pure numbers.
        require: `require(problem)` raises ValueError if the observable makes no sense for a problem; None for no check.
        names: `names(problem)` returns the labels along the only axis, such as layers; None for no labels.
        scale: `scale(view)` returns the size of the terms whose difference is `fn`; `js.compare` divides errors by it.

    Example:
        >>> largest = js.observe.Observable("largest", lambda view: jnp.max(jnp.abs(view.outputs)), js.Quantity.OUTPUTS)
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.array([0.0, 1.0]), observe=largest)
        >>> run["largest"].shape
        (2,)

    Raises:
        TypeError: an argument has the wrong type, or `fn` does not return a JAX array.
        ValueError: the result of `fn` does not have one axis per entry of `dims`.
    """

    name: str = eqx.field(static=True)  # text
    fn: Callable[[View], Array] = eqx.field(static=True)  # a function
    needs: Quantity = eqx.field(static=True, default=Quantity.PARAMS)
    dims: tuple[str, ...] = eqx.field(static=True, default=())
    unit: str = eqx.field(static=True, default="1")
    require: Callable[[Problem], None] | None = eqx.field(static=True, default=None)  # a function
    scale: Callable[[View], Array] | None = eqx.field(static=True, default=None)  # a function
    names: Callable[[Problem], tuple[str, ...]] | None = eqx.field(static=True, default=None)  # a function

    def __check_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"an observable's name must be a non-empty string, got {describe(self.name)}")
        require_line(self.name, "an observable's name", "a string")
        if not callable(self.fn):
            raise TypeError(f"fn of observable {self.name!r} must be a function of a View, got {describe(self.fn)}")
        if not isinstance(self.needs, Quantity):
            raise TypeError(f"needs of observable {self.name!r} must be a Quantity, got {describe(self.needs)}")
        if not isinstance(self.dims, tuple) or not all(isinstance(dim, str) for dim in self.dims):
            raise TypeError(f"dims of observable {self.name!r} must be a tuple of names, got {describe(self.dims)}")

    def __call__(self, view: View) -> Array:
        value = self.fn(view)
        if not isinstance(value, jax.Array):
            raise TypeError(f"observable {self.name!r} must return a JAX array, got {describe(value)}")
        if value.ndim != len(self.dims):
            raise ValueError(f"observable {self.name!r} returned shape {value.shape}, but its dims are {self.dims}")
        return value


def require_observables(observe: Any) -> tuple[Observable, ...]:
    """Returns one observable or a sequence of them as a tuple; raises like `check_observables`."""
    if isinstance(observe, Observable):
        observe = (observe,)
    if not isinstance(observe, Sequence) or not all(isinstance(item, Observable) for item in observe):
        raise TypeError(
            f"observe must be observables such as [observe.loss()], got {describe(observe)}" + see("no-observable")
        )
    names = [item.name for item in observe]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"each observable needs a name of its own; {twice} appear more than once")
    return tuple(observe)


def check_observables(observe: Any, dynamics: AbstractDynamics) -> tuple[Observable, ...]:
    """The observables as a tuple, checked against what the dynamics provides.

    Raises:
        TypeError: `observe` holds something other than observables.
        ValueError: a name appears twice, or the dynamics does not provide what an observable needs.
    """
    if not isinstance(dynamics, AbstractDynamics):
        raise TypeError(f"dynamics must be such as GradientFlow(), got {describe(dynamics)}")
    observe = require_observables(observe)
    for item in observe:
        # A dynamics may provide an observable itself, by name, without the quantity that it is usually computed from.
        if not {item.needs, item.name} & dynamics.provides:
            known = sorted(one.value if isinstance(one, Quantity) else one for one in dynamics.provides)
            raise ValueError(
                f"{item.name!r} needs {item.needs.value}, but {dynamics.name} provides only {known}; GradientFlow and "
                "Descent provide all"
            )
    return observe
