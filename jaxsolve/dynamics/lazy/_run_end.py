"""The final network of a run on the same problem."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._checks import concrete, describe, one_number
from ..._core import AbstractMarching, are_times, Assumption, condition_of, march, Problem, Quantity, resolve
from ..._results import FIRST_FAILURE, result_code


class RunEnd(eqx.Module):
    """The final network of a run; in a sweep, every lane runs its own problem.

    For `FrozenKernel(at=...)`, whose kernel is then the one learned by the run. The run is repeated wherever it is
    needed. If it fails, everything derived from it is NaN, and the solution is `not_applicable`.

    Arguments:
        dynamics: a marching dynamics that moves parameters, such as `GradientFlow()`.
        t: final gradient-flow time, > 0; may be inf if the dynamics has an `until`.

    Raises:
        TypeError: dynamics does not march or does not move parameters; t is not a number.
        ValueError: t is not positive, or inf without `until`.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> learnt = js.FrozenKernel(at=js.dynamics.RunEnd(js.GradientFlow(), 5.0))
        >>> norm = lambda dynamics: js.solve(problem, dynamics, 1.0, observe=js.observe.kernel_norm())["kernel_norm"]
        >>> bool(norm(learnt) > norm(js.FrozenKernel()))
        True
    """

    dynamics: AbstractMarching
    t: Float[Array, ""]

    def __init__(self, dynamics: AbstractMarching, t: Float[ArrayLike, ""] = np.inf):
        if not isinstance(dynamics, AbstractMarching) or Quantity.PARAMS not in dynamics.provides:
            raise TypeError(
                f"dynamics must be one that moves parameters in steps, such as GradientFlow(), got {describe(dynamics)}"
            )
        self.dynamics = dynamics
        known = concrete(t)
        infinite = known is not None and not np.ndim(known) and np.isposinf(known)
        self.t = jnp.asarray(np.inf) if infinite else one_number(t, "t")
        if infinite and condition_of(dynamics) is None:
            raise ValueError(
                f"t is inf, which {dynamics.name} reaches only with a condition to stop at: give "
                "until=until.loss_below(...), or a finite t"
            )

    def network(self, problem: Problem) -> Any:
        """The final network."""
        params, failed = _end(problem, self.dynamics, self.t)
        return problem.network(jax.tree.map(lambda leaf: jnp.where(failed, jnp.nan, leaf), params))

    def assumption(self, problem: Problem) -> Assumption:
        """The assumption that the run reaches its end."""
        _, failed = _end(problem, self.dynamics, self.t)
        violation = jnp.where(failed, jnp.inf, jnp.zeros((), problem.dtype))
        detail = "js.solve(problem, at.dynamics, at.t) shows how it ends"
        return Assumption("a run in `at` that does not fail", violation, 0.0, detail)


@eqx.filter_jit  # lets the network and the assumption share one run in a program
def _end(problem: Problem, dynamics: AbstractMarching, t: Float[Array, ""]) -> tuple[Any, Bool[Array, ""]]:
    """The final parameters, and whether the run failed."""
    fine = are_times(t[None], dynamics) & (t > 0)  # a traced t may be any number
    # With an invalid time the march ends at once, instead of possibly never.
    ts = jnp.where(fine, t, 0)[None].astype(problem.dtype)
    run = march(problem, resolve(dynamics, problem, ts), ts)  # pyright: ignore[reportArgumentType]
    return run.view(problem, run.t_end, run.params).params, ~fine | (result_code(run.result) >= FIRST_FAILURE)
