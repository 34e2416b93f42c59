"""Networks of Equinox with a state, such as the statistics of batch normalization."""

import inspect
from typing import Any

import equinox as eqx
import jax


FREEZE = (
    "freeze it: frozen = eqx.nn.inference_mode(net), and give js.nets.Function(lambda net, x: net(x, state)[0], frozen)"
)


def takes_state(net: Any) -> bool:
    """True if a network is to be called with a state; False if it brings one along, as a closure does."""
    is_index = lambda leaf: isinstance(leaf, eqx.nn.StateIndex)
    if not any(map(is_index, jax.tree.leaves(net, is_leaf=is_index))):
        return False
    if isinstance(net, eqx.nn.StatefulLayer):
        return net.is_stateful()  # of a chain, whether one of its layers is
    arguments = inspect.signature(net).parameters.values()
    positional = [one for one in arguments if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]
    needed = [one for one in positional if one.default is one.empty]
    # A `Partial` may bring it along.
    return len(needed) > 1 or any(a.name == "state" and not isinstance(a.default, eqx.nn.State) for a in arguments)
