r"""The time at which linear networks with a small start align, and whether that is before they learn.

Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent alignment effect", section 4.2 and
appendix D.1.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, require_positive
from ..._core import NotApplicable, Problem, require_problem, Validity
from ..._numerics import nonzero
from ..linear._linear_flow import linear_network


def alignment_time(problem: Problem) -> Float[Array, ""]:
    r"""The time that the first layer of a linear network initially takes to move by its own size: |W_1|/|dW_1/dt|.

    While the output is small, $\dot W_1 = \eta_1\, o\, (W_L \cdots W_2)^\top Y^\top X/n$ with $o = \gamma \prod_l m_l$:
    a matrix of the task's rank, which from then on outweighs the start. This is the order of the time in which the
    first layer aligns (eq. 41, corrected: the printed equation lacks the factor s). For weights of scale sigma it is
    $\sigma^{-(L-2)}/s$, like the escape time of the loss, `js.theory.escape_time`; for two layers it is 1/s at any
    sigma. It is a scale, not a half time: the layers above grow meanwhile.

    Raises:
        NotApplicable: the problem is not a linear network of two or more layers with MSE loss.

    Example:
        >>> def time(sigma):
        ...     scaling = js.nets.Scaling.standard(sigma=sigma)
        ...     net = js.nets.DeepLinear(in_size=4, width_size=4, depth=2, scaling=scaling, key=jax.random.key(0))
        ...     return js.theory.alignment_time(js.Problem(net, 2 * jnp.eye(4), 2 * jnp.ones((4, 1))))
        >>> print((time(0.01) / time(0.1)).round(2))  # three layers: sigma^-1
        10.0
    """
    require_problem(problem)
    validity = Validity(tuple(linear_network(problem)))
    if validity.structural:
        raise NotApplicable(f"alignment_time does not apply to this problem: it needs {validity.missed()}")
    net, (first, *above) = problem.net, problem.params.weights
    outer = net.scaling.gamma
    for index in range(len(net.weights)):
        outer = outer * net.scaling.multiplier[index]
    # (W_L ... W_2)^T Y^T X/n, from the last layer down: weight matrices are never multiplied with each other.
    pull = problem.y.T @ problem.x / len(problem.x)
    for w in reversed(above):
        pull = w.T @ pull
    speed = jnp.abs(outer) * net.rates().weights[0] * jnp.linalg.norm(pull)
    return jnp.where(speed == 0, jnp.inf, jnp.linalg.norm(first) / nonzero(speed))


class PhaseTimes(NamedTuple):
    """The times at which the slowest mode has aligned, and at which the first mode is learned.

    Attributes:
        alignment: 1/s_min.
        learning: ln(s_max/c_0)/(2 s_max).
    """

    alignment: Float[Array, ""]
    learning: Float[Array, ""]

    @property
    def ratio(self) -> Float[Array, ""]:
        """alignment/learning: silent alignment needs this to be far below 1."""
        return self.alignment / self.learning


def phase_times(s: Float[ArrayLike, " modes"], *, start: Float[ArrayLike, ""]) -> PhaseTimes:
    r"""The times that decide if two linear layers with several outputs align silently: all modes before any is learned.

    The condition is $1/s_{min} \ll \ln(s_{max}/c_0)/(2 s_{max})$ (section 4.2, corrected: the printed learning time is
    twice that), at unit rates and on whitened inputs. For deeper networks both times scale alike; see
    `js.theory.alignment_time`.

    Arguments:
        s: singular values of the targets' map, Y^T X/n; > 0.
        start: c_0 = u_0^2 > 0, the strength of a mode at the start, of the order sigma^2; below the largest s.

    Example:
        >>> for s in ([1.0, 0.9], [1.0, 0.05]):
        ...     print(f"{js.theory.phase_times(jnp.array(s), start=1e-4).ratio:.2f}")
        0.24
        4.34

    Raises:
        ValueError: a value of s or the start is not positive, or the start is not below the largest s.
    """
    s, start = jnp.asarray(s), jnp.asarray(start)
    dtype = jnp.result_type(s, start, float)
    require_positive(s, "s")
    require_positive(start, "start")
    s, start = s.astype(dtype), start.astype(dtype)
    largest = jnp.max(s)
    known, begin = concrete(largest), concrete(start)
    if known is not None and begin is not None and not np.all(begin < known):
        raise ValueError(f"start must be below the largest s, {known}: such a mode is learned already; got {begin}")
    return PhaseTimes(1 / jnp.min(s), jnp.log(largest / start) / (2 * largest))
