"""The part A of y' = A y + N(y) that an exponential method takes exactly, and what it needs of A."""

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


# Bounds of the first step, in units of the time in which the loss would fall to 0 at its initial speed.
SHORTEST, LONGEST = 0.2, 2.0
# How much the outputs' velocity may change in the first step, relative to itself.
TURN = 0.025


class AbstractModel(eqx.Module):
    """A system that a method follows: outputs and velocity as functions of all that moves.

    Attributes:
        start: all that moves, at t = 0.
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
        """A length for the first step."""


class Model(AbstractModel):
    """A problem's outputs and velocity as functions of all parameters in one vector.

    Attributes:
        problem: the problem.
        start: its parameters at t = 0, found once: XLA does not merge two copies of it that are moved out of a loop.
    """

    problem: Problem
    start: Float[Array, " params"]

    def __init__(self, problem: Problem):
        self.problem = problem
        self.start = ravel_pytree(problem.params)[0]

    def params(self, w: Float[Array, " params"]) -> PyTree:
        """The parameters as the network has them."""
        return ravel_pytree(self.problem.params)[1](w)

    def outputs(self, w: Float[Array, " params"]) -> Float[Array, "n out"]:
        return self.problem.outputs(self.params(w))

    def gradient(self, w: Float[Array, " params"]) -> Float[Array, " params"]:
        """dL/dw."""
        return jax.grad(lambda w: self.problem.objective(self.params(w)))(w)

    def velocity(self, w: Float[Array, " params"]) -> tuple[Float[Array, " params"], Float[Array, ""]]:
        # The energy is L, which falls at the rate sum_l eta_l |dL/dtheta_l|^2.
        gradient = self.gradient(w)
        velocity = -flat_rates(self.problem) * gradient
        return velocity, -velocity @ gradient

    @property
    def first_step(self) -> Float[Array, ""]:
        velocity, speed = self.velocity(self.start)
        # The time in which the loss would fall to 0 at its initial speed; 1 for a start at rest, which has none.
        loss = jnp.abs(self.problem.loss.value(self.outputs(self.start), self.problem.y))
        moving = (speed > 0) & (loss > 0)
        time = jnp.where(moving, loss / jnp.where(moving, speed, 1), 1)
        # How much the velocity of outputs changes along a straight line, over the shortest of first steps, as the
        # network is not linear. It grows with the time: `share` is when it comes to `TURN`.
        pushed = lambda w: jax.jvp(self.outputs, (w,), (velocity,))[1]
        straight = pushed(self.start)
        bent = jnp.linalg.norm(pushed(self.start + SHORTEST * time * velocity) - straight)
        share = TURN * SHORTEST * jnp.linalg.norm(straight) / jnp.where(bent > 0, bent, 1)
        length = jnp.where(bent > 0, jnp.clip(share, SHORTEST, LONGEST), LONGEST)
        # The length of a step is a choice: the solution does not depend on it.
        return jax.lax.stop_gradient(jnp.where(moving, length, 1) * time)


class Span(NamedTuple):
    """A time over which A acts.

    Attributes:
        length: the time.
        known: what a linear part works out of it once, for all that it does over that time.
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

    No derivative passes through it: a method keeps its order whatever A is.
    """

    @abc.abstractmethod
    def force(self, model: Any, w: Float[Array, "*moving"], outputs: Float[Array, "n out"]) -> V:
        """w' at the point itself, with its derivatives; `outputs` are those at w."""

    @abc.abstractmethod
    def change(self, velocity: Float[Array, "*moving"], moved: V, force: V) -> V:
        """N(w + moved) - N(w) = velocity - force - A moved, if the velocity is that at w + moved."""

    @abc.abstractmethod
    def over(self, *times: Float[Array, ""]) -> list[Span]:
        """The spans that the methods below need of each time, worked out for all of them at once."""

    @abc.abstractmethod
    def combine(self, span: Span, terms: Sequence[Term]) -> V:
        """The sum of factor phi_k(time A) v over all terms, by one pass through A; k = 0 is the exponential."""

    @abc.abstractmethod
    def vector(self, v: V) -> Float[Array, "*moving"]:
        """The vector as `AbstractModel.start` is."""

    @abc.abstractmethod
    def pushed(self, v: V) -> Float[Array, "n out"]:
        """J v: by how much it moves the outputs."""

    @abc.abstractmethod
    def power(self, span: Span, v: V) -> Float[Array, ""]:
        """|exp(time A) v|^2, every parameter's square divided by its eta."""

    @abc.abstractmethod
    def spent(self, span: Span, v: V) -> Float[Array, ""]:
        """The integral of `power` from 0 to a time."""


def integrated(weight: Sequence[tuple[int, float | Array]]) -> float | Array:
    """sum_k w_k phi_k(0)."""
    return sum((b / math.factorial(k) for k, b in weight), 0.0)
