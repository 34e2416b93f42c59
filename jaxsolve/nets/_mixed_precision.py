"""Networks that compute in half precision with parameters in single precision."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from .._checks import describe
from ._network import partition


class MixedPrecision(eqx.Module):
    """A network with float32 parameters that casts them, and its inputs, to half precision in every call.

    Use it to solve, diagnose and observe a network with bfloat16 parameters: the results describe what it computes,
    accurate to about eps of its dtype. It trains as in mixed precision: pure bfloat16 would lose steps of less than
    2^-9 of a parameter, and here they are kept.

    Arguments:
        net: a network acting on one sample, with parameters of any floating-point dtype.
        dtype: the dtype it computes in, `jnp.bfloat16` or `jnp.float16`.

    Example:
        >>> import equinox as eqx
        >>> net = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0), dtype=jnp.bfloat16)
        >>> mixed = js.nets.MixedPrecision(net, jnp.bfloat16)
        >>> x = jnp.eye(2, dtype=jnp.float32)
        >>> problem = js.Problem(mixed, x, x[:, :1])
        >>> print(net.layers[0].weight.dtype, problem.dtype, mixed(x[0]).dtype)
        bfloat16 float32 float32

    Raises:
        TypeError: net is not callable.
        ValueError: dtype is neither of the two.
    """

    net: Any
    dtype: Any = eqx.field(static=True)

    def __init__(self, net: Any, dtype: Any):
        if not callable(net):
            raise TypeError(f"net must be a network acting on one sample, got {describe(net)}")
        if dtype not in (jnp.bfloat16, jnp.float16):
            raise ValueError(f"dtype must be jnp.bfloat16 or jnp.float16, got {describe(dtype)}")
        self.net, self.dtype = _cast(net, jnp.float32), jnp.dtype(dtype)

    def __call__(self, x: PyTree[Shaped[Array, "..."]]) -> Float[Array, "..."]:
        half = lambda leaf: leaf.astype(self.dtype) if eqx.is_inexact_array(leaf) else leaf
        return _cast(self.net, self.dtype)(jax.tree.map(half, x)).astype(jnp.float32)


def _cast(net: Any, dtype: Any) -> Any:
    params, rest = partition(net)
    return eqx.combine(jax.tree.map(lambda leaf: leaf.astype(dtype), params), rest)
