"""One step of an exponential method: how the solution goes on from a point, to the order of the method."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._linear_part import AbstractLinearPart, AbstractModel, integrated
from ._tableau import AbstractTableau


class Flowing(NamedTuple):
    """The state of a flow in parameters and in function space.

    Attributes:
        displacement: w(t) - w(0), all parameters in one vector; with momentum, tau w'(t) in a second row.
        outputs: f(t) on the training set.
        dissipated: the integral of sum_l |dtheta_l/dt|^2 / eta_l up to t.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> start = js.integrators.FunctionSpace(problem).start
        >>> print(start.displacement.shape, start.outputs.shape)
        (12,) (2, 1)
    """

    displacement: Float[Array, "*moving"]
    outputs: Float[Array, "n out"]
    dissipated: Float[Array, ""]


class Expansion(eqx.Module):
    """What a step knows of the solution: y' = A y + N(y), and how N changes.

    Attributes:
        h: the length of the step.
        passed: the share of the time up to the end of the step that had passed at its start.
        part: A.
        force: y' at the start.
        changes: the changes D of N at the nodes.
        excess: by how much the energy falls faster at the nodes than under A alone.
    """

    h: Float[Array, ""]
    passed: Float[Array, ""]
    part: AbstractLinearPart
    force: Any
    changes: tuple[Any, ...]
    excess: tuple[Float[Array, ""], ...]

    def at(self, model: AbstractModel, tableau: AbstractTableau, y0: Flowing, theta: Float[Array, ""]) -> Flowing:
        """The solution a part theta of the step later."""
        time = theta * self.h
        weights = [tuple((k, b * theta**k) for k, b in weight) for weight in tableau.at(self.passed).step]
        moved = self.part.integral(time, self.force) + self.part.sum_of(weights, self.changes, self.h, time)
        displacement = y0.displacement + self.part.vector(moved)
        beyond = sum(self.h * integrated(weight) * e for weight, e in zip(weights, self.excess, strict=True))
        dissipated = y0.dissipated + self.part.spent(time, self.force) + beyond
        return Flowing(displacement, model.outputs(model.start + displacement), dissipated)

    def error(self, tableau: AbstractTableau) -> Flowing:
        """The estimated error of the whole step; that of the dissipated energy is not used and left 0."""
        v = self.part.sum_of(tableau.at(self.passed).error, self.changes, self.h, self.h)
        return Flowing(self.part.vector(v), self.part.pushed(v), jnp.zeros_like(self.h))


def expand(
    model: AbstractModel,
    part: AbstractLinearPart,
    tableau: AbstractTableau,
    y0: Flowing,
    h: Float[Array, ""],
    passed: Float[Array, ""],
) -> Expansion:
    """All stages of a step."""
    numbers = tableau.at(passed)
    w = model.start + y0.displacement
    force = part.force(model, w, y0.outputs)
    changes: list[Any] = []
    excess = []
    for node, weights in zip(numbers.nodes, numbers.stages, strict=True):
        time = node * h
        moved = part.integral(time, force) + part.sum_of(weights, changes, h, time)
        velocity, dissipation = model.velocity(w + part.vector(moved))
        changes.append(part.change(velocity, moved, force))
        excess.append(dissipation - part.power(time, force))
    return Expansion(h, passed, part, force, tuple(changes), tuple(excess))
