"""Gradient flow with its stiff part taken exactly in function space."""

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .._checks import describe
from .._problem import Problem
from ..losses import Hinge
from ._expansion import expand, Expansion, Flowing, Model, sum_of
from ._modes import Modes, no_modes
from ._tableau import ExponentialTableau, HOCHBRUCK_OSTERMANN_3


_log = logging.getLogger("jaxsolve")

# The first step, in units of the time in which the loss would fall to 0 at its initial speed.
FIRST = 0.2


class FunctionSpace(diffrax.AbstractAdaptiveSolver):
    r"""An exponential Runge-Kutta method for gradient flow, which is stiff only in function space.

    In $\theta' = -\eta J^T \nabla\ell(f)$ what is stiff is $A = -\eta J^T H J$, H the Hessian of the loss in f: of
    rank n c at most. Every step integrates it exactly, through the eigenvectors of the kernel
    $H^{1/2} J \eta J^T H^{1/2}$ at its start, and an explicit method does the rest: how features change. So the steps
    follow the features, and grow without bound as the flow converges. Where H = 0 (plain hinge) only the explicit
    method is left.

    Of more than 500 outputs the fastest modes are followed from step to step, and all are found only for steps so long
    that the others are stiff, too. Memory: two matrices of n c by n c, and what passes the layers.

    With diffrax: `solver = FunctionSpace(problem)`, then `diffrax.diffeqsolve(solver.terms, solver, 0, T,
    solver.first_step, solver.start, stepsize_controller=DisplacementController(1e-4))`. `GradientFlow` does all that.
    It follows the problem's own flow, forward in time: other terms, or a last time before the first, are not heeded.
    Take `SaveAt(ts=...)`: `SaveAt(dense=True)` does not work with it yet.

    Arguments:
        problem: the problem; None leaves that to `GradientFlow`.
        tableau: the method.

    Raises:
        ValueError: used without a problem; the loss cannot be differentiated twice.
        TypeError: used on another state than `start`.
    """

    problem: Problem | None = None
    tableau: ExponentialTableau = eqx.field(static=True, default=HOCHBRUCK_OSTERMANN_3)  # decides the program

    term_structure: ClassVar = diffrax.AbstractTerm

    @property
    def interpolation_cls(self) -> Callable[..., "FunctionInterpolation"]:  # pyright: ignore
        """Makes the dense output of a step."""
        return functools.partial(FunctionInterpolation, problem=self._problem, tableau=self.tableau)

    def order(self, terms: Any) -> int:
        del terms
        return self.tableau.order

    def error_order(self, terms: Any) -> int:
        del terms
        return self.tableau.error_order

    def bound_to(self, problem: Problem) -> "FunctionSpace":
        """The same method for a problem."""
        return dataclasses.replace(self, problem=problem)

    @property
    def _problem(self) -> Problem:
        if self.problem is None:
            raise ValueError("FunctionSpace needs a problem to be used with diffrax: FunctionSpace(problem)")
        return self.problem

    @property
    def start(self) -> Flowing:
        """The state at t = 0."""
        problem = self._problem
        zero = jnp.zeros_like(ravel_pytree(problem.params)[0])
        return Flowing(zero, problem.outputs(problem.params), jnp.zeros((), zero.dtype))

    @property
    def gradients(self) -> int:
        """Gradient evaluations of one step; there is one kernel evaluation besides."""
        return len(self.tableau.nodes) + 1

    @property
    def first_step(self) -> Float[Array, ""]:
        """A length for the first step: a part of the time in which the loss would fall to 0 at its initial speed."""
        y = self.start
        loss = jnp.abs(self._problem.loss.value(y.outputs, self._problem.y))
        speed = self.terms.vf(0, y, None).dissipated
        moving = (speed > 0) & (loss > 0)
        return jax.lax.stop_gradient(jnp.where(moving, FIRST * loss / jnp.where(moving, speed, 1), 1))

    @property
    def terms(self) -> diffrax.ODETerm:
        """The vector field of the problem's gradient flow."""

        def field(t, y: Any, args) -> Flowing:
            del t, args
            _check_state(y)  # diffrax evaluates this first of all
            model = Model(self._problem)
            w = model.start + y.displacement
            velocity, dissipation = model.velocity(w)
            return Flowing(velocity, jax.jvp(model.outputs, (w,), (velocity,))[1], dissipation)

        return diffrax.ODETerm(field)

    def func(self, terms: Any, t0: Any, y0: Flowing, args: Any) -> Flowing:
        return terms.vf(t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Flowing, args: Any) -> Modes:
        del terms, t0, t1, args
        _check_state(y0)
        self._check_loss(y0.outputs)
        return no_modes(y0.outputs.size, y0.outputs.dtype)

    def _check_loss(self, outputs: Float[Array, "n out"]) -> None:
        loss, y = self._problem.loss, self._problem.y
        try:
            jax.eval_shape(loss.hessian, outputs, y)
        except TypeError as error:  # JAX's, of functions with derivatives of their own
            raise ValueError(
                f"FunctionSpace needs the loss's Hessian in the outputs, but {loss} cannot be differentiated twice; "
                "take another integrator, such as GradientFlow(diffrax.Tsit5())"
            ) from error
        if isinstance(loss, Hinge):
            _log.info("plain hinge has no Hessian: FunctionSpace integrates it as an explicit method")

    def step(self, terms: Any, t0: Any, t1: Any, y0: Flowing, args: Any, solver_state: Modes, made_jump: Any):
        del terms, args, made_jump
        model, tableau, h = Model(self._problem), self.tableau, t1 - t0
        expansion, modes = expand(model, tableau, y0, h, solver_state)
        y1 = expansion.at(model, tableau, y0, jnp.ones_like(h))
        error = sum_of(expansion.part, tableau.error, expansion.corrections, h, h)
        y_error = Flowing(
            expansion.part.vector(error), error.pushed.reshape(y0.outputs.shape), jnp.zeros_like(y0.dissipated)
        )
        return y1, y_error, {"y0": y0, "expansion": expansion}, modes, diffrax.RESULTS.successful


def _check_state(y: Any) -> None:
    if not isinstance(y, Flowing):
        raise TypeError(f"FunctionSpace moves its own state: give diffeqsolve y0=solver.start, got {describe(y)}")


class FunctionInterpolation(diffrax.AbstractLocalInterpolation):
    """The exponential method's own dense output: transients within a step are resolved, however long it is."""

    t0: Any
    t1: Any
    y0: Flowing
    expansion: Expansion
    problem: Problem
    tableau: ExponentialTableau = eqx.field(static=True)  # decides the program

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True) -> Flowing:
        del left
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        span = jnp.where(self.t1 > self.t0, self.t1 - self.t0, 1)
        return self.expansion.at(Model(self.problem), self.tableau, self.y0, (t0 - self.t0) / span)
