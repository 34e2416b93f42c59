"""Linear networks, whose gradient flow has closed forms."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Int, Key

from .._checks import require_size
from ._activations import Activation, linear
from ._dense import AbstractDense, build_dense, units_of
from ._init import AbstractInit, Gaussian, Matrices, Vectors
from ._padded import Padded
from ._scaling import Scaling, ScalingRule


class TwoLayerLinear(AbstractDense):
    """f(x) = gamma m_2 u^T (m_1 W x): one hidden layer, no activation, no biases.

    Closed forms of its gradient flow: `js.theory.TwoLayerLine`, `js.theory.Balanced`, and `js.theory.exact`, which
    chooses one.

    Arguments:
        in_size: inputs d.
        out_size: outputs c.
        width_size: hidden units h; may be `Padded`, as for `MLP`.
        scaling, init, key, dtype: as for `MLP`.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=5, width_size=100, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> net(jnp.ones(5)).shape
        (1,)

    Raises:
        ValueError, TypeError: a size, the scaling or the init is not as described above.
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
        out_size: int = 1,
        width_size: int | Padded,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        sizes = [in_size, width_size, out_size]
        self.weights, self.biases, self.scaling = build_dense(
            sizes, linear, bias=False, scaling=scaling, init=init, key=key, dtype=dtype
        )
        self.units, self.activation = units_of(width_size), linear


class DeepLinear(AbstractDense):
    """A linear network with `depth` hidden layers of one width: no activation, no biases. Arguments as for `MLP`.

    `js.theory.DeepBalanced` is its gradient flow in closed form, on whitened inputs and from a balanced start that
    shares the singular vectors of the target.

    Example:
        >>> net = js.nets.DeepLinear(
        ...     in_size=3, out_size=1, width_size=4, depth=2, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> [w.shape for w in net.weights]
        [(4, 3), (4, 4), (1, 4)]
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
        out_size: int = 1,
        width_size: int | Padded,
        depth: int,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        sizes = [in_size, *[width_size] * require_size(depth, "depth"), out_size]
        self.weights, self.biases, self.scaling = build_dense(
            sizes, linear, bias=False, scaling=scaling, init=init, key=key, dtype=dtype
        )
        self.units, self.activation = units_of(width_size), linear


class SingleNeuron(AbstractDense):
    """f(x) = gamma m_2 a (m_1 w . x): one linear hidden neuron, one output (Kunin et al., section 3).

    Arguments: as for `TwoLayerLinear`, without width_size and out_size.

    Example:
        >>> net = js.nets.SingleNeuron(in_size=3, scaling=js.nets.Scaling.standard(), key=jax.random.key(0))
        >>> [w.shape for w in net.weights]
        [(1, 3), (1, 1)]

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}
    """

    weights: Matrices
    biases: Vectors
    scaling: Scaling
    activation: Activation = eqx.field(static=True)  # a function

    def __init__(
        self,
        *,
        in_size: int,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        self.weights, self.biases, self.scaling = build_dense(
            [in_size, 1, 1], linear, bias=False, scaling=scaling, init=init, key=key, dtype=dtype
        )
        self.activation = linear

    @property
    def units(self) -> Int[Array, ""] | None:
        """None: a single neuron is never padded."""
        return None
