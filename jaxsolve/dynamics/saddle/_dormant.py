r"""Neurons too small to change the residual: each climbs its own utility until the first is large enough to count.

With $\theta = e^\rho d$, $|d| = 1$, and the utility $U(d) = \frac1n \sum_\mu g(d, x_\mu) \cdot r_\mu$ of a neuron of
degree $\kappa$ under a fixed residual r, the gradient flow of $\theta$ is $\dot\rho = \kappa e^{(\kappa-2)\rho} U$ and
$\dot d = e^{(\kappa-2)\rho} (1 - d d^\top) \nabla U$. The clock s with $dt/ds = e^{-(\kappa-2)\max\rho}$ bounds all
rates by those of $\kappa = 2$; for larger $\kappa$ sizes blow up at a finite t.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float, Int

from ..._numerics import nonzero


_RTOL = 1e-4  # for log sizes and for directions
_PACE = 0.5  # longest step times fastest growth: small components must grow accurately too
_MAX_STEPS = 2**17
_STEPS_TO_SETTLE = 2**12  # kinks are crossed slowly, and a ridge of the utility has no rest point
_SETTLED = 1e-3  # relative slope of the utility along the sphere that counts as zero
_ALIKE = 0.99  # cosine of the outputs of two neurons above which they act together


class Population(NamedTuple):
    """All neurons at one time, in units where all rates are 1.

    Attributes:
        directions: unit vectors.
        sizes: logarithms of the lengths.
        active: which neurons change the residual.
    """

    directions: Float[Array, "neurons size"]
    sizes: Float[Array, " neurons"]
    active: Bool[Array, " neurons"]

    @property
    def weights(self) -> Float[Array, "neurons size"]:
        return jnp.exp(self.sizes)[:, None] * self.directions


# The contributions of neurons with these weights to the outputs.
Added = Callable[[Float[Array, "neurons size"]], Float[Array, "neurons n out"]]


class Wait(NamedTuple):
    """The wait until a neuron counts.

    Attributes:
        t: the waiting time, inf if no neuron ever counts.
        neurons: the neurons at that time.
        first: the index of the neuron that counts.
        target: its weights at its destination, at the size that fits best.
    """

    t: Float[Array, ""]
    neurons: Population
    first: Int[Array, ""]
    target: Float[Array, " size"]


def wait(
    added: Added, degree: float, neurons: Population, residual: Float[Array, "n out"], least: Float[Array, ""]
) -> Wait:
    """Lets all dormant neurons grow until those of one kind fit their part of the residual.

    At its destination a neuron can lower the loss by $G/2 = U^2/(2 |g|^2)$, at the size where $U = |g|^2 = G$. It
    counts once its utility, with all neurons of the same contribution, reaches G: the time at which two equal layers
    are at half their amplitude. `least` is the smallest gain G for which a neuron ever counts.
    """
    dtype, n = residual.dtype, len(residual)
    utilities = lambda d: jnp.sum(added(d) * residual[None], axis=(1, 2)) / n
    slopes = jax.grad(lambda d: jnp.sum(utilities(d)))

    def climb(d: Array) -> tuple[Array, Array]:
        slope = slopes(d)
        # U = d . grad U/kappa, by Euler's theorem.
        along = jnp.sum(slope * d, axis=1)
        return along / degree, slope - along[:, None] * d

    ends = _destinations(climb, neurons)
    output = added(ends)
    reached = jnp.maximum(jnp.sum(output * residual[None], axis=(1, 2)) / n, 0)
    power = jnp.sum(output**2, axis=(1, 2)) / n
    gain = reached**2 / nonzero(power)
    able = ~neurons.active & (gain > least)
    cosine = jnp.einsum("ino,jno->ij", output, output) / n / nonzero(jnp.sqrt(power[:, None] * power[None, :]))
    together = (cosine > _ALIKE) & able[None, :]

    def excess(t, y, *_, **__) -> Float[Array, ""]:
        """The logarithm of the largest utility of neurons of one kind, over its threshold."""
        del t
        d, rho, _ = y
        now = jnp.maximum(utilities(d), 0)
        largest = jnp.max(jnp.where(able, rho, -jnp.inf))  # factored out of the sum to avoid underflow
        shared = together.astype(dtype) @ (now * jnp.exp(degree * jnp.where(able, rho - largest, -jnp.inf)))
        log = jnp.log(jnp.maximum(shared, jnp.finfo(dtype).tiny)) + degree * largest - jnp.log(jnp.where(able, gain, 1))
        return jnp.max(jnp.where(able, log, -jnp.inf))

    def velocity(_, state, __):
        d, rho, _ = state
        utility, across = climb(d)
        largest = jnp.max(jnp.where(able, rho, -jnp.inf))
        # Neurons that never count are held fixed.
        pace = jnp.where(able, jnp.exp((degree - 2) * (rho - largest)), 0)
        return pace[:, None] * across, degree * pace * utility, jnp.exp(-(degree - 2) * largest)

    start = neurons.directions, neurons.sizes, jnp.zeros((), dtype)
    any_able = jnp.any(able)
    counts = excess(None, start) >= 0
    # Nothing is integrated if a neuron counts at once, or none ever does.
    last = jnp.where(any_able & ~counts, jnp.asarray(jnp.inf, dtype), 0)
    finder = optx.Bisection(rtol=_RTOL, atol=_RTOL, flip="detect")
    control = diffrax.PIDController(rtol=_RTOL, atol=_RTOL, dtmax=_PACE / nonzero(degree * jnp.max(reached)))
    grown = _integrate(velocity, start, last, diffrax.Event(excess, finder), control, _MAX_STEPS)
    directions, sizes, t = jax.tree.map(lambda leaf: leaf[-1], grown.ys)
    t = jnp.where((last == 0) | (grown.result == diffrax.RESULTS.event_occurred), t, jnp.nan)
    directions = directions / nonzero(jnp.linalg.norm(directions, axis=1, keepdims=True))
    # The largest neuron of the group that counts, found as in `excess`.
    values = jnp.where(able, jnp.maximum(utilities(directions), 0), 0)
    log = jnp.log(jnp.maximum(values, jnp.finfo(dtype).tiny)) + degree * sizes
    shared = jnp.where(able, jax.nn.logsumexp(jnp.where(together, log[None, :], -jnp.inf), axis=1), -jnp.inf)
    leading = jnp.argmax(shared - jnp.log(jnp.where(able, gain, 1)))
    first = jnp.argmax(jnp.where(together[leading], log, -jnp.inf))
    size = (reached[first] / nonzero(power[first])) ** (1 / degree)
    t = jnp.where(any_able, t, jnp.inf)
    return Wait(t, Population(directions, sizes, neurons.active), first, size * ends[first])


def _destinations(climb: Callable, neurons: Population) -> Float[Array, "neurons size"]:
    """The point on the sphere where the direction of each dormant neuron comes to rest, whatever the sizes."""

    def settled(t, y, *_, **__) -> Bool[Array, ""]:
        del t
        along, across = climb(y)
        return jnp.all(neurons.active | (jnp.linalg.norm(across, axis=1) <= _SETTLED * jnp.abs(along)))

    velocity = lambda _, d, __: jnp.where(neurons.active[:, None], 0, climb(d)[1])
    start = neurons.directions
    last = jnp.where(settled(None, start), 0, jnp.asarray(jnp.inf, start.dtype))
    control = diffrax.PIDController(rtol=_RTOL, atol=_RTOL)
    ends: Any = _integrate(velocity, start, last, diffrax.Event(settled), control, _STEPS_TO_SETTLE).ys
    ends = ends[-1]
    return ends / nonzero(jnp.linalg.norm(ends, axis=1, keepdims=True))


def _integrate(
    velocity: Callable,
    start: Any,
    last: Float[Array, ""],
    event: diffrax.Event,
    control: diffrax.PIDController,
    max_steps: int,
) -> diffrax.Solution:
    return diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5(),
        t0=jnp.zeros_like(last),
        t1=last,
        dt0=None,
        y0=start,
        stepsize_controller=control,
        event=event,
        max_steps=max_steps,
        throw=False,
    )
