"""The interpolant that training selects."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe
from ..._numerics import nonzero, norm, safe_hypot
from .._arguments import as_floats, as_positive
from ._interpolants import Interpolants
from ._potentials import AbstractPotential, SingleNeuronPotential


def implicit_bias(
    potential: AbstractPotential, x: Float[ArrayLike, "n d"], y: Float[ArrayLike, " n"]
) -> Float[Array, " d"]:
    """The limit of a mirror flow that reaches zero loss: the minimizer of its potential subject to X beta = y.

    Exact up to rounding. Differentiable in x (at fixed rank), y and the potential, by the implicit function theorem
    where a solver is used.

    Arguments:
        potential: for the network and its start: `js.theory.SingleNeuronPotential`, `js.theory.DeepPotential`,
            `js.theory.HyperbolicEntropy`, or a custom `js.theory.AbstractPotential`.
        x: inputs, times the network's gamma.
        y: one target per input, plus the initial output for a centered problem.

    Example:
        >>> x, y = jnp.array([[1.0, 2.0]]), jnp.array([5.0])  # one sample: many solutions
        >>> network = js.theory.HyperbolicEntropy.of_diagonal_network(u=1e-3, v=1e-3)
        >>> print(js.theory.implicit_bias(network, x, y).round(2))
        [0.  2.5]

    Raises:
        ValueError: shapes do not match, a value is not finite, or X beta = y has no solution.
        TypeError: potential is not an `AbstractPotential`.
        RuntimeError: the solver found no minimizer. Inside a trace the result is NaN instead.
    """
    if not isinstance(potential, AbstractPotential):
        raise TypeError(f"potential must be one of those in jaxsolve.theory, got {describe(potential)}")
    beta = potential.minimize(Interpolants(x, y))
    known = concrete(beta)
    if known is not None and not np.all(np.isfinite(known)):
        raise RuntimeError(
            f"no minimizer found for {type(potential).__name__} at {beta.dtype}; scale the data to order one, drop "
            "nearly dependent samples, or use float64"
        )
    return beta


def single_neuron_limit(
    x: Float[ArrayLike, " d"],
    y: Float[ArrayLike, ""],
    beta_0: Float[ArrayLike, " d"],
    delta: Float[ArrayLike, ""],
    eta_a: Float[ArrayLike, ""] = 1.0,
    eta_w: Float[ArrayLike, ""] = 1.0,
) -> Float[Array, " d"]:
    r"""The limit of one linear neuron beta = a w on one data point, in closed form (Kunin et al., A.4; there d = 2).

    With $\beta_* = x y/|x|^2$,
    $k = \sqrt{\sqrt{|\beta_0|^2 + \delta^2/4} - \delta/2}\, (\beta_0 \cdot n)/|\beta_0|$ and
    $K = (k^2 + \delta)/2$ it is $\beta_* + k \sqrt{K + \sqrt{K^2 + |\beta_*|^2}}\, n$ at rates of 1, with n the unit
    vector orthogonal to x in the plane of x and beta_0. For delta = inf (lazy) it is the solution nearest to beta_0,
    $\beta_0 - x (x \cdot \beta_0 - y)/|x|^2$; for delta = -inf, the solution on the line of beta_0,
    $\beta_0 |\beta_*|^2/(\beta_0 \cdot \beta_*)$.

    It holds for any start off the saddle's stable manifold. For delta < 0, a neuron whose a opposes y,
    $\kappa_0 + \delta + 2 \sqrt{\eta_a \eta_w}\, \beta_0 \cdot \beta_*/|\beta_*| < 0$, reverses beta, and with it the
    sign of k.

    Arguments:
        x, y: the data point, x not zero.
        beta_0, delta, eta_a, eta_w: as for `js.theory.SingleNeuronPotential`; delta may be infinite.

    Example:
        >>> x, beta_0 = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.5])
        >>> for delta in (jnp.inf, 0.0, -jnp.inf):  # lazy, balanced, rich
        ...     print(*(f"{value:.2f}" for value in js.theory.single_neuron_limit(x, 5.0, beta_0, delta)))
        1.60 1.70
        1.89 1.56
        2.50 1.25

    Raises:
        ValueError: x is zero, a value is not finite (other than delta), or as for `SingleNeuronPotential`.
    """
    x, beta_0 = as_floats(x, "x"), as_floats(beta_0, "beta_0")
    known = concrete(x)
    if known is not None and not known.any():
        raise ValueError("x must not be zero: no beta fits such a point")
    dtype = x.dtype
    y, beta_0 = as_floats(y, "y").astype(dtype), beta_0.astype(dtype)
    eta_a, eta_w = as_positive(eta_a, "eta_a").astype(dtype), as_positive(eta_w, "eta_w").astype(dtype)
    # The limits of infinite delta are reached to rounding long before this.
    far = float(np.sqrt(np.finfo(dtype).max))
    delta = jnp.clip(jnp.asarray(delta, dtype), -far, far)

    length = norm(x)
    direction = x / nonzero(length)
    seen = beta_0 @ direction
    start = norm(beta_0)
    twice = 2 * jnp.sqrt(eta_a) * jnp.sqrt(eta_w)
    # kappa_0 + delta for delta < 0, without cancellation, over 2 sqrt(eta_a eta_w)
    above = start * (twice * start / nonzero(safe_hypot(delta, twice * start) + jnp.abs(delta)))
    crossed = (delta < 0) & (above + seen * jnp.sign(y) < 0)
    potential = SingleNeuronPotential(beta_0, delta, eta_a, eta_w, crossed=crossed)
    # As in `AbstractRadialPotential.minimize`, written out for the row space of one sample.
    unseen = beta_0 - seen * direction
    shortest = y / nonzero(length)
    stretch = potential.stretch(jnp.abs(shortest), jnp.abs(seen), norm(unseen))
    return shortest * direction + stretch * unseen
