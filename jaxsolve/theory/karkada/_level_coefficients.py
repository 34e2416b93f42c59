"""Coefficients of a rotation-invariant kernel for polynomials of each degree."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._checks import require_size


def level_coefficients(kernel: Callable[[Float[Array, ""]], Float[Array, ""]], levels: int) -> Float[Array, " levels"]:
    r"""The coefficients $c_\ell = \frac{d^\ell k}{ds^\ell}(0)$ of a kernel k(s), s = x . x' for inputs of one norm.

    On the sphere of radius r such a kernel is $\sum_\ell \frac{c_\ell}{\ell!} (x \cdot x')^\ell$. The squared norm of
    data is near $r^2 = \sum_i \gamma_i$, their total variance: write k with that r. A Gaussian kernel of width w, for
    one, is exp((s - r^2)/w^2) there, with $c_\ell = e^{-r^2/w^2} w^{-2\ell}$. `js.theory.hermite_modes` takes them.

    By derivatives of derivatives: the work grows by a factor of 2 to 4 with each level, to a second for 7 levels of the
    kernel below. Differentiable by what k holds.

    Arguments:
        kernel: from s, one number, to k(s), one number; written in JAX.
        levels: their number, degree 0 included.

    Example:
        >>> gauss = js.theory.level_coefficients(lambda s: jnp.exp((s - 1) / 2**2), 4)
        >>> print(*(f"{level:.4f}" for level in gauss))
        0.7788 0.1947 0.0487 0.0122

    Reference:
        @inproceedings{karkada2026predicting, title={Predicting kernel regression learning curves from only raw data
          statistics}, author={Dhruva Karkada and Joseph Turnbull and Yuxi Liu and James B. Simon}, booktitle={ICLR},
          year={2026}, note={arXiv 2510.14878}}

    Raises:
        TypeError: levels is no integer.
        ValueError: levels is below 1, or the kernel returns no single number.
    """
    levels = require_size(levels, "levels")
    zero = jnp.zeros(())
    shape = jax.eval_shape(kernel, zero)
    if getattr(shape, "shape", None) != ():
        raise ValueError(f"kernel must take one number and return one number, got {shape}")
    derivatives = lambda s: kernel(s)[None]
    for _ in range(levels - 1):
        derivatives = functools.partial(_with_one_more, derivatives)
    return jax.jit(derivatives)(zero)


def _with_one_more(
    derivatives: Callable[[Float[Array, ""]], Float[Array, " known"]], s: Float[Array, ""]
) -> Float[Array, " more"]:
    known, slopes = jax.jvp(derivatives, (s,), (jnp.ones_like(s),))
    return jnp.concatenate([known[:1], slopes])
