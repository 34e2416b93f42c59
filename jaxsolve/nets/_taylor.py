"""Taylor series of networks in their parameters."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._checks import describe, require_size
from .._programs import both_ways
from ._network import Fixed, partition


class Taylor(eqx.Module):
    """The Taylor series of a network in its parameters.

    Attributes:
        net: the network, whose parameters train.
        start: the parameters that the series expands about, leaf by leaf.
        degree: the highest power.
    """

    net: Any
    start: Fixed
    degree: int = eqx.field(static=True)  # changes the program

    def __call__(self, x: Any) -> Array:
        """The output for one sample."""
        params, rest = partition(self.net)
        start = jax.tree.unflatten(jax.tree.structure(params), self.start.arrays)
        step = jax.tree.map(jnp.subtract, params, start)
        terms = _derivatives(lambda p: both_ways(eqx.combine(p, rest))(x), step, self.degree)(start)
        return sum((term / math.factorial(k) for k, term in enumerate(terms[1:], 1)), terms[0])


def taylor_expand(net: Any, degree: int) -> Taylor:
    r"""The Taylor series of a network about its current parameters, as a network that starts at them.

    $f_0 + \sum_k \partial_\theta^k f [(\theta - \theta_0)^k] / k!$ up to k = degree. Degree 1 is the linearized
    network, whose training `js.FrozenKernel()` has in closed form; degree 2 is the first whose kernel changes.
    Parameters and rates are those of the network. Kinks contribute nothing: relu counts as straight on either side.

    Arguments:
        net: a network of `js.nets`, an Equinox module acting on one sample, or `js.nets.Function(f, params)`.
        degree: 1 or more. The work grows like 2^degree.

    Example:
        >>> import equinox as eqx
        >>> net = js.nets.Function(lambda w, x: jnp.exp(w * x)[None], jnp.zeros(()))
        >>> quadratic = js.nets.taylor_expand(net, 2)
        >>> there = eqx.tree_at(lambda series: series.net.params, quadratic, jnp.ones(()))  # 1 + 1 + 1/2
        >>> there(jnp.ones(())).tolist()
        [2.5]

    Raises:
        TypeError: net is not a network with parameters, or degree is not an integer.
        ValueError: degree is below 1.

    Reference:
        @inproceedings{bai2020taylorized, author={Y. Bai and B. Krause and H. Wang and C. Xiong and R. Socher},
          title={Taylorized training: Towards better approximation of neural network training at finite width},
          year={2020}, note={arXiv 2002.04010}}
    """
    if not callable(net) or not jax.tree.leaves(partition(net)[0]):
        raise TypeError(f"net must be a network of js.nets or an Equinox module with arrays, got {describe(net)}")
    return Taylor(net, Fixed(jax.tree.leaves(partition(net)[0])), require_size(degree, "degree"))


def _derivatives(f: Callable[[PyTree], Array], step: PyTree, degree: int) -> Callable[[PyTree], tuple[Array, ...]]:
    """f and its first `degree` derivatives along a step."""
    if degree == 0:
        return lambda p: (f(p),)
    lower = _derivatives(f, step, degree - 1)

    def found(p):
        values, slopes = jax.jvp(lower, (p,), (step,))
        return *values, slopes[-1]

    return found
