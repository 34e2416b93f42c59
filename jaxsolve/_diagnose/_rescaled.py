"""A trainable network with a multiplied change of outputs, or its linearization."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree, Shaped

from .. import nets
from .._core import Problem
from .._programs import both_ways
from ..nets._internal import copy_state, Fixed


class Rescaled(eqx.Module):
    """f_0(x) + scale (f(x) - f_0(x)), or its linearization f_0(x) + scale J_0(x) (theta - theta_0).

    Its parameters are those of the network inside, with their own rates.

    Attributes:
        net: the network.
        start: theta_0 as a list of leaves, since `eqx.nn.inference_mode` would look for layers in a network.
        scale: the multiplier of the change of outputs.
        linear: whether to linearize.
    """

    net: Any
    start: Fixed
    scale: Fixed
    linear: bool = eqx.field(static=True)  # changes the program

    def __call__(self, x: PyTree[Shaped[Array, "..."]], state: Any = None) -> Any:
        """The output, with the state if the network has one."""
        if state is None:
            return self._seen(lambda net: (both_ways(net) if self.linear else net)(x))
        call = lambda net: net(x, copy_state(state))
        return self._seen(lambda net: call(net)[0]), call(self.net)[1]

    def _seen(self, call: Callable[[Any], Array]) -> Float[Array, "..."]:
        params, rest = nets.partition(self.net)
        scale = self.scale.arrays
        cast = lambda f: f.astype(scale.dtype)  # for a network that computes in bfloat16
        at = lambda p: cast(call(eqx.combine(p, rest)))
        before = jax.tree.unflatten(jax.tree.structure(params), self.start.arrays)
        if self.linear:
            direction = jax.tree.map(jnp.subtract, params, before)
            start, change = jax.jvp(at, (before,), (direction,))
        else:
            start = at(before)
            change = at(params) - start
        return start + scale * change


def inside(tree: PyTree) -> PyTree:
    """The tree inside a `Rescaled` network; any other tree unchanged."""
    return tree.net if isinstance(tree, Rescaled) else tree


def with_inside(tree: PyTree, new: PyTree) -> PyTree:
    """The tree with new parameters, placed inside if it is a `Rescaled` network."""
    return eqx.tree_at(inside, tree, new) if isinstance(tree, Rescaled) else new


def without_rescaling(problem: Problem) -> Problem:
    """The problem of the network itself, taken out of a `Rescaled` one."""
    return eqx.tree_at(lambda p: p.net, problem, inside(problem.net))


def rescaled(problem: Problem, *, scale: float, linear: bool = False) -> Problem:
    """The problem with its network rescaled around the current parameters."""
    start = jax.tree.leaves(problem.params)
    factor = jax.device_put(np.asarray(scale, start[0].dtype))  # compiles nothing
    return eqx.tree_at(lambda p: p.net, problem, Rescaled(problem.net, Fixed(start), Fixed(factor), linear))


def suited(optimizer: optax.GradientTransformation, net: Any) -> optax.GradientTransformation:
    """The optimizer for a network that may be `Rescaled`: masks and labels may be trees of the parameters inside.

    For any other network it is returned unchanged, since a descent also probes optimizers with arrays of its own.
    """
    if not isinstance(net, Rescaled):
        return optimizer

    def update(updates: PyTree, state: Any, params: PyTree = None, **more: Any) -> tuple[PyTree, Any]:
        found, state = optax.with_extra_args_support(optimizer).update(inside(updates), state, inside(params), **more)
        return with_inside(updates, found), state

    return optax.GradientTransformationExtraArgs(lambda params: optimizer.init(inside(params)), update)
