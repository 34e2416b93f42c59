"""Why a network cannot be called on one sample, and what to do: one place for the sentences of all verbs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._checks import attempt


def why_not_called(net: Any, sample: jax.ShapeDtypeStruct, error: Exception) -> str:
    """A sentence on what a network was called with, how it failed, and what to give instead.

    Arguments:
        net: the network.
        sample: the shape and dtype of one sample.
        error: what the call raised.
    """
    said = str(error) or type(error).__name__
    first = (
        f"net is called as net(x) on one sample, here of shape {sample.shape} and dtype {sample.dtype}, and fails: "
        f"{said}. "
    )
    missing = isinstance(error, TypeError) and "argument" in said
    if missing or any(word in said for word in ("ropout", "key", "rng", "RNG", "PRNG")):
        return first + (
            "Give it with all other arguments bound, by js.nets.Function(lambda net, x: net(x, ...), net); one with "
            "dropout in inference mode, by eqx.nn.inference_mode(net), model.eval() or train=False: js.Descent(..., "
            "noise=) trains with it, and kernels are those without"
        )
    integers = not jnp.issubdtype(sample.dtype, jnp.floating)
    if integers and takes(net, jax.ShapeDtypeStruct(sample.shape, jnp.float32)):
        return first + "It does take floats: convert the inputs, as in x.astype(jnp.float32)"
    if takes(net, jax.ShapeDtypeStruct((1, *sample.shape), sample.dtype)):
        return first + (
            "It does take a batch: give a module of one sample, whose __call__(self, x) returns net(x[None])[0]; "
            "networks that mix the samples of a batch have no kernel"
        )
    return first + "Inputs are given samples first, each of the shape and dtype that it takes"


def takes(net: Any, sample: jax.ShapeDtypeStruct) -> bool:
    """Returns whether a network can be called on one sample."""
    return attempt(eqx.filter_eval_shape, net, sample)[1] is None
