"""One step of an exponential method: the solution after a point, to the order of the method."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import nonzero
from ._linear_part import AbstractLinearPart, AbstractModel, integrated, Span, Term
from ._tableau import AbstractTableau, Weight


class Flowing(NamedTuple):
    """The state of a flow in parameter space and in function space.

    Attributes:
        displacement: w(t) - w(0), all parameters in one vector; with momentum, tau w'(t) in a second row.
        outputs: f(t) on the training set.
        dissipated: the integral of sum_l |dtheta_l/dt|^2 / eta_l up to t.
    """

    displacement: Float[Array, "*moving"]
    outputs: Float[Array, "n out"]
    dissipated: Float[Array, ""]


class Expansion(eqx.Module):
    """The solution within one step: y' = A y + N(y), with the changes of N.

    Attributes:
        h: the step size.
        passed: the time elapsed before the step, as a fraction of the time elapsed at its end.
        part: A.
        force: y' at the start.
        changes: the changes D of N at the nodes.
        excess: how much faster the energy falls at the nodes than under A alone.
        falling: 1, with a derivative that supplies what the derivative of A's power leaves out.
    """

    h: Float[Array, ""]
    passed: Float[Array, ""]
    part: AbstractLinearPart
    force: Any
    changes: tuple[Any, ...]
    excess: tuple[Float[Array, ""], ...]
    falling: Float[Array, ""]

    def at(self, model: AbstractModel, tableau: AbstractTableau, y0: Flowing, theta: Float[Array, ""]) -> Flowing:
        """The solution at a fraction theta of the step."""
        (span,) = self.part.over(theta * self.h)
        return self._after(model, tableau, y0, theta, span)

    def end(self, model: AbstractModel, tableau: AbstractTableau, y0: Flowing, whole: Span) -> tuple[Flowing, Flowing]:
        """The solution at the end of the step, and its estimated error, which is 0 for the dissipated energy."""
        # Only changes of N enter: the motion under A alone is exact.
        error = self.part.combine(whole, _terms(tableau.at(self.passed).error, self.changes, self.h))
        error = Flowing(self.part.vector(error), self.part.pushed(error), jnp.zeros_like(self.h))
        return self._after(model, tableau, y0, jnp.ones_like(self.h), whole), error

    def _after(
        self, model: AbstractModel, tableau: AbstractTableau, y0: Flowing, theta: Float[Array, ""], span: Span
    ) -> Flowing:
        # theta^k belongs to the tableau's dense output; at the end of the step it is 1.
        weights = [tuple((k, b * theta**k) for k, b in weight) for weight in tableau.at(self.passed).step]
        moved = _moved(self.part, span, self.force, _terms(weights, self.changes, self.h))
        displacement = y0.displacement + self.part.vector(moved)
        # phi_k(0) = 1/k! turns the weights into quadrature weights. The excess at the start is 0, so its weight does
        # not matter.
        beyond = sum(self.h * integrated(weight) * e for weight, e in zip(weights, self.excess, strict=True))
        dissipated = y0.dissipated + self.falling * self.part.spent(span, self.force) + beyond
        # The outputs are computed from the new parameters, so the two cannot drift apart.
        return Flowing(displacement, model.outputs(model.start + displacement), dissipated)


def expand(
    model: AbstractModel,
    part: AbstractLinearPart,
    tableau: AbstractTableau,
    y0: Flowing,
    h: Float[Array, ""],
    passed: Float[Array, ""],
) -> tuple[Expansion, Span]:
    """All stages of a step, and the `Span` of the whole step."""
    numbers = tableau.at(passed)
    w = model.start + y0.displacement
    force = part.force(model, w, y0.outputs)
    falling = _falling(model, part, w, force)
    changes: list[Any] = []
    excess = []
    # All times in one call, so that the part can process them together.
    *spans, whole = part.over(*(node * h for node in numbers.nodes), h)
    for span, weights in zip(spans, numbers.stages, strict=True):
        moved = _moved(part, span, force, _terms(weights, changes, h))
        velocity, dissipation = model.velocity(w + part.vector(moved))
        changes.append(part.change(velocity, moved, force))
        excess.append(dissipation - falling * part.power(span, force))
    return Expansion(h, passed, part, force, tuple(changes), tuple(excess), falling), whole


def _terms(weights: Sequence[Weight], changes: Sequence[Any], h: Float[Array, ""]) -> list[Term]:
    """h sum_j sum_k w_jk phi_k(time A) D_j."""
    return [Term(k, h * b, change) for weight, change in zip(weights, changes, strict=True) for k, b in weight]


def _moved(part: AbstractLinearPart, span: Span, force: Any, terms: list[Term]) -> Any:
    """The displacement over a span: under A alone from the force at the start, plus these terms."""
    # t phi_1(t A) F is the integral of exp(s A) F over s from 0 to t: motion under A alone with initial velocity F.
    return part.combine(span, [Term(1, span.length, force), *terms])


@eqx.filter_custom_jvp
def _falling(model: AbstractModel, part: AbstractLinearPart, w: Float[Array, "*moving"], force: Any) -> Array:
    """The rate at which energy falls at the start of a step, over A's power there: 1, but with a nonzero derivative.

    The energy depends on eta, which is differentiated but frozen in A.
    """
    del model, part, force
    return jnp.ones((), w.dtype)


@_falling.def_jvp
def _falling_jvp(primals, tangents):
    model, part, w, force = primals
    model_dot, _, w_dot, force_dot = tangents
    (start,) = part.over(jnp.zeros((), w.dtype))
    _, true = eqx.filter_jvp(lambda model, w: model.velocity(w)[1], (model, w), (model_dot, w_dot))
    power, frozen = eqx.filter_jvp(lambda force: part.power(start, force), (force,), (force_dot,))
    left = sum(sign * dot for sign, dot in ((1, true), (-1, frozen)) if dot is not None)
    return _falling(model, part, w, force), jnp.broadcast_to(left / nonzero(power), ())
