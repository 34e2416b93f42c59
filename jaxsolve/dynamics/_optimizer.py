"""The optimiser of a descent: how it is given, and how it answers large gradients."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from .. import nets
from .._checks import describe, one_number, require_settings
from .._counts import at_count, counts_of
from .._problem import Problem
from ._held import Held
from ._rate import see, Seen, stand_in, Unseen
from ._schedule import GivenSchedule


# A gradient that clipping would cut, squares of which float32 holds.
LARGE = 1e6
# One that it would not, and whose square is far above what adaptive optimisers begin with.
MODEST = 2.0**-7
# By less an update grows whose size is not that of the gradient: with Adam's eps a little, by SGD twofold.
DOUBLED = 1.5


def read_optimizer(optimizer: Any, rate: Any, momentum: float) -> tuple[Held, Seen]:
    """An optimiser as a pytree, and what is known of its rate.

    Raises:
        TypeError, ValueError: as `Descent`.
    """
    require_settings((), "an optimiser")
    if isinstance(optimizer, optax.GradientTransformation):
        if momentum:
            raise ValueError("momentum belongs to the optimiser: Descent(optax.sgd(rate, momentum=...))")
        _require_steps_of_gradients(optimizer)
        held = Held(optimizer)
        return held, _see(held, rate)
    made, rate = _from_factory(optimizer, rate, momentum)
    return Held(made), Seen(rate, jnp.asarray(float(momentum)) if momentum else None, None)


def _require_steps_of_gradients(optimizer: optax.GradientTransformation) -> None:
    """Raises TypeError for an optimiser that needs more than gradients: a line search calls the loss."""
    step = lambda params: optimizer.update(params, optimizer.init(params), params)
    try:
        with jax.numpy_dtype_promotion("standard"):
            jax.eval_shape(step, jnp.ones(1))
    except Exception as error:  # other optimisers may want parameters of a certain structure
        two = isinstance(error, AttributeError) and error.name == "fast"
        if two or "required keyword-only argument" in str(error):
            raise TypeError(
                "optimizer must make its steps from gradients alone, such as optax.sgd(0.1) or optax.adam(1e-3); one "
                "with a line search, such as optax.lbfgs, or a second set of parameters, as optax.lookahead, needs "
                f"more: {error}"
            ) from error


def _see(optimizer: Held, rate: Any) -> Seen:
    """What is known of the time of a step: as given, or as the optimiser shows it."""
    if callable(rate):
        return Seen(None, None, GivenSchedule(Held(rate)))
    if rate is not None:
        return Seen(one_number(rate, "rate"), None, None)
    try:
        return see(optimizer)
    except Unseen as error:
        raise ValueError(
            f"the rate of this optimiser ({optimizer.__name__}) cannot be seen from outside: {error}. The time of a "
            "run is the sum of its rates: give rate= too, a number such as Descent(optax.rmsprop(1e-3), rate=1e-3), "
            "or the schedule that the optimiser has"
        ) from error


def _from_factory(factory: Any, rate: Any, momentum: float) -> tuple[optax.GradientTransformation, Array]:
    """The optimiser that a function makes of a rate."""
    if isinstance(factory, optax.MultiSteps):
        raise TypeError("optax.MultiSteps is given by its method, optax.MultiSteps(...).gradient_transformation()")
    if not callable(factory):
        raise TypeError(f"optimizer must be one of optax, such as optax.sgd(0.1); got {describe(factory)}")
    name = getattr(factory, "__name__", "factory")
    if rate is None:
        raise TypeError(f"optimizer must be one of optax, such as optax.sgd(0.1); got the function {name}: call it")
    more = f", momentum={momentum:g}" if momentum else ""
    message = f"Descent({name}, rate) will not be understood by the next version: give Descent({name}(rate{more}))"
    warnings.warn(message, DeprecationWarning, stacklevel=4)
    rate = one_number(rate, "rate")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
    optimizer = factory(rate, momentum=float(momentum)) if momentum else factory(rate)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"factory must return an optax optimiser, got {describe(optimizer)}")
    return optimizer, rate


def grows(optimizer: optax.GradientTransformation, params: PyTree) -> Bool[Array, ""]:
    """Whether doubling a large gradient changes the first update: of SGD, not of Adam and its kin, nor if clipped.

    That of a schedule which begins at 0 is looked at later. An optimiser without an update, as one that gathers several
    gradients, is taken for one that grows.
    """
    found, moved = [], []
    start = first_state(optimizer, params)
    with jax.numpy_dtype_promotion("standard"):
        for state in (at_count(start, count) for count in counts_of(start)):
            one, two = (
                optimizer.update(jax.tree.map(lambda p, size=size: jnp.full_like(p, size), params), state, params)[0]
                for size in (LARGE, 2 * LARGE)
            )
            changes = jax.tree.map(lambda a, b: jnp.any(jnp.abs(b - a) > 1e-3 * jnp.abs(a)), one, two)
            found += jax.tree.leaves(changes)
            moved += [jnp.any(leaf != 0) for leaf in jax.tree.leaves((one, two))]
    return jnp.any(jnp.stack(found)) | ~jnp.any(jnp.stack(moved))


def require_scaling(problem: Problem, adaptive: Callable[[], bool | None]) -> None:
    """Raises ValueError where the network's scaling is for steps of the other kind.

    Arguments:
        adaptive: whether steps ignore the scale of gradients, None if that is not known; asked where it matters.
    """
    asked = {net.scaling.optimisers for net in nets.networks_in(problem.net)} - {nets.Optimisers.ANY}
    known = adaptive() if asked else None
    if known is None:
        return
    kind = nets.Optimisers.ADAM if known else nets.Optimisers.GRADIENT
    wanted = next((one for one in asked if one is not kind), None)
    if wanted is not None:
        raise ValueError(
            f"this network's scaling is mup for {wanted.value}, but the optimiser behaves like {kind.value}; "
            f"use nets.Scaling.mup(adam={known})"
        )


def ignores_gradient_scale(optimizer: Held, params: PyTree) -> bool | None:
    """Whether the first update that is not 0 hardly grows when a small gradient is doubled: of Adam, not of SGD.

    None where there is no such update, as of steps that gather several gradients. Of the parameters shapes are enough.
    """
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        known = stand_in(optimizer).value
        where = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), params)
        # Its norm is that of all leaves together, whose number must not matter.
        size = MODEST * min(1.0, (2 / len(jax.tree.leaves(where))) ** 0.5)
        gradient = jax.tree.map(lambda leaf: _few(leaf, size), where)
        start = first_state(known, where)

        def update(scale: float, state: PyTree) -> Float[Array, " params"]:
            return ravel_pytree(known.update(jax.tree.map(lambda leaf: scale * leaf, gradient), state, where)[0])[0]

        nothing = update(0.0, start)  # weight decay
        for state in (at_count(start, count) for count in counts_of(start)):
            one, two = (jnp.linalg.norm(update(scale, state) - nothing) for scale in (1.0, 2.0))
            if one != 0:
                return bool(two < DOUBLED * one)
    return None


def _few(leaf: Array, size: float) -> Array:
    """A gradient of three numbers at most: more of them would be cut by their norm, smaller ones be below any eps."""
    numbers = size * jnp.array([1.0, -2.0, 3.0], leaf.dtype)[: leaf.size]
    return jnp.zeros(leaf.size, leaf.dtype).at[: numbers.size].set(numbers).reshape(leaf.shape)


def first_state(optimizer: optax.GradientTransformation, params: PyTree) -> PyTree:
    """The state of an optimiser at the start. Raises ValueError where its masks or labels do not fit the parameters."""
    try:
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            return optimizer.init(params)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            "the optimiser cannot start on the parameters of this network. Masks and labels must be functions of the "
            "parameters that return trees such as js.nets.partition(net)[0]; of f(params, x) these are lambda params: "
            "jax.tree_util.Partial(f, labels), or js.nets.Function(f, labels) if the network is one. It says: "
            f"{error}"
        ) from error
