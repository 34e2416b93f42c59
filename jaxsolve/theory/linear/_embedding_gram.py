r"""Quadratic word embeddings: the Gram matrix of W in dW/dt = 2 (M - W W^T) W, in closed form.

With $M = Q \Lambda Q^\top$, $A = Q^\top W_0$ and $D = \int_0^t 4 e^{4 \Lambda s} ds$ the flow is
$W W^\top = Q e^{2 \Lambda t} A (I + A^\top D A)^{-1} A^\top e^{2 \Lambda t} Q^\top$. In this form it loses all digits
once $\lambda t$ is about 10, because D grows like $e^{4 \lambda t}$, at another rate in each mode. Therefore modes are
sorted by size, $A^\top = O R$ with R upper triangular, and row i is measured in $e^{2 \lambda_i t}$: nothing grows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe
from ..._numerics import finite_product, integrated_decay
from .._arguments import as_floats, flow_time


def embedding_gram(
    target: Float[ArrayLike, "words words"], start: Float[ArrayLike, "words dims"], t: Float[ArrayLike, ""]
) -> Float[Array, "words words"]:
    r"""W W^T at time t of the gradient flow dW/dt = 2 (M - W W^T) W, from any start.

    This is the flow of the loss |M - W W^T|^2/4 at rate 2: word embeddings W learn a symmetric co-occurrence matrix M,
    mode by mode. M may have eigenvalues of both signs; the negative modes die out.

    Arguments:
        target: M, symmetric, shape (words, words).
        start: W at t = 0, shape (words, dims), with any number of dimensions.
        t: gradient-flow time in [0, inf]. At inf, the modes with the largest positive eigenvalues remain, at most one
            per dimension of W.

    Example:
        >>> target, start = jnp.diag(jnp.array([2.0, 0.5])), jnp.array([[0.1], [0.1]])
        >>> for t in (0.0, 1.0, jnp.inf):
        ...     print(*(f"{size:.3f}" for size in js.theory.embedding_gram(target, start, t).diagonal()))
        0.010 0.010
        1.860 0.005
        2.000 0.000

    Reference:
        Karkada et al., arXiv 2502.09863 (the model). The solution from any start solves a matrix Riccati equation, and
        is tested against integration.

    Raises:
        ValueError: target is not symmetric, shapes do not match, a value is not finite, or t < 0.
    """
    target, start = as_floats(target, "target"), as_floats(start, "start")
    words = target.shape[0] if target.ndim else 0
    if target.shape != (words, words) or start.ndim != 2 or len(start) != words:
        raise ValueError(
            "target must have shape (words, words) and start (words, dims), got "
            f"{describe(target)} and {describe(start)}"
        )
    known = concrete(target)
    if known is not None and abs(known - known.T).max(initial=0.0) > 1e-4 * abs(known).max(initial=0.0):
        raise ValueError("target must be symmetric: take (target + target.T)/2, which the flow follows")
    dtype = jnp.result_type(target, start)
    return _gram(target.astype(dtype), start.astype(dtype), flow_time(t, dtype))


@jax.jit
def _gram(target: Array, start: Array, t: Array) -> Array:
    values, frame = jnp.linalg.eigh(target, symmetrize_input=True)
    values, frame = values[::-1], frame[:, ::-1]
    rows = jnp.linalg.qr(start.T @ frame, mode="r")
    up, size = jnp.maximum(values, 0), jnp.abs(values)
    t = finite_product(jnp.ones((), t.dtype), t)  # a mode of eigenvalue 0 never converges: it decays like 1/t
    grown = 4 * integrated_decay(4 * size, t)  # D over e^(4 max(lambda, 0) t)
    first = up[: len(rows)]  # one mode per row
    fallen = lambda rate: jnp.exp(-finite_product(rate, t))
    unit = fallen(4 * first) + grown[: len(rows)]  # 1 + D_ii, over e^(4 max(lambda_i, 0) t)
    # R, with columns in units of some growth. Below the diagonal R is 0, and the differences there do not matter.
    behind = lambda growth: jnp.maximum(first[:, None] - growth[None, :], 0)
    seen = lambda growth: rows * fallen(2 * behind(growth)) / jnp.sqrt(unit)[:, None]
    left, late = seen(up), seen(values)
    inner = (left * grown[None, :]) @ left.T + jnp.diag(fallen(4 * first) / unit)
    factor = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(inner), late, lower=True)
    modes = factor @ frame.T
    return modes.T @ modes
