r"""Linear networks in function space: gradient flow with a preconditioner that the conserved quantities fix.

Kunin et al., "Get rich quick: exact solutions reveal how unbalanced initializations promote rapid feature learning",
sections 3 and 4 and appendix B. Throughout, f(x) = beta^T x, and the force is the gradient $G = X^\top P$ of the loss
with respect to beta; rates enter as $\sqrt{\eta_a \eta_w}$.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe, require_size
from ..._numerics import nonzero, safe_hypot, safe_sqrt, scaled
from .._arguments import as_floats, as_positive
from ._piecewise_linear import half


def neurons_preconditioner(
    betas: Float[ArrayLike, "h d c"], delta: Float[ArrayLike, " h"], mixed: Float[ArrayLike, ""] = 1.0
) -> Float[Array, "d c d c"]:
    r"""M of a wide linear network with any number of outputs (Theorem 4.1): $\dot\beta_{ij} = -\sum M_{ijkl} G_{kl}$.

    With $\beta_k = w_k a_k^\top$ and $\kappa_k = \sqrt{\delta_k^2 + 4 \eta_a \eta_w |\beta_k|^2}$, it is the sum over
    hidden neurons of
    $\frac{\kappa_k + \delta_k}{2} \frac{\beta_k^\top \beta_k}{|\beta_k|^2} \otimes I_d +
    \frac{\kappa_k - \delta_k}{2} I_c \otimes \frac{\beta_k \beta_k^\top}{|\beta_k|^2}$. Where beta_k = 0 but delta_k is
    not, a_k (if delta_k > 0) or w_k (if delta_k < 0) is not zero. Its direction is known only if there is one output
    (for a_k) or one input (for w_k).

    Arguments:
        betas: beta_k = w_k a_k^T of every hidden neuron.
        delta: eta_w |a_k|^2 - eta_a |w_k|^2, conserved.
        mixed: sqrt(eta_a eta_w).

    Example:
        >>> w, a = jnp.array([1.0, 2.0]), jnp.array([3.0])  # one neuron, one output: a^2 I + w w^T
        >>> print(js.theory.neurons_preconditioner(jnp.outer(w, a)[None], jnp.array([4.0]))[:, 0, :, 0].round(2))
        [[10.  2.]
         [ 2. 13.]]

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}

    Raises:
        ValueError: the shapes do not match, a value is not finite, or beta_k = 0 leaves the direction of a_k or w_k
            unknown (inside traces M is then NaN).
    """
    betas, delta = as_floats(betas, "betas"), as_floats(delta, "delta")
    if betas.ndim != 3 or delta.shape != betas.shape[:1]:
        raise ValueError(f"betas must have shape (h, d, c) and delta (h,), got {betas.shape} and {delta.shape}")
    mixed = as_positive(mixed, "mixed").astype(betas.dtype)
    betas, sizes = jax.vmap(scaled)(betas)  # only their directions matter below
    square = jnp.sum(betas**2, axis=(1, 2))
    root = mixed * sizes * safe_sqrt(square)
    kappa = safe_hypot(delta, 2 * root)
    (up, lost_up), (down, lost_down) = (_shares(half(kappa, d, root), square) for d in (delta, -delta))
    eye_d, eye_c = (jnp.eye(size, dtype=betas.dtype) for size in betas.shape[1:])
    # Neurons k, outputs j and l, inputs i and n: sum_k up_k beta_k^T beta_k, and sum_k down_k beta_k beta_k^T.
    read_out = jnp.einsum("k,kmj,kml->jl", up, betas, betas) + _of_one_direction(lost_up, eye_c, "a_k", "output")
    inward = jnp.einsum("k,kim,knm->in", down, betas, betas) + _of_one_direction(lost_down, eye_d, "w_k", "input")
    return jnp.einsum("jl,in->ijnl", read_out, eye_d) + jnp.einsum("jl,in->ijnl", eye_c, inward)


def _shares(halves: Array, square: Array) -> tuple[Array, Array]:
    """The factors on the squares of each beta, and the sum of the halves of neurons whose beta is zero."""
    seen = square > 0
    return jnp.where(seen, halves, 0) / nonzero(square), jnp.sum(jnp.where(seen, 0, halves))


def _of_one_direction(lost: Array, eye: Array, weights: str, kind: str) -> Array:
    """The contribution of neurons whose beta is zero: the direction of their weights is known only in one dimension."""
    if len(eye) == 1:
        return lost * eye
    known = concrete(lost)
    if known is not None and known != 0:
        raise ValueError(
            f"a neuron has beta_k = 0 and delta_k != 0, so {weights} is not zero, but beta_k does not determine its "
            f"direction; that is known with one {kind} only. Start from weights that are not zero"
        )
    return jnp.where(lost == 0, 0, jnp.nan) * eye


def isotropic_velocity(
    beta: Float[ArrayLike, "d c"],
    force: Float[ArrayLike, "d c"],
    delta: Float[ArrayLike, ""],
    mixed: Float[ArrayLike, ""] = 1.0,
) -> Float[Array, "d c"]:
    r"""$\dot\beta = -(G S + T G)$ of a wide linear network with Delta = delta I (Theorem 4.2), for any data.

    $S = \sqrt{\eta_a \eta_w \beta^\top \beta + \delta^2/4} + \delta/2$ and
    $T = \sqrt{\eta_a \eta_w \beta \beta^\top + \delta^2/4} - \delta/2$. It holds for $h = c$ hidden neurons if
    $\delta > 0$, $h = d$ if $\delta < 0$, and for balanced networks of any width $h \ge \min(d, c)$ if $\delta = 0$.

    Arguments:
        beta: W^T A, so that f(x) = A^T W x = beta^T x.
        force: the gradient of the loss with respect to beta, X^T (X beta - Y) for a sum of squares.
        delta: of eta_w A A^T - eta_a W W^T = delta I.
        mixed: sqrt(eta_a eta_w).

    Example:
        >>> beta, force = jnp.array([[3.0], [4.0]]), jnp.array([[25.0], [0.0]])
        >>> print(js.theory.isotropic_velocity(beta, force, 0.0).ravel().round())  # -|beta| (I + bb^T) force
        [-170.  -60.]

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}

    Raises:
        ValueError: the shapes do not match, or a value is not finite.
    """
    beta, force = as_floats(beta, "beta"), as_floats(force, "force")
    if beta.ndim != 2 or force.shape != beta.shape:
        raise ValueError(f"beta and force must both have shape (d, c), got {beta.shape} and {force.shape}")
    delta = as_floats(delta, "delta").astype(beta.dtype)
    mixed = as_positive(mixed, "mixed").astype(beta.dtype)
    return -(force @ _root(beta, mixed, delta) + _root(beta.T, mixed, delta) @ force)  # the two delta/2 cancel


# A custom derivative: where singular values are equal, the root is differentiable but singular vectors are not.
@jax.custom_jvp
def _root(beta: Array, mixed: Array, delta: Array) -> Array:
    """(mixed^2 beta^T beta + delta^2/4)^(1/2), in which weak modes keep their digits next to strong ones."""
    _, _, right, roots = _decomposed(beta, mixed, delta)
    return (right * roots[None, :]) @ right.T


def _decomposed(beta: Array, mixed: Array, delta: Array) -> tuple[Array, Array, Array, Array]:
    """beta times its right singular vectors, the singular values, those vectors as columns, and the roots."""
    # All right singular vectors, including those of the null space, where the root is |delta|/2 and not 0.
    left, values, right = jnp.linalg.svd(beta, full_matrices=True)
    some, size = values.shape[0], beta.shape[1]
    images = jnp.pad(left[:, :some] * values[None, :], ((0, 0), (0, size - some)))
    values = jnp.pad(values, (0, size - some))
    return images, values, right.T, safe_hypot(mixed * values, delta / 2)


@_root.defjvp
def _root_jvp(primals, tangents):
    beta, mixed, delta = primals
    beta_dot, mixed_dot, delta_dot = tangents
    images, values, right, roots = _decomposed(beta, mixed, delta)
    # Daleckii-Krein: R R = G, so (r_i + r_j) dR_ij = dG_ij in the basis of singular vectors.
    # There dG is mixed^2 (dbeta^T beta + its transpose), plus a diagonal from changes of mixed and delta.
    half_way = (beta_dot @ right).T @ images
    moved = mixed**2 * (half_way + half_way.T)
    moved = moved + jnp.diag(2 * mixed * mixed_dot * values**2 + delta * delta_dot / 2)
    sums = roots[:, None] + roots[None, :]
    change = jnp.where(sums > 0, moved / nonzero(sums), 0)
    return (right * roots[None, :]) @ right.T, right @ change @ right.T


def preconditioner_velocity(
    beta: Float[ArrayLike, " d"], force: Float[ArrayLike, " d"], mixed: Float[ArrayLike, ""] = 1.0
) -> Float[Array, "d d"]:
    r"""$\dot M = -\eta_a \eta_w (2 (\beta \cdot g) I + g \beta^\top + \beta g^\top)$ of one linear neuron (A.3.1).

    The kernel K = X M X^T of the neuron moves as X Mdot X^T. delta does not appear: it only sets the size of M itself.

    Arguments:
        beta: a w.
        force: g, the gradient of the loss with respect to beta.
        mixed: sqrt(eta_a eta_w).

    Example:
        >>> print(js.theory.preconditioner_velocity(jnp.array([1.0, 0.0]), jnp.array([1.0, 1.0])))
        [[-4. -1.]
         [-1. -2.]]

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}

    Raises:
        ValueError: the shapes do not match, or a value is not finite.
    """
    beta, force = as_floats(beta, "beta"), as_floats(force, "force")
    if beta.ndim != 1 or force.shape != beta.shape:
        raise ValueError(f"beta and force must both have shape (d,), got {beta.shape} and {force.shape}")
    mixed = as_positive(mixed, "mixed").astype(beta.dtype)
    outer = force[:, None] * beta[None, :]
    return -(mixed**2) * (2 * (beta @ force) * jnp.eye(beta.size, dtype=beta.dtype) + outer + outer.T)


def deep_preconditioner(beta: Float[ArrayLike, " d"], delta: Float[ArrayLike, ""], depth: int) -> Float[Array, "d d"]:
    r"""M of a deep linear network with one output and an isotropic start, for any delta (Lemma B.8, corrected).

    $f = a^\top W_L \cdots W_1 x$ with $W_{l+1}^\top W_{l+1} = W_l W_l^\top$, $a a^\top - W_L W_L^\top = \delta I$ and
    all rates 1. Then $|\beta|^2 = |a|^2 (|a|^2 - \delta)^L$ (the proof prints the exponent d), which gives |a|, and
    $M = C^L + \sum_{l=1}^L |a|^2 (|a|^2 - \delta)^{L-l} C^{l-1}$. Along beta, $C = W_1^\top W_1$ is $|a|^2 - \delta$.
    Across beta, it is 0 for $\delta \ge 0$, where layers have width 1, and $-\delta$ for $\delta < 0$, where they have
    width d.

    Arguments:
        beta: W_1^T ... W_L^T a, not zero.
        delta: of either sign.
        depth: L, the number of hidden layers, >= 1.

    Example:
        >>> print(js.theory.deep_preconditioner(jnp.array([1.0, 0.0]), 0.0, depth=2))  # |beta|^(4/3) (I + 2 bb^T)
        [[3. 0.]
         [0. 1.]]

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}

    Raises:
        ValueError: beta is not a vector or is zero, a value is not finite, or depth < 1.
        TypeError: depth is not an integer.
    """
    beta, delta = as_floats(beta, "beta"), as_floats(delta, "delta")
    require_size(depth, "depth")
    known = concrete(beta)
    if beta.ndim != 1 or (known is not None and not known.any()):
        raise ValueError(f"beta must be a vector that is not zero, got {describe(beta)}")
    delta = delta.astype(beta.dtype)
    square = jnp.sum(beta**2)
    along = _inner_square(square, delta, depth)  # |a|^2 - delta
    outer = along + delta
    across = jnp.maximum(-delta, 0)
    terms = lambda c: (
        c**depth + sum(outer * along ** (depth - layer) * c ** (layer - 1) for layer in range(1, depth + 1))
    )
    unit = beta[:, None] * beta[None, :] / square
    return terms(along) * unit + terms(across) * (jnp.eye(beta.size, dtype=beta.dtype) - unit)


@functools.partial(jax.jit, static_argnames="depth")
def _inner_square(square: Array, delta: Array, depth: int) -> Array:
    """The s > max(0, -delta) with (s + delta) s^L = |beta|^2, by bisection; a Newton step provides its derivative."""
    miss = lambda s, square, delta: (s + delta) * s**depth - square
    low = jnp.maximum(-delta, 0)
    # At low + |beta|^(2/(L + 1)) both factors are large enough.
    ends = jax.lax.stop_gradient((low, low + square ** (1 / (depth + 1))))

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        over = miss(middle, *jax.lax.stop_gradient((square, delta))) > 0
        return jnp.where(over, ends[0], middle), jnp.where(over, middle, ends[1])

    root = jax.lax.stop_gradient(jax.lax.fori_loop(0, 100, halve, ends)[1])  # far below the rounding of float64
    slope = (depth * (root + delta) + root) * root ** (depth - 1)
    return root - miss(root, square, delta) / jax.lax.stop_gradient(slope)
