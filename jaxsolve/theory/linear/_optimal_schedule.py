"""The learning rates that minimize the final loss of one-pass SGD on a linear model."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Num

from ..._checks import require_size
from ..._numerics import nonzero
from ._online_sgd import LinearStream, online_sgd, read_stream


def optimal_schedule(
    eigenvalues: Float[ArrayLike, " d"],
    errors: Float[ArrayLike, " d"],
    steps: int,
    *,
    batch_size: Num[ArrayLike, "..."],
    noise_variance: Num[ArrayLike, ""] = 0.0,
) -> tuple[Float[Array, " steps"], Float[Array, ""]]:
    r"""The learning rates that minimize the loss of `online_sgd` after the last step, and that loss.

    The loss is linear in the errors $d$ after each step, with coefficients $p_k \geq 0$ that the later rates determine
    ($p = \lambda$ after the last step). It is therefore a parabola in each single rate, with its minimum at

    $$\eta = \frac{\sum_k p_k \lambda_k d_k}
      {\sum_k p_k \lambda_k \big((1 + \tfrac1B) \lambda_k d_k + \tfrac1B (\sum_j \lambda_j d_j + \sigma^2)\big)}.$$

    A forward pass finds $d$ and sets every rate this way, a backward pass does so with $p$, and no pass increases the
    loss. The first pass takes the rates that are best for the next step alone; passes end when the loss stops falling.
    Rates are then a stationary point, and >= 0. A pass needs steps * d numbers and about the time of `online_sgd`.

    With small batches or noisy targets, every start that was tried leads to the same minimum. For very large batches
    without noise, which is gradient descent, rates in another order do as well, and other minima may lie slightly
    lower; single rates may then lie far above the largest stable constant rate.

    Rates and loss are differentiable in all arguments but `steps`, by the implicit function theorem. This needs the
    Hessian of the loss, steps * steps numbers.

    Arguments:
        eigenvalues: of the covariance of the inputs, >= 0, shape (d,).
        errors: d_k before the first step, >= 0, shape (d,). From w = 0 they are the squared weights of the target.
        steps: the number of steps, at least 1.
        batch_size: B, one number, or one per step; > 0.
        noise_variance: the variance of the target noise, >= 0.

    Example:
        >>> eigenvalues = jnp.array([1.0, 0.25])
        >>> rates, loss = js.theory.optimal_schedule(eigenvalues, jnp.ones(2), 4, batch_size=4, noise_variance=0.1)
        >>> print(f"{loss:.4f} by", ", ".join(f"{rate:.3f}" for rate in rates))
        0.1127 by 0.796, 0.781, 0.693, 0.579

    Reference:
        Bordelon and Mori, arXiv 2602.04774, for schedules of this model. The passes are coordinate descent in the
        rates, and are tested against a generic minimizer.

    Raises:
        ValueError: shapes do not match, a value is not finite, a value that must be >= 0 is negative, or steps < 1.
        TypeError: steps is not an integer.
    """
    steps = require_size(steps, "steps")
    stream = read_stream(eigenvalues, errors, batch_size, noise_variance, steps)
    rates = _rates(stream)
    return rates, _last(stream, rates)


def _last(stream: LinearStream, rates: Float[Array, " steps"]) -> Float[Array, ""]:
    return online_sgd(stream.eigenvalues, stream.errors, rates, batch_size=stream.batches, noise_variance=stream.noise)[
        -1
    ]


@jax.jit
def _rates(stream: LinearStream) -> Float[Array, " steps"]:
    slope = jax.grad(lambda rates: _last(stream, rates))
    divide = lambda hessian, vector: jnp.linalg.solve(jax.jacfwd(hessian)(vector), vector)
    return jax.lax.custom_root(slope, jnp.zeros_like(stream.batches), lambda _, start: _solved(stream, start), divide)


def _solved(stream: LinearStream, start: Float[Array, " steps"]) -> Float[Array, " steps"]:
    """The rates found by alternating passes; `start` gives only their shape and dtype."""
    eigenvalues = stream.eigenvalues

    def best(d: Array, p: Array, batch: Array) -> Float[Array, ""]:
        fall = eigenvalues * d
        rise = (1 + 1 / batch) * eigenvalues * fall + eigenvalues * ((jnp.sum(fall) + stream.noise) / batch)
        return jnp.sum(p * fall) / nonzero(jnp.sum(p * rise))  # 0 where nothing is left to learn

    def forward(d: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        p, batch = given
        return stream.after(d, best(d, p, batch), batch)[0], d

    def before(p: Array, rate: Array, batch: Array) -> Float[Array, " d"]:
        small = rate * eigenvalues
        p = ((1 - small) ** 2 + small**2 / batch) * p + eigenvalues * (rate * jnp.sum(small * p) / batch)
        return p / nonzero(jnp.max(p))  # the scale of p does not matter, and may underflow

    def backward(p: Array, given: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        d, batch = given
        rate = best(d, p, batch)
        return before(p, rate, batch), (p, rate)

    def sweep(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        """A forward and a backward pass: the loss between them, the previous such loss, coefficients and rates."""
        loss, _, ps, _ = carry
        last, ds = jax.lax.scan(forward, stream.errors, (ps, stream.batches))
        _, (ps, rates) = jax.lax.scan(backward, eigenvalues, (ds, stream.batches), reverse=True)
        return jnp.sum(eigenvalues * last), loss, ps, rates

    inf = jnp.asarray(jnp.inf, start.dtype)
    greedy = jnp.broadcast_to(eigenvalues, (*start.shape, *eigenvalues.shape))
    first = sweep((inf, inf, greedy, start))
    return jax.lax.while_loop(lambda carry: carry[0] < carry[1], sweep, first)[3]
