"""Equinox networks with a state, such as the statistics of batch normalization."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree, Shaped


FREEZE = (
    "freeze it: frozen = eqx.nn.inference_mode(net), and give js.nets.Function(lambda net, x: net(x, state)[0], frozen)"
)


def takes_state(net: Any) -> bool:
    """True if a network must be called with a state; False if it carries its own, as a closure does."""
    is_index = lambda leaf: isinstance(leaf, eqx.nn.StateIndex)
    if not any(map(is_index, jax.tree.leaves(net, is_leaf=is_index))):
        return False
    if isinstance(net, eqx.nn.StatefulLayer):
        return net.is_stateful()  # for a chain, whether one of its layers is
    arguments = inspect.signature(net).parameters.values()
    positional = [one for one in arguments if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]
    needed = [one for one in positional if one.default is one.empty]
    # A `Partial` may carry the state.
    return len(needed) > 1 or any(a.name == "state" and not isinstance(a.default, eqx.nn.State) for a in arguments)


def copy_state(state: eqx.nn.State) -> eqx.nn.State:
    """A copy of the state for another call: Equinox lets each state be used only once."""
    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(structure, leaves)


def in_training(net: Any) -> Any:
    """The network in training mode, normalized with the statistics of its batch, without dropout."""
    is_dropout = lambda node: isinstance(node, eqx.nn.Dropout)
    still = lambda node: eqx.nn.inference_mode(node) if is_dropout(node) else node
    return jax.tree.map(still, eqx.nn.inference_mode(net, False), is_leaf=is_dropout)


class Frozen(eqx.Module):
    """A network with state in inference mode: a function of one sample, with a fixed state.

    Attributes:
        net: the network.
        state: its state, in which no array trains.
    """

    net: Any
    state: eqx.nn.State

    def __call__(self, x: PyTree[Shaped[Array, "..."]]) -> Float[Array, "..."]:
        return eqx.nn.inference_mode(self.net)(x, self.state)[0]

    def rates(self, eta: PyTree) -> PyTree:
        """The learning rates eta of the network, as a pytree shaped like this module."""
        return Frozen(eta, jax.tree.map(lambda _: None, self.state))


class Stateful(eqx.Module):
    """A network of another library whose statistics are in a state; in training they are those of its batch.

    Attributes:
        f: maps parameters and one sample to the output and the statistics. Its keywords are the statistics, whether
            they stay fixed (`inference`), and a key for dropout or None.
        params: its parameters.
        statistics: the index of the statistics in the state.
        inference: whether the statistics stay fixed; `eqx.nn.inference_mode` sets it.
    """

    f: Callable[..., tuple[Array, PyTree]] = eqx.field(static=True)  # a function
    params: PyTree
    statistics: eqx.nn.StateIndex
    inference: bool = False

    def __call__(self, x: Any, state: eqx.nn.State, *, key: Any = None) -> tuple[Array, eqx.nn.State]:
        """The output for one sample, with dropout if there is a key, and the state."""
        known = state.get(self.statistics)
        out, statistics = self.f(self.params, x, statistics=known, inference=self.inference, key=key)
        return out, state.set(self.statistics, statistics)
