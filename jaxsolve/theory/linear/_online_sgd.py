"""One-pass SGD on a linear model: the mean loss, step by step."""

import math
from typing import Any, NamedTuple

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

    Inputs are Gaussian with covariance eigenvalues $\lambda_k$, and targets are $w^* \cdot x$ plus noise of variance
    $\sigma^2$. A step is $w \leftarrow w - \eta \frac1B \sum_i (w \cdot x_i - y_i) x_i$ over B samples, each seen only
    once. The mean squared errors $d_k = \langle (w_k - w^*_k)^2 \rangle$ along eigenvectors then obey

    $$d_k \leftarrow \big((1 - \eta\lambda_k)^2 + \tfrac1B (\eta\lambda_k)^2\big) d_k
      + \tfrac1B \eta^2 \lambda_k \big(\textstyle\sum_j \lambda_j d_j + \sigma^2\big),$$

    exactly, in any dimension and for any schedule. The loss here is $\sum_k \lambda_k d_k$, the mean squared error on a
    new input without the noise: twice the population loss of `js.losses.MSE`, minus $\sigma^2$. All arrays may be
    traced and differentiated; a gradient stores about $2 \sqrt{\text{steps}}$ states.

    Arguments:
        eigenvalues: of the covariance of the inputs, >= 0, shape (d,).
        errors: d_k before the first step, >= 0, shape (d,). From w = 0 they are the squared weights of the target.
        rates: the learning rate of each step, shape (steps,).
        batch_size: B, one number, or one per step; > 0.
        noise_variance: the variance of the target noise, >= 0.

    Example:
        >>> eigenvalues, rates = jnp.array([1.0, 0.25]), jnp.full(2, 0.5)
        >>> losses = js.theory.online_sgd(eigenvalues, jnp.ones(2), rates, batch_size=4)
        >>> print(losses.round(4))
        [1.25   0.5879 0.3129]

    Reference:
        Bordelon and Mori, arXiv 2602.04774; for power laws Bordelon, Atanasov and Pehlevan, arXiv 2402.01092. The
        recursion is derived with Wick's theorem and tested against simulations.

    Raises:
        ValueError: shapes do not match, a value is not finite, or a value that must be >= 0 is negative.
    """
    rates = as_floats(rates, "rates")
    if rates.ndim != 1:
        raise ValueError(f"rates must have the shape (steps,), got {describe(rates)}")
    return _losses(*read_stream(eigenvalues, errors, batch_size, noise_variance, rates.size), rates)


class LinearStream(NamedTuple):
    """The arguments of `online_sgd` except the rates, in one dtype."""

    eigenvalues: Float[Array, " d"]
    errors: Float[Array, " d"]
    batches: Float[Array, " steps"]
    noise: Float[Array, ""]

    def after(
        self, d: Float[Array, " d"], rate: Float[Array, ""], batch: Float[Array, ""]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The mean squared errors after a step, and the loss before it."""
        loss = jnp.sum(self.eigenvalues * d)
        small = rate * self.eigenvalues
        return ((1 - small) ** 2 + small**2 / batch) * d + rate * small * ((loss + self.noise) / batch), loss


def read_stream(eigenvalues: Any, errors: Any, batch_size: Any, noise_variance: Any, steps: int) -> LinearStream:
    """The arguments of `online_sgd` as a `LinearStream`; raises the same ValueError."""
    eigenvalues, errors = as_floats(eigenvalues, "eigenvalues"), as_floats(errors, "errors")
    batches, noise = as_positive(batch_size, "batch_size"), as_floats(noise_variance, "noise_variance")
    if eigenvalues.ndim != 1 or errors.shape != eigenvalues.shape:
        raise ValueError(
            f"eigenvalues and errors must have one shape (d,), got {describe(eigenvalues)} and {describe(errors)}"
        )
    if batches.shape not in ((), (steps,)) or noise.ndim:
        raise ValueError(
            f"batch_size must be one number or one for each of {steps} steps, and noise_variance one number, got "
            f"{describe(batches)} and {describe(noise)}"
        )
    for value, name in ((eigenvalues, "eigenvalues"), (errors, "errors"), (noise, "noise_variance")):
        known = concrete(value)
        if known is not None and (known < 0).any():
            raise ValueError(f"{name} must be >= 0, got {known.min()}")
    dtype = jnp.result_type(eigenvalues, errors)
    eigenvalues, errors, batches, noise = (value.astype(dtype) for value in (eigenvalues, errors, batches, noise))
    return LinearStream(eigenvalues, errors, jnp.broadcast_to(batches, (steps,)), noise)


@jax.jit
def _losses(
    eigenvalues: Array, errors: Array, batches: Array, noise: Array, rates: Float[Array, " steps"]
) -> Float[Array, " steps+1"]:
    dtype = jnp.result_type(eigenvalues, rates)
    stream = LinearStream(*(value.astype(dtype) for value in (eigenvalues, errors, batches, noise)))
    # Blocks of steps: a gradient stores only their initial states. The padding of the last has rate 0: nothing moves.
    steps = len(rates)
    size = max(math.isqrt(steps), 1)
    count = -(-steps // size)
    fill = lambda values, with_what: jnp.pad(
        values.astype(dtype), (0, count * size - steps), constant_values=with_what
    ).reshape(count, size)
    block = jax.checkpoint(lambda d, some: jax.lax.scan(lambda d, now: stream.after(d, *now), d, some))
    last, losses = jax.lax.scan(block, stream.errors, (fill(rates, 0), fill(stream.batches, 1)))
    return jnp.append(losses.reshape(-1)[:steps], jnp.sum(stream.eigenvalues * last))
