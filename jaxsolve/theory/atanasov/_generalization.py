r"""The average generalization error of kernel regression, from the spectrum of the kernel.

Bordelon, Canatar and Pehlevan (2020); Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent
alignment effect", appendix E.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, ArrayLike, Float, Real

from ..._checks import concrete, describe, one_number, require_finite, require_not_negative, require_size
from ..._numerics import nonzero


class Generalization(NamedTuple):
    """The error of kernel regression, averaged over training sets.

    Attributes:
        error: E_g = <(f(x) - y(x))^2> over fresh inputs and training sets (twice the MSE loss of this library).
        modes: the contribution of each mode to the error.
        kappa: the effective ridge.
        gamma: in [0, 1]; the modes' errors are amplified by 1/(1 - gamma). 1 is the interpolation peak.
    """

    error: Float[Array, ""]
    modes: Float[Array, " modes"]
    kappa: Float[Array, ""]
    gamma: Float[Array, ""]


def kernel_regression_error(
    eigenvalues: Real[ArrayLike, " modes"],
    coefficients: Real[ArrayLike, " modes"],
    samples: Real[ArrayLike, ""],
    *,
    ridge: Real[ArrayLike, ""] = 0.0,
) -> Generalization:
    r"""The error of kernel regression, f(x) = k(x)^T (K + ridge I)^{-1} y, on P random samples.

    With the eigenfunctions $\langle K(x, x') \phi_k(x) \rangle_x = \lambda_k \phi_k(x')$, orthonormal over the inputs
    (Atanasov et al., eq. 46, corrected: the printed $E_g$ lacks $\kappa^2$),

    $$E_g = \frac{\kappa^2}{1 - \gamma} \sum_k \frac{\langle y \phi_k \rangle^2}{(\lambda_k P + \kappa)^2}, \quad
      \kappa = \text{ridge} + \kappa \sum_k \frac{\lambda_k}{\lambda_k P + \kappa}, \quad
      \gamma = P \sum_k \frac{\lambda_k^2}{(\lambda_k P + \kappa)^2}.$$

    Asymptotically exact for many modes and samples whose eigenfunctions act like independent Gaussians; accurate to a
    few percent from some tens of modes on. Without ridge, P >= the number of modes with lambda > 0 gives kappa = 0:
    those modes are learned exactly, and only the part of the target outside them remains, amplified. P equal to that
    number is the interpolation peak, where the error is infinite if the target has such a part.

    A part of the target that the kernel cannot express is a mode with eigenvalue 0. So is label noise, with its
    standard deviation as the coefficient (the error then includes the noise of the test labels).
    Differentiable in all arguments.

    Arguments:
        eigenvalues: lambda_k >= 0, shape (modes,), in any order. Set those at the level of rounding to 0.
        coefficients: <y phi_k>, shape (modes,).
        samples: P >= 0.
        ridge: >= 0, added to the diagonal of the P x P kernel matrix (which is not divided by P).

    Returns:
        `error`, the `modes` that add up to it, the effective ridge `kappa`, and `gamma`.

    Example:
        >>> spectrum, target = 1 / jnp.arange(1.0, 51.0) ** 2, 1 / jnp.arange(1.0, 51.0)
        >>> for samples in (0, 10, 40):
        ...     print(f"{js.theory.kernel_regression_error(spectrum, target, samples).error:.3f}")
        1.625
        0.184
        0.014

    Reference:
        @inproceedings{bordelon2020spectrum, title={Spectrum dependent learning curves in kernel regression and wide
          neural networks}, author={Blake Bordelon and Abdulkadir Canatar and Cengiz Pehlevan}, booktitle={ICML},
          year={2020}}

    Raises:
        ValueError: an argument is negative or not finite, the shapes differ or there are no modes.
    """
    require_not_negative(eigenvalues, "eigenvalues")
    require_finite(coefficients, "coefficients")
    lam, coefficients = jnp.asarray(eigenvalues), jnp.asarray(coefficients)
    if lam.ndim != 1 or lam.shape != coefficients.shape or lam.size == 0:
        raise ValueError(
            "eigenvalues and coefficients must have one shape (modes,) with at least one mode, got "
            f"{describe(lam)} and {describe(coefficients)}"
        )
    samples, ridge = one_number(samples, "samples", zero=True), one_number(ridge, "ridge", zero=True)
    given = [array.dtype for array in (lam, coefficients) if jnp.issubdtype(array.dtype, jnp.floating)]
    dtype = np.result_type(*given) if given else jnp.result_type(float)
    lam, coefficients = lam.astype(dtype), coefficients.astype(dtype)
    P, ridge = jnp.asarray(samples, dtype), jnp.asarray(ridge, dtype)

    positive = lam > 0
    rank = jnp.sum(positive).astype(dtype)
    # Without ridge and with at least one sample per mode, kappa = 0, and to first order ridge/free.
    learned = (ridge == 0) & (P >= rank)
    free = (P - rank) / nonzero(P)
    kappa = jnp.where(
        learned, ridge / jnp.where(learned & (P > rank), free, 1), _effective_ridge(lam, P, ridge, learned)
    )
    # s = kappa/(lambda P + kappa) is what remains of a mode's coefficient, g = lambda/(lambda P + kappa).
    denominator = nonzero(lam * P + kappa)
    s = jnp.where(positive, kappa / denominator, 1)
    g = jnp.where(positive, lam / denominator, 0)
    # 1 - gamma, as a sum of positive terms; ridge/kappa is 1 - sum g.
    share = jnp.where(P == 0, 1, free + jnp.sum(jnp.where(positive, s, 0)) / nonzero(P))
    slack = jnp.where(learned, share, ridge / nonzero(kappa)) + jnp.sum(g * s)
    # With P g = 1 - s: gamma = sum g (1 - s), so 1 - gamma = (1 - sum g) + sum g s, as above.
    gamma = P * jnp.sum(g**2)
    remaining = (coefficients * s) ** 2
    at_peak = slack == 0
    modes = jnp.where(remaining == 0, 0, jnp.where(at_peak, jnp.inf, remaining / jnp.where(at_peak, 1, slack)))
    return Generalization(jnp.sum(modes), modes, kappa, gamma)


def transfer_error(
    dimension: int,
    samples: Real[ArrayLike, ""],
    *,
    feature: Real[ArrayLike, ""],
    alignment: Real[ArrayLike, ""],
    ridge: Real[ArrayLike, ""] = 0.0,
) -> Generalization:
    r"""The error on a new linear task, learned with the kernel that a linear network acquired on an old task.

    The kernel is $K = x^T [A \beta\beta^T + I] x'$ with the unit vector $\beta$ of the old task, inputs are
    $x \sim N(0, I)$, and the new task is $y = [\alpha \beta + \sqrt{1 - \alpha^2}\, w_\perp] \cdot x$ with a unit
    $w_\perp \perp \beta$ (Atanasov et al., eqs. 44 to 48, corrected as in `kernel_regression_error`). The modes are
    $\beta$ with eigenvalue 1 + A, then $w_\perp$ and D - 2 others with eigenvalue 1.

    For A > 0 the error is smallest at alignment 1 or -1, where it falls as A grows.

    Arguments:
        dimension: D >= 2.
        samples: P >= 0, of the new task.
        feature: A >= 0, the strength of the old task in the kernel; 0 is the isotropic kernel.
        alignment: alpha in [-1, 1], the cosine between the tasks.
        ridge: as in `js.theory.kernel_regression_error`.

    Returns:
        As for `js.theory.kernel_regression_error`, with the modes in the order above.

    Example:
        >>> for feature in (0.0, 10.0):  # without and with what an earlier, similar task has taught the kernel
        ...     found = js.theory.transfer_error(100, 50, feature=feature, alignment=0.9, ridge=0.1)
        ...     print(f"{found.error:.2f}")
        0.50
        0.11

    Raises:
        TypeError: dimension is not an integer.
        ValueError: an argument is out of range.
    """
    dimension = require_size(dimension, "dimension")
    if dimension < 2:
        raise ValueError(f"dimension must be >= 2, so that a task can differ from the old one, got {dimension}")
    require_not_negative(feature, "feature")
    require_finite(alignment, "alignment")
    known = concrete(alignment)
    if known is not None and not np.all(np.abs(known) <= 1):
        raise ValueError(f"alignment is a cosine: it must lie in [-1, 1], got {known.tolist()}")
    dtype = jnp.result_type(float)
    A, alpha = jnp.asarray(feature, dtype), jnp.asarray(alignment, dtype)
    # 1 - alpha^2 as a product, which keeps its digits near alpha = 1; the inner where keeps the root's derivative
    # finite.
    across = (1 - alpha) * (1 + alpha)
    apart = jnp.where(across <= 0, 0, jnp.sqrt(jnp.where(across <= 0, 1, across)))
    eigenvalues = jnp.ones(dimension, dtype).at[0].add(A)
    coefficients = jnp.zeros(dimension, dtype).at[0].set(alpha).at[1].set(apart)
    return kernel_regression_error(eigenvalues, coefficients, samples, ridge=ridge)


def _excess(log_kappa: Array, args: tuple[Array, Array, Array]) -> Array:
    """The residual of the effective ridge's equation. Not a closure: Optimistix caches programs by their function."""
    lam, P, ridge = args
    kappa, positive = jnp.exp(log_kappa), lam > 0
    rank = jnp.sum(positive).astype(lam.dtype)
    few = 1 - jnp.sum(lam / (lam * P + kappa))
    # The same without cancellation when P is close to the number of modes.
    many = (P - rank + jnp.sum(jnp.where(positive, kappa / (lam * P + kappa), 0))) / nonzero(P)
    return jnp.where(2 * P > rank, many, few) - ridge / kappa


def _effective_ridge(lam: Array, P: Array, ridge: Array, learned: Array) -> Float[Array, ""]:
    """The root of 1 = ridge/kappa + sum_k lambda_k/(lambda_k P + kappa), whose right-hand side falls with kappa.

    Solved in units of the largest of ridge and eigenvalues and in log kappa, which may span hundreds of decades.
    """
    unit = jax.lax.stop_gradient(nonzero(jnp.maximum(ridge, jnp.max(lam))))
    # Where kappa is known to be 0, any equation with a root will do.
    ridge, lam = jnp.where(learned, 1, ridge / unit), jnp.where(learned, 0, lam / unit)
    # kappa >= ridge, and kappa >= lambda_(m) (m - P) from the m largest eigenvalues alone; kappa <= ridge + sum lambda.
    falling = jnp.sort(lam)[::-1]
    count = jnp.arange(1, lam.size + 1, dtype=lam.dtype)
    low = jnp.maximum(ridge, jnp.max(falling * jnp.maximum(count - P, 0)))
    high = ridge + jnp.sum(lam)
    lower, upper = (jax.lax.stop_gradient(jnp.log(edge)) for edge in (low, high))
    eps = float(jnp.finfo(lam.dtype).eps)
    solution = optx.root_find(
        _excess,
        optx.Bisection(rtol=eps, atol=eps, flip=False),
        (lower + upper) / 2,
        (lam, P, ridge),
        options={"lower": lower - 1, "upper": upper + 1},
        max_steps=128,
        throw=False,  # the last digits of log kappa are below its rounding
    )
    return unit * jnp.exp(solution.value)
