"""Gradient flow with momentum as a differential equation."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..._core import Certificate, flat_rates, Problem, View
from ..._numerics import nonzero, squares_over
from ..._programs import channels_last
from ...integrators import DisplacementController, FunctionSpace, InertialFunctionSpace
from ...integrators._internal import Flowing
from ._certificate import energy_balance
from ._integrator import controller, gradient_evaluations, prepare
from ._system import AbstractExponentialSystem, AbstractPlainSystem, displacement_controller


class Relaxation(eqx.Module):
    """The relaxation time: a constant tau, or t/mu."""

    tau: Float[Array, ""] | None
    mu: Float[Array, ""] | None

    @property
    def valid(self) -> Bool[Array, ""]:
        """True if the given number is finite and > 0."""
        numbers = jnp.stack([number for number in (self.tau, self.mu) if number is not None])
        return jnp.all(jnp.isfinite(numbers) & (numbers > 0))

    def at(self, t: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Tau and its time derivative."""
        if self.mu is None:
            tau = jnp.asarray(self.tau, t.dtype)
            return tau, jnp.zeros_like(tau)
        mu = self.mu.astype(t.dtype)
        return t / mu, 1 / mu


class EnergyController(diffrax.AbstractStepSizeController):
    """Chooses steps from the errors of parameters and of sqrt(tau) v, where y holds parameters and tau v.

    sqrt(tau) v is the square root of the kinetic energy. Where tau is small and steps are as long as stability allows,
    errors of v that do not affect the parameters would spoil the energy balance.
    """

    inner: diffrax.PIDController
    relaxation: Relaxation

    def wrap(self, direction: Any) -> "EnergyController":
        return EnergyController(self.inner.wrap(direction), self.relaxation)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return self.inner.init(terms, t0, t1, y0, dt0, args, func, error_order)

    def adapt_step_size(self, t0, t1, y0: Any, y1_candidate: Any, args, y_error: Any, error_order, controller_state):
        before, after, error = (self._measured(t1, y) for y in (y0, y1_candidate, y_error))
        return self.inner.adapt_step_size(t0, t1, before, after, args, error, error_order, controller_state)

    def scaled_error(self, t1, y0: Any, y1: Any, y_error: Any) -> Float[Array, ""]:
        """The error of a step to t1 in units of the tolerance."""
        before, after, error = (self._measured(t1, y) for y in (y0, y1, y_error))
        size = jnp.maximum(jnp.abs(before), jnp.abs(after))
        return jnp.asarray(self.inner.norm(error / (self.inner.atol + self.inner.rtol * size)))

    def _measured(self, t: Any, y: Float[Array, " state"]) -> Float[Array, " state"]:
        w, way, energy = split(y)
        # tau v/sqrt(tau); where tau is 0, so is tau v.
        return jnp.concatenate([w, way / jnp.sqrt(nonzero(self.relaxation.at(t)[0])), energy[None]])


class MomentumSystem(AbstractPlainSystem):
    """theta' = v and (tau v)' = (tau' - 1) v - eta dL/dtheta by any diffrax solver.

    y holds the parameters, tau v, and the energy dissipated so far, in one vector. tau v is the distance the parameters
    would coast; unlike v', (tau v)' is regular where tau is 0. The energy does not influence the steps.
    """

    problem: Problem
    relaxation: Relaxation
    solver: diffrax.AbstractSolver
    controller: EnergyController

    def __init__(
        self,
        problem: Problem,
        relaxation: Relaxation,
        integrator: diffrax.AbstractSolver,
        rtol: float | None,
        atol: float | None,
    ):
        self.problem, self.relaxation = problem, relaxation
        inner = controller(problem, rtol, atol)
        self.solver = prepare(integrator, inner)
        self.controller = EnergyController(inner, relaxation)

    @property
    def valid(self) -> Bool[Array, ""]:
        return self.problem.valid & self.relaxation.valid

    @property
    def start(self) -> Float[Array, " state"]:
        params = ravel_pytree(self.problem.params)[0]
        return jnp.concatenate([params, jnp.zeros_like(params), jnp.zeros_like(params, shape=1)])

    @property
    def terms(self) -> diffrax.ODETerm:
        unravel, eta = ravel_pytree(self.problem.params)[1], flat_rates(self.problem)

        def field(t, y, args):
            del args
            w, way, _ = split(y)
            force = -eta * channels_last(jax.grad(lambda vector: self.problem.objective(unravel(vector))))(w)
            tau, slope = self.relaxation.at(t)
            # At tau = 0 the velocity is the only finite one.
            v = jnp.where(tau > 0, way / nonzero(tau), force)
            # -d/dt of L + tau/2 sum v^2/eta, by tau v' = -v - eta dL/dtheta.
            dissipated = (1 - slope / 2) * squares_over(v, eta)
            # (tau v)' = tau' v + tau v'.
            return jnp.concatenate([v, (slope - 1) * v + force, dissipated[None]])

        return diffrax.ODETerm(field)

    @property
    def tolerances(self) -> dict[str, Any]:
        return {"rtol": self.controller.inner.rtol, "atol": self.controller.inner.atol}

    def first_step(self) -> None:
        return None

    def position(self, y: Float[Array, " state"]) -> Float[Array, " params"]:
        return split(y)[0]

    def view(self, t: Float[Array, ""], y: Float[Array, " state"]) -> View:
        return View(self.problem, t, self.params(self.position(y)))

    def certificate(self, t: Float[Array, ""], y: Float[Array, " state"], step_error: Float[Array, ""]) -> Certificate:
        w, way, dissipated = split(y)
        tau, _ = self.relaxation.at(t)
        kinetic = kinetic_energy(self.problem, tau, way)
        balance = energy_balance(self.problem, self.params(w), dissipated + kinetic)
        return Certificate(
            jnp.full_like(balance, jnp.nan), balance, step_error, jnp.full_like(balance, self.controller.inner.rtol)
        )

    def scaled_error(self, t0, t1, y0, y1, error) -> Float[Array, ""]:
        del t0
        return self.controller.scaled_error(t1, y0, y1, error)

    def evaluations(self, solver_state: PyTree, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        del solver_state
        return gradient_evaluations(self.solver, attempts), jnp.zeros_like(attempts)


class ExponentialMomentumSystem(AbstractExponentialSystem):
    """Momentum flow with a constant tau by an exponential method."""

    problem: Problem
    relaxation: Relaxation
    solver: InertialFunctionSpace
    controller: DisplacementController

    def __init__(self, problem: Problem, tau: Float[Array, ""], integrator: FunctionSpace, rtol: float | None):
        self.problem, self.relaxation = problem, Relaxation(tau, None)
        self.solver = InertialFunctionSpace(problem, tau, integrator.tableau)
        self.controller = displacement_controller(problem, rtol)

    @property
    def valid(self) -> Bool[Array, ""]:
        return self.problem.valid & self.relaxation.valid

    def position(self, y: Flowing) -> Float[Array, " params"]:
        return ravel_pytree(self.problem.params)[0] + y.displacement[0]

    def certificate(self, t: Float[Array, ""], y: Flowing, step_error: Float[Array, ""]) -> Certificate:
        kinetic = kinetic_energy(self.problem, self.relaxation.at(t)[0], y.displacement[1])
        balance = energy_balance(self.problem, self.params(self.position(y)), y.dissipated + kinetic)
        return Certificate(
            jnp.full_like(balance, jnp.nan), balance, step_error, jnp.full_like(balance, self.controller.rtol)
        )


def split(y: Float[Array, " state"]) -> tuple[Array, Array, Array]:
    """The parameters, tau times their velocity, and the energy."""
    count = y.shape[0] // 2
    return y[:count], y[count:-1], y[-1]


def kinetic_energy(problem: Problem, tau: Float[Array, ""], way: Float[Array, " params"]) -> Float[Array, ""]:
    """tau/2 sum v^2 / eta, with way = tau v. Frozen parameters do not move and have none."""
    return squares_over(way, flat_rates(problem)) / (2 * nonzero(tau))  # where tau is 0, `way` is 0 too
