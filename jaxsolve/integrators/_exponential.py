"""Exponential Runge-Kutta methods as diffrax solvers for gradient flow, with and without momentum."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._checks import describe
from .._core import Problem
from .._numerics import HeldModule
from ._expansion import expand, Expansion, Flowing
from ._linear_part import AbstractLinearPart, AbstractModel
from ._tableau import AbstractTableau


class ExponentialState(NamedTuple):
    """The values passed from step to step.

    Attributes:
        start: the time at which the run began.
        known: see `AbstractExponential.known`.
    """

    start: Float[Array, ""]
    known: PyTree


class AbstractExponential(diffrax.AbstractAdaptiveSolver):
    """Base class of integrators that solve a linear part of gradient flow exactly and the rest by an explicit method.

    Attributes:
        problem: the problem; None leaves that to `js.GradientFlow`.
        tableau: the method.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> for kind in (js.integrators.FunctionSpace, js.integrators.ParameterSpace):
        ...     solver = kind(problem)
        ...     print(isinstance(solver, js.integrators.AbstractExponential), solver.kernels, solver.gradients)
        True 1 3
        True 0 15
    """

    problem: eqx.AbstractVar[Problem | None]
    tableau: eqx.AbstractVar[AbstractTableau]

    term_structure: ClassVar = diffrax.AbstractTerm

    @property
    @abc.abstractmethod
    def gradients(self) -> int:
        """Gradient evaluations of one step."""

    @property
    @abc.abstractmethod
    def kernels(self) -> int:
        """Kernel evaluations of one step."""

    @property
    @abc.abstractmethod
    def model(self) -> Any:
        """The `AbstractModel` that the method follows."""

    @property
    def first_step(self) -> Float[Array, ""]:
        """A size for the first step, larger where features move less."""
        return self.model.first_step

    @abc.abstractmethod
    def known(self, y0: Flowing) -> PyTree:
        """The values that the first step starts from, besides the state."""

    @abc.abstractmethod
    def linear_part(
        self, model: Any, y0: Flowing, h: Float[Array, ""], known: PyTree
    ) -> tuple[AbstractLinearPart, PyTree]:
        """The linear part at a state for a step of size h, and the values to pass to `arrived`."""

    @abc.abstractmethod
    def arrived(self, model: Any, y1: Flowing, known: PyTree) -> PyTree:
        """The values that the next step starts from, besides its state y1."""

    @property
    def interpolation_cls(self) -> "DenseOutput":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The constructor of a step's dense output."""
        return DenseOutput(self.tableau)

    def order(self, terms: Any) -> int:
        del terms
        return self.tableau.order

    def error_order(self, terms: Any) -> int:
        del terms
        return self.tableau.error_order

    def bound_to(self, problem: Problem) -> "AbstractExponential":
        """The same method for a problem."""
        return dataclasses.replace(self, problem=problem)

    @property
    def _problem(self) -> Problem:
        if self.problem is None:
            name = type(self).__name__
            raise ValueError(f"{name} needs a problem to be used with diffrax: {name}(problem)")
        return self.problem

    @property
    def start(self) -> Flowing:
        """The state at t = 0."""
        # The state holds displacements because the controller measures errors relative to them.
        problem, zero = self._problem, jnp.zeros_like(self.model.start)
        return Flowing(zero, problem.outputs(problem.params), jnp.zeros((), zero.dtype))

    @property
    def terms(self) -> diffrax.ODETerm:
        """The vector field of the problem's gradient flow."""
        return diffrax.ODETerm(FlowField(self.model))

    def func(self, terms: Any, t0: Any, y0: Flowing, args: Any) -> Flowing:
        return terms.vf(t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Flowing, args: Any) -> ExponentialState:
        _check_state(y0)
        self._check_loss(y0.outputs)
        state = ExponentialState(jnp.asarray(t0, y0.dissipated.dtype), self.known(y0))
        return self._check_terms(terms, t0, t1, y0, args, state)

    def _check_loss(self, outputs: Float[Array, "n out"]) -> None:
        loss, y = self._problem.loss, self._problem.y
        try:
            # Shapes suffice to tell whether both derivatives exist; nothing is computed.
            jax.eval_shape(loss.hessian, outputs, y)
        except TypeError as error:  # raised by JAX for functions with custom derivatives
            raise ValueError(
                f"{type(self).__name__} needs the loss's Hessian in the outputs, but {loss} cannot be differentiated "
                "twice; take another integrator, such as GradientFlow(diffrax.Tsit5())"
            ) from error

    def _check_terms(self, terms: Any, t0: Any, t1: Any, y0: Flowing, args: Any, checked: PyTree) -> PyTree:
        """Rejects other terms: a step evaluates the problem itself and would silently ignore them."""
        inner: Any = terms
        while hasattr(inner, "term"):  # diffrax wraps terms; to run backward in time it negates the control
            inner = inner.term
        said = f"{type(self).__name__} follows the gradient flow of its own problem, forward in time: give diffeqsolve "
        if not isinstance(getattr(inner, "vector_field", None), FlowField):
            raise RuntimeError(f"{said}terms=solver.terms, got {describe(inner)}")
        # Terms that are not wrapped, as in `js.GradientFlow`, run forward in time: no gradient is spent on the check.
        if inner is terms:
            return checked
        given = terms.vf_prod(t0, y0, args, terms.contr(t0, t1)).displacement
        own = (t1 - t0) * self.terms.vf(t0, y0, None).displacement
        # The difference is twice `own` when running backward and only rounding when running forward, so any threshold
        # between tells them apart. At rest both are 0, and either direction is fine.
        other = jnp.linalg.norm(given - own) > 0.1 * jnp.linalg.norm(own)
        return eqx.error_if(checked, other, f"{said}terms=solver.terms, and t1 > t0")

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: Flowing, args: Any, solver_state: ExponentialState, made_jump: Any
    ):
        del terms, args, made_jump
        model, tableau, h = self.model, self.tableau, t1 - t0
        # The barrier makes every step depend on the solver state even where it is unused: otherwise XLA removes the
        # checks of `init`.
        y0, (start, known) = jax.lax.optimization_barrier((y0, solver_state))
        part, known = self.linear_part(model, y0, h, known)
        # A step of length zero gives 0 instead of 0/0.
        passed = jnp.where(t1 > start, (t0 - start) / jnp.where(t1 > start, t1 - start, 1), 0)
        # The position of the method's nodes is a choice, not part of the solution, so it is not differentiated.
        expansion, whole = expand(model, part, tableau, y0, h, jax.lax.stop_gradient(passed))
        y1, y_error = expansion.end(model, tableau, y0, whole)
        # Loops carry arrays only, so only the model's arrays are stored.
        dense = {"y0": y0, "expansion": expansion, "held": HeldModule(model)}
        state = ExponentialState(start, self.arrived(model, y1, known))
        return y1, y_error, dense, state, diffrax.RESULTS.successful


def _check_state(y: Any) -> None:
    if not isinstance(y, Flowing):
        raise TypeError(
            f"an exponential method moves its own state: give diffeqsolve y0=solver.start, got {describe(y)}"
        )


class FlowField(eqx.Module):
    """The velocity of a flow, in parameter space and in function space."""

    model: AbstractModel

    def __call__(self, t: Any, y: Any, args: Any) -> Flowing:
        del t, args
        _check_state(y)  # checked here because diffrax evaluates this before anything else
        model = self.model
        w = model.start + y.displacement
        velocity, dissipation = model.velocity(w)
        return Flowing(velocity, jax.jvp(model.outputs, (w,), (velocity,))[1], dissipation)


class DenseOutput(eqx.Module):
    """Constructor of interpolations for one method; equal methods give equal instances, so a solution compiles once."""

    tableau: AbstractTableau = eqx.field(static=True)  # decides the program

    def __call__(self, **parts: Any) -> "ExponentialInterpolation":
        return ExponentialInterpolation(**parts, tableau=self.tableau)


class ExponentialInterpolation(diffrax.AbstractLocalInterpolation):
    """The exponential method's own dense output, which resolves transients within a step however long it is."""

    t0: Any
    t1: Any
    y0: Flowing
    expansion: Expansion
    held: HeldModule
    tableau: AbstractTableau = eqx.field(static=True)  # decides the program

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True) -> Flowing:
        del left
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        # A step of length zero has only its start: theta = 0 instead of 0/0.
        length = jnp.where(self.t1 > self.t0, self.t1 - self.t0, 1)
        return self.expansion.at(self.held.module, self.tableau, self.y0, (t0 - self.t0) / length)
