"""A step size controller that measures errors by norms of whole vectors."""

from typing import Any, ClassVar

import diffrax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

from .._checks import concrete, require_number
from .._numerics import nonzero
from ._expansion import Flowing


class DisplacementController(diffrax.AbstractAdaptiveStepSizeController):
    """Keeps the error of a step below `rtol`, relative to the displacement of the parameters and to the outputs.

    For `js.integrators.FunctionSpace` and related solvers. The errors are |error of w| / |w - w(0)| and |error of f| /
    |f|, in norms of whole vectors; with momentum the same for tau w'. A single neuron that passes its kink therefore
    does not force a short step, as it would with errors per parameter. The next step size comes from diffrax's PID
    controller, which lets it grow at most tenfold at a time.

    Arguments:
        rtol: tolerance of one step. In the tests the error of a whole run is about as large.
        resolution: an |error of w| always accepted, as a shorter step has the same; `js.GradientFlow` passes eps
            |w(0)|. Without it a flow that starts at rest, where rounding alone moves it, stays there.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> controller = js.integrators.DisplacementController(rtol=1e-3)
        >>> start = js.integrators.FunctionSpace(problem).start
        >>> moved = start._replace(displacement=jnp.ones(12))
        >>> error = jax.tree.map(lambda part: part / 50, moved)
        >>> print(f"{controller.relative_error(start, moved, error):.3f}")  # above rtol: the step is refused
        0.020

    Raises:
        ValueError: rtol is not > 0; used without a first step `dt0`.
    """

    rtol: float
    resolution: float | Float[Array, ""]

    # diffrax expects these of adaptive controllers, for the root finders of implicit solvers; nothing here reads them.
    atol: ClassVar = 0.0
    norm: ClassVar = staticmethod(optx.two_norm)

    def __init__(self, rtol: float = 1e-4, *, resolution: float | Float[Array, ""] = 0.0):
        self.rtol = rtol if concrete(rtol) is None else require_number(rtol, "rtol")
        self.resolution = resolution

    @property
    def _rule(self) -> diffrax.PIDController:
        # The states passed below are zeros, so errors, which are already relative, are divided by atol alone. A scaled
        # error e of order k changes the step by e^(-(p + i)/k); p + i = 1 is the elementary rule.
        return diffrax.PIDController(rtol=0.0, atol=self.rtol, pcoeff=0.1, icoeff=0.9)

    def wrap(self, direction: Any) -> "DisplacementController":
        del direction
        return self

    def init(self, terms, t0, t1, y0: Flowing, dt0, args, func, error_order):
        if dt0 is None:
            raise ValueError("DisplacementController needs a first step: diffeqsolve(..., dt0=solver.first_step)")
        # The PID rule reads only the error it is given, so any array of the right dtype can stand in for the state.
        return self._rule.init(terms, t0, t1, y0.dissipated, dt0, args, func, error_order)

    def adapt_step_size(
        self, t0, t1, y0: Flowing, y1_candidate: Flowing, args, y_error: Any, error_order, controller_state
    ):
        error = self.relative_error(y0, y1_candidate, y_error)
        zero = jnp.zeros_like(error)
        return self._rule.adapt_step_size(t0, t1, zero, zero, args, error, error_order, controller_state)

    def relative_error(self, y0: Flowing, y1: Flowing, y_error: Flowing) -> Float[Array, ""]:
        """The larger of the relative errors of parameters and outputs, for a step from y0 to y1."""
        return jnp.maximum(
            _share(y_error.displacement, y0.displacement, y1.displacement, self.resolution / self.rtol),
            _share(*(y.outputs.reshape(-1) for y in (y_error, y0, y1))),
        )


def _share(error: Array, before: Array, after: Array, least: float | Array = 0.0) -> Float[Array, ""]:
    """The largest error of any row, relative to the size of that row or to `least` if that is larger."""
    # Scaled by the largest entry, whose square could overflow: a NaN error would end the run.
    unit = nonzero(jnp.max(jnp.maximum(jnp.abs(before), jnp.abs(after)), axis=-1, keepdims=True))
    error, before, after = (jnp.linalg.norm(rows / unit, axis=-1) for rows in (error, before, after))
    # The larger of the sizes at both ends, because nothing has moved at t = 0.
    size = jnp.maximum(jnp.maximum(before, after), least / unit[..., 0])
    return jnp.max(error / jnp.where(size > 0, size, 1))
