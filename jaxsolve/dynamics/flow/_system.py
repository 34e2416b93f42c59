"""A flow as a differential equation that diffrax integrates."""

import abc
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..._core import Certificate, flat_rates, Problem, View
from ..._numerics import norm
from ..._programs import channels_last
from ...integrators import AbstractExponential, DisplacementController, RungeKuttaChebyshev
from ...integrators._internal import Flowing
from ._certificate import flow_certificate
from ._integrator import controller, gradient_evaluations, prepare, tolerances
from ._kinks import kinked


class AbstractSystem(eqx.Module):
    """A state y, the tools that move it, and the quantities of the problem at y.

    Attributes:
        problem: the problem to follow.
        solver: a diffrax solver for this state.
        controller: chooses its steps.
    """

    problem: eqx.AbstractVar[Problem]
    solver: eqx.AbstractVar[diffrax.AbstractSolver]
    controller: eqx.AbstractVar[diffrax.AbstractStepSizeController]

    @property
    @abc.abstractmethod
    def valid(self) -> Bool[Array, ""]:
        """True if all numbers of the problem and of the flow are in range; usable inside traces."""

    @property
    @abc.abstractmethod
    def start(self) -> PyTree:
        """y at t = 0."""

    @property
    @abc.abstractmethod
    def terms(self) -> diffrax.ODETerm:
        """y' as a function of y."""

    @property
    @abc.abstractmethod
    def tolerances(self) -> dict[str, Any]:
        """The tolerances of a step, by name."""

    @abc.abstractmethod
    def first_step(self) -> Float[Array, ""] | None:
        """The size of the first step; None leaves it to the controller."""

    @abc.abstractmethod
    def position(self, y: PyTree) -> PyTree:
        """The parameters in one vector, or more than that."""

    @abc.abstractmethod
    def view(self, t: Float[Array, ""], y: PyTree) -> View:
        """The problem at this state."""

    @abc.abstractmethod
    def certificate(self, t: Float[Array, ""], y: PyTree, step_error: Float[Array, ""]) -> Certificate:
        """The certificate of the state at time t."""

    @abc.abstractmethod
    def scaled_error(
        self, t0: Float[Array, ""], t1: Float[Array, ""], y0: PyTree, y1: PyTree, error: PyTree
    ) -> Float[Array, ""]:
        """The error of a step from time t0 to t1 in units of the tolerance."""

    @abc.abstractmethod
    def evaluations(self, solver_state: PyTree, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Evaluations of the gradient and of the kernel in this many attempted steps; -1 where unknown."""

    @abc.abstractmethod
    def params(self, w: PyTree) -> PyTree:
        """A position as saved by `March`: the parameters in the network's structure, or more than that."""

    @abc.abstractmethod
    def lost(self, y: PyTree) -> Bool[Array, ""]:
        """True if the flow has left the region where it is meaningful."""


class AbstractPlainSystem(AbstractSystem):
    """A flow that saves its parameters and is meaningful everywhere."""

    def params(self, w: Float[Array, " params"]) -> PyTree:
        return ravel_pytree(self.problem.params)[1](w)

    def lost(self, y: PyTree) -> Bool[Array, ""]:
        del y
        return jnp.array(False)


class ParameterSystem(AbstractPlainSystem):
    """w' = -eta dL/dw by any diffrax solver.

    y holds the parameters and, as its last entry, the energy dissipated so far: one array compiles faster than a
    pytree. The energy does not influence the steps; the certificate relies on that.
    """

    problem: Problem
    solver: diffrax.AbstractSolver
    controller: diffrax.PIDController

    def __init__(self, problem: Problem, integrator: diffrax.AbstractSolver, rtol: float | None, atol: float | None):
        self.problem = problem
        if isinstance(integrator, RungeKuttaChebyshev):
            default = _stabilized_rtol(problem)
            rtol, atol = default if rtol is None else rtol, 1e-2 * default if atol is None else atol
        self.controller = controller(problem, rtol, atol)
        self.solver = prepare(integrator, self.controller)

    @property
    def valid(self) -> Bool[Array, ""]:
        return self.problem.valid

    @property
    def start(self) -> Float[Array, " params_and_energy"]:
        return jnp.append(ravel_pytree(self.problem.params)[0], jnp.zeros((), self.problem.dtype))

    @property
    def terms(self) -> diffrax.ODETerm:
        params, unravel = ravel_pytree(self.problem.params)
        eta = flat_rates(self.problem)

        def field(t, y, args):
            del t, args
            gradient = channels_last(jax.grad(lambda vector: self.problem.objective(unravel(vector))))(y[: params.size])
            velocity = -eta * gradient
            # The loss falls at the rate sum_l eta_l |dL/dtheta_l|^2.
            return jnp.append(velocity, -velocity @ gradient)

        return diffrax.ODETerm(field)

    @property
    def tolerances(self) -> dict[str, Any]:
        return {"rtol": self.controller.rtol, "atol": self.controller.atol}

    def first_step(self) -> None:
        return None

    def position(self, y: Float[Array, " params_and_energy"]) -> Float[Array, " params"]:
        return y[:-1]

    def view(self, t: Float[Array, ""], y: Float[Array, " params_and_energy"]) -> View:
        return View(self.problem, t, self.params(y[:-1]))

    def certificate(
        self, t: Float[Array, ""], y: Float[Array, " params_and_energy"], step_error: Float[Array, ""]
    ) -> Certificate:
        del t
        return flow_certificate(self.problem, self.params(y[:-1]), y[-1], step_error, self.controller.rtol)

    def scaled_error(self, t0, t1, y0, y1, error) -> Float[Array, ""]:
        del t0, t1
        size = jnp.maximum(jnp.abs(y0), jnp.abs(y1))
        return jnp.asarray(self.controller.norm(error / (self.controller.atol + self.controller.rtol * size)))

    def evaluations(self, solver_state: PyTree, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        if isinstance(self.solver, RungeKuttaChebyshev):
            return solver_state.evaluations, jnp.zeros_like(attempts)
        return gradient_evaluations(self.solver, attempts), jnp.zeros_like(attempts)


class AbstractExponentialSystem(AbstractPlainSystem):
    """A flow by an exponential method, whose state also holds the outputs."""

    problem: eqx.AbstractVar[Problem]
    solver: eqx.AbstractVar[AbstractExponential]
    controller: eqx.AbstractVar[DisplacementController]

    @property
    def start(self) -> Flowing:
        return self.solver.start

    @property
    def terms(self) -> diffrax.ODETerm:
        return self.solver.terms

    @property
    def tolerances(self) -> dict[str, Any]:
        return {"rtol": self.controller.rtol}

    def first_step(self) -> Float[Array, ""]:
        return self.solver.first_step

    def view(self, t: Float[Array, ""], y: Flowing) -> View:
        return View(self.problem, t, self.params(self.position(y)), given_outputs=y.outputs)

    def scaled_error(
        self, t0: Float[Array, ""], t1: Float[Array, ""], y0: Flowing, y1: Flowing, error: Flowing
    ) -> Float[Array, ""]:
        del t0, t1
        return self.controller.relative_error(y0, y1, error) / self.controller.rtol

    def evaluations(self, solver_state: Any, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        del solver_state
        return attempts * self.solver.gradients + 1, attempts * self.solver.kernels  # 1 to choose the first step


class ExponentialSystem(AbstractExponentialSystem):
    """Gradient flow by an exponential method."""

    problem: Problem
    solver: AbstractExponential
    controller: DisplacementController

    def __init__(self, problem: Problem, integrator: AbstractExponential, rtol: float | None):
        self.problem, self.solver = problem, integrator.bound_to(problem)
        self.controller = displacement_controller(problem, rtol)

    @property
    def valid(self) -> Bool[Array, ""]:
        return self.problem.valid

    def position(self, y: Flowing) -> Float[Array, " params"]:
        return ravel_pytree(self.problem.params)[0] + y.displacement

    def certificate(self, t: Float[Array, ""], y: Flowing, step_error: Float[Array, ""]) -> Certificate:
        del t
        return flow_certificate(
            self.problem, self.params(self.position(y)), y.dissipated, step_error, self.controller.rtol
        )


# Tolerances of this library's integrators. With kinks a finer tolerance costs steps but hardly adds accuracy.
SMOOTH_RTOL, KINKED_RTOL = 1e-4, 1e-2


def default_rtol(problem: Problem) -> float:
    """The default tolerance of this library's integrators."""
    return KINKED_RTOL if kinked(problem) else SMOOTH_RTOL


def _stabilized_rtol(problem: Problem) -> float:
    """The rtol of `RungeKuttaChebyshev`, per parameter: as accurate as the others where order 2 allows it."""
    return SMOOTH_RTOL if kinked(problem) or problem.dtype != jnp.float64 else 0.1 * SMOOTH_RTOL


def displacement_controller(problem: Problem, rtol: float | None) -> DisplacementController:
    """The controller of an exponential method, with its default tolerance for this problem."""
    rtol = default_rtol(problem) if rtol is None else rtol
    resolution = jnp.finfo(problem.dtype).eps * norm(ravel_pytree(problem.params)[0])
    return DisplacementController(tolerances(rtol, None, problem.dtype)[0], resolution=resolution)
