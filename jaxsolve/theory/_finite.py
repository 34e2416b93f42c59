"""The regime of one finite two-layer network, before any training: from the size of both terms of its time scale."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import require_finite, require_not_negative
from .._regime import KERNEL_CHANGE, Regime
from ._reduced_line import ReducedLine, Timescale


class FinitePhase(NamedTuple):
    """What a typical start of one finite network will do.

    Attributes:
        timescale: t_c, and its feature-learning and kernel terms (eq. 17).
        kernel_change: |K - K_0|/|K_0| after training.
        regime: frozen or unstable if t_c lies outside the given window; else by the kernel change.
    """

    timescale: Timescale
    kernel_change: Float[Array, ""]
    regime: Regime


def classify_network(
    width: int,
    *,
    sigma_u: float = 1.0,
    sigma_w: float = 1.0,
    eta_u: float = 1.0,
    eta_w: float = 1.0,
    gamma: float = 1.0,
    rho: float = 1.0,
    y: float = 1.0,
    window: tuple[float, float] = (0.1, 10.0),
) -> FinitePhase:
    """Classifies f(x) = gamma sum_i u_i w_i.x with u_i ~ N(0, sigma_u^2), w_ij ~ N(0, sigma_w^2), before training it.

    For a typical start: P and Q at their mean, d (sigma_u^2/eta_u + sigma_w^2/eta_w)/2, so that f(0) = 0. To classify
    families of networks by how they scale, use `js.theory.phase`. A multiplier m of a layer enters as
    sigma -> m sigma, eta -> m^2 eta.

    Arguments:
        width: number of hidden units d.
        sigma_u, eta_u: initial standard deviation and rate of the last layer; rates are > 0.
        sigma_w, eta_w: of the first layer.
        gamma: output scale.

    Other Arguments:
        rho, y: root mean square of the inputs along their line, and the reduced target (Proposition 1).
        window: times between which learning counts as neither unstable nor frozen.

    Returns:
        The `regime`, the `timescale` t_c with its two terms, and the `kernel_change` after training.

    Example:
        >>> print(js.theory.classify_network(1000, gamma=1000**-0.5).regime.label)  # NTK scaling
        kernel

    Raises:
        ValueError: a scale or rate is negative or not finite, the window is empty, width < 1 or a rate zero.
    """
    named = {"sigma_u": sigma_u, "sigma_w": sigma_w, "eta_u": eta_u, "eta_w": eta_w, "rho": rho}
    for name, value in named.items():
        require_not_negative(value, name)
    for name, value in {"gamma": gamma, "y": y}.items():
        require_finite(value, name)
    if width < 1 or not (eta_u > 0 and eta_w > 0):
        raise ValueError(f"width must be >= 1 and both rates > 0, got {width}, {eta_u}, {eta_w}")
    if not 0 <= window[0] < window[1]:
        raise ValueError(f"window must be two increasing times >= 0, got {window}")
    uu, vv = (jnp.asarray(width * sigma**2 / eta) for sigma, eta in ((sigma_u, eta_u), (sigma_w, eta_w)))
    k = jnp.abs(jnp.asarray(gamma) * rho) * jnp.sqrt(jnp.asarray(eta_u)) * jnp.sqrt(jnp.asarray(eta_w))
    mean = (uu + vv) / 2
    line = ReducedLine.from_pq(mean, mean, uu - vv, k, jnp.asarray(y) * jnp.where(jnp.asarray(gamma) < 0, -1.0, 1.0))
    start, end = (line.ntk(t) for t in (0.0, jnp.inf))
    change = (end - start) / jnp.where(start == 0, 1, start)
    t_c = line.timescale.t_c
    regime = Regime.KERNEL if change < KERNEL_CHANGE else Regime.FEATURE_LEARNING
    regime = Regime.FROZEN if not t_c <= window[1] else Regime.UNSTABLE if t_c < window[0] else regime
    return FinitePhase(line.timescale, change, regime)
