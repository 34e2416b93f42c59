"""The balanced start of linear networks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key

from .._checks import concrete, describe, require_finite
from .._numerics import safe_sqrt
from ._init import AbstractInit, draw_biases, Shapes, Start
from ._scaling import Scaling


class LambdaBalanced(AbstractInit):
    """The lambda-balanced start of linear networks, of two layers or more.

    The conserved matrices W_{l+1}^T W_{l+1}/eta_{l+1} - W_l W_l^T/eta_l are 0, except for the last pair of layers,
    where they are lambda I with lambda = delta/(eta_L eta_{L+1}) (Kunin et al.; for deep networks Lemma B.8, where
    `js.theory.deep_preconditioner` is M). The singular values are those of a Gaussian matrix with standard deviation
    sigma_1/sqrt(eta_1), and the singular vectors are uniform. Closed forms of the flow on whitened inputs:
    `js.theory.Balanced` (two layers), `js.theory.DeepBalanced` (delta = 0, target with the same singular vectors).

    Arguments:
        delta: of any sign. delta > 0 needs width <= out_size, delta < 0 needs width <= in_size, because a positive
            multiple of the identity has full rank.

    Example:
        >>> scaling = js.nets.Scaling([1.0, 1.0], sigma=[0.1, 0.1], eta=[1.0, 1.0])
        >>> init = js.nets.LambdaBalanced(0.5)
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=3, out_size=2, width_size=2, scaling=scaling, init=init, key=jax.random.key(0)
        ... )
        >>> w, u = net.weights
        >>> print(jnp.diag(u.T @ u - w @ w.T).round(3))
        [0.5 0.5]

    Raises:
        ValueError: the network is not dense, delta is impossible at these sizes (a traced delta: for either sign), the
            width is `Padded`, or an eta is 0.
    """

    delta: Float[Array, ""]
    signs: tuple[int, ...] = eqx.field(static=True)  # possible signs of delta: they decide which sizes are allowed

    def __init__(self, delta: Any = 0.0):
        known = concrete(delta)  # before the conversion to an array, which a trace would hide
        require_finite(delta, "delta")
        if jnp.ndim(delta) != 0:
            raise ValueError(f"delta must be one number, got {describe(delta)}")
        self.signs = (-1, 1) if known is None else () if known == 0 else (int(np.sign(float(known))),)
        self.delta = jnp.asarray(delta, jnp.result_type(float))

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        matrices = shapes.matrices("LambdaBalanced")
        if shapes.padded:
            raise ValueError(
                "LambdaBalanced cannot be padded: its singular vectors are drawn for one width. Use Gaussian(), or "
                "widths that are integers, each compiled separately"
            )
        self._check_sizes(matrices)
        known = concrete(scaling.eta)
        if known is not None and not np.all(known > 0):
            raise ValueError(f"LambdaBalanced needs eta > 0 for every weight matrix, got {known.tolist()}")
        sizes = [matrices[0][1], *(out for out, _ in matrices)]
        eta = scaling.eta.astype(shapes.dtype)
        shift = self.delta.astype(shapes.dtype) / (eta[-2] * eta[-1])
        keys = jr.split(jr.fold_in(key, 4), len(sizes) + 1)
        frames = [_orthogonal(k, size, shapes.dtype) for k, size in zip(keys[1:], sizes, strict=True)]
        spectrum = jnp.linalg.svd(jr.normal(keys[0], matrices[0], shapes.dtype), compute_uv=False)
        # The product of all matrices has no more modes than the narrowest layer has units.
        modes = spectrum[: min(sizes)] * (scaling.sigma[0] / jnp.sqrt(eta[0]))
        weights = []
        for index, (out, into) in enumerate(matrices):
            # Below the last hidden layer, lambda < 0 adds to the squared singular values; above it, lambda > 0 does.
            extra = jnp.maximum(shift, 0) if index == len(matrices) - 1 else jnp.maximum(-shift, 0)
            squares = jnp.zeros(min(out, into), shapes.dtype).at[: len(modes)].set(modes**2)
            diagonal = safe_sqrt((squares + extra) * eta[index])
            rectangle = jnp.zeros((out, into), shapes.dtype)
            rectangle = rectangle.at[jnp.arange(min(out, into)), jnp.arange(min(out, into))].set(diagonal)
            # Neighbors share the frame of the layer between them, so that both Gram matrices are diagonal in it.
            weights.append(frames[index + 1] @ rectangle @ frames[index].T)
        return Start(tuple(weights), draw_biases(shapes, scaling, key))

    def _check_sizes(self, matrices: tuple[tuple[int, int], ...]) -> None:
        positive, negative = 1 in self.signs, -1 in self.signs
        if not self.signs:
            return
        width, in_size, out_size = matrices[0][0], matrices[0][1], matrices[-1][0]
        if positive and width > out_size:
            raise ValueError(
                f"LambdaBalanced with delta > 0 needs width <= out_size, got width {width}, out_size {out_size}"
            )
        if negative and width > in_size:
            raise ValueError(
                f"LambdaBalanced with delta < 0 needs width <= in_size, got width {width}, in_size {in_size}"
            )


# Up to this size, columns are orthogonalized one by one: XLA's QR would hang on thousands of decompositions in one
# batch, as in a sweep. Beyond it, LAPACK is faster.
ONE_BY_ONE = 128


def _orthogonal(key: Key[Array, ""], size: int, dtype: Any) -> Float[Array, "size size"]:
    """A rotation or reflection drawn uniformly; both algorithms agree up to rounding."""
    if size > ONE_BY_ONE:
        return jr.orthogonal(key, size, dtype=dtype)
    gaussian = jr.normal(key, (size, size), dtype)

    def add(column, frame):
        v = gaussian[:, column]
        for _ in range(2):  # Gram-Schmidt, twice: one pass leaves rounding errors
            v = v - frame @ (frame.T @ v)
        return frame.at[:, column].set(v / jnp.linalg.norm(v))

    return jax.lax.fori_loop(0, size, add, jnp.zeros_like(gaussian))
