"""Initial weights."""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key

from .._checks import concrete, describe, require_finite, require_not_negative
from .._safe import nonzero, safe_sqrt
from ._padded import draw_normal, Kept
from ._scaling import Scaling


Matrices = tuple[Float[Array, "out in"], ...]
Weights = tuple[Float[Array, "out in *window"], ...]
Vectors = tuple[Float[Array, " out"], ...]


class Start(NamedTuple):
    """The initial weights and biases of a network, counted from the input."""

    weights: Weights
    biases: Vectors


class Shapes(NamedTuple):
    """What an initialisation must fill.

    Attributes:
        weights: (out, in) of every matrix, (out, in, height, width) of every convolution.
        bias: whether there is one bias vector per weight matrix.
        dtype: of all arrays.
        chain: whether the network is one chain: each array acts on what the one before it returned.
        sizes: (out, in) of what belongs to the network in arrays that are padded, traced where they are; None: all.
            What an initialisation puts behind becomes 0.
    """

    weights: tuple[tuple[int, ...], ...]
    bias: bool
    dtype: Any
    chain: bool = True
    sizes: tuple[Kept, ...] | None = None

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What belongs to the network along the axes of every array."""
        return self.weights if self.sizes is None else self.sizes

    @property
    def padded(self) -> bool:
        """Whether arrays may be larger than the network."""
        return any(not isinstance(count, int) for kept in self.kept for count in kept)

    @property
    def two_layer(self) -> bool:
        """Whether there is one hidden layer."""
        return len(self.weights) == 2

    def matrices(self, init: str) -> tuple[tuple[int, int], ...]:
        """The sizes (out, in) of a dense network; raises ValueError, naming the initialisation, for any other."""
        found = tuple((shape[0], shape[1]) for shape in self.weights if len(shape) == 2)
        if len(found) != len(self.weights):
            raise ValueError(
                f"{init} is for dense networks, got weights of shapes {self.weights}; "
                "take Gaussian(), or Given(weights) with arrays of your own"
            )
        return found


class AbstractInit(eqx.Module):
    """Draws the initial weights of a network."""

    @abc.abstractmethod
    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        """Arguments: the shapes to fill, the hyperparameters, the key of the network."""


def _draw_biases(shapes: Shapes, scaling: Scaling, key) -> Vectors:
    if not shapes.bias:
        return ()
    keys = jr.split(jr.fold_in(key, 1), len(shapes.weights))
    return tuple(
        scaling.bias_sigma * draw_normal(k, shape[:1], kept[:1], shapes.dtype)
        for k, shape, kept in zip(keys, shapes.weights, shapes.kept, strict=True)
    )


def _draw_normal(shapes: Shapes, key) -> list[Array]:
    keys = jr.split(jr.fold_in(key, 0), len(shapes.weights))
    return [
        draw_normal(k, shape, kept, shapes.dtype)
        for k, shape, kept in zip(keys, shapes.weights, shapes.kept, strict=True)
    ]


class Gaussian(AbstractInit):
    """W_l ~ N(0, sigma_l^2), entry by entry."""

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        weights = tuple(s * g for s, g in zip(scaling.sigma, _draw_normal(shapes, key), strict=True))
        return Start(weights, _draw_biases(shapes, scaling, key))


class Sphere(AbstractInit):
    """Rows uniform on the sphere of radius sigma_l; read-out entries +-sigma_L with random signs (Kunin et al., D.1).

    For their two-layer networks take sigma = (tau/alpha, alpha tau), so that delta = tau^2 (alpha^2 - alpha^-2).

    Raises:
        ValueError: the network is not dense.
    """

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        shapes.matrices("Sphere")
        *hidden, readout = _draw_normal(shapes, key)
        rows = [g / nonzero(jnp.linalg.norm(g, axis=1, keepdims=True)) for g in hidden]  # padding has rows of zeros
        directions = [*rows, jnp.where(readout < 0, -1.0, 1.0).astype(shapes.dtype)]
        weights = tuple(s * d for s, d in zip(scaling.sigma, directions, strict=True))
        return Start(weights, _draw_biases(shapes, scaling, key))


class Mirrored(AbstractInit):
    """The second half of the last hidden layer repeats the first with opposite read-out: f = 0 at the start.

    In networks with more than one hidden layer the signals propagated back below it cancel as well: there learning
    starts from zero gradient, and the kernel of the start has no term from those layers.

    Raises:
        ValueError: the width of the last hidden layer is odd (a traced one makes a network that is not valid), or the
            network has residual branches.
        TypeError: init is no initialisation.
    """

    init: AbstractInit = Gaussian()

    def __check_init__(self):
        if not isinstance(self.init, AbstractInit):
            raise TypeError(f"Mirrored needs an initialisation such as nets.Gaussian(), got {describe(self.init)}")

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        if not shapes.chain:
            raise ValueError(
                "Mirrored needs a network without residual branches: the last hidden layer of this one is a sum of many"
            )
        width = shapes.kept[-1][1]
        known = concrete(width)
        if known is not None and known % 2:
            raise ValueError(f"Mirrored needs an even width, got {known}")
        weights, biases = self.init(shapes, scaling, key)
        *below, last_hidden, readout = weights
        place = jnp.arange(shapes.weights[-1][1])
        second = place >= width // 2
        original = jnp.where(second, place - width // 2, place)
        sign = jnp.where(second, -1, 1).astype(shapes.dtype)
        # A traced width that is odd has no such start.
        sign = jnp.where(width % 2 == 0, sign, jnp.nan)
        mirrored = (*below, last_hidden[original], sign[None, :] * readout[:, original])
        if shapes.bias:
            *bias_below, bias_hidden, bias_out = biases
            biases = (*bias_below, bias_hidden[original], jnp.zeros_like(bias_out))
        return Start(mirrored, biases)


class NearParallel(AbstractInit):
    """Two layers parallel up to a small perturbation: the disalignment start of Xu & Liu Ziyin (Fig. 1, lower row).

    With g ~ N(0, I_h) shared by both layers, u = sigma_2 g and W = sigma_1 (g d^T + eps H), H Gaussian and d the
    direction scaled to |d|^2 = in_size, so that entries of W have the size sigma_1. Every input with x . d != 0 then
    sees nearly parallel layers, zeta close to sign(x . d).

    Arguments:
        eps: relative size of the perturbation, >= 0.
        direction: shape (in_size,), any length; None takes (1, ..., 1).

    Raises:
        ValueError: the network is not dense, has other than two weight matrices or more than one output, eps is
            negative, or the direction has another shape, is zero or not finite.
    """

    eps: Float[Array, ""]
    direction: Float[Array, " in"] | None

    def __init__(self, eps: Any, direction: Any = None):
        self.eps = jnp.asarray(eps, jnp.result_type(float))
        self.direction = None if direction is None else jnp.asarray(direction, jnp.result_type(float))
        require_not_negative(self.eps, "eps")
        if direction is not None:
            require_finite(self.direction, "direction")
            known = concrete(self.direction)
            if known is not None and not known.any():
                raise ValueError("direction must not be zero")

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        matrices = shapes.matrices("NearParallel")
        (width, in_size), (out_size, _) = matrices[0], matrices[-1]
        if not shapes.two_layer or out_size != 1:
            raise ValueError(
                f"NearParallel is for two weight matrices and one output, got {len(shapes.weights)} and {out_size}"
            )
        direction = jnp.ones(in_size, shapes.dtype) if self.direction is None else self.direction.astype(shapes.dtype)
        if direction.shape != (in_size,):
            raise ValueError(f"direction must have shape ({in_size},), got {direction.shape}")
        direction = direction * (in_size**0.5 / jnp.linalg.norm(direction))
        kept = shapes.kept[0]
        shared = draw_normal(jr.fold_in(key, 2), (width,), kept[:1], shapes.dtype)
        perturbation = draw_normal(jr.fold_in(key, 3), (width, in_size), kept, shapes.dtype)
        w = scaling.sigma[0] * (shared[:, None] * direction[None, :] + self.eps.astype(shapes.dtype) * perturbation)
        u = scaling.sigma[1] * shared[None, :]
        return Start((w, u), _draw_biases(shapes, scaling, key))


class LambdaBalanced(AbstractInit):
    """Lambda-balanced two-layer networks and balanced (delta = 0) networks of any depth.

    The conserved matrices are W_{l+1}^T W_{l+1}/eta_{l+1} - W_l W_l^T/eta_l = (delta/(eta_1 eta_2)) I, with Kunin's
    delta = eta_1 eta_2 lambda. Singular values are those of a Gaussian matrix of standard deviation
    sigma_1/sqrt(eta_1), singular vectors uniform.

    Arguments:
        delta: any sign for two layers. delta > 0 needs width <= out_size, delta < 0 needs width <= in_size (a
            positive multiple of the identity has full rank); deeper networks need delta = 0.

    Raises:
        ValueError: the network is not dense, delta is not possible at these sizes (traced deltas: at any of the two
            signs), the width is `Padded`, or an eta is 0.
    """

    delta: Float[Array, ""]
    signs: tuple[int, ...] = eqx.field(static=True)  # those that delta may have: they decide which sizes are possible

    def __init__(self, delta: Any = 0.0):
        known = concrete(delta)  # read before it becomes an array, which a trace would hide
        require_finite(delta, "delta")
        self.signs = (-1, 1) if known is None else () if known == 0 else (int(np.sign(known)),)
        self.delta = jnp.asarray(delta, jnp.result_type(float))

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        matrices = shapes.matrices("LambdaBalanced")
        if shapes.padded:
            raise ValueError(
                "LambdaBalanced cannot be padded: its singular vectors are drawn for one width. Take Gaussian(), or "
                "widths that are integers, each compiled by itself"
            )
        self._check_sizes(matrices)
        known = concrete(scaling.eta)
        if known is not None and not np.all(known > 0):
            raise ValueError(f"LambdaBalanced needs eta > 0 for every weight matrix, got {known.tolist()}")
        sizes = [matrices[0][1], *(out for out, _ in matrices)]
        eta = scaling.eta.astype(shapes.dtype)
        shift = self.delta.astype(shapes.dtype) / (eta[0] * eta[-1])
        keys = jr.split(jr.fold_in(key, 4), len(sizes) + 1)
        frames = [jr.orthogonal(k, size, dtype=shapes.dtype) for k, size in zip(keys[1:], sizes, strict=True)]
        spectrum = jnp.linalg.svd(jr.normal(keys[0], matrices[0], shapes.dtype), compute_uv=False)
        modes = spectrum[: min(sizes)] * (scaling.sigma[0] / jnp.sqrt(eta[0]))
        weights = []
        for index, (out, into) in enumerate(matrices):
            # Below the hidden layer lambda < 0 adds to the squared singular values, above it lambda > 0 does.
            extra = jnp.maximum(-shift, 0) if index == 0 else jnp.maximum(shift, 0)
            squares = jnp.zeros(min(out, into), shapes.dtype).at[: len(modes)].set(modes**2)
            diagonal = safe_sqrt((squares + extra) * eta[index])
            rectangle = jnp.zeros((out, into), shapes.dtype)
            rectangle = rectangle.at[jnp.arange(min(out, into)), jnp.arange(min(out, into))].set(diagonal)
            weights.append(frames[index + 1] @ rectangle @ frames[index].T)
        return Start(tuple(weights), _draw_biases(shapes, scaling, key))

    def _check_sizes(self, matrices: tuple[tuple[int, int], ...]) -> None:
        positive, negative = 1 in self.signs, -1 in self.signs
        if not self.signs:
            return
        if len(matrices) != 2:
            raise ValueError(
                f"LambdaBalanced needs delta = 0 for {len(matrices)} weight matrices; delta != 0 needs two"
            )
        (width, in_size), (out_size, _) = matrices
        if positive and width > out_size:
            raise ValueError(
                f"LambdaBalanced with delta > 0 needs width <= out_size, got width {width}, out_size {out_size}"
            )
        if negative and width > in_size:
            raise ValueError(
                f"LambdaBalanced with delta < 0 needs width <= in_size, got width {width}, in_size {in_size}"
            )


class Given(AbstractInit):
    """Weights (and biases) given as arrays, counted from the input; of padded networks what is behind their units is 0.

    Raises:
        ValueError: the number or a shape of the arrays does not match the network, or a value is not finite.
    """

    weights: Weights
    biases: Vectors

    def __init__(self, weights: Sequence[Any], biases: Sequence[Any] = ()):
        self.weights = tuple(jnp.asarray(w) for w in weights)
        self.biases = tuple(jnp.asarray(b) for b in biases)
        for name, arrays in (("weights", self.weights), ("biases", self.biases)):
            for index, array in enumerate(arrays):
                require_finite(array, f"{name}[{index}]")

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        wanted = (shapes.weights, tuple(shape[:1] for shape in shapes.weights) if shapes.bias else ())
        given = (tuple(w.shape for w in self.weights), tuple(b.shape for b in self.biases))
        if given != wanted:
            raise ValueError(f"Given needs weights and biases of shapes {wanted}, got {given}")
        cast = lambda arrays: tuple(jax.lax.convert_element_type(array, shapes.dtype) for array in arrays)
        return Start(cast(self.weights), cast(self.biases))
