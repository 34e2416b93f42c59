"""The part A of y' = A y + N(y) that an exponential method solves exactly, and the operations it needs."""

import abc
import math
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._core import flat_rates, Problem
from .._programs import channels_last


# Bounds of the first step, in units of the time in which the loss would reach 0 at its initial speed.
SHORTEST, LONGEST = 0.2, 2.0
# Relative change of the outputs' velocity that the first step may cause.
TURN = 0.025


class AbstractModel(eqx.Module):
    """A system to integrate: outputs and velocity as functions of everything that moves.

    Attributes:
        start: everything that moves, at t = 0.
    """

    start: eqx.AbstractVar[Float[Array, "*moving"]]

    @abc.abstractmethod
    def outputs(self, w: Float[Array, "*moving"]) -> Float[Array, "n out"]:
        """f on the training set."""

    @abc.abstractmethod
    def velocity(self, w: Float[Array, "*moving"]) -> tuple[Float[Array, "*moving"], Float[Array, ""]]:
        """w', and the rate at which energy is dissipated."""

    @property
    @abc.abstractmethod
    def first_step(self) -> Float[Array, ""]:
        """A size for the first step."""


class Model(AbstractModel):
    """A problem's outputs and velocity as functions of all parameters in one vector.

    Attributes:
        problem: the problem.
        start: its parameters at t = 0, computed once: XLA does not merge two copies that it hoists out of a loop.
    """

    problem: Problem
    start: Float[Array, " params"]

    def __init__(self, problem: Problem):
        self.problem = problem
        self.start = ravel_pytree(problem.params)[0]

    def params(self, w: Float[Array, " params"]) -> PyTree:
        """The parameters in the network's structure."""
        return ravel_pytree(self.problem.params)[1](w)

    def outputs(self, w: Float[Array, " params"]) -> Float[Array, "n out"]:
        return self.problem.outputs(self.params(w))

    def gradient(self, w: Float[Array, " params"]) -> Float[Array, " params"]:
        """dL/dw."""
        return channels_last(jax.grad(lambda w: self.problem.objective(self.params(w))))(w)

    def velocity(self, w: Float[Array, " params"]) -> tuple[Float[Array, " params"], Float[Array, ""]]:
        # The energy is L, which falls at the rate sum_l eta_l |dL/dtheta_l|^2.
        gradient = self.gradient(w)
        velocity = -flat_rates(self.problem) * gradient
        return velocity, -velocity @ gradient

    @property
    def first_step(self) -> Float[Array, ""]:
        velocity, speed = self.velocity(self.start)
        # The time in which the loss would reach 0 at its initial speed; 1 for a start at rest, which has no such time.
        loss = jnp.abs(self.problem.loss.value(self.outputs(self.start), self.problem.y))
        moving = (speed > 0) & (loss > 0)
        time = jnp.where(moving, loss / jnp.where(moving, speed, 1), 1)
        # The change of the outputs' velocity along a straight line over the shortest first step, due to the
        # nonlinearity of the network. It is proportional to the time, and reaches `TURN` at `share`.
        pushed = lambda w: jax.jvp(self.outputs, (w,), (velocity,))[1]
        straight = pushed(self.start)
        bent = jnp.linalg.norm(pushed(self.start + SHORTEST * time * velocity) - straight)
        share = TURN * SHORTEST * jnp.linalg.norm(straight) / jnp.where(bent > 0, bent, 1)
        length = jnp.where(bent > 0, jnp.clip(share, SHORTEST, LONGEST), LONGEST)
        # The step size is a choice: the solution does not depend on it.
        return jax.lax.stop_gradient(jnp.where(moving, length, 1) * time)


class Span(NamedTuple):
    """A time over which A acts.

    Attributes:
        length: the time.
        known: values that a linear part computes once from the time, for all its operations over it.
    """

    length: Float[Array, ""]
    known: Any = None


# A vector of parameter space in the form that suits A: it can be added, and multiplied by numbers from the left.
V = TypeVar("V", bound=Any)


class Term(NamedTuple):
    """factor phi_k(time A) v."""

    k: int
    factor: float | Array
    v: Any


class AbstractLinearPart(eqx.Module, Generic[V]):
    """A and its functions, frozen at one point w.

    It is not differentiated: a method keeps its order whatever A is.
    """

    @abc.abstractmethod
    def force(self, model: Any, w: Float[Array, "*moving"], outputs: Float[Array, "n out"]) -> V:
        """w' at the point itself, differentiable; `outputs` are the outputs at w."""

    @abc.abstractmethod
    def change(self, velocity: Float[Array, "*moving"], moved: V, force: V) -> V:
        """N(w + moved) - N(w) = velocity - force - A moved, where `velocity` is taken at w + moved."""

    @abc.abstractmethod
    def over(self, *times: Float[Array, ""]) -> list[Span]:
        """The spans that the methods below take, computed for all times at once."""

    @abc.abstractmethod
    def combine(self, span: Span, terms: Sequence[Term]) -> V:
        """The sum of factor phi_k(time A) v over all terms, in one pass through A; k = 0 is the exponential."""

    @abc.abstractmethod
    def vector(self, v: V) -> Float[Array, "*moving"]:
        """The vector in the form of `AbstractModel.start`."""

    @abc.abstractmethod
    def pushed(self, v: V) -> Float[Array, "n out"]:
        """J v, the change of the outputs along v."""

    @abc.abstractmethod
    def power(self, span: Span, v: V) -> Float[Array, ""]:
        """|exp(time A) v|^2, each parameter's square divided by its eta."""

    @abc.abstractmethod
    def spent(self, span: Span, v: V) -> Float[Array, ""]:
        """The integral of `power` from 0 to the time of the span."""


def integrated(weight: Sequence[tuple[int, float | Array]]) -> float | Array:
    """sum_k w_k phi_k(0)."""
    return sum((b / math.factorial(k) for k, b in weight), 0.0)
