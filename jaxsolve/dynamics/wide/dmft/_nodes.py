"""The times at which a limit is known, and how updates of weights are summed over them."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Nodes(eqx.Module):
    """Times t_k, and weights w_ks with which W(t_k) = W(0) + sum_{s <= k} w_ks dW/dt(t_s).

    Attributes:
        times: sorted, the first one 0.
        passed: w_ks for k > s: what node s weighs in all later ones.
        own: w_kk, 0 where the sum is explicit, as that of gradient descent is.
    """

    times: Float[Array, " nodes"]
    passed: Float[Array, " nodes"]
    own: Float[Array, " nodes"]

    @property
    def weights(self) -> Float[Array, "nodes nodes"]:
        """All of them, in a matrix."""
        return jnp.tril(jnp.broadcast_to(self.passed, (self.passed.size,) * 2), -1) + jnp.diag(self.own)


def descent_nodes(count: int, rate: Float[Array, ""]) -> Nodes:
    """Those of gradient descent at this rate: its equations hold exactly."""
    ones = jnp.ones(count, rate.dtype)
    return Nodes(rate * jnp.arange(count, dtype=rate.dtype), rate * ones, 0 * ones)


def flow_nodes(times: Float[Array, " nodes"]) -> Nodes:
    """The trapezoidal rule on given times: of second order in their distance, and stable at any."""
    steps = jnp.diff(times)
    left, right = jnp.append(steps, 0.0), jnp.insert(steps, 0, 0.0)
    return Nodes(times, (left + right) / 2, right / 2)
