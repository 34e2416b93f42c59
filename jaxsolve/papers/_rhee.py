"""Shared parts of the figures of Rhee et al.: factorized matrices, Muon, modes with their times and speeds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from .._core import Problem
from ..nets import AbstractInit, DeepLinear, Scaling
from ._claim import exponent, mean_over, Measured
from ._figure import Values


N = 32
STRENGTHS = 10 / np.arange(1, N + 1)


def sizes_of(run: Any) -> Values:
    """The square roots of the product's modes, which are the sizes of the modes in a layer."""
    values = np.diagonal(run["outputs"].values, axis1=-2, axis2=-1) / N**0.5
    dims = [dim for dim in run["outputs"].dims if dim not in ("sample", "output")]
    empty = run["outputs"].isel(sample=0, output=0, drop=True)
    return empty.expand_dims(mode=N, axis=-1).transpose(*dims, "mode").copy(data=np.sqrt(np.maximum(values, 0)))


def times_of(run: Any) -> Values:
    """The time at which each mode reaches 0.9 of its target, interpolated; NaN if it does not."""
    shares = sizes_of(run) ** 2 / STRENGTHS
    after = (shares >= 0.9).argmax("t")
    low, high = shares.isel(t=after - 1), shares.isel(t=after)
    t = run["t"].values
    begin = shares["t"].isel(t=after - 1)
    found = begin + (t[1] - t[0]) * (0.9 - low) / (high - low)
    return found.where(after > 0).drop_vars("t")


def speeds_of(run: Any) -> Values:
    """The speed at which modes grow from a quarter to three quarters of their target size."""
    sizes = sizes_of(run) / STRENGTHS**0.5
    at = {share: (sizes >= share).argmax("t") for share in (0.25, 0.75)}
    grown = sizes.isel(t=at[0.75]).drop_vars("t") - sizes.isel(t=at[0.25]).drop_vars("t")
    passed = sizes["t"].isel(t=at[0.75]).drop_vars("t") - sizes["t"].isel(t=at[0.25]).drop_vars("t")
    return grown * STRENGTHS**0.5 / passed


def over_strength(cells: Values) -> Measured:
    """The exponent in the strength, from the modes that are known in all runs."""
    known = cells.transpose("seed", "mode").values
    some = np.isfinite(known).all(0)
    return exponent(STRENGTHS[some], known[:, some])


def drift(run: Any, *, root: bool) -> Measured:
    """The change of the conserved matrix, relative to the change of its first term."""
    layers = run["parameters"].transpose("seed", "t", ...).values.reshape(-1, 2, 2, N, N)
    first, second = layers[:, :, 0], layers[:, :, 1]
    grams = [second.swapaxes(-1, -2) @ second, first @ first.swapaxes(-1, -2)]
    if root:
        grams = list(map(_root, grams))
    change = np.subtract(*grams)
    size = lambda matrices: np.linalg.norm(matrices[:, 1] - matrices[:, 0], axis=(-2, -1))
    return mean_over(size(change) / size(grams[0]))


def _root(grams: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(grams)
    return (vectors * np.sqrt(np.maximum(values, 0))[..., None, :]) @ vectors.swapaxes(-1, -2)


def muon(rate: float | optax.Schedule) -> optax.GradientTransformation:
    """Steps along exact polar factors, without momentum."""
    step = optax.stateless(lambda gradients, params: jax.tree.map(_polar, gradients))
    return optax.chain(step, optax.scale_by_learning_rate(rate))


def _polar(gradient: Array) -> Array:
    left, _, right = jnp.linalg.svd(gradient, full_matrices=False)
    return left @ right


def factorization(
    target: Float[Array, " n"], width: int, init: AbstractInit, sigma: Any, key: Key[Array, ""]
) -> Problem:
    """The loss |M - P Q|^2/2 of the layers Q, of shape (width, n), and P; M is diagonal."""
    n = len(target)
    scaling = Scaling(multiplier=[1.0, 1.0], sigma=[sigma, sigma], eta=[1.0, 1.0])
    net = DeepLinear(in_size=n, out_size=n, width_size=width, depth=1, scaling=scaling, init=init, key=key)
    return Problem(net, n**0.5 * jnp.eye(n), n**0.5 * jnp.diag(target))


def products(run: Any, width: int, n: int) -> np.ndarray:
    """P Q of all saved parameters, shape (seeds, times, n, n)."""
    found = run["parameters"].transpose("seed", "t", ...).values
    first, second = np.split(found, 2, axis=-1)
    shape = found.shape[:2]
    return second.reshape(*shape, n, width) @ first.reshape(*shape, width, n)
