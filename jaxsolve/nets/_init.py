"""Initial weights."""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from .._checks import concrete, describe, one_number, real_array, require_finite
from .._numerics import nonzero
from ._padded import draw_normal, Kept
from ._scaling import Scaling


Matrices = tuple[Float[Array, "out in"], ...]
Weights = tuple[Float[Array, "out in *window"], ...]
Vectors = tuple[Float[Array, " out"], ...]


class Start(NamedTuple):
    """The initial weights and biases of a network, counted from the input, as a `js.nets.AbstractInit` returns them.

    Example:
        >>> start = js.nets.Start(weights=(jnp.ones((3, 2)), jnp.ones((1, 3))), biases=())
    """

    weights: Weights
    biases: Vectors


class Shapes(NamedTuple):
    """The shapes of the arrays that a `js.nets.AbstractInit` must draw.

    Attributes:
        weights: (out, in) of every matrix, (out, in, height, width) of every convolution.
        bias: whether there is one bias vector per weight array.
        dtype: of all arrays.
        chain: whether the network is one chain, in which each array acts on the output of the one before it.
        sizes: (out, in) of the part of each array that belongs to the network, for padded arrays (may be traced); None
            if all of it does. What an initialization writes outside of that part becomes 0.

    Example:
        >>> shapes = js.nets.Shapes(weights=((3, 2), (1, 3)), bias=False, dtype=jnp.float32)
        >>> shapes.two_layer
        True
    """

    weights: tuple[tuple[int, ...], ...]
    bias: bool
    dtype: Any
    chain: bool = True
    sizes: tuple[Kept, ...] | None = None

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The size of the part of every array that belongs to the network."""
        return self.weights if self.sizes is None else self.sizes

    @property
    def padded(self) -> bool:
        """True if arrays may be larger than the network."""
        return any(not isinstance(count, int) for kept in self.kept for count in kept)

    @property
    def two_layer(self) -> bool:
        """True if there is one hidden layer."""
        return len(self.weights) == 2

    def matrices(self, init: str) -> tuple[tuple[int, int], ...]:
        """The sizes (out, in) of a dense network's matrices; for other networks, a ValueError that names `init`."""
        found = tuple((shape[0], shape[1]) for shape in self.weights if len(shape) == 2)
        if len(found) != len(self.weights) or not self.chain:
            raise ValueError(
                f"{init} is for dense networks, got weights of shapes {self.weights}; "
                "take Gaussian(), or Given(weights) with arrays of your own"
            )
        return found


class AbstractInit(eqx.Module):
    """Draws the initial weights of a network. A subclass defines this one method, `__call__`.

    Example:
        >>> class Ones(js.nets.AbstractInit):  # every weight of layer l is sigma_l
        ...     def __call__(self, shapes, scaling, key):
        ...         weights = [jnp.full(shape, sigma) for shape, sigma in zip(shapes.weights, scaling.sigma)]
        ...         biases = [jnp.zeros(shape[0]) for shape in shapes.weights] if shapes.bias else ()
        ...         return js.nets.Start(tuple(weights), tuple(biases))
        >>> net = js.nets.SingleNeuron(in_size=2, scaling=js.nets.Scaling.ntk(), init=Ones(), key=jax.random.key(0))
        >>> net.weights[0].tolist()
        [[1.0, 1.0]]
    """

    @abc.abstractmethod
    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        """The initial arrays for these shapes and hyperparameters; `key` is the network's key."""


def start_from(init: AbstractInit, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
    """The draw of an initialization. Raises ValueError if its shapes are not the requested ones."""
    start = init(shapes, scaling, key)
    wanted = (shapes.weights, tuple(shape[:1] for shape in shapes.weights) if shapes.bias else ())
    given = (tuple(map(jnp.shape, start.weights)), tuple(map(jnp.shape, start.biases)))
    if given != wanted:
        raise ValueError(f"{type(init).__name__} needs weights and biases of shapes {wanted}, got {given}")
    return start


# Each use folds its own number into the network's key, so that the draws are independent: 0 for weights, 1 for biases,
# 2 and 3 for `NearParallel`, 4 for `LambdaBalanced`.
def draw_biases(shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Vectors:
    """Biases drawn from N(0, bias_sigma^2), one vector per weight array, if the network has any."""
    if not shapes.bias:
        return ()
    keys = jr.split(jr.fold_in(key, 1), len(shapes.weights))
    return tuple(
        scaling.bias_sigma * draw_normal(k, shape[:1], kept[:1], shapes.dtype)
        for k, shape, kept in zip(keys, shapes.weights, shapes.kept, strict=True)
    )


def _draw_normal(shapes: Shapes, key: Key[Array, ""]) -> list[Array]:
    keys = jr.split(jr.fold_in(key, 0), len(shapes.weights))
    return [
        draw_normal(k, shape, kept, shapes.dtype)
        for k, shape, kept in zip(keys, shapes.weights, shapes.kept, strict=True)
    ]


@eqx.filter_jit
def _gaussian(shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
    weights = tuple(s * g for s, g in zip(scaling.sigma, _draw_normal(shapes, key), strict=True))
    return Start(weights, draw_biases(shapes, scaling, key))


class Gaussian(AbstractInit):
    """Independent entries W_l ~ N(0, sigma_l^2), the default of all networks.

    Example:
        >>> scaling = js.nets.Scaling([1.0, 1.0], sigma=[0.5, 2.0], eta=[1.0, 1.0])
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=10, width_size=1000, scaling=scaling, init=js.nets.Gaussian(), key=jax.random.key(0)
        ... )
        >>> print(f"{net.weights[0].std():.1f} {net.weights[1].std():.1f}")
        0.5 2.0
    """

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        # Jitted as a whole: compiling each shape's draw separately takes longer than solving a small problem.
        return _gaussian(shapes, scaling, key)


class Sphere(AbstractInit):
    """Rows uniform on the sphere of radius sigma_l; read-out entries +-sigma_L with random signs (Kunin et al., D.1).

    For the two-layer networks there, take sigma = (tau/alpha, alpha tau), so that delta = tau^2 (alpha^2 - alpha^-2).

    Example:
        >>> scaling = js.nets.Scaling([1.0, 1.0], sigma=[0.5, 2.0], eta=[1.0, 1.0])
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=3, width_size=2, scaling=scaling, init=js.nets.Sphere(), key=jax.random.key(0)
        ... )
        >>> print(jnp.linalg.norm(net.weights[0], axis=1).round(3), abs(net.weights[1]))
        [0.5 0.5] [[2. 2.]]

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}

    Raises:
        ValueError: the network is not dense.
    """

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        shapes.matrices("Sphere")
        *hidden, readout = _draw_normal(shapes, key)
        rows = [g / nonzero(jnp.linalg.norm(g, axis=1, keepdims=True)) for g in hidden]  # padding has rows of zeros
        # Padding, which is 0, gets +1 here; `build` sets it to 0 again.
        directions = [*rows, jnp.where(readout < 0, -1.0, 1.0).astype(shapes.dtype)]
        weights = tuple(s * d for s, d in zip(scaling.sigma, directions, strict=True))
        return Start(weights, draw_biases(shapes, scaling, key))


class Mirrored(AbstractInit):
    """The second half of the last hidden layer repeats the first with opposite read-out signs: f = 0 at the start.

    With more than one hidden layer, the backpropagated signals below the last one cancel as well: those layers start
    with zero gradient, and contribute nothing to the initial kernel.

    Example:
        >>> init = js.nets.Mirrored()
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=4, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), init=init, key=jax.random.key(0)
        ... )
        >>> bool(abs(net(jnp.ones(2))[0]) < 1e-6)
        True

    Raises:
        ValueError: the width of the last hidden layer is odd (if it is traced, the network is invalid instead), or the
            network has residual branches.
        TypeError: init is not a `js.nets.AbstractInit`.
    """

    init: AbstractInit = Gaussian()

    def __check_init__(self):
        if not isinstance(self.init, AbstractInit):
            raise TypeError(f"Mirrored needs an initialization such as nets.Gaussian(), got {describe(self.init)}")

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        if not shapes.chain:
            raise ValueError(
                "Mirrored needs a network without residual branches: the last hidden layer of this one is a sum of many"
            )
        width = shapes.kept[-1][1]
        known = concrete(width)
        if known is not None and known % 2:
            raise ValueError(f"Mirrored needs an even width, got {known}")
        weights, biases = start_from(self.init, shapes, scaling, key)
        *below, last_hidden, readout = weights
        # Every index of the second half reads from its partner in the first. Padding is 0 anyway.
        place = jnp.arange(shapes.weights[-1][1])
        second = place >= width // 2
        original = jnp.where(second, place - width // 2, place)
        sign = jnp.where(second, -1, 1).astype(shapes.dtype)
        # An odd width has no mirrored start. A traced width cannot raise: NaN marks the network as invalid.
        sign = jnp.where(width % 2 == 0, sign, jnp.nan)
        mirrored = (*below, last_hidden[original], sign[None, :] * readout[:, original])
        if shapes.bias:
            *bias_below, bias_hidden, bias_out = biases
            # The output biases have no partner to cancel them.
            biases = (*bias_below, bias_hidden[original], jnp.zeros_like(bias_out))
        return Start(mirrored, biases)


class NearParallel(AbstractInit):
    """Two layers parallel up to a small perturbation: the disalignment start of Xu & Liu Ziyin (Fig. 1, lower row).

    With g ~ N(0, I_h) shared by both layers, u = sigma_2 g and W = sigma_1 (g d^T + eps H). H is Gaussian, and d is the
    direction scaled to |d|^2 = in_size, so that the entries of W have size sigma_1. Every input with x . d != 0 then
    sees nearly parallel layers: zeta is close to sign(x . d).

    Arguments:
        eps: the relative size of the perturbation, >= 0.
        direction: shape (in_size,), of any length; None means (1, ..., 1).

    Example:
        >>> init = js.nets.NearParallel(0.01)
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=2, width_size=50, scaling=js.nets.Scaling.ntk(), init=init, key=jax.random.key(0)
        ... )
        >>> hidden, readout = net.weights[0] @ jnp.ones(2), net.weights[1][0]
        >>> print(f"{hidden @ readout / jnp.linalg.norm(hidden) / jnp.linalg.norm(readout):.2f}")  # zeta
        1.00

    Reference:
        @inproceedings{xu2025three, author={Yizhou Xu and Liu Ziyin}, booktitle={ICLR}, year={2025},
          title={Three Mechanisms of Feature Learning in a Linear Network}, note={arXiv 2401.07085}}

    Raises:
        ValueError: the network is not dense, does not have two weight matrices and one output, eps is negative, or the
            direction has the wrong shape, is zero or is not finite.
    """

    eps: Float[Array, ""]
    direction: Float[Array, " in"] | None

    def __init__(self, eps: Any, direction: Any = None):
        self.eps = one_number(eps, "eps", zero=True)
        if direction is not None:
            require_finite(direction, "direction")
        self.direction = None if direction is None else jnp.asarray(direction, jnp.result_type(float))
        if direction is not None:
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
        return Start((w, u), draw_biases(shapes, scaling, key))


class Given(AbstractInit):
    """Weights (and biases) given as arrays, counted from the input; in a padded network the padding becomes 0.

    Example:
        >>> init = js.nets.Given([[[1.0, 2.0]], [[3.0]]])
        >>> net = js.nets.SingleNeuron(in_size=2, scaling=js.nets.Scaling.standard(), init=init, key=jax.random.key(0))
        >>> net(jnp.ones(2)).tolist()
        [9.0]

    Raises:
        ValueError: a value is not finite; on use, the number or a shape of the arrays does not match the network.
    """

    weights: Weights
    biases: Vectors

    def __init__(self, weights: Sequence[Any], biases: Sequence[Any] = ()):
        for name, given in (("weights", weights), ("biases", biases)):
            if not isinstance(given, Sequence) or isinstance(given, str):
                raise TypeError(f"{name} must be a list of arrays, counted from the input, got {describe(given)}")
        self.weights = tuple(real_array(w, f"weights[{index}]") for index, w in enumerate(weights))
        self.biases = tuple(real_array(b, f"biases[{index}]") for index, b in enumerate(biases))
        for name, arrays in (("weights", self.weights), ("biases", self.biases)):
            for index, array in enumerate(arrays):
                require_finite(array, f"{name}[{index}]")

    def __call__(self, shapes: Shapes, scaling: Scaling, key: Key[Array, ""]) -> Start:
        cast = lambda arrays: tuple(jax.lax.convert_element_type(array, shapes.dtype) for array in arrays)
        return Start(cast(self.weights), cast(self.biases))
