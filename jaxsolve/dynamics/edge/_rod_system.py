"""The differential equation of the two ends of an oscillation."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..._core import flat_rates, Observed, Problem
from ..._numerics import nonzero, safe_sqrt
from ...integrators import RungeKuttaChebyshev
from ..descent._optimizer import first_state, Optimizer
from ..flow._integrator import AbstractScaledController, gradient_evaluations, ParameterNorm
from ..flow._system import SMOOTH_RTOL
from ._ends import AbstractEndsSystem


class Rod(NamedTuple):
    """The midpoint and half-difference of a rod: parameters, followed by the optimizer's state."""

    middle: Float[Array, " state"]
    half: Float[Array, " state"]


class RodController(AbstractScaledController):
    """Chooses steps from the errors of the parameters, and of each state array relative to its own size.

    Squared gradients are small, so a tolerance for parameters would miss their errors.
    """

    rtol: float = eqx.field(static=True)  # changes values, not the program
    atol: float = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)  # shapes: of the parameters, and of each state array
    padding: float | Float[Array, ""]

    def adapt_step_size(self, t0, t1, y0: Any, y1_candidate: Any, args, y_error: Any, error_order, controller_state):
        return self.adapt_by(self.scaled(y0, y1_candidate, y_error), t0, t1, args, error_order, controller_state)

    def scaled(self, y0: Rod, y1: Rod, error: Rod) -> Float[Array, ""]:
        """The error of a step in units of the tolerance: the largest over the parameters and each state array."""
        mean = lambda rows: jnp.sqrt(jnp.mean(rows**2))
        found, ends = [], [sum(self.sizes[: place + 1]) for place in range(len(self.sizes))]
        for end, size in zip(ends, self.sizes, strict=True):
            before, after, missed = (jnp.stack([part[end - size : end] for part in y]) for y in (y0, y1, error))
            scale = jnp.maximum(jnp.abs(before), jnp.abs(after))
            if end == self.sizes[0]:
                found.append(mean(missed / (self.atol + self.rtol * scale)) * self.padding**0.5)
            else:
                found.append(mean(missed) / nonzero(self.rtol * mean(scale)))
        return jnp.max(jnp.stack(found))


class RodSystem(AbstractEndsSystem):
    """z+' = F(z-) - z+ and z-' = F(z+) - z- per step F of the optimizer, in terms of midpoint and half-difference."""

    problem: Problem
    optimizer: Optimizer
    rate: Float[Array, ""]
    solver: diffrax.AbstractSolver
    controller: RodController

    def __init__(
        self, problem: Problem, optimizer: Optimizer, rate: Float[Array, ""], rtol: float | None, atol: float | None
    ):
        self.problem, self.rate = problem, rate.astype(problem.dtype)
        self.optimizer = optimizer.astype(problem.dtype)
        rtol, atol = SMOOTH_RTOL if rtol is None else rtol, 1e-2 * SMOOTH_RTOL if atol is None else atol
        memories = jax.tree.leaves(self._memory)
        sizes = tuple(leaf.size for leaf in memories if leaf.size)
        self.controller = RodController(
            rtol, atol, (ravel_pytree(problem.params)[0].size, *sizes), ParameterNorm(problem).padding
        )
        # Without state all rates are real; momentum makes them complex.
        self.solver = diffrax.Tsit5(scan_kind="lax") if sizes else RungeKuttaChebyshev()

    @property
    def _memory(self) -> PyTree:
        """The optimizer's initial state as floats: a step count becomes continuous."""
        return jax.tree.map(
            lambda leaf: jnp.asarray(leaf, self.problem.dtype), first_state(self.optimizer, self.problem.params)
        )

    def _step(self, gradient: Float[Array, " params"], state: Float[Array, " state"]) -> Float[Array, " state"]:
        """F: the state after a step with this gradient."""
        size = gradient.shape[0]
        unravel, recall = ravel_pytree(self.problem.params)[1], ravel_pytree(self._memory)[1]
        update, memory = self.optimizer.update(unravel(gradient), recall(state[size:]), unravel(state[:size]))
        moved = state[:size] + flat_rates(self.problem) * ravel_pytree(update)[0].astype(state.dtype)
        memory = jax.tree.map(lambda leaf: jnp.asarray(leaf, state.dtype), memory)
        return jnp.concatenate([moved, ravel_pytree(memory)[0].astype(state.dtype)])

    @property
    def start(self) -> Rod:
        w = ravel_pytree(self.problem.params)[0]
        state = jnp.concatenate([w, ravel_pytree(self._memory)[0].astype(w.dtype)])
        # Half of the first step. The optimizer state starts equal at both ends, so that no squares become negative.
        half = (self._step(self.gradient(w), state) - state) / 2
        return Rod(state, half.at[w.size :].set(0))

    @property
    def terms(self) -> diffrax.ODETerm:
        size, eps = self.controller.sizes[0], float(jnp.finfo(self.problem.dtype).eps)

        def field(t: Any, y: Rod, args: Any) -> Rod:
            del t, args
            m, d = y.middle[:size], y.half[:size]
            # m + d rounds if the rod is short compared with m: then the difference is taken from m along a longer rod.
            far = eps ** (1 / 3) * safe_sqrt(jnp.sum(m**2)) / nonzero(safe_sqrt(jnp.sum(d**2)))
            short = far > 1
            ahead, behind = self.gradient(m + jnp.where(short, far, 1) * d), self.gradient(m - jnp.where(short, 0, d))
            change = jnp.where(short, (ahead - behind) / far, 0)
            ends = (
                self._step(jnp.where(short, behind + change, ahead), y.middle + y.half),
                self._step(jnp.where(short, behind - change, behind), y.middle - y.half),
            )
            mean, slope = (ends[0] + ends[1]) / 2, (ends[0] - ends[1]) / 2
            # For a short rod the difference of the ends is rounding, so the derivative is used. It does not exist at a
            # square root of 0, such as for a gradient that is always 0: there the ends are equal.
            shifted, along = jax.jvp(self._step, (behind, y.middle), (change, y.half))
            mean = jnp.where(short, shifted, mean)
            slope = jnp.where(short & jnp.isfinite(along), along, slope)
            # Below the edge d decays until only rounding drives it, as in descent.
            rounding = jnp.zeros_like(y.half).at[:size].set(2 * eps * m)
            return Rod((mean - y.middle) / self.rate, (rounding - slope - y.half) / self.rate)

        return diffrax.ODETerm(field)

    def position(self, y: Rod) -> Float[Array, " ends"]:
        size = self.controller.sizes[0]
        return jnp.concatenate([y.middle[:size], y.half[:size]])

    def params(self, w: Float[Array, " ends"]) -> Observed:
        return self.observed(*jnp.split(w, 2))

    def scaled_error(self, t0: Any, t1: Any, y0: Rod, y1: Rod, error: Rod) -> Float[Array, ""]:
        del t0, t1
        return self.controller.scaled(y0, y1, error)

    def evaluations(self, solver_state: Any, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        # Each evaluation of the field takes two gradients.
        if isinstance(self.solver, RungeKuttaChebyshev):
            return 2 * solver_state.evaluations, jnp.zeros_like(attempts)
        return 2 * gradient_evaluations(self.solver, attempts), jnp.zeros_like(attempts)
