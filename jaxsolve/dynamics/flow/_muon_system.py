"""The flow of orthogonalized gradients as a differential equation."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..._core import Certificate, flat_rates, Problem, View
from ..._numerics import nonzero, norm
from ..._programs import channels_last
from ...integrators import RungeKuttaChebyshev
from ._certificate import step_certificate
from ._integrator import AbstractScaledController
from ._polar import smoothed_polar
from ._system import AbstractPlainSystem


class SpeedController(AbstractScaledController):
    """Chooses steps whose error is rtol times the distance traveled by a mode at full speed, the rate of its layer.

    A mode that chatters about its endpoint moves back and forth at full speed however short the steps are. Errors
    relative to the parameters would tolerate that; this one does not, at any scale of parameters and gradients.

    Attributes:
        rtol: the tolerance.
        eta: the rate of every parameter.
    """

    rtol: float = eqx.field(static=True)  # changes values, not the program
    eta: Float[Array, " params"]

    def adapt_step_size(self, t0, t1, y0: Any, y1_candidate: Any, args, y_error: Any, error_order, controller_state):
        # Dividing by the step size lowers the order of the error by one.
        return self.adapt_by(self.scaled(t1 - t0, y_error), t0, t1, args, error_order - 1, controller_state)

    def scaled(self, size: Any, error: Float[Array, " params"]) -> Float[Array, ""]:
        """The error of a step of this size in units of the tolerance: a 2-norm, not a mean, so each mode counts fully.

        Frozen parameters have no error, nor does a step of length zero.
        """
        return jnp.linalg.norm(error / nonzero(self.eta)) / nonzero(self.rtol * size)  # inf for inf, unlike `norm`


class MuonSystem(AbstractPlainSystem):
    """W' = -eta polar(dL/dW) for matrices; y holds the parameters in one vector."""

    problem: Problem
    eps: Float[Array, ""]
    sign_of_vectors: bool
    solver: RungeKuttaChebyshev
    controller: SpeedController

    def __init__(self, problem: Problem, eps: Float[Array, ""], rtol: float, *, sign_of_vectors: bool):
        self.problem, self.eps, self.sign_of_vectors = problem, eps.astype(problem.dtype), sign_of_vectors
        self.solver, self.controller = RungeKuttaChebyshev(), SpeedController(rtol, flat_rates(problem))

    @property
    def valid(self) -> Bool[Array, ""]:
        return self.problem.valid & jnp.isfinite(self.eps) & (self.eps > 0)

    @property
    def start(self) -> Float[Array, " params"]:
        return ravel_pytree(self.problem.params)[0]

    def _direction(self, gradient: Float[Array, "..."]) -> Float[Array, "..."]:
        """The direction that a parameter moves against."""
        if gradient.ndim >= 2:
            return smoothed_polar(gradient.reshape(gradient.shape[0], -1), self.eps).reshape(gradient.shape)
        # For a single number the polar factor is the sign.
        return gradient / jnp.hypot(gradient, self.eps) if self.sign_of_vectors else gradient

    @property
    def terms(self) -> diffrax.ODETerm:
        def field(t: Any, y: Array, args: Any) -> Array:
            del t, args
            gradient = channels_last(jax.grad(self.problem.objective))(self.params(y))
            return -self.controller.eta * ravel_pytree(jax.tree.map(self._direction, gradient))[0]

        return diffrax.ODETerm(field)

    @property
    def tolerances(self) -> dict[str, Any]:
        return {"rtol": self.controller.rtol}

    def first_step(self) -> Float[Array, ""]:
        # The step that moves the parameters by the tolerance, relative to their size.
        velocity = self.terms.vf(jnp.zeros((), self.problem.dtype), self.start, None)
        return self.controller.rtol * nonzero(norm(self.start)) / nonzero(norm(velocity))

    def position(self, y: Float[Array, " params"]) -> Float[Array, " params"]:
        return y

    def view(self, t: Float[Array, ""], y: Float[Array, " params"]) -> View:
        return View(self.problem, t, self.params(y))

    def certificate(self, t: Float[Array, ""], y: PyTree, step_error: Float[Array, ""]) -> Certificate:
        del t, y
        # Nothing is conserved, and steps last as long as modes move straight, too long to integrate the energy.
        return step_certificate(step_error, self.controller.rtol)

    def scaled_error(self, t0: Any, t1: Any, y0: Array, y1: Array, error: Array) -> Float[Array, ""]:
        del y0, y1
        return self.controller.scaled(t1 - t0, error)

    def evaluations(self, solver_state: Any, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        return solver_state.evaluations, jnp.zeros_like(attempts)
