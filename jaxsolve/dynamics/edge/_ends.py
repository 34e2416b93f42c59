"""Flows of the midpoint and the half-difference of an oscillation, between whose ends descent alternates."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ..._core import Certificate, Observed, Problem, View
from ..flow._certificate import step_certificate
from ..flow._system import AbstractSystem


class AbstractEndsSystem(AbstractSystem):
    """A flow of the midpoint m and half-difference d of an oscillation, for descent at a given rate.

    Attributes:
        rate: the gradient-flow time of a step of descent.
        controller: a controller with `rtol` and `atol`.
    """

    problem: eqx.AbstractVar[Problem]
    rate: eqx.AbstractVar[Float[Array, ""]]
    controller: eqx.AbstractVar[Any]

    def gradient(self, w: Float[Array, " params"]) -> Float[Array, " params"]:
        """The gradient of the objective at w."""
        return jax.grad(lambda vector: self.problem.objective(ravel_pytree(self.problem.params)[1](vector)))(w)

    @property
    def valid(self) -> Bool[Array, ""]:
        return self.problem.valid & jnp.isfinite(self.rate) & (self.rate > 0)

    @property
    def tolerances(self) -> dict[str, Any]:
        return {"rtol": self.controller.rtol, "atol": self.controller.atol}

    def first_step(self) -> Float[Array, ""]:
        return self.rate

    def observed(self, m: Float[Array, " params"], d: Float[Array, " params"], **others: Array) -> Observed:
        """The parameters at the midpoint, and averages over both ends, between which descent alternates."""
        unravel, ends = ravel_pytree(self.problem.params)[1], [m + d, m - d]
        loss = sum(self.problem.objective(unravel(end)) for end in ends) / 2
        square = sum(jnp.sum(self.gradient(end) ** 2) for end in ends) / 2
        known = {"averaged_loss": loss, "averaged_squared_gradient": square, "oscillation": jnp.sum(d**2)[None]}
        return Observed(unravel(m), {name: jnp.asarray(value) for name, value in (known | others).items()})

    def view(self, t: Float[Array, ""], y: PyTree) -> View:
        known = self.params(self.position(y))
        return View(self.problem, t, known.params, given_observations=known.observations)

    def lost(self, y: PyTree) -> Bool[Array, ""]:
        del y
        return jnp.array(False)

    def certificate(self, t: Float[Array, ""], y: PyTree, step_error: Float[Array, ""]) -> Certificate:
        del t, y
        return step_certificate(step_error, self.controller.rtol)
