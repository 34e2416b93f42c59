"""A linear model that sees every sample once: the mean loss of stochastic gradient descent, step by step."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Num

from ..._checks import concrete, describe
from .._arguments import as_floats, as_positive


def online_sgd(
    eigenvalues: Float[ArrayLike, " d"],
    errors: Float[ArrayLike, " d"],
    rates: Float[ArrayLike, " steps"],
    *,
    batch_size: Num[ArrayLike, "..."],
    noise_variance: Num[ArrayLike, ""] = 0.0,
) -> Float[Array, " steps+1"]:
    r"""The mean loss of a linear model under SGD with fresh Gaussian samples, before each step and after the last.

    Inputs are Gaussian with covariance eigenvalues $\lambda_k$, targets $w^* \cdot x$ plus noise of variance
    $\sigma^2$, and a step is $w \leftarrow w - \eta \frac1B \sum_i (w \cdot x_i - y_i) x_i$ over B samples that are
    seen once. The mean square errors $d_k = \langle (w_k - w^*_k)^2 \rangle$ along eigenvectors then obey

    $$d_k \leftarrow \big((1 - \eta\lambda_k)^2 + \tfrac1B (\eta\lambda_k)^2\big) d_k
      + \tfrac1B \eta^2 \lambda_k \big(\textstyle\sum_j \lambda_j d_j + \sigma^2\big),$$

    exactly, at any dimension and for any schedule. The loss here is $\sum_k \lambda_k d_k$, the mean square error on a
    new input without the noise: twice the population loss of `js.losses.MSE`, less $\sigma^2$. All arrays may be
    traced and differentiated; a gradient stores about $2 \sqrt{\text{steps}}$ states.

    Arguments:
        eigenvalues: of the covariance of the inputs, >= 0, shape (d,).
        errors: d_k before the first step, >= 0, shape (d,). From w = 0 they are the squares of the target's weights.
        rates: the learning rate of each step, shape (steps,).
        batch_size: B, one number, or one for each step; > 0.
        noise_variance: that of the targets, >= 0.

    Example:
        >>> eigenvalues, rates = jnp.array([1.0, 0.25]), jnp.full(2, 0.5)
        >>> losses = js.theory.online_sgd(eigenvalues, jnp.ones(2), rates, batch_size=4)
        >>> print(losses.round(4))
        [1.25   0.5879 0.3129]

    Reference:
        Bordelon and Mori, arXiv 2602.04774; for power laws Bordelon, Atanasov and Pehlevan, arXiv 2402.01092. The
        recursion is derived by Wick's theorem, and tested against simulations.

    Raises:
        ValueError: shapes do not fit, a value is not finite, or a value that must not be negative is.
    """
    eigenvalues, errors, rates = (
        as_floats(value, name) for value, name in ((eigenvalues, "eigenvalues"), (errors, "errors"), (rates, "rates"))
    )
    batches, noise = as_positive(batch_size, "batch_size"), as_floats(noise_variance, "noise_variance")
    if eigenvalues.ndim != 1 or errors.shape != eigenvalues.shape or rates.ndim != 1:
        raise ValueError(
            "eigenvalues and errors must have one shape (d,) and rates the shape (steps,), got "
            f"{describe(eigenvalues)}, {describe(errors)} and {describe(rates)}"
        )
    if batches.shape not in ((), rates.shape) or noise.ndim:
        raise ValueError(
            f"batch_size must be one number or one for each of {rates.size} steps, and noise_variance one number, got "
            f"{describe(batches)} and {describe(noise)}"
        )
    for value, name in ((eigenvalues, "eigenvalues"), (errors, "errors"), (noise, "noise_variance")):
        known = concrete(value)
        if known is not None and (known < 0).any():
            raise ValueError(f"{name} must be >= 0, got {known.min()}")
    return _losses(eigenvalues, errors, rates, jnp.broadcast_to(batches, rates.shape), noise)


@jax.jit
def _losses(eigenvalues: Array, errors: Array, rates: Array, batches: Array, noise: Array) -> Array:
    dtype = jnp.result_type(eigenvalues, errors, rates)
    eigenvalues, errors, noise = (value.astype(dtype) for value in (eigenvalues, errors, noise))

    def step(d: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        rate, batch = now
        loss = jnp.sum(eigenvalues * d)
        small = rate * eigenvalues
        d = ((1 - small) ** 2 + small**2 / batch) * d + rate * small * ((loss + noise) / batch)
        return d, loss

    # Blocks of steps, of which a gradient stores the starts alone. What fills up the last has rate 0, and stands still.
    steps = len(rates)
    size = max(math.isqrt(steps), 1)
    count = -(-steps // size)
    fill = lambda values, with_what: jnp.pad(
        values.astype(dtype), (0, count * size - steps), constant_values=with_what
    ).reshape(count, size)
    block = jax.checkpoint(lambda d, some: jax.lax.scan(step, d, some))
    last, losses = jax.lax.scan(block, errors, (fill(rates, 0), fill(batches, 1)))
    return jnp.append(losses.reshape(-1)[:steps], jnp.sum(eigenvalues * last))
