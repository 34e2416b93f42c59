"""Dense networks: their layers and their construction."""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, Int, Key

from ._activations import Activation
from ._build import build, Parts
from ._init import AbstractInit
from ._layered import AbstractUnnormalized
from ._layers import AbstractLayer, Apply, Bias, Dense, Layers, Mask
from ._padded import Padded, require_unpadded
from ._scaling import Scaling, ScalingRule


MOST_LAYERS = 10_000


class AbstractDense(AbstractUnnormalized):
    """A dense network: z_1 = x, z_{l+1} = m_l W_l phi(z_l) + b_l with phi(z_1) = x; the output is gamma z_{L+1}.

    The base of `js.nets.MLP` and of the linear networks.

    Attributes:
        units: the number of neurons per hidden layer if the arrays are padded (`js.nets.Padded`); else None.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=5, out_size=1, width_size=8, depth=2, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> isinstance(net, js.nets.AbstractDense), net.in_shape, net.widths, net.out_size
        (True, (5,), (8, 8), 1)
    """

    activation: eqx.AbstractVar[Activation]
    units: eqx.AbstractVar[Int[Array, ""] | None]

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.weights[0].shape[1],)

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes of the hidden layers, including padding."""
        return tuple(w.shape[0] for w in self.weights[:-1])

    @property
    def padding(self) -> float | Float[Array, ""]:
        """The size of the trainable arrays divided by the size of the network's part of them; 1 without padding."""
        if self.units is None:
            return 1.0
        held = sum(leaf.size for leaf in (*self.weights, *self.biases))
        units, hidden = self.units.astype(self.weights[0].dtype), len(self.weights) - 1
        # First the first and the last matrix, then the square ones between hidden layers.
        own = units * (self.in_shape[0] + self.out_size) + (hidden - 1) * units**2
        if self.biases:
            own = own + hidden * units + self.out_size
        return held / own

    @property
    def layers(self) -> Layers:
        found: list[AbstractLayer] = []
        for index in range(len(self.weights)):
            if index:
                found.append(Apply(self.activation))
                if self.units is not None:
                    found.append(Mask())
            found.append(Dense(index))
            if self.biases:
                found.append(Bias(index))
        return tuple(found)


def build_dense(
    sizes: Sequence[Any],
    activation: Activation,
    *,
    bias: bool,
    scaling: Scaling | ScalingRule,
    init: AbstractInit,
    key: Key[Array, ""],
    dtype: Any,
) -> Parts:
    """Checks the arguments and draws the initial arrays of a dense network with these layer sizes, input first."""
    if len(sizes) > MOST_LAYERS + 1:
        raise ValueError(
            f"depth must give at most {MOST_LAYERS} weight matrices, since each is compiled separately; got "
            f"{len(sizes) - 1}"
        )
    names = ("in_size", *("width_size",) * (len(sizes) - 2), "out_size")
    checked = [
        size if name == "width_size" and isinstance(size, Padded) else require_unpadded(size, name)
        for size, name in zip(sizes, names, strict=True)
    ]
    # Arrays are (out, in), while sizes run from the input to the output.
    pairs = [(out, into) for into, out in itertools.pairwise(checked)]
    # At a padded width the arrays have `size` neurons, and the network has `units`.
    shapes = [tuple(one.size if isinstance(one, Padded) else one for one in pair) for pair in pairs]
    kept = [tuple(one.units if isinstance(one, Padded) else one for one in pair) for pair in pairs]
    return build(shapes, activation, bias=bias, scaling=scaling, init=init, key=key, dtype=dtype, kept=kept)


def units_of(width: int | Padded) -> Int[Array, ""] | None:
    """The `units` of a network of this width."""
    return width.units if isinstance(width, Padded) else None
