r"""The escape of a deep linear network from a small start: the early growth of its mode, and when it ends.

Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent alignment effect", section 4.1.1 and
appendix D.1. A balanced mode c of L matrices obeys $\dot c = L\, \bar\eta\, c^{2-2/L} (s - c)$ with the geometric mean
$\bar\eta$ of the rates (eq. 39, corrected: the printed equation lacks the factor L). While c is small, s - c is s.

As in `_balanced_kernel`, W_l and eta_l stand for m_l W_l and m_l^2 eta_l; with an output scale, s and t stand for
s/gamma and t gamma^2. Inputs are whitened with second moment 1.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, require_positive
from ..._numerics import safe_product
from .._arguments import flow_time
from ._balanced_kernel import mean_rate, read_rates


def early_mode(
    t: Float[ArrayLike, "..."],
    *,
    start: Float[ArrayLike, "..."],
    s: Float[ArrayLike, "..."],
    eta: Float[ArrayLike, " matrices"],
) -> Float[Array, "..."]:
    r"""The mode at time t while it is small: $c(t) = [c_0^{-(L-2)/L} - (L-2) s \bar\eta t]^{-L/(L-2)}$.

    (Eq. 40, corrected: the printed s t is divided by L.) For L = 2 its limit is $c_0 e^{2 s \bar\eta t}$. The relative
    error is of size c/s. For L > 2 it is infinite from `escape_time` on, where the mode itself saturates.

    Arguments:
        t: gradient-flow time >= 0.
        start: c_0 > 0, of the order sigma^L.
        s: the target's strength in this mode, > 0.
        eta: the rates of all L >= 2 weight matrices, from the input; > 0.

    Example:
        >>> c = js.theory.early_mode(jnp.array([0.0, 5.0, 9.0]), start=1e-3, s=1.0, eta=jnp.ones(3))
        >>> print(*(f"{value:.3f}" for value in c))
        0.001 0.008 1.000

    Raises:
        ValueError: start, s or a rate is not positive.
    """
    t, start, s, eta = _read(t, start, s, eta)
    matrices = eta.shape[0]
    excess = matrices - 2
    if excess == 0:
        return start * jnp.exp(safe_product(2 * s * mean_rate(eta), t))
    gone = safe_product(excess * s * mean_rate(eta) * start ** (excess / matrices), t)
    escaped = gone >= 1
    # c = c_0 (1 - gone)^(-L/(L - 2)), through a logarithm that keeps the digits of a small `gone`.
    left = jnp.log1p(-jnp.where(escaped, 0, gone))
    return jnp.where(escaped, jnp.inf, start * jnp.exp(-(matrices / excess) * left))


def escape_time(
    *, start: Float[ArrayLike, "..."], s: Float[ArrayLike, "..."], eta: Float[ArrayLike, " matrices"]
) -> Float[Array, "..."]:
    r"""The time at which the mode leaves the saddle at zero: the half-target time, to leading order in c_0/s.

    L = 2: $\ln(s/c_0)/(2 s \bar\eta)$ (section 3.1.2, corrected: the printed time is twice that).
    L > 2: $c_0^{-(L-2)/L}/((L-2) s \bar\eta)$, that is $\sigma^{-(L-2)}/((L-2) s)$ for c_0 = sigma^L at unit rates
    (section 4.1.1 and appendix D.1, corrected: printed with a factor L, and once with the wrong sign of the exponent).
    The half time itself differs by a fraction of order (c_0/s)^{(L-2)/L}, or (c_0/s)/ln(s/c_0) for L = 2. For
    c_0 <= s/1000 it is shorter up to L = 5 and longer from L = 6 on, where the mode slows down again as it saturates.

    Arguments and errors: as for `js.theory.early_mode`; start must be below s. For the exact half-loss times of a given
    network see `js.theory.DeepBalanced`.

    Example:
        >>> for start in (1e-2, 1e-4):  # depth makes small starts slow
        ...     two, four = (js.theory.escape_time(start=start, s=1.0, eta=jnp.ones(L)) for L in (2, 4))
        ...     print(f"two layers: {two:.1f}, four layers: {four:.1f}")
        two layers: 2.3, four layers: 5.0
        two layers: 4.6, four layers: 50.0
    """
    _, start, s, eta = _read(0.0, start, s, eta)
    known, target = concrete(start), concrete(s)
    if known is not None and target is not None and not np.all(known < target):
        raise ValueError("start must be below s: a mode that starts above its target does not escape")
    matrices = eta.shape[0]
    excess = matrices - 2
    speed = s * mean_rate(eta)
    if excess == 0:
        return jnp.log(s / start) / (2 * speed)
    return start ** (-excess / matrices) / (excess * speed)


def _read(t: Any, start: Any, s: Any, eta: Any) -> tuple[Array, Array, Array, Array]:
    start, s = (jnp.asarray(value) for value in (start, s))
    dtype = jnp.result_type(jnp.asarray(t), start, s, float)
    require_positive(start, "start")
    require_positive(s, "s")
    return flow_time(t, dtype), start.astype(dtype), s.astype(dtype), read_rates(eta, dtype)
