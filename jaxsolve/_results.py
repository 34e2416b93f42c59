"""The ways in which a run can end."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


class RESULTS(eqx.Enumeration):
    """The way in which a run ended, one item per run (per lane in a sweep).

    `solve` raises on all but the first three unless `throw=False`; a sweep never raises for a lane.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> run = js.solve(problem, js.GradientFlow(max_steps=1), 100.0, throw=False)
        >>> bool(run.result == js.RESULTS.max_steps)
        True
    """

    successful = "The run reached the last requested time, or solved it exactly."
    event = "The `until` condition was met; times after `t_end` hold the state at the event."
    max_time = (
        "The last requested time was reached before the `until` condition was met. The trajectory holds the state "
        "reached. Ask for later times, end `ts` with inf, or loosen the condition."
    )
    max_steps = (
        "The run used `max_steps` steps before the last requested time. Likely causes: (a) the flow is stiff, its "
        "fastest rate times the last time is large; (b) `until` is out of reach; (c) the schedule of a descent has "
        "come to its end, and no time passes any more. Raise `max_steps` (`nodes` of a rich limit; neither helps (c)), "
        "ask for earlier times, or use a looser tolerance."
    )
    diverged = (
        "The parameters, the loss or its gradient became infinite or NaN, or the loss of a descent grew beyond its "
        "`divergence_factor`. Likely causes: (a) the rate of a descent is above its stability limit; (b) the scales "
        "overflow the dtype; (c) at t = 0, a gradient that is not finite, as of a root of 0. Lower the rate or eta, "
        "use float64, or fix the gradient."
    )
    tolerance = (
        "The step size fell below the resolution of time before the tolerance was met. Likely causes: (a) rtol or "
        "atol is finer than the dtype can serve; (b) the activation or loss has kinks. Loosen the tolerance or use "
        "float64."
    )
    not_applicable = (
        "This dynamics does not solve this problem: an assumption is violated. `dynamics.check(problem)` says which, "
        "and by how much."
    )
    invalid = (
        "A hyperparameter, the initial parameters or the data hold a NaN, an infinity or a negative scale; or the "
        "targets do not suit the loss or `until`, or times are negative, unsorted or NaN."
    )
    unstable = (
        "The flow no longer describes the descent: more eigenvalues of the Hessian came to the edge of stability than "
        "`max_unstable`, or the start lies beyond it, where descent jumps or diverges at its first steps. Raise "
        "`max_unstable`, or lower the rate."
    )


RESULT_NAMES = (
    "successful",
    "event",
    "max_time",
    "max_steps",
    "diverged",
    "tolerance",
    "not_applicable",
    "invalid",
    "unstable",
)
"""The names of the items, by code."""
FIRST_FAILURE = 3  # this code and all larger ones are failures


@eqx.filter_jit
def result_code(result: RESULTS) -> Int[Array, "..."]:
    """The index of a result in `RESULT_NAMES`; -1 for an item of another enumeration."""
    matches = jnp.stack([jnp.asarray(result == getattr(RESULTS, name)) for name in RESULT_NAMES])
    return jnp.where(jnp.any(matches, axis=0), jnp.argmax(matches, axis=0), -1)


def result_names(codes: Any) -> np.ndarray:
    """The names of an array of codes, such as the `result` of a sweep.

    Example:
        >>> [str(name) for name in js.result_names([0, 4])]
        ['successful', 'diverged']

    The name of -1, which a sweep holds for a lane that has not run, is "not_run".

    Raises:
        ValueError: a number is not the code of a result.
        TypeError: the codes are not integers.
    """
    given = codes if isinstance(codes, jax.Array) else np.asarray(codes)
    if not jnp.issubdtype(given.dtype, np.integer) or given.dtype.kind not in "iu":
        raise TypeError(f"codes must be integers such as the result of a sweep, got {given.dtype}")
    numbers = np.asarray(given)
    if numbers.size and not (numbers.min() >= -1 and numbers.max() < len(RESULT_NAMES)):
        raise ValueError(
            f"codes must lie in -1..{len(RESULT_NAMES) - 1}, got values from {numbers.min()} to {numbers.max()}"
        )
    return np.asarray(np.asarray((*RESULT_NAMES, "not_run"))[numbers])  # -1 is the last
