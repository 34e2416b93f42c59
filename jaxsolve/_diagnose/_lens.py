"""A network seen through a lens: other inputs, a multiplied change of its outputs, or its linearization."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree, Shaped

from .. import nets
from .._core import Problem
from .._numerics import Inputs
from .._programs import both_ways
from ..nets._internal import copy_state


class Lens(nets.AbstractNetwork):
    """f_0(x) + scale (f(x) - f_0(x)), or its linearization f_0(x) + scale J_0(x) (theta - theta_0).

    It trains the parameters of the network inside, at their own rates.

    Attributes:
        net: the network.
        start: theta_0, leaf by leaf: in a tree of networks `eqx.nn.inference_mode` would look for layers.
        scale: the multiplier of what the network has learnt.
        shape: of an input; empty if it is several arrays.
        outputs: their number.
        linear: whether to linearize.
    """

    net: Any
    start: PyTree[Array]
    scale: Float[Array, ""]
    shape: tuple[int, ...] = eqx.field(static=True)  # a shape
    outputs: int = eqx.field(static=True)  # a shape
    linear: bool = eqx.field(static=True)  # changes the program

    def __init__(
        self,
        net: Any,
        start: PyTree[Array],
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

    def __call__(self, x: PyTree[Shaped[Array, "..."]], state: Any = None) -> Any:
        """The output, and the state of a network that has one."""
        if state is None:
            return self._seen(lambda net: (both_ways(net) if self.linear else net)(x))
        call = lambda net: net(x, copy_state(state))
        return self._seen(lambda net: call(net)[0]), call(self.net)[1]

    def _seen(self, call: Callable[[Any], Array]) -> Float[Array, "..."]:
        params, rest = nets.partition(self.net)
        cast = lambda f: f.astype(self.scale.dtype)  # of a network that computes in bfloat16
        at = lambda p: cast(call(eqx.combine(p, rest)))
        before = jax.tree.unflatten(jax.tree.structure(params), self.start)
        if self.linear:
            direction = jax.tree.map(jnp.subtract, params, before)
            start, change = jax.jvp(at, (before,), (direction,))
        else:
            start = at(before)
            change = at(params) - start
        return start + self.scale * change

    def rates(self) -> PyTree:
        # The start and the scale are no parameters, and have no rates.
        nothing: Any = [None] * len(self.start)
        return Lens(nets.rates(self.net), nothing, None, self.shape, self.outputs, linear=self.linear)

    def conserved(self, params: PyTree, eta: PyTree) -> tuple[nets.Conserved, ...]:
        return ()


def inside(tree: PyTree) -> PyTree:
    """A tree of the parameters of a network that may have a lens as one of the network that it looks at."""
    return tree.net if isinstance(tree, Lens) else tree


def with_inside(tree: PyTree, new: PyTree) -> PyTree:
    """The tree with other parameters of the network that a lens, if there is one, looks at."""
    return eqx.tree_at(inside, tree, new) if isinstance(tree, Lens) else new


def without_lens(problem: Problem) -> Problem:
    """The problem of the network that a lens, if there is one, looks at."""
    return eqx.tree_at(lambda p: p.net, problem, inside(problem.net))


def through(net: Any, x: Inputs, out_size: int, *, scale: Any, linear: bool = False) -> Lens:
    """The network, with its present parameters as the start, through a lens."""
    start = jax.tree.leaves(nets.partition(net)[0])
    scale = jnp.asarray(scale, start[0].dtype)
    shape = x.shape[1:] if eqx.is_array(x) else ()
    return Lens(net, start, scale, shape, out_size, linear=linear)


def suited(optimizer: optax.GradientTransformation, net: Any) -> optax.GradientTransformation:
    """The optimizer of a network that may have a lens: masks and labels may be trees of the parameters inside.

    What is no lens it takes as it is: a descent asks an optimizer with arrays of its own, too.
    """
    if not isinstance(net, Lens):
        return optimizer

    def update(updates: PyTree, state: Any, params: PyTree = None, **more: Any) -> tuple[PyTree, Any]:
        found, state = optax.with_extra_args_support(optimizer).update(inside(updates), state, inside(params), **more)
        return with_inside(updates, found), state

    return optax.GradientTransformationExtraArgs(lambda params: optimizer.init(inside(params)), update)
