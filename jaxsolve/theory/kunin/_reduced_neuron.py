r"""The flow of one linear neuron on whitened inputs, in closed form.

Kunin et al., "Get rich quick", section 3, solved through the linear system behind its Riccati equation: with
$\delta = a^2 - |w|^2$, $p = (w, a)$ and $F = \begin{pmatrix} -\delta/2 & b \\ b^\top & \delta/2 \end{pmatrix}$,
$p(T) = e^{FT} p_0 / \sqrt{B}$ with $B = 1 + \int_0^T |e^{Fs} p_0|^2 ds$. Along $b$ the eigenvalues of F are $\pm R/2$,
$R = \sqrt{\delta^2 + 4|b|^2}$; across it $-\delta/2$.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._numerics import finite_product, integrated_decay, nonzero, norm, safe_hypot, safe_sqrt
from .._arguments import flow_time


class ReducedNeuron(eqx.Module):
    """f(x) = o a w.x on whitened inputs: a and w in units in which rates and the inputs' second moment are 1.

    Attributes:
        a: read-out weight at the start, divided by the root of its rate.
        w: input weights at the start, inside the inputs' row space, divided by the root of their rate.
        target: b, the value that a w converges to.
        speed: dT/dt, where T is this flow's time and t is gradient-flow time.
        outer: o, the network's function divided by a w: the roots of both rates, times multipliers and gamma.

    `beta` and its two limits are o a w, the function of the network; everything else is in this class's units. Methods
    take gradient-flow times in [0, inf]. delta here is Kunin's delta/(eta_a eta_w), for the part of w in the row space:
    if the inputs do not span, Kunin's delta also counts the rest of w (`js.observe.neuron_delta`). Built from a problem
    by `js.theory.SingleNeuronFlow`.

    Example:
        >>> a, w, target = jnp.array(0.1), jnp.array([0.1, 0.0]), jnp.array([0.0, 2.0])
        >>> neuron = js.theory.ReducedNeuron(a, w, target, speed=jnp.array(1.0))
        >>> for t in (2.0, jnp.inf):
        ...     print(*(f"{value:.2f}" for value in neuron.beta(t)))
        0.06 1.57
        0.00 2.00
    """

    a: Float[Array, ""]
    w: Float[Array, " in"]
    target: Float[Array, " in"]
    speed: Float[Array, ""]
    outer: Float[ArrayLike, ""] = 1.0

    @property
    def delta(self) -> Float[Array, ""]:
        """a^2 - |w|^2, conserved: positive if upstream, zero if balanced, negative if downstream."""
        size = norm(self.w)
        return (self.a - size) * (self.a + size)

    @property
    def basin(self) -> Float[Array, ""]:
        """The sign of a at the end: +-1, or 0 for a start that flows into the saddle (footnote 4, corrected)."""
        return jnp.sign(self.growing)

    @property
    def growing(self) -> Float[Array, ""]:
        """The component of the start along the mode that grows, in units of weights."""
        return self._modes()[0]

    def _time(self, t: Float[ArrayLike, ""]) -> Float[Array, ""]:
        return finite_product(self.speed, flow_time(t, self.w.dtype))

    def _rates(self) -> tuple[Array, Array, Array]:
        """R, (R + delta)/2 and (R - delta)/2; the smaller of the two is computed from their product |b|^2."""
        b = norm(self.target)
        R = safe_hypot(self.delta, 2 * b)
        up = self.delta >= 0  # one side includes delta = 0 throughout: abs and maximum have no derivative there
        large = (R + jnp.where(up, self.delta, -self.delta)) / 2
        small = b * (b / nonzero(large))
        return R, jnp.where(up, large, small), jnp.where(up, small, large)

    def _modes(self) -> tuple[Array, Array, Array, Array, Array, Array]:
        """The start along the growing and the decaying mode of F and across b, and the direction of the modes."""
        R, plus, minus = self._rates()
        # Where R = 0 no mode of F moves, and any two directions will do.
        cos = jnp.where(R == 0, 0.5**0.5, safe_sqrt(plus / nonzero(R)))
        sin = jnp.where(R == 0, 0.5**0.5, safe_sqrt(minus / nonzero(R)))
        direction = self.target / nonzero(norm(self.target))
        along = jnp.sum(self.w * direction)
        across = self.w - along * direction
        return along * sin + self.a * cos, along * cos - self.a * sin, across, direction, cos, sin

    def weights(self, t: Float[ArrayLike, ""]) -> tuple[Float[Array, ""], Float[Array, " in"]]:
        """(a, w) at time t."""
        T, delta = self._time(t), self.delta
        R, plus, _ = self._rates()
        growing, decaying, across, direction, cos, sin = self._modes()
        # Everything is divided by the fastest growth, e^{R T/2}. For a start without the growing mode, which ends in
        # the saddle, it is divided by the growth of the rest. All rates below are >= 0 and free of cancellation.
        saddle, up = growing == 0, delta >= 0
        top = jnp.where(saddle, jnp.where(up, 0, -delta), R)
        rest = jnp.where(saddle, 0, jnp.where(up, R, 2 * plus))
        # The integral of e^(R s) from 0 to T, over e^(R T).
        sweep = integrated_decay(R, T)
        growth = (
            jnp.exp(-top * T)
            + growing**2 * sweep
            + decaying**2 * sweep * jnp.exp(-top * T)
            + jnp.sum(across**2) * integrated_decay(jnp.where(up, delta, -delta), T) * jnp.exp(-rest * T)
        )
        # At a target of 0 the modes do not depend on its direction: its first-order term, whose value is 0, is added.
        unseen = jnp.where(jnp.all(self.target == 0), self.target, 0)
        turned = jax.lax.stop_gradient(jnp.where(jnp.isfinite(sweep**2), sweep, 0))
        growth = growth + 2 * self.a * jnp.sum(self.w * unseen) * turned**2
        scale = 1 / jnp.sqrt(growth)
        fading = decaying * jnp.exp(-(R + top) / 2 * T)
        left = jnp.exp(-jnp.where(saddle, jnp.where(up, delta / 2, 0), plus) * T)
        a = scale * (growing * cos - fading * sin + turned * jnp.sum(self.w * unseen))
        w = scale * ((growing * sin + fading * cos) * direction + left * across + turned * self.a * unseen)
        return a, w

    def beta(self, t: Float[ArrayLike, ""]) -> Float[Array, " in"]:
        """o a w at time t, with f(x) = beta.x; it converges to the least-squares solution."""
        a, w = self.weights(t)
        return jnp.asarray(self.outer) * a * w

    def radius_and_alignment(self, t: Float[ArrayLike, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """mu = a |w| and phi = w.b/(|w||b|) (eq. 2); phi is 0 where w or b vanishes."""
        a, w = self.weights(t)
        size = norm(w)
        target = norm(self.target)
        return a * size, jnp.sum((w / nonzero(size)) * (self.target / nonzero(target)))

    def preconditioner(self, t: Float[ArrayLike, ""]) -> Float[Array, "in in"]:
        """M = a^2 I + w w^T (eq. 4): d(a w)/dT = -M (a w - b)."""
        a, w = self.weights(t)
        return a**2 * jnp.eye(w.shape[0], dtype=w.dtype) + w[:, None] * w[None, :]

    def upstream(self, t: Float[ArrayLike, ""]) -> Float[Array, " in"]:
        """beta in the lazy limit delta -> inf, where M = delta I and beta - b decays at the rate delta."""
        start = self.a * self.w
        return jnp.asarray(self.outer) * (
            self.target + jnp.exp(-jnp.abs(self.delta) * self._time(t)) * (start - self.target)
        )

    def downstream(self, t: Float[ArrayLike, ""]) -> Float[Array, " in"]:
        """beta in the limit delta -> -inf, after the fast fit mu = phi |b| along the neuron's direction.

        Then the direction turns slowly towards b, phi' = |b|^2/|delta| phi (1 - phi^2).
        """
        target = norm(self.target)
        n = self.target / nonzero(target)
        unit = self.w / nonzero(norm(self.w))
        along = jnp.sum(unit * n)
        decay = jnp.exp(-(target / nonzero(jnp.abs(self.delta))) * target * self._time(t))
        across = (unit - along * n) * decay
        direction = along * n + across
        direction = direction / nonzero(norm(direction))
        return jnp.asarray(self.outer) * jnp.sum(direction * self.target) * direction
