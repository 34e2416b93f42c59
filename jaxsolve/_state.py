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
    arguments = inspect.signature(net).parameters
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in arguments.values() if one.kind in plain and one.default is one.empty]
    return "state" in arguments or len(needed) > 1
