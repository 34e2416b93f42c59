"""The covariance of a network's outputs at given weights."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from ..._numerics import Inputs
from ._batches import function
from ._inputs import check_inputs


def empirical_nngp(net: Any, x1: Inputs, x2: Inputs | None = None) -> Float[Array, "n m"]:
    """1/c sum_a f_a(x1) f_a(x2) over the c outputs of a network: one draw, whose average is the NNGP.

    Its relative error is of order sqrt(1/c + 1/width): to estimate the NNGP of `js.kernels.infinite`, take a wide
    hidden layer as output, or average over networks from several keys.

    Arguments:
        net: a network of `js.nets`, an Equinox module that maps one sample, or `js.nets.Function(f, params)`.
        x1: inputs, shape (n, ...), or a dict or tuple of such.
        x2: other inputs, shape (m, ...); None takes x1.

    Example:
        >>> net = js.nets.Function(lambda w, x: w @ x, jnp.array([[1.0, 0.0], [0.0, 3.0]]))
        >>> js.kernels.empirical_nngp(net, jnp.eye(2)).tolist()
        [[0.5, 0.0], [0.0, 4.5]]

    Raises:
        ValueError: inputs do not fit the network or are not finite.
    """
    check_inputs(net, x1, x2)
    one = _outputs(net, x1)
    two = one if x2 is None else _outputs(net, x2)
    return one @ two.T / one.shape[1]


@eqx.filter_jit
def _outputs(net: Any, x: Inputs) -> Float[Array, "n out"]:
    params, outputs = function(net)
    return outputs(params, x)
