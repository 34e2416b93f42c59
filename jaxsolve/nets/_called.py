"""Explains why a network cannot be called on one sample, and what to do; all verbs share these messages."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._checks import attempt, see
from .._numerics import in_words


def require_adapted(net: Any) -> None:
    """Raises TypeError for a Flax NNX model itself: its running averages would train, and calls change its counters."""
    if any(kind.__module__.startswith("flax.nnx") for kind in type(net).__mro__):
        raise TypeError(
            f"net is a Flax NNX model, {type(net).__name__}: give js.nets.from_nnx(model), or, for batch normalization "
            "in training mode, the network and state of js.nets.from_nnx_with_state(model)"
        )


def why_not_called(net: Any, sample: PyTree[jax.ShapeDtypeStruct], error: Exception) -> str:
    """A message that says how a network was called, how it failed, and what to give instead.

    Arguments:
        net: the network.
        sample: the shapes and dtypes of one sample.
        error: the exception that the call raised.
    """
    said = str(error) or type(error).__name__
    first = f"net is called as net(x) on one sample, here {in_words(sample)}, and fails: {said}. "
    if isinstance(sample, dict | tuple) and takes(_Apart(net), sample):
        stars = "**x" if isinstance(sample, dict) else "*x"
        return first + f"It does take them as arguments: give js.nets.Function(lambda net, x: net({stars}), net)"
    if type(error).__name__ == "ModifyScopeVariableError":  # from Flax, which need not be installed
        return f"{first}{TRAINING}"
    missing = isinstance(error, TypeError) and "argument" in said
    if missing or any(word in said for word in ("ropout", "key", "rng", "RNG", "PRNG")):
        return first + (
            "Bind all other arguments with js.nets.Function(lambda net, x: net(x, ...), net); give one with dropout "
            "in inference mode, by eqx.nn.inference_mode(net), model.eval() or train=False: js.Descent(..., noise=) "
            "trains with it, and kernels are those without dropout" + see("an-argument-is-missing")
        )
    if isinstance(sample, jax.ShapeDtypeStruct) and not jnp.issubdtype(sample.dtype, jnp.floating):
        if takes(net, jax.ShapeDtypeStruct(sample.shape, jnp.float32)):
            return first + "It does take floats: convert the inputs, as in x.astype(jnp.float32)"
    if takes(net, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), sample)):
        return first + (
            "It does take a batch: give a module of one sample, whose __call__(self, x) returns net(x[None])[0]; "
            "networks that mix the samples of a batch have no kernel" + see("one-sample")
        )
    return first + "Inputs are given samples first, each of the shape and dtype that it takes" + see("one-sample")


TRAINING = (
    "It changes its state, as batch normalization does in training: call it in inference mode, for example with "
    "js.nets.from_linen(module, variables, train=False) or model.eval()"
)


def with_state_words(out: Any) -> str:
    """A hint for a network that returns several things, perhaps its state among them; empty for others."""
    return f". If one of them is its state: {TRAINING[0].lower()}{TRAINING[1:]}" if isinstance(out, tuple) else ""


def takes(net: Any, sample: PyTree[jax.ShapeDtypeStruct]) -> bool:
    """True if a network can be called on one sample."""
    return attempt(eqx.filter_eval_shape, net, sample)[1] is None


class _Apart(eqx.Module):
    """A network that takes the arrays of a dict or tuple as arguments."""

    net: Any

    def __call__(self, x: Any) -> Any:
        return self.net(**x) if isinstance(x, dict) else self.net(*x)
