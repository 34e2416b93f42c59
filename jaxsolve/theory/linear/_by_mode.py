"""Judges a start mode by mode: what is small compared with the largest mode may be all that a weak mode has."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._core import Assumption
from ..._numerics import nonzero, norm


class SingularModes(NamedTuple):
    """Orthonormal directions of inputs and outputs, one pair per mode."""

    into: Float[Array, "in modes"]
    out: Float[Array, "out modes"]


def shared_modes(
    target: Float[Array, "out in"],
    start: Float[Array, "out in"],
    outer: Float[Array, "out out"],
    inner: Float[Array, "in in"],
) -> SingularModes:
    """The singular vectors common to target and start, if there are any: all four matrices are then diagonal in them.

    They are the singular vectors of a mixture of all four, so that each matrix settles what the others leave open
    (equal or zero singular values). Derivatives treat them as constants: a change of scale does not move them, and a
    change that mixes modes has no closed form.

    Arguments:
        target, start: matrices of the whole network.
        outer, inner: Gram matrices of the last and of the first layer.
    """
    target, start, outer, inner = jax.lax.stop_gradient((target, start, outer, inner))
    golden = 0.6180339887498949  # not a simple ratio, so that different singular values do not add up to equal ones
    unit = lambda m: m / nonzero(jnp.max(jnp.abs(m)))
    mixture = unit(target) + golden * unit(start)
    mixture = mixture + golden**2 * unit(outer) @ mixture + golden**3 * mixture @ unit(inner)
    out, _, into = jnp.linalg.svd(mixture, full_matrices=False)
    return SingularModes(into.T, out)


def carried(layer: Float[Array, "out in"], frame: Float[Array, "in modes"]) -> Float[Array, "out modes"]:
    """The modes after a layer, orthonormalized, strong ones first: their overlaps with weak modes are rounding."""
    layer, frame = jax.lax.stop_gradient((layer, frame))
    image = layer @ frame
    rows, modes = image.shape
    size = jnp.linalg.norm(image, axis=0)
    order = jnp.argsort(-size)
    unit = (image / nonzero(size)[None, :])[:, order]
    q = jnp.linalg.qr(jnp.pad(unit, ((0, max(modes - rows, 0)), (0, 0))))[0][:rows]
    # QR leaves the sign of each column open: take the sign of its image.
    q = q * jnp.where(jnp.sum(q * unit, axis=0) < 0, -1, 1)[None, :]
    return jnp.where((size > 0)[None, :], q[:, jnp.argsort(order)], 0)


class LayerModes(NamedTuple):
    """The modes of a linear network's layers, if they share the singular vectors of a target.

    Attributes:
        modes: of the product of all layers.
        product: of the layers, each divided by its scale.
        scales: the norms of the layers.
        frames: orthonormal columns shared by the layers below and above, input first.
        sizes: of every mode in every layer, >= 0 where layers are diagonal in the frames.
    """

    modes: SingularModes
    product: Float[Array, "out in"]
    scales: list[Float[Array, ""]]
    frames: list[Float[Array, "_ modes"]]
    sizes: list[Float[Array, " modes"]]


def layer_modes(layers: Sequence[Float[Array, "_ _"]], target: Float[Array, "out in"]) -> LayerModes:
    """The modes of layers, counted from the input, given a target for their product."""
    # With layers scaled to unit norm: the product of many small layers would underflow.
    scales = [nonzero(norm(layer)) for layer in layers]
    product = layers[0] / scales[0]
    for layer, scale in zip(layers[1:], scales[1:], strict=True):
        product = (layer / scale) @ product
    modes = shared_modes(target, product, layers[-1] @ layers[-1].T, layers[0].T @ layers[0])
    frames = [modes.into]
    for layer in layers:
        frames.append(carried(layer, frames[-1]))
    # Not from the product, which has lost all digits of weak modes.
    sizes = [
        jnp.sum(above * (w @ below), axis=0) for w, below, above in zip(layers, frames[:-1], frames[1:], strict=True)
    ]
    return LayerModes(modes, product, scales, frames, sizes)


# A mode's own violation may be far larger than that of all weights together: compared with weak modes, the rounding of
# strong ones is large. Its effect is of its own size, so this leaves eight digits in double precision, four in single.
def _most(dtype: jnp.dtype) -> float:
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 3e-5


def has_target(
    target: Float[Array, " modes"], largest: Float[Array, ""], *, matrices: int, tolerance: float
) -> Bool[Array, " modes"]:
    """The modes whose target exceeds rounding, relative to the largest target and to the product of the weights.

    `target` is for the product, and `largest` is the largest weight.
    """
    size = jnp.abs(target)
    return size > tolerance * jnp.maximum(jnp.max(size), largest**matrices)


def own_size(sizes: Float[Array, " modes"], largest: Float[Array, ""]) -> Float[Array, " modes"]:
    """The size to measure each mode by: its own, but at least the smallest one distinguishable from rounding."""
    return nonzero(jnp.maximum(sizes, _most(sizes.dtype) * largest))


def by_own_weights(name: str, violation: Float[Array, "..."]) -> Assumption:
    """An assumption about every mode, measured relative to its own weights."""
    return Assumption(
        name, jnp.max(violation, initial=0.0), _most(violation.dtype), "relative to the weights of each mode"
    )


def no_saddle(growing: Float[Array, " modes"], needed: Bool[Array, " modes"], size: Float[Array, ""]) -> Assumption:
    """No mode of the target stays at a saddle or falls towards one, where rounding decides what follows.

    Arguments:
        growing: the part of the start that grows, per mode, in units of weights.
        needed: which modes the target has.
        size: the largest weight, which sets the rounding. A start of zeros does not move.
    """
    name = "no mode of the target starts at a saddle or falls towards one"
    return _above_rounding(name, growing, needed, size, _most(growing.dtype))


def leaves_saddle(growing: Float[Array, ""], size: Float[Array, ""], target: Float[Array, ""]) -> Assumption:
    """The single mode of a start is exactly at the saddle, or grows from more than rounding.

    Arguments:
        growing: the part of the start that grows, in units of weights, of any sign; an exact zero never leaves.
        size: the largest weight, which sets the rounding.
        target: for the product of the weights; without a target there is no saddle.
    """
    asked = jnp.abs(target) > 100 * float(jnp.finfo(target.dtype).eps) * size**2
    name = "the start is at a saddle, or further from it than rounding"
    return _above_rounding(name, jnp.abs(growing), asked & (growing != 0), size, 0.01)


def squared_is_known(size: Float[Array, "*any"]) -> Bool[Array, "*any"]:
    """True if the dtype represents the square of a part of a start with all digits: closed forms work with squares."""
    info = jnp.finfo(size.dtype)
    # The square times eps, its last digit, is then still a normal number.
    return size >= (float(info.tiny) / float(info.eps)) ** 0.5


def _above_rounding(name: str, growing: Array, needed: Array, size: Array, most: float) -> Assumption:
    share = jnp.where(size > 0, jnp.where(squared_is_known(growing), growing / nonzero(size), 0.0), 1.0)
    eps = float(jnp.finfo(share.dtype).eps)
    violation = jnp.max(jnp.where(needed, eps / jnp.maximum(share, eps), 0.0), initial=0.0)
    return Assumption(name, violation, most, "rounding of the weights, relative to the part of them that grows")
