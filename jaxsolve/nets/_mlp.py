"""The multi-layer perceptron."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Int, Key

from .._checks import require_size
from ._activations import Activation, find_activation
from ._dense import AbstractDense, build_dense, units_of
from ._init import AbstractInit, Gaussian, Matrices, Vectors
from ._padded import Padded
from ._scaling import Scaling, ScalingRule


class MLP(AbstractDense):
    """A fully connected network with `depth` hidden layers of one width.

    Arguments:
        in_size: inputs d.
        out_size: outputs c.
        width_size: neurons per hidden layer; `Padded` if networks of several widths are to share one program.
        depth: number of hidden layers, >= 1 (there are depth + 1 weight matrices).
        activation: a name, an `Activation` or any elementwise function.
        scaling: a `Scaling`, or a rule such as `Scaling.ntk()`.
        key: a JAX random key.

    Other Arguments:
        bias: whether every layer has biases.
        init: the initial weights.
        dtype: of the weights; the default float if None.

    Example:
        >>> scaling = js.nets.Scaling.ntk(gamma=0.1)
        >>> net = js.nets.MLP(
        ...     in_size=10, out_size=1, width_size=64, depth=2, activation="tanh",
        ...     scaling=scaling, key=jax.random.key(0)
        ... )
        >>> [w.shape for w in net.weights], net(jnp.ones(10)).shape
        ([(64, 10), (64, 64), (1, 64)], (1,))

    Raises:
        ValueError, TypeError: a size, the activation, the scaling or the init is not as described above.
    """

    weights: Matrices
    biases: Vectors
    scaling: Scaling
    units: Int[Array, ""] | None
    activation: Activation = eqx.field(static=True)  # a function

    def __init__(
        self,
        *,
        in_size: int,
        out_size: int,
        width_size: int | Padded,
        depth: int,
        activation: str | Activation | Callable[[Array], Array] = "relu",
        bias: bool = False,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        self.activation = find_activation(activation)
        sizes = [in_size, *[width_size] * require_size(depth, "depth"), out_size]
        parts = build_dense(sizes, self.activation, bias=bias, scaling=scaling, init=init, key=key, dtype=dtype)
        self.weights, self.biases, self.scaling = parts
        self.units = units_of(width_size)
