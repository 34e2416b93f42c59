r"""The stiff part of a gradient flow with momentum, treated exactly: one damped oscillator per mode of the kernel.

For $w' = p/\tau$, $p' = -\eta \nabla L - p/\tau$ it is $A (a, b) = (b/\tau, -\eta J^T H J a - b/\tau)$. A function of A
is one of 2 by 2 matrices: it acts at rate 0 on all parameters, and each mode adds its difference.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core import flat_rates
from .._numerics import squares_over
from ._kernel_part import Direction, KernelPart
from ._linear_part import AbstractLinearPart, AbstractModel, Model, Span, Term
from ._oscillator import responses


class InertialModel(AbstractModel):
    """The system of a problem's parameters w and, in a second row, p = tau w'.

    Attributes:
        plain: the problem without momentum.
        tau: the relaxation time.
    """

    plain: Model
    tau: Float[Array, ""]
    start: Float[Array, "2 params"]

    def __init__(self, plain: Model, tau: Float[Array, ""]):
        self.plain, self.tau = plain, tau
        self.start = jnp.stack([plain.start, jnp.zeros_like(plain.start)])

    def outputs(self, w: Float[Array, "2 params"]) -> Float[Array, "n out"]:
        return self.plain.outputs(w[0])

    def velocity(self, w: Float[Array, "2 params"]) -> tuple[Float[Array, "2 params"], Float[Array, ""]]:
        v, (force, _) = w[1] / self.tau, self.plain.velocity(w[0])
        return jnp.stack([v, force - v]), squares_over(v, flat_rates(self.plain.problem))

    @property
    def first_step(self) -> Float[Array, ""]:
        plain, tau = self.plain.first_step, jax.lax.stop_gradient(self.tau)
        return jnp.sqrt(plain * (plain + tau))  # from rest a unit force moves by t^2/(2 tau) in time t


class Phase(NamedTuple):
    """The displacement of the parameters, and p."""

    position: Direction
    way: Direction

    def __add__(self, other: "Phase") -> "Phase":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Phase(self.position + other.position, self.way + other.way)

    def __rmul__(self, factor: Float[Array, ""] | float) -> "Phase":  # pyright: ignore
        return Phase(factor * self.position, factor * self.way)


class InertialPart(AbstractLinearPart[Phase]):
    """The linear part A, frozen at one point.

    Attributes:
        kernel: the linear part of gradient flow without momentum.
        tau: the relaxation time.
        highest: the largest k of the phi_k that the method needs.
    """

    kernel: KernelPart
    tau: Float[Array, ""]
    highest: int = eqx.field(static=True)  # decides the program

    def __init__(self, kernel: KernelPart, tau: Float[Array, ""], highest: int):
        self.kernel, self.tau, self.highest = kernel, jax.lax.stop_gradient(tau), highest

    def force(self, model: Any, w: Float[Array, "2 params"], outputs: Float[Array, "n out"]) -> Phase:
        v = self.kernel.direction(w[1] / model.tau, jnp.zeros_like(self.kernel.kernel[0]))
        return Phase(v, self.kernel.force(model.plain, w[0], outputs) + -1.0 * v)

    def change(self, velocity: Float[Array, "2 params"], moved: Phase, force: Phase) -> Phase:
        # The upper row is 0, but its derivative in tau is nonzero.
        drag, still = (1 / self.tau) * moved.way, jnp.zeros_like(self.kernel.kernel[0])
        position = self.kernel.direction(velocity[0], still) + -1.0 * drag
        way = self.kernel.direction(velocity[1], self.kernel.curvature(moved.position.pushed)) + drag
        return Phase(position, way) + -1.0 * force

    def over(self, *times: Float[Array, ""]) -> list[Span]:
        # The last rate, 0, is free motion, which applies to all directions of parameter space outside the modes.
        rates = jnp.append(self.kernel.values, 0)
        found = jax.vmap(lambda time: responses(self.highest, time, self.tau, rates))(jnp.stack(times))
        # Without the barrier XLA recomputes the responses at every use.
        found = jax.lax.optimization_barrier(found)
        return [Span(time, jax.tree.map(lambda entry, i=i: entry[i], found)) for i, time in enumerate(times)]

    def combine(self, span: Span, terms: Sequence[Term]) -> Phase:
        rates = self.kernel.values
        moving, free, bound = rates > 0, list[Phase](), list[tuple[Array, Array]]()
        # eta J^T S V Lambda^-1 V^T S J projects onto the modes, so a function F of A is F(0) everywhere plus, in each
        # mode, (F(rate) - F(0))/rate times its amplitude.
        for k, factor, v in terms:
            whole = [factor * entry[k] for entry in span.known]
            one = [entry[-1] for entry in whole]
            free.append(Phase(one[0] * v.position + one[1] * v.way, one[2] * v.position + one[3] * v.way))
            # The difference of each mode from free motion, over its rate.
            beyond = [jnp.where(moving, (entry[:-1] - entry[-1]) / jnp.where(moving, rates, 1), 0) for entry in whole]
            a, b = (self.kernel.amplitudes(part) for part in v)
            bound.append((beyond[0] * a + beyond[1] * b, beyond[2] * a + beyond[3] * b))
        nothing = jnp.zeros_like(rates)
        return sum(free, Phase(*(self.kernel.lifted(sum(each, nothing)) for each in zip(*bound, strict=True))))

    def vector(self, v: Phase) -> Float[Array, "2 params"]:
        return jnp.stack([self.kernel.vector(v.position), self.kernel.vector(v.way)])

    def pushed(self, v: Phase) -> Float[Array, "n out"]:
        return self.kernel.pushed(v.position)

    def power(self, span: Span, v: Phase) -> Float[Array, ""]:
        moving = self.combine(span, [Term(0, 1.0, v)])
        return self.kernel.inner(moving.position, moving.position)

    def spent(self, span: Span, v: Phase) -> Float[Array, ""]:
        # The energy lost under A: kinetic energy, plus the quadratic model of the loss.
        moved = self.combine(span, [Term(1, span.length, v)]).position
        stretched = self.kernel.vectors.T @ self.kernel.rescale(moved.pushed)
        # Position plus way is the force of the loss alone, -eta J^T residual: their drags cancel. The quadratic model
        # of the loss falls along the displacement d by force . d/eta - |V^T S J d|^2/2.
        fallen = self.kernel.inner(v.position + v.way, moved) - stretched @ stretched / 2
        return self.tau / 2 * (self.kernel.inner(v.position, v.position) - self.power(span, v)) + fallen
