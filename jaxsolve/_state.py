"""Networks of Equinox with a state, such as the statistics of batch normalisation."""

import inspect
from typing import Any

import equinox as eqx
import jax


FREEZE = (
    "freeze it: frozen = eqx.nn.inference_mode(net), and give js.nets.Function(lambda net, x: net(x, state)[0], frozen)"
)


def takes_state(net: Any) -> bool:
    """Whether a network is to be called with a state: not one that brings it along, as a closure."""
    is_index = lambda leaf: isinstance(leaf, eqx.nn.StateIndex)
    if not any(map(is_index, jax.tree.leaves(net, is_leaf=is_index))):
        return False
    if isinstance(net, eqx.nn.StatefulLayer):
        return net.is_stateful()  # of a chain, whether one of its layers is
    arguments = inspect.signature(net).parameters
    named = [one for one in arguments.values() if one.kind is not one.VAR_KEYWORD and one.default is one.empty]
    # One sample, and no more: what has a default, or is bound by a `Partial`, is brought along.
    return len([one for one in named if one.kind is not one.KEYWORD_ONLY or one.name == "state"]) > 1
