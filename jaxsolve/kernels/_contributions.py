"""What each layer adds to the NTK of a batch of pairs, given the signals that pass it."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..nets import AbstractLayer, AbstractNetwork, AbstractParametric, Bias, Conv, Dense, Gain
from ._signals import Signal


class Outputs(enum.Enum):
    """Which pairs of outputs (a, b) of a kernel K[i, a, j, b] are kept."""

    ALL = "all pairs, shape (n, c, m, c)"
    DIAGONAL = "a = b, shape (c, n, m)"
    TRACE = "the sum over a = b, shape (n, m)"

    def gram(self, one: Float[Array, "n out k"], two: Float[Array, "m out k"]) -> Float[Array, "..."]:
        """sum_k one[i, a, k] two[j, b, k]."""
        if self is Outputs.DIAGONAL:
            return jnp.einsum("nak,mak->anm", one, two)
        # Spelt out as one matrix product: for the einsum XLA copies both factors first.
        size = one.shape[2] if self is Outputs.ALL else one.shape[1] * one.shape[2]
        product = one.reshape(-1, size) @ two.reshape(-1, size).T
        return product.reshape(self.shape(one.shape[0], two.shape[0], one.shape[1]))

    def windowed(
        self, inputs: Float[Array, "n p m q"], one: Float[Array, "n out o p"], two: Float[Array, "m out o q"]
    ) -> Float[Array, "..."]:
        """sum_{o p q} inputs[i, p, j, q] one[i, a, o, p] two[j, b, o, q]."""
        pairs = {
            Outputs.ALL: "naop,mboq->napmbq",
            Outputs.DIAGONAL: "naop,maoq->anpmq",
            Outputs.TRACE: "naop,maoq->npmq",
        }
        grams = jnp.einsum(pairs[self], one, two)
        if self is Outputs.ALL:
            return jnp.sum(inputs[:, None, :, :, None, :] * grams, axis=(2, 5))
        return jnp.sum((inputs[None] if self is Outputs.DIAGONAL else inputs) * grams, axis=(-3, -1))

    def times(self, pairs: Float[Array, "n m"], kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        """One number per pair of samples, times a kernel."""
        return pairs[{Outputs.ALL: np.s_[:, None, :, None], Outputs.DIAGONAL: None, Outputs.TRACE: ...}[self]] * kernel

    def apart(self, pairs: Float[Array, "n m"], out_size: int) -> Float[Array, "..."]:
        """A kernel with these numbers between each output and itself, and 0 between two outputs."""
        if self is Outputs.TRACE:
            return out_size * pairs
        own = jnp.ones((out_size, 1, 1)) if self is Outputs.DIAGONAL else jnp.eye(out_size)[None, :, None]
        return self.times(pairs, own.astype(pairs.dtype))

    def rows(self, out_size: int) -> int:
        """How many rows of the kernel each sample has."""
        return out_size if self is Outputs.ALL else 1

    def shape(self, n: int, m: int, out_size: int) -> tuple[int, ...]:
        """The shape of a kernel between n and m samples."""
        return {
            Outputs.ALL: (n, out_size, m, out_size),
            Outputs.DIAGONAL: (out_size, n, m),
            Outputs.TRACE: (n, m),
        }[self]

    def of(self, kernel: Float[Array, "n out m out"]) -> Float[Array, "..."]:
        """The part that is kept of a kernel with all pairs."""
        formulas = {Outputs.ALL: "namb->namb", Outputs.DIAGONAL: "nama->anm", Outputs.TRACE: "nama->nm"}
        return jnp.einsum(formulas[self], kernel)

    @property
    def sample_axes(self) -> tuple[int, int]:
        """The axes of the two samples."""
        return {Outputs.ALL: (0, 2), Outputs.DIAGONAL: (1, 2), Outputs.TRACE: (0, 1)}[self]

    @property
    def exchanged(self) -> tuple[int, ...]:
        """The axes of K[j, b, i, a]: both sides exchanged."""
        return {Outputs.ALL: (2, 3, 0, 1), Outputs.DIAGONAL: (0, 2, 1), Outputs.TRACE: (1, 0)}[self]


def knows(layer: AbstractLayer) -> bool:
    """Whether there is a rule for this layer."""
    return type(layer) in _RULES


def contribution(
    net: AbstractNetwork, eta: PyTree, layer: AbstractParametric, one: Signal, two: Signal, outputs: Outputs
) -> Float[Array, "..."]:
    """eta_l <df/dtheta_l, df/dtheta_l> of one layer, m_l^2 and gamma^2 included."""
    return _RULES[type(layer)](net, layer, layer.parameter(eta), one, two, outputs)


def _dense(net, layer, rate, one: Signal, two: Signal, outputs: Outputs):
    pairs = rate * (one.inputs @ two.inputs.T)
    if layer == net.layers[-1]:  # each output of the read-out has a row of its own
        slope = net.scaling.gamma * net.scaling.multiplier[layer.index]
        return outputs.apart(slope**2 * pairs, one.back.shape[1])
    return outputs.times(pairs, outputs.gram(one.back, two.back))


def _bias(net, layer, rate, one: Signal, two: Signal, outputs: Outputs):
    return rate * outputs.gram(_over_pixels(one.back), _over_pixels(two.back))


def _gain(net, layer, rate, one: Signal, two: Signal, outputs: Outputs):
    first, second = (_over_pixels(signal.back * signal.inputs[:, None]) for signal in (one, two))
    return rate * outputs.gram(first, second)


def _over_pixels(back: Float[Array, "n out features ..."]) -> Float[Array, "n out features"]:
    return jnp.sum(back, axis=tuple(range(3, back.ndim)))


def _conv(net, layer: Conv, rate, one: Signal, two: Signal, outputs: Outputs):
    window = layer.parameter(net).shape[2:]
    patches = [_patches(signal.inputs, window, layer.stride) for signal in (one, two)]
    backs = [signal.back.reshape(*signal.back.shape[:3], -1) for signal in (one, two)]
    if conv_costs(patches[0].shape, patches[1].shape, backs[0].shape, outputs).by_grams:
        return rate * outputs.windowed(jnp.einsum("nkp,mkq->npmq", *patches), *backs)
    rows = [jnp.einsum("naop,nkp->naok", *pair) for pair in zip(backs, patches, strict=True)]
    return rate * outputs.gram(*(row.reshape(*row.shape[:2], -1) for row in rows))


def _patches(inputs: Float[Array, "n in h w"], window: tuple[int, ...], stride: int) -> Float[Array, "n k pixels"]:
    """What the window sees at every pixel of the layer's output."""
    patches = jax.lax.conv_general_dilated_patches(inputs, window, (stride, stride), "SAME")
    return patches.reshape(*patches.shape[:2], -1)


class ConvCosts(NamedTuple):
    """Two ways to the same numbers: through each sample's derivative of the filters, or through Grams of patches."""

    jacobian_work: int  # multiplications
    jacobian_size: int  # numbers held
    gram_work: int
    gram_size: int

    @property
    def by_grams(self) -> bool:
        """Whether Grams are cheaper."""
        return self.gram_work < self.jacobian_work

    @property
    def size(self) -> int:
        """Numbers held by the cheaper way."""
        return self.gram_size if self.by_grams else self.jacobian_size


def conv_costs(one: tuple[int, ...], two: tuple[int, ...], back: tuple[int, ...], outputs: Outputs) -> ConvCosts:
    """For patches of shapes (n, k, pixels), (m, k, pixels) and a signal of shape (n, c, out, pixels)."""
    (n, k, pixels), m, (_, c, out, _) = one, two[0], back
    pairs = n * m * (c**2 if outputs is Outputs.ALL else c)
    squared = n * m * pixels**2
    return ConvCosts(
        jacobian_work=(n + m) * c * pixels * out * k + pairs * out * k,
        jacobian_size=(n + m) * c * out * k,
        gram_work=squared * k + pairs * pixels**2 * (out + 1),
        gram_size=squared + pairs * pixels**2,
    )


_RULES: dict[type, Callable[..., Any]] = {Dense: _dense, Conv: _conv, Bias: _bias, Gain: _gain}
