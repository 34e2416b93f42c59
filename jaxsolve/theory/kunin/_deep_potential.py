"""The potential of balanced deep linear networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, require_size
from ..._numerics import nonzero, safe_hypot
from .._arguments import as_floats
from ..atanasov._balanced_kernel import safe_power
from ._potentials import AbstractRadialPotential


class DeepPotential(AbstractRadialPotential):
    r"""A balanced deep linear network with L hidden layers and one output (Kunin et al., Theorem B.10, delta -> 0).

    $\Phi = \frac{L+1}{L+2} |\beta|^{\frac{L+2}{L+1}} - |\beta_0|^{-\frac{L}{L+1}} \beta_0 \cdot \beta$ with
    $\beta = W_1^\top \cdots W_L^\top a$. Balanced means W_{l+1}^T W_{l+1}/eta_{l+1} = W_l W_l^T/eta_l for adjacent
    layers, as from `nets.LambdaBalanced()`. The rates are then only a factor on Phi, and do not matter.

    Arguments:
        beta_0: beta at the start.
        depth: number of hidden layers L.

    Example:
        >>> x, y = jnp.array([[1.0, 2.0]]), jnp.array([5.0])
        >>> for depth in (1, 10):  # deep networks stay closer to the direction of their start
        ...     potential = js.theory.DeepPotential(jnp.array([1.0, 0.0]), depth)
        ...     print(*(f"{value:.2f}" for value in js.theory.implicit_bias(potential, x, y)))
        2.31 1.35
        3.62 0.69

    Reference:
        @inproceedings{kunin2024get, title={Get rich quick: exact solutions reveal how unbalanced initializations
          promote rapid feature learning}, author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and
          Ganguli}, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}}

    Raises:
        ValueError: beta_0 is zero (a saddle) or not finite, or depth < 1.
        TypeError: depth is not an integer.
    """

    beta_0: Float[Array, " d"]
    depth: int = eqx.field(static=True)  # an exponent

    def __init__(self, beta_0: Float[ArrayLike, " d"], depth: int):
        self.beta_0 = as_floats(beta_0, "beta_0")
        self.depth = require_size(depth, "depth")
        known = concrete(self.beta_0)
        if known is not None and not known.any():
            raise ValueError("beta_0 must not be zero: a balanced network with beta = 0 is at a saddle and stays there")

    def profile(self, r: Float[Array, ""]) -> Float[Array, ""]:
        return (self.depth + 1) / (self.depth + 2) * r * safe_power(r, 1 / (self.depth + 1))

    def stiffness(self, r: Float[Array, ""]) -> Float[Array, ""]:
        return safe_power(nonzero(r), -self.depth / (self.depth + 1))

    def compliance(self, slope: Float[Array, ""], excess: Float[Array, ""]) -> Float[Array, ""]:
        del excess
        return slope**self.depth

    def sign(self) -> Float[Array, ""]:
        return jnp.ones((), self.beta_0.dtype)

    def stretch(
        self, shortest: Float[Array, ""], along: Float[Array, ""], across: Float[Array, ""]
    ) -> Float[Array, ""]:
        """t = u^(L/2) with u^(L+1) = sin^2 u^L + (|X^+ y|/|beta_0|)^2, where sin = across/|beta_0|."""
        start = nonzero(safe_hypot(along, across))
        order, sine2, size = self.depth, (across / start) ** 2, shortest / start
        # u lies between half of this bound and the bound; in these units every number is of order one.
        bound = jax.lax.stop_gradient(sine2 + safe_power(size, 2 / (order + 1)))
        unit = nonzero(bound)
        unseen = jnp.where(bound == 0, 1, sine2 / unit)
        seen = (size / safe_power(unit, (order + 1) / 2)) ** 2
        tolerance = 16 * float(jnp.finfo(start.dtype).eps)
        solution = optx.root_find(
            _balance,
            optx.Newton(rtol=tolerance, atol=tolerance),
            jax.lax.stop_gradient(jnp.maximum(unseen, 1 - unseen)),  # left of the root: the function is concave
            (unseen, seen, order),
            throw=False,
        )
        u = jnp.where(solution.result == optx.RESULTS.successful, unit * solution.value, jnp.nan)
        return safe_power(u, order / 2)


def _balance(u: Float[Array, ""], args: tuple[Array, Array, int]) -> Float[Array, ""]:
    unseen, seen, order = args
    # The equation in the docstring of `stretch`, divided by u^L: it increases with u, and is concave.
    return u - unseen - seen / u**order
