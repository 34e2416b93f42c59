"""Kernels summed over equal outputs, for networks with many outputs, by random projections."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key, PyTree, Shaped

from ..._checks import require_key, require_size
from ..._numerics import Inputs
from ...nets import partition
from ._empirical import empirical


class Projected(eqx.Module):
    r"""A network whose outputs are replaced by a few random projections R f(x)/sqrt(count), where R has random signs.

    The kernel of the projections, summed over them, is on average the sum over all outputs:
    $\sum_{a} K^g_{iaja} \approx \sum_{c} K_{icjc}$. It takes one backward pass per projection and not per output, of
    which a language model has millions. The variance of an entry is at most 2/count times the squared norm of its block
    $K_{i \cdot j \cdot}$ (Hutchinson 1990). With one key, two checkpoints are projected alike, so that the change of
    their kernels has no noise from two draws.

    Arguments:
        net: the network, with outputs of any shape.
        count: the number of projections.
        key: random key of the signs.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=3, out_size=200, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> x = jax.random.normal(jax.random.key(1), (5, 3))
        >>> exact = js.kernels.empirical(net, x, trace=True).ntk
        >>> found = js.kernels.empirical(js.kernels.Projected(net, 16, key=jax.random.key(2)), x, trace=True).ntk
        >>> bool(js.kernels.relative_change(found, exact) < 0.3)
        True

    Raises:
        TypeError, ValueError: count is not an integer >= 1, or key is not a random key.
    """

    net: PyTree
    key: Key[Array, ""] | None
    count: int = eqx.field(static=True)  # a shape

    def __init__(self, net: PyTree, count: int, *, key: Key[Array, ""]):
        require_key(key)
        self.net, self.count, self.key = net, require_size(count, "count"), key

    def __call__(self, x: PyTree[Shaped[Array, "..."]]) -> Float[Array, " count"]:
        """The projections of the outputs for one sample."""
        assert self.key is not None  # without a key, this is a tree of rates
        f = self.net(x).reshape(-1)
        return jr.rademacher(self.key, (self.count, f.size), f.dtype) @ f / math.sqrt(self.count)

    def rates(self, eta: PyTree) -> PyTree:
        """The network's learning rates eta, in the structure of this module."""
        return eqx.tree_at(lambda projected: (projected.net, projected.key), self, (eta, None))


class Trace(eqx.Module):
    """The kernel of a network summed over equal outputs: exact, or by random projections.

    Attributes:
        projections: the number of projections; None takes all outputs.
        key: random key of the projections.
    """

    projections: int | None = eqx.field(static=True)  # a shape
    key: Key[Array, ""]

    def __call__(self, net: PyTree, eta: PyTree, x: Inputs) -> Float[Array, "n n"]:
        projected, eta = self.of(net, eta)
        return empirical(projected, x, eta=eta, trace=True).ntk

    def by_parameter(self, net: PyTree, eta: PyTree, x: Inputs) -> list[Float[Array, "n n"]]:
        """Returns the contribution of each trainable array, in their order; zeros if outputs do not depend on it."""
        projected, eta = self.of(net, eta)
        found = empirical(projected, x, eta=eta, trace=True, by_layer=True)
        assert found.layers is not None
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(partition(projected)[0])]
        nothing = jnp.zeros_like(found.ntk)
        return [found.layers.get(jax.tree_util.keystr(path).removeprefix("."), nothing) for path in paths]

    def of(self, net: PyTree, eta: PyTree) -> tuple[PyTree, PyTree]:
        """Returns the network whose kernel is computed, and its learning rates."""
        if self.projections is None:
            return net, eta
        # Folded in, since others draw from the key, too.
        projected = Projected(net, self.projections, key=jr.fold_in(self.key, self.projections))
        return projected, projected.rates(eta)
