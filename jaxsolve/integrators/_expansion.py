"""One step of an exponential method: how the solution goes on from a point, to the order of the method."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._problem import Problem
from ._linear_part import Direction, flat_rates, linear_part, LinearPart
from ._modes import Modes
from ._tableau import ExponentialTableau


class Flowing(NamedTuple):
    """The state of a gradient flow in parameters and in function space.

    Attributes:
        displacement: w(t) - w(0), all parameters in one vector.
        outputs: f(t) on the training set.
        dissipated: the integral of sum_l eta_l |dL/dtheta_l|^2 up to t.
    """

    displacement: Float[Array, " params"]
    outputs: Float[Array, "n out"]
    dissipated: Float[Array, ""]


class Model(eqx.Module):
    """A problem's outputs and velocity as functions of all parameters in one vector."""

    problem: Problem

    @property
    def start(self) -> Float[Array, " params"]:
        """The parameters at t = 0."""
        return ravel_pytree(self.problem.params)[0]

    def params(self, w: Float[Array, " params"]) -> PyTree:
        """The parameters as the network has them."""
        return ravel_pytree(self.problem.params)[1](w)

    def outputs(self, w: Float[Array, " params"]) -> Float[Array, "n out"]:
        """f(w) on the training set."""
        return self.problem.outputs(self.params(w))

    def velocity(self, w: Float[Array, " params"]) -> tuple[Float[Array, " params"], Float[Array, ""]]:
        """-eta dL/dw, and the rate sum_l eta_l |dL/dtheta_l|^2 at which L falls."""
        gradient = jax.grad(lambda w: self.problem.objective(self.params(w)))(w)
        velocity = -flat_rates(self.problem) * gradient
        return velocity, -velocity @ gradient


class Expansion(eqx.Module):
    """What a step knows of the solution: y' = A y + N(y), and how N changes.

    Attributes:
        h: the length of the step.
        part: A.
        force: y' at the start.
        corrections: the changes D of N at the nodes.
        excess: by how much the energy falls faster at the nodes than under A alone.
    """

    h: Float[Array, ""]
    part: LinearPart
    force: Direction
    corrections: tuple[Direction, ...]
    excess: tuple[Float[Array, ""], ...]

    def at(
        self,
        model: Model,
        tableau: ExponentialTableau,
        y0: Flowing,
        theta: Float[Array, ""],
    ) -> Flowing:
        """The solution a part theta of the step later."""
        time = theta * self.h
        weights = [tuple((k, b * theta**k) for k, b in weight) for weight in tableau.step]
        moved = time * self.part.phi(1, time, self.force) + sum_of(self.part, weights, self.corrections, self.h, time)
        displacement = y0.displacement + self.part.vector(moved)
        beyond = [self.h * sum(b / math.factorial(k) for k, b in weight) for weight in weights]
        dissipated = self.part.spent(time, self.force) + sum(b * e for b, e in zip(beyond, self.excess, strict=True))
        return Flowing(displacement, model.outputs(model.start + displacement), y0.dissipated + dissipated)


def expand(
    model: Model, tableau: ExponentialTableau, y0: Flowing, h: Float[Array, ""], known: Modes
) -> tuple[Expansion, Modes]:
    """All stages of a step, and the modes that the next one starts from."""
    problem, w = model.problem, model.start + y0.displacement
    part, known = linear_part(problem, model.params(w), y0.outputs, h, known)
    force = _force(problem, part, w, y0.outputs)
    corrections: list[Direction] = []
    excess = []
    for node, weights in zip(tableau.nodes, tableau.stages, strict=True):
        time = node * h
        moved = time * part.phi(1, time, force) + sum_of(part, weights, corrections, h, time)
        velocity, dissipation = model.velocity(w + part.vector(moved))
        # N(u) - N(w) = u' - w' - A (u - w)
        corrections.append(part.direction(velocity, part.curvature(moved.pushed)) + -1.0 * force)
        excess.append(dissipation - part.power(time, force))
    return Expansion(h, part, force, tuple(corrections), tuple(excess)), known


def sum_of(
    part: LinearPart,
    weights: Sequence[Sequence[tuple[int, float | Array]]],
    corrections: Sequence[Direction],
    h: Float[Array, ""],
    time: Float[Array, ""],
) -> Direction:
    """h sum_j sum_k w_jk phi_k(time A) D_j."""
    total = part.nothing()
    for weight, correction in zip(weights, corrections, strict=True):
        for k, b in weight:
            total = total + (h * b) * part.phi(k, time, correction)
    return total


def _force(problem: Problem, part: LinearPart, w: Float[Array, " params"], outputs: Float[Array, "n out"]) -> Direction:
    """w' = -eta J^T dl/df. The part holds J without its derivative, which `_slip` brings in."""
    residual = problem.loss.gradient(outputs, problem.y).reshape(-1)
    own, pushed = _slip(problem, part, w, residual)
    return Direction(own, -residual, pushed - part.kernel @ residual)


@eqx.filter_custom_jvp
def _slip(
    problem: Problem, part: LinearPart, w: Float[Array, " params"], residual: Float[Array, " outputs"]
) -> tuple[Float[Array, " params"], Float[Array, " outputs"]]:
    """The velocity, -eta dL/dw + eta J^T dl/df, that is 0 but whose derivative is not, and its product with J."""
    del problem, part
    return jnp.zeros_like(w), jnp.zeros_like(residual)


@_slip.def_jvp
def _slip_jvp(primals, tangents):
    problem, part, w, residual = primals
    problem_dot, _, w_dot, residual_dot = tangents
    velocity = lambda problem, w: Model(problem).velocity(w)[0]
    _, own = eqx.filter_jvp(velocity, (problem, w), (problem_dot, w_dot))
    own = jnp.zeros_like(w) if own is None else own
    own = own if residual_dot is None else own + part.lift(residual_dot)
    return _slip(problem, part, w, residual), (own, part.push(own))
