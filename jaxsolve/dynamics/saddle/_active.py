"""The flow of active neurons to a minimum of the loss, which takes no time in the limit of small weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


_MAX_STEPS = 1000
_CALM = 3  # steps that change the loss by rounding alone; once Newton's method converges, one is exact


class _Flow(NamedTuple):
    weights: Float[Array, " weights"]
    loss: Float[Array, ""]
    step: Float[Array, ""]
    steps: Int[Array, ""]
    calm: Int[Array, ""]


def settle(objective: Callable[[Array], Float[Array, ""]], start: Float[Array, "neurons size"]) -> Any:
    """The weights where gradient flow from `start` comes to rest.

    Uses linearly implicit Euler steps, and doubles the step size after each one that does not raise the loss: at first
    they follow the flow, later they are Newton steps. A step for which 1/h + Hessian is not positive definite would
    leave the flow. Such a step, or one that raises the loss, is rejected, and the step size is divided by 4.
    """
    shape, dtype = start.shape, start.dtype
    value = lambda flat: objective(flat.reshape(shape))
    eps = float(jnp.finfo(dtype).eps)

    def body(flow: _Flow) -> _Flow:
        slope, hessian = jax.grad(value)(flow.weights), jax.hessian(value)(flow.weights)
        matrix = hessian + jnp.eye(len(slope), dtype=dtype) / flow.step
        factor = jnp.linalg.cholesky(matrix)  # NaN if not positive definite
        moved = flow.weights - jax.scipy.linalg.cho_solve((factor, True), slope)
        loss = value(moved)
        better = loss <= flow.loss  # false for NaN
        # Once only rounding is left, steps may raise the loss by that much.
        calm = jnp.where(jnp.abs(loss - flow.loss) <= eps * begin.loss, flow.calm + 1, 0)
        keep = lambda new, old: jnp.where(better, new, old)
        step = jnp.where(better, 2 * flow.step, flow.step / 4)
        return _Flow(keep(moved, flow.weights), keep(loss, flow.loss), step, flow.steps + 1, calm)

    flat = start.ravel()
    size = jnp.linalg.norm(jax.grad(value)(flat)) / jnp.linalg.norm(flat)
    first = 0.1 / jnp.where(size > 0, size, 1)
    begin = _Flow(flat, value(flat), first, jnp.zeros((), int), jnp.zeros((), int))
    end = jax.lax.while_loop(lambda flow: (flow.calm < _CALM) & (flow.steps < _MAX_STEPS), body, begin)
    return end.weights.reshape(shape)
