r"""The full curvature of a gradient flow with few parameters, $A = -\eta \nabla^2 L$, treated exactly.

In coordinates $\theta = \sqrt\eta z$ it is symmetric: $-\sqrt\eta \nabla^2 L \sqrt\eta = -Q \Lambda Q^T$. Rates may be
negative: near saddles the flow grows.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core import flat_rates
from .._numerics import HeldModule, kept_product, nonzero, phi
from ._linear_part import AbstractLinearPart, Model, Span, Term


TOGETHER = 32  # Hessian columns computed at once: they share one linearization, but each needs its own memory


class HessianPart(AbstractLinearPart[Float[Array, " params"]]):
    """A = -eta Hess L, frozen at one point. A vector v is held as Q^T v/sqrt(eta).

    Attributes:
        held: the problem.
        point: the parameters at which A is frozen.
        scale: sqrt(eta), one per parameter.
        vectors, values: Q and Lambda.
    """

    held: HeldModule  # loops carry arrays only, and the activation of an `eqx.nn.MLP` is a leaf that is not an array
    point: Float[Array, " params"]
    scale: Float[Array, " params"]
    vectors: Float[Array, "params params"]
    values: Float[Array, " params"]

    def force(
        self, model: Model, w: Float[Array, " params"], outputs: Float[Array, "n out"]
    ) -> Float[Array, " params"]:
        del outputs
        return self._coordinates(model.velocity(w)[0])

    def change(
        self, velocity: Float[Array, " params"], moved: Float[Array, " params"], force: Float[Array, " params"]
    ) -> Float[Array, " params"]:
        # A is -Lambda in these coordinates, so -A moved is +Lambda moved.
        return self._coordinates(velocity) + self.values * moved - force

    def over(self, *times: Float[Array, ""]) -> list[Span]:
        return [Span(time) for time in times]

    def combine(self, span: Span, terms: Sequence[Term]) -> Float[Array, " params"]:
        # At a saddle phi may overflow for a growing mode whose amplitude is 0.
        each = [factor * kept_product(v, phi(k, -span.length * self.values)) for k, factor, v in terms]
        return sum(each, jnp.zeros_like(self.values))

    def vector(self, v: Float[Array, " params"]) -> Float[Array, " params"]:
        return self.scale * (self.vectors @ v)

    def pushed(self, v: Float[Array, " params"]) -> Float[Array, "n out"]:
        return jax.jvp(self.held.module.outputs, (self.point,), (self.vector(v),))[1]

    def power(self, span: Span, v: Float[Array, " params"]) -> Float[Array, ""]:
        # The coordinates are Q^T v/sqrt(eta) with Q orthogonal, so their squares already contain 1/eta.
        return jnp.sum(kept_product(v**2, phi(0, -2 * span.length * self.values)))

    def spent(self, span: Span, v: Float[Array, " params"]) -> Float[Array, ""]:
        # The integral of exp(-2 s Lambda) over s from 0 to t is t phi_1(-2 t Lambda).
        return span.length * jnp.sum(kept_product(v**2, phi(1, -2 * span.length * self.values)))

    def _coordinates(self, v: Float[Array, " params"]) -> Float[Array, " params"]:
        return self.vectors.T @ (v / self.scale)


def hessian_part(model: Model, w: Float[Array, " params"]) -> HessianPart:
    """The linear part at the parameters w, given as one vector."""
    arrays, rest = eqx.partition((model, w), eqx.is_array)
    model, w = eqx.combine(jax.lax.stop_gradient(arrays), rest)
    scale = jnp.sqrt(flat_rates(model.problem))
    # The gradient is linearized once; each column is its derivative along one unit vector.
    _, column = jax.linearize(model.gradient, w)
    hessian = jax.lax.map(column, jnp.eye(w.size, dtype=w.dtype), batch_size=min(TOGETHER, w.size))
    values, vectors = jnp.linalg.eigh(scale[:, None] * hessian * scale[None])
    # Parameters with eta = 0 do not move, but their velocity has a derivative in eta.
    return HessianPart(HeldModule(model), w, nonzero(scale), vectors, values)
