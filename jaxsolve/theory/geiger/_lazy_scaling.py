r"""The crossover of wide deep networks from lazy to feature learning: powers of the width h and output scale alpha.

Geiger, Spigler, Jacot and Wyart, "Disentangling feature and lazy learning in deep neural networks". The network is a
centered problem with `Scaling.lazy(alpha)`: the flow of $\alpha (f - f_0)$ under the loss divided by $\alpha^2$.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float, Real

from ..._checks import require_size
from ..._core import Regime


class ScalingLaw(NamedTuple):
    """A quantity that scales as a power of the width times a power of alpha, up to an unknown constant.

    Attributes:
        width, alpha: the exponents.
        regime: where the law holds: KERNEL for sqrt(h) alpha >> 1 (a law may need more: see there), FEATURE_LEARNING
            for sqrt(h) alpha << 1, None for both.
    """

    width: float
    alpha: float
    regime: Regime | None

    def __call__(self, width: Real[Array, "..."] | float, alpha: Real[Array, "..."] | float) -> Float[Array, "..."]:
        """The power law with constant 1: only ratios of two values are meaningful."""
        width, alpha = (jnp.asarray(value, jnp.result_type(float)) for value in (width, alpha))
        # Through logarithms, so that neither factor overflows alone.
        return jnp.exp(xlogy(self.width, width) + xlogy(self.alpha, alpha))


class LazyScaling(NamedTuple):
    """The laws of Geiger et al. for networks of one depth. Changes are over the whole of training.

    Attributes:
        crossover: alpha* ~ h^(-1/2), the output scale between the two regimes (sections 3 and 6).
        half_loss_time_lazy: O(1) in gradient-flow time, at any alpha and h (section 5).
        half_loss_time_feature: t_1 ~ sqrt(h) alpha (eq. 10), until which the dynamics is linear. With one hidden layer
            the output then grows exponentially, and t_1 is longer by a factor logarithmic in 1/(sqrt(h) alpha).
        kernel_change_lazy: |K - K_0|/|K_0| ~ 1/(h alpha) for smooth activations and alpha >> 1: the first order in the
            weight change, which sums over neurons with random signs. Corrected: the paper has 1/(sqrt(h) alpha)
            (section 5), which is right only in the power of alpha.
        kernel_change_coherent: ~ (sqrt(h) alpha)^-2 for alpha* << alpha << 1: the second order, coherent over neurons.
            Not in the paper; it joins the lazy law to the feature-learning law.
        kernel_change_relu: ~ alpha^(-1/2) for relu networks, up to alpha of order n sqrt(h), where no neuron switches
            any more on any of n samples; beyond, `kernel_change_lazy` holds (appendix H). The paper gives the power of
            alpha. The power of h, -3/4, follows by the same counting: a fraction 1/(sqrt(h) alpha) of h neurons
            switches, and each changes an entry of the kernel by 1/h, with random signs.
        kernel_change_feature: ~ (sqrt(h) alpha)^-a with a = 2/(1 + 1/L) (eqs. 9 and 14), for activations that grow
            linearly. Heuristic; the paper measures 1.7 for 5/3 and 1.25 for 4/3.
        weight_change_lazy: |w - w_0|/|w_0| ~ 1/(h alpha) (eq. 27); with one hidden layer 1/(sqrt(h) alpha), because
            |w_0| ~ sqrt(h) there instead of h.
        weight_change_feature: ~ (sqrt(h) alpha)^-b/sqrt(h) with b = 1/(1 + L) (eq. 28); with one hidden layer, without
            the last factor. Heuristic.
        output_variance: the variance of the trained alpha (f - f_0) over initializations, ~ 1/h along any line of
            constant sqrt(h) alpha within either regime (eq. 8).
    """

    crossover: ScalingLaw
    half_loss_time_lazy: ScalingLaw
    half_loss_time_feature: ScalingLaw
    kernel_change_lazy: ScalingLaw
    kernel_change_coherent: ScalingLaw
    kernel_change_relu: ScalingLaw
    kernel_change_feature: ScalingLaw
    weight_change_lazy: ScalingLaw
    weight_change_feature: ScalingLaw
    output_variance: ScalingLaw


def lazy_scaling(depth: int) -> LazyScaling:
    """The laws for networks with `depth` hidden layers (the paper's L) of width h.

    They hold for wide networks with either sqrt(h) alpha >> 1 or << 1. They are scaling arguments confirmed by
    experiments, not theorems. For one hidden layer without activation they follow from `js.theory.TwoLayerLine`.

    Arguments:
        depth: number of hidden layers, >= 1, as for `js.nets.MLP`.

    Returns:
        A `crossover` and nine laws by name, from `half_loss_time_lazy` to `output_variance`. Each has the exponents
        `width` and `alpha` and the `regime` in which it holds (None for both), and is called with a width and an alpha.

    Example:
        >>> laws = js.theory.lazy_scaling(depth=1)
        >>> ratio = laws.kernel_change_lazy(1e3, 10.0) / laws.kernel_change_lazy(1e3, 1.0)  # ten times lazier
        >>> print(f"lazy above alpha ~ h^{laws.crossover.width:g}, kernel change times {ratio:.2f}")
        lazy above alpha ~ h^-0.5, kernel change times 0.10

    Reference:
        @misc{geiger, title={Disentangling feature and lazy learning in deep neural networks: an empirical study},
          author={Mario Geiger and Stefano Spigler and Arthur Jacot and Matthieu Wyart}}

    Raises:
        TypeError: depth is not an integer.
        ValueError: depth < 1.
    """
    depth = require_size(depth, "depth")
    a, b = 2 * depth / (depth + 1), 1 / (depth + 1)
    inner = 0.0 if depth == 1 else -1 / 2  # |w_0| ~ h with matrices between hidden layers, sqrt(h) without
    lazy, feature = Regime.KERNEL, Regime.FEATURE_LEARNING
    return LazyScaling(
        crossover=ScalingLaw(-1 / 2, 0.0, None),
        half_loss_time_lazy=ScalingLaw(0.0, 0.0, lazy),
        half_loss_time_feature=ScalingLaw(1 / 2, 1.0, feature),
        kernel_change_lazy=ScalingLaw(-1.0, -1.0, lazy),
        kernel_change_coherent=ScalingLaw(-1.0, -2.0, lazy),
        kernel_change_relu=ScalingLaw(-3 / 4, -1 / 2, lazy),
        kernel_change_feature=ScalingLaw(-a / 2, -a, feature),
        weight_change_lazy=ScalingLaw(inner - 1 / 2, -1.0, lazy),
        weight_change_feature=ScalingLaw(inner - b / 2, -b, feature),
        output_variance=ScalingLaw(-1.0, 0.0, None),
    )
