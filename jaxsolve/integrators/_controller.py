"""Step sizes from errors measured by whole vectors."""

from typing import Any

import diffrax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._expansion import Flowing


class DisplacementController(diffrax.AbstractStepSizeController):
    """Holds the error of a step below `rtol` times how far the parameters and the outputs have moved.

    The norms are those of the whole vectors: what counts is |error of w| / |w - w(0)| and |error of f| / |f|, the
    larger of both. Steps may grow tenfold from one to the next.

    Arguments:
        rtol: the tolerance of one step.
    """

    rtol: float = 1e-4

    @property
    def _inner(self) -> diffrax.PIDController:
        return diffrax.PIDController(rtol=0.0, atol=1.0, pcoeff=0.1, icoeff=0.9, factormin=0.1)

    def wrap(self, direction: Any) -> "DisplacementController":
        del direction
        return self

    def init(self, terms, t0, t1, y0: Flowing, dt0, args, func, error_order):
        if dt0 is None:
            dt0 = self.first_step(func(terms, t0, y0, args))
        zero = jnp.zeros_like(y0.dissipated)
        return self._inner.init(terms, t0, t1, zero, dt0, args, func, error_order)

    def adapt_step_size(
        self, t0, t1, y0: Flowing, y1_candidate: Flowing, args, y_error: Flowing, error_order, controller_state
    ):
        zero = jnp.zeros_like(y0.dissipated)
        error = self.relative_error(y0, y1_candidate, y_error) / self.rtol
        return self._inner.adapt_step_size(t0, t1, zero, zero, args, error, error_order, controller_state)

    def relative_error(self, y0: Flowing, y1: Flowing, y_error: Flowing) -> Float[Array, ""]:
        """The error of a step relative to how far all has moved."""

        def share(error, before, after):
            size = jnp.maximum(jnp.linalg.norm(before), jnp.linalg.norm(after))
            return jnp.linalg.norm(error) / jnp.where(size > 0, size, 1)

        return jnp.maximum(
            share(y_error.displacement, y0.displacement, y1.displacement),
            share(y_error.outputs, y0.outputs, y1.outputs),
        )

    def first_step(self, velocity: Flowing) -> Float[Array, ""]:
        return jnp.sqrt(velocity.dissipated)
