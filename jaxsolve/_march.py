"""A whole marching run."""

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._dynamics import AbstractMarching, March
from ._problem import Problem


def march(problem: Problem, dynamics: AbstractMarching, ts: Float[Array, " times"]) -> March:
    """A whole marching run, for use inside jit."""
    state = dynamics.init(problem, ts)
    chunk = jnp.asarray(dynamics.chunk)
    state = jax.lax.while_loop(lambda s: ~s.done, lambda s: dynamics.advance(problem, s, chunk), state)
    # JAX would say no more than that a loop has no reverse mode.
    message = (
        f"reverse-mode derivatives (jax.grad, jax.vjp, jax.jacrev) do not go through the steps of {dynamics.name}, "
        "whose number is not known beforehand. Take forward mode (jax.jvp, jax.jacfwd), or a closed form (js.exact) "
        "where there is one, which has both modes"
    )
    return eqxi.nondifferentiable_backward(dynamics.finish(problem, state), msg=message)
