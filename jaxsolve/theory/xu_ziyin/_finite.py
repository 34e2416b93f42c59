"""The regime of one finite two-layer network before any training, from the two terms of its time scale."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._checks import require_finite, require_not_negative, require_size
from ..._core import KERNEL_CHANGE, Regime
from ..._numerics import nonzero, safe_hypot, safe_sqrt
from ._reduced_line import ReducedLine, Timescale


QUARTERS = (0.1573, 0.4888, 0.8871, 1.5341)
"""|f(0)| in standard deviations: the medians of the four quarters of its distribution."""


class FinitePhase(NamedTuple):
    """The predicted training of one finite network from a typical start.

    Attributes:
        timescale: t_c, and its feature-learning and kernel terms (eq. 17).
        kernel_change: |K - K_0|/|K_0| after training, averaged over typical f(0).
        regime: frozen or unstable if t_c lies outside the given window; otherwise decided by the kernel change.
        initial_output: the standard deviation of f(0).
    """

    timescale: Timescale
    kernel_change: Float[Array, ""]
    regime: Regime
    initial_output: Float[Array, ""]


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

    Typical starts have |u|^2 and |v|^2 at their mean, and four equally likely sizes of f(0), whose standard deviation
    is |gamma| rho sigma_u sigma_w sqrt(d). (The kernel change does not depend on the sign of f(0), but where f(0) is
    large compared with y, it is nearly all due to f(0).) A single start may differ by a factor of a few. To classify
    families of networks by their scaling, use `js.theory.phase`. A multiplier m of a layer enters as sigma -> m sigma,
    eta -> m^2 eta.

    Arguments:
        width: number of hidden units d.
        sigma_u, eta_u: initial standard deviation and rate of the last layer; rates are > 0.
        sigma_w, eta_w: the same for the first layer.
        gamma: output scale.

    Other Arguments:
        rho, y: root mean square of the inputs along their line, and the reduced target (Proposition 1).
        window: the smallest and the largest t_c at which learning counts as neither unstable nor frozen.

    Returns:
        The `regime`, the `timescale` t_c with its two terms, the `kernel_change` after training, and the
        `initial_output`, the standard deviation of f(0).

    Example:
        >>> print(js.theory.classify_network(1000, gamma=1000**-0.5).regime.label)  # NTK scaling
        kernel

    Raises:
        ValueError: a scale or rate is negative or not finite, the window is empty, width < 1 or a rate is zero.
        TypeError: width is not an integer.
    """
    named = {"sigma_u": sigma_u, "sigma_w": sigma_w, "eta_u": eta_u, "eta_w": eta_w, "rho": rho}
    for name, value in named.items():
        require_not_negative(value, name)
    for name, value in {"gamma": gamma, "y": y}.items():
        require_finite(value, name)
    require_size(width, "width")
    if not (eta_u > 0 and eta_w > 0):
        raise ValueError(f"both rates must be > 0, got {eta_u}, {eta_w}")
    if not 0 <= window[0] < window[1]:
        raise ValueError(f"window must be two increasing times >= 0, got {window}")
    uu, vv = (jnp.asarray(width * sigma**2 / eta) for sigma, eta in ((sigma_u, eta_u), (sigma_w, eta_w)))
    k = jnp.abs(jnp.asarray(gamma) * rho) * jnp.sqrt(jnp.asarray(eta_u)) * jnp.sqrt(jnp.asarray(eta_w))
    mean = (uu + vv) / 2
    largest = jnp.minimum(jnp.sqrt(uu) * jnp.sqrt(vv), mean)  # rounding may exceed it where both are equal
    product = largest / width**0.5  # the standard deviation of the layers' product, whose mean is 0
    signed = jnp.asarray(y) * jnp.where(jnp.asarray(gamma) < 0, -1.0, 1.0)
    # sqrt(|a|^2 |b|^2 - (a.b)^2), the difference of squares as a product.
    gram = lambda product: safe_sqrt((largest - product) * (largest + product))
    line_from = lambda product: ReducedLine(mean, product, gram(product), uu - vv, k, signed)
    timescale = line_from(product).timescale
    typical = line_from(jnp.minimum(product * jnp.asarray(QUARTERS), largest))
    # |K_end - K_0|/K_0 from the difference of products: a wide network's kernels differ by less than rounding.
    start, end = (typical.layer_product(t) for t in (0.0, jnp.inf))
    first, last = (safe_hypot(product, typical.root_pq) for product in (start, end))
    # last - first = (last^2 - first^2)/(last + first), and the squares differ by end^2 - start^2.
    change = jnp.mean(jnp.abs((end - start) * (end + start)) / nonzero(first * (first + last)))
    regime = Regime.KERNEL if change < KERNEL_CHANGE else Regime.FEATURE_LEARNING
    t_c = timescale.t_c
    # `not <=` instead of `>`: a t_c that is NaN counts as frozen.
    regime = Regime.FROZEN if not t_c <= window[1] else Regime.UNSTABLE if t_c < window[0] else regime
    return FinitePhase(timescale, change, regime, k * product)
