"""A network seen through a lens: other inputs, a multiplied change of its outputs, or its linearization."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree, Shaped

from .. import nets
from .._numerics import Inputs
from .._programs import both_ways


class Lens(nets.AbstractNetwork):
    """f_0(x) + scale (f(x) - f_0(x)), or its linearization f_0(x) + scale J_0(x) (theta - theta_0).

    It trains the parameters of the network inside, at their own rates.

    Attributes:
        net: the network.
        start: theta_0.
        scale: the multiplier of what the network has learnt.
        shape: of an input; empty if it is several arrays.
        outputs: their number.
        linear: whether to linearize.
    """

    net: Any
    start: PyTree
    scale: Float[Array, ""]
    shape: tuple[int, ...] = eqx.field(static=True)  # a shape
    outputs: int = eqx.field(static=True)  # a shape
    linear: bool = eqx.field(static=True)  # changes the program

    def __init__(
        self,
        net: Any,
        start: PyTree,
        scale: Any,
        shape: tuple[int, ...],
        outputs: int,
        *,
        linear: bool = False,
    ):
        self.net, self.start, self.scale = net, start, scale
        self.shape, self.outputs, self.linear = shape, outputs, linear

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def out_size(self) -> int:
        return self.outputs

    @property
    def scaling(self) -> nets.Scaling:
        inner = self.net.scaling if isinstance(self.net, nets.AbstractNetwork) else None
        return nets.Scaling([1.0], [1.0], [1.0]) if inner is None else inner

    def __call__(self, x: PyTree[Shaped[Array, "..."]]) -> Float[Array, "..."]:
        params, rest = nets.partition(self.net)
        cast = lambda f: f.astype(self.scale.dtype)  # of a network that computes in bfloat16
        at = lambda p: cast(eqx.combine(p, rest)(x))
        if self.linear:
            direction = jax.tree.map(jnp.subtract, params, self.start)
            start, change = jax.jvp(lambda p: cast(both_ways(eqx.combine(p, rest))(x)), (self.start,), (direction,))
        else:
            start = at(self.start)
            change = at(params) - start
        return start + self.scale * change

    def rates(self) -> PyTree:
        # The start and the scale are no parameters, and have no rates.
        nothing = jax.tree.map(lambda _: None, self.start)
        return Lens(nets.rates(self.net), nothing, None, self.shape, self.outputs, linear=self.linear)

    def conserved(self, params: PyTree, eta: PyTree) -> tuple[nets.Conserved, ...]:
        return ()


def inside(tree: PyTree) -> PyTree:
    """A tree of the parameters of a network that may have a lens as one of the network that it looks at."""
    return tree.net if isinstance(tree, Lens) else tree


def with_inside(tree: PyTree, new: PyTree) -> PyTree:
    """The tree with other parameters of the network that a lens, if there is one, looks at."""
    return eqx.tree_at(inside, tree, new) if isinstance(tree, Lens) else new


def through(net: Any, x: Inputs, out_size: int, *, scale: Any, linear: bool = False) -> Lens:
    """The network, with its present parameters as the start, through a lens."""
    start = nets.partition(net)[0]
    scale = jnp.asarray(scale, jax.tree.leaves(start)[0].dtype)
    shape = x.shape[1:] if eqx.is_array(x) else ()
    return Lens(net, start, scale, shape, out_size, linear=linear)


def suited(optimizer: optax.GradientTransformation, net: Any) -> optax.GradientTransformation:
    """The optimizer of a network that may have a lens: masks and labels may be trees of the parameters inside.

    What is no lens it takes as it is: a descent asks an optimizer with arrays of its own, too.
    """
    if not isinstance(net, Lens):
        return optimizer

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        found, state = optimizer.update(inside(updates), state, inside(params))
        return with_inside(updates, found), state

    return optax.GradientTransformation(lambda params: optimizer.init(inside(params)), update)
