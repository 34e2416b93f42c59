"""The optimizer of a descent: an optax transformation as a pytree, and its response to large gradients."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, DTypeLike, Float, PyTree

from ... import nets
from ..._checks import attempt, concrete, describe, require_settings
from ..._core import closed, contents, is_key, opened, Problem
from ...nets._internal import networks_in


# A gradient that clipping would cut, but whose square float32 can hold.
LARGE = 1e6
# A gradient that clipping would not cut, with a square far above the initial values in adaptive optimizers.
MODEST = 2.0**-7
# Updates that grow by less than this factor ignore the gradient's scale: Adam's eps adds a little, SGD doubles.
DOUBLED = 1.5
STAND_IN = 0.5  # for traced numbers, on which the kind of an optimizer does not depend


class Optimizer(eqx.Module):
    """An optax transformation as a pytree whose leaves are the arrays it closes over.

    Arguments:
        transformation: for example `optax.sgd(0.1)`.

    Raises:
        TypeError: it is not an optax transformation, or needs more than gradients.
    """

    parts: PyTree
    name: str = eqx.field(static=True)  # text
    by_loss: bool = eqx.field(static=True)  # whether its steps also depend on the loss

    def __init__(self, transformation: optax.GradientTransformation):
        require_settings((), "an optimizer")
        if not isinstance(transformation, optax.GradientTransformation):
            given = describe(transformation)
            if isinstance(transformation, optax.MultiSteps):
                given = "optax.MultiSteps: give optax.MultiSteps(...).gradient_transformation()"
            elif callable(transformation):
                given = f"the function {getattr(transformation, '__name__', given)}: call it"
            raise TypeError(f"optimizer must be one of optax, such as optax.sgd(0.1); got {given}")
        self.by_loss = _asks_for_loss(transformation)
        _require_no_more(transformation, by_loss=self.by_loss)
        self.parts, self.name = opened(transformation), _name(transformation)

    @property
    def __name__(self) -> str:  # shown in captions
        return self.name

    def init(self, params: PyTree) -> PyTree:
        """Returns the initial state."""
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            return closed(self.parts).init(params)

    def update(self, gradient: PyTree, state: PyTree, params: PyTree, value: ArrayLike = 1.0) -> tuple[PyTree, PyTree]:
        """Returns the update for a gradient, and the state after it.

        `value` is the loss of that gradient, which some optimizers require; 1 if there is none.
        """
        more = {"value": jnp.asarray(value)} if self.by_loss else {}
        with jax.numpy_dtype_promotion("standard"):
            return closed(self.parts).update(gradient, state, params, **more)

    def astype(self, dtype: DTypeLike) -> "Optimizer":
        """Returns the same optimizer with its real arrays in another precision."""
        real = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if real(leaf) else leaf, self)

    @property
    def is_traced(self) -> bool:
        """True if it contains a traced number."""
        return any(map(_is_traced, jax.tree.leaves(self)))

    def known(self) -> "Optimizer":
        """Returns the same optimizer with concrete numbers in place of traced ones."""
        replace = lambda leaf: np.full(leaf.shape, STAND_IN).astype(leaf.dtype) if _is_traced(leaf) else leaf
        return jax.tree.map(lambda leaf: leaf if is_key(leaf) else jnp.asarray(np.asarray(replace(leaf))), self)


def _is_traced(leaf: Array) -> bool:
    return not is_key(leaf) and concrete(leaf) is None


def _asks_for_loss(part: Any) -> bool:
    """True if an optimizer, or a part of it, requires the loss as `value=`."""
    part = getattr(part, "update", part) if isinstance(part, optax.GradientTransformation) else part
    if isinstance(part, dict | list | tuple):
        return any(map(_asks_for_loss, part.values() if isinstance(part, dict) else part))
    held = contents(part)
    if held is None:
        return False
    value = inspect.signature(part).parameters.get("value")
    required = value is not None and value.kind is value.KEYWORD_ONLY and value.default is value.empty
    return required or any(map(_asks_for_loss, held.values()))


def _require_no_more(optimizer: optax.GradientTransformation, *, by_loss: bool) -> None:
    """Raises TypeError for an optimizer that needs more than gradients and the loss, as line searches do."""
    update: Any = optimizer.update
    more = {"value": jnp.ones(())} if by_loss else {}
    step = lambda params: update(params, optimizer.init(params), params, **more)
    with jax.numpy_dtype_promotion("standard"):
        _, error = attempt(jax.eval_shape, step, jax.ShapeDtypeStruct((1,), jnp.result_type(float)))
    # Optimizers that need parameters of a certain structure raise other errors and are accepted.
    asks = any(words in str(error) for words in ("required keyword-only argument", "must be provided"))
    if asks or (isinstance(error, AttributeError) and error.name == "fast"):
        raise TypeError(
            "optimizer must compute its steps from gradients, as optax.sgd(0.1) and optax.adam(1e-3) do, or from "
            "gradients and the value of the loss; optimizers that call the loss function (line searches such as "
            "optax.lbfgs, sophia, SAM in its opaque mode) or have a second set of parameters (optax.lookahead) need "
            f"more: {error}"
        ) from error


# Functions of optax that wrap other transformations, and those that only make plain descent steps.
_WRAPPERS = ("chain", "named_chain", "with_extra_args_support", "inject_hyperparams")
_PLAIN = ("identity", "trace", "scale", "scale_by_schedule", "scale_by_learning_rate")
_RULE = "scale_by_"
_NAMES = {"rms": "rmsprop"}  # where optax names the part and the whole differently


def _name(optimizer: optax.GradientTransformation) -> str:
    """A name built from the functions that created the optimizer's parts: `sgd`, `clip_by_global_norm + adam`."""
    steps = [step for step in _steps(optimizer) if step not in _PLAIN]
    has_rule = any(step.startswith(_RULE) or step in ("custom", "scalar_rmsprop") for step in steps)
    names = (step.removeprefix(_RULE) for step in (steps if has_rule else [*steps, "sgd"]))
    return " + ".join(dict.fromkeys(_NAMES.get(name, name) for name in names))


def _steps(value: Any) -> list[str]:
    value = getattr(value, "update", value)
    held = contents(value)
    if held is None:
        return [name for part in value for name in _steps(part)] if isinstance(value, list | tuple) else []
    maker, *inner = value.__qualname__.split(".")
    if maker in _WRAPPERS:
        return [name for part in held.values() for name in _steps(part)]
    return [(maker if inner else _RULE + maker) if maker.isidentifier() else "custom"]


def first_state(optimizer: Optimizer, params: PyTree) -> PyTree:
    """The initial state of an optimizer. Raises ValueError if its masks or labels do not fit the parameters."""
    try:
        return optimizer.init(params)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            "the optimizer cannot start on the parameters of this network. Masks and labels must be functions of the "
            "parameters that return trees such as js.nets.partition(net)[0]; for a function f(params, x) these are "
            "lambda params: jax.tree_util.Partial(f, labels), or js.nets.Function(f, labels) if the network is a "
            f"js.nets.Function. The error was: {error}"
        ) from error


def _two_updates(optimizer: Optimizer, gradient: PyTree, start: PyTree, params: PyTree) -> list[PyTree]:
    """Two updates by the same gradient; the first may be 0, as for a schedule that starts at 0."""
    first, state = optimizer.update(gradient, start, params)
    return [first, optimizer.update(gradient, state, params)[0]]


def grows(optimizer: Optimizer, params: PyTree) -> Bool[Array, ""]:
    """True if doubling a large gradient changes the first updates: for SGD, but not for Adam or with clipping.

    An optimizer without a first update, such as one that accumulates gradients, is assumed to grow.
    """
    start = first_state(optimizer, params)
    one, two = (
        _two_updates(optimizer, jax.tree.map(lambda p, size=size: jnp.full_like(p, size), params), start, params)
        for size in (LARGE, 2 * LARGE)
    )
    changed = jax.tree.map(lambda a, b: jnp.any(jnp.abs(b - a) > 1e-3 * jnp.abs(a)), one, two)
    moved = [jnp.any(leaf != 0) for leaf in jax.tree.leaves((one, two))]
    return jnp.any(jnp.stack(jax.tree.leaves(changed))) | ~jnp.any(jnp.stack(moved))


def require_scaling(problem: Problem, adaptive: Callable[[], bool | None]) -> None:
    """Raises ValueError if the network's scaling is for steps of the other kind.

    Arguments:
        adaptive: whether steps ignore the scale of gradients, None if unknown; called only where it matters.
    """
    asked = {net.scaling.optimizers for net in networks_in(problem.net)} - {nets.Optimizers.ANY}
    known = adaptive() if asked else None
    if known is None:
        return
    kind = nets.Optimizers.ADAM if known else nets.Optimizers.GRADIENT
    wanted = next((one for one in asked if one is not kind), None)
    if wanted is not None:
        raise ValueError(
            f"this network's scaling is mup for {wanted.value}, but the optimizer behaves like {kind.value}; "
            f"use nets.Scaling.mup(adam={known})"
        )


def ignores_gradient_scale(optimizer: Optimizer, params: PyTree) -> bool | None:
    """True if the first updates hardly grow when a small gradient is doubled: for Adam, not for SGD.

    None if there is no update, as when gradients are accumulated. The shapes of the parameters suffice.
    """
    with jax.ensure_compile_time_eval():
        known = optimizer.known()
        where = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), params)
        # The norm of all leaves together must not depend on their number.
        size = MODEST * min(1.0, (2 / len(jax.tree.leaves(where))) ** 0.5)
        gradient = jax.tree.map(lambda leaf: _few(leaf, size), where)
        start = first_state(known, where)

        def updates(scale: float) -> Float[Array, " updates"]:
            scaled = jax.tree.map(lambda leaf: scale * leaf, gradient)
            return ravel_pytree(_two_updates(known, scaled, start, where))[0]

        nothing = updates(0.0)  # the part of weight decay
        one, two = (jnp.linalg.norm(updates(scale) - nothing) for scale in (1.0, 2.0))
        return bool(two < DOUBLED * one) if one != 0 else None


def _few(leaf: Array, size: float) -> Array:
    """A gradient of at most three nonzeros: the norm of more would be clipped, and smaller ones would be below eps."""
    numbers = size * jnp.array([1.0, -2.0, 3.0], leaf.dtype)[: leaf.size]
    return jnp.zeros(leaf.size, leaf.dtype).at[: numbers.size].set(numbers).reshape(leaf.shape)
